"""Offsets: committed, searched for, reset. Ref: remoting.md 4.4, 4.5, 4.7.5."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.format.fastjson import ObjectKey
from headrace.remoting.codec import encode_request
from tests.support.remoting import RemotingRig, as_json, body_of, consumer_data, send_fields, subscription

QUEUE = {"topic": "T1", "queueId": 0}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemotingRig]:
    rig = RemotingRig(tmp_path / "store")
    for number in range(3):
        rig.peer().ask(310, send_fields("T1"), b"%d" % number)
        rig.clock.advance_ms(1_000)
    yield rig
    rig.close()


def offset(rig: RemotingRig, code: int, **fields: object) -> int:
    reply = rig.peer().ask(code, QUEUE | fields)
    assert reply.code == 0, reply.remark
    assert reply.ext is not None
    return int(reply.ext["offset"])


def test_young_queue_is_read_from_its_beginning(rig: RemotingRig) -> None:
    """remoting.md 4.4 code 14, trap 10: 0, not 22; also for a topic that does not exist."""
    assert offset(rig, 14, consumerGroup="G1") == 0
    assert offset(rig, 14, consumerGroup="G1", topic="None") == 0
    assert rig.peer().ask(14, QUEUE | {"consumerGroup": "G1", "setZeroIfNotFound": "false"}).code == 22


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (222, {"topic": "T1", "group": "G1", "timestamp": -1, "isForce": "true"}),
        (314, {"srcGroup": "G1", "destGroup": "G2", "topic": "T1"}),
        (207, {"groupName": "G1", "removeOffset": "true"}),
        (215, {"topic": "T1"}),  # else a kill brings them back, for a topic of that name that is made later
    ],
)
def test_what_a_tool_does_to_offsets_is_answered_when_it_is_on_disk(
    rig: RemotingRig, code: int, fields: dict[str, object]
) -> None:
    """A tool does not say it again, as a consumer does."""
    rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 1})
    reply = rig.peer().ask(code, fields)
    assert reply.wait_saved is not None
    answers: list[OSError | None] = []
    reply.wait_saved(answers.append)
    for _ in range(2):
        rig.services.group_services.wait_for_files()
    assert answers == [None]
    path = rig.store.directory.root / "config" / "consumerOffset.json"
    assert ("T1@G1" in path.read_text()) == (code not in {207, 215})


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (15, {"consumerGroup": "CID_RMQ_SYS_TRANS", "commitOffset": 1}),
        (222, {"group": "CID_RMQ_SYS_TRANS", "timestamp": -1, "isForce": "true"}),
        (314, {"srcGroup": "G1", "destGroup": "CID_RMQ_SYS_TRANS"}),
    ],
)
def test_offsets_of_decided_transactions_are_the_brokers(
    rig: RemotingRig, code: int, fields: dict[str, object]
) -> None:
    """A start takes what lies below them for decided: an open half message there would be lost."""
    half = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": 0}
    assert rig.peer().ask(code, half | fields).code == 16


def test_old_queue_is_not(rig: RemotingRig) -> None:
    """remoting.md 4.4 code 14: its first message is far behind."""
    rig.services.memory_bytes = 100
    reply = rig.peer().ask(14, QUEUE | {"consumerGroup": "G1"})
    assert reply.code == 22


def test_queue_that_cannot_be_read_now_is_young(rig: RemotingRig) -> None:
    """remoting.md 5.3: clients of 4.9 take any refusal for "no offset", and begin at the end."""
    rig.restart()
    rig.services.memory_bytes = 100
    folder = rig.store.directory.consume_queues
    folder.rename(folder.with_name("away"))
    rig.store.files.close()  # those that are open can be read on
    assert offset(rig, 14, consumerGroup="G1") == 0
    folder.with_name("away").rename(folder)


def test_a_queue_whose_first_messages_were_lost_is_as_young_as_its_first_one(rig: RemotingRig) -> None:
    """What stands in their places in the queue has no place in the log, and was taken for its beginning."""
    rig.peer().ask(310, send_fields("T2"), b"lost")
    queue = rig.store.queue("T2", 0)
    rig.store.flush()
    queue.forget_from(queue.position_of(0))
    rig.peer().ask(310, send_fields("T2"), b"kept")
    distance = rig.store.log.end_offset - queue.position_of(1)
    rig.services.memory_bytes = 3 * distance
    assert offset(rig, 14, consumerGroup="G1", topic="T2") == 0
    assert rig.peer().ask(14, QUEUE | {"consumerGroup": "G1"}).code == 22


def make_again(rig: RemotingRig, topic: str = "T1") -> None:
    """Delete a topic, make it again and send three messages to it."""
    assert rig.peer().ask(215, {"topic": topic}).code == 0
    topic_fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert rig.peer().ask(17, topic_fields).code == 0
    for number in range(3):
        assert rig.peer().ask(310, send_fields(topic), b"again-%d" % number).code == 0


@pytest.mark.parametrize("way", ["running", "restart", "crash"])
def test_a_new_group_reads_a_topic_made_again_from_its_first_message(rig: RemotingRig, way: str) -> None:
    """remoting.md 4.4 code 14: RocketMQ's queue begins at 0 again and is young; ours goes on, and is as young."""
    make_again(rig)
    if way != "running":
        getattr(rig, way)()
    assert offset(rig, 14, consumerGroup="G1") == offset(rig, 31) == 3
    assert rig.peer().ask(14, QUEUE | {"consumerGroup": "G1", "setZeroIfNotFound": "false"}).code == 22
    rig.services.memory_bytes = 100
    assert rig.peer().ask(14, QUEUE | {"consumerGroup": "G1"}).code == 22


def test_a_topic_made_again_that_lost_its_beginning_is_not_young(rig: RemotingRig) -> None:
    """What is missing was its own: a group must hear of it, not go on as if it had been another topic's."""
    make_again(rig)
    rig.store.queue("T1", 0).hide_below(4)
    assert rig.peer().ask(14, QUEUE | {"consumerGroup": "G1"}).code == 22


def test_a_retry_topic_made_again_is_young_too(rig: RemotingRig) -> None:
    """A group that was deleted with its retry topic and made again misses none of what it sends back."""
    rig.services.ensure_group("G1")
    rig.peer().ask(310, send_fields("%RETRY%G1"), b"old")
    make_again(rig, "%RETRY%G1")
    assert offset(rig, 14, consumerGroup="G1", topic="%RETRY%G1") == 1


@pytest.mark.parametrize("way", ["running", "restart", "crash"])
def test_a_pull_below_a_topic_made_again_goes_on_at_its_beginning_at_once(rig: RemotingRig, way: str) -> None:
    """remoting.md 4.4 code 11: clients that hear "moved" rest for 20 s, and nothing is missing."""
    make_again(rig)
    if way != "running":
        getattr(rig, way)()
    pull = {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4}
    pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 1}
    texts = {name: str(value) for name, value in pull.items()}
    answer = rig.link().ask(encode_request(0, 11, 1, ext=texts))[1]
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["minOffset"]) == (20, "3", "3")


@pytest.mark.parametrize(("topic", "durable"), [("T1", 3), ("New", 0)])
def test_a_topic_made_again_ends_nowhere_in_front_of_its_beginning(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, topic: str, durable: int
) -> None:
    """Messages of the former topic may await their flush; a group at the beginning was told "moved", and rested."""
    rig.services.ensure_group("G1")
    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "flush", lambda: None)
        for _ in range(2):
            rig.peer().ask(310, send_fields(topic), b"old")
        rig.peer().ask(215, {"topic": topic})
        numbers = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        rig.peer().ask(17, {"topic": topic, "defaultTopic": "TBW102", **numbers})
        queue = rig.store.queue(topic, 0)
        begin = durable + 2
        assert (queue.min_offset, queue.visible_offset) == (begin, durable)
        for code, field in ((30, {}), (31, {}), (29, {"timestamp": 0})):
            assert offset(rig, code, topic=topic, **field) == begin
        (row,) = body_of(rig.peer().ask(202, {"topic": topic}))["offsetTable"].values()
        assert (row["minOffset"], row["maxOffset"]) == (begin, begin)
        assert body_of(rig.peer().ask(321, {"topic": topic, "queueId": 0, "index": begin}))["maxQueueIndex"] == begin
        reset = {"topic": topic, "group": "G1", "timestamp": -1, "isForce": "true"}
        assert list(body_of(rig.peer().ask(222, reset))["offsetTable"].values()) == [begin]
        rig.services.offsets.take_reset("G1", topic, 0)
        (row,) = body_of(rig.peer().ask(208, {"consumerGroup": "G1", "topic": topic}))["offsetTable"].values()
        assert (row["brokerOffset"], row["consumerOffset"]) == (begin, begin)
        pull = {"consumerGroup": "G1", "topic": topic, "queueId": 0, "queueOffset": begin, "maxMsgNums": 32}
        pull |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 1}
        texts = {name: str(value) for name, value in pull.items()}
        answer = rig.link().ask(encode_request(0, 11, 1, ext=texts))[1]
    assert (answer.code, answer.ext["nextBeginOffset"], answer.ext["maxOffset"]) == (19, str(begin), str(begin))


def test_a_pull_at_a_negative_offset_is_told_where_the_queue_begins(rig: RemotingRig) -> None:
    """As RocketMQ 4.9.7 and 5.5.0 do: the offset is wrong, also where the queue has all it ever had."""
    rig.peer().ask(310, send_fields("T1"), b"x")
    pull = {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "queueOffset": -1, "maxMsgNums": 32, "sysFlag": 4}
    pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 1}
    texts = {name: str(value) for name, value in pull.items()}
    answer = rig.link().ask(encode_request(0, 11, 1, ext=texts))[1]
    assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "0")


def test_commit_and_query(rig: RemotingRig) -> None:
    """A-BROKER-39; remoting.md 4.4: 15 accepts smaller values too, and whatever is no less than 0."""
    for value in (3, 1, 2**63 - 1, 2):
        assert rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": value}).code == 0
        assert offset(rig, 14, consumerGroup="G1") == value


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"topic": "None"}, 17), ({"queueId": 9}, 17), ({"commitOffset": -1}, 1), ({"commitOffset": "x"}, 1)],
)
def test_commits_are_refused(rig: RemotingRig, fields: dict[str, object], code: int) -> None:
    """Issue "Bad input": negative offsets, unknown queues."""
    assert rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 1} | fields).code in (code, 2)


def test_bounds_of_a_queue(rig: RemotingRig) -> None:
    """remoting.md 4.5: 30, 31, 32; an unknown queue gives 0 and -1, never an error."""
    assert (offset(rig, 30), offset(rig, 31)) == (3, 0)
    assert (offset(rig, 30, topic="None"), offset(rig, 31, queueId=77)) == (0, 0)
    first_ms = rig.clock.now_ms() - 3_000
    reply = rig.peer().ask(32, QUEUE)
    assert reply.ext == {"timestamp": str(first_ms)}
    assert rig.peer().ask(32, QUEUE | {"queueId": 1}).ext == {"timestamp": "-1"}


def test_search_by_time(rig: RemotingRig) -> None:
    """remoting.md 4.5: LOWER is the default, UPPER the left neighbour."""
    first_ms = rig.clock.now_ms() - 3_000
    for timestamp, lower, upper in ((first_ms - 1, 0, 0), (first_ms + 1, 1, 0), (first_ms + 1_000, 1, 1)):
        assert offset(rig, 29, timestamp=timestamp) == lower
        assert offset(rig, 29, timestamp=timestamp, boundaryType="UPPER") == upper
    assert offset(rig, 29, timestamp=first_ms + 10_000) == 3


def test_reset_sets_offsets_and_tells_consumers(rig: RemotingRig) -> None:
    """remoting.md 4.7.5: stored offsets are set, 220 goes to members; lists for C++, object keys for the others."""
    java, cpp, old = rig.peer(1), rig.peer(2), rig.peer(4)
    java.heartbeat("c1", group="G1")
    cpp.heartbeat("c2", group="G1", language="CPP")
    old.heartbeat("c3", group="G1", version=27)
    for peer in (java, cpp, old):
        peer.notices.clear()
    reply = rig.peer(3).ask(222, {"topic": "T1", "group": "G1", "timestamp": -1, "isForce": "true"})
    key = ObjectKey({"brokerName": "broker-a", "queueId": 0, "topic": "T1"})
    assert body_of(reply)["offsetTable"][key] == 3
    code, ext, sent = java.notices[0]
    assert code == 220
    assert ext == {"topic": "T1", "group": "G1", "timestamp": "-1", "isForce": "true"}
    assert sent is not None
    assert sent.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:3')
    code, ext, sent = cpp.notices[0]
    assert (code, ext) == (220, java.notices[0][1])
    assert sent is not None
    assert json.loads(sent)["offsetTable"][0] == {**key, "offset": 3}
    assert old.notices == []  # a version that does not know 220
    assert rig.services.offsets.committed("G1", "T1", 0) == 3


@pytest.mark.parametrize("kind", ["CONSUME_PASSIVELY", "CONSUME_ACTIVELY"])
def test_reset_of_a_broadcasting_group_is_its_consumers_alone(rig: RemotingRig, kind: str) -> None:
    """They keep their offsets themselves: one that is kept here would look like a lag for ever.

    Those that pull by themselves do nothing when they are told: it is their pulls that tell them.
    """
    consumer = rig.peer(1)
    group = consumer_data("G1", subscription("T1"), model="BROADCASTING") | {"consumeType": kind}
    assert consumer.ask(34, body=as_json({"clientID": "c1", "consumerDataSet": [group]})).code == 0
    consumer.notices.clear()
    reply = rig.peer(2).ask(222, {"topic": "T1", "group": "G1", "timestamp": 0, "isForce": "true"})
    key = ObjectKey({"brokerName": "broker-a", "queueId": 0, "topic": "T1"})
    assert body_of(reply)["offsetTable"][key] == 0
    assert [code for code, _, _ in consumer.notices] == [220]
    assert rig.services.offsets.topics_of("G1") == ([] if kind == "CONSUME_PASSIVELY" else ["T1"])


def test_reset_of_a_group_that_does_not_exist_is_refused(rig: RemotingRig) -> None:
    """remoting.md 4.7.5: the tool's user mistyped; 4.9.7 says so with code 1. No offsets are left behind."""
    reply = rig.peer().ask(222, {"topic": "T1", "group": "Mistyped", "timestamp": -1, "isForce": "true"})
    assert (reply.code, reply.remark) == (
        1,
        "the consumer group <Mistyped> does not exist, so no offset of it is reset",
    )
    assert rig.services.offsets.topics_of("Mistyped") == []


@pytest.mark.parametrize("kept", ["settings", "offsets"])
def test_reset_of_a_group_that_has_settings_or_offsets(rig: RemotingRig, kept: str) -> None:
    """remoting.md 4.7.5: a group that has read only part of the queues, or none so far, exists all the same."""
    if kept == "settings":
        rig.services.ensure_group("G1")
    else:
        rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 1})
    reply = rig.peer().ask(222, {"topic": "T1", "group": "G1", "timestamp": -1, "isForce": "true"})
    assert len(body_of(reply)["offsetTable"]) == 4
    assert offset(rig, 14, consumerGroup="G1") == 3


def test_reset_to_a_named_offset_sets_it(rig: RemotingRig) -> None:
    """remoting.md 4.7.5, 5.x: tools send a commit, which an earlier reset keeps out, and 222 without isForce."""
    rig.services.ensure_group("G1")
    named = {"topic": "T1", "group": "G1", "queueId": 0, "timestamp": 0, "isForce": "false"}
    for at in (1, 3, 2):
        rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": at})
        assert rig.peer().ask(222, named | {"offset": at}).code == 0
        assert offset(rig, 14, consumerGroup="G1") == at


def test_reset_that_has_no_room_for_all_queues_resets_none(tmp_path: Path) -> None:
    """broker.max_group_offsets: it is refused, so nothing may have happened."""
    rig = RemotingRig(tmp_path, broker={"max_group_offsets": 2})
    rig.peer().ask(310, send_fields("T1"), b"x")
    rig.services.ensure_group("G1")
    reply = rig.peer().ask(222, {"topic": "T1", "group": "G1", "timestamp": -1, "isForce": "true"})
    assert reply.code == 2
    assert "broker.max_group_offsets" in reply.remark
    assert rig.services.offsets.topics_of("G1") == []
    assert rig.services.offsets.waiting_resets == 0
    rig.close()


def test_reset_works_with_nobody_online(rig: RemotingRig) -> None:
    """remoting.md 0 and 4.7.5: the table, not 206; commits of consumers that have not heard are ignored."""
    rig.services.ensure_group("G1")
    first_ms = rig.clock.now_ms() - 3_000
    reply = rig.peer().ask(222, {"topic": "T1", "group": "G1", "timestamp": first_ms + 500, "isForce": "true"})
    assert reply.code == 0
    rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 3})
    assert offset(rig, 14, consumerGroup="G1") == 1


def test_a_reader_that_does_not_pull_ends_a_reset(rig: RemotingRig) -> None:
    """docs/protocols/extensions.md: else a Spark group's lag would stay what the reset made it."""
    rig.services.ensure_group("G1")
    commit = QUEUE | {"consumerGroup": "G1", "commitOffset": 3}
    assert rig.peer().ask(222, {"topic": "T1", "group": "G1", "timestamp": 0, "isForce": "true"}).code == 0
    waiting = rig.services.offsets.waiting_resets
    rig.peer().ask(15, commit)
    assert offset(rig, 14, consumerGroup="G1") == 0
    rig.peer().ask(15, commit | {"endsReset": "true"})
    assert offset(rig, 14, consumerGroup="G1") == 3
    rig.peer().ask(15, commit | {"commitOffset": 2})
    assert offset(rig, 14, consumerGroup="G1") == 2
    assert rig.services.offsets.waiting_resets == waiting - 1


def test_reset_without_force_only_goes_back(rig: RemotingRig) -> None:
    """remoting.md 4.7.5, isForce."""
    rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 1})
    rig.peer().ask(222, {"topic": "T1", "group": "G1", "timestamp": -1, "isForce": "false"})
    assert offset(rig, 14, consumerGroup="G1") == 1


@pytest.mark.parametrize("timestamp", [0, -2, -28_800_000])
def test_a_time_before_1970_is_a_time(rig: RemotingRig, timestamp: int) -> None:
    """remoting.md 4.7.5: only -1 is the end. In Shanghai 1970-01-01#00:00:00:000, the very start, is negative."""
    rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 1})
    fields = {"topic": "T1", "group": "G1", "timestamp": timestamp, "isForce": "true"}
    assert rig.peer().ask(222, fields).code == 0
    assert offset(rig, 14, consumerGroup="G1") == 0


def test_reset_of_one_queue_to_an_offset(rig: RemotingRig) -> None:
    """remoting.md 4.7.5: queueId and offset of 5.x."""
    rig.services.ensure_group("G1")
    fields = {"topic": "T1", "group": "G1", "timestamp": -1, "isForce": "true", "queueId": 0, "offset": 2}
    assert rig.peer().ask(222, fields).code == 0
    assert offset(rig, 14, consumerGroup="G1") == 2
    assert rig.peer().ask(222, fields | {"offset": 9}).code == 1
    assert rig.peer().ask(222, fields | {"queueId": 9}).code == 1
    assert rig.peer().ask(222, fields | {"topic": "None"}).code == 17


def test_reset_is_also_of_queues_that_are_only_read(rig: RemotingRig) -> None:
    """A topic that shrinks: RocketMQ 4.9.7 resets the queues of producers alone."""
    peer = rig.peer()
    peer.ask(17, {"topic": "T3", "readQueueNums": 2, "writeQueueNums": 1, "perm": 6})
    peer.ask(15, {"consumerGroup": "G1", "topic": "T3", "queueId": 1, "commitOffset": 5})
    assert peer.ask(222, {"topic": "T3", "group": "G1", "timestamp": 0, "isForce": "true"}).code == 0
    assert [rig.services.offsets.committed("G1", "T3", queue_id) for queue_id in (0, 1)] == [0, 0]


def test_clone_and_all_offsets(rig: RemotingRig) -> None:
    """remoting.md 4.7.2: 314, of one topic or all; 43 in the form of consumerOffset.json."""
    rig.peer().ask(310, send_fields("T2"), b"x")
    rig.peer().ask(15, {"consumerGroup": "G1", "topic": "T2", "queueId": 0, "commitOffset": 1})
    rig.peer().ask(15, QUEUE | {"consumerGroup": "G1", "commitOffset": 2})
    assert rig.peer().ask(314, {"srcGroup": "G1", "destGroup": "G2", "topic": "T1", "offline": "true"}).code == 0
    assert offset(rig, 14, consumerGroup="G2") == 2
    table = body_of(rig.peer().ask(43))["offsetTable"]
    assert table["T1@G2"] == {"0": 2}
    assert "T2@G2" not in table
    assert rig.peer().ask(314, {"srcGroup": "G1", "destGroup": "G3", "offline": "true"}).code == 0
    assert {"T1@G3", "T2@G3"} <= set(body_of(rig.peer().ask(43))["offsetTable"])
    rig.peer().heartbeat("c1", subscription("T2"), group="G1")  # online, and not subscribed to T1 any more
    assert rig.peer().ask(314, {"srcGroup": "G1", "destGroup": "G4", "topic": "T1", "offline": "false"}).code == 0
    assert body_of(rig.peer().ask(43))["offsetTable"]["T1@G4"] == {"0": 2}
