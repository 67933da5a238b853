"""The registry server: RocketMQ's name server on one address, over the core in ``headrace.registry``.

It runs inside ``headrace serve`` and alone as ``headrace registry``. Routes live in memory only: after a restart the
brokers' next registrations bring them back, and no route is told before these had time to come (``registry.awaited``).
The key-value configuration lives in ``namesrv/kvConfig.json`` of the data directory, the brokers' names beside it; both
are written in a thread.

Ref: remoting.md 4.8; requirements A-REG-01 to A-REG-22; docs/protocols/registry.md.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.broker.config_file import ConfigFile, FileWriter, Saved
from headrace.errors import SideFileError, StoreError, StoreLockedError
from headrace.format import fastjson
from headrace.format.side_file import make_folder
from headrace.lock_file import LockHeldError, release_lock, take_lock
from headrace.log_pace import LogPace
from headrace.net.listener import connection_limit
from headrace.registry.awaited import AWAITED_FILE, AwaitedBrokers, find_awaited_fault
from headrace.registry.kv_config import KV_FILE, KV_FOLDER, KvConfig, find_kv_fault
from headrace.registry.routes import LiveBroker, RouteTable
from headrace.remoting.codec import Limits, SendIntake
from headrace.remoting.guard import REGISTRY_NEEDS, Guard
from headrace.remoting.registry.broker_log import BrokerLog
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
MAX_HELD: Final = 10_000
"""Requests for routes that wait for brokers at once; one more is refused."""
RELEASED_AT_ONCE: Final = 100
"""Of those, answered before the loop has its turn."""
COMES_AGAIN_S: Final = 0.1
"""How long behind the end of a connection its broker may come by another one, before its routes go."""
MAX_NAMED: Final = 20
"""Brokers that a line of the log names."""


class RegistryCounters(RequestCounters):
    """Counters of one registry since its start.

    Attributes:
        brokers_lost: Brokers dropped because their connection ended.
        brokers_expired: Brokers dropped because they were silent for ``registry.expiry_ms``.
        late_words: Registrations and goodbyes over a connection that their broker has replaced: not taken.
        routes_held: Requests for routes that waited for brokers, after the start.
        routes_refused: Those that were refused instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registrations = 0
        self.brokers_lost = 0
        self.brokers_expired = 0
        self.late_words = 0
        self.routes_held = 0
        self.routes_refused = 0


class RegistryServer(RequestServer[RegistryConnection]):
    """Serves the registry on one address.

    Attributes:
        routes: Who serves which topic.
        kv: The key-value configuration.
        broker_log: What is told of brokers that come and go.
        awaited: The brokers that have to come before routes are told.
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
        data_dir: Path,
        rules: AccessRules | None = None,
        own_broker: str = "",
    ) -> None:
        """Touch nothing: what is kept is read by ``claim``.

        Args:
            data_dir: Where the configuration is kept.
            own_broker: Name of the broker in this process, where it registers here and nowhere else.
        """
        super().__init__(
            "registry",
            clock,
            settings.max_connections or min(MAX_CONNECTIONS, connection_limit(0, 0) // 4),
            RegistryCounters(),
            max_unread_bytes=settings.max_unread_bytes,
        )
        self.settings = settings
        self.address = ""
        self.routes = RouteTable(
            max_brokers=settings.max_brokers, max_topics=settings.max_topics, max_routes=settings.max_routes
        )
        self.broker_log = BrokerLog(clock, settings.expiry_ms)
        self._late_pace = LogPace(clock)
        self.awaited = AwaitedBrokers(settings.start_wait_ms)
        self.kv_path = data_dir / KV_FOLDER / KV_FILE
        self.kv = KvConfig(max_bytes=settings.max_kv_bytes)
        self.guard = Guard(rules, REGISTRY_NEEDS, clock) if rules is not None else None
        # A registry takes no messages, so the intake stays empty.
        self.limits = Limits((), max_frame_bytes=settings.max_frame_bytes, frame_setting="registry.max_frame_bytes")
        self.intake = SendIntake()
        self._scan_ms = clock.monotonic_ms() + settings.scan_interval_ms
        self._jobs: Threads | None = None
        self._writer: FileWriter | None = None
        self._own_broker = own_broker
        self._known_brokers: set[str] = set()  # as the file has them
        self._brokers_writer: FileWriter | None = None
        self._are_brokers_changed = False
        self._is_waiting = False  # for brokers, after the start
        self._held: deque[Callable[[], None]] = deque()
        self._lock_fd = -1
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- life ----------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Keep the configuration's folder from other registries and read it; ``start`` does, unless it was done before.

        Not read before: what is missing is restored from its copy, and who has the folder may be about to replace it.

        Raises:
            StoreLockedError: another registry keeps its configuration in the same place.
            StoreError: that place cannot be written.
            SideFileError: the configuration's file is damaged, and so is its copy.
            OSError: it cannot be read.
        """
        if self._lock_fd < 0:
            self._lock_fd = _lock_folder(self.kv_path.parent)
            try:
                self.kv = self._load_kv()
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Let other registries have the folder; ``stop`` does."""
        if self._lock_fd >= 0:
            release_lock(self._lock_fd)
            self._lock_fd = -1

    def require_unlocked(self) -> None:
        """Refuse a folder that another registry has; one that no registry has had yet is not touched.

        Raises:
            StoreLockedError, StoreError: as ``claim``.
        """
        if os.access(self.kv_path.parent / LOCK_FILE, os.F_OK):  # also not where we may not look: claiming says so
            release_lock(_lock_folder(self.kv_path.parent))

    async def start(self, where: str | socket.socket) -> None:
        """Listen on a bound socket or an address. Raises: as ``claim``."""
        self._loop = loop = asyncio.get_running_loop()
        self.claim()
        self._jobs = jobs = Threads("headrace-registry")
        self._writer, self._brokers_writer = (
            FileWriter(ConfigFile(self.kv_path.parent, name), jobs.submit, loop.call_soon_threadsafe)
            for name in (self.kv_path.name, AWAITED_FILE)
        )
        self.begin_wait()
        self.address = await self.listen(where, lambda: RegistryConnection(self), is_guarded=self.guard is not None)

    async def stop(self) -> None:
        """Stop accepting and reading, let answers out, close all connections, finish writing."""
        self._is_stopping = True
        self._release_held()
        self._save_brokers()
        await super().stop()
        if self._jobs is not None:
            for writer in (self._writer, self._brokers_writer):
                # Not by a thread that waits for the writer's: where no more can be started, a stop has to work still.
                written = asyncio.get_running_loop().create_future()
                if writer is not None:
                    writer.when_saved(written.set_result)
                    await written
            self._jobs.shutdown()
            self._jobs = None
        self.release()

    # -- brokers that come ---------------------------------------------------------------------------------------

    def begin_wait(self) -> None:
        """Tell no routes before the brokers had time to come that were there before."""
        self._known_brokers = self._load_brokers()
        own = {self._own_broker} if self._own_broker else set()
        self.awaited.begin(self._known_brokers | own, self.clock.monotonic_ms())
        self._is_waiting = True

    def broker_came(self, name: str) -> None:
        """Note that a broker that was not there has registered, by its master."""
        self._are_brokers_changed = True
        self.awaited.arrived(name)
        self._end_wait()

    def brokers_left(self) -> None:
        """Note that brokers are gone."""
        self._are_brokers_changed = True

    def is_telling_routes(self) -> bool:
        """Return whether brokers have had time to come since the start."""
        return self.awaited.is_over(self.clock.monotonic_ms())

    def hold_route(self, answer: Callable[[], None]) -> bool:
        """Have a request for a route answered when brokers had time to come; False where it is to be refused."""
        is_held = self.awaited.is_held(self.clock.monotonic_ms()) and len(self._held) < MAX_HELD
        if is_held and not self._is_stopping:
            self.counters.routes_held += 1
            self._held.append(answer)
            return True
        self.counters.routes_refused += 1
        return False

    def _end_wait(self) -> None:
        """Answer what is held, when it is time."""
        if not self._is_waiting:
            return
        now_ms = self.clock.monotonic_ms()
        if self.awaited.is_over(now_ms):
            self._is_waiting = False
            self._log_wait(self.awaited.waited_ms(now_ms))
            self._release_held()
        elif self._held and not self.awaited.is_held(now_ms):
            self._release_held()

    def _log_wait(self, waited_ms: int) -> None:
        counters, missing = self.counters, self.awaited.missing
        if missing:
            logger.warning(
                "brokers have not come back, routes are told without them count=%d brokers=%s waited_ms=%d",
                len(missing),
                ",".join(sorted(missing)[:MAX_NAMED]),
                waited_ms,
            )
        if counters.routes_held or counters.routes_refused:
            logger.info(
                "routes are told waited_ms=%d requests_held=%d requests_refused=%d",
                waited_ms,
                counters.routes_held,
                counters.routes_refused,
            )

    def _release_held(self) -> None:
        for _ in range(min(len(self._held), RELEASED_AT_ONCE)):
            self._held.popleft()()
        if self._held:
            asyncio.get_running_loop().call_soon(self._release_held)

    def _save_brokers(self) -> None:
        """Have the names of the brokers written where they changed; not before those had time to come again."""
        if not self._are_brokers_changed or self._brokers_writer is None or not self.is_telling_routes():
            return
        self._are_brokers_changed = False
        names = self.routes.master_names() - {self._own_broker}
        if names != self._known_brokers:
            self._known_brokers = names
            self._brokers_writer.request(lambda: lambda: fastjson.dumps({"brokers": sorted(names)}))

    def _load_brokers(self) -> set[str]:
        """Return the names of the brokers that were there before."""
        file = ConfigFile(self.kv_path.parent, AWAITED_FILE)
        try:
            content = file.load(find_awaited_fault)
        except (SideFileError, OSError) as error:
            # It only says for whom to wait: no reason not to start.
            logger.warning("not known which brokers were there, all of the wait is waited error=%s", error)
            return set()
        return set(content["brokers"]) if content is not None else set()

    # -- brokers that go -----------------------------------------------------------------------------------------

    def connection_ends(self, connection: RegistryConnection) -> None:
        """Drop the brokers that registered through a connection, unless they have come by another one.

        A registry that stood still finds both at once, the end first. Routes that went for that moment were missed by
        whoever had asked meanwhile.
        """
        if self._loop is None:
            self.drop_brokers(connection)
        else:
            self._loop.call_later(COMES_AGAIN_S, self.drop_brokers, connection)

    def drop_brokers(self, connection: RegistryConnection) -> None:
        """Drop the brokers whose registration by a connection that has ended is their last."""
        if self._is_stopping:
            return  # we close it: no broker is lost
        for broker in self.routes.connection_closed(connection):
            self.brokers_left()
            self.counters.brokers_lost += 1
            self.broker_log.note_lost(broker, connection.cause)

    def note_late_words(self, connection: RegistryConnection, broker: LiveBroker) -> None:
        """Note what a broker said over a connection that it has replaced since: it is not taken."""
        self.counters.late_words += 1
        if self._late_pace.is_due(broker.address):
            logger.info(
                "registration or goodbye not taken, the broker has come by a newer connection: it was held back by the "
                "network broker=%s id=%d address=%s client=%s",
                broker.name,
                broker.broker_id,
                broker.address,
                connection.remote_address,
            )

    def scan(self, now_ms: int) -> None:
        """Drop brokers that have been silent for too long, and close their connections.

        Args:
            now_ms: Monotonic time; what they sent before it has been read.
        """
        for broker in self.routes.expire(now_ms - self.settings.expiry_ms):
            self.brokers_left()
            self.counters.brokers_expired += 1
            self.broker_log.note_silent(broker, now_ms - broker.updated_ms)
            if isinstance(broker.owner, RegistryConnection):
                broker.owner.abort("broker expired")

    def check_timers(self, now_ms: int) -> None:
        """Have connections whose deadline may be due look at their clocks; scan when it is time."""
        super().check_timers(now_ms)
        if now_ms >= self._scan_ms:
            self._scan_ms = now_ms + self.settings.scan_interval_ms
            self.scan(now_ms)
        self._end_wait()
        self._save_brokers()
        for writer in (self._writer, self._brokers_writer):
            if writer is not None:
                writer.tick(now_ms)

    # -- key-value configuration ---------------------------------------------------------------------------------

    def save_kv(self, saved: Saved, *, is_changed: bool) -> None:
        """Have the configuration written if it changed; ``saved`` is told when it is, or why it could not be."""
        if self._writer is None:
            saved(None)
            return
        if is_changed:
            self._writer.request(self._kv_builder)
        self._writer.when_saved(saved)

    @property
    def kv_write_errors(self) -> int:
        """Failed writes of the key-value configuration."""
        return self._writer.errors if self._writer is not None else 0

    @property
    def brokers_write_errors(self) -> int:
        """Failed writes of the names of brokers, for which the next start is to wait."""
        return self._brokers_writer.errors if self._brokers_writer is not None else 0

    def _kv_builder(self) -> Callable[[], bytes]:
        """Return what makes the file's content as it is now, in a thread."""
        content = self.kv.content()
        return lambda: fastjson.dumps(content)

    def _load_kv(self) -> KvConfig:
        file = ConfigFile(self.kv_path.parent, self.kv_path.name)
        return KvConfig(file.load(find_kv_fault), max_bytes=self.settings.max_kv_bytes)


def _lock_folder(folder: Path) -> int:
    """Keep a folder from other registries: each would write over what the other was told."""
    try:
        make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):  # though its lock file may be
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return take_lock(folder / LOCK_FILE, with_folder=True)
    except LockHeldError as error:
        who = ", whose lock file was removed" if error.is_removed else ""
        who = who or (f" (pid {error.owner})" if error.owner else "")
        raise StoreLockedError(
            f"{folder} is in use by another registry{who}; "
            "stop that one first, or choose another directory with --data-dir"
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot write to {folder}: {error.strerror}; make it writable for this user, or choose another directory "
            "with --data-dir"
        ) from error
