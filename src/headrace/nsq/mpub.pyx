"""Bodies of HTTP /mpub: checked as a whole, then given out in portions, without an object per message.

One body may hold some million messages. To append them in one go would hold the event loop for seconds, and need 150
times the body's size in memory. So a first pass over the body finds whatever is wrong with it, and what is right goes
to the log portion by portion. A batch borrows from the body and keeps it alive (``PublishBatch.owner``).
"""

from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memchr

from headrace.batch cimport PublishBatch, PublishEntry
from headrace.format.record cimport load_u32

from headrace.errors import ProtocolError


cdef inline const char* _line_end(const char* at, const char* end) noexcept:
    cdef const char* stop = <const char*>memchr(at, c"\n", end - at)
    return end if stop == NULL else stop


cdef object _refusal(str code):
    return ProtocolError(code, fatal=False)


cdef class MpubBody:
    cdef bytes body
    cdef Py_ssize_t at              # first byte that is not given out yet
    cdef bint is_counted
    cdef readonly Py_ssize_t left   # messages that are not given out yet

    def take(self, PublishBatch batch not None, Py_ssize_t most_messages, long long deliver_at_ms):
        cdef const char* begin = self.body
        cdef const char* end = begin + len(self.body)
        cdef const char* at = begin + self.at
        cdef const char* stop
        cdef PublishEntry* entry
        cdef Py_ssize_t count = min(self.left, most_messages)
        cdef Py_ssize_t added = 0
        batch.owner = self.body
        while added < count:
            if self.is_counted:
                stop = at + 4 + <int32_t>load_u32(at)
                at += 4
            else:
                stop = _line_end(at, end)
                if stop == at:
                    at += 1
                    continue
            entry = batch.add()
            entry.body = at
            entry.body_bytes = <uint32_t>(stop - at)
            entry.deliver_at_ms = deliver_at_ms
            if added == 0:
                entry.command_entries = <uint32_t>count
            batch.body_bytes += stop - at
            added += 1
            at = stop if self.is_counted else stop + 1
        self.at = at - begin
        self.left -= count
        return count


def read_lines(bytes body not None, Py_ssize_t most_message_bytes):
    cdef const char* at = body
    cdef const char* end = at + len(body)
    cdef const char* stop
    cdef MpubBody read = MpubBody()
    read.body = body
    while at < end:
        stop = _line_end(at, end)
        if stop - at > most_message_bytes:
            raise _refusal("MSG_TOO_BIG")
        read.left += stop > at
        at = stop + 1
    return read


def read_counted(bytes body not None, Py_ssize_t most_message_bytes, Py_ssize_t most_messages):
    cdef const char* at = body
    cdef const char* end = at + len(body)
    cdef int32_t count, index, size
    cdef MpubBody read = MpubBody()
    if end - at < 4:
        raise _refusal("BAD_BODY")
    count = <int32_t>load_u32(at)
    at += 4
    if count <= 0 or count > most_messages:
        raise _refusal("BAD_BODY")
    for index in range(count):
        if end - at < 4:
            raise _refusal("BAD_MESSAGE")
        size = <int32_t>load_u32(at)
        at += 4
        if size <= 0 or size > most_message_bytes or end - at < size:
            raise _refusal("BAD_MESSAGE")
        at += size
    read.body = body
    read.at = 4
    read.is_counted = True
    read.left = count
    return read
