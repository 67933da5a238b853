"""NSQ protocol V2 without I/O: socket reads to batches of commands, batches of records to frames.

Reading. ``Reader`` holds one connection's parsing state, ``Intake`` (one per event loop) what a read brought. A read is
parsed in one call: PUB, MPUB and DPUB go to ``Intake.publishes``, FIN, REQ and TOUCH to ``Intake.settles``, side by
side; any other command, or a refusal, ends the call and is handed out behind what came before it, so the caller acts
in stream order.

Writing. ``encode_messages`` turns a delivered batch into one bytes object in one pass.

Ref: docs/protocols/nsq.md.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from headrace.batch cimport PublishEntry, RecordBatch, RecordView, SettleEntry
from headrace.format.record cimport load_u32, store_u16, store_u32, store_u64
from headrace.net.stream_input cimport HEADROOM, StreamInput
from headrace.nsq.intake cimport Intake
from headrace.nsq.words cimport (
    CMD_AUTH, CMD_CLS, CMD_DPUB, CMD_FIN, CMD_IDENTIFY, CMD_MPUB, CMD_NOP, CMD_PUB, CMD_RDY, CMD_REQ, CMD_SUB, CMD_TOUCH,
    Word, find_command, first_word, is_name, load_number, split_words, text_of,
)

from headrace.nsq.refusal import RefusedError, UnheldError, go_quote
from headrace.nsq.words import COMMAND_NAMES

FRAME_RESPONSE = 0
FRAME_ERROR = 1
FRAME_MESSAGE = 2

cdef enum:
    LINE_BYTES = 16 * 1024      # a command line with its LF; nsqd's read buffer
    MESSAGE_ID_BYTES = 16
    FIN_BYTES = 21              # "FIN ", an id, LF
    MESSAGE_HEAD_BYTES = 34     # size, frame type, timestamp, attempts, message id
    MIN_MPUB_MESSAGE_BYTES = 5

MOST_TOPICS = 128           # of a batch
MOST_PUBLISHES = 2_048      # commands of a batch: about a millisecond, and a read may have ten times as many
cdef Py_ssize_t _MOST_TOPICS = MOST_TOPICS
cdef Py_ssize_t _MOST_PUBLISHES = MOST_PUBLISHES

# Values of lower-case hex digits (255: not one); the two digits of each byte value.
cdef uint8_t[256] _hex_values
cdef uint16_t[256] _hex_pairs


cdef int _fill_tables() except -1:
    cdef int value
    cdef bytes digits = b"0123456789abcdef"
    cdef const uint8_t* digit = digits
    cdef uint8_t[2] pair
    for value in range(256):
        _hex_values[value] = 255
        pair[0] = digit[value >> 4]
        pair[1] = digit[value & 15]
        memcpy(&_hex_pairs[value], pair, 2)
    for value in range(16):
        _hex_values[digit[value]] = <uint8_t>value
    return 0


_fill_tables()


cdef inline void _store_hex(char* at, uint64_t value) noexcept nogil:
    cdef int shift
    for shift in range(56, -8, -8):
        memcpy(at, &_hex_pairs[(value >> shift) & 255], 2)
        at += 2


cdef inline bint _load_hex(const char* at, uint64_t* value) noexcept nogil:
    """Read 16 lower-case hex digits; False when one of them is not."""
    cdef uint64_t result = 0
    cdef uint8_t wrong = 0
    cdef uint8_t digit
    cdef int index
    for index in range(MESSAGE_ID_BYTES):
        digit = _hex_values[<uint8_t>at[index]]
        wrong |= digit
        result = (result << 4) | (digit & 15)
    value[0] = result
    return wrong < 16


cdef object _bad_name(str code, bytes what, Word name):
    return RefusedError(code, b"%s name %s is not valid" % (what, go_quote(text_of(name))))


cdef class Identify:
    cdef readonly bytes body

    def __init__(self, bytes body not None):
        self.body = body


cdef class Auth:
    cdef readonly bytes secret

    def __init__(self, bytes secret not None):
        self.secret = secret


cdef class Sub:
    cdef readonly str topic
    cdef readonly str channel

    def __init__(self, str topic not None, str channel not None):
        self.topic = topic
        self.channel = channel


cdef class Rdy:
    cdef readonly int64_t count

    def __init__(self, int64_t count):
        self.count = count


cdef class More:
    """No command: the batch has its most topics or publishes."""


cdef More MORE = More()


cdef class Cls:
    pass


cdef class Limits:
    def __init__(self, *, int64_t max_message_bytes, int64_t max_body_bytes, int64_t max_rdy_count,
                 int64_t max_req_timeout_ms):
        self.max_message_bytes = max_message_bytes
        self.max_body_bytes = max_body_bytes
        self.max_rdy_count = max_rdy_count
        self.max_req_timeout_ms = max_req_timeout_ms


cdef class Reader(StreamInput):
    def __init__(self, Limits limits not None, uint32_t allowed, uint32_t ignored=0):
        self.limits = limits
        self.allowed = allowed
        self.ignored = ignored
        self._topic_index = -1

    def next_command(self, Intake run not None, int64_t now_ms):
        if run.publishes.count == 0:
            # A batch begins: it knows no topics yet.
            self._topic_index = -1
            if self._topic_indexes:
                self._topic_indexes = None
        command = None
        if self._end - self._at >= self._wanted:
            command = self._parse(run, now_ms)
        if command is None:
            try:
                self._keep_rest(max(self._wanted, self._expected))
            except MemoryError:
                name = first_word(self._at, self._end)
                if not name:
                    raise
                raise UnheldError(name.decode("ascii"), max(self._wanted, self._expected)) from None
        return command

    def cut_short(self):
        cdef const char* held
        cdef const char* line_end
        cdef Py_ssize_t left
        if not self.magic_seen or self._held_bytes == 0:
            return None
        held = PyByteArray_AS_STRING(self._held)
        line_end = <const char*>memchr(held, c"\n", self._held_bytes)
        if line_end == NULL:
            return None
        # The line was good, so it is a command with a body; what of that was read last is missing.
        left = self._held_bytes - (line_end + 1 - held)
        name = first_word(held, held + self._held_bytes)
        if name in (b"PUB", b"DPUB"):
            return RefusedError("E_BAD_MESSAGE", name + (
                b" failed to read message body size" if left < 4 else b" failed to read message body"))
        if name != b"MPUB":
            return RefusedError("E_BAD_BODY", name + (
                b" failed to read body size" if left < 4 else b" failed to read body"))
        if left < 8:
            return RefusedError(
                "E_BAD_BODY", b"MPUB failed to read body size" if left < 4 else b"MPUB failed to read message count")
        if self._held_bytes < self._walked + 4:
            return RefusedError(
                "E_BAD_MESSAGE", b"MPUB failed to read message(%d) body size" % self._walked_messages)
        return RefusedError("E_BAD_MESSAGE", b"MPUB failed to read message body")

    cdef bint holds_only_pubs(self, bytearray memory, Py_ssize_t length) noexcept:
        """Return whether a read, not taken in yet, is nothing but whole PUBs to the topic of the last publish.

        Only PUBs in their plain spelling; to parse them finds nothing to refuse.
        """
        cdef const char* at = PyByteArray_AS_STRING(memory) + HEADROOM
        cdef Py_ssize_t head = 4 + self._topic_line_bytes
        cdef int64_t body_bytes
        if self._held_bytes or not self._topic_line_bytes:
            return False
        while length > head + 4:
            if memcmp(at, <const char*>b"PUB ", 4) != 0 or memcmp(at + 4, self._topic_line, head - 4) != 0:
                return False
            body_bytes = <int32_t>load_u32(at + head)
            if not 0 < body_bytes <= self.limits.max_message_bytes:
                return False
            at += head + 4 + body_bytes
            length -= head + 4 + body_bytes
        return length == 0

    cdef bint holds_only_finishes(self, bytearray memory, Py_ssize_t length) noexcept:
        """Return whether a read, not taken in yet, is nothing but whole FINs, and RDYs that change nothing.

        Only commands in their plain spelling, which may come.
        """
        cdef const char* at = PyByteArray_AS_STRING(memory) + HEADROOM
        cdef uint64_t message_id
        if self._held_bytes or not (self.allowed & ~self.ignored) >> CMD_FIN & 1:
            return False
        while length:
            if self._begins_with_ready(at, length):
                at += self._ready_line_bytes
                length -= self._ready_line_bytes
                continue
            if length < FIN_BYTES or memcmp(at, <const char*>b"FIN ", 4) != 0:
                return False
            if at[FIN_BYTES - 1] != c"\n" or not _load_hex(at + 4, &message_id):
                return False
            at += FIN_BYTES
            length -= FIN_BYTES
        return True

    def keep_ready(self, uint32_t count):
        cdef bytes line = b"RDY %d\n" % count
        self._ready_line_bytes = len(line)
        memcpy(self._ready_line, <const char*>line, self._ready_line_bytes)

    def forget_ready(self):
        self._ready_line_bytes = 0

    cdef bint _begins_with_ready(self, const char* at, Py_ssize_t left) noexcept:
        """Return whether the next line is RDY as it was taken last, which may come."""
        cdef Py_ssize_t size = self._ready_line_bytes
        if at[0] != c"R" or size == 0 or left < size or memcmp(at, self._ready_line, size) != 0:
            return False
        return (self.allowed & ~self.ignored) >> CMD_RDY & 1

    cdef int _consume(self, Py_ssize_t length) noexcept:
        self._at += length
        self._wanted = 0
        self._expected = 0
        self._scanned = 0
        self._walked = 0
        self._walked_messages = 0
        self.commands += 1
        return 0

    cdef object _parse(self, Intake run, int64_t now_ms):
        """Take PUB, FIN and an RDY that changes nothing in their plain spelling here, everything else by its line."""
        cdef const char* at
        cdef Py_ssize_t left, head
        cdef int64_t length
        cdef uint64_t message_id
        cdef object command
        while True:
            at = self._at
            left = self._end - at
            if left == 0:
                return None
            if not self.magic_seen:
                if left < 4:
                    self._wanted = 4
                    return None
                if memcmp(at, <const char*>b"  V2", 4) != 0:
                    raise RefusedError("E_BAD_PROTOCOL", start=PyBytes_FromStringAndSize(at, 4))
                self.magic_seen = True
                self._consume(4)
                self.commands -= 1
                continue
            if (at[0] == c"P" and self._topic_line_bytes and left >= 8 + self._topic_line_bytes
                    and run.publish_commands < _MOST_PUBLISHES):
                head = 4 + self._topic_line_bytes
                if memcmp(at, <const char*>b"PUB ", 4) == 0 and memcmp(
                        at + 4, self._topic_line, self._topic_line_bytes) == 0:
                    length = <int32_t>load_u32(at + head)
                    if 0 < length <= self.limits.max_message_bytes and head + 4 + length <= left:
                        self._place_topic(run)
                        self._add_message(run, CMD_PUB, head + 4, head + 4 + length, 0)
                        continue
            elif at[0] == c"F" and left >= FIN_BYTES and at[FIN_BYTES - 1] == c"\n":
                if memcmp(at, <const char*>b"FIN ", 4) == 0 and self.allowed >> CMD_FIN & 1:
                    if _load_hex(at + 4, &message_id):
                        self._add_settle(run, CMD_FIN, message_id, 0)
                        self._consume(FIN_BYTES)
                        continue
            elif self._begins_with_ready(at, left):
                run.counts[CMD_RDY] += 1
                self._consume(self._ready_line_bytes)
                continue
            command = self._parse_line(run, now_ms)
            if command is not True:
                return command

    cdef object _parse_line(self, Intake run, int64_t now_ms):
        """Parse one command of any kind.

        Returns: True when it went to ``run`` or was ignored, None when more bytes are needed, MORE when it is not for
            this batch, which has its most topics or publishes, else the command.
        """
        cdef const char* at = self._at
        cdef Py_ssize_t left = self._end - at
        cdef Py_ssize_t window = min(left, LINE_BYTES)
        cdef const char* line_end = <const char*>memchr(at + self._scanned, c"\n", window - self._scanned)
        cdef const char* stop
        cdef Word[4] params
        cdef Py_ssize_t count, head
        cdef int command
        if len(run.publishes.destinations) == _MOST_TOPICS or run.publish_commands >= _MOST_PUBLISHES:
            return MORE
        if line_end == NULL:
            if left >= LINE_BYTES:
                raise RefusedError("")    # nsqd closes without a frame, and so do we (nsq.md 1.2)
            self._scanned = left
            return None
        self._scanned = line_end - at       # found once: a body that arrives in pieces does not search again
        head = line_end - at + 1
        stop = line_end
        if stop > at and (stop - 1)[0] == c"\r":
            stop -= 1
        count = split_words(at, stop, params)

        command = find_command(params[0].at, params[0].size)
        if command < 0:
            raise RefusedError("E_INVALID", b"invalid command " + text_of(params[0]))
        if not self.allowed >> command & 1:
            raise RefusedError("E_INVALID", f"cannot {COMMAND_NAMES[command]} in current state".encode())
        if self.ignored >> command & 1 or command == CMD_NOP:
            run.counts[command] += 1
            self._consume(head)
            return True

        if command == CMD_PUB or command == CMD_DPUB:
            return self._parse_publish(run, command, params, count, head, now_ms)
        if command == CMD_MPUB:
            if count < 2:
                raise RefusedError("E_INVALID", b"MPUB insufficient number of parameters")
            if not is_name(params[1].at, params[1].size):
                raise _bad_name("E_BAD_TOPIC", b"E_BAD_TOPIC MPUB topic", params[1])    # nsqd repeats the code
            return True if self._parse_mpub(run, params[1].at, params[1].size, head) else None
        if command == CMD_FIN or command == CMD_REQ or command == CMD_TOUCH:
            return self._parse_settle(run, command, params, count, head)
        taken = self._parse_rare(command, params, count, head)
        if taken is not None:
            run.counts[command] += 1
        return taken

    cdef object _parse_publish(
        self, Intake run, int command, const Word* params, Py_ssize_t count, Py_ssize_t head, int64_t now_ms
    ):
        """Take PUB or DPUB; arguments as for ``_parse_rare``.

        Returns: True when it went to ``run``, None when its body is not all there.
        """
        cdef uint64_t number = 0
        cdef int64_t due_ms = 0
        cdef Py_ssize_t end
        if count < (2 if command == CMD_PUB else 3):
            raise RefusedError("E_INVALID", f"{COMMAND_NAMES[command]} insufficient number of parameters".encode())
        if not is_name(params[1].at, params[1].size):
            raise _bad_name("E_BAD_TOPIC", b"PUB topic" if command == CMD_PUB else b"DPUB topic", params[1])
        if command == CMD_DPUB:
            if not load_number(params[2].at, params[2].size, &number):
                raise RefusedError("E_INVALID", b"DPUB could not parse timeout " + text_of(params[2]))
            if number > <uint64_t>self.limits.max_req_timeout_ms:
                raise RefusedError(
                    "E_INVALID", f"DPUB timeout {number} out of range 0-{self.limits.max_req_timeout_ms}".encode()
                )
            if number:
                due_ms = now_ms + <int64_t>number
        end = self._body_end(command, head)
        if end < 0:
            return None
        self._choose_topic(run, params[1].at, params[1].size)
        self._add_message(run, command, head + 4, end, due_ms)
        return True

    cdef object _parse_settle(self, Intake run, int command, const Word* params, Py_ssize_t count, Py_ssize_t head):
        """Take FIN, REQ or TOUCH to ``run`` and return True; arguments as for ``_parse_rare``."""
        cdef uint64_t number = 0
        cdef uint64_t message_id
        name = COMMAND_NAMES[command]
        if count < (3 if command == CMD_REQ else 2):
            raise RefusedError("E_INVALID", f"{name} insufficient number of params".encode())
        if params[1].size != MESSAGE_ID_BYTES:
            raise RefusedError("E_INVALID", b"invalid message ID")
        if command == CMD_REQ:
            if not load_number(params[2].at, params[2].size, &number):
                raise RefusedError("E_INVALID", b"REQ could not parse timeout " + text_of(params[2]))
            if number > <uint64_t>self.limits.max_req_timeout_ms:
                number = <uint64_t>self.limits.max_req_timeout_ms
                run.requeues_clamped += 1
        if _load_hex(params[1].at, &message_id):
            self._add_settle(run, command, message_id, <int64_t>number)
            self._consume(head)
            return True
        # Not an id of ours, so nothing that is in flight; the client may go on.
        run.counts[command] += 1
        self._consume(head)
        raise RefusedError(
            f"E_{name}_FAILED", b"%s %s failed ID not in flight" % (name.encode(), text_of(params[1])), fatal=False
        )

    cdef object _parse_rare(self, int command, const Word* params, Py_ssize_t count, Py_ssize_t head):
        """Take RDY, SUB, CLS, IDENTIFY or AUTH and return it, or None when its body is not all there.

        Args:
            params: The first ``count`` words of the line.
            head: Where the line ends.
        """
        cdef uint64_t number = 1
        cdef Py_ssize_t end
        if command == CMD_RDY:
            if count > 1 and not load_number(params[1].at, params[1].size, &number):
                raise RefusedError("E_INVALID", b"RDY could not parse count " + text_of(params[1]))
            if number > <uint64_t>self.limits.max_rdy_count:
                raise RefusedError(
                    "E_INVALID", f"RDY count {number} out of range 0-{self.limits.max_rdy_count}".encode()
                )
            taken = Rdy(<int64_t>number)
        elif command == CMD_SUB:
            if self.heartbeats_off:
                raise RefusedError("E_INVALID", b"cannot SUB with heartbeats disabled")
            if count < 3:
                raise RefusedError("E_INVALID", b"SUB insufficient number of parameters")
            if not is_name(params[1].at, params[1].size):
                raise _bad_name("E_BAD_TOPIC", b"SUB topic", params[1])
            if not is_name(params[2].at, params[2].size):
                raise _bad_name("E_BAD_CHANNEL", b"SUB channel", params[2])
            taken = Sub(text_of(params[1]).decode("ascii"), text_of(params[2]).decode("ascii"))
        elif command == CMD_CLS:
            taken = Cls()
        else:
            if command == CMD_AUTH and count != 1:
                raise RefusedError("E_INVALID", b"AUTH invalid number of parameters")
            end = self._body_end(command, head)
            if end < 0:
                return None
            body = PyBytes_FromStringAndSize(self._at + head + 4, end - head - 4)
            head = end
            taken = Identify(body) if command == CMD_IDENTIFY else Auth(body)
        self._consume(head)
        return taken

    cdef Py_ssize_t _body_end(self, int command, Py_ssize_t head) except -2:
        """Return where the body behind a command's line ends, or -1 when it is not all there."""
        cdef int64_t length = self._body_bytes(command, head)
        if length < 0:
            return -1
        if self._end - self._at < head + 4 + length:
            self._wanted = head + 4 + length
            return -1
        return head + 4 + length

    cdef int64_t _body_bytes(self, int command, Py_ssize_t head) except -2:
        """Return the length of the body behind a command's line, or -1 when not even that is there."""
        cdef bint is_message = command == CMD_PUB or command == CMD_DPUB
        cdef int64_t most = self.limits.max_message_bytes if is_message else self.limits.max_body_bytes
        cdef int64_t length
        if self._end - self._at < head + 4:
            self._wanted = head + 4
            return -1
        length = <int32_t>load_u32(self._at + head)
        if 0 < length <= most:
            return length
        if length > 0:
            fault = f"{'message' if is_message else 'body'} too big {length} > {most}"
        else:
            fault = f"invalid {'message ' if is_message else ''}body size {length}"
        raise RefusedError("E_BAD_MESSAGE" if is_message else "E_BAD_BODY", f"{COMMAND_NAMES[command]} {fault}".encode())

    cdef int _choose_topic(self, Intake run, const char* name, Py_ssize_t length) except -1:
        """Make ``name``, which is valid, the topic of the messages that are added next."""
        if self._topic_line_bytes != length + 1 or memcmp(self._topic_line, name, length) != 0:
            memcpy(self._topic_line, name, length)
            self._topic_line[length] = c"\n"
            self._topic_line_bytes = length + 1
            self._topic = PyUnicode_DecodeASCII(name, length, NULL)
            self._topic_index = -1
        return self._place_topic(run)

    cdef int _place_topic(self, Intake run) except -1:
        """Find or make the current topic's place among the batch's destinations."""
        cdef list destinations
        if self._topic_index >= 0:
            return 0
        destinations = run.publishes.destinations
        if self._topic_indexes is None:
            self._topic_indexes = {}
        found = self._topic_indexes.get(self._topic)
        if found is None:
            found = len(destinations)
            destinations.append(self._topic)
            self._topic_indexes[self._topic] = found
        self._topic_index = found
        return 0

    cdef int _add_message(self, Intake run, int command, Py_ssize_t head, Py_ssize_t end, int64_t due_ms) except -1:
        cdef PublishEntry* entry = run.publishes.add()
        entry.body = self._at + head
        entry.body_bytes = <uint32_t>(end - head)
        entry.destination = <uint32_t>self._topic_index
        entry.deliver_at_ms = due_ms
        entry.command_entries = 1
        run.publishes.body_bytes += end - head
        if run.publish_commands == 0:
            run.first_publish = command
            run.publishes.owner = self._source
        run.publish_commands += 1
        run.counts[command] += 1
        self._consume(end)
        return 0

    cdef int _parse_mpub(self, Intake run, const char* name, Py_ssize_t name_bytes, Py_ssize_t head) except -1:
        """Return 1 when the command was added, 0 when more bytes are needed."""
        cdef int64_t messages = self._walk_mpub(head)
        cdef Py_ssize_t end = self._walked
        cdef const char* at
        cdef int64_t number
        cdef uint32_t length
        cdef PublishEntry* entry
        if messages == 0:
            return 0
        self._choose_topic(run, name, name_bytes)
        if run.publish_commands == 0:
            run.first_publish = CMD_MPUB
            run.publishes.owner = self._source
        at = self._at + head + 8
        for number in range(messages):
            length = load_u32(at)
            entry = run.publishes.add()
            entry.body = at + 4
            entry.body_bytes = length
            entry.destination = <uint32_t>self._topic_index
            if number == 0:
                entry.command_entries = <uint32_t>messages
            at += 4 + length
        run.publishes.body_bytes += end - head - 8 - 4 * messages
        run.publish_commands += 1
        run.counts[CMD_MPUB] += 1
        self._consume(end)
        return 1

    cdef int64_t _walk_mpub(self, Py_ssize_t head) except -1:
        """Check the messages that are there, from where the last call stopped.

        As nsqd does, this goes by the inner lengths: the outer one is checked against its limits only, and tells how
        much to expect. Returns how many messages the command has, 0 when more bytes are needed.
        """
        cdef const char* at = self._at
        cdef Py_ssize_t left = self._end - at
        cdef Py_ssize_t walked = self._walked
        cdef Py_ssize_t done = self._walked_messages
        cdef Py_ssize_t limit = head + 4 + self.limits.max_body_bytes
        cdef int64_t max_message_bytes = self.limits.max_message_bytes
        cdef int64_t length, messages
        if walked == 0:
            length = self._body_bytes(CMD_MPUB, head)
            if length < 0:
                return 0
            self._expected = head + 4 + length
            if left < head + 8:
                self._wanted = head + 8
                return 0
            walked = head + 8
        messages = <int32_t>load_u32(at + head + 4)
        if messages <= 0 or messages > (self.limits.max_body_bytes - 4) // MIN_MPUB_MESSAGE_BYTES:
            raise RefusedError("E_BAD_BODY", f"MPUB invalid message count {messages}".encode())

        while done < messages:
            if left < walked + 4:
                self._wanted = walked + 4
                break
            length = <int32_t>load_u32(at + walked)
            if length <= 0:
                raise RefusedError("E_BAD_MESSAGE", f"MPUB invalid message({done}) body size {length}".encode())
            if length > max_message_bytes:
                raise RefusedError("E_BAD_MESSAGE", f"MPUB message too big {length} > {max_message_bytes}".encode())
            if walked + 4 + length > limit:
                # Only where the outer length was too small. nsqd would go on; a buffer must have a bound.
                raise RefusedError(
                    "E_BAD_BODY",
                    f"MPUB body too big {walked + length - head} > {self.limits.max_body_bytes}".encode(),
                )
            if left < walked + 4 + length:
                self._wanted = walked + 4 + length
                break
            walked += 4 + length
            done += 1
        self._walked = walked
        self._walked_messages = done
        return messages if done == messages else 0

    cdef int _add_settle(self, Intake run, int command, uint64_t message_id, int64_t delay_ms) except -1:
        cdef SettleEntry* entry = run.settles.add()
        entry.message_id = message_id
        entry.delay_ms = delay_ms
        entry.kind = command - CMD_FIN      # FIN, REQ, TOUCH and SETTLE_... stand in the same order
        run.counts[command] += 1
        return run.mark()


def encode_frame(uint32_t frame_type, bytes data not None):
    cdef Py_ssize_t length = len(data)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, 8 + length)
    cdef char* at = PyBytes_AS_STRING(frame)
    store_u32(at, <uint32_t>(4 + length))
    store_u32(at + 4, frame_type)
    memcpy(at + 8, PyBytes_AS_STRING(data), length)
    return frame


OK_FRAME = encode_frame(FRAME_RESPONSE, b"OK")
HEARTBEAT_FRAME = encode_frame(FRAME_RESPONSE, b"_heartbeat_")
CLOSE_WAIT_FRAME = encode_frame(FRAME_RESPONSE, b"CLOSE_WAIT")


cpdef bytes encode_messages(RecordBatch batch, uint32_t node_id):
    """Encode a message frame per record.

    Layout of a frame: size u32 | frame type u32 = 2 | timestamp i64 ns | attempts u16 | id: 16 hex digits | body.
    """
    cdef Py_ssize_t total = MESSAGE_HEAD_BYTES * batch.count
    cdef Py_ssize_t index
    cdef RecordView* view
    cdef uint64_t node = <uint64_t>node_id << 48
    for index in range(batch.count):
        total += batch.views[index].body_bytes
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, total)
    cdef char* at = PyBytes_AS_STRING(frames)
    for index in range(batch.count):
        view = &batch.views[index]
        store_u32(at, MESSAGE_HEAD_BYTES - 4 + view.body_bytes)
        store_u32(at + 4, 2)
        store_u64(at + 8, <uint64_t>view.store_timestamp_ms * 1_000_000)
        store_u16(at + 16, view.attempts)
        _store_hex(at + 18, node | (<uint64_t>view.physical_offset & <uint64_t>0xFFFFFFFFFFFF))
        memcpy(at + MESSAGE_HEAD_BYTES, view.body, view.body_bytes)
        at += MESSAGE_HEAD_BYTES + view.body_bytes
    return frames
