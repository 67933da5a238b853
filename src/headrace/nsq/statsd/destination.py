"""Where a statsd is: its name as addresses, and a socket that leads to one of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.net.address import parse_peer

if TYPE_CHECKING:
    from headrace.net.names import Names

MakeSocket = Callable[[socket.AddressFamily, socket.SocketKind], socket.socket]

ANSWER_S: Final = 1.0
"""For a name to be looked up, as nsqd."""


async def find_hosts(address: str, names: Names) -> list[str]:
    """Return the IP addresses of the host in ``host:port``, at least one.

    Raises:
        OSError: its name is not resolved, or not in time.
    """
    host, _ = parse_peer(address)
    try:
        async with asyncio.timeout(ANSWER_S):
            return await names.addresses(host)
    except TimeoutError:
        raise OSError(f"its name was not resolved within {ANSWER_S:g} s") from None


def open_socket(address: str, hosts: Sequence[str], make_socket: MakeSocket = socket.socket) -> socket.socket:
    """Return a socket that is connected to the first of the hosts to which a way leads. Sends nothing.

    Raises:
        OSError: none does, or the system gives no socket.
    """
    _, port = parse_peer(address)
    for host in hosts[:-1]:
        with contextlib.suppress(OSError):
            return _connect(host, port, make_socket)
    return _connect(hosts[-1], port, make_socket)


def reason_of(error: OSError) -> str:
    """Return what the system said."""
    return error.strerror or str(error)


def _connect(host: str, port: int, make_socket: MakeSocket) -> socket.socket:
    with contextlib.ExitStack() as undo:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = undo.enter_context(make_socket(family, socket.SOCK_DGRAM))
        sock.setblocking(False)
        sock.connect((host, port))
        undo.pop_all()
        return sock
