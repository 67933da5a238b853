"""Addresses of TCP sockets as text: ``host:port``, or ``[v6]:port``."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Final

from headrace.errors import ConfigError

_MAPPED: Final = "::ffff:"
_EVERYWHERE: Final = ("", "0.0.0.0", "::")


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of a setting: where to listen. The host may be empty, and port 0 takes a free one.

    Raises:
        ConfigError: it is no address.
    """
    parts = _split(address)
    if parts is None:
        raise ConfigError(f"address {address!r} is not host:port or [v6]:port with a port from 0 to 65535")
    return parts


def parse_peer(address: str) -> tuple[str, int]:
    """Return host and port of somebody to connect to: neither may be left out, blanks around them may be there.

    Raises:
        ValueError: it is no such address.
    """
    host, port = _split(address.strip()) or ("", 0)
    if not host or not port:
        raise ValueError(f"{address!r} is no address: it is host:port or [v6]:port with a port from 1 to 65535")
    return host, port


def parse_registries(setting: str, own: str) -> list[str]:
    """Return the addresses of a setting that names registries; where it is empty, that of the one in this process.

    Args:
        own: Where that one listens, as bound; empty when there is none.
    """
    words = [word.strip() for word in setting.replace(";", ",").split(",") if word.strip()]
    if words or not own:
        return words
    host, port = parse_address(own)
    if host in _EVERYWHERE:  # not a bind: where everything is listened to, this machine is too
        host = "127.0.0.1"
    return [format_address((host, port))]


def _split(address: str) -> tuple[str, int] | None:
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 0xFFFF:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def format_address(address: object) -> str:
    """Return a socket name as ``host:port``, ``[v6]:port`` or the path of a unix socket."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "@")


def peer_of(address: object) -> tuple[str, int] | None:
    """Return host and port of a TCP socket's peer, None for any other socket.

    An IPv4 client of a listener for both has its own address, not the IPv6 one that it is mapped to.
    """
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    host = str(address[0])
    return host.removeprefix(_MAPPED) if "." in host else host, int(address[1])


def born_of(peer: tuple[str, int] | None) -> tuple[int, bytes | None]:
    """Return a peer as records have it: IPv4 << 32 | port, and 20 bytes when it came over IPv6; 0 for none."""
    if peer is None:
        return 0, None
    host, port = peer
    if ":" in host:
        return 0, socket.inet_pton(socket.AF_INET6, host.partition("%")[0]) + port.to_bytes(4, "big")
    return int.from_bytes(socket.inet_aton(host), "big") << 32 | port, None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_name() -> str:
    """Return what this machine calls itself, "localhost" where it does not: a system takes any bytes, and none."""
    return os.fsencode(socket.gethostname()).decode("utf-8", "backslashreplace") or "localhost"


def told_host(setting: str, listens_at: str) -> str:
    """Return the host by which others are told to reach a listener.

    Args:
        setting: Wins if it is not empty.
        listens_at: ``host:port`` as bound; where that is every address, this machine's name is told.
    """
    host = parse_address(listens_at)[0] if listens_at else ""
    return setting or (host if host not in _EVERYWHERE else own_name())


def leads_to(listener: str, peer: tuple[str, int], local: tuple[str, int]) -> bool:
    """Return whether a connection leads to a listener of this machine, by whichever of its addresses.

    Args:
        listener: ``host:port`` as bound.
        peer: The connection's other end.
        local: Its own end: to an address of the same machine a system connects from that address, or by the loopback.
    """
    host, port = parse_address(listener)
    if peer[1] != port or host not in _EVERYWHERE:
        return peer == (host, port)
    return (is_loopback(peer[0]) or peer[0] == local[0]) and (host != "0.0.0.0" or ":" not in peer[0])
