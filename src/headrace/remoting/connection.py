"""One RocketMQ client: socket reads in, responses out, and requests of the broker to it.

A read is one call of the codec for each run of plain sends, which becomes one batch of the broker and one write of
responses, and one for a run of pulls that were checked before; every other request goes through the table of
``handlers``. What ends transactions and what sends messages back is gathered: a run of such requests is one batch, too.
Requests of one connection are applied in the order they came, so a heartbeat counts for the pulls behind it. Responses
may leave in any order: clients match them by number, so what waits for the disk holds up nothing else.

An exception that no handler meant is logged and answered ``internal error``: no peer sees a traceback.

Ref: remoting.md 1, 5.1.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.gathering import Gathering
from headrace.errors import ProtocolError, StoreError
from headrace.net.address import born_of
from headrace.net.connection import Pause
from headrace.remoting.calls import Answered, PendingCalls
from headrace.remoting.codec import Command, PullRequest, add_send, encode_request
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.handlers.pull import pull
from headrace.remoting.handlers.table import GATHERED, HANDLERS, SERVED
from headrace.remoting.large_requests import is_large
from headrace.remoting.long_answers import take_part
from headrace.remoting.reading.known_pulls import LARGE_ANSWER_BYTES, PullReads
from headrace.remoting.reading.reader_stream import ReaderStream
from headrace.remoting.reply import Reply
from headrace.remoting.request_connection import RequestConnection
from headrace.remoting.sending.intake import append_sends
from headrace.remoting.sending.late_answers import as_late, as_refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.broker.access import User
    from headrace.remoting.guard import Need
    from headrace.remoting.handlers.pull import ServedPull
    from headrace.remoting.reply import Parts, WaitSaved
    from headrace.remoting.sending.late_answers import WaitingAnswer
    from headrace.remoting.server import RemotingServer

logger = logging.getLogger(__name__)

Answers = list[tuple[Command | PullRequest, Reply]]
"""Requests and their responses."""

SENDS: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE))
_GATHER_BYTES: Final = 256 << 10
"""Bytes of responses that leave together."""
_FARTHEST_BEHIND: Final = 8
"""Times ``remoting.write_high_water_bytes`` after which a client that takes nothing is cut."""
_MAX_CALLS: Final = 1_000
"""Requests to one client that may wait for its answers."""
_MAX_POSTPONED: Final = 1_000
"""Pulls that wait until their client takes what was sent, before no more are read from it."""


class RemotingConnection(RequestConnection):
    """One client connection, on either listener.

    Attributes:
        services: What the handlers work on.
        born_host: The peer, IPv4 << 32 | port; 0 for any other.
        born_v6: The peer's 16 address bytes and i32 port when it came over IPv6, else None.
        user: Who sent the request that is being done; None without access control.
        reads: Its bulk reads that are not answered yet.
        has_joined: Sends of it wait for the end of the turn.
    """

    server: RemotingServer
    served_codes = SERVED

    def __init__(self, server: RemotingServer) -> None:
        super().__init__(server, server.reader_limits)
        self.services = server.services
        self.born_host = 0
        self.born_v6: bytes | None = None
        self.user: User | None = None
        self.reads = ReaderStream(self)
        self._calls = PendingCalls()
        self._serialize = 0
        self._postponed: list[ServedPull] = []  # pulls that wait until the client has taken what was sent
        self._gathering: Gathering | None = None  # what the requests of a run write
        self._unwritten: list[tuple[Command, Callable[[], Reply]]] = []  # those requests
        self._outgoing: list[bytes] | None = None  # responses to the requests of the read that is being taken
        self._outgoing_bytes = 0
        self._outgoing_large = 0  # of them, those that keep the client busy
        self.has_joined = False
        self._pull_reads = PullReads(server, self, self._reader)
        self.takers = (self._pull_reads,)

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection, or close it at the limit."""
        super().connection_made(transport)
        self.born_host, self.born_v6 = born_of(self.peer_address)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give up everything this connection holds."""
        super().connection_lost(exc)
        self._calls.drop()

    def leave(self, cause: str) -> None:
        """Stop serving; what the read being taken was answered so far leaves before."""
        self._append_joined()
        self._send_outgoing()
        super().leave(cause)

    def on_ending(self) -> None:
        """Take no more requests; what is held for this client is held no longer."""
        super().on_ending()
        self.server.held_back.discard(self)
        self.server.drop_holds(self)
        self.reads.drop()
        self._postponed.clear()
        self._pull_reads.end()

    def postpone(self, held: ServedPull) -> None:
        """Serve a pull when the client, which is behind, has taken what was sent: its answers must not pile up."""
        self._postponed.append(held)
        if len(self._postponed) >= _MAX_POSTPONED:
            self.pause(Pause.REPLIES)

    def on_writable(self) -> None:
        """Go on with the pulls that waited for the client."""
        postponed, self._postponed = self._postponed, []
        for held in postponed:
            self.server.wake(held)
        self.reads.go_on()

    # -- reading -------------------------------------------------------------------------------------------------

    def on_bug(self) -> None:
        """Forget what was gathered."""
        self.server.intake.clear()
        if self._gathering is not None:
            self._gathering.drop()
        self._outgoing = self._gathering = None
        self._outgoing_bytes = self._outgoing_large = 0
        self._unwritten = []

    def take_commands(self) -> None:
        """Do the requests of one read; what is answered at once leaves together."""
        server = self.server
        self._append_joined()  # in the order in which they came
        log = server.broker.store.log
        log_end = log.end_offset
        self._outgoing = []
        reader = self._reader
        intake = server.intake
        before = reader.commands
        while not self.cause:
            try:
                command = reader.next_command(intake)
            except ProtocolError as error:
                self._write_together()
                append_sends(self)
                self.refuse_frame(error)
                break
            if self._unwritten and (intake.sends or command is None or command.code not in GATHERED):
                self._write_together()
            if intake.sends:
                if command is None and server.joint_sends.take(self):
                    self.has_joined = True
                    self._owed += 1
                elif not self._is_guarded_send(command):
                    append_sends(self)
            if command is None or self.cause:
                break
            if not isinstance(command, PullRequest):
                self.send_large()  # the other of the pair may be far off, and this may take long
                if is_large(command):
                    self._wait_in_line(command)
                    break
            parts = self._execute(command)
            if parts is not None and isinstance(command, Command):
                self._wait_in_line(command, parts)
                break
            if reader.has_more and self.is_turn_over():
                self.put_off()
                break
        self._write_together()
        append_sends(self)  # signed ones in front of what was put off
        if reader.commands != before:
            self._deadlines.last_command_ms = self._turn_began_ms
        if log.end_offset != log_end and server.broker.overloaded:
            # Not for who only reads: that takes none of the room that is short.
            server.hold_back(self)
        self._send_outgoing()

    def _wait_in_line(self, command: Command, parts: Parts | None = None) -> None:
        """Have a request, or what is left of it, done in later turns of the loop, and what is behind it after that."""
        self.pause(Pause.LINE)
        self.server.large_requests.add(self, command, parts)
        self.put_off()

    def do_large(self, command: Command, parts: Parts | None) -> Parts | None:
        """Do a request that waited for its turn, or the next of its parts, and go on behind it; return what is left."""
        if self.cause:
            return None
        try:
            parts = self._execute(command) if parts is None else self._do_part(command, parts)
            self._write_together()
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            self.fail(error)
            return None
        if parts is None:
            self.resume(Pause.LINE)
        return parts

    def _is_guarded_send(self, command: Command | PullRequest | None) -> bool:
        """Whether a request may go together with the sends before it: it is one that the codec left to the guard."""
        guard = self.server.guard
        return guard is not None and isinstance(command, Command) and command.code in SENDS and not command.is_response

    def _append_joined(self) -> None:
        """Have sends that wait for the end of the turn appended and answered: something comes behind them."""
        if self.has_joined:
            self.server.joint_sends.end_turn()

    def _execute(self, command: Command | PullRequest) -> Parts | None:
        """Have a handler do what one request asks for, and answer it; return what is left if it is done in parts."""
        counters = self.server.counters
        if isinstance(command, Command) and command.is_response:
            if not self._calls.take(command) and logger.isEnabledFor(logging.DEBUG):
                logger.debug("late response client=%s opaque=%d", self.remote_address, command.opaque)
            return None
        self._serialize = command.serialize
        code = command.code
        if self.server.logs_commands:
            self.log_request(command)
        try:
            if self.server.guard is not None:
                request = command
                if isinstance(request, PullRequest):
                    ext = {"topic": request.topic, "consumerGroup": request.consumer_group}
                    request = Command(request.code, ext)
                self.user = self.server.guard.admit(request, self.host)
            if isinstance(command, PullRequest):
                counters.requests[code] += 1
                self._pull_reads.is_expected = True
                pull(self, command)
                return None
            if code in SENDS:
                if add_send(self.server.intake, self.server.limits, command):
                    return None  # it was only signed: it goes the common way, with those before and behind it
                append_sends(self)  # those before it
            if code not in SERVED:
                self.refuse_unknown(command)
                return None
            counters.requests[code] += 1
            if code in GATHERED:
                self._gather(command)
                return None
            reply = HANDLERS[code](self, command)
            if reply is not None and not isinstance(reply, Reply):
                return self._do_part(command, reply)
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            reply = self.reply_to(error, code)
        if reply is not None:
            self.answer(command, reply)
        return None

    def _do_part(self, command: Command, parts: Parts) -> Parts | None:
        """Do the next part of a request, and answer it if that was the last; return what is left."""
        reply = take_part(self, command, parts)
        if reply is None:
            return parts
        self.answer(command, reply)
        return None

    def _gather(self, command: Command) -> None:
        """Do a request but for what it writes; what needs no write is answered."""
        if self._gathering is None:
            self._gathering = Gathering(self.services.broker)
        found = GATHERED[command.code](self, command, self._gathering)
        if isinstance(found, Reply):
            self.answer(command, found)
        elif found is not None:
            self._unwritten.append((command, found))
            if self._gathering.is_full:
                self._write_together()

    def _write_together(self) -> None:
        """Write what was gathered, and answer those requests."""
        gathering, self._gathering = self._gathering, None
        if gathering is None or not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        try:
            gathering.publish()
        except Exception as error:  # noqa: BLE001  # as above
            for command, _ in unwritten:
                self.answer(command, self.reply_to(error, command.code))
            return
        waiting: dict[int, Answers] = {}
        for command, finish in unwritten:
            try:
                reply = finish()
            except Exception as error:  # noqa: BLE001  # as above
                reply = self.reply_to(error, command.code)
            if reply.wait_offset and not command.is_oneway:
                waiting.setdefault(reply.wait_offset, []).append((command, reply))
            else:
                self.answer(command, reply)
        for wait_offset, answers in waiting.items():
            self._answer_when_durable(wait_offset, answers)

    def require(self, user: User, need: Need, code: int) -> None:
        """Accept a request of this code whose sender has a right, beyond those that its fields told the guard.

        Raises:
            AccessDeniedError: the sender has it not; that was counted and logged.
        """
        if self.server.guard is not None:
            self.server.guard.require(user, need, code, self.host)

    # -- answering -----------------------------------------------------------------------------------------------

    def respond(self, command: Command | PullRequest, reply: Reply) -> None:
        """Send a response, now or when what it promises is durable."""
        if reply.wait_saved is not None:
            self._answer_when_saved(command, reply, reply.wait_saved)
        elif not reply.wait_offset:
            self.send(reply.encode(command.serialize, command.opaque))
        elif reply.may_be_late:
            refuse_late = partial(self._refuse_late, command.serialize, command.opaque)
            self.send_when_durable(reply.wait_offset, reply.encode(command.serialize, command.opaque), refuse_late)
        else:
            self._answer_when_durable(reply.wait_offset, [(command, reply)])

    def _answer_when_durable(self, wait_offset: int, answers: Answers) -> None:
        """Answer requests when what they wrote is on the disk."""

        def opened(error: StoreError | None) -> None:
            for command, reply in answers:
                self._end_wait(command, reply, "" if error is None else str(error))

        self._owed += len(answers)
        self.services.broker.gate.wait(wait_offset, opened)

    def _answer_when_saved(self, command: Command | PullRequest, reply: Reply, wait_saved: WaitSaved) -> None:
        """Answer a request when what it wrote is on the disk, and behind that the file that its response promises."""

        def saved(error: OSError | None) -> None:
            refusal = ""
            if error is not None:
                reason = error.strerror or error
                refusal = f"cannot write to the disk: {reason}; the change counts, its write is tried again"
            self._end_wait(command, reply, refusal)

        def opened(error: StoreError | None) -> None:
            if error is None:
                wait_saved(saved)
            else:
                self._end_wait(command, reply, str(error))

        self._owed += 1
        self.services.broker.gate.wait(reply.wait_offset, opened)

    def _end_wait(self, command: Command | PullRequest, reply: Reply, refusal: str) -> None:
        """Answer a request that waited; ``refusal`` says why what it waited for will not be, empty where it is."""
        self._owed -= 1
        try:
            if refusal:
                self._refuse_late(command.serialize, command.opaque, refusal)
            else:
                self.send(reply.encode(command.serialize, command.opaque))
        except Exception as error:  # noqa: BLE001  # its client must not wait for what never comes
            self.fail(error)
            return
        self._finish()

    def _refuse_late(self, serialize: int, opaque: int, text: str) -> None:
        """Answer a request whose change could not be made lasting."""
        self.server.counters.refusals[ResponseCode.SERVICE_NOT_AVAILABLE] += 1
        self.send(Reply(ResponseCode.SERVICE_NOT_AVAILABLE, text).encode(serialize, opaque))

    def send_when_durable(
        self, wait_offset: int, data: bytes, refuse_late: Callable[[str], None] | None = None
    ) -> None:
        """Send encoded responses to sends when ``wait_offset`` is durable (0: at once), or late.

        Args:
            refuse_late: What tells the client that it never will be; without it the connection is closed.
        """
        if not wait_offset:
            self.send(data)
            return
        self._owed += 1
        self.services.broker.gate.wait(wait_offset, self.server.late_answers.add(self, data, refuse_late))

    def answer_joined(self, wait_offset: int, data: bytes) -> None:
        """Answer sends that were appended with those of others, when ``wait_offset`` is durable; 0: at once."""
        self.has_joined = False
        self._owed -= 1
        self.send_when_durable(wait_offset, data)

    def refuse_sends(self, data: bytes, text: str) -> None:
        """Send encoded answers to sends that waited for the disk as refusals: it will never have them."""
        data, messages = as_refused(data, text)
        self.server.counters.refusals[ResponseCode.SERVICE_NOT_AVAILABLE] += messages
        self.send(data)

    def let_out(self, answer: WaitingAnswer, error: StoreError | None) -> None:
        """Send what waited for the disk, which has it now, or failed."""
        self._owed -= 1
        if error is None:
            self.send(answer.data)
        elif answer.refuse_late is not None:
            answer.refuse_late(str(error))
        elif not self.cause:
            # The store takes no more writes. Without an answer the client asks elsewhere, or says what failed.
            self.leave("flush failed")
            return
        self._finish()

    def let_out_late(self, answer: WaitingAnswer) -> None:
        """Send what has waited for the disk too long."""
        self._owed -= 1
        data, messages = as_late(answer.data)
        self.server.counters.late_sends += messages
        self.send(data)
        self._finish()

    def send(self, data: bytes) -> None:
        """Send encoded responses; a client that does not take them is not read from."""
        if not data:
            return
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.append(data)
            self._outgoing_bytes += len(data)
            self._outgoing_large += len(data) >= LARGE_ANSWER_BYTES
            # Large ones go in pairs: the client works on two while the next two are served, for half a write each.
            if self._outgoing_large >= 2 or self._outgoing_bytes >= _GATHER_BYTES:
                self._send_outgoing()
                self._outgoing = []
            return
        self.write_reply(data)
        if self.is_blocked and self._unread_replies_bytes > _FARTHEST_BEHIND * self._high_water_bytes:
            self.abort("too far behind")  # what it asked before grows into more than may wait for it

    def send_large(self) -> None:
        """Send the responses gathered so far if a large one is among them."""
        if self._outgoing_large:
            self._send_outgoing()
            self._outgoing = []

    def send_view(self, head: bytes, body: memoryview) -> None:
        """Send a response whose body is borrowed from the log: no copy is made, and it is pinned until it is sent."""
        self.send(head)
        if self.is_closing() or not body:
            return
        self._send_outgoing()
        self.write_view(body)
        # It asked for all of this: as long as it comes, the client is not idle.
        self._deadlines.last_command_ms = self._clock.monotonic_ms()

    def _send_outgoing(self) -> None:
        """Send the responses to one read's requests in one piece: a system call each would cost more than the rest."""
        outgoing, self._outgoing = self._outgoing, None
        self._outgoing_bytes = self._outgoing_large = 0
        if outgoing:
            self.send(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def _is_far_behind(self) -> bool:
        """Return whether as many bytes wait for the client as may, and those of its own requests' answers besides."""
        return self.is_blocked and self._unread_replies_bytes > self._high_water_bytes

    # -- asking the client -----------------------------------------------------------------------------------------

    def notify(self, code: int, ext: dict[str, str], body: bytes | None = None) -> None:
        """Send a one-way request, unless the client is too far behind to be told anything."""
        if self.cause or self.is_closing() or self._is_far_behind():
            return
        self.server.counters.calls[code] += 1
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("told client=%s code=%d ext=%s", self.remote_address, code, ext)
        self.send(encode_request(self._serialize, int(code), self._calls.next_opaque(), True, ext, body))

    def call(
        self, code: int, ext: dict[str, str], body: bytes | None, answered: Answered, *, timeout_ms: int = 0
    ) -> None:
        """Send a request; ``answered`` gets the response, or None after ``remoting.request_timeout_ms``.

        None comes at once where the client is too far behind, for what others ask of it must not pile up here, and
        where no frame can hold the request.
        """
        counters = self.server.counters
        if self.cause or self.is_closing() or self._is_far_behind() or len(self._calls) >= _MAX_CALLS:
            counters.calls_unanswered += 1
            answered(None)
            return
        opaque = self._calls.next_opaque()
        try:
            data = encode_request(self._serialize, int(code), opaque, False, ext, body)
        except ValueError as error:  # in this client's form of header, what another one asks of it may be longer
            logger.warning("client not asked client=%s code=%d error=%s", self.remote_address, code, error)
            counters.calls_unanswered += 1
            answered(None)
            return
        counters.calls[code] += 1

        def ended(response: Command | None) -> None:
            if response is None:
                counters.calls_unanswered += 1
            try:
                answered(response)
            except Exception:
                counters.internal_errors += 1
                logger.exception("response failed by a bug client=%s code=%d", self.remote_address, code)

        self._calls.wait(opaque, timeout_ms or self.server.settings.request_timeout_ms, ended)
        self.send(data)
