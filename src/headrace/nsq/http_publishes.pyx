"""Requests to publish over HTTP, done without a step through the HTTP server's general code: see http_publishes.pyi."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp, memset
from libc.stdint cimport uint8_t

from headrace.batch cimport PublishBatch, PublishEntry
from headrace.nsq.joint_publishes cimport JointPublishes, Publisher

import logging

from headrace.errors import HeadraceError, InvalidNameError, ProtocolError, RequestError, StoreError
from headrace.net.address import born_of, format_address
from headrace.net.http import INCOMPLETE as _INCOMPLETE
from headrace.net.http import LEFT as _LEFT
from headrace.net.http import MAX_HEAD_BYTES as _MAX_HEAD_BYTES
from headrace.net.http import TAKEN as _TAKEN
from headrace.nsq import mpub
from headrace.nsq.http import PUBLISHED
from headrace.nsq.names import topic_name
from headrace.nsq.stats import SOURCE

logger = logging.getLogger(__name__)

MAX_TAKEN_BYTES = 64 * 1024
MAX_HELD_BYTES = 4096

cdef enum:
    MAX_NAME = 64
    MAX_DIGITS = 9          # of a length or a delay
    MAX_TOPICS = 1024       # whose names are remembered

cdef int LEFT = _LEFT, TAKEN = _TAKEN, INCOMPLETE = _INCOMPLETE
cdef Py_ssize_t MAX_BODY = MAX_TAKEN_BYTES, MAX_HELD = MAX_HELD_BYTES, MAX_HEAD = _MAX_HEAD_BYTES

cdef enum:
    IN_NAME = 1             # of a topic
    IN_TOKEN = 2            # a header's name
    IN_HOST = 4
    IN_VALUE = 8            # any header's value

cdef uint8_t[256] KINDS
memset(KINDS, 0, sizeof(KINDS))


def _fill_kinds():
    cdef int code
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    for kind, others in ((IN_NAME, "._-"), (IN_TOKEN, "!#$%&'*+-.^_`|~"), (IN_HOST, "!$%&'()*+,-.:;=[]_~")):
        for character in letters + others:
            KINDS[<uint8_t>ord(character)] |= <uint8_t>kind
    for code in range(256):
        if code == ord("\t") or (code >= 0x20 and code != 0x7F):
            KINDS[code] |= IN_VALUE


_fill_kinds()

cdef struct Head:
    const char* topic
    Py_ssize_t topic_bytes
    Py_ssize_t bytes        # of the head itself
    long long body_bytes
    long long delay_ms      # -1: none is named
    bint is_many
    bint is_last


cdef inline bint _begins(const char* at, const char* end, const char* text, Py_ssize_t length) noexcept:
    return end - at >= length and memcmp(at, text, length) == 0


cdef bint _is_word(const char* at, Py_ssize_t length, const char* word, Py_ssize_t word_length) noexcept:
    """Whether it is ``word``, which is in small letters; capitals do not count."""
    cdef Py_ssize_t index
    cdef char character
    if length != word_length:
        return False
    for index in range(length):
        character = at[index]
        if c"A" <= character <= c"Z":
            character += 32
        if character != word[index]:
            return False
    return True


cdef bint _are_all(const char* at, const char* end, int kind) noexcept:
    while at < end:
        if not KINDS[<uint8_t>at[0]] & kind:
            return False
        at += 1
    return True


cdef long long _read_number(const char* at, const char* end) noexcept:
    """A number of up to MAX_DIGITS digits; -1: something else."""
    cdef long long value = 0
    if not 0 < end - at <= MAX_DIGITS:
        return -1
    while at < end:
        if not c"0" <= at[0] <= c"9":
            return -1
        value = value * 10 + (at[0] - c"0")
        at += 1
    return value


cdef bint _read_request_line(const char* at, const char* end, Head* head) noexcept:
    """POST /pub?topic=NAME[&defer=MS] HTTP/1.1"""
    cdef const char* stop
    if not _begins(at, end, b"POST /", 6):
        return False
    at += 6
    if _begins(at, end, b"mpub?topic=", 11):
        head.is_many = True
        at += 11
    elif _begins(at, end, b"pub?topic=", 10):
        head.is_many = False
        at += 10
    else:
        return False
    head.topic = at
    while at < end and KINDS[<uint8_t>at[0]] & IN_NAME:
        at += 1
    head.topic_bytes = at - head.topic
    if not 0 < head.topic_bytes <= MAX_NAME:
        return False
    head.delay_ms = -1
    if _begins(at, end, b"&defer=", 7):
        at += 7
        stop = at
        while stop < end and stop[0] != c" ":
            stop += 1
        head.delay_ms = _read_number(at, stop)
        if head.delay_ms < 0:
            return False
        at = stop
    return end - at == 9 and memcmp(at, b" HTTP/1.1", 9) == 0


cdef int _read_head(const char* data, Py_ssize_t length, Head* head) noexcept:
    """Read the head of a plain request; return whether it is one, and whole."""
    cdef const char* at = data
    cdef const char* end = data + min(length, MAX_HEAD)
    cdef const char* line_end
    cdef const char* colon
    cdef const char* value
    cdef const char* value_end
    cdef Py_ssize_t name_bytes
    cdef int hosts = 0, connections = 0
    head.body_bytes = -1
    head.is_last = False
    line_end = <const char*>memchr(at, c"\r", end - at)
    if line_end == NULL or not _read_request_line(at, line_end, head):
        return False
    while True:
        # at a line's end
        if end - line_end < 2 or line_end[1] != c"\n":
            return False
        at = line_end + 2
        line_end = <const char*>memchr(at, c"\r", end - at)
        if line_end == NULL:
            return False
        if line_end == at:
            break
        colon = <const char*>memchr(at, c":", line_end - at)
        if colon == NULL or colon == at or not _are_all(at, colon, IN_TOKEN):
            return False
        name_bytes = colon - at
        value = colon + 1
        value_end = line_end
        while value < value_end and (value[0] == c" " or value[0] == c"\t"):
            value += 1
        while value < value_end and ((value_end - 1)[0] == c" " or (value_end - 1)[0] == c"\t"):
            value_end -= 1
        if not _are_all(value, value_end, IN_VALUE):
            return False
        if _is_word(at, name_bytes, b"content-length", 14):
            if head.body_bytes >= 0:
                return False
            head.body_bytes = _read_number(value, value_end)
            if head.body_bytes < 0:
                return False
        elif _is_word(at, name_bytes, b"host", 4):
            hosts += 1
            if not _are_all(value, value_end, IN_HOST):
                return False
        elif _is_word(at, name_bytes, b"connection", 10):
            connections += 1
            if _is_word(value, value_end - value, b"close", 5):
                head.is_last = True
            elif not _is_word(value, value_end - value, b"keep-alive", 10):
                return False
        elif (_is_word(at, name_bytes, b"transfer-encoding", 17) or _is_word(at, name_bytes, b"expect", 6)
              or _is_word(at, name_bytes, b"upgrade", 7)):
            return False
    if end - line_end < 2 or line_end[1] != c"\n":
        return False
    head.bytes = line_end + 2 - data
    return hosts == 1 and connections <= 1 and 0 < head.body_bytes <= MAX_BODY


cdef class HttpPublisher(Publisher):
    def __init__(self, HttpPublishes publishes not None, connection):
        self.client = self
        self._connection = connection
        self._publishes = publishes
        self._joint = publishes._joint
        peer = connection.client
        self.host = peer[0] if peer else ""
        self.born_host, self.born_v6 = born_of(peer)

    def end(self):
        Publisher.end(self)
        self._connection = None

    def abort(self, cause):
        if self._connection is not None:
            self._connection.transport.abort()

    def joint_published(self, share, physical_offset, monotonic_ms):
        self._await(physical_offset)

    def publish_refused(self, command_name, error):
        self._refuse(error)

    def wait_for_store(self):
        pass

    def _await(self, physical_offset):
        """Answer when ``physical_offset`` is durable; 0: at once."""
        if physical_offset:
            self._publishes._server.gate.wait(physical_offset, self._settle)
        else:
            self._settle(None)

    def _settle(self, error):
        connection = self._connection
        if error is not None:
            self._refuse(error)
        elif connection is not None:
            self._log(200)
            connection.answer(self._publishes._ok_bytes(connection, self._is_last), is_last=self._is_last)

    def _refuse(self, error):
        cdef HttpPublishes publishes = self._publishes
        reply = publishes._app.refuse("/mpub" if self._is_many else "/pub", error)
        connection = self._connection
        if connection is not None:
            self._log(reply.status)
            data = connection.encode(reply.status, reply.all_headers(), reply.body, is_last=self._is_last)
            connection.answer(data, is_last=self._is_last)

    def _log(self, status):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("HTTP request client=%s method=POST path=/%s query=topic=%s%s status=%d",
                         format_address(self._connection.client or ()), "mpub" if self._is_many else "pub",
                         self._topic, f"&defer={self._delay_ms}" if self._delay_ms >= 0 else "", status)


cdef class HttpPublishes:
    def __init__(self, app, server):
        self._app = app
        self._server = server
        self._joint = server.joint_publishes
        self._batch = PublishBatch()
        self._topics = {}

    def take(self, connection, bytes data not None):
        cdef const char* raw = PyBytes_AS_STRING(data)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(data)
        cdef Head head
        cdef PublishEntry* entry
        cdef PublishBatch batch = self._batch
        cdef HttpPublisher publisher
        cdef long long deliver_at_ms = 0
        if not _read_head(raw, length, &head):
            return LEFT
        settings = self._server.settings
        if (length - head.bytes > head.body_bytes or head.body_bytes > settings.max_body_bytes
                or head.delay_ms > settings.max_req_timeout_ms or self._server.broker.overloaded
                or not head.is_many and head.body_bytes > settings.max_message_bytes):
            return LEFT
        if length - head.bytes < head.body_bytes:
            return INCOMPLETE if length <= MAX_HELD else LEFT
        topic = self._find_topic(PyBytes_FromStringAndSize(head.topic, head.topic_bytes))
        if topic is None:
            return LEFT
        publisher = connection.attached
        if publisher is None:
            publisher = connection.attached = HttpPublisher(self, connection)
        publisher._topic = topic
        publisher._is_last = head.is_last
        publisher._is_many = head.is_many
        publisher._delay_ms = head.delay_ms
        if head.delay_ms > 0:
            deliver_at_ms = self._server.clock.now_ms() + head.delay_ms
        if head.is_many:
            return TAKEN if self._publish_many(publisher, topic, data[head.bytes:], deliver_at_ms) else LEFT
        try:
            self._server.broker.ensure_topic(topic)
        except HeadraceError as error:
            publisher._refuse(error)
            return TAKEN
        try:
            batch.destinations.append(topic)
            batch.born_host, batch.born_host_v6 = publisher.born_host, publisher.born_v6
            entry = batch.add()
            entry.body = raw + head.bytes
            entry.body_bytes = <unsigned int>head.body_bytes
            entry.deliver_at_ms = deliver_at_ms
            entry.command_entries = 1
            batch.body_bytes = head.body_bytes
            self._joint._take_batch(publisher, batch)
        finally:
            batch.clear()
        return TAKEN

    cdef str _find_topic(self, bytes name):
        """Return the name of a topic as the broker spells it; None where it has no such topics."""
        topic = self._topics.get(name)
        if topic is None:
            try:
                topic = topic_name(name.decode("ascii"))
            except InvalidNameError:
                return None
            if len(self._topics) >= MAX_TOPICS:
                self._topics.clear()
            self._topics[name] = topic
        return topic

    cdef bint _publish_many(self, HttpPublisher publisher, str topic, bytes body, long long deliver_at_ms) except -1:
        """Publish the lines of a body; False, with nothing done, where something is wrong with them."""
        cdef PublishBatch batch
        server = self._server
        try:
            messages = mpub.read_lines(body, server.settings.max_message_bytes)
        except ProtocolError:
            return False
        if not messages.left:
            return False
        self._joint.end_turn()      # what came before it is before it in the log
        batch = PublishBatch()
        batch.destinations.append(topic)
        batch.born_host, batch.born_host_v6 = publisher.born_host, publisher.born_v6
        messages.take(batch, messages.left, deliver_at_ms)
        try:
            server.broker.ensure_topic(topic)
            physical_offset = server.broker.publish(batch)
        except (RequestError, StoreError) as error:
            publisher._refuse(error)
            return True
        publisher._await(physical_offset)
        server.statistics.note_put(topic, batch.count, batch.body_bytes, source=SOURCE, host=publisher.host)
        return True

    def _ok_bytes(self, connection, bint is_last):
        """The answer to what was published, made anew for each date."""
        date = connection.date
        if date is not self._date:
            reply = PUBLISHED
            self._ok = connection.encode(reply.status, reply.all_headers(), reply.body, is_last=False)
            self._last_ok = connection.encode(reply.status, reply.all_headers(), reply.body, is_last=True)
            self._date = date
        return self._last_ok if is_last else self._ok
