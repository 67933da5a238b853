"""The route table: brokers, their topics, and whether they are alive.

Five tables, those of a RocketMQ name server, changed in this order at a registration: clusters, brokers, queues of
topics, live brokers, filter servers. A broker is known by two names: ``broker_name`` is shared by a master (id 0) and
its slaves, ``address`` is one process. Only masters bring topics.

A broker leaves in four ways, and all end in ``_drop``: it says so, its connection closes, it has not registered for
``expiry_ms``, or another process takes its place under the same name and id. Registries do not talk to each other:
every broker registers with every registry, so a lost table comes back with the brokers' next registrations.

Everything runs on one event loop, which takes the place of the read-write lock of the original.

Ref: remoting.md 4.8; requirements A-REG-05 to A-REG-18, X-REG-01, X-REG-06.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from headrace.errors import QuotaExceededError

MASTER_ID: Final = 0
PERM_WRITE: Final = 2
MAX_PARTS: Final = 1_000
"""Registrations of one version that are remembered; with more, all are looked at again."""


class DataVersion(NamedTuple):
    """The state of a broker's topics: it changes whenever one of them does."""

    timestamp_ms: int
    counter: int


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


class TopicData(NamedTuple):
    """One topic as its broker registers it."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


@dataclass(slots=True)
class BrokerData:
    """The processes that share a broker name: broker id -> address. Invariant: at least one."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class LiveBroker:
    """One broker process that is thought to be alive.

    Attributes:
        owner: What it registered through, a connection; its end is the broker's end.
        updated_ms: When it was last heard from; monotonic.
        version: The state of its topics as it last registered them.
        parts: Which registrations of that version were taken, where they may be several.
    """

    name: str
    broker_id: int
    address: str
    ha_address: str
    owner: Hashable
    updated_ms: int
    version: DataVersion
    parts: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """What a broker says of itself.

    Attributes:
        topics: Gives its topics; called only when they are needed, which for an unchanged version they are not.
        is_complete: The topics are all it has: those of it that are missing here are gone. Otherwise they are put
            beside what is there, because brokers also send single topics.
        part: What tells its topics from those of the other parts, where a broker may send one version of its topics in
            several registrations; else None.
        filter_servers: Addresses; None leaves what was there.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    topics: Callable[[], Mapping[str, TopicData]]
    is_complete: bool = False
    part: int | None = None
    filter_servers: tuple[str, ...] | None = None


class MasterAddresses(NamedTuple):
    """What a slave is told: where its master serves clients and replication."""

    address: str
    ha_address: str


@dataclass(frozen=True, slots=True)
class Route:
    """What a client needs to use a topic."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    filter_servers: Mapping[str, tuple[str, ...]]


class RouteTable:
    """The five tables.

    Invariants, between calls: a broker name stands in exactly one cluster and has at least one address; every queue
    belongs to a broker name that is there; no topic without a queue; ``filter_servers`` and ``_owned`` name live
    addresses only. An address in ``brokers`` is live, and a live one stands in ``brokers``.

    Attributes:
        clusters: cluster -> broker names.
        brokers: broker name -> its processes.
        topics: topic -> broker name -> queues.
        live: broker address -> the live process.
        filter_servers: broker address -> its filter servers.
        max_brokers: Live addresses it holds at most.
        max_topics: Topics it holds at most.
        max_routes: Routes it holds at most, one for each topic and broker name that has it.
        route_count: Routes it holds, those of one topic being its values in ``topics``.
    """

    def __init__(self, *, max_brokers: int = 10_000, max_topics: int = 200_000, max_routes: int = 5_000_000) -> None:
        self.clusters: dict[str, set[str]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.live: dict[str, LiveBroker] = {}
        self.filter_servers: dict[str, tuple[str, ...]] = {}
        self.max_brokers = max_brokers
        self.max_topics = max_topics
        self.max_routes = max_routes
        self.route_count = 0
        self._owned: dict[Hashable, set[str]] = {}

    # -- changes -------------------------------------------------------------------------------------------------

    def register(self, registration: Registration, owner: Hashable, now_ms: int) -> MasterAddresses | None:
        """Take up a broker or hear from it again; return its master's addresses if it is a slave that has one.

        Raises:
            QuotaExceededError: a limit is reached; names the setting. Nothing was changed.
        """
        name, broker_id, address = registration.broker_name, registration.broker_id, registration.address
        topics = self._changed_topics(registration)
        known = self._known(registration)
        parts = known.parts if known is not None and len(known.parts) < MAX_PARTS else frozenset()
        self._require_room(registration, topics)
        self._put_broker(registration)
        if topics is not None:
            self._put_topics(name, topics, is_complete=registration.is_complete)
        self._put_live(registration, owner, now_ms, parts)
        if registration.filter_servers is not None:
            if registration.filter_servers:
                self.filter_servers[address] = registration.filter_servers
            else:
                self.filter_servers.pop(address, None)
        return None if broker_id == MASTER_ID else self._master_of(name)

    def unregister(self, broker_name: str, broker_id: int, address: str) -> bool:
        """Drop a broker that says goodbye; return whether it was there."""
        live = self.live.get(address)
        if live is None or live.name != broker_name or live.broker_id != broker_id:
            return False
        self._drop(live)
        return True

    def connection_closed(self, owner: Hashable) -> list[LiveBroker]:
        """Drop what registered through ``owner``; return it. Brokers that came again by another way stay."""
        gone = [self.live[address] for address in sorted(self._owned.get(owner, ()))]
        self._drop(*gone)
        return gone

    def expire(self, before_ms: int) -> list[LiveBroker]:
        """Drop the brokers last heard from before that (monotonic) time; return them."""
        gone = [live for live in self.live.values() if live.updated_ms < before_ms]
        self._drop(*gone)
        return gone

    def refresh(self, address: str, owner: Hashable, now_ms: int) -> None:
        """Note that a live broker was heard from without a registration."""
        live = self.live.get(address)
        if live is not None and live.owner == owner:
            live.updated_ms = now_ms

    def put_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Put queues of one topic beside those that are there; queues of unknown brokers are left out.

        Raises:
            QuotaExceededError: it would be a topic or a route too many.
        """
        known = {queue.broker_name: queue for queue in queues if queue.broker_name in self.brokers}
        if not known:
            return
        before = self.topics.get(topic, {})
        if not before:
            self._require_topics(1)
        more = len(known.keys() - before.keys())
        self._require_routes(more)
        self.topics.setdefault(topic, {}).update(known)
        self.route_count += more

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forget a topic, or only what the brokers of one cluster have of it; return whether there was something."""
        queues = self.topics.get(topic)
        if queues is None:
            return False
        names = set(queues) if cluster is None else self.clusters.get(cluster, set()) & set(queues)
        for name in names:
            self._remove_queue(topic, name)
        return bool(names)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take the permission to write from every topic of a broker, until it registers a change; return how many."""
        return self._change_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Undo ``wipe_write_permission``; return how many topics the broker has."""
        return self._change_permission(broker_name, lambda perm: perm | PERM_WRITE)

    # -- questions -----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> Route | None:
        """Return who serves a topic; None when nobody does."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        brokers = tuple(self.brokers[name] for name in queues)
        filters = {
            address: self.filter_servers[address]
            for broker in brokers
            for address in broker.addresses.values()
            if address in self.filter_servers
        }
        return Route(tuple(queues.values()), brokers, filters)

    def version_of(self, address: str) -> DataVersion | None:
        """Return the state of a live broker's topics that the table holds."""
        live = self.live.get(address)
        return live.version if live else None

    def master_names(self) -> set[str]:
        """Return the names of the brokers that have a master: those that bring topics."""
        return {name for name, broker in self.brokers.items() if MASTER_ID in broker.addresses}

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that the brokers of a cluster have."""
        names = self.clusters.get(cluster, set())
        return [topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)]

    def topics_with_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Return the topics whose first queue has the system flags ``wanted`` and none of ``unwanted``."""
        found = []
        for topic, queues in self.topics.items():
            flags = next(iter(queues.values())).sys_flag
            if flags & wanted and not flags & unwanted:
                found.append(topic)
        return found

    # -- how -----------------------------------------------------------------------------------------------------

    def _changed_topics(self, registration: Registration) -> Mapping[str, TopicData] | None:
        """Return what the table does not have of a master's topics in this version, None where it has all."""
        if registration.broker_id != MASTER_ID:
            return None
        live = self._known(registration)
        if live is None:
            return registration.topics()
        if registration.part is None or registration.part in live.parts:
            return None
        name, known = registration.broker_name, self.topics
        return {topic: data for topic, data in registration.topics().items() if name not in known.get(topic, ())}

    def _known(self, registration: Registration) -> LiveBroker | None:
        """Return the master that registered these topics in this version before."""
        live = self.live.get(registration.address)
        is_known = (
            live is not None
            and (live.name, live.broker_id) == (registration.broker_name, registration.broker_id)
            and live.version == registration.version
            and self.brokers[live.name].cluster == registration.cluster
        )
        return live if is_known else None

    def _require_room(self, registration: Registration, topics: Mapping[str, TopicData] | None) -> None:
        name = registration.broker_name
        broker = self.brokers.get(name)
        is_replaced = broker is not None and registration.broker_id in broker.addresses
        if registration.address not in self.live and not is_replaced and len(self.live) >= self.max_brokers:
            raise QuotaExceededError(
                f"the registry has its limit of {self.max_brokers} brokers (setting registry.max_brokers)"
            )
        if not topics:
            return
        more = sum(topic not in self.topics for topic in topics)
        if registration.is_complete and len(self.topics) + more > self.max_topics:
            more -= sum(topic not in topics and queues.keys() == {name} for topic, queues in self.topics.items())
        self._require_topics(more)
        if self.route_count + len(topics) > self.max_routes:
            more = sum(name not in self.topics.get(topic, ()) for topic in topics)
            if registration.is_complete:
                more -= sum(name in queues and topic not in topics for topic, queues in self.topics.items())
            self._require_routes(more)

    def _require_topics(self, more: int) -> None:
        if more > 0 and len(self.topics) + more > self.max_topics:
            raise QuotaExceededError(
                f"{more} more topics would be above the registry's limit of {self.max_topics} "
                "(setting registry.max_topics)"
            )

    def _require_routes(self, more: int) -> None:
        if more > 0 and self.route_count + more > self.max_routes:
            raise QuotaExceededError(
                f"{more} more routes, one for each topic and broker, would be above the registry's limit of "
                f"{self.max_routes} (setting registry.max_routes)"
            )

    def _put_broker(self, registration: Registration) -> None:
        name, broker_id, address = registration.broker_name, registration.broker_id, registration.address
        here = self.live.get(address)
        if here is not None and here.name != name:
            self._drop(here)  # the process changed its name
        elif here is not None and here.broker_id != broker_id:
            # It changed its role, as those of a DLedger group do: the queues stay the broker's.
            self._forget_process(here)
            del self.brokers[name].addresses[here.broker_id]
        broker = self.brokers.get(name)
        if broker is not None:
            previous = self.live.get(broker.addresses.get(broker_id, ""))
            if previous is not None and previous.address != address:
                # Another process in its place, or the same one at a new address: the queues stay the broker's.
                self._forget_process(previous)
            if broker.cluster != registration.cluster:
                self._leave_cluster(broker)
                broker.cluster = registration.cluster
        self.clusters.setdefault(registration.cluster, set()).add(name)
        if broker is None:
            broker = self.brokers[name] = BrokerData(registration.cluster, name)
        broker.addresses[broker_id] = address

    def _put_topics(self, name: str, topics: Mapping[str, TopicData], *, is_complete: bool) -> None:
        known = {data: QueueData(name, *data) for data in set(topics.values())}  # few of them differ
        for topic, data in topics.items():
            queues = self.topics.get(topic)
            if queues is None:
                self.topics[topic] = {name: known[data]}
                self.route_count += 1
            else:
                self.route_count += name not in queues
                queues[name] = known[data]
        if is_complete:
            for topic in [topic for topic, queues in self.topics.items() if name in queues and topic not in topics]:
                self._remove_queue(topic, name)

    def _put_live(self, registration: Registration, owner: Hashable, now_ms: int, parts: frozenset[int]) -> None:
        address = registration.address
        before = self.live.get(address)
        if before is not None:
            self._disown(before)
        self.live[address] = LiveBroker(
            registration.broker_name,
            registration.broker_id,
            address,
            registration.ha_address,
            owner,
            now_ms,
            registration.version,
            parts if registration.part is None else parts | {registration.part},
        )
        self._owned.setdefault(owner, set()).add(address)

    def _master_of(self, name: str) -> MasterAddresses | None:
        address = self.brokers[name].addresses.get(MASTER_ID)
        live = self.live.get(address) if address else None
        return MasterAddresses(live.address, live.ha_address) if live else None

    def _drop(self, *gone: LiveBroker) -> None:
        """Remove processes, and what nobody serves any more with them: all topics are looked through once."""
        names = set()
        for live in gone:
            self._forget_process(live)
            broker = self.brokers[live.name]
            del broker.addresses[live.broker_id]
            if not broker.addresses:
                del self.brokers[live.name]
                self._leave_cluster(broker)
                names.add(live.name)
        if not names:
            return
        for topic, name in [(topic, name) for topic, queues in self.topics.items() for name in queues if name in names]:
            self._remove_queue(topic, name)

    def _forget_process(self, live: LiveBroker) -> None:
        del self.live[live.address]
        self.filter_servers.pop(live.address, None)
        self._disown(live)

    def _disown(self, live: LiveBroker) -> None:
        owned = self._owned[live.owner]
        owned.discard(live.address)
        if not owned:
            del self._owned[live.owner]

    def _leave_cluster(self, broker: BrokerData) -> None:
        names = self.clusters[broker.cluster]
        names.discard(broker.name)
        if not names:
            del self.clusters[broker.cluster]

    def _remove_queue(self, topic: str, name: str) -> None:
        queues = self.topics[topic]
        del queues[name]
        self.route_count -= 1
        if not queues:
            del self.topics[topic]

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self.topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = replace(queue, perm=change(queue.perm))
                count += 1
        return count
