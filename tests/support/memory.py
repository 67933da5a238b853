"""A process that gets no more memory."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def little_memory(left_bytes: int = 16 << 20) -> Iterator[None]:
    """Let this process have ``left_bytes`` more of address space than it has now.

    Ask for more than 64 MiB to get nothing: malloc has that much for each thread that was there.
    """
    gc.collect()  # what it gives back later would be more
    ctypes.CDLL(None).malloc_trim(0)  # so is what malloc keeps, up to 64 MiB of it in one piece
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + left_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
