"""Connections to servers that settings or other servers name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import NotConnectedError
from headrace.net.address import parse_peer
from headrace.net.names import Names

Made = TypeVar("Made", bound=asyncio.BaseProtocol)


async def connect(address: str, names: Names, make: Callable[[], Made], timeout_s: float) -> Made:
    """Return the protocol object of a new connection. The name is looked up each time: it may lead elsewhere now.

    Args:
        address: ``host:port``.
        timeout_s: For looking up the name, and again for the connecting.

    Raises:
        NotConnectedError: it could not be made, or ``address`` is none.
    """
    try:
        host, port = parse_peer(address)
    except ValueError:
        raise NotConnectedError(address, "an address is host:port") from None
    try:
        async with asyncio.timeout(timeout_s):
            hosts = await names.addresses(host)
    except OSError as error:
        reason = error.strerror or str(error) or f"its name was not resolved within {timeout_s:g} s"
        raise NotConnectedError(address, reason) from error
    loop = asyncio.get_running_loop()
    share_s = timeout_s / len(hosts)  # from the first there may come nothing at all
    reasons = []
    for one in hosts:
        try:
            async with asyncio.timeout(share_s):
                _, connection = await loop.create_connection(make, one, port)
            return connection
        except OSError as error:
            reason = error.strerror or str(error) or f"not accepted within {share_s:g} s"
            reasons.append(f"{one}: {reason}" if len(hosts) > 1 else reason)
    raise NotConnectedError(address, "; ".join(reasons))
