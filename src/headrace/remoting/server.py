"""The RocketMQ broker server: two listeners, their connections, pulls that wait, and the one timer they share.

Pulls that wait are left with the core's ``HeldPulls``, which calls back when the queue grows or the deadline passes;
those that came back are gathered and served together in the next turn of the event loop, so a batch of publishes wakes
each of them once. A pull whose next record is on the disk waits among ``cold_pulls`` until the store has read ahead.

Ref: remoting.md 4.4, 5.1.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.batch import RecordBatch
from headrace.errors import ClosingError
from headrace.net.listener import connection_limit
from headrace.net.turns import TURN_MS
from headrace.remoting.codec import Limits, SendIntake
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.handlers.pull import ServedPull, refuse_waiting, resume
from headrace.remoting.handlers.transactions import ask_through
from headrace.remoting.large_requests import LargeRequests
from headrace.remoting.metrics import RemotingCounters
from headrace.remoting.reading.known_pulls import KnownPulls
from headrace.remoting.reading.reader_stream import COLD_MOST_MS, COLD_RETRY_MS
from headrace.remoting.reading.subscriptions import EVERYTHING, is_crowded
from headrace.remoting.request_connection import RequestServer
from headrace.remoting.sending.joint_sends import JointSends
from headrace.remoting.sending.late_answers import LateAnswers

if TYPE_CHECKING:
    from headrace.remoting.guard import Guard
    from headrace.remoting.services import Services
    from headrace.settings import RemotingSettings

FRAME_SETTING: Final = "remoting.max_frame_bytes"
# What a 0 in remoting.max_connections leaves to the store and the other listeners.
_RESERVED_FILES: Final = 4 * 1024
COLD_CROWDED_S: Final = 0.1
"""After which a pull reads again that found no place among those that wait for the disk."""
SHORT_POLLING_MS: Final = 1_000
"""How long pulls wait while ``longPollingEnable`` is off."""
FORGET_PULLS_MS: Final = 60_000
"""How long ``known_pulls`` may keep a topic that was deleted."""
MAX_AT_ONCE: Final = 64
"""Woken pulls that are served in one turn of the loop, if there is time."""


class RemotingServer(RequestServer[RemotingConnection]):
    """Serves RocketMQ clients on one address and its VIP address.

    Attributes:
        services: What the handlers work on.
        counters: What the server counts.
        guard: Access control; None when it is off.
        joint_sends: Appends small sends of many clients together.
        large_requests: Those that wait for their turn.
        known_pulls: Pulls whose checks need not be made again.
        late_answers: Answers to sends that wait for the disk.
    """

    settings: RemotingSettings
    counters: RemotingCounters

    def __init__(self, services: Services, *, guard: Guard | None = None) -> None:
        settings = services.settings
        super().__init__(
            "remoting",
            services.clock,
            connection_limit(settings.max_connections, _RESERVED_FILES),
            RemotingCounters(),
            max_unread_bytes=settings.max_unread_bytes,
            busy_poll_us=services.broker.settings.busy_poll_us,
        )
        self.services = services
        self.guard = guard
        self.broker = services.broker
        self.settings = settings
        self.addresses: list[str] = []
        self.limits = Limits(
            self.broker.topics,
            cluster=settings.cluster.encode(),
            max_frame_bytes=settings.max_frame_bytes,
            frame_setting=FRAME_SETTING,
            max_message_bytes=settings.max_message_bytes,
            held_sends=services.held_sends,
        )
        # With access control every send is looked at, so none may go past it: the codec leaves them as commands.
        self.reader_limits = self.limits
        if guard is not None:
            self.reader_limits = Limits(
                (),
                max_frame_bytes=settings.max_frame_bytes,
                frame_setting=FRAME_SETTING,
                max_message_bytes=settings.max_message_bytes,
                leaves_sends=True,
            )
        # One of each for all connections: a read, and an answer, is over before the next begins.
        self.intake = SendIntake()
        self.joint_sends = JointSends(self)
        self.large_requests = LargeRequests(services.clock)
        self.records = RecordBatch()
        self.known_pulls = KnownPulls(services, self.counters, self.records)
        self.late_answers = LateAnswers(services.clock, settings.flush_timeout_ms)
        self._forget_pulls_ms = 0
        self._woken: deque[ServedPull] = deque()
        self._is_waking = False

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self, sockets: list[socket.socket]) -> None:
        """Listen on bound sockets."""
        for bound in sockets:
            address = await self.listen(bound, lambda: RemotingConnection(self), is_guarded=self.guard is not None)
            self.addresses.append(address)
        ask_through(self.services)

    async def stop(self) -> None:
        """Refuse the pulls that wait, then stop as every server does.

        Clients pull again some seconds later: Java's and Go's would wait for an answer for 30 s, as they do not notice
        that the connection has ended.
        """
        self.services.holds.wake_all()
        self.services.group_services.cold_pulls.wake_all()
        while self._woken:
            refuse_waiting(self._woken.popleft(), ClosingError("the broker is stopping"))
        await super().stop()

    def connection_lost(self, connection: RemotingConnection) -> None:
        """Forget a connection, and tell the groups whose member it was."""
        super().connection_lost(connection)
        self.services.notices.tell(self.services.clients.drop_owner(connection))

    # -- pulls that wait -----------------------------------------------------------------------------------------

    def hold(self, held: ServedPull, offset: int) -> bool:
        """Have a pull wait at ``offset``; return False if its time is over or too many wait, so it is answered now."""
        now_ms = self.clock.monotonic_ms()
        is_first = not held.deadline_ms
        if is_first:
            most_ms = self.settings.max_hold_ms
            if not self.services.long_polling:
                most_ms = min(most_ms, SHORT_POLLING_MS)
            wait_ms = min(held.request.suspend_timeout_ms, most_ms)
            if wait_ms <= 0:
                return False
            held.deadline_ms = now_ms + wait_ms
        if now_ms >= held.deadline_ms:
            return False
        held.offset = offset
        if held.wanted is not EVERYTHING and is_crowded():
            self.services.holds.counters.refused += 1
            return False
        waiting = self.services.holds.hold(
            held.queue,
            offset,
            held.deadline_ms,
            lambda: self.wake(held),
            owner=held.connection,
            codes=held.wanted.hashes,
        )
        self.counters.held_pulls += is_first and waiting is not None
        return waiting is not None

    def hold_cold(self, held: ServedPull) -> bool:
        """Have a pull wait until the store has read its next record from the disk, or for a moment.

        Returns:
            False when it has done so for as long as may be: it is answered now.
        """
        now_ms = self.clock.monotonic_ms()
        held.cold_since_ms = held.cold_since_ms or now_ms
        if now_ms - held.cold_since_ms >= COLD_MOST_MS:
            return False
        cold = self.services.group_services.cold_pulls
        due_ms = now_ms + COLD_RETRY_MS
        if cold.hold(held.queue, held.offset, due_ms, lambda: self.wake(held), owner=held.connection) is None:
            # Too many wait: it reads again a little later, not in every turn of the loop.
            asyncio.get_running_loop().call_later(COLD_CROWDED_S, self.wake, held)
        return True

    def drop_holds(self, connection: RemotingConnection) -> None:
        """Forget the pulls of a connection that ends."""
        self.services.holds.drop(connection)
        self.services.group_services.cold_pulls.drop(connection)
        self.services.readers.waits.drop(connection)

    def wake(self, held: ServedPull) -> None:
        """Have a pull read again in the next turn of the loop."""
        self._woken.append(held)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._serve_woken)

    def _serve_woken(self) -> None:
        """Have woken pulls read again: as many as a turn has time for, as a filter may take its time."""
        until_ms = self.clock.monotonic_ms() + TURN_MS
        try:
            for _ in range(min(len(self._woken), MAX_AT_ONCE)):
                held = self._woken.popleft()
                try:
                    resume(held)
                except Exception as error:  # noqa: BLE001  # not even its refusal could be sent
                    held.connection.fail(error)
                if self.clock.monotonic_ms() >= until_ms:
                    break
        finally:
            self._is_waking = bool(self._woken)
            if self._is_waking:
                asyncio.get_running_loop().call_soon(self._serve_woken)

    def check_timers(self, now_ms: int) -> None:
        """Have connections whose deadline may be due look at their clocks; answer what waits for the disk too long."""
        super().check_timers(now_ms)
        self.late_answers.tick(now_ms)
        if now_ms >= self._forget_pulls_ms:
            self._forget_pulls_ms = now_ms + FORGET_PULLS_MS
            self.known_pulls.forget()
