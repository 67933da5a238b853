"""nsqlookupd's codec, however its input is cut or broken, and its table against a plain model of nsqlookupd's own."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.format.names import EPHEMERAL_SUFFIX
from headrace.nsq.lookupd.codec import MAGIC, MAX_BODY_BYTES, MAX_LINE_BYTES, ProducerReader, read_identity
from headrace.nsq.refusal import RefusedError
from headrace.registry import producers
from headrace.registry.producers import Entry, ProducerInfo, ProducerTable

SILENT_MS = 1000
TOMBSTONE_MS = 300

lines = st.sampled_from(
    [b"PING\n", b"REGISTER t c\r\n", b"  UNREGISTER t \n", b"\n", b"NO SUCH\xff\n", b"x" * 1024 + b"\n"]
)
bodies = st.binary(max_size=60).map(lambda body: b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
scripts = st.lists(lines | bodies, max_size=8).map(lambda parts: MAGIC + b"".join(parts))


def take_all(reader: ProducerReader, taken: list[Any]) -> None:
    """Take what has come, as a connection does."""
    if not taken:
        magic = reader.take_magic()
        if magic is None:
            return
        taken.append(magic)
    while True:
        if taken[-1] == ["IDENTIFY"]:
            body = reader.take_body()
            if body is None:
                return
            taken.append(body)
        else:
            words = reader.take_line()
            if words is None:
                return
            taken.append(words)


def read(script: bytes, cuts: list[int]) -> list[Any]:
    """Return what is taken of a script that comes in pieces; the last entry says whether it was refused."""
    reader = ProducerReader()
    taken: list[Any] = []
    edges = sorted({cut % (len(script) + 1) for cut in cuts} | {0, len(script)})
    try:
        for start, end in pairwise(edges):
            reader.feed(script[start:end])
            take_all(reader, taken)
            assert reader.held_bytes <= MAX_LINE_BYTES + MAX_BODY_BYTES + 4
    except RefusedError as refusal:
        return [*taken, refusal.data]
    return [*taken, reader.held_bytes]


@given(scripts, st.lists(st.integers(0, 5000), max_size=6))
def test_a_script_is_read_alike_however_it_is_cut(script: bytes, cuts: list[int]) -> None:
    """Whole, in pieces, byte by byte."""
    whole = read(script, [])
    assert read(script, cuts) == whole
    assert read(script, list(range(len(script)))) == whole


@given(scripts, st.integers(0, 5000), st.integers(0, 255), st.binary(max_size=20))
def test_a_broken_script_is_refused_or_read_and_never_fails(script: bytes, at: int, byte: int, behind: bytes) -> None:
    broken = bytearray(script)
    broken[at % len(broken)] = byte
    read(bytes(broken) + behind, [])


fields = (
    "hostname",
    "broadcast_address",
    "tcp_port",
    "http_port",
    "version",
    "topology_zone",
    "topology_region",
    "more",
)
json_values = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5) | st.lists(st.none())


@given(st.dictionaries(st.sampled_from(fields), json_values) | json_values, st.binary(max_size=3))
def test_any_body_identifies_or_is_refused(said: Any, behind: bytes) -> None:
    """What is taken has what nsqlookupd requires."""
    try:
        info = read_identity(json.dumps(said).encode() + behind, "1.2.3.4:5")
    except RefusedError:
        return
    assert info.remote_address == "1.2.3.4:5"
    assert info.broadcast_address
    assert info.version
    assert info.tcp_port
    assert info.http_port


topics = st.sampled_from(["t", "u", "v#ephemeral"])
channels = st.sampled_from(["c", "d", "e#ephemeral"])
owners = st.integers(0, 2)


class TableMachine(RuleBasedStateMachine):
    """The table beside nsqlookupd's own: category, key and subkey -> producers with the time of their tombstone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable(
            silent_ms=SILENT_MS,
            tombstone_ms=TOMBSTONE_MS,
            max_producers=99,
            max_topics=99,
            max_channels=99,
            max_registrations=99,
        )
        self.now_ms = 0
        self.seen: dict[int, int] = {}
        self.model: dict[tuple[str, str, str], dict[int, int | None]] = {}

    def key(self, topic: str, channel: str = "") -> dict[int, int | None]:
        return self.model.setdefault(("channel" if channel else "topic", topic, channel), {})

    def channel_keys(self, topic: str) -> list[tuple[str, str, str]]:
        return [key for key in self.model if key[:2] == ("channel", topic)]

    @rule(ms=st.integers(1, 700))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(owner=owners)
    def come(self, owner: int) -> None:
        if owner not in self.seen:
            info = ProducerInfo(
                remote_address="r", hostname="h", broadcast_address=str(owner), tcp_port=1, http_port=2, version="v"
            )
            self.table.identify(owner, info, self.now_ms)
            self.seen[owner] = self.now_ms

    @rule(owner=owners)
    def ping(self, owner: int) -> None:
        self.table.note_alive(owner, self.now_ms)
        if owner in self.seen:
            self.seen[owner] = self.now_ms

    @precondition(lambda self: self.seen)
    @rule(owner=owners, topic=topics, channel=channels | st.just(""))
    def register(self, owner: int, topic: str, channel: str) -> None:
        if owner in self.seen:
            self.table.register(owner, topic, channel)
            if channel:
                self.key(topic, channel).setdefault(owner, None)
            self.key(topic).setdefault(owner, None)

    @precondition(lambda self: self.seen)
    @rule(owner=owners, topic=topics, channel=channels | st.just(""))
    def unregister(self, owner: int, topic: str, channel: str) -> None:
        if owner not in self.seen:
            return
        self.table.unregister(owner, topic, channel)
        gone = [("channel", topic, channel)] if channel else [*self.channel_keys(topic), ("topic", topic, "")]
        for key in gone:
            self.model.get(key, {}).pop(owner, None)
        last = gone[-1]
        if (channel or topic).endswith(EPHEMERAL_SUFFIX) and not self.model.get(last, True):
            # nsqlookupd keeps the channels of such a topic; here they go with it.
            for key in [last, *([] if channel else self.channel_keys(topic))]:
                del self.model[key]

    @rule(owner=owners)
    def go(self, owner: int) -> None:
        self.table.connection_closed(owner)
        self.seen.pop(owner, None)
        for having in self.model.values():
            having.pop(owner, None)

    @rule(topic=topics, channel=channels | st.just(""))
    def create(self, topic: str, channel: str) -> None:
        self.table.create(topic, channel)
        self.key(topic)
        if channel:
            self.key(topic, channel)

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.table.delete_topic(topic)
        for key in [*self.channel_keys(topic), ("topic", topic, "")]:
            self.model.pop(key, None)

    @rule(topic=topics, channel=channels)
    def delete_channel(self, topic: str, channel: str) -> None:
        was_there = self.model.pop(("channel", topic, channel), None) is not None
        assert self.table.delete_channel(topic, channel) == was_there

    @rule(topic=topics, owner=owners)
    def tombstone(self, topic: str, owner: int) -> None:
        self.table.tombstone(topic, f"{owner}:2", self.now_ms)
        having = self.model.get(("topic", topic, ""), {})
        if owner in having:
            having[owner] = self.now_ms

    @staticmethod
    def owner_of(entry: Entry) -> int:
        return int(entry.producer.info.broadcast_address)

    @rule(slices=st.integers(1, 5))
    def tidy(self, slices: int) -> None:
        for _ in range(slices):
            self.table.tidy()

    def is_heard(self, owner: int) -> bool:
        return self.now_ms - self.seen[owner] <= SILENT_MS

    def is_hidden(self, since_ms: int | None) -> bool:
        return since_ms is not None and self.now_ms - since_ms < TOMBSTONE_MS

    @invariant()
    def tells_the_same(self) -> None:
        assert self.table.registration_count == sum(map(len, self.model.values()))
        known = [key[1] for key in self.model if key[0] == "topic"]
        assert sorted(self.table.topics()) == sorted(known)
        assert self.table.channel_count == len([key for key in self.model if key[0] == "channel"])
        for topic in ("t", "u", "v#ephemeral"):
            found = self.table.lookup(topic, self.now_ms)
            assert (found is not None) == (topic in known)
            assert sorted(self.table.channels_of(topic)) == sorted(key[2] for key in self.channel_keys(topic))
            if found is not None:
                having = self.model["topic", topic, ""]
                expected = [
                    str(owner) for owner in having if self.is_heard(owner) and not self.is_hidden(having[owner])
                ]
                assert sorted(producer.broadcast_address for producer in found.producers) == sorted(expected)
        told_entries = [
            ("topic" if entry.category == "topic" else "channel", entry.topic, entry.channel, self.owner_of(entry))
            for entry in self.table.entries()
            if entry.category != "client"
        ]
        assert sorted(told_entries) == sorted((*key, owner) for key, having in self.model.items() for owner in having)
        for node in self.table.nodes(self.now_ms):
            owner = int(node.info.broadcast_address)
            assert self.is_heard(owner)
            told = dict(zip(node.topics, node.tombstones, strict=True))
            assert told == {
                key[1]: self.is_hidden(having[owner])
                for key, having in self.model.items()
                if key[0] == "topic" and owner in having
            }
        assert len(list(self.table.nodes(self.now_ms))) == len([owner for owner in self.seen if self.is_heard(owner)])


class SlicedTableMachine(TableMachine):
    """What is gone stays in the lists for longer: one name is taken out at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(producers, "SLICE", 1)

    def teardown(self) -> None:
        while self.table.tidy():
            pass
        self.patch.undo()
        entries = self.table._topics.values()
        assert all(holding.is_live for entry in entries for holding in entry.holdings.values())
        lists = [having for entry in entries for having in entry.channels.values()]
        assert all(holding.is_live for having in lists for holding in having)


TestTable = TableMachine.TestCase
TestTableInSlices = SlicedTableMachine.TestCase
