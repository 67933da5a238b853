"""One connection of a registry: a client, a tool or a broker.

Requests are done in the order they come, one handler each. The connection is also what a broker's life hangs on: when
it ends, by the peer, by an error or because nothing came, the routes of the brokers that registered through it go.

Ref: remoting.md 1, 4.8; requirements A-REG-16, X-NET-02.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import ProtocolError
from headrace.remoting.codec import Command, PullRequest
from headrace.remoting.codes import ResponseCode
from headrace.remoting.registry.handlers import HANDLERS, Handler
from headrace.remoting.reply import Reply
from headrace.remoting.request_connection import RequestConnection

if TYPE_CHECKING:
    from headrace.remoting.registry.server import RegistryServer

logger = logging.getLogger(__name__)


class RegistryConnection(RequestConnection):
    """One peer."""

    server: RegistryServer
    served_codes = HANDLERS.keys()

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
                self.refuse_frame(error)
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
        handler = HANDLERS.get(command.code)
        if handler is None or isinstance(command, PullRequest):
            self.refuse_unknown(command)
            return
        self.server.counters.requests[command.code] += 1
        self._answer_by(lambda: self._handle(handler, command), command)

    def _handle(self, handler: Handler, command: Command) -> Reply | None:
        if self.server.guard is not None:
            self.server.guard.admit(command, self.host)
        return handler(self, command)

    def _answer_by(self, handle: Callable[[], Reply | None], command: Command) -> None:
        try:
            reply = handle()
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            reply = self.reply_to(error, command.code)
        if reply is not None:
            self.answer(command, reply)

    # -- answering -----------------------------------------------------------------------------------------------

    def hold(self, command: Command, handler: Handler) -> bool:
        """Have ``handler`` answer when brokers had time to register; return False where it is to refuse instead."""

        def answer() -> None:
            self._owed -= 1
            try:
                self._answer_by(lambda: handler(self, command), command)
                self._finish()
            except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there; others wait behind
                self.fail(error)

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
