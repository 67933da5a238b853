"""Plain sends of one read or of many: gathered as a batch to append, and answered.

``plain_send`` adds each; its properties are in blocks that the entries borrow from until ``clear()``, its body is borrowed
from the receive buffer.

Ref: remoting.md 2.5, 2.7.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from headrace.batch cimport CopiedBatch, PublishBatch, PublishEntry
from headrace.format.record cimport MAX_BODY_BYTES, MAX_TOPIC_BYTES
from headrace.remoting.header cimport FLAG_RESPONSE, encode_frame
from headrace.remoting.sending.send_replies cimport ID_TEXT_BYTES, RESPONSE_BYTES, Send, put_reply

cdef enum:
    MAX_ENTRIES_KEPT = 65536

_REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

# What is an enum to other modules has no name in Python yet.
globals().update(HOLD_NONE=HOLD_NONE, HOLD_TIMED=HOLD_TIMED, HOLD_HALF=HOLD_HALF)

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
                at = put_reply(at, send, &self.batch.entries[send.first_entry], queue_id, host_text, host_chars)
        replies = PyBytes_FromStringAndSize(start, at - start)
        return replies if not failed else b"".join([replies, *failed])

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
