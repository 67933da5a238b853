"""What connections of brokers and of registries share: their life, and requests in turns.

The requests of one socket read are done one after the other, until the turn is over (``net.turns``), or the client does
not take its responses, or the store is behind.

Ref: remoting.md 1.1; docs/protocols/remoting.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from headrace.errors import ProtocolError, RequestError, StoreError
from headrace.net.connection import Pause
from headrace.net.deadlines import Deadlines
from headrace.net.server import C, ServerConnection, StreamServer
from headrace.net.wire import TrafficCounters
from headrace.remoting.codec import Command, Limits, PullRequest, Reader, UnheldFrameError
from headrace.remoting.codes import NOT_SERVED, ResponseCode, request_name, response_name
from headrace.remoting.reply import INTERNAL_ERROR, Reply, refuse
from headrace.remoting.signature import without_proof
from headrace.settings import RegistrySettings, RemotingSettings

logger = logging.getLogger(__name__)

_MAX_CODES: Final = 100
"""Codes, unknown ones of requests and those of refusals, that are counted one by one: clients may make them up."""


class RequestCounters(TrafficCounters):
    """What every server of such connections counts.

    Attributes:
        requests: Requests taken, by code.
        refusals: Responses with an error code, by code.
        unsupported: Requests of codes that are not served, by code; -1: those beyond the first hundred.
        bad_frames: Connections closed because a frame was malformed or too large.
        internal_errors: Requests answered ``internal error``: bugs of ours, logged with a traceback.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[int] = Counter()
        self.refusals: Counter[int] = Counter()
        self.unsupported: Counter[int] = Counter()
        self.bad_frames = 0
        self.internal_errors = 0


class RequestServer(StreamServer[C]):
    """A server of such connections."""

    settings: RemotingSettings | RegistrySettings
    counters: RequestCounters


class RequestConnection(ServerConnection):
    """A connection whose requests are done in turns; the protocol overrides ``take_commands``.

    Two are equal only if they are one connection.
    """

    server: RequestServer[Any]
    served_codes: Collection[int]
    """Of the requests that are done."""

    def __init__(self, server: RequestServer[Any], limits: Limits) -> None:
        settings = server.settings
        self._reader = Reader(limits)
        deadlines = Deadlines(
            interval_ms=settings.idle_timeout_ms // 2,
            now_ms=server.clock.monotonic_ms(),
            patience_ms=settings.idle_timeout_ms,
        )
        super().__init__(server, self._reader, deadlines)
        self._owed = 0  # answers that wait for the disk

    # -- answering -----------------------------------------------------------------------------------------------

    def note_untold(self, request: int, code: int, remark: str) -> None:
        """Log why a request was refused whose client gets no answer that says so."""
        # Of codes that do not exist there are many, those of consumers among them: they have one line together.
        name = request_name(request) if code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED else "unknown"
        said = response_name(code)
        self.server.refusal_log.note_untold(self.remote_address, name, said if said != str(code) else "unknown", remark)

    def answer(self, command: Command | PullRequest, reply: Reply) -> None:
        """Send a response, which a one-way request does not get, and count what it refuses."""
        refused = int(reply.code or reply.untold)
        if refused:
            _count_code(self.server.counters.refusals, refused)
            if reply.untold or command.is_oneway:
                self.note_untold(command.code, refused, reply.remark)
        if not command.is_oneway:
            self.respond(command, reply)

    def respond(self, command: Command | PullRequest, reply: Reply) -> None:
        """Send a response."""
        self.write_reply(reply.encode(command.serialize, command.opaque))

    def reply_to(self, error: Exception, code: int) -> Reply:
        """Return the response to a request that was refused, or failed by a bug; from where the error is handled."""
        if isinstance(error, RequestError | StoreError):
            return refuse(error)
        if isinstance(error, ProtocolError):
            return Reply(ResponseCode.SYSTEM_ERROR, str(error))
        self.server.counters.internal_errors += 1
        logger.exception("request failed by a bug client=%s code=%d", self.remote_address, code)
        return Reply(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR)

    def refuse_unknown(self, command: Command | PullRequest) -> None:
        """Answer a request code that Headrace does not have (remoting.md 1.7)."""
        counts, code = self.server.counters.unsupported, command.code
        text = f" request type {code} not supported"
        if code in NOT_SERVED:
            text += f": {NOT_SERVED[code]}"
            if code not in counts:  # once, and then only counted: clients ask again and again
                logger.warning("request not served client=%s remark=%s", self.remote_address, text.strip())
            counts[code] += 1
        else:
            _count_code(counts, code)
        self.answer(command, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text))

    def refuse_frame(self, error: ProtocolError) -> None:
        """Close behind a frame that is malformed, or that there is no memory for: the rest cannot be passed over."""
        server = self.server
        if not isinstance(error, UnheldFrameError):
            server.counters.bad_frames += 1
            server.refusal_log.note(self.remote_address, error)
            self.leave("bad frame")
            return
        server.refusal_log.note_no_memory(self.remote_address, str(error))
        command = error.command
        if command is not None and not command.is_response and not self.cause:
            if command.code in self.served_codes:
                server.counters.requests[command.code] += 1
            self.answer(command, Reply(ResponseCode.SYSTEM_ERROR, str(error)))
        self.leave("no memory")

    def log_request(self, command: Command | PullRequest) -> None:
        """Write the line that log level ``debug`` has for each request."""
        if isinstance(command, PullRequest):
            ext = {
                "topic": command.topic,
                "consumerGroup": command.consumer_group,
                "queueId": str(command.queue_id),
                "queueOffset": str(command.queue_offset),
            }
        else:
            ext = without_proof(command.ext)
        logger.debug(
            "request client=%s code=%d opaque=%d ext=%s", self.remote_address, command.code, command.opaque, ext
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def has_pending_output(self) -> bool:
        """Return whether answers wait for the disk."""
        return self._owed > 0

    def _finish(self) -> None:
        """Shut a connection that was left, behind the last answer that it was owed."""
        if self.cause and not self._owed:
            self.shut()

    # -- reading -------------------------------------------------------------------------------------------------

    def take_read(self, nbytes: int) -> None:
        """Do what ``nbytes`` just read ask for."""
        try:
            self.begin_turn(self._clock.monotonic_ms())
            bytes_out = self._traffic.bytes_out
            self._reader.received(self._receive.memory, nbytes)
            self.take_commands()
            self.note_answered(bytes_out)
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            self.fail(error)

    def note_answered(self, bytes_out: int) -> None:
        """Look for the next read if what was just done was answered: more than ``bytes_out`` have left.

        A pull that is held, or a request without an answer, leads to nothing that the client does next.
        """
        if not self._owed and self._traffic.bytes_out != bytes_out:
            self.server.busy_poll.served()

    def fail(self, error: Exception) -> None:
        """Close at once, for want of memory or by a bug; from where the error is handled."""
        self.server.counters.internal_errors += not isinstance(error, MemoryError)
        super().fail(error)

    def take_commands(self) -> None:
        """Do the requests that the reader has; ``is_turn_over`` says when to ``put_off`` the rest."""
        raise NotImplementedError

    def is_turn_over(self) -> bool:
        """Return whether the next request has to wait."""
        return bool(self.pauses & ~Pause.TURN) or super().is_turn_over()


def _count_code(counts: Counter[int], code: int) -> None:
    """Count one more of a code; those beyond the most share the number -1."""
    counts[code if code in counts or len(counts) < _MAX_CODES else -1] += 1
