"""One producer's connection to nsqlookupd's TCP port.

Its commands are done in the order they come; every error ends it, as with nsqlookupd. The producer is in the table from
IDENTIFY to the end of the connection.

Ref: nsq.md 4.1, 4.2.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.errors import HeadraceError, QuotaExceededError
from headrace.net.address import format_address, peer_of
from headrace.nsq.lookupd.codec import MAGIC, ProducerReader, encode_reply, read_identity
from headrace.nsq.names import is_spelled
from headrace.nsq.refusal import RefusedError

if TYPE_CHECKING:
    from headrace.nsq.lookupd.server import LookupdServer

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 << 10
"""Of commands, before others have their turn: some two milliseconds."""
SHORT_READ_BYTES: Final = 256
"""Commands of a producer that waits for its replies. More of them take turns with all long reads of the server: one in
a turn of the event loop, however many connections send without end."""
LINGER_S: Final = 1.0
"""Time a peer has to read why it was refused."""
_OK: Final = b"OK"


class ProducerConnection:
    """One peer.

    Attributes:
        remote_address: Its host and port.
        cause: Why the connection has ended; empty while it is open.
    """

    def __init__(self, server: LookupdServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.remote_address = format_address(peer_of(writer.get_extra_info("peername")) or ())
        self.cause = ""
        self._server = server
        self._reader = reader
        self._writer = writer
        self._input = ProducerReader()
        self._has_greeted = False
        self._is_identifying = False  # its line has come, its body has not
        self._is_identified = False

    async def serve(self) -> None:
        """Serve until the peer, an error or the server ends it."""
        try:
            await self._serve()
        except TimeoutError:
            self.cause = "timeout"
        except OSError as error:
            self.cause = "connection lost"
            logger.debug("nsqlookupd connection lost client=%s error=%s", self.remote_address, error)
        except asyncio.CancelledError:
            self.cause = "server stopped"
        except Exception:
            self.cause = "internal error"
            logger.exception("connection failed by a bug client=%s", self.remote_address)
        finally:
            self._forget()
            if self.cause != "refused":
                self._writer.transport.abort()
        if self.cause == "refused":
            await self._linger()

    async def _serve(self) -> None:
        server = self._server
        while True:
            async with asyncio.timeout(server.patience_s(is_identified=self._is_identified)):
                data = await self._reader.read(READ_BYTES)
            if not data and not self._is_identifying:
                self.cause = "client closed"
                return
            if len(data) <= SHORT_READ_BYTES:
                await server.short_reads.wait_turn(len(data))
                self._take(data)
            else:
                async with server.long_read:
                    self._take(data)
                    await asyncio.sleep(0)
            if self.cause:
                return
            async with asyncio.timeout(server.patience_s(is_identified=False)):
                await self._writer.drain()

    def _take(self, data: bytes) -> None:
        """Do what was read, empty at the end of file, and send the replies."""
        counters = self._server.counters
        counters.bytes_in += len(data)
        self._input.feed(data)
        replies = bytearray()
        try:
            if not data:
                raise self._input.cut_short()
            self._take_commands(replies)
        except RefusedError as refusal:
            self._note_refused(refusal)
            replies += encode_reply(refusal.data)
        self._writer.write(replies)
        counters.bytes_out += len(replies)

    def _take_commands(self, replies: bytearray) -> None:
        """Do what has come, and put the replies there.

        Raises:
            RefusedError: the connection is to end.
        """
        if not self._has_greeted:
            magic = self._input.take_magic()
            if magic is None:
                return
            if magic != MAGIC:
                raise RefusedError("E_BAD_PROTOCOL", start=magic)
            self._has_greeted = True
        while True:
            if not self._is_identifying:
                words = self._input.take_line()
                if words is None:
                    return
                reply = self._execute(words)
            if self._is_identifying:
                body = self._input.take_body()
                if body is None:
                    return
                reply = self._identify(body)
            replies += encode_reply(reply)

    # -- commands ------------------------------------------------------------------------------------------------

    def _execute(self, words: list[str]) -> bytes:
        """Do what one line asks for and return the reply; IDENTIFY only begins here."""
        name, *params = words
        server = self._server
        logger.debug("nsqlookupd command client=%s words=%s", self.remote_address, words)
        if name == "PING":
            server.table.note_alive(self, server.clock.monotonic_ms())
        elif name == "IDENTIFY":
            if self._is_identified:
                raise RefusedError("E_INVALID", b"cannot IDENTIFY again")
            self._is_identifying = True
        elif name in ("REGISTER", "UNREGISTER"):
            self._change(name, params)
        else:
            raise RefusedError("E_INVALID", b"invalid command " + _as_it_came(name))
        server.counters.requests[name] += 1
        return _OK

    def _identify(self, body: bytes) -> bytes:
        """Take up the producer; return who this registry is."""
        server = self._server
        self._is_identifying = False
        info = read_identity(body, self.remote_address)
        try:
            server.table.identify(self, info, server.clock.monotonic_ms())
        except QuotaExceededError as error:
            raise RefusedError("E_INVALID", b"IDENTIFY " + str(error).encode()) from None
        self._is_identified = True
        server.producer_log.note_came(info)
        return msgspec.json.encode(server.identity)

    def _change(self, name: str, params: list[str]) -> None:
        """Register or unregister a topic, or one of its channels."""
        if not self._is_identified:
            raise RefusedError("E_INVALID", b"client must IDENTIFY")
        if not params:
            raise RefusedError("E_INVALID", b"%s insufficient number of params" % name.encode())
        topic, channel = params[0], params[1] if len(params) > 1 else ""
        for code, kind, spelled in (("E_BAD_TOPIC", "topic", topic), ("E_BAD_CHANNEL", "channel", channel)):
            if (spelled or kind == "topic") and not is_spelled(spelled):
                raise RefusedError(code, _as_it_came(f"{name} {kind} name '{spelled}' is not valid"))
        table = self._server.table
        try:
            (table.register if name == "REGISTER" else table.unregister)(self, topic, channel)
        except HeadraceError as error:
            raise RefusedError("E_INVALID", f"{name} {error}".encode()) from None

    # -- the end -------------------------------------------------------------------------------------------------

    def _note_refused(self, refusal: RefusedError) -> None:
        self.cause = "refused"
        server = self._server
        server.counters.refusals[refusal.code] += 1
        server.refusal_log.note(self.remote_address, refusal)

    def _forget(self) -> None:
        """Take the producer out of the table."""
        info = self._server.table.connection_closed(self)
        if info is not None and self.cause != "server stopped":
            self._server.producer_log.note_went(info, self.cause)

    async def _linger(self) -> None:
        """Close behind the last words; unread input would reset the connection before them."""
        try:
            async with asyncio.timeout(LINGER_S):
                await self._writer.drain()
                self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass
        except (OSError, TimeoutError, RuntimeError, asyncio.CancelledError) as error:  # the last at a stop
            logger.debug("last words not read client=%s error=%r", self.remote_address, error)
        finally:
            self._writer.transport.abort()


def _as_it_came(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
