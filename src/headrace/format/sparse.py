"""Files that are mostly holes: a segment is made a gigabyte of nothing, and written from its beginning."""

import errno
import os
from collections.abc import Iterator
from typing import Final

_CHUNK_BYTES: Final = 1 << 20


def written_ranges(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each part of a file, from ``start`` up to ``size``, that was ever written.

    Ask before anything is read: what was read once counts as written. Where the file system keeps no record of holes,
    everything does.
    """
    while start < size:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            end = size
        if start < end:
            yield start, end
        start = end


def written_end(fd: int) -> int:
    """Return where the last part of a file ends that was ever written, as ``written_ranges`` has it."""
    return max((end for _, end in written_ranges(fd, 0, os.fstat(fd).st_size)), default=0)


def has_bytes(fd: int, start: int, end: int) -> bool:
    """Return whether any byte of a file in [start, end) is not zero, reading only what was ever written."""
    for first, last in list(written_ranges(fd, start, end)):
        for at in range(first, last, _CHUNK_BYTES):
            part = os.pread(fd, min(_CHUNK_BYTES, last - at), at)
            if part != bytes(len(part)):
                return True
    return False
