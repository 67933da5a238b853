"""A registry by itself: its name server, its nsqlookupd and its admin port in one process, without a broker.

The order of life is a node's: bind the ports, claim the folder, start the listeners, write the ready file; at the end
the admin port closes last, as it says "stopping" meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop

import headrace
from headrace.admin.http import REGISTRY_ELSEWHERE, AdminHttp, NodeStatus, Phase
from headrace.admin.loop_lag import LoopLagSampler
from headrace.admin.open_files import OpenFilesWatch
from headrace.admin.sources import MetricSources
from headrace.broker.access import open_rules
from headrace.clock import LoopClock
from headrace.errors import ConfigError, StoreError, StoreLockedError
from headrace.foreground import ReadyFile, announce, loop_refusals, spell, stop_at_signals
from headrace.net.address import format_address
from headrace.net.http import HttpLimits, HttpListener
from headrace.net.listener import raise_file_limit
from headrace.net.ports import (
    REGISTRY_LISTENERS,
    REGISTRY_NEEDS_ADDRESS,
    bind_listener,
    is_dispensable,
    registry_addresses,
)
from headrace.nsq.lookupd.service import LISTENERS as LOOKUPD_LISTENERS
from headrace.nsq.lookupd.service import LookupdService
from headrace.remoting.registry.server import RegistryServer
from headrace.settings import Settings
from headrace.settings.folder import find_folder_problem

logger = logging.getLogger(__name__)

FILES_LOOK_SECONDS: Final = 1.0


class LoneRegistry:
    """One registry process: ``open``, ``start``, and ``stop``.

    Attributes:
        listeners: ``host:port`` by name, as bound.
        registry: What RocketMQ's clients and brokers ask.
        lookupd: What NSQ's ask; None where neither of its listeners is there.
        admin: Health and metrics; None where it is switched off or left out.
    """

    def __init__(self, settings: Settings, *, free_ports: bool = False) -> None:
        self.settings = settings
        self.clock = LoopClock()
        self.listeners: dict[str, str] = {}
        self.registry: RegistryServer
        self.lookupd: LookupdService | None = None
        self.admin: HttpListener | None = None
        self._free_ports = free_ports
        self._sockets: dict[str, socket.socket] = {}
        self._status: NodeStatus
        self._lag = LoopLagSampler()
        self._files = OpenFilesWatch(self.clock, "registry.max_connections")
        self._loop: asyncio.AbstractEventLoop
        self._files_handle: asyncio.TimerHandle | None = None

    # -- starting ---------------------------------------------------------------------------------------------------

    def open(self, on_claimed: Callable[[], None] | None = None) -> None:
        """Bind the ports, claim the folder and read what is kept there; needs no event loop.

        Args:
            on_claimed: Called when ports and folder are this process's.

        Raises:
            HeadraceError: one sentence that names the thing and the remedy. Nothing stays open.
        """
        settings = self.settings
        if not settings.registry.address:
            raise ConfigError(REGISTRY_NEEDS_ADDRESS)
        if problem := find_folder_problem(settings.store.data_dir):
            raise StoreError(f"{problem}; choose another with --data-dir")
        rules = open_rules(settings.access)
        data_dir = settings.store.data_dir
        self.registry = RegistryServer(settings.registry, self.clock, data_dir=data_dir, rules=rules)
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_sockets)
            self._bind_all()
            self.registry.claim()
            undo.callback(self.registry.release)
            if on_claimed is not None:
                on_claimed()
            undo.pop_all()

    def _bind_all(self) -> None:
        wanted = registry_addresses(self.settings.registry)
        # What was set goes before a default that a start does without: two of the settings may name one port.
        in_order = sorted(wanted.items(), key=lambda item: is_dispensable(REGISTRY_LISTENERS[item[0]], item[1]))
        try:
            for name, address in in_order:
                setting = REGISTRY_LISTENERS[name]
                sock = bind_listener(name, address, free_port=self._free_ports, setting=setting)
                if sock is not None:
                    self._sockets[name] = sock
        except ConfigError as error:
            try:
                self.registry.require_unlocked()
            except StoreLockedError as locked:  # by whoever took the port: this explains it best
                raise locked from error
            raise
        bound = self._sockets
        self.listeners = {
            name: format_address(bound[name].getsockname()) for name in REGISTRY_LISTENERS if name in bound
        }

    def _close_sockets(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    async def start(self) -> None:
        """Start listening on what ``open`` bound."""
        self._loop = loop = asyncio.get_running_loop()
        settings, sockets = self.settings, self._sockets
        started_at_ms = self.clock.now_ms()
        self.clock.begin()
        self._status = NodeStatus(
            version=headrace.__version__,
            data_dir=spell(settings.store.data_dir.resolve()),
            elsewhere=REGISTRY_ELSEWHERE,
            listeners=self.listeners,
        )
        if not sockets.keys().isdisjoint(LOOKUPD_LISTENERS):
            limits = HttpLimits.within_open_files()
            self.lookupd = LookupdService(settings.registry, self.clock, sockets, limits=limits)
        await self.registry.start(sockets.pop("registry"))
        if self.lookupd is not None:
            await self.lookupd.start()
        if "admin" in sockets:
            await self._start_admin(sockets.pop("admin"), started_at_ms)
        self._lag.start(loop)
        self._look_at_files()
        self._status.phase = Phase.READY

    async def _start_admin(self, sock: socket.socket, started_at_ms: int) -> None:
        http: dict[str, HttpListener] = {}
        sources = MetricSources(
            registry=self.registry,
            lookupd=self.lookupd,
            loop_lag=self._lag.histogram,
            files=self._files,
            clock=self.clock,
            version=headrace.__version__,
            started_at_ms=started_at_ms,
            http=http,
        )
        app = AdminHttp(self._status, sources)
        limits = HttpLimits.within_open_files()
        self.admin = http["admin"] = HttpListener("admin", app, sock, limits=limits, counters=app.counters)
        await self.admin.start()

    def _look_at_files(self) -> None:
        self._files_handle = self._loop.call_later(FILES_LOOK_SECONDS, self._look_at_files)
        try:
            self._files.look()
        except Exception:
            logger.exception("tick failed by a bug")  # the next still comes

    # -- stopping ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop listening, answer what is pending, close connections, write everything down."""
        self._status.phase = Phase.STOPPING
        servers = [self.registry.stop()]
        if self.lookupd is not None:
            servers.append(self.lookupd.stop())
        try:
            await _stop_all(servers)
        finally:
            self._lag.stop()
            if self._files_handle is not None:
                self._files_handle.cancel()
            if self.admin is not None:
                await self.admin.stop()


async def _stop_all(servers: list[Coroutine[Any, Any, None]]) -> None:
    """Stop servers beside each other, whatever goes wrong with one of them."""
    failures = [end for end in await asyncio.gather(*servers, return_exceptions=True) if end is not None]
    for failure in failures[1:]:
        logger.error("another server did not stop", exc_info=failure)
    if failures:
        raise failures[0]


def describe(registry: LoneRegistry) -> str:
    """Return what ``headrace registry`` prints when it is ready."""
    lines = [f"  {'folder':<15}  {registry.registry.kv_path.parent.resolve()}"]
    lines += [f"  {name:<15}  {address}" for name, address in registry.listeners.items()]
    return "\n".join((f"Headrace {headrace.__version__} registry is ready", *lines))


async def _serve(registry: LoneRegistry, ready: ReadyFile) -> None:
    stop_wanted = asyncio.Event()
    stop_at_signals(asyncio.get_running_loop(), stop_wanted.set)
    await registry.start()
    try:
        ready.put(registry.settings.store.data_dir, registry.listeners)
        announce(describe(registry))
        await stop_wanted.wait()
    finally:
        logger.info("stopping")
        await registry.stop()


def run_registry(settings: Settings, *, free_ports: bool, ready_file: Path | None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; return the exit code.

    Raises:
        HeadraceError: it cannot start; the text is for the user.
    """
    raise_file_limit()
    ready = ReadyFile(ready_file)
    ready.require_writable()
    registry = LoneRegistry(settings, free_ports=free_ports)
    registry.open(ready.clear)
    try:
        with loop_refusals(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(registry, ready))
    finally:
        ready.remove()
    return 0
