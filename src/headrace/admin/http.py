"""The admin HTTP interface, of a broker or of a registry by itself.

- ``/``: version, process, data folder, listeners, as JSON.
- ``/healthz``: 200, or 500 with the reason; what a supervisor restarts the process for.
- ``/readyz``: 200 once every listener accepts, 503 while the process starts or stops, and where it can serve no more;
  what a load balancer asks.
- ``/metrics``: Prometheus text.

Every other path is 404, and says where what is looked for may be.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from types import ModuleType
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.admin.sources import MetricSources
from headrace.clock import Clock
from headrace.log_pace import LogPace
from headrace.net.http import HttpCounters, Receive, Scope, Send

if TYPE_CHECKING:
    from headrace.admin.metrics import MetricsReport

logger = logging.getLogger(__name__)

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PATHS: Final = "/, /healthz, /readyz and /metrics"
BROKER_ELSEWHERE: Final = "nsqd's API is on nsq.http_address, nsqlookupd's on registry.nsq_http_address"
REGISTRY_ELSEWHERE: Final = "nsqlookupd's API is on registry.nsq_http_address, and what only a broker has on a broker"


class Phase(Enum):
    """Where the process is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(kw_only=True)
class NodeStatus:
    """What the composition root tells the admin interface; it changes ``phase``."""

    version: str
    data_dir: str
    health: Callable[[], str] = str
    """Returns why the process cannot do its work; empty = it can."""
    unready: Callable[[], str] = str
    """Returns why nobody should be led to the process though it listens; empty = they should."""
    elsewhere: str = BROKER_ELSEWHERE
    """Where what is not here may be."""
    phase: Phase = Phase.STARTING
    listeners: dict[str, str] = field(default_factory=dict)
    """``host:port`` by listener name, as in the ready file."""


class AdminHttp:
    """The ASGI application of the admin listener."""

    def __init__(self, status: NodeStatus, sources: MetricSources) -> None:
        self.status = status
        self.counters = HttpCounters()
        self._sources = sources
        self._report: MetricsReport | None = None
        self._pace = LogPace(Clock())
        self._app = Starlette(
            routes=[
                Route("/", self.handle_index),
                Route("/healthz", self.handle_healthz),
                Route("/readyz", self.handle_readyz),
                Route("/metrics", self.handle_metrics),
            ],
            exception_handlers={HTTPStatus.NOT_FOUND: self.handle_unknown},
        )
        # To most load balancers a redirect is a good answer: /readyz/ is unknown, not one to /readyz.
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, send)

    async def handle_index(self, _request: Request) -> Response:
        """GET /."""
        status = self.status
        return _respond(
            msgspec.json.encode(
                {
                    "name": "headrace",
                    "version": status.version,
                    "pid": os.getpid(),
                    "data_dir": status.data_dir,
                    "phase": status.phase.value,
                    "listeners": status.listeners,
                }
            ),
            media_type="application/json",
        )

    async def handle_healthz(self, _request: Request) -> Response:
        """GET /healthz."""
        reason = self.status.health()
        return _respond(f"{reason}\n".encode(), 500) if reason else _respond(b"ok\n")

    async def handle_readyz(self, _request: Request) -> Response:
        """GET /readyz."""
        phase = self.status.phase
        reason = self.status.unready() if phase is Phase.READY else ""
        is_ready = phase is Phase.READY and not reason
        return _respond(f"{reason or phase.value}\n".encode(), 200 if is_ready else 503)

    async def handle_unknown(self, _request: Request, _error: Exception) -> Response:
        """Answer any other path."""
        return _respond(f"not here: this admin port has {PATHS}; {self.status.elsewhere}\n".encode(), 404)

    async def handle_metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        if self._report is None:
            try:
                metrics = await _import_metrics()
            # No file can be opened, or mapped, any more: tried again with the next request.
            except (OSError, ImportError, MemoryError) as error:
                self.counters.refusals["no_metrics"] += 1
                if self._pace.is_due("no_metrics"):
                    logger.warning("metrics not available, tried again with the next scrape error=%s", error)
                reason = getattr(error, "strerror", "") or str(error) or "no memory"
                return _respond(f"not now: {reason}\n".encode(), 503)
            self._report = metrics.MetricsReport(self._sources)
        return _respond(await self._report.render(), media_type=METRICS_TYPE)


async def _import_metrics() -> ModuleType:
    name = "headrace.admin.metrics"
    try:
        return await asyncio.to_thread(importlib.import_module, name)
    except RuntimeError:  # the system starts no more threads: better to hold the loop than to tell nothing
        return importlib.import_module(name)


def _respond(content: bytes, status: int = 200, *, media_type: str = "text/plain; charset=utf-8") -> Response:
    return Response(content, status, media_type=media_type)
