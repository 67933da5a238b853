"""How producers end transactions and are asked about them. Ref: remoting.md 3.9, 4.6."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.access import Patterns, User
from headrace.format import record
from headrace.remoting.codec import encode_request
from headrace.remoting.large_requests import LARGE_BODY_BYTES
from headrace.remoting.reply import Reply
from tests.support.remoting import (
    RecordingPeer,
    RemotingRig,
    physical_offset_of,
    send_fields,
)

HALF = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "U1", "TAGS": "A"}


def end(peer: RecordingPeer, half: Reply, decision: int, **more: object) -> Reply:
    assert half.ext is not None
    fields = {
        "producerGroup": "P1",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": physical_offset_of(half),
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
    assert rig.messages("T1") == []
    assert end(peer, kept, 8).code == 0
    assert end(peer, dropped, 12).code == 0
    (message,) = rig.messages("T1")
    assert (message.body, message.sys_flag & 0xC, message.prepared_offset) == (b"kept", 8, physical_offset_of(kept))


@pytest.mark.parametrize("decision", [8, 12])
def test_a_decision_is_answered_when_it_is_durable(rig: RemotingRig, decision: int) -> None:
    """ADR 0005: whoever has the answer need not be asked again. What one read brings waits for one flush."""
    link = rig.link()

    def ends(*numbers: int, oneway: bool = False) -> bytes:
        return b"".join(
            encode_request(
                0, 37, number, oneway, fields | {"tranStateTableOffset": at, "commitLogOffset": physical_offset}
            )
            for number in numbers
            for physical_offset, at in [halves[number % len(halves)]]
        )  # fmt: skip

    halves = []
    for _ in range(3):
        half = rig.peer().ask(310, send_fields("T1", f=4, properties=HALF), b"x")
        assert half.ext is not None
        halves.append((physical_offset_of(half), half.ext["queueOffset"]))
    rig.store.flush()
    fields = {"producerGroup": "P1", "commitOrRollback": decision, "msgId": "U1"}
    assert link.send(ends(0, 1, 3)) == []  # 3 repeats 0 in the same read
    assert link.send(ends(6)) == []  # and 6 in another
    assert link.send(ends(2, oneway=True)) == []
    rig.store.flush()
    assert [(answer.opaque, answer.code) for answer in link.taken()] == [(0, 0), (1, 0), (3, 0), (6, 0)]
    assert [answer.opaque for answer in link.send(ends(9))] == [9]


def test_a_decision_with_a_body_is_written_as_any_other(rig: RemotingRig) -> None:
    """Nobody reads it; one that is large waits for its turn, and then nothing may come behind it."""
    half = rig.peer().ask(310, send_fields("T1", f=4, properties=HALF), b"x")
    assert half.ext is not None
    fields = {"producerGroup": "P1", "commitOrRollback": "8", "tranStateTableOffset": half.ext["queueOffset"]}
    fields["commitLogOffset"] = str(physical_offset_of(half))
    link = rig.link()
    link.server.large_requests.call_soon = link.loop.call_soon
    assert link.send(encode_request(0, 37, 1, False, fields, bytes(LARGE_BODY_BYTES))) == []
    while link.loop.come_round():
        pass
    rig.store.flush()
    assert [(answer.opaque, answer.code) for answer in link.taken()] == [(1, 0)]
    assert [message.body for message in rig.messages("T1")] == [b"x"]


@pytest.mark.parametrize(
    "fields", [{"producerGroup": "P2"}, {"tranStateTableOffset": 9}, {"commitLogOffset": 1}, {"commitOrRollback": 5}]
)
def test_transactions_are_checked(rig: RemotingRig, fields: dict[str, object]) -> None:
    """remoting.md 4.6, trap 25: group, queue offset and physical offset must fit."""
    peer = rig.peer()
    half = peer.ask(310, send_fields("T1", f=4, properties=HALF), b"x")
    assert end(peer, half, 8, **fields).code == 1
    assert rig.messages("T1") == []


def test_producer_is_asked_about_an_open_transaction(rig: RemotingRig) -> None:
    """remoting.md 4.6: 39 one-way, with the real topic in the record and the offsets of the newest copy."""
    peer = rig.peer()
    peer.heartbeat("c1", producer="P1")
    peer.ask(310, send_fields("T1", f=4, properties=HALF), b"open")
    rig.pass_time(5_000)
    assert peer.notices == []
    rig.pass_time(2_000)
    ((code, ext, body),) = peer.notices
    assert code == 39
    assert body is not None
    decoded = record.decode(body)
    assert (decoded["topic"], decoded["body"]) == ("T1", b"open")
    assert ext["msgId"] == ext["transactionId"] == "U1"
    assert int(ext["offsetMsgId"][16:], 16) == int(ext["commitLogOffset"])
    fields = {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    assert peer.ask(37, fields | {"producerGroup": "P1", "commitOrRollback": 8, "msgId": "U1"}).code == 0
    assert [message.body for message in rig.messages("T1")] == [b"open"]


def test_half_messages_that_came_in_one_read_are_asked_about_in_their_time(rig: RemotingRig) -> None:
    """remoting.md 3.9: 6 s later, as one that came alone."""
    peer = rig.peer()
    peer.heartbeat("c1", producer="P1")
    peer.ask(310, send_fields("T1", properties=HALF | {"TRAN_MSG": "false"}), b"makes the topic")
    fields = {name: str(value) for name, value in send_fields("T1", f=4, properties=HALF).items()}
    halves = (encode_request(0, 310, number, False, fields, b"open") for number in (1, 2))
    assert {answer.code for answer in rig.link().ask(*halves).values()} == {0}
    rig.pass_time(5_000)
    assert peer.notices == []
    rig.pass_time(2_000)
    assert [code for code, _, _ in peer.notices] == [39, 39]


def test_question_that_may_be_put_to_nobody_does_not_count(tmp_path: Path) -> None:
    """A user who names the group and may not publish to the topic: else its transactions are given up meanwhile."""
    rig = RemotingRig(tmp_path, {"transaction_check_max": 2})
    producer, stranger = rig.peer(1), rig.peer(2)
    producer.ask(310, send_fields("T1", f=4, properties=HALF), b"open")
    stranger.user = User(name="stranger", publish=Patterns(["Other"]))
    for _ in range(5):
        stranger.heartbeat("c2", producer="P1")
        rig.pass_time(60_000)
    assert (stranger.notices, rig.services.messages.transactions.counters.checks) == ([], 0)
    assert rig.services.messages.transactions.open_count == 1
    producer.heartbeat("c1", producer="P1")
    rig.pass_time(31_000)
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
    rig.pass_time(31_000)
    asked = [len(peer.notices) for peer in peers]
    assert asked[0] == asked[2] == asked[4] == 0
    assert sum(asked) == 60
    assert min(asked[1], asked[3], asked[5]) > 0
