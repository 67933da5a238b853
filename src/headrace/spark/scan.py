"""Scans of whole commit logs, split into ranges of physical offsets: what packaged jobs are built on.

A split [start, end) of one broker's log has the records that start in it. No index is needed: records say where they
are, so a reader finds the first one of its split by itself, and every cut of a log gives the same rows. A split reads
on behind its end for as much as its last record takes.

Sources are picklable and open nothing until they are read; both kinds give the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.spark.decode import Decoder
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent, StoreFiles

logger = logging.getLogger(__name__)

SPLIT_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 4 << 20
_FIRST_JOIN_BYTES: Final = 64 << 10
_LEAST_PART: Final = 4
"""Pieces that are made smaller so that there are more of them have at least that part of their largest size."""


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A store's folder.

    Attributes:
        path: The broker's ``--data-dir``.
        broker: What to call the broker; empty: the folder's name.
    """

    path: str
    broker: str = ""

    def located(self) -> StoreSource:
        """Return the same: a folder is where it is."""
        return self

    def files(self) -> StoreFiles:
        """Look at the folder. Raises: as ``StoreFiles``."""
        return StoreFiles(Path(self.path), self.broker)

    def extents(self) -> list[LogExtent]:
        """Return the one log's extent."""
        return [self.files().extent()]

    def chunks(self, broker: str, start: int, stop: int, chunk_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Yield the log's bytes; see ``StoreFiles.chunks``."""
        return self.files().chunks(start, stop, chunk_bytes)


@dataclass(frozen=True, slots=True)
class ServersSource:
    """Brokers, found through registries.

    Attributes:
        servers: Registries, ``host:9876``, several parted by ``;``.
        retries: How often a request is made again before the read fails.
        group: Name under which the brokers see this reader.
        addresses: Of brokers, by name, as the driver knows them: tasks find them there while the registries are away.
    """

    servers: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    timeout_ms: int = 10_000
    retries: int = 3
    group: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict, compare=False)

    def located(self) -> ServersSource:
        """Return the same with the brokers' addresses as this process knows them, for tasks."""
        from headrace.spark import connections  # noqa: PLC0415  # stores are read without a network

        return replace(self, addresses=connections.cluster_of(self).known_addresses())

    def extents(self) -> list[LogExtent]:
        """Return the extent of every broker's log.

        Raises:
            ClientError: no registry or not every broker answers, or one has no raw-log reads (RocketMQ).
        """
        from headrace.spark import remote_log  # noqa: PLC0415  # stores are read without a network

        return remote_log.log_extents(self)

    def chunks(self, broker: str, start: int, stop: int, chunk_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Yield a log's bytes; see ``StoreFiles.chunks``."""
        from headrace.spark import remote_log  # noqa: PLC0415  # stores are read without a network

        return remote_log.log_chunks(self, broker, start, stop, chunk_bytes)


Source = StoreSource | ServersSource
"""Where logs are read from."""


@dataclass(frozen=True, slots=True)
class LogSplit:
    """A range of one broker's log: the records that start at physical offsets [start, end).

    Attributes:
        damage: Has ``add(count)``, which tasks call with how many stretches without a record they came upon; None where
            nobody asks.
    """

    source: Source
    broker: str
    start: int
    end: int
    segment_bytes: int
    damage: Any = field(default=None, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of log in the split."""
        return self.end - self.start


def plan_log(
    source: Source,
    *,
    split_bytes: int = SPLIT_BYTES,
    start: Mapping[str, int] | None = None,
    end: Mapping[str, int] | None = None,
    extents: Sequence[LogExtent] | None = None,
    at_once: int | None = None,
) -> list[LogSplit]:
    """Return the splits of all logs of a source, by broker and physical offset.

    Args:
        split_bytes: Size of a split. Splits end with files of the log where that is not far off.
        start: Where to begin, by broker; default: the oldest.
        end: Where to end, exclusive, by broker; default: the end of what is durable. Beyond that it counts as that.
        extents: What the logs hold, where the caller has asked already.
        at_once: Tasks that run at once. Splits are then alike, wherever files end, and as many for each of these: a
            last round of tasks in which some have nothing to do takes as long as any other.

    Raises:
        DataLossError: a log begins behind the ``start`` asked for.
        ClientError, StoreError: the logs cannot be looked at.
    """
    ranges: list[tuple[LogExtent, int, int]] = []
    if extents is None:
        extents = source.extents()
    source = source.located()
    for extent in extents:
        first = (start or {}).get(extent.broker, extent.start)
        last = min((end or {}).get(extent.broker, extent.end), extent.end)
        if first < extent.start:
            raise DataLossError(
                f"the log of broker {extent.broker!r} begins at physical offset {extent.start}: {first} to "
                f"{min(last, extent.start)} are gone",
                broker=extent.broker,
                first_offset=first,
                end_offset=min(last, extent.start),
            )
        ranges.append((extent, first, last))
    if at_once is None:
        pieces = ((extent, *piece) for extent, first, last in ranges for piece in cut(extent, first, last, split_bytes))
    else:
        runs = [(extent, *run) for extent, first, last in ranges for run in _runs_within(extent, first, last)]
        size = even_bytes(sum(end - start for _, start, end in runs), split_bytes, at_once)
        pieces = ((extent, *piece) for extent, start, end in runs for piece in cut_evenly(start, end, size))
    return [LogSplit(source, extent.broker, start, end, extent.segment_bytes) for extent, start, end in pieces]


def _runs_within(extent: LogExtent, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that files hold."""
    for low, high in extent.runs:
        if max(start, low) < min(end, high):
            yield max(start, low), min(end, high)


def even_bytes(total_bytes: int, most_bytes: int, at_once: int) -> int:
    """Return the size of pieces, at most ``most_bytes``, of which each of the tasks at once gets as many as the others.

    For that alone no pieces are made of less than a quarter of ``most_bytes``, nor two where one does.
    """
    count = max(1, -(-total_bytes // most_bytes))
    if count > 1:
        even = -(-count // at_once) * at_once
        count = max(count, min(even, total_bytes * _LEAST_PART // most_bytes))
    return max(1, -(-total_bytes // count))


def cut_evenly(start: int, end: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) in pieces of the same size."""
    pieces = -(-(end - start) // most_bytes)
    return pairwise(start + (end - start) * number // pieces for number in range(pieces + 1))


def cut(extent: LogExtent, start: int, end: int, split_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [start, end) in pieces of about ``split_bytes``, leaving out files that are missing."""
    size = max(split_bytes, 1)
    if size > extent.segment_bytes:
        size = size // extent.segment_bytes * extent.segment_bytes
    for at, stop in _runs_within(extent, start, end):
        while at < stop:
            # Pieces lie on a grid within each file, so that the same log is cut in the same way as it grows.
            piece_end = (at // size + 1) * size
            if size < extent.segment_bytes:
                segment = at // extent.segment_bytes * extent.segment_bytes
                piece_end = min(segment + ((at - segment) // size + 1) * size, segment + extent.segment_bytes)
            yield at, min(piece_end, stop)
            at = piece_end


def raw_chunks(split: LogSplit, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Yield (physical offset, bytes) of exactly the split's range, in order, each from one file of the log.

    Neither begins nor ends with a record as a rule. ``split.source.chunks`` reads on behind the split's end.

    Raises: as ``read_split``.
    """
    known_end = split.start
    for at, data in split.source.chunks(split.broker, split.start, split.end, chunk_bytes):
        if at >= split.end:
            return
        yield at, data[: split.end - at]
        known_end = at + len(data)
    _require_end(split, known_end)


def _require_end(split: LogSplit, known_end: int) -> None:
    """Refuse a log that ends before its split does: it was longer when the split was planned.

    Raises:
        DataLossError: it does.
    """
    if known_end >= split.end:
        return
    ends = {extent.broker: extent.end for extent in split.source.extents()}
    if ends.get(split.broker, 0) >= split.end:
        return  # the split ends in a part without a file, which a recovery or a person has left
    raise DataLossError(
        f"the log of broker {split.broker!r} ends at physical offset {known_end}: {known_end} to {split.end} are gone "
        "since the read was planned, it was cut off or replaced; load() again, or run the job again, to read what "
        "there is now",
        broker=split.broker,
        first_offset=known_end,
        end_offset=split.end,
    )


def read_split(
    split: LogSplit, columns: Sequence[str], *, is_guess: bool = False, **decoder_options: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the split's rows as record batches, but for records whose checksum is wrong: they count as damage.

    Args:
        columns: As ``Decoder`` has them; so are ``decoder_options``.
        is_guess: Nobody knows whether a record begins where the split does: it is no damage that none does.

    Raises:
        DataLossError: the log no longer has the range; the rows of what it has are yielded before.
        ClientError, StoreError: it cannot be read.
    """
    decoder = Decoder(columns, broker=split.broker, only_right=True, **decoder_options)
    yield from decode_split(split, decoder)
    if decoder.wrong_checksums:
        logger.warning(
            "records left out whose checksum is wrong broker=%s from=%d to=%d count=%d",
            split.broker, split.start, split.end, decoder.wrong_checksums,
        )  # fmt: skip
    damaged = decoder.wrong_checksums if is_guess else decoder.damaged
    if damaged and split.damage is not None:
        split.damage.add(damaged)


def decode_split(split: LogSplit, decoder: Decoder, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the split's rows through a decoder whose counters the caller wants to see. Raises: as ``read_split``."""
    at = known_end = split.start
    carry = b""  # the beginning of a record whose rest comes with the next chunk; it lies at ``at``
    for base, data in split.source.chunks(split.broker, split.start, split.end, chunk_bytes):
        known_end = base + len(data)
        segment_end = (base // split.segment_bytes + 1) * split.segment_bytes
        if carry and base == at + len(carry):
            reached = at
            for join_bytes in (_FIRST_JOIN_BYTES, len(data)):
                joined = carry + data[:join_bytes]
                reached = decoder.feed_log(joined, at, reached, split.end, segment_end=segment_end)
                if reached >= base:
                    break
            if reached < base:
                carry, at = joined[reached - at :], reached
                if at >= split.end:
                    break
                continue
            at = reached
        elif base > at:
            at = base
        carry = b""
        at = decoder.feed_log(data, base, at, split.end, segment_end=segment_end)
        yield from decoder.take()
        if at >= split.end:
            break
        if at < known_end:
            carry = bytes(data[at - base :])
    if at < split.end and carry:
        # Its size may be what is damaged: whole records behind it count. None goes on behind what there is.
        damaged = decoder.damaged
        decoder.feed_log(carry, at, at, split.end, segment_end=at + len(carry))
        if decoder.damaged > damaged:  # else the split begins in the log's last record, which is another's
            logger.warning(
                "log ends within a record broker=%s physical_offset=%d end=%d", split.broker, at, at + len(carry)
            )
    yield from decoder.finish()
    if at < split.end:
        _require_end(split, known_end)
