"""The batch reader: plans a frozen range of messages on the driver, reads it in tasks.

It has no ``pushFilters`` on purpose: with it Spark 4.3 gives wrong results when one DataFrame is used twice
(tests/spark/test_source_pushdown.py shows it). Rows are selected by options, which are fixed when ``load`` is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import ConfigError, TopicNotFoundError
from headrace.spark.errors import DataLossError
from headrace.spark.options import COMMITTED, EARLIEST, LATEST, ReadOptions
from headrace.spark.partitions import LogPartition, PartitionReader, cut_queues, split_bytes
from headrace.spark.queue_reading import QueueRange
from headrace.spark.remote import ServersView, state_of_log
from headrace.spark.scan import StoreSource, plan_log
from headrace.spark.starts import resolve_ends, resolve_starts
from headrace.spark.streams.admission import SAMPLED_ROWS, UNKNOWN_RECORD_BYTES
from headrace.spark.streams.positions import QueueKey

logger = logging.getLogger(__name__)

NO_END = 1 << 62


class BatchReader(DataSourceReader):
    """Reads from a start to an end that do not move while the DataFrame lives."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        require_batch(options)
        self.options = options
        self.columns = tuple(columns)
        self._log_topics = find_log_topics(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: called once per load.

        Raises:
            HeadraceError: what the options name is not there.
        """
        if self.options.is_log_mode:
            return plan_log_partitions(self.options)
        view = ServersView.open(self.options)
        snapshot = view.snapshot(group=self.options.group)
        starts = resolve_starts(self.options, snapshot, EARLIEST, view)
        ranges = []
        for key, end in resolve_ends(self.options, snapshot, view).items():
            start = starts[key]
            if start > end and self.options.ending_timestamp is None:
                raise ConfigError(
                    f"the read of {key} begins at offset {start} and ends at {end}: the start lies behind the end",
                    key="endingOffsets",
                )
            if end > start:
                ranges.append(QueueRange(**key._asdict(), start=start, end=end))
        sizes = sample_sizes(view, ranges)
        return cut_queues(
            (replace(r, record_bytes=sizes.get(r.topic, UNKNOWN_RECORD_BYTES)) for r in ranges),
            self.options,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task. Raises: as ``PartitionReader.read``."""
        return PartitionReader(self.options, self.columns, self._log_topics).read(partition)


def require_batch(options: ReadOptions) -> None:
    """Refuse what only a stream can have.

    Raises:
        ConfigError: it is named.
    """
    if options.starting_offsets == LATEST:
        raise ConfigError(
            "startingOffsets=latest is for streams: a batch from the end has no rows", key="startingOffsets"
        )
    if options.starting_offsets == COMMITTED and not options.group:
        raise ConfigError("startingOffsets=committed needs a group", key="group")
    if options.starting_offsets == COMMITTED and options.scan:
        raise ConfigError(
            "startingOffsets=committed goes with topics of servers: no group commits offsets of a whole log",
            key="startingOffsets",
        )
    start, end = options.starting_timestamp, options.ending_timestamp
    if start is not None and end is not None and start > end:
        raise ConfigError("startingTimestamp lies behind endingTimestamp", key="startingTimestamp")


def find_log_topics(options: ReadOptions) -> tuple[str, ...] | None:
    """Return the topics that a read of logs takes, None for all.

    Raises:
        ConfigError: the selection does not go with logs.
        TopicNotFoundError: a store has no such topic.
    """
    source = options.source
    if options.assign is not None and options.store:
        raise ConfigError(
            "assign goes with servers: a store's folder is read by topics, topicPattern or scan=log", key="assign"
        )
    if options.is_log_mode:
        for name, times in (
            ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
            ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp),
        ):
            if times is not None:
                raise ConfigError(
                    f"option {name} goes with topics of servers, which have queues: a log is read by "
                    "startingTimestamp and endingTimestamp",
                    key=name,
                )
    if not isinstance(source, StoreSource) or options.scan:
        return None
    if options.starting_offsets == COMMITTED:
        raise ConfigError(
            "startingOffsets=committed goes with servers: a folder answers for no group", key="startingOffsets"
        )
    known = source.files().topics()
    if options.topics is not None:
        for topic in options.topics:
            if known is not None and topic not in known:
                raise TopicNotFoundError(topic, known)
        return options.topics
    if known is None:
        raise ConfigError(
            f"topicPattern needs the folder consumequeue, which {options.store} does not have: name topics",
            key="topicPattern",
        )
    return tuple(topic for topic in known if options.wants_topic(topic))


def plan_log_partitions(options: ReadOptions) -> list[InputPartition]:
    """Return the partitions of a batch over logs.

    Raises:
        ConfigError: the options name a broker that there is not, or a start behind its end.
        DataLossError: an offset is not there, or not any more.
        ClientError, StoreError: the logs cannot be looked at.
    """
    extents = options.source.extents()
    snapshot = {extent.broker: state_of_log(extent) for extent in extents}
    starts = {key.broker: start for key, start in resolve_starts(options, snapshot, EARLIEST).items()}
    ends = {key.broker: end for key, end in resolve_ends(options, snapshot).items()}
    for broker, start in starts.items():
        if start > ends[broker]:
            raise ConfigError(
                f"the read of the log of broker {broker!r} begins at physical offset {start} and ends at "
                f"{ends[broker]}: the start lies behind the end",
                key="endingOffsets",
            )
    is_open = isinstance(options.ending_offsets, str)  # up to the end, wherever that should be
    for extent in extents:
        start = starts[extent.broker]
        if isinstance(options.starting_offsets, str) and start == extent.start:
            start = extent.origin  # the oldest is asked for: its file may be gone
        end = NO_END if is_open else ends[extent.broker]
        require_files(extent.broker, extent.missing, start, end, options)
    splits = plan_log(
        options.source,
        split_bytes=split_bytes(options, sum(max(0, ends[broker] - start) for broker, start in starts.items())),
        start=starts,
        end=ends,
        extents=extents,
    )
    return [LogPartition(split) for split in splits]


def require_files(broker: str, missing: Sequence[tuple[int, int]], start: int, end: int, options: ReadOptions) -> None:
    """Refuse to read [start, end) of a log without what its missing files had.

    Raises:
        DataLossError: unless failOnDataLoss=false.
    """
    for low, high in missing:
        if low < end and start < high:
            where = f" in {options.store}" if options.store else ""
            text = f"the log of broker {broker!r}{where} has no files for {low} to {high}"
            if options.fail_on_data_loss:
                raise DataLossError(
                    f"{text}: bring them back, or failOnDataLoss=false goes on without them",
                    broker=broker, first_offset=low, end_offset=high,
                )  # fmt: skip
            logger.warning("part of a log lost what=%s", text)


def sample_sizes(view: ServersView, ranges: Sequence[QueueRange]) -> dict[str, int]:
    """Return about how large a record of each topic is, looking at a few of the topic's longest range."""
    longest: dict[str, QueueRange] = {}
    for found in sorted(ranges, key=lambda queue: queue.end - queue.start, reverse=True):
        longest.setdefault(found.topic, found)
    sizes = {}
    for topic, found in longest.items():
        rows = found.end - found.start
        if rows < SAMPLED_ROWS:
            continue
        places = (found.start, found.start + rows // 2, found.end - 64)
        key = QueueKey(topic, found.broker, found.queue_id)
        seen = [size for at in places if (size := view.sample_record_bytes(key, at, found.end))]
        if seen:
            sizes[topic] = sum(seen) // len(seen)
    return sizes
