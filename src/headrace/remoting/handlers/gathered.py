"""Requests whose writes are gathered: those of one read become one append.

Their handlers get a gathering besides, and return what is to be called when it was published; it returns the response,
or raises why there is none. What needs no write is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.gathering import Gathering
from headrace.remoting.reply import Reply

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

Gathered = Callable[["Peer", "Command", Gathering], Reply | Callable[[], Reply] | None]
"""A handler of such requests."""


def write_alone(broker: Broker, gather: Callable[[Gathering], Reply | Callable[[], Reply] | None]) -> Reply | None:
    """Do one request by itself.

    Raises:
        Whatever the request is refused with.
    """
    gathering = Gathering(broker)
    found = gather(gathering)
    if found is None or isinstance(found, Reply):
        return found
    gathering.publish()
    return found()
