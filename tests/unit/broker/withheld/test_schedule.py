"""The numbered delays: when messages come, what of them is kept, what crashes leave. remoting.md 3.11."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.broker.config_file import RETRY_MS, ConfigFile
from headrace.broker.message import Message, put
from headrace.broker.pull import PullResult, PullStatus
from headrace.errors import MessageTooLargeError, SideFileError
from headrace.format.names import HALF_TOPIC, SCHEDULE_TOPIC
from headrace.format.record import tag_hash
from headrace.settings import BrokerSettings
from tests.support.messaging import SENDER, MessagingRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MessagingRig]:
    made = MessagingRig(tmp_path / "store")
    yield made
    made.close()


def test_levels_are_read_from_the_setting() -> None:
    """remoting.md 3.11: units s m h d."""
    settings = BrokerSettings(delay_levels="1s 5s 1m 2h 1d")
    assert settings.delays_ms == (1000, 5000, 60_000, 7_200_000, 86_400_000)


def test_a_message_comes_when_its_level_is_over_and_not_before(rig: MessagingRig) -> None:
    """Issue 4: 18 delay levels, exact to 100 ms."""
    for level in (1, 2, 3, 18):
        rig.levels.put(rig.message("T", b"%d" % level, queue_id=2), level)
    rig.pass_time(950)
    assert rig.bodies("T", 2) == []
    rig.pass_time(150)
    assert rig.bodies("T", 2) == [b"1"]
    rig.pass_time(3850)
    assert rig.bodies("T", 2) == [b"1"]
    rig.pass_time(150)
    assert rig.bodies("T", 2) == [b"1", b"2"]
    rig.pass_time(5100)
    assert rig.bodies("T", 2) == [b"1", b"2", b"3"]
    rig.pass_time(2 * 3_600_000, step=60_000)
    assert rig.bodies("T", 2) == [b"1", b"2", b"3", b"18"]
    assert rig.levels.counters.delivered == 4
    assert set(rig.levels.waiting.values()) == {0}


def test_what_waits_is_stored_as_rocketmq_does(rig: MessagingRig) -> None:
    """remoting.md 3.11, 10.8: topic, queue = level - 1, REAL_*, and an entry with the time of delivery."""
    placed, wait = rig.levels.put(rig.message("T", b"x", queue_id=3, TAGS="a"), 3)
    assert wait > 0
    rig.store.flush()
    (waiting,) = rig.read(SCHEDULE_TOPIC, 2)
    assert waiting.properties == {"TAGS": "a", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "3"}
    (entry,) = rig.store.queue(SCHEDULE_TOPIC, 2).entries(0, 1)
    assert entry == (placed.physical_offset, placed.record_bytes, waiting.store_ms + 10_000)


def test_a_time_beside_a_level_counts_for_nothing(rig: MessagingRig) -> None:
    """Were it left in the copy, channels would hold that back once more."""
    later = str(rig.clock.now_ms() + 3_600_000)
    rig.levels.put(rig.message("T", b"x", TAGS="a", TIMER_DELIVER_MS=later), 1)
    rig.pass_time(1_100)
    (delivered,) = rig.read("T")
    assert delivered.properties["TAGS"] == "a"
    assert "TIMER_DELIVER_MS" not in delivered.properties


def test_the_copy_keeps_everything_but_its_place(rig: MessagingRig) -> None:
    """remoting.md 3.11: properties, sysFlag, flag, born data, reconsumeTimes, body; tag hash from TAGS."""
    message = rig.message("T", b"body", queue_id=1, TAGS="a", KEYS="k")
    message.reconsume_times = 3
    message.born_v6 = bytes(range(20))
    rig.levels.put(message, 1)
    rig.pass_time(1100)
    (copy,) = rig.read("T", 1)
    assert (copy.body, copy.flag, copy.reconsume_times) == (b"body", 7, 3)
    assert (copy.born_ms, copy.born_v6, copy.sys_flag) == (1_600_000_000_000, bytes(range(20)), 0x11)
    assert copy.properties == {"TAGS": "a", "KEYS": "k", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "1"}
    assert rig.store.queue("T", 1).entries(0, 1)[0][2] == tag_hash("a")
    raw = rig.store.log.read(copy.physical_offset)
    assert raw is not None
    assert raw.count(b"__CRC32#") == 1
    assert b"__BATCH#" not in raw


def test_ipv4_sender_is_kept(rig: MessagingRig) -> None:
    """remoting.md 3.11: born data."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.pass_time(1100)
    assert rig.read("T")[0].born_host == SENDER


def test_a_level_above_the_last_is_the_last(rig: MessagingRig) -> None:
    """X-BROKER-08; remoting.md 3.11."""
    rig.levels.put(rig.message("T", b"x"), 99)
    assert rig.levels.count == 18
    rig.store.flush()
    assert rig.levels.waiting[18] == 1
    assert rig.read(SCHEDULE_TOPIC, 17)[0].properties["DELAY"] == "18"


def test_nothing_is_delivered_before_it_is_durable(rig: MessagingRig) -> None:
    """Command contract: at level fsync nothing is read before it is durable, and a copy is a read."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.pass_time(5000, flush=False)
    assert rig.store.queue("T", 0).next_offset == 0
    rig.store.flush()
    rig.pass_time(50)
    assert rig.bodies("T") == [b"x"]


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_waiting_messages_survive(rig: MessagingRig, way: str) -> None:
    """A-BROKER-36; Issue 4: surviving restart."""
    for number in range(300):
        rig.levels.put(rig.message("T", b"%d" % number), 2)
    rig.store.flush()
    rig.pass_time(2000)
    getattr(rig, way)()
    rig.pass_time(2900)
    assert rig.bodies("T") == []
    rig.pass_time(200)
    assert rig.bodies("T") == [b"%d" % number for number in range(300)]


def test_a_restart_delivers_nothing_twice(rig: MessagingRig) -> None:
    """delayOffset.json is written at the end, too, and not ten seconds after the last time only. A-BROKER-36."""
    for first in (0, 5):
        for number in range(first, first + 5):
            rig.levels.put(rig.message("T", b"%d" % number), 1)
        rig.pass_time(1100)
    rig.restart()
    rig.pass_time(20_000)
    assert rig.bodies("T") == [b"%d" % number for number in range(10)]


def test_a_stop_right_behind_a_delivery_repeats_nothing(rig: MessagingRig) -> None:
    """What was delivered is made durable by the stop, so its cursor is noted."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.store.flush()
    rig.pass_time(1100, flush=False)
    rig.restart()
    rig.pass_time(5_000)
    assert rig.bodies("T") == [b"x"]


def test_a_kill_between_copy_and_cursor_delivers_again_and_loses_nothing(rig: MessagingRig) -> None:
    """Issue 4: kill -9 under delay: 0 acknowledged lost."""
    rig.levels.put(rig.message("T", b"first"), 1)
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"first"]
    rig.levels.put(rig.message("T", b"second"), 1)
    rig.store.flush()
    rig.crash()
    rig.pass_time(1100)
    assert sorted(set(rig.bodies("T"))) == [b"first", b"second"]
    assert rig.bodies("T").count(b"second") == 1


def test_the_cursor_is_written_every_ten_seconds(rig: MessagingRig) -> None:
    """remoting.md 3.11: persisted every 10 s, so a kill repeats no more than that."""
    rig.levels.put(rig.message("T", b"x"), 2)
    rig.pass_time(16_000)
    content = json.loads((rig.config / "delayOffset.json").read_bytes())
    assert content["offsetTable"]["2"] == 1
    written = (rig.config / "delayOffset.json").stat().st_mtime_ns
    rig.pass_time(60_000, step=1_000)
    assert (rig.config / "delayOffset.json").stat().st_mtime_ns == written  # there was nothing to write
    rig.crash()
    rig.pass_time(10_000)
    assert rig.bodies("T") == [b"x"]


def test_a_process_that_never_lives_for_an_interval_gets_on(rig: MessagingRig) -> None:
    """broker.delay_offsets_interval_ms: what comes first is written at once, so kills do not repeat it for ever."""
    rig.levels.put(rig.message("T", b"x"), 1)
    for _ in range(5):
        rig.pass_time(1_500)
        rig.crash()
    rig.pass_time(1_500)
    assert rig.bodies("T") == [b"x"]


def test_a_kill_repeats_no_more_than_one_interval(tmp_path: Path) -> None:
    """broker.delay_offsets_interval_ms."""
    rig = MessagingRig(tmp_path / "store", delay_offsets_interval_ms=500)
    rig.levels.put(rig.message("T", b"noted"), 1)
    rig.pass_time(1_600)
    rig.levels.put(rig.message("T", b"not noted"), 1)
    rig.pass_time(1_050)
    rig.crash()
    rig.pass_time(5_000)
    assert rig.bodies("T").count(b"noted") == 1
    assert rig.bodies("T").count(b"not noted") in (1, 2)
    rig.close()


def test_a_cursor_is_not_noted_before_its_copies_are_durable(rig: MessagingRig) -> None:
    """A power cut may take the copy; the noted cursor must then lie before the message."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.store.flush()
    rig.pass_time(30_000, flush=False)
    assert rig.store.queue("T", 0).next_offset == 1
    assert rig.levels.cursors[1] == 0
    rig.cut_power()
    rig.pass_time(100)
    assert rig.bodies("T") == [b"x"]


def test_no_tick_takes_more_than_its_share(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is not held up."""
    monkeypatch.setattr("headrace.broker.withheld.schedule.MAX_AT_ONCE", 1000)
    for _ in range(2500):
        rig.levels.put(rig.message("T", b"x"), 1)
    rig.store.flush()
    rig.clock.advance_ms(2000)
    counts = []
    for _ in range(3):
        rig.broker.tick()
        counts.append(rig.store.queue("T", 0).next_offset)
    assert counts == [1000, 2000, 2500]


def test_a_clock_that_was_set_back_holds_nothing_up_for_longer_than_the_delay(rig: MessagingRig) -> None:
    """remoting.md 3.11, guard: a time further away than the level's delay is that of a clock that was set back."""
    for body in (b"x", b"y", b"z"):
        rig.levels.put(rig.message("T", body), 1)
        rig.pass_time(100)
    rig.clock.advance_ms(-3_600_000)
    rig.pass_time(950)
    assert rig.bodies("T") == []
    rig.levels.put(rig.message("T", b"later"), 1)
    rig.pass_time(150)
    assert rig.bodies("T") == [b"x", b"y", b"z"]
    rig.pass_time(800)
    assert rig.bodies("T") == [b"x", b"y", b"z"]
    rig.pass_time(150)
    assert rig.bodies("T") == [b"x", b"y", b"z", b"later"]


def test_a_clock_that_is_set_back_a_little_delivers_nothing_early(rig: MessagingRig) -> None:
    """Issue 4: never early. NTP sets clocks back by some ms; two hours must not become nothing by that."""
    rig.levels.put(rig.message("T", b"x"), 18)
    rig.pass_time(100)
    rig.clock.advance_ms(-150)
    rig.pass_time(1000)
    assert rig.bodies("T") == []
    rig.clock.advance_ms(-3000)  # and once more
    rig.pass_time(50)
    rig.pass_time(7_200_000 - 500, step=10_000)
    assert rig.bodies("T") == []
    rig.pass_time(2000)
    assert rig.bodies("T") == [b"x"]


def test_a_write_that_failed_is_tried_again_also_when_the_clock_is_set_back(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited until the clock was where it had been: a crash meanwhile delivered all of that again."""
    saves = ConfigFile.save

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ConfigFile, "save", refuse)
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.pass_time(12_000, step=1_000)
    assert rig.levels._writer.errors
    monkeypatch.setattr(ConfigFile, "save", saves)
    rig.clock.step_ms(-3_600_000)
    rig.pass_time(RETRY_MS + 1_000, step=1_000)
    assert rig.levels._writer.is_clean


def test_a_shorter_delay_counts_from_the_start_that_brought_it(rig: MessagingRig) -> None:
    """A changed table of delays delivers nothing before either delay is over."""
    rig.levels.put(rig.message("T", b"x"), 18)
    rig.store.flush()
    rig.close()
    rig.broker_settings = replace(rig.broker_settings, delay_levels=" ".join(["1s"] * 17 + ["10s"]))
    rig._open()
    rig.pass_time(9_900)
    assert rig.bodies("T") == []
    rig.pass_time(200)
    assert rig.bodies("T") == [b"x"]


def test_what_could_not_be_delivered_does_not_wait_for_the_next_message(rig: MessagingRig) -> None:
    """A full disk holds up what is due until there is room, not until what stands behind it is due too."""
    rig.levels.put(rig.message("T", b"x"), 18)
    rig.pass_time(3_600_000, step=60_000)
    rig.levels.put(rig.message("T", b"y"), 18)
    rig.store.flush()
    rig.fill_disk()
    rig.pass_time(3_600_000, step=60_000, flush=False)
    rig.free_disk()
    rig.pass_time(100)
    assert rig.bodies("T") == [b"x"]


def test_a_tick_that_is_full_does_not_leave_the_rest_for_later(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on bytes ends a tick, and the next one goes on."""
    monkeypatch.setattr("headrace.broker.withheld.schedule.MAX_BYTES_AT_ONCE", 1000)
    for body in (b"a" * 800, b"b" * 800, b"c" * 800):
        rig.levels.put(rig.message("T", body), 5)
    rig.pass_time(30_000, step=1000)
    rig.levels.put(rig.message("T", b"behind"), 5)
    rig.pass_time(30_300)
    assert [body[:1] for body in rig.bodies("T")] == [b"a", b"b", b"c"]


def test_a_full_disk_delays_and_loses_nothing(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Bad input: refused, counted, said once."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.store.flush()
    rig.fill_disk()
    with caplog.at_level(logging.ERROR):
        rig.pass_time(2000)
    assert rig.levels.counters.errors > 1
    assert len(caplog.records) == 1
    rig.free_disk()
    rig.pass_time(50)
    assert rig.bodies("T") == [b"x"]


def test_messages_of_a_deleted_topic_are_dropped_and_counted(rig: MessagingRig) -> None:
    """A deleted topic takes what waits for it along."""
    rig.levels.put(rig.message("gone", b"x"), 1)
    rig.levels.put(rig.message("T", b"y"), 1)
    rig.broker.delete_topic("gone")
    rig.pass_time(1100)
    assert "gone" not in rig.broker.topics
    assert rig.bodies("T") == [b"y"]
    assert (rig.levels.counters.dropped, rig.levels.counters.delivered) == (1, 1)


def test_the_log_has_a_line_a_minute_of_what_is_dropped(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """A tick drops what is due in it: a producer that goes on had a line written 20 times a second."""
    for _ in range(20):
        rig.levels.put(rig.message("gone", b"x"), 1)
        rig.broker.delete_topic("gone")
        rig.pass_time(100)
    rig.pass_time(1100)
    assert rig.levels.counters.dropped == 20
    told = [line for line in caplog.messages if line.startswith("delayed messages dropped")]
    assert len(told) == 1
    rig.pass_time(60_000, step=1_000)
    rig.levels.put(rig.message("gone", b"x"), 1)
    rig.broker.delete_topic("gone")
    rig.pass_time(1100)
    told = [line for line in caplog.messages if line.startswith("delayed messages dropped")]
    assert len(told) == 2
    assert told[1].startswith("delayed messages dropped level=1 count=1 total=21 reason=")


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "T", "REAL_QID": "-1"}, {"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"}]
)
def test_records_that_belong_nowhere_are_dropped_and_counted(rig: MessagingRig, properties: dict[str, str]) -> None:
    """remoting.md 3.11: half message found in the schedule queue; and what others may have written there."""
    put(rig.broker, Message(SCHEDULE_TOPIC, 0, b"x", properties))
    rig.levels.put(rig.message("T", b"y"), 1)
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"y"]
    assert rig.levels.counters.dropped == 1


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_damaged_record_holds_up_nothing(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture, is_started_again: bool
) -> None:
    """Store rules: the rest is served; nothing is left out silently, nor given a new checksum by its copy."""
    first, _ = rig.levels.put(rig.message("T", b"damaged" * 20), 1)
    rig.levels.put(rig.message("T", b"whole"), 1)
    rig.store.flush()
    rig.damage(first.physical_offset)
    if is_started_again:
        rig.crash()
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"whole"]
    assert rig.levels.counters.damaged == 1
    assert "delayed messages passed over, their records are damaged or gone level=1 count=1" in caplog.text


def test_what_is_gone_before_its_time_is_counted(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Store rules: nothing is left out silently, not even what the log has no more."""
    for body in (b"a", b"b", b"c"):
        rig.levels.put(rig.message("T", body), 1)
    rig.store.flush()
    rig.store.queue(SCHEDULE_TOPIC, 0).hide_below(2)
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"c"]
    assert rig.levels.counters.damaged == 2
    assert "their records are damaged or gone level=1 count=2" in caplog.text


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_queue_files_that_cannot_be_read_put_delays_off(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """It was logged as a bug with each tick, twenty times a second; nothing is passed over."""
    for body in (b"a", b"b"):
        rig.levels.put(rig.message("T", body), 1)
    rig.restart()
    rig.store.files.close()

    def refuse(*_: object) -> bytes:
        raise OSError(number, os.strerror(number), "the file")

    with monkeypatch.context() as patch:
        patch.setattr("os.pread" if number == errno.EIO else "os.open", refuse)
        rig.pass_time(1100, flush=False)
        assert rig.bodies("T") == []
    assert rig.broker.counters.service_errors == 0
    assert caplog.text.count("messages not read, tried again path=") == 1
    rig.pass_time(1100)
    assert sorted(rig.bodies("T")) == [b"a", b"b"]
    assert rig.levels.counters.damaged == 0


def test_one_that_cannot_be_stored_does_not_hold_up_the_others(
    rig: MessagingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store rules: everything else is served."""
    for body in (b"a", b"too large", b"b"):
        rig.levels.put(rig.message("T", body), 1)
    rig.store.flush()
    append = rig.store.append

    def refuse(batch: PublishBatch) -> int:
        if batch.body_bytes >= len(b"too large"):
            raise MessageTooLargeError("record", 10, 9)
        return append(batch)

    monkeypatch.setattr(rig.store, "append", refuse)
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"a", b"b"]
    assert (rig.levels.counters.dropped, rig.levels.counters.delivered) == (1, 2)


def test_a_cursor_beyond_the_log_is_clamped(rig: MessagingRig) -> None:
    """Store rules: every view that points beyond the end is clamped, counted and logged."""
    rig.restart()
    rig.kill()
    (rig.config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:5000,2:0}}')
    rig._open()
    assert rig.levels.counters.clamped == 1
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"x"]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_clamped_cursor_is_on_disk_before_anything_is_delayed(rig: MessagingRig, is_damaged: bool) -> None:
    """A kill brought the old one back: messages that were delayed meanwhile stood in front of it, and never came."""
    rig.restart()
    rig.kill()
    (rig.config / "delayOffset.json").write_bytes(b'{"offsetTable":{1:5000,2:0}}')
    rig._open()
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.pass_time(100)
    rig.store.flush()
    rig.kill()
    if is_damaged:  # nor does the copy have the old one
        (rig.config / "delayOffset.json").write_bytes(b"damaged")
    rig._open()
    rig.pass_time(1100)
    assert rig.bodies("T") == [b"x"]


def test_rocketmqs_file_is_read(rig: MessagingRig) -> None:
    """remoting.md 3.11, 1.8: Java writes it with bare integer keys and white space; fastjson takes numbers as texts."""
    for number in range(4):
        rig.levels.put(rig.message("T", b"%d" % number), 1)
    rig.store.flush()
    rig.kill()
    rig.config.mkdir(exist_ok=True)
    (rig.config / "delayOffset.json").write_bytes(b'{\n\t"offsetTable":{1:2,2:"0"}\n}')
    rig._open()
    assert (rig.levels.cursors[1], rig.levels.cursors[2]) == (2, 0)
    rig.pass_time(1_100)
    assert rig.bodies("T") == [b"2", b"3"]


def test_a_cursor_that_cannot_be_read_is_named(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Its level was delivered again without a word."""
    rig.restart()
    rig.kill()
    (rig.config / "delayOffset.json").write_bytes(b'{"offsetTable":{"1":"x","2":0}}')
    rig._open()
    assert "delay cursor passed over, its level is delivered again" in caplog.text
    assert "level 1: 'x' is no cursor" in caplog.text


@pytest.mark.parametrize("damage", [b"{}", b'{"offsetTable":[1,2]}', b'{"offsetTacle":{"1":2}}'])
def test_cursors_without_their_table_are_taken_from_the_copy(rig: MessagingRig, damage: bytes) -> None:
    """Else everything that the log has of a level is delivered again."""
    rig.levels.put(rig.message("T", b"once"), 1)
    rig.store.flush()
    rig.pass_time(1_100)
    rig.restart()
    rig.restart()
    rig.kill()
    (rig.config / "delayOffset.json").write_bytes(damage)
    rig._open()
    assert rig.levels.cursors[1] == 1


def test_an_empty_table_of_cursors_is_taken(rig: MessagingRig) -> None:
    """RocketMQ writes it where nothing was delayed yet."""
    rig.restart()
    rig.kill()
    (rig.config / "delayOffset.json").write_bytes(b'{\n\t"offsetTable":{}\n}')
    (rig.config / "delayOffset.json.bak").unlink(missing_ok=True)
    rig._open()
    assert rig.levels.cursors[1] == 0


def test_damaged_cursors_are_taken_from_the_copy_or_refused(rig: MessagingRig) -> None:
    """Command contract: what the log cannot give refuses the start, with file and remedy."""
    rig.restart()
    rig.restart()
    rig.kill()
    file = rig.config / "delayOffset.json"
    file.write_bytes(b"{")
    rig._open()
    rig.kill()
    file.write_bytes(b"{")
    (rig.config / "delayOffset.json.bak").unlink()
    with pytest.raises(SideFileError, match=r"delayOffset\.json"):
        rig._open()
    rig.store.abandon()
    file.unlink()
    rig._open()


def test_levels_that_the_setting_lost_are_named_and_not_forgotten(
    rig: MessagingRig, caplog: pytest.LogCaptureFixture
) -> None:
    """broker.delay_levels may only be appended to: a mistake must not deliver everything again once it is mended."""
    rig.levels.put(rig.message("T", b"delivered"), 2)
    rig.pass_time(5_100)
    rig.levels.put(rig.message("T", b"waits"), 2)
    levels = rig.broker_settings
    rig.close()
    rig.broker_settings = replace(levels, delay_levels="1s")
    with caplog.at_level(logging.ERROR):
        rig._open()
    assert "level=2 count=1" in caplog.text
    assert rig.levels.waiting == {1: 0, 2: 1}
    rig.pass_time(20_000)
    rig.close()
    rig.broker_settings = levels
    rig._open()
    rig.pass_time(5_100)
    assert rig.bodies("T") == [b"delivered", b"waits"]


def test_a_flood_at_one_level_does_not_starve_the_others(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level comes first in its turn."""
    monkeypatch.setattr("headrace.broker.withheld.schedule.MAX_AT_ONCE", 10)
    for _ in range(1000):
        rig.levels.put(rig.message("T", b"flood"), 1)
    rig.levels.put(rig.message("T", b"one", queue_id=1), 2)
    rig.store.flush()
    rig.clock.advance_ms(5_000)
    rig.pass_time(18 * 50)
    assert rig.bodies("T", 1) == [b"one"]


def test_nothing_is_delivered_while_publishers_have_to_wait(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """store.max_unflushed_bytes bounds what waits for the disk, whoever wrote it."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.store.flush()
    with monkeypatch.context() as patch:
        patch.setattr("headrace.broker.broker.Broker.overloaded", True)
        rig.pass_time(2_000)
        assert rig.bodies("T") == []
    rig.pass_time(50)
    assert rig.bodies("T") == [b"x"]


def test_large_messages_take_their_share_by_size(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick copies a bounded number of bytes."""
    monkeypatch.setattr("headrace.broker.withheld.schedule.MAX_BYTES_AT_ONCE", 10_000)
    for _ in range(30):
        rig.levels.put(rig.message("T", b"x" * 1000), 1)
    rig.store.flush()
    rig.clock.advance_ms(2_000)
    counts = []
    for _ in range(4):
        rig.broker.tick()
        counts.append(rig.store.queue("T", 0).next_offset)
    assert counts[0] < 20
    assert counts[-1] == 30


def test_a_record_on_the_disk_is_waited_for(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop never waits for a disk: a thread reads the record, and one of the next ticks delivers it."""
    rig.levels.put(rig.message("T", b"x"), 1)
    rig.store.flush()
    cold = PullResult(PullStatus.COLD, 0, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.broker.withheld.schedule.read_queue", lambda *arguments: cold)
        rig.pass_time(2_000)
        assert rig.bodies("T") == []
    rig.pass_time(50)
    assert rig.bodies("T") == [b"x"]
