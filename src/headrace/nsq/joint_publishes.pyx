"""Small publishes of many clients, appended together: see joint_publishes.pyi."""

import logging

from headrace.batch cimport CopiedBatch, PublishBatch
from headrace.net.joint_turn cimport JointTurn
from headrace.net.wire cimport ReadTaker
from headrace.nsq.codec cimport Reader
from headrace.nsq.intake cimport Intake

from headrace.errors import RequestError, StoreError
from headrace.net.joint_turn import MAX_SHARE_BYTES as _MAX_SHARE_BYTES
from headrace.net.joint_turn import MEMORY_BYTES
from headrace.nsq.stats import SOURCE

logger = logging.getLogger(__name__)

cdef Py_ssize_t MAX_SHARE_BYTES = _MAX_SHARE_BYTES

cdef enum:
    COPIED_PER_BYTE = 3     # what copies of a read may take for each of its bytes: 20 for the host of a PUB of 11


cdef class Publisher(ReadTaker):
    def __init__(self, server, client, Reader reader not None):
        self.client = client
        self._reader = reader
        self._joint = server.joint_publishes

    cpdef bint take_read(self, Py_ssize_t nbytes) except -1:
        if not self.is_plain or self.is_joined or nbytes > MAX_SHARE_BYTES or self._joint._server.logs_commands:
            return False
        return self._joint._take_read(self, nbytes)

    def end(self):
        self.is_plain = False
        self.client = None


cdef class Share:
    pass


cdef class JointPublishes(JointTurn):
    def __init__(self, server):
        JointTurn.__init__(self)
        self._server = server
        self._clock = server.clock
        self._intake = server.intake
        self._received = server.receive.memory
        self._batch = CopiedBatch(MEMORY_BYTES)
        self._places = {}

    def take(self, Publisher publisher not None, Intake intake not None):
        cdef PublishBatch source = intake.publishes
        if not self.is_worth_it() or len(source.destinations) != 1 or source.body_bytes > MAX_SHARE_BYTES:
            return False
        if not self._batch.has_room(source):
            self.end_turn()
            return False
        return self._take(publisher, source, intake.publish_commands, intake.first_publish_name)

    cdef bint _take_read(self, Publisher publisher, Py_ssize_t length) except -1:
        cdef Intake intake = self._intake
        cdef Reader reader = publisher._reader
        if self._alone or not reader.holds_only_pubs(self._received, length):
            return False
        if not self._batch.has_bytes(COPIED_PER_BYTE * length):
            self.end_turn()
            return False
        if not self._shares:
            self._note_read()
        try:
            reader.received(self._received, length)
            reader.next_command(intake, 0)
            intake.publishes.born_host = publisher.born_host
            intake.publishes.born_host_v6 = publisher.born_v6
            return self._take(publisher, intake.publishes, intake.publish_commands, intake.first_publish_name)
        finally:
            intake.clear()

    cdef int _take_batch(self, Publisher publisher, PublishBatch source) except -1:
        if not self._batch.has_room(source):
            self.end_turn()
        if not self._shares:
            self._note_read()
        self._take(publisher, source, 1, "")
        return 0

    def _note_read(self):
        """Have the loop look for the next reads, as after one that goes through the connection; once a turn."""
        server = self._server
        if server.gate:
            server.busy_poll.waits()
        else:
            server.busy_poll.served()

    cdef bint _take(self, Publisher publisher, PublishBatch source, Py_ssize_t commands, str name) except -1:
        """Take over what was parsed, for which there is room: all of it for one topic."""
        cdef str topic = source.destinations[0]
        cdef Share share = Share.__new__(Share)
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = len(self._places)
        share.publisher = publisher
        share.client = publisher.client
        share.topic = topic
        share.first = self._batch.count
        share.messages = source.count
        share.body_bytes = source.body_bytes
        share.commands = commands
        share.command_name = name
        if not self._batch.take(source, [place]):
            raise RuntimeError("no room for what was found to fit")     # it must not be answered as stored
        publisher.is_joined = True
        self.add(share)
        return True

    def append(self, list shares not None):
        cdef CopiedBatch batch = self._batch
        cdef Share share
        batch.destinations = list(self._places)
        for share in shares:
            share.publisher.is_joined = False
        error = self._append(batch, shares)
        if error is None:
            return
        for share in shares:
            if len(shares) > 1:
                error = self._append(batch.part(share.first, share.messages), [share])
            if error is not None:
                share.client.publish_refused(share.command_name, error)

    def clear(self):
        self._batch.clear()
        self._places.clear()

    cdef object _append(self, PublishBatch batch, list shares):
        """Append and answer; return why nothing was appended."""
        cdef Share share
        server = self._server
        try:
            physical_offset = server.broker.publish(batch)
        except (RequestError, StoreError) as error:
            return error
        # Who publishes to a topic that nobody waits for the disk for does not wait for that of another.
        offsets = None
        if physical_offset:
            offsets = {
                topic: physical_offset if queue.awaits_flush else 0
                for topic, queue in zip(batch.destinations, batch.queues, strict=True)
            }
        monotonic_ms = self._clock.monotonic_ms()
        # The clients first: what follows is done while they make their next publishes.
        for share in shares:
            try:
                share.client.joint_published(share, offsets[share.topic] if physical_offset else 0, monotonic_ms)
            except Exception:   # the others' messages are stored, too
                logger.exception("answer to joint publishes failed by a bug client=%s", share.client.remote_address)
                share.client.abort("internal error")
        self._note_put(server.statistics, shares)
        if server.broker.overloaded:
            for share in shares:
                share.client.wait_for_store()
        if server.gate:
            server.busy_poll.waits()
        return None

    def _note_put(self, statistics, list shares):
        """Count by topic and host: in one step what one behind the other count in the same place."""
        cdef Share share
        cdef Publisher publisher
        cdef Py_ssize_t calls = 0, messages = 0
        cdef int64_t size = 0
        current = None
        version = statistics.rows_version
        for share in shares:
            publisher = share.publisher
            if publisher._row is None or publisher._rows_version != version or publisher._row_topic != share.topic:
                host = share.client.host
                statistics.note_put(share.topic, share.messages, share.body_bytes, source=SOURCE, host=host)
                publisher._row = statistics.row_of_put(share.topic, source=SOURCE, host=host)
                publisher._row_topic = share.topic
                publisher._rows_version = version = statistics.rows_version
                continue
            if publisher._row is not current:
                if calls:
                    statistics.count(current, messages, size, calls)
                current = publisher._row
                calls = messages = 0
                size = 0
            calls += 1
            messages += share.messages
            size += share.body_bytes
        if calls:
            statistics.count(current, messages, size, calls)
