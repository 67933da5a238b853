"""nsqd's run-time options as ``/config/NAME`` shows them.

Names are nsqd's flags with underscores; durations are in ns and ``log_level`` is a number, as nsqd prints them. Options
of parts that Headrace does not have (memory queue, worker pool) are unknown here rather than invented. Only
``log_level`` and ``nsqlookupd_tcp_addresses`` can be set.

Ref: nsq.md 3.2, "/config/:opt"; 8.1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.nsq.statsd.lines import expand_prefix

if TYPE_CHECKING:
    from headrace.settings import NsqSettings

Value = str | int | bool | list[str] | list[float]

LOG_LEVEL: Final = "log_level"
LOOKUPDS: Final = "nsqlookupd_tcp_addresses"
MAX_LOOKUPDS: Final = 100
MAX_LOOKUPD_CHARS: Final = 300
"""Of one address: a host name has at most 253. Each is kept, and stands in the log."""
# nsqd's names and numbers for levels of Python's logging.
LEVELS: Final = {
    "debug": (1, logging.DEBUG),
    "info": (2, logging.INFO),
    "warn": (3, logging.WARNING),
    "error": (4, logging.ERROR),
    "fatal": (5, logging.CRITICAL),
}
NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """What a broker says about itself in ``/info``, ``/stats`` and ``/config``, beside its settings for NSQ."""

    version: str
    hostname: str
    broadcast_address: str
    tcp_address: str
    """Where the listener is bound; empty when there is none."""
    http_address: str
    started_at_ms: int
    """Wall-clock time of the start."""
    node_id: int
    data_dir: str
    segment_bytes: int


def port_of(address: str, missing: int) -> int:
    """Return the port of a listener; ``missing`` where there is none."""
    return int(address.rpartition(":")[2] or missing)


def broadcast_tcp_port(settings: NsqSettings, facts: NodeFacts) -> int:
    """Return the port at which clients are told that they reach this broker; 0 where there is none."""
    return settings.broadcast_tcp_port or port_of(facts.tcp_address, 0)


def broadcast_http_port(settings: NsqSettings, facts: NodeFacts) -> int:
    """Return the same of HTTP."""
    return settings.broadcast_http_port or port_of(facts.http_address, 0)


def statsd_prefix(settings: NsqSettings, facts: NodeFacts) -> str:
    """Return what the keys of pushed statistics begin with."""
    return expand_prefix(settings.statsd_prefix, facts.broadcast_address, broadcast_http_port(settings, facts))


def log_level(logger: logging.Logger) -> int:
    """Return a logger's level as nsqd numbers it."""
    effective = logger.getEffectiveLevel()
    return max((number for number, level in LEVELS.values() if level <= effective), default=1)


def read_addresses(value: bytes) -> list[str] | None:
    """Return the addresses of a JSON list, None where it is none, or has too many or too long ones.

    As nsqd, any text is an address.
    """
    try:
        addresses = msgspec.json.decode(value, type=list[str] | None) or []
    except (msgspec.DecodeError, RecursionError):
        return None
    is_bounded = len(addresses) <= MAX_LOOKUPDS and all(len(address) <= MAX_LOOKUPD_CHARS for address in addresses)
    return addresses if is_bounded else None


def read_options(settings: NsqSettings, facts: NodeFacts) -> Mapping[str, Value]:
    """Return the options that do not change, by name."""
    return {
        "id": facts.node_id,
        "data_path": facts.data_dir,
        "max_bytes_per_file": facts.segment_bytes,
        "tcp_address": facts.tcp_address,
        "http_address": facts.http_address,
        "https_address": "",
        "broadcast_address": facts.broadcast_address,
        "broadcast_tcp_port": broadcast_tcp_port(settings, facts),
        "broadcast_http_port": broadcast_http_port(settings, facts),
        LOOKUPDS: [],
        "auth_http_addresses": [],
        "msg_timeout": settings.msg_timeout_ms * NS_PER_MS,
        "max_msg_timeout": settings.max_msg_timeout_ms * NS_PER_MS,
        "max_msg_size": settings.max_message_bytes,
        "max_body_size": settings.max_body_bytes,
        "max_req_timeout": settings.max_req_timeout_ms * NS_PER_MS,
        "max_heartbeat_interval": settings.max_heartbeat_interval_ms * NS_PER_MS,
        "max_rdy_count": settings.max_rdy_count,
        "max_output_buffer_size": settings.max_output_buffer_bytes,
        "max_output_buffer_timeout": settings.max_output_buffer_timeout_ms * NS_PER_MS,
        "min_output_buffer_timeout": settings.min_output_buffer_timeout_ms * NS_PER_MS,
        "output_buffer_timeout": settings.output_buffer_timeout_ms * NS_PER_MS,
        "max_channel_consumers": settings.max_channel_consumers,
        "statsd_address": settings.statsd_address,
        "statsd_prefix": statsd_prefix(settings, facts),
        "statsd_interval": settings.statsd_interval_ms * NS_PER_MS,
        "statsd_mem_stats": settings.statsd_mem_stats,
        "statsd_udp_packet_size": settings.statsd_udp_packet_bytes,
        "statsd_exclude_ephemeral": settings.statsd_exclude_ephemeral,
        "deflate": False,
        "max_deflate_level": settings.max_deflate_level,
        "snappy": False,
        "tls_required": 0,
        "tls_cert": "",
        "tls_key": "",
    }
