"""Where rows go is a pure function of route, partition, epoch and row."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.errors import ConfigError, ConnectionLostError, RouteNotFoundError
from headrace.remoting.blocking import Cluster, QueueData, Route
from headrace.remoting.codec import Command
from headrace.spark.errors import BrokerGoneError
from headrace.spark.writing.route import find_route, home_broker, plan_route

MASTERS = {"a": {0: "a:1"}, "b": {0: "b:1", 1: "b:2"}}
TWO = Route(MASTERS, (QueueData("b", 8, 2, 6), QueueData("a", 8, 3, 6)))


class Registry:
    """Routes by topic, as a cluster."""

    servers = ("r:1",)

    def __init__(self, **routes: Route) -> None:
        self.routes = routes
        self.configurations: dict[str, bytes | Exception] = {}
        self.asked = ""
        self.masters = {"a": "a:1", "b": "b:1"}

    def client(self, address: str) -> Registry:
        self.asked = address
        return self

    def call(self, code: int) -> Command:
        found = self.configurations.get(self.asked, b"")
        if isinstance(found, Exception):
            raise found
        return Command(0, body=found)

    def brokers(self) -> dict[str, str]:
        return self.masters

    def route(self, topic: str) -> Route:
        if topic not in self.routes:
            raise RouteNotFoundError(topic, "r:1")
        return self.routes[topic]


def cluster(**routes: Route) -> Cluster:
    return cast(Cluster, Registry(**routes))


def test_queues_have_one_order() -> None:
    """By queue id, then by broker: neighbouring partitions go to different brokers."""
    route = plan_route("t", TWO)
    assert route.queues == (("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2))
    assert plan_route("t", Route(MASTERS, tuple(reversed(TWO.queues)))) == route


def test_rows_of_a_partition_share_a_queue_that_moves_with_the_epoch() -> None:
    route = plan_route("t", TWO)
    assert [route.resolve(partition, 0)[1] for partition in range(6)] == [0, 1, 2, 3, 4, 0]
    assert [route.resolve(1, epoch)[1] for epoch in range(5)] == [1, 2, 3, 4, 0]
    assert route.resolve(1, 2) == (5, 3, [0, 3, 4])
    assert route.resolve(1, 2, is_keyed=True) == (5, -1, [0, 3, 4])
    assert route.on_broker("a").resolve(1, 2, is_keyed=True)[1] == 0


def test_a_queue_id_has_one_broker() -> None:
    """The same for every task; the ids are spread over the brokers that have them."""
    assert plan_route("t", TWO).by_id() == [0, 3, 4]
    uneven = Route(MASTERS, (QueueData("a", 0, 0, 6), QueueData("b", 2, 2, 6)))
    assert plan_route("t", uneven).by_id() == [0, 1]


def test_only_writable_queues_count() -> None:
    readable = Route(MASTERS, (QueueData("a", 4, 4, 4), QueueData("b", 4, 1, 2)))
    assert plan_route("t", readable).queues == (("b", 0),)
    with pytest.raises(ConfigError, match="'t' has no queue to write to"):
        plan_route("t", Route(MASTERS, (QueueData("a", 4, 4, 4), QueueData("b", 4, 0, 6))))


def test_a_lost_master_keeps_its_place_unless_nobody_minds() -> None:
    """Rows that a broker may know as duplicates do not go to another one."""
    lost = Route({"a": {1: "a:2"}, "b": {0: "b:1"}}, (QueueData("a", 1, 1, 6), QueueData("b", 1, 1, 6)))
    assert plan_route("t", lost).queues == (("a", 0), ("b", 0))
    assert plan_route("t", lost, live_only=True).queues == (("b", 0),)


def test_a_topic_that_does_not_exist_is_planned_from_its_template() -> None:
    """As other producers do: at most four queues, at most the template's."""
    template = Route(MASTERS, (QueueData("a", 8, 8, 7), QueueData("b", 8, 1, 7)))
    found = find_route(cluster(TBW102=template), "new", 0)
    assert found == plan_route("new", template, template="TBW102")
    assert found.template == "TBW102"
    assert found.queues == (("a", 0), ("b", 0), ("a", 1), ("a", 2), ("a", 3))
    assert find_route(cluster(DEFAULT_TOPIC=template), "new", 0).template == "DEFAULT_TOPIC"
    assert find_route(cluster(new=TWO, TBW102=template), "new", 0).template == ""


def test_brokers_that_make_no_topics_are_left_out() -> None:
    """They say so in their configuration; one that does not answer is believed to."""
    template = Route(MASTERS, (QueueData("a", 4, 4, 7), QueueData("b", 1, 1, 7)))
    registry = Registry(TBW102=template)
    registry.configurations["a:1"] = b"aclEnable=false\nautoCreateTopicEnable=false\n"
    registry.configurations["b:1"] = ConnectionLostError("b:1", "gone")
    assert find_route(cast(Cluster, registry), "new", 0).queues == (("b", 0),)
    registry.configurations["b:1"] = b"autoCreateTopicEnable=false\n"
    with pytest.raises(ConfigError, match="no broker of r:1 makes topics by itself"):
        find_route(cast(Cluster, registry), "new", 0)


def test_a_topic_that_nobody_makes_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'new' does not exist, and no broker of r:1 makes topics by itself"):
        find_route(cluster(), "new", 0)
    closed = Route(MASTERS, (QueueData("a", 8, 8, 1),))
    with pytest.raises(ConfigError, match="no broker may make it"):
        find_route(cluster(TBW102=closed), "new", 0)


def test_a_topic_is_not_missed_while_no_broker_is_known() -> None:
    """The only broker restarts: that passes, and whoever asks tries again."""
    registry = Registry()
    registry.masters = {}
    with pytest.raises(BrokerGoneError, match=r"the route of topic 'orders' in 1 attempts: .* r:1 know of none"):
        find_route(cast(Cluster, registry), "orders", 0)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "%SYS%CONTROL", "x" * 128])
def test_names_of_topics_are_checked(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a topic"):
        find_route(cluster(), name, 0)


def test_a_transaction_has_one_home() -> None:
    """Brokers that come and go move only the transactions of their own."""
    brokers = [f"broker-{number}" for number in range(5)]
    txns = [f"txn-{number}" for number in range(300)]
    homes = {txn: home_broker(txn, brokers) for txn in txns}
    assert set(homes.values()) == set(brokers)
    assert homes == {txn: home_broker(txn, reversed(brokers)) for txn in txns}
    fewer = {txn: home_broker(txn, brokers[1:]) for txn in txns}
    assert all(fewer[txn] == home for txn, home in homes.items() if home != brokers[0])
    with pytest.raises(ConfigError, match="no broker"):
        home_broker("t", [])


def test_a_transaction_stays_on_its_home() -> None:
    route = plan_route("t", TWO)
    assert route.on_broker("b").queues == (("b", 0), ("b", 1))
    assert route.on_broker("b").resolve(3, 0) == (2, 1, [0, 1])
    with pytest.raises(ConfigError, match="'t' has no queue to write to on broker 'c'"):
        route.on_broker("c")


def test_the_order_of_queues_is_stable_over_hashes_of_python() -> None:
    """Nothing hangs on the order of sets or dicts."""
    queues: Any = {QueueData(name, 4, 4, 6) for name in "dcba"}
    assert plan_route("t", Route({}, tuple(queues))).queues[:4] == (("a", 0), ("b", 0), ("c", 0), ("d", 0))
