"""What was counted is written into HR_STATS, once a minute, and only then."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.broker import statistics_records
from headrace.broker.consumers.group_services import GroupServices
from headrace.broker.statistics_records import MAX_WAITING, FlushTimes, Minute, StatisticsRecords, quantile
from headrace.broker.topic import PERM_READ
from headrace.broker.withheld.retry import DeadLetters
from headrace.errors import InvalidNameError, StoreFullError, UnreadableError
from headrace.format import record
from headrace.format.names import READ_ONLY_TOPICS, STATISTICS_TOPIC, SYSTEM_TOPICS
from headrace.histogram import Histogram
from headrace.nsq.stats import is_listed
from tests.support.brokers import BrokerRig
from tests.support.steps import all_of

MINUTE = 60_000


class RecordsRig(BrokerRig):
    core: GroupServices
    records: StatisticsRecords

    def _open(self) -> None:
        super()._open()
        self.letters = DeadLetters(self.clock)
        self.core = GroupServices(self.broker)
        self.records = StatisticsRecords(self.broker, self.core, self.letters)
        self.broker.tickers.insert(0, self.records)

    def put(self, topic: str, bodies: list[bytes], host: str = "10.0.0.5", source: str = "remoting") -> None:
        self.publish(topic, bodies)
        self.core.statistics.note_put(topic, len(bodies), sum(map(len, bodies)), source=source, host=host)

    def pass_minute(self, ticks: int = 20) -> None:
        """Let a minute pass, and a second in which it is gathered and written."""
        self.pass_time(MINUTE - 1_000)
        for _ in range(ticks):
            self.pass_time(1_000 // ticks)
        self.store.flush()

    def written(self) -> list[dict[str, Any]]:
        self.store.flush()
        found: list[dict[str, Any]] = []
        queue = self.store.queue(STATISTICS_TOPIC, 0)
        for offset in range(queue.visible_offset):
            raw = self.store.log.read(queue.position_of(offset))
            assert raw is not None
            found.append(json.loads(record.decode(raw)["body"]))
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RecordsRig]:
    made = RecordsRig(tmp_path / "store")
    made.clock.advance_ms(MINUTE - made.clock.now_ms() % MINUTE)
    made.broker.tick()
    made.pass_time(0)
    yield made
    made.close()


def test_a_minute_is_one_record_in_all_dimensions(rig: RecordsRig) -> None:
    """A-BROKER-49, A-BROKER-50, X-BROKER-17."""
    began = rig.clock.now_ms()
    rig.put("T", [b"12345", b"1"])
    rig.put("T", [b"1"], host="10.0.0.6")
    rig.core.statistics.note_put("T", 4, 40, source="nsq")
    rig.core.statistics.note_get("G", "T", 2, 300, source="remoting", host="10.0.0.7")
    rig.core.statistics.note_channel_get("c", "T", 3, 30, source="nsq", host="10.0.0.8")
    rig.core.statistics.note_send_back("G", "T")
    rig.letters.note("G", "T", "id", 3, rig.clock.now_ms())
    rig.core.offsets.commit("G", "T", 0, 1)
    rig.pass_time(30_000)
    assert rig.written() == []
    rig.pass_time(30_000)
    rig.pass_minute()
    (found,) = rig.written()
    latency = found.pop("latency")["flush_ms"]
    assert latency["count"] > 0
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]
    assert found == {
        "v": 1,
        "broker": rig.broker.name,
        "from_ms": began,
        "to_ms": began + MINUTE,
        "part": 1,
        "parts": 1,
        "put": [
            ["T", -1, "remoting", "10.0.0.5", 2, 6],
            ["T", -1, "remoting", "10.0.0.6", 1, 1],
            ["T", -1, "nsq", "", 4, 40],
        ],
        "get": [["T", -1, "G", "remoting", "10.0.0.7", 2, 300], ["T", -1, "c", "nsq", "10.0.0.8", 3, 30]],
        "back": [["T", "G", "remoting", 1]],
        "dead": [["T", "G", 1]],
        "lag": [["T", "G", "remoting", 0, 2, 60.0]],
    }


def test_nothing_is_written_when_nothing_was_counted(rig: RecordsRig) -> None:
    rig.put("T", [b"1"])
    rig.pass_minute()
    rig.pass_minute()
    assert len(rig.written()) == 1
    end = rig.store.log.end_offset
    for _ in range(5):
        rig.pass_minute()
    assert rig.store.log.end_offset == end
    assert rig.records.counters.written == 1


def test_a_group_that_stands_still_is_written_once(rig: RecordsRig) -> None:
    rig.publish("T", [b"1", b"2"])
    rig.core.offsets.commit("G", "T", 0, 0)
    for _ in range(4):
        rig.pass_minute()
    assert [found["lag"][0][4] for found in rig.written()] == [2]
    rig.core.offsets.commit("G", "T", 0, 1)
    rig.pass_minute()
    rig.pass_minute()
    rig.core.offsets.commit("G", "T", 0, 2)
    rig.pass_minute()
    rig.pass_minute()
    # The last says that nothing is left: readers take a lag to last until they are told another.
    assert [found["lag"][0][4] for found in rig.written()] == [2, 1, 0]


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_came_to_nothing_around_a_restart_is_said(rig: RecordsRig, is_killed: bool) -> None:
    """Readers took the lag of before to last: the first record knew of no lag before it."""
    rig.publish("T", [b"1", b"2"])
    for group in ("G", "H"):
        rig.core.offsets.commit(group, "T", 0, 0)
    rig.pass_minute()
    rig.pass_minute()
    if is_killed:
        rig.crash()
    else:
        rig.restart()
    for group, offset in (("G", 2), ("H", 0)):
        rig.core.offsets.commit(group, "T", 0, offset)
    for _ in range(3):
        rig.pass_minute()
    first, second = rig.written()
    assert [row[1:5] for row in first["lag"]] == [["G", "remoting", 0, 2], ["H", "remoting", 0, 2]]
    assert [row[1:5] for row in second["lag"]] == [["H", "remoting", 0, 2], ["G", "remoting", 0, 0]]
    rig.restart()
    for _ in range(3):
        rig.pass_minute()
    assert len(rig.written()) == 2  # nothing is new


def test_a_record_that_a_kill_cut_short_says_as_much_as_the_one_before(
    rig: RecordsRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A minute with more than one message: the last of them may be gone with the power."""
    monkeypatch.setattr(Minute.encode, "__defaults__", (60,))
    rig.publish("T", [b"1", b"2"])
    groups = [f"G{number}" for number in range(6)]
    for put in range(2):  # with so many messages to do
        for group in groups:
            rig.core.offsets.commit(group, "T", 0, put)
        rig.pass_minute()
        rig.pass_minute()
    queue = rig.broker.topics[STATISTICS_TOPIC].queues[0]
    parts = [found["part"] for found in rig.written()]
    assert parts == [*range(1, 7), *range(1, 7)]
    said = rig.records._said_lags()
    assert {row[1] for row in said} == set(groups)
    assert {row[4] for row in said} == {1}

    class Cut:
        min_offset = 0
        visible_offset = queue.visible_offset - 2
        entries = queue.entries

    monkeypatch.setattr(rig.records, "_queue", Cut)
    assert {row[:2] for row in rig.records._said_lags()} == {("T", group) for group in groups}
    for position in (-1, 0):  # no record, and another one
        monkeypatch.setattr(Cut, "entries", lambda _offset, _most, at=position: [(at, 100, 0)])
        assert rig.records._said_lags() == frozenset()
    assert caplog.text.count("statistics unreadable") == 2


def test_a_record_that_a_power_cut_took_is_passed_over(rig: RecordsRig, caplog: pytest.LogCaptureFixture) -> None:
    """Its queue offset stays unused: another record was read in its place, and no lag that came to nothing was said."""
    rig.publish("T", [b"1"])
    rig.core.offsets.commit("G", "T", 0, 0)
    rig.pass_minute()
    rig.pass_minute()
    said = rig.records._said_lags()
    assert said
    queue = rig.store.queue(STATISTICS_TOPIC, 0)
    queue.skip_to(queue.next_offset + 2)
    rig.restart()
    assert rig.store.queue(STATISTICS_TOPIC, 0).visible_offset > queue.next_offset - 2
    assert rig.records._said_lags() == said
    assert "statistics unreadable" not in caplog.text


def test_counts_of_a_minute_are_not_in_the_next(rig: RecordsRig) -> None:
    rig.put("T", [b"1"])
    rig.pass_minute()
    rig.pass_minute()
    rig.put("T", [b"1"] * 5)
    rig.pass_minute()
    rig.pass_minute()
    assert [found["put"][0][4] for found in rig.written()] == [1, 5]


def test_reading_the_records_does_not_cause_records(rig: RecordsRig) -> None:
    rig.core.statistics.note_get("spark", STATISTICS_TOPIC, 3, 30, source="remoting")
    rig.core.offsets.commit("spark", STATISTICS_TOPIC, 0, 0)
    rig.pass_minute()
    rig.pass_minute()
    assert rig.written() == []


def test_channels_say_what_came_back_and_what_is_left(rig: RecordsRig) -> None:
    subscription, channel = rig.subscribe("T", "c")
    rig.publish("T", [b"1", b"2", b"3"])
    taken = rig.take(subscription, channel, 2)
    assert len(taken) == 2
    rig.finish(subscription, channel, [taken[0][2]])
    rig.pass_time(MINUTE)  # the other one times out
    rig.pass_minute()
    found = rig.written()[0]
    assert found["lag"] == [["T", "c", "nsq", -1, 2, 60.0]]
    assert sum(row[3] for found in rig.written() for row in found.get("back", [])) == 1


def test_a_message_that_cannot_be_read_has_no_age(rig: RecordsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its minute is written all the same; a file that was gone cost every row of it, and a traceback."""

    def refuse(*_: object) -> int:
        raise UnreadableError(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))

    rig.subscribe("T", "c")
    rig.put("T", [b"1", b"2"])
    rig.core.offsets.commit("g", "T", 0, 1)
    monkeypatch.setattr(statistics_records, "store_time", refuse)
    rig.pass_time(MINUTE)
    rig.pass_minute()
    assert sorted(rig.written()[0]["lag"]) == [["T", "c", "nsq", -1, 2, -1.0], ["T", "g", "remoting", 0, 1, -1.0]]


def test_queue_files_that_are_moved_away_cost_ages_and_no_minute(
    rig: RecordsRig, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is not mounted for some minutes: each of them was lost, with a traceback."""
    rig.subscribe("T", "c")
    rig.put("T", [b"1", b"2"])
    rig.core.offsets.commit("g", "T", 0, 1)
    rig.restart()
    rig.subscribe("T", "c")
    rig.put("U", [b"3"])
    folder = Path(rig.store_settings.data_dir) / "consumequeue"
    folder.rename(folder.with_name("away"))
    rig.store.files.close()  # those that are open can be read on
    rig.pass_minute()
    rig.pass_time(100)
    folder.with_name("away").rename(folder)
    rig.pass_time(1_100)
    assert "failed by a bug" not in caplog.text
    found = rig.written()[-1]
    assert sorted(found["lag"]) == [["T", "c", "nsq", -1, 2, -1.0], ["T", "g", "remoting", 0, 1, -1.0]]
    assert [row[:1] for row in found["put"]] == [["U"]]


def test_closing_writes_the_minute_that_runs(rig: RecordsRig) -> None:
    rig.put("T", [b"1"])
    rig.pass_time(5_000)
    rig.restart()
    (found,) = rig.written()
    assert found["to_ms"] - found["from_ms"] == 5_000
    assert found["put"][0][4] == 1
    rig.restart()
    assert len(rig.written()) == 1


def test_a_crash_loses_the_minute_that_runs_and_no_other(rig: RecordsRig) -> None:
    rig.put("T", [b"1"])
    rig.pass_minute()
    rig.pass_minute()
    rig.put("T", [b"1"])
    rig.crash()
    rig.pass_minute()
    rig.pass_minute()
    assert len(rig.written()) == 1


def test_a_store_that_takes_no_record_gets_it_later(
    rig: RecordsRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What happens at the bound is written down."""
    append = rig.store.append

    def refuse(batch: PublishBatch) -> int:
        raise StoreFullError("full")

    monkeypatch.setattr(rig.store, "append", refuse)
    caplog.set_level(logging.WARNING)
    for _ in range(MAX_WAITING + 3):
        rig.core.statistics.note_put("T", 1, 1, source="remoting")
        rig.pass_minute(ticks=2)
    monkeypatch.setattr(rig.store, "append", append)
    rig.pass_minute()
    rig.pass_minute()
    assert len(rig.written()) == MAX_WAITING
    assert rig.records.counters.dropped == 3
    assert rig.records.counters.refused > MAX_WAITING
    assert caplog.text.count("statistics not written, tried again") == 1
    assert caplog.text.count("statistics dropped") == 1


def test_what_is_left_to_do_of_a_group_stands_in_one_part() -> None:
    """Readers add up a group's queues message by message, and of two sums for one minute they take the larger."""
    minute = Minute(0, 60_000)
    minute.put = [["T", 0, "remoting", "h", 1, 1]] * 25
    minute.lag = [["T", f"G{group}", "remoting", queue, 10, 1.0] for group in range(20) for queue in range(16)]
    parts = [json.loads(body) for body in all_of(minute.encode("b", most_bytes=1_000))]
    groups = [group for part in parts for group in {row[1] for row in part.get("lag", [])}]
    assert sorted(groups) == sorted({row[1] for row in minute.lag})
    assert len(parts) > 10
    assert [row for part in parts for row in part.get("lag", [])] == minute.lag


def test_a_group_with_more_queues_than_a_part_holds_has_several() -> None:
    minute = Minute(0, 60_000)
    minute.lag = [["T", "G", "remoting", queue, 10, 1.0] for queue in range(100)]
    parts = [json.loads(body) for body in all_of(minute.encode("b", most_bytes=1_000))]
    assert len(parts) == 4
    assert [row for part in parts for row in part["lag"]] == minute.lag


def test_a_large_minute_has_several_parts_with_every_row_once() -> None:
    minute = Minute(0, MINUTE, left_out=2, latency={"flush_ms": {"count": 1}})
    minute.put = [[f"topic-{number}", -1, "remoting", "10.0.0.1", number, 1] for number in range(1_000)]
    minute.lag = [["T", f"group-{number}", "remoting", 0, number, 1.5] for number in range(10)]
    bodies = all_of(minute.encode("b", most_bytes=10_000))
    parts = [json.loads(body) for body in bodies]
    assert all(len(body) < 11_000 for body in bodies)
    assert [part["part"] for part in parts] == list(range(1, len(parts) + 1))
    assert {part["parts"] for part in parts} == {len(parts)}
    assert [row for part in parts for row in part.get("put", [])] == minute.put
    assert [row for part in parts for row in part.get("lag", [])] == minute.lag
    assert (
        ["left_out" in part for part in parts]
        == ["latency" in part for part in parts]
        == [
            True,
            *[False] * (len(parts) - 1),
        ]
    )


def test_many_groups_are_looked_at_a_few_at_a_time(rig: RecordsRig) -> None:
    """The loop is not held."""
    rig.publish("T", [b"1"])
    for number in range(35):
        rig.core.offsets.commit(f"G{number}", "T", 0, 0)
    rig.core.statistics.note_put("T", 1, 1, source="remoting")
    rig.pass_time(MINUTE)
    ticks = 0
    while not rig.written():
        rig.pass_time(50)
        ticks += 1
    assert ticks >= 3
    assert len(rig.written()[0]["lag"]) == 35


def test_many_rows_are_gathered_and_written_a_few_at_a_time(rig: RecordsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is not held; what is counted meanwhile is of the next minute."""
    monkeypatch.setattr(statistics_records, "_ROWS", 10)
    monkeypatch.setattr(statistics_records, "MAX_BYTES", 1_000)
    monkeypatch.setattr(Minute.encode, "__defaults__", (1_000,))
    for number in range(100):
        rig.core.statistics.note_put(f"T{number:03}", 1, 1, source="remoting")
    rig.pass_time(MINUTE)
    seen = [0]
    while len(seen) < 100 and sum(len(part["put"]) for part in rig.written()) < 100:
        rig.core.statistics.note_put("T000", 1, 1, source="remoting")
        rig.pass_time(50)
        seen.append(len(rig.written()))
    found = rig.written()
    assert len(found) == found[0]["parts"] > 1
    assert all(more - less <= 1 for less, more in pairwise(seen)), f"one message a tick, not {seen}"
    assert seen.count(0) > 20, "ten rows a tick, made and encoded"
    assert [(row[0], row[4]) for part in found for row in part["put"]] == [(f"T{n:03}", 1) for n in range(100)]
    rig.pass_minute()
    rig.pass_minute()
    assert [row[4] for part in rig.written()[len(found) :] for row in part["put"]] == [len(seen) - 1]


def test_a_clock_that_is_set_back_loses_nothing(rig: RecordsRig) -> None:
    rig.put("T", [b"1"])
    rig.clock.advance_ms(-10 * MINUTE)
    rig.broker.tick()
    rig.pass_minute()
    rig.pass_minute()
    found = rig.written()
    assert sum(row[4] for one in found for row in one["put"]) == 1
    assert all(one["from_ms"] <= one["to_ms"] for one in found)


def test_messages_in_no_row_are_counted(tmp_path: Path) -> None:
    rig = RecordsRig(tmp_path / "store", max_statistics=100)
    for number in range(100):
        rig.core.statistics.note_put(f"T{number}", 1, 1, source="remoting")
    rig.pass_minute()
    rig.pass_minute()
    (found,) = rig.written()
    assert len(found["put"]) + found["left_out"] == 100
    rig.close()


def test_the_topic_is_the_brokers_and_everybody_reads_it(rig: RecordsRig) -> None:
    """Like other system topics it is left out of client listings."""
    topic = rig.broker.topics[STATISTICS_TOPIC]
    assert topic.is_system
    assert topic.config.perm == PERM_READ
    assert not is_listed(topic)
    assert STATISTICS_TOPIC in SYSTEM_TOPICS & READ_ONLY_TOPICS
    with pytest.raises(InvalidNameError, match="only the broker writes"):
        rig.publish(STATISTICS_TOPIC, [b"x"])
    with pytest.raises(InvalidNameError):
        rig.broker.delete_topic(STATISTICS_TOPIC)
    subscription, channel = rig.subscribe(STATISTICS_TOPIC, "reader")
    rig.put("T", [b"1"])
    rig.pass_minute()
    rig.pass_minute()
    assert [json.loads(body)["put"][0][0] for body, _, _ in rig.take(subscription, channel)] == ["T"]


def test_quantiles_are_linear_within_a_bucket() -> None:
    assert quantile((1.0, 2.0), [10, 0, 0], 0.5) == pytest.approx(0.5)
    assert quantile((1.0, 2.0), [10, 10, 0], 0.75) == pytest.approx(1.5)
    assert quantile((1.0, 2.0), [0, 0, 5], 0.5) == 2.0
    histogram = Histogram((0.001, 0.01))
    times = FlushTimes(histogram)
    assert times.take() == {}
    histogram.observe(0.0005)
    assert times.take()["flush_ms"]["count"] == 1
    assert times.take() == {}


def test_counts_survive_the_removal_of_their_counters(rig: RecordsRig) -> None:
    """The sweep of idle counters and a topic's deletion forget windows, not what the minute counted."""
    statistics = rig.core.statistics
    statistics.note_put("T", 1, 10, source="remoting", host="h")
    statistics.remove_topic("T")
    statistics.note_put("T", 2, 20, source="remoting", host="h")
    counted = statistics.take_counted()
    assert sum(one.messages for one in counted) == 3
    assert statistics.take_counted() == []
    statistics.note_put("T", 4, 40, source="remoting", host="h")
    assert [(one.call.topic, one.call.host, one.messages, one.bytes) for one in statistics.take_counted()] == [
        ("T", "h", 4, 40)
    ]


def test_counters_that_were_idle_for_a_day_go_and_their_calls_are_counted_again(rig: RecordsRig) -> None:
    """The clean-up: what a row remembers must not keep counters that were forgotten."""
    statistics = rig.core.statistics
    statistics.note_put("T", 1, 1, source="remoting", host="h")
    statistics.take_counted()
    now = rig.clock.now_ms()
    for hour in range(1, 27):
        statistics.tick(now + hour * 60 * MINUTE)
    assert len(statistics) == 0
    statistics.note_put("T", 1, 1, source="remoting", host="h")
    assert [one.messages for one in statistics.take_counted()] == [1]
    found = statistics.snapshot("TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.day.sum == 1


def test_the_setting_is_on_by_default(rig: RecordsRig) -> None:
    assert rig.broker_settings.statistics_records
    assert not replace(rig.broker_settings, statistics_records=False).statistics_records
