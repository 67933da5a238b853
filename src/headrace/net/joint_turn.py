"""What the reads of one turn of the event loop bring, done together at its end.

To append one message costs nearly what it costs to append a hundred. So what small reads bring is copied, and appended
at the end of the turn together with what the other reads of that turn brought. Nothing is waited for: the loop writes
to its sockets at the end of a turn anyway. Before something else happens for a client, the turn is ended for all.

Where a turn had one share only, the next ALONE reads are not joined: there is nobody to join.

Ref: docs/adr/0013-joint-publishes.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from headrace.net.connection import Connection

logger = logging.getLogger(__name__)

MAX_SHARE_BYTES: Final = 4096
"""Bodies of a read above which it is appended by itself: copies of them would cost more than they save."""
MEMORY_BYTES: Final = 256 * 1024
"""For copies; when it is full what there is is appended at once."""
ALONE: Final = 64
"""Reads that are not joined after one that was alone in its turn."""


class Share(Protocol):
    """What one read of one client brought."""

    @property
    def client(self) -> Connection:
        """Whose read it was."""


S = TypeVar("S", bound=Share)


class JointTurn(Generic[S]):
    """One server's. Invariant: a call of ``end_turn`` is due while there are shares.

    Attributes:
        joined: Reads that were done together with others.
        call_soon: Has something called at the end of the turn.
    """

    def __init__(self) -> None:
        self.joined = 0
        self.call_soon: Callable[[Callable[[], None]], object] = _call_soon
        self._shares: list[S] = []
        self._alone = 0  # reads still to come that are not joined

    def append(self, shares: list[S]) -> None:
        """Append what the shares have in the batch, and answer."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget what is in the batch."""
        raise NotImplementedError

    def is_worth_it(self) -> bool:
        """Return whether to have the next read wait for the end of the turn; to be asked once for each."""
        if self._alone:
            self._alone -= 1
            return False
        return True

    def add(self, share: S) -> None:
        """Take over what a read brought, which is in the batch already."""
        if not self._shares:
            self.call_soon(self.end_turn)
        self._shares.append(share)

    def end_turn(self) -> None:
        """Append what was taken over, and answer."""
        shares = self._shares
        if not shares:
            return
        self._shares = []
        if len(shares) == 1:
            self._alone = ALONE
        else:
            self.joined += len(shares)
        try:
            self.append(shares)
        except Exception:
            logger.exception("what %d clients publish failed by a bug", len(shares))
            for share in shares:
                share.client.abort("internal error")
        finally:
            self.clear()


def _call_soon(call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_soon(call)
