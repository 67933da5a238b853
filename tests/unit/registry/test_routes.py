"""The route table: registration, routes, and the ways a broker leaves."""

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.errors import QuotaExceededError
from headrace.registry.routes import (
    DataVersion,
    MasterAddresses,
    QueueData,
    Registration,
    RouteTable,
    TopicData,
)

FOUR = TopicData(4, 4, 6)
A = "10.0.0.1:10911"
A_SLAVE = "10.0.0.2:10911"
B = "10.0.0.3:10911"


def broker(
    name: str = "a",
    broker_id: int = 0,
    address: str = A,
    topics: Mapping[str, TopicData] | None = None,
    *,
    counter: int = 1,
    cluster: str = "C1",
    is_complete: bool = False,
    filter_servers: tuple[str, ...] | None = None,
    part: int | None = None,
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=address[:-1] + "2",
        version=DataVersion(1000, counter),
        topics=lambda: {"T": FOUR} if topics is None else topics,
        is_complete=is_complete,
        part=part,
        filter_servers=filter_servers,
    )


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def queues(table: RouteTable, topic: str = "T") -> list[QueueData]:
    route = table.route(topic)
    return list(route.queues) if route else []


def is_empty(table: RouteTable) -> bool:
    return not (table.clusters or table.brokers or table.topics or table.live or table.filter_servers or table._owned)


def test_registration_fills_the_five_tables(table: RouteTable) -> None:
    """A-REG-05 to A-REG-11."""
    assert table.register(broker(filter_servers=("10.0.0.1:30000",)), "link", 5) is None
    assert table.clusters == {"C1": {"a"}}
    assert table.brokers["a"].addresses == {0: A}
    assert table.topics == {"T": {"a": QueueData("a", 4, 4, 6)}}
    assert table.live[A].updated_ms == 5
    assert table.filter_servers == {A: ("10.0.0.1:30000",)}


class Traced(dict[Any, Any]):
    """Notes its name when something is put into it."""

    def __init__(self, name: str, trace: list[str]) -> None:
        super().__init__()
        self._name, self._trace = name, trace

    def __setitem__(self, key: Any, value: Any) -> None:
        self._trace.append(self._name)
        super().__setitem__(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._trace.append(self._name)
        return super().setdefault(key, default)


def test_tables_are_changed_in_their_order(table: RouteTable) -> None:
    """A-REG-12: clusters, brokers, topics, live brokers, filter servers."""
    trace: list[str] = []
    order = ["clusters", "brokers", "topics", "live", "filter_servers"]
    for name in order:
        setattr(table, name, Traced(name, trace))
    table.register(broker(filter_servers=("f:1",)), "link", 0)
    assert trace == order


def test_live_time_moves_with_each_registration(table: RouteTable) -> None:
    """A-REG-10."""
    for now_ms in (5, 35):
        table.register(broker(), "link", now_ms)
        assert table.live[A].updated_ms == now_ms


def test_topic_of_two_brokers_routes_to_both(table: RouteTable) -> None:
    """X-BROKER-11, X-REG-02, A-REG-07, A-REG-18."""
    table.register(broker(), "1", 0)
    table.register(broker("b", 0, B, {"T": TopicData(8, 2, 4, 1)}), "2", 0)
    route = table.route("T")
    assert route is not None
    assert route.queues == (QueueData("a", 4, 4, 6), QueueData("b", 8, 2, 4, 1))
    assert [found.name for found in route.brokers] == ["a", "b"]
    assert table.route("other") is None


@pytest.mark.parametrize("counter", [2, 0])
def test_changed_topic_replaces_its_queues(table: RouteTable, counter: int) -> None:
    """A-REG-13: register the same master twice with 4 then 8 queues: one QueueData with 8.

    Also with an older version: what it says now counts, as where its files come from a backup.
    """
    table.register(broker(), "link", 0)
    table.register(broker(topics={"T": TopicData(8, 8, 6)}, counter=counter), "link", 1)
    assert queues(table) == [QueueData("a", 8, 8, 6)]


def test_unchanged_version_does_not_read_the_topics(table: RouteTable) -> None:
    """remoting.md 4.8.1: topics are taken only when the data version differs from the last one."""
    table.register(broker(), "link", 0)

    def never() -> Mapping[str, TopicData]:
        raise AssertionError("read")

    again = broker()
    object.__setattr__(again, "topics", never)
    table.register(again, "link", 1)
    assert queues(table) == [QueueData("a", 4, 4, 6)]


def test_topics_of_one_version_may_come_in_parts(table: RouteTable) -> None:
    """RocketMQ 5.x with enableSplitRegistration: of fifteen topics the first three had a route."""
    table.register(broker(topics={"T": FOUR}, part=1), "link", 0)
    table.register(broker(topics={"U": FOUR}, part=2), "link", 0)
    table.wipe_write_permission("a")
    for part, topic in ((1, "T"), (2, "U"), (3, "V")):
        table.register(broker(topics={topic: FOUR}, part=part), "link", 1)
    table.register(broker(topics={"T": FOUR, "W": FOUR}, part=4), "link", 1)
    permissions = {topic: queue.perm for topic, (queue,) in ((topic, queues(table, topic)) for topic in "TUVW")}
    assert permissions == {"T": 4, "U": 4, "V": 6, "W": 6}


def test_a_part_that_is_known_is_not_read_again(table: RouteTable) -> None:
    """Each broker registers every 30 s: 5,000 topics take 20 ms to read."""
    read = []

    def topics() -> Mapping[str, TopicData]:
        read.append(1)
        return {"T": FOUR}

    registration = broker(part=7)
    object.__setattr__(registration, "topics", topics)
    for now_ms in range(3):
        table.register(registration, "link", now_ms)
    assert len(read) == 1
    table.register(broker(topics={"U": FOUR}, part=8), "link", 3)
    table.register(registration, "link", 3)
    assert len(read) == 1  # it is known beside the other
    object.__setattr__(registration, "version", DataVersion(1000, 2))
    table.register(registration, "link", 4)
    assert len(read) == 2


def test_a_master_that_becomes_a_slave_keeps_its_topics(table: RouteTable) -> None:
    """What the last process of a DLedger group does when the others die: its consumers read on."""
    table.register(broker(), "link", 0)
    table.register(broker(broker_id=2), "link", 1)
    assert table.brokers["a"].addresses == {2: A}
    assert queues(table) == [QueueData("a", 4, 4, 6)]
    table.register(broker(address=A_SLAVE), "other", 2)
    assert table.brokers["a"].addresses == {0: A_SLAVE, 2: A}
    table.register(broker(broker_id=2, address=A_SLAVE), "other", 3)
    assert table.brokers["a"].addresses == {2: A_SLAVE}
    assert [live.address for live in table.connection_closed("link")] == []
    table.connection_closed("other")
    assert is_empty(table)


def test_registration_of_one_topic_leaves_the_others(table: RouteTable) -> None:
    """remoting.md 4.8.1: merge; incremental registrations send a single topic."""
    table.register(broker(topics={"T": FOUR, "U": FOUR}), "link", 0)
    table.register(broker(topics={"V": FOUR}, counter=2), "link", 0)
    assert sorted(table.topics) == ["T", "U", "V"]


def test_complete_registration_removes_what_it_does_not_name(table: RouteTable) -> None:
    """A topic deleted on its broker must not stay in the routes; others' queues of it do."""
    table.register(broker(topics={"T": FOUR, "U": FOUR}), "1", 0)
    table.register(broker("b", 0, B, {"T": FOUR}), "2", 0)
    table.register(broker(topics={"U": FOUR}, counter=2, is_complete=True), "1", 0)
    assert queues(table) == [QueueData("b", 4, 4, 6)]
    assert queues(table, "U") == [QueueData("a", 4, 4, 6)]


def test_slave_brings_no_topics_and_learns_its_master(table: RouteTable) -> None:
    """A-REG-08, A-REG-13; remoting.md 4.8.1."""
    assert table.register(broker("a", 1, A_SLAVE), "2", 0) is None
    assert table.topics == {}
    table.register(broker(), "1", 0)
    assert table.register(broker("a", 1, A_SLAVE), "2", 0) == MasterAddresses(A, "10.0.0.1:10912")
    assert table.brokers["a"].addresses == {0: A, 1: A_SLAVE}


def test_slave_that_becomes_master_leaves_its_old_id(table: RouteTable) -> None:
    """remoting.md 4.8.1: the same address under another id is removed first."""
    table.register(broker(), "1", 0)
    table.register(broker("a", 1, A_SLAVE), "2", 0)
    table.connection_closed("1")
    table.register(broker("a", 0, A_SLAVE), "2", 0)
    assert table.brokers["a"].addresses == {0: A_SLAVE}
    assert queues(table) == [QueueData("a", 4, 4, 6)]


def test_another_process_under_the_same_name_and_id_takes_its_place(table: RouteTable) -> None:
    """A broker that came back at a new address: the old one is not routed to, and its end changes nothing.

    Ref: X-BROKER-11.
    """
    table.register(broker(), "1", 0)
    table.register(broker(address=B), "2", 0)
    assert table.brokers["a"].addresses == {0: B}
    assert set(table.live) == {B}
    assert table.connection_closed("1") == []
    assert queues(table) == [QueueData("a", 4, 4, 6)]


def test_broker_that_changes_cluster_leaves_the_old_one(table: RouteTable) -> None:
    """A-REG-09: a broker name stands in one cluster."""
    table.register(broker(), "1", 0)
    table.register(broker(cluster="C2"), "1", 0)
    assert table.clusters == {"C2": {"a"}}
    assert table.brokers["a"].cluster == "C2"


def test_unregistering_the_last_address_removes_the_name(table: RouteTable) -> None:
    """A-REG-15."""
    table.register(broker(filter_servers=("f:1",)), "1", 0)
    table.register(broker("a", 1, A_SLAVE), "2", 0)
    assert table.unregister("a", 1, A_SLAVE)
    assert table.brokers["a"].addresses == {0: A}
    assert table.unregister("a", 0, A)
    assert is_empty(table)
    assert not table.unregister("a", 0, A)


def test_unregistering_under_another_name_changes_nothing(table: RouteTable) -> None:
    """Only what was registered can be taken away."""
    table.register(broker(), "1", 0)
    assert not table.unregister("b", 0, A)
    assert not table.unregister("a", 1, A)
    assert set(table.live) == {A}


def test_closed_connection_drops_what_came_through_it(table: RouteTable) -> None:
    """A-REG-16."""
    table.register(broker(), "1", 0)
    table.register(broker("b", 0, B), "2", 0)
    assert [gone.address for gone in table.connection_closed("1")] == [A]
    assert queues(table) == [QueueData("b", 4, 4, 6)]
    table.connection_closed("2")
    assert is_empty(table)


class WatchedTopics(dict[str, dict[str, QueueData]]):
    """Counts how often all topics are gone through."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


@pytest.mark.parametrize("how", ["connection", "silence"])
def test_brokers_that_go_together_take_one_look_at_the_topics(table: RouteTable, how: str) -> None:
    """One for each held up everybody: 13 ms a broker with 200,000 topics, and a connection may have 10,000 brokers."""
    for number in range(5):
        table.register(broker(f"b{number}", 0, f"10.0.1.{number}:1", {"T": FOUR, f"T{number}": FOUR}), "1", 0)
    table.register(broker("b0", 1, A_SLAVE), "2", 10)
    table.register(broker("b", 0, B, {"T": FOUR, "B": FOUR}), "3", 10)
    table.topics = WatchedTopics(table.topics)
    assert len(table.connection_closed("1") if how == "connection" else table.expire(5)) == 5
    assert table.topics.walks == 1
    assert {topic: set(brokers) for topic, brokers in table.topics.items()} == {
        "T": {"b0", "b"}, "T0": {"b0"}, "B": {"b"},
    }  # fmt: skip
    table.connection_closed("2")
    table.connection_closed("3")
    assert is_empty(table)


def test_closed_connection_leaves_a_broker_that_came_again_by_another(table: RouteTable) -> None:
    """The end of the old connection may be noticed after the new one registered."""
    table.register(broker(), "old", 0)
    table.register(broker(), "new", 1)
    assert table.connection_closed("old") == []
    assert set(table.live) == {A}


def test_broker_expires_after_two_minutes_of_silence(table: RouteTable) -> None:
    """A-REG-14: at 119 s present, gone at the first scan after 120 s."""
    table.register(broker(filter_servers=("f:1",)), "1", 0)
    assert table.expire(119_000 - 120_000) == []
    assert table.expire(120_000 - 120_000) == []
    assert [gone.owner for gone in table.expire(120_001 - 120_000)] == ["1"]
    assert is_empty(table)


def test_hearing_from_a_broker_keeps_it(table: RouteTable) -> None:
    """remoting.md 4.8.1, QUERY_DATA_VERSION; only through the connection it registered with."""
    table.register(broker(), "1", 0)
    table.refresh(A, "2", 50)
    assert table.live[A].updated_ms == 0
    table.refresh(A, "1", 50)
    table.refresh("unknown:1", "1", 50)
    assert table.live[A].updated_ms == 50


def test_wiped_write_permission_stays_until_the_broker_changes(table: RouteTable) -> None:
    """remoting.md 4.8.2, codes 205 and 327."""
    table.register(broker(topics={"T": FOUR, "U": TopicData(1, 1, 4)}), "1", 0)
    table.register(broker("b", 0, B), "2", 0)
    assert table.wipe_write_permission("a") == 2
    assert [queue.perm for queue in queues(table)] == [4, 6]
    table.register(broker(topics={"T": FOUR}), "1", 0)
    assert queues(table)[0].perm == 4
    assert table.add_write_permission("a") == 2
    assert [queue.perm for queue in queues(table, "U")] == [6]
    table.wipe_write_permission("a")
    table.register(broker(counter=2), "1", 0)
    assert queues(table)[0].perm == 6
    assert table.wipe_write_permission("unknown") == 0


def test_topic_is_deleted_everywhere_or_in_one_cluster(table: RouteTable) -> None:
    """remoting.md 4.8.2, code 216."""
    table.register(broker(), "1", 0)
    table.register(broker("b", 0, B, cluster="C2"), "2", 0)
    assert not table.delete_topic("T", "C3")
    assert table.delete_topic("T", "C1")
    assert queues(table) == [QueueData("b", 4, 4, 6)]
    assert table.delete_topic("T")
    assert not table.delete_topic("T")
    assert table.topics == {}


def test_single_topic_is_put_beside_the_others_for_known_brokers(table: RouteTable) -> None:
    """remoting.md 4.2, code 217."""
    table.register(broker(), "1", 0)
    table.put_topic("U", [QueueData("a", 1, 1, 6), QueueData("unknown", 1, 1, 6)])
    table.put_topic("V", [QueueData("unknown", 1, 1, 6)])
    assert queues(table, "U") == [QueueData("a", 1, 1, 6)]
    assert "V" not in table.topics


def test_topics_by_cluster_and_flag(table: RouteTable) -> None:
    """remoting.md 4.8.2, codes 224 and 311 to 313."""
    table.register(broker(topics={"T": FOUR, "U": TopicData(1, 1, 6, 1), "V": TopicData(1, 1, 6, 2)}), "1", 0)
    table.register(broker("b", 0, B, {"W": TopicData(1, 1, 6, 3)}, cluster="C2"), "2", 0)
    assert table.topics_of_cluster("C1") == ["T", "U", "V"]
    assert table.topics_of_cluster("none") == []
    assert table.topics_with_flag(1) == ["U", "W"]
    assert table.topics_with_flag(2, 1) == ["V"]


def test_filter_servers_stand_in_the_route_and_go_with_their_broker(table: RouteTable) -> None:
    """A-REG-11, X-REG-01; a registration without the list leaves it."""
    table.register(broker(filter_servers=("f:1", "f:2")), "1", 0)
    table.register(broker(), "1", 1)
    route = table.route("T")
    assert route is not None
    assert route.filter_servers == {A: ("f:1", "f:2")}
    table.register(broker(filter_servers=()), "1", 1)
    assert table.filter_servers == {}
    table.register(broker(filter_servers=("f:1",)), "1", 2)
    assert table.unregister("a", 0, A)
    assert table.filter_servers == {}


def test_registration_above_a_limit_changes_nothing() -> None:
    """A bound is refused with the setting's name."""
    table = RouteTable(max_brokers=1, max_topics=2)
    table.register(broker(topics={"T": FOUR, "U": FOUR}), "1", 0)
    with pytest.raises(QuotaExceededError, match=r"registry\.max_brokers"):
        table.register(broker("b", 0, B), "2", 0)
    with pytest.raises(QuotaExceededError, match=r"registry\.max_topics"):
        table.register(broker(topics={"V": FOUR}, counter=2), "1", 9)
    with pytest.raises(QuotaExceededError, match=r"registry\.max_topics"):
        table.put_topic("V", [QueueData("a", 1, 1, 6)])
    table.put_topic("T", [QueueData("a", 4, 4, 6)])
    assert sorted(table.topics) == ["T", "U"]
    assert table.live[A].updated_ms == 0
    table.register(broker(topics={"T": TopicData(8, 8, 6)}, counter=2), "1", 1)
    assert queues(table)[0].read_queues == 8


def test_broker_at_a_new_address_needs_no_room() -> None:
    """It takes the place of its earlier self, whose connection may not have ended yet."""
    table = RouteTable(max_brokers=1)
    table.register(broker(), "1", 0)
    table.register(broker(address=B), "2", 0)
    assert list(table.live) == [B]


def test_topic_that_goes_with_a_registration_makes_room_for_a_new_one() -> None:
    """A broker at the limit may delete one topic and make another."""
    table = RouteTable(max_topics=2)
    table.register(broker(topics={"T": FOUR, "U": FOUR}, is_complete=True), "1", 0)
    table.register(broker(topics={"T": FOUR, "V": FOUR}, counter=2, is_complete=True), "1", 0)
    assert sorted(table.topics) == ["T", "V"]
    table.register(broker("b", 0, B, topics={"T": FOUR}), "2", 0)
    with pytest.raises(QuotaExceededError, match=r"registry\.max_topics"):  # T stays, for the other broker
        table.register(broker(topics={"V": FOUR, "W": FOUR}, counter=3, is_complete=True), "1", 0)


def test_routes_are_bounded_as_topics_and_brokers_are() -> None:
    """Each broker may have every topic: without a bound on the product, 100 brokers of 200,000 topics take 1 GB."""
    table = RouteTable(max_routes=3)
    table.register(broker(topics={"T": FOUR, "U": FOUR}, is_complete=True), "1", 0)
    with pytest.raises(QuotaExceededError, match=r"2 more routes.*limit of 3 \(setting registry\.max_routes\)"):
        table.register(broker("b", 0, B, topics={"T": FOUR, "U": FOUR}), "2", 0)
    assert list(table.live) == [A]
    table.register(broker("b", 0, B, topics={"T": FOUR}), "2", 0)
    table.register(broker("b", 0, B, topics={"T": TopicData(8, 8, 6)}, counter=2), "2", 0)
    with pytest.raises(QuotaExceededError, match=r"registry\.max_routes"):
        table.put_topic("U", [QueueData("b", 1, 1, 6)])
    table.put_topic("U", [QueueData("a", 1, 1, 6)])
    assert len(queues(table, "U")) == 1
    table.register(broker(topics={"T": FOUR, "V": FOUR}, counter=2, is_complete=True), "1", 0)  # U makes room for V
    with pytest.raises(QuotaExceededError, match=r"registry\.max_routes"):
        table.register(broker(topics={"T": FOUR, "V": FOUR, "W": FOUR}, counter=3, is_complete=True), "1", 0)
    assert table.delete_topic("V")
    table.put_topic("T", [QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)])
    table.put_topic("W", [QueueData("b", 1, 1, 6)])
    assert table.unregister("b", 0, B)
    assert table.route_count == 1
