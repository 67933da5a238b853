"""The registry server: RocketMQ's name server on one address, over the core in ``headrace.registry``.

It runs inside ``headrace serve`` and alone as ``headrace registry``. Routes live in memory only: after a restart the
brokers' next registrations bring them back. The key-value configuration lives in ``namesrv/kvConfig.json`` of the data
directory and is written in a thread.

Ref: remoting.md 4.8; requirements A-REG-01 to A-REG-22; docs/protocols/registry.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.config_file import ConfigFile, FileWriter, Saved
from headrace.errors import StoreError, StoreLockedError
from headrace.format import fastjson
from headrace.format.lock_file import LockHeldError, release_lock, take_lock
from headrace.net.listener import connection_limit
from headrace.registry.kv_config import KV_FILE, KV_FOLDER, KvConfig, find_kv_fault
from headrace.registry.routes import RouteTable
from headrace.remoting.codec import Limits, SendIntake
from headrace.remoting.codes import request_name, response_name
from headrace.remoting.guard import REGISTRY_NEEDS, Guard
from headrace.remoting.registry.connection import RegistryConnection
from headrace.remoting.request_connection import RequestCounters, RequestServer
from headrace.threads import Threads

if TYPE_CHECKING:
    from headrace.broker.access import AccessRules
    from headrace.clock import Clock
    from headrace.settings import RegistrySettings

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "lock"
MAX_CONNECTIONS: Final = 10_000
"""Accepted by default; where open files are few, a quarter of them."""


class RegistryCounters(RequestCounters):
    """Counters of one registry since its start."""

    __slots__ = ("brokers_expired", "brokers_lost", "registrations")

    def __init__(self) -> None:
        super().__init__()
        self.registrations = 0
        self.brokers_lost = 0
        self.brokers_expired = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryStats:
    """One look at the registry."""

    brokers: int
    """Broker processes thought to be alive."""
    topics: int
    connections_open: int
    connections_total: int
    connections_refused: int
    """Turned away at ``registry.max_connections``."""
    connections_closed: Mapping[str, int]
    """Ended connections by cause."""
    requests: Mapping[str, int]
    """Requests taken, by name."""
    refusals: Mapping[str, int]
    """Responses with an error code, by name of the code."""
    unsupported: int
    registrations: int
    brokers_lost: int
    """Brokers dropped because their connection ended."""
    brokers_expired: int
    """Brokers dropped because they were silent for ``registry.expiry_ms``."""
    kv_write_errors: int
    bad_frames: int
    internal_errors: int
    bytes_in: int
    bytes_out: int


class RegistryServer(RequestServer[RegistryConnection]):
    """Serves the registry on one address.

    Attributes:
        routes: Who serves which topic.
        kv: The key-value configuration.
        address: Where it listens, as bound; empty before ``start``.
        guard: Access control, None when it is off.
    """

    settings: RegistrySettings
    counters: RegistryCounters

    def __init__(
        self,
        settings: RegistrySettings,
        clock: Clock,
        *,
        data_dir: Path | None = None,
        rules: AccessRules | None = None,
    ) -> None:
        """``data_dir`` is where the configuration is kept; None keeps it in memory only.

        Raises:
            SideFileError: the configuration's file is damaged, and so is its copy.
            OSError: it cannot be read.
        """
        super().__init__(
            "registry", clock, settings.max_connections or min(MAX_CONNECTIONS, connection_limit(0, 0) // 4)
        )
        self.settings = settings
        self.address = ""
        self.counters = RegistryCounters()
        self.routes = RouteTable(max_brokers=settings.max_brokers, max_topics=settings.max_topics)
        self.kv_path = data_dir / KV_FOLDER / KV_FILE if data_dir is not None else None
        self.kv = self._load_kv()
        self.guard = Guard(rules, REGISTRY_NEEDS, clock) if rules is not None else None
        # A registry takes no messages, so the intake stays empty.
        self.limits = Limits((), max_frame_bytes=settings.max_frame_bytes, frame_setting="registry.max_frame_bytes")
        self.intake = SendIntake()
        self._scan_ms = clock.monotonic_ms() + settings.scan_interval_ms
        self._jobs: Threads | None = None
        self._writer: FileWriter | None = None
        self._lock_fd = -1
        self._is_stopping = False

    # -- life ----------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Keep the configuration's folder from other registries; ``start`` does, unless it was done before.

        Raises:
            StoreLockedError: another registry keeps its configuration in the same place.
            StoreError: that place cannot be written.
        """
        if self.kv_path is not None and self._lock_fd < 0:
            self._lock_fd = _lock_folder(self.kv_path.parent)
            self.kv = self._load_kv()  # who had it before may have written since

    async def start(self, where: str | socket.socket | None = None) -> None:
        """Listen on a bound socket or an address, by default ``registry.address``. Raises: as ``claim``."""
        loop = asyncio.get_running_loop()
        self.claim()
        if self.kv_path is not None:
            self._jobs = Threads("headrace-registry")
            self._writer = FileWriter(
                ConfigFile(self.kv_path.parent, self.kv_path.name), self._jobs.submit, loop.call_soon_threadsafe
            )
        where = self.settings.address if where is None else where
        self.address = await self.listen(where, lambda: RegistryConnection(self), is_guarded=self.guard is not None)

    async def stop(self) -> None:
        """Stop accepting and reading, let answers out, close all connections, finish writing."""
        self._is_stopping = True
        await super().stop()
        if self._jobs is not None and self._writer is not None:
            # Not by a thread that waits for the writer's: where no more can be started, a stop has to work still.
            written = asyncio.get_running_loop().create_future()
            self._writer.when_saved(written.set_result)
            await written
            self._jobs.shutdown()
            self._jobs = None
        if self._lock_fd >= 0:
            release_lock(self._lock_fd)
            self._lock_fd = -1

    # -- brokers that go -----------------------------------------------------------------------------------------

    def drop_brokers(self, connection: RegistryConnection) -> None:
        """Drop the brokers that registered through a connection which ends."""
        if self._is_stopping:
            return  # we close it: no broker is lost
        for broker in self.routes.connection_closed(connection):
            self.counters.brokers_lost += 1
            logger.warning(
                "broker lost, its routes are dropped broker=%s id=%d address=%s cause=%s",
                broker.name,
                broker.broker_id,
                broker.address,
                connection.cause,
            )

    def scan(self) -> None:
        """Drop brokers that have been silent for too long, and close their connections."""
        for broker in self.routes.expire(self.clock.monotonic_ms() - self.settings.expiry_ms):
            self.counters.brokers_expired += 1
            logger.warning(
                "broker silent, its routes are dropped broker=%s id=%d address=%s silent_ms=%d",
                broker.name,
                broker.broker_id,
                broker.address,
                self.clock.monotonic_ms() - broker.updated_ms,
            )
            if isinstance(broker.owner, RegistryConnection):
                broker.owner.abort("broker expired")

    def check_timers(self) -> None:
        """Have connections whose deadline may be due look at their clocks; scan when it is time."""
        super().check_timers()
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._scan_ms:
            self._scan_ms = now_ms + self.settings.scan_interval_ms
            self.scan()
        if self._writer is not None:
            self._writer.tick(now_ms)

    # -- key-value configuration ---------------------------------------------------------------------------------

    def save_kv(self, saved: Saved, *, is_changed: bool) -> None:
        """Have the configuration written if it changed; ``saved`` is told when it is, or why it could not be."""
        if self._writer is None:
            saved(None)
            return
        if is_changed:
            self._writer.request(self._kv_builder)
        self._writer.when_saved(saved)

    def _kv_builder(self) -> Callable[[], bytes]:
        """Return what makes the file's content as it is now, in a thread."""
        content = self.kv.content()
        return lambda: fastjson.dumps(content)

    def _load_kv(self) -> KvConfig:
        max_bytes = self.settings.max_kv_bytes
        if self.kv_path is None:
            return KvConfig(max_bytes=max_bytes)
        file = ConfigFile(self.kv_path.parent, self.kv_path.name)
        return KvConfig(file.load(find_kv_fault), max_bytes=max_bytes)

    # -- figures -------------------------------------------------------------------------------------------------

    def stats(self) -> RegistryStats:
        """Return what was counted since the start."""
        counters = self.counters
        return RegistryStats(
            brokers=len(self.routes.live),
            topics=len(self.routes.topics),
            connections_open=len(self.connections),
            connections_total=self.connections.total,
            connections_refused=self.connections.refused,
            connections_closed=dict(self.connections.closed),
            requests={request_name(code): count for code, count in counters.requests.items()},
            refusals={response_name(code): count for code, count in counters.refusals.items()},
            unsupported=sum(counters.unsupported.values()),
            registrations=counters.registrations,
            brokers_lost=counters.brokers_lost,
            brokers_expired=counters.brokers_expired,
            kv_write_errors=self._writer.errors if self._writer is not None else 0,
            bad_frames=counters.bad_frames,
            internal_errors=counters.internal_errors,
            bytes_in=counters.bytes_in,
            bytes_out=counters.bytes_out,
        )


def _lock_folder(folder: Path) -> int:
    """Keep a folder from other registries: each would write over what the other was told."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return take_lock(folder / LOCK_FILE)
    except LockHeldError as error:
        raise StoreLockedError(
            f"{folder} is in use by another registry{f' (pid {error.owner})' if error.owner else ''}; "
            "stop that one first, or choose another directory with --data-dir"
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot write to {folder}: {error.strerror}; make it writable for this user, or choose another directory "
            "with --data-dir"
        ) from error
