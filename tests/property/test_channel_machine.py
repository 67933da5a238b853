"""A channel against a model of plain dicts: whatever happens in whatever order, also over crashes."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.channels.channel import Subscription
from headrace.broker.channels.journal import ChannelJournal
from headrace.broker.channels.stored_channels import read_journal
from tests.support.channels import FINISH, NODE_ID, NOT_IN_FLIGHT, NOT_OWNER, OK, REQUEUE, TOUCH, Bench

MAX_MSG_TIMEOUT_MS = 3_000
QUEUES = 2
KEY = b"t/c"

Place = tuple[int, int]


@dataclass
class Message:
    message_id: int
    deliver_at_ms: int
    state: str = "unread"  # unread, ready, flight, deferred, finished
    attempts: int = 0
    due_ms: int = 0
    deadline_ms: int = 0
    delivered_ms: int = 0
    owner: int = 0
    noted: tuple[int, int] | None = None  # (due_ms, attempts) as the journal has it


@dataclass
class Recorded:
    """What a crash leaves of a message."""

    finished: bool
    noted: tuple[int, int] | None


@dataclass
class Model:
    messages: dict[Place, Message] = field(default_factory=dict)
    recorded: dict[Place, Recorded] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)

    def end(self, queue_id: int) -> int:
        return sum(1 for place in self.messages if place[0] == queue_id)

    def readable(self, place: Place) -> bool:
        limit = self.limits.get(place[0], -1)
        return limit < 0 or place[1] < limit

    def count(self, state: str, **wanted: int) -> int:
        return sum(
            message.state == state and all(getattr(message, key) == value for key, value in wanted.items())
            for message in self.messages.values()
        )


READY = st.sampled_from([20, 50, 1, 0])


class ChannelMachine(RuleBasedStateMachine):
    """Most rules need messages in flight, which need a consumer with a window: one is there from the beginning, and
    behind a restart, and what delivers nothing (a pause, a limit) is rare. Else one step of twenty had any."""

    @initialize(seed=st.integers(1, 1000))
    def start(self, seed: int) -> None:
        self.bench = Bench(queues=QUEUES, max_msg_timeout_ms=MAX_MSG_TIMEOUT_MS, seed=seed)
        self.model = Model()
        self.subscriptions: list[Subscription] = []
        self.parts: Iterator[bytes] | None = None
        self.noted_since: set[Place] = set()
        self.begun_notes: dict[Place, tuple[int, int]] = {}
        self.directory = tempfile.TemporaryDirectory()
        self.journal = ChannelJournal(Path(self.directory.name))
        assert self.journal.load() == {}
        self.subscribe(20, 1_000)
        for queue_id in range(QUEUES):
            self.publish(20, queue_id, 0)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            self.directory.cleanup()

    # ---- rules

    @rule(count=st.integers(1, 70), queue_id=st.integers(0, QUEUES - 1), delay=st.sampled_from([0, 0, 500, 9_000]))
    def publish(self, count: int, queue_id: int, delay: int) -> None:
        start = self.model.end(queue_id)
        deliver_at = self.bench.now + delay if delay else 0
        ids = self.bench.publish(count, queue_id=queue_id, deliver_at_ms=deliver_at)
        for i, message_id in enumerate(ids):
            self.model.messages[queue_id, start + i] = Message(message_id, deliver_at)

    @rule(ready_count=READY, msg_timeout_ms=st.sampled_from([200, 1_000, 2_900]))
    def subscribe(self, ready_count: int, msg_timeout_ms: int) -> None:
        if len(self.subscriptions) < 4:
            self.subscriptions.append(self.bench.subscribe(ready_count, msg_timeout_ms))

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data(), ready_count=READY)
    def set_ready(self, data: st.DataObject, ready_count: int) -> None:
        data.draw(st.sampled_from(self.subscriptions)).ready_count = ready_count

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        subscription = data.draw(st.sampled_from(self.subscriptions))
        self.subscriptions.remove(subscription)
        self.bench.channel.unsubscribe(subscription)

    @precondition(lambda self: self.subscriptions)
    @rule(data=st.data(), most=st.sampled_from([100, 7, 1]))
    def deliver(self, data: st.DataObject, most: int) -> None:
        self._deliver(data.draw(st.sampled_from(self.subscriptions)), most)

    def _deliver(self, subscription: Subscription, most: int) -> None:
        window = min(most, subscription.ready_count - subscription.in_flight_count)
        if self.bench.channel.paused:
            window = 0
        taken = self.bench.take(subscription, most)
        assert len(taken) <= max(window, 0)
        by_id = {message.message_id: place for place, message in self.model.messages.items()}
        last = [-1] * QUEUES
        for message_id, offset, attempts in taken:
            place = by_id[message_id]
            message = self.model.messages[place]
            assert place[1] == offset
            assert message.state in ("unread", "ready")
            if message.state == "unread":
                assert self.model.readable(place)
                assert message.deliver_at_ms <= self.bench.now
                assert offset > last[place[0]]
                last[place[0]] = offset
            assert attempts == message.attempts + 1
            message.state, message.attempts, message.owner = "flight", attempts, subscription.id
            message.delivered_ms = self.bench.now
            message.deadline_ms = self.bench.now + subscription.msg_timeout_ms
        cursors = [self.bench.channel.position(queue_id)[1] for queue_id in range(QUEUES)]
        for place, message in self.model.messages.items():
            if message.state == "unread" and message.deliver_at_ms > self.bench.now and place[1] < cursors[place[0]]:
                message.state, message.due_ms = "deferred", message.deliver_at_ms
                self._note(place, (message.deliver_at_ms, 0))
        if len(taken) < window:  # then nothing deliverable may be left
            assert self.model.count("ready") == 0
            assert not any(
                message.state == "unread" and self.model.readable(place)
                for place, message in self.model.messages.items()
            )

    @rule()
    def fill_windows(self) -> None:
        """Have everybody take what they may: the rules of an example are drawn, and one that delivers must be there."""
        for subscription in self.subscriptions:
            self._deliver(subscription, 100)

    @precondition(lambda self: self.subscriptions and self.model.messages)
    @rule(data=st.data(), kind=st.sampled_from([FINISH, FINISH, FINISH, REQUEUE, TOUCH]),
          delay=st.sampled_from([0, 0, 100, 5_000, 400_000]), count=st.integers(1, 40))  # fmt: skip
    def settle(self, data: st.DataObject, kind: int, delay: int, count: int) -> None:
        subscription = data.draw(st.sampled_from(self.subscriptions))
        flying = sorted(place for place, message in self.model.messages.items() if message.state == "flight")
        stray = data.draw(st.integers(0, 9)) == 0
        pool = flying if flying and not stray else sorted(self.model.messages)
        places: list[Place] = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=count))
        self._settle(subscription, places, kind, delay)

    @rule(seed=st.integers(0, 1 << 16), delay=st.sampled_from([5_000, 100, 400_000]))
    def work(self, seed: int, delay: int) -> None:
        """Do what consumers do: take what there is, and a little later settle some of it, in one way or another."""
        chance = random.Random(seed)
        self.fill_windows()
        self.pass_time(99, 1_000)
        for place, message in sorted(self.model.messages.items()):
            owner = next((one for one in self.subscriptions if one.id == message.owner), None)
            kind = chance.choice((FINISH, FINISH, REQUEUE, TOUCH, None))
            if message.state == "flight" and owner is not None and kind is not None:
                self._settle(owner, [place], kind, chance.choice((0, delay)))

    def _settle(self, subscription: Subscription, places: list[Place], kind: int, delay: int) -> None:
        results = self.bench.settle(
            subscription, *((kind, self.model.messages[place].message_id, delay) for place in places)
        )
        assert results == [self._settled(place, subscription, kind, delay) for place in places]

    def _settled(self, place: Place, subscription: Subscription, kind: int, delay: int) -> int:
        message = self.model.messages[place]
        if message.state != "flight":
            return NOT_IN_FLIGHT
        if message.owner != subscription.id:
            return NOT_OWNER
        if kind == FINISH:
            message.state = "finished"
        elif kind == REQUEUE:
            message.state, message.due_ms = ("deferred", self.bench.now + delay) if delay else ("ready", 0)
            self._note(place, (message.due_ms, message.attempts))
        else:
            message.deadline_ms = min(
                self.bench.now + subscription.msg_timeout_ms, message.delivered_ms + MAX_MSG_TIMEOUT_MS
            )
        return OK

    @rule(ms=st.sampled_from([99, 1, 0, 500, 99, 1_000, 5_000, 100_000]), most=st.sampled_from([1, 7, 1_000]))
    def pass_time(self, ms: int, most: int) -> None:
        self.bench.now += ms
        while self.bench.channel.expire(self.bench.now, self.bench.now, most) or (
            0 <= self.bench.channel.next_due_ms() <= self.bench.now - 10_000
        ):
            pass
        for place, message in self.model.messages.items():
            if message.state == "flight" and message.deadline_ms <= self.bench.now:
                message.state = "ready"
                self._note(place, (0, message.attempts))
            elif message.state == "deferred" and message.due_ms <= self.bench.now:
                message.state = "ready"

    @precondition(lambda self: self.model.messages)
    @rule(data=st.data())
    def note_delay(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.model.messages)))
        message = self.model.messages[place]
        if not message.deliver_at_ms:
            return
        noted = self.bench.channel.defer(
            *place, message.message_id & (1 << 48) - 1, message.deliver_at_ms, self.bench.now
        )
        assert noted == (message.state == "unread" and self.model.readable(place))
        if noted:
            message.state, message.due_ms = "deferred", message.deliver_at_ms
            self._note(place, (message.deliver_at_ms, 0))

    @rule(paused=st.sampled_from([False, False, False, True]))
    def pause(self, paused: bool) -> None:
        self.bench.channel.paused = paused

    @rule(queue_id=st.integers(0, QUEUES - 1), lift=st.sampled_from([True, True, False]))
    def limit(self, queue_id: int, lift: bool) -> None:
        limit = -1 if lift else self.model.end(queue_id)
        self.bench.channel.set_limit(queue_id, limit)
        self.model.limits[queue_id] = limit

    @precondition(lambda self: max(self.model.limits.values(), default=-1) >= 0)
    @rule(data=st.data(), gap=st.sampled_from([0, 0, 1, 5]))
    def skip_range(self, data: st.DataObject, gap: int) -> None:
        """Drop a part of what waits in the topic and is not the channel's yet."""
        queue_id = data.draw(st.sampled_from([key for key, limit in self.model.limits.items() if limit >= 0]))
        start = self.model.limits[queue_id] + gap
        end = data.draw(st.integers(start, max(start, self.model.end(queue_id))))
        skipped = self.bench.channel.skip_range(queue_id, start, min(end, self.model.end(queue_id)))
        for place, message in self.model.messages.items():
            if place[0] == queue_id and start <= place[1] < end and message.state != "finished":
                assert message.state == "unread"
                message.state = "finished"
                skipped -= 1
        assert skipped == 0

    @rule(rare=st.integers(0, 5))
    def empty(self, rare: int) -> None:
        if rare:
            return
        dropped = self.bench.channel.empty()
        for place, message in self.model.messages.items():
            if message.state != "finished" and (message.state != "unread" or self.model.readable(place)):
                message.state = "finished"
                dropped -= 1
        assert dropped == 0

    @rule()
    def take_changes(self) -> None:
        state = self.bench.channel.take_changes()
        if state is not None:
            self.journal.write([(KEY, state)])
        self._record()
        assert self.bench.channel.take_changes() is None

    @rule()
    def take_snapshot(self) -> None:
        self.take_changes()
        self.parts, self.begun_notes = None, {}
        self.journal.begin_compaction()
        self.journal.finish_compaction((KEY, part) for part in self.bench.channel.snapshot_parts())
        for message in self.model.messages.values():
            if message.state in ("flight", "ready"):
                message.noted = (0, message.attempts)
        self._record()

    @rule()
    def begin_parts(self) -> None:
        """Begin a snapshot in parts; whatever happens next happens between them."""
        self.take_changes()  # as the journal's writer does: behind the snapshot it would say again what was due before
        self.journal.begin_compaction()
        self.parts = self.bench.channel.snapshot_parts(3)
        self.noted_since = set()
        self.begun_notes = {
            place: (0, message.attempts) for place, message in self.model.messages.items() if message.state == "ready"
        }
        self._take_part()

    def _take_part(self) -> bool:
        """Write a part, the last of which has what is in flight then; return whether there was one."""
        assert self.parts is not None
        part = next(self.parts, None)
        if part is None:
            return False
        self.journal.add_to_snapshot([(KEY, part)])
        self.begun_notes |= {
            place: (0, message.attempts)
            for place, message in self.model.messages.items()
            if message.state == "flight" and place not in self.noted_since
        }
        return True

    @precondition(lambda self: self.parts is not None)
    @rule(count=st.integers(1, 5), finish=st.booleans())
    def go_on_with_parts(self, count: int, finish: bool) -> None:
        for _ in range(1_000_000 if finish else count):
            if not self._take_part():
                break
        else:
            return
        self.take_changes()
        self.journal.finish_compaction()
        for place, noted in self.begun_notes.items():
            self.model.messages[place].noted = noted
        self.parts, self.begun_notes = None, {}
        self._record()

    def _note(self, place: Place, noted: tuple[int, int]) -> None:
        self.model.messages[place].noted = noted
        self.begun_notes.pop(place, None)
        self.noted_since.add(place)

    def _record(self) -> None:
        self.model.recorded = {
            place: Recorded(message.state == "finished", copy.copy(message.noted))
            for place, message in self.model.messages.items()
        }

    @rule(last=st.sampled_from([None, "changes", "snapshot"]), rare=st.integers(0, 1))
    def restart(self, last: str | None, rare: int) -> None:
        """A kill, a kill just behind what the journal gets now and then, or a stop in good order."""
        if rare:
            return
        if last == "changes":
            self.take_changes()
        elif last == "snapshot":
            self.take_snapshot()
        self.parts, self.begun_notes = None, {}
        self.journal.close()
        view = read_journal(Path(self.directory.name))
        assert (view.torn, view.damage) == ([], [])
        self.journal = ChannelJournal(Path(self.directory.name))
        self.bench.restart(self.journal.load().get(KEY, []))
        assert self.bench.clamped == [0] * QUEUES
        self.subscriptions = []
        self.subscribe(20, 1_000)
        self.model.limits = {}
        for place, message in self.model.messages.items():
            recorded = self.model.recorded.get(place, Recorded(False, None))
            message.noted = recorded.noted
            if recorded.finished:
                message.state = "finished"
            elif recorded.noted is not None:
                message.due_ms, message.attempts = recorded.noted
                message.state = "deferred" if message.due_ms else "ready"
            else:
                message.state, message.attempts = "unread", 0

    # ---- invariants

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "bench"):
            return
        channel, model = self.bench.channel, self.model
        assert channel.in_flight_count == model.count("flight")
        assert channel.deferred_count == model.count("deferred")
        readable = sum(message.state == "unread" and model.readable(place) for place, message in model.messages.items())
        assert channel.depth == model.count("ready") + readable
        assert channel.has_ready() == (not channel.paused and channel.depth > 0)
        for subscription in self.subscriptions:
            assert subscription.in_flight_count == model.count("flight", owner=subscription.id)
        for queue_id in range(QUEUES):
            floor = next(
                (offset for offset in range(model.end(queue_id))
                 if model.messages[queue_id, offset].state != "finished"),
                model.end(queue_id),
            )  # fmt: skip
            assert channel.position(queue_id)[0] == floor
        deadlines = [message.deadline_ms for message in model.messages.values() if message.state == "flight"]
        assert channel.next_deadline_ms() == min(deadlines, default=-1)
        dues = [message.due_ms for message in model.messages.values() if message.state == "deferred"]
        assert (channel.next_due_ms() == -1) == (not dues)
        assert channel.next_due_ms() <= min(dues, default=-1)

    @invariant()
    def ids_name_the_node(self) -> None:
        if hasattr(self, "model"):
            assert all(message.message_id >> 48 == NODE_ID for message in self.model.messages.values())


TestChannelMachine = ChannelMachine.TestCase
TestChannelMachine.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
