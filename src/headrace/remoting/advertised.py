"""By which address clients reach this broker, and the pair of ports it listens on.

Registries, message ids and every record name one address. It has to be one that clients can use, in the form of an IP
address: tools compare it as text.

Ref: remoting.md 4.9 (traps), 5.1 (VIP channel).
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import socket
import struct
from dataclasses import dataclass
from typing import Final

from headrace.errors import ConfigError, InternalError
from headrace.net.address import format_address, is_loopback, parse_address
from headrace.net.ports import bind_port
from headrace.settings import RemotingSettings
from headrace.settings.validate import VIP_DISTANCE

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 50
"""Free ports that are tried until one is found whose neighbour is free too."""

_ELSEWHERE: Final = ("192.0.2.1", 9)
_ELSEWHERE_V6: Final = ("2001:db8::1", 9)
"""Documentation addresses: routing to one names the local address that leads outwards; nothing is sent."""

_SIOCGIFADDR: Final = 0x8915
"""Linux's request for the address of an interface; other systems refuse it."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """The address that clients are told: an IP address and a port."""

    host: str
    port: int

    @property
    def text(self) -> str:
        """``ip:port``."""
        return format_address((self.host, self.port))


def find_advertised(setting: str, bound: tuple[str, int]) -> Advertised:
    """Return the address to advertise.

    Args:
        setting: ``remoting.advertised_address``: empty, a host, or ``host:port``.
        bound: Where the broker listens, or is going to: a host, or its address.

    Raises:
        ConfigError: the setting names a host that cannot be resolved or that leads nowhere, or a port that is none.
    """
    host, port = bound
    shown = f"remoting.advertised_address {setting!r}" if setting else f"remoting.address {host!r}"
    if setting:
        host = setting
        name, colon, _ = setting.rpartition(":")
        if colon and (":" not in name or (name.startswith("[") and name.endswith("]"))):
            try:
                host, port = parse_address(setting)
            except ConfigError as error:
                raise _refuse(f"{shown}: {error}") from error
            if not port:
                raise _refuse(f"{shown} has port 0, which nobody can connect to; give the port that clients reach")
        host = host.strip("[]")
        if not host or _is_unspecified(host):
            raise _refuse(f"{shown} leads nowhere; give an IP address by which clients reach this broker")
    elif _is_unspecified(host):
        host = _outward_address(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a host of empty or long labels is no text for a resolver
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise _refuse(
            f"{shown} cannot be resolved: {reason}; give an IP address by which clients reach this broker"
        ) from error
    # IPv4 where there is one: old clients know nothing else.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return Advertised(str(found[0][4][0]), port)


def _refuse(text: str) -> ConfigError:
    return ConfigError(text, key="remoting.advertised_address")


def _is_unspecified(host: str) -> bool:
    """Return whether a host stands for every address of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def find_outward(setting: str, listens_on: str) -> str:
    """Return the address that a broker which found its own by itself would find now; empty where it did not, or none.

    Args:
        setting: ``remoting.advertised_address``.
        listens_on: A host.
    """
    return "" if setting or not _is_unspecified(listens_on) else _routed_address(listens_on)


def _routed_address(listens_on: str) -> str:
    """Return the address of this machine that leads outwards; empty where no route does."""
    families = {socket.AF_INET: _ELSEWHERE}  # IPv4 where there is one: old clients know nothing else
    if ":" in listens_on:
        families[socket.AF_INET6] = _ELSEWHERE_V6
    for family, elsewhere in families.items():
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(elsewhere)
            return str(probe.getsockname()[0])
    return ""


def _outward_address(listens_on: str) -> str:
    """Return the address of this machine that leads outwards, without any that of an interface, or the loopback's."""
    host = _routed_address(listens_on)
    if host:
        return host
    host = _interface_address()
    logger.warning(
        "no route leads outwards, advertising the address of an interface; where clients reach this broker by "
        "another one, set remoting.advertised_address address=%s",
        host,
    )
    return host


def _interface_address() -> str:
    """Return the first IPv4 address that an interface has, the loopback's where it is the only one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                host = socket.inet_ntoa(answer[20:24])
                if not is_loopback(host):
                    return host
    return "127.0.0.1"


def bind_remoting(settings: RemotingSettings, *, free_port: bool) -> dict[str, socket.socket]:
    """Bind the listener of RocketMQ clients and, two ports below, the one of their VIP channel.

    Raises:
        ConfigError: an address is taken; names the setting and the remedy.
    """
    host, wanted = parse_address(settings.address)
    is_free = free_port or not wanted
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        sock = bind_port(settings.address, "remoting.address", free_port=free_port)
        if not settings.vip_listener:
            return {"remoting": sock}
        port = sock.getsockname()[1] - VIP_DISTANCE
        try:
            # A free one must not be that of another listener of ours, which does not listen yet.
            where = format_address((host, max(port, 0)))
            vip = bind_port(where, "remoting.address", free_port=False, alone=is_free)
        except ConfigError as error:
            sock.close()
            if is_free and attempt < _MAX_ATTEMPTS:
                continue  # somebody has the port two below the free one
            raise ConfigError(
                f"{error}; it is remoting.address's port - {VIP_DISTANCE}, for old clients: "
                "--remoting.vip-listener false does without it",
                key="remoting.vip_listener",
            ) from error
        return {"remoting": sock, "remoting_vip": vip}
    raise InternalError("no pair of ports")
