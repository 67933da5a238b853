"""The topics of one broker: how they come, grow and go.

Three kinds. An ordinary topic is made by a control record and lives in the catalog. An ephemeral one lives in memory
only. A *system* topic is there from the start because the broker needs it or its protocol promises it; it has no
control record until something lasting hangs on it, a channel or a configuration: then it is *promoted*, that is, its
creation is written down like that of any other. Its messages are in the log either way.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from headrace.broker.catalog import UNKNOWN, TopicEntry
from headrace.broker.core import Core
from headrace.broker.data_version import DataVersion
from headrace.broker.queue_search import first_behind
from headrace.broker.topic import Topic, TopicConfig
from headrace.errors import InvalidNameError, QuotaExceededError, RequestError, TopicNotFoundError
from headrace.format import record
from headrace.format.names import EPHEMERAL_SUFFIX, MAX_QUEUES, RESERVED_PREFIX, SYSTEM_TOPICS, is_reserved
from headrace.store.memory_log import MemoryLog, MemoryQueue
from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)


class TopicTable:
    """All topics by name, ``topics``; ``revive`` fills it from the catalog."""

    def __init__(
        self, core: Core, on_changed: Callable[[str], None], tell_presence: Callable[[Topic, str], None]
    ) -> None:
        """Make an empty table.

        Args:
            on_changed: Called with the name of a lasting topic that was made, configured or deleted.
            tell_presence: Called with a topic that was made or deleted, or whose channel of that name was.
        """
        self.topics: dict[str, Topic] = {}
        self._system_count = 0
        self._core = core
        self._on_changed = on_changed
        self.tell_presence = tell_presence

    @property
    def version(self) -> DataVersion:
        """Rises with each topic that is made, configured or deleted; lasting."""
        return self._core.control.catalog.version

    def find(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            TopicNotFoundError: there is none of that name.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def creation_of(self, topic: Topic) -> int:
        """Return which creation of its name a topic is; another number after it was deleted and made again.

        It is the physical offset of the creation record, plus 1. A system topic has 0: it cannot be deleted, and gets a
        record only when something lasting hangs on it.
        """
        entry = self._core.control.catalog.topics.get(topic.name)
        return 0 if entry is None or topic.is_system else entry.key + 1

    def is_former(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether what a producer stored is gone with a former topic of that name.

        Args:
            offset: Where it began in the queue. Of messages that all waited for a time, minus the first of these times:
                what comes due while there is no topic is dropped, what comes later goes to the one that is made again.
        """
        entry = self._core.control.catalog.topics.get(topic)
        present = self.topics.get(topic)
        if entry is None or (present is not None and present.is_system):
            return False  # no system topic has a former one: it was there before its record
        if offset < 0:
            return -offset <= self._made_ms(entry)
        return queue_id < len(entry.start) and offset < entry.start[queue_id]

    def due_of_present(self, topic: str, due_ms: int) -> int:
        """Return a time at which what waits for the present topic of a name is due, as ``is_former`` is to take it.

        It may be due before its topic was made, by a clock that was set back since.
        """
        entry = self._core.control.catalog.topics.get(topic)
        return due_ms if entry is None else max(due_ms, self._made_ms(entry) + 1)

    def _made_ms(self, entry: TopicEntry) -> int:
        """Return when a topic was made, -1 where that is not known."""
        raw = self._core.store.log.read(entry.key) if entry.key >= 0 else None
        return -1 if raw is None else int(record.decode(raw)["store_timestamp_ms"])

    def is_whole(self, queue: QueueBase) -> bool:
        """Return whether a queue has everything that was ever published to it since its topic was made, or made again.

        What lies below the first message of such a queue belonged to a topic of that name that was deleted. A queue
        that another broker's store brought may begin where that broker's retention stopped.
        """
        if queue.min_offset == 0:
            return True
        entry = self._core.control.catalog.topics.get(queue.topic)
        if entry is None or queue.owner.is_system or queue.min_offset > entry.start[queue.queue_id]:
            return False
        first = queue.entries(queue.min_offset, 1)
        return not first or first[0][0] > entry.key

    # -- opening ----------------------------------------------------------------------------------------------------

    def revive(self, name: str, entry: TopicEntry) -> Topic:
        """Return a topic of the catalog with its queues, without its channels."""
        queues = [self._core.store.queue(name, queue_id) for queue_id in range(entry.queues)]
        for queue, issued in zip(queues, entry.issued, strict=True):
            self._core.counters.lost_offsets += self._core.store.go_on_above(queue, issued)
        for queue, start in zip(queues, entry.start, strict=True):
            queue.hide_below(first_behind(queue, entry.key) if start == UNKNOWN else start)
        config = TopicConfig(entry.queues, entry.queues) if entry.config is None else TopicConfig(**entry.config)
        topic = Topic(name, queues, ephemeral=False, paused=entry.paused, frozen=entry.frozen, config=config)
        self.topics[name] = topic
        return topic

    def hide_former(self) -> None:
        """Take from readers what former topics had in queues that the topics of their names do not have."""
        for (name, queue_id), queue in self._core.store.queues.items():
            topic = self.topics.get(name)
            if topic is None:
                is_former = name in self._core.control.catalog.deleted
            else:
                is_former = not topic.is_system and queue_id >= len(topic.queues)
            if is_former:
                queue.hide_below(queue.next_offset)

    def adopt_unnamed(self) -> None:
        """Bring back topics, and queues of topics, that have messages but whose record was lost.

        What was published before the topic was made, or one of its name was deleted, is a former one's.
        """
        catalog = self._core.control.catalog
        counts: defaultdict[str, int] = defaultdict(int)
        for (name, queue_id), queue in self._core.store.queues.items():
            if queue.next_offset and not name.startswith(RESERVED_PREFIX) and name not in SYSTEM_TOPICS:
                counts[name] = max(counts[name], queue_id + 1)
        for name in sorted(counts):
            topic = self.topics.get(name)
            if topic is None:
                start = self._starts_behind(name, range(counts[name]), catalog.deleted.get(name, -1))
                if start:
                    logger.warning(
                        "topic made for its messages, which no record names topic=%s reason=its record is lost, or "
                        "it was the broker's own under another broker.name or remoting.cluster", name,
                    )  # fmt: skip
                    self._create(name, start, None)
            elif not topic.is_system and catalog.topics[name].key >= 0:
                new_ids = range(len(topic.queues), counts[name])
                start = self._starts_behind(name, new_ids, catalog.topics[name].key)
                if start:
                    count = len(topic.queues) + len(start)
                    logger.warning("queues brought back from their messages topic=%s queues=%d", name, count)
                    self._configure(topic, replace(topic.config, read_queues=count, write_queues=count), start)

    def _starts_behind(self, name: str, queue_ids: range, physical_offset: int) -> list[int]:
        """Return where queues begin that have what lies behind a place of the log; not the last that have nothing."""
        queues = [self._core.store.queue(name, queue_id) for queue_id in queue_ids]
        starts = [first_behind(queue, physical_offset) for queue in queues]
        while starts and starts[-1] == queues[len(starts) - 1].next_offset:
            starts.pop()
        return starts

    # -- creating ---------------------------------------------------------------------------------------------------

    def ensure(self, name: str) -> Topic:
        """Return a topic, made now with one queue if it does not exist.

        Raises:
            InvalidNameError: no topic can be called so.
            QuotaExceededError: the broker has all the topics it may have.
        """
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        self._require_new(name)
        if name.endswith(EPHEMERAL_SUFFIX):
            settings = self._core.settings
            log = MemoryLog(settings.ephemeral_messages, settings.ephemeral_bytes, self._core.clock.now_ms())
            topic = Topic(name, [MemoryQueue(name, 0, log)], ephemeral=True, paused=False, frozen=[0])
            self.topics[name] = topic
            self.tell_presence(topic, "")
            return topic
        return self._create(name, [self._core.store.next_offset(name, 0)], None)

    def create(self, name: str, config: TopicConfig) -> Topic:
        """Make a topic; return the one that exists, as it is, if there is one.

        Raises:
            InvalidNameError, RequestError: no topic can be called so, or be configured so.
            QuotaExceededError: the broker has all the topics it may have.
        """
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        self._require_new(name)
        self._require_lasting(name)
        _require_config(name, config)
        ends = [self._core.store.next_offset(name, queue_id) for queue_id in range(config.queues)]
        return self._create(name, ends, config)

    def _require_new(self, name: str) -> None:
        if not name or is_reserved(name):
            raise InvalidNameError(name, "empty, or reserved for the broker")
        if "/" in name or "\0" in name:
            raise InvalidNameError(name, "it is the name of a folder, without / and 0 bytes")
        if not name.endswith(EPHEMERAL_SUFFIX):
            self._core.store.require_folder(name)
        if len(self.topics) - self._system_count >= self._core.settings.max_topics:
            raise QuotaExceededError(
                f"the broker has its limit of {self._core.settings.max_topics} topics (broker.max_topics)"
            )

    @staticmethod
    def _require_lasting(name: str) -> None:
        if name.endswith(EPHEMERAL_SUFFIX):
            raise InvalidNameError(name, "an ephemeral topic has one queue, made by its first use")

    def _create(self, name: str, start: list[int], config: TopicConfig | None) -> Topic:
        self._write_creation(name, start, config)
        queues = [self._core.store.queue(name, queue_id) for queue_id in range(len(start))]
        for queue, at in zip(queues, start, strict=True):
            queue.hide_below(at)
        topic = Topic(name, queues, ephemeral=False, paused=False, frozen=start, config=config)
        self.topics[name] = topic
        logger.info("topic created topic=%s", name)
        self._on_changed(name)
        self.tell_presence(topic, "")
        return topic

    def _write_creation(self, name: str, start: Sequence[int], config: TopicConfig | None) -> None:
        change: dict[str, Any] = {"op": "create_topic", "topic": name, "queues": len(start), "start": list(start)}
        if config is not None:
            change["config"] = asdict(config)
        self._core.control.write({**change, "at_ms": self._core.clock.now_ms()})

    # -- configuring ------------------------------------------------------------------------------------------------

    def configure(self, name: str, config: TopicConfig) -> int:
        """Configure a topic, made now if it does not exist; return the offset to wait for.

        It gets the queues that it lacks and never loses one. Its channels get the new ones from their start on.

        Raises:
            InvalidNameError, RequestError: no topic can be called so, or be configured so.
            QuotaExceededError: the broker has all the topics it may have.
        """
        topic = self.topics.get(name)
        if topic is None:
            self.create(name, config)
            return self._core.control.last_change
        self._require_lasting(name)
        _require_config(name, config)
        self.promote(topic)
        new_ids = range(len(topic.queues), config.queues)
        self._configure(topic, config, [self._core.store.next_offset(name, queue_id) for queue_id in new_ids])
        return self._core.control.last_change

    def _configure(self, topic: Topic, config: TopicConfig, start: list[int]) -> None:
        """Configure a topic, whose new queues begin at ``start``."""
        name = topic.name
        new_ids = range(len(topic.queues), len(topic.queues) + len(start))
        # For every queue, so that the record can be understood without the ones before it.
        everywhere = [*(max(0, at) for at in self._core.control.catalog.topics[name].start), *start]
        self._core.control.write(
            {
                "op": "configure_topic",
                "topic": name,
                "config": asdict(config),
                "start": everywhere,
                "at_ms": self._core.clock.now_ms(),
            }
        )
        added = [self._core.store.queue(name, queue_id) for queue_id in new_ids]
        for queue, at in zip(added, start, strict=True):
            queue.hide_below(at)
        topic.configure(config, added, start)
        logger.info("topic configured topic=%s config=%s", name, config)
        self._on_changed(name)

    # -- system topics ----------------------------------------------------------------------------------------------

    def add_system(self, name: str, config: TopicConfig) -> Topic:
        """Return a system topic, there from now on without a control record; its queues have what the log has.

        Where a topic of that name was made or promoted before, it keeps its configuration and gets the queues that it
        lacks.
        """
        topic = self.topics.get(name)
        if topic is None:
            known = [queue_id for topic_name, queue_id in self._core.store.queues if topic_name == name]
            count = max([config.queues, *(queue_id + 1 for queue_id in known)])
            queues = [self._core.store.queue(name, queue_id) for queue_id in range(count)]
            frozen = [queue.min_offset for queue in queues]
            topic = Topic(name, queues, ephemeral=False, paused=False, frozen=frozen, config=config, is_system=True)
            self.topics[name] = topic
            self._system_count += 1
        elif not topic.is_system:
            topic.is_system = True
            self._system_count += 1
            if len(topic.queues) < config.queues:
                self.configure(name, config)
        return topic

    def promote(self, topic: Topic) -> None:
        """Write down the creation of a system topic, before something lasting hangs on it."""
        if topic.is_system and topic.name not in self._core.control.catalog.topics:
            start = topic.fan_out()
            self._write_creation(topic.name, start, topic.config)
            logger.info("system topic written down topic=%s", topic.name)

    # -- deleting ---------------------------------------------------------------------------------------------------

    def require_deletable(self, topic: Topic) -> None:
        """Accept that a topic is deleted.

        Raises:
            InvalidNameError: the broker needs it.
        """
        if topic.is_system:
            raise InvalidNameError(topic.name, "the broker needs this topic")

    def write_deletion(self, topic: Topic) -> None:
        """Write down that a topic is deleted."""
        if not topic.ephemeral:
            self._core.control.write({"op": "delete_topic", "topic": topic.name, "at_ms": self._core.clock.now_ms()})

    def forget(self, topic: Topic) -> None:
        """Let go of a topic whose channels are gone."""
        del self.topics[topic.name]
        if topic.ephemeral:
            topic.queues[0].log.clear()  # not when the collector finds these objects, which refer to each other
        else:
            for queue_id in range(len(topic.queues)):  # a topic of that name that is made again may have fewer
                queue = self._core.store.queue(topic.name, queue_id)
                queue.hide_below(queue.next_offset)
            self._on_changed(topic.name)
        self.tell_presence(topic, "")


def _require_config(name: str, config: TopicConfig) -> None:
    if not 1 <= config.queues <= MAX_QUEUES or min(config.read_queues, config.write_queues) < 0:
        raise RequestError(
            f"topic {name!r} cannot have {config.read_queues} read queues and {config.write_queues} write queues: "
            f"0 to {MAX_QUEUES} each, and at least one queue"
        )
