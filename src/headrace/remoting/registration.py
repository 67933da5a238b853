"""The broker's side of registration: every registry is told of this broker and its topics, again and again.

Each registry has a task of its own, so one that does not answer holds up no other. A registration goes out at the
start, every ``broker.registration_interval_ms``, and as soon as a topic changes: changes that come together go
together. A registry that refuses is tried again after growing pauses. One that is not there is asked for every second:
when it is back it tells clients of the brokers that have come. One whose connection breaks is told again at once,
because to it the broker is gone. At the end every registry is told goodbye.

Each registration names all topics of the broker and says so (``headraceComplete``): a Headrace registry then forgets
those that are missing. RocketMQ's registries do not know that field and merge.

Ref: remoting.md 4.8.1; requirements A-BROKER-03, A-BROKER-22, X-REG-05, X-REG-07; docs/protocols/registry.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headrace.broker.topic import PERM_READ, PERM_WRITE
from headrace.errors import (
    ClientError,
    ConfigError,
    ConnectionLostError,
    NotConnectedError,
    ProtocolError,
    RequestTimeoutError,
)
from headrace.net.address import format_address, is_loopback, parse_address
from headrace.net.ports import listener_addresses
from headrace.remoting.client import RemotingClient
from headrace.remoting.codec import Command
from headrace.remoting.codes import COMPLETE, RequestCode, ResponseCode
from headrace.remoting.registration_table import BrokerTable, TopicTable
from headrace.remoting.signature import signed_ext
from headrace.settings.units import format_duration

if TYPE_CHECKING:
    from headrace.broker.access import AccessRules, User
    from headrace.settings import Settings

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 6.0
GOODBYE_S: Final = 1.0
FIRST_ATTEMPT_S: Final = 2.0
"""How long a start waits for registries that do not answer."""
GATHER_S: Final = 0.01
"""Least time between two registrations: changes within it go together."""
GATHER_BYTES_PER_S: Final = 4 << 20
"""A large table gets more time: registering each of many changes by itself must not fill the link."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
ABSENT_PAUSE_S: Final = 1.0
"""Longest pause between two tries to connect, which cost little. Half of what a registry waits for brokers when it
starts (``registry.start_wait_ms``), before it tells clients who has come."""
REACH_S: Final = 2.0
MAX_SHOWN: Final = 255
"""Characters of the name that another broker gives itself."""
UNANSWERED_TO_HANG_UP: Final = 2
"""Registrations after which a connection is given up: the way there may have forgotten it, without a word to either
end. One may only be late, and to a registry the broker goes with its connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerIdentity:
    """Who registers, and under which address clients find it."""

    cluster: str
    name: str
    address: str
    broker_id: int = 0

    @property
    def ha_address(self) -> str:
        """Where replication would be served: the port above."""
        host, port = parse_address(self.address)
        return format_address((host, min(port + 1, 65_535)))

    def ext(self) -> dict[str, str]:
        """Return the ext fields that name a broker."""
        return {
            "brokerAddr": self.address,
            "brokerId": str(self.broker_id),
            "brokerName": self.name,
            "clusterName": self.cluster,
        }


class RegistryLink:
    """One registry.

    Attributes:
        is_registered: The last registration was taken and the connection has not broken since.
        registrations: Those that were taken.
        failures: Those that were not.
        last_error: Why the last one was not; empty when it was.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_registered = False
        self.registrations = 0
        self.failures = 0
        self.last_error = ""
        self.unanswered = 0  # registrations that timed out, one after the other
        self.wanted = asyncio.Event()
        self.tried = asyncio.Event()


class Registrar:
    """Keeps this broker registered.

    Attributes:
        links: The registries.
    """

    def __init__(
        self,
        broker: BrokerTable,
        identity: BrokerIdentity,
        registries: Iterable[str],
        *,
        interval_ms: int,
        permission: Callable[[], int] = lambda: PERM_READ | PERM_WRITE,
        user: User | None = None,
        find_host: Callable[[], str] = str,
    ) -> None:
        """Register this broker, once it is started.

        Args:
            permission: That of the whole broker.
            user: Who signs the requests.
            find_host: Gives the host that would be advertised now; empty where that is not to be asked.
        """
        self.links = [RegistryLink(address) for address in dict.fromkeys(registries)]
        self._identity = identity
        self._interval_s = interval_ms / 1000
        self._user = user
        self._find_host = find_host
        self._table = TopicTable(broker, permission)
        self._client = RemotingClient(on_lost=self._connection_lost)
        self._tasks: list[asyncio.Task[None]] = []
        self._announcing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Register everywhere; return when each registry has answered or had its time for it."""
        self._tasks = [asyncio.create_task(self._serve(link)) for link in self.links]
        with contextlib.suppress(TimeoutError):  # it goes on in the background
            async with asyncio.timeout(FIRST_ATTEMPT_S):
                await asyncio.gather(*(link.tried.wait() for link in self.links))
        if self.links:
            self._tasks.append(asyncio.create_task(self._check_address()))

    async def stop(self) -> None:
        """Say goodbye to the registries that know this broker."""
        tasks = [*self._tasks, *self._announcing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        goodbye = self._command(RequestCode.UNREGISTER_BROKER, self._identity.ext(), b"")
        known = [link for link in self.links if link.is_registered]
        calls = [self._client.call(link.address, goodbye, GOODBYE_S) for link in known]
        for link, result in zip(known, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                logger.warning("registry not told that the broker stops registry=%s error=%s", link.address, result)
        await self._client.close()

    def topics_changed(self, _name: str = "") -> None:
        """Have every registry told soon; cheap."""
        for link in self.links:
            link.wanted.set()

    def announce(self, names: Iterable[str], told: Callable[[], None]) -> int:
        """Tell the registries that know this broker of some topics at once, whatever else is on its way.

        It costs the same however many topics there are. The whole table follows, as after every change.

        Args:
            told: Called for each registry that has taken them; for one that fails it is not.

        Returns:
            How many registries are asked.
        """
        body = self._table.encode_some(names)
        links = [link for link in self.links if link.is_registered]
        if body is None:
            return 0
        for link in links:
            task = asyncio.create_task(self._announce(link, body, told))
            self._announcing.add(task)
            task.add_done_callback(self._announcing.discard)
        return len(links)

    async def _announce(self, link: RegistryLink, body: bytes, told: Callable[[], None]) -> None:
        try:
            response = await self._client.call(link.address, self._registration(body), TIMEOUT_S)
        except (ClientError, ProtocolError) as error:
            logger.debug("topics not announced registry=%s error=%s", link.address, error)
            return
        if response.code == ResponseCode.SUCCESS:
            told()

    # -- one registry --------------------------------------------------------------------------------------------

    async def _serve(self, link: RegistryLink) -> None:
        """Register until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            link.wanted.clear()
            try:
                sent_bytes = await self._register(link)
            except (ClientError, ProtocolError) as error:
                self._failed(link, str(error))
                link.unanswered = link.unanswered + 1 if isinstance(error, RequestTimeoutError) else 0
                if link.unanswered >= UNANSWERED_TO_HANG_UP:
                    link.unanswered = 0
                    self._client.hang_up(link.address, "registrations were not answered")
                    continue  # where the registry took one late, this broker has gone with the connection
                longest_s = ABSENT_PAUSE_S if isinstance(error, NotConnectedError) else LONGEST_PAUSE_S
                pause_s = min(pause_s, longest_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            except Exception:
                logger.exception("registration failed by a bug registry=%s", link.address)
                self._failed(link, "internal error")
                await asyncio.sleep(LONGEST_PAUSE_S)
                continue
            pause_s = FIRST_PAUSE_S
            ended = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await link.wanted.wait()
            # A change after a quiet time goes out at once; those that follow it closely go together. So does what a
            # lost connection has undone, but for a registry that takes each registration and then hangs up.
            gap_s = GATHER_S + sent_bytes / GATHER_BYTES_PER_S if link.is_registered else FIRST_PAUSE_S
            await asyncio.sleep(max(0.0, ended + gap_s - time.monotonic()))

    async def _register(self, link: RegistryLink) -> int:
        """Register once; return the size of what was sent."""
        body = await self._table.encode()
        command = self._registration(body, {COMPLETE: "true"})
        response = await self._client.call(link.address, command, TIMEOUT_S, is_patient=True)
        if response.code != ResponseCode.SUCCESS:
            hint = ""
            if response.code == ResponseCode.NO_PERMISSION:
                hint = "; access.broker_user must name a user who is an admin by that registry's rules"
            raise ClientError(f"{link.address} refused the registration, code {response.code}: {response.remark}{hint}")
        if not link.is_registered:
            logger.info(
                "registered registry=%s broker=%s address=%s", link.address, self._identity.name, self._identity.address
            )
        link.is_registered = True
        link.unanswered = 0
        link.registrations += 1
        link.last_error = ""
        link.tried.set()
        return len(body)

    def _failed(self, link: RegistryLink, reason: str) -> None:
        if not link.last_error:
            logger.warning("registration failed, tried again registry=%s error=%s", link.address, reason)
        link.is_registered = False
        link.failures += 1
        link.last_error = reason
        link.tried.set()

    def _registration(self, body: bytes, more: Mapping[str, str] = MappingProxyType({})) -> Command:
        ext = {
            **self._identity.ext(),
            "haServerAddr": self._identity.ha_address,
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFF_FFFF),
            **more,
        }
        return self._command(RequestCode.REGISTER_BROKER, ext, body)

    def _command(self, code: RequestCode, ext: dict[str, str], body: bytes) -> Command:
        if self._user is not None:
            ext = signed_ext(ext, body, self._user.access_key, self._user.secret_key)
        return Command(code, ext, body)

    def _connection_lost(self, address: str) -> None:
        """Register again at once: to the registry this broker has gone with its connection."""
        for link in self.links:
            if link.address == address:
                link.is_registered = False
                link.wanted.set()

    # -- what clients are told -----------------------------------------------------------------------------------

    async def _check_address(self) -> None:
        """Warn, once, when the address that clients are told cannot be what they need; then watch it."""
        address = self._identity.address
        registries = [link.address for link in self.links]
        problem = await find_address_problem(address, registries, user=self._user, name=self._identity.name)
        if problem:
            logger.warning(
                "clients may not find this broker: %s; set remoting.advertised_address to the address by which they "
                "reach it (headrace doctor explains) address=%s",
                problem,
                address,
            )
        await self._watch_host(address)

    async def _watch_host(self, address: str) -> None:
        """Log whenever the host that would be advertised now is another one than before."""
        host = advertised = _host_of(address)
        while True:
            await asyncio.sleep(self._interval_s)
            now = self._find_host()
            if now in ("", host):
                continue
            host = now
            if host == advertised:
                logger.info("the address of this machine is the advertised one again address=%s", address)
                continue
            logger.warning(
                "the address of this machine has changed, clients are still told the one of the start; start the "
                "broker again, or set remoting.advertised_address address=%s now=%s",
                address,
                host,
            )


async def find_address_problem(
    address: str, registries: Iterable[str], *, user: User | None = None, name: str = ""
) -> str:
    """Return why clients could not use an advertised address; empty when there is nothing to say.

    Args:
        user: Who signs what the broker is asked.
        name: The broker's, where it must be that one: the address may be another's.
    """
    host = parse_address(address)[0]
    far = [registry for registry in registries if not is_loopback(_host_of(registry))]
    if is_loopback(host) and far:
        return f"the registry {far[0]} is not on this machine, but {host} leads every client to its own"
    ext = {} if user is None else signed_ext({}, b"", user.access_key, user.secret_key)
    client = RemotingClient(connect_timeout_s=0.9 * REACH_S)  # before all of the time is over: then it is told apart
    try:
        answer = await client.call(address, Command(RequestCode.GET_BROKER_CONFIG, ext), REACH_S)
    except NotConnectedError as error:
        return f"{address} cannot be reached from here ({error.reason})"
    except ConnectionLostError as error:
        return f"{address} is reached from here, but does not answer as a RocketMQ broker ({error.reason})"
    except RequestTimeoutError:  # the system takes the connection, whoever listens
        reason = "its process hangs or is stopped, or it is no broker"
        return f"{address} is reached from here, but answers nothing within {REACH_S:g} s: {reason}"
    finally:
        await client.close()
    if answer.code not in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION):  # a registry does not know the request
        return f"{address} is reached from here, but what answers there is no RocketMQ broker"
    lines = bytes(answer.body).decode(errors="replace").split("\n") if answer.code == ResponseCode.SUCCESS else []
    answered_by = next((line.partition("=")[2].strip() for line in lines if line.startswith("brokerName=")), "")
    if name and answered_by not in ("", name.strip()):
        return f"{address} leads to another broker, {answered_by[:MAX_SHOWN]!r}, and not to {name}"
    return ""


def _host_of(address: str) -> str:
    try:
        return parse_address(address)[0]
    except ConfigError:
        return address


def has_own_registry(settings: Settings) -> bool:
    """Return whether this broker registers with the registry in this process, and with no other."""
    return listener_addresses(settings).keys() >= {"registry", "remoting"} and not settings.broker.registries


def require_registrations_in_time(settings: Settings) -> None:
    """Refuse a registry in this process that would drop this broker before it registers again.

    Raises:
        ConfigError: it would; clients would find no topic most of the time.
    """
    interval_ms = settings.broker.registration_interval_ms
    for key in ("expiry_ms", "idle_timeout_ms"):
        patience_ms = getattr(settings.registry, key)
        if has_own_registry(settings) and patience_ms <= interval_ms:
            raise ConfigError(
                f"registry.{key} = {format_duration(patience_ms)} is not accepted: more than "
                f"broker.registration_interval_ms = {format_duration(interval_ms)}, or the registry in this process "
                "would drop this broker in between",
                key=f"registry.{key}",
            )


def find_registration_problem(settings: Settings, rules: AccessRules) -> str:
    """Return why this broker cannot register by the rules that it knows; empty where it may be let in.

    Only of the registry in this process are the rules known. Where it does not sign, an admin's ``addresses`` may have
    the broker's.
    """
    if not has_own_registry(settings):
        return ""
    name = settings.access.broker_user
    if rules.named(name).admin if name else rules.has_unsigned_admin:
        return ""
    return (
        "the registry in this process would refuse this broker, and clients would find no topic: set "
        "access.broker_user to an admin of the rule file who has keys (docs/access.md)"
    )
