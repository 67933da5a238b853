"""RocketMQ remoting without I/O: socket reads to batches of messages and commands, records and replies to frames.

Reading. ``Reader`` holds one connection's parsing state, ``SendIntake`` (one per event loop) the plain sends that a read
brought; any other frame ends the call and is handed out behind what came before it, so the caller acts in the order of the
stream. Frames carry their length, so nothing is looked at before a frame is whole but its first eight bytes, which bound
it: what is too long, or says that its header is longer than itself, ends the connection before it takes memory.

Memory. Entries borrow from where the socket was read to (``net.stream_input``).

Layout of a frame: total i32, which does not count itself | serialize type u8, header length u24 | header | body.

Ref: remoting.md 1, 2.9, 2.10, 4.3, 4.4.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcmp

from headrace.batch cimport PublishEntry, RecordBatch
from headrace.format.record cimport load_u32, store_u32
from headrace.net.stream_input cimport StreamInput
from headrace.remoting.header cimport (
    FLAG_ONEWAY, FLAG_RESPONSE, MAX_FIELDS, SERIALIZE_BINARY, SERIALIZE_JSON, SERIALIZE_SMARTGO, SPAN_ABSENT, SPAN_PLAIN,
    Field, Header, Span, encode_frame, is_named, load_number, parse_binary, parse_json, put_bytes, put_number, text_of,
)
from headrace.remoting.sending.plain_send cimport (
    SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2, is_proof, read_part, take_send,
)
from headrace.remoting.sending.send_intake cimport Limits, SendIntake

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object)

from headrace.errors import ProtocolError
from headrace.remoting.codes import VERSION, LanguageCode

cdef enum:
    FRAME_HEAD_BYTES = 8
    PULL_MESSAGE = 11
    LITE_PULL_MESSAGE = 361
    MAX_REMARKS = 64           # that are kept encoded
    MAX_KEPT = 64              # bytes of a text that is kept
    PULL_HEADER_BYTES = 320     # the frame of a pull's answer at most, body and remark aside

_LANGUAGES = {int(code): code.name for code in LanguageCode}

# What is cimported has no name in Python yet: callers of the codec get both from here.
globals().update(Limits=Limits, SendIntake=SendIntake)


class UnheldFrameError(ProtocolError):
    def __init__(self, size_bytes, command):
        super().__init__(f"no memory for a frame of {size_bytes} bytes")
        self.command = command


# A header's table of fields, filled and read within one call. All threads share it: who calls Python in between, which may
# let another one run, reads the header again.
cdef Header _header


cdef class Command:
    def __init__(self, int32_t code, ext=None, bytes body=None, *, int32_t opaque=0, int32_t flag=0,
                 int32_t version=VERSION, str language not None="PYTHON", int serialize=0, str remark=None):
        self.code = code
        self.ext = {} if ext is None else dict(ext)
        self.body = b"" if body is None else body
        self.opaque = opaque
        self.flag = flag
        self.version = version
        self.language = language
        self.serialize = serialize
        self.remark = "" if remark is None else remark

    @property
    def is_response(self):
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self):
        return self.flag & FLAG_ONEWAY != 0

    def __repr__(self):
        return f"Command(code={self.code}, opaque={self.opaque}, flag={self.flag}, body={len(self.body)} bytes)"


cdef class PullRequest:
    @property
    def has_commit_offset(self):
        return self.sys_flag & 1 != 0

    @property
    def may_suspend(self):
        return self.sys_flag & 2 != 0

    @property
    def has_subscription(self):
        return self.sys_flag & 4 != 0


# -- headers -------------------------------------------------------------------------------------------------------------

cdef bint _has_capitals() noexcept nogil:
    """Whether all ext fields are spelled as SmartGo does, and there are some."""
    cdef uint32_t index
    cdef const Span* name
    for index in range(_header.field_count):
        name = &_header.fields[index].name
        if not name.size or not c"A" <= name.at[0] <= c"Z" or is_proof(name):
            return False
    return _header.field_count > 0


cdef int _parse_header(const char* at, uint32_t word) except -1:
    """Fill the table from the header at ``at``; ``word`` says its kind and length.

    Raises:
        ProtocolError: it is malformed.
    """
    cdef const char* end = at + (word & 0xFFFFFF)
    cdef const char* wrong
    _header.serialize = word >> 24
    if _header.serialize == SERIALIZE_BINARY:
        wrong = parse_binary(at, end, &_header)
    else:
        wrong = parse_json(at, end, &_header)
        if is_named(&_header.language_name, b"GOLANG", 6) and _has_capitals():
            _header.serialize = SERIALIZE_SMARTGO
    if wrong != NULL:
        raise ProtocolError(f"malformed header: {(<bytes>wrong).decode()}")
    return 0


cdef class _Kept:
    """The text of a field that was read last, and its bytes: one client says the same many times."""
    cdef bytes plain
    cdef str text

    def __cinit__(self):
        self.plain = b""
        self.text = ""


cdef _Kept _kept_language = _Kept()
cdef _Kept _kept_group = _Kept()
cdef _Kept _kept_topic = _Kept()
cdef _Kept _kept_expression_type = _Kept()


cdef str _kept_text(_Kept kept, const Span* span):
    """Return a span as text: the object of the last time where it is the same."""
    cdef bytes plain
    if span.kind != SPAN_PLAIN or span.size > MAX_KEPT:
        return text_of(span)
    if <Py_ssize_t>span.size != len(kept.plain) or memcmp(span.at, PyBytes_AS_STRING(kept.plain), span.size) != 0:
        plain = PyBytes_FromStringAndSize(span.at, span.size)
        kept.text = text_of(span)
        kept.plain = plain
    return kept.text


cdef str _language():
    cdef str name
    if _header.language_name.kind != SPAN_ABSENT:
        name = _kept_text(_kept_language, &_header.language_name)
        return _LANGUAGES.get(int(name), name) if name.isascii() and name.isdigit() and len(name) < 4 else name
    if _header.language >= 0:
        return _LANGUAGES.get(_header.language, str(_header.language))
    return ""


cdef Command _blank():
    """Make a command to be filled.

    Before the header is parsed: the garbage collector looks at both objects, may run before they are there, and what it
    ends may use the table, or let another thread do so.
    """
    cdef Command command = Command.__new__(Command)
    command.ext = {}
    return command


cdef Command _fill_command(Command command, const char* body, Py_ssize_t body_bytes):
    """Fill a blank command from the table."""
    cdef dict ext = command.ext
    cdef uint32_t index
    cdef str name
    for index in range(_header.field_count):
        name = text_of(&_header.fields[index].name)
        if _header.serialize == SERIALIZE_SMARTGO:
            name = name[:1].lower() + name[1:]
        ext[name] = text_of(&_header.fields[index].value)
    command.code = _header.code
    command.language = _language()
    command.version = _header.version
    command.opaque = _header.opaque
    command.flag = _header.flag
    command.serialize = _header.serialize
    command.remark = text_of(&_header.remark)
    command.body = PyBytes_FromStringAndSize(body, body_bytes)
    return command


# The fields of a pull in the order of their bits; the first nine are required.
cdef enum:
    CONSUMER_GROUP = 0
    TOPIC = 1
    QUEUE_ID = 2
    QUEUE_OFFSET = 3
    MAX_MESSAGES = 4
    SYS_FLAG = 5
    COMMIT_OFFSET = 6
    SUSPEND_TIMEOUT = 7
    SUB_VERSION = 8
    REQUIRED_FIELDS = 9
    SUBSCRIPTION = 9
    EXPRESSION_TYPE = 10
    MAX_MESSAGE_BYTES = 11
    PULL_FIELDS = 12

_PULL_NAMES = ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
               "suspendTimeoutMillis", "subVersion", "subscription", "expressionType", "maxMsgBytes")

ctypedef const Span* SpanPointer


cdef int _pull_field(const Span* name) noexcept nogil:
    """Return which field of a pull a name means, -1 for none, -2 for one of a signature."""
    cdef const char* at = name.at
    cdef uint32_t size = name.size
    if name.kind != SPAN_PLAIN:
        return -1
    if size == 5:
        return TOPIC if memcmp(at, <const char*>b"topic", 5) == 0 else -1
    if size == 7:
        if memcmp(at, <const char*>b"queueId", 7) == 0:
            return QUEUE_ID
        return SYS_FLAG if memcmp(at, <const char*>b"sysFlag", 7) == 0 else -1
    elif size == 10:
        if memcmp(at, <const char*>b"maxMsgNums", 10) == 0:
            return MAX_MESSAGES
        return SUB_VERSION if memcmp(at, <const char*>b"subVersion", 10) == 0 else -1
    elif size == 11:
        if memcmp(at, <const char*>b"queueOffset", 11) == 0:
            return QUEUE_OFFSET
        return MAX_MESSAGE_BYTES if memcmp(at, <const char*>b"maxMsgBytes", 11) == 0 else -1
    elif size == 12:
        if memcmp(at, <const char*>b"commitOffset", 12) == 0:
            return COMMIT_OFFSET
        return SUBSCRIPTION if memcmp(at, <const char*>b"subscription", 12) == 0 else -1
    elif size == 13:
        if memcmp(at, <const char*>b"consumerGroup", 13) == 0:
            return CONSUMER_GROUP
    elif size == 14:
        return EXPRESSION_TYPE if memcmp(at, <const char*>b"expressionType", 14) == 0 else -1
    elif size == 20:
        return SUSPEND_TIMEOUT if memcmp(at, <const char*>b"suspendTimeoutMillis", 20) == 0 else -1
    return -2 if is_proof(name) else -1


cdef bint _pull_number(const SpanPointer* found, int which, int64_t* value, int* wrong) noexcept nogil:
    cdef bint narrow = which == QUEUE_ID or which == MAX_MESSAGES or which == SYS_FLAG or which == MAX_MESSAGE_BYTES
    if not load_number(found[which], value) or (narrow and value[0] != <int32_t>value[0]):
        wrong[0] = which
        return False
    return True


cdef PullRequest _pull(bint is_checked, int* wrong):
    """Make a pull of the table; None when a field is wrong, whose number ``wrong`` gets, or it is signed (-1)."""
    cdef SpanPointer[PULL_FIELDS] found
    cdef uint32_t index
    cdef uint32_t seen = 0
    cdef int which
    cdef int64_t[PULL_FIELDS] numbers
    cdef PullRequest pull
    for index in range(_header.field_count):
        which = _pull_field(&_header.fields[index].name)
        if which >= 0:
            found[which] = &_header.fields[index].value
            seen |= <uint32_t>1 << which
        elif which == -2 and not is_checked:
            wrong[0] = -1
            return None
    for which in range(REQUIRED_FIELDS):
        if not seen >> which & 1 or (found[which].size == 0 and which <= TOPIC):
            wrong[0] = which
            return None
    for which in range(QUEUE_ID, REQUIRED_FIELDS):
        if not _pull_number(found, which, &numbers[which], wrong):
            return None
    numbers[MAX_MESSAGE_BYTES] = 0
    if seen >> MAX_MESSAGE_BYTES & 1 and not _pull_number(
            found, MAX_MESSAGE_BYTES, &numbers[MAX_MESSAGE_BYTES], wrong):
        return None
    pull = PullRequest.__new__(PullRequest)
    pull.code = _header.code
    pull.version = _header.version
    pull.opaque = _header.opaque
    pull.serialize = _header.serialize
    pull.is_oneway = _header.flag & FLAG_ONEWAY != 0
    pull.language = _language()
    pull.consumer_group = _kept_text(_kept_group, found[CONSUMER_GROUP])
    pull.topic = _kept_text(_kept_topic, found[TOPIC])
    pull.queue_id = <int32_t>numbers[QUEUE_ID]
    pull.queue_offset = numbers[QUEUE_OFFSET]
    pull.max_messages = <int32_t>numbers[MAX_MESSAGES]
    pull.max_message_bytes = <int32_t>numbers[MAX_MESSAGE_BYTES]
    pull.sys_flag = <int32_t>numbers[SYS_FLAG]
    pull.commit_offset = numbers[COMMIT_OFFSET]
    pull.suspend_timeout_ms = numbers[SUSPEND_TIMEOUT]
    pull.sub_version = numbers[SUB_VERSION]
    pull.subscription = text_of(found[SUBSCRIPTION]) if seen >> SUBSCRIPTION & 1 else None
    pull.expression_type = _kept_text(_kept_expression_type, found[EXPRESSION_TYPE]) if seen >> EXPRESSION_TYPE & 1 else None
    return pull


# -- reading -------------------------------------------------------------------------------------------------------------

cdef int _check_length(int32_t total, Limits limits) except -1:
    if total < 4 or total > limits.max_frame_bytes - 4:
        setting = f" ({limits.frame_setting})" if limits.frame_setting else ""
        # With a first byte of 0 it is a length, if a wrong one.
        start = (<object>total).to_bytes(4, "big", signed=True) if total >> 24 else b""
        raise ProtocolError(f"frame length {total} outside 4..{limits.max_frame_bytes - 4}{setting}", start=start)
    return 0


cdef int _check_word(uint32_t word, int64_t total) except -1:
    if word >> 24 > SERIALIZE_BINARY:
        raise ProtocolError(f"serialize type {word >> 24} is neither JSON (0) nor ROCKETMQ (1)")
    if (word & 0xFFFFFF) > total - 4:
        raise ProtocolError(f"header length {word & 0xFFFFFF} is longer than its frame of {total}")
    return 0


cdef class Reader(StreamInput):
    def __init__(self, Limits limits not None):
        self.limits = limits

    def next_command(self, SendIntake intake not None):
        intake.begin()
        command = None
        if self._end - self._at >= self._wanted:
            command = self._parse(intake)
        if command is None:
            try:
                self._keep_rest(self._wanted)
            except MemoryError:
                raise UnheldFrameError(self._wanted, _begun_command(self._at, self._end - self._at)) from None
        return command

    cdef PullRequest peek_pull(self, const char** behind):
        """Return the pull that the frame at ``behind`` is, NULL being where next_command() goes on; leave it there.

        None where no whole frame is there, or one of another kind, or a bad one. ``behind`` is moved behind a pull.
        """
        cdef const char* at = self._at if behind[0] == NULL else behind[0]
        cdef int64_t total
        cdef uint32_t word
        cdef int wrong = 0
        cdef PullRequest pull = None
        if self._end - at < FRAME_HEAD_BYTES:
            return None
        total = <int32_t>load_u32(at)
        word = load_u32(at + 4)
        if not 4 <= total <= min(self._end - at - 4, self.limits.max_frame_bytes - 4):
            return None
        try:
            _check_word(word, total)
            _parse_header(at + FRAME_HEAD_BYTES, word)
            if (_header.code == PULL_MESSAGE or _header.code == LITE_PULL_MESSAGE) and not _header.flag & FLAG_RESPONSE:
                pull = _pull(False, &wrong)     # its texts may have escapes that JSON does not know
        except ProtocolError:
            return None     # next_command() comes to it, and says what it is
        if pull is not None:
            behind[0] = at + 4 + total
        return pull

    cdef int pass_pulls(self, const char* behind, Py_ssize_t count) except -1:
        """Go on behind ``count`` pulls that were peeked at."""
        self._at = behind
        self._wanted = 0
        self.commands += count
        if behind == self._end:
            self._keep_rest(0)
        return 0

    cdef object _parse(self, SendIntake intake):
        cdef const char* at
        cdef const char* body
        cdef Py_ssize_t left, body_bytes
        cdef int64_t total
        cdef uint32_t word
        cdef int wrong = 0
        cdef Command command
        while True:
            at = self._at
            left = self._end - at
            if left < FRAME_HEAD_BYTES:
                if left >= 4:
                    _check_length(<int32_t>load_u32(at), self.limits)
                    self._wanted = FRAME_HEAD_BYTES
                else:
                    self._wanted = 4 if left else 0
                return None
            total = <int32_t>load_u32(at)
            word = load_u32(at + 4)
            _check_length(<int32_t>total, self.limits)
            _check_word(word, total)
            if left < 4 + total:
                self._wanted = 4 + total
                return None
            if self._blank is None:
                self._blank = _blank()
            _parse_header(at + FRAME_HEAD_BYTES, word)
            body = at + FRAME_HEAD_BYTES + (word & 0xFFFFFF)
            body_bytes = at + 4 + total - body
            self._at = at + 4 + total
            self._wanted = 0
            self.commands += 1
            if _header.code == SEND_MESSAGE_V2 or _header.code == SEND_MESSAGE or _header.code == SEND_BATCH_MESSAGE:
                if not self.limits.leaves_sends:
                    if take_send(intake, self.limits, &_header, body, body_bytes, self._source):
                        continue
                    _parse_header(at + FRAME_HEAD_BYTES, word)
            elif (_header.code == PULL_MESSAGE or _header.code == LITE_PULL_MESSAGE) and (
                    not _header.flag & FLAG_RESPONSE):
                pull = _pull(False, &wrong)
                if pull is not None:
                    return pull
            command, self._blank = self._blank, None
            return _fill_command(command, body, body_bytes)


cdef Command _begun_command(const char* at, Py_ssize_t length):
    """Return the command of a frame that is not all there, without its body; None where its header is not either."""
    cdef uint32_t word
    if length < FRAME_HEAD_BYTES:
        return None
    word = load_u32(at + 4)
    if length < FRAME_HEAD_BYTES + (word & 0xFFFFFF):
        return None
    _parse_header(at + FRAME_HEAD_BYTES, word)
    return _fill_command(_blank(), at, 0)


def decode_command(bytes frame not None):
    cdef const char* at = PyBytes_AS_STRING(frame)
    cdef Py_ssize_t length = len(frame)
    cdef int64_t total
    cdef uint32_t word
    cdef Command command
    if length < FRAME_HEAD_BYTES:
        raise ProtocolError(f"frame of {length} bytes has not even its two lengths")
    total = <int32_t>load_u32(at)
    word = load_u32(at + 4)
    if total != length - 4:
        raise ProtocolError(f"frame length {total} is not that of the {length - 4} bytes behind it")
    _check_word(word, total)
    command = _blank()
    _parse_header(at + FRAME_HEAD_BYTES, word)
    at += FRAME_HEAD_BYTES + (word & 0xFFFFFF)
    return _fill_command(command, at, PyBytes_AS_STRING(frame) + length - at)


cdef bytes _fill_from(Command command):
    """Fill the table from a command; return the bytes that it borrows from.

    Raises:
        ProtocolError: its texts, which were no UTF-8, have grown beyond a header.
    """
    cdef bytes frame
    cdef const char* at
    try:
        frame = encode_frame(SERIALIZE_BINARY, command.code, command.flag, command.opaque, None, command.ext, None)
    except ValueError as error:
        raise ProtocolError(str(error), fatal=False) from error
    at = PyBytes_AS_STRING(frame)
    _parse_header(at + FRAME_HEAD_BYTES, load_u32(at + 4))
    _header.code = command.code
    _header.version = command.version
    _header.serialize = command.serialize
    return frame


cdef inline bint _borrow(object text, Span* span) noexcept:
    """Have a span of a text's own bytes; False where it is no ASCII."""
    if not isinstance(text, str) or not PyUnicode_IS_COMPACT_ASCII(text):
        return False
    span.at = <const char*>PyUnicode_DATA(text)
    span.size = <uint32_t>PyUnicode_GET_LENGTH(text)
    span.kind = SPAN_PLAIN
    return True


cdef bint _fill_in_place(Command command) except -1:
    """Fill the table with what a command's fields hold, all but its proof; False where that takes another spelling."""
    cdef uint32_t count = 0
    cdef Field* field
    if len(command.ext) > MAX_FIELDS:
        return False
    for name, value in command.ext.items():
        field = &_header.fields[count]
        if not _borrow(name, &field.name) or not _borrow(value, &field.value):
            return False
        count += not is_proof(&field.name)
    _header.code = command.code
    _header.version = command.version
    _header.opaque = command.opaque
    _header.flag = command.flag
    _header.serialize = command.serialize
    _header.field_count = count
    return True


def pull_request(Command command not None):
    cdef int wrong = 0
    cdef bytes kept = _fill_from(command)
    cdef PullRequest pull = _pull(True, &wrong)
    if pull is None:
        name = _PULL_NAMES[wrong]
        value = command.ext.get(name)
        if value:
            raise ProtocolError(f"the custom field <{name}> is no valid number: {value[:64]!r}", fatal=False)
        raise ProtocolError(f"the custom field <{name}> is missing or empty", fatal=False)
    pull.language = command.language
    return pull


def add_send(SendIntake intake not None, Limits limits not None, Command command not None):
    if command.code != SEND_MESSAGE and command.code != SEND_MESSAGE_V2 and command.code != SEND_BATCH_MESSAGE:
        return False
    intake.begin()
    kept = None                     # what the table borrows from, until the properties are copied
    if not _fill_in_place(command):
        signed = [name for name in ("AccessKey", "Signature", "SecurityToken") if name in command.ext]
        if signed:
            ext = {name: value for name, value in command.ext.items() if name not in signed}
            command = Command(command.code, ext, command.body, opaque=command.opaque, flag=command.flag,
                              version=command.version, language=command.language, serialize=command.serialize)
        kept = _fill_from(command)
    if not take_send(intake, limits, &_header, PyBytes_AS_STRING(command.body), len(command.body), command.body):
        return False
    intake.kept.append(command.body)
    return True


# -- messages ------------------------------------------------------------------------------------------------------------

def decode_batch(bytes body not None):
    cdef const char* at = PyBytes_AS_STRING(body)
    cdef const char* end = at + len(body)
    cdef const char* wrong
    cdef Py_ssize_t own_bytes
    cdef PublishEntry part
    cdef list found = []
    while at < end:
        wrong = read_part(at, end, &part, &own_bytes)
        if wrong != NULL:
            raise ProtocolError(f"message {len(found)} of the batch {(<bytes>wrong).decode()}", fatal=False)
        at = part.body + part.body_bytes + 2
        found.append((<int32_t>part.flag, part.body[:part.body_bytes], at[:own_bytes]))
        at += own_bytes
    return found


# -- writing -------------------------------------------------------------------------------------------------------------

def encode_response(int serialize, int32_t opaque, int code, str remark=None, ext=None, bytes body=None):
    return encode_frame(serialize, code, FLAG_RESPONSE, opaque, remark, ext, body)


def encode_request(int serialize, int code, int32_t opaque, bint oneway=False, ext=None, bytes body=None):
    return encode_frame(serialize, code, FLAG_ONEWAY if oneway else 0, opaque, None, ext, body)


cdef bytes _pull_head(PullRequest pull, int code, bytes remark, int64_t next_offset, int64_t min_offset,
                      int64_t max_offset):
    """Encode the frame of a pull's answer up to its body, in JSON; ``remark`` needs no escapes. 0 is the master."""
    cdef bytes head = PyBytes_FromStringAndSize(NULL, PULL_HEADER_BYTES + len(remark))
    cdef char* start = PyBytes_AS_STRING(head)
    cdef char* at = start + FRAME_HEAD_BYTES
    at = put_bytes(at, b'{"code":', 8)
    at = put_number(at, code)
    at = put_bytes(at, b',"extFields":{"maxOffset":"', 27)
    at = put_number(at, max_offset)
    at = put_bytes(at, b'","minOffset":"', 15)
    at = put_number(at, min_offset)
    at = put_bytes(at, b'","nextBeginOffset":"', 21)
    at = put_number(at, next_offset)
    at = put_bytes(at, b'","suggestWhichBrokerId":"0"},"flag":1,"language":"PYTHON","opaque":', 68)
    at = put_number(at, pull.opaque)
    if remark:
        at = put_bytes(at, b',"remark":"', 11)
        at = put_bytes(at, PyBytes_AS_STRING(remark), len(remark))
        at = put_bytes(at, b'"', 1)
    at = put_bytes(at, b',"serializeTypeCurrentRPC":"JSON","version":409}', 48)
    store_u32(start, <uint32_t>(at - start - 4))
    store_u32(start + 4, <uint32_t>(at - start - FRAME_HEAD_BYTES))
    return PyBytes_FromStringAndSize(start, at - start)


# Remarks that need no escapes, and their bytes.
cdef dict _plain_remarks = {}


cdef bytes encode_pull_head(PullRequest pull, int code, str remark, int64_t next_offset, int64_t min_offset,
                            int64_t max_offset):
    """Encode the frame of a pull's answer without its body."""
    cdef bytes plain = _plain_remarks.get(remark)
    if plain is None and (not remark or (remark.isascii() and remark.isidentifier())):
        plain = remark.encode()
        if len(_plain_remarks) < MAX_REMARKS:
            _plain_remarks[remark] = plain
    if pull.serialize == SERIALIZE_JSON and plain is not None:
        return _pull_head(pull, code, plain, next_offset, min_offset, max_offset)
    return encode_frame(pull.serialize, code, FLAG_RESPONSE, pull.opaque, remark, {
        "maxOffset": str(max_offset),
        "minOffset": str(min_offset),
        "nextBeginOffset": str(next_offset),
        "suggestWhichBrokerId": "0",
    }, None)


cpdef bytes encode_pull_response(PullRequest pull, int code, str remark, int64_t next_offset, int64_t min_offset,
                                 int64_t max_offset, RecordBatch records=None):
    return _with_records(encode_pull_head(pull, code, remark, next_offset, min_offset, max_offset), records)


def encode_records_response(int serialize, int32_t opaque, ext, RecordBatch records not None):
    return _with_records(encode_frame(serialize, 0, FLAG_RESPONSE, opaque, None, ext, None), records)


def encode_response_head(int serialize, int32_t opaque, ext, int64_t body_bytes):
    cdef bytes head = encode_frame(serialize, 0, FLAG_RESPONSE, opaque, None, ext, None)
    if not 0 <= body_bytes <= 0x7FFFFFFF - len(head):
        raise ValueError(f"a body of {body_bytes} bytes does not fit into a frame")
    store_u32(PyBytes_AS_STRING(head), <uint32_t>(len(head) - 4 + body_bytes))
    return head


cdef bytes _with_records(bytes head, RecordBatch records):
    """Return a frame that has no body yet with the records for one, as they lie in the log."""
    if records is None or records.count == 0:
        return head
    return join_answers([head], &records.count, records)


cdef bytes join_answers(list heads, const Py_ssize_t* ends, RecordBatch records):
    cdef Py_ssize_t number, index, run, total
    cdef Py_ssize_t size = 0
    cdef bytes head, frames
    cdef char* at
    cdef char* frame
    cdef const char* start
    for head in heads:
        size += len(head)
    for index in range(ends[len(heads) - 1]):
        size += records.views[index].record_bytes
    if size > 0x7FFFFFFF:
        raise ValueError(f"{size} bytes do not fit into a frame")
    frames = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(frames)
    index = 0
    for number in range(len(heads)):
        head = <bytes>heads[number]
        frame = at
        at = put_bytes(at, PyBytes_AS_STRING(head), len(head))
        while index < ends[number]:
            # Neighbours in the log are copied as one.
            start = records.views[index].record
            run = records.views[index].record_bytes
            index += 1
            while index < ends[number] and records.views[index].record == start + run:
                run += records.views[index].record_bytes
                index += 1
            at = put_bytes(at, start, run)
        total = at - frame - 4
        store_u32(frame, <uint32_t>total)
    return frames
