"""Pulls that were checked before: a consumer asks the same again and again, and only the offsets differ.

``handlers.pull`` makes the checks of remoting.md 4.4, answers, and leaves here what they found. The next pull of the same
group, topic, queue and host is read, counted and encoded in one call as long as the very objects that the checks looked at
are in the broker's tables: configurations, groups and subscriptions are replaced and never changed. What does not find
messages, or is not as plain as that, is left to the handler, which begins at the beginning; nothing was changed then.

A client has a pull in flight for each of its queues, so those of one read follow each other: a run of them is one call
and one piece of answers.

Invariants: what is answered here is what the handler would have answered, and it is counted as there. A run ends before the
first pull that is not answered here, and takes nothing behind it.
"""

from libc.stdint cimport int64_t

from headrace.batch cimport RecordBatch
from headrace.broker.consumers.sql92_evaluation cimport Filter
from headrace.broker.pull cimport Codes, PullResult, read_queue
from headrace.clock cimport Clock
from headrace.net.wire cimport ReadTaker, Wire
from headrace.remoting.codec cimport PullRequest, Reader, encode_pull_head, join_answers
from headrace.store.queue_base cimport QueueBase

from headrace.broker.consumers.clients import MAX_WORD
from headrace.broker.pull import PullStatus
from headrace.broker.topic import PERM_READ
from headrace.errors import RequestError, StoreError
from headrace.format.names import DECIDED_GROUP
from headrace.remoting.services import SOURCE
from headrace.remoting.reading.subscriptions import SHORT_CHARACTERS, is_crowded

cdef enum:
    MAX_KNOWN = 20_000          # some 500 bytes each, with a SQL92 filter some KB; at the bound all are forgotten
    MAX_RUN = 16                # pulls that are answered together
    MAX_LARGE = 2               # of them, those that keep the client busy: it works on two while the next are served
    LARGE_BYTES = 4_096

LARGE_ANSWER_BYTES = LARGE_BYTES

cdef object _FOUND = PullStatus.FOUND
cdef str _FOUND_REMARK = PullStatus.FOUND.name
cdef int _READABLE = PERM_READ
cdef str _DECIDED_GROUP = DECIDED_GROUP
cdef Py_ssize_t _SHORT = SHORT_CHARACTERS
cdef Py_ssize_t _MAX_WORD = MAX_WORD


cdef class _KnownPull:
    """What the checks looked at, what the pull said, and what they found."""
    cdef object group
    cdef object topic
    cdef object config
    cdef object subscription            # the group's; None where the pull says what it wants
    cdef bint says_subscription
    cdef int64_t sub_version
    cdef str expression
    cdef str expression_type
    cdef QueueBase queue
    cdef object wanted                  # MessageFilter: while it is kept, it is there once
    cdef Codes codes                    # its own
    cdef Filter matcher
    cdef object row                     # of the statistics, while rows_version is theirs; None until it is counted
    cdef int64_t rows_version


cdef struct _Run:
    # Where the records of each answer end, and how many bytes they are up to there; at 0 the first begins.
    Py_ssize_t[MAX_RUN + 1] ends
    int64_t[MAX_RUN + 1] byte_ends


cdef class KnownPulls:
    cdef object _services
    cdef object _counters
    cdef dict _topics
    cdef RecordBatch _records
    cdef int64_t _most_messages
    cdef int64_t _most_bytes
    cdef dict _known                    # (group, topic, queue id, host): _KnownPull

    def __init__(self, services, counters, RecordBatch records not None):
        self._services = services
        self._topics = services.broker.topics
        self._counters = counters
        self._records = records
        self._most_messages = services.settings.max_pull_messages
        self._most_bytes = services.settings.max_pull_bytes
        self._known = {}

    def __len__(self):
        return len(self._known)

    def forget(self):
        self._known.clear()

    def bounds_of(self, PullRequest request not None):
        return self._most_messages_of(request), self._most_bytes_of(request)

    cdef int64_t _most_messages_of(self, PullRequest request) noexcept:
        return min(max(<int64_t>request.max_messages, 1), self._most_messages)

    cdef int64_t _most_bytes_of(self, PullRequest request) noexcept:
        return min(<int64_t>request.max_message_bytes, self._most_bytes) if request.max_message_bytes > 0 else self._most_bytes

    def learn(self, PullRequest request not None, str host not None, QueueBase queue not None, wanted not None):
        cdef _KnownPull known
        cdef tuple key = (request.consumer_group, request.topic, request.queue_id, host)
        if key in self._known:
            return
        group = self._services.groups.get(request.consumer_group)
        topic = self._topics.get(request.topic)
        # What is counted or looked at with each pull beyond what is done here keeps the longer way.
        if (group is None or topic is None or topic.queue(request.queue_id) is not queue or not group.broadcast_enabled
                or request.consumer_group == _DECIDED_GROUP or self._services.statistics.by_queue):
            return
        subscription = None
        if not request.sys_flag & 4:
            subscription = self._services.clients.subscription(request.consumer_group, request.topic)
        if len(request.subscription or "") > _SHORT or (
                subscription is not None and len(subscription.expression) > _SHORT):
            return      # they, and the codes made of them, would take a quarter of a megabyte each
        if wanted.matcher is not None and is_crowded():
            return
        known = _KnownPull.__new__(_KnownPull)
        known.group = group
        known.topic = topic
        known.config = topic.config
        known.says_subscription = request.sys_flag & 4 != 0
        known.subscription = subscription
        known.sub_version = request.sub_version
        known.expression = request.subscription
        known.expression_type = request.expression_type
        known.queue = queue
        known.wanted = wanted
        known.codes = wanted.codes
        known.matcher = wanted.matcher
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = known

    def answer(self, PullRequest request not None, str host not None):
        return self._answer(request, host, None, NULL)

    def answer_run(self, Reader reader not None, str host not None):
        cdef const char* at = NULL
        cdef PullRequest pull = reader.peek_pull(&at)
        return self._answer(pull, host, reader, at) if pull is not None else None

    cdef bytes _answer(self, PullRequest pull, str host, Reader reader, const char* at):
        """Answer a pull, and with a reader those in front of which ``at`` points; they are passed over there."""
        cdef const char* answered = NULL    # behind the last pull that is answered
        cdef Py_ssize_t count = 0
        cdef int large = 0
        cdef _Run run
        cdef _KnownPull known = None
        cdef list pulls = [], knowns = [], heads = []
        run.ends[0] = run.byte_ends[0] = 0
        try:
            while pull is not None:
                known = self._read(pull, host, known, heads)
                if known is None:
                    break
                pulls.append(pull)
                knowns.append(known)
                count += 1
                answered = at
                run.ends[count] = self._records.count
                run.byte_ends[count] = self._records.record_bytes
                # So do those with a filter of properties keep this broker busy.
                large += known.matcher is not None or run.byte_ends[count] - run.byte_ends[count - 1] >= LARGE_BYTES
                if reader is None or count == MAX_RUN or large == MAX_LARGE:
                    break
                pull = reader.peek_pull(&at)
            if not count:
                return None
            frames = join_answers(heads, run.ends + 1, self._records)
        finally:
            self._records.clear()
        if reader is not None:
            reader.pass_pulls(answered, count)
            for pull in pulls:
                self._counters.requests[pull.code] += 1     # a single one is counted by who has it
        self._note(pulls, knowns, host, &run)
        return frames

    cdef _KnownPull _read(self, PullRequest pull, str host, _KnownPull before, list heads):
        """Add what a pull gets to the records, and its answer's head; None where the handler is asked.

        ``before``, the one before it in its run, has just been found to hold.
        """
        cdef tuple key = (pull.consumer_group, pull.topic, pull.queue_id, host)
        cdef _KnownPull known = <_KnownPull>self._known.get(key)
        cdef PullResult result
        if known is None or not known.queue.min_offset <= pull.queue_offset < known.queue.visible_offset:
            return None
        if not self._says_the_same(known, pull) or not (
                (before is not None and _rests_on_the_same(known, before)) or self._holds(known, pull)):
            del self._known[key]
            return None
        try:
            result = read_queue(known.queue, pull.queue_offset, self._most_messages_of(pull), self._most_bytes_of(pull),
                                known.codes, known.matcher, self._records)
        except (StoreError, ValueError):
            return None     # the handler meets it too, and says what it is
        if result.status is not _FOUND:
            del self._known[key]    # few of its messages pass, or they lie on the disk: one look at each is enough
            return None
        heads.append(encode_pull_head(pull, 0, _FOUND_REMARK, result.next_offset, result.min_offset, result.max_offset))
        return known

    cdef int _note(self, list pulls, list knowns, str host, const _Run* run) except -1:
        """Count the answers, and commit the offsets that the pulls bring."""
        cdef Py_ssize_t number, messages
        cdef Py_ssize_t count = len(pulls)
        cdef Py_ssize_t row_messages = 0, row_calls = 0
        cdef int64_t size, row_size = 0
        cdef object row = None      # of the statistics: what pulls that follow each other share
        cdef PullRequest pull
        cdef _KnownPull known
        services = self._services
        statistics = services.statistics
        self._counters.messages_out += run.ends[count]
        services.throughput.found += count
        services.throughput.transferred += run.ends[count]
        for number in range(count):
            pull = <PullRequest>pulls[number]
            known = <_KnownPull>knowns[number]
            messages = run.ends[number + 1] - run.ends[number]
            size = run.byte_ends[number + 1] - run.byte_ends[number]
            if known.row is None or known.rows_version != statistics.rows_version:
                statistics.note_get(pull.consumer_group, pull.topic, messages, size, source=SOURCE, host=host)
                known.rows_version = statistics.rows_version
                known.row = statistics.row_of_get(pull.consumer_group, pull.topic, source=SOURCE, host=host)
            else:
                if row is not None and row is not known.row:
                    statistics.count(row, row_messages, row_size, row_calls)
                    row_messages = row_size = row_calls = 0
                row = known.row
                row_messages += messages
                row_size += size
                row_calls += 1
            if pull.sys_flag & 1:
                try:
                    services.offsets.commit(pull.consumer_group, pull.topic, pull.queue_id, pull.commit_offset)
                except RequestError:
                    pass  # it is counted; the pull is answered all the same
        if row is not None:
            statistics.count(row, row_messages, row_size, row_calls)
        return 0

    cdef bint _says_the_same(self, _KnownPull known, PullRequest pull) except -1:
        """Whether a pull asks for nothing else than the known one."""
        return (
            known.sub_version == pull.sub_version
            and known.says_subscription == (pull.sys_flag & 4 != 0)
            and known.expression == pull.subscription
            and known.expression_type == pull.expression_type
            and not pull.is_oneway
            and len(pull.language) <= _MAX_WORD
        )

    cdef bint _holds(self, _KnownPull known, PullRequest pull) except -1:
        """Whether the checks would find the same now."""
        services = self._services
        return (
            <int>services.permission & _READABLE != 0
            and self._topics.get(pull.topic) is known.topic
            and known.topic.config is known.config
            and services.groups.get(pull.consumer_group) is known.group
            and (known.says_subscription or services.clients.subscription(
                pull.consumer_group, pull.topic) is known.subscription)
            and not services.offsets.has_reset(pull.consumer_group, pull.topic)
        )


cdef class PullReads(ReadTaker):
    cdef public bint is_expected
    cdef Wire _client
    cdef object _server
    cdef Clock _clock
    cdef Reader _reader
    cdef bytearray _received            # the server's receive buffer

    def __init__(self, server, Wire client not None, Reader reader not None):
        self._server = server
        self._clock = server.clock
        self._client = client
        self._reader = reader
        self._received = server.receive.memory

    def end(self):
        self._client = None

    cpdef bint take_read(self, Py_ssize_t nbytes) except -1:
        cdef Wire client = self._client
        cdef int64_t bytes_out
        if not self.is_expected or client.has_joined or self._server.logs_commands or self._server.guard is not None:
            return False
        if client._turn is None:
            client.begin_turn(self._clock.monotonic_ms())
        bytes_out = client._traffic.bytes_out
        self._reader.received(self._received, nbytes)
        if not self._answer(client):
            client.take_commands()
        client.note_answered(bytes_out)
        return True

    cdef bint _answer(self, Wire client) except -1:
        """Answer the known pulls that a read begins with; return whether that was all.

        Large answers leave in pairs: the client works on two while the next two are served, for half a write each.
        """
        self.is_expected = False
        while not client.is_blocked:
            answers = self._server.known_pulls.answer_run(self._reader, client.host)
            if answers is None:
                return False
            self.is_expected = True
            client._deadlines.last_command_ms = client._turn_began_ms
            client.send(answers)
            if client.cause or not self._reader.has_more:
                return True
            if client.is_turn_over():
                client.put_off()
                return True
        return False


cdef inline bint _rests_on_the_same(_KnownPull known, _KnownPull other) noexcept:
    """Whether what was found for one holds as long as it does for the other."""
    return (known.group is other.group and known.topic is other.topic and known.config is other.config
            and known.subscription is other.subscription and known.says_subscription == other.says_subscription)
