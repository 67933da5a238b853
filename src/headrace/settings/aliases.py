"""What other brokers call our settings: flags of nsqd and nsqlookupd, and RocketMQ's ``broker.conf`` keys.

Every key of theirs that we know stands here once, under one of three headings: it becomes a setting of ours, it needs
none (and the note says why), or Headrace has nothing for it yet (and importing says so aloud; a key that protects the
broker is refused, because a broker that silently lost its lock is worse than no broker). A key that is not here is
unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Fate(Enum):
    """What importing does with a key that becomes no setting."""

    NEEDLESS = "not needed"
    MISSING = "not imported"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Alias:
    """A key that becomes the setting ``path``; ``form`` names how its text is read (see ``foreign.READERS``)."""

    path: str
    form: str = "text"


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A key that becomes no setting, and why. Values in ``harmless`` ask for nothing we lack."""

    fate: Fate
    note: str
    harmless: tuple[str, ...] = ("", "false")


@dataclass(frozen=True, slots=True)
class System:
    """One other broker: its name and what its keys, as its users spell them, become."""

    name: str
    keys: Mapping[str, Alias | Unmapped]

    def find(self, key: str) -> Alias | Unmapped | None:
        """Return what a key becomes; case, dashes and underscores do not count."""
        spelling = self.spellings().get(canonical(key))
        return self.keys[spelling] if spelling else None

    def spellings(self) -> Mapping[str, str]:
        """Return the spelling of every key by its canonical one."""
        return {canonical(key): key for key in self.keys}


def canonical(key: str) -> str:
    """Spell a key without regard to case, dashes and underscores: ``max-rdy-count`` -> ``maxrdycount``."""
    return key.lower().replace("-", "").replace("_", "")


def unmapped(fate: Fate, note: str, *keys: str) -> dict[str, Alias | Unmapped]:
    """Give several keys the same fate."""
    return {key: Unmapped(fate, note) for key in keys}


OTHER_FILE: Final = "what that file sets counts as well: import it by itself, and add by hand what else stands here"
NO_LOCK: Final = "Headrace has no TLS, and no authentication for NSQ yet; importing without it would open the broker"

NSQD: Final = System(
    "nsqd",
    {
        "node-id": Alias("broker.node_id"),
        "id": Alias("broker.node_id"),
        "tcp-address": Alias("nsq.tcp_address", "address"),
        "http-address": Alias("nsq.http_address", "address"),
        "broadcast-address": Alias("nsq.broadcast_address"),
        "broadcast-tcp-port": Alias("nsq.broadcast_tcp_port"),
        "broadcast-http-port": Alias("nsq.broadcast_http_port"),
        "lookupd-tcp-address": Alias("nsq.lookupd_addresses"),
        "nsqlookupd-tcp-addresses": Alias("nsq.lookupd_addresses"),
        "data-path": Alias("store.data_dir"),
        "max-bytes-per-file": Alias("store.segment_bytes"),
        "sync-timeout": Alias("store.flush_interval_ms", "duration"),
        "msg-timeout": Alias("nsq.msg_timeout_ms", "duration"),
        "max-msg-timeout": Alias("nsq.max_msg_timeout_ms", "duration"),
        "max-msg-size": Alias("nsq.max_message_bytes"),
        "max-message-size": Alias("nsq.max_message_bytes"),
        "max-req-timeout": Alias("nsq.max_req_timeout_ms", "duration"),
        "max-body-size": Alias("nsq.max_body_bytes"),
        "max-heartbeat-interval": Alias("nsq.max_heartbeat_interval_ms", "duration"),
        "max-rdy-count": Alias("nsq.max_rdy_count"),
        "max-output-buffer-size": Alias("nsq.max_output_buffer_bytes"),
        "max-output-buffer-timeout": Alias("nsq.max_output_buffer_timeout_ms", "duration"),
        "min-output-buffer-timeout": Alias("nsq.min_output_buffer_timeout_ms", "duration"),
        "output-buffer-timeout": Alias("nsq.output_buffer_timeout_ms", "duration"),
        "max-channel-consumers": Alias("nsq.max_channel_consumers"),
        "max-deflate-level": Alias("nsq.max_deflate_level"),
        **unmapped(
            Fate.MISSING,
            "Headrace does not measure latency percentiles per channel",
            "e2e-processing-latency-percentile",
            "e2e-processing-latency-percentiles",
        ),
        "log-level": Alias("log.level", "level"),
        **unmapped(
            Fate.NEEDLESS,
            "every message goes to the commit log, which is read from memory while it is recent",
            "mem-queue-size",
        ),
        **unmapped(Fate.NEEDLESS, "flushes are driven by store.durability and store.flush_interval_ms", "sync-every"),
        **unmapped(
            Fate.NEEDLESS,
            "time-outs are kept in order, so there is no scan to tune",
            "queue-scan-interval",
            "queue-scan-refresh-interval",
            "queue-scan-selection-count",
            "queue-scan-worker-pool-max",
            "queue-scan-dirty-percent",
        ),
        **unmapped(
            Fate.NEEDLESS,
            "has no effect on a broker",
            "version",
            "verbose",
            "worker-id",
            "log-prefix",
        ),
        **unmapped(Fate.REFUSED, OTHER_FILE, "config"),
        **unmapped(
            Fate.NEEDLESS,
            "only used towards registries and authentication servers",
            "http-client-connect-timeout",
            "http-client-request-timeout",
        ),
        **unmapped(Fate.NEEDLESS, "the window is ten minutes", "e2e-processing-latency-window-time"),
        **unmapped(Fate.NEEDLESS, "clients choose; without their wish nothing is compressed", "deflate", "snappy"),
        **unmapped(Fate.MISSING, "follows max-req-timeout", "max-defer-timeout"),
        "statsd-address": Alias("nsq.statsd_address", "local-address"),
        "statsd-interval": Alias("nsq.statsd_interval_ms", "duration"),
        "statsd-mem-stats": Alias("nsq.statsd_mem_stats", "bool"),
        "statsd-prefix": Alias("nsq.statsd_prefix"),
        "statsd-udp-packet-size": Alias("nsq.statsd_udp_packet_bytes"),
        "statsd-exclude-ephemeral": Alias("nsq.statsd_exclude_ephemeral", "bool"),
        **unmapped(
            Fate.MISSING,
            "Headrace does not prefer consumers of its own zone",
            "topology-region",
            "topology-zone",
            "enable-experiment",
        ),
        **unmapped(Fate.MISSING, "Headrace has no HTTPS listener yet", "https-address"),
        **unmapped(
            Fate.REFUSED,
            NO_LOCK,
            "tls-cert",
            "tls-key",
            "tls-client-auth-policy",
            "tls-root-ca-file",
            "tls-required",
            "auth-http-address",
            "auth-http-addresses",
        ),
        **unmapped(Fate.NEEDLESS, "says nothing without a certificate", "tls-min-version"),
        **unmapped(Fate.NEEDLESS, "says nothing without an authentication server", "auth-http-request-method"),
    },
)

ROCKETMQ: Final = System(
    "RocketMQ",
    {
        "brokerName": Alias("broker.name"),
        "storePathRootDir": Alias("store.data_dir"),
        # RocketMQ 3 and SmartGo spell it with one p, SmartGo's manual also with a slip of the pen.
        "mappedFileSizeCommitLog": Alias("store.segment_bytes"),
        "mapedFileSizeCommitLog": Alias("store.segment_bytes"),
        "mapedFileSizieCommitLog": Alias("store.segment_bytes"),
        "mappedFileSizeConsumeQueue": Alias("store.queue_file_bytes"),
        "mapedFileSizeConsumeQueue": Alias("store.queue_file_bytes"),
        "maxHashSlotNum": Alias("store.index_slots"),
        "maxIndexNum": Alias("store.index_entries"),
        "flushDiskType": Alias("store.durability", "flush-type"),
        "flushIntervalCommitLog": Alias("store.flush_interval_ms"),
        **unmapped(
            Fate.MISSING,
            "Headrace does not remove old messages yet",
            "fileReservedTime",
            "deleteWhen",
            "diskMaxUsedSpaceRatio",
        ),
        "messageDelayLevel": Alias("broker.delay_levels"),
        "namesrvAddr": Alias("broker.registries"),
        "flushDelayOffsetInterval": Alias("broker.delay_offsets_interval_ms"),
        "transactionTimeOut": Alias("broker.transaction_timeout_ms"),
        "transactionCheckMax": Alias("broker.transaction_check_max"),
        "transactionCheckInterval": Alias("broker.transaction_check_interval_ms"),
        "flushConsumerOffsetInterval": Alias("broker.offsets_interval_ms"),
        "brokerClusterName": Alias("remoting.cluster"),
        "brokerIP1": Alias("remoting.advertised_address"),
        "listenPort": Alias("remoting.address", "listen-port"),
        "autoCreateTopicEnable": Alias("remoting.auto_create_topics"),
        "autoCreateSubscriptionGroup": Alias("remoting.auto_create_groups"),
        "defaultTopicQueueNums": Alias("remoting.default_topic_queues", "template-queues"),
        "maxMessageSize": Alias("remoting.max_message_bytes"),
        "syncFlushTimeout": Alias("remoting.flush_timeout_ms"),
        "maxTransferCountOnMessageInMemory": Alias("remoting.max_pull_messages"),
        "maxTransferBytesOnMessageInMemory": Alias("remoting.max_pull_bytes"),
        "storeReplyMessageEnable": Alias("remoting.store_replies"),
        "brokerPermission": Unmapped(Fate.MISSING, "mqadmin updateBrokerConfig sets it until the next start", ("6",)),
        "enablePropertyFilter": Unmapped(Fate.NEEDLESS, "SQL92 filters are always on", ("true",)),
        **unmapped(Fate.NEEDLESS, "messages can always be traced", "traceTopicEnable", "traceOn"),
        "messageIndexEnable": Unmapped(Fate.NEEDLESS, "keys are always indexed"),
        "longPollingEnable": Unmapped(
            Fate.MISSING, "mqadmin updateBrokerConfig sets it until the next start", ("true",)
        ),
        **unmapped(
            Fate.NEEDLESS,
            "the commit log is preallocated and flushed in groups",
            "flushCommitLogTimed",
            "flushCommitLogLeastPages",
            "flushCommitLogThoroughInterval",
            "flushIntervalConsumeQueue",
            "flushConsumeQueueLeastPages",
            "flushConsumeQueueThoroughInterval",
            "transientStorePoolEnable",
            "transientStorePoolSize",
            "warmMapedFileEnable",
            "warmMappedFileEnable",
            "useReentrantLockWhenPutMessage",
            "osPageCacheBusyTimeOutMills",
            "cleanFileForciblyEnable",
            "destroyMapedFileIntervalForcibly",
            "deleteCommitLogFilesInterval",
            "deleteConsumeQueueFilesInterval",
            "redeleteHangedFileInterval",
            "cleanResourceInterval",
            "checkCRCOnRecover",
            "commitIntervalCommitLog",
            "commitCommitLogLeastPages",
            "commitCommitLogThoroughInterval",
            "fastFailIfNoBufferInStorePool",
            "flushLeastPagesWhenWarmMapedFile",
            "accessMessageInMemoryMaxRatio",
            "diskFallRecorded",
            "messageIndexSafe",
            "debugLockEnable",
            "duplicationEnable",
            "putMsgIndexHightWater",
        ),
        **unmapped(
            Fate.NEEDLESS,
            "Headrace has one event loop, not thread pools",
            "sendMessageThreadPoolNums",
            "pullMessageThreadPoolNums",
            "adminBrokerThreadPoolNums",
            "clientManageThreadPoolNums",
            "sendThreadPoolQueueCapacity",
            "pullThreadPoolQueueCapacity",
            "waitTimeMillsInSendQueue",
            "serverWorkerThreads",
            "serverSelectorThreads",
            "putThreadPoolQueueCapacity",
            "replyThreadPoolQueueCapacity",
            "queryThreadPoolQueueCapacity",
            "clientManagerThreadPoolQueueCapacity",
            "consumerManagerThreadPoolQueueCapacity",
            "heartbeatThreadPoolQueueCapacity",
            "endTransactionPoolQueueCapacity",
            "queryMessageThreadPoolNums",
            "consumerManageThreadPoolNums",
            "heartbeatThreadPoolNums",
            "endTransactionThreadPoolNums",
            "processReplyMessageThreadPoolNums",
            "putMessageFutureThreadPoolNums",
            "waitTimeMillsInPullQueue",
            "waitTimeMillsInHeartbeatQueue",
            "waitTimeMillsInTransactionQueue",
            "brokerFastFailureEnable",
            "serverCallbackExecutorThreads",
            "clientCallbackExecutorThreads",
            "clientWorkerThreads",
            "enableScheduleAsyncDeliver",
            "scheduleAsyncDeliverMaxPendingLimit",
            "scheduleAsyncDeliverMaxResendNum2Blocked",
        ),
        **unmapped(
            Fate.NEEDLESS,
            "connections have bounds of their own: remoting.write_high_water_bytes and others",
            "serverOnewaySemaphoreValue",
            "serverAsyncSemaphoreValue",
            "serverSocketSndBufSize",
            "serverSocketRcvBufSize",
            "serverSocketBacklog",
            "serverPooledByteBufAllocatorEnable",
            "useEpollNativeSelector",
            "writeBufferHighWaterMark",
            "writeBufferLowWaterMark",
            "clientOnewaySemaphoreValue",
            "clientAsyncSemaphoreValue",
            "clientSocketSndBufSize",
            "clientSocketRcvBufSize",
            "clientPooledByteBufAllocatorEnable",
            "clientCloseSocketIfTimeout",
            "clientChannelMaxIdleTimeSeconds",
            "connectTimeoutMillis",
            "channelNotActiveInterval",
            "transferMsgByHeap",
        ),
        **unmapped(
            Fate.NEEDLESS,
            "the broker does so, or needs no such thing",
            "clusterTopicEnable",
            "brokerTopicEnable",
            "notifyConsumerIdsChangedEnable",
            "enableDetailStat",
            "enableScheduleMessageStats",
            "autoDeleteUnusedStats",
            "forceRegister",
            "compressedRegister",
            "registerBrokerTimeoutMills",
            "flushConsumerOffsetHistoryInterval",
        ),
        **unmapped(
            Fate.NEEDLESS,
            "filters are evaluated for each message, without helper files",
            "enableCalcFilterBitMap",
            "expectConsumerNumUseFilter",
            "maxErrorRateOfBloomFilter",
            "filterDataCleanTimeSpan",
            "bitMapLengthConsumeQueueExt",
            "enableConsumeQueueExt",
            "mappedFileSizeConsumeQueueExt",
        ),
        **unmapped(
            Fate.NEEDLESS,
            "statistics are always kept",
            "commercialEnable",
            "commercialTimerCount",
            "commercialTransCount",
            "commercialBigCount",
            "commercialBaseCount",
            "highSpeedMode",
        ),
        "registerNameServerPeriod": Alias("broker.registration_interval_ms"),
        "serverChannelMaxIdleTimeSeconds": Alias("remoting.idle_timeout_ms", "seconds"),
        **unmapped(Fate.NEEDLESS, "all views lie in store.data_dir", "storePathConsumeQueue", "storePathIndex"),
        **unmapped(Fate.MISSING, "the commit log is the folder commitlog in store.data_dir", "storePathCommitLog"),
        **unmapped(
            Fate.MISSING,
            "Headrace has no such switch",
            "brokerIP2",
            "rocketmqHome",
            "maxTransferCountOnMessageInDisk",
            "maxTransferBytesOnMessageInDisk",
            "offsetCheckInSlave",
            "rejectTransactionMessage",
            "startAcceptSendRequestTimeStamp",
            "disableConsumeIfConsumerReadSlowly",
            "consumerFallbehindThreshold",
            "shortPollingTimeMills",
            "maxDelayTime",
            "defaultQueryMaxNum",
            "maxMsgsNumBatch",
            "enableBatchPush",
            "filterSupportRetry",
            "filterServerNums",
            "messageStorePlugIn",
            "fetchNamesrvAddrByAddressServer",
            "regionId",
            "isolateLogEnable",
            "msgTraceTopicName",
            "enableLmq",
            "enableMultiDispatch",
            "maxLmqConsumeQueueNum",
            "readOnlyCommitLogStorePaths",
        ),
        "brokerId": Unmapped(
            Fate.REFUSED, "Headrace has no slaves: without it this would be another master of that name", ("0",)
        ),
        "brokerRole": Unmapped(Fate.MISSING, "Headrace has no slaves yet", ("ASYNC_MASTER",)),
        **unmapped(
            Fate.MISSING,
            "Headrace has no slaves yet",
            "haListenPort",
            "haMasterAddress",
            "haSendHeartbeatInterval",
            "haHousekeepingInterval",
            "haTransferBatchSize",
            "haSlaveFallbehindMax",
            "slaveReadEnable",
            "slaveTimeout",
            "dLegerGroup",
            "dLegerPeers",
            "dLegerSelfId",
            "preferredLeaderId",
            "storePathDLedgerCommitLog",
        ),
        "enableDLegerCommitLog": Unmapped(
            Fate.REFUSED, "Headrace is not replicated: without it this would be another master of that name", ("false",)
        ),
        **unmapped(
            Fate.REFUSED,
            "users and keys are a file of their own here: write them into one, name it in access.rules_file and take "
            "this key out",
            "aclEnable",
        ),
        **unmapped(Fate.REFUSED, NO_LOCK, "useTLS", "tlsEnable", "tls.enable", "tls.server.mode"),
    },
)

NSQLOOKUPD: Final = System(
    "nsqlookupd",
    {
        "tcp-address": Alias("registry.nsq_tcp_address", "address"),
        "http-address": Alias("registry.nsq_http_address", "address"),
        "broadcast-address": Alias("registry.nsq_broadcast_address"),
        "inactive-producer-timeout": Alias("registry.nsq_silent_ms", "duration"),
        "tombstone-lifetime": Alias("registry.nsq_tombstone_ms", "duration"),
        "log-level": Alias("log.level", "level"),
        **unmapped(Fate.REFUSED, OTHER_FILE, "config"),
        **unmapped(Fate.NEEDLESS, "has no effect on a registry", "version", "verbose", "log-prefix"),
    },
)

SYSTEMS: Final = (NSQD, NSQLOOKUPD, ROCKETMQ)
