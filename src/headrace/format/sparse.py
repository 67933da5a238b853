"""Files that are mostly holes: a segment is made a gigabyte of nothing, and written from its beginning."""

import errno
import os
from collections.abc import Iterator


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
