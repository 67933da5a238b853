"""Messages that are sent back, and queries for messages. Ref: remoting.md 4.4, 4.5."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from headrace.broker.topic import TopicConfig
from headrace.remoting.codes import TOPIC_FLAG_UNIT_SUB
from headrace.remoting.reply import Reply
from headrace.store.key_query import KeyMatches
from tests.support.records import decode_messages
from tests.support.remoting import (
    RemotingRig,
    physical_offset_of,
    send_fields,
)

# -- send-back ---------------------------------------------------------------------------------------------------------


def test_sent_back_message_comes_again(rig: RemotingRig) -> None:
    """E-CONS-06, A-BROKER-31, A-BROKER-33, A-BROKER-34: delayed at level 3, in the retry topic, origin kept."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("T1"), b"hello")
    fields = {"offset": physical_offset_of(reply), "group": "G1", "delayLevel": 0, "originTopic": "T1"}
    assert peer.ask(36, fields).code == 0
    assert rig.messages("%RETRY%G1") == []
    rig.pass_time(11_000)
    (message,) = rig.messages("%RETRY%G1")
    assert message.reconsume_times == 1
    assert message.properties["RETRY_TOPIC"] == "T1"
    assert reply.ext is not None
    assert message.properties["ORIGIN_MESSAGE_ID"] == reply.ext["msgId"]
    assert rig.services.statistics.snapshot("SNDBCK_PUT_NUMS", "T1@G1") is not None


def test_message_is_taken_back_where_its_retry_topic_may_not_be_written_to(rig: RemotingRig) -> None:
    """RocketMQ 4.9.7 answers 16; its clients then send it to that topic themselves, which it accepts."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("T1"), b"hello")
    fields = {"offset": physical_offset_of(reply), "group": "G1", "delayLevel": 1}
    peer.ask(17, {"topic": "%RETRY%G1", "readQueueNums": 1, "writeQueueNums": 1, "perm": 4})
    assert peer.ask(36, fields).code == 0
    for within in (1, 4, -1):
        assert peer.ask(36, fields | {"offset": physical_offset_of(reply) + within}).code == 1
    rig.pass_time(2_000)
    assert [message.body for message in rig.messages("%RETRY%G1")] == [b"hello"]


def test_messages_of_a_deleted_topic_are_gone(rig: RemotingRig) -> None:
    """RocketMQ 4.9.7 shows them, takes them back and stores what was delayed or half in a queue of no topic."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    offset = physical_offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    half = peer.ask(310, send_fields("T1", properties={"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "U"}), b"half")
    assert half.ext is not None
    peer.ask(310, send_fields("T1", properties={"DELAY": "1"}), b"late")
    assert peer.ask(215, {"topic": "T1"}).code == 0
    assert peer.ask(33, {"offset": offset}).code == 1
    assert peer.ask(36, {"offset": offset, "group": "G1", "delayLevel": 0}).code == 1
    end = {"producerGroup": "P1", "commitOrRollback": 8, "tranStateTableOffset": half.ext["queueOffset"]}
    assert peer.ask(37, end | {"commitLogOffset": physical_offset_of(half)}).code == 0
    rig.pass_time(2_000)
    assert "T1" not in rig.broker.topics
    peer.ask(310, send_fields("T1"), b"new")
    queue = rig.broker.topics["T1"].queue(0)
    assert queue is not None
    assert queue.visible_offset - queue.min_offset == 1


@pytest.mark.parametrize("origin", ["x" * 1_000, "Elsewhere"])
def test_send_backs_are_counted_under_topics_that_there_are(rig: RemotingRig, origin: str) -> None:
    """Neither a consumer's word nor a producer's makes a counter."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("T1", properties={"RETRY_TOPIC": origin}), b"hello")
    assert (
        peer.ask(36, {"offset": physical_offset_of(reply), "group": "G1", "delayLevel": 0, "originTopic": origin}).code
        == 0
    )
    rig.pass_time(11_000)
    (again,) = rig.messages("%RETRY%G1")
    assert (
        peer.ask(36, {"offset": again.physical_offset, "group": "G1", "delayLevel": 0, "originTopic": origin}).code == 0
    )
    keys = rig.services.statistics.keys("SNDBCK_PUT_NUMS")
    assert sorted(keys) == ["%RETRY%G1@G1", "T1@G1"]


def test_send_backs_of_retries_are_counted_under_the_first_topic(rig: RemotingRig) -> None:
    """As in RocketMQ."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("T1"), b"hello")
    assert peer.ask(36, {"offset": physical_offset_of(reply), "group": "G1", "delayLevel": 0}).code == 0
    rig.pass_time(11_000)
    (again,) = rig.messages("%RETRY%G1")
    assert peer.ask(36, {"offset": again.physical_offset, "group": "G1", "delayLevel": 0}).code == 0
    assert rig.services.statistics.keys("SNDBCK_PUT_NUMS") == ["T1@G1"]


@pytest.mark.parametrize("fields", [{"delayLevel": -1}, {"delayLevel": 0, "maxReconsumeTimes": 0}])
def test_message_is_given_up(rig: RemotingRig, fields: dict[str, object]) -> None:
    """A-BROKER-32, A-BROKER-35; remoting.md 4.4: delayLevel < 0, or at the request's own maximum."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    offset = physical_offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    assert peer.ask(36, {"offset": offset, "group": "G1"} | fields).code == 0
    assert [message.body for message in rig.messages("%DLQ%G1")] == [b"hello"]
    assert rig.services.messages.letters.counts == {"G1": 1}
    assert peer.ask(207, {"groupName": "G1"}).code == 0
    assert not rig.services.messages.letters.counts


@pytest.mark.parametrize(("level", "made"), [(-1, False), (1, True)])
def test_the_retry_topic_is_made_when_a_message_waits_for_it(rig: RemotingRig, level: int, made: bool) -> None:
    """RocketMQ makes it also where the message becomes a dead letter at once."""
    peer = rig.peer()
    rig.services.ensure_group("G1")
    offset = physical_offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    assert peer.ask(36, {"offset": offset, "group": "G1", "delayLevel": level}).code == 0
    assert ("%RETRY%G1" in rig.broker.topics, "%DLQ%G1" in rig.broker.topics) == (made, not made)


def test_a_maximum_that_an_old_client_does_not_know_is_the_groups(rig: RemotingRig) -> None:
    """remoting.md 1.6: from version 121 on the request's counts; and 4.4, the flag of a retry topic made for it."""
    peer = rig.peer()
    rig.services.ensure_group("G1")
    fields = {"offset": physical_offset_of(peer.ask(310, send_fields("T1"), b"hello")), "group": "G1", "delayLevel": 1}
    assert peer.ask(36, fields | {"maxReconsumeTimes": 0, "unitMode": "true"}, version=120).code == 0
    rig.pass_time(2_000)
    assert [message.body for message in rig.messages("%RETRY%G1")] == [b"hello"]
    assert rig.broker.topics["%RETRY%G1"].config.sys_flag == TOPIC_FLAG_UNIT_SUB


def test_dead_letter_calls_the_webhook(tmp_path: Path) -> None:
    """A-BROKER-35: the setting names who is told; the message is stored whether or not it can be."""
    rig = RemotingRig(tmp_path, {"dead_letter_webhook": "http://127.0.0.1:1/alarm"})
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    offset = physical_offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    assert peer.ask(36, {"offset": offset, "group": "G1", "delayLevel": -1}).code == 0
    hook = rig.services.webhook
    assert hook is not None
    hook.close()
    rig.close()


def test_send_back_is_refused(rig: RemotingRig) -> None:
    """A-BROKER-29, A-BROKER-30; records of the broker itself cannot be fetched this way."""
    peer = rig.peer()
    offset = physical_offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    fields = {"offset": offset, "group": "G1", "delayLevel": 0}
    assert peer.ask(36, fields).code == 26
    peer.heartbeat("c1", group="G1")
    assert peer.ask(36, fields | {"offset": offset + 1}).code == 1
    assert peer.ask(36, fields | {"offset": -5}).code == 1
    assert peer.ask(36, fields | {"offset": 0}).code == 1  # the control record of the topic
    rig.services.permission = 4
    assert peer.ask(36, fields).code == 16


# -- queries -----------------------------------------------------------------------------------------------------------


def test_view_message(rig: RemotingRig) -> None:
    """A-STORE-10; remoting.md 4.5: 33."""
    peer = rig.peer()
    reply = peer.ask(33, {"offset": physical_offset_of(peer.ask(310, send_fields("T1"), b"hello"))})
    assert reply.body is not None
    assert [message["body"] for message in decode_messages(reply.body)] == [b"hello"]
    for offset in (0, 1, -1, 10**12):
        refused = peer.ask(33, {"offset": offset})
        assert refused.code == 1
        assert refused.remark.startswith("can not find message by the offset")


def test_query_by_key(rig: RemotingRig) -> None:
    """A-CLI-20; remoting.md 4.5: 12, by KEYS and by UNIQ_KEY; 22 when there is nothing."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1", properties={"KEYS": "K1 K2 K1", "UNIQ_KEY": "U1"}), b"one")
    peer.ask(310, send_fields("T1", properties={"KEYS": "K2"}), b"two")

    def query(key: str, **more: object) -> Reply:
        fields = {"topic": "T1", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
        rig.store.tick()
        assert peer.try_ask(12, fields | more) is None
        rig.store.index.executor.submit(lambda: None).result()
        return peer.answers.pop()

    def bodies(reply: Reply) -> list[bytes]:
        assert reply.code == 0, reply.remark
        assert reply.body is not None
        return [message["body"] for message in decode_messages(reply.body)]

    assert bodies(query("K1")) == [b"one"]
    assert bodies(query("K2")) == [b"one", b"two"]  # oldest first, as RocketMQ: a trace is read in this order
    assert bodies(query("K2", maxNum=1)) == [b"two"]  # but of too many, the newest
    assert bodies(query("U1", _UNIQUE_KEY_QUERY="true", endTimestamp=1)) == [b"one"]
    assert query("K1", beginTimestamp=rig.clock.now_ms() + 2_000).code == 22
    assert query("K1", endTimestamp=rig.clock.now_ms() - 2_000).code == 22
    assert query("K3").code == 22
    assert query("K1", _UNIQUE_KEY_QUERY="true").code == 22  # of RocketMQ's answer clients drop what has it in KEYS
    assert query("K3").ext == query("K1").ext
    assert bodies(query("U1", _UNIQUE_KEY_QUERY="true", maxNum=0)) == [b"one"]  # RocketMQ: 32 whatever is asked for


def test_query_that_fails_says_what_cannot_be_read(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment that is away is not the index."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1", properties={"KEYS": "K1"}), b"one")
    failed: Future[KeyMatches] = Future()
    failed.set_exception(FileNotFoundError(2, "No such file or directory", "commitlog/0"))
    monkeypatch.setattr(rig.store, "find_by_key", lambda _: failed)
    fields = {"topic": "T1", "key": "K1", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    for _ in range(10):
        reply = peer.request(12, fields) or peer.answers.pop()
        assert (reply.code, "commitlog/0" in reply.remark, "index" in reply.remark) == (1, True, False)
    assert caplog.text.count("query by key failed") == 1, "not for each of them"


@pytest.mark.parametrize("fields", [{"topic": "None"}, {"maxNum": 0}, {"maxNum": -1}])
def test_query_that_can_find_nothing(rig: RemotingRig, fields: dict[str, object]) -> None:
    """remoting.md 4.5: 22 and no other code."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1", properties={"KEYS": "K1"}), b"one")
    every = {"topic": "T1", "key": "K1", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    assert peer.ask(12, every | fields).code == 22


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_query_finds_nothing_of_a_deleted_topic_that_had_more_queues(
    rig: RemotingRig, is_started_again: bool
) -> None:
    """docs/formats/index-file.md: deleted topics never show, also not in one of their name that is made again."""
    rig.broker.create_topic("T", TopicConfig(3, 3))
    peer = rig.peer()
    sent = send_fields("T", queue_id=2, properties={"KEYS": "secret", "UNIQ_KEY": "U1"})
    assert peer.ask(310, sent, b"old").code == 0
    assert peer.ask(215, {"topic": "T"}).code == 0
    if is_started_again:
        rig.restart()
        peer = rig.peer()
    rig.broker.create_topic("T", TopicConfig(1, 1))
    rig.store.flush()
    rig.store.index.wait_live()
    for key, is_unique in (("secret", "false"), ("U1", "true")):
        asked = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        reply = peer.request(12, asked | {"_UNIQUE_KEY_QUERY": is_unique})
        rig.store.index.executor.submit(int).result()
        reply = reply or peer.answers.pop()
        assert b"old" not in (reply.body or b"")
