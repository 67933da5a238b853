from collections.abc import Callable, Iterator

class Segment:
    """One mapped file of the commit log; unmapped and closed when the last reference goes.

    Every view that borrows from the mapping holds a reference to its segment, so a file may be unlinked at any time.
    """

    path: str
    first_offset: int
    size_bytes: int
    fd: int
    writable: bool
    def __init__(self, path: str, first_offset: int, size_bytes: int, *, writable: bool = False) -> None:
        """Map an existing file.

        Raises:
            SideFileError: the file has another length than the store's segments.
            OSError: it cannot be opened or mapped.
        """
    def is_resident(self, position: int, size: int) -> bool:
        """Return whether every page of the range is in memory."""
    def written_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (start, end) of every range at or after ``position`` that was ever written.

        All of them before any is read: a page that was read counts as written from then on, and the kernel reads
        ahead, so asking in between would find one more page each time until the whole segment was read.
        """
    def find_record(self, position: int) -> int:
        """Return the position of the first whole record at or behind ``position``, -1 if there is none.

        Looks only where something was ever written: a fresh segment is a gigabyte of nothing.
        """
    def touch(self, position: int, size: int) -> None:
        """Read every page of the range without the GIL: for a thread that warms a cold range."""
    def drop_pages(self) -> None:
        """Give the mapping's page tables back, without the GIL: unmapping a segment read in full takes 1.3 ms.

        Views stay valid: what is read again is mapped again.
        """
    def view(self, position: int, size: int) -> memoryview:
        """Return a range without copying it; the segment stays mapped until the view is let go of."""
    def read(self, position: int, size: int) -> bytes:
        """Return a copy of a range."""

class SegmentSet:
    """The segments of a log by index (first offset // segment size), of which a bounded number is mapped.

    Asking for one maps it; above the bound the one asked for longest ago leaves, except the active one (the last
    writable one that was put in). Iterates over the indexes, lowest first.
    """

    directory: str
    segment_bytes: int
    most_mapped: int
    on_retired: Callable[[Segment], object] | None
    def __init__(self, directory: str, segment_bytes: int, most_mapped: int) -> None: ...
    def load(self) -> None:
        """Learn which segments the directory holds.

        Raises:
            SideFileError: one has another length than the store's segments.
        """
    def path_of(self, index: int) -> str: ...
    @property
    def mapped_count(self) -> int:
        """How many segments the set keeps mapped now."""
    def get(self, index: int) -> Segment | None: ...
    def __getitem__(self, index: int) -> Segment: ...
    def __setitem__(self, index: int, segment: Segment) -> None: ...
    def leave_out(self, index: int) -> None:
        """Take a segment out: nothing in it is of the log."""
    def __contains__(self, index: object) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    def __len__(self) -> int: ...
    def clear(self) -> None: ...

def create_segment_file(path: str, size_bytes: int) -> None:
    """Create a file of zeros with its blocks allocated, synced, under its final name.

    Raises:
        OSError: for one, ENOSPC; no file is left behind then.
    """

def punch_hole(fd: int, position: int, size: int) -> bool:
    """Have a range read as zeros and take no room on the disk; return False where the file system cannot do that.

    Raises:
        OSError: it failed otherwise.
    """

def write_zeros(fd: int, position: int, size: int) -> None:
    """Write zeros and wait until they have left the page cache's queue; without the GIL, for a thread.

    Raises:
        OSError: some may have been written.
    """

def is_overwritten_in_place(path: str) -> bool:
    """Return whether the file system of ``path`` keeps a file's blocks when they are written again.

    True of ext4 only, where it was measured; copy-on-write file systems take new blocks each time.
    """

def is_cached_in_large_folios(path: str) -> bool:
    """Return whether large writes to the file system of ``path`` are known to be cached in folios of many pages.

    Of ext4 since Linux 6.16 and XFS since 5.18, where it was measured what that saves.
    """

def is_syncfs_told_of_errors(path: str) -> bool:
    """Return whether ``sync_file_system`` is known to tell of failed writes on this kind of file system.

    One that stands for another (overlayfs) may keep them to itself.
    """

def sync_file_system(fd: int) -> None:
    """Make everything durable that was written to the file system of an open file. Blocks: for a thread.

    Raises:
        OSError: something could not be written since ``fd`` was opened, by anybody. Linux says so from 5.8 on.
    """
