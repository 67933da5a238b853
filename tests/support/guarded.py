"""Memory whose end is the end of memory: a read behind it kills the process instead of going unnoticed."""

from __future__ import annotations

import ctypes
import mmap

_PAGES = 64
_LIBC = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """One region in front of a page that cannot be read."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, (_PAGES + 1) * mmap.PAGESIZE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._end = self._base + _PAGES * mmap.PAGESIZE
        if _LIBC.mprotect(ctypes.c_void_p(self._end), mmap.PAGESIZE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, raw: bytes) -> memoryview:
        """Return a view of a copy of ``raw`` that ends where the guard page begins; valid until the next call."""
        assert len(raw) <= _PAGES * mmap.PAGESIZE
        ctypes.memmove(self._end - len(raw), raw, len(raw))
        return memoryview((ctypes.c_ubyte * len(raw)).from_address(self._end - len(raw))).cast("B")


GUARDED = GuardedMemory()
