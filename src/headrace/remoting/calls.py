"""Requests that the broker sends to a client: their numbers, their time-outs, and who waits for the answer.

The numbers (opaque) of the two directions are independent: the response bit tells them apart (remoting.md 1.4).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import INTERNAL_ERROR, Reply

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

Answered = Callable[["Command | None"], None]
"""Called once: with the client's response, or with None when it did not come in time or the connection was lost."""

_MAX_OPAQUE: Final = 1 << 30


def on_behalf_of(peer: Peer, command: Command, answered: Answered) -> Answered:
    """Return ``answered`` so that ``peer``, whose command waits for it, is answered even if it fails by a bug."""

    def guarded(response: Command | None) -> None:
        try:
            answered(response)
        except Exception:
            peer.answer(command, Reply(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR))
            raise

    return guarded


class PendingCalls:
    """The requests of one connection that wait for a response."""

    __slots__ = ("_numbers", "_waiting")

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next_opaque(self) -> int:
        """Return a number for a request."""
        return next(self._numbers) % _MAX_OPAQUE

    def wait(self, opaque: int, timeout_ms: int, answered: Answered) -> None:
        """Call ``answered`` when the response to ``opaque`` has come, or has not for ``timeout_ms``."""
        handle = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._end, opaque, None)
        self._waiting[opaque] = (answered, handle)

    def take(self, response: Command) -> bool:
        """Pass a response on; return whether anybody waited for it."""
        return self._end(response.opaque, response)

    def drop(self) -> None:
        """Tell everybody that no response will come: the connection is gone."""
        for opaque in list(self._waiting):
            self._end(opaque, None)

    def _end(self, opaque: int, response: Command | None) -> bool:
        answered, handle = self._waiting.pop(opaque, (None, None))
        if answered is None or handle is None:
            return False
        handle.cancel()
        answered(response)
        return True
