"""What a connection does with each read and each write: see wire.pyi."""

from headrace.net.receive import SHORT_READ_BYTES as _SHORT_READ_BYTES

cdef Py_ssize_t SHORT_READ_BYTES = _SHORT_READ_BYTES


cdef class TrafficCounters:
    pass


cdef class ReadTaker:
    cpdef bint take_read(self, Py_ssize_t nbytes) except -1:
        raise NotImplementedError


cdef class Wire:
    def __init__(self, Clock clock not None, TrafficCounters traffic not None):
        self.cause = ""
        self.takers = ()
        self._rest = b""
        self._clock = clock
        self._traffic = traffic

    # -- reading -------------------------------------------------------------------------------------------------

    def get_buffer(self, Py_ssize_t sizehint):
        if self._input is not None and self._input._large:
            return self._input.room()
        return self._receive.view

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef bint is_large
        self._traffic.bytes_in += nbytes
        if self.cause:
            return
        if self._rest:
            self.keep_behind(nbytes)
            return
        # The first is the least that the second can be, and a constant.
        is_large = nbytes >= SHORT_READ_BYTES and nbytes >= self._turns.large_read_bytes
        try:
            if is_large:
                self.begin_turn(self._clock.monotonic_ms())
            for taker in self.takers:
                if (<ReadTaker>taker).take_read(nbytes):
                    break
            else:
                self.take_read(nbytes)
            if is_large:
                self.note_large_read()
        except Exception as error:
            self.fail(error)

    def begin_turn(self, int64_t now_ms):
        if self._turn is None:
            self._turn_began_ms = now_ms

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, data not None):
        cdef Py_ssize_t size = len(data)
        self._written_bytes += size
        self._last_bytes = size
        self._traffic.bytes_out += size
        self._transport.write(data)

    def is_closing(self):
        return self._shut_at_ms > 0 or self._transport.is_closing()
