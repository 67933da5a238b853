"""Ends of transactions and messages sent back: those of one read are written as each would be alone.

Two brokers are given the same requests: one by the read, the other each in a read of its own. Answers, records and what
is counted must be the same; and after a crash the same transactions are open.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.broker import Broker
from headrace.broker.gathering import MAX_WORKS
from headrace.broker.withheld.retry import RetryRules
from headrace.errors import MessageTooLargeError, StoreFullError
from headrace.remoting.codec import Command, encode_request
from headrace.remoting.reply import INTERNAL_ERROR
from tests.support.remoting import RemotingRig, as_json, send_fields

Step = tuple[str, dict[str, Any]]

SEGMENT_BYTES: Final = 1 << 20
GROUPS: Final = {"G": (1, 16), "Two": (2, 3), "None": (0, 16)}
"""Retry queues and reconsumptions of each group."""


class Side:
    """One broker, and what it was told of."""

    def __init__(self, folder: Path) -> None:
        broker = {"delay_levels": "1s 5s 10s", "statistics_records": False}
        self.rig = RemotingRig(folder, broker)
        self.link = self.rig.link()
        self.at = 0
        self.messages: list[int] = []  # physical offsets
        self.halves: list[tuple[int, int]] = []  # with queue offsets
        for name, (queues, most) in GROUPS.items():
            group = {"groupName": name, "retryQueueNums": queues, "retryMaxTimes": most}
            assert self.rig.peer().ask(200, body=as_json(group)).code == 0
            # Topics are made at once, ahead of what is gathered: here they are there from the beginning.
            self.rig.services.messages.retries.ensure_retry_topic(RetryRules(name, queues))
            self.rig.services.messages.retries.ensure_dead_letter_topic(name)

    def frame(self, number: int, step: Step) -> bytes:
        """Return the request of one step; its places are those that this broker has told of."""
        kind, more = step
        if kind == "send":
            return self.send_frame(number, more)
        if kind == "ask":
            return encode_request(0, 31, number, ext={"topic": "T", "queueId": "0"})
        places = self.halves if kind == "end" else [(at, 0) for at in self.messages]
        at, queue_offset = places[-1 - more["which"] % len(places)] if places else (0, 0)
        if kind == "end":
            ext = {
                "producerGroup": more["group"], "tranStateTableOffset": queue_offset + more["off"],
                "commitLogOffset": at, "commitOrRollback": more["decision"],
            }  # fmt: skip
            return encode_request(more["kind"], 37, number, more["oneway"], ext)
        ext = {"group": more["group"], "offset": at + more["off"], "delayLevel": more["level"]} | more["more"]
        return encode_request(more["kind"], 36, number, more["oneway"], ext)

    @staticmethod
    def send_frame(number: int, more: dict[str, Any]) -> bytes:
        half = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": f"u{number}"} if more["half"] else {}
        fields = send_fields(
            "T", queue_id=more["queue"], j=more["times"], f=4 * more["half"], properties={**more["more"], **half}
        )
        return encode_request(0, 310, number, ext=fields, body=b"b" * more["size"])

    def learn(self, steps: list[Step], answers: dict[int, Any]) -> None:
        """Note where messages went."""
        for number, (kind, more) in enumerate(steps, 1):
            if kind == "send" and answers[number].code == 0:
                ext = answers[number].ext
                at = int(ext["msgId"][16:], 16)
                self.messages.append(at)
                if more["half"]:
                    self.halves.append((at, int(ext["queueOffset"])))

    def records(self) -> list[bytes]:
        """Return the records that are new since the last call."""
        log, found = self.rig.store.log, []
        while self.at < log.end_offset:
            raw = log.read(self.at)
            # Nothing is there between the last record of a segment and the next segment.
            self.at += len(raw) if raw is not None else SEGMENT_BYTES - self.at % SEGMENT_BYTES
            found.append(raw or b"")
        # Copies and dead letters are messages that can come back, too.
        self.messages += [int.from_bytes(raw[28:36], "big") for raw in found[-8:] if raw]
        return found

    def state(self) -> Any:
        services = self.rig.services
        counters = self.link.server.counters
        return (
            services.messages.transactions.open_count,
            services.messages.transactions.counters,
            services.messages.retries.counters,
            services.messages.letters.counts,
            services.messages.delays.waiting,
            dict(counters.refusals),
            counters.internal_errors,
            {name: topic.message_count for name, topic in services.broker.topics.items()},
            sorted(services.messages.transactions._open),
        )


class Pair:
    """Both brokers."""

    def __init__(self, folder: Path) -> None:
        self.together = Side(folder / "together")
        self.alone = Side(folder / "alone")

    def check(self, steps: list[Step]) -> None:
        frames = [self.together.frame(number, step) for number, step in enumerate(steps, 1)]
        assert frames == [self.alone.frame(number, step) for number, step in enumerate(steps, 1)]
        found = self.together.link.ask(*frames)
        wanted: dict[int, Command] = {}
        for frame in frames:
            wanted |= self.alone.link.ask(frame)
        assert {number: (answer.code, answer.remark, answer.ext) for number, answer in found.items()} == {
            number: (answer.code, answer.remark, answer.ext) for number, answer in wanted.items()
        }
        assert self.together.records() == self.alone.records()
        assert self.together.state() == self.alone.state()
        for side in (self.together, self.alone):
            side.learn(steps, found)

    def close(self) -> None:
        self.together.rig.close()
        self.alone.rig.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("gathered"))
    yield made
    made.close()


which = st.integers(0, 40)
small = {"kind": st.sampled_from([0, 1]), "oneway": st.sampled_from([False, False, True]), "which": which}
off = st.sampled_from([0, 0, 0, 0, 1, -1, 1 << 40])
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(
        st.just("send"),
        st.fixed_dictionaries(
            {
                "half": st.booleans(),
                "queue": st.integers(0, 3),
                "times": st.sampled_from([0, 0, 3, 15, 2_147_483_647, -2, -2_147_483_648]),
                "size": st.sampled_from([1, 200]),
                "more": st.sampled_from(
                    [
                        {},
                        {"TAGS": "a", "color": "red"},
                        {"RETRY_TOPIC": "other", "ORIGIN_MESSAGE_ID": "x", "UNIQ_KEY": "k"},
                        {"REAL_TOPIC": "U", "REAL_QID": "1"},
                        {"WAIT": "true", "DELAY": "0"},
                        {"TRAN_PREPARED_QUEUE_OFFSET": "0"},
                    ]
                ),
            }
        ),
    ),
    st.tuples(
        st.just("back"),
        st.fixed_dictionaries(
            {
                **small,
                "group": st.sampled_from(["G", "G", "Two", "None", "Lacks"]),
                "level": st.sampled_from([0, 0, 1, 99, -1, "x"]),
                "more": st.sampled_from(
                    [{}, {"unitMode": "true"}, {"maxReconsumeTimes": "0"}, {"maxReconsumeTimes": "x"}]
                ),
                "off": off,
            }
        ),
    ),
    st.tuples(
        st.just("end"),
        st.fixed_dictionaries(
            {
                **small,
                "group": st.sampled_from(["P1", "P1", "P1", "P2"]),
                "decision": st.sampled_from([8, 8, 12, 0, 7]),
                "off": off,
            }
        ),
    ),
    st.tuples(st.just("ask"), st.just({})),
)


@given(batch=st.lists(steps, min_size=1, max_size=20))
def test_together_as_alone(pair: Pair, batch: list[Step]) -> None:
    """remoting.md 3.9, 4.4 (36), 4.6."""
    pair.check(batch)


@settings(max_examples=20)
@given(batches=st.lists(st.lists(steps, min_size=1, max_size=20), min_size=1, max_size=6))
def test_the_same_after_a_crash(tmp_path_factory: pytest.TempPathFactory, batches: list[list[Step]]) -> None:
    pair = Pair(tmp_path_factory.mktemp("crash"))
    for batch in batches:
        pair.check(batch)
    for side in (pair.together, pair.alone):
        side.rig.crash()
    together, alone = pair.together.rig.services.messages, pair.alone.rig.services.messages
    assert sorted(together.transactions._open) == sorted(alone.transactions._open)
    assert together.delays.waiting == alone.delays.waiting
    pair.close()


class _Appends:
    """Counts the batches that a broker appends, and refuses some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
        self.sizes: list[int] = []
        self.refuse = lambda batch: None
        publish = broker.publish_placed

        def counted(batch: Any, *given: Any, **more: Any) -> int:
            self.refuse(batch)
            self.sizes.append(batch.count)
            return publish(batch, *given, **more)

        monkeypatch.setattr(broker, "publish_placed", counted)


def filled(folder: Path, sizes: list[int]) -> Side:
    """Return a broker with half messages of these sizes."""
    side = Side(folder)
    plain = {"half": False, "queue": 0, "times": 0, "size": 10, "more": {}}
    steps: list[Step] = [("send", plain), *[("send", {**plain, "half": True, "size": size}) for size in sizes]]
    frames = [side.frame(number, step) for number, step in enumerate(steps, 1)]
    side.learn(steps, {**side.link.ask(frames[0]), **side.link.ask(*frames[1:])})
    return side


def ends(side: Side, *, decision: int = 8) -> list[bytes]:
    plain = {"group": "P1", "decision": decision, "off": 0, "kind": 0, "oneway": False}
    return [side.frame(which, ("end", {**plain, "which": -1 - which})) for which in range(len(side.halves))]


def test_a_read_is_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = filled(tmp_path, [10] * (MAX_WORKS + 10))
    appends = _Appends(monkeypatch, side.rig.broker)
    back = {"group": "G", "level": 0, "more": {}, "off": 0, "kind": 0, "oneway": False, "which": -1}
    side.link.ask(*ends(side))
    assert appends.sizes == [2 * MAX_WORKS, 20]
    appends.sizes.clear()
    side.link.ask(*[side.frame(number, ("back", back)) for number in range(5)], side.frame(6, ("ask", {})))
    assert appends.sizes == [5]
    side.rig.close()


def test_one_that_cannot_be_stored_does_not_touch_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = filled(tmp_path, [10, 10, 5000, 10, 10, 10])
    appends = _Appends(monkeypatch, side.rig.broker)

    def refuse(batch: Any) -> None:
        if batch.body_bytes >= 5000:
            raise MessageTooLargeError("record", 9, 8)

    appends.refuse = refuse
    answers = side.link.ask(*ends(side))
    assert {number: answer.code for number, answer in answers.items()} == {0: 0, 1: 0, 2: 13, 3: 0, 4: 0, 5: 0}
    assert side.rig.services.messages.transactions.open_count == 1
    appends.refuse = lambda batch: None
    assert side.link.ask(ends(side)[2])[2].code == 0
    assert side.rig.services.messages.transactions.open_count == 0
    side.rig.close()


def test_a_full_disk_leaves_all_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = filled(tmp_path, [10] * 4)
    appends = _Appends(monkeypatch, side.rig.broker)

    def refuse(batch: Any) -> None:
        raise StoreFullError("the disk is full")

    appends.refuse = refuse
    answers = side.link.ask(*ends(side))
    assert {answer.code for answer in answers.values()} == {14}
    assert side.rig.services.messages.transactions.open_count == 4
    appends.refuse = lambda batch: None
    assert {answer.code for answer in side.link.ask(*ends(side, decision=12)).values()} == {0}
    assert side.rig.services.messages.transactions.counters.rolled_back == 4
    side.rig.close()


def test_an_end_that_comes_twice_fails_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = filled(tmp_path, [10])
    appends = _Appends(monkeypatch, side.rig.broker)

    def refuse(batch: Any) -> None:
        raise StoreFullError("the disk is full")

    end = {"group": "P1", "decision": 8, "off": 0, "kind": 0, "oneway": False, "which": 0}
    twice = [side.frame(number, ("end", end)) for number in range(2)]
    appends.refuse = refuse
    assert {number: answer.code for number, answer in side.link.ask(*twice).items()} == {0: 14, 1: 14}
    counters = side.rig.services.messages.transactions.counters
    assert (counters.committed, counters.repeated) == (0, 0)
    appends.refuse = lambda batch: None
    assert {number: answer.code for number, answer in side.link.ask(*twice).items()} == {0: 0, 1: 0}
    assert (counters.committed, counters.repeated) == (1, 1)
    side.rig.close()


def test_a_late_commit_that_comes_twice_delivers_once(tmp_path: Path) -> None:
    """What was given up has no op record to come: it is written that it is decided now."""
    side = filled(tmp_path, [10])
    rig = side.rig
    for _ in range(73):
        rig.clock.advance_ms(3_600_000)
        rig.broker.tick()
    counters = rig.services.messages.transactions.counters
    assert (rig.services.messages.transactions.open_count, counters.discarded) == (0, 1)
    end = {"group": "P1", "decision": 8, "off": 0, "kind": 0, "oneway": False, "which": 0}
    before = rig.store.queue("T", 0).next_offset
    answers = side.link.ask(*[side.frame(number, ("end", end)) for number in range(2)])
    assert {number: answer.code for number, answer in answers.items()} == {0: 0, 1: 0}
    assert (counters.committed, counters.repeated) == (1, 1)
    assert rig.store.queue("T", 0).next_offset == before + 1
    rig.close()


@pytest.mark.provokes_bugs
@pytest.mark.parametrize("count", [3, MAX_WORKS, MAX_WORKS + 6])
def test_an_append_that_fails_by_a_bug_leaves_all_of_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Every request is answered, and what comes again is done."""
    side = filled(tmp_path, [10] * count)
    appends = _Appends(monkeypatch, side.rig.broker)

    def fail(batch: Any) -> None:
        appends.refuse = lambda batch: None
        raise MemoryError("planted")

    appends.refuse = fail
    failed = min(count, MAX_WORKS)
    answers = side.link.ask(*ends(side))
    assert [answers[number].code for number in range(count)] == [1] * failed + [0] * (count - failed)
    assert {answers[number].remark for number in range(failed)} == {INTERNAL_ERROR}
    assert side.rig.services.messages.transactions.open_count == failed
    assert {answer.code for answer in side.link.ask(*ends(side)).values()} == {0}
    assert side.rig.services.messages.transactions.open_count == 0
    assert side.rig.services.messages.transactions.counters.committed == count
    side.rig.close()


@pytest.mark.provokes_bugs
def test_a_bug_in_one_does_not_touch_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = filled(tmp_path, [10] * 3)
    note = side.rig.services.messages.letters.note
    calls = []

    def fail(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise RuntimeError("planted")
        note(*given)

    monkeypatch.setattr(side.rig.services.messages.letters, "note", fail)
    back = {"group": "G", "level": -1, "more": {}, "off": 0, "kind": 0, "oneway": False, "which": -1}
    answers = side.link.ask(*[side.frame(number, ("back", back)) for number in range(3)])
    assert {number: (answer.code, answer.remark) for number, answer in answers.items()} == {
        0: (0, ""), 1: (1, INTERNAL_ERROR), 2: (0, "")
    }  # fmt: skip
    assert side.link.server.counters.internal_errors == 1
    side.rig.close()
