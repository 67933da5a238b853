"""Files that are mostly holes: a segment is made a gigabyte of nothing, and written from its beginning."""

import errno
import os


def written_end(fd: int) -> int:
    """Return where the last part of a file ends that was ever written; its size where the file system cannot say.

    Ask before anything is read: what was read once counts as written.
    """
    size = os.fstat(fd).st_size
    end = 0
    try:
        while end < size:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        return end if error.errno == errno.ENXIO else size
    return end
