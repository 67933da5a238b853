"""Send-back: retry topics, delay levels, dead letters and their alarm. remoting.md 4.4 (code 36); A-BROKER-29 to 35."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.broker.copies import RecordCopy
from headrace.broker.gathering import Gathering
from headrace.broker.withheld import retry
from headrace.broker.withheld.retry import DeadLetter, RetryRules
from headrace.errors import MessageNotFoundError, RequestError
from headrace.format.names import HALF_TOPIC, SCHEDULE_TOPIC
from tests.support.messaging import SENDER, MessagingRig

RULES = RetryRules("G", retry_queues=1, retry_max_times=16)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MessagingRig]:
    made = MessagingRig(tmp_path / "store")
    yield made
    made.close()


def test_a_failed_message_comes_back_through_its_retry_topic(rig: MessagingRig) -> None:
    """A-BROKER-31, 33: %RETRY% + group, after level 3 + reconsumptions, one more reconsumption, its origin noted.

    Ref: X-STORE-03, E-CONS-06.
    """
    stored = rig.append("T", b"body", TAGS="a", UNIQ_KEY="u1")
    assert rig.send_back(RULES, stored.physical_offset)
    rig.store.flush()
    assert rig.read(SCHEDULE_TOPIC, 2)[0].properties["DELAY"] == "3"
    rig.pass_time(9_900)
    assert rig.bodies("%RETRY%G") == []
    rig.pass_time(200)
    (copy,) = rig.read("%RETRY%G")
    assert (copy.body, copy.reconsume_times, copy.flag, copy.sys_flag) == (b"body", 1, 7, 1)
    assert (copy.born_ms, copy.born_host) == (1_600_000_000_000, SENDER)
    assert copy.properties == {
        "TAGS": "a", "UNIQ_KEY": "u1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": stored.message_id, "WAIT": "false",
        "DELAY": "3", "REAL_TOPIC": "%RETRY%G", "REAL_QID": "0",
    }  # fmt: skip


def test_each_retry_waits_longer_until_the_message_is_a_dead_letter(rig: MessagingRig) -> None:
    """remoting.md 4.4: 10s 30s 1m ... 2h, then DLQ: delivered at most 1 + 16 times (X-BROKER-07).

    Ref: X-BROKER-08, X-NSQ-26.
    """
    stored = rig.append("T", b"body")
    levels = []
    for times in range(16):
        rig.send_back(RULES, stored.physical_offset)
        rig.store.flush()
        levels += [level for level, count in rig.levels.waiting.items() if count]
        rig.pass_time(2 * 3_600_000 + 1_000, step=60_000)
        stored = rig.read("%RETRY%G")[-1]
        assert stored.reconsume_times == times + 1
        assert stored.properties["RETRY_TOPIC"] == "T"
    assert levels == list(range(3, 19))
    rig.send_back(RULES, stored.physical_offset)
    rig.store.flush()
    (letter,) = rig.read("%DLQ%G")
    assert (letter.body, letter.reconsume_times) == (b"body", 17)
    assert "DELAY" not in letter.properties
    assert len({copy.properties["ORIGIN_MESSAGE_ID"] for copy in rig.read("%RETRY%G")}) == 1
    config = rig.broker.find_topic("%DLQ%G").config
    assert (config.read_queues, config.write_queues, config.perm) == (1, 1, 6)


def test_the_consumer_may_choose_the_level_or_the_end(rig: MessagingRig) -> None:
    """X-BROKER-08; remoting.md 4.4: delayLevel > 0 is used, < 0 is a dead letter at once; its own maximum wins."""
    stored = rig.append("T", b"body")
    rig.send_back(RULES, stored.physical_offset, 5)
    rig.send_back(RULES, stored.physical_offset, -1)
    rig.send_back(RULES, stored.physical_offset, most=0)
    rig.send_back(RULES, stored.physical_offset, 99)  # the last there is
    rig.store.flush()
    assert {level: count for level, count in rig.levels.waiting.items() if count} == {5: 1, 18: 1}
    assert rig.bodies("%DLQ%G") == [b"body", b"body"]
    assert (rig.retries.counters.retried, rig.retries.letters.counts) == (2, {"G": 2})


def test_copies_go_to_all_retry_queues_in_turn(rig: MessagingRig) -> None:
    """A-BROKER-31: the queue id lies within retryQueueNums."""
    stored = rig.append("T", b"body")
    for _ in range(6):
        rig.send_back(RetryRules("G", retry_queues=3), stored.physical_offset, 1)
    rig.pass_time(1_100)
    assert [len(rig.read("%RETRY%G", queue_id)) for queue_id in range(3)] == [2, 2, 2]


def test_a_copy_is_as_durable_as_the_retry_topic_asks(rig: MessagingRig) -> None:
    """It waits at a delay level, which may ask for less; the consumer is told when the copy cannot be lost any more."""
    stored = rig.append("T", b"body")
    rig.retries.ensure_retry_topic(RULES)
    rig.store.flush()
    for queue in rig.broker.topics[SCHEDULE_TOPIC].queues:
        queue.awaits_flush = False
    result = rig.send_back(RULES, stored.physical_offset)
    assert result is not None
    assert result > rig.store.durable_offset
    for queue in rig.broker.topics["%RETRY%G"].queues:
        queue.awaits_flush = False
    result = rig.send_back(RULES, stored.physical_offset)
    assert result == 0


@pytest.mark.parametrize("groups", ["GH", "HG"])
def test_of_copies_that_are_written_together_the_strictest_counts(rig: MessagingRig, groups: str) -> None:
    """One of them may be lost: nobody is told before all are durable, whichever came last."""
    stored = rig.append("T", b"body")
    rules = {group: RetryRules(group) for group in groups}
    for each in rules.values():
        rig.retries.ensure_retry_topic(each)
    for name in (SCHEDULE_TOPIC, "%RETRY%H"):
        for queue in rig.broker.topics[name].queues:
            queue.awaits_flush = False
    rig.store.flush()
    raw = rig.store.log.read(stored.physical_offset)
    assert raw is not None
    gathering = Gathering(rig.broker)
    works = [rig.retries.sending_back(gathering, each, RecordCopy(raw), 0) for each in rules.values()]
    gathering.publish()
    waited = [work.finish(rig.clock.now_ms()) for work in works if work is not None]
    assert waited == [rig.store.log.end_offset] * 2


def test_a_group_without_retry_queues_drops(rig: MessagingRig) -> None:
    """remoting.md 4.4: retryQueueNums <= 0 answers 0, the message is dropped."""
    stored = rig.append("T", b"body")
    assert rig.send_back(RetryRules("G", retry_queues=0), stored.physical_offset) is None
    assert rig.retries.counters.dropped == 1
    assert "%RETRY%G" not in rig.broker.topics


def test_what_nobody_was_given_cannot_be_sent_back(rig: MessagingRig) -> None:
    """Bad input: messages that no consumer was given."""
    half, _ = rig.transactions.prepare(rig.message("T", b"secret", PGROUP="P"), 0)
    waiting, _ = rig.levels.put(rig.message("T", b"waits"), 1)
    rig.store.flush()
    control = rig.store.queue("%SYS%CONTROL", 0).entries(0, 1)[0][0]
    for offset in (half.physical_offset, waiting.physical_offset, control):
        with pytest.raises(MessageNotFoundError):
            rig.send_back(RULES, offset)
    rig.store.flush()
    assert rig.bodies(HALF_TOPIC) == [b"secret"]


def test_a_dead_letter_raises_an_alarm(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """A-BROKER-35: a counter per group, one line a minute, and a callback each time."""
    alarms: list[DeadLetter] = []
    rig.letters.on_alarm = alarms.append
    stored = rig.append("T", b"body", UNIQ_KEY="u1")
    with caplog.at_level(logging.ERROR):
        for pause_ms in (0, 59_999, 1):
            rig.clock.advance_ms(pause_ms)
            rig.send_back(RULES, stored.physical_offset, -1)
        rig.send_back(RetryRules("H"), stored.physical_offset, -1)
    lines = [line.getMessage() for line in caplog.records if "dead letter" in line.getMessage()]
    assert [line.split(" topic")[0] for line in lines] == [
        "dead letter group=G", "dead letter group=G", "dead letter group=H",
    ]  # fmt: skip
    assert [(alarm.group, alarm.count) for alarm in alarms] == [("G", 1), ("G", 2), ("G", 3), ("H", 1)]
    assert (alarms[0].topic, alarms[0].message_id, alarms[0].reconsume_times) == ("T", "u1", 1)
    assert rig.letters.counts == {"G": 3, "H": 1}
    assert rig.letters.total == 4


def test_what_an_alarm_says_of_a_message_is_cut(rig: MessagingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Topic and id are properties: a producer may set them."""
    alarms: list[DeadLetter] = []
    rig.letters.on_alarm = alarms.append
    stored = rig.append("T", b"body", UNIQ_KEY="k" * 5_000, RETRY_TOPIC="t" * 5_000)
    rig.send_back(RULES, stored.physical_offset, -1)
    assert (alarms[0].topic, alarms[0].message_id) == ("t" * 255, "k" * 255)
    assert max(len(line) for line in caplog.messages) < 700
    assert rig.letters.take_counts() == {("G", "t" * 255): 1}


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_what_was_sent_back_survives(rig: MessagingRig, way: str) -> None:
    """Issue 4: kill -9 under send-back: 0 acknowledged lost."""
    for number in range(20):
        stored = rig.append("T", b"%d" % number)
        rig.send_back(RULES, stored.physical_offset, 2 if number % 2 else -1)
    rig.store.flush()
    getattr(rig, way)()
    rig.pass_time(5_100)
    assert rig.bodies("%RETRY%G") == [b"%d" % number for number in range(1, 20, 2)]
    assert rig.bodies("%DLQ%G") == [b"%d" % number for number in range(0, 20, 2)]


def test_odd_properties_hold_up_nothing(rig: MessagingRig) -> None:
    """Bad input: a client may store a value with 0x01 in it; what cannot be read back is refused."""
    batch = PublishBatch()
    rig.message("T", b"")
    batch.destinations, batch.queues = ["T"], [rig.store.queue("T", 0)]
    batch.append(b"body", properties=b"a\x01b\x01c\x02k\x01v\x02")
    rig.store.append(batch)
    rig.send_back(RULES, batch.placed(0)[0], -1)
    rig.store.flush()
    (letter,) = rig.read("%DLQ%G")
    assert (letter.properties["a"], letter.properties["k"]) == ("b\x01c", "v")
    with pytest.raises(RequestError, match="properties"):
        rig.levels.put(rig.message("T", b"x", a="b\x02c"), 1)


def test_who_is_counted_already_is_counted_on(rig: MessagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is for groups and topics that come anew."""
    monkeypatch.setattr(retry, "MAX_GROUPS", 1)
    for group in ("G", "H", "G"):
        rig.retries.letters.note(group, "T", "id", 1, 0)
    assert rig.retries.letters.take_counts() == {("G", "T"): 2}
    assert (rig.retries.letters.counts, rig.retries.letters.total) == ({"G": 2}, 3)
