"""What a broker, or a registry by itself, listens on, and ports taken before a start goes on.

A taken one must not cost a recovery, and is best explained by its setting.
"""

from __future__ import annotations

import errno
import logging
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.net.address import parse_address
from headrace.net.listener import is_own_port, new_socket
from headrace.settings.tree import RegistrySettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.settings import Settings

logger = logging.getLogger(__name__)

LISTENERS: Final = {
    "nsq_tcp": "nsq.tcp_address",
    "nsq_http": "nsq.http_address",
    "remoting": "remoting.address",
    "registry": "registry.address",
    "nsqlookupd_tcp": "registry.nsq_tcp_address",
    "nsqlookupd_http": "registry.nsq_http_address",
    "admin": "admin.address",
}
"""The setting that has the address of each listener of ``headrace serve``, by its name."""
REGISTRY_LISTENERS: Final = {
    "registry": "registry.address",
    "nsqlookupd_tcp": "registry.nsq_tcp_address",
    "nsqlookupd_http": "registry.nsq_http_address",
    "admin": "registry.admin_address",
}
"""The same of ``headrace registry``. Its admin port has a setting of its own: docs/adr/0020."""
GUARDED: Final = frozenset(("remoting", "remoting_vip", "registry"))
"""Listeners that ask who sends a request, where there are access rules; the VIP one goes with ``remoting``."""
_DISPENSABLE: Final = {
    "registry.nsq_tcp_address": RegistrySettings().nsq_tcp_address,
    "registry.nsq_http_address": RegistrySettings().nsq_http_address,
    "registry.admin_address": RegistrySettings().admin_address,
}
"""Settings of listeners that a start does without where another program has their default address: a nsqlookupd, or a
second broker or registry whose other addresses were set before there were these."""
_ADDRESS_SETTINGS: Final = tuple(LISTENERS.values())
EVERY_LISTENER_OFF: Final = (
    f"every listener is off, nobody could connect: set one of {', '.join(_ADDRESS_SETTINGS[:-1])} and "
    f"{_ADDRESS_SETTINGS[-1]}, with enabled = true in its section"
)
REGISTRY_NEEDS_ADDRESS: Final = 'registry.address = "" is not accepted: a registry alone needs an address "host:port"'


def listener_addresses(settings: Settings) -> dict[str, str]:
    """Return where each listener is to be that is switched on, by its name, without what goes with one (VIP)."""
    found = {}
    for name, setting in LISTENERS.items():
        section, field = setting.split(".")
        own = getattr(settings, section)
        if own.enabled and (address := getattr(own, field)):
            found[name] = address
    return found


def with_addresses(settings: Settings, addresses: Mapping[str, str]) -> Settings:
    """Return the settings with these addresses of listeners, by their names; the others are off."""
    by_section: dict[str, dict[str, Any]] = {}
    for name, setting in LISTENERS.items():
        section, field = setting.split(".")
        by_section.setdefault(section, {})[field] = addresses.get(name, "")
    changed = {section: replace(getattr(settings, section), **fields) for section, fields in by_section.items()}
    return replace(settings, **changed)


def registry_addresses(settings: RegistrySettings) -> dict[str, str]:
    """Return where each listener of a registry by itself is to be, by its name; ``enabled`` is for brokers."""
    found = {name: getattr(settings, setting.split(".")[1]) for name, setting in REGISTRY_LISTENERS.items()}
    return {name: address for name, address in found.items() if address}


def is_dispensable(setting: str, address: str) -> bool:
    """Return whether a start does without the listener of a setting if somebody has its address."""
    return address == _DISPENSABLE.get(setting)


def bind_listener(name: str, address: str, *, free_port: bool, setting: str = "") -> socket.socket | None:
    """Bind a listener's socket; None where its default address is taken and the start does without, which is logged.

    Args:
        setting: Which has the address, where it is not the one of ``headrace serve``.

    Raises: as ``bind_port``.
    """
    setting = setting or LISTENERS[name]
    try:
        return bind_port(address, setting, free_port=free_port)
    except ConfigError as error:
        cause = error.__cause__
        if not (isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE and is_dispensable(setting, address)):
            raise
        logger.warning(
            'listener left out, its default address is taken name=%s address=%s remedy=set %s to another one, or to ""',
            name, address, setting,
        )  # fmt: skip
        return None


def bind_port(address: str, setting: str, *, free_port: bool, alone: bool = False) -> socket.socket:
    """Bind one listener's socket; it listens later.

    Args:
        alone: Refuse a port that anybody has bound, even if nobody listens yet or any more.

    Raises:
        ConfigError: the address is taken, not ours or malformed; names the setting and the remedy.
    """
    host, port = parse_address(address)
    sock = new_socket(host, alone=alone)
    try:
        sock.bind((host, 0 if free_port else port))
        if alone:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # it is ours: now as every other listener's
        elif not free_port and port:
            # Another server may have bound the port with SO_REUSEADDR too: only listening tells.
            sock.listen(1)
    except OSError as error:
        sock.close()
        flag = "--" + setting.replace("_", "-")
        if error.errno == errno.EADDRINUSE:
            who = "another listener of this process" if is_own_port(port) else "another program"
            text = f"{address} is taken by {who}; choose another address with {flag}, or use --free-ports"
        else:
            # A resolver's numbers are not the system's: only its own text explains them.
            text = f"cannot listen on {address}: {error.strerror or error}; choose another address with {flag}"
        raise ConfigError(text, key=setting) from error
    return sock
