"""Topics with several queues, their configuration and version, and the broker's own topics."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.broker.broker import Broker
from headrace.broker.catalog import Catalog
from headrace.broker.data_version import DataVersion
from headrace.broker.topic import PERM_READ, Topic, TopicConfig
from headrace.errors import InvalidNameError, QuotaExceededError, RequestError, StoreFullError, TopicNotFoundError
from headrace.format.names import CONTROL_TOPIC
from headrace.format.side_file import write_side_file
from headrace.settings import BrokerSettings
from headrace.store.queue_base import QueueBase
from tests.support.brokers import BrokerRig
from tests.support.stores import SEGMENT_BYTES, StoreBench

WAYS = ["restart", "crash"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    made = BrokerRig(tmp_path / "store")
    yield made
    made.close()


def publish_to(rig: BrokerRig, topic: str, queue_id: int, *bodies: bytes, flush: bool = True) -> int:
    """Publish to one queue, as a protocol does whose producers choose it."""
    found = rig.broker.find_topic(topic)
    batch = PublishBatch()
    batch.destinations, batch.queues = [topic], [found.queue(queue_id)]
    for body in bodies:
        batch.append(body)
    wait = rig.broker.publish_placed(batch, [found])
    if flush:
        rig.store.flush()
    return wait


def take_all(rig: BrokerRig, topic: str, channel: str) -> list[bytes]:
    subscription, made = rig.subscribe(topic, channel)
    return sorted(body for body, _, _ in rig.take(subscription, made))


def test_a_queue_that_lost_its_beginning_to_another_broker_is_not_whole(tmp_path: Path) -> None:
    """remoting.md 4.4: what is missing in front of its first message was its own, so who asks for it is told."""
    bench = StoreBench(tmp_path / "store")
    bench.append("t", *(bytes(1000) for _ in range(200)))
    bench.close()
    bench.segment(0).unlink()
    epochs = [{"epoch": 1, "first_physical_offset": SEGMENT_BYTES}]  # as an import notes it
    write_side_file(bench.root / "headrace/epochs.json", "epochs", epochs)
    shutil.rmtree(bench.root / "consumequeue")
    broker = Broker.open(bench.open(), BrokerSettings(), bench.clock)
    queue = broker.topics["t"].queues[0]
    assert 0 < queue.min_offset < queue.visible_offset
    assert not broker.is_whole(queue)
    broker.close()
    bench.store.close()


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_no_message_of_a_former_topic_with_more_queues_is_shown(rig: BrokerRig, way: str) -> None:
    """Also in queues that the topic made again has not: readers of the store would take them for its own."""
    rig.broker.create_topic("t", TopicConfig(4, 4))
    for queue_id in range(4):
        publish_to(rig, "t", queue_id, b"former")
    rig.broker.delete_topic("t")
    rig.broker.create_topic("t", TopicConfig(2, 2))
    for _ in range(2):
        for queue_id in range(4):
            queue = rig.store.queue("t", queue_id)
            assert (queue.min_offset, queue.visible_offset) == (1, 1)
        getattr(rig, way)()


def test_a_topic_that_nsq_makes_has_one_queue(rig: BrokerRig) -> None:
    """The default configuration, for every protocol that names none."""
    topic = rig.broker.ensure_topic("events")
    assert topic.config == TopicConfig(1, 1, 6, 0, False, "SINGLE_TAG")
    assert rig.broker.ensure_topic("e#ephemeral").config == TopicConfig(1, 1)
    assert topic.queue(0) is topic.queues[0]
    assert topic.queue(1) is topic.queue(-1) is None


@pytest.mark.parametrize("way", WAYS)
def test_a_configuration_is_lasting(rig: BrokerRig, way: str) -> None:
    """A-BROKER-10; remoting.md 4.7.1, code 17."""
    config = TopicConfig(4, 2, PERM_READ, 1, True, "MULTI_TAG")
    made = rig.broker.create_topic("orders", config)
    assert len(made.queues) == 4
    assert rig.broker.create_topic("orders", TopicConfig(9, 9)) is made
    rig.store.flush()
    getattr(rig, way)()
    topic = rig.broker.find_topic("orders")
    assert (topic.config, len(topic.queues)) == (config, 4)
    other = TopicConfig(1, 1, order=True)
    assert rig.broker.configure_topic("orders", other) == rig.store.log.end_offset
    rig.store.flush()
    getattr(rig, way)()
    topic = rig.broker.find_topic("orders")
    assert (topic.config, len(topic.queues)) == (other, 4)


def test_configuring_makes_a_topic_that_is_not_there(rig: BrokerRig) -> None:
    """remoting.md 4.7.1: UPDATE_AND_CREATE_TOPIC."""
    assert rig.broker.configure_topic("orders", TopicConfig(3, 3)) == rig.broker.last_change
    rig.store.flush()
    assert [change["op"] for change in rig.control_records()] == ["create_topic"]
    assert len(rig.broker.find_topic("orders").queues) == 3


@pytest.mark.parametrize("way", [None, *WAYS])
def test_channels_get_new_queues_from_their_start(rig: BrokerRig, way: str | None) -> None:
    """A message is never missed because its queue is newer than the channel."""
    rig.broker.create_topic("orders", TopicConfig(2, 2))
    rig.subscribe("orders", "ch")
    publish_to(rig, "orders", 1, b"a")
    rig.broker.configure_topic("orders", TopicConfig(4, 4))
    publish_to(rig, "orders", 3, b"b")
    publish_to(rig, "orders", 0, b"c")
    if way:
        getattr(rig, way)()
    assert take_all(rig, "orders", "ch") == [b"a", b"b", b"c"]
    publish_to(rig, "orders", 2, b"d")
    assert b"d" in take_all(rig, "orders", "later") + take_all(rig, "orders", "ch")


@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_paused_topic_grows(rig: BrokerRig, way: str | None) -> None:
    """What is published while a topic is paused waits in it, in the new queues too."""
    rig.broker.create_topic("orders", TopicConfig(1, 1))
    rig.subscribe("orders", "ch")
    rig.broker.pause_topic("orders", True)
    publish_to(rig, "orders", 0, b"a")
    rig.broker.configure_topic("orders", TopicConfig(2, 2))
    publish_to(rig, "orders", 1, b"b")
    if way:
        getattr(rig, way)()
    assert rig.broker.find_topic("orders").depth == 2
    assert take_all(rig, "orders", "ch") == []
    rig.broker.pause_topic("orders", False)
    assert take_all(rig, "orders", "ch") == [b"a", b"b"]


@pytest.mark.parametrize("way", [None, *WAYS])
def test_dropped_ranges_and_emptied_channels_stay_so_when_a_topic_grows(rig: BrokerRig, way: str | None) -> None:
    """The catalog's positions have one number for each queue, whenever it came."""
    rig.broker.create_topic("orders", TopicConfig(1, 1))
    rig.subscribe("orders", "gap")
    rig.subscribe("orders", "empty")
    publish_to(rig, "orders", 0, b"before")
    rig.broker.empty_channel("orders", "empty")
    rig.broker.pause_topic("orders", True)
    publish_to(rig, "orders", 0, b"dropped")
    rig.broker.empty_topic("orders")
    rig.broker.configure_topic("orders", TopicConfig(2, 2))
    rig.broker.pause_topic("orders", False)
    publish_to(rig, "orders", 1, b"after")
    if way:
        getattr(rig, way)()
    assert take_all(rig, "orders", "gap") == [b"after", b"before"]
    assert take_all(rig, "orders", "empty") == [b"after"]
    rig.broker.empty_channel("orders", "gap")
    rig.store.flush()
    rig.restart()
    assert take_all(rig, "orders", "gap") == []


@pytest.mark.parametrize("way", [None, *WAYS])
def test_a_topic_made_again_goes_on_with_the_offsets_of_all_its_queues(rig: BrokerRig, way: str | None) -> None:
    """Store rules: (topic, queue, offset) never names two messages; readers do not see the deleted ones."""
    rig.broker.create_topic("orders", TopicConfig(3, 3))
    for queue_id in range(3):
        publish_to(rig, "orders", queue_id, *[b"old"] * (queue_id + 1))
    rig.broker.delete_topic("orders")
    rig.broker.create_topic("orders", TopicConfig(2, 2))
    rig.broker.configure_topic("orders", TopicConfig(3, 3))
    rig.store.flush()
    if way:
        getattr(rig, way)()
    queues = rig.broker.find_topic("orders").queues
    assert [queue.min_offset for queue in queues] == [queue.next_offset for queue in queues] == [1, 2, 3]
    publish_to(rig, "orders", 2, b"new")
    assert rig.broker.find_topic("orders").depth == 1
    assert take_all(rig, "orders", "ch") == [b"new"]


def test_a_deleted_topic_that_nsq_makes_again_hides_what_it_had(rig: BrokerRig) -> None:
    """The first use of the name must not bring back what was deleted."""
    rig.publish("events", [b"old"])
    rig.broker.delete_topic("events")
    topic = rig.broker.ensure_topic("events")
    assert (topic.queues[0].min_offset, topic.depth) == (1, 0)


def test_publishers_that_name_no_queue_take_turns_among_those_to_be_written(rig: BrokerRig) -> None:
    """NSQ publishes into a topic of several queues; those above write_queues are being emptied."""
    topic = rig.broker.create_topic("orders", TopicConfig(4, 2))
    for _ in range(4):
        rig.publish("orders", [b"x"])
    assert [queue.next_offset for queue in topic.queues] == [2, 2, 0, 0]


@pytest.mark.parametrize(
    ("name", "config", "error"),
    [
        ("", TopicConfig(1, 1), InvalidNameError),
        ("%SYS%X", TopicConfig(1, 1), InvalidNameError),
        ("../x", TopicConfig(1, 1), InvalidNameError),
        ("x#ephemeral", TopicConfig(1, 1), InvalidNameError),
        ("x", TopicConfig(0, 0), RequestError),
        ("x", TopicConfig(-1, 1), RequestError),
        ("x", TopicConfig(1, 65_537), RequestError),
    ],
)
@pytest.mark.parametrize("call", ["create_topic", "configure_topic"])
def test_what_cannot_be_made_is_refused(
    rig: BrokerRig, name: str, config: TopicConfig, error: type[Exception], call: str
) -> None:
    """Nothing is written for a refused request."""
    with pytest.raises(error):
        getattr(rig.broker, call)(name, config)
    rig.store.flush()
    assert rig.control_records() == []
    assert rig.broker.topics == {}


@pytest.mark.parametrize("way", WAYS)
def test_topics_that_would_share_their_files_are_refused(rig: BrokerRig, way: str) -> None:
    """Where the disk takes upper and lower case for one: each would have the other's messages."""
    rig.broker.ensure_topic("orders")
    rig.broker.ensure_topic("Orders")  # this disk tells them apart
    identity = rig.store.directory.identity
    identity.with_name(identity.name.upper()).symlink_to(identity.name)
    getattr(rig, way)()
    rig.broker.ensure_topic("bills")
    publish_to(rig, "bills", 0, b"m")
    for name in ("Bills", "%sys%control"):
        with pytest.raises(InvalidNameError, match="upper and lower case"):
            rig.broker.ensure_topic(name)
        with pytest.raises(InvalidNameError, match="upper and lower case"):
            rig.broker.create_topic(name, TopicConfig(2, 2))
    assert rig.broker.ensure_topic("Bills#ephemeral").ephemeral
    rig.broker.delete_topic("bills")
    with pytest.raises(InvalidNameError, match="'bills'"):  # its files stay, as they say what was issued
        rig.broker.ensure_topic("BILLS")
    assert rig.broker.ensure_topic("bills").name == "bills"
    assert {"orders", "Orders"} <= rig.broker.topics.keys()


def test_an_ephemeral_topic_cannot_be_configured(rig: BrokerRig) -> None:
    """It has one queue, in memory."""
    rig.broker.ensure_topic("e#ephemeral")
    with pytest.raises(InvalidNameError, match="ephemeral"):
        rig.broker.configure_topic("e#ephemeral", TopicConfig(2, 2))


def test_the_version_rises_with_each_topic_made_configured_or_deleted(rig: BrokerRig) -> None:
    """A-BROKER-17: registries compare it; it survives restarts, whatever happens to the catalog's file."""
    broker = rig.broker
    assert broker.topic_version == DataVersion(0, 0)
    broker.ensure_topic("a")
    rig.clock.advance_ms(5)
    broker.create_topic("b", TopicConfig(2, 2))
    broker.configure_topic("b", TopicConfig(3, 3))
    broker.create_topic("b", TopicConfig(9, 9))
    broker.ensure_topic("c#ephemeral")
    broker.ensure_channel(broker.find_topic("a"), "ch")
    assert broker.topic_version == DataVersion(rig.clock.now_ms(), 3)
    broker.delete_topic("a")
    expected = DataVersion(rig.clock.now_ms(), 4)
    rig.store.flush()
    for way in ("crash", "restart", "restart"):
        rig.clock.advance_ms(1000)
        getattr(rig, way)()
        assert rig.broker.topic_version == expected
    rig.close()
    (rig.store_settings.data_dir / "headrace" / "catalog.json").unlink()
    rig._open()
    assert rig.broker.topic_version == expected


def test_a_change_is_told_once(rig: BrokerRig) -> None:
    """A-BROKER-16: what changes is registered at once."""
    told: list[str] = []
    rig.broker.on_topics_changed = told.append
    rig.broker.ensure_topic("a")
    rig.broker.ensure_topic("e#ephemeral")
    rig.broker.create_topic("b", TopicConfig(1, 1))
    rig.broker.configure_topic("b", TopicConfig(2, 2))
    rig.broker.delete_topic("b")
    rig.broker.delete_topic("e#ephemeral")
    assert told == ["a", "b", "b", "b"]


def test_what_is_made_and_deleted_is_told(rig: BrokerRig) -> None:
    """nsq.md 4.4: REGISTER and UNREGISTER, of what is in memory only as well."""
    told: list[tuple[str, str, bool]] = []

    def listen(topic: Topic, channel: str) -> None:
        is_there = rig.broker.topics.get(topic.name) is topic and (not channel or channel in topic.channels)
        told.append((topic.name, channel, is_there))

    def take_told() -> list[tuple[str, str, bool]]:
        seen = list(told)
        told.clear()
        return seen

    rig.broker.presence_listeners.append(listen)
    rig.broker.create_topic("b", TopicConfig(2, 2))
    rig.broker.configure_topic("b", TopicConfig(3, 3))
    rig.publish("b", [b"x"])
    assert take_told() == [("b", "", True)]
    subscription, _ = rig.subscribe("b", "c#ephemeral")
    rig.subscribe("b", "d")
    rig.subscribe("b", "d")
    assert take_told() == [("b", "c#ephemeral", True), ("b", "d", True)]
    rig.broker.unsubscribe(subscription)
    rig.broker.pause_topic("b", True)
    assert take_told() == [("b", "c#ephemeral", False)]
    rig.broker.delete_topic("b")
    assert take_told() == [("b", "d", False), ("b", "", False)]
    subscription, _ = rig.subscribe("e#ephemeral", "c#ephemeral")
    assert take_told() == [("e#ephemeral", "", True), ("e#ephemeral", "c#ephemeral", True)]
    rig.broker.unsubscribe(subscription)
    assert take_told() == [("e#ephemeral", "c#ephemeral", False), ("e#ephemeral", "", False)]


@pytest.mark.provokes_bugs
def test_a_listener_to_what_is_made_that_fails_stops_nobody(rig: BrokerRig) -> None:
    """The topic is there, and the other listeners hear of it."""
    told: list[str] = []

    def fail(topic: Topic, channel: str) -> None:
        raise ValueError

    rig.broker.presence_listeners += [fail, lambda topic, channel: told.append(topic.name)]
    rig.broker.ensure_topic("a")
    assert (told, rig.broker.counters.service_errors) == (["a"], 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_system_topic_is_there_without_a_record(rig: BrokerRig, way: str) -> None:
    """remoting.md 4.10: it exists from the start; its messages are in the log."""
    config = TopicConfig(3, 3)
    topic = rig.broker.add_system_topic("SYSTEM", config)
    assert rig.broker.add_system_topic("SYSTEM", config) is topic
    publish_to(rig, "SYSTEM", 2, b"kept")
    rig.store.flush()
    assert (topic.is_system, rig.control_records(), rig.broker.topic_version.counter) == (True, [], 0)
    rig.system_topics = {"SYSTEM": config}
    getattr(rig, way)()
    topic = rig.broker.find_topic("SYSTEM")
    assert (topic.is_system, topic.config, [queue.next_offset for queue in topic.queues]) == (True, config, [0, 0, 1])
    assert rig.control_records() == []


@pytest.mark.parametrize("promote", ["channel", "ephemeral channel", "configure", "pause", "empty"])
def test_a_system_topic_is_written_down_before_something_lasting_hangs_on_it(rig: BrokerRig, promote: str) -> None:
    """Else a start would not know the topic of a channel; nothing that was published before is lost."""
    rig.broker.add_system_topic("SYSTEM", TopicConfig(2, 2))
    publish_to(rig, "SYSTEM", 1, b"early")
    if promote == "channel":
        rig.subscribe("SYSTEM", "ch")
    elif promote == "ephemeral channel":
        rig.subscribe("SYSTEM", "ch#ephemeral")
    elif promote == "configure":
        rig.broker.configure_topic("SYSTEM", TopicConfig(4, 4))
    elif promote == "pause":
        rig.broker.pause_topic("SYSTEM", True)
    else:
        rig.broker.empty_topic("SYSTEM")
    rig.store.flush()
    first = rig.control_records()[0]
    assert (first["op"], first["queues"], first["start"]) == ("create_topic", 2, [0, 0])
    rig.crash()
    topic = rig.broker.find_topic("SYSTEM")
    assert not topic.is_system
    rig.broker.add_system_topic("SYSTEM", TopicConfig(2, 2))
    assert topic.is_system
    assert topic.queues[1].min_offset == 0
    assert topic.paused == (promote == "pause")
    assert len(topic.queues) == (4 if promote == "configure" else 2)
    rig.broker.pause_topic("SYSTEM", False)
    expected = [] if promote == "empty" else [b"early"]
    assert take_all(rig, "SYSTEM", "ch") == expected
    assert sum(change["op"] == "create_topic" for change in rig.control_records()) == 1


def test_a_written_system_topic_gets_the_queues_it_lacks(rig: BrokerRig) -> None:
    """A setting, the number of delay levels, may have been raised since."""
    rig.broker.create_topic("SYSTEM", TopicConfig(2, 2, PERM_READ))
    topic = rig.broker.add_system_topic("SYSTEM", TopicConfig(1, 1))
    assert (len(topic.queues), topic.config.perm) == (2, PERM_READ)
    topic.is_system = False
    assert len(rig.broker.add_system_topic("SYSTEM", TopicConfig(5, 5)).queues) == 5


def test_a_system_topic_keeps_queues_that_the_log_has(rig: BrokerRig) -> None:
    """A setting may have been lowered since: what is in the queue stays readable."""
    rig.broker.add_system_topic("SYSTEM", TopicConfig(3, 3))
    publish_to(rig, "SYSTEM", 2, b"x")
    rig.system_topics = {"SYSTEM": TopicConfig(1, 1)}
    rig.crash()
    topic = rig.broker.find_topic("SYSTEM")
    assert (len(topic.queues), topic.queues[2].next_offset, topic.config.queues) == (3, 1, 1)


def test_a_system_topic_cannot_be_deleted(rig: BrokerRig) -> None:
    """remoting.md 4.10: it is always there."""
    rig.broker.add_system_topic("SYSTEM", TopicConfig(1, 1))
    with pytest.raises(InvalidNameError, match="needs this topic"):
        rig.broker.delete_topic("SYSTEM")
    assert "SYSTEM" in rig.broker.topics


def test_system_topics_take_no_place_of_clients_topics(tmp_path: Path) -> None:
    """broker.max_topics bounds what clients invent."""
    rig = BrokerRig(tmp_path / "store", max_topics=1)
    rig.broker.add_system_topic("SYSTEM", TopicConfig(1, 1))
    rig.broker.ensure_topic("a")
    with pytest.raises(QuotaExceededError, match="max_topics"):
        rig.broker.create_topic("b", TopicConfig(1, 1))
    rig.close()


def test_a_topic_whose_creation_is_lost_comes_back_with_all_its_queues(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/formats/control-records.md; also when its first queue never had a message."""
    batch = PublishBatch()
    batch.destinations, batch.queues = (
        ["lost", "RMQ_SYS_TRACE_TOPIC"],
        [
            rig.store.queue("lost", 2),
            rig.store.queue("RMQ_SYS_TRACE_TOPIC", 0),
        ],
    )
    batch.append(b"x", 0)
    batch.append(b"system", 1)
    rig.store.append(batch)
    rig.store.flush()
    rig.crash()
    topic = rig.broker.find_topic("lost")
    assert topic.config == TopicConfig(3, 3)
    assert take_all(rig, "lost", "ch") == [b"x"]
    assert "topic made for its messages, which no record names topic=lost reason=" in caplog.text
    with pytest.raises(TopicNotFoundError):
        rig.broker.find_topic("RMQ_SYS_TRACE_TOPIC")


def lose_change(rig: BrokerRig, queue_offset: int) -> None:
    """Damage a control record, and start."""
    place = rig.store.queue(CONTROL_TOPIC, 0).position_of(queue_offset)
    rig.lose(place, place + 60)


def test_a_topic_whose_creation_is_lost_keeps_its_channels(rig: BrokerRig) -> None:
    """One damaged record costs no other: the records of its channels are whole."""
    first = rig.store.queue(CONTROL_TOPIC, 0).next_offset
    rig.publish("t", [b"before"])
    rig.subscribe("t", "c1")
    rig.subscribe("t", "c2")
    rig.publish("t", [b"behind"])
    lose_change(rig, first)
    assert sorted(rig.broker.find_topic("t").channels) == ["c1", "c2"]
    rig.publish("t", [b"new"])
    rig.restart()
    assert take_all(rig, "t", "c1") == [b"before", b"behind", b"new"]
    assert take_all(rig, "t", "c2") == [b"behind", b"new"]


def test_a_topic_whose_creation_is_lost_stays_deleted(rig: BrokerRig) -> None:
    """Its messages brought it back although the deletion was whole."""
    first = rig.store.queue(CONTROL_TOPIC, 0).next_offset
    rig.publish("t", [b"x"])
    rig.broker.delete_topic("t")
    rig.store.flush()
    lose_change(rig, first)
    with pytest.raises(TopicNotFoundError):
        rig.broker.find_topic("t")


# -- publishing to chosen queues ----------------------------------------------------------------------------------


def test_refused_destinations_are_passed_over(rig: BrokerRig) -> None:
    """One bad request in a socket read must not fail the others, nor count."""
    topic = rig.broker.create_topic("orders", TopicConfig(2, 2))
    subscription, channel = rig.subscribe("orders", "ch")
    batch = PublishBatch()
    batch.destinations = [("none", 0), ("orders", 1)]
    batch.queues = [None, topic.queue(1)]
    batch.append(b"no", 0, deliver_at_ms=rig.clock.now_ms() + 1000)
    batch.append(b"yes", 1)
    batch.append(b"later", 1, deliver_at_ms=rig.clock.now_ms() + 1000)
    wait = rig.broker.publish_placed(batch, [None, topic])
    rig.store.flush()
    assert wait == rig.store.log.end_offset
    assert (topic.message_count, topic.message_bytes) == (2, 8)
    assert [body for body, _, _ in rig.take(subscription, channel)] == [b"yes"]
    assert channel.deferred_count == 1
    batch = PublishBatch()
    batch.destinations, batch.queues = [("none", 0)], [None]
    batch.append(b"no", 0)
    assert rig.broker.publish_placed(batch, [None]) == 0


def test_listeners_hear_of_what_readers_may_see(tmp_path: Path) -> None:
    """Level fsync: when it is durable; async and ephemeral: at once."""
    rig = BrokerRig(tmp_path / "store")
    heard: list[tuple[str, int, int]] = []

    def listen(queue: QueueBase) -> None:
        heard.append((queue.topic, queue.queue_id, queue.visible_offset))

    rig.broker.create_topic("orders", TopicConfig(2, 2))
    rig.store.flush()
    rig.broker.queue_listeners.append(listen)
    publish_to(rig, "orders", 1, b"a", b"b", flush=False)
    assert heard == []
    rig.store.flush()
    assert heard == [("orders", 1, 2)]
    heard.clear()
    rig.broker.ensure_topic("e#ephemeral")
    publish_to(rig, "e#ephemeral", 0, b"x", flush=False)
    assert heard == [("e#ephemeral", 0, 1)]
    heard.clear()
    queue = rig.broker.find_topic("orders").queues[0]
    queue.awaits_flush = False
    publish_to(rig, "orders", 0, b"at once", flush=False)
    assert heard == [("orders", 0, 1)]
    rig.close()


@pytest.mark.provokes_bugs
def test_a_listener_that_fails_stops_nobody(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    """What was published stays published, and its publisher is told so."""
    heard: list[QueueBase] = []

    def fail(queue: QueueBase) -> None:
        raise ZeroDivisionError

    rig.broker.queue_listeners += [fail, heard.append]
    rig.broker.ensure_topic("events")
    publish_to(rig, "events", 0, b"x")
    assert heard == [rig.broker.find_topic("events").queues[0]]
    assert rig.broker.counters.listener_errors == 1
    assert "listener failed by a bug topic=events" in caplog.text


class Notes:
    """A service that notes when it was called, and can fail."""

    def __init__(self, broker: Any, *, fails: bool = False) -> None:
        self.broker = broker
        self.fails = fails
        self.ticks: list[int] = []
        self.wrote_at_close = -1

    def tick(self, now_ms: int) -> None:
        self.ticks.append(now_ms)
        if self.fails:
            raise ZeroDivisionError

    def close(self) -> None:
        batch = PublishBatch()
        batch.destinations = ["last"]
        batch.append(b"word")
        self.wrote_at_close = self.broker.publish(batch)
        if self.fails:
            raise ZeroDivisionError


def test_a_topic_that_the_store_refuses_leaves_nothing_in_memory(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends to one new name after the other while the store is full must not fill the memory."""
    rig.broker.create_topic("known", TopicConfig(1, 1))

    def refuse(*_: object) -> int:
        raise StoreFullError("no room")

    queues = set(rig.store.queues)
    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "append", refuse)
        for attempt in (
            lambda: rig.broker.ensure_topic("made by a send"),
            lambda: rig.broker.create_topic("orders", TopicConfig(4, 4)),
            lambda: rig.broker.configure_topic("orders", TopicConfig(4, 4)),
            lambda: rig.broker.configure_topic("known", TopicConfig(4, 4)),
        ):
            with pytest.raises(StoreFullError):
                attempt()
    assert set(rig.store.queues) == queues
    rig.broker.configure_topic("known", TopicConfig(2, 2))
    assert set(rig.store.queues) == queues | {("known", 1)}


def test_an_operator_is_served_while_the_store_is_full(rig: BrokerRig) -> None:
    """A channel that was paused before could not be resumed: its consumers got nothing until there was room."""
    rig.subscribe("orders", "main")
    rig.broker.pause_channel("orders", "main", True)
    rig.store_settings = replace(rig.store_settings, budget_bytes=2 << 20)
    rig.restart()
    for bodies in ([bytes(10)] * 1000, [b""]):
        with suppress(StoreFullError):
            while True:
                rig.publish("orders", bodies)
    rig.broker.pause_channel("orders", "main", False)
    subscription, channel = rig.subscribe("orders", "main")
    assert len(rig.take(subscription, channel)) == 100
    rig.broker.empty_channel("orders", "main")
    with pytest.raises(StoreFullError):
        rig.broker.create_topic("more", TopicConfig(1, 1))
    rig.broker.delete_topic("orders")
    rig.restart()
    assert "orders" not in rig.broker.topics


@pytest.mark.provokes_bugs
def test_tickers_run_with_the_broker(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    """Each gets its tick and its close, whatever another one does; the store still takes writes at the end."""
    tickers = [Notes(rig.broker, fails=True), Notes(rig.broker)]
    rig.broker.tickers += tickers
    rig.broker.tick()
    rig.clock.advance_ms(50)
    rig.broker.tick()
    assert [ticker.ticks for ticker in tickers] == [[rig.clock.now_ms() - 50, rig.clock.now_ms()]] * 2
    counters = rig.broker.counters
    rig.restart()
    assert all(ticker.wrote_at_close > 0 for ticker in tickers)
    assert counters.service_errors == 3
    assert "ticker or listener failed by a bug" in caplog.text
    assert rig.store.queue("last", 0).next_offset == 2


@pytest.mark.provokes_bugs
def test_who_stopped_at_a_cold_record_is_told_when_it_was_read_in(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Pulls that wait for the disk are tried again, like channels."""
    told: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError

    rig.broker.warm_listeners += [fail, lambda: told.append("warm")]
    rig.store.on_warm()
    assert told == ["warm"]
    assert rig.broker.counters.service_errors == 1
    assert "failed by a bug" in caplog.text


def test_a_catalog_from_before_topics_had_configurations_is_read() -> None:
    """docs/formats/side-files.md: a store of an earlier build has neither ``config`` nor ``version``."""
    channel = {"key": 7, "start": [3], "paused": False, "empty_below": [], "gaps": []}
    topic = {"queues": 1, "start": [3], "frozen": None, "paused": False, "channels": {"ch": channel}}
    catalog = Catalog.from_payload({"applied_offset": 2, "deleted": ["gone"], "topics": {"t": topic}})
    assert catalog.topics["t"].config is None
    assert catalog.version == DataVersion(0, 0)
    catalog.apply({"op": "delete_topic", "topic": "t"}, 99)
    assert catalog.version == DataVersion(0, 1)


def test_a_configuration_tells_every_position() -> None:
    """docs/formats/control-records.md: after a lost record the next one still gives every queue its start."""
    catalog = Catalog()
    catalog.apply({"op": "create_topic", "topic": "t", "queues": 1, "start": [5]}, 10)
    catalog.apply({"op": "create_channel", "topic": "t", "channel": "ch", "start": [5]}, 20)
    config = {"read_queues": 3, "write_queues": 3}
    catalog.apply({"op": "configure_topic", "topic": "t", "config": config, "start": [5, 7, 9], "at_ms": 1}, 30)
    entry = catalog.topics["t"]
    assert (entry.queues, entry.start, entry.channels["ch"].start) == (3, [5, 7, 9], [5, 7, 9])


def test_a_paused_topic_emptied_again_and_again_is_one_gap() -> None:
    """The catalog and its file grew with each ``empty``, for as long as the channel lives."""
    catalog = Catalog()
    catalog.apply({"op": "create_topic", "topic": "t", "queues": 2, "start": [0, 0]}, 10)
    catalog.apply({"op": "create_channel", "topic": "t", "channel": "ch", "start": [0, 0]}, 20)
    catalog.apply({"op": "pause_topic", "topic": "t", "paused": True, "frozen": [5, 1]}, 30)
    for n in range(6, 100):
        catalog.apply({"op": "empty_topic", "topic": "t", "frozen": [n, 1]}, 40 + n)
    assert catalog.topics["t"].channels["ch"].gaps == [([5, 1], [99, 1])]
    catalog.apply({"op": "pause_topic", "topic": "t", "paused": True, "frozen": [120, 1]}, 200)
    catalog.apply({"op": "empty_topic", "topic": "t", "frozen": [130, 1]}, 210)
    assert catalog.topics["t"].channels["ch"].gaps == [([5, 1], [99, 1]), ([120, 1], [130, 1])]


def test_the_gaps_of_a_catalog_from_before_they_were_joined_are() -> None:
    """Else ``store check`` would hold the catalog to be another one than the control records say."""
    gaps = [[[5], [6]], [[6], [7]], [[9], [10]]]
    channel = {"key": 7, "start": [3], "paused": False, "empty_below": [], "gaps": gaps}
    topic = {"queues": 1, "start": [3], "frozen": [10], "paused": True, "channels": {"ch": channel}}
    catalog = Catalog.from_payload({"applied_offset": 2, "deleted": [], "topics": {"t": topic}})
    assert catalog.topics["t"].channels["ch"].gaps == [([5], [7]), ([9], [10])]


def test_a_topic_says_its_name() -> None:
    """For logs and assertions."""
    assert repr(Topic("t", [], ephemeral=False, paused=False, frozen=None)) == "Topic('t')"
