"""FINs of consumers with small windows are done in compiled code, and as through the connection (ADR 0016)."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.channels.channel import Channel
from headrace.net.busy_poll import BusyPoll
from headrace.nsq.coalescing import MIN_IN_FLIGHT, ReadCoalescing
from headrace.nsq.connection import NsqConnection
from tests.unit.nsq.fake_client import Bench, Client, mpub, pub
from tests.unit.nsq.real_bench import RealBench, real_bench

MESSAGES = 20
RDY = b"RDY 1\n"


@pytest.fixture
def bench() -> Bench:
    """A server whose topic ``orders`` has messages."""
    made = Bench()
    made.client(peer=("10.0.0.3", 1)).send(mpub("orders", [b"%d" % number for number in range(MESSAGES)]))
    return made


def fin(message_id: bytes) -> bytes:
    return b"FIN " + message_id + b"\n"


def ids_of(client: Client) -> list[bytes]:
    """Return the ids of the messages that came."""
    return [data[10:26] for kind, data in client.frames() if kind == 2]


def consumer_of(bench: Bench, ready: int = 1, port: int = 1) -> tuple[Client, list[bytes]]:
    """Return a consumer and the ids of what it was sent."""
    consumer = bench.client(peer=("10.0.0.2", port))
    return consumer, [data[10:26] for kind, data in consumer.subscribe("orders", "all", ready) if kind == 2]


def channel_of(bench: Bench) -> Any:
    return bench.broker.topics["orders"].channels["all"]


def test_each_fin_brings_the_next_message(bench: Bench) -> None:
    """C-SVC-06: one message at a time, each finished and none twice."""
    consumer, seen = consumer_of(bench)
    for number in range(1, MESSAGES):
        consumer.post(fin(seen[-1]))
        assert bench.broker.dirty  # a dispatch was asked for
        assert bench.server.finishes.reads == number
        bench.work()
        seen += ids_of(consumer)
    assert len(set(seen)) == MESSAGES
    consumer.send(fin(seen[-1]))
    assert ids_of(consumer) == []
    channel = channel_of(bench)
    assert (channel.finish_count, channel.in_flight_count, channel.depth) == (MESSAGES, 0, 0)
    assert bench.server.intake.command_counts()["FIN"] == MESSAGES


@pytest.mark.parametrize("spelling", [lambda held: fin(held) + RDY, lambda held: RDY + fin(held) + RDY + RDY])
def test_an_rdy_that_changes_nothing_may_stand_beside_a_fin(bench: Bench, spelling: Callable[[bytes], bytes]) -> None:
    """Some clients send one with each FIN."""
    consumer, seen = consumer_of(bench)
    for number in range(1, MESSAGES):
        consumer.post(spelling(seen[-1]))
        assert bench.server.finishes.reads == number
        bench.work()
        seen += ids_of(consumer)
    assert len(set(seen)) == MESSAGES
    rdys = spelling(b"").count(RDY)
    assert bench.server.intake.command_counts()["RDY"] == 1 + rdys * (MESSAGES - 1)


def test_an_rdy_alone_that_changes_nothing_is_a_sign_of_life(bench: Bench) -> None:
    """A client that holds its message for long may send nothing else."""
    consumer, (held,) = consumer_of(bench)
    clock = bench.clock
    for number in range(1, 6):
        consumer.post(RDY)
        assert bench.server.finishes.reads == number
        assert not bench.broker.dirty
        clock.advance_ms(25_000)
        bench.server.check_timers(bench.server.clock.monotonic_ms())
        bench.server.finishes.end_turn()
    assert not consumer.transport.aborted
    consumer.post(fin(held))
    assert channel_of(bench).finish_count == 1


def test_an_rdy_that_changes_something_goes_through_the_connection(bench: Bench) -> None:
    consumer, (held,) = consumer_of(bench)
    consumer.post(b"RDY 2\n" + fin(held))
    bench.work()
    seen = ids_of(consumer)
    assert len(seen) == 2
    assert bench.server.finishes.reads == 0
    consumer.post(fin(seen.pop()) + RDY)
    bench.work()
    assert bench.server.finishes.reads == 0
    assert ids_of(consumer) == []  # one is in flight
    consumer.post(RDY + fin(seen.pop()))
    bench.work()
    assert bench.server.finishes.reads == 1
    assert len(ids_of(consumer)) == 1


def test_an_rdy_behind_cls_changes_nothing(bench: Bench) -> None:
    """What the last one said is not what holds then: the window is 0."""
    consumer, (held,) = consumer_of(bench)
    consumer.post(b"CLS\n")
    consumer.post(RDY + fin(held) + RDY)
    bench.work()
    assert [data for kind, data in consumer.frames()] == [b"CLOSE_WAIT"]
    assert channel_of(bench).finish_count == 1
    assert channel_of(bench).in_flight_count == 0


def test_what_is_common_to_a_turn_is_done_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel is marked once, and again when it was dispatched."""
    consumers = [consumer_of(bench, port=port) for port in range(1, 6)]
    marked = []
    touch = bench.broker.touch_channel

    def noting(channel: Channel) -> None:
        marked.append(channel)
        touch(channel)

    monkeypatch.setattr(bench.broker, "touch_channel", noting)
    for turn in (1, 2):
        for consumer, held in consumers:
            consumer.post(fin(held.pop()))
        assert marked == [channel_of(bench)] * turn
        bench.work()
        for consumer, held in consumers:
            held += ids_of(consumer)
    assert channel_of(bench).finish_count == 10


def test_a_fin_that_fails_is_refused_and_the_client_goes_on(bench: Bench) -> None:
    """nsq.md 1.6: the error is not fatal; what stands beside it counts."""
    (consumer, (held, other)), (_, (foreign,)) = consumer_of(bench, 2), consumer_of(bench, port=2)
    consumer.post(fin(b"f" * 16) + fin(held) + fin(held) + fin(foreign))
    assert bench.server.finishes.reads == 1
    assert consumer.frames() == [
        (1, b"E_FIN_FAILED FIN ffffffffffffffff failed ID not in flight"),
        (1, b"E_FIN_FAILED FIN " + held + b" failed ID not in flight"),
        (1, b"E_FIN_FAILED FIN " + foreign + b" failed client does not own message"),
    ]
    assert bench.server.counters.refusals["E_FIN_FAILED"] == 3
    consumer.post(fin(other))
    assert channel_of(bench).finish_count == 2
    assert not consumer.transport.closed


@pytest.mark.parametrize(
    "spelling",
    [
        lambda held: b"FIN " + held + b"\r\n",
        lambda held: b"FIN " + held + b" more\n",
        lambda held: fin(held) + b"NOP\n",
        lambda held: b"NOP\n" * 4 + b"NOP \n" + fin(held),  # as long as two FINs
        lambda held: b"TOUCH " + held + b"\n" + fin(held),
    ],
)
def test_other_reads_go_through_the_connection(bench: Bench, spelling: Callable[[bytes], bytes]) -> None:
    consumer, (held,) = consumer_of(bench)
    consumer.post(spelling(held))
    bench.work()
    assert bench.server.finishes.reads == 0
    assert channel_of(bench).finish_count == 1
    assert len(ids_of(consumer)) == 1


def test_a_fin_in_pieces_goes_through_the_connection(bench: Bench) -> None:
    """Also where a piece looks like a whole read."""
    consumer, (held, other) = consumer_of(bench, 2)
    whole = b"NOP\n" * 4 + b"NOP \n" + fin(held) + fin(other)
    consumer.post(whole[:30])
    consumer.post(whole[30:51])  # 21 bytes, with the end of one FIN and the beginning of another
    consumer.post(whole[51:])
    assert bench.server.finishes.reads == 0
    assert channel_of(bench).finish_count == 2


def test_what_began_before_is_no_fin(bench: Bench) -> None:
    consumer, (held,) = consumer_of(bench)
    consumer.post(b"X")
    consumer.post(fin(held))
    assert consumer.frames() == [(1, b"E_INVALID invalid command XFIN")]
    assert consumer.transport.eof_sent
    assert channel_of(bench).finish_count == 0


def test_upper_case_is_no_id_of_ours(bench: Bench) -> None:
    consumer, _ = consumer_of(bench)
    consumer.post(fin(b"00070000000F0000"))
    assert consumer.frames() == [(1, b"E_FIN_FAILED FIN 00070000000F0000 failed ID not in flight")]
    assert bench.server.finishes.reads == 0


def test_reads_of_large_windows_are_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by read it is decided whether many FINs may come together."""
    noted = []
    monkeypatch.setattr(ReadCoalescing, "note", lambda self, consumer, subscription: noted.append(subscription))
    consumer, held = consumer_of(bench, MIN_IN_FLIGHT)
    for ready, count in ((MIN_IN_FLIGHT, 1), (MIN_IN_FLIGHT - 1, 0), (MIN_IN_FLIGHT, 1)):
        consumer.send(b"RDY %d\n" % ready)
        noted.clear()
        consumer.send(fin(held.pop()))
        assert noted == [consumer.connection.subscription] * count
    assert channel_of(bench).finish_count == 3
    assert bench.server.finishes.reads == 4  # with the first RDY, which changes nothing


def test_the_loop_looks_for_more_where_that_may_pay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 0011: behind a FIN that brings a message, not behind one that nobody waits for."""
    consumer, held = consumer_of(bench, MIN_IN_FLIGHT)
    looks = []
    monkeypatch.setattr(BusyPoll, "served", lambda self: looks.append(bench.server.finishes.reads))
    consumer.post(fin(held[0]))  # there is more
    bench.work()
    consumer.post(fin(held[1]))
    with monkeypatch.context() as patch:
        patch.setattr(ReadCoalescing, "note", lambda self, consumer, subscription: True)
        bench.work()
        consumer.post(fin(held[2]))  # the next read waits for many
    bench.work()
    channel_of(bench).paused = True
    consumer.post(fin(held[3]))  # there is nothing that it could bring
    assert looks == [1, 2]
    assert bench.server.finishes.reads == 4


def test_the_loop_does_not_look_while_an_answer_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADR 0011: the flusher needs the core."""
    consumer, (held,) = consumer_of(bench)
    told = []
    monkeypatch.setattr(BusyPoll, "served", lambda self: told.append("served"))
    monkeypatch.setattr(BusyPoll, "waits", lambda self: told.append("waits"))
    bench.broker.gate.open_all = False
    bench.client(peer=("10.0.0.3", 2)).send(pub("other", b"x"))
    told.clear()
    consumer.post(fin(held))
    assert told == ["waits"]
    assert bench.server.finishes.reads == 1


def test_who_publishes_too_is_waited_for(bench: Bench) -> None:
    consumer, (held,) = consumer_of(bench)
    assert consumer.send(pub("other", b"x")) == [(0, b"OK")]
    consumer.send(fin(held))
    assert bench.server.finishes.reads == 0
    assert channel_of(bench).finish_count == 1


def test_a_consumer_that_closes_still_finishes(bench: Bench) -> None:
    """CLS: what is in flight is finished, and nothing new comes."""
    consumer, (held,) = consumer_of(bench)
    assert consumer.send(b"CLS\n") == [(0, b"CLOSE_WAIT")]
    assert consumer.send(fin(held)) == []
    assert channel_of(bench).finish_count == 1


def test_a_fin_is_a_sign_of_life(bench: Bench) -> None:
    """nsq.md 1.7: who sends commands is not cut for missing heartbeats."""
    consumer, held = consumer_of(bench, 10)
    for message_id in held[:4]:
        bench.advance(50_000)
        assert not consumer.transport.closed
        consumer.post(fin(message_id))
    assert bench.server.finishes.reads == 4


def test_a_deleted_channel_takes_nothing_more(bench: Bench) -> None:
    """Its consumer is gone when the next read comes."""
    consumer, (held,) = consumer_of(bench)
    bench.broker.delete_channel("orders", "all")
    consumer.connection.get_buffer(-1)[:21] = fin(held)
    consumer.connection.buffer_updated(21)
    assert bench.server.finishes.reads == 0


def test_who_has_ended_holds_no_channel(tmp_path: Path) -> None:
    """A connection may be kept for its statistics, or until the garbage collector comes by."""
    with real_bench(tmp_path) as bench:
        consumer = bench.client(peer=("10.0.0.2", 1))
        consumer.post(b"SUB orders all\n")
        bench.server.broker.store.flush()
        bench.end_turn()
        channel = weakref.ref(bench.server.broker.topics["orders"].channels["all"])
        bench.server.broker.delete_channel("orders", "all")
        bench.end_turn()
        gc.collect()
        assert consumer.transport.eof_sent
        assert channel() is None


@pytest.mark.provokes_bugs
def test_a_bug_ends_the_connection_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    (consumer, (held,)), (other, (kept,)) = consumer_of(bench), consumer_of(bench, port=2)

    def broken(channel: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(bench.broker, "touch_channel", broken)
        consumer.post(fin(held))
    assert consumer.transport.aborted
    assert "connection failed by a bug" in caplog.text
    other.post(fin(kept))  # in the same turn
    bench.work()
    assert len(ids_of(other)) == 1


def commands_of(rng: random.Random, held: list[list[bytes]], old: list[bytes]) -> tuple[int, bytes]:
    """Return which of the consumers sends what next."""
    who = rng.randrange(len(held))
    mine = held[who]
    parts = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if mine and rng.random() < 0.75:
            old.append(mine.pop(rng.randrange(len(mine))))
            parts.append(rng.choice([fin, fin, fin, fin, lambda held: b"REQ " + held + b" 0\n"])(old[-1]))
        elif rng.random() < 0.3:
            parts.append(b"RDY %d\n" % rng.choice([0, 1, 2, 5, 20]))
        else:
            of_others = [message_id for ids in held for message_id in ids if ids is not mine]
            parts.append(fin(rng.choice([*old[-3:], *of_others[:3], b"0" * 16])))
    return who, b"".join(parts)


def play(bench: RealBench, seed: int) -> list[Any]:
    """Have three consumers of one channel do the same for each seed; return what they saw and what the channel says."""
    rng = random.Random(seed)
    publisher = bench.client(peer=("10.0.0.3", 1))
    consumers = [bench.client(peer=("10.0.0.2", port)) for port in range(3)]
    for consumer in consumers:
        consumer.post(b"SUB orders all\n")
        bench.server.broker.store.flush()
        bench.end_turn()
        consumer.post(b"RDY %d\n" % rng.choice([1, 1, 3]))
    held: list[list[bytes]] = [[] for _ in consumers]
    old: list[bytes] = []
    seen: list[Any] = []
    for _ in range(150):
        if rng.random() < 0.2:
            publisher.post(mpub("orders", [b"%d" % rng.randrange(1000) for _ in range(rng.randint(1, 9))]))
        for _ in range(rng.randint(0, 3)):
            who, data = commands_of(rng, held, old)
            consumers[who].post(data)
        bench.end_turn()
        bench.clock.advance_ms(rng.choice([0, 1, 100]))
        for mine, consumer in zip(held, consumers, strict=True):
            frames = consumer.frames()
            mine += [data[10:26] for kind, data in frames if kind == 2]
            seen.append([data[8:] if kind == 2 else data for kind, data in frames])
    channel = bench.server.broker.topics["orders"].channels["all"]
    seen.append((channel.finish_count, channel.requeue_count, channel.in_flight_count, channel.depth))
    seen.append(bench.server.intake.command_counts())
    seen.append(bench.server.counters.messages_out)
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_what_clients_see_is_the_same_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Reads that are taken over, and the same reads through the connection."""
    with real_bench(tmp_path / "taken") as bench:
        taken = play(bench, seed)
        assert bench.server.finishes.reads > 20
    note = NsqConnection.note_consumer_read

    def never_plain(connection: NsqConnection) -> bool:
        is_waited_for = note(connection)
        connection._finisher.is_plain = False
        return is_waited_for

    monkeypatch.setattr(NsqConnection, "note_consumer_read", never_plain)
    with real_bench(tmp_path / "through") as bench:
        assert play(bench, seed) == taken
        assert bench.server.finishes.reads == 0


def test_what_was_finished_stays_finished(tmp_path: Path) -> None:
    """The journal hears of FINs that were taken over, also of those behind the first of a turn."""
    with real_bench(tmp_path) as bench:
        publisher = bench.client(peer=("10.0.0.3", 1))
        publisher.post(mpub("orders", [b"%d" % number for number in range(10)]))
        bench.end_turn()
        consumer = bench.client(peer=("10.0.0.2", 1))
        consumer.post(b"SUB orders all\n")
        bench.server.broker.store.flush()
        bench.end_turn()
        consumer.post(b"RDY 6\n")
        bench.end_turn()
        held = ids_of(consumer)
        assert len(held) == 6
        for message_id in held[1:6:2]:
            consumer.post(fin(message_id))
        assert bench.server.finishes.reads == 3
        bench.end_turn()
    with real_bench(tmp_path) as bench:
        consumer = bench.client(peer=("10.0.0.2", 1))
        consumer.post(b"SUB orders all\n")
        bench.end_turn()
        consumer.post(b"RDY 10\n")
        bench.end_turn()
        bodies = sorted(consumer.messages())
    assert bodies == [b"0", b"2", b"4", b"6", b"7", b"8", b"9"]
