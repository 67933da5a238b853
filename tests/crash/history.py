"""What clients of a broker did and saw, as one sequence of events.

Everything is recorded from the clients' side by one thread, so events are in one order. Times are seconds of the
monotonic clock. An event says only what the client knows: a publish that was never answered has the outcome
``UNKNOWN``, and so has one whose connection died.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(StrEnum):
    """What a client knows of something it asked for."""

    OK = "ok"
    ERROR = "error"  # refused: nothing of it may ever be seen
    UNKNOWN = "unknown"


def leaves_open(error: bytes | str) -> bool:
    """Whether a refusal leaves open what is in the log: the store has failed with it, or with what was before it."""
    text = error if isinstance(error, str) else error.decode("utf-8", "replace")
    return "the store takes no more writes" in text


class Thing(NamedTuple):
    """A topic (``channel`` is empty) or a channel."""

    topic: str
    channel: str = ""


class Payload(NamedTuple):
    """Who published a message, and which of theirs it is: unique in a history."""

    topic: str
    producer: int
    sequence: int


class Published(NamedTuple):
    """A publish command was sent: PUB (one), MPUB (several, whole or absent) or DPUB (delay)."""

    at: float
    command: int  # unique number
    topic: str
    producer: int
    first_sequence: int
    messages: int = 1
    delay_s: float = 0.0
    queue_id: int = 0  # of a topic with several; -1: any
    may_repeat: bool = False  # it waits outside its topic, and a crash may let it join it twice


class Answered(NamedTuple):
    """A publish command was answered, or never will be."""

    at: float
    command: int
    outcome: Outcome


class Delivered(NamedTuple):
    """A message arrived. ``slack_s``: how much earlier the broker may have sent it than ``at``."""

    at: float
    thing: Thing
    message_id: str
    attempts: int
    body: bytes
    timeout_s: float
    slack_s: float = 0.0


class Finished(NamedTuple):
    """FIN was sent."""

    at: float
    thing: Thing
    message_id: str


class Requeued(NamedTuple):
    """REQ was sent."""

    at: float
    thing: Thing
    message_id: str
    delay_s: float


class Touched(NamedTuple):
    """TOUCH was sent."""

    at: float
    thing: Thing
    message_id: str


class SettleFailed(NamedTuple):
    """E_FIN_FAILED, E_REQ_FAILED or E_TOUCH_FAILED: the message was not in flight any more."""

    at: float
    thing: Thing
    message_id: str
    was_fin: bool = True


class Asked(NamedTuple):
    """The creation (or deletion) of a topic or channel was asked for."""

    at: float
    thing: Thing
    creates: bool
    one_consumer: bool = False  # its only consumer reads one connection: order can be seen


class Granted(NamedTuple):
    """The latest ``Asked`` for a thing was answered with success."""

    at: float
    thing: Thing


class What(StrEnum):
    """What can be asked of a channel, by the words of NSQ's HTTP API."""

    PAUSE = "pause"
    UNPAUSE = "unpause"
    EMPTY = "empty"


class ChangeAsked(NamedTuple):
    """A channel was to be paused, emptied, or to go on."""

    at: float
    thing: Thing
    what: What


class ChangeGranted(NamedTuple):
    """The latest ``ChangeAsked`` for a channel was answered with success."""

    at: float
    thing: Thing
    what: What


class Crashed(NamedTuple):
    """SIGKILL is about to be sent; that much later, in which the broker may still do something, it was surely dead."""

    at: float
    dead_after_s: float = 0.0


class Held(NamedTuple):
    """The broker was stopped (SIGSTOP) for a time, which has passed."""

    at: float  # when it began
    seconds: float


class Observed(NamedTuple):
    """A broker that has just started listed what exists: topics and channels."""

    at: float
    things: frozenset[Thing]


class Drained(NamedTuple):
    """Consumers had all the time they need: whatever is not finished by now is lost."""

    at: float


class BrokerComplained(NamedTuple):
    """The broker logged something that must not happen in this run."""

    at: float
    line: str


Event = (
    Published
    | Answered
    | Delivered
    | Finished
    | Requeued
    | Touched
    | SettleFailed
    | Asked
    | Granted
    | ChangeAsked
    | ChangeGranted
    | Crashed
    | Held
    | Observed
    | Drained
    | BrokerComplained
)


def lived(held: list[Held], start: float, end: float) -> float:
    """Return for how long a broker ran between two times."""
    return end - start - sum(max(0.0, min(end, at + seconds) - max(start, at)) for at, seconds in held)


def make_body(payload: Payload, size: int) -> bytes:
    """Return the body of a message: it says whose it is, and any changed byte of it can be told."""
    head = f"{payload.topic} {payload.producer} {payload.sequence} {size} ".encode()
    pattern = b"%08x" % zlib.crc32(head)
    return (head + pattern * ((size - len(head)) // 8 + 1))[: max(size, len(head))]


def read_body(body: bytes) -> Payload | None:
    """Return whose message a body is; None if its bytes are not those of any message."""
    fields = body.split(b" ", 4)
    try:
        payload = Payload(fields[0].decode("ascii"), int(fields[1]), int(fields[2]))
        size = int(fields[3])
    except (ValueError, IndexError, UnicodeDecodeError):
        return None
    return payload if size < 1 << 24 and body == make_body(payload, size) else None


class History:
    """Hands every event to the observers, and writes it to a file when asked to."""

    def __init__(self, path: Path | None = None) -> None:
        self.observers: list[Callable[[Any], None]] = []
        self.events = 0
        self._file = path.open("w", encoding="utf-8", buffering=1 << 20) if path else None

    def record(self, event: tuple[Any, ...]) -> None:
        """Take the next event: a named tuple."""
        self.events += 1
        if self._file is not None:
            self._file.write(json.dumps([type(event).__name__, *event], default=_short) + "\n")
        for observer in self.observers:
            observer(event)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _short(value: object) -> object:
    if isinstance(value, bytes):
        return value[:48].decode("ascii", "backslashreplace")
    if isinstance(value, frozenset):
        return sorted(value)
    return str(value)
