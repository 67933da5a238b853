"""What a broker needs to serve consumer groups, built together, on the broker's clock, closed with it.

A protocol that has groups uses the parts; NSQ counts its messages in ``statistics`` and needs no other.
In-process deadlines (silent clients, locks, held pulls) are on the monotonic clock, so that setting the system's clock
throws nobody out: pass those parts ``mono_ms``. Versions and statistics are in wall-clock time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from headrace.broker.broker import Broker
from headrace.broker.config_file import ConfigFile, FileWriter
from headrace.broker.consumers.clients import ClientTable, Member
from headrace.broker.consumers.groups import FILE_NAME as GROUPS_FILE
from headrace.broker.consumers.groups import GroupTable
from headrace.broker.consumers.held_pulls import HeldPulls
from headrace.broker.consumers.locks import QueueLocks
from headrace.broker.consumers.offsets import FILE_NAME as OFFSETS_FILE
from headrace.broker.consumers.offsets import OffsetTable
from headrace.broker.statistics import Statistics
from headrace.broker.throughput import Throughput
from headrace.broker.topic import Topic
from headrace.broker.topics_file import FILE_NAME as TOPICS_FILE
from headrace.broker.topics_file import TopicsFile
from headrace.threads import Threads

logger = logging.getLogger(__name__)


class GroupServices:
    """The parts that serve consumer groups. A ``Ticker`` of its broker.

    Attributes:
        groups: Settings of each group.
        offsets: How far each group has consumed.
        clients: Who is connected, in which group.
        locks: Queues that are consumed in order.
        holds: Pulls that wait for a message.
        cold_pulls: Pulls that wait for records to be read in.
        statistics: Counters by topic, group, host and protocol.
        throughput: Rates of the whole broker.
        topics_file: The writer of ``topics.json``.
        errors: Bugs of ours in a part's ``tick`` or ``close``, logged; the other parts go on.
    """

    def __init__(self, broker: Broker, *, broker_key: str = "", utc_offset_ms: int = 0) -> None:
        """Load the groups and their offsets, and have the broker's clock and queues drive the parts.

        Args:
            broker_key: Key of the whole broker's statistics; its name if empty.
            utc_offset_ms: What to add to UTC for local time, whose midnight parts the daily totals.

        Raises:
            SideFileError: a file is damaged, and so is its copy; nothing was changed.
            OSError: one cannot be read.
        """
        settings, clock = broker.settings, broker.clock
        self.broker = broker
        self._folder = broker.store.directory.config
        self.errors = 0
        self._executor = Threads("headrace-config")
        self._writers: list[FileWriter] = []
        self.groups = GroupTable(self.file_writer(GROUPS_FILE), settings)
        self.offsets = OffsetTable(self.file_writer(OFFSETS_FILE), settings)
        self.clients = ClientTable(settings)
        self.locks = QueueLocks(settings)
        self.holds = HeldPulls(settings)
        self.cold_pulls = HeldPulls(settings)
        self.statistics = Statistics(settings, clock.monotonic_ms(), broker_key or broker.name)
        self.throughput = Throughput(clock.now_ms(), clock.monotonic_ms(), utc_offset_ms)
        self.topics_file = TopicsFile(self.file_writer(TOPICS_FILE), broker.topics, lambda: broker.topic_version)
        self._with_files = (self.groups, self.offsets, self.topics_file)
        self.groups.load()
        self.offsets.load(broker.store.next_offset)
        broker.add_tickers(self)
        broker.deletion_listeners.append(self.forget_topic)
        broker.queue_listeners.append(self.holds.grown)
        broker.warm_listeners.append(self.cold_pulls.wake_all)

    def file_writer(self, name: str) -> FileWriter:
        """Return what writes a file of the config folder in the thread."""
        file = ConfigFile(self._folder, name)
        # Looked up with each call: the node sets it to the event loop's after the broker is open.
        writer = FileWriter(file, self._executor.submit, lambda call: self.broker.store.notify(call))
        self._writers.append(writer)
        return writer

    def seen_at_ms(self, member: Member) -> int:
        """Return when a client was last heard of, in ms since 1970."""
        clock = self.broker.clock
        return clock.now_ms() - (clock.monotonic_ms() - member.seen_ms)

    def forget_topic(self, topic: Topic) -> None:
        """Drop what is kept beside a topic that was deleted: offsets and statistics; pulls that wait there are told."""
        for queue in topic.queues:
            self.holds.wake_all(queue)
        self.offsets.remove_topic(topic.name)
        if not topic.ephemeral:  # it has no counters of its own
            self.statistics.remove_topic(topic.name)

    def forget_group(self, group: str, *, offsets: bool) -> None:
        """Drop what is kept beside a group that is deleted: locks, statistics and, if asked for, its offsets."""
        self.locks.remove_group(group)
        self.statistics.remove_group(group)
        if offsets:
            self.offsets.remove_group(group)

    @property
    def write_errors(self) -> int:
        """Writes of config files that failed; they are tried again."""
        return sum(writer.errors for writer in self._writers)

    def tick(self, now_ms: int) -> None:
        """Do what is due in every part."""
        mono_ms = self.broker.clock.monotonic_ms()
        self._run(partial(self.statistics.tick, mono_ms))
        self._run(partial(self.throughput.tick, now_ms, mono_ms))
        for part in (self.clients, self.locks, self.holds, self.cold_pulls, *self._with_files):
            self._run(partial(part.tick, mono_ms))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self.errors += 1
            logger.exception("group service failed by a bug")

    def _bring_back(self) -> None:
        """Bring groups back in front of the fillers that end a queue, as the store leaves them out of its files then.

        A RocketMQ broker that goes on with the files gives those offsets to messages, which the groups would miss; here
        they read over the fillers once more.
        """
        for queue in self.broker.store.queues.values():
            if queue.records_end < queue.next_offset:
                self.offsets.bring_back(queue.topic, queue.queue_id, queue.records_end)

    def wait_for_files(self) -> None:
        """Return when what was given to the thread is written. Blocks: for tools and tests."""
        self._executor.submit(lambda: None).result()

    def close(self) -> None:
        """Write what is not on disk. Blocks."""
        self._executor.shutdown(wait=True)
        self._run(self._bring_back)
        for part in self._with_files:
            self._run(part.close)
