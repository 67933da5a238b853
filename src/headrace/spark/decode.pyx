# cython: nonecheck=False
# Loops without the GIL count in attributes of self, which Cython would check for None there, and cannot.
"""Decode commit-log records straight into Arrow columns.

One pass over the bytes, without the GIL: each record is checked, filtered and its wanted fields are appended to the
column buffers of the batch in the making. When that has ``batch_rows`` rows or ``batch_bytes`` bytes, the buffers are
handed to pyarrow as they are (no copy, no Python object per row) and fresh ones begin. Only a compressed body leaves
the loop: it is decompressed by ``headrace.format.compression`` and appended as a row by itself.

Invariants: between two calls every variable column has ``count + 1`` valid offsets; a validity bitmap exists from the
first null of a batch on and has a bit for every row there is room for; text columns hold UTF-8 whatever the record
held (each ill-formed piece becomes U+FFFD, as Python's ``errors="replace"`` does).
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from headrace.batch cimport RecordView
from headrace.format.name_set cimport NameSet, fill_set, free_set, is_in
from headrace.format.record cimport (
    CHECKSUM_BYTES,
    PHYSICAL_OFFSET_AT,
    SYS_FLAG_BORN_V6,
    SYS_FLAG_STORE_V6,
    check_record,
    has_queue_entry,
    load_i32,
    load_i64,
    load_u32,
    read_view,
    topic_of,
)
from headrace.format.record_properties cimport Pair, Properties, Wanted, find_properties, free_wanted, index_wanted
from headrace.spark.arrow_buffers cimport Buffer, drop, hand_over, reserve, take
from headrace.spark.raw_log cimport CHECKED_HEAD_BYTES, J_BLANK, J_SHORT, judge, search
from headrace.spark.record_text cimport add_text, put_hex, put_host

from headrace.errors import CorruptRecordError
from headrace.format.compression import GIVEN_AS_STORED, INFLATE_ERRORS, inflate
from headrace.format.names import INTERNAL_TOPICS, SYSTEM_TOPICS
from headrace.spark.columns import COLUMNS, PROPERTY_PREFIX
from headrace.spark.schema import arrow_schema

import pyarrow

cdef enum:                      # columns, in the order of schema.COLUMNS
    C_TOPIC
    C_BROKER
    C_QUEUE_ID
    C_QUEUE_OFFSET
    C_LOG_OFFSET
    C_MSG_ID
    C_UNIQUE_KEY
    C_KEYS
    C_TAGS
    C_FLAG
    C_SYS_FLAG
    C_RECONSUME_TIMES
    C_STORE_SIZE
    C_BORN_TS
    C_STORE_TS
    C_BORN_HOST
    C_STORE_HOST
    C_SOURCE_PROTOCOL
    C_BODY_CRC_OK
    C_BODY
    C_PROPERTIES
    C_PROPERTY                  # prop:NAME

cdef enum:                      # how a column lies in memory
    L_I32
    L_I64
    L_BOOL
    L_BYTES                     # text or bytes with i32 offsets
    L_MAP

cdef enum:                      # why the loop stopped
    STOP_END
    STOP_FULL
    STOP_INFLATE
    STOP_DAMAGED

cdef enum:
    FIRST_ROWS = 1024
    LONGEST_CACHED_TOPIC = 255
    MAX_BATCH_BYTES = 1 << 30
    MAX_USUAL_COLUMNS = 100         # properties may have columns of their own, under any name
    MAX_USUAL_BYTES = 32 << 20

# Years 1 to 9999, what a Spark timestamp can show.
cdef int64_t FIRST_MS = -62135596800000
cdef int64_t LAST_MS = 253402300799999

cdef struct Column:
    int kind
    int layout
    int slot                    # of the property it holds, -1
    Buffer data
    Buffer offsets
    uint8_t* validity           # NULL: no nulls so far
    int64_t nulls
    # the map's items
    Buffer item_offsets[2]
    Buffer items[2]
    int32_t item_count

cdef enum:                      # slots of the properties that have columns of their own
    P_UNIQUE_KEY
    P_KEYS
    P_TAGS

cdef const char* RETRY = b"%RETRY%"
cdef const char* DEAD_LETTER = b"%DLQ%"
cdef const char* RESERVED = b"%SYS%"
cdef const char* ROCKETMQ_SYSTEM = b"rmq_sys_"

BROKER_TOPICS = SYSTEM_TOPICS | INTERNAL_TOPICS

# How large the last full batch of any decoder was: the next decoder's first will be about that. Rows, and by the column's
# name the bytes of its data, its map's keys, values and the offsets of either.
cdef int64_t _usual_rows = 0
cdef dict _usual_bytes = {}


cdef int _no_memory() except -1 with gil:
    raise MemoryError("no memory for an Arrow batch")


cdef inline int _set_size(Buffer* buffer, int64_t used, int64_t size, size_t width) except -1 nogil:
    """Have room for ``size`` values of ``width`` bytes, of which the first ``used`` are kept."""
    buffer.used = <size_t>used * width
    return reserve(buffer, <size_t>(size - used) * width)


cdef inline bint _begins_with(const uint8_t* text, uint32_t size, const char* prefix, uint32_t prefix_bytes) noexcept nogil:
    return size >= prefix_bytes and memcmp(text, prefix, prefix_bytes) == 0


cdef class Decoder:
    cdef readonly int64_t rows
    cdef readonly int64_t skipped
    cdef readonly int64_t damaged
    cdef readonly int64_t wrong_checksums
    cdef readonly int64_t bytes
    cdef readonly int64_t inflate_failures
    cdef readonly object schema
    cdef list _names                # of the columns
    cdef list _keep                 # bytes that C structures point into
    cdef list _ready                # batches that are full
    cdef Column* _columns
    cdef int _column_count
    cdef Properties _properties     # of the record at hand
    cdef NameSet _topics
    cdef NameSet _hidden
    cdef NameSet _tags
    cdef NameSet _keys
    cdef bint _has_topics, _has_tags, _has_keys, _has_times
    cdef bint _system_topics, _retry_topics, _verify, _only_right
    cdef bint _needs_properties, _needs_body, _is_searching
    cdef int64_t _start_ms, _end_ms
    cdef const uint8_t* _broker
    cdef uint32_t _broker_bytes
    cdef int64_t _batch_rows, _batch_bytes, _fixed_bytes
    cdef int64_t _count             # rows of the batch in the making
    cdef int64_t _room              # rows it has room for
    cdef int64_t _variable_bytes    # of that batch
    cdef int64_t _last_count        # rows of the batch before
    cdef uint8_t _last_topic[LONGEST_CACHED_TOPIC]
    cdef uint32_t _last_topic_bytes
    cdef bint _last_topic_wanted

    def __cinit__(self):
        self._keep = []
        self._ready = []

    def __init__(self, columns, *, str broker="", int64_t batch_rows=65536, int64_t batch_bytes=16 << 20, topics=None,
                 tags=None, keys=None, bint verify_crc=False, bint only_right=False, start_ms=None, end_ms=None, bint system_topics=False,
                 bint retry_topics=False, schema=None):
        if self._columns != NULL:
            raise RuntimeError("a decoder is initialised once")
        if batch_rows < 1 or not 1 <= batch_bytes <= MAX_BATCH_BYTES:
            raise ValueError(f"batch_rows {batch_rows} and batch_bytes {batch_bytes}: 1 row or more, 1 byte to 1 GiB")
        columns = list(columns)
        self.schema = arrow_schema(columns) if schema is None else schema
        if len(self.schema) != len(columns):
            raise ValueError(f"a schema of {len(self.schema)} fields for {len(columns)} columns")
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._broker = self._text(broker)
        self._broker_bytes = <uint32_t>len(broker.encode("utf-8", "replace"))
        self._system_topics = system_topics
        self._retry_topics = retry_topics
        self._has_topics = topics is not None
        self._has_tags = tags is not None
        self._has_keys = keys is not None
        self._has_times = start_ms is not None or end_ms is not None
        self._start_ms = INT64_MIN if start_ms is None else start_ms
        self._end_ms = INT64_MAX if end_ms is None else end_ms
        self._set(&self._topics, topics or ())
        self._set(&self._hidden, BROKER_TOPICS)
        self._set(&self._tags, tags or ())
        self._set(&self._keys, keys or ())
        self._is_searching = True
        self._only_right = only_right
        self._lay_out(columns, verify_crc or only_right)

    def __dealloc__(self):
        cdef int i
        if self._columns != NULL:
            for i in range(self._column_count):
                self._drop_buffers(&self._columns[i])
        PyMem_Free(self._columns)
        free_wanted(&self._properties)
        free(self._properties.pairs)
        free_set(&self._topics)
        free_set(&self._hidden)
        free_set(&self._tags)
        free_set(&self._keys)

    cdef const uint8_t* _text(self, str text) except NULL:
        """Return the UTF-8 of ``text``, kept as long as the decoder."""
        cdef bytes raw = text.encode("utf-8", "replace")
        self._keep.append(raw)
        return <const uint8_t*>raw

    cdef int _set(self, NameSet* names, texts) except -1:
        cdef list raw = sorted({text.encode("utf-8", "surrogateescape") for text in texts})
        self._keep.append(raw)
        return fill_set(names, raw)

    cdef int _lay_out(self, list columns, bint verify_crc) except -1:
        """Make the columns and find out which parts of a record they need."""
        cdef int i, slot
        cdef Column* column
        cdef dict kinds = {name: kind for kind, name in enumerate(COLUMNS)}
        cdef dict layouts = {"int": L_I32, "bigint": L_I64, "timestamp": L_I64, "boolean": L_BOOL, "string": L_BYTES,
                             "binary": L_BYTES, "map<string,string>": L_MAP}
        cdef list names = ["UNIQ_KEY", "KEYS", "TAGS"]
        for name in columns:
            if name.startswith(PROPERTY_PREFIX) and name[len(PROPERTY_PREFIX):] not in names:
                names.append(name[len(PROPERTY_PREFIX):])
        self._properties.wanted = <Wanted*>PyMem_Malloc(len(names) * sizeof(Wanted))
        self._columns = <Column*>PyMem_Malloc((len(columns) + 1) * sizeof(Column))
        if self._properties.wanted == NULL or self._columns == NULL:
            raise MemoryError
        memset(self._properties.wanted, 0, len(names) * sizeof(Wanted))
        memset(self._columns, 0, (len(columns) + 1) * sizeof(Column))
        self._properties.wanted_count = <int>len(names)
        for i in range(self._properties.wanted_count):
            self._properties.wanted[i].name = self._text(names[i])
            self._properties.wanted[i].name_bytes = <uint32_t>len(names[i].encode("utf-8", "replace"))
        index_wanted(&self._properties)
        self._column_count = <int>len(columns)
        self._names = columns
        self._last_count = min(_usual_rows, self._batch_rows)
        self._needs_properties = self._has_tags or self._has_keys
        self._verify = verify_crc
        for i in range(self._column_count):
            column = &self._columns[i]
            name = columns[i]
            if name.startswith(PROPERTY_PREFIX):
                column.kind = C_PROPERTY
                column.layout = L_BYTES
                column.slot = <int>names.index(name[len(PROPERTY_PREFIX):])
            elif name in kinds:
                column.kind = kinds[name]
                column.layout = layouts[COLUMNS[name]]
                column.slot = {C_UNIQUE_KEY: P_UNIQUE_KEY, C_KEYS: P_KEYS, C_TAGS: P_TAGS}.get(column.kind, -1)
            else:
                raise ValueError(f"there is no column {name!r}")
            if column.slot >= 0 or column.kind in (C_PROPERTIES, C_SOURCE_PROTOCOL):
                self._needs_properties = True
            if column.kind == C_PROPERTIES:
                self._properties.needs_pairs = True
            if column.kind == C_BODY:
                self._needs_body = True
            if column.kind == C_BODY_CRC_OK:
                self._verify = True
            if name in _usual_bytes:
                column.data.hint, column.items[0].hint, column.items[1].hint, column.item_offsets[0].hint = _usual_bytes[name]
                column.item_offsets[1].hint = column.item_offsets[0].hint
            self._fixed_bytes += 8 if column.layout == L_I64 else 4 if column.layout != L_BOOL else 1
        return 0

    # Buffers of the batch in the making

    cdef void _drop_buffers(self, Column* column) noexcept:
        cdef int i
        free(column.validity)
        drop(&column.data)
        drop(&column.offsets)
        for i in range(2):
            drop(&column.items[i])
            drop(&column.item_offsets[i])

    cdef int _widen(self) except -1 nogil:
        """Make room for more rows: twice as many, up to a batch."""
        cdef int64_t room = self._room * 2 if self._room else max(<int64_t>FIRST_ROWS, self._last_count + self._last_count // 8)
        cdef int i
        cdef Column* column
        if room > self._batch_rows:
            room = self._batch_rows
        for i in range(self._column_count):
            column = &self._columns[i]
            if column.layout == L_I32 or column.layout == L_I64:
                _set_size(&column.data, self._room, room, 4 if column.layout == L_I32 else 8)
            elif column.layout == L_BOOL:
                _set_size(&column.data, (self._room + 7) // 8, (room + 7) // 8, 1)
                memset(column.data.at + column.data.used, 0, <size_t>(room + 7) // 8 - column.data.used)
            else:
                _set_size(&column.offsets, self._room + 1 if self._room else 0, room + 1, 4)
                if self._room == 0:
                    (<int32_t*>column.offsets.at)[0] = 0
            if column.validity != NULL:
                self._stretch_validity(column, <size_t>(self._room + 7) // 8, <size_t>(room + 7) // 8)
        self._room = room
        return 0

    cdef int _stretch_validity(self, Column* column, size_t old_size, size_t size) except -1 nogil:
        cdef void* moved = realloc(column.validity, size)
        if moved == NULL:
            _no_memory()
        column.validity = <uint8_t*>moved
        memset(column.validity + old_size, 0xFF, size - old_size)
        return 0

    cdef inline int _set_null(self, Column* column) except -1 nogil:
        cdef int64_t row = self._count
        if column.validity == NULL:
            self._stretch_validity(column, 0, <size_t>(self._room + 7) // 8)
        column.validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
        column.nulls += 1
        return 0

    cdef inline bint _is_full(self) noexcept nogil:
        return self._count >= self._batch_rows or (
            self._variable_bytes + self._count * self._fixed_bytes >= self._batch_bytes
        )

    # One record

    cdef bint _is_topic_wanted(self, const uint8_t* topic, uint32_t size) noexcept nogil:
        cdef bint wanted
        if size == self._last_topic_bytes and memcmp(topic, self._last_topic, size) == 0 and size:
            return self._last_topic_wanted
        if self._has_topics:
            wanted = is_in(&self._topics, topic, size)
        else:
            wanted = True
            if not self._system_topics:
                wanted = not (is_in(&self._hidden, topic, size) or _begins_with(topic, size, RESERVED, 5)
                              or _begins_with(topic, size, ROCKETMQ_SYSTEM, 8))
            if not self._retry_topics and wanted:
                wanted = not (_begins_with(topic, size, RETRY, 7) or _begins_with(topic, size, DEAD_LETTER, 5))
        if size <= LONGEST_CACHED_TOPIC:
            memcpy(self._last_topic, topic, size)
            self._last_topic_bytes = size
            self._last_topic_wanted = wanted
        return wanted

    cdef bint _has_wanted_key(self) noexcept nogil:
        """Whether UNIQ_KEY, or one of the KEYS between spaces, is asked for."""
        cdef Wanted* found = &self._properties.wanted[P_UNIQUE_KEY]
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef const uint8_t* stop
        if found.value != NULL and is_in(&self._keys, found.value, found.value_bytes):
            return True
        found = &self._properties.wanted[P_KEYS]
        if found.value == NULL:
            return False
        p = found.value
        end = p + found.value_bytes
        while p < end:
            stop = <const uint8_t*>memchr(p, 32, end - p)
            if stop == NULL:
                stop = end
            if stop > p and is_in(&self._keys, p, <uint32_t>(stop - p)):
                return True
            p = stop + 1
        return False

    cdef bint _is_from_nsq(self, const RecordView* view, uint32_t sys_flag, int64_t born_ms, int32_t reconsume_times) noexcept nogil:
        """NSQ publishes carry no flag and no property but those the log adds, and are born when they are stored."""
        cdef const uint8_t* at = <const uint8_t*>view.record
        cdef const uint8_t* p = <const uint8_t*>view.properties
        cdef const uint8_t* end = p + view.properties_bytes
        cdef const uint8_t* stop
        if (sys_flag & ~<uint32_t>(SYS_FLAG_BORN_V6 | SYS_FLAG_STORE_V6) or born_ms != view.store_timestamp_ms
                or reconsume_times or load_u32(at + 16) or view.properties_bytes < CHECKSUM_BYTES):
            return False
        while p < end:
            stop = <const uint8_t*>memchr(p, 2, end - p)
            if stop == NULL:
                stop = end
            if not (_begins_with(p, <uint32_t>(stop - p), b"__CRC32#\x01", 9)
                    or _begins_with(p, <uint32_t>(stop - p), b"__BATCH#\x01", 9)
                    or _begins_with(p, <uint32_t>(stop - p), b"TIMER_DELIVER_MS\x01", 17)):
                return False
            p = stop + 1
        return True

    cdef int _offer(self, const uint8_t* at, uint32_t size) except -1 nogil:
        """Take or skip the well-formed record at ``at``; STOP_INFLATE leaves it for ``_take_compressed``."""
        cdef RecordView view
        cdef const uint8_t* topic = NULL
        cdef Wanted* tag
        cdef uint32_t topic_bytes = 0
        cdef uint32_t sys_flag = load_u32(at + 36)
        if not has_queue_entry(sys_flag) and not self._system_topics:
            self.skipped += 1
            return STOP_END
        read_view(at, size, &view)
        topic_of(&view, &topic, &topic_bytes)
        if not self._is_topic_wanted(topic, topic_bytes):
            return self._skip(at, size)
        if self._has_times and not self._start_ms <= view.store_timestamp_ms < self._end_ms:
            return self._skip(at, size)
        if self._needs_properties:
            find_properties(&self._properties, &view)
            tag = &self._properties.wanted[P_TAGS]
            if self._has_tags and (tag.value == NULL or not is_in(&self._tags, tag.value, tag.value_bytes)):
                return self._skip(at, size)
            if self._has_keys and not self._has_wanted_key():
                return self._skip(at, size)
        if self._needs_body and sys_flag & 1:
            return STOP_INFLATE
        self._append(&view, topic, topic_bytes, <const uint8_t*>view.body, view.body_bytes, sys_flag)
        return STOP_END

    cdef int _skip(self, const uint8_t* at, uint32_t size) except -1 nogil:
        """Leave a record out that a filter does not want; one that damage makes look so is damage."""
        self.skipped += 1
        if self._only_right and check_record(at, size, -1, True) <= 0:
            self.damaged += 1
            self.wrong_checksums += 1
        return STOP_END

    cdef int _take_compressed(self, const uint8_t* at, uint32_t size) except -1:
        """Append the record that ``_offer`` has just stopped at, its body decompressed where that is possible."""
        cdef RecordView view
        cdef const uint8_t* topic = NULL
        cdef uint32_t topic_bytes = 0
        cdef uint32_t sys_flag = load_u32(at + 36)
        cdef bytes plain
        read_view(at, size, &view)
        topic_of(&view, &topic, &topic_bytes)
        plain = view.body[:view.body_bytes]
        try:
            plain = inflate(plain, (sys_flag >> 8) & 7)
        except INFLATE_ERRORS:
            self.inflate_failures += 1
            sys_flag |= <uint32_t>GIVEN_AS_STORED
        return self._append(&view, topic, topic_bytes, plain, <uint32_t>len(plain), sys_flag)

    cdef int _append(self, const RecordView* view, const uint8_t* topic, uint32_t topic_bytes, const uint8_t* body,
                     uint32_t body_bytes, uint32_t sys_flag) except -1 nogil:
        """Add one row, unless only those whose checksum fits are wanted."""
        cdef const uint8_t* at = <const uint8_t*>view.record
        cdef bint is_born_v6 = sys_flag & SYS_FLAG_BORN_V6 != 0
        cdef bint is_store_v6 = sys_flag & SYS_FLAG_STORE_V6 != 0
        cdef const uint8_t* store_host = at + (76 if is_born_v6 else 64)
        cdef const uint8_t* behind_hosts = store_host + (20 if is_store_v6 else 8)
        cdef int64_t row
        cdef bint is_right = True
        cdef int i
        cdef Column* column
        cdef Wanted* wanted
        if self._verify:
            is_right = check_record(at, view.record_bytes, -1, True) > 0
            if not is_right:
                self.damaged += 1
                self.wrong_checksums += 1
                if self._only_right:
                    return 0
        if self._count == self._room:
            self._widen()
        row = self._count
        for i in range(self._column_count):
            column = &self._columns[i]
            if column.kind == C_QUEUE_OFFSET:
                (<int64_t*>column.data.at)[row] = view.queue_offset
            elif column.kind == C_LOG_OFFSET:
                (<int64_t*>column.data.at)[row] = view.physical_offset
            elif column.kind == C_QUEUE_ID:
                (<int32_t*>column.data.at)[row] = <int32_t>view.queue_id
            elif column.kind == C_BORN_TS:
                self._add_time(column, load_i64(at + 40))
            elif column.kind == C_STORE_TS:
                self._add_time(column, view.store_timestamp_ms)
            elif column.kind == C_FLAG:
                (<int32_t*>column.data.at)[row] = load_i32(at + 16)
            elif column.kind == C_SYS_FLAG:
                (<int32_t*>column.data.at)[row] = <int32_t>sys_flag
            elif column.kind == C_RECONSUME_TIMES:
                (<int32_t*>column.data.at)[row] = load_i32(behind_hosts)
            elif column.kind == C_STORE_SIZE:
                (<int32_t*>column.data.at)[row] = <int32_t>view.record_bytes
            elif column.kind == C_BODY_CRC_OK:
                if is_right:
                    column.data.at[row >> 3] |= <uint8_t>(1 << (row & 7))
            elif column.kind == C_PROPERTIES:
                self._add_map(column)
            else:
                if column.kind == C_TOPIC:
                    add_text(&column.data, topic, topic_bytes)
                elif column.kind == C_BODY:
                    reserve(&column.data, body_bytes)
                    memcpy(column.data.at + column.data.used, body, body_bytes)
                    column.data.used += body_bytes
                elif column.slot >= 0:
                    wanted = &self._properties.wanted[column.slot]
                    if wanted.value == NULL:
                        self._set_null(column)
                    else:
                        add_text(&column.data, wanted.value, wanted.value_bytes)
                elif column.kind == C_BROKER:
                    reserve(&column.data, self._broker_bytes)
                    memcpy(column.data.at + column.data.used, self._broker, self._broker_bytes)
                    column.data.used += self._broker_bytes
                elif column.kind == C_BORN_HOST:
                    reserve(&column.data, 80)
                    column.data.used += put_host(column.data.at + column.data.used, at + 48, is_born_v6)
                elif column.kind == C_STORE_HOST:
                    reserve(&column.data, 80)
                    column.data.used += put_host(column.data.at + column.data.used, store_host, is_store_v6)
                elif column.kind == C_MSG_ID:
                    reserve(&column.data, 64)
                    column.data.used += put_hex(column.data.at + column.data.used, store_host,
                                                 20 if is_store_v6 else 8)
                    column.data.used += put_hex(column.data.at + column.data.used, at + PHYSICAL_OFFSET_AT, 8)
                else:   # C_SOURCE_PROTOCOL
                    self._add_protocol(column, view, topic, topic_bytes, sys_flag, load_i64(at + 40),
                                       load_i32(behind_hosts))
                self._variable_bytes += <int64_t>column.data.used - (<int32_t*>column.offsets.at)[row]
                (<int32_t*>column.offsets.at)[row + 1] = <int32_t>column.data.used
        self._count += 1
        self.rows += 1
        return 0

    cdef inline int _add_time(self, Column* column, int64_t ms) except -1 nogil:
        if FIRST_MS <= ms <= LAST_MS:
            (<int64_t*>column.data.at)[self._count] = ms * 1000
        else:
            (<int64_t*>column.data.at)[self._count] = 0
            self._set_null(column)
        return 0

    cdef int _add_protocol(self, Column* column, const RecordView* view, const uint8_t* topic, uint32_t topic_bytes,
                           uint32_t sys_flag, int64_t born_ms, int32_t reconsume_times) except -1 nogil:
        if _begins_with(topic, topic_bytes, RETRY, 7) or _begins_with(topic, topic_bytes, DEAD_LETTER, 5):
            return add_text(&column.data, <const uint8_t*>b"retry", 5)
        if self._is_from_nsq(view, sys_flag, born_ms, reconsume_times):
            return add_text(&column.data, <const uint8_t*>b"nsq", 3)
        return add_text(&column.data, <const uint8_t*>b"rocketmq", 8)

    cdef int _add_map(self, Column* column) except -1 nogil:
        cdef uint32_t i
        cdef uint32_t count = self._properties.pair_count
        cdef Pair* pairs = self._properties.pairs
        cdef int k
        cdef int32_t n = column.item_count
        cdef size_t before = column.items[0].used + column.items[1].used
        for k in range(2):
            reserve(&column.item_offsets[k], <size_t>(count + 1) * 4)
            if column.item_offsets[k].used == 0:
                (<int32_t*>column.item_offsets[k].at)[0] = 0
                column.item_offsets[k].used = 4
        for i in range(count):
            add_text(&column.items[0], pairs[i].name, pairs[i].name_bytes)
            add_text(&column.items[1], pairs[i].value, pairs[i].value_bytes)
            n += 1
            for k in range(2):
                (<int32_t*>column.item_offsets[k].at)[n] = <int32_t>column.items[k].used
                column.item_offsets[k].used += 4
        column.item_count = n
        (<int32_t*>column.offsets.at)[self._count + 1] = n
        self._variable_bytes += <int64_t>(column.items[0].used + column.items[1].used - before) + 8 * count
        return 0

    # Whole batches

    cdef int _seal(self) except -1:
        """Hand the rows so far to pyarrow and begin a new batch."""
        cdef int i
        cdef list arrays = []
        cdef bint was_full = self._is_full()
        if self._count == 0:
            return 0
        for i in range(self._column_count):
            arrays.append(self._array(&self._columns[i], self.schema.field(i).type))
        if was_full:
            self._note_usual()
        if arrays:
            self._ready.append(pyarrow.RecordBatch.from_arrays(arrays, schema=self.schema))
        else:
            # Rows without columns: a count is all there is to say.
            empty = pyarrow.StructArray.from_buffers(pyarrow.struct([]), self._count, [None])
            self._ready.append(pyarrow.RecordBatch.from_struct_array(empty))
        self._last_count = self._count
        self._count = 0
        self._room = 0
        self._variable_bytes = 0
        return 0

    cdef int _note_usual(self) except -1:
        """Tell the decoders to come how large a full batch is."""
        global _usual_rows
        cdef int i
        cdef Column* column
        _usual_rows = self._count
        if len(_usual_bytes) > MAX_USUAL_COLUMNS:
            _usual_bytes.clear()
        for i in range(self._column_count):
            column = &self._columns[i]
            if column.data.hint + column.items[0].hint + column.items[1].hint <= MAX_USUAL_BYTES:
                _usual_bytes[self._names[i]] = (
                    column.data.hint, column.items[0].hint, column.items[1].hint, column.item_offsets[0].hint
                )
        return 0

    cdef object _array(self, Column* column, type_):
        cdef object validity = None
        cdef int64_t rows = self._count
        cdef int64_t nulls = column.nulls
        cdef uint8_t* bits = column.validity
        if bits != NULL:
            column.validity = NULL      # before it has another owner, who frees it if the hand-over fails
            validity = hand_over(bits, <size_t>(rows + 7) // 8, 0)
        column.nulls = 0
        if column.layout == L_MAP:
            return self._map_array(column, type_, rows)
        if column.layout == L_BYTES:
            return pyarrow.Array.from_buffers(
                type_, rows,
                [validity, take(&column.offsets, <size_t>(rows + 1) * 4), take(&column.data, column.data.used)], nulls
            )
        width = {L_I32: rows * 4, L_I64: rows * 8}.get(column.layout, (rows + 7) // 8)
        return pyarrow.Array.from_buffers(type_, rows, [validity, take(&column.data, width)], nulls)

    cdef object _map_array(self, Column* column, type_, int64_t rows):
        cdef int k
        cdef int32_t count = column.item_count
        cdef list items = []
        for k in range(2):
            items.append(pyarrow.Array.from_buffers(
                pyarrow.string(), count,
                [None, take(&column.item_offsets[k], <size_t>(count + 1) * 4),
                 take(&column.items[k], column.items[k].used)], 0
            ))
        column.item_count = 0
        entries = pyarrow.StructArray.from_arrays(items, fields=[type_.key_field, type_.item_field])
        return pyarrow.Array.from_buffers(
            type_, rows, [None, take(&column.offsets, <size_t>(rows + 1) * 4)], 0, children=[entries]
        )

    def feed_records(self, const uint8_t[::1] data not None, *, int64_t first_queue_offset=0,
                     int64_t end_queue_offset=-1):
        cdef int64_t size = data.shape[0]
        cdef int64_t before = self.rows
        cdef int64_t at = 0
        cdef int64_t record_bytes = 0
        cdef int why
        if size == 0:
            return 0
        cdef const uint8_t* base = &data[0]
        while at < size:
            with nogil:
                why = self._run_records(base, size, &at, &record_bytes, first_queue_offset, end_queue_offset)
            if why == STOP_FULL:
                self._seal()
            elif why == STOP_INFLATE:
                self._take_compressed(base + at, <uint32_t>record_bytes)
                at += record_bytes
            elif why == STOP_DAMAGED:
                raise CorruptRecordError(
                    f"an answer of {size} bytes holds no record at byte {at}",
                    physical_offset=load_i64(base + at + PHYSICAL_OFFSET_AT) if size - at >= CHECKED_HEAD_BYTES else -1,
                )
        return self.rows - before

    cdef int _run_records(self, const uint8_t* base, int64_t size, int64_t* position, int64_t* record_bytes,
                          int64_t first_queue_offset, int64_t end_queue_offset) except -1 nogil:
        cdef int64_t at = position[0]
        cdef int64_t found, queue_offset
        cdef int why
        while at < size:
            if self._is_full():
                position[0] = at
                return STOP_FULL
            found = check_record(base + at, size - at, -1, False)
            if found <= 0:
                position[0] = at
                return STOP_DAMAGED
            self.bytes += found
            queue_offset = load_i64(base + at + 20)
            if queue_offset >= first_queue_offset and (end_queue_offset < 0 or queue_offset < end_queue_offset):
                why = self._offer(base + at, <uint32_t>found)
                if why == STOP_INFLATE:
                    position[0] = at
                    record_bytes[0] = found
                    return STOP_INFLATE
            at += found
        position[0] = at
        return STOP_END

    def feed_log(self, const uint8_t[::1] data not None, int64_t base_offset, int64_t start, int64_t end, *,
                 int64_t segment_end=0):
        cdef int64_t size = data.shape[0]
        cdef int64_t at = max(start - base_offset, 0)
        cdef int64_t record_bytes = 0
        cdef int why
        if size == 0 or at >= size:
            return max(base_offset, start)
        cdef const uint8_t* base = &data[0]
        while True:
            with nogil:
                why = self._run_log(base, size, base_offset, end, segment_end, &at, &record_bytes)
            if why == STOP_FULL:
                self._seal()
            elif why == STOP_INFLATE:
                self._take_compressed(base + at, <uint32_t>record_bytes)
                at += record_bytes
            else:
                return base_offset + at

    cdef int _run_log(self, const uint8_t* base, int64_t size, int64_t base_offset, int64_t end, int64_t segment_end,
                      int64_t* position, int64_t* record_bytes) except -1 nogil:
        cdef int64_t at = position[0]
        cdef int64_t found
        cdef int why
        while at < size and base_offset + at < end:
            if self._is_full():
                position[0] = at
                return STOP_FULL
            found = judge(base + at, size - at, base_offset + at, segment_end)
            if found > 0:
                self._is_searching = False
                self.bytes += found
                why = self._offer(base + at, <uint32_t>found)
                if why == STOP_INFLATE:
                    position[0] = at
                    record_bytes[0] = found
                    return STOP_INFLATE
                at += found
                continue
            if found == J_SHORT:
                break
            if found < J_BLANK:
                self._is_searching = False
                at += J_BLANK - found
                continue
            if not self._is_searching:
                self._is_searching = True
                self.damaged += 1
            at = search(base, at + 1, size, base_offset, end, segment_end)
        position[0] = at
        return STOP_END

    def take(self):
        if self._is_full():
            self._seal()
        cdef list batches = self._ready
        self._ready = []
        return batches

    def finish(self):
        self._seal()
        return self.take()
