"""What a handler sees of the connection whose request it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.access import User
    from headrace.remoting.calls import Answered
    from headrace.remoting.codec import Command
    from headrace.remoting.guard import Need
    from headrace.remoting.reply import Reply
    from headrace.remoting.services import Services


class Peer(Protocol):
    """One client; two of them are equal only if they are one connection."""

    services: Services
    remote_address: str
    host: str
    born_host: int
    born_v6: bytes | None
    cause: str
    """Why it is ending; empty while it is served."""
    user: User | None
    """Who sent the request that is being done; None without access control."""

    def require(self, user: User, need: Need, code: int) -> None:
        """Accept a request of this code whose sender has a right, beyond those that its fields told the guard.

        Raises:
            AccessDeniedError: the sender has it not; that was counted and logged.
        """

    def reply_to(self, error: Exception, code: int) -> Reply:
        """Return the response to a request that was refused, or failed by a bug; from where the error is handled."""

    def answer(self, command: Command, reply: Reply) -> None:
        """Send the response to a request whose handler returned None."""

    def notify(self, code: int, ext: dict[str, str], body: bytes | None = None) -> None:
        """Send a one-way request."""

    def call(
        self, code: int, ext: dict[str, str], body: bytes | None, answered: Answered, *, timeout_ms: int = 0
    ) -> None:
        """Send a request; ``answered`` gets the response, or None when it does not come in time."""
