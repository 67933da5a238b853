"""Listening sockets: binding, and the warning for addresses that others can reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Final
from weakref import WeakSet

from headrace.errors import ConfigError
from headrace.net.address import format_address, is_loopback, parse_address

logger = logging.getLogger(__name__)

# A burst of reconnecting clients after a restart must find room; the kernel caps this at net.core.somaxconn.
_BACKLOG: Final = 4096
_UNGUARDED: Final = {
    "registry": "register brokers, and lead clients to them",
    "nsq_http": "use it",
    "nsqlookupd_tcp": "register producers, and lead NSQ consumers to them",
    "nsqlookupd_http": "use it",
    "admin": "use it",
}
"""What a listener without access rules lets everybody do, where that is not publishing and consuming."""

# Bound sockets of this process. A forked child closes its copies: connections would still come in after their listener
# is closed, and nobody would answer them.
_BOUND: Final[WeakSet[socket.socket]] = WeakSet()

MAX_ACCEPTS: Final = 64
"""Connections that one turn of the loop accepts at a port: some milliseconds of it."""

_SHORT_TURN_NS: Final = 500_000
"""Time since the last connection in which the loop came round so soon that accepting one in a turn is enough."""

MIN_FILES: Final = 64
"""Open files with which a broker starts and does something useful."""


def bind(address: str) -> socket.socket:
    """Return a socket bound to ``host:port``; port 0 takes a free one.

    Raises:
        ConfigError: the address is malformed.
        OSError: it cannot be bound.
    """
    host, port = parse_address(address)
    bound = new_socket(host)
    try:
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def new_socket(host: str, *, alone: bool = False) -> socket.socket:
    """Return a socket to be bound to ``host``, which only this process is to accept from: forked children close it.

    Args:
        alone: Binding is to fail where anybody has the port, even if nobody listens yet or any more.
    """
    sock = socket.socket(_family_of(host), socket.SOCK_STREAM)
    _BOUND.add(sock)
    if sock.family == socket.AF_INET6:  # "::" is every address, also where the system says otherwise (bindv6only)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if not alone:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    return sock


def _family_of(host: str) -> socket.AddressFamily:
    """Return IPv6 for an address of it, or a name that has no other."""
    with contextlib.suppress(OSError, UnicodeError):  # to bind fails too, and says why
        families = {entry[0] for entry in socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)}
        if socket.AF_INET not in families:
            return socket.AF_INET6
    return socket.AF_INET


def is_own_port(port: int) -> bool:
    """Return whether a socket of this process is bound to ``port``, whatever its host."""
    return any(bound.fileno() >= 0 and bound.getsockname()[1] == port for bound in tuple(_BOUND))


def _close_in_child() -> None:
    for bound in tuple(_BOUND):
        if bound.fileno() >= 0:
            os.close(bound.detach())  # close() would wait for the event loop, which does not run here


os.register_at_fork(after_in_child=_close_in_child)


async def listen(
    where: str | socket.socket,
    factory: Callable[[], asyncio.BaseProtocol],
    *,
    protocol: str,
    is_guarded: bool = False,
) -> tuple[asyncio.Server, str]:
    """Accept connections at an address or on a bound socket.

    Args:
        protocol: Names the listener in the log.
        is_guarded: Whether clients have to prove who they are.

    Returns:
        The listening server and its address as bound.

    Raises:
        ConfigError: the system does not let the socket listen.
    """
    bound = bind(where) if isinstance(where, str) else where
    _keep_alive(bound)
    name = bound.getsockname()
    try:
        bound.listen(_BACKLOG)  # uvloop closes a socket that cannot, and says nothing
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {format_address(name)}: {error.strerror}; choose another address, or stop the program "
            "that listens there"
        ) from error
    server = await asyncio.get_running_loop().create_server(
        _accepting_more(bound, factory), sock=bound, backlog=_BACKLOG
    )
    logger.info("listening protocol=%s address=%s", protocol, format_address(name))
    if isinstance(name, tuple) and not is_loopback(name[0]):
        can = _UNGUARDED.get(protocol, "publish and consume")
        risk = (
            "TLS: whoever is between can read what clients send, and send it again"
            if is_guarded
            else f"TLS and authentication: whoever reaches the port can {can}"
        )
        logger.warning("listening without %s protocol=%s address=%s", risk, protocol, format_address(name))
    return server, format_address(name)


def _accepting_more(
    bound: socket.socket, factory: Callable[[], asyncio.BaseProtocol]
) -> Callable[[], asyncio.BaseProtocol]:
    """Return the factory for a server on ``bound``; with each connection others that wait are accepted as well.

    uvloop accepts one in each turn of the loop, and turns are long while clients send much: of many that come back at
    once some would give up before, and their dead connections would be accepted one by one, too. While connections
    come in short turns it is left alone: to look in vain, or to take up one of the others, costs more than its own way.
    """
    loop = asyncio.get_running_loop()
    under_way: set[asyncio.Task[object]] = set()
    before_ns = 0

    def make() -> asyncio.BaseProtocol:
        nonlocal before_ns
        now_ns = monotonic_ns()
        was_short = now_ns - before_ns < _SHORT_TURN_NS
        before_ns = now_ns
        if was_short:
            return factory()
        with contextlib.suppress(OSError):  # none waits; where the system refuses one the loop's library sees to that
            for _ in range(MAX_ACCEPTS - 1):
                accepted, _ = bound.accept()
                accepted.setblocking(False)
                task = loop.create_task(loop.connect_accepted_socket(factory, accepted))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        return factory()

    return make


def _keep_alive(listener: socket.socket) -> None:
    """Have the kernel find peers that vanished without a word; accepted connections inherit these options."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # macOS lacks some of them
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connection_limit(configured: int, reserved_files: int) -> int:
    """Return how many connections fit: ``configured``, or for 0 the limit of open files less ``reserved_files``.

    Where that would keep back more than half of the files, half of them it is.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    possible = max(files - reserved_files, files // 2) if files != resource.RLIM_INFINITY else 1_000_000
    return min(configured, possible) if configured else possible


def raise_file_limit() -> None:
    """Raise the process's limit of open files as far as it may; shells start programs with 1024 of many more.

    Raises:
        ConfigError: not even the little that a broker needs is allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # macOS names a limit that it does not grant
            logger.debug("limit of open files not raised soft=%d hard=%d error=%s", soft, hard, error)
    if soft != resource.RLIM_INFINITY and soft < MIN_FILES:
        raise ConfigError(
            f"the limit of open files is {soft}, Headrace needs {MIN_FILES} and one more for each connection; "
            "raise it with ulimit -n"
        )
