"""The columns of a batch of rows by what they are read for, and why a row cannot be a message.

Knows Arrow's types and what a user is told; what a message looks like it does not know.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT32_MAX, INT32_MIN
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from headrace.format.record cimport MAX_TOPIC_BYTES
from headrace.spark.writing.arrow_columns cimport (
    ABSENT, INT8, INT64, LIST, LONG_TEXT, MAP, TEXT, TIME, bind_column,
)

from headrace.errors import InvalidRowError

ROLE_NAMES = (
    "body", "topic", "tags", "keys", "properties", "sharding_key", "queue_id", "deliver_at", "delay_level", "flag",
    "unique_key", "born_ts", "sys_flag",
)

_REASONS = {
    NULL_BODY: "is null; a message has a body, an empty one if need be",
    NULL_TOPIC: "is null or empty and there is no option topic",
    LONG_TOPIC: f"is a topic of {{value}} bytes, at most {MAX_TOPIC_BYTES} are allowed",
    BAD_TOPIC: "is a topic that is no UTF-8",
    NULL_KEY: "is null or empty, but it is the key by which duplicates are known (docs/spark/sink.md, Modes)",
    BAD_SEPARATOR: "has an empty name, or a byte 0x01 or 0x02, which part the properties of a message",
    BAD_KEYS: "has a key with a space in it; spaces part the keys of a message",
    BAD_QUEUE: "is queue {value}, which topic {topic!r} does not have; it has {queue_ids} write queues a broker",
    BAD_FLAG: f"is {{value}}; a flag is a number of 32 bits, {INT32_MIN}..{INT32_MAX}",
    BAD_DELAY: "is {value}; a delay level is within 0..999",
    EARLY_TIME: "is {value} ms since 1970; it has to be later than the beginning of 1970",
    TWO_DELAYS: "is set beside delay level {value}; a message has one delay",
    LONG_PROPERTIES: "makes the properties {value} bytes long or longer, at most {max_properties} are allowed; brokers "
                     "add their own",
    LONG_MESSAGE: "is a body of {value} bytes, above {limit}; the broker has a limit of its own, "
                  "remoting.max_message_bytes",
}


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


cdef class RowColumns:
    """Made of ``columns``, role -> position of its column, and ``extras``, pairs of a property's name and its column."""

    def __init__(self, columns, extras):
        cdef Py_ssize_t index
        cdef bytes name
        if self.kept is not None:
            raise RuntimeError("columns are named once")
        self.kept = []
        for index, role in enumerate(ROLE_NAMES):
            self.positions[index] = columns.get(role, -1)
        if extras:
            self.extras = <Column*>calloc(len(extras), sizeof(Column))
            self.extra_names = <Name*>calloc(len(extras), sizeof(Name))
            self.extra_positions = <int32_t*>calloc(len(extras), sizeof(int32_t))
            if self.extras == NULL or self.extra_names == NULL or self.extra_positions == NULL:
                raise MemoryError("cannot keep the names of columns")
        self.extra_count = len(extras)
        for index, (text, position) in enumerate(extras):
            name = text.encode()
            self.kept.append(name)
            self.extra_names[index].at = <const uint8_t*>PyBytes_AS_STRING(name)
            self.extra_names[index].size = <uint32_t>len(name)
            self.extra_positions[index] = position

    def __dealloc__(self):
        free(self.extras)
        free(self.extra_names)
        free(self.extra_positions)

    cdef int bind(self, const ArrowSchema* schema, const ArrowArray* array) except -1:
        cdef int role
        cdef Py_ssize_t index
        cdef const ArrowArray* child
        cdef const ArrowSchema* form
        for role in range(ROLES):
            if self.positions[role] < 0:
                memset(&self.of_role[role], 0, sizeof(Column))
                continue
            if self.positions[role] >= array.n_children:
                raise TypeError(f"there is no column {self.positions[role]}")
            form = schema.children[self.positions[role]]
            child = array.children[self.positions[role]]
            bind_column(&self.of_role[role], form, child, array.offset)
            if not _fits(role, self.of_role[role].kind):
                raise TypeError(f"column {form.name.decode()!r} of Arrow type {form.format.decode()!r} "
                                f"cannot be {ROLE_NAMES[role]}")
            if self.of_role[role].kind == LIST:
                bind_column(&self.items, form.children[0], child.children[0], 0)
                if self.items.kind not in (ABSENT, TEXT, LONG_TEXT):
                    raise TypeError(f"column {form.name.decode()!r} is no list of texts")
            elif self.of_role[role].kind == MAP:
                form = form.children[0]
                child = child.children[0]
                bind_column(&self.names, form.children[0], child.children[0], child.offset)
                bind_column(&self.values, form.children[1], child.children[1], child.offset)
                if self.names.kind not in (TEXT, LONG_TEXT) or self.values.kind not in (ABSENT, TEXT, LONG_TEXT):
                    raise TypeError("properties are no map of texts to texts")
        for index in range(self.extra_count):
            if self.extra_positions[index] >= array.n_children:
                raise TypeError(f"there is no column {self.extra_positions[index]}")
            form = schema.children[self.extra_positions[index]]
            bind_column(&self.extras[index], form, array.children[self.extra_positions[index]], array.offset)
            if self.extras[index].kind not in (ABSENT, TEXT, LONG_TEXT):
                raise TypeError(f"column {form.name.decode()!r} is no text")
        return 0

    cdef int fail(self, int status, int role, int64_t value) noexcept nogil:
        self.fault_role = role
        self.fault_value = value
        return status

    cdef object error(self, int status, int partition, int64_t row, list names, dict facts):
        cdef int32_t position
        if self.fault_role >= 0:
            position = self.positions[self.fault_role]
        else:
            position = self.extra_positions[self.fault_extra]
        column = names[position] if position >= 0 else ROLE_NAMES[self.fault_role]
        return InvalidRowError(partition, row, column, _REASONS[status].format(value=self.fault_value, **facts))
