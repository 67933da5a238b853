"""Offsets, clients and held pulls under random calls, held to plain models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.broker.consumers.clients import ClientInfo, ClientTable, ConsumerData
from headrace.broker.consumers.held_pulls import BUCKET_MS, HeldPulls
from headrace.broker.consumers.offsets import FILE_NAME, OffsetTable
from headrace.broker.consumers.subscription import Subscription
from headrace.settings import BrokerSettings
from tests.support.config_files import Jobs

SETTINGS = BrokerSettings()

names = st.sampled_from(["A", "B", "C"])
queue_ids = st.integers(0, 2)
offsets = st.integers(0, 5)


class OffsetMachine(RuleBasedStateMachine):
    """``OffsetTable`` is a dict that survives restarts, and whose commits a waiting reset stops."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headrace-offsets-")
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.resets: dict[tuple[str, str, int], int] = {}
        self.now = 0
        self.open()

    def open(self) -> None:
        self.table = OffsetTable(Jobs().writer(Path(self.folder.name), FILE_NAME), SETTINGS)
        self.table.load(lambda topic, queue_id: 1_000)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @rule(group=names, topic=names, queue_id=queue_ids, offset=offsets)
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = (group, topic, queue_id)
        taken = self.table.commit(*key, offset)
        assert taken == (key not in self.resets or self.resets[key] == offset)
        if taken:
            self.offsets[key] = offset

    @rule(group=names, topic=names, queue_id=queue_ids, offset=offsets)
    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table.assign_resets(group, topic, {queue_id: offset})
        self.offsets[group, topic, queue_id] = self.resets[group, topic, queue_id] = offset

    @rule(group=names, topic=names, queue_id=queue_ids)
    def pull(self, group: str, topic: str, queue_id: int) -> None:
        expected = self.resets.pop((group, topic, queue_id), None)
        assert self.table.take_reset(group, topic, queue_id) == expected

    @rule(group=names)
    def remove_group(self, group: str) -> None:
        self.table.remove_group(group)
        self.forget(lambda key: key[0] == group)

    @rule(topic=names)
    def remove_topic(self, topic: str) -> None:
        self.table.remove_topic(topic)
        self.forget(lambda key: key[1] == topic)

    def forget(self, matches: Callable[[tuple[str, str, int]], bool]) -> None:
        for table in (self.offsets, self.resets):
            for key in [key for key in table if matches(key)]:
                del table[key]

    @rule(source=names, other=names)
    def clone(self, source: str, other: str) -> None:
        self.table.clone(source, other)
        if source == other:
            return
        topics = {topic for group, topic, _ in self.offsets if group == source}
        self.forget(lambda key: key[0] == other and key[1] in topics)
        copied = {(other, key[1], key[2]): at for key, at in self.offsets.items() if key[0] == source}
        self.offsets.update(copied)

    @rule()
    def pass_time(self) -> None:
        self.now += 5_000
        self.table.tick(self.now)

    @rule()
    def restart(self) -> None:
        self.table.close()
        self.open()

    @rule()
    def crash_after_a_write(self) -> None:
        self.pass_time()
        self.open()

    @invariant()
    def equals_the_model(self) -> None:
        keys = self.table.keys()
        found = {(*key, queue_id): at for key in keys for queue_id, at in self.table.queues(*key).items()}
        assert found == self.offsets
        assert len(self.table) == len(self.offsets)
        assert self.table.waiting_resets == len(self.resets)
        for name in ("A", "B", "C"):
            assert set(self.table.topics_of(name)) == {topic for group, topic, _ in self.offsets if group == name}
            assert set(self.table.groups_of(name)) == {group for group, topic, _ in self.offsets if topic == name}


class ClientMachine(RuleBasedStateMachine):
    """``ClientTable`` keeps every index in step, whoever comes and goes."""

    @initialize()
    def begin(self) -> None:
        self.table = ClientTable(SETTINGS)
        self.owners = [object() for _ in range(3)]
        self.seen: dict[tuple[int, str, str], int] = {}  # (owner, role, group)
        self.topics: dict[str, set[str]] = {}
        self.now = 0

    @rule(
        owner=st.integers(0, 2),
        producers=st.sets(names),
        consumers=st.dictionaries(names, st.sets(names)),
    )
    def heartbeat(self, owner: int, producers: set[str], consumers: dict[str, set[str]]) -> None:
        given = [
            ConsumerData(group, subscriptions=[Subscription.make(topic) for topic in sorted(topics)])
            for group, topics in consumers.items()
        ]
        info = ClientInfo(f"client-{owner}", "JAVA", 409, "10.0.0.5:1")
        changed = self.table.register(self.owners[owner], info, sorted(producers), given, self.now)
        expected = set()
        for group, topics in consumers.items():
            if (owner, "consumer", group) not in self.seen or self.topics.get(group, set()) != topics:
                expected.add(group)
            self.topics[group] = topics
            self.seen[owner, "consumer", group] = self.now
        for group in producers:
            self.seen[owner, "producer", group] = self.now
        assert changed == expected

    @rule(owner=st.integers(0, 2), group=names)
    def unregister(self, owner: int, group: str) -> None:
        changed = self.table.unregister(self.owners[owner], group, group)
        assert changed == self.leave(lambda key: key[0] == owner and key[2] == group)

    @rule(owner=st.integers(0, 2))
    def close(self, owner: int) -> None:
        assert self.table.drop_owner(self.owners[owner]) == self.leave(lambda key: key[0] == owner)

    @rule(milliseconds=st.sampled_from([1, 30_000, 60_000, 120_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        assert self.table.expire(self.now) == self.leave(lambda key: self.seen[key] <= self.now - 120_000)

    def leave(self, matches: Callable[[tuple[int, str, str]], bool]) -> set[str]:
        changed = set()
        for key in [key for key in self.seen if matches(key)]:
            del self.seen[key]
            if key[1] == "consumer":
                changed.add(key[2])
        for group in list(self.topics):
            if not any(role == "consumer" and name == group for _, role, name in self.seen):
                del self.topics[group]
        return changed

    @invariant()
    def equals_the_model(self) -> None:
        table = self.table
        assert len(table) == len(self.seen)
        for name in ("A", "B", "C"):
            owners = {key[0] for key in self.seen if key[1:] == ("consumer", name)}
            assert {member.owner for member in table.members(name)} == {self.owners[owner] for owner in owners}
            owners = {key[0] for key in self.seen if key[1:] == ("producer", name)}
            assert {member.owner for member in table.producers(name)} == {self.owners[owner] for owner in owners}
            assert set(table.groups_of(name)) == {group for group, topics in self.topics.items() if name in topics}
        assert set(table.consumer_groups()) == set(self.topics)
        for owner in range(3):
            produces = any(key[:2] == (owner, "producer") for key in self.seen)
            assert (table.find_producer(f"client-{owner}") is not None) == produces
        assert table._subscription_count == sum(len(topics) for topics in self.topics.values())


class GrowingQueue:
    topic = "T"

    def __init__(self) -> None:
        self.min_offset = 0
        self.codes: list[int] = []

    @property
    def visible_offset(self) -> int:
        return len(self.codes)

    def entries(self, from_offset: int, most: int) -> list[tuple[int, int, int]]:
        return [(0, 1, code) for code in self.codes[from_offset : from_offset + most]]


HeldModel = tuple[int, int, int, int, set[int] | None]
"""Queue, where it reads, deadline, owner, codes."""


class HoldMachine(RuleBasedStateMachine):
    """Every held pull is woken exactly once: by a message for it, or by its time, or it was dropped.

    No codes at all (None) want every message, an empty set of them none.
    """

    @initialize()
    def begin(self) -> None:
        self.holds = HeldPulls(SETTINGS)
        self.queues = [GrowingQueue(), GrowingQueue()]
        self.pulls: dict[int, HeldModel] = {}
        self.woken: list[int] = []
        self.number = 0
        self.now = 0

    @rule(
        queue=st.integers(0, 1),
        ahead=st.integers(0, 2),
        wait=st.integers(0, 300),
        owner=st.integers(0, 2),
        codes=st.none() | st.sets(st.integers(1, 3), max_size=2),
    )
    def hold(self, queue: int, ahead: int, wait: int, owner: int, codes: set[int] | None) -> None:
        number = self.number = self.number + 1
        at, deadline = len(self.queues[queue].codes) + ahead, self.now + wait
        self.pulls[number] = (queue, at, deadline, owner, codes)
        self.holds.hold(self.queues[queue], at, deadline, lambda: self.woken.append(number), owner=owner, codes=codes)  # type: ignore[arg-type]

    @rule(queue=st.integers(0, 1), codes=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def grow(self, queue: int, codes: list[int]) -> None:
        self.queues[queue].codes += codes
        self.holds.grown(self.queues[queue])  # type: ignore[arg-type]
        every = self.queues[queue].codes
        self.expect(
            lambda pull: pull[0] == queue and any(pull[4] is None or code in pull[4] for code in every[pull[1] :]),
        )

    @rule(owner=st.integers(0, 2))
    def drop(self, owner: int) -> None:
        self.holds.drop(owner)
        for number in [number for number, pull in self.pulls.items() if pull[3] == owner]:
            del self.pulls[number]
        self.expect(lambda pull: False)

    @rule(milliseconds=st.integers(1, 200))
    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.holds.tick(self.now)
        self.expect(lambda pull: -(-pull[2] // BUCKET_MS) <= self.now // BUCKET_MS)

    def expect(self, matches: Callable[[HeldModel], bool]) -> None:
        expected = {number for number, pull in self.pulls.items() if matches(pull)}
        assert len(self.woken) == len(set(self.woken))
        assert set(self.woken) == expected
        self.woken.clear()
        for number in expected:
            del self.pulls[number]

    @invariant()
    def equals_the_model(self) -> None:
        assert len(self.holds) == len(self.pulls)
        for number, queue in enumerate(self.queues):
            waiting = sum(pull[0] == number for pull in self.pulls.values())
            assert len(self.holds._by_queue.get(queue, ())) == waiting  # type: ignore[call-overload]


for machine in (OffsetMachine, ClientMachine, HoldMachine):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestOffsets = OffsetMachine.TestCase
TestClients = ClientMachine.TestCase
TestHolds = HoldMachine.TestCase
