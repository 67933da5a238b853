"""Send-back, transactions, request-reply, queries, figures and configuration. Ref: remoting.md 4.4 to 4.7."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.access import Patterns, User
from headrace.broker.message import StoredMessage
from headrace.format import record
from headrace.remoting.codec import Command, decode_messages
from headrace.remoting.reply import Reply
from tests.support.remoting import RecordingPeer, RemotingRig, body_of, long_send_fields, send_fields


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemotingRig]:
    rig = RemotingRig(tmp_path / "store")
    yield rig
    rig.close()


def offset_of(reply: Reply) -> int:
    assert reply.code == 0, reply.remark
    assert reply.ext is not None
    return int(reply.ext["msgId"][-16:], 16)


def messages_of(rig: RemotingRig, topic: str) -> list[StoredMessage]:
    found = []
    for queue in rig.broker.topics[topic].queues:
        for physical_offset, _, _ in queue.entries(0, 100):
            raw = rig.store.log.read(physical_offset)
            assert raw is not None
            found.append(StoredMessage.from_record(raw))
    return found


def run(rig: RemotingRig, milliseconds: int) -> None:
    for _ in range(max(1, milliseconds // 1_000)):
        rig.clock.advance_ms(min(milliseconds, 1_000))
        rig.broker.tick()
        rig.store.flush()


# -- send-back ---------------------------------------------------------------------------------------------------------


def test_sent_back_message_comes_again(rig: RemotingRig) -> None:
    """E-CONS-06, A-BROKER-31, A-BROKER-33, A-BROKER-34: delayed at level 3, in the retry topic, origin kept."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("T1"), b"hello")
    fields = {"offset": offset_of(reply), "group": "G1", "delayLevel": 0, "originTopic": "T1"}
    assert peer.ask(36, fields).code == 0
    assert messages_of(rig, "%RETRY%G1") == []
    run(rig, 11_000)
    (message,) = messages_of(rig, "%RETRY%G1")
    assert message.reconsume_times == 1
    assert message.properties["RETRY_TOPIC"] == "T1"
    assert reply.ext is not None
    assert message.properties["ORIGIN_MESSAGE_ID"] == reply.ext["msgId"]
    assert rig.services.statistics.snapshot("SNDBCK_PUT_NUMS", "T1@G1") is not None


@pytest.mark.parametrize("origin", ["x" * 1_000, "Elsewhere"])
def test_send_backs_are_counted_under_topics_that_there_are(rig: RemotingRig, origin: str) -> None:
    """Neither a consumer's word nor a producer's makes a counter."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("T1", properties={"RETRY_TOPIC": origin}), b"hello")
    assert peer.ask(36, {"offset": offset_of(reply), "group": "G1", "delayLevel": 0, "originTopic": origin}).code == 0
    run(rig, 11_000)
    (again,) = messages_of(rig, "%RETRY%G1")
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
    assert peer.ask(36, {"offset": offset_of(reply), "group": "G1", "delayLevel": 0}).code == 0
    run(rig, 11_000)
    (again,) = messages_of(rig, "%RETRY%G1")
    assert peer.ask(36, {"offset": again.physical_offset, "group": "G1", "delayLevel": 0}).code == 0
    assert rig.services.statistics.keys("SNDBCK_PUT_NUMS") == ["T1@G1"]


@pytest.mark.parametrize("fields", [{"delayLevel": -1}, {"delayLevel": 0, "maxReconsumeTimes": 0}])
def test_message_is_given_up(rig: RemotingRig, fields: dict[str, object]) -> None:
    """A-BROKER-32, A-BROKER-35; remoting.md 4.4: delayLevel < 0, or at the request's own maximum."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    offset = offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    assert peer.ask(36, {"offset": offset, "group": "G1"} | fields).code == 0
    assert [message.body for message in messages_of(rig, "%DLQ%G1")] == [b"hello"]
    assert rig.services.letters.counts == {"G1": 1}


def test_dead_letter_calls_the_webhook(tmp_path: Path) -> None:
    """A-BROKER-35: the setting names who is told; the message is stored whether or not it can be."""
    rig = RemotingRig(tmp_path, {"dead_letter_webhook": "http://127.0.0.1:1/alarm"})
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    offset = offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    assert peer.ask(36, {"offset": offset, "group": "G1", "delayLevel": -1}).code == 0
    hook = rig.services.webhook
    assert hook is not None
    hook.close()
    rig.close()


def test_send_back_is_refused(rig: RemotingRig) -> None:
    """A-BROKER-29, A-BROKER-30; records of the broker itself cannot be fetched this way."""
    peer = rig.peer()
    offset = offset_of(peer.ask(310, send_fields("T1"), b"hello"))
    fields = {"offset": offset, "group": "G1", "delayLevel": 0}
    assert peer.ask(36, fields).code == 26
    peer.heartbeat("c1", group="G1")
    assert peer.ask(36, fields | {"offset": offset + 1}).code == 1
    assert peer.ask(36, fields | {"offset": -5}).code == 1
    assert peer.ask(36, fields | {"offset": 0}).code == 1  # the control record of the topic
    rig.services.permission = 4
    assert peer.ask(36, fields).code == 16


# -- transactions ------------------------------------------------------------------------------------------------------

HALF = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "U1", "TAGS": "A"}


def end(peer: RecordingPeer, half: Reply, decision: int, **more: object) -> Reply:
    assert half.ext is not None
    fields = {
        "producerGroup": "P1",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": offset_of(half),
        "commitOrRollback": decision,
        "msgId": "U1",
    }
    return peer.ask(37, fields | more)


def test_commit_and_rollback(rig: RemotingRig) -> None:
    """remoting.md 3.9, 4.6."""
    peer = rig.peer()
    kept = peer.ask(310, send_fields("T1", f=4, properties=HALF), b"kept")
    dropped = peer.ask(310, send_fields("T1", f=4, properties=HALF), b"dropped")
    assert end(peer, kept, 0).code == 0
    assert messages_of(rig, "T1") == []
    assert end(peer, kept, 8).code == 0
    assert end(peer, dropped, 12).code == 0
    (message,) = messages_of(rig, "T1")
    assert (message.body, message.sys_flag & 0xC, message.prepared_offset) == (b"kept", 8, offset_of(kept))


@pytest.mark.parametrize(
    "fields", [{"producerGroup": "P2"}, {"tranStateTableOffset": 9}, {"commitLogOffset": 1}, {"commitOrRollback": 5}]
)
def test_transactions_are_checked(rig: RemotingRig, fields: dict[str, object]) -> None:
    """remoting.md 4.6, trap 25: group, queue offset and physical offset must fit."""
    peer = rig.peer()
    half = peer.ask(310, send_fields("T1", f=4, properties=HALF), b"x")
    assert end(peer, half, 8, **fields).code == 1
    assert messages_of(rig, "T1") == []


def test_producer_is_asked_about_an_open_transaction(rig: RemotingRig) -> None:
    """remoting.md 4.6: 39 one-way, with the real topic in the record and the offsets of the newest copy."""
    peer = rig.peer()
    peer.heartbeat("c1", producer="P1")
    peer.ask(310, send_fields("T1", f=4, properties=HALF), b"open")
    run(rig, 10_000)
    code, ext, body = peer.notices[0]
    assert code == 39
    assert body is not None
    decoded = record.decode(body)
    assert (decoded["topic"], decoded["body"]) == ("T1", b"open")
    assert ext["msgId"] == ext["transactionId"] == "U1"
    fields = {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    assert peer.ask(37, fields | {"producerGroup": "P1", "commitOrRollback": 8, "msgId": "U1"}).code == 0
    assert [message.body for message in messages_of(rig, "T1")] == [b"open"]


def test_question_that_may_be_put_to_nobody_does_not_count(tmp_path: Path) -> None:
    """A user who names the group and may not publish to the topic: else its transactions are given up meanwhile."""
    rig = RemotingRig(tmp_path, {"transaction_check_max": 2})
    producer, stranger = rig.peer(1), rig.peer(2)
    producer.ask(310, send_fields("T1", f=4, properties=HALF), b"open")
    stranger.user = User(name="stranger", publish=Patterns(["Other"]))
    for _ in range(5):
        stranger.heartbeat("c2", producer="P1")
        run(rig, 60_000)
    assert (stranger.notices, rig.services.transactions.counters.checks) == ([], 0)
    assert rig.services.transactions.open_count == 1
    producer.heartbeat("c1", producer="P1")
    run(rig, 31_000)
    assert [code for code, _, _ in producer.notices] == [39]
    rig.close()


def test_questions_are_spread_over_the_producers_that_may_be_asked(rig: RemotingRig) -> None:
    """remoting.md 4.6: any of the group; those who may not publish to the topic stand among them."""
    peers = [rig.peer(port) for port in range(1, 7)]
    for number, peer in enumerate(peers):
        peer.user = User(name=f"u{number}", publish=Patterns(["T1" if number % 2 else "Other"]))
        peer.heartbeat(f"c{number}", producer="P1")
    for _ in range(60):
        peers[1].ask(310, send_fields("T1", f=4, properties=HALF), b"open")
    run(rig, 31_000)
    asked = [len(peer.notices) for peer in peers]
    assert asked[0] == asked[2] == asked[4] == 0
    assert sum(asked) == 60
    assert min(asked[1], asked[3], asked[5]) > 0


# -- request-reply -----------------------------------------------------------------------------------------------------

REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "id1", "REPLY_TO_CLIENT": "c1", "TTL": "3000"}


@pytest.mark.parametrize("code", [324, 325])
def test_reply_is_pushed_and_stored(rig: RemotingRig, code: int) -> None:
    """remoting.md 4.6, trap 26: to the producer of that client id; the answer is that of the store."""
    requester, responder = rig.peer(1), rig.peer(2)
    requester.heartbeat("c1", producer="P1")
    given = "".join(f"{name}\x01{value}\x02" for name, value in REPLY.items())
    fields = (
        long_send_fields("C1_REPLY_TOPIC", properties=given)
        if code == 324
        else send_fields("C1_REPLY_TOPIC", properties=REPLY)
    )
    reply = responder.ask(code, fields, b"answer")
    assert reply.ext is not None
    assert reply.ext["queueOffset"] == "0"
    pushed, ext, body, _ = requester.calls.pop()
    assert (pushed, body, ext["bornHost"], ext["storeHost"]) == (326, b"answer", "10.0.0.5:2", "127.0.0.1:10911")
    assert "CORRELATION_ID\x01id1\x02" in ext["properties"]
    pushed_names = [text.partition("\x01")[0] for text in ext["properties"].rstrip("\x02").split("\x02")]
    assert pushed_names == [*REPLY, "PUSH_REPLY_TIME"]
    assert [message.body for message in messages_of(rig, "C1_REPLY_TOPIC")] == [b"answer"]


def test_reply_topic_is_made_like_any_other(rig: RemotingRig) -> None:
    """A responder of another cluster's name: RocketMQ makes the topic too."""
    assert rig.peer().ask(325, send_fields("Other_REPLY_TOPIC", properties=REPLY), b"answer").code == 0
    assert rig.broker.topics["Other_REPLY_TOPIC"].config.write_queues == 4


def test_reply_that_is_not_stored_waits_for_its_requester(tmp_path: Path) -> None:
    """remoting.md 4.6: msgId 0 when it arrived, code 1 when it did not."""
    rig = RemotingRig(tmp_path, store_replies=False)
    requester, responder = rig.peer(1), rig.peer(2)
    fields = send_fields("C1_REPLY_TOPIC", properties=REPLY)
    assert responder.try_ask(325, fields, b"answer") is None
    assert responder.answers[-1].code == 1
    assert "not found" in responder.answers[-1].remark
    requester.heartbeat("c1", producer="P1")
    responder.try_ask(325, fields, b"answer")
    requester.calls.pop()[3](Command(0, {}, b""))
    assert responder.answers[-1].ext is not None
    assert responder.answers[-1].ext["msgId"] == "0"
    responder.try_ask(325, fields, b"answer")
    requester.calls.pop()[3](None)
    assert responder.answers[-1].code == 1
    assert messages_of(rig, "C1_REPLY_TOPIC") == []
    rig.close()


# -- queries -----------------------------------------------------------------------------------------------------------


def test_view_message(rig: RemotingRig) -> None:
    """A-STORE-10; remoting.md 4.5: 33."""
    peer = rig.peer()
    reply = peer.ask(33, {"offset": offset_of(peer.ask(310, send_fields("T1"), b"hello"))})
    assert reply.body is not None
    assert [message["body"] for message in decode_messages(reply.body)] == [b"hello"]
    for offset in (0, 1, -1, 10**12):
        refused = peer.ask(33, {"offset": offset})
        assert refused.code == 1
        assert refused.remark.startswith("can not find message by the offset")


def test_query_by_key(rig: RemotingRig) -> None:
    """A-CLI-20; remoting.md 4.5: 12, by KEYS and by UNIQ_KEY; 22 when there is nothing."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1", properties={"KEYS": "K1 K2", "UNIQ_KEY": "U1"}), b"one")
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
    assert query("K3").code == 22
    assert query("K3").ext == query("K1").ext
    assert bodies(query("U1", _UNIQUE_KEY_QUERY="true", maxNum=0)) == [b"one"]  # RocketMQ: 32 whatever is asked for


@pytest.mark.parametrize("fields", [{"topic": "None"}, {"maxNum": 0}, {"maxNum": -1}])
def test_query_that_can_find_nothing(rig: RemotingRig, fields: dict[str, object]) -> None:
    """remoting.md 4.5: 22 and no other code."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1", properties={"KEYS": "K1"}), b"one")
    every = {"topic": "T1", "key": "K1", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    assert peer.ask(12, every | fields).code == 22


# -- figures and configuration -----------------------------------------------------------------------------------------


RUNTIME_KEYS = (
    "putTps",
    "getTransferedTps",
    "getTransferredTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "earliestMessageTimeStamp",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "brokerVersionDesc",
    "brokerVersion",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "bootTimestamp",
    "runtime",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "scheduleMessageOffset_1",
    "brokerActive",
    "pageCacheLockTimeMills",
)


def test_runtime_info_has_every_key_that_tools_read(rig: RemotingRig) -> None:
    """remoting.md 4.7.3, trap 23: all values are strings."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    table = body_of(peer.ask(28))["table"]
    for name in RUNTIME_KEYS:
        assert isinstance(table[name], str), name
    assert (table["brokerVersion"], table["brokerVersionDesc"], table["msgPutTotalTodayNow"]) == ("409", "V4_9_8", "1")
    assert len(table["putTps"].split(" ")) == 3


def test_runtime_info_of_a_broker_with_fewer_delay_levels_than_before(tmp_path: Path) -> None:
    """remoting.md 4.7.3: what waits at a level that the setting has no more is shown, not a bug."""
    rig = RemotingRig(tmp_path / "store")
    assert rig.peer().ask(310, send_fields("T1", properties={"DELAY": "5"}), b"later").code == 0
    rig.close()
    rig = RemotingRig(tmp_path / "store", {"delay_levels": "1s 5s"})
    table = body_of(rig.peer().ask(28))["table"]
    assert [table[f"scheduleMessageOffset_{level}"] for level in (1, 2, 5, 18)] == ["0,0", "0,0", "0,1", "0,0"]
    rig.close()


def test_runtime_info_can_be_parsed_by_the_exporter(rig: RemotingRig) -> None:
    """rocketmq-exporter parses these and drops all figures of the broker when one is missing or of another form."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    table = body_of(peer.ask(28))["table"]
    count, size = rig.store.log.appended_records, rig.store.log.appended_bytes
    assert (table["putMessageTimesTotal"], table["putMessageSizeTotal"]) == (str(count), str(size))
    assert float(table["putMessageAverageSize"]) == pytest.approx(size / count, abs=0.05)
    for name in ("getMessageEntireTimeMax", "putMessageEntireTimeMax", "startAcceptSendRequestTimeStamp"):
        assert table[name] == "0"
    words = table["commitLogDirCapacity"].split(" ")
    assert [words[0], words[1], words[4], words[5]] == ["Total", ":", "Free", ":"]
    assert re.fullmatch(r"\d+\.\d", words[2]), words
    assert re.fullmatch(r"[KMGTPE]iB,", words[3]), words
    assert re.fullmatch(r"[KMGTPE]iB\.", words[7]), words
    usage = shutil.disk_usage(rig.store.directory.root)
    assert float(table["commitLogDiskRatio"]) == pytest.approx(usage.used / (usage.used + usage.free), abs=0.01)
    times = [part.split(":") for part in table["putMessageDistributeTime"].split()]
    assert len(times) == 13
    assert times[0] == ["[<=0ms]", "0"]
    assert times[-1] == ["[10s~]", "0"]


def test_counters(rig: RemotingRig) -> None:
    """A-BROKER-49; remoting.md 4.7.3: 315."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    body = body_of(peer.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T1"}))
    assert [body[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [1, 1, 1]
    assert peer.ask(315, {"statsName": "BROKER_PUT_NUMS", "statsKey": "C1"}).code == 0
    assert peer.ask(315, {"statsName": "NONE", "statsKey": "T1"}).code == 1


def test_configuration_is_shown_and_changed(rig: RemotingRig) -> None:
    """remoting.md 4.7.3: 26 and 25; what is changed takes effect."""
    peer = rig.peer()
    reply = peer.ask(26)
    assert reply.body is not None
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert (lines["brokerName"], lines["brokerClusterName"], lines["listenPort"]) == ("broker-a", "C1", "10911")
    assert peer.ask(25, body=b"autoCreateTopicEnable=false\nunknownKey=1\n").code == 0
    assert peer.ask(310, send_fields("New"), b"x").code == 17
    assert peer.ask(25, body=b"longPollingEnable=false\nbrokerName=broker-a").code == 0
    assert not rig.services.long_polling
    assert peer.ask(25, body=b"brokerPermission=4").code == 0
    assert peer.ask(310, send_fields("TBW102"), b"x").code == 16


@pytest.mark.parametrize(
    "body",
    [
        b"storePathRootDir=/tmp",
        b"configBlackList=",
        b"rocketmqHome=/",
        b"brokerName=x",
        b"brokerPermission=9",
        b"brokerPermission=00026666",
        b"brokerPermission=0002" + b"0" * 5_000,
        "brokerPermission=\uff16".encode(),
        b"autoCreateTopicEnable=x",
    ],
)
def test_configuration_that_must_not_change(rig: RemotingRig, body: bytes) -> None:
    """Issue item 3: an allow-list, never paths or commands."""
    assert rig.peer().ask(25, body=body).code == 16


def test_delay_offsets(rig: RemotingRig) -> None:
    """remoting.md 4.2: 45."""
    assert body_of(rig.peer().ask(45))["offsetTable"]["1"] == 0
