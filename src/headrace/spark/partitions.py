"""What one Spark task reads: ranges of queues or of a log, cut to size, and how they become record batches.

Cutting depends on nothing but its arguments: the same batch planned again has the same partitions, with the same rows
in the same order, which is what the sink's de-duplication by sequence rests on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.spark.decode import Decoder
from headrace.spark.errors import DataLossError
from headrace.spark.options import ReadOptions
from headrace.spark.queue_reading import QueueRange, QueueReading
from headrace.spark.scan import LogSplit, ServersSource, decode_split
from headrace.spark.schema import arrow_schema
from headrace.spark.workers import settle_worker

logger = logging.getLogger(__name__)

SMALL_BATCH_ROWS: Final = 1000
"""A stream's batch of so many rows is read by one task for each broker: a Python task takes Spark some 25 ms."""


MANY_PIECES: Final = 32
"""Of more pieces than that those far below ``maxBytesPerPartition`` share tasks, which cost more than they do."""
SHARED_PART: Final = 16
"""How far below: what shares a task has one part in so many of it, 4 MiB by default."""


class QueuePartition(InputPartition):
    """Ranges of queues of one broker; more than one where ``coalesceQueues`` lets it.

    ``source`` says where the driver has found the broker.
    """

    def __init__(self, ranges: Sequence[QueueRange], source: ServersSource) -> None:
        super().__init__([(r.broker, r.topic, r.queue_id, r.start, r.end) for r in ranges])
        self.ranges = tuple(ranges)
        self.source = source


class LogPartition(InputPartition):
    """A range of one broker's log.

    Of a stream, its rows that were stored at ``start_ms`` or after; of ``topics``, unless they are the reader's.
    """

    def __init__(self, split: LogSplit, start_ms: int | None = None, topics: tuple[str, ...] | None = None) -> None:
        super().__init__((split.broker, split.start, split.end))
        self.split = split
        self.start_ms = start_ms
        self.topics = topics


def cut_queues(ranges: Iterable[QueueRange], options: ReadOptions, *, is_stream: bool = False) -> list[QueuePartition]:
    """Return partitions of about ``maxBytesPerPartition``, by the average size of records.

    Args:
        is_stream: The ranges are one micro-batch, which waits for its tasks: a small one takes as few as it can.
    """
    source = options.source.located()
    assert isinstance(source, ServersSource)  # queues are those of servers
    wanted = [r for r in ranges if r.end > r.start]
    total_rows = sum(r.end - r.start for r in wanted)
    pieces: list[QueueRange] = []
    for found in wanted:
        rows = found.end - found.start
        least = 1
        if options.max_bytes_per_partition:
            least = -(-rows * max(found.record_bytes, 1) // options.max_bytes_per_partition)
        if options.max_records_per_partition:
            least = max(least, -(-rows // options.max_records_per_partition))
        if options.min_partitions:
            least = max(least, -(-options.min_partitions * rows // total_rows))
        count = min(max(least, 1), rows)
        bounds = [found.start + rows * number // count for number in range(count + 1)]
        pieces.extend(replace(found, start=low, end=high) for low, high in pairwise(bounds))
    max_bytes = options.max_bytes_per_partition
    is_coalesced = options.coalesce_queues
    if is_coalesced is None:
        is_coalesced = is_stream and total_rows <= SMALL_BATCH_ROWS and not options.min_partitions
        if not is_coalesced and len(pieces) > MANY_PIECES and max_bytes and not options.min_partitions:
            is_coalesced, max_bytes = True, max(max_bytes // SHARED_PART, 1)
    if not is_coalesced:
        return [QueuePartition([piece], source) for piece in pieces]
    groups = _coalesce(pieces, max_bytes, options.max_records_per_partition)
    return [QueuePartition(group, source) for group in groups]


def split_bytes(options: ReadOptions, log_bytes: int) -> int:
    """Return the size of the pieces that ``log_bytes`` of whole logs are cut into."""
    size = options.max_bytes_per_partition or 1 << 62
    if options.min_partitions:
        size = min(size, -(-log_bytes // options.min_partitions))
    return max(size, 1)


def _coalesce(pieces: Sequence[QueueRange], max_bytes: int, max_rows: int) -> Iterator[list[QueueRange]]:
    """Put small pieces of one broker together, up to so many bytes and rows (0: no limit)."""
    group: list[QueueRange] = []
    group_bytes = group_rows = 0
    for piece in sorted(pieces, key=lambda p: (p.broker, p.topic, p.queue_id, p.start)):
        rows = piece.end - piece.start
        size = rows * max(piece.record_bytes, 1)
        is_full = bool(max_bytes and group_bytes + size > max_bytes) or bool(max_rows and group_rows + rows > max_rows)
        if group and (is_full or group[0].broker != piece.broker):
            yield group
            group, group_bytes, group_rows = [], 0, 0
        group.append(piece)
        group_bytes += size
        group_rows += rows
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reads partitions in tasks: what it needs to know, pickled with the task."""

    options: ReadOptions
    columns: tuple[str, ...]
    log_topics: tuple[str, ...] | None = None

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            DataLossError, BrokerGoneError, RemotingRefusedError, StoreError: it cannot be read; never silently less.
        """
        settle_worker()
        if isinstance(partition, QueuePartition):
            for wanted in partition.ranges:
                yield from self._read_queue(wanted, partition.source)
        elif isinstance(partition, LogPartition):
            yield from self._read_log(partition.split)
        # Spark asks once with None when there is no partition at all.

    def _decoder(self, broker: str, topics: Sequence[str] | None) -> Decoder:
        more: dict[str, Any] = self.options.decoder_options()
        return Decoder(self.columns, broker=broker, topics=topics, schema=arrow_schema(self.columns), **more)

    def _read_queue(self, wanted: QueueRange, source: ServersSource) -> Iterator[pa.RecordBatch]:
        options = self.options
        decoder = self._decoder(wanted.broker, (wanted.topic,))
        reading = QueueReading(
            source,
            tags=" || ".join(options.tags or ()),
            pull_bytes=options.pull_batch_bytes,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for records, first, end in reading.records(wanted):
            decoder.feed_records(records, first_queue_offset=first, end_queue_offset=end)
            yield from decoder.take()
        yield from decoder.finish()
        _tell_damage(decoder, f"{wanted.describe()} of broker {wanted.broker!r}")

    def _read_log(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        decoder = self._decoder(split.broker, self.log_topics)
        rest = split
        while rest.start < rest.end:
            try:
                yield from decode_split(rest, decoder)
                break
            except DataLossError as error:
                if self.options.fail_on_data_loss or error.end_offset <= rest.start:
                    raise
                logger.warning(
                    "part of a log lost broker=%s from=%d to=%d", rest.broker, error.first_offset, error.end_offset
                )
                rest = replace(rest, start=min(error.end_offset, rest.end))
        yield from decoder.finish()  # what lies before a loss at the end
        _tell_damage(decoder, f"the log of broker {split.broker!r} from {split.start} to {split.end}")


def _tell_damage(decoder: Decoder, where: str) -> None:
    """Log what was counted while a partition was read: a task has no other place to say it."""
    if decoder.damaged:
        logger.warning("damaged records or stretches of log where=%s count=%d", where, decoder.damaged)
    if decoder.inflate_failures:
        logger.warning("bodies not decompressed, given as stored where=%s count=%d", where, decoder.inflate_failures)
