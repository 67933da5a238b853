"""What ``headrace doctor`` says about nsqlookupds: are they there, and does what they are told lead consumers here?"""

from __future__ import annotations

import asyncio
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
from urllib.request import Request

from headrace.cli.findings import Finding
from headrace.cli.local_http import open_directly
from headrace.errors import ClientError, ConfigError, NotConnectedError, ProtocolError
from headrace.format import fastjson
from headrace.net.address import format_address, is_loopback, parse_address, parse_registries, told_host
from headrace.net.dialing import connect
from headrace.net.names import Names
from headrace.net.ports import LISTENERS, is_dispensable, listener_addresses
from headrace.nsq.lookup_peers.codec import PING
from headrace.nsq.lookup_peers.connection import LookupConnection

if TYPE_CHECKING:
    from headrace.settings import Settings

NAME: Final = "nsqlookupd"
MAX_NODES_BYTES: Final = 64 << 20
ANSWER_S: Final = 2.0


def find_lookupds(settings: Settings) -> list[str]:
    """Return the nsqlookupds that tell of this broker, the one in its process first."""
    if "nsq_tcp" not in listener_addresses(settings):
        return []
    own, others = _own_lookupd(settings), parse_registries(settings.nsq.lookupd_addresses, "")
    return [*own, *(address for address in others if address not in own)]


def _own_lookupd(settings: Settings) -> list[str]:
    return parse_registries("", listener_addresses(settings).get("nsqlookupd_tcp", ""))


def told_address(settings: Settings) -> str | None:
    """Return where NSQ consumers that ask a nsqlookupd are sent; None where NSQ is not served."""
    listener = listener_addresses(settings).get("nsq_tcp")
    if listener is None:
        return None
    nsq = settings.nsq
    port = nsq.broadcast_tcp_port or parse_address(listener)[1]
    return format_address((told_host(nsq.broadcast_address, listener), port))


async def check_lookupds(settings: Settings, *, is_running: bool) -> list[Finding]:
    """Do consumers that ask nsqlookupds find this broker?

    Args:
        is_running: Whether somebody listens where NSQ clients are served.
    """
    told, lookupds = told_address(settings), find_lookupds(settings)
    if told is None:
        if not settings.nsq.lookupd_addresses:
            return []
        return [Finding("warning", NAME, "nsq.lookupd_addresses is of no use: NSQ is not served over TCP")]
    if not lookupds:
        return []
    names = Names()
    own = _own_lookupd(settings)
    listener = listener_addresses(settings).get("nsqlookupd_tcp", "")
    found = [
        await _check_lookupd(address, names, listener, own=address in own)
        for address in lookupds
        if parse_address(address)[1]
    ]
    own_http = parse_registries("", listener_addresses(settings).get("nsqlookupd_http", ""))
    if is_running and own_http and parse_address(told)[1] and found and found[0].status == "ok":
        found[0] = await _check_own(own[0], own_http[0], told)
    if "nsq_http" not in listener_addresses(settings) and not settings.nsq.broadcast_http_port:
        text = "nsqlookupds refuse a broker without HTTP: set nsq.http_address, or nsq.broadcast_http_port"
        found.append(Finding("problem", NAME, text))
    return [*found, await _check_told(told, lookupds, names, is_running=is_running)]


async def _check_lookupd(address: str, names: Names, listener: str, *, own: bool) -> Finding:
    try:
        connection = await connect(address, names, lambda: LookupConnection(address, lambda: None), ANSWER_S)
        try:
            await connection.say((PING,))
            is_own = bool(listener) and connection.leads_to(listener)
        finally:
            connection.close()
    except NotConnectedError as error:
        hint = "; it runs inside headrace serve" if own else "; see nsq.lookupd_addresses"
        return Finding("warning" if own else "problem", NAME, f"{error}{hint}")
    except (ClientError, ProtocolError) as error:
        text = f"{address} is no nsqlookupd, or not its TCP port (4160): {error}"
        return Finding("problem", NAME, text)
    if is_own and not own:
        text = f"{address} leads to the port of the registry in the broker's own process, which is told unnamed"
        if is_dispensable(LISTENERS["nsqlookupd_tcp"], listener):
            return Finding("ok", NAME, f"{text}; keep it in nsq.lookupd_addresses if another program has the port")
        return Finding("ok", NAME, f"{text}: leave it out of nsq.lookupd_addresses")
    return Finding("ok", NAME, f"{address} answers")


async def _check_own(address: str, http_address: str, told: str) -> Finding:
    """Is what answers where this process has its own nsqlookupd that one? A start does without a taken default."""
    try:
        known = await asyncio.to_thread(_read_nodes, http_address)
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        return Finding("warning", NAME, f"{address} answers, and {http_address} does not say whom it knows: {error}")
    if told in known:
        return Finding("ok", NAME, f"{address} answers, {http_address} sends consumers to {told}")
    text = (
        f"{address} answers, and {http_address} does not send consumers to {told}: it is another program's, and serve "
        "does without its own; name it in nsq.lookupd_addresses, or set registry.nsq_tcp_address and "
        "registry.nsq_http_address to free ports"
    )
    return Finding("warning", NAME, text)


def _read_nodes(http_address: str) -> set[str]:
    # Else it comes in the form from before NSQ 1.0 as well, twice as long.
    request = Request(f"http://{http_address}/nodes", headers={"Accept": "application/vnd.nsq; version=1.0"})
    with open_directly(request, timeout=ANSWER_S) as answer:
        rows = fastjson.loads(answer.read(MAX_NODES_BYTES))["producers"]
    return {format_address((row["broadcast_address"], row["tcp_port"])) for row in rows}


async def _check_told(told: str, lookupds: list[str], names: Names, *, is_running: bool) -> Finding:
    """Does the address that consumers are told lead to this broker?"""
    host, port = parse_address(told)
    remedy = "set nsq.broadcast_address to what consumers reach"
    try:
        async with asyncio.timeout(ANSWER_S):
            hosts = await names.addresses(host)
    except OSError as error:
        reason = error.strerror or str(error) or f"not within {ANSWER_S:g} s"
        text = f"consumers are told {told}, and this machine finds no address of that name ({reason}); {remedy}"
        return Finding("warning", NAME, text)
    far = [address for address in lookupds if not is_loopback(_host_of(address))]
    if far and all(map(is_loopback, hosts)):
        text = f"{far[0]} tells consumers {told}, which leads each to its own machine ({hosts[0]}); {remedy}"
        return Finding("warning", NAME, text)
    if not port:
        return Finding("warning", NAME, f"consumers are told {host} and a port that is chosen at the start (port 0)")
    if not is_running:
        return Finding("ok", NAME, f"consumers are told {told}; start the broker to see whether it is reachable")
    try:
        await connect(told, names, _Probe, ANSWER_S)
    except NotConnectedError as error:
        text = f"consumers are told {told}, which is not reached from here ({error.reason}); {remedy}"
        return Finding("warning", NAME, text)
    return Finding("ok", NAME, f"consumers are told {told}, which is reached from here")


class _Probe(asyncio.Protocol):
    """A connection that is only made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _host_of(address: str) -> str:
    try:
        return parse_address(address)[0]
    except ConfigError:
        return address
