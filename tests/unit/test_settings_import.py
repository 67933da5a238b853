"""headrace.settings.foreign: configuration of nsqd and RocketMQ becomes ours."""

import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.remoting.topics import system_topics
from headrace.settings import Settings, load_settings
from headrace.settings.aliases import SYSTEMS, Alias
from headrace.settings.foreign import READERS, Imported, import_file, read_keys
from headrace.settings.load import FIELDS

NSQD_TOML = """\
## what nsqd's sample file sets
tcp_address = "0.0.0.0:4150"
mem_queue_size = 10000
msg_timeout = "30s"
max-rdy-count = 100
max_msg_size = 2048
tls_required = false
log_level = "warn"
"""


BROKER_CONF = """\
# RocketMQ's sample
brokerName=broker-a
brokerId = 0
deleteWhen = 04;16
fileReservedTime=48
flushDiskType = ASYNC_FLUSH
diskMaxUsedSpaceRatio=95
storePathRootDir=/data/store
"""


def imported(tmp_path: Path, text: str) -> tuple[Imported, Settings]:
    """Import a file with this text; return the result and the settings it loads to."""
    file = tmp_path / "theirs"
    file.write_text(text)
    result = import_file(file)
    ours = tmp_path / "headrace.toml"
    ours.write_text(result.toml)
    return result, load_settings(file=ours, environ={}).settings


def refusal(tmp_path: Path, text: str) -> str:
    """Return the error a file with this text is refused with, without its folder."""
    with pytest.raises(ConfigError) as caught:
        imported(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_nsqd_toml_becomes_our_settings(tmp_path: Path) -> None:
    """nsq.md 8.1: values are taken over, what is not needed says why."""
    result, settings = imported(tmp_path, NSQD_TOML)
    assert settings.nsq.tcp_address == "0.0.0.0:4150"
    assert settings.nsq.msg_timeout_ms == 30_000
    assert settings.nsq.max_rdy_count == 100
    assert settings.nsq.max_message_bytes == 2048
    assert settings.log.level == "warning"
    assert "theirs:3: mem_queue_size = 10000: not needed" in result.toml
    assert "# msg_timeout, " in result.toml
    assert result.warnings == ()


def test_what_a_comment_says_stays_on_its_line(tmp_path: Path) -> None:
    """A name or a value of several lines would end the comment, and what follows would be read as settings."""
    file = tmp_path / "the\nirs"
    file.write_text('mem_queue_size = "1\\n[store]\\n\\u001b"\nmax_rdy_count = 7\n')
    result = import_file(file)
    assert tomllib.loads(result.toml) == {"nsq": {"max_rdy_count": 7}}
    assert all(line.isprintable() for line in result.toml.splitlines())
    file.write_text('topology_zone = "a\\nb"\n')
    (warning,) = import_file(file).warnings
    assert warning.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "--node-id=3 --max-rdy-count=10 --data-path=/d --verbose --lookupd-tcp-address=a:1 --lookupd-tcp-address=b:1 "
        "--topology-zone=z",
        "-node-id 3 -max-rdy-count 10 -data-path '/d' -lookupd-tcp-address a:1 -lookupd-tcp-address b:1 "
        "-topology-zone z -verbose",
        "#!/bin/sh\nexec /usr/bin/nsqd --node-id=3 \\\n  --max-rdy-count=10 --data-path /d \\\n  -verbose "
        '--lookupd-tcp-address a:1 --lookupd-tcp-address b:1 --topology-zone z "$@"\n',
        "  exec\tnsqd --node-id=3 --max-rdy-count=10 --data-path=/d --verbose --lookupd-tcp-address=a:1,b:1 "
        "--topology-zone z",
    ],
)
def test_nsqd_flags_become_our_settings(tmp_path: Path, text: str) -> None:
    """nsq.md 8: single or double dash, with = or a space; what is lost is said."""
    result, settings = imported(tmp_path, text)
    assert settings.broker.node_id == 3
    assert settings.nsq.max_rdy_count == 10
    assert settings.store.data_dir == Path("/d")
    assert settings.nsq.lookupd_addresses == "a:1,b:1"
    assert len(result.warnings) == 1
    assert "topology-zone = z: not imported" in result.warnings[0]


def test_a_comment_of_a_start_script_begins_a_word(tmp_path: Path) -> None:
    """Else the rest of the line was dropped in silence."""
    result, settings = imported(
        tmp_path,
        "#!/bin/sh\n# don't\nnsqd --data-path=/d#1 --tcp-address=:1 \\\n"
        "  --log-prefix='a #b' --broadcast-address=\"c#\" # it's ours\n\t#--node-id=3\n",
    )
    assert settings.store.data_dir == Path("/d#1")
    assert settings.nsq.tcp_address == ":1"
    assert settings.nsq.broadcast_address == "c#"
    assert settings.broker.node_id == -1
    assert result.warnings == ()


def test_nsqlookupds_of_nsqd_become_our_settings(tmp_path: Path) -> None:
    """nsq.md 8: the configuration file of nsqd has a list."""
    text = 'nsqlookupd_tcp_addresses = ["a:4160", "b:4160"]\nbroadcast_tcp_port = 14150\nbroadcast_http_port = 14151\n'
    result, settings = imported(tmp_path, text)
    assert settings.nsq.lookupd_addresses == "a:4160,b:4160"
    assert (settings.nsq.broadcast_tcp_port, settings.nsq.broadcast_http_port) == (14150, 14151)
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("text", "packet_bytes", "mem_stats"),
    [
        (
            'statsd_address = "statsd.example:8125"\nstatsd_interval = "30s"\nstatsd_prefix = "stats.nsq.%s"\n'
            "statsd_mem_stats = false\nstatsd_udp_packet_size = 1432\nstatsd_exclude_ephemeral = true\n",
            1432,
            False,
        ),
        (
            "nsqd --statsd-address=statsd.example:8125 -statsd-interval 30s --statsd-prefix stats.nsq.%s "
            "--statsd-mem-stats=true --statsd-exclude-ephemeral",
            508,
            True,
        ),
        (
            "-statsd-address statsd.example:8125 -statsd-interval=0.5m -statsd-prefix stats.nsq.%s "
            "-statsd-mem-stats=F -statsd-exclude-ephemeral=1",
            508,
            False,
        ),
    ],
)
def test_statsd_of_nsqd_becomes_our_settings(tmp_path: Path, text: str, packet_bytes: int, mem_stats: bool) -> None:
    """C-LIFE-09; nsq.md 8: every option of nsqd's, from its file and from flags."""
    result, settings = imported(tmp_path, text)
    nsq = settings.nsq
    assert (nsq.statsd_address, nsq.statsd_interval_ms, nsq.statsd_prefix) == (
        "statsd.example:8125",
        30_000,
        "stats.nsq.%s",
    )
    assert (nsq.statsd_udp_packet_bytes, nsq.statsd_mem_stats, nsq.statsd_exclude_ephemeral) == (
        packet_bytes,
        mem_stats,
        True,
    )
    assert result.warnings == ()


def test_a_statsd_without_a_host_is_on_this_machine(tmp_path: Path) -> None:
    """As Go takes it."""
    assert imported(tmp_path, "--statsd-address=:8125")[1].nsq.statsd_address == "127.0.0.1:8125"


def test_nsqlookupd_s_file_becomes_settings_of_the_registry(tmp_path: Path) -> None:
    """nsq.md 8.2. Where all keys are nsqd's too, the file's name decides."""
    text = 'tcp_address = "0.0.0.0:4160"\nhttp_address = "0.0.0.0:4161"\nbroadcast_address = "lookup.example"\n'
    _, settings = imported(tmp_path, text + 'inactive_producer_timeout = "10m"\ntombstone_lifetime = "1m30s"\n')
    assert settings.registry.nsq_tcp_address == "0.0.0.0:4160"
    assert settings.registry.nsq_http_address == "0.0.0.0:4161"
    assert settings.registry.nsq_broadcast_address == "lookup.example"
    assert settings.registry.nsq_silent_ms == 600_000
    assert settings.registry.nsq_tombstone_ms == 90_000
    for name, setting in (("nsqlookupd.cfg", "registry.nsq_tcp_address"), ("theirs.cfg", "nsq.tcp_address")):
        (tmp_path / name).write_text(text)
        section, _, field = setting.partition(".")
        assert tomllib.loads(import_file(tmp_path / name).toml)[section][field] == "0.0.0.0:4160"


@pytest.mark.parametrize("words", ["nsqlookupd", "exec /usr/bin/nsqlookupd", "#!/bin/sh\nexec nsqlookupd"])
def test_a_start_script_says_whose_it_is(tmp_path: Path, words: str) -> None:
    """nsq.md 8.2: all of these flags are nsqd's too, and the file is called after neither."""
    _, settings = imported(tmp_path, f"{words} --tcp-address=0.0.0.0:5160 \\\n  -http-address 0.0.0.0:5161\n")
    assert settings.registry.nsq_tcp_address == "0.0.0.0:5160"
    assert settings.registry.nsq_http_address == "0.0.0.0:5161"
    assert settings.nsq == Settings().nsq


@pytest.mark.parametrize("text", ['log_level = "WARN"\n', "nsqd -log-level=Warn", "nsqlookupd --log-level WARN"])
def test_levels_are_read_in_any_case(tmp_path: Path, text: str) -> None:
    """nsq.md 8: nsqd and nsqlookupd do so."""
    assert imported(tmp_path, text)[1].log.level == "warning"


def test_what_headrace_always_has_is_not_missed(tmp_path: Path) -> None:
    """Who had the trace topic or the index was told that they are not imported."""
    result, _ = imported(tmp_path, "brokerName=a\nmessageIndexEnable=true\ntraceOn=true\ntraceTopicEnable=true\n")
    assert result.warnings == ()


def test_the_template_of_a_broker_conf_has_its_queues(tmp_path: Path) -> None:
    """remoting.md 4.10: theirs are those of TBW102, which has half of DEFAULT_TOPIC's here."""
    _, settings = imported(tmp_path, "brokerName=a\ndefaultTopicQueueNums=12\n")
    assert system_topics(settings.remoting, "a", 18)["TBW102"].write_queues == 12


def test_broker_conf_becomes_our_settings(tmp_path: Path) -> None:
    """remoting.md 3.8: RocketMQ's flush keys; what Headrace lacks is said."""
    result, settings = imported(tmp_path, BROKER_CONF)
    assert settings.broker.name == "broker-a"
    assert settings.store.durability == "async"
    assert settings.store.data_dir == Path("/data/store")
    assert [warning.split(" = ")[0].rpartition(" ")[2] for warning in result.warnings] == [
        "deleteWhen",
        "fileReservedTime",
        "diskMaxUsedSpaceRatio",
    ]


# What a broker of RocketMQ 4.9.7 takes: the setters of BrokerConfig, MessageStoreConfig, NettyServerConfig and
# NettyClientConfig.
KEYS_4_9_7 = """
accessMessageInMemoryMaxRatio aclEnable adminBrokerThreadPoolNums autoCreateSubscriptionGroup autoCreateTopicEnable
autoDeleteUnusedStats bitMapLengthConsumeQueueExt brokerClusterName brokerFastFailureEnable brokerIP1 brokerIP2
brokerId brokerName brokerPermission brokerRole brokerTopicEnable channelNotActiveInterval checkCRCOnRecover
cleanFileForciblyEnable cleanResourceInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManageThreadPoolNums
clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterTopicEnable commercialBaseCount
commercialBigCount commercialEnable commercialTimerCount commercialTransCount commitCommitLogLeastPages
commitCommitLogThoroughInterval commitIntervalCommitLog compressedRegister connectTimeoutMillis
consumerFallbehindThreshold consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity dLegerGroup
dLegerPeers dLegerSelfId debugLockEnable defaultQueryMaxNum defaultTopicQueueNums deleteCommitLogFilesInterval
deleteConsumeQueueFilesInterval deleteWhen destroyMapedFileIntervalForcibly disableConsumeIfConsumerReadSlowly
diskFallRecorded diskMaxUsedSpaceRatio duplicationEnable enableBatchPush enableCalcFilterBitMap
enableConsumeQueueExt enableDLegerCommitLog enableDetailStat enableLmq enableMultiDispatch enablePropertyFilter
enableScheduleAsyncDeliver enableScheduleMessageStats endTransactionPoolQueueCapacity endTransactionThreadPoolNums
expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchNamesrvAddrByAddressServer fileReservedTime
filterDataCleanTimeSpan filterServerNums filterSupportRetry flushCommitLogLeastPages flushCommitLogThoroughInterval
flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
flushConsumerOffsetInterval flushDelayOffsetInterval flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
flushLeastPagesWhenWarmMapedFile forceRegister haHousekeepingInterval haListenPort haMasterAddress
haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize heartbeatThreadPoolNums
heartbeatThreadPoolQueueCapacity highSpeedMode isolateLogEnable listenPort longPollingEnable mappedFileSizeCommitLog
mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt maxDelayTime maxErrorRateOfBloomFilter maxHashSlotNum
maxIndexNum maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch maxTransferBytesOnMessageInDisk
maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory
messageDelayLevel messageIndexEnable messageIndexSafe messageStorePlugIn msgTraceTopicName namesrvAddr
notifyConsumerIdsChangedEnable offsetCheckInSlave osPageCacheBusyTimeOutMills preferredLeaderId
processReplyMessageThreadPoolNums pullMessageThreadPoolNums pullThreadPoolQueueCapacity
putMessageFutureThreadPoolNums putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths redeleteHangedFileInterval regionId
registerBrokerTimeoutMills registerNameServerPeriod rejectTransactionMessage replyThreadPoolQueueCapacity
rocketmqHome scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked sendMessageThreadPoolNums
sendThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds
serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shortPollingTimeMills slaveReadEnable slaveTimeout
startAcceptSendRequestTimeStamp storePathCommitLog storePathDLedgerCommitLog storePathRootDir
storeReplyMessageEnable syncFlushTimeout traceOn traceTopicEnable transactionCheckInterval transactionCheckMax
transactionTimeOut transferMsgByHeap transientStorePoolEnable transientStorePoolSize useEpollNativeSelector
useReentrantLockWhenPutMessage useTLS waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue
waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue warmMapedFileEnable writeBufferHighWaterMark
writeBufferLowWaterMark
"""


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("brokerId=1", True),
        ("brokerId=0", False),
        ("enableDLegerCommitLog=true", True),
        ("enableDLegerCommitLog=false", False),
    ],
)
def test_a_slave_does_not_become_a_master(tmp_path: Path, line: str, is_refused: bool) -> None:
    """docs/running.md: what would be another broker without it is an error."""
    with pytest.raises(ConfigError, match="another master of that name") if is_refused else nullcontext():
        imported(tmp_path, f"brokerName=b\n{line}\n")


@pytest.mark.parametrize(
    "lines",
    [
        "namesrvAddr=10.0.0.1\\:9876;10.0.0.2\\:9876",  # as Properties.store writes it
        "namesrvAddr = 10.0.0.1:9876;\\\n   10.0.0.2:9876",
        "namesrvAddr\\u003d=\nnamesrvAddr: 10.0.0.1:987\\u0036;10.0.0.2:9876\\",
    ],
)
def test_properties_are_read_as_java_reads_them(tmp_path: Path, lines: str) -> None:
    """Escapes, and values that go on in the next line."""
    file = tmp_path / "broker.conf"
    file.write_text(f"# made by a tool \\\nbrokerName=b\\ 1\n{lines}\n")
    keys = {found.key: found.text for found in read_keys(file.read_text(), file) if "=" not in found.key}
    assert keys == {"brokerName": "b 1", "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876"}


def test_every_key_of_a_real_broker_conf_is_known() -> None:
    """One key more in a file must not stop a migration: what cannot be taken over is said."""
    (rocketmq,) = (system for system in SYSTEMS if system.name == "RocketMQ")
    assert [key for key in KEYS_4_9_7.split() if rocketmq.find(key) is None] == []


def test_keys_with_other_units_become_ours(tmp_path: Path) -> None:
    """Seconds are the name's unit there."""
    text = "brokerName=a\nserverChannelMaxIdleTimeSeconds=60\nregisterNameServerPeriod=15000\nisolateLogEnable=true\n"
    result, settings = imported(tmp_path, text)
    assert settings.remoting.idle_timeout_ms == 60_000
    assert settings.broker.registration_interval_ms == 15_000
    assert [warning.split(" = ")[0].rpartition(" ")[2] for warning in result.warnings] == ["isolateLogEnable"]


@pytest.mark.parametrize("key", ["mappedFileSizeCommitLog", "mapedFileSizeCommitLog", "mapedFileSizieCommitLog"])
def test_every_spelling_of_the_segment_size_is_known(tmp_path: Path, key: str) -> None:
    """A-STORE-06, X-STORE-09: the documented misspelling and the normal one."""
    _, settings = imported(tmp_path, f"brokerName=a\n{key}=67108864\n")
    assert settings.store.segment_bytes == 67_108_864


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_rdy_cuont = 3", "theirs:1: unknown nsqd key max_rdy_cuont; did you mean max-rdy-count?"),
        (
            "brokerName=a\nflushDiskTyp=SYNC_FLUSH",
            "theirs:2: unknown RocketMQ key flushDiskTyp; did you mean flushDiskType?",
        ),
        ("--no-such-flag=1", "theirs:1: unknown nsqd key no-such-flag"),
        ('tls_cert = "/a.pem"', "theirs:1: tls_cert = /a.pem is not accepted: Headrace has no TLS"),
        (
            "brokerName=a\naclEnable=true",
            "theirs:2: aclEnable = true is not accepted: users and keys are a file of their own",
        ),
        ('msg_timeout = "1x"', 'theirs:1: nsq.msg_timeout_ms cannot take "1x"'),
        ('tcp_address = "/run/nsqd.sock"', 'theirs:1: nsq.tcp_address cannot take "/run/nsqd.sock"'),
        ("max_rdy_count = 0", "max_rdy_count, theirs:1: nsq.max_rdy_count = 0 is not accepted: 1 to 1000000"),
        ("max_deflate_level = 'x'", 'theirs:1: nsq.max_deflate_level = "x" is not accepted: a whole number'),
        ("brokerName=a\nflushDiskType=x", 'theirs:2: store.durability cannot take "x"'),
        ("nonsense", "theirs:1: neither TOML, nor flags, nor key=value: nonsense"),
        ("nsqd --config=/etc/nsqd.cfg", "theirs:1: config = /etc/nsqd.cfg is not accepted: what that file sets counts"),
        ("nsqlookupd -config /etc/n.cfg", "theirs:1: config = /etc/n.cfg is not accepted: what that file sets counts"),
        ("nsqd surprise", "theirs:1: surprise is no flag"),
        ("nsqd \\\n --data-path=$DATA", "theirs:2: --data-path=$DATA has another value when the shell runs it"),
        ("nsqd --data-path ${DATA:-/d}", "theirs:1: ${DATA:-/d} has another value"),
        ('exec nsqd --broadcast-address="$(hostname -f)"', "theirs:1: --broadcast-address=$(hostname -f) has"),
        ("exec nsqd -id `cat /id`", "theirs:1: `cat has another value"),
        ("nsqd --data-path ~/nsq", "theirs:1: ~/nsq has another value"),
        (
            'nsqd \\\n --data-path="/x',
            "theirs:2: No closing quotation: a quotation ends on the line on which it begins",
        ),
        ("# nothing", "theirs: no key found"),
        ("x = [\n" + "1,\n" * 200 + "]", "theirs:1: a value of more than 100 lines"),
        (f"tcp_address = {'9' * 5000}", "theirs:1: nsq.tcp_address = "),
    ],
)
def test_import_errors_name_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    """Nothing of a foreign file is dropped in silence."""
    assert message in refusal(tmp_path, text)


def test_every_alias_leads_to_a_setting() -> None:
    """The table cannot name a setting or a form that is not there."""
    for system in SYSTEMS:
        assert len(system.spellings()) == len(system.keys), "two keys of one system differ by dashes only"
        for alias in system.keys.values():
            if isinstance(alias, Alias):
                assert alias.path in FIELDS
                assert alias.form in READERS
