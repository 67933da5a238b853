"""One connection of a registry: a client, a tool or a broker.

Requests are done in the order they come, one handler each. The connection is also what a broker's life hangs on: when
it ends, by the peer, by an error or because nothing came, the routes of the brokers that registered through it go.

Ref: remoting.md 1, 4.8; requirements A-REG-16, X-NET-02.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import ProtocolError, RequestError
from headrace.remoting.codec import Command, PullRequest
from headrace.remoting.codes import ResponseCode
from headrace.remoting.registry.handlers import HANDLERS, Handler
from headrace.remoting.reply import INTERNAL_ERROR, Reply, refuse
from headrace.remoting.request_connection import RequestConnection, count_code

if TYPE_CHECKING:
    from headrace.remoting.registry.server import RegistryServer

logger = logging.getLogger(__name__)


class RegistryConnection(RequestConnection):
    """One peer."""

    server: RegistryServer

    def __init__(self, server: RegistryServer) -> None:
        super().__init__(server, server.limits)

    def on_ending(self) -> None:
        """Take no more requests. The end of a broker that hangs on this connection is now, not its last byte."""
        super().on_ending()
        self.server.connection_ends(self)

    # -- reading -------------------------------------------------------------------------------------------------

    def take_commands(self) -> None:
        """Do the requests of one read, one after the other."""
        server = self.server
        before = self._reader.commands
        while not self.cause:
            try:
                command = self._reader.next_command(server.intake)
            except ProtocolError as error:
                server.counters.bad_frames += 1
                server.refusal_log.note(self.remote_address, error)
                self.leave("bad frame")
                break
            if command is None:
                break
            self._execute(command)
            if self._reader.has_more and self.is_turn_over():
                self.put_off()
                break
        if self._reader.commands != before:
            self._deadlines.last_command_ms = server.clock.monotonic_ms()

    def _execute(self, command: Command | PullRequest) -> None:
        """Have a handler do what one request asks for, and answer it."""
        if isinstance(command, Command) and command.is_response:
            return  # a registry asks for nothing
        if self.server.logs_commands:
            self.log_request(command)
        self._answer_by(lambda: self._handle(command), command)

    def _answer_by(self, handle: Callable[[], Reply | None], command: Command | PullRequest) -> None:
        try:
            reply = handle()
        except RequestError as error:
            reply = refuse(error)
        except Exception:
            self.server.counters.internal_errors += 1
            logger.exception("request failed by a bug client=%s code=%d", self.remote_address, command.code)
            reply = Reply(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR)
        if reply is not None:
            self.answer(command, reply)

    def _handle(self, command: Command | PullRequest) -> Reply | None:
        counters = self.server.counters
        handler = HANDLERS.get(command.code)
        if handler is None or isinstance(command, PullRequest):
            count_code(counters.unsupported, command.code)
            return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
        counters.requests[command.code] += 1
        if self.server.guard is not None:
            self.server.guard.admit(command, self.host)
        return handler(self, command)

    # -- answering -----------------------------------------------------------------------------------------------

    def answer(self, command: Command | PullRequest, reply: Reply) -> None:
        """Send a response; a one-way request gets none, and a peer that does not take them is not read from."""
        if reply.code:
            self.server.counters.refusals[reply.code] += 1
            if command.is_oneway:
                self.note_untold(command.code, int(reply.code), reply.remark)
        if command.is_oneway or self.is_closing():
            return
        self.write_reply(reply.encode(command.serialize, command.opaque))

    def hold(self, command: Command, handler: Handler) -> bool:
        """Have ``handler`` answer when brokers had time to register; return False where it is to refuse instead."""

        def answer() -> None:
            self._owed -= 1
            self._answer_by(lambda: handler(self, command), command)
            self._finish()

        if command.is_oneway or not self.server.hold_route(answer):
            return False
        self._owed += 1
        return True

    def save_kv(self, command: Command, *, is_changed: bool) -> None:
        """Have the key-value configuration written; answer ``command`` when it is on the disk, or could not be.

        Where ``command`` changed nothing, what it wants may not be there yet: that is waited for, or tried again.
        """

        def saved(error: OSError | None) -> None:
            self._owed -= 1
            if error is None:
                self.answer(command, Reply())
            else:
                # It counts until the restart, and is tried again: whoever asked must know that it may not last.
                text = f"not written to {self.server.kv_path}: {error.strerror or error}"
                self.answer(command, Reply(ResponseCode.SYSTEM_ERROR, text))
            self._finish()

        self._owed += 1
        self.server.save_kv(saved, is_changed=is_changed)
