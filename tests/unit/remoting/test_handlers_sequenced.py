"""SEND_SEQUENCED and END_BATCH: docs/protocols/extensions.md; spark.md 3.5, 5.4.6."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.batch import PublishBatch
from headrace.broker.access import Action
from headrace.broker.exactly_once import producers, staged
from headrace.broker.topic import TopicConfig
from headrace.errors import AccessDeniedError, MessageTooLargeError, SideFileError
from headrace.format.names import HIDDEN_TOPICS, PRODUCER_TOPIC, STAGED_TOPIC
from headrace.format.side_file import read_side_file, write_side_file
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.handlers.sequenced import MAX_CHOSEN, read_chosen
from headrace.remoting.sending.rows import RowIntake
from headrace.remoting.sending.send_intake import Limits
from tests.support.exactly_once import BORN_MS, TOPIC, ExactlyOnceRig, Row, encode_rows, ext_of, sequenced_ext
from tests.support.remoting import send_fields


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ExactlyOnceRig]:
    made = ExactlyOnceRig(tmp_path / "store")
    yield made
    made.close()


def small_rig(tmp_path: Path, **settings: Any) -> ExactlyOnceRig:
    return ExactlyOnceRig(tmp_path / "small", **settings)


def rows(*names: str, **properties: str) -> list[Row]:
    """Return rows whose bodies and keys are their names."""
    return [(name.encode(), {"UNIQ_KEY": name, **properties}) for name in names]


def answer(stored: int, duplicates: int, offset: int) -> dict[str, int]:
    return {"stored": stored, "duplicates": duplicates, "offset": offset}


@pytest.mark.parametrize(
    ("semantics", "own"),
    [("sequence", {}), ("key", {}), ("stage", {}), ("sequence", {"DELAY": "3"}), ("key", {"DELAY": "3"})],
)
def test_a_row_above_the_limit_of_messages_is_refused(tmp_path: Path, semantics: str, own: dict[str, str]) -> None:
    """The limit is that of plain sends: with an identity a message of any size was stored."""
    rig = small_rig(tmp_path, max_message_bytes=100)
    fits = (b"x" * 100, {"UNIQ_KEY": "k0", **own})
    reply = rig.send(semantics, [fits, (b"x" * 101, {"UNIQ_KEY": "k1"})])
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "row 1 has a body of 101 bytes, above remoting.max_message_bytes = 100" in reply.remark
    assert rig.send(semantics, [fits]).code == ResponseCode.SUCCESS
    rig.close()


def test_a_row_that_is_stored_already_has_no_limit(rig: ExactlyOnceRig) -> None:
    """The limit may have been lowered since: the answer is still that it is there."""
    rig.send("sequence", [(b"x" * 101, {})])
    limits = Limits(rig.services.broker.topics, cluster=b"C1", max_message_bytes=100)
    rig.services.rows = RowIntake(limits)
    assert ext_of(rig.send("sequence", [(b"x" * 101, {}), (b"y", {})])) == answer(1, 1, 1)


# -- sequence ---------------------------------------------------------------------------------------------------------


def test_rows_below_the_end_are_dropped(rig: ExactlyOnceRig) -> None:
    assert ext_of(rig.send("sequence", rows(*"abc"))) == answer(3, 0, 0)
    assert ext_of(rig.send("sequence", rows(*"abc"))) == answer(0, 3, -1)
    assert ext_of(rig.send("sequence", rows(*"bcde"), seq=1)) == answer(2, 2, 3)
    assert rig.bodies() == [b"a", b"b", b"c", b"d", b"e"]


def test_a_message_is_stored_as_it_was_sent(rig: ExactlyOnceRig) -> None:
    """And ``__BATCH#`` stands on the record of the producer, which nobody sees."""
    body = encode_rows([(b"body", {"TAGS": "t", "WAIT": "true", "a": "ä"}), (b"", {})], flag=7)
    rig.request(RequestCode.SEND_SEQUENCED, sequenced_ext("sequence", 2), body)
    first, empty = rig.read()
    assert first.properties == {"TAGS": "t", "a": "ä", "CLUSTER": "C1"}
    assert (first.flag, first.born_ms, first.born_host) == (7, BORN_MS, rig.asker.born_host)
    assert empty.body == b""
    assert b"__BATCH#" not in (rig.store.log.read(first.physical_offset) or b"")


def test_a_gap_is_refused_and_names_what_was_expected(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", rows("a"))
    reply = rig.send("sequence", rows("c"), seq=2)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "expected 1" in reply.remark
    assert rig.send("sequence", rows("x"), seq=5, partition=1).code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.services.producers.sequences.counters.gaps == 2


def test_an_epoch_begins_anew_and_ends_the_one_before(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", rows(*"ab"), epoch=3)
    assert ext_of(rig.send("sequence", rows(*"cd"), epoch=4)) == answer(2, 0, 2)
    assert ext_of(rig.send("sequence", rows(*"zzz"), epoch=3, seq=2)) == answer(0, 3, -1)
    assert rig.send("sequence", rows("x"), epoch=5, seq=1).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("semantics", ["sequence", "key", "stage"])
def test_what_is_dropped_for_an_older_epoch_is_counted_and_said_once_a_minute(
    rig: ExactlyOnceRig, semantics: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two writers with one txn, of different topics: one of them would lose its rows in silence."""

    def dropped() -> tuple[int, int]:
        lines = [line for line in caplog.messages if "has had a later epoch" in line]
        return rig.services.producers.outdated.by_semantics[semantics], len(lines)

    for _ in range(2):
        assert rig.send(semantics, rows("a"), topic="A", epoch=5).code == 0
    if semantics == "stage":
        rig.commit([(0, 0, 1)], epoch=5)
        rig.send(semantics, rows("a"), topic="A", epoch=5)
    assert dropped() == (0, 0)
    for _ in range(3):
        assert ext_of(rig.send(semantics, rows(*"bc"), topic="B", epoch=3)) == answer(0, 2, -1)
    assert dropped() == (6, 1)
    assert f"semantics={semantics} txn=q1 epoch=3 partition=0 topic=B queue_id=0 messages=2" in caplog.text
    rig.clock.advance_ms(60_000)
    rig.send(semantics, rows("d"), topic="B", epoch=3)
    assert dropped() == (7, 2)


def test_producers_are_told_apart_by_txn_partition_topic_and_queue(rig: ExactlyOnceRig) -> None:
    for more in ({}, {"txn": "other"}, {"partition": 1}, {"topic": "U"}, {"queueId": 1}):
        assert ext_of(rig.send("sequence", rows("a"), **more))["stored"] == 1
    assert len(rig.services.producers.sequences) == 5


@pytest.mark.parametrize("ending", ["kill", "save and kill", "restart"])
def test_what_was_stored_is_known_after(rig: ExactlyOnceRig, ending: str) -> None:
    rig.send("sequence", rows(*"ab"))
    if ending == "save and kill":
        rig.save_state()
        assert rig.store.directory.producers.is_file()
    rig.send("sequence", rows(*"cd"), seq=2)
    rig.restart() if ending == "restart" else rig.crash()
    assert rig.services.producers.log.counters.replayed == {"kill": 2, "save and kill": 1, "restart": 0}[ending]
    assert ext_of(rig.send("sequence", rows(*"abcde"))) == answer(1, 4, 4)
    assert rig.bodies() == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("ending", ["none", "kill", "save and kill", "restart"])
@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_what_was_stored_in_a_topic_that_was_deleted_is_stored_again(
    rig: ExactlyOnceRig, semantics: str, ending: str
) -> None:
    """Once it is made again: nobody has the former messages. The new ones count, also those of a start in between."""
    rig.send(semantics, rows(*"abcd"))
    rig.broker.delete_topic(TOPIC)
    assert ext_of(rig.send(semantics, rows(*"ab"))) == answer(2, 0, 4)
    if ending == "save and kill":
        rig.save_state()
    if ending != "none":
        rig.restart() if ending == "restart" else rig.crash()
    assert ext_of(rig.send(semantics, rows(*"abcd"))) == answer(2, 2, 6)
    assert ext_of(rig.send(semantics, rows(*"abcd"))) == answer(0, 4, -1)


def test_what_was_stored_in_other_topics_of_a_txn_is_not_forgotten(rig: ExactlyOnceRig) -> None:
    """Of keys nobody knows which topic each is of: until the next start they count while one topic is as it was."""
    for topic in ("A", "B"):
        rig.send("sequence", rows(*"ab"), topic=topic)
        rig.send("key", rows(topic), topic=topic, txn="keys")
    rig.broker.delete_topic("A")
    assert ext_of(rig.send("sequence", rows(*"ab"), topic="A"))["stored"] == 2
    assert ext_of(rig.send("sequence", rows(*"ab"), topic="B"))["stored"] == 0
    assert ext_of(rig.send("key", rows("A"), topic="A", txn="keys"))["stored"] == 0
    rig.restart()
    assert ext_of(rig.send("key", rows("A"), topic="A", txn="keys"))["stored"] == 1
    assert ext_of(rig.send("key", rows("B"), topic="B", txn="keys"))["stored"] == 0


@pytest.mark.parametrize("ending", ["none", "kill", "restart"])
@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_delayed_rows_that_came_due_without_their_topic_are_stored_again(
    rig: ExactlyOnceRig, semantics: str, properties: dict[str, str], ending: str
) -> None:
    """They were dropped; nothing else of the batch had moved the queue on, so they counted as stored."""
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    assert ext_of(rig.send(semantics, rows("a", **properties))) == answer(1, 0, -1)
    rig.store.flush()
    rig.broker.delete_topic(TOPIC)
    rig.pass_time(2_000)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    rig.store.flush()
    if ending != "none":
        rig.restart() if ending == "restart" else rig.crash()
    assert ext_of(rig.send(semantics, rows("a", **properties))) == answer(1, 0, -1)
    assert ext_of(rig.send(semantics, rows("a", **properties))) == answer(0, 1, -1)
    rig.pass_time(2_000)
    assert set(rig.bodies()) == {b"a"}  # what waited may come again after a kill


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_delayed_rows_that_come_to_a_topic_made_again_count(rig: ExactlyOnceRig, semantics: str) -> None:
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    rig.send(semantics, rows("a", DELAY="1"))
    rig.store.flush()
    rig.broker.delete_topic(TOPIC)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    assert ext_of(rig.send(semantics, rows("a", DELAY="1"))) == answer(0, 1, -1)
    rig.pass_time(2_000)
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_delayed_rows_count_though_the_clock_was_set_back_since_their_topic_was_made(
    rig: ExactlyOnceRig, semantics: str, is_killed: bool
) -> None:
    """Due before the topic was made, they were taken for a former one's: stored again, and with keys not answered."""
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    rig.clock.step_ms(-60_000)
    assert ext_of(rig.send(semantics, rows("a", DELAY="1"))) == answer(1, 0, -1)
    if is_killed:
        rig.store.flush()
        rig.crash()
    assert ext_of(rig.send(semantics, rows("a", DELAY="1"))) == answer(0, 1, -1)
    assert ext_of(rig.send(semantics, rows("b", DELAY="1"), seq=1)) == answer(1, 0, -1)
    rig.pass_time(3_000)
    assert rig.bodies() == [b"a", b"b"]
    rig.broker.delete_topic(TOPIC)
    rig.clock.advance_ms(120_000)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    assert ext_of(rig.send(semantics, rows("a")))["stored"] == 1, "it is gone with its topic"


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_a_system_topic_that_is_written_down_has_no_former_one(rig: ExactlyOnceRig, semantics: str) -> None:
    """Its record comes with its first channel: what was due before that had counted for a former topic's."""
    topic = rig.broker.topics["BenchmarkTest"]
    assert ext_of(rig.send(semantics, rows("a", DELAY="1"), topic=topic.name)) == answer(1, 0, -1)
    rig.pass_time(3_000)
    rig.broker.ensure_channel(topic, "ch")
    assert ext_of(rig.send(semantics, rows("a", DELAY="1"), topic=topic.name)) == answer(0, 1, -1)
    assert rig.bodies(topic=topic.name) == [b"a"]


@pytest.mark.parametrize("ending", ["none", "kill", "restart"])
@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_rows_before_delayed_ones_are_gone_with_their_topic(rig: ExactlyOnceRig, semantics: str, ending: str) -> None:
    """The last batch, delayed as a whole, hid that those before it had stood in the topic that was deleted."""
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    rig.send(semantics, rows("a"))
    rig.send(semantics, rows("b", DELAY="5"), seq=1)
    rig.store.flush()
    rig.broker.delete_topic(TOPIC)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    if ending != "none":
        rig.restart() if ending == "restart" else rig.crash()
    assert ext_of(rig.send(semantics, rows("a")))["stored"] == 1


@pytest.mark.parametrize("ending", ["none", "kill", "restart"])
def test_epochs_of_keys_are_gone_with_their_topic(rig: ExactlyOnceRig, ending: str) -> None:
    """The saved copy kept the last epoch: what was sent again of earlier ones was acknowledged and nowhere."""
    for epoch in range(4):
        rig.send("key", rows(f"e{epoch}"), epoch=epoch)
    rig.store.flush()
    rig.broker.delete_topic(TOPIC)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    if ending != "none":
        rig.restart() if ending == "restart" else rig.crash()
    for epoch in range(4):
        assert ext_of(rig.send("key", rows(f"e{epoch}"), epoch=epoch))["stored"] == 1
    assert len(rig.services.producers.keys) == 2  # of its last two epochs, none of the topic before


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_what_a_saved_state_brings_back_is_gone_with_its_topic(rig: ExactlyOnceRig, semantics: str) -> None:
    """Deleted after the start that had read the copy, which says where the rows are."""
    rig.send(semantics, rows("a"))
    rig.save_state()
    rig.restart()
    assert ext_of(rig.send(semantics, rows("a")))["stored"] == 0
    rig.broker.delete_topic(TOPIC)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    assert ext_of(rig.send(semantics, rows("a")))["stored"] == 1


def test_keys_in_a_topic_made_again_are_not_gone_with_a_later_one(rig: ExactlyOnceRig) -> None:
    """Of a txn in two topics, each of which was deleted and made again, but rows went to the first after that."""
    both = (TOPIC, "U")
    for topic in both:
        rig.broker.create_topic(topic, TopicConfig(2, 2))
        rig.send("key", rows(f"old {topic}"), topic=topic)
    for topic in both:
        rig.store.flush()
        rig.broker.delete_topic(topic)
        rig.broker.create_topic(topic, TopicConfig(2, 2))
        if topic == TOPIC:
            assert ext_of(rig.send("key", rows("new"), queueId=1)) == answer(1, 0, 0)
    assert ext_of(rig.send("key", rows("new"), queueId=1)) == answer(0, 1, -1)


def test_a_saved_state_without_queue_offsets_counts(rig: ExactlyOnceRig) -> None:
    """Of an earlier build, whatever was deleted since."""
    rig.send("sequence", rows(*"ab"))
    rig.save_state()
    path = rig.store.directory.producers
    saved = read_side_file(path, "producers", "")
    saved["sequences"] = [msgspec.to_builtins(row)[:6] for row in saved["sequences"]]
    write_side_file(path, "producers", saved)
    rig.crash()
    assert rig.services.producers.log.counters.replayed == 0
    assert ext_of(rig.send("sequence", rows(*"abc"))) == answer(1, 2, 2)


@pytest.mark.parametrize("part", ["sequences", "keys", "staged"])
def test_a_saved_state_of_a_later_build_is_made_anew(
    rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """Its rows may have more members: the start ended in a traceback, or took what it knew of half of them."""
    for semantics in ("sequence", "key", "stage"):
        rig.send(semantics, rows("a"), txn=semantics)
    rig.save_state()
    path = rig.store.directory.producers
    saved = msgspec.to_builtins(read_side_file(path, "producers", ""))
    table = saved[part]["batches"] if part == "staged" else saved[part]
    table[0] = [*table[0], "of a later build"]
    write_side_file(path, "producers", saved)
    caplog.clear()
    rig.crash()
    assert [record.message.split(" error=")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "state of producers damaged, made anew from the log"
    ]
    assert rig.services.producers.log.counters.replayed == 3
    for semantics in ("sequence", "key"):
        assert ext_of(rig.send(semantics, rows("a"), txn=semantics))["stored"] == 0


def test_duplicates_are_acknowledged_when_their_originals_are_durable(rig: ExactlyOnceRig) -> None:
    """The connection broke before the answer: who asks again must not be told too early."""
    for semantics in ("sequence", "key", "stage"):
        first = rig.send(semantics, rows("a"), txn=semantics)
        again = rig.send(semantics, rows("a"), txn=semantics)
        assert again.wait_offset == first.wait_offset > rig.store.durable_offset


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_rows_of_an_older_epoch_wait_for_what_they_repeat(rig: ExactlyOnceRig, semantics: str) -> None:
    """They are dropped as duplicates, and their sender takes the answer for a promise all the same."""
    first = rig.send(semantics, rows("a"), epoch=3)
    rig.send(semantics, rows("b"), epoch=4)
    rig.send(semantics, rows("c"), epoch=5)
    again = rig.send(semantics, rows("a"), epoch=3)
    assert ext_of(again) == answer(0, 1, -1)
    assert again.wait_offset >= first.wait_offset > rig.store.durable_offset


def test_at_level_async_nobody_waits(tmp_path: Path) -> None:
    rig = small_rig(tmp_path)
    rig.send("sequence", rows("a"))
    rig.store.queue(TOPIC, 0).awaits_flush = False
    for semantics in ("sequence", "key", "stage"):
        assert rig.send(semantics, rows("a"), txn=semantics).wait_offset == 0
    rig.close()


def test_a_power_cut_takes_messages_and_what_is_known_of_them_together(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", rows(*"ab"))
    rig.store.flush()
    rig.send("sequence", rows(*"cd"), seq=2)
    rig.send("key", rows(*"kl"))
    rig.cut_power()
    assert rig.bodies() == [b"a", b"b"]
    assert ext_of(rig.send("sequence", rows(*"abcd")))["stored"] == 2
    assert ext_of(rig.send("key", rows(*"kl")))["stored"] == 2


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_a_power_cut_within_rows_takes_all_of_them(rig: ExactlyOnceRig, semantics: str) -> None:
    """What is noted of a batch comes before its rows: alone, or with some, it would take the others for stored."""
    rig.send(semantics, rows(*"ab"))
    rig.store.flush()
    rig.send(semantics, rows(*"cde"), seq=2)
    rig.lose_log(rig.store.log.end_offset - 1)
    assert rig.bodies() == [b"a", b"b"]
    assert ext_of(rig.send(semantics, rows(*"cde"), seq=2))["stored"] == 3
    assert rig.bodies() == [b"a", b"b", b"c", b"d", b"e"]


def test_the_state_is_not_saved_before_it_is_durable(rig: ExactlyOnceRig) -> None:
    """Else a start after a power cut takes what is sent again for duplicates."""
    log = rig.services.producers.log
    rig.send("sequence", rows("a"))
    log.tick(0)
    rig.clock.advance_ms(61_000)
    log.tick(0)
    log.wait_for_file()
    assert not rig.store.directory.producers.exists()
    rig.store.flush()
    log.wait_for_file()
    assert rig.store.directory.producers.exists()


def test_a_saved_state_does_not_outlive_the_end_of_the_log(
    rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture
) -> None:
    """What a bad disk took and is sent again is stored: it is no duplicate of anything."""
    rig.send("sequence", rows(*"ab"))
    rig.send("key", rows(*"kl"))
    rig.store.flush()
    end = rig.store.log.end_offset
    rig.send("sequence", rows(*"cd"), seq=2)
    rig.send("key", rows(*"mn"))
    rig.send("stage", rows(*"xy"))
    rig.save_state()
    rig.lose_log(end)
    assert "state of producers speaks of what the log has lost" in caplog.text
    assert ext_of(rig.send("sequence", rows(*"abcd")))["stored"] == 2
    assert ext_of(rig.send("key", rows(*"klmn")))["stored"] == 2
    assert ext_of(rig.send("stage", rows(*"xy")))["stored"] == 2
    assert rig.bodies() == [b"a", b"b", b"k", b"l", b"c", b"d", b"m", b"n"]
    rig.save_state()
    caplog.clear()
    rig.crash()
    assert rig.services.producers.log.counters.replayed == 0
    assert ext_of(rig.send("sequence", rows(*"abcd")))["stored"] == 0
    assert "state of producers" not in caplog.text


def test_a_saved_state_that_was_passed_over_is_replaced_at_once(
    rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next start, too, reads every record, if this process is killed within a minute."""
    rig.send("sequence", rows(*"ab"))
    rig.store.flush()
    end = rig.store.log.end_offset
    rig.send("sequence", rows(*"cd"), seq=2)
    rig.save_state()
    rig.lose_log(end)
    assert "state of producers speaks of what the log has lost" in caplog.text
    log = rig.services.producers.log
    log.tick(0)
    log.wait_for_file()
    caplog.clear()
    rig.crash()
    assert "state of producers" not in caplog.text
    assert rig.services.producers.log.counters.replayed == 0


def test_a_saved_state_is_taken_where_the_log_lost_only_what_came_after(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", rows(*"ab"))
    rig.save_state()
    end = rig.store.log.end_offset
    rig.send("sequence", rows(*"cd"), seq=2)
    rig.store.flush()
    rig.lose_log(end)
    assert rig.store.epoch == 2
    assert rig.services.producers.log.counters.replayed == 0
    assert ext_of(rig.send("sequence", rows(*"abcd")))["stored"] == 2


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_saved_state_of_an_earlier_build_is_taken_in_the_first_epoch(rig: ExactlyOnceRig, is_lost: bool) -> None:
    """It does not say where the log ended."""
    rig.send("sequence", rows(*"ab"))
    rig.store.flush()
    end = rig.store.log.end_offset
    rig.send("sequence", rows(*"cd"), seq=2)
    rig.save_state()
    path = rig.store.directory.producers
    saved = read_side_file(path, "producers", "")
    write_side_file(path, "producers", {name: saved[name] for name in saved if name not in ("epoch", "log_end")})
    rig.lose_log(end if is_lost else rig.store.durable_offset)
    assert rig.services.producers.log.counters.replayed == (1 if is_lost else 0)
    assert ext_of(rig.send("sequence", rows(*"abcd")))["stored"] == (2 if is_lost else 0)


def test_a_save_that_fails_is_tried_again(rig: ExactlyOnceRig) -> None:
    path = rig.store.directory.producers
    path.mkdir()
    rig.send("sequence", rows("a"))
    rig.save_state()
    assert rig.services.producers.log.counters.save_errors == 1
    path.rmdir()
    rig.save_state()
    assert path.is_file()


def test_a_save_that_fails_is_not_tried_with_each_tick(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes the whole state down on the event loop, and a full disk lasts."""
    monkeypatch.setattr("headrace.broker.exactly_once.producer_log.SAVE_EVERY", 1)
    log = rig.services.producers.log
    rig.store.directory.producers.mkdir()

    def pass_time(milliseconds: int) -> None:
        for _ in range(milliseconds // 500):
            rig.clock.advance_ms(500)
            log.tick(rig.clock.now_ms())
            rig.store.flush()
            log.wait_for_file()
            rig.turn()

    rig.send("sequence", rows("a"))
    pass_time(9_000)
    assert log.counters.save_errors == 1
    pass_time(20_000)
    assert log.counters.save_errors == 3
    assert caplog.text.count("state of producers not saved") == 1
    rig.store.directory.producers.rmdir()
    pass_time(10_000)
    saved = rig.store.directory.producers.read_bytes()
    rig.send("sequence", rows("b"), seq=1)
    pass_time(500)
    assert rig.store.directory.producers.read_bytes() != saved, "at once again"


def test_a_damaged_copy_is_made_anew_from_the_log(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", rows(*"ab"))
    rig.send("key", rows(*"kl"))
    rig.close()
    rig.store.directory.producers.write_bytes(b"noise")
    rig._open()
    assert ext_of(rig.send("sequence", rows(*"ab")))["stored"] == 0
    assert ext_of(rig.send("key", rows(*"kl")))["stored"] == 0


@pytest.mark.parametrize("is_used", [False, True])
def test_a_damaged_copy_is_replaced(rig: ExactlyOnceRig, is_used: bool, caplog: pytest.LogCaptureFixture) -> None:
    """docs/formats/side-files.md: made anew also where no producer comes; the next start has nothing to warn of."""
    if is_used:
        rig.send("sequence", rows(*"ab"))
    rig.close()
    rig.store.directory.producers.write_bytes(b"noise")
    rig._open()
    rig.broker.tick()
    rig.close()
    caplog.clear()
    rig._open()
    assert "damaged" not in caplog.text


def test_a_damaged_copy_refuses_the_start_where_the_log_has_not_every_record(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.send("sequence", rows(*"ab"))
    rig.close()
    rig.store.directory.producers.write_bytes(b"noise")
    queue = rig.store.queue(PRODUCER_TOPIC, 0)
    assert queue.min_offset == 0
    from headrace.broker.exactly_once import producer_log

    class Retained:
        """A queue of which retention has removed the beginning."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.min_offset = inner, 1

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        awaits_flush = False

    original = producer_log.ProducerLog._load

    def load(self: producer_log.ProducerLog) -> None:
        self.queue = Retained(self.queue)  # type: ignore[assignment]
        original(self)

    monkeypatch.setattr(producer_log.ProducerLog, "_load", load)
    with pytest.raises(SideFileError, match=r"producers\.json"):
        rig._open()
    monkeypatch.undo()
    rig.broker.close()
    rig.store.close()
    rig._open()


def test_a_damaged_record_is_named_and_the_others_count(rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("sequence", rows("a"))
    rig.send("sequence", rows("b"), partition=1)
    rig.store.flush()
    place = rig.store.queue(PRODUCER_TOPIC, 0).entries(0, 1)[0][0]
    rig.store.abandon()
    with (rig.store.directory.commit_log / f"{0:020d}").open("r+b") as file:
        file.seek(place + 95)
        file.write(b"#")
    rig._open()
    assert "hole in the log" in caplog.text
    assert rig.services.producers.log.counters.replayed == 1
    assert ext_of(rig.send("sequence", rows("b"), partition=1))["stored"] == 0


def test_the_producer_that_was_quiet_for_longest_is_forgotten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = small_rig(tmp_path, max_producer_ids=2)
    for partition, seq in ((0, 0), (1, 0), (0, 1), (2, 0)):
        assert ext_of(rig.send("sequence", rows("a"), partition=partition, seq=seq))["stored"] == 1
    assert rig.services.producers.sequences.counters.forgotten == 1
    assert "partition=1" in caplog.text
    assert "remoting.max_producer_ids" in caplog.text
    rig.crash()
    assert len(rig.services.producers.sequences) == 2
    rig.close()


def test_many_producers_are_forgotten_together(caplog: pytest.LogCaptureFixture) -> None:
    sequences = producers.Sequences(2_000, lambda topic, queue_id, offset: False)
    for number in range(4_500):
        key = producers.ProducerKey("q", number, TOPIC, 0)
        sequences.apply(sequences.change(key, 0, 0, 0, 1, number), b"", number)
    assert 1_998 <= len(sequences) <= 2_000
    assert sequences.counters.forgotten == 4_500 - len(sequences)
    assert caplog.text.count("producer forgotten") == 3
    assert sequences.judge(producers.ProducerKey("q", 4_499 - 1_990, TOPIC, 0), 0, 0, 1).duplicates == 1
    assert sequences.judge(producers.ProducerKey("q", 2_400, TOPIC, 0), 0, 0, 1).duplicates == 0


def test_a_full_disk_changes_nothing(rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.errors import StoreFullError

    for semantics in ("sequence", "key", "stage"):
        rig.send(semantics, rows("a"), txn=semantics)

    def refuse(batch: object) -> int:
        raise StoreFullError("no room")

    monkeypatch.setattr(rig.store, "append", refuse)
    for semantics in ("sequence", "key", "stage"):
        reply = rig.send(semantics, rows(*"abc"), txn=semantics)
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    monkeypatch.undo()
    for semantics in ("sequence", "key", "stage"):
        assert ext_of(rig.send(semantics, rows(*"abc"), txn=semantics))["stored"] == 2


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"semantics": "once"}, "sequence, key, stage"),
        ({"txn": "x" * 129}, "<txn>"),
        ({"txn": ""}, "txn"),
        ({"txn": "\udcff"}, "txn"),
        ({"epoch": -1}, "<epoch>"),
        ({"epoch": 1 << 63}, "<epoch>"),
        ({"partition": "a"}, "<partition>"),
        ({"seq": -1}, "<seq>"),
        ({"count": 0}, "<count>"),
        ({"count": 65_536}, "<count>"),
        ({"count": 3}, "count = 3"),
        ({"queueId": -1}, "<queueId>"),
        ({"queueId": 99}, "queueId[99]"),
        ({"topic": "%RETRY%g"}, "retries"),
        ({"topic": PRODUCER_TOPIC}, "reserved"),
        ({"topic": STAGED_TOPIC}, "reserved"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "broker alone"),
        ({"topic": "a.b"}, "illegal characters"),
    ],
)
def test_a_bad_field_is_named(rig: ExactlyOnceRig, more: dict[str, object], named: str) -> None:
    for semantics in ("sequence", "key", "stage"):
        ext = sequenced_ext(semantics, 2) | more
        reply = rig.request(RequestCode.SEND_SEQUENCED, ext, encode_rows(rows(*"ab")))
        assert reply.code
        assert named in reply.remark
    assert rig.bodies() == []


@pytest.mark.parametrize("cut", [1, 4, 15, 21, 23, 30])
def test_a_torn_body_is_refused(rig: ExactlyOnceRig, cut: int) -> None:
    body = encode_rows(rows("abc", "def"))
    for semantics in ("sequence", "key", "stage"):
        reply = rig.request(RequestCode.SEND_SEQUENCED, sequenced_ext(semantics, 2), body[:-cut])
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert "row" in reply.remark
    assert rig.bodies() == []


def test_a_topic_that_may_not_be_made(tmp_path: Path) -> None:
    rig = small_rig(tmp_path, auto_create_topics=False)
    assert rig.send("sequence", rows("a")).code == ResponseCode.TOPIC_NOT_EXIST
    rig.close()


def test_a_broker_that_takes_no_writes(rig: ExactlyOnceRig) -> None:
    rig.services.permission = 4
    assert rig.send("sequence", rows("a")).code == ResponseCode.NO_PERMISSION
    reply = rig.end("commit")
    assert reply is not None
    assert reply.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("name", sorted(HIDDEN_TOPICS))
def test_hidden_topics_are_neither_listed_nor_made_nor_read(rig: ExactlyOnceRig, name: str) -> None:
    rig.send("stage", rows("a"))
    rig.restart()
    assert name not in rig.broker.topics
    ext = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert rig.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == ResponseCode.NO_PERMISSION
    assert rig.request(RequestCode.GET_TOPIC_CONFIG, {"topic": name}).code == ResponseCode.TOPIC_NOT_EXIST
    assert name.encode() not in (rig.request(RequestCode.GET_ALL_TOPIC_CONFIG, {}).body or b"")


# -- delays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_delayed_rows_wait_and_come_once(rig: ExactlyOnceRig, semantics: str) -> None:
    due = str(rig.clock.now_ms() + 3_000)
    batch = [*rows("now"), *rows("level", DELAY="1"), *rows("timed", TIMER_DELIVER_MS=due), *rows("too")]
    assert ext_of(rig.send(semantics, batch)) == answer(4, 0, 0)
    assert ext_of(rig.send(semantics, batch)) == answer(0, 4, -1)
    assert rig.bodies() == [b"now", b"too"]
    rig.crash()
    for _ in range(6):
        rig.clock.advance_ms(1_000)
        rig.broker.tick()
        rig.store.flush()
    assert sorted(rig.bodies()) == [b"level", b"now", b"timed", b"too"]


def test_keys_of_delayed_rows_count_once(rig: ExactlyOnceRig) -> None:
    assert ext_of(rig.send("key", rows(*"abab", DELAY="1")))["stored"] == 2
    assert ext_of(rig.send("key", rows(*"abc", DELAY="1"))) == answer(1, 2, -1)


@pytest.mark.parametrize(
    ("semantics", "properties", "named"),
    [
        ("stage", {"DELAY": "1"}, "row 1 asks for a delay"),
        ("stage", {"TIMER_DELAY_MS": "5"}, "row 1 asks for a delay"),
        ("sequence", {"TIMER_DELIVER_MS": "soon"}, "row 1"),
        ("key", {"TIMER_DELIVER_MS": "soon"}, "row 1"),
        ("sequence", {"TRAN_MSG": "true"}, "row 1 is transactional"),
    ],
)
def test_a_row_that_cannot_wait_refuses_the_batch(
    rig: ExactlyOnceRig, semantics: str, properties: dict[str, str], named: str
) -> None:
    batch = [*rows("a"), *rows("b", **properties)]
    reply = rig.send(semantics, batch)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert named in reply.remark
    assert rig.bodies() == []
    assert ext_of(rig.send(semantics, rows(*"ab")))["stored"] == 2


@pytest.mark.parametrize("value", ["false", "no", "True "])
@pytest.mark.parametrize("beside", [{}, {"DELAY": "1"}])
@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_a_row_that_says_it_is_not_transactional_is_taken(
    rig: ExactlyOnceRig, semantics: str, beside: dict[str, str], value: str
) -> None:
    """As SEND takes it, for which only ``true`` stands for a half message; clients of 4.9 write ``false``."""
    assert ext_of(rig.send(semantics, [*rows("a", TRAN_MSG=value), *rows("b", **beside)]))["stored"] == 2
    assert rig.bodies()[0] == b"a"


def test_a_staged_row_that_says_it_is_not_transactional_is_taken(rig: ExactlyOnceRig) -> None:
    assert ext_of(rig.send("stage", rows("a", TRAN_MSG="false")))["stored"] == 1


@pytest.mark.parametrize("value", ["TRUE", "True"])
def test_every_spelling_of_a_transactional_row_is_refused(rig: ExactlyOnceRig, value: str) -> None:
    assert "row 0 is transactional" in rig.send("sequence", rows("a", TRAN_MSG=value)).remark


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_rows_that_are_not_all_plain_are_bounded(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch, semantics: str
) -> None:
    """Each of them is taken by itself, and all in one turn of the loop."""
    monkeypatch.setattr("headrace.remoting.handlers.sequenced.MAX_PARTS", 3)
    delayed = rows(*"abcd", DELAY="1")
    reply = rig.send(semantics, delayed)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "4 rows, at most 3 are accepted" in reply.remark
    assert ext_of(rig.send(semantics, delayed[:3]))["stored"] == 3


# -- key --------------------------------------------------------------------------------------------------------------


def test_a_key_counts_once_in_whatever_order_and_queue(rig: ExactlyOnceRig) -> None:
    assert ext_of(rig.send("key", rows(*"abca"))) == answer(3, 1, 0)
    assert ext_of(rig.send("key", rows(*"cdb"), queueId=1, partition=7)) == answer(1, 2, 0)
    assert (rig.bodies(0), rig.bodies(1)) == ([b"a", b"b", b"c"], [b"d"])


def test_keys_of_two_epochs_are_remembered(rig: ExactlyOnceRig) -> None:
    rig.send("key", rows("a"), epoch=5)
    assert ext_of(rig.send("key", rows("a", "b"), epoch=6)) == answer(1, 1, 1)
    rig.crash()
    assert ext_of(rig.send("key", rows("b", "c"), epoch=5)) == answer(1, 1, 2)
    assert ext_of(rig.send("key", rows("a", "b", "d"), epoch=7)) == answer(2, 1, 3)
    assert ext_of(rig.send("key", rows("e"), epoch=5)) == answer(0, 1, -1)
    assert ext_of(rig.send("key", rows("a"), epoch=7, txn="q2"))["stored"] == 1


def test_a_row_without_a_key_is_named(rig: ExactlyOnceRig) -> None:
    reply = rig.send("key", [*rows("a"), (b"b", {"KEYS": "b"})])
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "row 1 has no property UNIQ_KEY" in reply.remark
    assert ext_of(rig.send("key", rows("a")))["stored"] == 1


def test_the_window_of_keys_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = small_rig(tmp_path, max_window_keys=4)
    rig.send("key", rows(*"abc"), txn="first")
    assert ext_of(rig.send("key", rows(*"abcd"), txn="second"))["stored"] == 4
    assert rig.services.producers.keys.counters.forgotten == 1
    assert "txn=first" in caplog.text
    reply = rig.send("key", rows("e"), txn="second")
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "remoting.max_window_keys" in reply.remark
    assert ext_of(rig.send("key", rows("e"), txn="second", epoch=2))["stored"] == 1
    assert len(rig.services.producers.keys) == 1
    rig.crash()
    assert len(rig.services.producers.keys) == 1
    rig.close()


def test_keys_of_two_epochs_count_for_the_bound(tmp_path: Path) -> None:
    """Each batch of an epoch, and the epoch before."""
    rig = small_rig(tmp_path, max_window_keys=4)
    for name in "abc":
        assert ext_of(rig.send("key", rows(name)))["stored"] == 1
    assert len(rig.services.producers.keys) == 3
    assert rig.send("key", rows("d", "e"), epoch=1).code == ResponseCode.SYSTEM_BUSY
    assert ext_of(rig.send("key", rows("d"), epoch=1))["stored"] == 1
    assert rig.send("key", rows("e"), epoch=1).code == ResponseCode.SYSTEM_BUSY
    rig.close()


def test_keys_of_the_epoch_before_make_no_room(tmp_path: Path) -> None:
    rig = small_rig(tmp_path, max_window_keys=6)
    rig.send("key", rows("x", "y"), txn="other")
    rig.send("key", rows("a", "b"))
    assert ext_of(rig.send("key", rows("c", "d", "e"), epoch=1))["stored"] == 3
    assert rig.services.producers.keys.counters.forgotten == 1
    assert len(rig.services.producers.keys) == 5
    rig.close()


def test_keys_of_an_epoch_that_is_over_make_room_for_new_ones(tmp_path: Path) -> None:
    """The first batch of an epoch ends the one before the last, so nobody else has to be forgotten for it."""
    rig = small_rig(tmp_path, max_window_keys=6)
    rig.send("key", rows("x", "y"), txn="other")
    for epoch, names in enumerate(("ab", "cd", "ef")):
        assert ext_of(rig.send("key", rows(*names), epoch=epoch))["stored"] == 2
    assert rig.services.producers.keys.counters.forgotten == 0
    assert ext_of(rig.send("key", rows("x", "y"), txn="other"))["duplicates"] == 2
    rig.close()


def test_many_txns_with_few_keys_take_no_more_memory_than_one_with_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every batch write is a txn of its own: the number of keys alone does not bound what they take."""
    monkeypatch.setattr(producers, "MIN_BYTES", 20 * producers.SET_BYTES)
    rig = small_rig(tmp_path, max_window_keys=900)
    for number in range(50):
        assert ext_of(rig.send("key", rows(f"k{number}"), txn=f"job-{number}"))["stored"] == 1
    assert 10 < len(rig.services.producers.keys) < 20
    assert rig.services.producers.keys.counters.forgotten == 50 - len(rig.services.producers.keys)
    assert caplog.text.count("keys of a txn forgotten") == 1
    assert ext_of(rig.send("key", rows("k49"), txn="job-49"))["duplicates"] == 1
    kept = len(rig.services.producers.keys)
    rig.save_state()
    rig.crash()
    rig.send("key", rows("more"), txn="job-50")
    assert len(rig.services.producers.keys) == kept
    # One txn has all the keys that the setting allows.
    assert ext_of(rig.send("key", rows(*map(str, range(900))), txn="large"))["stored"] == 900
    rig.close()


# -- stage ------------------------------------------------------------------------------------------------------------


def test_nothing_is_seen_before_the_commit_and_everything_after(
    rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture
) -> None:
    assert ext_of(rig.send("stage", rows("a", "b", TAGS="t"))) == answer(2, 0, -1)
    assert ext_of(rig.send("stage", rows("c"), partition=1, attempt=4, queueId=1))["stored"] == 1
    rig.crash()
    assert (rig.bodies(0), rig.bodies(1)) == ([], [])
    reply = rig.commit([(0, 0, 2), (1, 4, 1)])
    assert reply.ext == {}
    assert reply.wait_offset == rig.store.log.end_offset
    first, second = rig.read(0)
    assert (first.body, second.body) == (b"a", b"b")
    assert first.properties == {"UNIQ_KEY": "a", "TAGS": "t", "CLUSTER": "C1"}
    assert (first.born_ms, first.born_host) == (BORN_MS, rig.asker.born_host)
    assert rig.bodies(1) == [b"c"]
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    assert rig.services.statistics is not None
    assert (len(rig.services.producers.staged), rig.services.producers.staged.staged_bytes) == (0, 0)


def test_only_the_chosen_attempt_counts(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows(*"abc"), attempt=1)
    rig.send("stage", rows(*"abc"), attempt=2)
    rig.commit([(0, 2, 3)])
    assert rig.bodies() == [b"a", b"b", b"c"]
    assert ext_of(rig.send("stage", rows(*"abcd"), attempt=1)) == answer(0, 4, -1)


def test_rows_staged_twice_count_once(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows(*"ab"))
    assert ext_of(rig.send("stage", rows(*"bc"), seq=1)) == answer(1, 1, -1)
    assert rig.send("stage", rows("e"), seq=4).code == ResponseCode.MESSAGE_ILLEGAL
    rig.commit([(0, 0, 3)])
    assert rig.bodies() == [b"a", b"b", b"c"]


def test_a_commit_that_counts_otherwise_is_refused_and_names_the_partition(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows(*"ab"))
    reply = rig.commit([(0, 0, 3), (5, 1, 7), (6, 0, 0)])
    assert reply.code
    assert "partition 0 attempt 0: 2 staged, 3 expected" in reply.remark
    assert "partition 5 attempt 1: 0 staged, 7 expected" in reply.remark
    assert "partition 6" not in reply.remark
    assert rig.bodies() == []
    assert rig.commit([(0, 0, 2)]).code == 0


def test_a_repeated_commit_is_a_success(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows("a"), epoch=3)
    assert rig.commit([(0, 0, 1)], epoch=3).ext == {}
    for epoch in (3, 2, 0):
        assert rig.commit([(0, 0, 1)], epoch=epoch).ext == {"alreadyCommitted": "true"}
    rig.restart()
    assert rig.commit([], epoch=3).ext == {"alreadyCommitted": "true"}
    assert rig.commit([], epoch=4).ext == {}
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("turns", range(6))
def test_a_commit_goes_on_after_a_kill(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch, turns: int, is_saved: bool
) -> None:
    monkeypatch.setattr(staged, "CHUNK_MESSAGES", 2)
    for queue_id in (0, 1):
        rig.send("stage", rows(*"abcde"), queueId=queue_id)
    assert rig.end("commit", [(0, 0, 10)]) is None
    rig.turn(turns)
    seen = len(rig.bodies(0)) + len(rig.bodies(1))
    assert seen == min(10, (0, 2, 4, 5, 7, 9)[turns])
    if is_saved:
        rig.save_state() if turns else None
    rig.crash()
    assert rig.send("stage", rows("z"), seq=5).code == 0
    rig.broker.tick()
    rig.turn()
    assert (rig.bodies(0), rig.bodies(1)) == ([b"a", b"b", b"c", b"d", b"e"],) * 2
    assert rig.commit([(0, 0, 10)]).ext == {"alreadyCommitted": "true"}


def test_a_commit_asked_for_again_while_it_runs_answers_both(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows("a"))
    assert rig.end("commit", [(0, 0, 1)]) is None
    reply = rig.commit([(0, 0, 1)])
    assert reply.code == 0
    assert rig.asker.answers  # the first one's
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize("is_staged_before", [True, False])
def test_an_older_epoch_is_over_while_the_commit_of_a_later_one_runs(
    rig: ExactlyOnceRig, *, is_staged_before: bool
) -> None:
    """Its commit was decided as well, never answered, and dropped with its rows at the end of the other."""
    if is_staged_before:
        rig.send("stage", rows("old"), epoch=0)
    rig.send("stage", rows("new"), epoch=1)
    assert rig.end("commit", [(0, 0, 1)], epoch=1) is None
    if not is_staged_before:
        assert ext_of(rig.send("stage", rows("old"), epoch=0)) == answer(0, 1, -1)
    for _ in range(2):
        assert rig.end("commit", [(0, 0, 1)], epoch=0) is None
    rig.turn()
    assert rig.asker.answers[-1].ext == {"alreadyCommitted": "true"}
    assert rig.commit([(0, 0, 1)], epoch=0).ext == {"alreadyCommitted": "true"}
    assert rig.bodies() == [b"new"]
    counters = rig.services.producers.staged.counters
    assert (counters.commits, counters.repeated_commits) == (1, 3)
    assert not rig.services.producers.staged._waiting


def test_rows_for_a_queue_that_is_no_more_go_to_another(rig: ExactlyOnceRig) -> None:
    """The topic was deleted and made again with fewer queues: as what was delayed, and what was half."""
    rig.send("stage", rows(*"ab"), queueId=3)
    rig.broker.delete_topic(TOPIC)
    rig.broker.create_topic(TOPIC, TopicConfig(1, 1))
    assert rig.commit([(0, 0, 2)]).code == 0
    assert rig.bodies() == [b"a", b"b"]


def test_an_abort_forgets_a_batch(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows("a"))
    reply = rig.end("abort")
    assert reply is not None
    assert reply.wait_offset
    rig.crash()
    assert rig.commit([(0, 0, 1)]).code
    assert ext_of(rig.send("stage", rows("b")))["stored"] == 1
    assert rig.commit([(0, 0, 1)]).code == 0
    reply = rig.end("abort")
    assert reply is not None
    assert reply.ext == {"alreadyCommitted": "true"}
    assert rig.bodies() == [b"b"]


def test_an_abort_of_nothing_is_a_success(rig: ExactlyOnceRig) -> None:
    reply = rig.end("abort", epoch=77)
    assert reply is not None
    assert (reply.code, reply.wait_offset) == (0, 0)
    rig.send("stage", rows("a"))
    rig.end("abort")
    assert rig.services.producers.staged.counters.aborts == 1


def test_a_batch_that_nobody_ends_expires(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = small_rig(tmp_path, stage_ttl_s=60)
    rig.send("stage", rows("a"))
    for _ in range(2):
        rig.clock.advance_ms(40_000)
        rig.broker.tick()
        rig.store.flush()
    assert rig.services.producers.staged.counters.expired == 1
    assert "stage_ttl_s" in caplog.text
    rig.crash()
    assert rig.commit([(0, 0, 1)]).code
    rig.close()


def test_a_clock_that_is_set_back_keeps_no_batch(tmp_path: Path) -> None:
    """One staged before and one staged after that: the time of the first counts from the next look at it."""
    rig = small_rig(tmp_path, stage_ttl_s=60)
    rig.send("stage", rows("a"))
    rig.broker.tick()
    rig.clock.step_ms(-86_400_000)
    rig.send("stage", rows("b"), seq=1)
    rig.send("stage", rows("c"), txn="other")
    left = []
    for _ in range(5):
        rig.clock.advance_ms(20_000)
        rig.broker.tick()
        left.append(len(rig.services.producers.staged))
    assert left == [2, 2, 2, 1, 0]
    rig.close()


def test_what_is_staged_puts_off_the_end_of_its_batch(tmp_path: Path) -> None:
    """remoting.stage_ttl_s counts from the last message that came, also over a kill."""
    rig = small_rig(tmp_path, stage_ttl_s=60)
    left = []
    for seq in range(2):
        rig.send("stage", rows(str(seq)), seq=seq)
        rig.clock.advance_ms(40_000)
        rig.broker.tick()
        left.append(len(rig.services.producers.staged))
    rig.crash()
    rig.broker.tick()
    left.append(len(rig.services.producers.staged))
    rig.clock.advance_ms(40_000)
    rig.broker.tick()
    assert [*left, len(rig.services.producers.staged)] == [1, 1, 1, 0]
    rig.close()


def test_many_batches_that_nobody_ends_expire_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was away for long finds all of them at once."""
    monkeypatch.setattr(staged, "EXPIRE_AT_ONCE", 2)
    rig = small_rig(tmp_path, stage_ttl_s=60)
    for number in range(5):
        rig.send("stage", rows("a"), txn=f"q{number}")
    rig.clock.advance_ms(80_000)
    left = []
    for _ in range(4):
        rig.broker.tick()
        rig.store.flush()
        left.append(len(rig.services.producers.staged))
    assert left == [3, 1, 0, 0]
    rig.close()


def test_a_batch_that_changed_since_the_last_save_is_saved_as_it_is(rig: ExactlyOnceRig) -> None:
    """What did not change is not gathered again."""
    rig.send("stage", rows("old"), txn="quiet")
    rig.send("stage", rows(*"ab"))
    rig.save_state()
    rig.send("stage", rows("c"), seq=2)
    rig.send("stage", rows("d"), partition=1, attempt=3)
    rig.save_state()
    rig.crash()
    assert rig.services.producers.log.counters.replayed == 0
    assert ext_of(rig.send("stage", rows(*"abc")))["duplicates"] == 3
    assert rig.commit([(0, 0, 3), (1, 3, 1)]).ext == {}
    rig.save_state()
    rig.crash()
    assert rig.bodies() == [b"a", b"b", b"c", b"d"]
    assert rig.commit([(0, 0, 3)]).ext == {"alreadyCommitted": "true"}
    assert rig.commit([(0, 0, 1)], txn="quiet").ext == {}


def test_as_much_is_staged_as_may_be(tmp_path: Path) -> None:
    rig = small_rig(tmp_path, max_staged_runs=1)
    rig.send("stage", rows("a"))
    reply = rig.send("stage", rows("b"), partition=1)
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "remoting.max_staged_runs" in reply.remark
    rig.commit([(0, 0, 1)])
    assert rig.send("stage", rows("b"), partition=1, epoch=1).code == 0
    rig.close()


def test_what_goes_on_where_a_run_ends_counts_once(tmp_path: Path) -> None:
    """remoting.max_staged_runs: many small requests of one attempt are one run, as long as nobody is between them."""
    rig = small_rig(tmp_path, max_staged_runs=23)
    for number in range(30):
        assert rig.send("stage", rows(f"r{number}"), seq=number).code == 0
    rig.send("stage", rows("between"), txn="other")
    assert rig.send("stage", rows("last"), seq=30).code == 0  # a second run
    assert rig.send("stage", rows("none"), seq=31).code == ResponseCode.SYSTEM_BUSY
    assert rig.commit([(0, 0, 31)]).code == 0
    assert rig.bodies() == [*(b"r%d" % number for number in range(30)), b"last"]
    rig.close()


def test_what_is_staged_is_counted_over_a_start(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows("abc", "de"))
    rig.send("stage", rows("f"), partition=1)
    rig.save_state()
    rig.restart()
    assert (rig.services.producers.staged.staged_rows, rig.services.producers.staged.staged_bytes) == (3, 6)


def test_the_last_committed_epochs_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The one whose commit was longest ago is forgotten for a new one."""
    rig = small_rig(tmp_path, max_producer_ids=2)
    for txn, epoch in (("first", 0), ("second", 0), ("first", 1)):
        rig.send("stage", rows("a"), txn=txn, epoch=epoch)
        assert rig.commit([(0, 0, 1)], txn=txn, epoch=epoch).ext == {}
    assert rig.services.producers.staged.counters.forgotten_txns == 0
    assert rig.commit([(0, 0, 1)], txn="second").ext == {"alreadyCommitted": "true"}
    rig.send("stage", rows("a"), txn="third")
    rig.commit([(0, 0, 1)], txn="third")
    assert rig.services.producers.staged.counters.forgotten_txns == 1
    assert "txn=second" in caplog.text
    assert rig.commit([(0, 0, 1)], txn="first", epoch=1).ext == {"alreadyCommitted": "true"}
    rig.close()


def test_batches_and_attempts_count_for_what_they_take(tmp_path: Path) -> None:
    """A run that is a batch of its own takes eleven times the memory of one behind another."""
    rig = small_rig(tmp_path, max_staged_runs=110)
    taken = [rig.send("stage", rows("a"), txn=f"q{number}").code for number in range(12)]
    assert taken == [0] * 10 + [ResponseCode.SYSTEM_BUSY] * 2
    rig.save_state()
    rig.crash()
    assert rig.send("stage", rows("a"), txn="q10").code == ResponseCode.SYSTEM_BUSY
    rig.commit([(0, 0, 1)], txn="q0")
    assert [rig.send("stage", rows("a"), partition=number, txn="q1").code for number in range(1, 4)] == [0, 0, 2]
    for number in range(1, 10):
        rig.commit([(0, 0, 1)], txn=f"q{number}")
    assert rig.services.producers.staged._cost == 0
    rig.close()


def test_a_topic_deleted_before_the_commit_refuses_it(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows("a"))
    rig.broker.delete_topic(TOPIC)
    assert rig.commit([(0, 0, 1)]).code == ResponseCode.TOPIC_NOT_EXIST
    assert rig.services.producers.staged.counters.refused_commits == 1
    assert rig.send("sequence", rows("x")).code == 0
    assert rig.commit([(0, 0, 1)]).code == 0
    assert rig.bodies() == [b"x", b"a"]


def test_a_topic_deleted_during_a_commit_is_said_once(rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.send("stage", rows("a"))
    assert rig.end("commit", [(0, 0, 1)]) is None
    rig.broker.delete_topic(TOPIC)
    rig.turn()
    reply = rig.asker.answers.pop()
    assert "1 of its messages are lost" in reply.remark
    assert rig.services.producers.staged.counters.lost == 1
    assert rig.commit([(0, 0, 1)]).code == 0


def test_a_commit_waits_while_the_store_takes_nothing(rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.errors import StoreFullError

    rig.send("stage", rows("a"))
    assert rig.end("commit", [(0, 0, 1)]) is None

    def refuse(batch: object) -> int:
        raise StoreFullError("no room")

    monkeypatch.setattr(rig.store, "append", refuse)
    rig.turn()
    assert rig.services.producers.staged.counters.errors == 1
    monkeypatch.undo()
    rig.broker.tick()
    rig.turn()
    assert rig.asker.answers.pop().code == 0
    assert rig.bodies() == [b"a"]


def test_who_waits_for_a_commit_is_told_at_the_end(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows("a"))
    assert rig.end("commit", [(0, 0, 1)]) is None
    asker = rig.asker
    rig.restart()
    assert asker.answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
    rig.broker.tick()
    rig.turn()
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "chosen"),
        (b"{", "chosen"),
        (b"{}", "chosen"),
        (b'{"chosen": [{"partition": -1, "attempt": 0, "count": 0}]}', "chosen"),
        (b'{"chosen": [{"partition": 1, "attempt": 0}]}', "count"),
        (b"{" * (MAX_CHOSEN + 2), f"at most {MAX_CHOSEN} attempts"),  # not read: it would take a tenth of a second
        (
            b'{"chosen": [%b, %b]}' % ((b'{"partition": 1, "attempt": 0, "count": 0}',) * 2),
            "partition 1 is chosen twice",
        ),
    ],
)
def test_a_bad_body_of_a_commit_is_refused(rig: ExactlyOnceRig, body: bytes, named: str) -> None:
    ext = {"producerGroup": "P", "txn": "q1", "epoch": 0, "decision": "commit"}
    reply = rig.request(RequestCode.END_BATCH, ext, body)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert named in reply.remark
    reply = rig.request(RequestCode.END_BATCH, ext | {"decision": "perhaps"})
    assert "<decision>" in reply.remark


def test_a_commit_may_name_as_many_attempts_as_are_accepted() -> None:
    chosen = b",".join(b'{"partition": %d, "attempt": 0, "count": 0}' % number for number in range(MAX_CHOSEN))
    assert len(read_chosen(b'{"chosen": [%b]}' % chosen)) == MAX_CHOSEN


def test_a_save_that_waits_for_the_disk_at_the_end_is_done_by_the_end(
    rig: ExactlyOnceRig, caplog: pytest.LogCaptureFixture
) -> None:
    log = rig.services.producers.log
    rig.send("sequence", rows("a"))
    log.tick(0)
    rig.clock.advance_ms(61_000)
    log.tick(0)
    rig.restart()
    assert "bug" not in caplog.text
    assert rig.services.producers.log.counters.replayed == 0


class Publisher:
    """A user that may publish to some topics."""

    def __init__(self, *topics: str, name: str = "user") -> None:
        self.topics = topics
        self.name = name

    def may(self, action: Action, *, topic: str = "") -> bool:
        return topic in self.topics

    def require(self, action: Action, *, topic: str = "", group: str = "") -> None:
        assert action is Action.PUBLISH
        if topic not in self.topics:
            raise AccessDeniedError(f"no right to {topic}")


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_who_ends_a_batch_must_be_allowed_to_publish_all_of_it(rig: ExactlyOnceRig, decision: str) -> None:
    rig.asker.user = Publisher(TOPIC, "U")  # type: ignore[assignment]
    rig.send("stage", rows("a"))
    rig.send("stage", rows("b"), topic="U")
    rig.asker.user = Publisher(TOPIC)  # type: ignore[assignment]
    reply = rig.end(decision, [(0, 0, 2)])
    assert reply is not None
    assert reply.code == ResponseCode.NO_PERMISSION
    rig.asker.user = Publisher(TOPIC, "U")  # type: ignore[assignment]
    rig.end(decision, [(0, 0, 2)])
    rig.turn()
    assert len(rig.services.producers.staged) == 0


# -- what reviews found ------------------------------------------------------------------------------------------------


def lose_a_page(rig: ExactlyOnceRig, mark: bytes) -> None:
    """Cut the power: everything reached the disk but for the record whose body is ``mark``."""
    at = rig.store.log.end_offset
    path = Path(rig.store_settings.data_dir) / "commitlog" / f"{0:020}"
    rig.store.abandon()
    data = bytearray(path.read_bytes())
    found = data.index(mark)
    start = data.rindex(bytes.fromhex("daa320a7"), 0, found) - 4
    assert start < at
    data[start : start + int.from_bytes(data[start : start + 4], "big")] = bytes(
        int.from_bytes(data[start : start + 4], "big")
    )
    path.write_bytes(data)
    rig._open()


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_rows_behind_a_lost_page_are_stored_again_and_not_taken_for_duplicates(
    rig: ExactlyOnceRig, semantics: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["row-0", "row-1", "row-2", "row-3"]
    rig.send(semantics, rows("before"), txn="other")
    rig.send(semantics, rows(*names))
    rig.send(semantics, rows("behind"), txn="other", seq=1)
    lose_a_page(rig, b"row-2")
    assert rig.services.producers.log.counters.torn == 1
    assert "part of a batch is lost" in caplog.text
    assert ext_of(rig.send(semantics, rows(*names)))["duplicates"] == 2
    bodies = rig.bodies()
    assert set(bodies) == {b"before", b"behind", *(name.encode() for name in names)}
    assert ext_of(rig.send(semantics, rows("behind"), txn="other", seq=1))["stored"] == 0


def test_a_staged_run_behind_a_lost_page_has_to_be_sent_again(rig: ExactlyOnceRig) -> None:
    names = ["row-0", "row-1", "row-2", "row-3"]
    rig.send("stage", rows(*names))
    rig.send("stage", rows("behind"), txn="other")
    lose_a_page(rig, b"row-2")
    assert rig.commit([(0, 0, 4)]).code != 0
    assert ext_of(rig.send("stage", rows(*names)))["stored"] == 2
    assert rig.commit([(0, 0, 4)]).code == 0
    assert rig.bodies() == [name.encode() for name in names]


def test_a_page_lost_outside_of_batches_changes_nothing(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", rows("first"))
    plain = send_fields(TOPIC, queue_id=0)
    for body in (b"plain-1", b"plain-2"):
        rig.request(RequestCode.SEND_MESSAGE_V2, plain, body)
    rig.send("sequence", rows("second"), seq=1)
    lose_a_page(rig, b"plain-1")
    assert rig.services.producers.log.counters.torn == 0
    assert ext_of(rig.send("sequence", rows("first", "second")))["stored"] == 0


def test_progress_of_a_commit_behind_a_lost_page_is_made_again(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"row-{number}" for number in range(6)]
    rig.send("stage", rows(*names))
    rig.store.flush()
    staged_copy = rig.store.log.end_offset
    assert rig.end("commit", [(0, 0, 6)]) is None
    rig.turn()
    assert len(rig.bodies()) == 6
    at = rig.store.log.end_offset
    path = Path(rig.store_settings.data_dir) / "commitlog" / f"{0:020}"
    rig.send("sequence", rows("behind"), txn="other")
    rig.store.abandon()
    data = bytearray(path.read_bytes())
    found = data.index(b"row-4", staged_copy)
    assert found < at
    start = data.rindex(bytes.fromhex("daa320a7"), 0, found) - 4
    size = int.from_bytes(data[start : start + 4], "big")
    data[start : start + size] = bytes(size)
    path.write_bytes(data)
    rig._open()
    rig.broker.tick()
    rig.turn()
    assert set(rig.bodies()) == {*(name.encode() for name in names), b"behind"}
    assert rig.commit([(0, 0, 6)]).ext == {"alreadyCommitted": "true"}


def test_a_replay_at_the_bound_of_keys_is_known_and_forgets_nobody(tmp_path: Path) -> None:
    rig = small_rig(tmp_path, max_window_keys=10)
    eight = rows(*"abcdefgh")
    assert ext_of(rig.send("key", eight))["stored"] == 8
    assert ext_of(rig.send("key", eight))["duplicates"] == 8
    assert ext_of(rig.send("key", rows("x", "y"), txn="other"))["stored"] == 2
    assert ext_of(rig.send("key", eight))["duplicates"] == 8
    refused = rig.send("key", rows(*"nopqrstuvwz"), txn="third")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert rig.services.producers.keys.counters.forgotten == 0
    assert ext_of(rig.send("key", rows("x", "y"), txn="other"))["duplicates"] == 2
    rig.close()


@pytest.mark.parametrize("semantics", ["key", "stage"])
def test_duplicates_wait_for_the_strictest_queue_of_their_txn(rig: ExactlyOnceRig, semantics: str) -> None:
    first = rig.send(semantics, rows("a"))
    assert first.wait_offset > rig.store.durable_offset
    rig.send(semantics, rows("x"), topic="U", txn="makes the topic")
    rig.store.queue("U", 0).awaits_flush = False
    assert rig.send(semantics, rows("b"), topic="U").code == 0
    assert rig.send(semantics, rows("a")).wait_offset >= first.wait_offset


@pytest.mark.parametrize("semantics", ["sequence", "key"])
def test_delayed_rows_of_a_topic_that_waits_for_the_disk_wait_too(tmp_path: Path, semantics: str) -> None:
    rig = small_rig(tmp_path)
    rig.send("sequence", rows("a"), txn="makes the topic")
    rig.store.flush()
    for topic in ("SCHEDULE_TOPIC_XXXX", PRODUCER_TOPIC):
        for queue in rig.broker.topics[topic].queues if topic in rig.broker.topics else ():
            queue.awaits_flush = False
    assert rig.store.queue(TOPIC, 0).awaits_flush
    reply = rig.send(semantics, rows("later", DELAY="3"))
    assert reply.wait_offset > rig.store.durable_offset
    rig.close()


def test_a_decided_commit_that_waits_for_long_does_not_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the decision on it only goes forward, whatever the age of its messages."""
    rig = small_rig(tmp_path, stage_ttl_s=60)
    rig.send("stage", rows("a"))
    monkeypatch.setattr(type(rig.broker), "overloaded", True)
    assert rig.end("commit", [(0, 0, 1)]) is None
    rig.turn()
    rig.clock.advance_ms(80_000)
    rig.broker.tick()
    monkeypatch.undo()
    rig.broker.tick()
    rig.turn()
    assert rig.asker.answers.pop().code == 0
    assert rig.bodies() == [b"a"]
    rig.close()


@pytest.mark.parametrize("damaged_at", [4, 90])
def test_no_other_message_takes_the_place_of_a_damaged_one(rig: ExactlyOnceRig, damaged_at: int) -> None:
    """The staged message behind it is another queue's. Be it the record's kind that is damaged, or its body."""
    rig.send("stage", rows("a", "b"))
    rig.send("stage", rows("c"), queueId=1)
    rig.store.flush()
    place = rig.store.queue(STAGED_TOPIC, 0).entries(0, 1)[0][0]
    with (Path(rig.store_settings.data_dir) / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place + damaged_at)
        file.write(b"\0" * 4)
    assert "1 of its messages are lost" in rig.commit([(0, 0, 3)]).remark
    assert (rig.bodies(0), rig.bodies(1)) == ([b"b"], [b"c"])


def test_a_later_commit_waits_for_one_that_is_being_delivered(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "CHUNK_MESSAGES", 2)
    rig.send("stage", rows(*"abcd"), epoch=1)
    assert rig.end("commit", [(0, 0, 4)], epoch=1) is None
    later = rig.end("commit", [], epoch=2)
    assert later is not None
    assert later.code != 0
    assert "epoch 1 is committed and still being delivered" in later.remark
    assert rig.services.producers.staged.counters.refused_commits == 1
    rig.turn()
    assert rig.bodies() == [b"a", b"b", b"c", b"d"]
    assert rig.commit([], epoch=2).code == 0


def test_a_commit_whose_records_are_lost_ends_and_holds_nobody_up(rig: ExactlyOnceRig) -> None:
    rig.send("stage", rows(*"ab"))
    rig.send("stage", rows("o"), txn="other")
    assert rig.end("commit", [(0, 0, 2)]) is None
    batch = next(iter(rig.services.producers.staged._batches.values()))
    batch.attempts.clear()  # as a start finds it that cannot read them
    rig.turn()
    assert "2 of its messages are lost" in rig.asker.answers.pop().remark
    assert rig.commit([(0, 0, 1)], txn="other").code == 0
    assert rig.bodies() == [b"o"]


def test_a_txn_of_another_user_is_another(rig: ExactlyOnceRig) -> None:
    rig.asker.user = Publisher(TOPIC, name="victim")  # type: ignore[assignment]
    rig.send("stage", rows("a"))
    rig.asker.user = Publisher(TOPIC, name="other")  # type: ignore[assignment]
    assert rig.commit([], epoch=10**12).code == 0
    rig.asker.user = Publisher(TOPIC, name="victim")  # type: ignore[assignment]
    assert rig.commit([(0, 0, 1)]).ext == {}
    assert rig.bodies() == [b"a"]


def test_names_of_users_and_txns_do_not_run_into_each_other(rig: ExactlyOnceRig) -> None:
    rig.asker.user = Publisher(TOPIC, name="a")  # type: ignore[assignment]
    rig.send("sequence", rows("x"), txn="b:c")
    rig.asker.user = Publisher(TOPIC, name="a:b")  # type: ignore[assignment]
    assert ext_of(rig.send("sequence", rows("x"), txn="c"))["stored"] == 1


def test_a_message_that_cannot_stand_where_it_belongs_is_lost_alone(
    rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Others of its batch, and other batches, are delivered; who waits is told."""
    rig.send("stage", rows("a", "b", "too-long", "c"))
    rig.send("stage", rows("o"), txn="other")
    log, records = rig.services.producers.log, rig.services.producers.staged._records
    append = log.append

    def refuse(batch: PublishBatch, queues: list[Any], *rest: Any, **more: Any) -> int:
        if queues and any(records.body(index) == b"too-long" for index in range(len(batch) - 1)):
            raise MessageTooLargeError("message record", 9, 8)
        return append(batch, queues, *rest, **more)

    monkeypatch.setattr(log, "append", refuse)
    reply = rig.commit([(0, 0, 4)])
    assert "1 of its messages are lost" in reply.remark
    assert caplog.text.count("committed message cannot be stored") == 1
    assert rig.bodies() == [b"a", b"b", b"c"]
    assert rig.services.producers.staged.counters.lost == 1
    assert rig.commit([(0, 0, 1)], txn="other").code == 0
    assert rig.bodies() == [b"a", b"b", b"c", b"o"]


def large(first: int, count: int) -> list[tuple[bytes, dict[str, str]]]:
    return [(b"%d " % number + bytes(5_000), {"UNIQ_KEY": f"u{number}"}) for number in range(first, first + count)]


def numbers(rig: ExactlyOnceRig) -> list[int]:
    return [int(body.split()[0]) for body in rig.bodies()]


def test_a_batch_behind_a_lost_one_does_not_make_it_count(rig: ExactlyOnceRig) -> None:
    """docs/protocols/extensions.md, `sequence`: what was never answered is stored when it is sent again."""
    rig.send("sequence", large(0, 3))
    rig.store.flush()
    first = rig.store.log.end_offset
    rig.send("sequence", large(3, 3), seq=3)  # pipelined: neither is answered
    end = rig.store.log.end_offset
    rig.send("sequence", large(6, 3), seq=6)
    rig.lose(first, end)
    assert rig.services.producers.log.counters.unreadable == 0  # nothing stands where its record stood
    assert ext_of(rig.send("sequence", large(3, 6), seq=3))["stored"] == 6
    rig.store.flush()
    assert set(numbers(rig)) == set(range(9))
    assert ext_of(rig.send("sequence", large(9, 1), seq=9))["stored"] == 1


def test_a_row_behind_a_lost_first_one_does_not_make_it_count(rig: ExactlyOnceRig) -> None:
    rig.send("sequence", large(7, 1), txn="other")
    rig.store.flush()
    first = rig.store.log.end_offset
    rig.send("sequence", large(0, 1))
    end = rig.store.log.end_offset
    rig.send("sequence", large(1, 1), seq=1)
    rig.lose(first, end)
    assert ext_of(rig.send("sequence", large(0, 2)))["stored"] == 2
    rig.store.flush()
    assert set(numbers(rig)) == {7, 0, 1}


def test_a_staged_run_behind_a_lost_one_does_not_make_it_count(rig: ExactlyOnceRig) -> None:
    rig.send("stage", large(0, 3))
    rig.store.flush()
    first = rig.store.log.end_offset
    rig.send("stage", large(3, 3), seq=3)  # pipelined: neither is answered
    end = rig.store.log.end_offset
    rig.send("stage", large(6, 3), seq=6)
    rig.lose(first, end)
    assert rig.commit([(0, 0, 9)]).code != 0
    assert ext_of(rig.send("stage", large(3, 6), seq=3))["stored"] == 6
    assert rig.commit([(0, 0, 9)]).code == 0
    rig.store.flush()
    assert numbers(rig) == list(range(9))


def test_a_chunk_behind_a_lost_one_does_not_make_it_count(rig: ExactlyOnceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """END_BATCH: a commit that was decided is delivered as a whole."""
    monkeypatch.setattr("headrace.broker.exactly_once.staged.CHUNK_MESSAGES", 3)
    rig.send("stage", large(0, 9))
    rig.store.flush()
    assert rig.end("commit", [(0, 0, 9)]) is None
    rig.store.flush()
    ends = []
    for _ in range(3):
        rig.turn(1)
        ends.append(rig.store.log.end_offset)
    rig.lose(ends[0], ends[1])
    rig.turn()
    assert rig.commit([(0, 0, 9)]).code == 0
    rig.store.flush()
    assert set(numbers(rig)) == set(range(9))


def test_a_lost_key_stays_lost_behind_a_saved_copy(rig: ExactlyOnceRig) -> None:
    """The copy names the record of the batch; what it had of a key whose message is lost must not count again."""
    rig.send("key", large(0, 3))
    rig.store.flush()
    rig.send("key", large(3, 3))  # not answered
    queue = rig.store.queue(TOPIC, 0)
    places = queue.position_of(4), queue.position_of(5)
    rig.send("key", large(6, 1))  # behind it, so that it is a hole
    rig.lose(*places)
    rig.restart()
    assert ext_of(rig.send("key", large(3, 3)))["stored"] == 2
    rig.store.flush()
    assert set(numbers(rig)) == set(range(7))


def test_the_saved_copy_lists_attempts_again_only_when_something_was_staged(rig: ExactlyOnceRig) -> None:
    """While a commit of 100,000 attempts went on, each save held the loop for 200 ms."""
    rig.send("stage", rows("a"), partition=0)
    rig.send("stage", rows("b"), partition=1, queueId=1)
    batches = rig.services.producers.staged
    (staged_row,) = batches.snapshot()()["batches"]
    rig.end("commit", [(0, 0, 1), (1, 0, 1)])
    rig.turn(1)
    (row,) = batches.snapshot()()["batches"]
    assert row[4] == ([(0, 0), (1, 0)], 2, 1, 0)
    assert row[5] is staged_row[5]
    rig.turn()
    rig.send("stage", rows("c"), epoch=1)
    (first,) = batches.snapshot()()["batches"]
    rig.send("stage", rows("d"), epoch=1, partition=2)
    (second,) = batches.snapshot()()["batches"]
    assert (len(first[5]), len(second[5])) == (1, 2)
