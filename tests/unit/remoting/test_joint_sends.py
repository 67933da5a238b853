"""Small sends of several clients are appended together, and each client is answered as if it were alone."""

from __future__ import annotations

import random
import re
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

import pytest

from headrace import testing
from headrace.batch import PublishBatch
from headrace.broker.statistics import TOPIC_PUT_NUMS
from headrace.errors import StoreFullError
from headrace.net.joint_turn import ALONE, LONE_TURNS, MAX_SHARE_BYTES, MEMORY_BYTES
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.remoting.codec import Command, Limits, Reader, SendIntake, encode_request
from headrace.remoting.codes import ResponseCode
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.sending.send_intake import JointIntake
from tests.support.records import decode_messages
from tests.support.remoting import BrokerLink, RemotingRig, RemotingSocket, send_fields

CLIENTS = 12


def send(
    opaque: int,
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    serialize: int = 0,
    oneway: bool = False,
    **more: object,
) -> bytes:
    """Return one send."""
    texts = {name: str(value) for name, value in send_fields(topic, queue_id=queue_id, **more).items()}  # type: ignore[arg-type]
    return encode_request(serialize, 310, opaque, oneway, texts, body)


def clients_of(rig: RemotingRig, count: int, *topics: str) -> list[BrokerLink]:
    """Return clients of one server that has the topics."""
    first = rig.link()
    for topic in topics:
        first.ask(send(1, topic, b"makes the topic"))
    return [first, *(BrokerLink(rig, first.server, f"10.0.0.{6 + number}") for number in range(count - 1))]


def appends_of(rig: RemotingRig) -> list[int]:
    """Have the number of messages of every append noted, in the list that is returned."""
    counts: list[int] = []
    publish = rig.broker.publish_placed

    def noting(batch: PublishBatch, *args: object, **options: object) -> int:
        counts.append(len(batch))
        return publish(batch, *args, **options)  # type: ignore[arg-type]

    rig.broker.publish_placed = noting  # type: ignore[method-assign]
    return counts


def end_turn(rig: RemotingRig, clients: list[BrokerLink]) -> list[dict[int, Command]]:
    """End the turn and have everything on the disk; return each client's answers by number."""
    clients[0].server.joint_sends.end_turn()
    rig.store.flush()
    return [{answer.opaque: answer for answer in client.taken()} for client in clients]


def is_joined(client: BrokerLink) -> bool:
    """Return whether a client's sends wait for the end of the turn."""
    assert isinstance(client.connection, RemotingConnection)
    return client.connection.has_joined


def bodies(rig: RemotingRig, topic: str) -> list[bytes]:
    return [message.body for message in rig.messages(topic) if message.body != b"makes the topic"]


def test_a_turn_is_one_append(rig: RemotingRig) -> None:
    """Reads of one turn are appended once, in their order; each client gets the id and place of its own messages."""
    clients = clients_of(rig, 3, "Orders", "Others")
    counts = appends_of(rig)
    assert clients[0].send(send(11, "Orders", b"a")) == []
    assert clients[1].send(send(12, "Orders", b"b", serialize=1) + send(13, "Orders", b"c", queue_id=1)) == []
    assert clients[2].send(send(14, "Others", b"d")) == []
    answers = end_turn(rig, clients)
    assert counts == [4]
    assert [sorted(each) for each in answers] == [[11], [12, 13], [14]]
    found = {message.body: message for topic in ("Orders", "Others") for message in rig.messages(topic)}
    for body, answer in zip(b"abcd", [answers[0][11], answers[1][12], answers[1][13], answers[2][14]], strict=True):
        message = found[bytes([body])]
        assert answer.code == 0
        assert answer.ext["queueOffset"] == str(message.queue_offset)
        assert answer.ext["queueId"] == ("1" if body == ord("c") else "0")
        assert int(answer.ext["msgId"][16:], 16) == message.physical_offset
    assert [found[name].born_host >> 32 & 0xFF for name in (b"a", b"b", b"c", b"d")] == [5, 6, 6, 7]
    server = clients[0].server
    assert (server.joint_sends.joined, server.counters.messages_in) == (3, 4)


def test_who_is_alone_is_not_joined_for_a_while(rig: RemotingRig) -> None:
    """Few sends of a lone client wait for the end of their turns, then many do not."""
    clients = clients_of(rig, 1, "Orders")
    clients[0].server.joint_sends._alone = 0
    waited = []
    for number in range(2 * (LONE_TURNS + ALONE)):
        owed = clients[0].connection._owed
        clients[0].send(send(number, "Orders", b"x"))
        waited.append(is_joined(clients[0]))
        assert clients[0].connection._owed == owed + 1  # the disk's, or the turn's
        [answers] = end_turn(rig, clients)
        assert answers[number].code == 0
    assert waited == 2 * [*[True] * LONE_TURNS, *[False] * ALONE]
    assert clients[0].server.joint_sends.joined == 0


@pytest.mark.provokes_bugs
@pytest.mark.parametrize("error", [MemoryError(), ValueError("a bug")])
def test_a_bug_in_one_answer_keeps_no_other_from_its_own(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Everything is stored: who was not answered sent it again. The one it befell is closed, and knows that much."""
    clients = clients_of(rig, 3, "Orders")
    for number, client in enumerate(clients):
        client.send(send(number, "Orders", b"%d" % number))

    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr(clients[1].connection, "send_when_durable", fail)
    answers = end_turn(rig, clients)
    assert [sorted(each) for each in answers] == [[0], [], [2]]
    assert [client.connection.cause for client in clients] == ["", "internal error", ""]
    assert bodies(rig, "Orders") == [b"0", b"1", b"2"]
    server = clients[0].server
    assert (server.counters.messages_in, server.counters.internal_errors) == (3, isinstance(error, ValueError))
    assert "answer to joint sends failed by a bug client=10.0.0.6:" in caplog.text
    clients[2].send(send(7, "Orders", b"next"))
    assert sorted(end_turn(rig, clients)[2]) == [7]


def test_what_is_refused_does_not_touch_the_others(rig: RemotingRig) -> None:
    """A queue that a topic does not have, and a topic that goes within the turn."""
    clients = clients_of(rig, 4, "Good", "Gone")
    counts = appends_of(rig)
    for number, (topic, queue_id) in enumerate([("Good", 0), ("Good", 99), ("Gone", 0), ("Good", 1)]):
        clients[number].send(send(number, topic, b"%d" % number, queue_id=queue_id))
    rig.broker.delete_topic("Gone")
    answers = end_turn(rig, clients)
    codes = [answers[number][number].code for number in range(4)]
    assert codes == [0, ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST, 0]
    assert "queueId[99]" in (answers[1][1].remark or "")
    assert bodies(rig, "Good") == [b"0", b"3"]
    assert len(counts) == 1
    refusals = clients[0].server.counters.refusals
    assert (refusals[ResponseCode.SYSTEM_ERROR], refusals[ResponseCode.TOPIC_NOT_EXIST]) == (1, 1)


def test_why_a_one_way_send_is_refused_is_logged(rig: RemotingRig, caplog: pytest.LogCaptureFixture) -> None:
    """With the address of its client, whoever else sent in that turn."""
    clients = clients_of(rig, 3, "Good")
    clients[0].send(send(1, "Good", b"a", queue_id=99))
    clients[1].send(send(2, "Good", b"b", oneway=True) + send(3, "Good", b"c", queue_id=99, oneway=True))
    clients[2].send(send(4, "Good", b"d", oneway=True))
    answers = end_turn(rig, clients)
    assert [sorted(each) for each in answers] == [[1], [], []]
    lines = [message for message in caplog.messages if message.startswith("request refused, client not told")]
    assert len(lines) == 1
    assert lines[0].startswith("request refused, client not told client=10.0.0.6:")
    assert bodies(rig, "Good") == [b"b", b"d"]


@pytest.mark.parametrize("size", [1, MAX_SHARE_BYTES + 1])
def test_a_full_store_refuses_each_send(rig: RemotingRig, size: int) -> None:
    """Every client is told, and every send is counted once: one that was refused before under the code it is told."""
    clients = clients_of(rig, 2, "Orders")
    publish = rig.broker.publish_placed

    def full(*_: object, **__: object) -> int:
        raise StoreFullError("/data", 1, 2)

    rig.broker.publish_placed = full  # type: ignore[method-assign]
    at_once = clients[0].send(send(1, "Orders", bytes(size)) + send(2, "Orders", b"b"))
    at_once += clients[1].send(send(3, "Orders", bytes(size)) + send(4, "Orders", b"d", queue_id=99))
    answers = {answer.opaque: answer for answer in at_once}
    for each in end_turn(rig, clients):
        answers |= each
    assert {number: answer.code for number, answer in answers.items()} == {1: 14, 2: 14, 3: 14, 4: 1}
    assert all("/data" in (answers[number].remark or "") for number in (1, 2, 3))
    assert "queueId[99]" in (answers[4].remark or "")
    assert dict(clients[0].server.counters.refusals) == {14: 3, 1: 1}
    rig.broker.publish_placed = publish  # type: ignore[method-assign]
    clients[0].send(send(4, "Orders", b"d"))
    assert end_turn(rig, clients)[0][4].code == 0
    assert bodies(rig, "Orders") == [b"d"]


@pytest.mark.parametrize("size", [1, MAX_SHARE_BYTES + 1])
def test_what_a_full_store_refuses_of_one_way_sends_is_logged(
    rig: RemotingRig, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Nobody else is told, whether or not they were to be appended with those of others."""

    def full(*_: object, **__: object) -> int:
        raise StoreFullError("/data", 1, 2)

    clients = clients_of(rig, 2, "Orders")
    rig.broker.publish_placed = full  # type: ignore[method-assign]
    clients[0].send(send(1, "Orders", bytes(size)))
    clients[1].send(send(2, "Orders", bytes(size), oneway=True))
    end_turn(rig, clients)
    (line,) = [message for message in caplog.messages if message.startswith("request refused, client not told")]
    assert line.startswith("request refused, client not told client=10.0.0.6:")
    assert "code=SERVICE_NOT_AVAILABLE" in line
    assert "/data" in line


def test_who_sends_to_an_async_topic_does_not_wait_for_the_disk(rig: RemotingRig) -> None:
    """The answers of one batch leave when the level of each topic is met."""
    clients = clients_of(rig, 2, "Quick", "Lasting")
    for queue in rig.broker.topics["Quick"].queues:
        queue.awaits_flush = False
    clients[0].send(send(1, "Quick", b"a"))
    clients[1].send(send(2, "Lasting", b"b"))
    clients[0].server.joint_sends.end_turn()
    assert [[answer.opaque for answer in client.taken()] for client in clients] == [[1], []]
    rig.store.flush()
    assert [[answer.opaque for answer in client.taken()] for client in clients] == [[], [2]]


@pytest.mark.parametrize(
    ("go", "codes"),
    [
        (lambda client: client.connection.eof_received(), {1: 0}),
        (lambda client: client.transport.abort(), {}),
        (lambda client: client.connection.stop("server stopped"), {1: 0}),
        (lambda client: client.send(b"\xff" * 16), {1: 0}),
        (lambda client: client.send(send(2, "Orders", b"2")), {1: 0, 2: 0}),
        (lambda client: client.send(encode_request(0, 9_999, 3)), {1: 0}),
    ],
    ids=["end-of-file", "lost", "stop", "bad-frame", "send", "unknown-request"],
)
def test_what_comes_behind_finds_the_send_done(
    rig: RemotingRig, go: Callable[[BrokerLink], object], codes: dict[int, int]
) -> None:
    """The next read, half a close, a stop or the end within the turn: what was sent before is stored and answered."""
    clients = clients_of(rig, 1, "Orders")
    client = clients[0]
    client.server.joint_sends._alone = 0
    client.send(send(1, "Orders", b"1"))
    assert is_joined(client)
    go(client)
    [answers] = end_turn(rig, clients)
    assert bodies(rig, "Orders")[0] == b"1"
    assert not is_joined(client)
    assert client.connection._owed == 0
    assert {number: answer.code for number, answer in answers.items()} == codes


def test_held_and_large_sends_are_not_copied(rig: RemotingRig) -> None:
    """A delayed message, and a read with more bytes than a share may have, are appended by themselves."""
    clients = clients_of(rig, 2, "Orders")
    server = clients[0].server
    server.joint_sends._alone = 0
    counts = appends_of(rig)
    clients[0].send(send(1, "Orders", b"later", properties={"DELAY": "3"}))
    clients[1].send(send(2, "Orders", bytes(MAX_SHARE_BYTES + 1)))
    assert counts == [1, 1]
    answers = end_turn(rig, clients)
    assert (answers[0][1].code, answers[1][2].code) == (0, 0)


def test_a_full_memory_is_appended_at_once(rig: RemotingRig) -> None:
    """Nothing is lost or turned around where a turn brings more than the copies have room for."""
    count = MEMORY_BYTES // MAX_SHARE_BYTES + 10
    clients = clients_of(rig, count, "Orders")
    counts = appends_of(rig)
    clients[0].server.joint_sends._alone = 0
    for number, client in enumerate(clients):
        client.send(send(number, "Orders", b"%04d" % number + bytes(MAX_SHARE_BYTES - 4)))
    answers = end_turn(rig, clients)
    assert len(counts) == 3  # the memory, the one that found it full, the rest
    assert [answers[number][number].code for number in range(count)] == [0] * count
    assert [body[:4] for body in bodies(rig, "Orders")] == [b"%04d" % number for number in range(count)]


def test_statistics_count_every_request(rig: RemotingRig) -> None:
    """A-BROKER-49: messages, bytes and calls by topic and host are those of sends that are not joined."""
    clients = clients_of(rig, 3, "Orders")
    for number in range(6):
        clients[number // 2].send(send(number, "Orders", b"12345"))
    end_turn(rig, clients)
    counted = rig.services.statistics.snapshot(TOPIC_PUT_NUMS, "Orders")
    assert counted is not None
    assert (counted.day.sum, counted.day.per_call) == (7, 1)  # with the one that made the topic
    hosts = {
        row.call.host: row.messages for row in rig.services.statistics.take_counted() if row.call.topic == "Orders"
    }
    assert hosts == {"10.0.0.5": 3, "10.0.0.6": 2, "10.0.0.7": 2}


@pytest.mark.provokes_bugs
def test_a_bug_ends_the_clients_that_were_not_answered(rig: RemotingRig, caplog: pytest.LogCaptureFixture) -> None:
    """As where a bug meets one connection's read: they cannot know what became of their sends."""
    clients = clients_of(rig, 3, "Orders")

    def failing(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    publish, rig.broker.publish_placed = rig.broker.publish_placed, failing  # type: ignore[method-assign]
    for number, client in enumerate(clients[:2]):
        client.send(send(number, "Orders", b"1"))
    end_turn(rig, clients)
    assert [client.transport.aborted for client in clients] == [True, True, False]
    assert "failed by a bug" in caplog.text
    rig.broker.publish_placed = publish  # type: ignore[method-assign]
    assert clients[2].ask(send(5, "Orders", b"2"))[5].code == 0
    assert bodies(rig, "Orders") == [b"2"]


@pytest.mark.parametrize("seed", range(10))
def test_any_mix_is_answered_as_if_each_were_alone(
    seed: int, rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client's messages are stored once, in its order for each queue, and each request has its answer."""
    monkeypatch.setattr("headrace.net.joint_turn.ALONE", seed % 2)
    chosen = random.Random(seed)
    clients = clients_of(rig, CLIENTS, "A", "B")
    owed: list[dict[int, int]] = [{} for _ in clients]
    sent: dict[tuple[str, int, int], list[bytes]] = {}
    answered: list[dict[int, int]] = [{} for _ in clients]

    def note(who: int, answers: list[Command]) -> None:
        answered[who] |= {answer.opaque: answer.code for answer in answers}

    for number in range(200):
        who = chosen.randrange(CLIENTS)
        data = b""
        for place in range(chosen.choice([1, 1, 1, 4])):
            opaque = 10 * number + place
            topic, queue_id = chosen.choice("AB"), chosen.choice([0, 1, 77])
            body = b"%d %d" % (who, opaque) + bytes(chosen.choice([0, 10, 3000]))
            data += send(opaque, topic, body, queue_id=queue_id, serialize=chosen.choice([0, 1]))
            owed[who][opaque] = 1 if queue_id == 77 else 0
            if queue_id != 77:
                sent.setdefault((topic, queue_id, who), []).append(body)
        cut = chosen.randrange(1, len(data)) if chosen.random() < 0.1 else len(data)
        for part in (data[:cut], data[cut:]):
            note(who, clients[who].send(part))
            if chosen.random() < 0.3:
                for index, answers in enumerate(end_turn(rig, clients)):
                    note(index, list(answers.values()))
    for index, answers in enumerate(end_turn(rig, clients)):
        note(index, list(answers.values()))
    assert answered == owed
    found: dict[tuple[str, int, int], list[bytes]] = {}
    for topic in "AB":
        for message in rig.messages(topic):
            if message.body != b"makes the topic":
                key = (topic, message.queue_id, int(message.body.split()[0]))
                found.setdefault(key, []).append(message.body)
    assert found == sent
    assert clients[0].server.joint_sends.joined > 50


# -- the intake itself -----------------------------------------------------------------------------------------------


def intake_of(*frames: bytes) -> SendIntake:
    """Return what a read of sends to the topic T has."""
    intake = SendIntake()
    reader = Reader(Limits({"T"}))
    data = b"".join(frames)
    reader.received(bytearray(HEADROOM_BYTES) + data, len(data))
    assert reader.next_command(intake) is None
    return intake


def test_what_has_no_room_is_not_joined() -> None:
    """All of a read or nothing; after clear() there is room again."""
    source = intake_of(send(1, "T", bytes(100)), send(2, "T", bytes(100), queue_id=1))
    joint = JointIntake(500)
    assert joint.join(source) == [0, 1]
    assert joint.join(source) is None
    assert (joint.sends, len(joint.batch)) == (2, 2)
    assert joint.totals_of(0, 2) == [(0, 1, 1, 100), (1, 1, 1, 100)]
    assert joint.totals_of(1, 1) == [(1, 1, 1, 100)]
    for first, count in ((-1, 1), (0, 3), (3, 0), (2, 1)):
        with pytest.raises(IndexError):
            joint.totals_of(first, count)
    joint.clear()
    assert joint.join(source) == [0, 1]


def test_what_is_not_joined_leaves_no_destination_behind() -> None:
    """Nothing would clear it while nobody else sends: who goes on sending too much for the copies would fill memory."""
    joint = JointIntake(10)
    for queue_id in range(3):
        assert joint.join(intake_of(send(1, "T", bytes(100), queue_id=queue_id))) is None
    assert joint.batch.destinations == joint.holds == []


# -- with sockets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_clients_that_wait_for_each_answer(durability: Literal["async", "fsync"]) -> None:
    """Reads of one turn are joined over real sockets; every message is there once, each client's in its order."""
    rounds = 40
    with testing.broker(store__durability=durability) as broker, ExitStack() as sockets:
        clients = [sockets.enter_context(RemotingSocket(broker.remoting)) for _ in range(CLIENTS)]
        clients[0].call(310, send_fields("Orders"), b"makes the topic")
        places = set()
        for number in range(rounds):
            for who, client in enumerate(clients):
                client.send(310, send_fields("Orders", queue_id=who % 4), b"%02d %02d" % (who, number))
            for who, client in enumerate(clients):
                header, _ = client.receive()
                assert header["code"] == 0, header
                assert header["extFields"]["queueId"] == str(who % 4)
                places.add((who % 4, header["extFields"]["queueOffset"]))
        assert len(places) == CLIENTS * rounds
        with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10) as answer:
            joined = re.search(r"^headrace_remoting_joint_sends_total (\S+)$", answer.read().decode(), re.MULTILINE)
        assert joined is not None
        assert float(joined[1]) > 0
        found = []
        for queue_id in range(4):
            offset = 0
            while True:
                header, content = clients[0].call(
                    11,
                    {
                        "consumerGroup": "G", "topic": "Orders", "queueId": queue_id, "queueOffset": offset,
                        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1,
                        "subscription": "*", "expressionType": "TAG",
                    },
                )  # fmt: skip
                if header["code"] != 0:
                    break
                found += [message["body"] for message in decode_messages(content)]
                offset = int(header["extFields"]["nextBeginOffset"])
    found.remove(b"makes the topic")
    assert sorted(found) == [b"%02d %02d" % (who, number) for who in range(CLIENTS) for number in range(rounds)]
    for who in range(CLIENTS):
        own = [body for body in found if body.startswith(b"%02d " % who)]
        assert own == sorted(own)
