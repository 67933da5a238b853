"""Answers that take long to gather: a part of each in one turn of the event loop, with others served in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import INTERNAL_ERROR, Reply

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

logger = logging.getLogger(__name__)


def answer_in_turns(peer: Peer, command: Command, parts: Generator[None, None, Reply]) -> None:
    """Run ``parts`` up to its next ``yield`` in each turn of the loop; answer with what it returns.

    Between two parts anything may have changed: topics and groups may be gone.
    """
    notify: Callable[[Callable[[], None]], object] = peer.services.broker.store.notify

    def go_on() -> None:
        try:
            next(parts)
        except StopIteration as end:
            reply: Reply = end.value
        except Exception:  # the outermost line of a request that goes on by itself
            logger.exception("long answer failed by a bug client=%s code=%d", peer.remote_address, command.code)
            reply = Reply(ResponseCode.SYSTEM_ERROR, INTERNAL_ERROR)
        else:
            notify(go_on)
            return
        peer.answer(command, reply)

    go_on()
