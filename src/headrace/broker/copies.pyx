"""Copies of records: what waited is stored once more where it belongs, without an object for each message.

The entries borrow from the mapped segments that the records are viewed in, so a burst of messages that are due at once
costs one memcpy each. What is done with single messages in Python (``message``) has the same result.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from headrace.batch cimport PublishBatch, PublishEntry, RecordBatch, RecordView
from headrace.format.record cimport (
    CHECKSUM_BYTES, SYS_FLAG_BORN_V6, SYS_FLAG_STORE_V6, find_property, load_i32, load_i64, load_u32, headrace_load64,
    record_tag_hash,
)

cdef enum:
    REAL_TOPIC_BYTES = 11       # names with their 0x01
    REAL_QUEUE_BYTES = 9
    BATCH_NAME_BYTES = 9
    MOST_QUEUE_DIGITS = 5
    MOST_QUEUE_ID = 65_535


cdef int64_t _queue_of(const RecordView* view) noexcept:
    """Return REAL_QID, -1 when it is missing or no queue id."""
    cdef uint32_t digits = 0
    cdef const uint8_t* text = find_property(view, b"REAL_QID\x01", REAL_QUEUE_BYTES, &digits)
    cdef int64_t value = 0
    cdef uint32_t i
    if text == NULL or digits > MOST_QUEUE_DIGITS:
        return -1
    for i in range(digits):
        if text[i] < 48 or text[i] > 57:
            return -1
        value = value * 10 + (text[i] - 48)
    return value if value <= MOST_QUEUE_ID else -1


cdef uint32_t _plain_bytes(const RecordView* view) noexcept:
    """Return how many bytes of the properties belong to the message: what the encoder added stands at the end."""
    cdef const uint8_t* start = <const uint8_t*>view.properties
    cdef uint32_t size = view.properties_bytes
    cdef uint32_t value_bytes = 0
    cdef const uint8_t* value
    if size >= CHECKSUM_BYTES and memcmp(start + size - CHECKSUM_BYTES, b"__CRC32#\x01", 9) == 0:
        size -= CHECKSUM_BYTES
    value = find_property(view, b"__BATCH#\x01", BATCH_NAME_BYTES, &value_bytes)
    if value != NULL and value + value_bytes + 1 == start + size:
        size = <uint32_t>(value - BATCH_NAME_BYTES - start)
    return size


cdef int _fill(PublishEntry* entry, const RecordView* view, uint32_t destination) noexcept:
    cdef const uint8_t* at = <const uint8_t*>view.record
    cdef const uint8_t* behind
    entry.body = view.body
    entry.body_bytes = view.body_bytes
    entry.properties_bytes = _plain_bytes(view)
    entry.properties = view.properties if entry.properties_bytes else NULL
    entry.tag_hash = record_tag_hash(view)
    entry.destination = destination
    entry.command_entries = 1
    entry.flag = load_u32(at + 16)
    entry.sys_flag = load_u32(at + 36)
    entry.born_ms = load_i64(at + 40)
    if entry.sys_flag & SYS_FLAG_BORN_V6:
        entry.born_v6 = <const char*>at + 48
        behind = at + 68
    else:
        entry.born_host = headrace_load64(at + 48)
        behind = at + 56
    behind += 8 + (20 if entry.sys_flag & SYS_FLAG_STORE_V6 else 8)
    entry.reconsume_times = load_i32(behind)
    entry.prepared_offset = load_i64(behind + 4)
    return 0


def add_copies(RecordBatch records not None, Py_ssize_t count, PublishBatch into not None, resolve):
    cdef Py_ssize_t i
    cdef RecordView* view
    cdef uint32_t topic_bytes = 0
    cdef const uint8_t* topic
    cdef int64_t queue_id
    cdef int64_t destination
    cdef Py_ssize_t refused = 0
    cdef dict known = {}
    if not 0 <= count <= records.count:
        raise IndexError(count)
    for i in range(count):
        view = &records.views[i]
        topic = find_property(view, b"REAL_TOPIC\x01", REAL_TOPIC_BYTES, &topic_bytes)
        queue_id = _queue_of(view)
        if topic == NULL or topic_bytes == 0 or queue_id < 0:
            refused += 1
            continue
        key = ((<const char*>topic)[:topic_bytes], queue_id)
        found = known.get(key)
        if found is None:
            found = known[key] = resolve(key[0].decode("utf-8", "surrogateescape"), queue_id)
        destination = found
        if destination < 0:
            refused += 1
            continue
        _fill(into.add(), view, <uint32_t>destination)
        into.body_bytes += view.body_bytes
    return refused


def add_copies_to(RecordBatch records not None, Py_ssize_t count, PublishBatch into not None, uint32_t destination):
    cdef Py_ssize_t i
    cdef RecordView* view
    cdef PublishEntry* entry
    if not 0 <= count <= records.count:
        raise IndexError(count)
    for i in range(count):
        view = &records.views[i]
        entry = into.add()
        _fill(entry, view, destination)
        entry.command_entries = 0
        into.body_bytes += view.body_bytes
