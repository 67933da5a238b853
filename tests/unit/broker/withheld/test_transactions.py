"""Transactions: half messages, decisions, questions, what crashes leave. remoting.md 3.9, 4.6."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.broker.gathering import MAX_WORKS
from headrace.broker.message import Message, put
from headrace.broker.withheld.transaction_end import Decision
from headrace.broker.withheld.transaction_opening import TransactionOpening
from headrace.broker.withheld.transactions import (
    MAX_AT_ONCE,
    MAX_BEHIND,
    MAX_BYTES_AT_ONCE,
    TICK_MS,
)
from headrace.errors import (
    InvalidDelayError,
    MessageNotFoundError,
    MessageTooLargeError,
    QuotaExceededError,
    StoreFullError,
)
from headrace.format.names import CHECK_MAX_TOPIC, DECIDED_GROUP, HALF_TOPIC, OP_TOPIC
from headrace.format.record import check as check_record
from headrace.format.record import encode as encode_record
from headrace.format.record import encode_properties, tag_hash
from tests.support.layouts import decode_record
from tests.support.messaging import SENDER, MessagingRig
from tests.support.stored_message import StoredMessage

Half = tuple[int, int]
"""Queue offset and physical offset of a half message."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MessagingRig]:
    made = MessagingRig(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[MessagingRig]:
    """A rig that gives up after three questions."""
    made = MessagingRig(tmp_path / "hasty", transaction_check_max=3)
    yield made
    made.close()


def prepare(rig: MessagingRig, body: bytes = b"body", **properties: str) -> Half:
    message = rig.message("T", body, queue_id=2, PGROUP="P", TRAN_MSG="true", UNIQ_KEY="u1", TAGS="a", **properties)
    message.sys_flag |= 4
    placed, wait = rig.transactions.prepare(message, rig.clock.now_ms())
    assert wait > placed.physical_offset
    return placed.queue_offset, placed.physical_offset


def end(rig: MessagingRig, half: Half, decision: Decision = Decision.COMMIT, group: str = "P") -> bool:
    return rig.end(group, *half, decision)


def test_a_half_message_is_seen_by_nobody(rig: MessagingRig) -> None:
    """remoting.md 3.9: half topic, queue 0, transaction bits cleared, REAL_* added."""
    prepare(rig)
    rig.store.flush()
    assert rig.bodies("T", 2) == []
    (half,) = rig.read(HALF_TOPIC)
    assert (half.queue_id, half.sys_flag, half.prepared_offset) == (0, 1, 0)
    assert half.properties == {
        "PGROUP": "P", "TRAN_MSG": "true", "UNIQ_KEY": "u1", "TAGS": "a", "REAL_TOPIC": "T", "REAL_QID": "2",
    }  # fmt: skip
    assert rig.transactions.open_count == 1


def test_commit_delivers_the_message(rig: MessagingRig) -> None:
    """remoting.md 3.9: real topic and queue, sysFlag 0x8, preparedTransactionOffset, everything else kept."""
    half = prepare(rig)
    assert end(rig, half)
    rig.store.flush()
    (message,) = rig.read("T", 2)
    assert (message.body, message.sys_flag, message.prepared_offset) == (b"body", 1 | 8, half[1])
    assert (message.flag, message.born_ms, message.born_host) == (7, 1_600_000_000_000, SENDER)
    assert message.properties["REAL_TOPIC"] == "T"
    assert message.properties["TRAN_MSG"] == "true"
    assert rig.store.queue("T", 2).entries(0, 1)[0][2] == tag_hash("a")
    raw = rig.store.log.read(message.physical_offset)
    assert raw is not None
    assert (raw.count(b"__CRC32#"), raw.count(b"__BATCH#")) == (1, 0)
    (op,) = rig.read(OP_TOPIC)
    assert (op.body, op.properties) == (b"0", {"TAGS": "d"})
    assert rig.transactions.open_count == 0


def test_rollback_delivers_nothing(rig: MessagingRig) -> None:
    """remoting.md 3.9: op record only."""
    half = prepare(rig)
    assert end(rig, half, Decision.ROLLBACK)
    rig.pass_time(300_000, step=1_000)
    assert rig.bodies("T", 2) == []
    assert rig.bodies(OP_TOPIC) == [b"0"]
    assert rig.checks == []
    assert (rig.transactions.counters.rolled_back, rig.transactions.counters.committed) == (1, 0)


def test_unknown_leaves_it_open(rig: MessagingRig) -> None:
    """remoting.md 4.6: type 0 is ignored."""
    half = prepare(rig)
    assert not end(rig, half, Decision.UNKNOWN)
    assert rig.transactions.open_count == 1
    assert rig.transactions.counters.left_open == 1


def test_a_decision_counts_once(rig: MessagingRig) -> None:
    """A client repeats what it got no answer to: END_TRANSACTION is one-way."""
    half = prepare(rig)
    assert end(rig, half)
    assert not end(rig, half)
    assert not end(rig, half, Decision.ROLLBACK)
    rig.restart()
    assert not end(rig, half)
    assert rig.bodies("T", 2) == [b"body"]
    assert rig.bodies(OP_TOPIC) == [b"0"]


@pytest.mark.parametrize(
    ("group", "half_offset", "shift"), [("Q", 0, 0), ("P", 1, 0), ("P", 0, 1), ("P", 0, 1 << 40), ("P", 0, -(1 << 40))]
)
def test_a_decision_must_name_its_half_message(rig: MessagingRig, group: str, half_offset: int, shift: int) -> None:
    """remoting.md 4.6, trap 25: validate three fields."""
    _, physical_offset = prepare(rig)
    with pytest.raises(MessageNotFoundError):
        rig.end(group, half_offset, physical_offset + shift, Decision.COMMIT)
    assert rig.transactions.counters.refused == 1
    assert rig.transactions.open_count == 1


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_producer_cannot_name_the_transaction_of_another(rig: MessagingRig, is_asked: bool, restart: bool) -> None:
    """What only copies of the broker's own may say is not taken from a producer: here it decided for the other one."""
    victim = prepare(rig, b"victim")
    forged = prepare(rig, b"forged", TRAN_PREPARED_QUEUE_OFFSET=str(victim[0]), TRANSACTION_CHECK_TIMES="99")
    if is_asked:
        rig.pass_time(7_000, step=1_000)
    if restart:
        rig.restart()
    assert end(rig, forged, Decision.ROLLBACK)
    assert rig.transactions.open_count == 1
    assert end(rig, victim)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"victim"]
    assert all("99" not in half.properties.values() for half in rig.read(HALF_TOPIC))


@pytest.mark.parametrize("place", [0, 1, 2, 9])
@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
def test_a_record_within_a_body_is_no_half_message(rig: MessagingRig, place: int, decision: Decision) -> None:
    """Its author may have written into it whose transaction it is a copy of, and where that is to be delivered."""
    prepare(rig)
    assert end(rig, prepare(rig), Decision.ROLLBACK)
    rig.store.flush()
    assert end(rig, prepare(rig), Decision.ROLLBACK)  # and is not durable yet
    at = rig.store.log.end_offset + 88  # behind the fixed fields
    properties = {"PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "0", "TRAN_PREPARED_QUEUE_OFFSET": "0"}
    forged = encode_record(
        b"forged", HALF_TOPIC.encode(), properties=encode_properties(properties), queue_offset=place, physical_offset=at
    )
    put(rig.broker, rig.message("T", forged))
    assert rig.store.log.read(at) is not None
    with pytest.raises(MessageNotFoundError):
        rig.end("P", place, at, decision)
    assert rig.transactions.open_count == 1
    assert b"forged" not in rig.bodies("T", 0)


def test_an_ordinary_message_is_no_half_message(rig: MessagingRig) -> None:
    """remoting.md 4.6."""
    stored = rig.append("T", b"x", PGROUP="P")
    with pytest.raises(MessageNotFoundError, match="no half message"):
        end(rig, (stored.queue_offset, stored.physical_offset))


def test_open_transactions_are_bounded(tmp_path: Path) -> None:
    """Issue 4, flow control: the refusal names the setting."""
    rig = MessagingRig(tmp_path / "store", max_open_transactions=2)
    prepare(rig)
    half = prepare(rig)
    with pytest.raises(QuotaExceededError, match="max_open_transactions"):
        prepare(rig)
    end(rig, half)
    prepare(rig)
    rig.close()


# -- questions ------------------------------------------------------------------------------------------------------


def test_the_producer_is_asked_after_the_time_out_and_then_each_interval(rig: MessagingRig) -> None:
    """remoting.md 3.9: 6 s, then every 30 s; each time a newer copy of the half message with the count."""
    half = prepare(rig)
    rig.pass_time(5_950)
    assert rig.checks == []
    rig.pass_time(100)
    assert len(rig.checks) == 1
    rig.pass_time(29_900)
    assert len(rig.checks) == 1
    rig.pass_time(150)
    first, second = rig.checks
    assert (first.group, first.unique_key, first.half_offset, second.half_offset) == ("P", "u1", 1, 2)
    assert first.physical_offset != half[1]
    copies = rig.read(HALF_TOPIC)
    assert [copy.properties.get("TRANSACTION_CHECK_TIMES") for copy in copies] == [None, "1", "2"]
    assert [copy.properties.get("TRAN_PREPARED_QUEUE_OFFSET") for copy in copies] == [None, "0", "0"]
    assert copies[1].message_id == first.message_id
    assert rig.bodies(OP_TOPIC) == [b"0", b"1"]


def test_large_ones_are_asked_about_in_several_ticks(rig: MessagingRig) -> None:
    """Each question appends a copy: those of one tick are to be a few MiB, not thousands of times the largest body."""
    for _ in range(10):
        prepare(rig, bytes(MAX_BYTES_AT_ONCE // 8))
    asked = []
    rig.clock.advance_ms(6_000)
    while len(rig.checks) < 10:
        rig.pass_time(50)
        asked.append(len(rig.checks))
    assert asked == [8, 10]


def test_many_are_asked_about_in_several_ticks(rig: MessagingRig) -> None:
    """20,000 that were due took 30 to 55 ms of each tick, for 5 s: a tick has its time, and the rest goes on then."""
    for _ in range(3 * MAX_WORKS):
        prepare(rig)

    def look(group: str, topic: str) -> bool:
        rig.clock.advance_ms(TICK_MS // 4)
        return True

    rig.transactions.has_producer = look
    rig.clock.advance_ms(6_000)
    asked = []
    for _ in range(3):
        rig.broker.tick()
        asked.append(len(rig.checks))
    assert asked == [MAX_WORKS, 2 * MAX_WORKS, 3 * MAX_WORKS]
    assert sorted(check.half_offset for check in rig.checks) == list(range(3 * MAX_WORKS, 6 * MAX_WORKS))
    assert rig.transactions.open_count == 3 * MAX_WORKS


def test_many_whose_producers_are_away_are_looked_at_in_several_ticks(rig: MessagingRig) -> None:
    """They append nothing that would fill a gathering, so a tick has its number."""
    for _ in range(2 * MAX_AT_ONCE + 1):
        prepare(rig)
    rig.transactions.has_producer = lambda group, topic: False
    rig.clock.advance_ms(6_000)
    looked_at = []
    for _ in range(4):
        rig.broker.tick()
        looked_at.append(rig.transactions.counters.unasked)
    assert looked_at == [MAX_AT_ONCE, 2 * MAX_AT_ONCE, 2 * MAX_AT_ONCE + 1, 2 * MAX_AT_ONCE + 1]


def test_a_newer_copy_that_has_no_room_is_dropped_alone(rig: MessagingRig) -> None:
    """Of a half message that another broker took: the others of its gathering are asked about."""
    prepare(rig)
    rig.append(HALF_TOPIC, b"large", PGROUP="P", REAL_TOPIC="T", REAL_QID="2", big="p" * 32_680)
    prepare(rig)
    rig.crash()
    assert rig.transactions.open_count == 3
    rig.pass_time(7_000)
    assert (len(rig.checks), rig.transactions.open_count, rig.transactions.counters.dropped) == (2, 2, 1)


def test_no_more_are_asked_about_while_the_store_is_behind(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(rig)
    rig.clock.advance_ms(6_000)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.broker.broker.Broker.overloaded", True)
        rig.broker.tick()
    assert rig.checks == []
    rig.broker.tick()
    assert len(rig.checks) == 1


def test_a_newer_copy_that_a_power_cut_took_leaves_its_transaction_open(rig: MessagingRig) -> None:
    """A disk may keep the page that says that the older one is done with, and lose that of the copy behind it."""
    half = prepare(rig)
    rig.store.flush()
    rig.pass_time(6_000)
    (check,) = rig.checks
    rig.append("T", b"behind")
    rig.store.abandon()
    rig.damage(check.physical_offset)
    rig._open()
    assert rig.transactions.open_count == 1
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2).count(b"body") == 1


def test_the_question_carries_the_record_as_it_is_meant(rig: MessagingRig) -> None:
    """remoting.md 4.6: topic and queue replaced by the real ones, totalSize recomputed, offsets of the newest copy."""
    prepare(rig)
    rig.pass_time(6_100)
    (check,) = rig.checks
    record = decode_record(check.record)
    assert check_record(check.record, 0, check.physical_offset) == len(check.record)
    assert (record.topic, record.queue_id, record.body) == (b"T", 2, b"body")
    assert (record.queue_offset, record.physical_offset) == (check.half_offset, check.physical_offset)
    assert (record.flag, record.born_ms) == (7, 1_600_000_000_000)
    assert b"PGROUP\x01P\x02" in record.properties
    assert StoredMessage.from_record(check.record).properties["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.parametrize("which", ["first", "middle", "newest"])
@pytest.mark.parametrize("restart", [False, True])
def test_an_answer_may_name_any_copy_and_decides_once(rig: MessagingRig, which: str, restart: bool) -> None:
    """A late END_TRANSACTION crosses a question: it must neither be lost nor deliver twice."""
    half = prepare(rig)
    rig.pass_time(36_200)
    first, second = rig.checks
    copies = {
        "first": half,
        "middle": (first.half_offset, first.physical_offset),
        "newest": (second.half_offset, second.physical_offset),
    }
    if restart:
        rig.crash()
    assert end(rig, copies[which])
    for other in copies.values():
        assert not end(rig, other)
    rig.pass_time(100_000, step=1_000)
    assert rig.bodies("T", 2) == [b"body"]
    assert len(rig.checks) == 2


def test_a_message_may_name_its_own_time_out(rig: MessagingRig) -> None:
    """remoting.md 2.6: CHECK_IMMUNITY_TIME_IN_SECONDS."""
    prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="20")
    prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    rig.pass_time(1_100)
    assert len(rig.checks) == 1
    rig.pass_time(18_800)
    assert len(rig.checks) == 1
    rig.pass_time(200)
    assert len(rig.checks) == 2


def test_after_the_last_question_the_message_is_put_aside(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """remoting.md 3.9: 15 questions, then TRANS_CHECK_MAX_TIME_TOPIC."""
    prepare(rig)
    with caplog.at_level(logging.WARNING):
        rig.pass_time(6_000 + 16 * 30_000, step=1_000)
    assert len(rig.checks) == 15
    assert rig.bodies(CHECK_MAX_TOPIC) == [b"body"]
    properties = rig.read(CHECK_MAX_TOPIC)[0].properties
    assert (properties["REAL_TOPIC"], properties["TRANSACTION_CHECK_TIMES"]) == ("T", "15")
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in properties
    assert rig.transactions.open_count == 0
    assert rig.transactions.counters.discarded == 1
    assert "given up" in caplog.text
    assert rig.bodies("T", 2) == []


def test_the_log_has_a_line_a_minute_for_a_group_that_is_given_up(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer that is gone leaves as many as it had: a million had a line each."""
    for _ in range(20):
        prepare(rig)
    with caplog.at_level(logging.WARNING):
        rig.pass_time(6_000 + 16 * 30_000, step=1_000)
    assert rig.transactions.counters.discarded == 20
    told = [line for line in caplog.messages if line.startswith("transaction given up")]
    assert len(told) == 1
    assert told[0].endswith("topic=T checks=15 total=1")


def test_the_log_has_a_line_a_minute_for_a_topic_that_is_gone(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Each commit to it had a line, as many as the producer had transactions open."""
    halves = [prepare(rig) for _ in range(20)]
    rig.broker.delete_topic("T")
    with caplog.at_level(logging.WARNING):
        for half in halves:
            end(rig, half)
    assert rig.transactions.counters.dropped == 20
    assert caplog.messages.count("transaction committed to a topic that is gone topic=T") == 1


def test_questions_survive_a_restart_with_their_count(rig: MessagingRig) -> None:
    """Issue 4: back-check after a restart; the count is in the copies."""
    prepare(rig)
    rig.pass_time(6_100)
    rig.crash()
    rig.pass_time(29_800)
    assert len(rig.checks) == 1
    rig.pass_time(300)
    assert len(rig.checks) == 2
    copy = rig.read(HALF_TOPIC)[-1]
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "2"


def test_a_question_that_nobody_hears_does_not_count(rig: MessagingRig) -> None:
    """Issue 4: back-check after a producer's restart: it may take long to come back."""
    half = prepare(rig)
    rig.has_producer = lambda group: False
    rig.pass_time(20 * 60_000, step=1_000)
    assert rig.checks == []
    assert len(rig.read(HALF_TOPIC)) == 1
    assert rig.transactions.counters.unasked > 30
    rig.has_producer = lambda group: group == "P"
    rig.pass_time(30_100, step=1_000)
    assert len(rig.checks) == 1
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"body"]


def test_a_producer_that_never_comes_back_is_not_waited_for(rig: MessagingRig) -> None:
    """broker.transaction_keep_ms: open transactions do not stay for good."""
    prepare(rig)
    rig.has_producer = lambda group: False
    rig.pass_time(72 * 3_600_000 + 60_000, step=20_000)
    assert rig.bodies(CHECK_MAX_TOPIC) == [b"body"]


def test_one_that_nobody_decides_does_not_hold_the_others(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """remoting.md 3.9: appended anew, so that the queue's head can move on."""
    monkeypatch.setattr("headrace.broker.withheld.transactions.MAX_BEHIND", 10)
    assert MAX_BEHIND > 10
    stuck = prepare(rig)
    rig.has_producer = lambda group: False
    for _ in range(20):
        end(rig, prepare(rig), Decision.ROLLBACK)
    rig.pass_time(36_200)
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) == 21
    assert rig.offsets.committed(DECIDED_GROUP, OP_TOPIC, 0) == 21
    assert rig.read(HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
    assert end(rig, stuck)


def test_what_is_decided_is_noted_though_groups_have_all_offsets_there_may_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bound is against clients; else each decision is a line of the log, and each start reads them all again."""
    rig = MessagingRig(tmp_path / "store", max_group_offsets=1)
    rig.offsets.commit("G1", "T", 0, 0)
    end(rig, prepare(rig), Decision.ROLLBACK)
    rig.pass_time(200)
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) == 1
    assert rig.offsets.committed(DECIDED_GROUP, OP_TOPIC, 0) == 1
    assert "not noted" not in caplog.text
    with pytest.raises(QuotaExceededError, match="max_group_offsets"):
        rig.offsets.commit("G1", "T", 1, 0)
    rig.close()


def test_one_with_a_far_time_of_its_own_does_not_hold_the_others(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decided behind it is remembered, and read again by a start: it is appended anew long before its time."""
    monkeypatch.setattr("headrace.broker.withheld.transactions.MAX_BEHIND", 10)
    stuck = prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="86400")
    for _ in range(20):
        end(rig, prepare(rig), Decision.ROLLBACK)
    rig.pass_time(200)
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) == 21
    assert rig.checks == []
    rig.pass_time(86_400_000, step=10_000)
    assert len(rig.checks) == 1
    assert end(rig, stuck)


def test_many_open_ones_are_not_appended_anew_again_and_again(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a copy only when as much that is decided can be forgotten for it."""
    monkeypatch.setattr("headrace.broker.withheld.transactions.MAX_BEHIND", 10)
    rig.has_producer = lambda group: False
    for _ in range(50):
        prepare(rig)
    rig.pass_time(600_000, step=1_000)
    assert rig.store.queue(HALF_TOPIC, 0).next_offset == 50


def test_no_message_is_out_of_reach_longer_than_it_is_kept(rig: MessagingRig) -> None:
    """An absurd CHECK_IMMUNITY_TIME_IN_SECONDS would hold its message, and memory, for good."""
    prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 15)
    rig.has_producer = lambda group: False
    rig.pass_time(72 * 3_600_000 + 60_000, step=10_000)
    assert rig.transactions.open_count == 0
    assert rig.bodies(CHECK_MAX_TOPIC) == [b"body"]


def test_decided_transactions_leave_nothing_in_memory(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far away the time was at which their producers were to be asked."""
    monkeypatch.setattr("headrace.broker.withheld.open_halves.MAX_STALE", 10)
    for _ in range(100):
        end(rig, prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="86400"), Decision.ROLLBACK)
    assert len(rig.transactions._open._heap) <= 11


# -- the clock --------------------------------------------------------------------------------------------------------

HOUR_MS = 3_600_000


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_is_set_back_delays_no_question(rig: MessagingRig, restart: bool) -> None:
    """An hour of daylight saving or of a bad battery is not waited for again."""
    prepare(rig, b"new")
    rig.pass_time(1_000)
    rig.clock.step_ms(-HOUR_MS)
    if restart:
        rig.restart()
    prepare(rig, b"newer")
    rig.pass_time(30_050)
    assert len(rig.checks) == 2
    rig.clock.step_ms(-HOUR_MS)
    if restart:
        rig.restart()
    rig.pass_time(30_050)
    assert len(rig.checks) == 4


def test_a_clock_that_is_set_back_keeps_a_time_out_that_a_message_names(rig: MessagingRig) -> None:
    prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="7200")
    rig.pass_time(HOUR_MS, step=1_000)
    rig.clock.step_ms(-2 * HOUR_MS)
    rig.pass_time(HOUR_MS - 60_000, step=1_000)
    assert rig.checks == []
    rig.pass_time(80_000, step=1_000)
    assert len(rig.checks) == 1


def test_a_clock_that_is_set_back_does_not_hold_what_nobody_hears(rig: MessagingRig) -> None:
    prepare(rig)
    rig.has_producer = lambda group: False
    rig.pass_time(10_000)
    rig.has_producer = lambda group: True
    rig.clock.step_ms(-HOUR_MS)
    rig.pass_time(30_050)
    assert len(rig.checks) == 1


# -- size --------------------------------------------------------------------------------------------------------------


def largest(is_accepted: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest size that is accepted."""
    assert is_accepted(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_accepted(middle) else (low, middle)
    return low


@pytest.mark.parametrize("topic", ["T", "T" * 127])
@pytest.mark.parametrize("what", ["properties", "body"])
@pytest.mark.parametrize("decided", ["asked", "given up"])
def test_what_is_accepted_has_room_for_all_of_its_copies(
    hasty: MessagingRig, topic: str, what: str, decided: str
) -> None:
    """The properties of a newer copy, and the name of the topic that it goes to, may be more than the original had."""
    halves: dict[int, Half] = {}

    def is_accepted(size: int) -> bool:
        big: dict[str, Any] = {"big": "p" * size} if what == "properties" else {}
        body = b"b" * size if what == "body" else b"x"
        message = hasty.message(topic, body, PGROUP="P", TRAN_MSG="true", UNIQ_KEY="u1", **big)
        try:
            placed, _ = hasty.transactions.prepare(message, hasty.clock.now_ms())
        except MessageTooLargeError:
            return False
        halves[size] = placed.queue_offset, placed.physical_offset
        return True

    most = 1 << 15 if what == "properties" else 1 << 20
    with pytest.raises(MessageTooLargeError, match=r"half message's properties.* the limit of \d+ bytes"):
        prepare(hasty, big="p" * 32_700)
    size = largest(is_accepted, 30_000, most)
    half = halves.pop(size)
    for other in halves.values():
        end(hasty, other, Decision.ROLLBACK)
    hasty.pass_time(7_000 if decided == "asked" else 6_000 + 4 * 30_000, step=1_000)
    assert len(hasty.checks) == (1 if decided == "asked" else 3)
    assert hasty.transactions.counters.dropped == 0
    assert end(hasty, half)
    hasty.store.flush()
    assert len(hasty.read(topic)) == 1


# -- given up -------------------------------------------------------------------------------------------------------


def give_up(rig: MessagingRig, body: bytes = b"body") -> list[Half]:
    """Have a transaction given up; return all copies of its half message."""
    first = prepare(rig, body)
    asked = len(rig.checks)
    rig.pass_time(6_000 + 4 * 30_000, step=1_000)
    assert rig.transactions.open_count == 0
    return [first, *((check.half_offset, check.physical_offset) for check in rig.checks[asked:])]


@pytest.mark.parametrize("which", [0, 1, 3])
@pytest.mark.parametrize("way", ["", "restart", "crash"])
def test_a_late_commit_delivers_what_was_given_up_once(hasty: MessagingRig, which: int, way: str) -> None:
    """Issue 4: no acknowledged message is lost; RocketMQ delivers it, too."""
    copies = give_up(hasty)
    assert len(copies) == 4
    if way:
        getattr(hasty, way)()
    assert hasty.transactions.open_count == 0
    assert hasty.bodies(CHECK_MAX_TOPIC) == [b"body"]
    assert end(hasty, copies[which])
    hasty.store.flush()
    (message,) = hasty.read("T", 2)
    assert (message.body, message.sys_flag, message.prepared_offset) == (b"body", 1 | 8, copies[which][1])
    assert "__BATCH#" not in message.properties
    for again in ("", "restart", "crash"):
        if again:
            getattr(hasty, again)()
        for copy in copies:
            assert not end(hasty, copy)
            assert not end(hasty, copy, Decision.ROLLBACK)
    assert hasty.bodies("T", 2) == hasty.bodies(CHECK_MAX_TOPIC) == [b"body"]
    assert hasty.transactions.open_count == 0


def test_a_late_rollback_ends_what_was_given_up(hasty: MessagingRig) -> None:
    half = give_up(hasty)[0]
    assert not end(hasty, half, Decision.UNKNOWN)
    assert end(hasty, half, Decision.ROLLBACK)
    hasty.restart()
    assert not end(hasty, half)
    hasty.store.flush()
    assert hasty.bodies("T", 2) == []


def test_a_late_commit_that_finds_the_disk_full_may_come_again(hasty: MessagingRig) -> None:
    half = give_up(hasty)[0]
    hasty.fill_disk()
    with pytest.raises(Exception, match="no room"):
        end(hasty, half)
    hasty.free_disk()
    assert end(hasty, half)
    hasty.store.flush()
    assert hasty.bodies("T", 2) == [b"body"]


def test_a_late_commit_whose_message_a_power_cut_took_may_come_again(
    hasty: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk may keep the page of the decision and what is behind, and lose that of the message between them."""
    half = give_up(hasty)[0]
    assert end(hasty, half)
    hasty.append("T", b"behind")
    (committed,) = [message for message in hasty.read("T", 2) if message.body == b"body"]
    hasty.store.abandon()
    hasty.damage(committed.physical_offset)
    hasty._open()
    assert hasty.transactions.counters.torn == 1
    assert "what followed from a decision is lost" in caplog.text
    assert end(hasty, half)
    caplog.clear()
    hasty.crash()
    assert hasty.transactions.counters.torn == 0, "it was decided again since, and whole"
    assert "what followed from a decision is lost" not in caplog.text
    assert not end(hasty, half)
    assert hasty.bodies("T", 2).count(b"body") == 1


def test_what_was_given_up_and_is_open_again_after_a_power_cut_is_decided_once(hasty: MessagingRig) -> None:
    """The disk lost the copy in TRANS_CHECK_MAX_TIME_TOPIC, and kept that the transaction was given up."""
    half = prepare(hasty)
    hasty.pass_time(6_000 + 3 * 30_000 - 500, step=1_000)
    hasty.clock.advance_ms(1_000)
    hasty.broker.tick()  # gives up; how far all is decided would be noted by the next
    hasty.append("T", b"behind")
    (copy,) = hasty.read(CHECK_MAX_TOPIC)
    hasty.store.abandon()
    hasty.damage(copy.physical_offset)
    hasty._open()
    assert hasty.transactions.open_count == 1
    assert half[0] in hasty.transactions.given_up
    assert end(hasty, half)
    for _ in range(2):
        assert not end(hasty, half)
        hasty.crash()
    assert hasty.bodies("T", 2).count(b"body") == 1


def test_only_so_much_is_remembered_of_what_was_given_up(hasty: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a running broker forgot, a start does not find again."""
    monkeypatch.setattr("headrace.broker.withheld.given_up.MAX_RECORDS", 3)
    halves = [give_up(hasty)[0] for _ in range(5)]
    assert not end(hasty, halves[1])
    hasty.restart()
    assert not end(hasty, halves[1])
    assert end(hasty, halves[3])
    assert end(hasty, halves[4])
    assert not end(hasty, halves[2])


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_open_transactions_survive_and_decided_ones_stay_decided(rig: MessagingRig, way: str) -> None:
    """Issue 4: kill -9 under transactions: 0 acknowledged lost."""
    halves = [prepare(rig, b"%d" % number) for number in range(30)]
    for number in range(0, 30, 3):
        end(rig, halves[number])
        end(rig, halves[number + 1], Decision.ROLLBACK)
    rig.store.flush()
    getattr(rig, way)()
    assert rig.transactions.open_count == 10
    for number in range(30):
        assert end(rig, halves[number]) == (number % 3 == 2)
    rig.store.flush()
    assert sorted(int(body) for body in rig.bodies("T", 2)) == [n for n in range(30) if n % 3 != 1]


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_crash_leaves_a_commit_whole_or_not_at_all(rig: MessagingRig, is_durable: bool) -> None:
    """Op record without its message: what was durable and is damaged now, or cut off; the transaction is open again."""
    half = prepare(rig)
    rig.store.flush()
    before = rig.store.log.end_offset
    end(rig, half)
    if is_durable:
        rig.store.flush()
    op_record = rig.store.log.read(before)
    assert op_record is not None
    rig.store.abandon()
    rig.is_damaged = is_durable  # the durable mark knows of more
    segment = rig.config.parent / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(before + len(op_record))
        file.write(bytes(4096))
    rig._open()
    assert rig.bodies(OP_TOPIC) == ([b"0"] if is_durable else [])
    assert (rig.bodies("T", 2), rig.transactions.counters.torn) == ([], is_durable)
    assert rig.transactions.open_count == 1
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"body"]


def test_a_power_cut_takes_a_decision_that_was_not_durable_and_it_is_asked_again(rig: MessagingRig) -> None:
    """The noted offsets never pass what is not durable."""
    half = prepare(rig)
    rig.pass_time(100)
    end(rig, half)
    rig.pass_time(5_000, flush=False)
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) in (None, 0)
    rig.cut_power()
    assert rig.transactions.open_count == 1
    rig.pass_time(6_100)
    assert len(rig.checks) == 1
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"body"]


@pytest.mark.parametrize("what", ["half", "op"])
def test_what_a_power_cut_took_that_nobody_was_answered_is_no_loss(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """The queue's entry reached the disk and the record did not: a filler stands for its offset from then on."""
    half = prepare(rig)
    rig.store.flush()
    if what == "half":
        prepare(rig, b"not answered")
    else:
        end(rig, half)
    rig.store.checkpoints.write_queue(rig.store.queue({"half": HALF_TOPIC, "op": OP_TOPIC}[what], 0))
    rig.cut_power()
    assert rig.transactions.open_count == 1
    assert rig.transactions.counters.dropped == 0
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR] == []
    assert end(rig, half)


def test_an_answered_half_message_that_is_lost_at_the_end_of_the_log_is_named(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is cut off there as behind a power cut, but what was durable went with it."""
    prepare(rig)
    lost = prepare(rig, b"answered" * 20)
    rig.close()
    rig.damage(lost[1])
    rig._open()
    assert rig.transactions.counters.dropped == 1
    assert f"record of a transaction lost topic={HALF_TOPIC} queue_offset={lost[0]}" in caplog.text


def test_a_start_reads_from_the_noted_offsets(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing decided long ago is read again."""
    for _ in range(50):
        end(rig, prepare(rig))
    rig.pass_time(200)
    open_half = prepare(rig)
    rig.restart()
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) == 50
    assert rig.offsets.committed(DECIDED_GROUP, OP_TOPIC, 0) == 50
    seen: list[int] = []
    read = TransactionOpening._read_from

    def spy(self: TransactionOpening, queue: object, offset: int) -> object:
        seen.append(offset)
        return read(self, queue, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(TransactionOpening, "_read_from", spy)
    rig.restart()
    assert seen == [50, 50]
    assert end(rig, open_half)


def test_op_records_of_rocketmq_5_are_read(rig: MessagingRig) -> None:
    """remoting.md 3.9: 5.x batches several offsets in one op record."""
    halves = [prepare(rig) for _ in range(4)]
    put(rig.broker, Message(OP_TOPIC, 0, b"0,2,", {"TAGS": "d"}))
    for _ in range(3):  # the first start notes how far all is decided: the record is needed for what lies above, too
        rig.restart()
        assert rig.transactions.open_count == 2
        rig.pass_time(200)
    for half in (halves[1], halves[3]):
        assert end(rig, half)
    rig.pass_time(200)
    rig.restart()
    assert rig.transactions.open_count == 0
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) == 4
    assert rig.offsets.committed(DECIDED_GROUP, OP_TOPIC, 0) == 3


def test_a_full_disk_keeps_transactions_open(rig: MessagingRig) -> None:
    """Bad input: refused and counted; nothing is half decided."""
    half = prepare(rig)
    rig.store.flush()
    rig.fill_disk()
    with pytest.raises(Exception, match="no room"):
        end(rig, half)
    rig.pass_time(8_000)
    assert rig.transactions.counters.errors > 0
    assert rig.checks == []
    rig.free_disk()
    rig.pass_time(1_100)
    assert len(rig.checks) == 1
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"body"]


def test_questions_that_a_full_disk_kept_back_do_not_count(rig: MessagingRig) -> None:
    """Issue 4; broker.transaction_check_max: nothing is given up that was never asked about."""
    half = prepare(rig)
    rig.store.flush()
    rig.fill_disk()
    rig.pass_time(60_000)
    rig.free_disk()
    rig.pass_time(1_100)
    assert [copy.properties.get("TRANSACTION_CHECK_TIMES") for copy in rig.read(HALF_TOPIC)] == [None, "1"]
    assert (len(rig.checks), rig.transactions.counters.checks) == (1, 1)
    assert rig.bodies(CHECK_MAX_TOPIC) == []
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"body"]


def test_what_still_has_room_on_a_full_disk_is_asked_about(rig: MessagingRig) -> None:
    """Small copies fit into the rest of the last segment: each counted as a question, and none was asked."""
    for size in (10, 100_000, 20):
        prepare(rig, bytes(size))
    rig.store.flush()
    append = rig.store.append

    def refuse_large(batch: PublishBatch) -> int:
        if batch.body_bytes > 50_000:
            raise StoreFullError("no room")
        return append(batch)

    rig.store.append = refuse_large  # type: ignore[method-assign]
    rig.pass_time(6_000)
    assert [len(rig.checks), rig.transactions.counters.checks] == [2, 2]
    rig.free_disk()
    rig.pass_time(1_100)
    assert sorted(rig.transactions._open._entries[check.half_offset].checks for check in rig.checks) == [1, 1, 1]


def test_the_producer_is_asked_once_at_least_however_old_the_transaction_is(rig: MessagingRig) -> None:
    """broker.transaction_keep_ms is for producers that are not there: a disk may be full, a broker down, for days."""
    half = prepare(rig)
    rig.store.flush()
    rig.fill_disk()
    rig.pass_time(73 * 3_600_000, step=20_000, flush=False)
    rig.free_disk()
    rig.pass_time(20_000, step=1_000)
    assert len(rig.checks) == 1
    assert end(rig, half)


def test_a_full_disk_is_logged_once(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """An operator needs one line for each time that it is full."""
    prepare(rig)
    with caplog.at_level(logging.ERROR):
        for lines in (1, 2):
            rig.fill_disk()
            rig.pass_time(40_000)
            assert caplog.text.count("transactions not asked about") == lines
            rig.free_disk()
            rig.pass_time(40_000)


def fill_segments(rig: MessagingRig, count: int) -> None:
    """Append messages until the log has so many whole segments."""
    while rig.store.log.end_offset < count * rig.store.log.segment_bytes:
        put(rig.broker, rig.message("filling", bytes(60_000)))
    rig.store.flush()


@contextmanager
def refused_segment(monkeypatch: pytest.MonkeyPatch, rig: MessagingRig, number: int) -> Iterator[None]:
    """Have the disk refuse to open a segment of the log."""
    open_file = os.open
    name = f"commitlog/{number * rig.store.log.segment_bytes:020d}"

    def refuse(path: str, *args: int) -> int:
        if str(path).endswith(name):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return open_file(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


def test_a_half_message_that_cannot_be_read_now_holds_up_no_other(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment is not mapped, and the disk refuses the file: those before it were never asked about."""
    rig.store_settings = replace(rig.store_settings, open_segments=2)
    rig.restart()
    for number in range(3):
        fill_segments(rig, number)
        prepare(rig, b"%d" % number)
    fill_segments(rig, 5)
    with refused_segment(monkeypatch, rig, 1):
        rig.pass_time(20_000)
        assert [StoredMessage.from_record(check.record).body for check in rig.checks] == [b"0", b"2"]
    rig.pass_time(1_100)
    assert StoredMessage.from_record(rig.checks[-1].record).body == b"1"
    assert rig.transactions.counters.dropped == 0


def test_the_oldest_half_message_that_cannot_be_read_now_is_no_refused_write(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is to be appended anew: each tick said that the store refuses, and counted it."""
    monkeypatch.setattr("headrace.broker.withheld.transactions.MAX_BEHIND", 10)
    rig.store_settings = replace(rig.store_settings, open_segments=2)
    rig.restart()
    fill_segments(rig, 1)
    stuck = prepare(rig, CHECK_IMMUNITY_TIME_IN_SECONDS="86400")
    fill_segments(rig, 4)
    with refused_segment(monkeypatch, rig, 1):
        for _ in range(20):
            end(rig, prepare(rig), Decision.ROLLBACK)
        rig.pass_time(500)
        assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) in (None, 0)
    assert rig.transactions.counters.errors == 0
    assert "the store refuses" not in caplog.text
    rig.pass_time(1_100)
    assert rig.offsets.committed(DECIDED_GROUP, HALF_TOPIC, 0) == 21
    assert end(rig, stuck)


def test_a_commit_to_a_deleted_topic_is_dropped_and_counted(rig: MessagingRig) -> None:
    """The topic does not come back by it."""
    half = prepare(rig)
    rig.broker.delete_topic("T")
    assert end(rig, half)
    assert "T" not in rig.broker.topics
    assert rig.transactions.counters.dropped == 1
    assert rig.transactions.open_count == 0


def test_a_damaged_half_message_is_dropped_and_counted(rig: MessagingRig) -> None:
    """Store rules: damage is named and holds up nothing."""
    half = prepare(rig, b"damaged" * 20)
    other = prepare(rig)
    rig.store.flush()
    rig.damage(half[1])
    rig.crash()
    assert rig.transactions.open_count == 1
    assert rig.transactions.counters.dropped == 1
    assert end(rig, other)


def test_a_decision_whose_message_a_power_cut_took_is_asked_for_again(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk may keep the page of the decision and what is behind, and lose that of the message between them."""
    half = prepare(rig)
    rig.store.flush()
    assert end(rig, half)
    rig.append("T", b"behind")
    (committed,) = [message for message in rig.read("T", 2) if message.body == b"body"]
    rig.store.abandon()
    rig.damage(committed.physical_offset)
    rig._open()
    assert rig.transactions.open_count == 1
    assert rig.transactions.counters.torn == 1
    assert "what followed from a decision is lost" in caplog.text
    assert end(rig, half)
    rig.store.flush()
    assert rig.bodies("T", 2).count(b"body") == 1
    rig.crash()
    assert rig.transactions.open_count == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("DELAY", "3"), ("TIMER_DELAY_SEC", "1"), ("TIMER_DELAY_MS", "1"), ("TIMER_DELIVER_MS", "1700000000500")],
)
def test_a_delayed_transaction_is_refused(rig: MessagingRig, name: str, value: str) -> None:
    """It would be delivered with its commit, too early; RocketMQ loses it (remoting.md 3.11)."""
    with pytest.raises(InvalidDelayError, match=f"transactional message cannot be delayed .property {name}."):
        prepare(rig, b"body", **{name: value})
    assert rig.transactions.open_count == 0
    assert rig.transactions.counters.refused == 1


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("value", ["soon", "3.5", "9" * 20, "\u0663"])
def test_a_transaction_whose_delay_is_no_number_is_refused(rig: MessagingRig, name: str, value: str) -> None:
    """As any other message with one (remoting.md 3.11); delivered with its commit it would be too early."""
    with pytest.raises(InvalidDelayError, match=f"property {name}"):
        prepare(rig, b"body", **{name: value})
    assert rig.transactions.open_count == 0
    assert rig.transactions.counters.refused == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DELAY", "0"),
        ("DELAY", "-1"),
        ("DELAY", ""),
        ("TIMER_DELAY_MS", ""),
        ("TIMER_DELIVER_MS", "1700000000000"),
        ("TIMER_DELAY_SEC", "-5"),
        ("TIMER_DELAY_MS", "-5"),
        ("TIMER_DELIVER_MS", "-5"),
    ],
)
def test_a_delay_that_is_none_or_over_does_not_refuse_a_transaction(rig: MessagingRig, name: str, value: str) -> None:
    prepare(rig, b"body", **{name: value})
    assert rig.transactions.open_count == 1


def commit_what_is_asked(rig: MessagingRig, milliseconds: int) -> None:
    rig.pass_time(milliseconds)
    asked, rig.checks[:] = list(rig.checks), []
    for check in asked:
        rig.end("P", check.half_offset, check.physical_offset, Decision.COMMIT)
        rig.store.flush()


@pytest.mark.parametrize("what", ["note of a check", "decision"])
def test_a_note_that_a_power_cut_took_delivers_nothing_twice(tmp_path: Path, what: str) -> None:
    """docs/formats/transactions.md: the record behind it may have been kept: a newer copy, or the message itself."""
    rig = MessagingRig(tmp_path / "store", transaction_timeout_ms=100, transaction_check_interval_ms=1_000)
    half = rig.message("T", b"once", PGROUP="P", TRAN_MSG="true")
    placed, _ = rig.transactions.prepare(half, rig.clock.now_ms())
    rig.store.flush()
    if what == "decision":
        rig.end("P", 0, placed.physical_offset, Decision.COMMIT)
        behind = rig.store.queue("T", 0).position_of(0)
    else:
        rig.pass_time(150, flush=False)
        rig.checks.clear()
        behind = rig.store.queue(HALF_TOPIC, 0).position_of(1)
    rig.is_damaged = True
    rig.lose(rig.store.queue(OP_TOPIC, 0).position_of(0), behind)
    for _ in range(4):
        commit_what_is_asked(rig, 1_200)
    assert rig.bodies("T") == [b"once"]
    assert rig.transactions.open_count == 0
    rig.close()


@pytest.mark.parametrize("named", ["first copy", "newest copy"])
@pytest.mark.parametrize("op_is_lost", [False, True])
def test_a_newest_copy_that_a_power_cut_took_is_decided_where_its_message_was_kept(
    tmp_path: Path, named: str, op_is_lost: bool
) -> None:
    """docs/formats/transactions.md: the copy before it is open no more, though its own op record is lost."""
    rig = MessagingRig(tmp_path / "store", transaction_timeout_ms=100, transaction_check_interval_ms=1_000)
    half = rig.message("T", b"once", PGROUP="P", TRAN_MSG="true")
    placed, _ = rig.transactions.prepare(half, rig.clock.now_ms())
    rig.pass_time(150)
    rig.checks.clear()
    rig.pass_time(1_050, flush=False)
    (check,) = rig.checks
    put(rig.broker, rig.message("T", b"other", queue_id=1))
    place = placed if named == "first copy" else check
    half_offset = placed.queue_offset if named == "first copy" else check.half_offset
    rig.end("P", half_offset, place.physical_offset, Decision.COMMIT)
    rig.checks.clear()
    behind = rig.store.queue("T", 0).position_of(0) if op_is_lost else rig.store.queue(OP_TOPIC, 0).position_of(2)
    rig.is_damaged = True
    rig.lose(rig.store.queue(OP_TOPIC, 0).position_of(1), behind)
    for _ in range(4):
        commit_what_is_asked(rig, 1_200)
        assert rig.bodies("T") == [b"once"]
        rig.crash()
    assert rig.transactions.open_count == 0
    rig.close()


@pytest.mark.parametrize("lost_is_asked", [False, True])
@pytest.mark.parametrize("is_asked", [False, True])
def test_an_op_record_does_not_speak_of_a_later_half_message(
    tmp_path: Path, lost_is_asked: bool, is_asked: bool
) -> None:
    """A power cut took a half message and not its op record: the next one has its queue offset, and is not decided."""
    rig = MessagingRig(tmp_path / "store", transaction_timeout_ms=100, transaction_check_interval_ms=60_000)
    lost = newest = prepare(rig, b"lost")
    if lost_is_asked:
        rig.pass_time(150, flush=False)
        newest = rig.checks[0].half_offset, rig.checks[0].physical_offset
    end(rig, newest)
    rig.is_damaged = True
    rig.lose(lost[1], rig.store.queue(OP_TOPIC, 0).position_of(int(lost_is_asked)))
    half = prepare(rig, b"kept")
    assert half[0] == lost[0]
    if is_asked:
        rig.pass_time(150)
    rig.crash()
    assert rig.transactions.open_count == 1
    assert end(rig, half)
    rig.crash()
    assert rig.bodies("T", 2) == [b"lost", b"kept"]
    assert rig.transactions.open_count == 0
    rig.close()
