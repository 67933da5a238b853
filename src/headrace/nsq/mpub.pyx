"""Bodies of HTTP /mpub, split into a PublishBatch without an object per message.

One body may hold some million messages; a Python loop over them would hold the event loop for a second. The batch
borrows from the body and keeps it alive (``PublishBatch.owner``).
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memchr

from headrace.batch cimport PublishBatch, PublishEntry

from headrace.errors import ProtocolError


cdef inline int _add(PublishBatch batch, const char* body, Py_ssize_t size, long long deliver_at_ms) except -1:
    cdef PublishEntry* entry = batch.add()
    entry.body = body
    entry.body_bytes = <uint32_t>size
    entry.deliver_at_ms = deliver_at_ms
    batch.body_bytes += size
    return 0


cdef int _refuse(PublishBatch batch, str code) except -1:
    batch.clear()
    raise ProtocolError(code, fatal=False)


cdef inline void _close_command(PublishBatch batch) noexcept:
    if batch.count:
        batch.entries[0].command_entries = <uint32_t>batch.count


cpdef Py_ssize_t split_lines(PublishBatch batch, bytes body, Py_ssize_t most_message_bytes,
                             long long deliver_at_ms) except -1:
    cdef const char* at = body
    cdef const char* end = at + len(body)
    cdef const char* stop
    batch.owner = body
    while at < end:
        stop = <const char*>memchr(at, c"\n", end - at)
        if stop == NULL:
            stop = end
        if stop - at > most_message_bytes:
            _refuse(batch, "MSG_TOO_BIG")
        if stop > at:
            _add(batch, at, stop - at, deliver_at_ms)
        at = stop + 1
    _close_command(batch)
    return batch.count


cdef inline int32_t _read_length(const char* at) noexcept:
    cdef const uint8_t* raw = <const uint8_t*>at
    return <int32_t>((<uint32_t>raw[0] << 24) | (<uint32_t>raw[1] << 16) | (<uint32_t>raw[2] << 8) | raw[3])


cpdef Py_ssize_t split_counted(PublishBatch batch, bytes body, Py_ssize_t most_message_bytes,
                               Py_ssize_t most_messages, long long deliver_at_ms) except -1:
    cdef const char* at = body
    cdef const char* end = at + len(body)
    cdef int32_t count, size
    cdef int32_t index
    batch.owner = body
    if end - at < 4:
        _refuse(batch, "BAD_BODY")
    count = _read_length(at)
    at += 4
    if count <= 0 or count > most_messages:
        _refuse(batch, "BAD_BODY")
    for index in range(count):
        if end - at < 4:
            _refuse(batch, "BAD_MESSAGE")
        size = _read_length(at)
        at += 4
        if size <= 0 or size > most_message_bytes or end - at < size:
            _refuse(batch, "BAD_MESSAGE")
        _add(batch, at, size, deliver_at_ms)
        at += size
    _close_command(batch)
    return batch.count
