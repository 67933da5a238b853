"""Topics and groups as tools see them. Ref: remoting.md 4.7.1, 4.7.2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import UnreadableError
from headrace.format.fastjson import ObjectKey
from headrace.remoting.codec import encode_request
from headrace.remoting.handlers import groups, offsets
from headrace.remoting.topics import system_topics
from headrace.settings import RemotingSettings
from tests.support.remoting import RemotingRig, as_json, body_of, physical_offset_of, send_fields, subscription

TOPIC = {"topic": "T1", "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 4, "perm": 6}
KEY = ObjectKey({"brokerName": "broker-a", "queueId": 0, "topic": "T1"})


def test_topic_is_made_and_changed(rig: RemotingRig) -> None:
    """A-BROKER-22; remoting.md 4.7.1: 17 and 351; the answer waits until the change is durable."""
    peer = rig.peer()
    reply = peer.ask(17, TOPIC | {"topicFilterType": "SINGLE_TAG", "order": "true"})
    assert reply.code == 0
    assert reply.wait_offset > 0
    assert body_of(peer.ask(351, {"topic": "T1", "lo": "true"})) == {
        "order": True,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T1",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    counter = rig.broker.topic_version.counter
    peer.ask(17, TOPIC | {"perm": 4, "writeQueueNums": 16, "topicSysFlag": 3})
    config = rig.broker.topics["T1"].config
    assert (config.perm, config.sys_flag) == (4, 3)
    assert len(rig.broker.topics["T1"].queues) == 16
    assert rig.broker.topic_version.counter == counter + 1


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "a.b"}, 1, "illegal characters"),
        ({"topic": ""}, 1, "<topic>"),
        ({"topic": "TBW102"}, 1, "system reserved"),
        ({"readQueueNums": 100_000}, 1, "remoting.max_topic_queues"),
        ({"writeQueueNums": -1}, 1, "<writeQueueNums>"),
        ({"readQueueNums": 0, "writeQueueNums": 0}, 1, "one of them 1 to"),
        ({"perm": 64}, 1, "<perm>"),
        ({"perm": "x"}, 1, "<perm>"),
        ({"topic": "rmq_sys_mine"}, 1, "system reserved"),
        ({"topicFilterType": "ANY"}, 1, "<topicFilterType>"),
    ],
)
def test_bad_topics_are_refused(rig: RemotingRig, fields: dict[str, object], code: int, remark: str) -> None:
    """Issue "Bad input": the remark names the field."""
    reply = rig.peer().ask(17, TOPIC | fields)
    assert reply.code == code
    assert remark in reply.remark
    assert "T1" not in rig.broker.topics


def test_topic_is_deleted_with_its_offsets(rig: RemotingRig) -> None:
    """remoting.md 4.7.1: 215; a topic that is not there is no error, one of the system is refused."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"x")
    peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 1})
    assert peer.ask(215, {"topic": "T1"}).code == 0
    assert "T1" not in rig.broker.topics
    assert rig.services.offsets.committed("G1", "T1", 0) is None
    assert peer.ask(215, {"topic": "T1"}).code == 0
    assert peer.ask(215, {"topic": "TBW102"}).code == 1
    for name in ("*", "a.b", "a" * 128, ""):
        assert peer.ask(215, {"topic": name}).code == 1  # a user who meant a pattern must hear that it is none
    assert peer.ask(351, {"topic": "T1"}).code == 17


def test_all_topics(rig: RemotingRig) -> None:
    """A-BROKER-13, A-BROKER-14; remoting.md 4.7.1: 21 and 305; names that RocketMQ cannot spell are left out."""
    rig.broker.ensure_topic("nsq.topic")
    rig.broker.ensure_topic("plain")
    peer = rig.peer()
    body = body_of(peer.ask(21))
    table = body["topicConfigTable"]
    for name, queues, perm in (("DEFAULT_TOPIC", 16, 7), ("TBW102", 8, 7), ("C1", 16, 7), ("broker-a", 1, 7)):
        assert (table[name]["writeQueueNums"], table[name]["readQueueNums"], table[name]["perm"]) == (
            queues,
            queues,
            perm,
        )
    assert {"OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC", "BENCHMARK_TOPIC", "C1_REPLY_TOPIC", "plain"} <= set(table)
    assert "nsq.topic" not in table
    assert not any(name.startswith("%SYS%") for name in table)
    assert body["dataVersion"] == rig.broker.topic_version.to_fields()
    assert "plain" not in body_of(peer.ask(305))["topicList"]


@pytest.mark.parametrize("name", ["DEFAULT_TOPIC", "TBW102", "SCHEDULE_TOPIC_XXXX", "HR_STATS"])
def test_names_of_cluster_and_broker_change_no_other_topic(name: str) -> None:
    """A-BROKER-13, A-BROKER-14: a broker called DEFAULT_TOPIC gave new topics one queue, whatever clients asked for."""
    usual = system_topics(RemotingSettings(), "broker-a", 18)
    assert system_topics(RemotingSettings(), name, 18)[name] == usual[name]
    assert system_topics(RemotingSettings(cluster=name), "broker-a", 18)[name] == usual[name]


def test_topic_stats(rig: RemotingRig) -> None:
    """remoting.md 4.7.1: 202."""
    peer = rig.peer()
    peer.ask(17, TOPIC)
    peer.ask(310, send_fields("T1"), b"x")
    table = body_of(peer.ask(202, {"topic": "T1"}))["offsetTable"]
    assert len(table) == 4
    assert table[KEY] == {"lastUpdateTimestamp": rig.clock.now_ms(), "maxOffset": 1, "minOffset": 0}
    assert peer.ask(202, {"topic": "None"}).code == 17


def test_who_consumes_a_topic(rig: RemotingRig) -> None:
    """remoting.md 4.7.1: 300, online and with offsets, each once."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"x")
    for group in ("G1", "G3"):
        peer.heartbeat("c1", subscription("T1"), group=group)
    for group in ("G1", "G2"):
        peer.ask(15, {"consumerGroup": group, "topic": "T1", "queueId": 0, "commitOffset": 1})
    found = body_of(peer.ask(300, {"topic": "T1"}))
    assert sorted(found["groupList"]) == ["G1", "G2", "G3"]


def test_consume_queue_entries(rig: RemotingRig) -> None:
    """remoting.md 4.7.1: 321."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1", properties={"TAGS": "A"}), b"x")
    peer.ask(310, send_fields("T1", properties={"TAGS": "B"}), b"x")
    peer.heartbeat("c1", subscription("T1", "B"), group="G1")
    fields = {"topic": "T1", "queueId": 0, "index": 0, "count": 10, "consumerGroup": "G1"}
    body = body_of(peer.ask(321, fields))
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 2)
    assert [(row["tagsCode"], row["eval"]) for row in body["queueData"]] == [(65, False), (66, True)]
    assert body["subscriptionData"]["subString"] == "B"
    assert body["filterData"] == "null"
    assert peer.ask(321, fields | {"queueId": 99}).code == 1
    offline = body_of(peer.ask(321, fields | {"consumerGroup": "G2"}))
    assert offline["filterData"] == "G2@T1 is not online!"
    assert [row["eval"] for row in offline["queueData"]] == [False, False]
    for queue_id, index, end in ((0, 2, 2), (0, 7, 2), (1, 0, 0), (1, 7, 0)):
        body = body_of(peer.ask(321, fields | {"queueId": queue_id, "index": index}))
        assert (body["queueData"], body["minQueueIndex"], body["maxQueueIndex"]) == ([], 0, end)


def test_consume_queue_entries_below_the_queue_are_refused(rig: RemotingRig) -> None:
    """remoting.md 4.7.1: 321; tools number the rows from the index that they asked for."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"old")
    fields = {"topic": "T1", "queueId": 0, "index": -1, "count": 10}
    reply = peer.ask(321, fields)
    assert (reply.code, reply.remark) == (1, "index -1 is outside queue 0@T1: it has entries from 0 on")
    peer.ask(215, {"topic": "T1"})
    peer.ask(310, send_fields("T1"), b"new")
    reply = peer.ask(321, fields | {"index": 0})
    assert (reply.code, reply.remark) == (1, "index 0 is outside queue 0@T1: it has entries from 1 on")
    assert len(body_of(peer.ask(321, fields | {"index": 1}))["queueData"]) == 1


@pytest.mark.parametrize("code", [306, 316, 329])
def test_cleaning_calls_are_answered(rig: RemotingRig, code: int) -> None:
    """remoting.md 4.7.1."""
    assert rig.peer().ask(code).code == 0


def test_group_is_made_changed_and_deleted(rig: RemotingRig) -> None:
    """A-BROKER-12, A-BROKER-27; remoting.md 4.7.2: 200, 201, 352, 207; the answer waits for the file."""
    peer = rig.peer()
    reply = peer.ask(200, body=as_json({"groupName": "G1", "retryMaxTimes": 3, "consumeBroadcastEnable": False}))
    assert reply.code == 0
    assert reply.wait_saved is not None
    group = body_of(peer.ask(352, {"group": "G1"}))
    assert (group["retryMaxTimes"], group["consumeBroadcastEnable"], group["consumeEnable"]) == (3, False, True)
    assert "G1" in body_of(peer.ask(201))["subscriptionGroupTable"]
    assert "%RETRY%G1" not in rig.broker.topics
    peer.ask(310, send_fields("T1"), b"x")
    for field in ("removeOffset", "cleanOffset"):  # as 4.9 and 5.x call it
        peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 1})
        assert peer.ask(207, {"groupName": "G1"}).code == 0
        assert rig.services.offsets.committed("G1", "T1", 0) == 1
        assert peer.ask(207, {"groupName": "G1", field: "true"}).code == 0
        assert rig.services.offsets.committed("G1", "T1", 0) is None
    assert "G1" not in body_of(peer.ask(201))["subscriptionGroupTable"]


def test_group_that_does_not_exist_has_the_settings_it_would_be_made_with(rig: RemotingRig) -> None:
    """remoting.md 4.7.2: the proxy of 5.x lets a consumer in only when 352 answers; asking makes no group."""
    peer = rig.peer()
    promised = body_of(peer.ask(352, {"group": "NEW"}))
    assert "NEW" not in body_of(peer.ask(201))["subscriptionGroupTable"]
    peer.heartbeat("c1", subscription("T1"), group="NEW")
    assert body_of(peer.ask(352, {"group": "NEW"})) == promised
    assert peer.ask(352, {"group": "a/b"}).code == 1


def test_group_that_does_not_exist_is_refused_where_none_is_made(tmp_path: Path) -> None:
    """remoting.md 4.4: 26."""
    rig = RemotingRig(tmp_path, auto_create_groups=False)
    assert rig.peer().ask(352, {"group": "NEW"}).code == 26
    rig.close()


@pytest.mark.parametrize("body", [b"", b"{}", b'{"groupName":"G1","retryMaxTimes":"many"}', b'{"groupName":"a/b"}'])
def test_bad_groups_are_refused(rig: RemotingRig, body: bytes) -> None:
    """Issue "Bad input"."""
    assert rig.peer().ask(200, body=body).code == 1


def test_consume_stats(rig: RemotingRig) -> None:
    """remoting.md 4.7.2: 208 and 317, of the queues that consumers are told of; 303, of those of producers."""
    peer = rig.peer()
    peer.ask(17, TOPIC | {"readQueueNums": 2})
    first_ms = rig.clock.now_ms()
    for _ in range(3):
        peer.ask(310, send_fields("T1"), b"x")
        rig.clock.advance_ms(1_000)
    peer.ask(200, body=as_json({"groupName": "G1"}))
    peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 2})
    body = body_of(peer.ask(208, {"consumerGroup": "G1"}))
    assert body["consumeTps"] == 0
    row = {"brokerOffset": 3, "consumerOffset": 2, "pullOffset": 2, "lastTimestamp": first_ms + 1_000}
    assert body["offsetTable"][KEY] == row
    assert len(body["offsetTable"]) == 2
    (span, empty, *_) = body_of(peer.ask(303, {"topic": "T1", "group": "G1"}))["consumeTimeSpanSet"]
    assert (span["minTimeStamp"], span["maxTimeStamp"]) == (first_ms, first_ms + 2_000)
    assert (span["consumeTimeStamp"], span["delayTime"]) == (first_ms + 1_000, 1_000)
    assert [empty[f"{name}TimeStamp"] for name in ("min", "max", "consume")] == [-1, -1, -1]
    peer.ask(15, {"consumerGroup": "Ahead", "topic": "T1", "queueId": 0, "commitOffset": 9})
    (span, *_) = body_of(peer.ask(303, {"topic": "T1", "group": "Ahead"}))["consumeTimeSpanSet"]
    assert (span["consumeTimeStamp"], span["delayTime"]) == (-1, 0)
    (span, empty, *_) = body_of(peer.ask(303, {"topic": "T1", "group": "New"}))["consumeTimeSpanSet"]
    assert (span["delayTime"], empty["delayTime"]) == (3_000, 0)
    assert peer.try_ask(317, {"isOrder": "false"}) is None
    stats = body_of(peer.answers[0])
    assert stats == {
        "brokerAddr": "127.0.0.1:10911",
        "consumeStatsList": [{"G1": [body_of(peer.ask(208, {"consumerGroup": "G1"}))]}],
        "totalDiff": 1,
    }
    assert peer.try_ask(317, {"isOrder": "true"}) is None
    assert body_of(peer.answers[1])["consumeStatsList"] == []
    peer.ask(17, TOPIC)
    assert len(body_of(peer.ask(303, {"topic": "T1", "group": "G1"}))["consumeTimeSpanSet"]) == 4


def test_how_far_a_group_is_behind_is_told_while_messages_cannot_be_read(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is away for a while: who looks for the reason sees the figures that need none of its messages."""

    def unreadable(*_: object) -> int:
        raise UnreadableError(OSError(2, "No such file or directory", "commitlog/0"))

    peer = rig.peer()
    peer.ask(17, TOPIC | {"readQueueNums": 1})
    peer.ask(310, send_fields("T1"), b"x")
    peer.ask(200, body=as_json({"groupName": "G1"}))
    peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 1})
    monkeypatch.setattr(groups, "store_time", unreadable)
    expected = {KEY: {"brokerOffset": 1, "consumerOffset": 1, "pullOffset": 1, "lastTimestamp": 0}}
    assert body_of(peer.ask(208, {"consumerGroup": "G1"}))["offsetTable"] == expected
    peer.try_ask(317, {"isOrder": "false"})
    assert body_of(peer.answers.pop())["consumeStatsList"][0]["G1"][0]["offsetTable"] == expected
    monkeypatch.setattr(groups, "consume_tps", unreadable)
    refused = peer.ask(208, {"consumerGroup": "G1"})
    assert (refused.code, refused.remark.startswith("cannot read commitlog/0: ")) == (14, True)
    assert "failed by a bug" not in caplog.text


def test_where_a_topics_queues_end_is_told_while_messages_cannot_be_read(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``mqadmin topicStatus``: the same, for a topic."""

    def unreadable(*_: object) -> int:
        raise UnreadableError(OSError(2, "No such file or directory", "commitlog/0"))

    peer = rig.peer()
    peer.ask(17, TOPIC | {"writeQueueNums": 1})
    peer.ask(310, send_fields("T1"), b"x")
    monkeypatch.setattr(offsets, "store_time", unreadable)
    table = body_of(peer.ask(202, {"topic": "T1"}))["offsetTable"]
    assert table == {KEY: {"lastUpdateTimestamp": 0, "maxOffset": 1, "minOffset": 0}}
    assert peer.ask(32, {"topic": "T1", "queueId": 0}).code == 14


@pytest.mark.provokes_bugs
def test_a_bug_in_a_long_answer_is_counted(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/metrics.md: headrace_remoting_internal_errors_total has every request that failed by a bug of ours."""

    def fail(topic: object) -> None:
        raise KeyError("secret detail")

    link = rig.link()
    monkeypatch.setattr("headrace.remoting.bodies.topic_fields", fail)
    answer = link.ask(encode_request(0, 21, 1))[1]
    assert (answer.code, answer.remark) == (1, "internal error")
    assert link.server.counters.internal_errors == 1


def test_statistics_of_all_groups_have_those_with_rows_of_the_queues_they_read(rig: RemotingRig) -> None:
    """RocketMQ's 317 has groups without any row too, and only the queues that producers use."""
    peer = rig.peer()
    peer.ask(17, TOPIC)
    for group in ("Empty", "G1"):
        peer.ask(200, body=as_json({"groupName": group}))
    peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 0})
    assert peer.try_ask(317, {"isOrder": "false"}) is None
    ((stats,),) = (list(groups.items()) for groups in body_of(peer.answers.pop())["consumeStatsList"])
    assert stats[0] == "G1"
    assert sorted(key["queueId"] for key in stats[1][0]["offsetTable"]) == list(range(8))


def test_statistics_of_a_group_have_its_retry_topic_though_it_does_not_subscribe_to_it(rig: RemotingRig) -> None:
    """RocketMQ's 208 leaves it out, and with it what failed and waits to be consumed again."""
    peer = rig.peer()
    offset = physical_offset_of(peer.ask(310, send_fields("T1"), b"x"))
    peer.heartbeat("c1", subscription("T1"), group="G1")
    assert peer.ask(36, {"offset": offset, "group": "G1", "delayLevel": 1}).code == 0
    rig.pass_time(2_000)
    for topic in ("T1", "%RETRY%G1"):
        peer.ask(15, {"consumerGroup": "G1", "topic": topic, "queueId": 0, "commitOffset": 0})
    table = body_of(peer.ask(208, {"consumerGroup": "G1"}))["offsetTable"]
    ends = {key["topic"]: row["brokerOffset"] for key, row in table.items() if key["queueId"] == 0}
    assert ends == {"T1": 1, "%RETRY%G1": 1}


def test_consume_stats_of_many_groups_are_gathered_in_turns(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 groups with four queues each took the loop half a second; what is deleted meanwhile is left out."""
    monkeypatch.setattr("headrace.remoting.handlers.groups.ROWS_AT_ONCE", 8)
    peer = rig.peer()
    for number in range(12):
        peer.ask(310, send_fields(f"T{number}"), b"x")
        peer.ask(15, {"consumerGroup": f"G{number:02}", "topic": f"T{number}", "queueId": 0, "commitOffset": 1})
        rig.services.ensure_group(f"G{number:02}")
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    assert peer.try_ask(317, {"isOrder": "false"}) is None
    peer.ask(215, {"topic": "T11"})
    turns = 0
    while not peer.answers:
        turns += 1
        later.pop(0)()
    assert turns >= 4
    stats = body_of(peer.answers[0])
    assert [list(row) for row in stats["consumeStatsList"]] == [[f"G{number:02}"] for number in range(11)]


def test_consume_stats_of_many_topics_are_gathered_in_turns(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One group with 5,000 topics of four queues took the loop a quarter of a second."""
    monkeypatch.setattr("headrace.remoting.handlers.groups.ROWS_AT_ONCE", 8)
    peer = rig.peer()
    for number in range(12):
        peer.ask(310, send_fields(f"T{number}"), b"x")
        peer.ask(15, {"consumerGroup": "G1", "topic": f"T{number}", "queueId": 0, "commitOffset": 1})
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    assert peer.try_ask(208, {"consumerGroup": "G1"}) is None
    rig.peer().ask(215, {"topic": "T11"})
    turns = 0
    while not peer.answers:
        turns += 1
        later.pop(0)()
    assert turns >= 4
    table = body_of(peer.answers[0])["offsetTable"]
    assert [key["topic"] for key in table if key["queueId"] == 0] == [f"T{number}" for number in range(11)]
    assert table[KEY] == table[ObjectKey({**KEY, "topic": "T3"})]
    assert table[KEY]["consumerOffset"] == 1


@pytest.mark.parametrize(
    ("code", "member", "mine"),
    [
        (21, "topicConfigTable", "T{}"),
        (43, "offsetTable", "T{0}@G{0}"),
        (201, "subscriptionGroupTable", "G{}"),
        (328, "data", "P{}"),
    ],
)
def test_large_tables_are_written_in_turns(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, code: int, member: str, mine: str
) -> None:
    """20,000 topics took the loop a quarter of a second, a million committed offsets more than two."""
    monkeypatch.setattr("headrace.remoting.long_answers.ROWS_AT_ONCE", 4)
    peer = rig.peer()
    for number in range(10, 20):
        peer.ask(310, send_fields(f"T{number}"), b"x")
        peer.ask(15, {"consumerGroup": f"G{number}", "topic": f"T{number}", "queueId": 0, "commitOffset": 1})
        rig.services.ensure_group(f"G{number}")
        peer.heartbeat("c", producer=f"P{number}")
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    assert peer.try_ask(code) is None
    other = rig.peer()
    other.ask(215, {"topic": "T19"})
    other.ask(207, {"groupName": "G18", "removeOffset": "true"})
    turns = 0
    while not peer.answers:
        turns += 1
        later.pop(0)()
    assert turns >= 2
    found = [mine.format(number) for number in range(10, 20) if mine.format(number) in body_of(peer.answers[0])[member]]
    assert found[:8] == [mine.format(number) for number in range(10, 18)]


def test_what_is_short_waits_for_no_long_answer(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools ask for one small group after the other: they are not refused because others ask for all topics."""
    monkeypatch.setattr("headrace.remoting.long_answers.ROWS_AT_ONCE", 4)
    monkeypatch.setattr("headrace.remoting.long_answers.MAX_WAITING", 2)
    monkeypatch.setattr(rig.store, "notify", lambda call: None)
    peer = rig.peer()
    for _ in range(6):
        assert peer.try_ask(21) is None
    assert not peer.answers
    assert body_of(rig.peer().ask(208, {"consumerGroup": "G1"}))["offsetTable"] == {}
    assert peer.try_ask(21) is None
    assert peer.answers.pop().code == 2


@pytest.mark.parametrize(("code", "body"), [(317, b""), (27001, b'{"topics": null}')])
def test_long_answers_wait_for_each_other(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, code: int, body: bytes
) -> None:
    """Each answer may have megabytes: a client must not have thousands of them gathered beside each other."""
    for module in ("groups", "reader"):
        monkeypatch.setattr(f"headrace.remoting.handlers.{module}.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("headrace.remoting.long_answers.MAX_WAITING", 2)
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"x")
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    assert [peer.try_ask(code, {}, body) for _ in range(6)] == [None] * 6
    assert len(later) == 4
    assert peer.try_ask(code, {}, body) is None
    (refused,) = peer.answers
    assert (refused.code, "2 requests with long answers wait" in refused.remark) == (2, True)
    while later:
        later.pop(0)()
    assert [reply.code for reply in peer.answers[1:]] == [0] * 6
    assert peer.try_ask(code, {}, body) is None
    later.pop(0)()  # it did not have to wait


def test_long_answers_of_one_client_do_not_keep_the_others_waiting(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients take turns, and one cannot take all the places."""
    monkeypatch.setattr("headrace.remoting.handlers.groups.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("headrace.remoting.long_answers.MAX_OF_ONE", 20)
    greedy, other = rig.peer(), rig.peer()
    greedy.ask(310, send_fields("T1"), b"x")
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    assert [greedy.try_ask(317, {"isOrder": "false"}) for _ in range(24 + 2)] == [None] * 26
    assert [(reply.code, reply.remark[:30]) for reply in greedy.answers] == [(2, "20 requests of this connection")] * 2
    assert other.try_ask(317, {"isOrder": "false"}) is None
    assert other.try_ask(317, {"isOrder": "false"}) is None
    while len(other.answers) < 2:
        later.pop(0)()
    assert len(greedy.answers) < 2 + 12
    while later:
        later.pop(0)()
    assert [reply.code for reply in greedy.answers[2:]] == [0] * 24


@pytest.mark.parametrize("gone", [0, 4])
def test_long_answers_to_clients_that_are_gone_keep_nobody_waiting(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """What was asked by one that left, before its turn or amid it, is not gathered."""
    monkeypatch.setattr("headrace.remoting.handlers.groups.ROWS_AT_ONCE", 1)
    peer, other = rig.peer(), rig.peer()
    rig.services.ensure_group("G1")
    for number in range(50):
        peer.ask(310, send_fields(f"T{number}"), b"x")
        peer.ask(15, {"consumerGroup": "G1", "topic": f"T{number}", "queueId": 0, "commitOffset": 1})
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    for number in range(100):
        asks = peer if number >= gone else other
        assert asks.try_ask(317, {"isOrder": "false"}) is None
    assert other.try_ask(317, {"isOrder": "false"}) is None
    peer.cause = "connection lost"
    turns = 0
    while later:
        turns += 1
        later.pop(0)()
    assert turns < 1_000  # 50 or more for each that is gathered
    assert ([reply.code for reply in other.answers], peer.answers) == ([0] * (gone + 1), [])


def test_consume_stats_leave_out_topics_the_group_has_left(rig: RemotingRig) -> None:
    """remoting.md 4.7.2, 208."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"x")
    peer.heartbeat("c1", subscription("T2"), group="G1")
    peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 1})
    assert body_of(peer.ask(208, {"consumerGroup": "G1"}))["offsetTable"] == {}


@pytest.mark.parametrize("code", [208, 317])
def test_consume_stats_of_consumers_that_choose_their_queues(rig: RemotingRig, code: int) -> None:
    """remoting.md 4.7.2: Java's DefaultMQPullConsumer is online and subscribes to nothing."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"x")
    peer.heartbeat("c1", group="G1")
    peer.ask(15, {"consumerGroup": "G1", "topic": "T1", "queueId": 0, "commitOffset": 1})
    reply = peer.try_ask(code, {"consumerGroup": "G1", "isOrder": "false"}) or peer.answers.pop()
    assert reply.body is not None
    assert b'"topic":"T1"' in reply.body
