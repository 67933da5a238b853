# The delivery core of a channel: see channel.pyi for the public description.

from libc.stdint cimport int32_t, int64_t, uint16_t, uint64_t
from headrace.batch cimport RecordBatch, SettleBatch
from headrace.broker.channels.channel_state cimport MessageEntry, StateWriter
from headrace.broker.channels.deferred cimport DeferredSet
from headrace.broker.channels.finished cimport FinishedSet
from headrace.broker.channels.in_flight cimport DeadlineList, InFlight, InFlightTable
from headrace.broker.channels.ready cimport ReadyRing
from headrace.store.queue_base cimport QueueBase, QueueEntry
from headrace.store.log_base cimport LogBase

cdef class Subscription:
    cdef readonly int64_t id
    cdef readonly object owner
    cdef public int64_t ready_count
    cdef public bint writable
    cdef readonly bint closed
    cdef readonly int64_t msg_timeout_ms
    cdef readonly int sample_rate
    cdef readonly int64_t message_count
    cdef readonly int64_t finish_count
    cdef readonly int64_t requeue_count
    cdef DeadlineList waiting           # its in-flight messages by deadline

cdef class ChannelQueue:
    cdef QueueBase queue
    cdef LogBase log
    cdef int32_t queue_id
    cdef int64_t cursor                 # next offset never looked at
    cdef int64_t limit                  # readable end of a paused topic, or -1
    cdef int64_t origin                 # where message_count starts
    cdef FinishedSet finished
    cdef FinishedSet seen               # None, or what the cursor skips: finished, ready or deferred ahead of it;
                                        # its floor is the cursor
    cdef int64_t readable_end(self) noexcept
    cdef int step(self) except -1
    cdef int jump(self, int64_t offset) except -1

cdef struct Delivery:                   # what one deliver() may still do
    int64_t now_ms
    int64_t mono_ms
    Py_ssize_t first                    # records of the batch that were there before
    int64_t full_bytes                  # of the batch: beyond it nothing is added to one that has a message
    Py_ssize_t budget                   # messages to pass over (finished, sampled out, deferred)

cdef class Channel:
    cdef object __weakref__
    cdef readonly str name
    cdef readonly str topic_name
    cdef readonly int32_t node_id
    cdef readonly bint ephemeral
    cdef public bint paused
    cdef readonly list subscriptions
    cdef readonly bint stopped_cold     # the last deliver() stopped at a record that is not in memory
    cdef readonly int64_t delivered_count
    cdef readonly int64_t redelivered_count
    cdef readonly int64_t finish_count
    cdef readonly int64_t requeue_count
    cdef readonly int64_t timeout_count
    cdef readonly int64_t damaged_count
    cdef readonly int64_t evicted_count
    cdef public object pace
    cdef int64_t max_msg_timeout_ms
    cdef list orphans                   # ended subscriptions with messages in flight
    cdef int64_t next_subscription_id
    cdef Py_ssize_t turn                # which subscription is asked first
    cdef Py_ssize_t queue_turn
    cdef bint unread_first              # of the last deliver() that had both, what is unread and what is ready again
    cdef list queues                    # ChannelQueue, each at its queue_id
    cdef list cuts                      # (queue_id, end): positions that turned out to lie beyond a queue's end
    cdef uint64_t random
    cdef InFlightTable in_flight
    cdef ReadyRing ready
    cdef DeferredSet deferred
    cdef int64_t lost_spills            # of deferred, as far as acted upon
    cdef int64_t ask_evicted_at         # so many deferred: how many of them are evicted?
    cdef StateWriter notes              # MessageEntry: what became ready or deferred since take_changes()
    cdef object restored                # RestoredState until its queues are added
    cdef QueueEntry* ahead              # entries [ahead_from, ahead_from + ahead_count) of queues[ahead_queue]
    cdef int32_t ahead_queue
    cdef int64_t ahead_from
    cdef Py_ssize_t ahead_count
    cdef bint ahead_idle
    cdef ChannelQueue queue_of(self, int64_t queue_id)
    cdef bint sampled_out(self, Subscription subscription) noexcept
    cdef int note(self, const MessageEntry* entry) except -1
    cdef int make_ready(self, const MessageEntry* entry) except -1
    cdef int register(self, Subscription subscription, int32_t queue_id, int64_t queue_offset,
                      int64_t physical_offset, uint16_t attempts, int64_t mono_ms) except -1
    cdef int evict(self, ChannelQueue queue) except -1
    cdef int forget_evicted(self, int64_t now_ms) except -1
    cdef int read_ahead(self, ChannelQueue queue, int64_t end) except -1
    cdef int drop(self, ChannelQueue queue, int64_t queue_offset, int outcome) except -1
    cdef int deliver_ready(self, Subscription subscription, Py_ssize_t full_count, RecordBatch into,
                           Delivery* delivery) except -1
    cdef int deliver_unread(self, Subscription subscription, Py_ssize_t full_count, RecordBatch into,
                            Delivery* delivery) except -1
    cdef bint deliver_new(self, Subscription subscription, ChannelQueue queue, Py_ssize_t full_count, RecordBatch into,
                          Delivery* delivery) except -1
    cdef int hold_back(self, ChannelQueue queue, int64_t queue_offset, int64_t physical_offset, int64_t due_ms,
                       int64_t now_ms) except -1
    cpdef Py_ssize_t deliver(self, Subscription subscription, int64_t now_ms, int64_t mono_ms,
                             Py_ssize_t max_messages, int64_t max_bytes, RecordBatch into) except -1
    cpdef Py_ssize_t settle(self, Subscription subscription, SettleBatch batch, int64_t now_ms,
                            int64_t mono_ms) except -1
    cdef int take_back(self, Subscription subscription, RecordBatch batch, Py_ssize_t first) except -1
    cdef int requeue(self, int32_t slot, Subscription subscription, int64_t delay_ms, int64_t now_ms) except -1
    cdef Py_ssize_t time_out(self, Subscription subscription, int64_t mono_ms, Py_ssize_t most) except -1
    cpdef Py_ssize_t expire(self, int64_t now_ms, int64_t mono_ms, Py_ssize_t most) except -1
    cpdef int64_t next_deadline_ms(self)
    cpdef int64_t next_due_ms(self)
    cpdef bint has_ready(self)
    cdef StateWriter all_waiting(self)
    cdef int add_ready(self, StateWriter entries, int64_t first, int64_t end) except -1
    cdef int add_in_flight(self, StateWriter entries) except -1
    cdef int take_waiting(self, StateWriter waiting, int64_t now_ms) except -1
    cdef int redeliver_unknown(self) except -1
    cdef int trim(self) except -1
