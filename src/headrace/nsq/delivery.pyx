"""What channels have for their consumers, sent: see delivery.pyi."""

from libc.stdint cimport int64_t

from headrace.batch cimport RecordBatch
from headrace.broker.channels.channel cimport Channel, Subscription
from headrace.nsq.codec cimport encode_messages

import logging

from headrace.format.inflate import inflate_bodies
from headrace.nsq.delivery_coalescing import MIN_WINDOW
from headrace.nsq.stats import SOURCE

logger = logging.getLogger(__name__)

QUANTUM_MESSAGES = 64
BUSY_MESSAGES = 8
LONE_MESSAGES = 4096
CHANNEL_BYTES = 256 * 1024
SMALL_BYTES = CHANNEL_BYTES // 8
INFLATED_BYTES = CHANNEL_BYTES * 16

cdef int64_t _CHANNEL_BYTES = CHANNEL_BYTES
cdef int64_t _SMALL_BYTES = SMALL_BYTES
cdef int64_t _INFLATED_BYTES = INFLATED_BYTES
cdef int64_t _MIN_WINDOW = MIN_WINDOW


cdef bint may_wait(Subscription subscription) noexcept:
    """Whether a consumer has room for what comes within an interval, and work if it is busy."""
    return subscription.ready_count >= _MIN_WINDOW and 2 * subscription.waiting.count <= subscription.ready_count


cdef class Delivery:
    def __init__(self, server):
        self._server = server
        self._clock = server.clock
        self._records = RecordBatch()

    def deliver(self, Channel channel not None):
        if not channel.has_ready():
            return False
        cdef list turns = channel.ready_subscriptions
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t quantum = self._quantum(channel, len(turns)) if len(turns) > 1 else LONE_MESSAGES
        cdef int64_t size
        cdef int64_t room = _CHANNEL_BYTES
        cdef bint may_be_held = True
        cdef Subscription subscription
        cdef dict sent = {}
        server = self._server
        cdef int64_t now_ms = self._clock.now_ms()
        cdef int64_t monotonic_ms = self._clock.monotonic_ms()
        try:
            while at < len(turns) and channel.has_ready():
                if room < _SMALL_BYTES:
                    return True
                subscription = <Subscription>turns[at]
                at += 1
                if subscription.owner is None or not subscription.writable:
                    continue
                size = self._send(channel, subscription, now_ms, monotonic_ms, quantum, room, sent)
                if size:
                    room -= size
                    may_be_held = may_be_held and may_wait(subscription)
                    if subscription.waiting.count < subscription.ready_count:
                        turns.append(subscription)
                elif channel.stopped_cold:
                    return False    # the broker calls again when the log has read ahead
        finally:
            self._count(channel, sent)
        if channel.has_ready():
            # One call of a channel looks at a bounded number of messages: it may have stopped there.
            return bool(channel.ready_subscriptions)
        if may_be_held and room < _CHANNEL_BYTES:
            server.delivery_coalescing.note(channel)
        return False

    cdef Py_ssize_t _quantum(self, Channel channel, Py_ssize_t consumers) except -1:
        """How many messages each of several consumers gets in its turn, so that all have some of what there is.

        A busy channel has its few messages go to fewer of them: to others those of the next interval.
        """
        cdef Py_ssize_t least = BUSY_MESSAGES if self._server.delivery_coalescing.is_busy(channel) else 1
        cdef Py_ssize_t share = (<Py_ssize_t>channel.depth + consumers - 1) // consumers
        return min(<Py_ssize_t>QUANTUM_MESSAGES, max(least, share))

    cdef int64_t _send(self, Channel channel, Subscription subscription, int64_t now_ms, int64_t monotonic_ms,
                       Py_ssize_t most, int64_t most_bytes, dict sent) except -1:
        """Send one batch within the bounds; return its bytes, 0: nothing. It is added to what was ``sent`` to its host."""
        cdef RecordBatch records = self._records
        cdef Py_ssize_t count, kept, failed
        cdef int64_t size
        cdef int64_t spent = 0
        cdef list sums
        cdef bytes data
        client = subscription.owner
        if client.cause:
            return 0
        try:
            count = channel.deliver(subscription, now_ms, monotonic_ms, most, most_bytes, records)
            if not count:
                return 0
            inflated = inflate_bodies(records, _INFLATED_BYTES)
            if inflated is not None:
                kept, failed, spent = inflated
                if kept < count:
                    channel.take_back(subscription, records, kept)
                    count = kept
                if failed:
                    self._note_inflate_failures(channel, failed)
            size = records.record_bytes
            sums = sent.get(client.host)
            if sums is None:
                sums = sent[client.host] = [0, 0, 0]
            sums[0] += 1
            sums[1] += count
            sums[2] += size
            data = encode_messages(records, channel.node_id)
            client.write(data)
            return max(size, <int64_t>len(data), spent)
        finally:
            records.clear()

    def _count(self, Channel channel not None, dict sent not None):
        """Count what was sent to each host: calls, messages and bytes."""
        counters, statistics = self._server.counters, self._server.statistics
        for host, (calls, messages, size) in sent.items():
            counters.messages_out += messages
            statistics.note_channel_get(
                channel.name, channel.topic_name, messages, size, source=SOURCE, host=host, calls=calls
            )

    def _note_inflate_failures(self, Channel channel not None, Py_ssize_t count):
        counters = self._server.counters
        if not counters.inflate_failures:
            logger.warning(
                "compressed body delivered as stored, it is damaged or too large topic=%s; more are only counted",
                channel.topic_name,
            )
        counters.inflate_failures += count
