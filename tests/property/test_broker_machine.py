"""A topic and its channels through pauses, deletions, refused writes, restarts and kills, against plain sets.

nsq.md 2.1: every channel gets each message that came while it was there, the first one what waited in the topic.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import PublishBatch
from headrace.broker.channels.channel import Channel, Subscription
from headrace.broker.topic import Topic, TopicConfig
from headrace.errors import StoreError, StoreFullError
from tests.support.brokers import BrokerRig, Consumer
from tests.support.weights import weighted

NAMES = ("x", "y", "live#ephemeral")
DELAYS_MS = (0, 0, 0, 30, 6_000)


@dataclass
class Owed:
    """What a channel, or the topic, has: surely, and perhaps besides."""

    sure: set[bytes] = field(default_factory=set)
    perhaps: set[bytes] = field(default_factory=set)

    def add(self, other: Owed) -> None:
        self.sure |= other.sure
        self.perhaps |= other.perhaps

    def require(self, count: int) -> None:
        assert len(self.sure) <= count <= len(self.sure | self.perhaps)


class World:
    """A broker with one topic, and what is owed."""

    def __init__(self, folder: Path) -> None:
        self.rig = BrokerRig(folder, max_deferred_in_memory=2)  # nearly all that is deferred goes to files
        self.rig.broker.ensure_topic("T")
        self.due: dict[bytes, int] = {}
        self.waiting = Owed()
        self.channels: dict[str, Owed] = {}
        self.consumers: dict[str, Subscription] = {}
        self.is_paused = False
        self.emptied: set[bytes] = set()
        """What ephemeral channels had when the topic was emptied: a start may not bring it back."""
        self.is_noted = True
        """Whether the log has how far the topic's flow came."""

    @property
    def topic(self) -> Topic:
        return self.rig.broker.topics["T"]

    def channel(self, name: str) -> Channel:
        return self.topic.channels[name]

    # -- steps --------------------------------------------------------------------------------------------------------

    def publish(self, count: int, delay_ms: int) -> None:
        due_ms = self.rig.clock.now_ms() + delay_ms if delay_ms else 0
        bodies = [b"m%d" % (len(self.due) + number) for number in range(count)]
        batch = PublishBatch()
        batch.destinations = ["T"]
        for body in bodies:
            batch.append(body, deliver_at_ms=due_ms)
        self.rig.broker.publish(batch)
        self.due |= dict.fromkeys(bodies, due_ms)
        for owed in [self.waiting] if self.is_paused or not self.channels else self.channels.values():
            owed.sure.update(bodies)

    def make(self, name: str) -> None:
        if name not in self.channels:
            self.rig.broker.ensure_channel(self.topic, name)
            self.channels[name] = Owed()
            if len(self.channels) == 1 and not self.is_paused:
                self._flow()

    def delete(self, name: str) -> None:
        if name in self.channels:
            self.rig.broker.delete_channel("T", name)
            self.consumers.pop(name, None)
            del self.channels[name]

    def pause(self) -> None:
        self.rig.broker.pause_topic("T", not self.is_paused)
        self.is_paused = not self.is_paused
        if not self.is_paused and self.channels:
            self._flow()

    def _flow(self) -> None:
        for owed in self.channels.values():
            owed.add(self.waiting)
        self.waiting = Owed()

    def empty(self) -> None:
        self.rig.store.flush()
        self.rig.broker.empty_topic("T")
        if self.is_paused or not self.channels:
            for owed in self.channels.values():
                self.emptied |= owed.sure | owed.perhaps
            self.waiting = Owed()

    def empty_channel(self, name: str) -> None:
        if name in self.channels:
            self.rig.broker.empty_channel("T", name)
            self.channels[name] = Owed()

    def grow(self) -> None:
        queues = len(self.topic.queues) + 1
        self.rig.broker.configure_topic("T", TopicConfig(queues, queues))

    def remake(self) -> None:
        self.rig.broker.delete_topic("T")
        self.channels, self.consumers, self.waiting, self.is_paused = {}, {}, Owed(), False
        self.emptied.clear()
        self.rig.broker.ensure_topic("T")

    def consume(self, name: str, most: int) -> None:
        """Take some messages, and finish every second one."""
        if name not in self.channels:
            return
        consumer = self.consumers.get(name)
        if consumer is None:
            channel = self.channel(name)
            consumer = self.rig.broker.subscribe(self.topic, channel, Consumer(), msg_timeout_ms=400)
            consumer.ready_count = 1_000
            self.consumers[name] = consumer
        taken = self.rig.take(consumer, self.channel(name), most)
        for body, _, _ in taken:
            assert body in self.channels[name].sure | self.channels[name].perhaps, f"{body!r} is not this channel's"
            assert self.due[body] <= self.rig.clock.now_ms(), f"{body!r} came early"
        self.rig.finish(consumer, self.channel(name), [message_id for _, _, message_id in taken[::2]])
        for body, _, _ in taken[::2]:
            self.channels[name].sure.discard(body)
            self.channels[name].perhaps.discard(body)
        self.pass_time(100)  # what is noted by now, a kill does not take

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(2):
            self.rig.store.flush()
            self.rig.pass_time(milliseconds // 2)

    def restart(self) -> None:
        self.rig.broker.begin_stop()
        for consumer in self.consumers.values():
            self.rig.broker.unsubscribe(consumer)
        self.rig.restart()
        self._started()

    def crash(self) -> None:
        self.rig.crash()
        self._started()

    def _started(self) -> None:
        self.consumers = {}
        live = self.channels.pop("live#ephemeral", None)
        if live is not None and not self.channels and not self.is_paused:
            self.waiting = Owed(live.sure - self.emptied, set(self.due))  # how far it has come is noted now and then
        self.emptied.clear()
        if not self.is_noted:
            self.waiting.perhaps.update(self.due)
        self.is_noted = True

    def refuse(self, name: str, *arguments: object) -> None:
        """Take a step while the store takes nothing."""

        def refuse(batch: PublishBatch) -> int:
            raise StoreFullError("no room")

        self.is_noted = self.is_noted and name != "delete"  # an ephemeral channel goes all the same
        append = self.rig.store.append
        self.rig.store.append = refuse  # type: ignore[method-assign]
        try:
            getattr(self, name)(*arguments)
        except StoreError:
            pass
        finally:
            self.rig.store.append = append  # type: ignore[method-assign]

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.rig.store.flush()
        assert self.topic.paused == self.is_paused
        assert set(self.topic.channels) == set(self.channels)
        self.waiting.require(self.topic.depth)
        for name, owed in self.channels.items():
            channel = self.channel(name)
            owed.require(channel.depth + channel.in_flight_count + channel.deferred_count)

    def drain(self) -> None:
        """Have everything delivered that is owed."""
        self.make("x")
        if self.is_paused:
            self.pause()
        for _ in range(40):
            self.pass_time(400)
            for name in self.channels:
                self.consume(name, 1_000)
                if self.channel(name).stopped_cold:
                    time.sleep(0.01)  # a thread reads the next record in
        assert not any(owed.sure for owed in self.channels.values()), self.channels


NAME = st.sampled_from(NAMES)
PUBLISH = st.tuples(st.just("publish"), st.sampled_from([3, 8, 1]), st.sampled_from(DELAYS_MS))
CONSUME = st.tuples(st.just("consume"), NAME, st.sampled_from([3, 10, 1]))
WRITES = st.one_of(
    PUBLISH,
    st.tuples(st.just("make"), NAME),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("pause")),
    st.tuples(st.just("empty")),
    st.tuples(st.just("empty_channel"), NAME),
    st.tuples(st.just("grow")),
    st.tuples(st.just("remake")),
)
STEPS = weighted(
    (6, PUBLISH),  # else the rest happens to a topic that has nothing
    (6, CONSUME),
    (2, st.tuples(st.just("make"), NAME)),
    (4, WRITES),
    (1, st.tuples(st.just("pass_time"), st.sampled_from([100, 1_000, 5_000]))),
    (1, st.tuples(st.just("restart"))),
    (1, st.tuples(st.just("crash"))),
    (1, WRITES.map(lambda step: ("refuse", *step))),
)


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=20, max_size=40))
def test_every_channel_gets_what_came_while_it_was_there(steps: list[tuple]) -> None:
    """Each once or more, none early, none that was emptied; what nobody was there for waits in the topic."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "store")
        try:
            for name, *arguments in steps:
                getattr(world, name)(*arguments)
                world.check()
            world.drain()
        finally:
            world.rig.close()
