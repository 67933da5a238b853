"""Listening sockets: address parsing, binding, and the warning for addresses that others can reach."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
from collections.abc import Callable
from typing import Final

from headrace.errors import ConfigError

logger = logging.getLogger(__name__)

# A burst of reconnecting clients after a restart must find room; the kernel caps this at net.core.somaxconn.
BACKLOG: Final = 4096


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``.

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port with a port from 0 to 65535")
    return host, int(port)


def format_address(address: object) -> str:
    """Return a socket name as ``host:port``, ``[v6]:port`` or the path of a unix socket."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "@")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def listen(
    where: str | socket.socket, factory: Callable[[], asyncio.BaseProtocol], *, protocol: str
) -> asyncio.AbstractServer:
    """Accept connections at an address or on a bound socket; ``protocol`` names them in the log."""
    loop = asyncio.get_running_loop()
    if isinstance(where, socket.socket):
        server = await loop.create_server(factory, sock=where, backlog=BACKLOG)
    else:
        host, port = parse_address(where)
        server = await loop.create_server(factory, host or None, port, backlog=BACKLOG)
    for bound in server.sockets:
        name = bound.getsockname()
        logger.info("listening protocol=%s address=%s", protocol, format_address(name))
        if isinstance(name, tuple) and not is_loopback(name[0]):
            logger.warning(
                "listening without TLS and authentication: whoever reaches the port can publish and consume "
                "protocol=%s address=%s",
                protocol,
                format_address(name),
            )
    return server


def connection_limit(configured: int, reserved_files: int) -> int:
    """Return how many connections fit: ``configured``, or for 0 the limit of open files less ``reserved_files``."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    possible = max(files - reserved_files, 16) if files != resource.RLIM_INFINITY else 1_000_000
    return min(configured, possible) if configured else possible
