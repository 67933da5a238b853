"""A store's folder read without its broker: how far its log reaches, and the log's bytes.

Nothing is locked or written, so it works on a closed store, on a copy, and beside a living broker. What is visible ends
at the durable mark. A folder without one (RocketMQ's, or files copied out of a store) is read up to its last right
record, whatever is damaged before it. Files are mapped: a file that retention removes meanwhile stays readable to who
has it open.

Ref: docs/formats/commit-log.md, docs/formats/side-files.md.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import StoreError
from headrace.format import fastjson
from headrace.format.durable_mark import decode_mark, read_mark
from headrace.format.epochs import Epochs
from headrace.format.layout import StoreLayout, log_files, no_log_files, topic_folders
from headrace.format.names import segment_name
from headrace.format.record import BLANK_MAGIC, check, find
from headrace.format.side_file import read_side_file
from headrace.format.sparse import written_end
from headrace.spark.errors import DataLossError


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What one broker's log holds at a moment.

    Attributes:
        segment_bytes: Size of each file; a record never crosses a file's end.
        runs: Ranges [start, end) of physical offsets without a missing file in between, in order.
        store_id: Empty if not known.
        epoch: Rises when a recovery cut something off; 0 if not known.
        missing: Ranges whose files are not there although nothing says that they were given up, in order; the first may
            lie before all runs.
    """

    broker: str
    segment_bytes: int
    runs: tuple[tuple[int, int], ...]
    store_id: str = ""
    epoch: int = 0
    missing: tuple[tuple[int, int], ...] = ()

    @property
    def start(self) -> int:
        """The lowest physical offset there is."""
        return self.runs[0][0] if self.runs else 0

    @property
    def origin(self) -> int:
        """Where the log begins if no file is missing."""
        return min(self.start, self.missing[0][0]) if self.missing else self.start

    @property
    def end(self) -> int:
        """The end of what is durable and visible, exclusive."""
        return self.runs[-1][1] if self.runs else 0


class StoreFiles:
    """The commit log in one store's folder."""

    def __init__(self, root: Path, broker: str = "") -> None:
        """Look at the folder.

        Args:
            root: The broker's ``--data-dir``, or any folder with a ``commitlog`` in it.
            broker: What to call it; default: the folder's name.

        Raises:
            StoreError: there is no commit log, or it cannot be read.
            FormatVersionError, SideFileError: see ``read_side_file``.
        """
        self.root = root
        self.broker = broker or root.resolve().name
        self._layout = StoreLayout(root)
        self._folder = self._layout.commit_log
        self.store_id = ""
        self.epoch = 0
        self.segment_bytes = 0
        self._epochs = Epochs()
        with _required(self._folder):
            if not self._folder.is_dir():
                raise StoreError(f"{root} is no store: it has no folder commitlog; name the broker's --data-dir")
            self._load_identity()

    def _load_identity(self) -> None:
        identity = read_side_file(self._layout.identity, "store", "copy store.json.bak over it")
        if identity is not None:
            self.store_id = str(identity["store_id"])
            self.segment_bytes = int(identity["segment_bytes"])
        epochs = read_side_file(self._layout.epochs, "epochs", "restore it from a backup")
        if epochs is not None:
            self._epochs = Epochs.of(epochs)
            self.epoch = self._epochs.newest.number
        if not self.segment_bytes:
            sizes = sorted({path.stat().st_size for path in self._segment_paths()})
            if len(sizes) > 1:
                raise StoreError(
                    f"{self._folder} has files of {sizes[0]} and of {sizes[-1]} bytes: a log's have one size"
                )
            self.segment_bytes = sizes[0] if sizes else 1 << 30

    def _segment_paths(self) -> list[Path]:
        with _required(self._folder):
            # Where a log begins and ends that is none of ours only its files say.
            others = [] if self.store_id else [path for path in no_log_files(self._folder) if not path.is_dir()]
            paths = log_files(self._folder)
        if others:
            raise StoreError(
                f"{others[0]} is no file, or a link that leads to none: put back what belongs there, or mount its disk"
            )
        return paths

    def topics(self) -> list[str] | None:
        """Return the topics that there are, None if the folder holds nothing but logs.

        ``config/topics.json`` knows a new one within 100 ms, folders of queues come with the next checkpoint.

        Raises:
            StoreError: the folders of queues cannot be read.
        """
        folder = self._layout.consume_queues
        found = set()
        with _required(folder):
            if folder.is_dir():
                found = {topic for topic, _ in topic_folders(folder)}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            content = fastjson.loads((self._layout.config / "topics.json").read_bytes())
            found.update(content.get("topicConfigTable") or ())
        return sorted(found) or None

    def extent(self) -> LogExtent:
        """Return what there is at this moment.

        Raises:
            StoreError: a file is not one of this log, or cannot be read.
        """
        with _required(self._folder):
            end = self._visible_end()
        runs: list[tuple[int, int]] = []
        for path in self._segment_paths():
            first = int(path.name)
            if first % self.segment_bytes:
                raise StoreError(f"{path} is no file of this log: its files begin at multiples of {self.segment_bytes}")
            last = min(first + self.segment_bytes, end)
            if last <= first:
                break
            if self._epochs.is_gap(first, last):
                continue  # nothing but a blank record
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], last)
            else:
                runs.append((first, last))
        return LogExtent(
            self.broker, self.segment_bytes, tuple(runs), self.store_id, self.epoch, self._missing(runs, end)
        )

    def _missing(self, runs: list[tuple[int, int]], end: int) -> tuple[tuple[int, int], ...]:
        """Return what a log of these runs lacks up to its visible end.

        Where it began only a store of ours says: RocketMQ removes files.
        """
        beginning = self._epochs.beginning if self.store_id or not runs else runs[0][0]
        return tuple(self._epochs.missing([*runs, (end, end)], beginning))

    def _visible_end(self) -> int:
        sequence, offset, is_damaged = decode_mark(read_mark(self._layout.durable_mark) or b"")
        if sequence and not is_damaged:
            return offset  # 0 until the first flush of a new store, whatever its files have
        return self._walked_end()

    def _walked_end(self) -> int:
        """Return the end of the last right record, for folders that do not say it.

        A record that is not right ends nothing as long as a right one follows: whoever reads steps over it.
        """
        for path in reversed(self._segment_paths()):
            first = int(path.name)
            known_first, known = _last_records.get(str(self._folder), (-1, 0))
            data = self._map(first)
            with path.open("rb") as file:
                written = data[: written_end(file.fileno())]
            last, end = _last_record(written, first, known if known_first == first else 0)
            if _has_blank(written, end, len(data)):
                end = len(data)
            if end:
                _last_records[str(self._folder)] = first, last
                return first + end
        return 0

    def _map(self, first: int) -> memoryview:
        path = self._folder / segment_name(first)
        try:
            with path.open("rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    return memoryview(b"")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise DataLossError(
                f"{path} is gone: retention has removed physical offsets {first} to {first + self.segment_bytes} of "
                f"broker {self.broker!r} since the read was planned; load() again to read what there is now",
                broker=self.broker,
                first_offset=first,
                end_offset=first + self.segment_bytes,
            ) from error
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be mapped: {error}") from error
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return memoryview(mapped)

    def chunks(self, start: int, stop: int, chunk_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Yield (physical offset, bytes) from ``start`` on, in order, each from one file of the log.

        Goes on behind ``stop`` up to the end of that file, since the last record may: whoever has enough stops. A file
        that is not there is left out.

        Raises:
            DataLossError: the first file is gone and no recovery gave it up, or a file is shorter than it must be.
            StoreError: a file cannot be read.
        """
        runs = self.extent().runs
        at = start
        while at < stop:
            run_end = next((end for first, end in runs if first <= at < end), None)
            if run_end is None:
                later = [first for first, _ in runs if first > at]
                is_given_up = self._epochs.behind(at) > at  # by a recovery, so there need not be a file
                if not later or (at == start and not is_given_up):
                    self._map(at // self.segment_bytes * self.segment_bytes)  # raises if it is not there
                    return
                at = later[0]
                continue
            first = at // self.segment_bytes * self.segment_bytes
            data = self._map(first)
            end = min(first + self.segment_bytes, run_end)
            there = min(end, first + len(data))
            while at < there:
                size = min(chunk_bytes, there - at)
                yield at, data[at - first : at - first + size]
                at += size
            if at < end:
                # As a file whose copying was not finished.
                raise DataLossError(
                    f"{self._folder / segment_name(first)} is {len(data)} bytes long instead of {self.segment_bytes}: "
                    f"physical offsets {at} to {end} of broker {self.broker!r} are gone; failOnDataLoss=false goes on "
                    "without them",
                    broker=self.broker,
                    first_offset=at,
                    end_offset=end,
                )


@contextlib.contextmanager
def _required(folder: Path) -> Iterator[None]:
    """Have what the system does not let be read of a store be an error of the store, which names it.

    Raises:
        StoreError: it is so.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


_last_records: Final[dict[str, tuple[int, int]]] = {}
"""For each folder without a mark that this process has walked: its last file with a record, and where in it that one
begins. Whoever asks again, as a stream does with each micro-batch, goes on from there."""


def _last_record(data: memoryview, first: int, known: int) -> tuple[int, int]:
    """Return where the last right record of a file begins and ends; 0, 0 if there is none.

    Args:
        known: Where a right record may begin; if none does, the file is walked from its beginning.
    """
    at = known if known < len(data) and check(data, known, first + known, checksums=False) > 0 else 0
    last = end = 0
    while 0 <= at < len(data):
        found = check(data, at, first + at, checksums=False)
        if found > 0:
            last, at = at, at + found
            end = at
        else:
            at = find(data, at + 1, first)
    return last, end


def _has_blank(written: memoryview, start: int, size: int) -> bool:
    """Whether a blank record that begins at or after ``start`` covers the rest of a file of ``size`` bytes."""
    mapped = written.obj
    if not isinstance(mapped, mmap.mmap):  # the file is empty; a memoryview itself cannot be searched
        return False
    at = mapped.find(BLANK_MAGIC.to_bytes(4), start + 4, len(written))
    return at >= 0 and at - 4 + int.from_bytes(written[at - 4 : at]) == size
