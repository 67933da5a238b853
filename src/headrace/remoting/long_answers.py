"""Answers that take long to gather: a part of each in one turn of the event loop, with others served in between."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import INTERNAL_ERROR, Reply

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

logger = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 4
"""Answers that are gathered at a time, each of up to some megabytes; more wait, in the order in which they came."""
MOST_WAITING: Final = 1_000

Parts = Generator[None, None, Reply]
"""Each ``yield`` ends a turn of the loop; returns the answer."""


class LongAnswers:
    """Those of one broker."""

    def __init__(self, notify: Callable[[Callable[[], None]], object]) -> None:
        """``notify`` has a function called in a later turn of the loop."""
        self._notify = notify
        self._waiting: deque[tuple[Peer, Command, Parts]] = deque()
        self._running = 0

    def begin(self, peer: Peer, command: Command, parts: Parts) -> None:
        """Answer a request with what ``parts`` returns, unless its client leaves before.

        Between two parts anything may have changed: topics and groups may be gone.
        """
        if self._running < MOST_AT_ONCE:
            self._running += 1
            self._go_on(peer, command, parts)
        elif len(self._waiting) < MOST_WAITING:
            self._waiting.append((peer, command, parts))
        else:
            text = f"{MOST_WAITING} requests with long answers wait for their turn, no more at once"
            peer.answer(command, Reply(ResponseCode.SYSTEM_BUSY, text))

    def _go_on(self, peer: Peer, command: Command, parts: Parts) -> None:
        if peer.cause:
            parts.close()
            self._take_next()
            return
        try:
            next(parts)
        except StopIteration as end:
            reply: Reply = end.value
        except Exception:  # the outermost line of a request that goes on by itself
            logger.exception("long answer failed by a bug client=%s code=%d", peer.remote_address, command.code)
            reply = Reply(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR)
        else:
            self._notify(lambda: self._go_on(peer, command, parts))
            return
        self._take_next()
        peer.answer(command, reply)

    def _take_next(self) -> None:
        """Have the next that waits take the place of one that is over."""
        if self._waiting:
            following = self._waiting.popleft()
            self._notify(lambda: self._go_on(*following))
        else:
            self._running -= 1
