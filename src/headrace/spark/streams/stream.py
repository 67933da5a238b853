"""The stream reader: offsets, admission and progress on the driver; reading is the batch reader's.

Spark keeps one of these in a process of its own for as long as the query runs and asks it, many times a second, what
there is. Answers come from the last state of the brokers; when that holds nothing new, one call waits at the broker for
up to ``WAIT_MS``, so an idle query makes few calls and a message is seen as soon as it is readable.

Rules (docs/spark/source.md): ``initialOffset`` gives one answer until batch 0 is committed, whichever process asks;
``partitions`` depends on its two offsets and the options alone; what does not fit together is an error, never fewer
rows; ends are exclusive everywhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent
from headrace.spark.options import COMMITTED, EARLIEST, LATEST, OFFSET_LATEST, ReadOptions
from headrace.spark.partitions import LogPartition, PartitionReader, cut_queues, split_bytes
from headrace.spark.queue_reading import QueueRange
from headrace.spark.reader import NO_END, find_log_topics, require_files
from headrace.spark.remote import PROGRESS, BrokerState, QueueState, ServersView, Snapshot, state_of_log
from headrace.spark.scan import LogSplit, cut
from headrace.spark.starts import began_elsewhere, each_state, resolve_starts
from headrace.spark.streams.admission import SAMPLED_ROWS, UNKNOWN_RECORD_BYTES, Backlog, admit
from headrace.spark.streams.continuity import Continuity
from headrace.spark.streams.folder_log import kept_name, require_folder_of
from headrace.spark.streams.pin import StartPin
from headrace.spark.streams.positions import Position, QueueKey

logger = logging.getLogger(__name__)

WAIT_MS: Final = 400
FRESH_S: Final = 0.1
"""State this young is not asked for again while there is something to read, be it too little yet."""
STORE_PAUSE_S: Final = 0.2
SAMPLE_EVERY_S: Final = 60.0
UNREADABLE_EVERY_S: Final = 60.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the checkpoint says."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        _require_stream(options)
        self.options = options
        self.columns = tuple(columns)
        self._log_topics = find_log_topics(options)
        self._state: dict[str, BrokerState] | None = None
        self._state_at_s = 0.0
        self._is_available_now = False
        self._target: dict[str, BrokerState] | None = None
        self._view: ServersView | None = None
        self._folder_name = ""  # what it is called, where its log goes on under the name that the checkpoint has
        self._missing: dict[str, tuple[tuple[int, int], ...]] = {}  # of each log, said already
        self._gone: set[tuple[str, str]] = set()  # topics on brokers, said already
        self._unreadable: dict[QueueKey, tuple[int, float]] = {}  # ends of queues no longer among the read queues
        self._unknown: set[str] = set()  # brokers of the checkpoint, said already
        self._record_bytes: dict[str, tuple[int, float]] = {}
        self._last_batch_s = time.monotonic()
        self._committed: dict[QueueKey, int] = {}
        self._is_pin_dropped = False

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read; what the driver knows of brokers stays with it.
        return {"options": self.options, "columns": self.columns, "_log_topics": self._log_topics}

    # What there is

    def _servers(self) -> ServersView:
        if self._view is None:
            self._view = ServersView.open(self.options)
        return self._view

    def _look(self, begin: Position | None = None, *, wait_ms: int = 0) -> dict[str, BrokerState]:
        """Return the state of everything selected, waiting for news if asked to.

        Args:
            begin: Its topics were there: one that is not any more is a loss, not a wrong option.
        """
        if self.options.store:
            if wait_ms and self._state is not None:
                time.sleep(STORE_PAUSE_S)
            (extent,) = self.options.source.extents()
            self._state = {extent.broker: state_of_log(extent)}
        else:
            was_there = begin is not None and {key.topic for key in begin.offsets} >= {
                *(self.options.named_topics or ())
            }
            self._state = self._servers().snapshot(
                known=self._state if wait_ms else None,
                wait_ms=wait_ms,
                may_miss=self._state is not None or not self.options.fail_on_data_loss or was_there,
            )
        self._state_at_s = time.monotonic()
        return self._state

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Read no further in this run than what is there at its first ``latestOffset``.

        Not than what is there now: Spark asks for the start after this, and "latest" would lie behind such an end.
        """
        self._is_available_now = True
        self._target = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the most telling limit; the others are applied beside it."""
        options = self.options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    # Where to begin

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the stream begins: the same until its first batch is committed.

        Raises:
            HeadraceError: it cannot be found out, or pinned.
        """
        if self.options.store:
            snapshot: Snapshot = self._look()
            starts = resolve_starts(self.options, snapshot, COMMITTED)
            self._require_beginnings(snapshot, starts)
        else:
            starts, snapshot = self._pinned_starts(self._servers())
        is_log = self.options.is_log_mode
        position = Position(is_log, starts, start_ms=self.options.starting_timestamp if is_log else None)
        _note_identity(position, snapshot)
        return position.to_json()

    def _pinned_starts(self, view: ServersView) -> tuple[dict[QueueKey, int], Snapshot]:
        """Return where a stream begins on brokers, which remember it from now on, and their state."""
        pin = StartPin(view, self.options.group)
        starts, snapshot = pin.load()
        if starts and began_elsewhere(self.options, snapshot, starts, view):
            logger.warning(
                "start pin is of a stream that was to begin elsewhere, beginning where the options say group=%s",
                pin.group,
            )
            starts = {}
        elif starts:
            logger.info("start pin found, beginning there group=%s", pin.group)
        is_first = not starts
        missing = {key: queue for key, queue in each_state(snapshot) if key not in starts}
        if missing and starts:
            # They came after the pin: they begin as new ones do.
            starts |= {key: self._new_start(queue) for key, queue in missing.items()}
        elif missing:
            snapshot = view.snapshot(group=self.options.group)
            starts = resolve_starts(self.options, snapshot, COMMITTED, view)
            self._require_beginnings(snapshot, starts)
        if missing:
            pin.save(starts, is_first=is_first)
            logger.info("stream start pinned group=%s queues=%d", pin.group, len(starts))
        return starts, snapshot

    def _require_beginnings(self, state: Snapshot, starts: Mapping[QueueKey, int]) -> None:
        """Refuse to begin with the oldest of a log whose first file is missing. Raises: as ``require_files``."""
        if not isinstance(self.options.starting_offsets, str):
            return
        for key, queue in each_state(state):
            if starts[key] == queue.low:
                missing = [lost for lost in state[key.broker].missing if lost[1] == queue.low]
                require_files(key.broker, missing, 0, queue.low, self.options)

    def _new_start(self, queue: QueueState) -> int:
        """Return where a queue or a log begins that appears while the stream lives."""
        return queue.low if self.options.new_queues == EARLIEST else queue.high

    # How far to go

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the next batch ends; ``start`` itself when there is nothing to read.

        Raises:
            DataLossError: what was to be read next is gone.
            BrokerGoneError: a broker does not answer.
        """
        begin = Position.from_json(start)
        self._require_same_kind(begin)
        self._keep_name(begin)
        if self._is_available_now:
            if self._target is None:
                self._target = self._look(begin)
            return self._advance(begin, start, self._target, limit)
        may_wait = not isinstance(limit, ReadAllAvailable)  # trigger(once=True): there is no next batch to wait for
        state = self._state
        if state is None:
            state = self._look(begin)
        elif not self._has_backlog(begin, state):
            state = self._look(wait_ms=WAIT_MS)
        elif time.monotonic() - self._state_at_s > FRESH_S:
            state = self._look(wait_ms=WAIT_MS if may_wait and self._waits_for_more(begin, state) else 0)
        if may_wait and self._waits_for_more(begin, state):
            return start
        return self._advance(begin, start, state, limit)

    def _require_same_kind(self, begin: Position) -> None:
        if begin.is_log != self.options.is_log_mode:
            raise ConfigError(
                "the checkpoint was written by a query with another selection (scan=log or a store on the one side, "
                "topics of servers on the other): use a new checkpoint",
                key="scan",
            )

    def _keep_name(self, position: Position) -> None:
        """Go on under the name that a folder's one log has in the checkpoint. Raises: as ``kept_name``."""
        if not self.options.store or not position.offsets:
            return
        files = self.options.source.files()  # type: ignore[union-attr]  # of a store
        name = kept_name(files, position, self.options.broker_name)
        if name is None or name == files.broker:
            return
        self._folder_name = files.broker
        self.options = replace(self.options, broker_name=name)
        self._state = None
        logger.info("folder goes on under the name of its checkpoint broker=%s store=%s", name, self.options.store)

    def _has_backlog(self, begin: Position, state: Snapshot) -> bool:
        return any(queue.high != begin.offsets.get(key) for key, queue in each_state(state))

    def _waits_for_more(self, begin: Position, state: Snapshot) -> bool:
        """Whether minOffsetsPerTrigger has the batch wait."""
        least = self.options.min_offsets_per_trigger
        if not least or (time.monotonic() - self._last_batch_s) * 1000 >= self.options.max_trigger_delay:
            return False
        rows = sum(max(0, queue.high - begin.offsets.get(key, queue.low)) for key, queue in each_state(state))
        return rows < least

    def _advance(self, begin: Position, start: dict[str, Any], state: Snapshot, limit: ReadLimit) -> dict[str, Any]:
        self._tell_unknown(begin, state)
        continuity = Continuity(begin, self.options.fail_on_data_loss)
        names = None if self.options.topic_pattern is None else self._log_topics
        end = replace(begin, offsets=dict(begin.offsets), record_bytes={}, first={}, segments={}, names=names)
        for broker, found in state.items():
            if found.missing != self._missing.get(broker, ()):
                log = QueueKey.of_log(broker)
                first = begin.offsets.get(log, self._new_start(found.topics[log.topic].queues[log.queue_id]))
                require_files(broker, found.missing, first, NO_END, self.options)
                self._missing[broker] = found.missing
            continuity.check_store(found)
        self._tell_gone(begin, state, continuity)
        self._end_unreadable(begin, end, state, continuity)
        for key in begin.offsets:
            # Its store is another one, in which the topic may still be made: then all of it is new.
            of_broker = state.get(key.broker)
            if of_broker and key.topic not in of_broker.topics and continuity.has_other_store(of_broker):
                end.first[key] = end.offsets[key] = 0
        backlogs = []
        for key, queue in each_state(state):
            offset = begin.offsets.get(key)
            if offset is None:
                first = self._new_start(queue)
            else:
                first = continuity.next_offset(key, state[key.broker], queue, offset)
            if first != offset:
                end.first[key] = first
            end.offsets[key] = first
            if queue.high > first:
                backlogs.append(Backlog(key, first, queue.high))
        self._admit(backlogs, end, isinstance(limit, ReadAllAvailable))
        end.lost += continuity.lost
        is_known = not any(map(continuity.has_other_store, state.values()))  # else it would be said with each look
        if is_known and end.offsets == begin.offsets and end.lost == begin.lost:
            return start
        if end.is_log:
            end.segments = {broker: found.segment_bytes for broker, found in state.items()}
        self._last_batch_s = time.monotonic()
        _note_identity(end, state)
        return end.to_json()

    def _admit(self, backlogs: Sequence[Backlog], end: Position, is_unlimited: bool) -> None:
        """Move the end of a batch forward, as far as the options let it."""
        sizes = {"": 1} if end.is_log else self._sizes(backlogs)
        limits = {} if is_unlimited else {
            "max_bytes": self.options.max_bytes_per_trigger, "max_rows": self.options.max_offsets_per_trigger,
        }  # fmt: skip
        for backlog, reached in admit(backlogs, sizes, **limits):
            end.offsets[backlog.key] = reached
        if not end.is_log:
            end.record_bytes = {b.key.topic: sizes[b.key.topic] for b in backlogs if b.key.topic in sizes}

    def _tell_unknown(self, begin: Position, state: Snapshot) -> None:
        """Log which brokers of the checkpoint nobody knows: one that was down for long comes back, and is read then."""
        unknown = begin.brokers - state.keys()
        for broker in sorted(unknown - self._unknown):
            logger.warning(
                "broker of the checkpoint not known to the registries, not read until it is broker=%s group=%s",
                broker, self.options.group,
            )  # fmt: skip
        self._unknown = unknown

    def _tell_gone(self, begin: Position, state: Snapshot, continuity: Continuity) -> None:
        """Find topics of the checkpoint that their brokers have no more, each once."""
        gone = {
            (topic, broker)
            for topic, broker, _ in begin.offsets
            if broker in state and topic not in state[broker].topics and self.options.wants_topic(topic)
        }
        for topic, broker in sorted(gone - self._gone):
            continuity.topic_gone(topic, broker)
        self._gone = gone

    def _end_unreadable(self, begin: Position, end: Position, state: Snapshot, continuity: Continuity) -> None:
        """Find queues of the checkpoint that are no read queues any more: what was not read of them is a loss."""
        for key, offset in sorted(begin.offsets.items()):
            found = state[key.broker].topics.get(key.topic) if key.broker in state else None
            if found is None or key.queue_id in found.queues or not self.options.wants_queue(*key):
                continue
            first = continuity.end_unreadable(key, offset, self._end_of_unreadable(key))
            if first != offset:
                end.first[key] = first
            end.offsets[key] = first

    def _end_of_unreadable(self, key: QueueKey) -> int:
        """Return where a queue ends that brokers do not tell of; asked once a minute."""
        high, until_s = self._unreadable.get(key, (0, 0.0))
        if time.monotonic() >= until_s:
            high = self._servers().end_of(key)
            self._unreadable[key] = (high, time.monotonic() + UNREADABLE_EVERY_S)
        return high

    def _sizes(self, backlogs: Sequence[Backlog]) -> dict[str, int]:
        """Return about how large a record is, of topics whose backlog is worth a look; looked at once a minute."""
        now_s = time.monotonic()
        longest: dict[str, Backlog] = {}
        for backlog in backlogs:
            topic = backlog.key.topic
            if backlog.rows >= SAMPLED_ROWS and (topic not in longest or backlog.rows > longest[topic].rows):
                longest[topic] = backlog
        for topic, b in longest.items():
            size, until_s = self._record_bytes.get(topic, (0, 0.0))
            if not size or now_s >= until_s:
                size = self._servers().sample_record_bytes(b.key, b.start, b.end) or size
                self._record_bytes[topic] = (size or UNKNOWN_RECORD_BYTES, now_s + SAMPLE_EVERY_S)
        return {topic: size for topic, (size, _) in self._record_bytes.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """Return the end of everything, as of the last look: Spark shows it in its progress."""
        if self._state is None:
            return None
        ends = {key: queue.high for key, queue in each_state(self._state)}
        return Position(self.options.is_log_mode, ends).to_json()

    # One batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the batch from ``start`` to ``end`` reads: the same whenever it is asked.

        Raises:
            DataLossError: the end lies before the start.
        """
        begin, until = Position.from_json(start), Position.from_json(end)
        self._require_same_kind(begin)
        self._require_same_kind(until)
        self._keep_name(until)
        if start == end:
            return []
        before = QueueKey.of_log(self._folder_name)
        if before in begin.offsets:  # the start of batch 0 was asked for before its end gave the name
            begin.offsets[QueueKey.of_log(self.options.broker_name)] = begin.offsets.pop(before)
        ranges = {}
        for key, reached in sorted(until.offsets.items()):
            # Before the start: a queue that came after the pin may have been pinned when batch 0 is planned again.
            first = self._require_order(key, until.first.get(key, begin.offsets.get(key)), reached)
            if reached > first:
                ranges[key] = (first, reached)
        if begin.is_log:
            return self._log_partitions({key.broker: found for key, found in ranges.items()}, until)
        sizes = until.record_bytes
        queues = [
            QueueRange(*key, start=first, end=reached, record_bytes=sizes.get(key.topic, UNKNOWN_RECORD_BYTES))
            for key, (first, reached) in ranges.items()
        ]
        return cut_queues(queues, self.options, is_stream=True)

    def _log_partitions(self, ranges: Mapping[str, tuple[int, int]], until: Position) -> list[InputPartition]:
        """Return what a batch of logs reads; ``ranges`` are by broker."""
        if self.options.store:
            files = self.options.source.files()  # type: ignore[union-attr]  # of a store
            require_folder_of(files, until, set(ranges), is_identity_checked=self.options.fail_on_data_loss)
        size = split_bytes(self.options, sum(reached - first for first, reached in ranges.values()))
        source = self.options.source.located()
        partitions: list[InputPartition] = []
        for broker, (first, reached) in ranges.items():
            segment_bytes = until.segments.get(broker, 1 << 30)
            extent = LogExtent(broker, segment_bytes, ((first, reached),))
            for low, high in cut(extent, first, reached, size):
                split = LogSplit(source, broker, low, high, segment_bytes)
                partitions.append(LogPartition(split, until.start_ms, until.names))
        return partitions

    def _require_order(self, key: QueueKey, first: int | None, reached: int) -> int:
        """Return where a batch of a queue or a log begins that ends at ``reached``.

        Raises:
            DataLossError: behind its end, or nobody knows.
        """
        if first is not None and first <= reached:
            return first
        if not self.options.fail_on_data_loss:
            return reached if first is None else first
        if first is None:
            raise DataLossError(
                f"a batch of {key} ends at {reached}, and where it begins is not known any more: start "
                "the query as it was, with every broker there; failOnDataLoss=false takes it as empty",
                **key._asdict(), first_offset=reached, end_offset=reached,
            )  # fmt: skip
        raise DataLossError(
            f"a batch of {key} begins at {first} and ends at {reached}: the start has moved since the batch was "
            "planned; failOnDataLoss=false takes it as empty",
            **key._asdict(), first_offset=reached, end_offset=first,
        )  # fmt: skip

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task. Raises: as ``PartitionReader.read``."""
        # The option says where the stream began, and a pattern now takes topics that came since: a query that is
        # started again reads the same rows.
        start_ms, topics = None, self._log_topics
        if isinstance(partition, LogPartition):
            start_ms = partition.start_ms
            topics = topics if partition.topics is None else partition.topics
        options = replace(self.options, starting_timestamp=start_ms)
        return PartitionReader(options, self.columns, topics).read(partition)

    # Behind the last batch

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the brokers how far the group has read, and forget the start pin; failing here stops nothing."""
        if self.options.store:
            return
        try:
            self._report(Position.from_json(end))
        except HeadraceError as error:
            logger.warning("progress not reported group=%s error=%s", self.options.group, error)

    def _report(self, end: Position) -> None:
        """Tell those brokers that somebody knows: what the others lack they are told once they are back."""
        view = self._servers()
        there = view.brokers().keys()
        if not self._is_pin_dropped and end.brokers <= there:  # as a whole: the rest of a pin makes its queues new ones
            StartPin(view, self.options.group).drop(end.offsets)
            self._is_pin_dropped = True
        if not self.options.commit_offsets or end.is_log:
            return
        rows = [
            (key, offset)
            for key, offset in sorted(end.offsets.items())
            if key.broker in there and self._committed.get(key) != offset
        ]
        view.commit(self.options.group, rows, more=PROGRESS)
        self._committed.update(rows)

    def stop(self) -> None:
        """Close the connections."""
        if self._view is not None:
            self._view.cluster.close()


def _require_stream(options: ReadOptions) -> None:
    """Refuse what a stream cannot have.

    Raises:
        ConfigError: it is named.
    """
    if not options.store and not options.group:
        raise ConfigError(
            "a stream needs the option group: a name of this query's own, for its start and its lag", key="group"
        )
    given = options.starting_offsets
    is_latest = given == LATEST if isinstance(given, str) else OFFSET_LATEST in given.values()
    if options.store and (is_latest or given == COMMITTED):
        raise ConfigError(
            "a stream over a store's folder begins at earliest or at explicit physical offsets: nobody would remember "
            f"where {LATEST if is_latest else COMMITTED} was",
            key="startingOffsets",
        )
    for name, value in (
        ("endingTimestamp", options.ending_timestamp),
        ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
        ("endingOffsets", None if options.ending_offsets == LATEST else options.ending_offsets),
    ):
        if value is not None:
            raise ConfigError(f"option {name} is for batches: a stream has no end", key=name)


def _note_identity(position: Position, state: Snapshot) -> None:
    """Write down whose offsets these are."""
    stores = {broker: (found.store_id, found.epoch) for broker, found in state.items() if found.store_id}
    position.stores = position.stores | stores
    creations = {topic: dict(brokers) for topic, brokers in position.creations.items()}
    for broker, found in state.items():
        for topic, row in found.topics.items():
            if row.epoch:
                creations.setdefault(topic, {})[broker] = row.epoch
    position.creations = creations
