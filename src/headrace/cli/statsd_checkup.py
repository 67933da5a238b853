"""What ``headrace doctor`` says about a statsd: where statistics go, under which keys, whether a way leads there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.cli.findings import Finding
from headrace.net.address import is_loopback, parse_address, told_host
from headrace.net.names import Names
from headrace.net.ports import listener_addresses
from headrace.nsq.statsd.destination import find_hosts, open_socket, reason_of
from headrace.nsq.statsd.lines import expand_prefix
from headrace.settings.units import format_duration

if TYPE_CHECKING:
    from headrace.settings import Settings

NAME: Final = "statsd"


async def check_statsd(settings: Settings) -> list[Finding]:
    """Where do NSQ's statistics go, and does a way lead there?

    Nothing is sent: whether somebody listens is not seen.
    """
    nsq = settings.nsq
    address = nsq.statsd_address
    if not address:
        return []
    listeners = listener_addresses(settings)
    tcp, http = (listeners.get(name, "") for name in ("nsq_tcp", "nsq_http"))
    if not (tcp or http):
        return [Finding("warning", NAME, "nsq.statsd_address is of no use: NSQ is not served")]
    try:
        hosts = await find_hosts(address, Names())
    except OSError as error:
        text = f"{address} gets no statistics, its name is not resolved ({reason_of(error)}); see nsq.statsd_address"
        return [Finding("warning", NAME, text)]
    try:
        open_socket(address, hosts).close()
    except OSError as error:
        text = f"{address} gets no statistics, no way leads to {', '.join(hosts)} ({reason_of(error)})"
        return [Finding("warning", NAME, text)]
    told = told_host(nsq.broadcast_address, tcp or http)
    port = nsq.broadcast_http_port or (parse_address(http)[1] if http else 0)
    if http and not port and "%s" in nsq.statsd_prefix:
        text = (
            f"the keys for {address} begin otherwise after each start, as the HTTP port is chosen then (port 0); set "
            "nsq.http_address, or nsq.broadcast_http_port"
        )
        return [Finding("warning", NAME, text)]
    prefix = expand_prefix(nsq.statsd_prefix, told, port)
    if "%s" in nsq.statsd_prefix and is_loopback(told) and not is_loopback(hosts[0]):
        text = (
            f"the keys for {address} begin with {prefix}, as those of brokers on other machines do that only these "
            "reach; set nsq.broadcast_address"
        )
        return [Finding("warning", NAME, text)]
    interval = format_duration(nsq.statsd_interval_ms)
    text = f"statistics go to {address} ({hosts[0]}) every {interval}, as {prefix}topic.NAME.depth and so on"
    return [Finding("ok", NAME, text)]
