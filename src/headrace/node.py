"""The composition root: builds store, broker and listeners of one process from settings, and takes them down again.

Only this module knows every part. Order of life: read the access rules, bind the ports (a wrong file or a taken port
must not cost a recovery), open the store, open the broker, start the listeners, write the ready file; and backwards at
the end, so that replies that wait for the disk still leave before the store is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

import headrace
from headrace.admin.http import AdminHttp, NodeStatus, Phase
from headrace.admin.loop_lag import LoopLagSampler
from headrace.admin.open_files import OpenFilesWatch
from headrace.admin.sources import MetricSources
from headrace.broker.broker import Broker
from headrace.broker.parts import BrokerParts
from headrace.clock import LoopClock
from headrace.errors import ConfigError, StoreError, StoreLockedError, remedy_for
from headrace.foreground import ReadyFile, announce, loop_refusals, spell, stop_at_signals
from headrace.lock_file import release_lock
from headrace.net.address import born_of, format_address, own_name, parse_address, parse_registries, told_host
from headrace.net.deadlines import call_behind_reads
from headrace.net.http import Application, HttpCounters, HttpLimits, HttpListener, Shortcut
from headrace.net.listener import raise_file_limit
from headrace.net.loop_load import LoopLoad
from headrace.net.ports import EVERY_LISTENER_OFF, LISTENERS, bind_listener, is_dispensable, listener_addresses
from headrace.nsq.config_options import NodeFacts, broadcast_http_port, broadcast_tcp_port, statsd_prefix
from headrace.nsq.http import NsqHttp
from headrace.nsq.http_publishes import HttpPublishes
from headrace.nsq.lookup_peers.codec import NsqdIdentity
from headrace.nsq.lookup_peers.peers import LookupPeers
from headrace.nsq.lookupd.service import LISTENERS as LOOKUPD_LISTENERS
from headrace.nsq.lookupd.service import LookupdService
from headrace.nsq.server import NsqServer
from headrace.nsq.statsd.pusher import StatsdPusher
from headrace.nsq.version import server_version
from headrace.remoting.advertised import Advertised, bind_remoting, find_advertised
from headrace.remoting.assembly import Access, RemotingAssembly, open_access
from headrace.remoting.services import open_parts, topics_from_start
from headrace.settings import Settings
from headrace.store.directory import StoreDirectory
from headrace.store.store import Store

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.05
RESERVE_BYTES: Final = 8 << 20
"""Address space that is kept for the end: without memory uvloop closes no handles, and waits for them for ever."""
_TICKS_PER_STORE_TICK: Final = 2
_TICKS_PER_FILES_LOOK: Final = 20


class Node:
    """One broker process: ``start``, then ``wait_stopped`` or ``stop``."""

    def __init__(self, settings: Settings, *, free_ports: bool = False) -> None:
        self.settings = settings
        self.clock = LoopClock()
        self.listeners: dict[str, str] = {}
        self.store: Store
        self.broker: Broker
        self.parts: BrokerParts
        self.remoting: RemotingAssembly
        self.nsq: NsqServer | None = None
        self.lookupd: LookupdService | None = None
        self.lookup_peers: LookupPeers | None = None
        self.statsd: StatsdPusher | None = None
        self._free_ports = free_ports
        self._http: dict[str, HttpListener] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._status: NodeStatus
        self._lag = LoopLagSampler()
        self._load = LoopLoad()
        self._files = OpenFilesWatch(self.clock)
        self._loop: asyncio.AbstractEventLoop
        self._tick_handle: asyncio.TimerHandle | None = None
        self._flush_handle: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._dispatching = False
        self._stop_wanted = asyncio.Event()

    # -- starting ---------------------------------------------------------------------------------------------------

    def open(self, on_claimed: Callable[[], None] | None = None) -> None:
        """Bind the ports and open store and broker. Blocks while the store recovers; needs no event loop.

        Args:
            on_claimed: Called when the ports are taken and no other process has the store, before it is opened.

        Raises:
            HeadraceError: one sentence that names the thing and the remedy. Nothing stays open.
        """
        access = open_access(self.settings)  # what is wrong in a file must not cost a recovery, nor make a store
        with contextlib.ExitStack() as undo:
            undo.callback(self._close_sockets)
            try:
                self._bind_all()
                self._require_unlocked()
                if on_claimed is not None:
                    on_claimed()
                self._open_core(undo, access)
            except OSError as error:
                raise self._cannot_open(error) from error
            undo.pop_all()

    def _open_core(self, undo: contextlib.ExitStack, access: Access) -> None:
        """Open store and broker, and what the broker keeps; ``undo`` closes again what was opened."""
        settings, advertised = self.settings, self._advertised()
        store_host, store_host_v6 = born_of((advertised.host, advertised.port))
        self.store = Store.open(
            settings.store,
            self.clock,
            store_host=store_host,
            store_host_v6=store_host_v6,
            schedule_delays_ms=settings.broker.delays_ms,
        )
        undo.callback(self.store.close)
        host_name = own_name()
        self.broker = Broker.open(
            self.store,
            settings.broker,
            self.clock,
            host_name=host_name,
            max_msg_timeout_ms=settings.nsq.max_msg_timeout_ms,
            system_topics=topics_from_start(settings, settings.broker.name or host_name),
        )
        undo.callback(self.broker.close)
        self.broker.max_channel_consumers = settings.nsq.max_channel_consumers
        self.parts = open_parts(self.broker, settings.remoting)
        self.remoting = RemotingAssembly(settings, access, self.parts, advertised)
        if self.remoting.registry is not None:
            self.remoting.registry.claim()

    def _cannot_open(self, error: OSError) -> StoreError:
        """Say what the system refused, where, and what helps."""
        name = f"{error.filename}: " if error.filename else ""
        return StoreError(
            f"cannot open the store {self.settings.store.data_dir}: {name}{error.strerror or error}; "
            f"{remedy_for(error)}, or choose another directory with --data-dir"
        )

    def _bind_all(self) -> None:
        wanted = listener_addresses(self.settings)
        try:
            dispensable = {name: at for name, at in wanted.items() if is_dispensable(LISTENERS[name], at)}
            self._bind({name: wanted[name] for name in wanted if name != "remoting" and name not in dispensable})
            if "remoting" in wanted:  # behind those: a free pair of ports is chosen beside them
                self._sockets.update(bind_remoting(self.settings.remoting, free_port=self._free_ports))
            self._bind(dispensable)  # last: what was set goes before a default
        except ConfigError as error:
            try:
                self._require_unlocked()
            except StoreLockedError as locked:  # by whoever took the port: this explains it best
                raise locked from error
            raise
        if not self._sockets:
            raise ConfigError(EVERY_LISTENER_OFF)
        self.listeners = {name: format_address(sock.getsockname()) for name, sock in self._sockets.items()}

    def _bind(self, addresses: Mapping[str, str]) -> None:
        for name, address in addresses.items():
            sock = bind_listener(name, address, free_port=self._free_ports)
            if sock is not None:
                self._sockets[name] = sock

    def _require_unlocked(self) -> None:
        """Refuse a store that another process has open; a folder that is no store is not touched.

        Raises:
            StoreLockedError: names the process.
        """
        directory = StoreDirectory(Path(self.settings.store.data_dir))
        if os.access(directory.identity, os.F_OK):  # also not where we may not look: the opening says so
            release_lock(directory.acquire_lock())

    def _close_sockets(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _advertised(self) -> Advertised:
        """Return the address by which clients of records and registries reach this broker."""
        for name, setting in (("remoting", self.settings.remoting.advertised_address), ("nsq_tcp", "")):
            if name in self.listeners:
                host, port = parse_address(self.listeners[name])
                return find_advertised(setting, (host, port))
        return Advertised("0.0.0.0", 0)

    async def start(self) -> None:
        """Start listening on what ``open`` bound."""
        self._loop = loop = asyncio.get_running_loop()
        store, broker = self.store, self.broker
        self._status = NodeStatus(
            version=headrace.__version__,
            data_dir=spell(store.directory.root.resolve()),
            health=lambda: str(store.failure or ""),
            unready=lambda: store.why_elsewhere,
            listeners=self.listeners,
        )
        store.notify = loop.call_soon_threadsafe
        store.call_soon = loop.call_soon
        loop.add_reader(store.commits.flusher.done_read, store.finish_flush)
        broker.on_work = self._work_came
        started_at_ms = self.clock.now_ms()
        self.clock.begin()
        nsq_facts = self._nsq_facts(started_at_ms)
        # Before anybody is served: the rest waits for registries, for up to two seconds.
        self._tick()
        self._flush_in_time()
        await self._start_lookupd()
        if "nsq_tcp" in self._sockets:
            self.lookup_peers = self._make_lookup_peers(nsq_facts)
            self.nsq = NsqServer(broker, self.settings.nsq, self.clock, self.parts.groups.statistics)
            await self.nsq.start(self._sockets.pop("nsq_tcp"))
        broker.on_relief = self._relieve
        await self.remoting.start(self._sockets)
        if "nsq_http" in self._sockets:
            nsq_http = self._make_nsq_http(nsq_facts)
            # Without NSQ's own port there is nobody to append with.
            shortcut = HttpPublishes(nsq_http, self.nsq) if self.nsq is not None else None
            await self._start_http("nsq_http", nsq_http, nsq_http.counters, shortcut)
        if self.lookup_peers is not None:
            self.lookup_peers.start()
        self.statsd = self._make_statsd(nsq_facts)
        if self.statsd is not None:
            self.statsd.start()
        if "admin" in self._sockets:
            sources = MetricSources(
                broker=broker,
                registry=self.remoting.registry,
                loop_lag=self._lag.histogram,
                files=self._files,
                clock=self.clock,
                version=headrace.__version__,
                started_at_ms=started_at_ms,
                nsq=self.nsq,
                lookupd=self.lookupd,
                lookup_peers=self.lookup_peers,
                statsd=self.statsd,
                remoting=self.remoting,
                http=self._http,
            )
            app = AdminHttp(self._status, sources)
            await self._start_http("admin", app, app.counters)
        self._lag.start(loop)
        self._work_came()
        self._status.phase = Phase.READY

    async def _start_lookupd(self) -> None:
        """Serve NSQ's half of the registry."""
        if self._sockets.keys().isdisjoint(LOOKUPD_LISTENERS):
            return
        settings = self.settings.registry
        self.lookupd = LookupdService(settings, self.clock, self._sockets, limits=HttpLimits.within_open_files())
        await self.lookupd.start()

    def _nsq_facts(self, started_at_ms: int) -> NodeFacts:
        tcp_address, http_address = (self.listeners.get(name, "") for name in ("nsq_tcp", "nsq_http"))
        return NodeFacts(
            version=server_version(),
            hostname=own_name(),
            broadcast_address=told_host(self.settings.nsq.broadcast_address, tcp_address or http_address),
            tcp_address=tcp_address,
            http_address=http_address,
            started_at_ms=started_at_ms,
            node_id=self.broker.node_id,
            data_dir=spell(self.store.directory.root),
            segment_bytes=self.store.log.segment_bytes,
        )

    def _make_lookup_peers(self, facts: NodeFacts) -> LookupPeers:
        nsq = self.settings.nsq
        identity = NsqdIdentity(
            broadcast_address=facts.broadcast_address,
            hostname=facts.hostname,
            http_port=broadcast_http_port(nsq, facts),
            tcp_port=broadcast_tcp_port(nsq, facts),
            version=facts.version,
        )
        own = self.listeners.get("nsqlookupd_tcp", "")
        addresses = parse_registries(nsq.lookupd_addresses, "")
        table = self.lookupd.table if self.lookupd is not None else None
        return LookupPeers(self.broker, identity, self.clock, addresses, own_address=own, own_table=table)

    def _make_statsd(self, facts: NodeFacts) -> StatsdPusher | None:
        """Return what pushes NSQ's statistics; None where nobody is to get them, or NSQ is not served."""
        nsq = self.settings.nsq
        if not nsq.statsd_address or not (facts.tcp_address or facts.http_address):
            return None
        return StatsdPusher(self.broker, nsq, statsd_prefix(nsq, facts))

    def _make_nsq_http(self, facts: NodeFacts) -> NsqHttp:
        server = self.nsq
        return NsqHttp(
            broker=self.broker,
            settings=self.settings.nsq,
            facts=facts,
            clock=self.clock,
            connections=lambda: server.connections if server is not None else (),
            health=lambda: self.store.last_write_error,
            limits=HttpLimits.within_open_files(),
            statistics=self.parts.groups.statistics,
            offsets=self.parts.groups.offsets,
            lookup_peers=self.lookup_peers,
        )

    async def _start_http(
        self, name: str, app: Application, counters: HttpCounters, shortcut: Shortcut | None = None
    ) -> None:
        limits = HttpLimits.within_open_files()
        listener = HttpListener(name, app, self._sockets.pop(name), limits=limits, counters=counters, shortcut=shortcut)
        await listener.start()
        self._http[name] = listener

    # -- running ----------------------------------------------------------------------------------------------------

    def _work_came(self) -> None:
        if not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatching = False
        if self.nsq is not None:
            self.nsq.dispatch()

    def _relieve(self) -> None:
        """Read again from publishers that waited for the store."""
        if self.nsq is not None:
            self.nsq.relieve()
        self.remoting.relieve()

    def _tick(self) -> None:
        self._tick_handle = self._loop.call_later(TICK_SECONDS, self._tick)
        call_behind_reads(self._loop, self._tick_parts, self.clock.monotonic_ms())

    def _tick_parts(self, read_ms: int) -> None:
        if self._tick_handle is None:
            return
        self._ticks += 1
        self._run_tick(self._look_at_load)
        self._run_tick(partial(self.broker.tick, read_ms))
        if self._ticks % _TICKS_PER_STORE_TICK == 0:
            self._run_tick(self.store.tick)
        if self._ticks % _TICKS_PER_FILES_LOOK == 0:
            self._run_tick(self._files.look)

    def _flush_in_time(self) -> None:
        """Have flushed, now and then, what nobody waits for: with a timer of its own, as ticks are far apart."""
        interval_s = self.settings.store.flush_interval_ms / 1000
        self._flush_handle = self._loop.call_later(interval_s, self._flush_in_time)
        self._run_tick(self.store.request_flush)

    def _look_at_load(self) -> None:
        servers = (self.nsq, self.remoting.server)
        load = self._load.look(sum(server.busy_poll.seconds for server in servers if server is not None))
        if self.nsq is not None:
            self.nsq.note_load(load)

    @staticmethod
    def _run_tick(tick: Callable[[], None]) -> None:
        try:
            tick()
        except Exception:
            logger.exception("tick failed by a bug")  # the other one, and the next, still come

    def request_stop(self) -> None:
        """Have ``wait_stopped`` return; a signal handler may call this."""
        self._stop_wanted.set()

    async def wait_stopped(self) -> None:
        """Serve until ``request_stop``."""
        await self._stop_wanted.wait()

    # -- stopping ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop listening, answer what is pending, close connections, then the broker and the store."""
        self._status.phase = Phase.STOPPING
        self.broker.begin_stop()
        try:
            await self._stop_servers()
        finally:
            self._close()

    async def _stop_servers(self) -> None:
        """Stop all servers, whatever goes wrong with one of them."""
        # First: nobody is to be sent here any more.
        peers = [self.lookup_peers.stop()] if self.lookup_peers is not None else []
        ends = await asyncio.gather(*peers, return_exceptions=True)
        # Beside each other: peers that do not let go cost each of them seconds, and who stops us gives ten. The admin
        # port says "stopping" meanwhile.
        servers = [
            self.remoting.stop(),
            *(part.stop() for part in (self.nsq, self.lookupd, self.statsd) if part is not None),
        ]
        servers += [listener.stop() for name, listener in self._http.items() if name != "admin"]
        ends += await asyncio.gather(*servers, return_exceptions=True)
        if "admin" in self._http:
            ends += await asyncio.gather(self._http["admin"].stop(), return_exceptions=True)
        failures = [end for end in ends if end is not None]
        for failure in failures[1:]:
            logger.error("another server did not stop", exc_info=failure)
        if failures:
            raise failures[0]

    def _close(self) -> None:
        """Close broker and store, and let go of the loop."""
        self._lag.stop()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._loop.remove_reader(self.store.commits.flusher.done_read)
        # The loop has made the pipe non-blocking; the last flushes are waited for.
        os.set_blocking(self.store.commits.flusher.done_read, True)
        self.store.notify = _drop_call
        self.store.call_soon = _drop_call
        try:
            self.broker.close()
        finally:
            self.store.close()
            self._close_sockets()  # those of a start that failed


def _drop_call(call: Callable[[], None]) -> None:
    """Stand in for the loop's call_soon once it takes no more calls: there is nobody to tell."""


def describe(node: Node, seconds: float) -> str:
    """Return what ``headrace serve`` prints when it is ready."""
    lines = [f"Headrace {headrace.__version__} is ready after {seconds:.2f} s"]
    lines.append(f"  {'store':<15}  {node.store.directory.root.resolve()}  ({node.settings.store.durability})")
    lines += [f"  {name:<15}  {address}" for name, address in node.listeners.items()]
    return "\n".join(lines)


async def _serve(node: Node, ready_file: ReadyFile, began: float, reserve: mmap.mmap) -> None:
    stop_at_signals(asyncio.get_running_loop(), node.request_stop)
    try:
        await node.start()  # behind one that fails the end is noted too: delayed messages may have been delivered
        # What lives now lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        ready_file.put(node.store.directory.root, node.listeners)
        announce(describe(node, time.perf_counter() - began))
        await node.wait_stopped()
    finally:
        reserve.close()
        logger.info("stopping")
        await node.stop()


def run_node(settings: Settings, *, free_ports: bool, ready_file: Path | None) -> int:
    """Serve in the foreground until SIGTERM, SIGINT or SIGHUP; return the exit code.

    Raises:
        HeadraceError: the node cannot start, or another directory was in its store's place; the text is for the user.
    """
    began = time.perf_counter()
    if sys.byteorder != "little" or not sys.platform.startswith(("linux", "darwin")):
        raise ConfigError(
            f"the broker runs on little-endian Linux and macOS only, not on {sys.platform}; "
            "clients and Spark run anywhere Python does"
        )
    raise_file_limit()
    ready = ReadyFile(ready_file)
    ready.require_writable()
    node = Node(settings, free_ports=free_ports)
    node.open(ready.clear)
    try:
        with (
            loop_refusals(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            mmap.mmap(-1, RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as reserve,
        ):
            runner.run(_serve(node, ready, began, reserve))
    finally:
        ready.remove()
        gc.freeze()  # the process ends: else the collector walks all topics and channels once more, for nothing
    if node.store.is_replaced and node.store.failure is not None:
        raise node.store.failure
    return 0
