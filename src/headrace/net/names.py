"""Names of hosts become addresses, in threads that nobody has to wait for.

A resolver that does not answer keeps its caller for 10 s and more, whatever time-out that one has. The event loop's own
threads (libuv's) and those of an executor are waited for at the end of a process, and each attempt to connect would
leave one more lookup behind. A name that nobody waits for any more when its turn comes is not looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
import threading
from dataclasses import dataclass
from typing import Final

MAX_LOOKUPS: Final = 16
"""Names that are looked up at once, each in a thread."""


@dataclass(slots=True)
class _Lookup:
    """A name that somebody waits for."""

    answer: asyncio.Future[list[str] | OSError]
    waiters: int = 0


class Names:
    """Looks names up, ``MAX_LOOKUPS`` at once, the others in turn. A name is asked for once, however many wait for it.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._lookups: dict[str, _Lookup] = {}
        self._waiting: dict[str, None] = {}  # those of them whose turn has not come, in order

    async def addresses(self, host: str) -> list[str]:
        """Return the IP addresses of a host, those of IPv4 first.

        Raises:
            OSError: it has none, or none can be found out.
        """
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = _Lookup(asyncio.get_running_loop().create_future())
            self._waiting[host] = None
            self._start()
        lookup.waiters += 1
        try:
            found = await asyncio.shield(lookup.answer)
        finally:
            lookup.waiters -= 1
            if not lookup.waiters and self._lookups.get(host) is lookup and host in self._waiting:
                del self._waiting[host], self._lookups[host]
        if isinstance(found, OSError):
            raise found
        return found

    def _start(self) -> None:
        """Look up those whose turn it is."""
        while self._waiting and len(self._lookups) - len(self._waiting) < MAX_LOOKUPS:
            host = next(iter(self._waiting))
            del self._waiting[host]
            answer = self._lookups[host].answer
            answer.add_done_callback(functools.partial(self._ended, host))
            loop = answer.get_loop()
            try:
                threading.Thread(target=_look_up, args=(host, answer, loop), name="headrace-name", daemon=True).start()
            except RuntimeError as error:  # the system gives no more threads
                answer.set_result(OSError(str(error)))

    def _ended(self, host: str, _answer: asyncio.Future[list[str] | OSError]) -> None:
        del self._lookups[host]
        self._start()


def _look_up(host: str, answer: asyncio.Future[list[str] | OSError], loop: asyncio.AbstractEventLoop) -> None:
    found: list[str] | OSError
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        found = error
    except UnicodeError as error:  # a host of empty or long labels is no text for a resolver
        found = OSError(str(error))
    else:
        found = [str(entry[4][0]) for entry in sorted(entries, key=lambda entry: entry[0] != socket.AF_INET)]
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(answer.set_result, found)
