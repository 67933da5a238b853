"""Pulls that were checked before: a consumer asks the same again and again, and only the offsets differ.

``handlers.pull`` makes the checks of remoting.md 4.4, answers, and leaves here what they found. The next pull of the same
group, topic, queue and host is read, counted and encoded in one call as long as the very objects that the checks looked at
are in the broker's tables: configurations, groups and subscriptions are replaced and never changed. What does not find
messages, or is not as plain as that, is left to the handler, which begins at the beginning; nothing was changed then.

Invariant: what is answered here is what the handler would have answered, and it is counted as there.
"""

from libc.stdint cimport int64_t

from headrace.batch cimport RecordBatch
from headrace.broker.pull cimport Codes, PullResult, read_queue
from headrace.remoting.codec cimport PullRequest, encode_pull_response
from headrace.store.consume_queue cimport QueueBase

from headrace.broker.consumers.clients import MAX_WORD
from headrace.broker.pull import PullStatus
from headrace.broker.topic import PERM_READ
from headrace.broker.withheld.transactions import GROUP as DECIDED_GROUP
from headrace.errors import RequestError, StoreError
from headrace.remoting.services import SOURCE
from headrace.remoting.reading.subscriptions import SHORT_CHARACTERS

cdef enum:
    MAX_KNOWN = 20_000         # some 500 bytes each; at the bound all are forgotten, and learnt again

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
    cdef Codes codes
    cdef object row                     # of the statistics, while rows_version is theirs; None until it is counted
    cdef int64_t rows_version


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

    def learn(self, PullRequest request not None, str host not None, QueueBase queue not None, Codes codes):
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
        known.codes = codes
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[key] = known

    def answer(self, PullRequest request not None, str host not None):
        cdef tuple key = (request.consumer_group, request.topic, request.queue_id, host)
        cdef _KnownPull known = <_KnownPull>self._known.get(key)
        cdef RecordBatch records = self._records
        cdef PullResult result
        cdef bytes frame
        cdef Py_ssize_t messages
        cdef int64_t size
        if known is None or not known.queue.min_offset <= request.queue_offset < known.queue.visible_offset:
            return None
        if not self._holds(known, request):
            del self._known[key]
            return None
        try:
            result = read_queue(known.queue, request.queue_offset, self._most_messages_of(request),
                                self._most_bytes_of(request), known.codes, None, records)
            if result.status is not _FOUND:
                del self._known[key]    # few of its messages pass, or they lie on the disk: one look at each is enough
                return None
            messages = records.count
            size = records.record_bytes
            frame = encode_pull_response(request, 0, _FOUND_REMARK, result.next_offset, result.min_offset,
                                         result.max_offset, 0, records)
        except (StoreError, ValueError):
            return None     # the handler meets it too, and says what it is
        finally:
            records.clear()
        self._count(known, request, host, messages, size)
        if request.sys_flag & 1:
            try:
                self._services.offsets.commit(
                    request.consumer_group, request.topic, request.queue_id, request.commit_offset
                )
            except RequestError:
                pass  # it is counted; the pull is answered all the same
        return frame

    cdef int _count(self, _KnownPull known, PullRequest request, str host, Py_ssize_t messages, int64_t size) except -1:
        statistics = self._services.statistics
        throughput = self._services.throughput
        self._counters.messages_out += messages
        throughput.found += 1
        throughput.transferred += messages
        if known.row is None or known.rows_version != statistics.rows_version:
            statistics.note_get(request.consumer_group, request.topic, messages, size, source=SOURCE, host=host)
            known.rows_version = statistics.rows_version
            known.row = statistics.row_of_get(request.consumer_group, request.topic, source=SOURCE, host=host)
        else:
            statistics.count(known.row, messages, size)
        return 0

    cdef bint _holds(self, _KnownPull known, PullRequest request) except -1:
        """Whether the checks would find the same for this pull."""
        services = self._services
        return (
            known.sub_version == request.sub_version
            and known.says_subscription == (request.sys_flag & 4 != 0)
            and known.expression == request.subscription
            and known.expression_type == request.expression_type
            and not request.is_oneway
            and len(request.language) <= _MAX_WORD
            and <int>services.permission & _READABLE != 0
            and self._topics.get(request.topic) is known.topic
            and known.topic.config is known.config
            and services.groups.get(request.consumer_group) is known.group
            and (known.says_subscription or services.clients.subscription(
                request.consumer_group, request.topic) is known.subscription)
            and not services.offsets.has_reset(request.consumer_group, request.topic)
        )
