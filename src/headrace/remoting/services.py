"""What the handlers of the RocketMQ protocol work on: the broker core's parts and who this broker is to its clients."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.broker.config_file import Saved
from headrace.broker.consumers.groups import is_system_group
from headrace.broker.exactly_once.producer_services import ProducerLimits
from headrace.broker.parts import BrokerParts
from headrace.broker.statistics import GROUPS_SOURCE
from headrace.broker.topic import PERM_READ, PERM_WRITE
from headrace.broker.withheld.retry import DeadLetter, RetryRules
from headrace.log_pace import LogPace
from headrace.net.webhook import Webhook
from headrace.remoting.broker_config import BrokerConfig
from headrace.remoting.codec import Limits
from headrace.remoting.codes import TOPIC_FLAG_UNIT_SUB, ResponseCode
from headrace.remoting.long_answers import LongAnswers
from headrace.remoting.members import MemberNotices, pick_producer
from headrace.remoting.reading.readers import Readers
from headrace.remoting.reply import RequestRefusedError
from headrace.remoting.sending.held_sends import HeldSends
from headrace.remoting.sending.rows import RowIntake
from headrace.remoting.topics import system_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.consumers.clients import ConsumerGroup
    from headrace.broker.consumers.groups import SubscriptionGroup
    from headrace.broker.topic import TopicConfig
    from headrace.settings import RemotingSettings, Settings

logger = logging.getLogger(__name__)

SOURCE: Final = GROUPS_SOURCE
MAX_WAITED_TOPICS: Final = 1_000
"""Topics up to which the file of topics, some milliseconds then, is waited for."""

Put: TypeAlias = tuple[str, int, int, int, int]
"""What requests appended to one queue: its topic and id, the messages, the bytes of their bodies, the requests."""


class Services:
    """The core's parts, and what a tool may change while the broker runs.

    Attributes:
        group_services: What consumer groups need; the parts that handlers name most are attributes here too.
        messages: What holds messages back or writes them again.
        producers: What tells a batch that was sent before from a new one.
        address: ``ip:port`` by which clients reach this broker, as registered.
        store_host: The same as records hold it: address and i32 port.
        permission: Of the whole broker, as of a topic: 4 read + 2 write.
        on_permission_changed: Called when ``permission`` was changed.
        when_registered: Calls back when the registries know of some topics.
        auto_create_topics: As ``remoting.auto_create_topics``, until a tool changes it.
        auto_create_groups: As ``remoting.auto_create_groups``, until a tool changes it.
        long_polling: Whether pulls wait as long as they ask for; else a second at most, as in RocketMQ.
        key_queries: Queries by key that are running.
        long_answers: Those that are gathered in turns of the loop.
        readers: What the requests of bulk readers share.
        read_pace: When each kind of request whose read the system refuses was logged.
        statistics_records: Who writes down what was counted; None when nobody does.
        webhook: Who is told of dead letters; None when nobody is.
    """

    def __init__(self, parts: BrokerParts, settings: RemotingSettings, address: str) -> None:
        self.broker = broker = parts.broker
        self.settings = settings
        self.clock = broker.clock
        self.address = address
        log = broker.store.log
        self.store_host = log.store_host_v6 or log.store_host.to_bytes(8, "big")
        self.group_services = groups = parts.groups
        self.groups = groups.groups
        self.offsets = groups.offsets
        self.clients = groups.clients
        self.locks = groups.locks
        self.holds = groups.holds
        self.statistics = groups.statistics
        self.throughput = groups.throughput
        self.messages = messages = parts.messages
        self.producers = parts.producers
        self.statistics_records = parts.records
        self.webhook: Webhook | None = None
        if broker.settings.dead_letter_webhook:
            self.webhook = Webhook(broker.settings.dead_letter_webhook, broker.clock)
            messages.letters.on_alarm = self._send_alarm
        self.held_sends = HeldSends(broker, messages.delays, messages.timed, messages.transactions)
        self.rows = RowIntake(
            Limits(broker.topics, cluster=settings.cluster.encode(), max_message_bytes=settings.max_message_bytes)
        )
        self.started_ms = broker.clock.now_ms()
        self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.permission = PERM_READ | PERM_WRITE
        self.on_permission_changed: Callable[[], None] = lambda: None
        self.when_registered: Callable[[Sequence[str], Saved], None] = lambda topics, saved: saved(None)
        self.auto_create_topics = settings.auto_create_topics
        self.auto_create_groups = settings.auto_create_groups
        self.long_polling = True
        self.config = BrokerConfig(self)
        self.long_answers = LongAnswers(lambda call: broker.store.notify(call))
        self.readers = Readers(broker)
        self.read_pace = LogPace(broker.clock)
        self.key_queries = 0
        self.producers.staged.on_delivered = partial(self.count_put, host="")
        messages.transactions.has_producer = lambda group, topic: pick_producer(self, group, topic) is not None
        self.notices = MemberNotices(self)
        broker.add_tickers(self.notices)
        self.clients.on_changed = self.notices.tell
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
                f"subscription group [{name}] does not exist, and remoting.auto_create_groups is off",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return self.groups.ensure(name, self.clock.now_ms())

    def when_known(self, topics: Sequence[str], saved: Saved) -> None:
        """Call ``saved`` when topics that were just made are in their file and the registries have been told.

        Whoever had them made, and tools, ask there next (A-BROKER-18, A-BROKER-21). A file that cannot be written is
        no error here: a start reads topics from the log, and the write is tried again. A large file, which is written
        whole, is not waited for: a client that makes thousands of topics would wait for each of them longer.
        """
        if len(self.broker.topics) > MAX_WAITED_TOPICS:
            self.when_registered(topics, saved)
            return

        self.group_services.topics_file.when_saved(lambda _: self.when_registered(topics, saved))

    def count_put(
        self, topic: str, queue_id: int, messages: int, body_bytes: int, host: str, *, calls: int = 1
    ) -> None:
        """Count what ``calls`` requests appended to one topic; ``host`` is empty where nobody sent it just now."""
        self.statistics.note_put(topic, messages, body_bytes, source=SOURCE, host=host, queue_id=queue_id, calls=calls)
        self.throughput.put += messages

    def count_puts(self, host: str, puts: Sequence[Put]) -> int:
        """Count what one producer's requests appended to several queues; return how many messages that is."""
        if len(puts) > 1 and not self.statistics.by_queue:
            puts = _by_topic(puts)
        for topic, queue_id, messages, body_bytes, calls in puts:
            self.count_put(topic, queue_id, messages, body_bytes, host, calls=calls)
        return sum(put[2] for put in puts)

    def count_get(self, group: str, topic: str, queue_id: int, messages: int, size: int, host: str = "") -> None:
        """Count messages that a group was given."""
        self.statistics.note_get(group, topic, messages, size, source=SOURCE, host=host, queue_id=queue_id)
        self.throughput.transferred += messages


def _by_topic(puts: Sequence[Put]) -> list[Put]:
    """Add up what the queues of one topic got: queues that are not counted apart need no look at each of them."""
    sums: dict[str, list[int]] = {}
    for topic, _, messages, body_bytes, calls in puts:
        found = sums.setdefault(topic, [0, 0, 0])
        found[0] += messages
        found[1] += body_bytes
        found[2] += calls
    return [(topic, -1, messages, body_bytes, calls) for topic, (messages, body_bytes, calls) in sums.items()]


def retry_rules(group: SubscriptionGroup, *, unit_mode: bool = False) -> RetryRules:
    """Return what a group says about its failed messages."""
    return RetryRules(group.name, group.retry_queues, group.retry_max_times, TOPIC_FLAG_UNIT_SUB if unit_mode else 0)


def topics_from_start(settings: Settings, broker_name: str) -> Mapping[str, TopicConfig]:
    """Return the topics that the broker has from the start, for ``Broker.open``."""
    return system_topics(settings.remoting, broker_name, len(settings.broker.delays_ms))


def open_parts(broker: Broker, settings: RemotingSettings) -> BrokerParts:
    """Open the parts of a broker with what is set for them.

    Raises:
        SideFileError: a file is damaged, and so is its copy; nothing was changed.
        OSError: one cannot be read.
    """
    limits = ProducerLimits(
        producer_ids=settings.max_producer_ids,
        window_keys=settings.max_window_keys,
        staged_runs=settings.max_staged_runs,
        stage_ttl_ms=settings.stage_ttl_s * 1000,
    )
    return BrokerParts.open(
        broker, cluster=settings.cluster, utc_offset_ms=time.localtime().tm_gmtoff * 1000, limits=limits
    )
