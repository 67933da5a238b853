"""What the reads of one turn of the event loop bring, done together at its end.

To append one message costs nearly what it costs to append a hundred. So what small reads bring is copied, and appended
at the end of the turn together with what the other reads of that turn brought: an answer waits for those, and for
nothing else. Before something else happens for a client, the turn is ended for all.

Where LONE_TURNS turns, one behind the other, had one share only, the next ALONE reads are not joined: there is nobody
to join.

Ref: docs/adr/0013-joint-publishes.md.
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from headrace.net.connection import Connection

MAX_SHARE_BYTES: Final = 4096
"""Bodies of a read above which it is appended by itself: copies of them would cost more than they save."""
MEMORY_BYTES: Final = 262144
"""For copies; when it is full what there is is appended at once."""
LONE_TURNS: Final = 8
"""Turns with one share each, one behind the other, after which the next reads are not joined."""
ALONE: Final = 64
"""So many reads."""

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
        call_soon: Has something called at the end of the turn; the loop's from the first share on.
    """

    joined: int
    call_soon: Callable[[Callable[[], None]], object] | None
    _alone: int

    def __init__(self) -> None: ...
    def append(self, shares: list[S]) -> None:
        """Append what the shares have in the batch, and answer; a subclass says how."""
    def clear(self) -> None:
        """Forget what is in the batch; a subclass says how."""
    def is_worth_it(self) -> bool:
        """Return whether to have the next read wait for the end of the turn; to be asked once for each."""
    def add(self, share: S) -> None:
        """Take over what a read brought, which is in the batch already."""
    def end_turn(self) -> None:
        """Append what was taken over, and answer."""
