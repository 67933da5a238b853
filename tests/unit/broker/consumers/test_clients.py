"""Clients, their groups and subscriptions, as heartbeats tell them."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import replace

import pytest

from headrace.broker.consumers.clients import (
    MAX_EXPRESSION,
    MAX_NAME,
    MAX_WORD,
    ClientInfo,
    ClientTable,
    ConsumerData,
    Role,
)
from headrace.broker.consumers.subscription import Subscription, parse_tags
from headrace.errors import InvalidNameError, QuotaExceededError
from headrace.format.names import MAX_TOPIC_BYTES
from headrace.settings import BrokerSettings

SETTINGS = BrokerSettings()


def client(name: str = "10.0.0.5@7001") -> ClientInfo:
    return ClientInfo(name, "JAVA", 409, "10.0.0.5:41562")


def consumer(group: str, *topics: str, version: int = 1, expression: str = "*", **more: str) -> ConsumerData:
    return ConsumerData(
        group,
        subscriptions=[Subscription.make(topic, expression, version=version) for topic in topics],
        **more,  # type: ignore[arg-type]
    )


class Connection:
    """An owner."""


@pytest.fixture
def table() -> ClientTable:
    return ClientTable(SETTINGS)


def test_a_heartbeat_makes_a_client_a_member_of_its_groups(table: ClientTable) -> None:
    """A-BROKER-51."""
    owner = Connection()
    assert table.register(owner, client(), ["P1"], [consumer("G1", "T1", "T2")], 0) == {"G1"}
    assert [member.owner for member in table.members("G1")] == [owner]
    assert table.client_ids("G1") == ["10.0.0.5@7001"]
    assert [member.client for member in table.producers("P1")] == [client()]
    assert table.subscription("G1", "T1") == Subscription("T1", version=1)
    assert table.groups_of("T2") == ["G1"]
    assert table.consumer_groups() == ["G1"]
    assert list(table.producer_groups()) == ["P1"]
    assert table.members("none") == []
    assert table.client_ids("none") == []
    assert table.producers("none") == []
    assert table.subscription("none", "T1") is None
    assert table.subscription("G1", "none") is None
    assert table.consumer_group("none") is None


def test_a_heartbeat_that_repeats_changes_nothing(table: ClientTable) -> None:
    owner = Connection()
    table.register(owner, client(), ["P1"], [consumer("G1", "T1")], 0)
    assert table.register(owner, client(), ["P1"], [consumer("G1", "T1")], 30_000) == set()
    assert len(table) == 2


def test_a_repeated_heartbeat_keeps_its_members(table: ClientTable) -> None:
    """It counts as one that was read: also for the order in which silent members are found."""
    owner, other = Connection(), Connection()
    for given, name in ((owner, "a"), (other, "b")):
        table.register(given, client(name), ["P1"], [consumer("G1", "T1")], 0, content=name)
    repeated = table.repeated(owner, "a")
    assert repeated is not None
    assert [group.name for group in repeated.groups] == ["G1"]
    table.renew(repeated, 30_000)
    assert table.counters.heartbeats == 3
    assert table.expire(SETTINGS.client_timeout_ms) == {"G1"}
    assert (table.client_ids("G1"), len(table.producers("P1"))) == (["a"], 1)
    table.drop_owner(owner)
    assert table.repeated(owner, "a") is None
    assert owner not in table._registrations  # each connection that ever was would stay


@pytest.mark.parametrize(
    "change",
    [
        lambda table, owner: table.unregister(owner, producer_group="P1"),
        lambda table, owner: table.register(Connection(), client("b"), [], [consumer("G1", "T1", "T2")], 0),
        lambda table, owner: table.register(Connection(), client("b"), [], [consumer("G1", "T1", version=2)], 0),
        lambda table, owner: table.register(
            Connection(), client("b"), [], [consumer("G1", "T1", message_model="BROADCASTING")], 0
        ),
        lambda table, owner: table.register(owner, client("c"), [], [consumer("G1", "T1")], 0),
        lambda table, owner: table.register(owner, client("a"), ["P1"], [consumer("G1", "T1")], 0, content="other"),
    ],
    ids=["good-bye", "topics", "version", "model", "another-client", "another-content"],
)
def test_a_heartbeat_counts_anew_where_something_changed(
    table: ClientTable, change: Callable[[ClientTable, Connection], object]
) -> None:
    owner = Connection()
    table.register(owner, client("a"), ["P1"], [consumer("G1", "T1")], 0, content="content")
    assert table.repeated(owner, "content") is not None
    change(table, owner)
    assert table.repeated(owner, "content") is None


def test_another_member_that_says_the_same_changes_nothing(table: ClientTable) -> None:
    owner = Connection()
    table.register(owner, client("a"), [], [consumer("G1", "T1", version=2)], 0, content="content")
    table.register(Connection(), client("b"), [], [consumer("G1", "T1", version=1)], 0)
    assert table.repeated(owner, "content") is not None


def test_each_new_member_changes_its_group(table: ClientTable) -> None:
    """remoting.md 4.4: code 40 when a channel or a topic set changed."""
    table.register(Connection(), client("a"), [], [consumer("G1", "T1")], 0)
    assert table.register(Connection(), client("b"), [], [consumer("G1", "T1"), consumer("G2", "T1")], 0) == {
        "G1",
        "G2",
    }
    assert table.client_ids("G1") == ["a", "b"]


def test_a_group_follows_the_topics_of_the_last_heartbeat(table: ClientTable) -> None:
    """A-BROKER-53; remoting.md 4.4: remove topics no longer in the set."""
    owner = Connection()
    table.register(owner, client(), [], [consumer("G1", "T1", "T2")], 0)
    assert table.register(owner, client(), [], [consumer("G1", "T2", "T3")], 1) == {"G1"}
    assert table.subscription("G1", "T1") is None
    assert table.groups_of("T1") == []
    assert table.groups_of("T3") == ["G1"]


def test_a_subscription_changes_to_a_newer_version_only(table: ClientTable) -> None:
    """remoting.md 4.4: replace subscriptions whose subVersion is newer."""
    owner = Connection()
    table.register(owner, client(), [], [consumer("G1", "T1", expression="A", version=5)], 0)
    assert table.register(owner, client(), [], [consumer("G1", "T1", expression="B", version=4)], 0) == set()
    assert table.subscription("G1", "T1").expression == "A"
    assert table.register(owner, client(), [], [consumer("G1", "T1", expression="B || C", version=6)], 0) == set()
    assert table.subscription("G1", "T1").tags == ("B", "C")


def test_a_group_that_wants_other_messages_is_told_of(table: ClientTable) -> None:
    """A-BROKER-53: the pulls that wait must look again; a newer version of the same expression changes nothing."""
    owner = Connection()
    told: list[str] = []
    table.on_resubscribed = lambda group: told.append(group.name)
    for expression, version in (("A", 5), ("A", 6), ("B", 4)):
        table.register(owner, client(), [], [consumer("G1", "T1", expression=expression, version=version)], 0)
    assert told == []
    table.register(owner, client(), [], [consumer("G1", "T1", expression="B", version=7)], 0)
    assert told == ["G1"]


def test_how_a_group_consumes_follows_the_last_heartbeat(table: ClientTable) -> None:
    owner = Connection()
    table.register(owner, client(), [], [consumer("G1", "T1")], 0)
    assert table.consumer_group("G1").message_model == "CLUSTERING"
    table.register(owner, client(), [], [consumer("G1", "T1", message_model="BROADCASTING")], 0)
    assert table.consumer_group("G1").message_model == "BROADCASTING"


def test_leaving_by_group(table: ClientTable) -> None:
    """remoting.md 4.4: UNREGISTER_CLIENT, one request per group."""
    owner, other = Connection(), Connection()
    table.register(owner, client("a"), ["P1"], [consumer("G1", "T1"), consumer("G2", "T1")], 0)
    table.register(other, client("b"), [], [consumer("G1", "T1")], 0)
    assert table.unregister(owner, consumer_group="G1") == {"G1"}
    assert table.client_ids("G1") == ["b"]
    assert table.client_ids("G2") == ["a"]
    assert table.unregister(owner, producer_group="P1") == set()
    assert table.producers("P1") == []
    assert table.unregister(owner, "P1", "G1") == set()
    assert table.unregister(other, consumer_group="G2") == set()
    assert table.client_ids("G1") == ["b"]


def test_a_closed_connection_leaves_all_groups(table: ClientTable) -> None:
    """A-BROKER-51: after disconnect it is gone."""
    owner = Connection()
    table.register(owner, client(), ["P1"], [consumer("G1", "T1"), consumer("G2", "T2")], 0)
    assert table.drop_owner(owner) == {"G1", "G2"}
    assert table.drop_owner(owner) == set()
    assert len(table) == 0
    assert table.groups_of("T1") == table.consumer_groups() == []
    assert table.find_producer("10.0.0.5@7001") is None
    assert table.subscription("G1", "T1") is None


def test_silent_members_leave_after_two_minutes(table: ClientTable) -> None:
    """X-NET-08, E-BAL-06; remoting.md 4.4: a channel is dropped after 120 s without heartbeat."""
    silent, lively = Connection(), Connection()
    table.register(silent, client("a"), ["P1"], [consumer("G1", "T1")], 0)
    table.register(lively, client("b"), [], [consumer("G1", "T1")], 0)
    table.register(lively, client("b"), [], [consumer("G1", "T1")], 30_000)
    assert table.expire(119_999) == set()
    told: list[set[str]] = []
    table.on_changed = told.append
    table.tick(120_000)
    table.tick(120_050)
    assert told == [{"G1"}]
    assert table.client_ids("G1") == ["b"]
    assert table.producers("P1") == []
    assert table.counters.expired == 2


def test_a_group_that_heartbeats_leave_out_expires_alone(table: ClientTable) -> None:
    owner = Connection()
    table.register(owner, client(), [], [consumer("G1", "T1"), consumer("G2", "T1")], 0)
    table.register(owner, client(), [], [consumer("G2", "T1")], 60_000)
    assert table.expire(120_000) == {"G1"}
    assert table.client_ids("G2") == ["10.0.0.5@7001"]


def sizes(table: ClientTable) -> dict[str, int]:
    """Return how many entries each of a table's collections has."""
    return {name: len(value) for name, value in vars(table).items() if isinstance(value, Sized)}


@pytest.mark.parametrize("way", ["closed", "silent", "unregistered"])
def test_whoever_has_left_takes_no_memory(table: ClientTable, way: str) -> None:
    before = sizes(table)
    owners = [Connection() for _ in range(3)]
    for number, owner in enumerate(owners):
        table.register(owner, client(f"c{number % 2}"), ["P1"], [consumer("G1", "T1", "T2")], 0, content="heartbeat")
    table.register(owners[0], client("c0"), ["P1"], [consumer("G1", "T3")], 0)
    if way == "silent":
        table.expire(SETTINGS.client_timeout_ms)
    for owner in owners:
        table.unregister(owner, "P1", "G1") if way == "unregistered" else table.drop_owner(owner)
    assert sizes(table) == before


def test_a_member_is_what_its_last_heartbeat_says(table: ClientTable) -> None:
    owner = Connection()
    table.register(owner, client(), ["P1"], [consumer("G1", "T1")], 0)
    upgraded = replace(client(), version=453)
    assert table.register(owner, upgraded, ["P1"], [consumer("G1", "T1")], 1) == set()
    assert [member.client for member in table.members("G1") + table.producers("P1")] == [upgraded, upgraded]


def test_another_client_behind_the_same_connection_replaces_the_first(table: ClientTable) -> None:
    owner = Connection()
    table.register(owner, client("a"), ["P1"], [consumer("G1", "T1")], 0)
    assert table.register(owner, client("b"), ["P1"], [consumer("G1", "T1")], 0) == {"G1"}
    assert table.client_ids("G1") == ["b"]
    assert table.find_producer("a") is None
    assert table.find_producer("b").owner is owner
    assert len(table) == 2


def test_replies_find_the_last_connection_of_a_client(table: ClientTable) -> None:
    """remoting.md 4.6: the reply goes to the channel found among producers by client id."""
    old, new = Connection(), Connection()
    table.register(old, client("a"), ["P1"], [consumer("G1", "T1")], 0)
    table.register(new, client("a"), ["P1"], [consumer("G1", "T1")], 1)
    assert table.find_producer("a").owner is new
    assert table.find_member("G1", "a").owner is new
    assert table.find_member("G1", "b") is None
    assert table.client_ids("G1") == ["a"]
    table.drop_owner(new)
    assert table.find_producer("a").owner is old


def test_operators_see_how_many(table: ClientTable) -> None:
    """A-BROKER-52."""
    table.register(Connection(), client("a"), ["P1", "P2"], [consumer("G1", "T1")], 0)
    table.register(Connection(), client("b"), [], [consumer("G1", "T1"), consumer("G2", "T1", "T2")], 0)
    assert table.role_members(Role.PRODUCER) == 2
    assert table.role_members(Role.CONSUMER) == 3
    assert table.clients_of("T1") == 3
    assert len(table.members("G1")) == 2


def test_bounds_refuse_a_heartbeat_whole(table: ClientTable) -> None:
    """Issue, "Bad input": heartbeats with a million subscriptions."""
    table = ClientTable(replace(SETTINGS, max_group_members=3, max_group_subscriptions=4))
    owner = Connection()
    table.register(owner, client(), ["P1"], [consumer("G1", "T1", "T2")], 0)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_group_members"):
        table.register(owner, client(), ["P1", "P2", "P3"], [consumer("G1", "T1")], 0)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_group_subscriptions"):
        table.register(owner, client(), [], [consumer("G1", *(f"T{n}" for n in range(5)))], 0)
    assert sorted(table.consumer_group("G1").subscriptions) == ["T1", "T2"]
    assert (len(table), table.counters.refused, table.counters.heartbeats) == (2, 2, 1)
    # What is there already, and what it gives up, is not counted twice.
    table.register(owner, client(), ["P1"], [consumer("G1", "T3", "T4", "T5", "T6")], 0)
    table.register(Connection(), client("b"), [], [consumer("G1", "T3", "T4", "T5", "T6")], 0)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_group_subscriptions"):
        table.register(owner, client(), ["P1"], [consumer("G1", *(f"T{n}" for n in range(5)))], 0)


def test_expressions_have_a_bound_of_their_own() -> None:
    """Few subscriptions may be long ones; what a heartbeat replaces makes room."""
    table = ClientTable(replace(SETTINGS, max_group_subscriptions=100))
    owner, long = Connection(), "x" * MAX_EXPRESSION
    table.register(owner, client(), [], [consumer("G1", "T1", expression=long, version=1)], 0)
    with pytest.raises(QuotaExceededError, match=r"22784 characters together \(64 for each of broker\.max_group_subsc"):
        table.register(owner, client(), [], [consumer("G2", "T1", expression="x" * 6_401)], 0)
    assert table.consumer_group("G2") is None
    table.register(owner, client(), [], [consumer("G2", "T1", expression="x" * 6_400)], 0)
    table.register(owner, client(), [], [consumer("G1", "T1", expression="a", version=2)], 0)
    table.register(owner, client(), [], [consumer("G3", "T1", expression="x" * 16_000)], 0)
    table.drop_owner(owner)
    table.register(
        owner, client(), [], [consumer("G1", "T1", expression=long), consumer("G2", "T1", expression="x" * 6_400)], 0
    )


@pytest.mark.parametrize(
    ("client_id", "producers", "consumers"),
    [
        ("", [], []),
        ("x" * (MAX_NAME + 1), [], []),
        ("a", [""], []),
        ("a", [], [consumer("", "T1")]),
        ("a", [], [consumer("G1", "")]),
        ("a", [], [consumer("G1", "T1", expression="x" * (MAX_EXPRESSION + 1))]),
        ("a", [], [consumer("G1", "x" * (MAX_TOPIC_BYTES + 1))]),
        ("a", [], [consumer("G1", "T1", consume_type="x" * (MAX_WORD + 1))]),
        ("a", [], [consumer("G1", "T1", message_model="x" * (MAX_WORD + 1))]),
        ("a", [], [consumer("G1", "T1", consume_from_where="x" * (MAX_WORD + 1))]),
        ("a", [], [ConsumerData("G1", subscriptions=[Subscription.make("T1", kind="x" * (MAX_WORD + 1))])]),
    ],
)
def test_names_that_are_empty_or_too_long_are_refused(
    table: ClientTable, client_id: str, producers: list[str], consumers: list[ConsumerData]
) -> None:
    with pytest.raises(InvalidNameError):
        table.register(Connection(), client(client_id), producers, consumers, 0)
    assert (len(table), table.counters.refused) == (0, 1)


def test_language_that_is_too_long_is_refused(table: ClientTable) -> None:
    """Tools are shown it."""
    with pytest.raises(InvalidNameError, match="words"):
        table.register(Connection(), replace(client(), language="x" * (MAX_WORD + 1)), ["P1"], [], 0)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", None),
        ("", None),
        (" * ", ("*",)),
        ("  ", ()),
        ("|| ||", ()),
        ("A", ("A",)),
        (" A ||B|| ||A", ("A", "B")),
        ("||", ()),
        ("A*", ("A*",)),
        ("\t\u00a0 ", ("\u00a0",)),
    ],
)
def test_tag_expressions(expression: str, tags: tuple[str, ...] | None) -> None:
    """remoting.md 4.12: split at ||, trim, drop empty; only what is just ``*`` or empty wants every message."""
    assert parse_tags(expression) == tags


def test_codes_are_made_from_tags() -> None:
    """remoting.md 2.7 and 4.4: Java's hashes, made anew in the broker."""
    subscription = Subscription.make("T1", "TagA || TagB", "", 7)
    assert subscription == Subscription("T1", "TagA || TagB", "TAG", 7)
    assert (subscription.tags, subscription.codes) == (("TagA", "TagB"), frozenset({2598919, 2598920}))
    assert Subscription.make("T1").codes == frozenset()
    assert Subscription.make("T1", "a = 1", "SQL92").tags == ()
