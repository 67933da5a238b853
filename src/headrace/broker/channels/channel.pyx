"""Channel: the delivery core of NSQ's consumer group.

A message of the channel is in exactly one of these states:

    unread --deliver--> in flight --FIN--> finished
      |                  |    ^ |
      | deliver_at       |    | +--time-out, REQ 0--> ready again --deliver--> in flight
      +----> deferred <--+ REQ n                          ^
                 +-------------- due ---------------------+

Unread is a cursor per queue, finished a FinishedSet per queue; only what is in flight, ready again or deferred has an
entry of its own, so that a channel with ten million messages behind it is as small as one with ten. Every method
takes a batch or a bound; nothing makes a Python object per message.

After a restart the cursor goes back to the floor and ``ChannelQueue.seen`` names what it has to skip on its way up:
what is finished above the floor, and what waits with recorded attempts or a due time.
"""

from libc.stdint cimport INT64_MAX, uint8_t
from libc.stdlib cimport free, malloc

from headrace.batch cimport (
    RecordView, SETTLE_FINISH, SETTLE_NOT_IN_FLIGHT, SETTLE_NOT_OWNER, SETTLE_OK, SETTLE_REQUEUE, SettleEntry,
)
from headrace.broker.channels.channel_state cimport (
    SECTION_CUT, SECTION_POSITION, STATE_CHANGES, STATE_SNAPSHOT, STATE_VERSION,
)
from headrace.broker.channels.ready cimport ReadyEntry
from headrace.broker.channels.restored_state cimport DEAD_MS, RestoredState
from headrace.format.record cimport record_deliver_at
from headrace.store.queue_base cimport FILLER_BYTES
from headrace.store.log_base cimport VIEW_COLD, VIEW_DAMAGED, VIEW_GONE, VIEW_OK

import logging

from headrace.broker.channels.spill import SpillDirectory

logger = logging.getLogger(__name__)

cdef enum:
    MAX_ATTEMPTS = 32_767       # what NSQ clients can read: they take the wire's u16 for an i16
    AHEAD_ENTRIES = 256
    EXAMINE_EXTRA = 8_192       # messages one deliver() may pass over (finished, sampled out, deferred)
    READY_BOUND = 1 << 20       # due messages wait in the deferred set while so many are ready
    FORGET_LEAST = 4_096        # deferred messages before it is asked how many of them are evicted

cdef uint64_t OFFSET_MASK = ((<uint64_t>1) << 48) - 1


cdef class Subscription:
    def __cinit__(self, int64_t id, object owner, int64_t msg_timeout_ms, int sample_rate):
        self.id = id
        self.owner = owner
        self.msg_timeout_ms = msg_timeout_ms
        self.sample_rate = sample_rate
        self.writable = True
        self.waiting.head = self.waiting.tail = -1

    @property
    def in_flight_count(self):
        return self.waiting.count


cdef class ChannelQueue:
    cdef int64_t readable_end(self) noexcept:
        cdef int64_t end = self.queue.visible_offset
        return end if self.limit < 0 or end < self.limit else self.limit

    cdef int step(self) except -1:
        """Move the cursor on by one message, and over what it has to skip."""
        if self.seen is None:
            self.cursor += 1
            return 0
        return self.jump(self.cursor + 1)

    cdef int jump(self, int64_t offset) except -1:
        """Move the cursor to ``offset`` if that is ahead of it, and over what it has to skip."""
        if offset <= self.cursor:
            return 0
        self.cursor = offset
        if self.seen is not None:
            self.seen.raise_floor(offset)
            self.cursor = self.seen.floor
            if self.seen.ahead == 0:
                self.seen = None
        return 0


cdef class Channel:
    def __cinit__(self, str name not None, str topic_name not None, *, int node_id, bint ephemeral=False,
                  int64_t max_msg_timeout_ms=900_000, int64_t max_deferred_in_memory=10_000_000, uint64_t seed=1,
                  spill_directory=None):
        self.name = name
        self.topic_name = topic_name
        self.node_id = node_id
        self.ephemeral = ephemeral
        self.max_msg_timeout_ms = max_msg_timeout_ms
        self.subscriptions = []
        self.orphans = []
        self.queues = []
        self.cuts = []
        self.random = seed * <uint64_t>0x9E3779B97F4A7C15 + 1 or 1
        self.in_flight = InFlightTable()
        self.ready = ReadyRing()
        self.deferred = DeferredSet(max_deferred_in_memory,
                                    SpillDirectory(spill_directory) if spill_directory is not None else None)
        self.notes = StateWriter()
        self.ahead_queue = -1

    def __dealloc__(self):
        free(self.ahead)

    # ---- what can be seen

    @property
    def depth(self):
        cdef ChannelQueue queue
        cdef int64_t unread, start
        cdef int64_t total = self.ready.count
        for queue in self.queues:
            start = max(queue.cursor, queue.queue.min_offset)
            unread = queue.readable_end() - start
            if queue.seen is not None:
                unread -= queue.seen.count_range(start, queue.readable_end())
            total += max(unread, 0)
        return total

    @property
    def in_flight_count(self):
        return self.in_flight.count

    @property
    def deferred_count(self):
        return self.deferred.count

    @property
    def message_count(self):
        cdef ChannelQueue queue
        cdef int64_t total = 0
        for queue in self.queues:
            total += max(queue.readable_end() - queue.origin, 0)
        return total

    @property
    def was_cut(self):
        return bool(self.cuts) or (self.restored is not None and (<RestoredState>self.restored).was_cut)

    @property
    def memory_bytes(self):
        cdef ChannelQueue queue
        cdef int64_t total = self.in_flight.memory_bytes + self.deferred.memory_bytes
        total += self.ready.capacity * sizeof(ReadyEntry) + self.notes.capacity
        total += AHEAD_ENTRIES * sizeof(QueueEntry) if self.ahead != NULL else 0
        for queue in self.queues:
            total += queue.finished.memory_bytes
            total += queue.seen.memory_bytes if queue.seen is not None else 0
        if self.restored is not None:
            total += (<RestoredState>self.restored).entries.capacity
        return total

    def position(self, int queue_id):
        cdef ChannelQueue queue = self.queue_of(queue_id)
        return queue.finished.floor, queue.cursor

    cpdef bint has_ready(self):
        cdef ChannelQueue queue
        if self.paused:
            return False
        if self.ready.count:
            return True
        for queue in self.queues:
            if queue.cursor < queue.readable_end():
                return True
        return False

    # ---- queues

    cdef ChannelQueue queue_of(self, int64_t queue_id):
        if not 0 <= queue_id < len(self.queues):
            raise KeyError(f"channel {self.topic_name}/{self.name} has no queue {queue_id}")
        return <ChannelQueue>self.queues[queue_id]

    def set_limit(self, int queue_id, int64_t limit):
        cdef ChannelQueue queue = self.queue_of(queue_id)
        queue.limit = limit
        if limit >= 0:      # what waits in the topic enters later
            queue.origin = min(queue.origin, limit)

    cdef int evict(self, ChannelQueue queue) except -1:
        """Give up what retention has removed."""
        if queue.queue.min_offset > queue.finished.floor:
            self.evicted_count += queue.finished.raise_floor(queue.queue.min_offset)
            queue.jump(queue.finished.floor)
        return 0

    cdef int forget_evicted(self, int64_t now_ms) except -1:
        """Give up deferred messages that retention has removed, where most are: they would wait until they are due."""
        cdef ChannelQueue queue
        cdef StateWriter waiting
        cdef int64_t there = 0
        for queue in self.queues:
            self.evict(queue)
            there += queue.queue.next_offset - queue.finished.floor
        # Not where some are in files, and not in the middle of a snapshot, which knows what is there.
        if self.deferred.count > 2 * there + FORGET_LEAST and not self.deferred.spilled and not self.deferred.is_saving():
            waiting = StateWriter()
            self.deferred.write_all(waiting)
            self.deferred.clear()
            self.take_waiting(waiting, now_ms)
        self.ask_evicted_at = 2 * self.deferred.count + FORGET_LEAST
        return 0

    # ---- subscriptions

    def subscribe(self, owner, int64_t msg_timeout_ms, int sample_rate=0):
        self.next_subscription_id += 1
        subscription = Subscription(self.next_subscription_id, owner, msg_timeout_ms, sample_rate)
        self.subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, Subscription subscription not None):
        if subscription.closed:
            return
        self.subscriptions.remove(subscription)
        subscription.closed = True
        subscription.owner = None
        if subscription.waiting.count:
            self.orphans.append(subscription)

    @property
    def ready_subscriptions(self):
        cdef Subscription subscription
        cdef Py_ssize_t i, count = len(self.subscriptions)
        if self.paused or count == 0:
            return []
        self.turn = (self.turn + 1) % count
        ready = []
        for i in range(count):
            subscription = <Subscription>self.subscriptions[(self.turn + i) % count]
            if subscription.writable and subscription.ready_count > subscription.waiting.count:
                ready.append(subscription)
        return ready

    # ---- deliver

    cdef bint sampled_out(self, Subscription subscription) noexcept:
        self.random ^= self.random >> 12        # xorshift64* (Vigna)
        self.random ^= self.random << 25
        self.random ^= self.random >> 27
        return (self.random * <uint64_t>0x2545F4914F6CDD1D >> 33) % 100 >= <uint64_t>subscription.sample_rate

    cdef int note(self, const MessageEntry* entry) except -1:
        """Remember for the journal that a message waits."""
        return 0 if self.ephemeral else self.notes.append(entry, 1)

    cdef int make_ready(self, const MessageEntry* entry) except -1:
        """Have a message delivered again."""
        self.ready.push(entry.where, entry.place)
        return self.note(entry)

    cdef int register(self, Subscription subscription, int32_t queue_id, int64_t queue_offset,
                      int64_t physical_offset, uint16_t attempts, int64_t mono_ms) except -1:
        cdef int32_t slot = self.in_flight.add(&subscription.waiting, physical_offset,
                                               mono_ms + subscription.msg_timeout_ms)
        cdef InFlight* entry = &self.in_flight.entries[slot]
        entry.queue_offset = queue_offset
        entry.delivered_ms = mono_ms
        entry.owner = <void*>subscription
        entry.attempts = attempts
        entry.queue_id = <uint16_t>queue_id
        return 0

    cdef int drop(self, ChannelQueue queue, int64_t queue_offset, int outcome) except -1:
        """Finish a message that cannot be delivered, and count it unless it was finished already."""
        if queue.finished.add(queue_offset):
            if outcome == VIEW_GONE:
                self.evicted_count += 1
            elif outcome == VIEW_DAMAGED:
                self.damaged_count += 1
        return 0

    cdef int read_ahead(self, ChannelQueue queue, int64_t end) except -1:
        if self.ahead == NULL:
            self.ahead = <QueueEntry*>malloc(AHEAD_ENTRIES * sizeof(QueueEntry))
            if self.ahead == NULL:
                raise MemoryError("cannot allocate a read-ahead array")
        self.ahead_queue = -1
        self.ahead_count = 0
        try:
            self.ahead_count = queue.queue.read_entries(queue.cursor, self.ahead,
                                                        min(<int64_t>AHEAD_ENTRIES, end - queue.cursor))
        except OSError as error:
            queue.queue.log.on_unreadable(error)
        self.ahead_from = queue.cursor
        self.ahead_queue = queue.queue_id
        return 0

    cdef int deliver_ready(self, Subscription subscription, Py_ssize_t full_count, RecordBatch into,
                           Delivery* delivery) except -1:
        """Deliver what is ready again, until the batch is full, the budget is spent or a record is not in memory."""
        cdef ReadyEntry* entry
        cdef ChannelQueue queue
        cdef int64_t queue_offset, physical_offset
        cdef uint16_t attempts
        cdef int outcome
        while self.ready.count:
            if into.count >= full_count or (into.count > delivery.first
                                            and into.record_bytes >= delivery.full_bytes):
                return 0
            entry = self.ready.at(0)
            queue = self.queue_of(entry.place & 0xFFFF)
            queue_offset = entry.place >> 16
            physical_offset = entry.where >> 16
            attempts = min(<int>(entry.where & 0xFFFF) + 1, <int>MAX_ATTEMPTS)
            if queue.finished.contains(queue_offset):       # evicted meanwhile
                self.ready.pop()
                continue
            if subscription.sample_rate > 0 and delivery.budget <= 0:
                return 0
            if subscription.sample_rate > 0 and self.sampled_out(subscription):
                delivery.budget -= 1
                queue.finished.add(queue_offset)
                self.ready.pop()
                continue
            outcome = queue.log.view(physical_offset, 0, into)
            if outcome == VIEW_COLD:
                self.stopped_cold = True
                return 0
            self.ready.pop()
            if outcome != VIEW_OK:
                self.drop(queue, queue_offset, outcome)
                continue
            into.views[into.count - 1].attempts = attempts
            if attempts > 1:
                self.redelivered_count += 1
            self.register(subscription, queue.queue_id, queue_offset, physical_offset, attempts, delivery.mono_ms)
        return 0

    cdef bint deliver_new(self, Subscription subscription, ChannelQueue queue, Py_ssize_t full_count, RecordBatch into,
                          Delivery* delivery) except -1:
        """Deliver from one queue's cursor; False when the batch is full or a record is not in memory."""
        cdef QueueEntry* entry
        cdef RecordView* view
        cdef int64_t end, due_ms, queue_offset, bytes_before
        cdef int outcome
        self.evict(queue)
        end = queue.readable_end()
        while queue.cursor < end:
            if into.count >= full_count or delivery.budget <= 0:
                return False
            queue_offset = queue.cursor
            if (self.ahead_queue != queue.queue_id or queue_offset < self.ahead_from
                    or queue_offset >= self.ahead_from + self.ahead_count):
                self.read_ahead(queue, end)
                if self.ahead_count <= 0:       # the queue cannot read its entries now
                    self.stopped_cold = True
                    return False
            entry = &self.ahead[queue_offset - self.ahead_from]
            if entry.record_bytes == FILLER_BYTES:
                delivery.budget -= 1
                self.drop(queue, queue_offset, VIEW_DAMAGED)
                queue.step()
                continue
            if into.count > delivery.first and into.record_bytes + entry.record_bytes > delivery.full_bytes:
                return False
            bytes_before = into.record_bytes
            outcome = queue.log.view(entry.physical_offset, <unsigned int>entry.record_bytes, into)
            if outcome == VIEW_COLD:
                self.stopped_cold = True
                return False
            if outcome != VIEW_OK:
                delivery.budget -= 1
                self.drop(queue, queue_offset, outcome)
                queue.step()
                continue
            view = &into.views[into.count - 1]
            due_ms = record_deliver_at(view)
            if due_ms > delivery.now_ms:
                into.count -= 1
                into.record_bytes = bytes_before
                delivery.budget -= 1
                self.hold_back(queue, queue_offset, entry.physical_offset, due_ms, delivery.now_ms)
                queue.step()
                continue
            if subscription.sample_rate > 0 and self.sampled_out(subscription):
                into.count -= 1
                into.record_bytes = bytes_before
                delivery.budget -= 1
                queue.finished.add(queue_offset)
                queue.step()
                continue
            view.attempts = 1
            self.register(subscription, queue.queue_id, queue_offset, entry.physical_offset, 1, delivery.mono_ms)
            if queue.seen is None:
                queue.cursor += 1
            else:
                queue.step()
        return True

    cdef int deliver_unread(self, Subscription subscription, Py_ssize_t full_count, RecordBatch into,
                            Delivery* delivery) except -1:
        """Deliver from the cursors, another queue first each time."""
        cdef Py_ssize_t i, turn = self.queue_turn, count = len(self.queues)
        cdef Py_ssize_t delivered = into.count, left = delivery.budget
        for i in range(count):
            if not self.deliver_new(subscription, <ChannelQueue>self.queues[(turn + i) % count], full_count, into,
                                    delivery):
                break
        # Where what came back took the window or the bytes, it was no queue's turn.
        if count > 1 and (into.count > delivered or delivery.budget < left or self.stopped_cold):
            self.queue_turn = (turn + 1) % count
        return 0

    cdef int hold_back(self, ChannelQueue queue, int64_t queue_offset, int64_t physical_offset, int64_t due_ms,
                       int64_t now_ms) except -1:
        """Defer a message that was never delivered."""
        cdef MessageEntry entry
        entry.due_ms = due_ms
        entry.where = <uint64_t>physical_offset << 16
        entry.place = <uint64_t>queue_offset << 16 | <uint64_t>queue.queue_id
        self.deferred.add(now_ms, &entry)
        return self.note(&entry)

    cpdef Py_ssize_t deliver(self, Subscription subscription, int64_t now_ms, int64_t mono_ms,
                             Py_ssize_t max_messages, int64_t max_bytes, RecordBatch into) except -1:
        cdef Py_ssize_t window = min(<int64_t>max_messages, subscription.ready_count - subscription.waiting.count)
        cdef Py_ssize_t full_count = into.count + window
        cdef Py_ssize_t half_count = into.count + (window + 1) // 2
        cdef Delivery delivery
        self.stopped_cold = False
        if window <= 0 or self.paused or subscription.closed:
            return 0
        delivery.now_ms = now_ms
        delivery.mono_ms = mono_ms
        delivery.first = into.count
        delivery.full_bytes = into.record_bytes + max_bytes
        # What a consumer drops it has taken, too: its turn is no longer than that of one that drops nothing.
        delivery.budget = EXAMINE_EXTRA if subscription.sample_rate == 0 else max_messages
        self.ahead_idle = False
        if self.deferred.count >= self.ask_evicted_at:
            self.forget_evicted(now_ms)
        if self.ready.count == 0:
            self.deliver_unread(subscription, full_count, into, &delivery)
        else:
            # What comes back again and again must not stop what waits behind it, nor a long backlog what came back.
            self.unread_first = not self.unread_first
            if self.unread_first:
                self.deliver_unread(subscription, half_count, into, &delivery)
                self.deliver_ready(subscription, full_count, into, &delivery)
                if not self.stopped_cold:
                    self.deliver_unread(subscription, full_count, into, &delivery)
            else:
                self.deliver_ready(subscription, half_count, into, &delivery)
                self.deliver_unread(subscription, full_count, into, &delivery)
                if not self.stopped_cold:
                    self.deliver_ready(subscription, full_count, into, &delivery)
        subscription.message_count += into.count - delivery.first
        self.delivered_count += into.count - delivery.first
        return into.count - delivery.first

    cdef int take_back(self, Subscription subscription, RecordBatch batch, Py_ssize_t first) except -1:
        """Undo for what the last deliver() added from ``first`` on: nothing of it was sent.

        The newest become unread again, so that they keep their order; what is in the way of that becomes ready.
        """
        cdef InFlight* entry
        cdef MessageEntry back
        cdef ChannelQueue queue
        cdef Py_ssize_t i
        cdef Py_ssize_t unread_from = batch.count
        cdef int32_t slot
        while unread_from > first:
            slot = self.in_flight.find(batch.views[unread_from - 1].physical_offset)
            if slot < 0:
                break
            entry = &self.in_flight.entries[slot]
            queue = self.queue_of(entry.queue_id)
            if queue.seen is not None or entry.queue_offset != queue.cursor - 1 or entry.attempts != 1:
                break
            queue.cursor -= 1
            unread_from -= 1
        for i in range(first, batch.count):
            batch.record_bytes -= batch.views[i].record_bytes
            slot = self.in_flight.find(batch.views[i].physical_offset)
            if slot < 0:        # two entries of a damaged queue name one record
                continue
            entry = &self.in_flight.entries[slot]
            if i < unread_from:
                back = waiting_entry(entry, 0)
                back.where -= 1                 # this attempt does not count
                self.make_ready(&back)          # and is noted: a snapshot in parts may have come past its old place
            if entry.attempts > 1:
                self.redelivered_count -= 1
            self.in_flight.remove(&subscription.waiting, slot)
        subscription.message_count -= batch.count - first
        self.delivered_count -= batch.count - first
        batch.count = first
        return 0

    def defer(self, int queue_id, int64_t queue_offset, int64_t physical_offset, int64_t due_ms, int64_t now_ms):
        cdef ChannelQueue queue = self.queue_of(queue_id)
        if queue_offset < max(queue.cursor, queue.queue.min_offset) or queue_offset >= queue.readable_end():
            return False
        if queue.seen is None:
            queue.seen = FinishedSet(queue.cursor, records_changes=False)
        if not queue.seen.add(queue_offset):
            return False
        queue.cursor = queue.seen.floor
        if queue.seen.ahead == 0:
            queue.seen = None
        self.hold_back(queue, queue_offset, physical_offset, due_ms, now_ms)
        if self.deferred.count >= self.ask_evicted_at:
            self.forget_evicted(now_ms)
        return True

    # ---- settle

    cpdef Py_ssize_t settle(self, Subscription subscription, SettleBatch batch, int64_t now_ms,
                            int64_t mono_ms) except -1:
        cdef Py_ssize_t i, failed = 0
        cdef SettleEntry* operation
        cdef InFlight* entry
        cdef int32_t slot
        for i in range(batch.count):
            operation = &batch.entries[i]
            slot = -1
            if operation.message_id >> 48 == <uint64_t>self.node_id:
                slot = self.in_flight.find(<int64_t>(operation.message_id & OFFSET_MASK))
            if slot < 0:
                operation.result = SETTLE_NOT_IN_FLIGHT
                failed += 1
                continue
            entry = &self.in_flight.entries[slot]
            if entry.owner != <void*>subscription:
                operation.result = SETTLE_NOT_OWNER
                failed += 1
                continue
            operation.result = SETTLE_OK
            if operation.kind == SETTLE_FINISH:
                (<ChannelQueue>self.queues[entry.queue_id]).finished.add(entry.queue_offset)
                self.in_flight.remove(&subscription.waiting, slot)
                subscription.finish_count += 1
                self.finish_count += 1
            elif operation.kind == SETTLE_REQUEUE:
                self.requeue(slot, subscription, operation.delay_ms, now_ms)
            else:
                self.in_flight.move(&subscription.waiting, slot, min(
                    mono_ms + subscription.msg_timeout_ms, entry.delivered_ms + self.max_msg_timeout_ms))
        return failed

    cdef int requeue(self, int32_t slot, Subscription subscription, int64_t delay_ms, int64_t now_ms) except -1:
        cdef MessageEntry entry = waiting_entry(&self.in_flight.entries[slot], now_ms + delay_ms if delay_ms > 0 else 0)
        if delay_ms > 0:
            self.deferred.add(now_ms, &entry)
            self.note(&entry)
        else:
            self.make_ready(&entry)
        self.in_flight.remove(&subscription.waiting, slot)
        self.requeue_count += 1
        subscription.requeue_count += 1
        return 0

    # ---- time

    cdef Py_ssize_t time_out(self, Subscription subscription, int64_t mono_ms, Py_ssize_t most) except -1:
        """Make up to ``most`` overdue messages of one subscription ready again."""
        cdef Py_ssize_t moved = 0
        cdef int32_t slot = subscription.waiting.head
        cdef MessageEntry entry
        while slot >= 0 and moved < most:
            if self.in_flight.entries[slot].deadline_ms > mono_ms:
                break
            entry = waiting_entry(&self.in_flight.entries[slot], 0)
            self.make_ready(&entry)
            self.in_flight.remove(&subscription.waiting, slot)
            slot = subscription.waiting.head
            moved += 1
        self.timeout_count += moved
        return moved

    cpdef Py_ssize_t expire(self, int64_t now_ms, int64_t mono_ms, Py_ssize_t most) except -1:
        cdef Subscription subscription
        cdef ChannelQueue queue
        cdef MessageEntry entry
        cdef Py_ssize_t moved = 0
        for queue in self.queues:
            self.evict(queue)
        if self.in_flight.count:
            for subscription in self.subscriptions:
                if subscription.waiting.count:
                    moved += self.time_out(subscription, mono_ms, most - moved)
            for subscription in self.orphans:
                moved += self.time_out(subscription, mono_ms, most - moved)
        if self.orphans:
            self.orphans = [orphan for orphan in self.orphans if (<Subscription>orphan).waiting.count]
        if self.deferred.count:
            self.deferred.advance(now_ms, most)
            if self.deferred.lost_spills != self.lost_spills:
                moved += self.deferred.lost_spills - self.lost_spills
                self.redeliver_unknown()
            while moved < most and self.ready.count < READY_BOUND and self.deferred.pop_due(now_ms, &entry):
                self.ready.push(entry.where, entry.place)
                moved += 1
        return moved

    cpdef int64_t next_deadline_ms(self):
        cdef Subscription subscription
        cdef int64_t next_ms = INT64_MAX
        if self.in_flight.count == 0:
            return -1
        for subscription in self.subscriptions:
            if subscription.waiting.count:
                next_ms = min(next_ms, self.in_flight.entries[subscription.waiting.head].deadline_ms)
        for subscription in self.orphans:
            if subscription.waiting.count:
                next_ms = min(next_ms, self.in_flight.entries[subscription.waiting.head].deadline_ms)
        return next_ms

    cpdef int64_t next_due_ms(self):
        return self.deferred.next_due_ms()

    # ---- empty, close

    def empty(self, limits=None, *, int64_t now_ms=0):
        cdef ChannelQueue queue
        cdef Subscription subscription
        cdef int64_t limit
        cdef int64_t dropped = 0
        cdef bint everything = True
        cdef StateWriter waiting = None
        for queue in self.queues:
            limit = max(queue.readable_end(), queue.cursor)
            if limits is not None:      # may name messages that are appended and not yet readable
                limit = min(limits.get(queue.queue_id, limit), queue.queue.next_offset)
            everything = everything and limit >= max(queue.readable_end(), queue.cursor)
            dropped += queue.finished.raise_floor(limit)
            queue.jump(queue.finished.floor)
            everything = everything and queue.seen is None
        if not everything:
            waiting = self.all_waiting()
        for subscription in self.subscriptions + self.orphans:
            subscription.waiting.head = subscription.waiting.tail = -1
            subscription.waiting.count = 0
        self.orphans = []
        self.in_flight.clear()
        self.ready.clear()
        self.deferred.clear()
        if not everything:
            self.take_waiting(waiting, now_ms)
        return dropped

    def skip_range(self, int queue_id, int64_t start, int64_t end):
        cdef ChannelQueue queue = self.queue_of(queue_id)
        cdef int64_t skipped
        if end > queue.origin:
            queue.origin += end - max(start, queue.origin)
        start = max(start, queue.cursor)
        if start >= end:
            return 0
        skipped = queue.finished.add_range(start, end)
        if start == queue.cursor:
            queue.jump(end)
        else:
            if queue.seen is None:
                queue.seen = FinishedSet(queue.cursor, records_changes=False)
            queue.seen.add_range(start, end)
        return skipped

    cdef int take_waiting(self, StateWriter waiting, int64_t now_ms) except -1:
        """Take back the entries of all_waiting() that are not finished."""
        cdef MessageEntry* entry = <MessageEntry*>waiting.data
        cdef MessageEntry* end = entry + waiting.entry_count()
        while entry < end:
            if not self.queue_of(entry.place & 0xFFFF).finished.contains(entry.place >> 16):
                if entry.due_ms > 0:
                    self.deferred.add(now_ms, entry)
                else:
                    self.ready.push(entry.where, entry.place)
            entry += 1
        return 0

    def close(self):
        for subscription in list(self.subscriptions):
            self.unsubscribe(subscription)
        self.orphans = []
        self.in_flight.clear()
        self.ready.clear()
        self.deferred.clear()
        if self.deferred.spill is not None:
            self.deferred.spill.remove()
        self.queues = []
        self.restored = None
        self.cuts = []
        self.notes = StateWriter()      # who still has the channel, such as a timer, need not keep what it held
        free(self.ahead)
        self.ahead = NULL
        self.ahead_queue = -1
        self.ahead_count = 0

    # ---- state

    cdef StateWriter all_waiting(self):
        """Return everything that is deferred, ready again or in flight: entries, no section."""
        cdef StateWriter entries = StateWriter()
        self.deferred.write_all(entries)
        self.add_ready(entries, self.ready.taken, self.ready.taken + self.ready.count)
        self.add_in_flight(entries)
        return entries

    cdef int add_ready(self, StateWriter entries, int64_t first, int64_t end) except -1:
        """Append what is ready again, of the messages that ever were those from ``first`` on that are left."""
        cdef MessageEntry entry
        cdef int64_t i
        entry.due_ms = 0
        for i in range(max(first, self.ready.taken), end):
            entry.where = self.ready.at(i - self.ready.taken).where
            entry.place = self.ready.at(i - self.ready.taken).place
            entries.append(&entry, 1)
        return 0

    cdef int add_in_flight(self, StateWriter entries) except -1:
        cdef Subscription subscription
        cdef MessageEntry entry
        cdef int32_t slot
        for subscription in self.subscriptions + self.orphans:
            slot = subscription.waiting.head
            while slot >= 0:
                entry = waiting_entry(&self.in_flight.entries[slot], 0)
                entries.append(&entry, 1)
                slot = self.in_flight.entries[slot].next
        return 0

    def take_changes(self):
        cdef ChannelQueue queue
        cdef StateWriter writer = None
        self.trim()
        if self.ephemeral:
            return None
        for queue in self.queues:
            if queue.finished.has_changes() or self.notes.size or self.cuts:
                break
        else:
            return None
        writer = begin_state(STATE_CHANGES)
        for queue_id, end in self.cuts:
            writer.put_u8(SECTION_CUT)
            writer.put_u16(queue_id)
            writer.put_i64(end)
        self.cuts = []
        for queue in self.queues:
            if queue.finished.has_changes():
                write_position(writer, queue)
                queue.finished.write_changes(writer, queue.queue_id)
        writer.put_entries(self.notes)
        self.notes = StateWriter()
        return writer.finish()

    def snapshot_parts(self, Py_ssize_t entries=65_536):
        cdef ChannelQueue queue
        cdef StateWriter writer = begin_state(STATE_SNAPSHOT)
        cdef StateWriter waiting
        cdef int64_t at = self.ready.taken
        cdef int64_t end = at + self.ready.count
        cdef int64_t number = self.deferred.begin_save()
        cdef bint more = True
        for queue in self.queues:
            write_position(writer, queue)
            queue.finished.write_all(writer, queue.queue_id)
        try:
            while more:
                waiting = StateWriter()
                at = max(at, self.ready.taken)      # what left meanwhile is in flight, or noted since
                if at < end:
                    self.add_ready(waiting, at, min(at + entries, end))
                    at += entries
                if at >= end:
                    more = self.deferred.save_some(waiting, entries)
                    if not more:
                        self.add_in_flight(waiting)
                writer.put_entries(waiting)
                yield writer.finish()
                writer = begin_state(STATE_SNAPSHOT)
        finally:
            self.deferred.end_save(number)

    def restore(self, states, *, int64_t now_ms=0):
        cdef RestoredState restored = RestoredState()
        if self.queues:
            raise ValueError("a channel is restored before its queues are added")
        for state in states:
            try:
                restored.apply(state)
            except ValueError as exc:
                logger.warning("channel state damaged topic=%s channel=%s error=%s effect=%s", self.topic_name,
                               self.name, exc, "messages it recorded as finished may be delivered again")
        restored.part_by_queue()
        restored.now_ms = now_ms
        self.restored = restored

    def add_queue(self, QueueBase queue not None, int64_t start_offset):
        cdef RestoredState restored = self.restored
        cdef ChannelQueue added = ChannelQueue.__new__(ChannelQueue)
        cdef FinishedSet seen
        cdef MessageEntry* entries
        cdef int64_t end = max(queue.next_offset, queue.visible_offset)
        cdef int64_t clamped = 0
        cdef Py_ssize_t i, first, behind
        if queue.queue_id != len(self.queues):
            raise ValueError(f"queue {queue.queue_id} comes after {len(self.queues)} queues: they are added in the order of their ids")
        added.queue = queue
        added.log = queue.log
        added.queue_id = queue.queue_id
        added.limit = -1
        added.origin = start_offset
        added.finished = FinishedSet(start_offset, records_changes=not self.ephemeral)
        if restored is not None:
            added.origin = max(start_offset, queue.visible_offset)
        if restored is not None and queue.queue_id in restored.positions:
            added.finished = restored.positions.pop(queue.queue_id)
            clamped = added.finished.truncate(end)
            added.finished.written_floor = added.finished.floor
            added.finished.records_changes = not self.ephemeral
            added.finished.raise_floor(start_offset)
        added.cursor = added.finished.floor
        self.queues.append(added)
        if restored is None:
            return 0
        seen = added.finished.copy()
        entries = <MessageEntry*>restored.entries.data
        first, behind = restored.first_of(queue.queue_id), restored.first_of(queue.queue_id + 1)
        for i in range(first, behind):
            if entries[i].due_ms == DEAD_MS:
                continue
            if <int64_t>(entries[i].place >> 16) >= end:
                clamped += 1
            elif seen.add(entries[i].place >> 16):
                if entries[i].due_ms > 0:
                    self.deferred.add(restored.now_ms, &entries[i])
                else:
                    self.ready.push(entries[i].where, entries[i].place)
        added.cursor = seen.floor
        if seen.ahead:
            added.seen = seen
        if clamped:
            self.cuts.append((queue.queue_id, end))
        restored.left -= behind - first
        if restored.left == 0:
            restored.entries = StateWriter()
        return clamped

    cdef int redeliver_unknown(self) except -1:
        """Let the cursors go back for messages whose deferral was lost with a spill file."""
        cdef StateWriter waiting = self.all_waiting()
        cdef MessageEntry* entries = <MessageEntry*>waiting.data
        cdef ChannelQueue queue
        cdef Py_ssize_t i
        logger.warning("deferred messages become ready at once topic=%s channel=%s messages=%d", self.topic_name,
                       self.name, self.deferred.lost_spills - self.lost_spills)
        self.lost_spills = self.deferred.lost_spills
        for queue in self.queues:
            queue.seen = queue.finished.copy()
        for i in range(waiting.entry_count()):
            self.queue_of(entries[i].place & 0xFFFF).seen.add(entries[i].place >> 16)
        for queue in self.queues:
            queue.cursor = queue.seen.floor
            if queue.seen.ahead == 0:
                queue.seen = None
        self.ahead_queue = -1
        return 0

    cdef int trim(self) except -1:
        """Free what an idle channel does not need."""
        cdef ChannelQueue queue
        for queue in self.queues:
            queue.finished.trim()
        if self.in_flight.count == 0 and self.in_flight.capacity:
            self.in_flight.clear()
        self.ready.trim()
        self.deferred.trim()
        if self.ahead_idle and self.ahead != NULL:      # not used since the last call
            free(self.ahead)
            self.ahead = NULL
            self.ahead_queue = -1
        self.ahead_idle = True
        return 0


cdef inline MessageEntry waiting_entry(const InFlight* in_flight, int64_t due_ms) noexcept:
    """Return a message that was delivered as it waits until ``due_ms`` (0: ready)."""
    cdef MessageEntry entry
    entry.due_ms = due_ms
    entry.where = <uint64_t>in_flight.physical_offset << 16 | in_flight.attempts
    entry.place = <uint64_t>in_flight.queue_offset << 16 | in_flight.queue_id
    return entry


cdef StateWriter begin_state(uint8_t kind):
    cdef StateWriter writer = StateWriter()
    writer.put_u8(kind)
    writer.put_u8(STATE_VERSION)
    return writer


cdef int write_position(StateWriter writer, ChannelQueue queue) except -1:
    writer.put_u8(SECTION_POSITION)
    writer.put_u16(queue.queue_id)
    writer.put_i64(queue.finished.floor)
    writer.put_i64(queue.cursor)
    return 0
