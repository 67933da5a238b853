"""One NSQ client: socket reads in, replies and messages out.

A read is one call of the codec and, for each run of commands it finds, one call of the broker. What the client may say
is in ``states``; replies leave through ``ReplyQueue`` in command order, messages and heartbeats beside it. How the
connection is paused, timed and left is ``net.connection``'s, and how it gives way to others ``net.turns``'.

Ref: nsq.md 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headrace.errors import RequestError, StoreError
from headrace.net.address import born_of
from headrace.net.deadlines import Deadlines
from headrace.net.replies import Reply, ReplyQueue
from headrace.net.server import ServerConnection
from headrace.nsq.coalescing import MIN_IN_FLIGHT, ConsumerReads
from headrace.nsq.codec import (
    CLOSE_WAIT_FRAME,
    FRAME_ERROR,
    FRAME_RESPONSE,
    HEARTBEAT_FRAME,
    OK_FRAME,
    Auth,
    Cls,
    Identify,
    More,
    Rdy,
    Reader,
    Sub,
    encode_frame,
)
from headrace.nsq.command_log import line_of, lines_of
from headrace.nsq.finishes import Finisher
from headrace.nsq.identify import default_profile, identify
from headrace.nsq.joint_publishes import Publisher
from headrace.nsq.refusal import RefusedError, UnheldError, refusal_of
from headrace.nsq.states import ALLOWED_MASK, IGNORED_MASK, NEXT_STATE, Command, State
from headrace.nsq.stats import SOURCE

if TYPE_CHECKING:
    import asyncio

    from headrace.broker.channels.channel import Channel, Subscription
    from headrace.nsq.joint_publishes import Share
    from headrace.nsq.server import NsqServer

logger = logging.getLogger(__name__)

CLOCK_LOOKS: Final = 8
"""Commands, or batches of them, between two looks at the clock: it costs half as much as an RDY."""
MAX_ENDED: Final = 1_000
"""Topics that a connection has published to and that may be gone before it forgets how much it was."""


class NsqConnection(ServerConnection):
    """One client connection.

    Attributes:
        connected_at_ms: When it was taken up, in ms since 1970.
        subscription: What it consumes; None before SUB and when the channel is gone.
        pub_counts: Messages it has published, by topic. Topics that ended are left out when they become many.
    """

    server: NsqServer

    def __init__(self, server: NsqServer) -> None:
        settings = server.settings
        self.state = State.INIT
        self.subscription: Subscription | None = None
        self.pub_counts: dict[str, int] = {}
        self._most_counts = MAX_ENDED
        self.profile = default_profile(settings)
        self.is_buffered = True  # messages may wait a little to be sent with others
        self._channel: Channel | None = None
        self._sub_is_answered = False
        self._consumer_reads: ConsumerReads | None = None
        self._reader = Reader(server.limits, ALLOWED_MASK[State.INIT], IGNORED_MASK[State.INIT])
        self._replies = ReplyQueue(
            server.gate,
            write=self.write_reply,
            failed=self._flush_failed,
            emptied=self._replies_sent,
            overfull=self.wait_for_store,  # a flush that returns lets replies out, and has it read again
        )
        self._publisher = Publisher(server, self, self._reader)
        self._now_ms = self._monotonic_ms = 0  # when the read that is being taken came
        self.connected_at_ms = 0
        deadlines = Deadlines(
            interval_ms=settings.heartbeat_interval_ms,
            now_ms=server.clock.monotonic_ms(),
            patience_ms=2 * settings.max_heartbeat_interval_ms,
        )
        super().__init__(server, self._reader, deadlines)
        self._finisher = Finisher(server, self, self._reader, deadlines)
        self.takers = (self._publisher, self._finisher)

    # -- life ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up the connection, or refuse it at the limit."""
        super().connection_made(transport)
        self.profile = replace(self.profile, client_id=self.host, hostname=self.host)  # until IDENTIFY says otherwise
        self._publisher.born_host, self._publisher.born_v6 = born_of(self.peer_address)
        self.connected_at_ms = self._clock.now_ms()

    def on_full(self) -> None:
        """Refuse the connection: the server has as many as may be."""
        text = f"server has its limit of {self.server.connections.limit} connections"
        self._refuse(RefusedError("E_TOO_MANY_CONNECTIONS", text.encode()))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give up everything this connection holds; what it has in flight comes back by time-out."""
        super().connection_lost(exc)
        self._replies.drop()

    def eof_received(self) -> bool:
        """Refuse the command that the client has cut short, and close."""
        self._publish_joined()
        refusal = None if self.cause else self._reader.cut_short()
        if refusal is not None:
            self._refuse(refusal)
        return super().eof_received()

    def closed_by_broker(self, reason: str) -> None:
        """Close because the channel or its topic was deleted."""
        self.subscription = None
        self._channel = None
        self.leave(reason)

    def on_ending(self) -> None:
        """Take no more commands, and leave the channel."""
        self._publish_joined()
        self._publisher.end()
        self._finisher.end()
        super().on_ending()
        self.server.held_back.discard(self)
        self._end_coalescing()
        subscription = self.subscription
        if subscription is not None:
            self.subscription = None
            self._channel = None
            self.server.broker.unsubscribe(subscription)

    def has_pending_output(self) -> bool:
        """Return whether replies wait for a flush."""
        return len(self._replies) > 0

    # -- reading -------------------------------------------------------------------------------------------------

    def take_read(self, nbytes: int) -> None:
        """Do what ``nbytes`` just read ask for, be it anything."""
        server = self.server
        try:
            self._publish_joined()
            self._reader.received(server.receive.memory, nbytes)
            self._take_commands()
            is_waited_for = self.note_consumer_read()
            if server.gate:  # also where replies of this client wait: they do so there
                server.busy_poll.waits()
            elif is_waited_for:
                server.busy_poll.served()
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            self.fail(error)

    def on_bug(self) -> None:
        """Forget the commands of the read that is being taken."""
        self.server.intake.clear()

    def _take_commands(self) -> None:
        server = self.server
        reader = self._reader
        intake = server.intake
        now_ms = self._now_ms = server.clock.now_ms()
        self._monotonic_ms = server.clock.monotonic_ms()
        self.begin_turn(self._monotonic_ms)
        if server.logs_commands:
            reader.forget_ready()
        before = reader.commands
        until_look = CLOCK_LOOKS
        while not self.cause:
            try:
                command = reader.next_command(intake, now_ms)
            except RefusedError as refusal:
                self._execute()
                if not self.cause:
                    self._refuse(refusal)
            else:
                self._execute(is_last=command is None)
                if command is None:
                    break
                if isinstance(command, More):
                    until_look = 0
                elif not self.cause:
                    if server.logs_commands:
                        logger.debug("command client=%s %s", self.remote_address, line_of(command))
                    _HANDLERS[type(command)](self, command)
            until_look -= 1
            if until_look <= 0 and reader.has_more:
                if self.is_turn_over():
                    self.put_off()
                    break
                until_look = CLOCK_LOOKS
        if reader.commands != before:
            self._deadlines.last_command_ms = self._monotonic_ms
        if self.pub_counts and server.broker.overloaded:
            self.wait_for_store()

    def note_consumer_read(self) -> bool:
        """Let FINs come together if the client only consumes; return whether it may wait for what a read leads to."""
        subscription = self.subscription
        channel = self._channel
        if subscription is None or channel is None or self._consumer_reads is None:
            return True
        if self.pub_counts:
            self._end_coalescing()  # its publishes are waited for
            return True
        consumer = self._consumer_reads
        # One with a small window never has enough in flight to wait.
        is_small = subscription.ready_count < MIN_IN_FLIGHT and consumer.low_water_bytes == 1
        self._finisher.is_plain = True
        self._finisher.is_small = is_small
        if not is_small and self.server.coalescing.note(consumer, subscription):
            return False  # the next read waits for many
        return channel.has_ready()

    def _end_coalescing(self) -> None:
        self._finisher.is_plain = False
        if self._consumer_reads is not None:
            self.server.coalescing.end(self._consumer_reads)
            self._consumer_reads = None

    def wait_for_store(self) -> None:
        """Read no more: the store is behind, or owes this client the replies that it may owe.

        The first not for who only consumes: a FIN takes none of the room that is short, and unread it would come too
        late.
        """
        self.server.hold_back(self)

    def _execute(self, *, is_last: bool = False) -> None:
        """Have the broker do what the codec found, which may wait for the end of the turn if it is the read's last."""
        intake = self.server.intake
        if self.server.logs_commands:
            for line in lines_of(intake):
                logger.debug("command client=%s %s", self.remote_address, line)
        try:
            if intake.publish_commands:
                self._publish(is_last=is_last)
            elif len(intake.settles):
                self._settle()
        finally:
            intake.clear()

    def _publish(self, *, is_last: bool) -> None:
        server = self.server
        intake = server.intake
        batch = intake.publishes
        publisher = self._publisher
        batch.born_host = publisher.born_host
        batch.born_host_v6 = publisher.born_v6
        # A consumer's first publish is noted at once: its FINs are not to be read many at a time any more.
        may_wait = is_last and not len(intake.settles) and (self.subscription is None or publisher.is_plain)
        if may_wait and server.joint_publishes.take(publisher, intake):
            return
        try:
            physical_offset = server.broker.publish(batch)
        except (RequestError, StoreError) as error:
            intake.drop_settles_behind_publishes()
            if len(intake.settles):
                self._settle()
            self._refuse(refusal_of(intake.first_publish_name, error))
            return
        # The client first: what follows is done while it makes its next publish.
        if len(intake.settles):
            self._settle(intake.publish_commands, physical_offset)
        else:
            self._send_oks(intake.publish_commands, physical_offset, intake.first_publish_name)
        statistics = server.statistics
        for topic, (messages, size) in zip(batch.destinations, batch.totals(), strict=True):
            self._note_published(topic, messages)
            statistics.note_put(topic, messages, size, source=SOURCE, host=self.host)

    def _publish_joined(self) -> None:
        """Have what waits for the end of the turn published: something comes behind it."""
        if self._publisher.is_joined:
            self.server.joint_publishes.end_turn()

    def joint_published(self, share: Share, physical_offset: int, monotonic_ms: int) -> None:
        """Answer publishes that were appended with those of others; ``physical_offset`` as for ``_send_oks``."""
        self._deadlines.last_command_ms = monotonic_ms
        self._send_oks(share.commands, physical_offset, share.command_name)
        self._note_published(share.topic, share.messages)

    def publish_refused(self, command_name: str, error: RequestError | StoreError) -> None:
        """Refuse publishes that waited for the end of the turn."""
        self._refuse(refusal_of(command_name, error))

    def _note_published(self, topic: str, messages: int) -> None:
        counts = self.pub_counts
        counts[topic] = counts.get(topic, 0) + messages
        self._publisher.is_plain = True
        if len(counts) > self._most_counts:
            self._forget_ended_topics()

    def _forget_ended_topics(self) -> None:
        """Count no more for topics that are gone: whoever answers requests publishes to a topic for each of them."""
        topics = self.server.broker.topics
        self.pub_counts = {topic: count for topic, count in self.pub_counts.items() if topic in topics}
        self._most_counts = 2 * len(self.pub_counts) + MAX_ENDED

    def _send_oks(self, count: int, physical_offset: int, command_name: str) -> None:
        """Answer publishes, the first of them ``command_name``, when ``physical_offset`` is durable; 0: at once."""
        if not count:
            return
        if physical_offset or self._replies.waiting:
            self._replies.add(Reply(OK_FRAME * count, physical_offset, command_name))
        else:
            self.write_reply(OK_FRAME * count)

    def _settle(self, owed: int = 0, physical_offset: int = 0) -> None:
        """Execute FINs, REQs and TOUCHes; put their errors among the ``owed`` OKs of the publishes around them."""
        server = self.server
        intake = server.intake
        subscription = self.subscription
        channel = self._channel
        name = intake.first_publish_name
        if subscription is None or channel is None:
            self._send_oks(owed, physical_offset, name)
            return
        failed = channel.settle(subscription, intake.settles, self._now_ms, self._monotonic_ms)
        answered = 0
        for position, failures in groupby(intake.failures() if failed else (), key=itemgetter(0)):
            self._send_oks(position - answered, physical_offset, name)
            answered = position
            self._send_failures(failures)
        self._send_oks(owed - answered, physical_offset, name)
        server.broker.touch_channel(channel)

    def refuse_settles(self) -> None:
        """Answer those FINs that failed of a read that has nothing else."""
        self._send_failures(self.server.intake.failures())

    # -- commands ------------------------------------------------------------------------------------------------

    def _move_to(self, command: Command) -> None:
        self.state = NEXT_STATE[self.state, command]
        self._reader.allowed = ALLOWED_MASK[self.state]
        self._reader.ignored = IGNORED_MASK[self.state]

    def _handle_identify(self, command: Identify) -> None:
        try:
            self.profile, data = identify(command.body, self.profile, self.server.settings)
        except RefusedError as refusal:
            self._refuse(refusal)
            return
        self.is_buffered = self.profile.output_buffer_timeout_ms > 0 and self.profile.output_buffer_bytes > 1
        self._reader.heartbeats_off = self.profile.heartbeat_interval_ms == 0
        now_ms = self.server.clock.monotonic_ms()
        self._deadlines.negotiate(self.profile.heartbeat_interval_ms, now_ms)
        self.look_again(now_ms)
        self._replies.add(Reply(encode_frame(FRAME_RESPONSE, data)))

    def _handle_auth(self, command: Auth) -> None:
        self._refuse(RefusedError("E_AUTH_DISABLED", b"AUTH disabled"))

    def _handle_sub(self, command: Sub) -> None:
        broker = self.server.broker
        try:
            topic = broker.ensure_topic(command.topic)
            channel = broker.ensure_channel(topic, command.channel)
            physical_offset = broker.made_at(topic, channel)
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
        self._consumer_reads = ConsumerReads(self._transport)
        self._finisher.consume(channel, subscription)
        # Nothing is delivered before the OK, which waits until the channel is durable.
        subscription.writable = False
        self._replies.add(Reply(OK_FRAME, physical_offset, "SUB", self._sub_answered))

    def _handle_rdy(self, command: Rdy) -> None:
        if self.subscription is not None and self._channel is not None:
            self.subscription.ready_count = command.count
            self.server.broker.touch_channel(self._channel)
            if not self.server.logs_commands:
                self._reader.keep_ready(command.count)

    def _handle_cls(self, command: Cls) -> None:
        if self.subscription is not None:
            self.subscription.ready_count = 0
        self._move_to(Command.CLS)
        self._replies.add(Reply(CLOSE_WAIT_FRAME))

    # -- writing -------------------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int) -> None:
        """Look at the deadlines; a publish that waits for the end of the turn is a sign of life."""
        self._publish_joined()
        super().on_timer(now_ms)

    def on_heartbeat(self) -> None:
        """Send a heartbeat, but not before the magic; it does not wait for replies that wait."""
        if self._reader.magic_seen:
            self.write(HEARTBEAT_FRAME)

    def on_blocked(self) -> None:
        """Stop delivery: the client is behind. It goes on finishing, which causes no replies."""
        if self.subscription is not None:
            self.subscription.writable = False

    def on_writable(self) -> None:
        """Let the channel deliver, if SUB is answered and the client is not behind."""
        if self.subscription is None or self._channel is None:
            return
        if self._sub_is_answered and not self.is_blocked:
            self.subscription.writable = True
            self.server.broker.touch_channel(self._channel)

    def _sub_answered(self) -> None:
        self._sub_is_answered = True
        self.on_writable()

    # -- refusing ------------------------------------------------------------------------------------------------

    def _send_failures(self, failures: Iterable[tuple[int, str, bytes]]) -> None:
        """Answer FINs, REQs and TOUCHes that failed, in one write: a read may have thousands."""
        refusals = self.server.counters.refusals
        frames = []
        for _, code, data in failures:
            refusals[code] += 1
            frames.append(encode_frame(FRAME_ERROR, data))
        self._replies.add(Reply(b"".join(frames)))

    def _refuse(self, refusal: RefusedError) -> None:
        """Answer with an error frame; close behind it if the refusal is fatal."""
        if refusal.start:
            self.server.refusal_log.note(self.remote_address, refusal)
        elif isinstance(refusal, UnheldError):
            self.server.refusal_log.note_no_memory(self.remote_address, str(refusal))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("command refused client=%s error=%s fatal=%s", self.remote_address, refusal, refusal.fatal)
        if refusal.code:
            self.server.counters.refusals[refusal.code] += 1
            self._replies.add(Reply(encode_frame(FRAME_ERROR, refusal.data)))
        if refusal.fatal:
            self.leave("refused" if refusal.code else "line too long")

    def _flush_failed(self, reply: Reply, error: StoreError) -> None:
        """Refuse the publish whose flush failed; the queue has dropped everything behind it."""
        if not self.is_closing():
            refusal = refusal_of(reply.command, error)
            self.server.counters.refusals[refusal.code] += 1
            self.write(encode_frame(FRAME_ERROR, refusal.data))
        if self.cause:
            self.shut()
        else:
            self.leave("flush failed")

    def _replies_sent(self) -> None:
        if self.cause:
            self.shut()
        elif not self.server.gate:
            self.server.busy_poll.answered()


_HANDLERS: Final[dict[type, Callable[[NsqConnection, Any], None]]] = {
    Identify: NsqConnection._handle_identify,
    Auth: NsqConnection._handle_auth,
    Sub: NsqConnection._handle_sub,
    Rdy: NsqConnection._handle_rdy,
    Cls: NsqConnection._handle_cls,
}
