"""The RocketMQ side of one node: the broker's server, the registry, and the registration at registries.

Order of life: the registry listens first and the broker's server second, so that the registration, which is last, finds
both; and backwards at the end, so that no registry sends clients to a server that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.access import open_rules
from headrace.errors import ConfigError
from headrace.net.address import parse_registries
from headrace.net.ports import listener_addresses
from headrace.remoting.advertised import find_outward
from headrace.remoting.guard import BROKER_NEEDS, Guard
from headrace.remoting.registration import (
    BrokerIdentity,
    Registrar,
    find_registration_problem,
    has_own_registry,
    require_registrations_in_time,
)
from headrace.remoting.registry.server import RegistryServer
from headrace.remoting.server import RemotingServer
from headrace.remoting.services import Services

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.access import AccessRules, User
    from headrace.broker.config_file import Saved
    from headrace.broker.parts import BrokerParts
    from headrace.remoting.advertised import Advertised
    from headrace.settings import Settings

logger = logging.getLogger(__name__)

REGISTRATION_SECONDS: Final = 1.0
"""How long a tool that makes a topic waits for the registries to know of it."""


@dataclass(frozen=True, slots=True)
class Access:
    """The access rules of a node, and the user whose keys sign its own requests; None where there are none."""

    rules: AccessRules | None
    user: User | None


def open_access(settings: Settings) -> Access:
    """Open the access rules. They need no store: whoever opens one asks first.

    Raises:
        ConfigError: they are wrong, name no such user, or keep this broker from its own registry; that would drop it
            between two registrations.
    """
    require_registrations_in_time(settings)
    rules = open_rules(settings.access)
    if rules is None:
        return Access(None, None)
    name = settings.access.broker_user
    problem = find_registration_problem(settings, rules)
    if problem:
        raise ConfigError(f'access.broker_user = "{name}" is not accepted: {problem}', key="access.broker_user")
    if name:
        return Access(rules, rules.named(name))
    if settings.broker.registries:
        logger.warning(
            "registrations are not signed, registries with access rules refuse them setting=access.broker_user"
        )
    return Access(rules, None)


class RemotingAssembly:
    """What a node runs for RocketMQ's clients.

    Attributes:
        services: What the handlers work on; there whether or not anybody listens.
        server: The broker's server; None when it is switched off.
        registry: The registry inside this process; None when there is none.
        registrar: Who keeps the broker registered; None without a server.
    """

    def __init__(self, settings: Settings, access: Access, parts: BrokerParts, advertised: Advertised) -> None:
        """Nothing listens yet."""
        self._settings = settings
        self._rules, self._user = access.rules, access.user
        self.services = Services(parts, settings.remoting, advertised.text)
        self.server: RemotingServer | None = None
        self.registry = self._make_registry()
        self.registrar: Registrar | None = None

    def _make_registry(self) -> RegistryServer | None:
        if "registry" not in listener_addresses(self._settings):
            return None
        broker = self.services.broker
        return RegistryServer(
            self._settings.registry,
            self.services.clock,
            data_dir=broker.store.directory.root,
            rules=self._rules,
            own_broker=broker.name if has_own_registry(self._settings) else "",
        )

    async def start(self, sockets: dict[str, socket.socket]) -> None:
        """Listen on the bound sockets that are this side's, and take them out of ``sockets``."""
        settings, services = self._settings, self.services
        broker = services.broker
        if self.registry is not None:
            await self.registry.start(sockets.pop("registry"))
        if "remoting" not in sockets:
            return
        guard = Guard(self._rules, BROKER_NEEDS, services.clock) if self._rules is not None else None
        listens_on = sockets["remoting"].getsockname()[0]
        self.server = RemotingServer(services, guard=guard)
        await self.server.start([sockets.pop(name) for name in ("remoting", "remoting_vip") if name in sockets])
        own = self.registry.address if self.registry is not None else ""
        self.registrar = Registrar(
            broker,
            BrokerIdentity(cluster=settings.remoting.cluster, name=broker.name, address=services.address),
            parse_registries(settings.broker.registries, own),
            interval_ms=settings.broker.registration_interval_ms,
            permission=lambda: services.permission,
            user=self._user,
            find_host=partial(find_outward, settings.remoting.advertised_address, listens_on),
        )
        broker.on_topics_changed = self.registrar.topics_changed
        services.on_permission_changed = self.registrar.topics_changed
        services.when_registered = self._call_when_registered
        await self.registrar.start()

    def _call_when_registered(self, topics: Sequence[str], saved: Saved) -> None:
        """Call ``saved`` when every registry knows of some topics, at the latest after a moment."""
        waiting = 0

        def told() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                timer.cancel()
                saved(None)

        def too_late() -> None:
            nonlocal waiting
            waiting = 0
            saved(None)

        waiting = self.registrar.announce(topics, told) if self.registrar is not None else 0
        if not waiting:
            saved(None)
            return
        timer = asyncio.get_running_loop().call_later(REGISTRATION_SECONDS, too_late)

    def relieve(self) -> None:
        """Read again from producers that waited for the store."""
        if self.server is not None:
            self.server.relieve()

    async def stop(self) -> None:
        """Say goodbye to the registries, answer what is pending, close every connection."""
        if self.registrar is not None:
            await self.registrar.stop()
        # Beside each other: each gives its clients a moment to close.
        await asyncio.gather(*(part.stop() for part in (self.server, self.registry) if part is not None))
        if self.services.webhook is not None:
            self.services.webhook.close()
