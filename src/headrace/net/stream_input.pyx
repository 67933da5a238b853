"""Socket reads of one connection as the input of a parser, copied only where a command is cut off.

A parser extends ``StreamInput``: it looks at [``_at``, ``_end``), moves ``_at`` behind what it took, and calls
``_keep_rest`` when the rest is no whole command.

Memory. The loop-wide receive buffer is parsed in place. For a command above SMALL_BYTES there is a buffer of that
command's own size into which the socket reads directly. The beginning of a small unfinished command is copied away and
put in front of the next read: the receive buffer keeps HEADROOM_BYTES free for that. So a connection between two
commands holds no buffer, and one within a command holds no more than that command.

The buffer of the last command from SPARE_LEAST on is kept, one for all connections, for the next that needs nearly all of
it: malloc would give such memory back to the kernel with each command, and take it with a page fault for every 4 KiB.
"""

from cpython.object cimport PyObject
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

cdef enum:
    SMALL_BYTES = 8 * 1024      # an unfinished command of up to this size is copied in front of the next read
    SPARE_LEAST = 256 * 1024
    SPARE_MOST = 8 * 1024 * 1024

HEADROOM_BYTES = HEADROOM

cdef bytearray _spare = None


cdef bytearray _take_buffer(Py_ssize_t size):
    """Return a buffer of at least ``size`` bytes, at most a seventh more."""
    global _spare
    cdef bytearray found
    # What was parsed in it last may still wait to be executed.
    if _spare is not None and size <= len(_spare) <= size + size // 7 and (<PyObject*>_spare).ob_refcnt == 1:
        found = _spare
        _spare = None
        return found
    found = bytearray()
    PyByteArray_Resize(found, size)     # without memory PyByteArray_FromStringAndSize() prints an error of its own
    return found


cdef class StreamInput:
    @property
    def held_bytes(self):
        return self._held_bytes

    def room(self):
        if not self._large:
            return None
        return memoryview(self._held)[self._held_bytes:self._room_end]

    def received(self, bytearray memory not None, Py_ssize_t length):
        cdef char* start
        if self._large:
            self._held_bytes += length
            start = PyByteArray_AS_STRING(self._held)
            self._end = start + self._held_bytes
            self._at = start
            self._source = self._held
            return
        start = PyByteArray_AS_STRING(memory) + HEADROOM
        self._end = start + length
        if self._held_bytes:
            start -= self._held_bytes
            memcpy(start, PyByteArray_AS_STRING(self._held), self._held_bytes)
        self._at = start
        self._source = memory

    @property
    def has_more(self):
        return self._at < self._end

    def take_rest(self):
        cdef bytes rest = PyBytes_FromStringAndSize(self._at, self._end - self._at)
        self.discard()
        return rest

    def discard(self):
        self._at = self._end = NULL
        self._source = None
        self._hold(None)
        self._held_bytes = 0
        self._large = False
        self._wanted = 0

    cdef int _hold(self, bytearray buffer) except -1:
        """Have ``buffer`` in the place of what was held so far."""
        global _spare
        if self._held is not None and SPARE_LEAST <= len(self._held) <= SPARE_MOST:
            _spare = self._held
        self._held = buffer
        return 0

    cdef int _keep_rest(self, Py_ssize_t total) except -1:
        """Put what is left of the input, a command of ``total`` bytes as far as is known, where the next read goes on."""
        cdef Py_ssize_t left = self._end - self._at
        cdef bytearray kept
        if left == 0:
            self._hold(None)
            self._held_bytes = 0
            self._large = False
        else:
            if total <= SMALL_BYTES:
                total = left
            elif self._large and total > self._room_end:
                # Longer than was known at first: doubling keeps the copying linear.
                total = max(total, 2 * left)
            if not (self._large and left < total <= self._room_end
                    and self._at == <const char*>PyByteArray_AS_STRING(self._held)):
                kept = _take_buffer(total)
                memcpy(PyByteArray_AS_STRING(kept), self._at, left)
                self._hold(kept)
                self._room_end = total
            # Else the rest goes behind what is already in place.
            self._large = total > left
            self._held_bytes = left
        self._at = self._end = NULL
        self._source = None
        return 0
