"""What the admin interface reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.histogram import Histogram

if TYPE_CHECKING:
    from headrace.admin.open_files import OpenFilesWatch
    from headrace.broker.broker import Broker
    from headrace.clock import LoopClock
    from headrace.net.http import HttpListener
    from headrace.nsq.lookup_peers.peers import LookupPeers
    from headrace.nsq.lookupd.service import LookupdService
    from headrace.nsq.server import NsqServer
    from headrace.nsq.statsd.pusher import StatsdPusher
    from headrace.remoting.assembly import RemotingAssembly
    from headrace.remoting.registry.server import RegistryServer


@dataclass(kw_only=True)
class MetricSources:
    """Where the figures come from; a registry by itself has no broker, and nothing of one."""

    loop_lag: Histogram
    files: OpenFilesWatch
    clock: LoopClock
    version: str
    started_at_ms: int
    broker: Broker | None = None
    registry: RegistryServer | None = None
    nsq: NsqServer | None = None
    lookupd: LookupdService | None = None
    lookup_peers: LookupPeers | None = None
    statsd: StatsdPusher | None = None
    remoting: RemotingAssembly | None = None
    http: Mapping[str, HttpListener] = field(default_factory=dict)
    """HTTP listeners by name, such as ``nsq_http``; may be filled after the start."""
