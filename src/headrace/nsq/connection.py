"""One NSQ client: socket reads in, replies and messages out.

A read is one call of the codec and, for each run of commands it finds, one call of the broker. Three things are kept
apart: the protocol state (``states.py``: what the client may say), the pauses (why its socket is not read), and
whether the connection is leaving (a fatal refusal: the frame is sent, the write side shut, what still comes in is
thrown away for a moment, because a reset would take the frame with it).

Ref: nsq.md 1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.errors import RequestError, StoreError
from headrace.net.listener import format_address
from headrace.nsq.codec import (
    CLOSE_WAIT_FRAME,
    FRAME_ERROR,
    FRAME_RESPONSE,
    HEARTBEAT_FRAME,
    OK_FRAME,
    Auth,
    Cls,
    Identify,
    Rdy,
    Reader,
    Sub,
    encode_frame,
    encode_messages,
)
from headrace.nsq.deadlines import Deadlines
from headrace.nsq.identify import default_profile, identify
from headrace.nsq.refusal import RefusedError, refusal_of
from headrace.nsq.replies import Reply, ReplyQueue
from headrace.nsq.states import ALLOWED_MASK, IGNORED_MASK, NEXT_STATE, Command, State
from headrace.nsq.stats import ClientStats

if TYPE_CHECKING:
    from headrace.broker.channel import Channel, Subscription
    from headrace.nsq.server import NsqServer

logger = logging.getLogger(__name__)

LINGER_MS: Final = 1000  # how long a refused client may take to read its error frame
LONGEST_LINGER_MS: Final = 60_000  # how long it may take to read what is before that frame


class Pause(IntFlag):
    """Why a connection is not read from."""

    STORE = 1  # more bytes await a flush than the store allows
    REPLIES = 2  # the client does not read its replies
    LEAVING = 4  # the server stops


class NsqConnection(asyncio.BufferedProtocol):
    """One client connection."""

    def __init__(self, server: NsqServer) -> None:
        self.id = 0
        self.state = State.INIT
        self.subscription: Subscription | None = None
        self.pub_counts: dict[str, int] = {}
        self.profile = default_profile(server.settings)
        self._server = server
        self._channel: Channel | None = None
        self._transport = cast(asyncio.Transport, None)
        self._reader = Reader(server.limits, ALLOWED_MASK[State.INIT], IGNORED_MASK[State.INIT])
        self._replies = ReplyQueue(
            server.broker.gate, write=self._write_reply, failed=self._flush_failed, emptied=self._replies_sent
        )
        self._remote_address = ""
        self._born_host = 0
        self._connected_at_ms = 0
        self._cause = ""  # why it is being closed; empty while it is served
        self._shut_at_ms = 0  # when a leaving connection is cut
        self._pauses = Pause(0)
        self._write_paused = False
        self._written_bytes = 0
        self._paused_reply_bytes = 0
        self._deadlines = Deadlines(
            interval_ms=self.profile.heartbeat_interval_ms,
            now_ms=server.clock.monotonic_ms(),
            patience_ms=2 * server.settings.max_heartbeat_interval_ms,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection, or refuse it at the limit."""
        server = self._server
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=server.settings.write_high_water_bytes)
        peer = transport.get_extra_info("peername")
        self._remote_address = format_address(peer)
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        self.profile = replace(self.profile, client_id=host, hostname=host)  # until IDENTIFY says otherwise
        self._born_host = _born_host(peer)
        self._connected_at_ms = server.clock.now_ms()
        number = server.connections.add(self)
        if number is None:
            logger.warning(
                "connection refused at the limit client=%s limit=%d", self._remote_address, server.connections.limit
            )
            text = f"server has its limit of {server.connections.limit} connections"
            self._refuse(RefusedError("E_TOO_MANY_CONNECTIONS", text.encode()))
            return
        self.id = number
        self._look_again(server.clock.monotonic_ms())

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give up everything this connection holds; what it has in flight comes back by time-out."""
        server = self._server
        cause = self._cause or ("connection lost" if exc else "client closed")
        self._cause = cause
        self._unsubscribe()
        self._replies.drop()
        self._reader.discard()
        server.wheel.cancel(self)
        server.overloaded.discard(self)
        server.connections.remove(self.id, cause)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("connection closed client=%s cause=%s error=%s", self._remote_address, cause, exc)
        server.connection_closed()

    def eof_received(self) -> bool:
        """Close, but not before replies that wait for a flush are out: _shut closes behind them."""
        if not self._cause:
            self._leave("client closed")
        return len(self._replies) > 0

    def leave(self, cause: str) -> None:
        """Answer what is pending, then close."""
        if not self._cause:
            self._pause(Pause.LEAVING)
            self._leave(cause)

    def abort(self, cause: str) -> None:
        """Close at once."""
        self._cause = self._cause or cause
        # Also when it is closing already: that waits for output which the peer may never take.
        self._transport.abort()

    def closed_by_broker(self, reason: str) -> None:
        """Close because the channel or its topic was deleted."""
        self.subscription = None
        self._channel = None
        self._leave(reason)

    def stats(self) -> ClientStats:
        """Return what ``/stats`` shows of this client."""
        subscription = self.subscription
        return ClientStats(
            client_id=self.profile.client_id,
            hostname=self.profile.hostname,
            user_agent=self.profile.user_agent,
            remote_address=self._remote_address,
            state=int(self.state),
            connect_ts=self._connected_at_ms // 1000,
            ready_count=subscription.ready_count if subscription else 0,
            in_flight_count=subscription.in_flight_count if subscription else 0,
            message_count=subscription.message_count if subscription else 0,
            finish_count=subscription.finish_count if subscription else 0,
            requeue_count=subscription.requeue_count if subscription else 0,
            sample_rate=self.profile.sample_rate,
            pub_counts=dict(self.pub_counts),
        )

    # -- reading -------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket is read to: the loop's buffer, or that of a large command."""
        return self._reader.room() or self._server.receive.view

    def buffer_updated(self, nbytes: int) -> None:
        """Do what the bytes just read ask for; nothing keeps a view of them after this call."""
        self._server.counters.bytes_in += nbytes
        if self._cause:
            return
        try:
            self._reader.received(self._server.receive.memory, nbytes)
            self._take_commands()
        except Exception:
            logger.exception("connection failed by a bug client=%s", self._remote_address)
            self._server.intake.clear()
            self.abort("internal error")

    def _take_commands(self) -> None:
        server = self._server
        reader = self._reader
        intake = server.intake
        now_ms = server.clock.now_ms()
        before = reader.commands
        while not self._cause:
            try:
                command = reader.next_command(intake, now_ms)
            except RefusedError as refusal:
                self._execute(now_ms)
                if not self._cause:
                    self._refuse(refusal)
                continue
            self._execute(now_ms)
            if command is None:
                break
            if not self._cause:
                _HANDLERS[type(command)](self, command)
        if reader.commands != before:
            self._deadlines.last_command_ms = server.clock.monotonic_ms()
        if server.broker.overloaded:
            self._pause(Pause.STORE)

    def _execute(self, now_ms: int) -> None:
        """Have the broker do what the codec found."""
        intake = self._server.intake
        try:
            if intake.publish_commands:
                self._publish()
            elif len(intake.settles):
                self._settle()
        finally:
            intake.clear()

    def _publish(self) -> None:
        server = self._server
        intake = server.intake
        batch = intake.publishes
        batch.born_host = self._born_host
        try:
            physical_offset = server.broker.publish(batch)
        except (RequestError, StoreError) as error:
            intake.drop_settles_behind_publishes()
            if len(intake.settles):
                self._settle()
            self._refuse(refusal_of(intake.first_publish_name, error))
            return
        counts = self.pub_counts
        for topic, messages in zip(batch.destinations, intake.message_counts(), strict=True):
            counts[topic] = counts.get(topic, 0) + messages
        if len(intake.settles):
            self._settle(intake.publish_commands, physical_offset)
        else:
            self._send_oks(intake.publish_commands, physical_offset)

    def _send_oks(self, count: int, physical_offset: int) -> None:
        if count:
            name = self._server.intake.first_publish_name
            self._replies.add(Reply(OK_FRAME * count, physical_offset, name))

    def _settle(self, owed: int = 0, physical_offset: int = 0) -> None:
        """Execute FINs, REQs and TOUCHes; put their errors among the ``owed`` OKs of the publishes around them."""
        server = self._server
        intake = server.intake
        subscription = self.subscription
        channel = self._channel
        if subscription is None or channel is None:
            self._send_oks(owed, physical_offset)
            return
        failed = channel.settle(subscription, intake.settles, server.clock.now_ms(), server.clock.monotonic_ms())
        answered = 0
        for position, code, data in intake.failures() if failed else ():
            self._send_oks(position - answered, physical_offset)
            answered = position
            self._send_error(code, data)
        self._send_oks(owed - answered, physical_offset)
        server.broker.touch_channel(channel)

    # -- commands ------------------------------------------------------------------------------------------------

    def _move_to(self, command: Command) -> None:
        self.state = NEXT_STATE[self.state, command]
        self._reader.allowed = ALLOWED_MASK[self.state]
        self._reader.ignored = IGNORED_MASK[self.state]

    def _handle_identify(self, command: Identify) -> None:
        try:
            self.profile, data = identify(command.body, self.profile, self._server.settings)
        except RefusedError as refusal:
            self._refuse(refusal)
            return
        self._reader.heartbeats_off = self.profile.heartbeat_interval_ms == 0
        now_ms = self._server.clock.monotonic_ms()
        self._deadlines.negotiate(self.profile.heartbeat_interval_ms, now_ms)
        self._look_again(now_ms)
        self._replies.add(Reply(encode_frame(FRAME_RESPONSE, data)))

    def _handle_auth(self, command: Auth) -> None:
        self._refuse(RefusedError("E_AUTH_DISABLED", b"AUTH disabled"))

    def _handle_sub(self, command: Sub) -> None:
        broker = self._server.broker
        try:
            topic = broker.ensure_topic(command.topic)
            channel = broker.ensure_channel(topic, command.channel)
            physical_offset = broker.last_change
            subscription = broker.subscribe(
                topic,
                channel,
                self,
                msg_timeout_ms=self.profile.msg_timeout_ms,
                sample_rate=self.profile.sample_rate,
            )
        except (RequestError, StoreError) as error:
            self._refuse(refusal_of("SUB", error))
            return
        self._move_to(Command.SUB)
        self.subscription = subscription
        self._channel = channel
        # Nothing is delivered before the OK, which waits until the channel is durable.
        subscription.writable = False
        self._replies.add(Reply(OK_FRAME, physical_offset, "SUB", self._open_window))

    def _handle_rdy(self, command: Rdy) -> None:
        if self.subscription is not None and self._channel is not None:
            self.subscription.ready_count = command.count
            self._server.broker.touch_channel(self._channel)

    def _handle_cls(self, command: Cls) -> None:
        if self.subscription is not None:
            self.subscription.ready_count = 0
        self._move_to(Command.CLS)
        self._replies.add(Reply(CLOSE_WAIT_FRAME))

    # -- writing -------------------------------------------------------------------------------------------------

    def pump(self, subscription: Subscription, max_messages: int, max_bytes: int) -> int:
        """Send messages of the channel, at most one batch within the bounds; return how many."""
        server = self._server
        channel = self._channel
        if channel is None or self._cause:
            return 0
        records = server.records
        try:
            count = channel.deliver(
                subscription, server.clock.now_ms(), server.clock.monotonic_ms(), max_messages, max_bytes, records
            )
            if count:
                self._write(encode_messages(records, server.broker.node_id))
                server.counters.messages_out += count
        finally:
            records.clear()
        return count

    def pause_writing(self) -> None:
        """Stop delivering: the client does not read as fast as it is sent to."""
        server = self._server
        server.counters.write_pauses += 1
        self._write_paused = True
        self._paused_reply_bytes = 0
        if self.subscription is not None:
            self.subscription.writable = False
        now_ms = server.clock.monotonic_ms()
        self._is_write_overdue(now_ms)
        self._look_again(now_ms)

    def resume_writing(self) -> None:
        """Deliver again, and read again where replies had piled up."""
        self._write_paused = False
        self._resume(Pause.REPLIES)
        self._open_window()

    def _open_window(self) -> None:
        """Let the channel deliver, unless the client is behind or its SUB is not answered yet."""
        if self.subscription is not None and self._channel is not None and not self._write_paused and not self._cause:
            self.subscription.writable = True
            self._server.broker.touch_channel(self._channel)

    def _write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._server.counters.bytes_out += len(data)
        self._transport.write(data)

    def _write_reply(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._write(data)
        if self._write_paused:
            # Replies must be kept, so the commands that cause them are not read any more. FINs cause none: a
            # consumer that is behind goes on finishing.
            self._paused_reply_bytes += len(data)
            if self._paused_reply_bytes > self._server.settings.write_high_water_bytes:
                self._pause(Pause.REPLIES)

    def _send_error(self, code: str, data: bytes) -> None:
        self._server.counters.refusals[code] += 1
        self._replies.add(Reply(encode_frame(FRAME_ERROR, data)))

    # -- refusing and leaving ------------------------------------------------------------------------------------

    def _refuse(self, refusal: RefusedError) -> None:
        """Answer with an error frame; close behind it if the refusal is fatal."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("command refused client=%s error=%s fatal=%s", self._remote_address, refusal, refusal.fatal)
        if refusal.code:
            self._send_error(refusal.code, refusal.data)
        if refusal.fatal:
            self._leave("refused" if refusal.code else "line too long")

    def _flush_failed(self, reply: Reply, error: StoreError) -> None:
        if not self._transport.is_closing():
            # Not through the queue: it has just been emptied, so this is the first reply that was not sent.
            refusal = refusal_of(reply.command, error)
            self._server.counters.refusals[refusal.code] += 1
            self._write(encode_frame(FRAME_ERROR, refusal.data))
        self._cause = ""
        self._leave("flush failed")

    def _leave(self, cause: str) -> None:
        """Stop serving; shut the connection behind the replies that are pending."""
        if self._cause:
            return
        self._cause = cause
        self._reader.discard()
        self._unsubscribe()
        if not len(self._replies):
            self._shut()

    def _replies_sent(self) -> None:
        if self._cause:
            self._shut()

    def _shut(self) -> None:
        """Shut the write side and give the client a moment to read; its end of file or the wheel closes."""
        transport = self._transport
        if transport.is_closing():
            return
        now_ms = self._server.clock.monotonic_ms()
        self._shut_at_ms = now_ms + LINGER_MS
        self._server.wheel.schedule(self, self._shut_at_ms)
        if self._cause == "client closed":
            transport.close()
            return
        if self._pauses:
            # What it has sent must be taken off the socket, or closing resets the connection.
            self._pauses = Pause(0)
            self._server.overloaded.discard(self)
            transport.resume_reading()
        transport.write_eof()

    def _unsubscribe(self) -> None:
        subscription = self.subscription
        if subscription is not None:
            self.subscription = None
            self._channel = None
            self._server.broker.unsubscribe(subscription)

    # -- pauses and timers ---------------------------------------------------------------------------------------

    def store_relieved(self) -> None:
        """Go on reading: the store has room again."""
        self._resume(Pause.STORE)

    def _pause(self, reason: Pause) -> None:
        if self._cause or self._transport.is_closing():
            return
        if not self._pauses:
            self._server.counters.read_pauses += 1
            self._transport.pause_reading()
        self._pauses |= reason
        if reason is Pause.STORE:
            self._server.overloaded.add(self)

    def _resume(self, reason: Pause) -> None:
        if not self._pauses & reason:
            return
        self._pauses &= ~reason
        if not self._pauses and not self._transport.is_closing():
            # It could not send meanwhile, so its deadline starts anew.
            self._deadlines.last_command_ms = self._server.clock.monotonic_ms()
            self._transport.resume_reading()

    def on_timer(self, now_ms: int) -> None:
        """Send a heartbeat or enforce a deadline, whichever is due; the wheel calls this."""
        if self._cause:
            self._linger(now_ms)
            return
        # A client that is not read from cannot be late.
        if not self._pauses and self._deadlines.is_read_overdue(now_ms, self._reader.held_bytes):
            self._server.counters.heartbeats_missed += 1
            self.abort("read timeout")
            return
        if self._is_write_overdue(now_ms):
            self.abort("write timeout")
            return
        if self._deadlines.take_heartbeat(now_ms) and not self._write_paused:
            self._server.counters.heartbeats_sent += 1
            self._write(HEARTBEAT_FRAME)
        self._look_again(now_ms)

    def _linger(self, now_ms: int) -> None:
        """Cut a leaving connection when it had its moment, and as long again as it goes on taking what waits for it."""
        waiting = self._transport.get_write_buffer_size() > 0 and now_ms < self._shut_at_ms + LONGEST_LINGER_MS
        if self._shut_at_ms and now_ms >= self._shut_at_ms and (not waiting or self._is_write_overdue(now_ms)):
            self.abort(self._cause)
        else:
            self._server.wheel.schedule(self, now_ms + LINGER_MS)

    def _is_write_overdue(self, now_ms: int) -> bool:
        return self._deadlines.is_write_overdue(now_ms, self._written_bytes, self._transport.get_write_buffer_size())

    def _look_again(self, now_ms: int) -> None:
        self._server.wheel.schedule(self, self._deadlines.next_look_ms(now_ms))


_HANDLERS: Final[dict[type, Callable[[NsqConnection, Any], None]]] = {
    Identify: NsqConnection._handle_identify,
    Auth: NsqConnection._handle_auth,
    Sub: NsqConnection._handle_sub,
    Rdy: NsqConnection._handle_rdy,
    Cls: NsqConnection._handle_cls,
}


def _born_host(peer: object) -> int:
    """Return an IPv4 peer as u32 << 32 | port; 0 for anything else."""
    if not isinstance(peer, tuple) or len(peer) != 2:
        return 0
    host = 0
    for part in str(peer[0]).split("."):
        host = host << 8 | int(part)
    return host << 32 | int(peer[1])
