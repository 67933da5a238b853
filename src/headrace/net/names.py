"""Names of hosts become addresses, in threads that nobody has to wait for.

A resolver that does not answer keeps its caller for 10 s and more, whatever time-out that one has. The event loop's own
threads (libuv's) and those of an executor are waited for at the end of a process, and each attempt to connect would
leave one more lookup behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading


class Names:
    """Looks names up. A name is asked for once at a time, however many wait for it."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[list[str] | OSError]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Return the IP addresses of a host, those of IPv4 first.

        Raises:
            OSError: it has none, or none can be found out.
        """
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        answer = self._under_way.get(host)
        if answer is None:
            loop = asyncio.get_running_loop()
            answer = loop.create_future()
            try:
                threading.Thread(target=_look_up, args=(host, answer, loop), name="headrace-name", daemon=True).start()
            except RuntimeError as error:  # the system gives no more threads
                raise OSError(str(error)) from error
            self._under_way[host] = answer
            answer.add_done_callback(lambda _: self._under_way.pop(host))
        found = await asyncio.shield(answer)
        if isinstance(found, OSError):
            raise found
        return found


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
