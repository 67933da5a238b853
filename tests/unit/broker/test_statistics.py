"""Counters in windows of a minute, an hour and a day; rates and totals of the broker."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from headrace.broker import statistics as names
from headrace.broker.statistics import Statistics, StatsItem
from headrace.broker.throughput import DayTotals, Throughput
from headrace.settings import BrokerSettings

SETTINGS = BrokerSettings()
START = 1_699_999_200_000  # the beginning of an hour
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
OF_NOBODY = {
    names.BROKER_PUT_NUMS, names.BROKER_GET_NUMS, names.SOURCE_PUT_NUMS, names.SOURCE_GET_NUMS, names.HOST_PUT_NUMS,
    names.HOST_GET_NUMS,
}  # fmt: skip


class Rig:
    def __init__(self, settings: BrokerSettings = SETTINGS) -> None:
        self.now = START
        self.statistics = Statistics(settings, START, "C1")

    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.statistics.tick(self.now)

    def sums(self, name: str, key: str) -> tuple[int, int, int]:
        found = self.statistics.snapshot(name, key)
        if found is None:
            return 0, 0, 0  # idle for a day, and forgotten
        return found.minute.sum, found.hour.sum, found.day.sum


def test_what_is_put_and_got_is_counted_by_topic_group_source_and_host() -> None:
    """A-BROKER-49, A-BROKER-50, X-BROKER-17; remoting.md 4.7.3."""
    rig = Rig()
    rig.statistics.note_put("T", 10, 2000, source="remoting", host="10.0.0.5")
    rig.statistics.note_put("T", 1, 100, source="nsq")
    rig.statistics.note_get("G", "T", 5, 700, source="remoting", host="10.0.0.6")
    rig.statistics.note_send_back("G", "T")
    for name, key, total in [
        (names.TOPIC_PUT_NUMS, "T", 11),
        (names.TOPIC_PUT_SIZE, "T", 2100),
        (names.BROKER_PUT_NUMS, "C1", 11),
        (names.SOURCE_PUT_NUMS, "remoting", 10),
        (names.SOURCE_PUT_NUMS, "nsq", 1),
        (names.HOST_PUT_NUMS, "10.0.0.5", 10),
        (names.GROUP_GET_NUMS, "T@G", 5),
        (names.GROUP_GET_SIZE, "T@G", 700),
        (names.BROKER_GET_NUMS, "C1", 5),
        (names.SOURCE_GET_NUMS, "remoting", 5),
        (names.HOST_GET_NUMS, "10.0.0.6", 5),
        (names.SNDBCK_PUT_NUMS, "T@G", 1),
    ]:
        assert rig.sums(name, key) == (total, total, total), name
    assert rig.statistics.snapshot(names.TOPIC_PUT_NUMS, "U") is None
    assert rig.statistics.keys(names.SOURCE_PUT_NUMS) == ["remoting", "nsq"]
    assert not rig.statistics.keys(names.QUEUE_PUT_NUMS)


def test_queues_are_counted_apart_if_asked_for() -> None:
    rig = Rig(replace(SETTINGS, queue_statistics=True))
    rig.statistics.note_put("T", 1, 100, source="remoting", queue_id=3)
    rig.statistics.note_get("G", "T", 2, 200, source="remoting", queue_id=3)
    rig.statistics.note_lag("G", "T", 3, 5_000)
    assert rig.sums(names.QUEUE_PUT_NUMS, "T@3")[0] == 1
    assert rig.sums(names.QUEUE_PUT_SIZE, "T@3")[0] == 100
    assert rig.sums(names.QUEUE_GET_NUMS, "T@3@G")[0] == 2
    assert rig.sums(names.QUEUE_GET_SIZE, "T@3@G")[0] == 200
    assert rig.sums(names.GROUP_GET_FALL_SIZE, "3@T@G")[0] == 5_000


def test_windows_forget_what_is_older() -> None:
    """X-BROKER-17: last minute, hour and day."""
    rig = Rig()
    rig.statistics.add("N", "k", 7)
    rig.pass_time(59 * SECOND)
    assert rig.sums("N", "k") == (7, 7, 7)
    rig.pass_time(11 * SECOND)
    assert rig.sums("N", "k") == (0, 7, 7)
    rig.statistics.add("N", "k", 2)
    assert rig.sums("N", "k") == (2, 9, 9)
    rig.pass_time(HOUR + 10 * MINUTE)
    assert rig.sums("N", "k") == (0, 0, 9)
    rig.pass_time(DAY)
    assert rig.sums("N", "k") == (0, 0, 0)


@pytest.mark.parametrize("pause", [1, 10_000, 59_999, 60_000, 70_000, 600_000, 5_000_000, DAY, 3 * DAY])
def test_windows_equal_a_plain_sum_after_any_pause(pause: int) -> None:
    """The rings are brought up to date when a counter is used: whatever time passed in between."""
    rig = Rig()
    counted: list[tuple[int, int]] = []
    for step in range(60):
        count = step * step + 1
        rig.statistics.add("N", "k", count)
        counted.append((rig.now, count))
        rig.pass_time(pause if step % 3 else 7 * SECOND)
        expected = []
        for width, slots in ((10 * SECOND, 6), (10 * MINUTE, 6), (HOUR, 24)):
            begin = (rig.now // width - slots) * width
            expected.append(sum(number for at, number in counted if at >= begin))
        assert list(rig.sums("N", "k")) == expected


def test_rates_are_per_second_of_the_time_that_was_counted_and_means_per_call() -> None:
    rig = Rig()
    rig.statistics.add("N", "k", 100)
    rig.statistics.add("N", "k", 200)
    rig.pass_time(30 * SECOND)
    minute = rig.statistics.snapshot("N", "k").minute
    assert (minute.sum, minute.per_second, minute.per_call) == (300, 10.0, 150.0)
    rig.pass_time(30 * SECOND)
    assert rig.statistics.snapshot("N", "k").hour.per_second == 5.0
    rig.pass_time(24 * HOUR)
    idle = rig.statistics.snapshot("N", "k").day
    assert (idle.sum, idle.per_call) == (300, 150.0)
    none = rig.statistics.snapshot("N", "k").minute
    assert (none.sum, none.per_second, none.per_call) == (0, 0.0, 0.0)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    rig = Rig()
    rig.statistics.add("N", "k", 1)
    rig.pass_time(-HOUR)
    rig.statistics.add("N", "k", 1)
    assert rig.sums("N", "k") == (2, 2, 2)


def test_the_number_of_counters_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Issue, "Bad input": ten thousand topics by one client."""
    rig = Rig(replace(SETTINGS, max_statistics=100))
    for number in range(150):
        rig.statistics.add("N", f"k{number}", 1)
    rig.statistics.add("N", "k0", 1)
    assert len(rig.statistics) == 100
    assert rig.statistics.refused == 50
    assert rig.sums("N", "k0")[0] == 2
    assert caplog.text.count("statistics full") == 1


def test_counters_that_were_idle_for_a_day_are_forgotten() -> None:
    rig = Rig()
    rig.statistics.add("N", "idle", 1)
    rig.statistics.add("N", "used", 1)
    for _ in range(26):
        rig.pass_time(HOUR)
        rig.statistics.add("N", "used", 1)
    assert rig.statistics.keys("N") == ["used"]


def test_many_counters_are_looked_through_a_few_at_a_time() -> None:
    """50,000 of them in one go would hold the loop for 150 ms."""
    rig = Rig()
    for number in range(1_200):
        rig.statistics.add("N", str(number), 1)
    rig.pass_time(25 * HOUR)
    assert len(rig.statistics) >= 700
    for _ in range(3):
        rig.pass_time(SECOND)
    assert len(rig.statistics) == 0


def test_ephemeral_topics_take_no_place_of_others() -> None:
    """limits.md: names that are used once, such as those of replies, use them."""
    rig = Rig(replace(SETTINGS, max_statistics=100, queue_statistics=True))
    for number in range(200):
        rig.statistics.note_put(f"reply-{number}#ephemeral", 2, 20, source="nsq", host="h", queue_id=0)
    rig.statistics.note_put("orders", 1, 10, source="nsq", host="h", queue_id=0)
    assert rig.statistics.refused == 0
    assert rig.statistics.keys(names.TOPIC_PUT_NUMS) == ["orders"]
    assert rig.statistics.keys(names.QUEUE_PUT_SIZE) == ["orders@0"]
    assert rig.sums(names.HOST_PUT_NUMS, "h")[0] == rig.sums(names.BROKER_PUT_NUMS, "C1")[0] == 401
    assert sum(counted.messages for counted in rig.statistics.take_counted()) + rig.statistics.left_out == 401


def test_kinds_of_calls_that_came_once_are_forgotten() -> None:
    """A channel for each session of some program: the minutes after it leave nothing out."""
    rig = Rig(replace(SETTINGS, max_statistics=100))
    for _ in range(4):
        for number in range(90):
            rig.statistics.note_channel_get(f"{rig.now}-{number}#ephemeral", "T", 1, 10, source="nsq", host="h")
        rig.statistics.note_channel_get("c", "T", 1, 10, source="nsq", host="h")
        assert sum(counted.messages for counted in rig.statistics.take_counted()) == 91
        rig.pass_time(MINUTE)
        rig.statistics.note_channel_get("c", "T", 1, 10, source="nsq", host="h")
        rig.pass_time(MINUTE)
        assert [counted.call.group for counted in rig.statistics.take_counted()] == ["c"]
    assert rig.statistics.left_out == 0
    assert rig.sums(names.SOURCE_GET_NUMS, "nsq")[2] == 4 * 92


def test_what_nobody_writes_down_is_not_kept_for_it() -> None:
    """Without records nobody takes what was counted: each kind of call that came again would be one more."""
    rig = Rig(replace(SETTINGS, statistics_records=False))
    for number in range(10):
        rig.statistics.note_channel_get(f"{number}#ephemeral", "T", 1, 10, source="nsq", host="h")
        rig.pass_time(MINUTE)
    assert not rig.statistics.take_counted()
    assert rig.sums(names.SOURCE_GET_NUMS, "nsq")[2] == 10


def test_who_keeps_a_row_is_told_that_it_was_idle_and_forgotten() -> None:
    """One kind of call has one row: what is kept from before would be a second, of the same name."""
    rig = Rig()
    rig.statistics.note_get("G", "T", 1, 10, source="remoting", host="h")
    kept, version = rig.statistics.row_of_get("G", "T", source="remoting", host="h"), rig.statistics.rows_version
    assert kept is not None
    for _ in range(3):
        rig.statistics.take_counted()
        rig.pass_time(MINUTE)
    assert rig.statistics.row_of_get("G", "T", source="remoting", host="h") is None
    assert rig.statistics.rows_version > version
    version = rig.statistics.rows_version
    for _ in range(3):
        rig.pass_time(MINUTE)
    assert rig.statistics.rows_version == version


def test_what_a_slot_counted_is_of_that_slot() -> None:
    """Counters are raised when a slot of ten seconds ends: what came in it is gone from the minute together with it."""
    rig = Rig()
    for _ in range(4):
        rig.pass_time(2_400)
        rig.statistics.note_put("T", 1, 10, source="nsq")
    for _ in range(6):
        rig.pass_time(10 * SECOND)
    assert rig.sums(names.TOPIC_PUT_NUMS, "T") == (4, 4, 4)
    rig.pass_time(10 * SECOND)
    assert rig.sums(names.TOPIC_PUT_NUMS, "T") == (0, 4, 4)


def test_many_kinds_of_calls_do_not_wait_for_the_end_of_their_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them then, at once, would hold the loop; few of them cost nothing until then."""
    monkeypatch.setattr(names, "_SETTLE_ROWS", 10)
    rig = Rig()
    for number in range(9):
        rig.statistics.note_put(f"T{number}", 1, 10, source="nsq")
    rig.pass_time(50)
    assert len(rig.statistics._unsettled) == 9
    rig.statistics.note_put("T9", 1, 10, source="nsq")
    rig.pass_time(50)
    assert not rig.statistics._unsettled


def test_a_row_whose_calls_are_not_settled_yet_is_not_idle() -> None:
    """It came between two sweeps, and nothing has looked at it since."""
    rig = Rig()
    rig.statistics.note_put("T", 1, 10, source="nsq", host="h")
    rig.pass_time(MINUTE)
    row = rig.statistics.row_of_put("T", source="nsq", host="h")
    assert row is not None
    assert row.is_idle
    rig.pass_time(MINUTE - 50)
    rig.statistics.count(row, 1, 10)
    rig.pass_time(49)
    rig.statistics._next_row_sweep_ms = rig.now  # in the middle of a slot
    rig.pass_time(0)
    assert rig.statistics.row_of_put("T", source="nsq", host="h") is row
    assert rig.sums(names.TOPIC_PUT_NUMS, "T") == (1, 2, 2)


def test_counts_of_a_topic_that_comes_again_begin_anew() -> None:
    """What the calls before remembered must not keep the counters that were removed."""
    rig = Rig()
    for _ in range(2):
        rig.statistics.note_put("T", 3, 30, source="S", host="h", queue_id=0)
        rig.statistics.note_get("G", "T", 2, 20, source="S", host="h", queue_id=0)
    assert (rig.sums("TOPIC_PUT_NUMS", "T"), rig.sums("GROUP_GET_SIZE", "T@G")) == ((6, 6, 6), (40, 40, 40))
    rig.statistics.remove_topic("T")
    rig.statistics.note_put("T", 1, 10, source="S", host="h", queue_id=0)
    rig.pass_time(70 * SECOND)
    rig.statistics.note_put("T", 1, 10, source="S", host="h", queue_id=0)
    assert rig.sums("TOPIC_PUT_NUMS", "T") == (1, 2, 2)
    assert rig.sums("HOST_PUT_NUMS", "h") == (1, 8, 8)


def test_what_others_count_stays_together_when_a_topic_or_group_is_deleted() -> None:
    """Else a minute in which many are deleted has as many rows of each kind of call."""
    rig = Rig()
    for _ in range(5):
        for topic, group in (("T", "G"), ("gone", "G"), ("T", "gone")):
            rig.statistics.note_put(topic, 1, 10, source="S", host="h")
            rig.statistics.note_get(group, topic, 1, 10, source="S", host="h")
        rig.statistics.remove_topic("gone")
        rig.statistics.remove_group("gone")
    counted = [(one.call.topic, one.call.group, one.messages) for one in rig.statistics.take_counted()]
    assert [row for row in counted if "gone" not in row] == [("T", "", 10), ("T", "G", 5)]
    assert sum(messages for *_, messages in counted) == 30
    assert (rig.sums(names.TOPIC_PUT_NUMS, "T")[0], rig.sums(names.GROUP_GET_NUMS, "T@G")[0]) == (10, 5)
    assert not rig.sums(names.GROUP_GET_NUMS, "T@gone")[0]


def test_deleted_topics_and_groups_are_forgotten() -> None:
    rig = Rig(replace(SETTINGS, queue_statistics=True))
    for topic in ("T", "U"):
        rig.statistics.note_put(topic, 1, 1, source="T", host="T", queue_id=0)
        for group in ("G", "T"):
            rig.statistics.note_get(group, topic, 1, 1, source="nsq", queue_id=0)
            rig.statistics.note_lag(group, topic, 0, 1)
    rig.statistics.remove_group("G")
    assert rig.statistics.keys(names.GROUP_GET_NUMS) == ["T@T", "U@T"]
    rig.statistics.remove_topic("T")
    assert rig.statistics.keys(names.GROUP_GET_NUMS) == ["U@T"]
    assert rig.statistics.keys(names.TOPIC_PUT_NUMS) == ["U"]
    assert rig.statistics.keys(names.QUEUE_PUT_NUMS) == ["U@0"]
    assert rig.statistics.keys(names.GROUP_GET_FALL_SIZE) == ["0@U@T"]
    assert rig.statistics.keys(names.HOST_PUT_NUMS) == rig.statistics.keys(names.SOURCE_PUT_NUMS) == ["T"]


@pytest.mark.parametrize("seed", range(5))
def test_what_goes_with_a_topic_or_group_is_what_a_look_at_all_finds(seed: int) -> None:
    """Whatever was counted, idle for a day, forgotten and counted again before."""
    rig, choice = Rig(replace(SETTINGS, queue_statistics=bool(seed % 2))), random.Random(seed).choice

    def call() -> tuple[str, str, dict[str, Any]]:
        return choice("ABC"), choice("GHA"), {"source": choice(("nsq", "remoting")), "host": choice(("", "h"))}

    for _ in range(400):
        topic, group, rest = call()
        match choice(("put", "get", "channel", "back", "lag", "topic", "group", "time")):
            case "put":
                rig.statistics.note_put(topic, 1, 1, queue_id=choice((0, 1)), **rest)
            case "get":
                rig.statistics.note_get(group, topic, 1, 1, queue_id=choice((0, 1)), **rest)
            case "channel":
                rig.statistics.note_channel_get(group, topic, 1, 1, **rest)
            case "back":
                rig.statistics.note_send_back(group, topic)
            case "lag":
                rig.statistics.note_lag(group, topic, choice((0, 1)), 1)
            case "time":
                rig.pass_time(choice((SECOND, 3 * HOUR, 13 * HOUR)))
            case "topic":
                rig.statistics.remove_topic(topic)
                left = [(name, key.split("@")) for name, key in rig.statistics._items if name not in OF_NOBODY]
                at = {names.GROUP_GET_FALL_SIZE: 1}
                assert not [key for name, key in left if key[at.get(name, 0)] == topic]
                assert not [row for row in rig.statistics._rows if row[2] == topic]
            case "group":
                rig.statistics.remove_group(group)
                assert not [key for _, key in rig.statistics._items if key.endswith(f"@{group}")]
                assert not [row for row in rig.statistics._rows if row[1] == group]
    for topic in "ABC":
        rig.statistics.remove_topic(topic)
    assert {name for name, _ in rig.statistics._items} <= OF_NOBODY
    assert not rig.statistics._rows


def test_an_item_is_small() -> None:
    """The setting's text says about 1.2 KB each."""
    import sys

    item = StatsItem(START)
    parts = (item, item._sums_at, item._calls_at, item._slots)
    assert sum(sys.getsizeof(part) for part in parts) < 1_200


def test_throughput_of_the_last_seconds_minute_and_ten_minutes() -> None:
    """remoting.md 4.7.3: putTps "a b c" (10 s, 1 min, 10 min)."""
    throughput = Throughput(START, 0)
    assert throughput.rates("put") == (0.0, 0.0, 0.0)
    for second in range(1, 701):
        throughput.put += 100 if second > 690 else 10
        throughput.found += 1
        throughput.tick(START + second * SECOND, second * SECOND)
        throughput.tick(START + second * SECOND + 50, second * SECOND + 50)
    assert throughput.rates("put") == (100.0, (10 * 100 + 50 * 10) / 60, (10 * 100 + 590 * 10) / 600)
    assert throughput.rates("found") == (1.0, 1.0, 1.0)
    assert throughput.rates("missed") == (0.0, 0.0, 0.0)


def test_throughput_of_a_young_broker_is_over_its_age() -> None:
    throughput = Throughput(START, 0)
    for second in range(1, 5):
        throughput.transferred += 20
        throughput.tick(START, second * SECOND)
    assert throughput.rates("transferred") == (20.0, 20.0, 20.0)


def test_daily_totals() -> None:
    """remoting.md 4.7.3: msgPutTotalYesterdayMorning, TodayMorning, TodayNow."""
    midnight = START // DAY * DAY + 2 * DAY
    throughput = Throughput(midnight - DAY, 0, utc_offset_ms=8 * HOUR)
    throughput.put = 5
    throughput.tick(midnight - 8 * HOUR - 1, 0)
    assert throughput.totals("put") == DayTotals(0, 0, 5)
    throughput.tick(midnight - 8 * HOUR, 0)
    assert throughput.totals("put") == DayTotals(0, 5, 5)
    throughput.put = 12
    throughput.tick(midnight + DAY - 8 * HOUR, 0)
    assert throughput.totals("put") == DayTotals(5, 12, 12)
    throughput.put = 20
    throughput.tick(midnight + 5 * DAY, 0)
    assert throughput.totals("put") == DayTotals(20, 20, 20)
    assert throughput.totals("transferred") == DayTotals(0, 0, 0)


def test_daily_totals_of_a_clock_that_was_far_ahead() -> None:
    """A machine that starts in the next year had no more mornings until it came; set back over midnight, it has one."""
    midnight = START // DAY * DAY + 2 * DAY
    throughput = Throughput(midnight + 365 * DAY, 0)
    throughput.put = 5
    for at in (midnight - 1, midnight, midnight - 1_000, midnight):
        throughput.tick(at, 0)
    assert throughput.totals("put") == DayTotals(0, 5, 5)
