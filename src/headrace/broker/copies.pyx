"""Copies of records: what waited is stored once more where it belongs, without an object for each message.

The entries borrow from the mapped segments that the records are viewed in, so a burst of messages that are due at once
costs one memcpy each.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from headrace.batch cimport PublishBatch, PublishEntry, RecordBatch, RecordView
from headrace.format.record cimport (
    CHECKSUM_BYTES, SYS_FLAG_BORN_V6, SYS_FLAG_STORE_V6, check_record, find_property, load_i32, load_i64, load_u32,
    headrace_load64, read_view, record_tag_hash, topic_of,
)

from headrace.format import record

cdef enum:
    REAL_TOPIC_BYTES = 11       # names with their 0x01
    REAL_QUEUE_BYTES = 9
    BATCH_NAME_BYTES = 9
    MAX_QUEUE_DIGITS = 5
    MAX_QUEUE_ID = 65_535


cdef int64_t _queue_of(const RecordView* view) noexcept:
    """Return REAL_QID, -1 when it is missing or no queue id."""
    cdef uint32_t digits = 0
    cdef const uint8_t* text = find_property(view, b"REAL_QID\x01", REAL_QUEUE_BYTES, &digits)
    cdef int64_t value = 0
    cdef uint32_t i
    if text == NULL or digits > MAX_QUEUE_DIGITS:
        return -1
    for i in range(digits):
        if text[i] < 48 or text[i] > 57:
            return -1
        value = value * 10 + (text[i] - 48)
    return value if value <= MAX_QUEUE_ID else -1


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


def add_copies(RecordBatch records not None, Py_ssize_t first, Py_ssize_t end, PublishBatch into not None, resolve):
    cdef Py_ssize_t i
    cdef RecordView* view
    cdef uint32_t topic_bytes = 0
    cdef const uint8_t* topic
    cdef int64_t queue_id
    cdef int64_t destination
    cdef Py_ssize_t refused = 0
    cdef dict known = {}
    if not 0 <= first <= end <= records.count:
        raise IndexError(end)
    for i in range(first, end):
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


cdef class RecordCopy:
    cdef readonly bytes raw
    cdef RecordView view
    cdef list _kept                     # what entries borrow besides
    cdef dict _named                    # the properties, None until one is asked for

    def __init__(self, bytes raw not None):
        cdef const uint8_t* at = raw
        cdef int64_t size = check_record(at, len(raw), -1, False)
        if size <= 0 or size > <int64_t>len(raw):
            raise ValueError(f"no record: {record.describe(size)}")
        self.raw = raw
        read_view(at, <uint32_t>size, &self.view)
        self._kept = []

    @property
    def topic(self):
        cdef const uint8_t* topic = NULL
        cdef uint32_t size = 0
        topic_of(&self.view, &topic, &size)
        return (<const char*>topic)[:size].decode("utf-8", "surrogateescape")

    @property
    def queue_id(self):
        return self.view.queue_id

    @property
    def queue_offset(self):
        return self.view.queue_offset

    @property
    def physical_offset(self):
        return self.view.physical_offset

    @property
    def body_bytes(self):
        return self.view.body_bytes

    @property
    def sys_flag(self):
        return load_u32(<const uint8_t*>self.view.record + 36)

    cdef const uint8_t* _behind_born(self) noexcept:
        """Return where the store timestamp stands."""
        cdef const uint8_t* at = <const uint8_t*>self.view.record
        return at + 48 + (20 if load_u32(at + 36) & SYS_FLAG_BORN_V6 else 8)

    cdef Py_ssize_t _store_host_bytes(self) noexcept:
        return 20 if load_u32(<const uint8_t*>self.view.record + 36) & SYS_FLAG_STORE_V6 else 8

    @property
    def reconsume_times(self):
        return load_i32(self._behind_born() + 8 + self._store_host_bytes())

    @property
    def store_ms(self):
        return load_i64(self._behind_born())

    @property
    def prepared_offset(self):
        return load_i64(self._behind_born() + 12 + self._store_host_bytes())

    @property
    def message_id(self):
        cdef const char* host = <const char*>self._behind_born() + 8
        return record.message_id(host[:self._store_host_bytes()], self.view.physical_offset)

    cdef dict _properties(self):
        """Return the message's properties: of those of one name the last counts, as it does for clients."""
        cdef const char* at = self.view.properties
        cdef const char* end = at + _plain_bytes(&self.view)
        cdef const char* stop
        cdef const char* separator
        cdef dict found = {}
        while at < end:
            stop = <const char*>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            separator = <const char*>memchr(at, 1, stop - at)
            # Nothing reads those without a name or a value.
            if separator != NULL and separator > at and separator + 1 < stop:
                found[at[:separator - at]] = separator[1:stop - separator]
            at = stop + 1
        return found

    def property(self, bytes name not None):
        cdef bytes value
        if self._named is None:
            self._named = self._properties()
        value = self._named.get(name)
        return None if value is None else value.decode("utf-8", "surrogateescape")

    cdef bytes _edited(self, dict changes):
        """Return the properties with some set, in their place or behind the others, and some (None) removed."""
        cdef dict found = self._properties() if self._named is None else dict(self._named)
        for name, value in changes.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
        return b"".join([name + b"\x01" + value + b"\x02" for name, value in found.items()])

    def add_to(self, PublishBatch into not None, uint32_t destination, *, dict changes=None, sys_flag=None,
               reconsume_times=None, prepared_offset=None, uint32_t command_entries=1):
        cdef PublishEntry* entry = into.add()
        cdef bytes properties
        cdef const char* text
        _fill(entry, &self.view, destination)
        entry.command_entries = command_entries
        into.body_bytes += entry.body_bytes
        if changes is not None:
            properties = self._edited(changes)
            self._kept.append(properties)
            text = properties
            entry.properties = text if properties else NULL
            entry.properties_bytes = <uint32_t>len(properties)
        if sys_flag is not None:
            entry.sys_flag = sys_flag
        if reconsume_times is not None:
            entry.reconsume_times = reconsume_times
        if prepared_offset is not None:
            entry.prepared_offset = prepared_offset
