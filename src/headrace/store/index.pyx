"""The key index: which records have a key. Files: ``index_file``, docs/formats/index-file.md.

Keys come in by one of two ways, never both at once (``KeyIndex.is_live``). *Live*: ``CommitLog.append`` hands over its
batch; the keys are hashed where they lie, and records without properties cost one comparison. *Catching up*: a thread
walks the log from ``indexed_offset`` on, without the GIL but for the insertion of a few thousand keys at a time. An
index that cannot be written (full disk) stops being live, which costs the log nothing, and catches up later.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from headrace.batch cimport PublishBatch, PublishEntry, RecordView
from headrace.format.record cimport (
    RECORD_BLANK, SYS_FLAG_ROLLBACK, SYS_FLAG_TRANSACTION, check_record, hash_tag, load_u32, read_view, topic_of,
)
from headrace.format.separators cimport find_end
from headrace.store.consume_queue cimport ConsumeQueue
from headrace.store.index_file cimport IndexFile, KeyRef
from headrace.store.segment cimport Segment

cdef enum:
    WRITE_AT = 4096                 # entries in memory before they are written
    MAX_TAIL = 1 << 18             # entries that may wait for a disk that takes none; beyond, the index falls behind
    PREFETCHED = 128                # slots at a time: they have to stay in the first cache until they are used
    WALK_KEYS = 4096                # keys that one step of catching up inserts
    WALK_BYTES = 8 << 20


cdef inline uint32_t _hash_ascii(uint32_t h, const uint8_t* text, Py_ssize_t size, uint8_t* seen) noexcept nogil:
    """Go on with Java's String.hashCode over bytes taken as characters; ``seen`` gathers the bits of all bytes."""
    cdef Py_ssize_t i = 0
    cdef uint8_t bits = 0
    while i + 4 <= size:
        # Four at a time: the chain of multiplications is what takes the time.
        h = h * <uint32_t>923521 + (text[i] * <uint32_t>29791 + text[i + 1] * <uint32_t>961
                                    + text[i + 2] * <uint32_t>31 + text[i + 3])
        bits |= text[i] | text[i + 1] | text[i + 2] | text[i + 3]
        i += 4
    while i < size:
        h = h * 31 + text[i]
        bits |= text[i]
        i += 1
    seen[0] |= bits
    return h


cdef inline uint32_t _positive(uint32_t h) noexcept nogil:
    """Java's Math.abs of the hash; the one number that has no positive twin becomes 0."""
    if h == <uint32_t>0x80000000:
        return 0
    return -h if h > 0x7FFFFFFF else h


cdef int64_t _hash_any(const uint8_t* topic, Py_ssize_t topic_bytes, const uint8_t* key,
                       Py_ssize_t key_bytes) noexcept nogil:
    """Return the hash of ``topic#key`` where it is not ASCII, -1 without memory."""
    cdef uint8_t* text = <uint8_t*>malloc(topic_bytes + 1 + key_bytes)
    cdef int64_t h
    if text == NULL:
        return -1
    memcpy(text, topic, topic_bytes)
    text[topic_bytes] = 35
    memcpy(text + topic_bytes + 1, key, key_bytes)
    h = hash_tag(text, <uint32_t>(topic_bytes + 1 + key_bytes))
    free(text)
    return _positive(<uint32_t>h)


cdef struct TopicHash:              # of ``topic#``, for the keys of one topic after the other
    const uint8_t* topic
    Py_ssize_t topic_bytes
    uint32_t value
    uint8_t seen


cdef inline void _set_topic(TopicHash* topic, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    topic.topic = text
    topic.topic_bytes = size
    topic.seen = 0
    topic.value = _hash_ascii(0, text, size, &topic.seen) * 31 + 35


cdef inline int64_t _hash_key(const TopicHash* topic, const uint8_t* key, Py_ssize_t key_bytes) noexcept nogil:
    cdef uint8_t seen = topic.seen
    cdef uint32_t h = _hash_ascii(topic.value, key, key_bytes, &seen)
    if seen & 0x80:
        return _hash_any(topic.topic, topic.topic_bytes, key, key_bytes)
    return _positive(h)


cdef inline int _add_key(KeyRefs* keys, const TopicHash* topic, const uint8_t* key, Py_ssize_t key_bytes,
                         int64_t physical_offset, int64_t store_ms) noexcept nogil:
    cdef KeyRef* grown
    cdef Py_ssize_t capacity
    cdef int64_t key_hash
    if keys.count == keys.capacity:
        capacity = keys.capacity * 2 if keys.capacity else 512
        grown = <KeyRef*>realloc(keys.refs, capacity * sizeof(KeyRef))
        if grown == NULL:
            return -1
        keys.refs = grown
        keys.capacity = capacity
    key_hash = _hash_key(topic, key, key_bytes)
    if key_hash < 0:
        return -1
    keys.refs[keys.count].key_hash = <uint32_t>key_hash
    keys.refs[keys.count].physical_offset = physical_offset
    keys.refs[keys.count].store_ms = store_ms
    keys.count += 1
    return 0


cdef int _add_keys(KeyRefs* keys, const TopicHash* topic, const uint8_t* properties, Py_ssize_t size,
                   int64_t physical_offset, int64_t store_ms) noexcept nogil:
    """Gather the keys of one record: its UNIQ_KEY, then the parts of KEYS; -1 without memory."""
    cdef const char* p = <const char*>properties
    cdef const char* end = p + size
    cdef const char* stop
    cdef const char* unique = NULL
    cdef const char* parts = NULL
    cdef Py_ssize_t unique_bytes = 0
    cdef Py_ssize_t parts_bytes = 0
    while p < end:
        stop = find_end(p, end)
        if p[0] == 85:              # U
            if stop - p > 9 and memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
                unique = p + 9
                unique_bytes = stop - unique
        elif p[0] == 75:            # K
            if stop - p > 5 and memcmp(p, b"KEYS\x01", 5) == 0:
                parts = p + 5
                parts_bytes = stop - parts
        p = stop + 1
    if unique != NULL and _add_key(keys, topic, <const uint8_t*>unique, unique_bytes, physical_offset, store_ms) < 0:
        return -1
    if parts != NULL:
        p = parts
        end = parts + parts_bytes
        while p < end:
            stop = <const char*>memchr(p, 32, end - p)
            if stop == NULL:
                stop = end
            if stop > p and _add_key(keys, topic, <const uint8_t*>p, stop - p, physical_offset, store_ms) < 0:
                return -1
            p = stop + 1
    return 0


def key_hash(bytes topic not None, bytes key not None):
    cdef TopicHash prepared
    _set_topic(&prepared, topic, len(topic))
    found = _hash_key(&prepared, key, len(key))
    if found < 0:
        raise MemoryError()
    return found


cdef class KeyIndex:
    def __cinit__(self):
        self.appended.refs = NULL
        self.walked.refs = NULL

    def __init__(self, provide_file, on_error):
        self.provide_file = provide_file
        self.on_error = on_error

    def __dealloc__(self):
        free(self.appended.refs)
        free(self.walked.refs)

    def start_at(self, IndexFile active, int64_t indexed_offset, int64_t keys_ahead):
        self.is_live = False
        self.active = active
        self.indexed_offset = indexed_offset
        self.keys_ahead = keys_ahead

    def skip_to(self, int64_t physical_offset):
        self.indexed_offset = physical_offset
        self.keys_ahead = 0

    def go_live(self, int64_t end_offset):
        if self.indexed_offset == end_offset:
            self.keys_ahead = 0
            self.is_live = True
        return self.is_live

    def stop_live(self):
        self.is_live = False

    cdef int take(self, PublishBatch batch, int64_t from_offset, int64_t to_offset, int64_t now_ms) except -1:
        """Add the keys of a batch that was appended in that range of the log. Never raises for what it cannot do."""
        cdef Py_ssize_t i
        cdef PublishEntry* entry
        cdef uint32_t destination = 0xFFFFFFFF
        cdef TopicHash topic
        cdef ConsumeQueue queue
        if not self.is_live:
            return 0
        if from_offset != self.indexed_offset:
            self.is_live = False
            return 0
        self.appended.count = 0
        for i in range(batch.count):
            entry = &batch.entries[i]
            if entry.properties_bytes == 0 or entry.record_bytes == 0:
                continue
            if entry.sys_flag & SYS_FLAG_TRANSACTION == SYS_FLAG_ROLLBACK:
                continue
            if entry.destination != destination:
                destination = entry.destination
                queue = <ConsumeQueue>batch.queues[destination]
                _set_topic(&topic, queue.topic_bytes, len(queue.topic_bytes))
            if _add_keys(&self.appended, &topic, <const uint8_t*>entry.properties, entry.properties_bytes,
                         entry.physical_offset, now_ms) < 0:
                self.is_live = False
                return 0
        if self.appended.count:
            try:
                self._insert(&self.appended)
            except (OSError, MemoryError) as error:
                self.is_live = False
                self.on_error(error)
                return 0
            self._write_behind()
        self.indexed_offset = to_offset
        return 0

    cdef int _insert(self, KeyRefs* keys) except -1:
        """Add keys to the active file, and to new ones when it is full."""
        cdef Py_ssize_t done = min(<int64_t>keys.count, self.keys_ahead)
        cdef Py_ssize_t room
        cdef int64_t ahead = self.keys_ahead - done
        while done < keys.count:
            self.keys_ahead = done      # should this fail
            if self.active is None or self.active.count >= self.active.capacity:
                self.active = self.provide_file(keys.refs[done].store_ms)
            room = min(keys.count - done, <Py_ssize_t>(self.active.capacity - self.active.count))
            room = min(room, <Py_ssize_t>PREFETCHED)
            self.active.put(keys.refs + done, room)
            done += room
            self.added_keys += room
        self.keys_ahead = ahead
        return 0

    cdef int _write_behind(self) except -1:
        """Write what gathered in memory; a disk that takes nothing makes the index fall behind in the end."""
        if self.active.count - self.active.written_count < WRITE_AT:
            return 0
        try:
            self.active.write_out()
        except OSError as error:
            if self.active.count - self.active.written_count >= MAX_TAIL:
                self.is_live = False
            self.on_error(error)
        return 0

    def index_some(self, Segment segment not None, int64_t until):
        cdef int64_t offset = self.indexed_offset
        cdef int64_t walk_end = min(until, offset + WALK_BYTES)
        cdef int64_t found = 1
        cdef const uint8_t* base = segment.base
        cdef int64_t first_offset = segment.first_offset
        cdef int64_t size = segment.size_bytes
        cdef const uint8_t* at
        cdef RecordView view
        cdef TopicHash topic
        cdef const uint8_t* name = NULL
        cdef uint32_t name_bytes = 0
        cdef bint failed = False
        if self.active is not None and self.active.count - self.active.written_count >= WRITE_AT:
            self.active.write_out()
        self.walked.count = 0
        topic.topic = NULL
        with nogil:
            while offset < walk_end and self.walked.count < WALK_KEYS:
                at = base + (offset - first_offset)
                found = check_record(at, size - (offset - first_offset), offset, True)
                if found <= 0:
                    break
                read_view(at, <uint32_t>found, &view)
                if view.properties_bytes and load_u32(at + 36) & SYS_FLAG_TRANSACTION != SYS_FLAG_ROLLBACK and \
                        topic_of(&view, &name, &name_bytes):
                    if topic.topic == NULL or topic.topic_bytes != name_bytes or \
                            memcmp(topic.topic, name, name_bytes) != 0:
                        _set_topic(&topic, name, name_bytes)
                    if _add_keys(&self.walked, &topic, <const uint8_t*>view.properties, view.properties_bytes, offset,
                                 view.store_timestamp_ms) < 0:
                        failed = True
                        break
                offset += found
        if failed:
            raise MemoryError("cannot hold the keys of a part of the log")
        if self.walked.count:
            self._insert(&self.walked)
        self.indexed_offset = until if found == RECORD_BLANK else offset
        return 1 if found == RECORD_BLANK else min(found, 1)
