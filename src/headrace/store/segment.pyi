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
    def next_data(self, position: int) -> int:
        """Return the first position at or after ``position`` that was ever written, ``size_bytes`` if none."""
    def touch(self, position: int, size: int) -> None:
        """Read every page of the range without the GIL: for a thread that warms a cold range."""
    def read(self, position: int, size: int) -> bytes:
        """Return a copy of a range."""

def create_segment_file(path: str, size_bytes: int) -> None:
    """Create a file of zeros with its blocks allocated, synced, under its final name.

    Raises:
        OSError: for one, ENOSPC; no file is left behind then.
    """

def sync_directory(path: str) -> None:
    """fsync a directory, so that created, renamed and removed names survive a power cut."""
