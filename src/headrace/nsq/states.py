"""The states of an NSQ connection as a table.

``NEXT_STATE`` is the whole truth: a pair that is missing is refused with ``E_INVALID cannot <CMD> in current state``.
The codec gets each state's row as a bit mask, because nsqd looks at the state before it looks at anything else of a
command, and so must the parser.

    INIT --SUB--> SUBSCRIBED --CLS--> CLOSING

Ref: nsq.md 1.3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """Numbers as ``/stats`` shows them; nsqd leaves out 1 and 2."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


class Command(IntEnum):
    """Numbers as in ``words.COMMAND_NAMES``."""

    IDENTIFY = 0
    AUTH = 1
    SUB = 2
    RDY = 3
    FIN = 4
    REQ = 5
    TOUCH = 6
    CLS = 7
    NOP = 8
    PUB = 9
    MPUB = 10
    DPUB = 11


_ANYWHERE: Final = (Command.NOP, Command.PUB, Command.MPUB, Command.DPUB)
_SETTLES: Final = (Command.FIN, Command.REQ, Command.TOUCH)

NEXT_STATE: Final[dict[tuple[State, Command], State]] = {
    (State.INIT, Command.IDENTIFY): State.INIT,
    (State.INIT, Command.AUTH): State.INIT,
    (State.INIT, Command.SUB): State.SUBSCRIBED,
    (State.SUBSCRIBED, Command.RDY): State.SUBSCRIBED,
    (State.SUBSCRIBED, Command.CLS): State.CLOSING,
    (State.CLOSING, Command.RDY): State.CLOSING,
    **{(state, command): state for state in (State.SUBSCRIBED, State.CLOSING) for command in _SETTLES},
    **{(state, command): state for state in State for command in _ANYWHERE},
}

# Taken without being looked at: after CLS a late RDY, even a senseless one, is no error.
IGNORED: Final[frozenset[tuple[State, Command]]] = frozenset({(State.CLOSING, Command.RDY)})


def _mask(state: State, pairs: frozenset[tuple[State, Command]]) -> int:
    return sum(1 << command for command in Command if (state, command) in pairs)


ALLOWED_MASK: Final[dict[State, int]] = {state: _mask(state, frozenset(NEXT_STATE)) for state in State}
IGNORED_MASK: Final[dict[State, int]] = {state: _mask(state, IGNORED) for state in State}
