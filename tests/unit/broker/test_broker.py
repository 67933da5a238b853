"""The broker core: life of topics and channels, what a restart keeps, timers. No sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch import PublishBatch, SettleBatch
from headrace.broker.channels import channel_table
from headrace.broker.channels.journal import ChannelJournal
from headrace.broker.topic import TopicConfig
from headrace.errors import (
    ChannelNotFoundError,
    FlushError,
    InvalidNameError,
    QuotaExceededError,
    StoreError,
    StoreFullError,
    TooManyConsumersError,
    TopicNotFoundError,
)
from headrace.node import TICK_SECONDS
from tests.support.brokers import BrokerRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    made = BrokerRig(tmp_path / "store")
    yield made
    made.close()


def bodies(taken: list[tuple[bytes, int, int]]) -> list[bytes]:
    return [body for body, _, _ in taken]


def test_first_channel_gets_what_waited_in_the_topic_and_later_ones_do_not(rig: BrokerRig) -> None:
    """B-LMQ-13; nsq.md 2.1; X-NSQ-04."""
    rig.publish("events", [b"one", b"two"])
    assert rig.broker.find_topic("events").depth == 2
    first, first_channel = rig.subscribe("events", "first")
    second, second_channel = rig.subscribe("events", "second")
    rig.publish("events", [b"three"])
    assert rig.broker.find_topic("events").depth == 0
    assert bodies(rig.take(first, first_channel)) == [b"one", b"two", b"three"]
    assert bodies(rig.take(second, second_channel)) == [b"three"]


def test_a_later_channel_does_not_get_what_was_published_but_not_yet_durable(rig: BrokerRig) -> None:
    """A later channel receives only messages published after it was made (nsq.md 2.1), flushed or not."""
    rig.subscribe("events", "first")
    batch = PublishBatch()
    batch.destinations = ["events"]
    batch.append(b"before")
    rig.broker.publish(batch)
    second, second_channel = rig.subscribe("events", "second")
    rig.publish("events", [b"after"])
    assert bodies(rig.take(second, second_channel)) == [b"after"]


WAYS = ["restart", "crash", None]


@pytest.mark.parametrize("way", WAYS)
def test_a_channel_can_begin_where_its_topic_did(rig: BrokerRig, way: str | None) -> None:
    """nsq.md 2.1, "new topic with registries configured": a new node loses nothing for channels that others know."""
    rig.publish("events", [b"one"])
    early, early_channel = rig.subscribe("events", "a SUB was first")
    rig.publish("events", [b"two"])
    topic = rig.broker.find_topic("events")
    made = rig.broker.ensure_channel(topic, "known", from_start=True)
    assert rig.broker.ensure_channel(topic, "known", from_start=True) is made
    assert rig.broker.ensure_channel(topic, "a SUB was first", from_start=True) is early_channel
    assert (made.depth, made.message_count) == (2, 2)
    rig.subscribe("events", "later")
    rig.publish("events", [b"three"])
    assert bodies(rig.take(early, early_channel)) == [b"one", b"two", b"three"]
    if way:
        getattr(rig, way)()
    for name, expected in (("known", [b"one", b"two", b"three"]), ("later", [b"three"])):
        assert bodies(rig.take(*rig.subscribe("events", name))) == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_first_channel_that_begins_where_its_topic_did_ends_the_waiting(rig: BrokerRig, way: str | None) -> None:
    """As any first channel: what comes later does not wait in the topic."""
    rig.publish("events", [b"one"])
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "known", from_start=True)
    rig.publish("events", [b"two"])
    rig.subscribe("events", "later")
    if way:
        getattr(rig, way)()
    topic = rig.broker.find_topic("events")
    assert (topic.depth, topic.frozen) == (0, None)
    assert bodies(rig.take(*rig.subscribe("events", "known"))) == [b"one", b"two"]
    assert bodies(rig.take(*rig.subscribe("events", "later"))) == []


def test_a_channel_from_the_start_gets_what_a_deleted_one_had_taken_with_it(rig: BrokerRig) -> None:
    """Had it been made with the topic it would have it; what waits in the topic is not all."""
    rig.subscribe("events", "gone")
    rig.publish("events", [b"one"])
    rig.broker.delete_channel("events", "gone")
    rig.publish("events", [b"two"])
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "known", from_start=True)
    assert bodies(rig.take(*rig.subscribe("events", "known"))) == [b"one", b"two"]


@pytest.mark.parametrize("way", WAYS)
def test_a_channel_from_the_start_of_a_paused_topic_gets_what_went_before_the_pause(
    rig: BrokerRig, way: str | None
) -> None:
    """nsq.md 2.1: pausing a topic stops what comes behind it, for every channel."""
    rig.subscribe("events", "other")
    rig.publish("events", [b"before"])
    rig.broker.pause_topic("events", True)
    rig.publish("events", [b"behind"])
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "known", from_start=True)
    if way:
        rig.store.flush()
        getattr(rig, way)()
    consumer, channel = rig.subscribe("events", "known")
    assert bodies(rig.take(consumer, channel)) == [b"before"]
    assert rig.broker.find_topic("events").depth == 1
    rig.broker.pause_topic("events", False)
    assert bodies(rig.take(consumer, channel)) == [b"behind"]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_channel_from_the_start_does_not_get_what_was_dropped(rig: BrokerRig, way: str | None, paused: bool) -> None:
    """nsq.md 2.1, "empty topic"."""
    rig.broker.ensure_topic("events")
    if paused:
        rig.broker.pause_topic("events", True)
    rig.publish("events", [b"dropped"])
    rig.broker.empty_topic("events")
    rig.publish("events", [b"kept"])
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "known", from_start=True)
    rig.store.flush()
    if way:
        getattr(rig, way)()
    rig.broker.pause_topic("events", False)
    assert bodies(rig.take(*rig.subscribe("events", "known"))) == [b"kept"]


@pytest.mark.parametrize("way", WAYS)
def test_a_channel_from_the_start_of_a_topic_that_was_made_again(rig: BrokerRig, way: str | None) -> None:
    """What a topic of that name had is gone with it."""
    rig.publish("events", [b"former"] * 3)
    rig.broker.delete_topic("events")
    rig.broker.create_topic("events", TopicConfig(3, 3))
    for _ in range(3):
        rig.publish("events", [b"new"])
    rig.subscribe("events", "other")
    rig.broker.configure_topic("events", TopicConfig(4, 4))
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "known", from_start=True)
    for _ in range(4):
        rig.publish("events", [b"newer"])
    if way:
        getattr(rig, way)()
    taken = bodies(rig.take(*rig.subscribe("events", "known")))
    assert sorted(taken) == [b"new"] * 3 + [b"newer"] * 4


def test_a_channel_made_while_it_is_being_found_out_which_ones_a_topic_has(rig: BrokerRig) -> None:
    """It may be one of them: a consumer that is faster than the answer must not cost its channel messages."""
    rig.publish("events", [b"one"])
    rig.subscribe("events", "first")
    topic = rig.broker.find_topic("events")
    topic.awaited_answers += 1
    consumer, channel = rig.subscribe("events", "named in the answer")
    topic.awaited_answers -= 1
    rig.subscribe("events", "later")
    rig.publish("events", [b"two"])
    assert bodies(rig.take(consumer, channel)) == [b"one", b"two"]
    assert bodies(rig.take(*rig.subscribe("events", "later"))) == [b"two"]


def test_a_channel_from_the_start_of_an_ephemeral_topic(rig: BrokerRig) -> None:
    """It gets what the topic still has."""
    rig.subscribe("events#ephemeral", "other")
    rig.publish("events#ephemeral", [b"one"])
    rig.broker.ensure_channel(rig.broker.find_topic("events#ephemeral"), "known", from_start=True)
    assert bodies(rig.take(*rig.subscribe("events#ephemeral", "known"))) == [b"one"]


def test_a_delayed_message_is_not_early_in_a_channel_from_the_start(rig: BrokerRig) -> None:
    """It was deferred by the channels of its time; this one finds it when it reads it."""
    rig.subscribe("events", "other")
    rig.publish("events", [b"later"], due_ms=rig.clock.now_ms() + 5_000)
    rig.publish("events", [b"now"])
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "known", from_start=True)
    consumer, channel = rig.subscribe("events", "known")
    assert bodies(rig.take(consumer, channel)) == [b"now"]
    rig.pass_time(5_000)
    assert bodies(rig.take(consumer, channel)) == [b"later"]


def test_messages_wait_in_the_topic_again_after_its_last_channel_went(rig: BrokerRig) -> None:
    """nsq.md 2.1, "last channel deleted"."""
    rig.subscribe("events", "only")
    rig.publish("events", [b"gone with the channel"])
    rig.broker.delete_channel("events", "only")
    rig.publish("events", [b"kept"])
    assert rig.broker.find_topic("events").depth == 1
    consumer, channel = rig.subscribe("events", "new")
    assert bodies(rig.take(consumer, channel)) == [b"kept"]


def test_nothing_is_delivered_before_it_is_durable(rig: BrokerRig) -> None:
    """Command contract: at level fsync a message is delivered only once it is durable."""
    consumer, channel = rig.subscribe("events", "ch")
    batch = PublishBatch()
    batch.destinations = ["events"]
    batch.append(b"body")
    wait = rig.broker.publish(batch)
    assert wait == rig.store.log.end_offset
    assert rig.take(consumer, channel) == []
    rig.store.flush()
    assert bodies(rig.take(consumer, channel)) == [b"body"]


def test_deleting_a_channel_closes_its_consumers(rig: BrokerRig) -> None:
    """nsq.md 2.1, "delete channel"."""
    subscription, _ = rig.subscribe("events", "ch")
    owner = subscription.owner
    rig.broker.delete_channel("events", "ch")
    assert owner.closed_because == "channel deleted"  # type: ignore[attr-defined]
    with pytest.raises(ChannelNotFoundError):
        rig.broker.find_channel("events", "ch")


def test_a_deleted_topic_is_gone_and_a_new_one_goes_on_with_its_offsets(rig: BrokerRig) -> None:
    """Store rules: (topic, queue, offset) never names two messages."""
    rig.subscribe("events", "ch")
    rig.publish("events", [b"old"])
    rig.broker.delete_topic("events")
    with pytest.raises(TopicNotFoundError):
        rig.broker.find_topic("events")
    rig.publish("events", [b"new"])
    consumer, channel = rig.subscribe("events", "ch")
    assert bodies(rig.take(consumer, channel)) == [b"new"]
    assert rig.store.queue("events", 0).next_offset == 2


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_topics_channels_and_pauses_survive(rig: BrokerRig, way: str) -> None:
    """Command contract: an answered topic or channel creation is durable; pause as nsqd.dat keeps it."""
    rig.subscribe("events", "a")
    rig.subscribe("events", "b")
    rig.subscribe("other", "c")
    rig.broker.pause_channel("events", "b", True)
    rig.broker.pause_topic("other", True)
    rig.broker.delete_channel("events", "a")
    rig.publish("other", [b"waits in the topic"])
    rig.store.flush()
    getattr(rig, way)()
    assert sorted(rig.broker.topics) == ["events", "other"]
    assert list(rig.broker.find_topic("events").channels) == ["b"]
    assert rig.broker.find_channel("events", "b").paused
    assert rig.broker.find_topic("other").paused
    assert rig.broker.find_topic("other").depth == 1
    assert rig.broker.find_channel("other", "c").depth == 0
    rig.broker.pause_topic("other", False)
    assert rig.broker.find_channel("other", "c").depth == 1


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_finished_messages_stay_finished_and_the_rest_comes_again(rig: BrokerRig, way: str) -> None:
    """A FIN older than the journal interval survives any crash; nothing unfinished is lost."""
    consumer, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"%d" % i for i in range(10)])
    taken = rig.take(consumer, channel)
    rig.finish(consumer, channel, [message_id for body, _, message_id in taken if int(body) % 3])
    rig.pass_time(1100)
    getattr(rig, way)()
    consumer, channel = rig.subscribe("events", "ch")
    again = rig.take(consumer, channel)
    assert sorted(bodies(again)) == [b"0", b"3", b"6", b"9"]
    if way == "restart":
        assert {attempts for _, attempts, _ in again} == {2}


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_a_delayed_message_keeps_its_time(rig: BrokerRig, way: str) -> None:
    """DPUB delays survive restarts (X-NSQ-15)."""
    rig.subscribe("events", "ch")
    due = rig.clock.now_ms() + 5000
    rig.publish("events", [b"later"], due_ms=due)
    assert rig.broker.find_channel("events", "ch").deferred_count == 1
    getattr(rig, way)()
    consumer, channel = rig.subscribe("events", "ch")
    assert rig.take(consumer, channel) == []
    rig.pass_time(4900)
    assert rig.take(consumer, channel) == []
    rig.pass_time(200)
    assert bodies(rig.take(consumer, channel)) == [b"later"]


def test_a_delayed_message_that_waited_in_its_topic_is_deferred_when_the_flow_begins(rig: BrokerRig) -> None:
    """nsq.md 2.2, DPUB: in ``deferred_count``, not ``depth``, of the first channel, and of every one after a pause."""
    due = rig.clock.now_ms() + 5000
    rig.publish("events", [b"later"], due_ms=due)
    rig.publish("events", [b"now"])
    first = rig.broker.ensure_channel(rig.broker.find_topic("events"), "first")
    assert (first.depth, first.deferred_count, first.message_count) == (1, 1, 2)
    second = rig.broker.ensure_channel(rig.broker.find_topic("events"), "second")
    rig.broker.pause_topic("events", True)
    rig.publish("events", [b"soon"], due_ms=rig.clock.now_ms() + 100)
    rig.publish("events", [b"later still"], due_ms=due)
    rig.pass_time(200)
    assert [(channel.depth, channel.deferred_count) for channel in (first, second)] == [(1, 1), (0, 0)]
    rig.broker.pause_topic("events", False)
    assert [(channel.depth, channel.deferred_count) for channel in (first, second)] == [(2, 2), (1, 1)]
    consumer, channel = rig.subscribe("events", "second")
    assert bodies(rig.take(consumer, channel)) == [b"soon"]
    rig.pass_time(5000)
    assert bodies(rig.take(consumer, channel)) == [b"later still"]
    assert (channel.depth, channel.deferred_count, channel.message_count) == (0, 0, 2)


@pytest.mark.parametrize("way", ["empty", "delete", "restart"])
def test_a_delayed_message_that_was_dropped_in_its_topic_is_not_deferred(rig: BrokerRig, way: str) -> None:
    """nsq.md 2.1, "empty topic"; after a restart it is deferred when the channel reads it."""
    rig.publish("events", [b"later"], due_ms=rig.clock.now_ms() + 5000)
    if way == "empty":
        rig.broker.empty_topic("events")
    elif way == "delete":
        rig.broker.delete_topic("events")
    else:
        rig.restart()
    consumer, channel = rig.subscribe("events", "ch")
    assert (channel.depth, channel.deferred_count) == (int(way == "restart"), 0)
    assert rig.take(consumer, channel) == []
    rig.pass_time(6000)
    assert bodies(rig.take(consumer, channel)) == ([b"later"] if way == "restart" else [])


def test_many_delayed_messages_are_deferred_when_they_are_read(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages times channels at once would hold the loop: above the bound each channel does it, none comes early."""
    monkeypatch.setattr("headrace.broker.broker.MAX_RELEASED", 20)
    subscriptions = [rig.subscribe("T", f"c{number}", window=100) for number in range(5)]
    due_ms = rig.clock.now_ms() + 1_000
    rig.publish("T", [b"few"] * 4, due_ms=due_ms)
    rig.publish("T", [b"many"] * 5, due_ms=due_ms)
    rig.store.flush()
    assert [channel.deferred_count for _, channel in subscriptions] == [4] * 5
    for subscription, channel in subscriptions:
        assert rig.take(subscription, channel) == []
        assert channel.deferred_count == 9
    rig.clock.advance_ms(1_001)
    rig.broker.tick()
    for subscription, channel in subscriptions:
        assert sorted(body for body, *_ in rig.take(subscription, channel)) == [b"few"] * 4 + [b"many"] * 5


def test_the_messages_known_to_wait_in_topics_are_bounded(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bounds a delayed message is deferred when the channel reads it; its time holds all the same."""
    monkeypatch.setattr(channel_table, "MAX_DELAYED", 5)
    monkeypatch.setattr(channel_table, "MAX_DELAYED_OF_TOPIC", 3)
    counts = {}
    for name in ("one", "two", "three"):
        for _ in range(4):
            rig.publish(name, [b"later"], due_ms=rig.clock.now_ms() + 5000)
    for name in ("one", "two", "three"):
        channel = rig.broker.ensure_channel(rig.broker.find_topic(name), "ch")
        counts[name] = channel.depth, channel.deferred_count
    assert counts == {"one": (1, 3), "two": (2, 2), "three": (4, 0)}
    consumer, channel = rig.subscribe("one", "ch")
    assert rig.take(consumer, channel) == []
    assert (channel.depth, channel.deferred_count) == (0, 4)
    rig.publish("four", [b"later"], due_ms=rig.clock.now_ms() + 5000)
    assert rig.broker.ensure_channel(rig.broker.find_topic("four"), "ch").deferred_count == 1


def test_one_timer_handles_the_time_outs_of_every_channel_within_a_tick(rig: BrokerRig) -> None:
    """C-SCAN-01, X-NSQ-07, B-LMQ-22: one loop for all channels, where LMQ had a task for each; a tick takes 50 ms."""
    assert 1000 * TICK_SECONDS <= 100
    rig.publish("events", [b"m"])
    taken = []
    for number in range(200):
        subscription, channel = rig.subscribe("events", f"c{number}")
        rig.publish("events", [b"m"])
        assert len(rig.take(subscription, channel, 1)) == 1
        taken.append(channel)
    rig.pass_time(59_950)
    assert sum(channel.timeout_count for channel in taken) == 0
    rig.broker.delete_channel("events", "c0")
    rig.pass_time(50)
    assert [channel.timeout_count for channel in taken] == [0] + [1] * 199
    assert [channel.in_flight_count for channel in taken[1:]] == [0] * 199


def test_attempts_are_counted_by_each_channel(rig: BrokerRig) -> None:
    """B-LMQ-16, C-FLOW-05, X-NSQ-24, C-FLOW-13: from 1 up in each; what one hands back says nothing to the other."""
    first, first_channel = rig.subscribe("events", "first")
    second, second_channel = rig.subscribe("events", "second")
    rig.publish("events", [b"m"])
    for attempt in range(1, 4):
        assert [row[:2] for row in rig.take(first, first_channel)] == [(b"m", attempt)]
        rig.pass_time(60_000)
    assert [row[:2] for row in rig.take(second, second_channel)] == [(b"m", 1)]
    assert [row[:2] for row in rig.take(first, first_channel)] == [(b"m", 4)]


def test_time_outs_make_messages_ready_again(rig: BrokerRig) -> None:
    """C-REL-07; nsq.md 2.2."""
    consumer, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"body"])
    assert [attempts for _, attempts, _ in rig.take(consumer, channel)] == [1]
    rig.pass_time(59_000)
    assert rig.take(consumer, channel) == []
    rig.pass_time(1_100)
    assert [attempts for _, attempts, _ in rig.take(consumer, channel)] == [2]
    assert channel.timeout_count == 1


@pytest.mark.parametrize("way", [None, "restart", "crash"])
def test_an_emptied_channel_stays_empty(rig: BrokerRig, way: str | None) -> None:
    """nsq.md 2.1, "empty channel": ready, in flight and deferred are dropped."""
    consumer, channel = rig.subscribe("events", "ch", window=2)
    rig.publish("events", [b"%d" % i for i in range(6)])
    rig.take(consumer, channel)
    rig.broker.empty_channel("events", "ch")
    rig.store.flush()
    if way:
        getattr(rig, way)()
        consumer, channel = rig.subscribe("events", "ch")
    assert rig.take(consumer, channel) == []
    assert channel.depth == 0
    assert consumer.in_flight_count == 0
    rig.publish("events", [b"new"])
    assert bodies(rig.take(consumer, channel)) == [b"new"]


@pytest.mark.parametrize("way", [None, "restart", "crash"])
def test_emptying_a_paused_topic_drops_what_waits_in_it_only(rig: BrokerRig, way: str | None) -> None:
    """nsq.md 2.1, "empty topic": the channels keep what they have."""
    consumer, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"with the channel"])
    rig.broker.pause_topic("events", True)
    rig.publish("events", [b"in the topic"])
    assert rig.broker.find_topic("events").depth == 1
    rig.broker.empty_topic("events")
    rig.store.flush()
    assert rig.broker.find_topic("events").depth == 0
    if way:
        getattr(rig, way)()
        consumer, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"after"])
    rig.broker.pause_topic("events", False)
    assert bodies(rig.take(consumer, channel)) == [b"with the channel", b"after"]


@pytest.mark.parametrize("way", [None, "restart", "crash"])
def test_emptying_a_topic_without_channels_drops_its_messages(rig: BrokerRig, way: str | None) -> None:
    """nsq.md 2.1, "empty topic"."""
    rig.publish("events", [b"dropped"])
    rig.broker.empty_topic("events")
    rig.store.flush()
    if way:
        getattr(rig, way)()
    rig.publish("events", [b"kept"])
    consumer, channel = rig.subscribe("events", "ch")
    assert bodies(rig.take(consumer, channel)) == [b"kept"]


def test_an_ephemeral_channel_goes_with_its_last_consumer(rig: BrokerRig) -> None:
    """nsq.md 1.14; X-NSQ-03."""
    subscription, _ = rig.subscribe("events", "tail#ephemeral")
    rig.broker.unsubscribe(subscription)
    assert rig.broker.find_topic("events").channels == {}
    assert all(change["op"] != "create_channel" for change in rig.control_records())


def test_an_ephemeral_topic_that_is_made_again_repeats_no_id(rig: BrokerRig) -> None:
    """A consumer that remembers ids would take new messages for old ones."""
    ids = []
    for _ in range(2):
        subscription, channel = rig.subscribe("reply#ephemeral", "reader#ephemeral")
        rig.publish("reply#ephemeral", [b"x"] * 3)
        ids += [message_id for _, _, message_id in rig.take(subscription, channel)]
        rig.broker.unsubscribe(subscription)
        assert "reply#ephemeral" not in rig.broker.topics
        rig.clock.advance_ms(1)
    assert len(set(ids)) == 6


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_ephemeral_topic_that_ended_keeps_no_message(rig: BrokerRig, is_deleted: bool) -> None:
    """Its objects refer to each other: the collector may find them only hours later."""
    subscription, channel = rig.subscribe("reply#ephemeral", "reader")
    rig.publish("reply#ephemeral", [b"x" * 100_000] * 3)
    assert bodies(rig.take(subscription, channel)) == [b"x" * 100_000] * 3
    log = rig.broker.find_topic("reply#ephemeral").queues[0].log
    assert log.held_bytes > 300_000
    if is_deleted:
        rig.broker.delete_topic("reply#ephemeral")
    else:
        rig.broker.delete_channel("reply#ephemeral", "reader")
    assert "reply#ephemeral" not in rig.broker.topics
    assert log.held_bytes == 0
    rig.publish("reply#ephemeral", [b"new"])
    assert bodies(rig.take(*rig.subscribe("reply#ephemeral", "reader"))) == [b"new"]


@pytest.mark.parametrize("window", [0, 100])
def test_delayed_messages_that_an_ephemeral_topic_drops_take_no_memory(tmp_path: Path, window: int) -> None:
    """Their entries waited until they were due, 24 bytes each: an hour of a million a second is 86 GB."""
    rig = BrokerRig(tmp_path, ephemeral_messages=1_000)
    subscription, channel = rig.subscribe("events#ephemeral", "tail", window=window)
    most = 0
    for number in range(60):
        due_ms = rig.clock.now_ms() + 60_000 + number
        rig.publish("events#ephemeral", [b"%d" % number] * 1_000, due_ms=due_ms)
        assert rig.take(subscription, channel) == []
        most = max(most, channel.deferred_count)
    assert most < 16_000
    for _ in range(4):  # a tick takes up 5,000 that are due
        rig.pass_time(61_000)
    subscription.ready_count = 1_000
    assert bodies(rig.take(subscription, channel)) == [b"59"] * 1_000
    assert channel.evicted_count == 59_000
    rig.close()


@pytest.mark.parametrize("name", ["lasting", "passing#ephemeral"])
def test_a_channel_that_is_idle_again_gives_its_memory_back(rig: BrokerRig, name: str) -> None:
    """An ephemeral one, of which nothing is noted, kept what its largest burst took for as long as it was there."""
    subscription, channel = rig.subscribe("events", name, window=5_000)
    rig.publish("events", [b"message"] * 5_000)
    ids = [message_id for _, _, message_id in rig.take(subscription, channel, 5_000)]
    assert channel.memory_bytes > 300_000
    rig.finish(subscription, channel, ids)
    for _ in range(2):
        rig.broker.touch_channel(channel)
        rig.pass_time(1_000)
    assert channel.memory_bytes < 1_024


def test_a_stop_without_room_for_a_snapshot_keeps_what_was_finished(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal, which has room, gets the last changes first.."""
    rig.publish("events", [b"one", b"two"])
    subscription, channel = rig.subscribe("events", "channel")
    (_, _, message_id), _ = rig.take(subscription, channel)
    rig.finish(subscription, channel, [message_id])

    def no_room(_: ChannelJournal) -> None:
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(ChannelJournal, "begin_compaction", no_room)
        rig.close()
    assert "last state not written" in caplog.text
    rig._open()
    assert bodies(rig.take(*rig.subscribe("events", "channel"))) == [b"two"]


def test_a_crash_gives_back_only_what_an_ephemeral_channel_has_not_finished(rig: BrokerRig) -> None:
    """Command contract: a FIN older than 5 s survives any crash; here the topic keeps it, the channel does not last."""
    live, live_channel = rig.subscribe("events", "live#ephemeral")
    slow, slow_channel = rig.subscribe("events", "slow#ephemeral")
    rig.publish("events", [b"%d" % i for i in range(10)])
    ids = [message_id for _, _, message_id in rig.take(live, live_channel)]
    assert [message_id for _, _, message_id in rig.take(slow, slow_channel)] == ids
    rig.finish(live, live_channel, ids)
    rig.finish(slow, slow_channel, [*ids[:6], ids[7]])
    rig.pass_time(5_000)
    rig.store.flush()
    noted = [change["frozen"] for change in rig.control_records() if change["op"] == "freeze_topic"]
    assert noted == [[6]]
    end = rig.store.log.end_offset
    rig.pass_time(5_000)
    assert rig.store.log.end_offset == end, "nothing moved, nothing to note"
    rig.crash()
    assert rig.broker.find_topic("events").depth == 4
    consumer, channel = rig.subscribe("events", "live#ephemeral")
    assert bodies(rig.take(consumer, channel)) == [b"6", b"7", b"8", b"9"]


def test_a_stop_gives_back_what_an_ephemeral_channel_has_not_finished(rig: BrokerRig) -> None:
    """A consumer that leaves because the broker stops takes nothing along that a kill would have left."""
    consumer, channel = rig.subscribe("events", "live#ephemeral")
    rig.publish("events", [b"1", b"2", b"3"])
    (_, _, first), *_ = rig.take(consumer, channel, 2)
    rig.finish(consumer, channel, [first])
    rig.broker.begin_stop()
    rig.broker.unsubscribe(consumer)
    rig.restart()
    assert rig.broker.find_topic("events").channels == {}
    consumer, channel = rig.subscribe("events", "ch")
    assert bodies(rig.take(consumer, channel)) == [b"2", b"3"]


@pytest.mark.parametrize("change", ["unpause", "delete channel"])
def test_a_crash_gives_back_what_an_ephemeral_channel_did_not_get_to(rig: BrokerRig, change: str) -> None:
    """What an OK was sent for is not lost because the only channel left is one that is forgotten."""
    _, channel = rig.subscribe("events", "live#ephemeral")
    if change == "unpause":
        rig.broker.pause_topic("events", True)
    else:
        rig.subscribe("events", "lasting")
    rig.publish("events", [b"1", b"2"])
    if change == "unpause":
        rig.broker.pause_topic("events", False)
    else:
        rig.broker.delete_channel("events", "lasting")
    assert channel.depth == 2
    rig.store.flush()
    rig.crash()
    assert rig.broker.find_topic("events").depth == 2


def test_what_was_emptied_does_not_come_back_with_an_ephemeral_channels_rest(rig: BrokerRig) -> None:
    """nsq.md 2.1, "empty topic": answered, so it holds, also where the channel that is left stands before it."""
    consumer, channel = rig.subscribe("events", "live#ephemeral")
    rig.publish("events", [b"in flight"])
    rig.take(consumer, channel)
    rig.broker.pause_topic("events", True)
    rig.publish("events", [b"emptied"])
    rig.broker.empty_topic("events")
    rig.broker.pause_topic("events", False)
    rig.publish("events", [b"kept"])
    rig.pass_time(5_000)
    rig.store.flush()
    rig.crash()
    consumer, channel = rig.subscribe("events", "ch")
    assert bodies(rig.take(consumer, channel)) == [b"kept"]


def test_a_pause_that_is_over_takes_nothing_from_an_ephemeral_channel(rig: BrokerRig) -> None:
    """What it had not finished waits in the topic after a stop, though the topic was paused since it was published."""
    consumer, _ = rig.subscribe("events", "live#ephemeral")
    rig.publish("events", [b"a", b"b"])
    rig.broker.pause_topic("events", True)
    rig.broker.pause_topic("events", False)
    rig.broker.begin_stop()
    rig.broker.unsubscribe(consumer)
    rig.restart()
    assert rig.broker.topics["events"].depth == 2


@pytest.mark.parametrize("is_end", [False, True], ids=["pause", "end of a pause"])
def test_a_lost_record_of_a_pause_leaves_no_half_paused_topic(rig: BrokerRig, is_end: bool) -> None:
    """A power cut took it and left a deletion behind it: the topic held messages and let them pass."""
    rig.publish("events", [b"a"])
    topic = rig.broker.topics["events"]
    for name in ("stays", "goes"):
        rig.broker.ensure_channel(topic, name)
    if is_end:
        rig.broker.pause_topic("events", True)
    rig.store.flush()
    first = rig.store.log.end_offset
    rig.broker.pause_topic("events", not is_end)
    end = rig.store.log.end_offset
    rig.broker.delete_channel("events", "goes")
    rig.lose(first, end)
    rig.publish("events", [b"b"])
    topic = rig.broker.topics["events"]
    assert (topic.paused, topic.frozen, topic.depth, topic.channels["stays"].depth) == (False, None, 0, 2)
    rig.broker.empty_channel("events", "stays")
    assert topic.channels["stays"].depth == 0


def test_topics_with_only_ephemeral_channels_are_noted_in_turn(rig: BrokerRig) -> None:
    """The log must not grow with what no consumer lasts for: a bounded number of records at a time, none forgotten."""
    rig.subscribe("lasting", "ch")
    rig.subscribe("lasting", "tail#ephemeral")
    rig.publish("lasting", [b"x"])
    for number in range(40):
        rig.broker.unsubscribe(rig.subscribe(f"t{number}", "gone#ephemeral")[0])
        consumer, channel = rig.subscribe(f"t{number}", "tail#ephemeral")
        rig.publish(f"t{number}", [b"x"])
        rig.finish(consumer, channel, [message_id for _, _, message_id in rig.take(consumer, channel)])
    rig.broker.delete_topic("t39")
    rig.store.flush()
    before = [change["op"] for change in rig.control_records()].count("freeze_topic")
    counts = []
    for _ in range(4):
        rig.pass_time(5_000)
        rig.store.flush()
        counts.append([change["op"] for change in rig.control_records()].count("freeze_topic") - before)
    assert counts == [16, 32, 39, 39]
    rig.crash()
    assert all(rig.broker.find_topic(f"t{number}").depth == 0 for number in range(39))


def test_an_ephemeral_topic_is_never_on_disk(rig: BrokerRig) -> None:
    """nsq.md 1.14; X-STORE-04, B-LMQ-05, B-LMQ-06: messages bypass the log; the topic goes with its last channel."""
    end = rig.store.log.end_offset
    subscription, channel = rig.subscribe("live#ephemeral", "ch")
    assert rig.publish("live#ephemeral", [b"a", b"b"]) == 0
    assert rig.store.log.end_offset == end
    taken = rig.take(subscription, channel)
    assert bodies(taken) == [b"a", b"b"]
    assert all(message_id >> 47 & 1 for _, _, message_id in taken)
    rig.broker.delete_channel("live#ephemeral", "ch")
    assert "live#ephemeral" not in rig.broker.topics
    assert (rig.broker.counters.topics_deleted, rig.broker.counters.channels_deleted) == (1, 1)


def test_an_ephemeral_topic_drops_the_oldest_and_counts_it(tmp_path: Path) -> None:
    """X-NSQ-02, B-LMQ-04: a bound, and a counter for what it drops."""
    rig = BrokerRig(tmp_path / "store", ephemeral_messages=10)
    subscription, channel = rig.subscribe("live#ephemeral", "ch")
    rig.publish("live#ephemeral", [b"%d" % i for i in range(25)])
    assert bodies(rig.take(subscription, channel)) == [b"%d" % i for i in range(15, 25)]
    assert rig.broker.counters.evicted_ephemeral == 15
    rig.close()


def test_what_is_refused_is_not_counted(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-LMQ-09, B-LMQ-11: messages and their bytes, once they are stored."""
    rig.publish("events", [b"abc", b"de"])

    def refuse(batch: PublishBatch) -> int:
        raise StoreFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "append", refuse)
        with pytest.raises(StoreFullError):
            rig.publish("events", [b"lost"])
    topic = rig.broker.find_topic("events")
    assert (topic.message_count, topic.message_bytes) == (2, 5)


def test_a_batch_for_several_topics_goes_to_each(rig: BrokerRig) -> None:
    """One socket read may publish to many topics, durable and ephemeral ones."""
    first, first_channel = rig.subscribe("a", "ch")
    second, second_channel = rig.subscribe("b#ephemeral", "ch")
    batch = PublishBatch()
    batch.destinations = ["a", "b#ephemeral"]
    for body, destination in ((b"1", 0), (b"2", 1), (b"3", 0)):
        batch.append(body, destination)
    rig.broker.publish(batch)
    rig.store.flush()
    assert bodies(rig.take(first, first_channel)) == [b"1", b"3"]
    assert bodies(rig.take(second, second_channel)) == [b"2"]
    assert (rig.broker.topics["a"].message_count, rig.broker.topics["b#ephemeral"].message_bytes) == (2, 1)


def test_limits_are_refused_by_name(tmp_path: Path) -> None:
    """Flow control that users can understand: the error says which setting."""
    rig = BrokerRig(tmp_path / "store", max_topics=1, max_channels=1)
    rig.subscribe("events", "ch")
    with pytest.raises(QuotaExceededError, match=r"broker\.max_topics"):
        rig.broker.ensure_topic("other")
    with pytest.raises(QuotaExceededError, match=r"broker\.max_channels"):
        rig.broker.ensure_channel(rig.broker.find_topic("events"), "other")
    rig.close()


def test_internal_topics_cannot_be_made(rig: BrokerRig) -> None:
    """Control records are written by the broker alone."""
    with pytest.raises(InvalidNameError):
        rig.broker.ensure_topic("%SYS%CONTROL")


def test_a_message_is_no_work_for_channels_that_nobody_consumes(rig: BrokerRig) -> None:
    """What one PUB costs does not grow with them; they have the message all the same."""
    reader, read = rig.subscribe("events", "read")
    leaver, left = rig.subscribe("events", "left")
    _, both = rig.subscribe("events", "both")
    rig.subscribe("events", "both")
    gone, _ = rig.subscribe("events", "gone")
    for subscription in (leaver, both.subscriptions[0], gone):
        rig.broker.unsubscribe(subscription)
    rig.broker.delete_channel("events", "gone")
    rig.broker.ensure_channel(rig.broker.find_topic("events"), "never")
    rig.broker.take_dirty()
    rig.publish("events", [b"new"])
    assert set(rig.broker.take_dirty()) == {read, both}
    assert bodies(rig.take(reader, read)) == [b"new"]
    assert left.depth == 1
    for name in ("left", "never"):
        consumer, channel = rig.subscribe("events", name)
        assert bodies(rig.take(consumer, channel)) == [b"new"]
    rig.broker.delete_topic("events")


def test_a_consumer_limit_is_enforced(rig: BrokerRig) -> None:
    """nsq.md 1.4, max_channel_consumers."""
    rig.broker.max_channel_consumers = 1
    rig.subscribe("events", "ch")
    with pytest.raises(TooManyConsumersError):
        rig.subscribe("events", "ch")


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_the_catalog_is_rebuilt_from_control_records(rig: BrokerRig, damage: str) -> None:
    """Store rules: what must survive a rebuild from the log is in the log."""
    rig.subscribe("events", "ch")
    rig.broker.pause_channel("events", "ch", True)
    rig.restart()
    path = rig.store.directory.catalog
    rig.close()
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.unlink()
    if damage == "flipped":
        path.write_bytes(raw)
    rig._open()
    assert rig.broker.find_channel("events", "ch").paused


def test_a_topic_whose_creation_record_is_gone_comes_back_from_its_messages(rig: BrokerRig) -> None:
    """A damaged control record must not hide messages."""
    rig.publish("events", [b"kept"])
    rig.store.queue("orphans", 0)
    batch = PublishBatch()
    batch.destinations = ["orphans"]
    batch.queues = [rig.store.queue("orphans", 0)]
    batch.append(b"without a creation record")
    rig.store.append(batch)
    rig.restart()
    consumer, channel = rig.subscribe("orphans", "ch")
    assert bodies(rig.take(consumer, channel)) == [b"without a creation record"]
    rig.broker.delete_topic("events")
    rig.restart()
    assert "events" not in rig.broker.topics


def test_publishers_are_let_go_when_the_store_fails(tmp_path: Path) -> None:
    """Store rules: a failed fsync stops writes for good; whoever waited for room must be told, not left waiting."""
    rig = BrokerRig(tmp_path / "store")
    relieved = []
    rig.broker.on_relief = lambda: relieved.append(True)
    object.__setattr__(rig.store.settings, "max_unflushed_bytes", 1)
    batch = PublishBatch()
    batch.destinations = ["events"]
    batch.append(b"body")
    rig.broker.publish(batch)
    assert rig.broker.overloaded
    rig.store._fail(FlushError("segment", 5))
    assert relieved
    assert not rig.broker.overloaded
    with pytest.raises(FlushError):
        rig.publish("events", [b"refused"])
    rig.close()


def test_publishers_are_let_go_where_a_change_filled_the_store(rig: BrokerRig) -> None:
    """Records of changes count as what awaits the disk: who stops for them must be told when it is over."""
    topic = rig.broker.ensure_topic("events")
    rig.store.flush()
    relieved = []
    rig.broker.on_relief = lambda: relieved.append(rig.broker.overloaded)
    object.__setattr__(rig.store.settings, "max_unflushed_bytes", 100)
    rig.broker.ensure_channel(topic, "ch")
    assert rig.broker.overloaded
    rig.store.flush()
    assert relieved
    assert not any(relieved)


def test_nothing_waits_in_a_topic_that_was_deleted_meanwhile(rig: BrokerRig) -> None:
    """A delayed message that is durable only after its topic has gone is not kept for channels that never come."""
    for name in ("t1", "t2"):
        batch = PublishBatch()
        batch.destinations = [name]
        batch.append(b"x", deliver_at_ms=rig.clock.now_ms() + 3_600_000)
        rig.broker.publish(batch)
        rig.broker.delete_topic(name)
        rig.store.flush()
    assert rig.broker._channels._delayed == {}
    assert rig.broker._channels._delayed_count == 0


def test_delayed_messages_of_a_channel_that_nobody_consumes_are_journalled(rig: BrokerRig) -> None:
    """docs/architecture.md, life of a message: what changed in any channel is appended; else it gathers in memory."""
    topic = rig.broker.ensure_topic("events")
    channel = rig.broker.ensure_channel(topic, "ch")
    for _ in range(5):
        rig.publish("events", [b"x"] * 2_000, due_ms=rig.clock.now_ms() + 3_600_000)
        rig.pass_time(2_000)
        assert channel.memory_bytes < 400_000  # of ten thousand, 24 bytes each
    rig.crash()
    channel = rig.broker.topics["events"].channels["ch"]
    assert (channel.deferred_count, channel.depth) == (10_000, 0)


def test_a_deleted_channel_keeps_nothing_for_those_who_still_have_it(rig: BrokerRig) -> None:
    """Such as the heap of timers, until its time comes."""
    consumer, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"x"] * 500)
    rig.publish("events", [b"x"] * 500, due_ms=rig.clock.now_ms() + 3_600_000)
    rig.take(consumer, channel)
    rig.broker.delete_topic("events")
    assert channel.memory_bytes < 1_000


def test_what_a_start_knows_of_a_channel_goes_when_its_queues_have_it(tmp_path: Path) -> None:
    """Also where several queues have messages that wait: ten million of them would be kept twice."""
    took = {}
    for queues in (1, 4):
        rig = BrokerRig(tmp_path / str(queues))
        topic = rig.broker.create_topic("t", TopicConfig(queues, queues))
        rig.broker.ensure_channel(topic, "c")
        for _ in range(20):
            rig.publish("t", [b"x"] * 250, due_ms=rig.clock.now_ms() + 36_000_000)
        rig.restart()
        channel = rig.broker.topics["t"].channels["c"]
        assert channel.deferred_count == 5_000
        took[queues] = channel.memory_bytes
        rig.close()
    assert took[4] < 1.5 * took[1]


def test_a_requeue_delay_survives_a_kill_soon_after_it(rig: BrokerRig) -> None:
    """REQ delays survive restarts: the page cache has them within 100 ms, the disk within the journal interval.

    Ref: X-NSQ-15.
    """
    consumer, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"body"])
    (_, _, message_id) = rig.take(consumer, channel)[0]
    rig.pass_time(1000)
    settles = SettleBatch()
    settles.append(1, message_id, 30_000)
    channel.settle(consumer, settles, rig.clock.now_ms(), rig.clock.monotonic_ms())
    rig.broker.touch_channel(channel)
    rig.pass_time(150)
    rig.crash()
    consumer, channel = rig.subscribe("events", "ch")
    assert rig.take(consumer, channel) == []
    rig.pass_time(30_000)
    assert [attempts for _, attempts, _ in rig.take(consumer, channel)] == [2]


@pytest.mark.parametrize("first", ["channel", "messages"])
def test_depth_of_an_ephemeral_channel_knows_of_dropped_messages_with_a_delay(tmp_path: Path, first: str) -> None:
    """nsq.md 2.4: what is deferred and what was dropped is each counted once; a dropped message is never deferred."""
    rig = BrokerRig(tmp_path / "store", ephemeral_messages=10)
    topic = rig.broker.ensure_topic("t#ephemeral")
    if first == "channel":
        rig.broker.ensure_channel(topic, "ch")
    rig.publish("t#ephemeral", [b"now"])
    rig.publish("t#ephemeral", [b"later"] * 6, due_ms=rig.clock.now_ms() + 5000)
    rig.publish("t#ephemeral", [b"%d" % number for number in range(7)])
    channel = rig.broker.ensure_channel(topic, "ch")
    assert (channel.depth, channel.deferred_count) == (7, 6 if first == "channel" else 3)
    consumer, channel = rig.subscribe("t#ephemeral", "ch")
    assert len(rig.take(consumer, channel)) == 7
    rig.pass_time(6000)
    assert bodies(rig.take(consumer, channel)) == [b"later"] * 3
    assert (channel.depth, channel.deferred_count) == (0, 0)
    rig.close()


def test_depth_of_an_ephemeral_channel_leaves_out_what_was_dropped(tmp_path: Path) -> None:
    """Counters tell what can still be delivered."""
    rig = BrokerRig(tmp_path / "store", ephemeral_messages=10)
    _, channel = rig.subscribe("live#ephemeral", "ch")
    rig.publish("live#ephemeral", [b"%d" % i for i in range(25)])
    assert channel.depth == 10
    rig.close()


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_a_channel_counts_what_entered_it_since_the_start(rig: BrokerRig, way: str) -> None:
    """nsq.md 2.4: counters are since process start, whatever waits from before; a paused topic lets nothing enter."""
    rig.subscribe("events", "idle")
    _, busy = rig.subscribe("events", "busy")
    rig.publish("events", [b"1", b"2"])
    consumer, busy = rig.subscribe("events", "busy")
    taken = rig.take(consumer, busy)
    rig.finish(consumer, busy, [taken[0][2]])
    rig.broker.pause_topic("events", True)
    rig.publish("events", [b"3"])
    rig.pass_time(2_000)
    getattr(rig, way)()
    channels = rig.broker.find_topic("events").channels
    assert {name: (channel.message_count, channel.depth) for name, channel in channels.items()} == {
        "idle": (0, 2),
        "busy": (0, 1),
    }
    rig.publish("events", [b"4"])
    rig.broker.pause_topic("events", False)
    assert {name: channel.message_count for name, channel in channels.items()} == {"idle": 2, "busy": 2}


def test_what_was_dropped_in_the_topic_never_entered_its_channels(rig: BrokerRig) -> None:
    """nsq.md 2.4: a channel's message_count is of what entered from the topic."""
    _, channel = rig.subscribe("events", "ch")
    rig.publish("events", [b"1"])
    rig.broker.pause_topic("events", True)
    rig.publish("events", [b"2", b"3"])
    rig.broker.empty_topic("events")
    assert (channel.message_count, channel.depth) == (1, 1)
    rig.publish("events", [b"4"])
    assert channel.message_count == 1
    rig.broker.pause_topic("events", False)
    assert (channel.message_count, channel.depth) == (2, 2)
