"""The producer table: nsqlookupd's rules for names, producers, tombstones and silence (nsq.md 4.2)."""

import time

import pytest

from headrace.errors import QuotaExceededError
from headrace.registry.producers import NEVER_MS, SLICE, ProducerInfo, ProducerTable

SILENT_MS = 300_000
TOMBSTONE_MS = 45_000
A, B = object(), object()


def info(name: str, http_port: int = 4151) -> ProducerInfo:
    return ProducerInfo(
        remote_address=f"10.0.0.1:{http_port}",
        hostname=name,
        broadcast_address=name,
        tcp_port=4150,
        http_port=http_port,
        version="1.3.0",
    )


def make_table(
    *, max_producers: int = 10, max_topics: int = 10, max_channels: int = 10, max_registrations: int = 100
) -> ProducerTable:
    return ProducerTable(
        silent_ms=SILENT_MS,
        tombstone_ms=TOMBSTONE_MS,
        max_producers=max_producers,
        max_topics=max_topics,
        max_channels=max_channels,
        max_registrations=max_registrations,
    )


@pytest.fixture
def table() -> ProducerTable:
    made = make_table()
    made.identify(A, info("a"), 0)
    made.identify(B, info("b"), 0)
    return made


def hosts(table: ProducerTable, topic: str, now_ms: int = 0) -> list[str] | None:
    found = table.lookup(topic, now_ms)
    return None if found is None else [producer.hostname for producer in found.producers]


def test_producers_of_a_topic_are_found_with_its_channels(table: ProducerTable) -> None:
    """REGISTER of a channel registers its topic."""
    table.register(A, "t", "c1")
    table.register(B, "t")
    table.register(B, "t", "c2")
    table.register(B, "t", "c2")
    found = table.lookup("t", 0)
    assert found is not None
    assert found.channels == ["c1", "c2"]
    assert [producer.hostname for producer in found.producers] == ["a", "b"]
    assert table.topics() == ["t"]
    assert table.channel_count == 2
    assert table.lookup("other", 0) is None
    assert table.channels_of("other") == []


def test_names_outlive_their_producers_but_for_ephemeral_ones_that_are_unregistered(table: ProducerTable) -> None:
    table.register(A, "t", "c")
    table.register(A, "t", "c#ephemeral")
    table.register(A, "u#ephemeral", "c")
    table.unregister(A, "t", "c")
    table.unregister(A, "t", "c#ephemeral")
    table.unregister(A, "u#ephemeral")
    assert table.channels_of("t") == ["c"]
    assert hosts(table, "t") == ["a"]
    assert table.lookup("u#ephemeral", 0) is None
    table.unregister(A, "t")
    assert hosts(table, "t") == []
    assert table.channels_of("t") == ["c"]
    assert table.channel_count == 1


def test_the_last_word_of_a_producer_takes_names_along_that_nobody_else_has(table: ProducerTable) -> None:
    """As the broker in the registry's process says it: what a client has deleted there does not come back."""
    for channel in ("a", "b", "c"):
        table.register(A, "t", channel)
    table.register(B, "t", "b")
    table.unregister(A, "t", "a", is_final=True)
    table.unregister(A, "t", "b", is_final=True)
    assert table.channels_of("t") == ["b", "c"]
    table.create("t", "made")
    table.unregister(A, "t", is_final=True)
    assert table.channels_of("t") == ["b"]
    assert hosts(table, "t") == ["b"]
    table.unregister(B, "t", is_final=True)
    assert table.lookup("t", 0) is None
    assert table.channel_count == 0


def test_an_ephemeral_channel_stays_while_another_producer_has_it(table: ProducerTable) -> None:
    for owner in (A, B):
        table.register(owner, "t", "c#ephemeral")
    table.unregister(A, "t", "c#ephemeral")
    assert table.channels_of("t") == ["c#ephemeral"]
    table.unregister(B, "t", "c#ephemeral")
    assert table.channels_of("t") == []


def test_a_producer_goes_with_its_connection_and_its_names_stay(table: ProducerTable) -> None:
    """X-REG-06: at once on connection events. The names of ephemeral ones stay in this case too."""
    table.register(A, "t", "c")
    table.register(A, "u#ephemeral")
    gone = table.connection_closed(A)
    assert gone is not None
    assert gone.node == "a:4151"
    assert hosts(table, "t") == []
    assert hosts(table, "u#ephemeral") == []
    assert [node.info.hostname for node in table.nodes(0)] == ["b"]
    assert table.connection_closed(A) is None
    assert not [entry for entry in table.entries() if entry.producer.info is gone]


def test_a_silent_producer_is_hidden_until_it_is_heard(table: ProducerTable) -> None:
    """X-REG-06: by scan otherwise. It is not removed."""
    table.register(A, "t")
    assert hosts(table, "t", SILENT_MS) == ["a"]
    assert hosts(table, "t", SILENT_MS + 1) == []
    assert list(table.nodes(SILENT_MS + 1)) == []
    table.note_alive(A, SILENT_MS + 1)
    assert hosts(table, "t", SILENT_MS + 1) == ["a"]


def test_a_tombstone_hides_one_producer_of_one_topic_for_its_time(table: ProducerTable) -> None:
    """It is listed as such, and registering again does not lift it."""
    for topic in ("t", "u"):
        for owner in (A, B):
            table.register(owner, topic)
    assert table.tombstone("t", "a:4151", 0) == 1
    assert table.tombstone("t", "x:4151", 0) == 0
    assert table.tombstone("nothing", "a:4151", 0) == 0
    table.register(A, "t")
    assert hosts(table, "t") == ["b"]
    assert hosts(table, "u") == ["a", "b"]
    first = next(table.nodes(0))
    assert dict(zip(first.topics, first.tombstones, strict=True)) == {"t": True, "u": False}
    assert hosts(table, "t", TOMBSTONE_MS - 1) == ["b"]
    assert hosts(table, "t", TOMBSTONE_MS) == ["a", "b"]
    table.tombstone("t", "a:4151", TOMBSTONE_MS)
    table.unregister(A, "t")
    table.register(A, "t")
    assert set(hosts(table, "t", TOMBSTONE_MS) or ()) == {"a", "b"}


def test_tools_make_and_forget_names_whoever_has_them(table: ProducerTable) -> None:
    table.create("t", "c")
    table.create("u")
    assert hosts(table, "t") == []
    assert table.channels_of("t") == ["c"]
    table.register(A, "t", "c")
    assert table.delete_channel("t", "c")
    assert not table.delete_channel("t", "c")
    assert not table.delete_channel("x", "c")
    assert hosts(table, "t") == ["a"]
    table.create("t", "d")
    table.delete_topic("t")
    table.delete_topic("t")
    assert table.lookup("t", 0) is None
    assert next(table.nodes(0)).topics == []
    assert table.channel_count == 0
    table.unregister(A, "t")
    table.register(A, "t", "c")
    assert hosts(table, "t") == ["a"]


def test_what_it_holds_is_bounded() -> None:
    """Against peers that invent names: nothing of a refused registration is noted."""
    table = make_table(max_producers=1, max_topics=1, max_channels=1)
    table.identify(A, info("a"), 0)
    with pytest.raises(QuotaExceededError, match=r"1 producers \(registry.max_brokers\)"):
        table.identify(B, info("b"), 0)
    table.register(A, "t", "c")
    with pytest.raises(QuotaExceededError, match=r"1 topics \(registry.max_topics\)"):
        table.register(A, "u")
    with pytest.raises(QuotaExceededError, match=r"1 channels \(registry.max_nsq_channels\)"):
        table.register(A, "t", "d")
    with pytest.raises(QuotaExceededError, match="topics"):
        table.create("u", "c")
    table.register(A, "t", "c")
    assert table.topics() == ["t"]
    assert table.channels_of("t") == ["c"]
    assert next(table.nodes(0)).topics == ["t"]
    table.delete_topic("t")
    table.register(A, "u", "d")
    assert table.channels_of("u") == ["d"]


def test_a_channel_too_many_makes_no_topic_either() -> None:
    table = make_table(max_channels=1)
    table.create("t", "c")
    with pytest.raises(QuotaExceededError, match="channels"):
        table.create("u", "d")
    assert table.topics() == ["t"]


def test_registrations_of_all_producers_are_bounded_together() -> None:
    """One connection may say 200,000 topics, and there are thousands of connections."""
    table = make_table(max_registrations=4)
    for owner in (A, B):
        table.identify(owner, info("x"), 0)
        table.register(owner, "t", "c")
    with pytest.raises(QuotaExceededError, match=r"4 registrations \(registry.max_nsq_registrations\)"):
        table.register(A, "u")
    table.register(A, "t", "c")
    assert table.topics() == ["t"]
    table.connection_closed(B)
    assert table.registration_count == 2
    table.register(A, "u", "c")
    table.unregister(A, "t", "c")
    table.delete_channel("u", "c")
    assert table.registration_count == 2
    table.delete_topic("u")
    table.unregister(A, "t")
    assert table.registration_count == 0


def test_every_entry_is_walked(table: ProducerTable) -> None:
    """For /debug: one for each producer under each key."""
    table.register(A, "t", "c")
    table.register(B, "t")
    table.tombstone("t", "b:4151", 7)
    walked = {
        (entry.category, entry.topic, entry.channel, entry.producer.info.hostname, entry.tombstoned_ms)
        for entry in table.entries()
    }
    assert walked == {
        ("client", "", "", "a", NEVER_MS),
        ("client", "", "", "b", NEVER_MS),
        ("topic", "t", "", "a", NEVER_MS),
        ("topic", "t", "", "b", 7),
        ("channel", "t", "c", "a", NEVER_MS),
    }


def test_a_table_that_changes_is_walked_to_its_end(table: ProducerTable) -> None:
    """What has gone meanwhile may be told, what stays is."""
    for topic in ("t", "u", "v"):
        table.register(A, topic, "c")
    table.register(B, "v")
    walk = table.entries()
    assert next(walk).category == "client"
    while next(walk).topic != "t":
        pass
    table.register(B, "t", "d")
    table.delete_topic("u")
    for topic in ("w", "x"):
        table.create(topic)
    table.connection_closed(A)
    left = [(entry.topic, entry.channel, entry.producer.info.hostname) for entry in walk]
    assert ("v", "", "b") in left


def test_the_end_of_a_topic_costs_what_the_producer_has_of_it() -> None:
    """Else a peer that registers and ends a topic of many channels, a line each, would hold up the event loop."""
    many = make_table(max_channels=20_000, max_registrations=30_000)
    many.identify(A, info("a"), 0)
    many.identify(B, info("b"), 0)
    for number in range(20_000):
        many.register(A, "t", f"c{number}")
    began_s = time.process_time()
    for _ in range(1000):
        many.register(B, "t", "c7")
        many.unregister(B, "t")
    assert time.process_time() - began_s < 1, "a walk through all channels each time takes several seconds"
    assert many.registration_count == 20_001


def test_an_ephemeral_topic_does_not_wait_for_those_that_are_gone() -> None:
    """It goes with the last producer that is there, also while what another left is being taken out."""
    table = make_table(max_topics=2 * SLICE, max_registrations=3 * SLICE)
    for owner in (A, B):
        table.identify(owner, info("a" if owner is A else "b"), 0)
        table.register(owner, "t#ephemeral")
    for number in range(SLICE):
        table.register(A, f"t{number}")
    table.connection_closed(A)
    table.unregister(B, "t#ephemeral")
    assert table.lookup("t#ephemeral", 0) is None
    while table.tidy():
        pass
    assert table.registration_count == 0


def test_much_that_is_gone_is_taken_out_in_slices() -> None:
    """A producer with 100,000 channels that left stopped the event loop for 70 ms; none of it is told meanwhile."""
    table = make_table(max_topics=3, max_channels=9 * SLICE, max_registrations=20 * SLICE)
    called = 0

    def note() -> None:
        nonlocal called
        called += 1

    table.on_leftover = note
    for owner in (A, B):
        table.identify(owner, info("a" if owner is A else "b"), 0)
        for number in range(9 * SLICE):
            table.register(owner, f"t{number % 3}", f"c{number}")
    table.connection_closed(A)
    assert called == 1
    assert table.registration_count == 9 * SLICE + 3
    assert hosts(table, "t0") == ["b"]
    assert sum(1 for entry in table.entries() if entry.producer.info.hostname == "a") == 0
    table.unregister(B, "t1")
    assert not any(entry.topic == "t1" for entry in table.entries())
    table.register(B, "t1", "c1")
    table.delete_topic("t2")
    assert table.registration_count == 3 * SLICE + 1 + 2
    assert (table.topic_count, table.channel_count) == (2, 6 * SLICE)
    table.connection_closed(B)
    assert table.registration_count == 0
    slices = 1
    while table.tidy():
        slices += 1
    assert slices >= 15
    assert not any(having for entry in table._topics.values() for having in entry.channels.values())
    assert not table.tidy()


def test_an_ephemeral_channel_goes_although_lists_still_have_one_that_has_left() -> None:
    table = make_table(max_channels=9 * SLICE, max_registrations=20 * SLICE)
    table.identify(A, info("a"), 0)
    table.identify(B, info("b"), 0)
    for owner in (A, B):
        table.register(owner, "t", "last#ephemeral")
    for number in range(3 * SLICE):
        table.register(A, "t", f"c{number}")
    table.connection_closed(A)
    table.unregister(B, "t", "last#ephemeral")
    assert "last#ephemeral" not in table.channels_of("t")
    while table.tidy():
        pass
    assert table.registration_count == 1
