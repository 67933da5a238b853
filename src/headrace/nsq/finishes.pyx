"""FINs, done in compiled code: see finishes.pyi."""

from headrace.broker.channels.channel cimport Channel, Subscription
from headrace.net.wire cimport ReadTaker
from headrace.nsq.codec cimport Reader
from headrace.nsq.intake cimport Intake


cdef class Finisher(ReadTaker):
    def __init__(self, server, client, Reader reader not None, deadlines):
        self._client = client
        self._deadlines = deadlines
        self._reader = reader
        self._finishes = server.finishes

    def consume(self, Channel channel not None, Subscription subscription not None):
        self._channel = channel
        self._subscription = subscription

    cpdef bint take_read(self, Py_ssize_t nbytes) except -1:
        return self.is_plain and not self._finishes._server.logs_commands and self._finishes._take(self, nbytes)

    def end(self):
        self.is_plain = False
        self._client = None
        self._channel = None
        self._subscription = None


cdef class Finishes:
    def __init__(self, server):
        self._server = server
        self._clock = server.clock
        self._intake = server.intake
        self._received = server.receive.memory
        self._touched = set()

    def end_turn(self):
        self._touched.clear()

    cdef bint _take(self, Finisher finisher, Py_ssize_t length) except -1:
        cdef Intake intake = self._intake
        cdef Reader reader = finisher._reader
        cdef Channel channel = finisher._channel
        if not reader.holds_only_finishes(self._received, length):
            return False
        server = self._server
        if not self._touched:
            self._monotonic_ms = self._clock.monotonic_ms()
        self.reads += 1
        finisher._deadlines.last_command_ms = self._monotonic_ms
        try:
            reader.received(self._received, length)
            reader.next_command(intake, 0)
            if not intake.settles.count:
                return True     # RDYs that change nothing
            if channel.settle(finisher._subscription, intake.settles, 0, self._monotonic_ms):
                finisher._client.refuse_settles()
        finally:
            intake.clear()
        is_waited_for = finisher.is_small or finisher._client.note_consumer_read()
        if channel not in self._touched:
            server.broker.touch_channel(channel)
            self._touched.add(channel)
            # The loop looks for the next reads, as after one that goes through the connection.
            if server.gate:
                server.busy_poll.waits()
            elif is_waited_for and channel.has_ready():
                server.busy_poll.served()
        return True
