"""What the handlers of the RocketMQ protocol work on: the broker core's parts and who this broker is to its clients.

The node builds one ``Services`` when broker and store are open, whether or not anybody listens: delayed messages and
open transactions of earlier runs go on either way.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.config_file import Saved
from headrace.broker.group_services import CONFIG_FOLDER, GroupServices
from headrace.broker.groups import is_system_group
from headrace.broker.offset_moved import OffsetMovedEvents
from headrace.broker.producer_log import ProducerLog
from headrace.broker.producers import KeyWindows, OutdatedMessages, Sequences
from headrace.broker.retry import DeadLetter, DeadLetters, Retries, RetryRules
from headrace.broker.schedule import FILE_NAME as DELAY_FILE
from headrace.broker.schedule import DelayLevels, parse_levels
from headrace.broker.staged import StagedBatches
from headrace.broker.statistics_records import StatisticsRecords
from headrace.broker.timed import TimedMessages
from headrace.broker.topic import PERM_READ, PERM_WRITE
from headrace.broker.transactions import Transactions
from headrace.net.webhook import Webhook
from headrace.remoting.broker_config import BrokerConfig
from headrace.remoting.clients import notify_members, pick_producer
from headrace.remoting.codec import Limits
from headrace.remoting.codes import ResponseCode
from headrace.remoting.holding import SendHolding
from headrace.remoting.long_answers import LongAnswers
from headrace.remoting.readers import Readers
from headrace.remoting.reply import RequestRefusedError
from headrace.remoting.rows import RowIntake
from headrace.remoting.topics import system_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.clients import ConsumerGroup
    from headrace.broker.groups import SubscriptionGroup
    from headrace.broker.topic import TopicConfig
    from headrace.settings import RemotingSettings, Settings

logger = logging.getLogger(__name__)

SOURCE: Final = "remoting"
SYS_FLAG_UNIT_SUB: Final = 2


class Services:
    """The core's parts, and what a tool may change while the broker runs.

    Attributes:
        address: ``ip:port`` by which clients reach this broker, as registered.
        store_host: The same as records hold it: address and i32 port.
        permission: Of the whole broker, as of a topic: 4 read + 2 write.
        on_permission_changed: Called when ``permission`` was changed.
        when_registered: Calls back when the registries know of a topic.
        auto_create_topics: As ``remoting.auto_create_topics``, until a tool changes it.
        auto_create_groups: As ``remoting.auto_create_groups``, until a tool changes it.
        long_polling: Whether pulls wait as long as they ask for; else a second at most, as in RocketMQ.
        key_queries: Queries by key that are running.
        long_answers: Those that are gathered in turns of the loop.
        readers: What the requests of bulk readers share.
        offset_moved: Writes down that a consumer asked for what is not there.
        records: Who writes down what was counted; None when nobody does.
        webhook: Who is told of dead letters; None when nobody is.
    """

    def __init__(self, broker: Broker, settings: RemotingSettings, address: str) -> None:
        self.broker = broker
        self.settings = settings
        self.clock = broker.clock
        self.address = address
        log = broker.store.log
        self.store_host = log.store_host_v6 or log.store_host.to_bytes(8, "big")
        self.core = core = GroupServices.open(broker, broker_key=settings.cluster, utc_offset_ms=_utc_offset_ms())
        self.groups = core.groups
        self.offsets = core.offsets
        self.clients = core.clients
        self.locks = core.locks
        self.holds = core.holds
        self.statistics = core.statistics
        self.throughput = core.throughput
        folder = broker.store.directory.root / CONFIG_FOLDER
        self.delays = DelayLevels(broker, *core.config_file(folder, DELAY_FILE))
        self.timed = TimedMessages(broker)
        self.transactions = Transactions(broker, core.offsets)
        self.holding = SendHolding(broker, self.delays, self.timed, self.transactions)
        self.letters = DeadLetters()
        self.offset_moved = OffsetMovedEvents(broker)
        self.webhook: Webhook | None = None
        if broker.settings.dead_letter_webhook:
            self.webhook = Webhook(broker.settings.dead_letter_webhook)
            self.letters.on_alarm = self._send_alarm
        self.retries = Retries(broker, self.delays, self.letters)
        self.sequences = Sequences(settings.max_producer_ids)
        self.outdated = OutdatedMessages()
        self.keys = KeyWindows(settings.max_window_keys)
        self.staged = StagedBatches(
            broker,
            ttl_ms=settings.stage_ttl_s * 1000,
            most_runs=settings.max_staged_runs,
            most_txns=settings.max_producer_ids,
        )
        self.staged.on_delivered = partial(self.count_put, host="")
        self.producer_log = self.staged.log = ProducerLog(broker, [self.sequences, self.keys, self.staged])
        self.rows = RowIntake(
            Limits(broker.topics, cluster=settings.cluster.encode(), max_message_bytes=settings.max_message_bytes)
        )
        # In front of the table of offsets: at the end they write to it before it is written.
        broker.tickers[:0] = [self.delays, self.timed, self.transactions, self.staged, self.producer_log]
        self.records: StatisticsRecords | None = None
        if broker.settings.statistics_records:
            self.records = StatisticsRecords(broker, core, self.letters)
            broker.tickers.insert(0, self.records)
        self.started_ms = broker.clock.now_ms()
        self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.permission = PERM_READ | PERM_WRITE
        self.on_permission_changed: Callable[[], None] = lambda: None
        self.when_registered: Callable[[str, Saved], None] = lambda topic, saved: saved(None)
        self.auto_create_topics = settings.auto_create_topics
        self.auto_create_groups = settings.auto_create_groups
        self.long_polling = settings.max_hold_ms > 0
        self.config = BrokerConfig(self)
        self.long_answers = LongAnswers(lambda call: broker.store.notify(call))
        self.readers = Readers(broker)
        self.key_queries = 0
        self.transactions.has_producer = lambda group, topic: pick_producer(self, group, topic) is not None
        self.clients.on_changed = lambda groups: notify_members(self, groups)
        self.clients.on_resubscribed = self._wake_members

    def _wake_members(self, group: ConsumerGroup) -> None:
        """Have the pulls of a group's members read again: they wait by what the group wanted before (A-BROKER-53)."""
        for member in group.members.values():
            self.holds.wake_owner(member.owner)

    def _send_alarm(self, letter: DeadLetter) -> None:
        """Tell the webhook of a dead letter (A-BROKER-35)."""
        if self.webhook is not None:
            self.webhook.post({"alarm": "dead_letter", "broker": self.broker.name, **asdict(letter)})

    def ensure_group(self, name: str) -> SubscriptionGroup:
        """Return a consumer group, made now if it does not exist and may be made.

        Raises:
            RequestRefusedError: SUBSCRIPTION_GROUP_NOT_EXIST.
            InvalidNameError, QuotaExceededError: it cannot be made.
        """
        group = self.groups.get(name)
        if group is not None:
            return group
        if not self.auto_create_groups and not is_system_group(name):
            raise RequestRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist, and remoting.auto_create_groups is off",
            )
        return self.groups.ensure(name, self.clock.now_ms())

    def count_put(self, topic: str, queue_id: int, messages: int, body_bytes: int, host: str) -> None:
        """Count messages of one topic that were appended; ``host`` is empty where nobody sent them just now."""
        self.statistics.note_put(topic, messages, body_bytes, source=SOURCE, host=host, queue_id=queue_id)
        self.throughput.put += messages

    def count_get(self, group: str, topic: str, queue_id: int, messages: int, size: int, host: str = "") -> None:
        """Count messages that a group was given."""
        self.statistics.note_get(group, topic, messages, size, source=SOURCE, host=host, queue_id=queue_id)
        self.throughput.transferred += messages


def retry_rules(group: SubscriptionGroup, *, unit_mode: bool = False) -> RetryRules:
    """Return what a group says about its failed messages."""
    return RetryRules(group.name, group.retry_queues, group.retry_max_times, SYS_FLAG_UNIT_SUB if unit_mode else 0)


def topics_from_start(settings: Settings, broker_name: str) -> Mapping[str, TopicConfig]:
    """Return the topics that the broker has from the start, for ``Broker.open``."""
    levels = len(parse_levels(settings.broker.delay_levels))
    return system_topics(settings.remoting, broker_name, levels)


def _utc_offset_ms() -> int:
    """Return what to add to UTC for local time: its midnight parts the daily totals."""
    return time.localtime().tm_gmtoff * 1000
