# cython: nonecheck=False
# Loops without the GIL count in attributes of self, which Cython would check for None there, and cannot.
"""Rows to messages: Arrow buffers to the batch encoding of RocketMQ, one pass without the GIL.

A row goes to a destination, one queue of one topic, and every destination collects its rows in a buffer of its own. A
buffer that is full is sealed: it becomes the body of one request. What a row becomes depends on the row and its place in
the partition alone, never on how Arrow cut the partition into batches, so that a partition written again is numbered
again in the same way.

The pass stops, and goes on at the same row, when Python has something to decide: a topic it has not seen, a buffer to
be sealed. Nothing is kept of a batch after ``feed``: its columns (``arrow_columns``) are borrowed.

A message of a batch (big-endian):

    total i32 | magic i32 = 0 | crc i32 = 0 | flag i32 | length i32, body | length i16, properties

Properties, each ``name 1 value 2``, in this order: TAGS, KEYS, __SHARDINGKEY, DELAY or TIMER_DELIVER_MS, further
columns, the map, UNIQ_KEY. A property without a value is none, for every reader, so it is left out.

Ref: remoting.md 2.5, 2.9; docs/spark/sink.md.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strcmp

from headrace.format.record cimport MAX_TOPIC_BYTES, store_u16, store_u32
from headrace.spark.writing.arrow_columns cimport (
    ABSENT, INT8, INT64, LIST, LONG_TEXT, MAP, TEXT, TIME, ArrowArray, ArrowSchema, Column, Text, bind_column,
    integer_at, is_null, milliseconds_at, text_at,
)

from headrace.errors import InternalError, InvalidRowError
from headrace.format.compression import COMPRESSION_BITS, GIVEN_AS_STORED

cdef int64_t _COMPRESSION_BITS = COMPRESSION_BITS
cdef int64_t _GIVEN_AS_STORED = GIVEN_AS_STORED

cdef enum:                              # what a column is read for
    BODY = 0
    TOPIC
    TAGS
    KEYS
    PROPERTIES
    SHARDING_KEY
    QUEUE_ID
    DELIVER_AT
    DELAY_LEVEL
    FLAG
    UNIQUE_KEY
    BORN_TS
    SYS_FLAG
    ROLES

ROLE_NAMES = (
    "body", "topic", "tags", "keys", "properties", "sharding_key", "queue_id", "deliver_at", "delay_level", "flag",
    "unique_key", "born_ts", "sys_flag",
)

cdef enum:                              # why the pass stopped
    DONE = 0
    MUST_SEAL
    MUST_SEAL_ALL
    NEW_TOPIC
    NULL_BODY
    NULL_TOPIC
    NULL_KEY
    BAD_SEPARATOR
    BAD_KEYS
    BAD_QUEUE
    BAD_FLAG
    BAD_DELAY
    EARLY_TIME
    TWO_DELAYS
    LONG_PROPERTIES
    LONG_MESSAGE
    LONG_TOPIC
    BAD_TOPIC
    NO_MEMORY

cdef enum:
    FRAME_BYTES = 22                    # a message with nothing variable
    # Of a broker: CLUSTER with a name of 255 bytes (264), a checksum (20); of a delayed message REAL_TOPIC (139) and
    # REAL_QID (15), and RocketMQ's TIMER_OUT_MS (27); RocketMQ's MSG_REGION and TRACE_ON (39): 504 together.
    BROKERS_PROPERTIES_BYTES = 512
    MAX_PROPERTIES_BYTES = 32767 - BROKERS_PROPERTIES_BYTES
    MAX_BODY_BYTES = 4194304           # no option allows more
    STORED_OVERHEAD_BYTES = 160         # of a record: fixed fields, hosts, checksum, the broker's properties
    SMALLEST_BUFFER_BYTES = 65536
    KEY_DIGITS = 12                     # of a made key: the number of the row
    HASH_SLOTS = 1024                   # first size of the topic table, a power of two

MAX_PROPERTIES = MAX_PROPERTIES_BYTES
MAX_ROWS = 1 << 48

cdef struct Name:
    const uint8_t* at
    uint32_t size

cdef struct TopicSlot:
    uint8_t* name
    uint32_t name_bytes
    uint32_t queues                     # of the route, all brokers together
    uint32_t fixed                      # where rows go that do not say where
    bint is_by_key                      # ... unless they go where their unique keys say
    int32_t* by_id                      # queue id -> index in the route, -1: there is none
    uint32_t ids
    uint32_t first                      # its first destination

cdef struct Destination:
    char* buffer
    int64_t capacity
    int64_t used
    int64_t stored                      # what it takes in the log, about
    int64_t count
    int64_t seq                         # rows sealed before: the number of the first row in the buffer
    int64_t born_ms
    uint32_t sys_flag
    int64_t first_row
    bint has_large                      # of rows that are apart: one that is not delayed, so that its place counts


cdef bint _fits(int role, int kind) noexcept:
    """Return whether a column of that kind can be read for that role."""
    if kind == ABSENT:
        return True
    if role == PROPERTIES:
        return kind == MAP
    if role == DELIVER_AT or role == BORN_TS:
        return kind == TIME
    if role == QUEUE_ID or role == DELAY_LEVEL or role == FLAG or role == SYS_FLAG:
        return INT8 <= kind <= INT64
    return kind == TEXT or kind == LONG_TEXT or (role == KEYS and kind == LIST)


# -- hashing -------------------------------------------------------------------------------------------------------------

cdef inline uint64_t _hash(const uint8_t* at, int64_t size) noexcept nogil:
    """FNV-1a of 64 bits, its bits then mixed so that the low ones depend on all (the finisher of MurmurHash3)."""
    cdef uint64_t value = 0xCBF29CE484222325
    cdef int64_t index
    for index in range(size):
        value = (value ^ at[index]) * <uint64_t>0x100000001B3
    value ^= value >> 33
    value *= <uint64_t>0xFF51AFD7ED558CCD
    value ^= value >> 33
    value *= <uint64_t>0xC4CEB9FE1A85EC53
    value ^= value >> 33
    return value


def sharding_hash(bytes key not None):
    return _hash(<const uint8_t*>PyBytes_AS_STRING(key), len(key))


# -- properties ----------------------------------------------------------------------------------------------------------

cdef inline bint _is_named(const Text* name, const char* text, int64_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, text, size) == 0


cdef bint _is_brokers(const Text* name) noexcept nogil:
    """Whether a property of a map is the broker's own, or an order that has a column: it is not copied to a message."""
    cdef int64_t size = name.size
    if size > 6 and memcmp(name.at, b"TIMER_", 6) == 0:
        return True
    if size == 4:
        return memcmp(name.at, b"WAIT", 4) == 0
    if size == 5:
        return memcmp(name.at, b"DELAY", 5) == 0
    if size == 6:
        return memcmp(name.at, b"PGROUP", 6) == 0
    if size == 7:
        return memcmp(name.at, b"CLUSTER", 7) == 0
    if size == 8:
        return (memcmp(name.at, b"__BATCH#", 8) == 0 or memcmp(name.at, b"__CRC32#", 8) == 0
                or memcmp(name.at, b"TRAN_MSG", 8) == 0 or memcmp(name.at, b"REAL_QID", 8) == 0)
    return size == 10 and memcmp(name.at, b"REAL_TOPIC", 10) == 0


cdef class Encoder:
    """Encodes the rows of one partition; encode.pyi says what its arguments mean."""

    cdef int32_t[ROLES] indexes
    cdef Column[ROLES] columns
    cdef Column items                   # of KEYS as a list
    cdef Column names                   # of PROPERTIES
    cdef Column values
    cdef Column* extras
    cdef Name* extra_names
    cdef int32_t* extra_indexes
    cdef Py_ssize_t extra_count
    cdef list kept                      # what the names point into
    cdef object resolve

    cdef TopicSlot* topics
    cdef Py_ssize_t topic_count
    cdef Py_ssize_t topic_capacity
    cdef int32_t* table                 # open addressing: index of a topic, -1: empty
    cdef uint32_t table_size
    cdef int32_t last_topic

    cdef Destination* destinations
    cdef Py_ssize_t destination_count
    cdef list places                    # (topic, index of the queue, is delayed) of each destination

    cdef uint8_t* scratch               # properties of the row under way
    cdef int64_t scratch_used
    cdef bytes key_prefix
    cdef const char* prefix
    cdef int64_t prefix_bytes
    cdef bint key_required
    cdef bint apart
    cdef int64_t batch_bytes
    cdef int64_t batch_rows
    cdef int64_t stored_bytes
    cdef int64_t most_message_bytes
    cdef int64_t most_body_bytes        # of a plain batch, to a broker
    cdef int64_t most_held_bytes
    cdef int64_t held_bytes

    cdef readonly int64_t rows
    cdef readonly int64_t left_out
    cdef int64_t row_left_out           # of the row that is encoded, which may be begun anew
    cdef readonly int partition

    cdef int64_t to_seal                # destination
    cdef Text wanted                    # topic
    cdef int fault_role
    cdef Py_ssize_t fault_extra
    cdef int64_t fault_value
    cdef list sealed

    def __cinit__(self):
        self.table_size = HASH_SLOTS
        self.scratch = <uint8_t*>malloc(MAX_PROPERTIES_BYTES + 64)
        self.table = <int32_t*>malloc(HASH_SLOTS * sizeof(int32_t))
        if self.scratch == NULL or self.table == NULL:
            raise MemoryError("cannot make an encoder")
        memset(self.table, 255, HASH_SLOTS * sizeof(int32_t))
        self.last_topic = -1

    def __init__(self, columns, extras, resolve, *, str topic=None, bytes key_prefix=None, bint key_required=False,
                 bint delayed_apart=False, int partition=0, int64_t batch_bytes=1 << 20, int64_t batch_rows=10_000,
                 int64_t stored_bytes=3_670_016, int64_t max_message_bytes=MAX_BODY_BYTES, int64_t held_bytes=16 << 20,
                 int64_t max_body_bytes=MAX_BODY_BYTES):
        cdef Py_ssize_t index
        cdef bytes name
        if self.kept is not None:
            raise RuntimeError("an encoder is made once")
        for index, role in enumerate(ROLE_NAMES):
            self.indexes[index] = columns.get(role, -1)
        self.kept = []
        self.places = []
        self.sealed = []
        self.resolve = resolve
        self.extra_count = len(extras)
        if self.extra_count:
            self.extras = <Column*>calloc(self.extra_count, sizeof(Column))
            self.extra_names = <Name*>calloc(self.extra_count, sizeof(Name))
            self.extra_indexes = <int32_t*>calloc(self.extra_count, sizeof(int32_t))
            if self.extras == NULL or self.extra_names == NULL or self.extra_indexes == NULL:
                raise MemoryError("cannot make an encoder")
        for index, (text, position) in enumerate(extras):
            name = text.encode()
            self.kept.append(name)
            self.extra_names[index].at = <const uint8_t*>PyBytes_AS_STRING(name)
            self.extra_names[index].size = <uint32_t>len(name)
            self.extra_indexes[index] = position
        self.key_prefix = key_prefix
        if key_prefix is not None:
            if len(key_prefix) > 128:
                raise ValueError("the prefix of keys is longer than 128 bytes")
            self.prefix = PyBytes_AS_STRING(key_prefix)
            self.prefix_bytes = len(key_prefix)
        self.key_required = key_required
        self.apart = delayed_apart
        self.partition = partition
        self.batch_bytes = batch_bytes
        self.batch_rows = batch_rows
        self.stored_bytes = stored_bytes
        self.most_message_bytes = max_message_bytes
        self.most_body_bytes = min(max_message_bytes, max_body_bytes)
        self.most_held_bytes = held_bytes
        if topic is not None:
            self.indexes[TOPIC] = -1
            self._add_topic(topic)
            self.last_topic = 0

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.topic_count):
            free(self.topics[index].name)
            free(self.topics[index].by_id)
        for index in range(self.destination_count):
            free(self.destinations[index].buffer)
        free(self.topics)
        free(self.destinations)
        free(self.table)
        free(self.scratch)
        free(self.extras)
        free(self.extra_names)
        free(self.extra_indexes)

    @property
    def held(self):
        return self.held_bytes

    def place(self, Py_ssize_t destination):
        return self.places[destination]

    def feed(self, batch):
        cdef object schema_capsule, array_capsule
        cdef const ArrowSchema* schema
        cdef const ArrowArray* array
        cdef int64_t row = 0
        cdef int64_t first = self.rows
        cdef int status
        schema_capsule, array_capsule = batch.__arrow_c_array__()
        schema = <const ArrowSchema*>PyCapsule_GetPointer(schema_capsule, b"arrow_schema")
        array = <const ArrowArray*>PyCapsule_GetPointer(array_capsule, b"arrow_array")
        if strcmp(schema.format, b"+s") != 0:
            raise TypeError("a batch of rows is a struct of columns")
        self._bind_all(schema, array)
        if self.rows + array.length >= MAX_ROWS:
            raise InternalError(f"a partition has more than {MAX_ROWS} rows")
        while True:
            with nogil:
                status = self._encode(&row, array.length)
            if status == DONE:
                break
            if status == MUST_SEAL:
                self._seal(self.to_seal)
            elif status == MUST_SEAL_ALL:
                self._seal_all()
            elif status == NEW_TOPIC:
                self._add_wanted(first + row, batch)
            else:
                raise self._fault(status, first + row, batch.schema.names)
        sealed, self.sealed = self.sealed, []
        return sealed

    def finish(self):
        self._seal_all()
        sealed, self.sealed = self.sealed, []
        return sealed

    # -- topics and destinations -----------------------------------------------------------------------------------------

    cdef int _bind_all(self, const ArrowSchema* schema, const ArrowArray* array) except -1:
        cdef int role
        cdef Py_ssize_t index
        cdef const ArrowArray* child
        cdef const ArrowSchema* form
        for role in range(ROLES):
            if self.indexes[role] < 0:
                memset(&self.columns[role], 0, sizeof(Column))
                continue
            if self.indexes[role] >= array.n_children:
                raise TypeError(f"there is no column {self.indexes[role]}")
            form = schema.children[self.indexes[role]]
            child = array.children[self.indexes[role]]
            bind_column(&self.columns[role], form, child, array.offset)
            if not _fits(role, self.columns[role].kind):
                raise TypeError(f"column {form.name.decode()!r} of Arrow type {form.format.decode()!r} "
                                f"cannot be {ROLE_NAMES[role]}")
            if self.columns[role].kind == LIST:
                bind_column(&self.items, form.children[0], child.children[0], 0)
                if self.items.kind not in (ABSENT, TEXT, LONG_TEXT):
                    raise TypeError(f"column {form.name.decode()!r} is no list of texts")
            elif self.columns[role].kind == MAP:
                form = form.children[0]
                child = child.children[0]
                bind_column(&self.names, form.children[0], child.children[0], child.offset)
                bind_column(&self.values, form.children[1], child.children[1], child.offset)
                if self.names.kind not in (TEXT, LONG_TEXT) or self.values.kind not in (ABSENT, TEXT, LONG_TEXT):
                    raise TypeError("properties are no map of texts to texts")
        for index in range(self.extra_count):
            if self.extra_indexes[index] >= array.n_children:
                raise TypeError(f"there is no column {self.extra_indexes[index]}")
            form = schema.children[self.extra_indexes[index]]
            bind_column(&self.extras[index], form, array.children[self.extra_indexes[index]], array.offset)
            if self.extras[index].kind not in (ABSENT, TEXT, LONG_TEXT):
                raise TypeError(f"column {form.name.decode()!r} is no text")
        return 0

    cdef int _add_wanted(self, int64_t row, object batch) except -1:
        cdef bytes name = self.wanted.at[:self.wanted.size]
        try:
            # One that is no UTF-8 would be added under another name, and looked for again for ever.
            topic = name.decode()
        except UnicodeDecodeError:
            raise self._fault(self._fail(BAD_TOPIC, TOPIC, 0), row, batch.schema.names) from None
        self._add_topic(topic)
        self.last_topic = <int32_t>(self.topic_count - 1)
        return 0

    cdef int _add_topic(self, str topic) except -1:
        """Ask for the route of a topic and make its destinations."""
        cdef bytes name = topic.encode()
        cdef uint32_t queues, fixed, stride = 2 if self.apart else 1
        cdef TopicSlot* slots
        cdef TopicSlot* slot
        cdef Destination* grown
        cdef Py_ssize_t index, more
        wanted_queues, wanted_fixed, by_id = self.resolve(topic)
        is_by_key = wanted_fixed < 0
        if is_by_key:
            wanted_fixed = 0
        queues = wanted_queues
        fixed = wanted_fixed
        if queues == 0 or fixed >= queues:
            raise InternalError(f"topic {topic!r} has {queues} queues, rows would go to number {fixed}")
        if self.topic_count == self.topic_capacity:
            more = 2 * self.topic_capacity if self.topic_capacity else 8
            slots = <TopicSlot*>realloc(self.topics, more * sizeof(TopicSlot))
            if slots == NULL:
                raise MemoryError(f"cannot keep {more} topics")
            self.topics = slots
            self.topic_capacity = more
        more = self.destination_count + <Py_ssize_t>queues * stride
        grown = <Destination*>realloc(self.destinations, more * sizeof(Destination))
        if grown == NULL:
            raise MemoryError(f"cannot keep {more} destinations")
        self.destinations = grown
        memset(&grown[self.destination_count], 0, (more - self.destination_count) * sizeof(Destination))
        slot = &self.topics[self.topic_count]
        memset(slot, 0, sizeof(TopicSlot))
        slot.name = <uint8_t*>malloc(len(name) + 1)
        slot.by_id = <int32_t*>malloc((len(by_id) + 1) * sizeof(int32_t))
        if slot.name == NULL or slot.by_id == NULL:
            free(slot.name)
            free(slot.by_id)
            raise MemoryError("cannot keep a topic")
        memcpy(slot.name, PyBytes_AS_STRING(name), len(name))
        slot.name_bytes = <uint32_t>len(name)
        slot.queues = queues
        slot.fixed = fixed
        slot.is_by_key = is_by_key
        slot.ids = <uint32_t>len(by_id)
        for index in range(len(by_id)):
            slot.by_id[index] = by_id[index]
        slot.first = <uint32_t>self.destination_count
        for index in range(queues * stride):
            self.places.append((topic, index // stride, bool(index % stride)))
        self.destination_count = more
        self.topic_count += 1
        self._index_topics()
        return 0

    cdef int _index_topics(self) except -1:
        """Put the last topic into the table, or all of them into a larger one."""
        cdef Py_ssize_t index
        cdef int32_t* table
        if self.topic_count * 2 > self.table_size:
            table = <int32_t*>realloc(self.table, 2 * self.table_size * sizeof(int32_t))
            if table == NULL:
                raise MemoryError("cannot keep topics")
            self.table = table
            self.table_size *= 2
            memset(table, 255, self.table_size * sizeof(int32_t))
            for index in range(self.topic_count):
                self._index_topic(index)
        else:
            self._index_topic(self.topic_count - 1)
        return 0

    cdef void _index_topic(self, Py_ssize_t index) noexcept:
        cdef uint32_t at = <uint32_t>_hash(self.topics[index].name, self.topics[index].name_bytes)
        while self.table[at & (self.table_size - 1)] >= 0:
            at += 1
        self.table[at & (self.table_size - 1)] = <int32_t>index

    cdef int32_t _find_topic(self, const Text* name) noexcept nogil:
        """Return the index of a topic, -1 when it is not known."""
        cdef uint32_t at
        cdef int32_t index = self.last_topic
        if index >= 0 and self.topics[index].name_bytes == name.size:
            if memcmp(self.topics[index].name, name.at, name.size) == 0:
                return index
        at = <uint32_t>_hash(name.at, name.size)
        while True:
            index = self.table[at & (self.table_size - 1)]
            if index < 0:
                return -1
            if self.topics[index].name_bytes == name.size:
                if memcmp(self.topics[index].name, name.at, name.size) == 0:
                    self.last_topic = index
                    return index
            at += 1

    cdef int _seal(self, Py_ssize_t index) except -1:
        """Make a request's body of a destination's buffer."""
        cdef Destination* destination = &self.destinations[index]
        if not destination.count:
            return 0
        self.sealed.append((
            index, destination.seq, destination.count, destination.born_ms, destination.sys_flag, destination.first_row,
            PyBytes_FromStringAndSize(destination.buffer, destination.used),
        ))
        self.held_bytes -= destination.used
        destination.seq += destination.count
        destination.used = 0
        destination.stored = 0
        destination.count = 0
        destination.has_large = False
        return 0

    cdef int _seal_all(self) except -1:
        """Seal every buffer; give memory back, unless it is that of a few."""
        cdef Py_ssize_t index
        for index in range(self.destination_count):
            self._seal(index)
            if self.destination_count > 16 and self.destinations[index].buffer != NULL:
                free(self.destinations[index].buffer)
                self.destinations[index].buffer = NULL
                self.destinations[index].capacity = 0
        return 0

    # -- the pass --------------------------------------------------------------------------------------------------------

    cdef int _encode(self, int64_t* row, int64_t end) noexcept nogil:
        """Encode rows from ``row`` on; it is where the pass stopped, and the status says why."""
        cdef int status
        while row[0] < end:
            status = self._encode_row(row[0])
            if status != DONE:
                return status
            row[0] += 1
            self.rows += 1
            self.left_out += self.row_left_out
            if self.held_bytes > self.most_held_bytes:
                return MUST_SEAL_ALL
        return DONE

    cdef int _encode_row(self, int64_t row) noexcept nogil:
        cdef Text body = text_at(&self.columns[BODY], row)
        cdef Text name
        cdef TopicSlot* topic
        cdef Destination* destination
        cdef bint is_delayed = False, is_large = False
        cdef int64_t number, size, born_ms = 0
        cdef int32_t flag = 0
        cdef uint32_t sys_flag = 0
        cdef int status
        cdef uint8_t* at
        self.row_left_out = 0
        if body.at == NULL:
            return self._fail(NULL_BODY, BODY, 0)
        if self.indexes[TOPIC] >= 0:
            name = text_at(&self.columns[TOPIC], row)
            if name.at == NULL or name.size == 0:
                return self._fail(NULL_TOPIC, TOPIC, 0)
            if name.size > MAX_TOPIC_BYTES:
                return self._fail(LONG_TOPIC, TOPIC, name.size)
            number = self._find_topic(&name)
            if number < 0:
                self.wanted = name
                return NEW_TOPIC
            topic = &self.topics[number]
        else:
            topic = &self.topics[0]
        if not is_null(&self.columns[FLAG], row):
            number = integer_at(&self.columns[FLAG], row)
            if not INT32_MIN <= number <= INT32_MAX:
                return self._fail(BAD_FLAG, FLAG, number)
            flag = <int32_t>number
        if not is_null(&self.columns[BORN_TS], row):
            born_ms = milliseconds_at(&self.columns[BORN_TS], row)
            if born_ms <= 0:
                return self._fail(EARLY_TIME, BORN_TS, born_ms)
        if not is_null(&self.columns[SYS_FLAG], row):
            number = integer_at(&self.columns[SYS_FLAG], row)
            if number & _GIVEN_AS_STORED:
                sys_flag = <uint32_t>(number & _COMPRESSION_BITS)
        status = self._write_properties(row, &is_delayed)
        if status != DONE:
            return status
        size = FRAME_BYTES + body.size + self.scratch_used
        if body.size > self.most_message_bytes:
            return self._fail(LONG_MESSAGE, BODY, body.size)
        number = self._choose_queue(topic, row)
        if number < 0:
            return BAD_QUEUE
        if self.apart:
            # A broker counts a plain batch as one body: what fills one by itself goes as a message, not as a batch.
            is_large = not is_delayed and size > self.most_body_bytes
            number = 2 * number + (is_delayed or is_large)
            if not is_delayed and self._is_before(topic.first + (number ^ 1), is_large):
                self.to_seal = topic.first + (number ^ 1)
                return MUST_SEAL
        destination = &self.destinations[topic.first + number]
        if destination.count and (
            destination.used + size > self.batch_bytes or destination.count >= self.batch_rows
            or destination.born_ms != born_ms or destination.sys_flag != sys_flag
            or destination.stored + size + STORED_OVERHEAD_BYTES + topic.name_bytes > self.stored_bytes
        ):
            self.to_seal = topic.first + number
            return MUST_SEAL
        if destination.used + size > destination.capacity and not self._grow(destination, size):
            return NO_MEMORY
        if not destination.count:
            destination.born_ms = born_ms
            destination.sys_flag = sys_flag
            destination.first_row = self.rows
        at = <uint8_t*>destination.buffer + destination.used
        store_u32(at, <uint32_t>size)
        memset(at + 4, 0, 8)
        store_u32(at + 12, <uint32_t>flag)
        store_u32(at + 16, <uint32_t>body.size)
        memcpy(at + 20, body.at, body.size)
        at += 20 + body.size
        store_u16(at, <uint16_t>self.scratch_used)
        memcpy(at + 2, self.scratch, self.scratch_used)
        destination.used += size
        destination.stored += size + STORED_OVERHEAD_BYTES + topic.name_bytes
        destination.count += 1
        destination.has_large |= is_large
        self.held_bytes += size
        return DONE

    cdef inline bint _is_before(self, Py_ssize_t other, bint is_large) noexcept nogil:
        """Whether rows wait in the other destination of a queue that go before this one: all but delayed ones do."""
        return self.destinations[other].count > 0 if is_large else self.destinations[other].has_large

    cdef bint _grow(self, Destination* destination, int64_t size) noexcept nogil:
        """Make room for ``size`` bytes more; False when there is no memory."""
        cdef int64_t wanted = 2 * destination.capacity
        cdef char* buffer
        if wanted < SMALLEST_BUFFER_BYTES:
            wanted = SMALLEST_BUFFER_BYTES
        if wanted > self.batch_bytes:
            wanted = self.batch_bytes
        if wanted < destination.used + size:
            wanted = destination.used + size
        buffer = <char*>realloc(destination.buffer, wanted)
        if buffer == NULL:
            return False
        destination.buffer = buffer
        destination.capacity = wanted
        return True

    cdef int64_t _choose_queue(self, const TopicSlot* topic, int64_t row) noexcept nogil:
        """Return the index of a row's queue in its topic's route, -1 when the queue it names is not there."""
        cdef int64_t number
        cdef Text key
        if not is_null(&self.columns[QUEUE_ID], row):
            number = integer_at(&self.columns[QUEUE_ID], row)
            if not 0 <= number < <int64_t>topic.ids or topic.by_id[number] < 0:
                self.last_topic = <int32_t>(topic - self.topics)
                return -1 if self._fail(BAD_QUEUE, QUEUE_ID, number) else 0
            return topic.by_id[number]
        key = text_at(&self.columns[SHARDING_KEY], row)
        if key.at != NULL and key.size:
            return <int64_t>(_hash(key.at, key.size) % topic.queues)
        if topic.is_by_key:
            key = text_at(&self.columns[UNIQUE_KEY], row)
            return <int64_t>(_hash(key.at, key.size) % topic.queues)
        return topic.fixed

    # -- properties ------------------------------------------------------------------------------------------------------

    cdef int _write_properties(self, int64_t row, bint* is_delayed) noexcept nogil:
        """Write the properties of a row to the scratch."""
        cdef Text tags = text_at(&self.columns[TAGS], row)
        cdef Text sharding_key = text_at(&self.columns[SHARDING_KEY], row)
        cdef Text key = text_at(&self.columns[UNIQUE_KEY], row)
        cdef bint has_keys = not is_null(&self.columns[KEYS], row)
        cdef bint has_key = key.at != NULL and key.size > 0
        cdef Py_ssize_t index
        cdef Text value
        cdef int status
        self.scratch_used = 0
        status = self._put(b"TAGS", 4, &tags, TAGS)
        if status == DONE and has_keys:
            status = self._put_keys(row)
        if status == DONE:
            status = self._put(b"__SHARDINGKEY", 13, &sharding_key, SHARDING_KEY)
        if status == DONE:
            status = self._put_delay(row, is_delayed)
        if status != DONE:
            return status
        for index in range(self.extra_count):
            value = text_at(&self.extras[index], row)
            status = self._put(<const char*>self.extra_names[index].at, self.extra_names[index].size, &value, -1)
            if status != DONE:
                self.fault_extra = index
                return status
        if not is_null(&self.columns[PROPERTIES], row):
            status = self._put_map(row, tags.at != NULL, has_keys, sharding_key.at != NULL, &has_key)
            if status != DONE:
                return status
        if key.at != NULL and key.size > 0:
            return self._put(b"UNIQ_KEY", 8, &key, UNIQUE_KEY)
        if self.key_required:
            return self._fail(NULL_KEY, UNIQUE_KEY, 0)
        if not has_key and self.prefix != NULL:
            return self._put_made_key(row)
        return DONE

    cdef int _put(self, const char* name, int64_t name_bytes, const Text* value, int role) noexcept nogil:
        """Add one property, if it has a value."""
        cdef uint8_t* at = self.scratch + self.scratch_used
        cdef int64_t size = name_bytes + value.size + 2
        if value.at == NULL or value.size == 0:
            return DONE
        if self.scratch_used + size > MAX_PROPERTIES_BYTES:
            return self._fail(LONG_PROPERTIES, role, self.scratch_used + size)
        if memchr(value.at, 1, value.size) != NULL or memchr(value.at, 2, value.size) != NULL:
            return self._fail(BAD_SEPARATOR, role, 0)
        memcpy(at, name, name_bytes)
        at[name_bytes] = 1
        memcpy(at + name_bytes + 1, value.at, value.size)
        at[size - 1] = 2
        self.scratch_used += size
        return DONE

    cdef int _put_keys(self, int64_t row) noexcept nogil:
        """Add KEYS: a text as it is, a list joined by spaces."""
        cdef const Column* column = &self.columns[KEYS]
        cdef Text value
        cdef int64_t at, start, mark = self.scratch_used
        cdef int status
        cdef bint is_first = True
        if column.kind != LIST:
            value = text_at(column, row)
            return self._put(b"KEYS", 4, &value, KEYS)
        start = column.offset + row
        for at in range((<const int32_t*>column.offsets)[start], (<const int32_t*>column.offsets)[start + 1]):
            value = text_at(&self.items, at)
            if value.at == NULL or value.size == 0:
                continue
            if memchr(value.at, c" ", value.size) != NULL:
                return self._fail(BAD_KEYS, KEYS, 0)
            if is_first:
                status = self._put(b"KEYS", 4, &value, KEYS)
            else:
                # As a property without a name: what would part name and value becomes the space between two keys.
                mark = self.scratch_used - 1
                self.scratch_used = mark
                status = self._put(b"", 0, &value, KEYS)
                if status == DONE:
                    self.scratch[mark] = c" "
            if status != DONE:
                return status
            is_first = False
        return DONE

    cdef int _put_number(self, const char* name, int64_t name_bytes, int64_t number, int role) noexcept nogil:
        cdef uint8_t[20] digits
        cdef int first = 20
        cdef Text value
        while True:
            first -= 1
            digits[first] = <uint8_t>(48 + number % 10)
            number /= 10
            if number == 0:
                break
        value.at = digits + first
        value.size = 20 - first
        return self._put(name, name_bytes, &value, role)

    cdef int _put_delay(self, int64_t row, bint* is_delayed) noexcept nogil:
        """Add the property that makes a message wait."""
        cdef int64_t level = 0, deliver_ms
        if not is_null(&self.columns[DELAY_LEVEL], row):
            level = integer_at(&self.columns[DELAY_LEVEL], row)
            if not 0 <= level <= 999:
                return self._fail(BAD_DELAY, DELAY_LEVEL, level)
        if not is_null(&self.columns[DELIVER_AT], row):
            deliver_ms = milliseconds_at(&self.columns[DELIVER_AT], row)
            if deliver_ms <= 0:
                return self._fail(EARLY_TIME, DELIVER_AT, deliver_ms)
            if level:
                return self._fail(TWO_DELAYS, DELIVER_AT, level)
            is_delayed[0] = True
            return self._put_number(b"TIMER_DELIVER_MS", 16, deliver_ms, DELIVER_AT)
        if level:
            is_delayed[0] = True
            return self._put_number(b"DELAY", 5, level, DELAY_LEVEL)
        return DONE

    cdef int _put_map(self, int64_t row, bint has_tags, bint has_keys, bint has_sharding_key,
                      bint* has_key) noexcept nogil:
        """Add the properties of a map, but for what a column says and what is the broker's."""
        cdef const int32_t* offsets = <const int32_t*>self.columns[PROPERTIES].offsets
        cdef int64_t at = self.columns[PROPERTIES].offset + row
        cdef int64_t entry
        cdef Text name, value
        cdef bint given_key = has_key[0]
        cdef int status
        for entry in range(offsets[at], offsets[at + 1]):
            name = text_at(&self.names, entry)
            value = text_at(&self.values, entry)
            if name.at == NULL or name.size == 0:
                return self._fail(BAD_SEPARATOR, PROPERTIES, 0)
            if value.at == NULL or value.size == 0:
                continue
            if _is_brokers(&name):
                self.row_left_out += 1
                continue
            if has_tags and _is_named(&name, b"TAGS", 4) or has_keys and _is_named(&name, b"KEYS", 4):
                continue
            if has_sharding_key and _is_named(&name, b"__SHARDINGKEY", 13) or self._is_extra(&name, row):
                continue
            if _is_named(&name, b"UNIQ_KEY", 8):
                if given_key:
                    continue
                has_key[0] = True
            if memchr(name.at, 1, name.size) != NULL or memchr(name.at, 2, name.size) != NULL:
                return self._fail(BAD_SEPARATOR, PROPERTIES, 0)
            status = self._put(<const char*>name.at, name.size, &value, PROPERTIES)
            if status != DONE:
                return status
        return DONE

    cdef bint _is_extra(self, const Text* name, int64_t row) noexcept nogil:
        """Whether a further column gives this property."""
        cdef Py_ssize_t index
        for index in range(self.extra_count):
            if self.extra_names[index].size == name.size and not is_null(&self.extras[index], row):
                if memcmp(self.extra_names[index].at, name.at, name.size) == 0:
                    return True
        return False

    cdef int _put_made_key(self, int64_t row) noexcept nogil:
        """Add a UNIQ_KEY made of what names the partition and of the number of the row, 12 hexadecimal digits."""
        cdef uint8_t[160] key
        cdef const uint8_t* digits = <const uint8_t*>b"0123456789ABCDEF"
        cdef Text value
        cdef int index, status
        memcpy(key, self.prefix, self.prefix_bytes)
        for index in range(KEY_DIGITS):
            key[self.prefix_bytes + index] = digits[(self.rows >> (4 * (KEY_DIGITS - 1 - index))) & 15]
        value.at = key
        value.size = self.prefix_bytes + KEY_DIGITS
        status = self._put(b"UNIQ_KEY", 8, &value, UNIQUE_KEY)
        if status != DONE:
            self.fault_role = self._longest(row)
        return status

    cdef int _longest(self, int64_t row) noexcept nogil:
        """Return the role of the column that takes most of a row's properties; -1: a further one, ``fault_extra``."""
        cdef int[3] texts = [TAGS, KEYS, SHARDING_KEY]
        cdef const int32_t* offsets = <const int32_t*>self.columns[PROPERTIES].offsets
        cdef int64_t at, entry, size, most = 0
        cdef int found = PROPERTIES, role
        cdef Py_ssize_t index
        if not is_null(&self.columns[PROPERTIES], row):
            at = self.columns[PROPERTIES].offset + row
            for entry in range(offsets[at], offsets[at + 1]):
                most += text_at(&self.names, entry).size + text_at(&self.values, entry).size
        for index in range(3):
            role = texts[index]
            if self.columns[role].kind == LIST:
                offsets = <const int32_t*>self.columns[role].offsets
                at = self.columns[role].offset + row
                size = 0
                for entry in range(offsets[at], offsets[at + 1]):
                    size += text_at(&self.items, entry).size
            else:
                size = text_at(&self.columns[role], row).size
            if size > most:
                most = size
                found = role
        for index in range(self.extra_count):
            size = text_at(&self.extras[index], row).size
            if size > most:
                most = size
                found = -1
                self.fault_extra = index
        return found

    # -- refusals --------------------------------------------------------------------------------------------------------

    cdef int _fail(self, int status, int role, int64_t value) noexcept nogil:
        self.fault_role = role
        self.fault_value = value
        return status

    cdef object _fault(self, int status, int64_t row, list names):
        """Return the error for a row that cannot be written."""
        cdef int index
        if status == NO_MEMORY:
            return MemoryError("no memory for the buffer of a destination")
        if self.fault_role >= 0:
            index = self.indexes[self.fault_role]
        else:
            index = self.extra_indexes[self.fault_extra]
        column = names[index] if index >= 0 else ROLE_NAMES[self.fault_role]
        value = self.fault_value
        if status == NULL_BODY:
            reason = "is null; a message has a body, an empty one if need be"
        elif status == NULL_TOPIC:
            reason = "is null or empty and there is no option topic"
        elif status == LONG_TOPIC:
            reason = f"is a topic of {value} bytes, at most {MAX_TOPIC_BYTES} are allowed"
        elif status == BAD_TOPIC:
            reason = "is a topic that is no UTF-8"
        elif status == NULL_KEY:
            reason = "is null or empty, but it is the key by which duplicates are known (docs/spark/sink.md, Modes)"
        elif status == BAD_SEPARATOR:
            reason = "has an empty name, or a byte 0x01 or 0x02, which part the properties of a message"
        elif status == BAD_KEYS:
            reason = "has a key with a space in it; spaces part the keys of a message"
        elif status == BAD_QUEUE:
            slot = self.topics[self.last_topic]
            topic = slot.name[:slot.name_bytes].decode()
            reason = f"is queue {value}, which topic {topic!r} does not have; it has {slot.ids} write queues a broker"
        elif status == BAD_DELAY:
            reason = f"is {value}; a delay level is within 0..999"
        elif status == EARLY_TIME:
            reason = f"is {value} ms since 1970; it has to be later than the beginning of 1970"
        elif status == TWO_DELAYS:
            reason = f"is set beside delay level {value}; a message has one delay"
        elif status == LONG_PROPERTIES:
            reason = (
                f"makes the properties {value} bytes long or longer, at most {MAX_PROPERTIES_BYTES} are allowed; brokers "
                "add their own"
            )
        elif status == LONG_MESSAGE:
            limit = "what one request takes" if self.most_message_bytes == MAX_BODY_BYTES else "option maxMessageBytes"
            reason = (
                f"is a body of {value} bytes, above {limit} = {self.most_message_bytes}; the broker has a limit of its "
                "own, remoting.max_message_bytes"
            )
        else:
            reason = f"is {value}; a flag is a number of 32 bits, {INT32_MIN}..{INT32_MAX}"
        return InvalidRowError(self.partition, row, column, reason)
