"""Delivery at any time: properties, precision, what crashes leave. remoting.md 2.6."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.message import Message, Placed, put
from headrace.broker.withheld import timed
from headrace.errors import InvalidDelayError
from headrace.format.names import TIMER_TOPIC
from tests.support.messaging import SENDER, MessagingRig

DAY_MS = 86_400_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MessagingRig]:
    made = MessagingRig(tmp_path / "store")
    yield made
    made.close()


def hold(rig: MessagingRig, body: bytes, delay_ms: int, topic: str = "T") -> Placed:
    message = rig.message(topic, body, queue_id=1, TAGS="a", TIMER_DELAY_MS=str(delay_ms))
    placed, _ = rig.timed.put(message, rig.timed.due_ms(message.properties, rig.clock.now_ms()))
    return placed


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({}, 0),
        ({"TIMER_DELAY_SEC": "90"}, 90_000),
        ({"TIMER_DELAY_SEC": str(30 * 86400)}, 30 * DAY_MS),
        ({"TIMER_DELAY_MS": "250"}, 250),
        ({"TIMER_DELIVER_MS": "1700000005000"}, 5_000),
        ({"TIMER_DELIVER_MS": "1699999999999"}, 0),
        ({"TIMER_DELAY_SEC": "0"}, 0),
        ({"TIMER_DELAY_SEC": "-5"}, 0),
        ({"TIMER_DELAY_MS": "-5"}, 0),
        ({"TIMER_DELIVER_MS": "-5", "TIMER_DELAY_SEC": "1"}, 0),
        ({"TIMER_DELIVER_MS": "1700000005000", "TIMER_DELAY_SEC": "1"}, 5_000),
    ],
)
def test_the_time_is_read_from_the_properties(rig: MessagingRig, properties: dict[str, str], delay_ms: int) -> None:
    """remoting.md 2.6; a time that is over is at once."""
    now_ms = 1_700_000_000_000
    assert rig.timed.due_ms(properties, now_ms) == (now_ms + delay_ms if delay_ms else 0)


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "-"},
        {"TIMER_DELAY_SEC": "--1"},
        {"TIMER_DELAY_SEC": "-" + "9" * 30},
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_MS": "1.5"},
        {"TIMER_DELIVER_MS": "9" * 30},
        {"TIMER_DELAY_SEC": "٣"},
        {"TIMER_DELAY_SEC": str(30 * 86400 + 1)},
    ],
)
def test_a_time_that_is_none_or_too_far_is_refused(rig: MessagingRig, properties: dict[str, str]) -> None:
    """Issue 4, flow control: the refusal names the property, and the setting where there is one."""
    with pytest.raises(InvalidDelayError, match="property TIMER_"):
        rig.timed.due_ms(properties, rig.clock.now_ms())


def test_messages_come_at_their_time_in_its_order(rig: MessagingRig) -> None:
    """Issue 4: exact to 100 ms."""
    for delay_ms in (3_000, 1_000, 2_000, 29 * DAY_MS):
        hold(rig, b"%d" % delay_ms, delay_ms)
    rig.pass_time(950)
    assert rig.bodies("T", 1) == []
    rig.pass_time(150)
    assert rig.bodies("T", 1) == [b"1000"]
    rig.pass_time(2_000)
    assert rig.bodies("T", 1) == [b"1000", b"2000", b"3000"]
    assert rig.timed.waiting == 1
    rig.pass_time(29 * DAY_MS, step=DAY_MS // 4)
    assert rig.bodies("T", 1) == [b"1000", b"2000", b"3000", b"%d" % (29 * DAY_MS)]
    assert rig.timed.waiting == 0


def test_copies_that_are_durable_make_room_for_others(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many may wait for the disk at a time, and any number come one after the other."""
    monkeypatch.setattr(timed, "MAX_UNFINISHED", 20)
    for number in range(100):
        hold(rig, b"%d" % number, 1_000 + 100 * (number // 10))
    rig.pass_time(2_500)
    assert sorted(map(int, rig.bodies("T", 1))) == list(range(100))
    assert rig.timed.waiting == 0


def test_what_waits_is_an_ordinary_message_with_a_time(rig: MessagingRig) -> None:
    """docs/formats/delayed-messages.md."""
    hold(rig, b"x", 1_000)
    rig.store.flush()
    (waiting,) = rig.read(TIMER_TOPIC)
    due = str(rig.clock.now_ms() + 1000)
    assert waiting.properties == {
        "TAGS": "a", "TIMER_DELAY_MS": "1000", "REAL_TOPIC": "T", "REAL_QID": "1", "TIMER_DELIVER_MS": due,
    }  # fmt: skip


def test_the_copy_keeps_everything_but_its_place(rig: MessagingRig) -> None:
    """Issue 4: body, flag, sysFlag, born data, reconsumeTimes, properties."""
    message = rig.message("T", b"x", queue_id=1, TAGS="a", TIMER_DELIVER_MS="1")
    message.reconsume_times = 2
    rig.timed.put(message, rig.clock.now_ms() + 500)
    rig.pass_time(600)
    (copy,) = rig.read("T", 1)
    assert (copy.flag, copy.sys_flag, copy.born_ms, copy.born_host) == (7, 1, 1_600_000_000_000, SENDER)
    assert copy.reconsume_times == 2
    raw = rig.store.log.read(copy.physical_offset)
    assert raw is not None
    assert raw.count(b"TIMER_DELIVER_MS") == raw.count(b"__CRC32#") == 1


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_waiting_messages_survive(rig: MessagingRig, way: str) -> None:
    """Issue 4: surviving restart."""
    for number in range(300):
        hold(rig, b"%d" % number, 5_000 + number)
    rig.store.flush()
    rig.pass_time(2_000)
    getattr(rig, way)()
    rig.pass_time(2_900)
    assert rig.bodies("T", 1) == []
    rig.pass_time(500)
    assert rig.bodies("T", 1) == [b"%d" % number for number in range(300)]


def test_messages_that_became_due_while_down_come_at_once(rig: MessagingRig) -> None:
    """Issue 4: surviving restart."""
    hold(rig, b"x", 5_000)
    rig.restart()
    rig.clock.advance_ms(DAY_MS)
    rig.pass_time(100)
    assert rig.bodies("T", 1) == [b"x"]


def test_a_restart_delivers_nothing_twice(rig: MessagingRig) -> None:
    """What was delivered is finished before the journal is closed."""
    hold(rig, b"x", 500)
    rig.pass_time(500)
    rig.restart()
    rig.pass_time(20_000)
    assert rig.bodies("T", 1) == [b"x"]


def test_a_kill_between_copy_and_finish_delivers_again_and_loses_nothing(rig: MessagingRig) -> None:
    """Issue 4: kill -9 under delay: 0 acknowledged lost."""
    hold(rig, b"due", 500)
    hold(rig, b"later", 5_000)
    rig.store.flush()
    rig.clock.advance_ms(600)
    rig.broker.tick()
    assert rig.store.queue("T", 1).next_offset == 1
    rig.crash()
    rig.pass_time(5_000)
    assert set(rig.bodies("T", 1)) == {b"due", b"later"}


def test_a_message_is_not_finished_before_its_copy_is_durable(rig: MessagingRig) -> None:
    """A power cut may take the copy; the channel must then still hold the message."""
    hold(rig, b"x", 500)
    rig.store.flush()
    rig.pass_time(10_000, flush=False)
    rig.broker.wait_for_journal()
    assert rig.store.queue("T", 1).next_offset == 1
    rig.cut_power()
    rig.pass_time(20_000)
    assert rig.bodies("T", 1) == [b"x"]


def test_a_full_disk_delays_and_loses_nothing(rig: MessagingRig) -> None:
    """Bad input: refused and counted; the channel keeps the message, which is tried again each second."""
    hold(rig, b"x", 500)
    rig.store.flush()
    rig.fill_disk()
    rig.pass_time(3_000)
    assert rig.timed.counters.errors == 3
    assert rig.timed.waiting == 1
    rig.free_disk()
    rig.pass_time(1_100)
    assert rig.bodies("T", 1) == [b"x"]


def test_messages_that_belong_nowhere_are_dropped_and_counted(rig: MessagingRig) -> None:
    """A deleted topic takes what waits for it along; what others write into our topic goes nowhere."""
    hold(rig, b"x", 500, topic="gone")
    hold(rig, b"y", 500)
    put(rig.broker, Message(TIMER_TOPIC, 0, b"z", {}))
    rig.broker.delete_topic("gone")
    rig.pass_time(700)
    assert rig.bodies("T", 1) == [b"y"]
    assert (rig.timed.counters.dropped, rig.timed.counters.delivered, rig.timed.waiting) == (2, 1, 0)


def test_the_log_has_a_line_a_minute_of_what_is_dropped(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """A tick drops what is due in it: a producer that goes on had a line written 20 times a second."""
    for _ in range(20):
        hold(rig, b"x", 500, topic="gone")
        rig.broker.delete_topic("gone")
        rig.pass_time(100)
    rig.pass_time(700)
    assert rig.timed.counters.dropped == 20
    told = [line for line in caplog.messages if line.startswith("messages with a delivery time dropped")]
    assert len(told) == 1


def test_a_message_damaged_while_it_waits_is_left_out_and_named(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Store rules: nothing is left out silently, nor given a new checksum by its copy."""
    placed = hold(rig, b"damaged" * 20, 1_000)
    hold(rig, b"whole", 1_000)
    rig.store.flush()
    rig.damage(placed.physical_offset)
    rig.pass_time(1_100)
    assert rig.bodies("T", 1) == [b"whole"]
    assert f"damaged record skipped physical_offset={placed.physical_offset} " in caplog.text
    assert rig.timed.waiting == 0


def test_what_is_due_waits_too(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While publishers have to wait nothing is delivered, and all of it counts."""
    for due_ms in (500, 600, 90_000):
        hold(rig, b"x", due_ms)
    rig.store.flush()
    monkeypatch.setattr(type(rig.broker), "overloaded", True)
    rig.pass_time(1_000)
    assert (rig.timed.waiting, rig.bodies("T", 1)) == (3, [])
    monkeypatch.undo()
    rig.pass_time(100)
    assert (rig.timed.waiting, rig.bodies("T", 1)) == (1, [b"x"] * 2)


def test_a_deleted_channel_is_made_again_by_the_next_message(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """An administrator may delete it, and with it what waits, which is named; the broker goes on."""
    hold(rig, b"dropped", 500)
    rig.broker.delete_channel(TIMER_TOPIC, "headrace")
    assert "messages with a delivery time were dropped reason=channel deleted" in caplog.text
    rig.pass_time(600)
    assert rig.timed.waiting == 0
    hold(rig, b"x", 500)
    rig.pass_time(600)
    assert rig.bodies("T", 1) == [b"x"]


def test_nothing_is_made_for_a_broker_that_holds_nothing_back(rig: MessagingRig) -> None:
    """No control record, no channel."""
    rig.pass_time(1_000)
    assert rig.control_records() == []


@pytest.mark.parametrize("step_ms", [3_600_000, 30_000])
def test_a_clock_that_is_set_forward_brings_what_is_due(rig: MessagingRig, step_ms: int) -> None:
    """Issue 4, exact to 100 ms: a machine that slept, or that NTP sets right, has a wall clock ahead of the other."""
    hold(rig, b"x", 30_000)
    hold(rig, b"y", 3_600_000)
    rig.pass_time(100)
    rig.clock.step_ms(step_ms - 100)
    rig.pass_time(100)
    assert rig.bodies("T", 1) == ([b"x", b"y"] if step_ms > 30_000 else [b"x"])


def test_a_clock_that_is_set_back_delivers_nothing_early(rig: MessagingRig) -> None:
    """The time is one of the wall clock, whatever happens to it."""
    hold(rig, b"x", 5_000)
    rig.pass_time(1_000)
    rig.clock.step_ms(-10_000)
    rig.pass_time(13_900)
    assert rig.bodies("T", 1) == []
    rig.pass_time(200)
    assert rig.bodies("T", 1) == [b"x"]
