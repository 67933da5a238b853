"""Headrace beside RocketMQ 4.9.7 in the same history: random requests, and the same answers to each.

Where docs/protocols/remoting.md names a difference, the requests keep clear of it. Times are left out: nothing is
delayed, held or waited for. Each client id has a connection of its own, as RocketMQ knows clients by that.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from headrace.remoting.blocking.connection import BlockingClient
from headrace.remoting.codes import RequestCode
from tests.interop.rocketmq_peers import Cluster, headrace, rocketmq
from tests.support.layouts import decode_properties, decode_record, encode_properties
from tests.support.waiting import until

BROKER: Final = "broker-a"
QUEUES: Final = ("0", "1")
BEYOND: Final = "9"
CLIENTS: Final = ("c1", "c2")
BORN_MS: Final = 1_700_000_000_000
OF_ONE_SERVER: Final = {
    "msgId", "MSG_REGION", "TRACE_ON", "suggestWhichBrokerId", "indexLastUpdateTimestamp",
    "indexLastUpdatePhyoffset",
}  # fmt: skip
"""Fields of answers that name the server, its log or its time, or advise."""
PROPERTIES_OF_ONE_SERVER: Final = {"__CRC32#", "__BATCH#", "WAIT", "CLUSTER", "ORIGIN_MESSAGE_ID", "DELAY"}
"""The same of messages; what the feature table names, and the ``DELAY`` of 0 that RocketMQ's dead letters have."""

Clusters = tuple[Cluster, Cluster]
Message = tuple[Any, ...]
Answer = tuple[int, dict[str, str], Any]


def parse_messages(body: bytes) -> list[tuple[Message, int]]:
    """Return what must be the same of each record, and its physical offset."""
    found = []
    while body:
        size = int.from_bytes(body[:4])
        record = decode_record(body[:size])
        body = body[size:]
        properties = decode_properties(record.properties)
        kept = sorted((name, value) for name, value in properties.items() if name not in PROPERTIES_OF_ONE_SERVER)
        same = (
            record.topic, record.queue_id, record.queue_offset, record.flag, record.sys_flag, record.born_ms,
            record.reconsume_times, record.body, kept,
        )  # fmt: skip
        found.append((same, record.physical_offset))
    return found


def only_messages(body: bytes) -> list[Message]:
    return [message for message, _ in parse_messages(body)]


def parse_offsets(body: bytes) -> list[tuple[str, int, int]]:
    """Return the offsets in a table by queue: its keys are objects, which JSON does not have."""
    found = []
    for queue in body.split(b'"queueId":')[1:]:
        queue_id, _, rest = queue.partition(b",")
        for name in (b"minOffset", b"maxOffset", b"brokerOffset", b"consumerOffset"):
            _, is_there, value = rest.partition(b'"%b":' % name)
            if is_there:
                number = value.partition(b",")[0].partition(b"}")[0]
                found.append((name.decode(), int(queue_id.strip(b"}")), int(number)))
    return sorted(found)


def nothing(_: bytes) -> None:
    return None


class Histories(RuleBasedStateMachine):
    """One topic with two queues, and one group."""

    clusters: Clusters
    numbers: Iterator[int] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        number = next(self.numbers)
        self.topic, self.group = f"History{number}", f"group{number}"
        self.clients = {
            name: tuple(BlockingClient(cluster.broker) for cluster in self.clusters) for name in ("", *CLIENTS)
        }
        self.pulled: dict[str, tuple[int, int]] = {}  # by message: its physical offset in each log
        self.ends: Counter[tuple[str, str]] = Counter()  # messages by topic and queue
        self.described = {
            "topic": self.topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, self.described)
        self.pull("0", 0, 1, "*", 0)  # makes the group

    def teardown(self) -> None:
        for clients in self.clients.values():
            for client in clients:
                client.close()

    def ask(
        self,
        code: RequestCode,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        parse: Callable[[bytes], Any] = nothing,
        client: str = "",
        offsets: tuple[int, int] | None = None,
    ) -> list[bytes]:
        """Send both the same request, but for a physical offset of each; return the bodies of their answers."""
        answers: list[Answer] = []
        bodies = []
        for number, peer in enumerate(self.clients[client]):
            own = {} if offsets is None else {"offset": str(offsets[number])}
            command = peer.call(code, ext | own, body)
            kept = {name: value for name, value in (command.ext or {}).items() if name not in OF_ONE_SERVER}
            bodies.append(bytes(command.body))
            answers.append((command.code, kept, parse(bodies[-1]) if command.code == 0 else None))
        assert answers[1] == answers[0], code.name
        return bodies

    def wait_for_index(self) -> None:
        """Return when both have put all they stored into queues and index: RocketMQ's follow its log."""

        def have_followed() -> bool:
            answers = [peer.call(RequestCode.GET_BROKER_RUNTIME_INFO, {}) for peer in self.clients[""]]
            return all(b'"dispatchBehindBytes":"0"' in bytes(answer.body) for answer in answers)

        until(have_followed)

    # -- messages ------------------------------------------------------------------------------------------------

    @rule(
        queue_id=st.sampled_from(QUEUES),
        tag=st.sampled_from(("", "A", "B")),
        key=st.sampled_from(("", "k1", "k1 k2")),
        flag=st.sampled_from((0, 5, -1)),
        more=st.dictionaries(st.sampled_from(("a", "b c", "é")), st.sampled_from(("1", "x y", "ü"))),
        size=st.sampled_from((1, 200, 5_000)),
    )
    def send(self, queue_id: str, tag: str, key: str, flag: int, more: dict[str, str], size: int) -> None:
        """SEND_MESSAGE."""
        number = next(self.numbers)
        properties = {"UNIQ_KEY": f"{number:032X}", **({"TAGS": tag} if tag else {}), **({"KEYS": key} if key else {})}
        ext = {
            "producerGroup": "producers", "topic": self.topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": queue_id, "sysFlag": "0", "bornTimestamp": str(BORN_MS), "flag": str(flag),
            "properties": encode_properties(properties | more).decode(), "reconsumeTimes": "0", "unitMode": "false",
            "batch": "false",
        }  # fmt: skip
        self.ask(RequestCode.SEND_MESSAGE, ext, b"%d" % number + bytes(size))
        self.note_stored(self.topic, queue_id, 1)

    @rule(queue_id=st.sampled_from(QUEUES), count=st.integers(1, 5))
    def send_batch(self, queue_id: str, count: int) -> None:
        """SEND_BATCH_MESSAGE."""
        body = b""
        for _ in range(count):
            number = next(self.numbers)
            content = b"%d" % number
            properties = encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "A"})
            rest = bytes(12) + len(content).to_bytes(4) + content + len(properties).to_bytes(2) + properties
            body += (4 + len(rest)).to_bytes(4) + rest
        ext = {
            "a": "producers", "b": self.topic, "c": "TBW102", "d": "4", "e": queue_id, "f": "0", "g": str(BORN_MS),
            "h": "0", "i": "", "j": "0", "k": "false", "m": "true",
        }  # fmt: skip
        self.ask(RequestCode.SEND_BATCH_MESSAGE, ext, body)
        self.note_stored(self.topic, queue_id, count)

    @rule(
        queue_id=st.sampled_from(QUEUES),
        behind=st.sampled_from((0, 0, 1, 3, -1, -100)),
        count=st.sampled_from((1, 3, 32)),
        subscription=st.sampled_from(("*", "*", "A", "A || C", "C")),
        commit=st.sampled_from((0, 0, 2)),
    )
    def pull_near_the_end(self, queue_id: str, behind: int, count: int, subscription: str, commit: int) -> None:
        """PULL_MESSAGE at the end of a queue, before or beyond it."""
        self.pull(queue_id, max(0, self.ends[self.topic, queue_id] - behind), count, subscription, commit)

    @rule(queue_id=st.sampled_from(QUEUES), offset=st.sampled_from((-1, 0, 0, 1)), subscription=st.sampled_from("*AB"))
    def pull_from_the_beginning(self, queue_id: str, offset: int, subscription: str) -> None:
        """PULL_MESSAGE at the beginning of a queue, or before it."""
        self.pull(queue_id, offset, 32, subscription, 0)

    def pull(self, queue_id: str, offset: int, count: int, subscription: str, commit: int, *, topic: str = "") -> None:
        ext = {
            "consumerGroup": self.group, "topic": topic or self.topic, "queueId": queue_id, "queueOffset": str(offset),
            "maxMsgNums": str(count), "sysFlag": "5" if commit else "4", "commitOffset": str(commit),
            "suspendTimeoutMillis": "0", "subscription": subscription, "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        theirs, ours = map(parse_messages, self.ask(RequestCode.PULL_MESSAGE, ext, parse=only_messages))
        for (message, their_offset), (_, our_offset) in zip(theirs, ours, strict=True):
            if not topic:
                self.pulled[repr(message)] = their_offset, our_offset

    def note_stored(self, topic: str, queue_id: str, count: int) -> None:
        """Wait until RocketMQ's readers see what it has stored."""
        self.ends[topic, queue_id] += count
        theirs, _ = self.clients[""]
        named = {"topic": topic, "queueId": queue_id}

        def is_seen() -> bool:
            found = theirs.call(RequestCode.GET_MAX_OFFSET, named).ext or {}
            return found["offset"] == str(self.ends[topic, queue_id])

        until(is_seen)

    def choose(self, data: st.DataObject) -> tuple[int, int] | None:
        """Return the physical offsets of a message that was pulled."""
        return self.pulled[data.draw(st.sampled_from(sorted(self.pulled)))] if self.pulled else None

    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        """VIEW_MESSAGE_BY_ID."""
        offsets = self.choose(data)
        if offsets is not None:
            self.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": self.topic}, parse=only_messages, offsets=offsets)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """CONSUMER_SEND_MSG_BACK at once to the dead letters, and what is there."""
        offsets = self.choose(data)
        if offsets is None:
            return
        ext = {
            "group": self.group, "delayLevel": "-1", "originMsgId": "x", "originTopic": self.topic,
            "unitMode": "false", "maxReconsumeTimes": "16",
        }  # fmt: skip
        self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, offsets=offsets)
        letters = f"%DLQ%{self.group}"
        self.note_stored(letters, "0", 1)
        self.pull("0", self.ends[letters, "0"] - 1, 1, "*", 0, topic=letters)

    @rule(
        queue_id=st.sampled_from(QUEUES),
        decision=st.sampled_from((8, 8, 12)),
        wrong=st.sampled_from((None, None, "producerGroup", "tranStateTableOffset")),
        times=st.sampled_from((1, 1, 2)),
    )
    def transact(self, queue_id: str, decision: int, wrong: str | None, times: int) -> None:
        """A half message, and END_TRANSACTION: as it should be, with a wrong field, and after a rollback again."""
        number = next(self.numbers)
        properties = {"UNIQ_KEY": f"{number:032X}", "TRAN_MSG": "true", "PGROUP": "producers", "KEYS": "k1"}
        ext = {
            "a": "producers", "b": self.topic, "c": "TBW102", "d": "4", "e": queue_id, "f": "4", "g": str(BORN_MS),
            "h": "0", "i": encode_properties(properties).decode(), "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        halves = [peer.call(RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number).ext or {} for peer in self.clients[""]]
        assert [half.get("transactionId") for half in halves] == [None, properties["UNIQ_KEY"]]
        answers = []
        for peer, half in zip(self.clients[""], halves, strict=True):
            end = {
                "producerGroup": "producers", "tranStateTableOffset": half["queueOffset"], "msgId": "x",
                "commitLogOffset": str(int(half["msgId"][-16:], 16)), "commitOrRollback": str(decision),
                "fromTransactionCheck": "false",
            }  # fmt: skip
            if wrong is not None:
                end[wrong] = "99999"
            again = times if decision == 12 or wrong is not None else 1  # a second commit is known to differ
            answers.append([peer.call(RequestCode.END_TRANSACTION, end).code for _ in range(again)])
        assert answers[1] == answers[0]
        if decision == 8 and wrong is None:
            self.note_stored(self.topic, queue_id, 1)

    @rule(key=st.sampled_from(("k1", "k2", "k3")), most=st.sampled_from(("1", "2", "64")))
    def find(self, key: str, most: str) -> None:
        """QUERY_MESSAGE."""
        self.wait_for_index()
        ext = {"topic": self.topic, "key": key, "maxNum": most, "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        self.ask(RequestCode.QUERY_MESSAGE, ext, parse=only_messages)

    # -- offsets -------------------------------------------------------------------------------------------------

    @rule(queue_id=st.sampled_from(QUEUES), offset=st.sampled_from((0, 1, 2, 1_000)))
    def commit(self, queue_id: str, offset: int) -> None:
        """UPDATE_CONSUMER_OFFSET, also beyond the end and backwards."""
        ext = {"consumerGroup": self.group, "topic": self.topic, "queueId": queue_id, "commitOffset": str(offset)}
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    @rule(topic=st.sampled_from(("", "", "None")), queue_id=st.sampled_from((*QUEUES, BEYOND)))
    def look(self, topic: str, queue_id: str) -> None:
        """Committed offset, both ends and the search by time, of queues that there are or not."""
        named = {"topic": topic or self.topic, "queueId": queue_id}
        self.ask(RequestCode.QUERY_CONSUMER_OFFSET, named | {"consumerGroup": self.group})
        self.ask(RequestCode.GET_MIN_OFFSET, named)
        self.ask(RequestCode.GET_MAX_OFFSET, named)
        self.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, named | {"timestamp": str(BORN_MS)})

    @rule(
        enabled=st.sampled_from((True, True, False)),
        broadcast=st.booleans(),
        retry_queues=st.sampled_from((1, 1, 2)),
        most=st.sampled_from((-1, 0, 1, 16)),
        slow=st.sampled_from((0, 1, 2)),
    )
    def configure_group(self, enabled: bool, broadcast: bool, retry_queues: int, most: int, slow: int) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, under members and pulls."""
        said = {
            "groupName": self.group, "consumeEnable": enabled, "consumeFromMinEnable": True,
            "consumeBroadcastEnable": broadcast, "retryQueueNums": retry_queues, "retryMaxTimes": most, "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": slow, "notifyConsumerIdsChangedEnable": True,
        }  # fmt: skip
        self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(said).encode())

    @rule(perm=st.sampled_from(("6", "6", "6", "4", "2")))
    def change_permission(self, perm: str) -> None:
        """UPDATE_AND_CREATE_TOPIC, under members and pulls."""
        self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, self.described | {"perm": perm})

    @rule()
    def look_at_all(self) -> None:
        """GET_TOPIC_STATS_INFO and GET_CONSUME_STATS."""
        self.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": self.topic}, parse=parse_offsets)
        ext = {"consumerGroup": self.group, "topic": self.topic}
        self.ask(RequestCode.GET_CONSUME_STATS, ext, parse=parse_offsets)

    # -- clients -------------------------------------------------------------------------------------------------

    @rule(client=st.sampled_from(CLIENTS))
    def heartbeat(self, client: str) -> None:
        """HEART_BEAT of a consumer and producer."""
        subscription = {
            "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*", "subVersion": 1,
            "tagsSet": [], "topic": self.topic,
        }  # fmt: skip
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group, "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription],
            "unitMode": False,
        }  # fmt: skip
        said = {
            "clientID": f"{client}@{self.topic}", "consumerDataSet": [consumer],
            "producerDataSet": [{"groupName": f"producers_{self.topic}"}],
        }  # fmt: skip
        self.ask(RequestCode.HEART_BEAT, {}, json.dumps(said).encode(), client=client)

    @rule(client=st.sampled_from(CLIENTS))
    def unregister(self, client: str) -> None:
        """UNREGISTER_CLIENT, of one that was there or not."""
        ext = {"clientID": f"{client}@{self.topic}", "consumerGroup": self.group}
        self.ask(RequestCode.UNREGISTER_CLIENT, ext, client=client)

    @rule()
    def list_members(self) -> None:
        """GET_CONSUMER_LIST_BY_GROUP."""

        def members(body: bytes) -> list[str]:
            return sorted(json.loads(body)["consumerIdList"])

        self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}, parse=members)

    @rule(
        client=st.sampled_from(CLIENTS),
        queues=st.sets(st.sampled_from(QUEUES), min_size=1),
        code=st.sampled_from((RequestCode.LOCK_BATCH_MQ, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)),
    )
    def lock(self, client: str, queues: set[str], code: RequestCode) -> None:
        """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ, by clients in turn."""

        def locked(body: bytes) -> list[int]:
            found = json.loads(body or b"{}").get("lockOKMQSet", ())
            return sorted(queue["queueId"] for queue in found)

        asked = [{"brokerName": BROKER, "queueId": int(queue_id), "topic": self.topic} for queue_id in sorted(queues)]
        said = {"consumerGroup": f"orderly_{self.topic}", "clientId": client, "mqSet": asked}
        self.ask(code, {}, json.dumps(said).encode(), parse=locked)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """RocketMQ and Headrace, both empty."""
    folder = tmp_path_factory.mktemp("histories")
    with rocketmq("4.9.7", folder) as theirs, headrace(folder / "headrace", "--broker.name", BROKER) as ours:
        yield theirs, ours


def test_both_brokers_have_the_same_history(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """remoting.md 4: codes, fields and messages of any sequence of requests."""
    monkeypatch.setattr(Histories, "clusters", clusters, raising=False)
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=20, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
