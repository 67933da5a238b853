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

Ref: remoting.md 2.9; docs/spark/sink.md.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset, strcmp

from headrace.format.record cimport MAX_TOPIC_BYTES, store_u16, store_u32
from headrace.spark.writing.arrow_columns cimport (
    ArrowArray, ArrowSchema, Text, integer_at, is_null, milliseconds_at, text_at,
)
from headrace.spark.writing.row_columns cimport (
    BAD_FLAG, BAD_QUEUE, BAD_TOPIC, BODY, BORN_TS, DONE, EARLY_TIME, FLAG, LONG_MESSAGE, LONG_TOPIC, MUST_SEAL,
    MUST_SEAL_ALL, NEW_TOPIC, NO_MEMORY, NULL_BODY, NULL_TOPIC, QUEUE_ID, SHARDING_KEY, SYS_FLAG, TOPIC, UNIQUE_KEY,
    RowColumns,
)
from headrace.spark.writing.row_properties cimport MAX_PROPERTIES_BYTES, RowProperties
from headrace.spark.writing.topic_table cimport TopicSlot, TopicTable, hash_bytes

from headrace.errors import InternalError
from headrace.format.compression import COMPRESSION_BITS, GIVEN_AS_STORED

cdef int64_t _COMPRESSION_BITS = COMPRESSION_BITS
cdef int64_t _GIVEN_AS_STORED = GIVEN_AS_STORED

cdef enum:
    FRAME_BYTES = 22                    # a message with nothing variable
    MAX_BODY_BYTES = 4194304            # no option allows more
    STORED_OVERHEAD_BYTES = 160         # of a record: fixed fields, hosts, checksum, the broker's properties
    SMALLEST_BUFFER_BYTES = 65536

MAX_PROPERTIES = MAX_PROPERTIES_BYTES
MAX_ROWS = 1 << 48

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

cdef struct Fields:                     # of a row, with its properties its message
    Text body
    int32_t topic                       # index
    int32_t flag
    int64_t born_ms                     # 0: not said
    uint32_t sys_flag


def sharding_hash(bytes key not None):
    return hash_bytes(<const uint8_t*>PyBytes_AS_STRING(key), len(key))


@cython.final
cdef class Encoder:
    """Encodes the rows of one partition; encode.pyi says what its arguments mean."""

    cdef RowColumns columns
    cdef RowProperties properties
    cdef TopicTable topics
    cdef object resolve

    cdef Destination* destinations
    cdef Py_ssize_t destination_count
    cdef list places                    # (topic, index of the queue, is delayed) of each destination

    cdef bint apart
    cdef bint is_one_topic
    cdef int64_t batch_bytes
    cdef int64_t batch_rows
    cdef int64_t stored_bytes
    cdef int64_t most_message_bytes
    cdef int64_t most_body_bytes        # of a plain batch, to a broker
    cdef int64_t most_held_bytes
    cdef int64_t held_bytes

    cdef readonly int64_t rows
    cdef readonly int64_t left_out
    cdef readonly int partition

    cdef int64_t to_seal                # destination
    cdef Text wanted                    # topic
    cdef list sealed

    def __init__(self, columns, extras, resolve, *, str topic=None, bytes key_prefix=None, bint key_required=False,
                 bint delayed_apart=False, int partition=0, int64_t batch_bytes=1 << 20, int64_t batch_rows=10_000,
                 int64_t stored_bytes=3_670_016, int64_t max_message_bytes=MAX_BODY_BYTES, int64_t held_bytes=16 << 20,
                 int64_t max_body_bytes=MAX_BODY_BYTES):
        if self.columns is not None:
            raise RuntimeError("an encoder is made once")
        self.is_one_topic = topic is not None
        self.columns = RowColumns({**columns, "topic": -1} if self.is_one_topic else columns, extras)
        self.properties = RowProperties(self.columns, key_prefix, key_required)
        self.topics = TopicTable()
        self.places = []
        self.sealed = []
        self.resolve = resolve
        self.apart = delayed_apart
        self.partition = partition
        self.batch_bytes = batch_bytes
        self.batch_rows = batch_rows
        self.stored_bytes = stored_bytes
        self.most_message_bytes = max_message_bytes
        self.most_body_bytes = min(max_message_bytes, max_body_bytes)
        self.most_held_bytes = held_bytes
        if self.is_one_topic:
            self._add_topic(topic)

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.destination_count):
            free(self.destinations[index].buffer)
        free(self.destinations)

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
        self.columns.bind(schema, array)
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

    cdef int _add_wanted(self, int64_t row, object batch) except -1:
        cdef bytes name = self.wanted.at[:self.wanted.size]
        try:
            # One that is no UTF-8 would be added under another name, and looked for again for ever.
            topic = name.decode()
        except UnicodeDecodeError:
            raise self._fault(self.columns.fail(BAD_TOPIC, TOPIC, 0), row, batch.schema.names) from None
        self._add_topic(topic)
        return 0

    cdef int _add_topic(self, str topic) except -1:
        """Ask for the route of a topic and make its destinations."""
        cdef uint32_t stride = 2 if self.apart else 1
        cdef Destination* grown
        cdef Py_ssize_t index, more
        queues, fixed, by_id = self.resolve(topic)
        if queues == 0 or fixed >= queues:
            raise InternalError(f"topic {topic!r} has {queues} queues, rows would go to number {fixed}")
        more = self.destination_count + <Py_ssize_t>queues * stride
        grown = <Destination*>realloc(self.destinations, more * sizeof(Destination))
        if grown == NULL:
            raise MemoryError(f"cannot keep {more} destinations")
        self.destinations = grown
        memset(&grown[self.destination_count], 0, (more - self.destination_count) * sizeof(Destination))
        self.topics.add(topic.encode(), queues, fixed, by_id, <uint32_t>self.destination_count)
        for index in range(more - self.destination_count):
            self.places.append((topic, index // stride, bool(index % stride)))
        self.destination_count = more
        return 0

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
            self.left_out += self.properties.left_out
            if self.held_bytes > self.most_held_bytes:
                return MUST_SEAL_ALL
        return DONE

    cdef int _encode_row(self, int64_t row) noexcept nogil:
        cdef Fields fields
        cdef Destination* destination
        cdef TopicSlot* topic
        cdef int64_t index, size
        cdef bint is_large = False
        cdef int status = self._read_fields(row, &fields)
        if status == DONE:
            status = self.properties.write(row, self.rows)
        if status != DONE:
            return status
        topic = &self.topics.slots[fields.topic]
        size = FRAME_BYTES + fields.body.size + self.properties.used
        if fields.body.size > self.most_message_bytes:
            return self.columns.fail(LONG_MESSAGE, BODY, fields.body.size)
        index = self._choose_queue(topic, row)
        if index < 0:
            return BAD_QUEUE
        if self.apart:
            # A broker counts a plain batch as one body: what fills one by itself goes as a message, not as a batch.
            is_large = not self.properties.is_delayed and size > self.most_body_bytes
            index = 2 * index + (self.properties.is_delayed or is_large)
            if not self.properties.is_delayed and self._is_before(topic.first + (index ^ 1), is_large):
                self.to_seal = topic.first + (index ^ 1)
                return MUST_SEAL
        destination = &self.destinations[topic.first + index]
        if destination.count and (
            destination.used + size > self.batch_bytes or destination.count >= self.batch_rows
            or destination.born_ms != fields.born_ms or destination.sys_flag != fields.sys_flag
            or destination.stored + size + STORED_OVERHEAD_BYTES + topic.name_bytes > self.stored_bytes
        ):
            self.to_seal = topic.first + index
            return MUST_SEAL
        if destination.used + size > destination.capacity and not self._grow(destination, size):
            return NO_MEMORY
        self._append(destination, &fields, size)
        destination.stored += size + STORED_OVERHEAD_BYTES + topic.name_bytes
        destination.has_large |= is_large
        return DONE

    cdef int _read_fields(self, int64_t row, Fields* fields) noexcept nogil:
        """Read what of a row is no property."""
        cdef Text name
        cdef int64_t number
        fields.body = text_at(&self.columns.of_role[BODY], row)
        fields.topic = 0
        fields.flag = 0
        fields.born_ms = 0
        fields.sys_flag = 0
        if fields.body.at == NULL:
            return self.columns.fail(NULL_BODY, BODY, 0)
        if not self.is_one_topic:
            name = text_at(&self.columns.of_role[TOPIC], row)
            if name.at == NULL or name.size == 0:
                return self.columns.fail(NULL_TOPIC, TOPIC, 0)
            if name.size > MAX_TOPIC_BYTES:
                return self.columns.fail(LONG_TOPIC, TOPIC, name.size)
            fields.topic = self.topics.find(&name)
            if fields.topic < 0:
                self.wanted = name
                return NEW_TOPIC
        if not is_null(&self.columns.of_role[FLAG], row):
            number = integer_at(&self.columns.of_role[FLAG], row)
            if not INT32_MIN <= number <= INT32_MAX:
                return self.columns.fail(BAD_FLAG, FLAG, number)
            fields.flag = <int32_t>number
        if not is_null(&self.columns.of_role[BORN_TS], row):
            fields.born_ms = milliseconds_at(&self.columns.of_role[BORN_TS], row)
            if fields.born_ms <= 0:
                return self.columns.fail(EARLY_TIME, BORN_TS, fields.born_ms)
        if not is_null(&self.columns.of_role[SYS_FLAG], row):
            number = integer_at(&self.columns.of_role[SYS_FLAG], row)
            if number & _GIVEN_AS_STORED:
                fields.sys_flag = <uint32_t>(number & _COMPRESSION_BITS)
        return DONE

    cdef void _append(self, Destination* destination, const Fields* fields, int64_t size) noexcept nogil:
        """Write a message of ``size`` bytes, for which there is room, behind what a destination has."""
        cdef uint8_t* at = <uint8_t*>destination.buffer + destination.used
        if not destination.count:
            destination.born_ms = fields.born_ms
            destination.sys_flag = fields.sys_flag
            destination.first_row = self.rows
        store_u32(at, <uint32_t>size)
        memset(at + 4, 0, 8)
        store_u32(at + 12, <uint32_t>fields.flag)
        store_u32(at + 16, <uint32_t>fields.body.size)
        memcpy(at + 20, fields.body.at, fields.body.size)
        at += 20 + fields.body.size
        store_u16(at, <uint16_t>self.properties.used)
        memcpy(at + 2, self.properties.at, self.properties.used)
        destination.used += size
        destination.count += 1
        self.held_bytes += size

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
        if not is_null(&self.columns.of_role[QUEUE_ID], row):
            number = integer_at(&self.columns.of_role[QUEUE_ID], row)
            if not 0 <= number < <int64_t>topic.ids or topic.by_id[number] < 0:
                self.columns.fail(BAD_QUEUE, QUEUE_ID, number)
                return -1
            return topic.by_id[number]
        key = text_at(&self.columns.of_role[SHARDING_KEY], row)
        if key.at != NULL and key.size:
            return <int64_t>(hash_bytes(key.at, key.size) % topic.queues)
        if topic.is_by_key:
            key = text_at(&self.columns.of_role[UNIQUE_KEY], row)
            return <int64_t>(hash_bytes(key.at, key.size) % topic.queues)
        return topic.fixed

    # -- refusals --------------------------------------------------------------------------------------------------------

    cdef object _fault(self, int status, int64_t row, list names):
        """Return the error for a row that cannot be written."""
        cdef TopicSlot* topic
        if status == NO_MEMORY:
            return MemoryError("no memory for the buffer of a destination")
        limit = "what one request takes" if self.most_message_bytes == MAX_BODY_BYTES else "option maxMessageBytes"
        facts = {"max_properties": MAX_PROPERTIES_BYTES, "limit": f"{limit} = {self.most_message_bytes}"}
        if status == BAD_QUEUE:
            topic = &self.topics.slots[self.topics.last]
            facts |= {"topic": topic.name[:topic.name_bytes].decode(), "queue_ids": topic.ids}
        return self.columns.error(status, self.partition, row, names, facts)
