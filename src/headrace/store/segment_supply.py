"""Where the log's next segment comes from: allocated ahead by a thread, refused when the store has no room for it."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import (
    DISK_FULL,
    ReplacedFolderError,
    ReplacedStoreError,
    StoreError,
    StoreFullError,
    remedy_for,
)
from headrace.format.names import LOG_END, segment_name
from headrace.format.side_file import naming, sync_folder
from headrace.lock_file import require_in_place
from headrace.settings import StoreSettings
from headrace.settings.folder import nearest_folder
from headrace.store.commit_log import CommitLog
from headrace.store.directory import StoreDirectory
from headrace.store.segment import Segment, create_segment_file

if TYPE_CHECKING:
    from headrace.store.store import StoreCounters

logger = logging.getLogger(__name__)


_WHOLE_BUDGET: Final = 100

RESERVE_BYTES: Final = 64 * 1024
"""What publishers leave of the last segment there is room for, or a 16th of it: some hundred control records, so that
who is asked to make room can resume, empty and delete."""


def require_room(
    directory: StoreDirectory, settings: StoreSettings, own: int, segment_bytes: int, percent: int | None = None
) -> None:
    """Refuse a new segment that would take the store above its refuse mark.

    Args:
        directory: The store's, which need not be there yet.
        own: Bytes of the segments that the store has.
        percent: Another mark than ``refuse_percent``.

    Raises:
        StoreFullError: there is no room for it.
    """
    usage = shutil.disk_usage(nearest_folder(directory.root))
    budget = settings.budget_bytes or own + usage.free
    percent = percent or settings.refuse_percent
    limit = budget * percent // 100
    if own + segment_bytes > limit:
        if settings.budget_bytes:
            what, remedy = "a budget", "raise store.budget_bytes"
        else:
            what, remedy = "what it has and the disk has free", "free space on the disk"
            if not own:
                remedy += ", or begin the store with a smaller store.segment_bytes"
        raise StoreFullError(
            f"no room for another segment of {segment_bytes} bytes in {directory.commit_log}: the store has "
            f"{own} bytes, its limit is {limit} ({percent} % of {what}, {budget}); {remedy}"
        )


def is_unfinished(path: Path, segment_bytes: int) -> bool:
    """Whether a file was still being allocated when its process was killed: it is too short, and all zeros."""
    if not path.is_file() or path.stat().st_size >= segment_bytes:
        return False
    with path.open("rb") as file, naming(path):
        return not any(file.read(4096))


def remove_unfinished(path: Path, segment_bytes: int) -> None:
    """Remove a file that was never made in full, whose process was killed or could not remove it."""
    if is_unfinished(path, segment_bytes):
        path.unlink()
        logger.info("removed an unfinished segment path=%s", path)


class SegmentSupply:
    """The segments that one log will roll into."""

    def __init__(
        self,
        log: CommitLog,
        directory: StoreDirectory,
        executor: ThreadPoolExecutor,
        settings: StoreSettings,
        counters: StoreCounters,
    ) -> None:
        self._log = log
        self._directory = directory
        self._executor = executor
        self._settings = settings
        self._counters = counters
        self._next_segment: Future[Segment] | None = None

    def take(self, first_offset: int) -> Segment:
        """Return the segment that the log rolls into, made ahead where there was time.

        Raises:
            StoreFullError: there is no room for it.
            ReplacedStoreError: it would be another store's.
            StoreError: the system refuses to make it.
        """
        prepared, self._next_segment = self._next_segment, None
        segment: Segment | None = None
        if prepared is not None:
            if not prepared.done():
                self._counters.segment_waits += 1
            try:
                segment = prepared.result()
            except StoreError:
                segment = None  # room may have been made since: try once more, here
        if segment is None or segment.first_offset != first_offset:
            segment = self._make_segment(first_offset)
        # Now: publishers may fill this one before the thread finds that it is the last.
        try:
            self._require_room(len(self._log.segments) + 1)
        except (StoreFullError, OSError):
            self._keep_reserve()
        else:
            self._log.reserve_bytes = 0
        return segment

    def prepare(self) -> None:
        """Have a thread make the segment behind the active one, unless that was asked for already."""
        if self._next_segment is None and self._log.active is not None:
            first_offset = self._log.active.first_offset + self._log.segment_bytes
            self._next_segment = self._executor.submit(self._make_segment, first_offset)

    def close(self) -> None:
        """Let go of a segment that was made ahead."""
        self._next_segment = None

    def _make_segment(self, first_offset: int) -> Segment:
        try:
            return self._allocate(first_offset)
        except StoreFullError:
            self._keep_reserve()
            raise

    def _keep_reserve(self) -> None:
        self._log.reserve_bytes = min(RESERVE_BYTES, self._log.segment_bytes // 16)

    def _require_room(self, segments: int, percent: int | None = None) -> None:
        """Accept one more segment where there are so many, or raise StoreFullError."""
        own = segments * self._log.segment_bytes
        require_room(self._directory, self._settings, own, self._log.segment_bytes, percent)

    def _allocate(self, first_offset: int) -> Segment:
        path = f"{self._directory.commit_log}/{segment_name(first_offset)}"
        if first_offset + self._log.segment_bytes > LOG_END:
            raise StoreFullError(
                f"{self._directory.commit_log} is at the end of what a log can hold, physical offset {LOG_END} "
                "(128 TiB): begin a new store, in another store.data_dir"
            )
        try:
            require_in_place(path)
            remove_unfinished(Path(path), self._log.segment_bytes)
            if Path(path).exists():  # made ahead: by a process before this one, or for a batch that was refused
                sync_folder(self._directory.commit_log)
            else:
                # A start that cannot go on in the last segment takes from the rest of the budget: else it would be
                # refused, and with it whoever only reads.
                percent = _WHOLE_BUDGET if self._log.active is None else None
                self._require_room(len(self._log.segments), percent)
                create_segment_file(path, self._log.segment_bytes)
            return Segment(path, first_offset, self._log.segment_bytes, writable=True)
        except ReplacedFolderError as error:
            raise ReplacedStoreError(self._directory.root) from error
        except OSError as error:
            refusal = StoreFullError if error.errno in DISK_FULL else StoreError
            raise refusal(f"cannot allocate {path}: {error.strerror}; {remedy_for(error)}") from error
