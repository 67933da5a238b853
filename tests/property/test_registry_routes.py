"""The route table under any sequence of registrations and goodbyes: a plain model, and its invariants."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.registry.routes import DataVersion, Registration, RouteTable, TopicData

NAMES = st.sampled_from(["a", "b"])
IDS = st.sampled_from([0, 0, 1, 2])
ADDRESSES = st.sampled_from(["h:1", "h:2", "h:3"])
CLUSTERS = st.sampled_from(["C1", "C2"])
OWNERS = st.sampled_from(["link-1", "link-2", "link-3"])
TOPICS = st.sets(st.sampled_from(["T", "U", "V"]), max_size=3)
EXPIRY_MS = 120


class Routes(RuleBasedStateMachine):
    """The model: who is live, as (name, id) -> (address, owner, time, cluster), and which topics a name has."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_ms = 0
        self.counter = 0
        self.live: dict[tuple[str, int], tuple[str, str, int]] = {}
        self.cluster: dict[str, str] = {}
        self.topics: dict[str, set[str]] = {}

    def _forget(self, key: tuple[str, int]) -> None:
        del self.live[key]
        if not any(name == key[0] for name, _id in self.live):
            self.cluster.pop(key[0])
            self.topics.pop(key[0], None)

    @rule(
        name=NAMES,
        broker_id=IDS,
        address=ADDRESSES,
        cluster=CLUSTERS,
        owner=OWNERS,
        topics=TOPICS,
        complete=st.booleans(),
        filters=st.sampled_from([None, (), ("f:1",)]),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        cluster: str,
        owner: str,
        topics: set[str],
        complete: bool,
        filters: tuple[str, ...] | None,
    ) -> None:
        """With a new version each time; that an old one changes nothing is a unit test."""
        self.counter += 1
        self.table.register(
            Registration(
                cluster=cluster,
                broker_name=name,
                broker_id=broker_id,
                address=address,
                ha_address="",
                version=DataVersion(0, self.counter),
                topics=lambda: dict.fromkeys(topics, TopicData(1, 1, 6)),
                is_complete=complete,
                filter_servers=filters,
            ),
            owner,
            self.now_ms,
        )
        for key, (at, _owner, _time) in list(self.live.items()):
            if at == address and key[0] != name:
                self._forget(key)
            elif at == address and key[1] != broker_id:
                del self.live[key]  # the same broker in another role
        self.live[name, broker_id] = (address, owner, self.now_ms)
        self.cluster[name] = cluster
        if broker_id == 0:
            before = set() if complete else self.topics.get(name, set())
            self.topics[name] = before | topics

    @rule(name=NAMES, broker_id=IDS, address=ADDRESSES)
    def unregister(self, name: str, broker_id: int, address: str) -> None:
        known = self.live.get((name, broker_id), ("",))[0] == address
        assert self.table.unregister(name, broker_id, address) is known
        if known:
            self._forget((name, broker_id))

    @rule(owner=OWNERS)
    def close(self, owner: str) -> None:
        gone = {at for at, whose, _time in self.live.values() if whose == owner}
        assert {broker.address for broker in self.table.connection_closed(owner)} == gone
        for key in [key for key, (_at, whose, _time) in self.live.items() if whose == owner]:
            self._forget(key)

    @rule(milliseconds=st.integers(0, 100))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.table.expire(self.now_ms - EXPIRY_MS)
        for key in [key for key, (_at, _owner, since) in self.live.items() if since < self.now_ms - EXPIRY_MS]:
            self._forget(key)

    @rule(name=NAMES)
    def wipe(self, name: str) -> None:
        assert self.table.wipe_write_permission(name) == len(self.topics.get(name, ()))
        assert self.table.add_write_permission(name) == len(self.topics.get(name, ()))

    @rule(topic=st.sampled_from(["T", "U"]), cluster=st.sampled_from([None, "C1", "C2"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)
        for name, topics in self.topics.items():
            if cluster in (None, self.cluster[name]):
                topics.discard(topic)

    @invariant()
    def table_equals_the_model(self) -> None:
        table = self.table
        assert {(b.name, b.broker_id): (b.address, b.owner, b.updated_ms) for b in table.live.values()} == self.live
        assert {
            (name, number): at for name, broker in table.brokers.items() for number, at in broker.addresses.items()
        } == {key: at for key, (at, _owner, _time) in self.live.items()}
        assert {name: broker.cluster for name, broker in table.brokers.items()} == self.cluster
        assert {(cluster, name) for cluster, names in table.clusters.items() for name in names} == {
            (cluster, name) for name, cluster in self.cluster.items()
        }
        assert {(topic, name) for topic, queues in table.topics.items() for name in queues} == {
            (topic, name) for name, topics in self.topics.items() for topic in topics
        }

    @invariant()
    def nothing_empty_is_kept(self) -> None:
        table = self.table
        assert all(table.clusters.values())
        assert all(table.topics.values())
        assert table.route_count == sum(map(len, table.topics.values()))
        assert set(table.filter_servers) <= set(table.live)
        assert {at for owned in table._owned.values() for at in owned} == set(table.live)
        assert all(table._owned.values())

    @invariant()
    def every_topic_has_a_route(self) -> None:
        for topic in self.table.topics:
            route = self.table.route(topic)
            assert route is not None
            assert len(route.queues) == len(route.brokers) > 0


TestRoutes = Routes.TestCase
