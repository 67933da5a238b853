"""One plain send: from the spans of a header to entries of a batch.

A send is plain when its topic exists and is no system topic (``%``), it is not signed, and every field it needs is there
and in range. It asks for a place in a queue, or to be held first: at a delay level, until a time of its own, or as a half
message; a message of a batch only for a place. What asks for more than one of these, or in a way that has to be looked at
(a time that is over, too far away or none), is handed out as a ``Command`` like everything else, so this path has no
refusals of its own. A batch is plain or not as a whole.

What is stored: the client's properties as ``sent_properties`` decodes them, then CLUSTER.

A message that is held is stored in the internal topic where it waits. Its properties say where it belongs, and are those
that ``broker.message.Message.diverted`` makes; its destination is that of the topic and queue it is meant for, and what it
is held for (``SendIntake.holds``).

Ref: remoting.md 2.5, 2.7, 2.8, 2.9, 4.3.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memset

from headrace.batch cimport PublishEntry
from headrace.format.record cimport MAX_PROPERTIES_BYTES, hash_tag
from headrace.remoting.header cimport (
    FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_SMARTGO, SPAN_ESCAPED, SPAN_PLAIN, Field, Header, Span, is_named, load_number,
    put_bytes, put_number,
)
from headrace.remoting.sending.send_intake cimport BLOCK_BYTES, HOLD_HALF, HOLD_TIMED, Limits, SendIntake
from headrace.remoting.sending.send_replies cimport Send
from headrace.remoting.sending.sent_properties cimport (
    TIME_ABSOLUTE, TIME_SECONDS, Properties, copy_properties, is_well_formed, unescape_properties,
)

ctypedef const Span* SpanPointer

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
    REQUIRED = 0xFF                     # fields a to h of SEND_MESSAGE_V2
    SYS_FLAG_TRANSACTION = 0xC
    # Escaped or not: what is longer goes the slow way, and a block holds what is not.
    MAX_PROPERTIES_SPAN = 49152
    # The encoder adds a checksum and perhaps the size of a batch.
    MAX_PROPERTIES = MAX_PROPERTIES_BYTES - 64
    MAX_UNIQUE_BYTES = 255
    REAL_BYTES = 32                     # REAL_TOPIC 1 2 REAL_QID 1 number 2


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


cdef bint _find_fields(const Header* header, SpanPointer* found) noexcept nogil:
    """Point at the fields of a send by their places, NULL where there is none; whether it may be plain."""
    cdef const Field* field
    cdef uint32_t index, seen = 0
    cdef int which
    memset(found, 0, SEND_FIELDS * sizeof(SpanPointer))
    for index in range(header.field_count):
        field = &header.fields[index]
        if field.name.kind != SPAN_PLAIN:
            return False
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
            return False
    return seen & REQUIRED == REQUIRED and found[TOPIC].kind == SPAN_PLAIN and found[GROUP].size > 0


cdef bint _read_numbers(const SpanPointer* found, PublishEntry* common, int64_t* queue_id) noexcept nogil:
    """Read what all messages of a send share, and its queue; whether each number is one, and in range."""
    cdef int64_t number = 0
    if not _load_i32(found[DEFAULT_QUEUES], &number) or not _load_i32(found[QUEUE_ID], queue_id):
        return False
    if found[OWN_LIMIT] != NULL and not _load_i32(found[OWN_LIMIT], &number):
        return False                    # it counts for retries alone, but a handler says what is wrong with it
    if not _load_i32(found[SYS_FLAG], &number):
        return False
    common.sys_flag = <uint32_t>number
    if not load_number(found[BORN_MS], &common.born_ms):
        return False
    if not _load_i32(found[APPLICATION_FLAG], &number):
        return False
    common.flag = <uint32_t>number
    if found[RECONSUME_TIMES] != NULL:
        if not _load_i32(found[RECONSUME_TIMES], &number):
            return False
        common.reconsume_times = <int32_t>number
    return True


cdef int take_send(SendIntake intake, Limits limits, const Header* header, const char* body, Py_ssize_t body_bytes,
                   object owner) except -1:
    cdef SpanPointer[SEND_FIELDS] found
    cdef PublishEntry common
    cdef int slot
    cdef int64_t queue_id = 0, destination
    cdef Hold hold
    cdef Send asked
    cdef Py_ssize_t entry, first = intake.batch.count
    cdef bint is_batch = header.code == SEND_BATCH_MESSAGE
    if header.flag & FLAG_RESPONSE or not 0 < body_bytes <= limits.max_message_bytes:
        return 0
    memset(&common, 0, sizeof(common))
    if header.serialize == SERIALIZE_SMARTGO or not _find_fields(header, found):
        return 0
    if not _read_numbers(found, &common, &queue_id):
        return 0
    # Taken down here: once Python was asked what a message may wait for, the header may be another thread's.
    asked.opaque = header.opaque
    asked.serialize = <uint8_t>header.serialize
    asked.is_oneway = header.flag & FLAG_ONEWAY != 0
    if found[IS_BATCH] != NULL:
        if is_named(found[IS_BATCH], b"true", 4):
            is_batch = True
        elif not is_named(found[IS_BATCH], b"false", 5):
            return 0                    # a handler knows what else is true
    if common.sys_flag & SYS_FLAG_TRANSACTION and (is_batch or limits.held_sends is None):
        return 0
    # These bits say what a record is to its transaction; whether it is part of one, a property of the message says.
    common.sys_flag &= ~<uint32_t>SYS_FLAG_TRANSACTION
    if found[PROPERTIES] != NULL and found[PROPERTIES].size > MAX_PROPERTIES_SPAN:
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
        out = copy_properties(own, own + own_bytes, out, &state)
    if properties != NULL and properties.size:
        if properties.kind == SPAN_ESCAPED:
            out = unescape_properties(properties.at, properties.at + properties.size, out, &state)
            if out == NULL:
                return 0
        else:
            out = copy_properties(properties.at, properties.at + properties.size, out, &state)
    if not state.is_plain:
        return 0
    out = put_bytes(out, PyBytes_AS_STRING(limits.cluster_property), cluster_bytes)
    if state.level or state.time_unit or state.is_half:
        if not _may_hold(intake, limits, &state, hold) or not is_well_formed(start, out):
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
