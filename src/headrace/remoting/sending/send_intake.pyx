"""Plain sends: from spans of a header to entries of a batch, and from the appended batch to responses.

A send is plain when its topic exists and is no system topic (``%``), it is not signed, and every field it needs is there
and in range. It asks for a place in a queue, or to be held first: at a delay level, until a time of its own, or as a half
message; a message of a batch only for a place. What asks for more than one of these, or in a way that has to be looked at
(a time that is over, too far away or none), is handed out as a ``Command`` like everything else, so this path has no
refusals of its own. A batch is plain or not as a whole.

What is stored. The client's properties without those that are none of its business (WAIT, CLUSTER, ``__BATCH#``,
``__CRC32#``, TIMER_OUT_MS), each ended by its separator, then CLUSTER. They are decoded to blocks that the entries borrow
from until ``clear()``; bodies are borrowed from the receive buffer. Of several TAGS the last counts.

A message that is held is stored in the internal topic where it waits. Its properties say where it belongs, and are those
that ``broker.message.Message.diverted`` makes; its destination is that of the topic and queue it is meant for, and what it
is held for (``holds``).

Responses are encoded in one pass; the id of a message is where it lies.

Ref: remoting.md 2.5, 2.7, 2.8, 2.9, 4.3.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from headrace.batch cimport CopiedBatch, PublishBatch, PublishEntry
from headrace.format.record cimport (
    MAX_BODY_BYTES, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, hash_tag, store_u16, store_u32,
)
from headrace.format.separators cimport find_end, find_separator
from headrace.remoting.header cimport (
    FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_BINARY, SERIALIZE_SMARTGO, SPAN_ESCAPED, SPAN_PLAIN, Field, Header, Span, copy_plain,
    encode_frame, is_named, load_number, put_bytes, put_number, unescape,
)

cdef enum:
    BLOCK_BYTES = 65536
    # Escaped or not: what is longer goes the slow way, and a block holds what is not.
    MAX_PROPERTIES_SPAN = 49152
    # The encoder adds a checksum and perhaps the size of a batch.
    MAX_PROPERTIES = MAX_PROPERTIES_BYTES - 64
    MAX_ENTRIES_KEPT = 65536
    RESPONSE_BYTES = 384                # at most, one message id included
    ID_TEXT_BYTES = 57                  # an IPv6 id and a comma
    REQUIRED = 0xFF                     # fields a to h of SEND_MESSAGE_V2

ctypedef const Span* SpanPointer
ctypedef const char* TextPointer

# The fields of a send by their letters in SEND_MESSAGE_V2.
cdef enum:
    GROUP = 0
    TOPIC = 1
    DEFAULT_QUEUES = 3
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN_MS = 6
    APPLICATION_FLAG = 7
    PROPERTIES = 8
    RECONSUME_TIMES = 9
    OWN_LIMIT = 11
    IS_BATCH = 12
    SEND_FIELDS = 14

cdef enum:
    SYS_FLAG_TRANSACTION = 0xC
    MAX_LEVEL_DIGITS = 9
    MAX_TIME_DIGITS = 15
    MAX_UNIQUE_BYTES = 255
    MAX_NAMES = 64                     # of properties of a message that is held
    REAL_BYTES = 32                     # REAL_TOPIC 1 2 REAL_QID 1 number 2

# What is an enum to other modules has no name in Python yet.
globals().update(HOLD_NONE=HOLD_NONE, HOLD_TIMED=HOLD_TIMED, HOLD_HALF=HOLD_HALF)

_REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

cdef const char* JSON_1 = b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"'
cdef const char* JSON_2 = b'","queueId":"'
cdef const char* JSON_3 = b'","queueOffset":"'
cdef const char* JSON_4 = b'"},"flag":1,"language":"PYTHON","opaque":'
cdef const char* JSON_5 = b',"serializeTypeCurrentRPC":"JSON","version":409}'
cdef enum:
    JSON_1_BYTES = 79
    JSON_2_BYTES = 13
    JSON_3_BYTES = 17
    JSON_4_BYTES = 41
    JSON_5_BYTES = 48

# language PYTHON, version 409, then opaque, flag 1, no remark; extFields that never change
cdef const char* BINARY_FIELDS = b"\0\x0aMSG_REGION\0\0\0\x0dDefaultRegion\0\x08TRACE_ON\0\0\0\x04true\0\x05msgId"
cdef enum:
    BINARY_FIELDS_BYTES = 54

cdef uint16_t[256] _hex_pairs


cdef int _fill_tables() except -1:
    cdef int value
    cdef uint8_t[2] pair
    cdef const uint8_t* digit = b"0123456789ABCDEF"
    for value in range(256):
        pair[0] = digit[value >> 4]
        pair[1] = digit[value & 15]
        memcpy(&_hex_pairs[value], pair, 2)
    return 0


_fill_tables()


cdef inline char* _put_id(char* at, const char* host, Py_ssize_t host_chars, int64_t physical_offset) noexcept nogil:
    cdef int shift
    at = put_bytes(at, host, host_chars)
    for shift in range(56, -8, -8):
        memcpy(at, &_hex_pairs[(<uint64_t>physical_offset >> shift) & 255], 2)
        at += 2
    return at


cdef class Limits:
    def __init__(self, topics, *, bytes cluster not None=b"DefaultCluster", int64_t max_frame_bytes=16_777_216,
                 str frame_setting not None="", int64_t max_message_bytes=4_194_304, held_sends=None,
                 bint leaves_sends=False):
        if not 0 < max_message_bytes <= MAX_BODY_BYTES:
            raise ValueError(f"max_message_bytes {max_message_bytes} is not within 1..{MAX_BODY_BYTES}")
        if len(cluster) > 255 or not cluster or b"\x01" in cluster or b"\x02" in cluster:
            raise ValueError(f"cluster {cluster!r} does not fit into a property")
        self.topics = topics
        self.cluster = cluster
        self.max_frame_bytes = max_frame_bytes
        self.frame_setting = frame_setting
        self.max_message_bytes = max_message_bytes
        self.cluster_property = b"CLUSTER\x01" + cluster + b"\x02"
        self.held_sends = held_sends
        self.leaves_sends = leaves_sends
        self.delay_levels = 0 if held_sends is None else held_sends.delay_levels
        self.most_half_properties = 0 if held_sends is None else held_sends.most_half_properties
        self.most_half_bytes = 0 if held_sends is None else held_sends.most_half_bytes


# -- properties ----------------------------------------------------------------------------------------------------------

cdef struct Properties:                 # being decoded
    const char* tag
    uint32_t tag_bytes
    bint is_plain                       # this path knows what all of them ask for
    bint says_place                     # one says where the message belongs, as those of messages that are held do
    bint is_copy                        # one is of a half message that the broker made
    int64_t delay_levels                # that there are
    int64_t level                       # that it asks for
    int64_t time                        # that it names: of this day, seconds or ms from now on
    int time_unit                       # TIME_ABSOLUTE ...; 0 when it names none
    bint is_half
    const char* unique                  # its unique key
    uint32_t unique_bytes

cdef enum:
    TIME_ABSOLUTE = 1
    TIME_SECONDS = 2
    TIME_MS = 3


cdef int64_t _digits(const char* at, Py_ssize_t size, Py_ssize_t most) noexcept nogil:
    """Return a number written in up to ``most`` digits, -1 when it is none."""
    cdef int64_t value = 0
    cdef Py_ssize_t index
    if size > most:
        return -1
    for index in range(size):
        if not c"0" <= at[index] <= c"9":
            return -1
        value = value * 10 + (at[index] - c"0")
    return value


cdef char* _end_delay(char* value, char* out, Properties* state) noexcept nogil:
    """Note the level that a message asks for, and write it as one that there is; return where it ends."""
    cdef int64_t level = _digits(value, out - value, MAX_LEVEL_DIGITS)
    cdef Py_ssize_t index
    if level == 0:
        return out
    if level < 0:
        for index in range(out - value):
            if value[index] != c"0":
                state.is_plain = False
        return out
    if state.delay_levels == 0 or state.level:
        state.is_plain = False
        return out
    state.level = min(level, state.delay_levels)
    return put_number(value, state.level)


cdef int _end_time(const char* value, const char* out, int unit, Properties* state) noexcept nogil:
    """Note the time that a message names."""
    state.time = _digits(value, out - value, MAX_TIME_DIGITS)
    if state.time < 0 or state.time_unit:
        state.is_plain = False
    state.time_unit = unit
    return 0


cdef int _end_half(const char* value, const char* out, Properties* state) noexcept nogil:
    """Note that a message is a half one; what is not spelled as clients do is not for this path."""
    if out - value == 4 and memcmp(value, <const char*>b"true", 4) == 0 and not state.is_half:
        state.is_half = True
    elif out - value != 5 or memcmp(value, <const char*>b"false", 5) != 0 or state.is_half:
        state.is_plain = False
    return 0


cdef char* _end_property(char* name, char* value, char* out, Properties* state) noexcept nogil:
    """End the property ``name`` 1 ``value`` that was written up to ``out``; return where the next one is written."""
    cdef Py_ssize_t size = value - 1 - name
    if size <= 0 or value == out:
        return name                     # readers drop it too
    if size == 4:
        if memcmp(name, <const char*>b"TAGS", 4) == 0:
            state.tag = value
            state.tag_bytes = <uint32_t>(out - value)
        elif memcmp(name, <const char*>b"WAIT", 4) == 0:
            return name
    elif size == 5:
        if memcmp(name, <const char*>b"DELAY", 5) == 0:
            out = _end_delay(value, out, state)
    elif size == 7:
        if memcmp(name, <const char*>b"CLUSTER", 7) == 0:
            return name
    elif size == 8:
        if memcmp(name, <const char*>b"UNIQ_KEY", 8) == 0:
            state.unique = value
            state.unique_bytes = <uint32_t>(out - value)
        elif memcmp(name, <const char*>b"TRAN_MSG", 8) == 0:
            _end_half(value, out, state)
        elif memcmp(name, <const char*>b"REAL_QID", 8) == 0:
            state.says_place = True
        elif memcmp(name, <const char*>b"__BATCH#", 8) == 0 or memcmp(name, <const char*>b"__CRC32#", 8) == 0:
            return name
    elif size == 10:
        if memcmp(name, <const char*>b"REAL_TOPIC", 10) == 0:
            state.says_place = True
    elif size == 12:
        if memcmp(name, <const char*>b"TIMER_OUT_MS", 12) == 0:
            return name
    elif size == 14:
        if memcmp(name, <const char*>b"TIMER_DELAY_MS", 14) == 0:
            _end_time(value, out, TIME_MS, state)
    elif size == 15:
        if memcmp(name, <const char*>b"TIMER_DELAY_SEC", 15) == 0:
            _end_time(value, out, TIME_SECONDS, state)
    elif size == 16:
        if memcmp(name, <const char*>b"TIMER_DELIVER_MS", 16) == 0:
            _end_time(value, out, TIME_ABSOLUTE, state)
            return name                 # the record gets it from the time that the entry has
    elif size == 17:
        if memcmp(name, <const char*>b"TIMER_DEL_UNIQKEY", 17) == 0:
            state.is_plain = False      # it is refused
    elif size == 23:
        if memcmp(name, <const char*>b"TRANSACTION_CHECK_TIMES", 23) == 0:
            state.is_copy = True
    elif size == 26:
        if memcmp(name, <const char*>b"TRAN_PREPARED_QUEUE_OFFSET", 26) == 0:
            state.is_copy = True
    elif size == 30:
        if memcmp(name, <const char*>b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30) == 0:
            state.is_copy = True        # its time is the broker's to read
    out[0] = 2
    return out + 1


cdef char* _copy_properties(const char* at, const char* end, char* out, Properties* state) noexcept nogil:
    """Decode properties that stand for themselves; return where they end. At most one byte more than they have."""
    cdef const char* stop
    cdef const char* separator
    while at < end:
        separator = find_separator(at, end)
        stop = separator
        if separator < end and separator[0] == 1:
            stop = find_end(separator, end)
            memcpy(out, at, stop - at)
            out = _end_property(out, out + (separator - at) + 1, out + (stop - at), state)
        at = stop + 1
    return out


cdef char* _unescape_properties(const char* at, const char* end, char* out, Properties* state) noexcept nogil:
    """Decode properties with JSON escapes; return where they end, or NULL for an escape that JSON does not know."""
    cdef char* name = out
    cdef char* value = NULL
    while at < end:
        at = copy_plain(at, end, &out)
        if at >= end:
            break
        # 1 and 2 have no other spelling.
        if end - at >= 6 and memcmp(at, <const char*>b"\\u000", 5) == 0 and (at[5] == c"1" or at[5] == c"2"):
            if at[5] == c"1":
                out[0] = 1
                out += 1
                if value == NULL:
                    value = out
            else:
                out = _end_property(name, value, out, state) if value != NULL else name
                name = out
                value = NULL
            at += 6
            continue
        at = unescape(at, end, &out)
        if at == NULL:
            return NULL
    return _end_property(name, value, out, state) if value != NULL else name


# -- the fields of a send ------------------------------------------------------------------------------------------------

cdef int _long_field(const Span* name) noexcept nogil:
    """Return which field a long name of SEND_MESSAGE means, or -1."""
    cdef const char* at = name.at
    cdef uint32_t size = name.size
    if size == 4:
        return APPLICATION_FLAG if memcmp(at, <const char*>b"flag", 4) == 0 else -1
    if size == 5:
        if memcmp(at, <const char*>b"topic", 5) == 0:
            return TOPIC
        return IS_BATCH if memcmp(at, <const char*>b"batch", 5) == 0 else -1
    if size == 7:
        if memcmp(at, <const char*>b"queueId", 7) == 0:
            return QUEUE_ID
        return SYS_FLAG if memcmp(at, <const char*>b"sysFlag", 7) == 0 else -1
    if size == 10:
        return PROPERTIES if memcmp(at, <const char*>b"properties", 10) == 0 else -1
    if size == 12:
        return 2 if memcmp(at, <const char*>b"defaultTopic", 12) == 0 else -1
    if size == 13:
        if memcmp(at, <const char*>b"bornTimestamp", 13) == 0:
            return BORN_MS
        return GROUP if memcmp(at, <const char*>b"producerGroup", 13) == 0 else -1
    if size == 14:
        return RECONSUME_TIMES if memcmp(at, <const char*>b"reconsumeTimes", 14) == 0 else -1
    if size == 17:
        return OWN_LIMIT if memcmp(at, <const char*>b"maxReconsumeTimes", 17) == 0 else -1
    if size == 21:
        return DEFAULT_QUEUES if memcmp(at, <const char*>b"defaultTopicQueueNums", 21) == 0 else -1
    return -1


cdef bint is_proof(const Span* name) noexcept nogil:
    if name.size == 9:
        return memcmp(name.at, <const char*>b"AccessKey", 9) == 0 or memcmp(name.at, <const char*>b"Signature", 9) == 0
    return name.size == 13 and memcmp(name.at, <const char*>b"SecurityToken", 13) == 0


cdef inline bint _load_i32(const Span* span, int64_t* value) noexcept nogil:
    return load_number(span, value) and value[0] == <int32_t>value[0]


cdef int take_send(SendIntake intake, Limits limits, const Header* header, const char* body, Py_ssize_t body_bytes,
                   object owner) except -1:
    cdef SpanPointer[SEND_FIELDS] found
    cdef const Field* field
    cdef PublishEntry common
    cdef uint32_t index, seen = 0
    cdef int which
    cdef int slot
    cdef int64_t queue_id = 0, number = 0, destination
    cdef Hold hold
    cdef Send asked
    cdef Py_ssize_t entry, first = intake.batch.count
    cdef bint is_batch = header.code == SEND_BATCH_MESSAGE
    if header.flag & FLAG_RESPONSE or not 0 < body_bytes <= limits.max_message_bytes:
        return 0
    if header.serialize == SERIALIZE_SMARTGO:
        return 0
    for index in range(header.field_count):
        field = &header.fields[index]
        if field.name.kind != SPAN_PLAIN:
            return 0
        if header.code == SEND_MESSAGE:
            which = _long_field(&field.name)
        elif field.name.size == 1 and c"a" <= field.name.at[0] < c"a" + SEND_FIELDS:
            which = field.name.at[0] - c"a"
        else:
            which = -1
        if which >= 0:
            found[which] = &field.value
            seen |= <uint32_t>1 << which
        elif is_proof(&field.name):
            return 0
    if seen & REQUIRED != REQUIRED or found[TOPIC].kind != SPAN_PLAIN:
        return 0
    if not found[GROUP].size:
        return 0
    if not _load_i32(found[DEFAULT_QUEUES], &number) or not _load_i32(found[QUEUE_ID], &queue_id):
        return 0
    if seen >> OWN_LIMIT & 1 and not _load_i32(found[OWN_LIMIT], &number):
        return 0                        # it counts for retries alone, but a handler says what is wrong with it
    # Taken down here: once Python was asked what a message may wait for, the header may be another thread's.
    asked.opaque = header.opaque
    asked.serialize = <uint8_t>header.serialize
    asked.is_oneway = header.flag & FLAG_ONEWAY != 0
    memset(&common, 0, sizeof(common))
    if seen >> IS_BATCH & 1:
        if is_named(found[IS_BATCH], b"true", 4):
            is_batch = True
        elif not is_named(found[IS_BATCH], b"false", 5):
            return 0                    # a handler knows what else is true
    if not _load_i32(found[SYS_FLAG], &number):
        return 0
    # These bits say what a record is to its transaction; whether it is part of one, a property of the message says.
    common.sys_flag = <uint32_t>(number & ~SYS_FLAG_TRANSACTION)
    if number & SYS_FLAG_TRANSACTION and (is_batch or limits.held_sends is None):
        return 0
    if not load_number(found[BORN_MS], &common.born_ms):
        return 0
    if not _load_i32(found[APPLICATION_FLAG], &number):
        return 0
    common.flag = <uint32_t>number
    if seen >> RECONSUME_TIMES & 1:
        if not _load_i32(found[RECONSUME_TIMES], &number):
            return 0
        common.reconsume_times = <int32_t>number
    if not seen >> PROPERTIES & 1:
        found[PROPERTIES] = NULL
    elif found[PROPERTIES].size > MAX_PROPERTIES_SPAN:
        return 0
    slot = intake.find_topic(limits, found[TOPIC].at, found[TOPIC].size)
    if slot < 0:
        return 0
    memset(&hold, 0, sizeof(hold))
    if is_batch:
        if not _take_batch(intake, limits, &common, found[PROPERTIES], body, body + body_bytes):
            return 0
    else:
        common.body = body
        common.body_bytes = <uint32_t>body_bytes
        common.command_entries = 1
        hold.topic = found[TOPIC].at
        hold.topic_bytes = found[TOPIC].size
        hold.queue_id = queue_id
        if not take_message(intake, limits, &common, NULL, 0, found[PROPERTIES], &hold):
            return 0
    # Named only now: a destination of messages that are not plain would be counted, and waited for, without any.
    destination = intake.destination(slot, queue_id, hold.kind)
    for entry in range(first, intake.batch.count):
        intake.batch.entries[entry].destination = <uint32_t>destination
    if intake.batch.owner is None:
        intake.batch.owner = owner
    asked.destination = <uint32_t>destination
    asked.unique = hold.unique
    asked.unique_bytes = hold.unique_bytes
    intake.add_send(&asked, first)
    intake.halves += hold.kind == HOLD_HALF
    return 1


cdef bint _may_hold(SendIntake intake, Limits limits, const Properties* state, Hold* hold) except -1:
    """Say what a message is held for; whether it is as simple as that."""
    cdef int64_t now_ms
    if hold == NULL or limits.held_sends is None or hold.queue_id < 0 or state.says_place:
        return False
    if state.is_half:
        if state.level or state.time_unit or state.is_copy or not 0 < state.unique_bytes <= MAX_UNIQUE_BYTES:
            return False
        if not _stands_for_itself(state.unique, state.unique_bytes) or intake.halves >= limits.held_sends.half_room():
            return False
        hold.kind = HOLD_HALF
        hold.unique = state.unique
        hold.unique_bytes = state.unique_bytes
    elif state.level:
        if state.time_unit:
            return False
        hold.kind = state.level
    else:
        now_ms = limits.held_sends.now_ms()
        hold.due_ms = state.time
        if state.time_unit != TIME_ABSOLUTE:
            hold.due_ms = now_ms + state.time * (1000 if state.time_unit == TIME_SECONDS else 1)
        if not now_ms < hold.due_ms <= now_ms + <int64_t>limits.held_sends.max_delay_ms:
            return False
        hold.kind = HOLD_TIMED
    return True


cdef bint _is_well_formed(const char* at, const char* end) except -1:
    """Whether properties are UTF-8, and none of them is there twice: in others a handler brings order first."""
    cdef TextPointer[MAX_NAMES] names
    cdef Py_ssize_t[MAX_NAMES] sizes
    cdef const char* stop
    cdef Py_ssize_t size
    cdef int count = 0
    cdef int index
    try:
        PyUnicode_DecodeUTF8(at, end - at, NULL)
    except UnicodeDecodeError:
        return False
    while at < end:
        if count == MAX_NAMES:
            return False
        stop = <const char*>memchr(at, 2, end - at)     # every one of them is ended
        size = <const char*>memchr(at, 1, stop - at) - at
        for index in range(count):
            if sizes[index] == size and memcmp(names[index], at, size) == 0:
                return False
        names[count] = at
        sizes[count] = size
        count += 1
        at = stop + 1
    return True


cdef bint _stands_for_itself(const char* at, uint32_t size) noexcept nogil:
    """Whether a text is written in JSON as it is."""
    cdef uint32_t index
    for index in range(size):
        if not c" " <= at[index] <= c"~" or at[index] == c'"' or at[index] == c"\\":
            return False
    return True


cdef char* _put_place(char* at, const Hold* hold) noexcept nogil:
    """Write the properties that say where a message belongs."""
    at = put_bytes(at, b"REAL_TOPIC\x01", 11)
    at = put_bytes(at, hold.topic, hold.topic_bytes)
    at = put_bytes(at, b"\x02REAL_QID\x01", 10)
    at = put_number(at, hold.queue_id)
    at[0] = 2
    return at + 1


cdef int take_message(SendIntake intake, Limits limits, const PublishEntry* common, const char* own,
                      Py_ssize_t own_bytes, const Span* properties, Hold* hold) except -1:
    cdef Properties state
    cdef Py_ssize_t cluster_bytes = len(limits.cluster_property)
    cdef Py_ssize_t room = own_bytes + cluster_bytes + 32     # separators, and what copy_plain writes too much
    cdef char* start
    cdef char* out
    cdef PublishEntry* entry
    if properties != NULL:
        room += properties.size
    if hold != NULL:
        room += REAL_BYTES + hold.topic_bytes
    if room > BLOCK_BYTES:
        return 0
    start = out = intake.reserve(room)
    memset(&state, 0, sizeof(state))
    state.is_plain = True
    state.delay_levels = limits.delay_levels
    if own_bytes:
        out = _copy_properties(own, own + own_bytes, out, &state)
    if properties != NULL and properties.size:
        if properties.kind == SPAN_ESCAPED:
            out = _unescape_properties(properties.at, properties.at + properties.size, out, &state)
            if out == NULL:
                return 0
        else:
            out = _copy_properties(properties.at, properties.at + properties.size, out, &state)
    if not state.is_plain:
        return 0
    out = put_bytes(out, PyBytes_AS_STRING(limits.cluster_property), cluster_bytes)
    if state.level or state.time_unit or state.is_half:
        if not _may_hold(intake, limits, &state, hold) or not _is_well_formed(start, out):
            return 0
        out = _put_place(out, hold)
    if state.is_half and (
        out - start > limits.most_half_properties
        or out - start + <int64_t>common.body_bytes > limits.most_half_bytes
    ):
        return 0
    if out - start > MAX_PROPERTIES:
        return 0
    intake.block_used += out - start
    entry = intake.batch.add_like(common)
    entry.properties = start
    entry.properties_bytes = <uint32_t>(out - start)
    if hold != NULL:
        entry.deliver_at_ms = hold.due_ms
    if state.tag != NULL:
        entry.tag_hash = hash_tag(<const uint8_t*>state.tag, state.tag_bytes)
    intake.batch.body_bytes += entry.body_bytes
    return 1


cdef int _take_batch(SendIntake intake, Limits limits, PublishEntry* common, const Span* properties, const char* at,
                     const char* end) except -1:
    """Add the messages of a batch, all of them or none; 0 when one is not plain or the lengths do not add up."""
    cdef Py_ssize_t first = intake.batch.count
    cdef int64_t body_bytes = intake.batch.body_bytes
    cdef Py_ssize_t block = intake.block
    cdef Py_ssize_t block_used = intake.block_used
    cdef Py_ssize_t own_bytes
    cdef bint is_plain = True
    while at < end and is_plain:
        is_plain = read_part(at, end, common, &own_bytes) == NULL and common.body_bytes > 0
        if is_plain:
            at = common.body + common.body_bytes + 2
            is_plain = take_message(intake, limits, common, at, own_bytes, properties, NULL)
            at += own_bytes
    if not is_plain:
        intake.batch.count = first
        intake.batch.body_bytes = body_bytes
        intake.block = block
        intake.block_used = block_used
        return 0
    intake.batch.entries[first].command_entries = <uint32_t>(intake.batch.count - first)
    return 1


# -- the intake ----------------------------------------------------------------------------------------------------------

cdef class SendIntake:
    def __cinit__(self):
        self.list = NULL
        self.blocks = NULL

    def __init__(self):
        self.batch = PublishBatch()
        self.refusals = {}
        self.kept = []
        self.destination_of = {}
        self.holds = []
        self.slot_topics = [None] * TOPIC_SLOTS
        self.generation = 1

    def __dealloc__(self):
        cdef Py_ssize_t index
        free(self.list)
        for index in range(self.block_count):
            free(self.blocks[index])
        free(self.blocks)

    cdef int begin(self) except -1:
        """Forget which topics exist, unless sends are waiting: a call begins."""
        if self.sends == 0:
            self.generation += 1
        return 0

    cdef char* reserve(self, Py_ssize_t size) except NULL:
        """Return room for ``size`` bytes, at most BLOCK_BYTES; ``block_used`` says how much of it is taken."""
        cdef char** grown
        cdef char* block
        if self.block_count and self.block_used + size <= BLOCK_BYTES:
            return self.blocks[self.block] + self.block_used
        if self.block_count == 0 or self.block + 1 == self.block_count:
            grown = <char**>realloc(self.blocks, (self.block_count + 1) * sizeof(char*))
            if grown == NULL:
                raise MemoryError("cannot grow the properties of a batch")
            self.blocks = grown
            block = <char*>malloc(BLOCK_BYTES)
            if block == NULL:
                raise MemoryError("cannot grow the properties of a batch")
            self.blocks[self.block_count] = block
            self.block_count += 1
        self.block = self.block + 1 if self.block_count > 1 else 0
        self.block_used = 0
        return self.blocks[self.block]

    cdef int find_topic(self, Limits limits, const char* topic, uint32_t topic_bytes) except -2:
        """Return a topic's slot, or -1 when sends to the topic are not plain."""
        cdef TopicSlot* slot
        cdef uint32_t at
        cdef str name
        if not 0 < topic_bytes <= MAX_TOPIC_BYTES or topic[0] == c"%":
            return -1
        at = (topic_bytes + <uint8_t>topic[0] * 7 + <uint8_t>topic[topic_bytes - 1] * 3) % TOPIC_SLOTS
        slot = &self.slots[at]
        if slot.name_bytes != topic_bytes or memcmp(slot.name, topic, topic_bytes) != 0:
            try:
                name = PyUnicode_DecodeUTF8(topic, topic_bytes, NULL)
            except UnicodeDecodeError:
                return -1
            self.slot_topics[at] = name
            memcpy(slot.name, topic, topic_bytes)
            slot.name_bytes = topic_bytes
            slot.generation = 0
        if slot.generation != self.generation:
            slot.generation = self.generation
            slot.exists = self.slot_topics[at] in limits.topics
            memset(slot.destinations, 255, sizeof(slot.destinations))
        return <int>at if slot.exists else -1

    cdef int64_t destination(self, int slot_index, int64_t queue_id, int64_t hold) except -2:
        """Return the destination of a queue of the topic in a slot."""
        cdef TopicSlot* slot = &self.slots[slot_index]
        cdef str name = <str>self.slot_topics[slot_index]
        cdef int64_t destination
        if hold == HOLD_NONE and -1 <= queue_id < QUEUE_SLOTS - 1:
            destination = slot.destinations[queue_id + 1]
            if destination < 0:
                destination = self._new_destination(name, queue_id, hold)
                slot.destinations[queue_id + 1] = <int32_t>destination
            return destination
        return self._new_destination(name, queue_id, hold)

    cdef int64_t _new_destination(self, str topic, int64_t queue_id, int64_t hold) except -2:
        cdef tuple key = (topic, queue_id, hold)
        found = self.destination_of.get(key)
        if found is None:
            found = len(self.batch.destinations)
            self.batch.destinations.append((topic, queue_id))
            self.holds.append(hold)
            self.destination_of[key] = found
        return <int64_t>found

    cdef int _forget_destinations(self) except -1:
        self.destination_of = {}
        self.holds = []
        self.batch.destinations = []
        return 0

    cdef int add_send(self, const Send* asked, Py_ssize_t first) except -1:
        """Note the request that the entries from ``first`` on came with."""
        cdef Send* send
        if self.sends == self.list_capacity:
            self.make_room(1)
        send = &self.list[self.sends]
        send[0] = asked[0]
        send.first_entry = <uint32_t>first
        send.entries = <uint32_t>(self.batch.count - first)
        self.sends += 1
        return 0

    cdef int make_room(self, Py_ssize_t count) except -1:
        """Have room for ``count`` more sends."""
        cdef Send* grown
        cdef Py_ssize_t wanted = max(64, 2 * self.list_capacity, self.sends + count)
        if self.sends + count <= self.list_capacity:
            return 0
        grown = <Send*>realloc(self.list, wanted * sizeof(Send))
        if grown == NULL:
            raise MemoryError(f"cannot grow the sends of a batch to {wanted}")
        self.list = grown
        self.list_capacity = wanted
        return 0

    def sent(self, Py_ssize_t index):
        if not 0 <= index < self.sends:
            raise IndexError(index)
        cdef Send* send = &self.list[index]
        cdef const PublishEntry* entry
        cdef uint32_t number
        cdef list messages = []
        for number in range(send.entries):
            entry = &self.batch.entries[send.first_entry + number]
            messages.append((
                entry.body[:entry.body_bytes], entry.properties[:entry.properties_bytes], entry.tag_hash,
                <int32_t>entry.flag, <int32_t>entry.sys_flag, entry.born_ms, entry.reconsume_times,
                entry.command_entries,
            ))
        topic, queue_id = self.batch.destinations[send.destination]
        return send.opaque, send.serialize, bool(send.is_oneway), topic, queue_id, messages

    def half_places(self):
        cdef Py_ssize_t index
        cdef const PublishEntry* entry
        cdef list places = []
        for index in range(self.sends):
            if self.list[index].unique != NULL:
                entry = &self.batch.entries[self.list[index].first_entry]
                places.append((self.list[index].destination, entry.physical_offset, entry.queue_offset))
        return places

    def refuse(self, Py_ssize_t destination, int code, str remark not None):
        if not 0 <= destination < len(self.batch.destinations):
            raise IndexError(destination)
        cdef Py_ssize_t index, sends = 0
        for index in range(self.sends):
            sends += <Py_ssize_t>self.list[index].destination == destination
        self.refusals[destination] = (code, remark)
        return sends

    def untold(self, Py_ssize_t first=0, Py_ssize_t count=-1):
        if not self.refusals:
            return None
        cdef Py_ssize_t index
        for index in range(first, self.end_of(first, count)):
            if self.list[index].is_oneway and <Py_ssize_t>self.list[index].destination in self.refusals:
                return self.refusals[<Py_ssize_t>self.list[index].destination]
        return None

    def totals_of(self, Py_ssize_t first=0, Py_ssize_t count=-1):
        cdef Py_ssize_t index, number, end = self.end_of(first, count)
        cdef Py_ssize_t destinations = len(self.batch.destinations)
        cdef const Send* send
        cdef int64_t* sums = <int64_t*>calloc(3 * destinations + 1, sizeof(int64_t))
        if sums == NULL:
            raise MemoryError("cannot count the sends of a batch")
        try:
            for index in range(first, end):
                send = &self.list[index]
                sums[3 * send.destination] += 1
                sums[3 * send.destination + 1] += send.entries
                for number in range(send.entries):
                    sums[3 * send.destination + 2] += self.batch.entries[send.first_entry + number].body_bytes
            return [(index, sums[3 * index], sums[3 * index + 1], sums[3 * index + 2])
                    for index in range(destinations) if sums[3 * index]]
        finally:
            free(sums)

    cdef Py_ssize_t end_of(self, Py_ssize_t first, Py_ssize_t count) except -1:
        """Return the send behind ``count`` of them from ``first`` on; a negative count means all."""
        if not 0 <= first <= self.sends or count > self.sends - first:
            raise IndexError(f"sends {first} to {first + count} of {self.sends}")
        return self.sends if count < 0 else first + count

    def encode_replies(self, bytes store_host not None, Py_ssize_t first=0, Py_ssize_t count=-1):
        cdef Py_ssize_t index, size = 0, end = self.end_of(first, count)
        cdef bytes host = store_host.hex().upper().encode()
        cdef Py_ssize_t host_chars = len(host)
        cdef const char* host_text = PyBytes_AS_STRING(host)
        cdef list queues = self.batch.queues
        cdef list failed = []
        cdef bytes replies
        cdef char* start
        cdef char* at
        cdef Send* send
        cdef int64_t queue_id = 0
        cdef Py_ssize_t last = -1
        cdef bint is_refused = False
        if host_chars != 16 and host_chars != 40:
            raise ValueError(f"a store host has 8 or 20 bytes, not {len(store_host)}")
        if len(queues) != len(self.batch.destinations):
            raise ValueError(f"{len(self.batch.destinations)} destinations have {len(queues)} queues")
        for index in range(first, end):
            send = &self.list[index]
            if not send.is_oneway:
                size += RESPONSE_BYTES + ID_TEXT_BYTES * <Py_ssize_t>(send.entries - 1) + send.unique_bytes
        replies = PyBytes_FromStringAndSize(NULL, size)
        start = at = PyBytes_AS_STRING(replies)
        for index in range(first, end):
            send = &self.list[index]
            if send.is_oneway:
                continue
            if <Py_ssize_t>send.destination != last:
                last = send.destination
                queue = queues[last]
                is_refused = queue is None
                if not is_refused:
                    queue_id = queue.queue_id
                    if <int64_t>self.holds[last] != HOLD_NONE:
                        queue_id = self.batch.destinations[last][1]
            if is_refused:
                code, remark = self.refusals.get(last, (1, "the topic takes no messages"))
                failed.append(encode_frame(send.serialize, code, FLAG_RESPONSE, send.opaque, remark, _REGION, None))
            else:
                at = self._put_reply(at, send, host_text, host_chars, queue_id)
        replies = PyBytes_FromStringAndSize(start, at - start)
        return replies if not failed else b"".join([replies, *failed])

    cdef char* _put_reply(self, char* at, const Send* send, const char* host, Py_ssize_t host_chars,
                          int64_t queue_id) noexcept nogil:
        cdef const PublishEntry* entry = &self.batch.entries[send.first_entry]
        cdef char* frame = at
        cdef char* mark
        cdef uint32_t index
        if send.serialize == SERIALIZE_BINARY:
            at += 8
            store_u16(at, 0)
            at[2] = 3
            store_u16(at + 3, 409)
            store_u32(at + 5, <uint32_t>send.opaque)
            store_u32(at + 9, FLAG_RESPONSE)
            store_u32(at + 13, 0)
            at = put_bytes(at + 21, BINARY_FIELDS, BINARY_FIELDS_BYTES)
            mark = at
            at += 4
            for index in range(send.entries):
                if index:
                    at[0] = c","
                    at += 1
                at = _put_id(at, host, host_chars, entry[index].physical_offset)
            store_u32(mark, <uint32_t>(at - mark - 4))
            at = put_bytes(at, b"\0\x07queueId", 9)
            mark = at
            at = put_number(at + 4, queue_id)
            store_u32(mark, <uint32_t>(at - mark - 4))
            at = put_bytes(at, b"\0\x0bqueueOffset", 13)
            mark = at
            at = put_number(at + 4, entry.queue_offset)
            store_u32(mark, <uint32_t>(at - mark - 4))
            if send.unique != NULL:
                at = put_bytes(at, b"\0\x0dtransactionId", 15)
                store_u32(at, send.unique_bytes)
                at = put_bytes(at + 4, send.unique, send.unique_bytes)
            store_u32(frame + 25, <uint32_t>(at - frame - 29))
        else:
            at = put_bytes(at + 8, JSON_1, JSON_1_BYTES)
            for index in range(send.entries):
                if index:
                    at[0] = c","
                    at += 1
                at = _put_id(at, host, host_chars, entry[index].physical_offset)
            at = put_bytes(at, JSON_2, JSON_2_BYTES)
            at = put_number(at, queue_id)
            at = put_bytes(at, JSON_3, JSON_3_BYTES)
            at = put_number(at, entry.queue_offset)
            if send.unique != NULL:
                at = put_bytes(at, b'","transactionId":"', 19)
                at = put_bytes(at, send.unique, send.unique_bytes)
            at = put_bytes(at, JSON_4, JSON_4_BYTES)
            at = put_number(at, send.opaque)
            at = put_bytes(at, JSON_5, JSON_5_BYTES)
        store_u32(frame, <uint32_t>(at - frame - 4))
        store_u32(frame + 4, <uint32_t>send.serialize << 24 | <uint32_t>(at - frame - 8))
        return at

    def clear(self):
        """Forget the sends. Memory that one huge batch made grow is given back."""
        cdef Py_ssize_t index
        self.sends = 0
        self.halves = 0
        self.generation += 1
        self.block = 0
        self.block_used = 0
        if self.block_count > 16:
            for index in range(16, self.block_count):
                free(self.blocks[index])
            self.block_count = 16
        if self.batch.capacity > MAX_ENTRIES_KEPT:
            self.batch = PublishBatch()
        else:
            self.batch.clear()
        if self.destination_of:
            self._forget_destinations()
        if self.refusals:
            self.refusals = {}
        if self.kept:
            self.kept = []


cdef class JointIntake(SendIntake):
    def __init__(self, Py_ssize_t memory_bytes):
        SendIntake.__init__(self)
        self.batch = CopiedBatch(memory_bytes)

    def join(self, SendIntake source not None):
        cdef Py_ssize_t index, first = self.batch.count
        cdef Send* send
        cdef list places
        cdef CopiedBatch batch = <CopiedBatch>self.batch
        if any(source.holds):
            raise ValueError("messages that are held cannot be joined")
        if not batch.has_room(source.batch):    # asked first: what is not joined must leave no destination behind
            return None
        self.make_room(source.sends)
        places = [self._new_destination(topic, queue_id, HOLD_NONE) for topic, queue_id in source.batch.destinations]
        batch.take(source.batch, places)
        for index in range(source.sends):
            send = &self.list[self.sends + index]
            send[0] = source.list[index]
            send.first_entry += <uint32_t>first
            send.destination = places[send.destination]
        self.sends += source.sends
        return places
