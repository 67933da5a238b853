"""Answers that take long to gather: a part of each in one turn of the event loop, with others served in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from headrace.format import fastjson
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import Parts, Reply

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

MAX_AT_ONCE: Final = 4
"""Answers that are gathered at a time, each of up to some megabytes; more wait, and clients take turns."""
MAX_WAITING: Final = 1_000
MAX_OF_ONE: Final = 100
"""Requests of one connection that wait."""
ROWS_AT_ONCE: Final = 300
"""Rows of a table that one turn of the loop writes: some 5 ms."""


def encode_in_turns(rows: Iterable[tuple[str, Any]]) -> Generator[None, None, bytes]:
    """Return a table as a JSON object; ``yield`` when a turn of the loop is over.

    Args:
        rows: Name and value of each; taken as they are asked for, so what they come from may change in between.
    """
    written = []
    for number, (name, value) in enumerate(rows, 1):
        written.append(fastjson.dumps(name) + b":" + fastjson.dumps(value))
        if number % ROWS_AT_ONCE == 0:
            yield
    return b"{" + b",".join(written) + b"}"


def take_part(peer: Peer, command: Command, parts: Parts) -> Reply | None:
    """Do one part of a request; return the answer if that was the last."""
    try:
        next(parts)
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
        return peer.reply_to(error, command.code)
    return None


class LongAnswers:
    """Those of one broker."""

    def __init__(self, notify: Callable[[Callable[[], None]], object]) -> None:
        """``notify`` has a function called in a later turn of the loop."""
        self._notify = notify
        self._waiting: dict[Peer, deque[tuple[Command, Parts]]] = {}  # whose turn is next comes first
        self._waiting_count = 0
        self._running = 0

    def begin(self, peer: Peer, command: Command, parts: Parts) -> None:
        """Answer a request with what ``parts`` returns, unless its client leaves before.

        What ends with its first part is answered at once, whoever waits: it is not long. Between two parts anything may
        have changed: topics and groups may be gone.
        """
        reply = take_part(peer, command, parts)
        if reply is not None:
            peer.answer(command, reply)
            return
        if self._running < MAX_AT_ONCE:
            self._running += 1
            self._notify(lambda: self._go_on(peer, command, parts))
            return
        of_peer = self._waiting.get(peer, ())
        if len(of_peer) >= MAX_OF_ONE:
            text = f"{MAX_OF_ONE} requests of this connection with long answers wait for their turn, no more at once"
        elif self._waiting_count >= MAX_WAITING:
            text = f"{MAX_WAITING} requests with long answers wait for their turn, no more at once"
        else:
            self._waiting.setdefault(peer, deque()).append((command, parts))
            self._waiting_count += 1
            return
        peer.answer(command, Reply(ResponseCode.SYSTEM_BUSY, text))

    def _go_on(self, peer: Peer, command: Command, parts: Parts) -> None:
        if peer.cause:
            parts.close()
            self._take_next()
            return
        reply = take_part(peer, command, parts)
        if reply is None:
            self._notify(lambda: self._go_on(peer, command, parts))
            return
        self._take_next()
        peer.answer(command, reply)

    def _take_next(self) -> None:
        """Have the next that waits take the place of one that is over."""
        if not self._waiting:
            self._running -= 1
            return
        peer = next(iter(self._waiting))
        of_peer = self._waiting.pop(peer)
        command, parts = of_peer.popleft()
        self._waiting_count -= 1
        if of_peer:
            self._waiting[peer] = of_peer
        self._notify(lambda: self._go_on(peer, command, parts))
