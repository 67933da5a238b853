"""The NSQ server: fair shares, limits, and its end."""

from __future__ import annotations

import asyncio
import os
import zlib
from types import SimpleNamespace

import pytest

from headrace.batch import PublishBatch
from headrace.broker.channels.channel import Channel
from headrace.broker.statistics import HOST_GET_NUMS
from headrace.format.compression import MAX_INFLATED_BYTES
from headrace.net.receive import SHORT_READ_BYTES
from headrace.net.server import MAX_REFUSED
from headrace.net.turns import MAX_KEPT_BYTES, TURN_MS
from headrace.nsq.connection import NsqConnection
from headrace.nsq.delivery import CHANNEL_BYTES, INFLATED_BYTES, SMALL_BYTES
from headrace.nsq.server import DISPATCH_BYTES
from tests.support.toolchain import cannot_run
from tests.unit.nsq.fake_client import Bench, mpub, pub
from tests.unit.nsq.real_bench import real_bench


def test_ready_consumers_share_a_backlog():
    """C-FLOW-08, B-LMQ-19, X-NSQ-06: 3 clients, 3000 messages, a third each and every message once."""
    bench = Bench()
    bench.client().send(mpub("t", [b"%d" % number for number in range(3000)]))
    clients = [bench.client() for _ in range(3)]
    for client in clients:
        client.subscribe("t", "c")
    for client in clients:
        client.connection.subscription.ready_count = 2000
    bench.broker.touch_channel(bench.broker.topics["t"].channels["c"])
    bench.work()
    shares = [client.messages() for client in clients]
    assert all(abs(len(share) - 1000) <= 64 for share in shares)
    assert sorted(int(body) for share in shares for body in share) == list(range(3000))


@pytest.mark.provokes_bugs
def test_a_channel_whose_delivery_fails_stops_no_other(caplog, monkeypatch):
    """C-FLOW-07: it is logged, and the others get their messages."""
    bench = Bench()
    clients = {name: bench.client() for name in ("bad", "good")}
    for name, client in clients.items():
        client.subscribe("t", name, ready=1)
    delivery = bench.server._delivery

    def deliver(channel):
        if channel.name == "bad":
            raise RuntimeError("a bug")
        return delivery.deliver(channel)

    monkeypatch.setattr(bench.server, "_delivery", SimpleNamespace(deliver=deliver))
    bench.client().send(pub("t", b"x"))
    assert {name: client.messages() for name, client in clients.items()} == {"bad": [], "good": [b"x"]}
    assert "delivery failed by a bug topic=t channel=bad" in caplog.messages


def test_large_backlog_is_sent_in_bounded_turns():
    """A channel gives the loop back after a batch and comes again."""
    bench = Bench()
    bench.client().send(mpub("t", [b"x" * 1000] * 4000))
    client = bench.client()
    client.subscribe("t", "c")
    client.connection.subscription.ready_count = 2500
    channel = bench.broker.topics["t"].channels["c"]
    bench.broker.touch_channel(channel)
    bench.server.dispatch()
    assert CHANNEL_BYTES - SMALL_BYTES <= len(client.transport.sent) <= CHANNEL_BYTES
    assert bench.broker.dirty
    bench.work()
    assert len(client.messages()) == 2500


def test_a_full_read_is_large_also_while_reads_are_short():
    """Others keep much of theirs: behind a full read there is probably more, and it has a turn."""
    bench = Bench()
    client = bench.client()
    client.post(b"NOP\n" * (SHORT_READ_BYTES // 4))
    assert bench.server.turns.waiting == 0
    bench.server.turns.note_kept(MAX_KEPT_BYTES + 1)
    client.post(b"NOP\n" * (SHORT_READ_BYTES // 4))
    assert bench.server.turns.waiting == 1


def test_a_dispatch_does_not_end_in_ever_smaller_writes(monkeypatch):
    """A message of 100 B is half as large on the wire as in the log: the rest of the bound is not written in pieces."""
    bench = Bench()
    bench.client().send(mpub("t", [b"x" * 100] * 5000))
    client = bench.client()
    client.subscribe("t", "c")
    client.connection.subscription.ready_count = 5000
    bench.broker.touch_channel(bench.broker.topics["t"].channels["c"])
    writes: list[bytes] = []
    monkeypatch.setattr(client.transport, "write", writes.append)
    bench.server.dispatch()
    assert len(writes) == 1
    assert bench.broker.dirty


def test_bodies_that_inflate_count_as_they_are_sent():
    """They are small in the log: the bound of one channel would be none."""
    bench = Bench()
    batch = PublishBatch()
    batch.destinations = ["t"]
    for _ in range(1000):
        batch.append(zlib.compress(bytes(2000)), sys_flag=1)
    bench.broker.publish(batch)
    clients = [bench.client() for _ in range(10)]
    for client in clients:
        client.subscribe("t", "c")
    for client in clients:
        client.connection.subscription.ready_count = 64
    sent = bench.server.counters.bytes_out
    bench.broker.touch_channel(bench.broker.topics["t"].channels["c"])
    bench.server.dispatch()
    assert CHANNEL_BYTES - SMALL_BYTES <= bench.server.counters.bytes_out - sent <= CHANNEL_BYTES + 64 * 2100
    assert bytes(2000) in [body for client in clients for body in client.messages()]


def test_bodies_that_inflate_to_megabytes_leave_a_few_at_a_time():
    """A window of them, each some bytes in the log, would be more than there is memory."""
    bench = Bench()
    batch = PublishBatch()
    batch.destinations = ["t"]
    plain = [bytes(1 << 20) + bytes([number]) for number in range(20)]
    for body in plain:
        batch.append(zlib.compress(body), sys_flag=1)
    bench.broker.publish(batch)
    client = bench.client()
    client.subscribe("t", "c")
    channel = bench.broker.topics["t"].channels["c"]
    for attempts in (1, 2):
        client.post(b"RDY 20\n")
        seen = []
        while bench.broker.dirty:
            bench.server.dispatch()
            assert len(client.transport.sent) <= INFLATED_BYTES + (2 << 20)
            seen += [data for kind, data in client.frames() if kind == 2]
            assert client.connection.subscription.message_count == channel.in_flight_count + (attempts - 1) * 20
        assert [data[26:] for data in seen] == plain
        assert {data[8:10] for data in seen} == {bytes([0, attempts])}
        assert channel.depth == 0
        assert (channel.delivered_count, channel.redelivered_count) == (20 * attempts, 20 * (attempts - 1))
        client.post(b"RDY 0\n" + b"".join(b"REQ %b 0\n" % data[10:26] for data in seen))
        bench.work()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_bodies_too_large_to_inflate_are_tried_one_in_a_turn(is_damaged: bool):
    """Each costs as much as the largest that may be; so does one with nothing wrong but the checksum behind it all."""
    bench = Bench()
    batch = PublishBatch()
    batch.destinations = ["t"]
    bomb = zlib.compress(bytes(MAX_INFLATED_BYTES - 1))[:-4] + bytes(4)
    if not is_damaged:
        bomb = zlib.compress(bytes(MAX_INFLATED_BYTES + 1))
    for _ in range(3):
        batch.append(bomb, sys_flag=1)
    bench.broker.publish(batch)
    client = bench.client()
    client.subscribe("t", "c")
    client.post(b"RDY 3\n")
    for number in range(1, 4):
        bench.server.dispatch()
        assert client.messages() == [bomb]
        assert bench.server.counters.inflate_failures == number
    assert not bench.broker.dirty


def test_bodies_that_do_not_inflate_are_said_once(caplog):
    """X-NET-05: they are delivered as stored, and counted."""
    bench = Bench()
    batch = PublishBatch()
    batch.destinations = ["t"]
    for _ in range(3):
        batch.append(b"no zlib", sys_flag=1)
    bench.broker.publish(batch)
    client = bench.client()
    client.subscribe("t", "c")
    for ready in (1, 3):
        client.post(b"RDY %d\n" % ready)
        bench.work()
    assert client.messages() == [b"no zlib"] * 3
    assert bench.server.counters.inflate_failures == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("compressed body delivered as stored, it is damaged or too large topic=t; ")


def test_a_dispatch_ends_with_its_time(monkeypatch: pytest.MonkeyPatch):
    """A thousand channels that only put off what is not due send nothing, and held the loop for a second."""
    bench = Bench()
    for number in range(20):
        client = bench.client()
        client.subscribe(f"t{number}", "c")
        client.post(b"RDY 1\n")
    bench.work()
    looked_at: list[str] = []

    def deliver(channel: Channel) -> bool:
        looked_at.append(channel.topic_name)
        bench.clock.advance_ms(TURN_MS // 2)
        return False

    monkeypatch.setattr(bench.server, "_delivery", SimpleNamespace(deliver=deliver))
    for number in range(20):
        bench.broker.touch_channel(bench.broker.topics[f"t{number}"].channels["c"])
    bench.server.dispatch()
    assert len(looked_at) == 2
    for _ in range(9):
        bench.server.dispatch()
    assert sorted(looked_at) == sorted(f"t{number}" for number in range(20))


def test_busy_channels_share_a_dispatch():
    """None of many channels with a backlog waits for another to be empty."""
    bench = Bench()
    bench.client().send(b"".join(mpub(f"t{number}", [b"x" * 1000] * 1000) for number in range(20)))
    clients = [bench.client() for _ in range(20)]
    for number, client in enumerate(clients):
        client.subscribe(f"t{number}", "c")
    for number, client in enumerate(clients):
        subscription = client.connection.subscription
        assert subscription is not None
        subscription.ready_count = 1000
        bench.broker.touch_channel(bench.broker.topics[f"t{number}"].channels["c"])
    sent = bench.server.counters.bytes_out
    bench.server.dispatch()
    assert DISPATCH_BYTES <= bench.server.counters.bytes_out - sent <= DISPATCH_BYTES + CHANNEL_BYTES + 20_000
    for _ in range(4):
        bench.server.dispatch()
    assert all(client.transport.sent for client in clients)
    bench.work()
    assert [len(client.messages()) for client in clients] == [1000] * 20


def test_a_client_that_falls_behind_is_sent_no_more():
    """Also in the middle of a dispatch: others get what is left of it."""
    bench = Bench(write_high_water_bytes=1000)
    bench.client().send(mpub("t", [b"x" * 1000] * 1000))
    slow, quick = bench.client(), bench.client()
    for client in (slow, quick):
        client.subscribe("t", "c")
    for client in (slow, quick):
        client.connection.subscription.ready_count = 1000
    slow.transport.stalled = True
    bench.broker.touch_channel(bench.broker.topics["t"].channels["c"])
    bench.server.dispatch()
    assert len(slow.transport.waiting) < 65 * 1100
    assert len(quick.transport.sent) > 65 * 1100


def test_clients_that_fall_behind_are_bounded_together():
    """Those with most are cut, and their messages go to others."""
    bench = Bench(max_unread_bytes=1 << 20, write_high_water_bytes=300_000)
    bench.client().send(mpub("t", [b"x" * 1000] * 4000))
    slow = [bench.client() for _ in range(5)]
    for client in slow:
        client.subscribe("t", "c")
        client.transport.stalled = True
        client.send(b"RDY 2000\n")
    bench.work()
    assert 0 < sum(len(client.transport.waiting) for client in slow) <= 1 << 20
    cut = sum(client.transport.closed for client in slow)
    assert bench.server.connections.closed == {"unread": cut}
    assert 0 < cut < 5
    quick = bench.client()
    quick.subscribe("t", "c")
    quick.post(b"RDY 2000\n")
    bench.work()
    assert len(quick.messages()) > 1000
    assert bench.broker.topics["t"].channels["c"].in_flight_count == 4000


def test_what_a_dispatch_sent_is_counted_once(tmp_path):
    """By host, with as many calls as there were writes."""
    with real_bench(tmp_path) as bench:
        hosts = ("10.0.0.1", "10.0.0.1", "10.0.0.2")
        for port, host in enumerate(hosts):
            bench.client(peer=(host, port)).post(b"SUB t c\n")
        bench.server.broker.store.flush()
        bench.end_turn()
        for connection in bench.server.connections:
            connection.subscription.ready_count = 1
        bench.client(peer=("10.0.0.3", 9)).post(mpub("t", [b"x"] * 3))
        bench.end_turn()
        assert bench.server.counters.messages_out == 3
        statistics = bench.server.statistics
        for host, count in (("10.0.0.1", 2), ("10.0.0.2", 1)):
            snapshot = statistics.snapshot(HOST_GET_NUMS, host)
            assert (snapshot.minute.sum, snapshot.minute.per_call) == (count, 1.0)


def test_a_channel_that_waits_for_the_disk_is_not_asked_again(tmp_path, monkeypatch):
    """Until its record was read in: the loop would turn for nothing, once for each consumer."""
    with real_bench(tmp_path) as bench:
        bench.client().post(mpub("t", [b"x"] * 3))
        bench.end_turn()
    monkeypatch.setattr("headrace.store.opening._VERIFY_BACK_BYTES", 0)  # what a start checks is in memory then
    with real_bench(tmp_path) as bench:
        log = bench.server.broker.store.log
        asked = []
        log.on_cold = lambda *where: asked.append(where)
        consumers = [bench.client(peer=("10.0.0.1", port)) for port in (1, 2)]
        for consumer in consumers:
            consumer.post(b"SUB t c\n")
        bench.server.broker.store.flush()
        bench.end_turn()
        segment = log.segments[0]
        os.fsync(segment.fd)
        segment.drop_pages()
        os.posix_fadvise(segment.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        log.forget_warm()
        if segment.is_resident(0, 4096):
            cannot_run("the file system of the temporary folder keeps pages in memory: choose another with TMPDIR")
        for consumer in consumers:
            consumer.post(b"RDY 1\n")
        dispatches = 0
        while bench.soon:
            bench.soon.pop(0)()
            dispatches += 1
            assert dispatches < 5
        assert [consumer.messages() for consumer in consumers] == [[], []]
        assert len(asked) == 1
        for of, position, size in asked:
            of.touch(position, size)
            log.mark_warm(of.first_offset, position)
        bench.server.broker.store.on_warm()
        bench.end_turn()
        assert [consumer.messages() for consumer in consumers] == [[b"x"], [b"x"]]


def test_sampled_out_backlog_does_not_stall():
    """nsq.md 1.8: one call of the channel looks at a bounded number of messages; the dispatch goes on."""
    bench = Bench()
    for _ in range(4):
        bench.client().send(mpub("t", [b"x"] * 10_000))
    client = bench.client()
    client.send(b'IDENTIFY\n\0\0\0\x11{"sample_rate":1}')
    client.frames()
    frames = client.subscribe("t", "c", ready=2500)
    assert bench.broker.topics["t"].channels["c"].depth == 0
    assert 200 <= len(frames) <= 650


def test_a_consumer_that_samples_takes_no_more_of_a_backlog_than_others():
    """nsq.md 1.8: what it drops it has taken; nsqd's consumers take messages one by one."""
    bench = Bench()
    sampling = bench.client()
    sampling.send(b'IDENTIFY\n\0\0\0\x11{"sample_rate":1}')
    sampling.subscribe("t", "c", ready=2500)
    other = bench.client()
    other.subscribe("t", "c", ready=2500)
    bench.client().send(mpub("t", [b"x"] * 4_000))
    assert bench.broker.topics["t"].channels["c"].depth == 0
    assert len(other.messages()) >= 1_500


def test_connections_above_the_limit_are_refused_clearly():
    """A bound, the protocol's own error, a counter."""
    bench = Bench(max_connections=2)
    kept = [bench.client(), bench.client()]
    refused = bench.client(magic=False)
    assert refused.frames() == [(1, b"E_TOO_MANY_CONNECTIONS server has its limit of 2 connections")]
    assert refused.transport.eof_sent
    bench.advance(1100)
    assert refused.transport.closed
    kept[0].connection.eof_received()
    assert bench.client().send(pub("t", b"x")) == [(0, b"OK")]
    connections = bench.server.connections
    assert (len(connections), connections.refused, connections.total) == (2, 1, 4)


def test_few_of_those_refused_at_the_limit_stay_to_read_why():
    """Their files come on top of those that the limit counts, out of what it leaves to the store."""
    bench = Bench(max_connections=1)
    bench.client()
    refused = [bench.client(magic=False) for _ in range(MAX_REFUSED + 10)]
    assert all(len(client.frames()) == 1 for client in refused)
    assert [client.transport.closed for client in refused] == [False] * MAX_REFUSED + [True] * 10
    refused[0].transport.close()  # as the loop does behind its end of file
    assert not bench.client(magic=False).transport.closed
    bench.advance(1100)
    assert all(client.transport.closed for client in refused)
    assert not bench.client(magic=False).transport.closed


def test_refusals_at_the_limit_are_logged_once_a_minute(caplog):
    """Whoever connects again and again writes no line each time: the line says how many there were."""
    bench = Bench(max_connections=1)
    bench.client()
    for _ in range(50):
        bench.client(magic=False)
    bench.clock.advance_ms(60_000)
    bench.client(magic=False)
    start = "connections refused at the limit client="
    lines = [record.getMessage() for record in caplog.records]
    assert [line.startswith(start) for line in lines] == [True, True]
    assert lines[0].endswith(" limit=1 setting=nsq.max_connections refused=1")
    assert lines[1].endswith(" limit=1 setting=nsq.max_connections refused=51")


def test_a_consumer_with_a_full_window_is_not_asked_again(monkeypatch):
    """With many consumers at RDY 1 the second look would be most of what a message costs."""
    bench = Bench()
    consumers = [bench.client() for _ in range(3)]
    for consumer in consumers:
        consumer.subscribe("t", "c", ready=1)
    bench.client().post(mpub("t", [b"a", b"b", b"c", b"d"]))
    bench.end_turn()
    asked = []
    with monkeypatch.context() as patch:  # it is the first that is looked at of who is asked
        patch.setattr(NsqConnection, "cause", property(lambda connection: asked.append(connection.id)), raising=False)
        bench.server.dispatch()
    assert [len(consumer.frames()) for consumer in consumers] == [1, 1, 1]
    assert sorted(asked) == [consumer.connection.id for consumer in consumers]


def test_ids_rise():
    """C-PROTO-03."""
    bench = Bench()
    assert [bench.client().connection.id for _ in range(3)] == [1, 2, 3]


def test_stop_reads_from_consumers_that_go_on_and_not_from_publishers():
    """300 publishers that went on made each of the 16 looks at what consumers send half a second long."""

    async def run() -> None:
        bench = Bench()
        publisher, consumer = bench.client(), bench.client()
        consumer.subscribe("t", "c", 1)
        reads = {publisher: 0, consumer: 0}
        stopping = asyncio.create_task(bench.server.stop())
        while any(not client.transport.eof_sent for client in reads):
            for client in reads:
                if client.transport.reading and not client.transport.eof_sent:
                    reads[client] += 1
                    client.send(pub("t", b"x") if client is publisher else b"NOP\n")
            await asyncio.sleep(0.001)
        assert reads[publisher] < 6
        assert reads[consumer] > 10
        for client in reads:
            client.transport.close()
        await stopping

    asyncio.run(run())


def test_stop_answers_what_is_pending_and_closes():
    """C-LIFE-11, X-NSQ-14."""

    async def run() -> None:
        bench = Bench()
        bench.broker.gate.open_all = False
        client, idle = bench.client(), bench.client()
        client.send(pub("t", b"x"))
        stopping = asyncio.create_task(bench.server.stop())
        async with asyncio.timeout(10):
            while not idle.transport.eof_sent:  # noqa: ASYNC110  # the fake transport has no event
                await asyncio.sleep(0.001)
        assert not client.transport.eof_sent
        bench.broker.gate.open(bench.broker.offset)
        assert client.frames() == [(0, b"OK")]
        assert client.transport.eof_sent
        client.transport.close()
        idle.transport.close()
        await stopping
        assert len(bench.server.connections) == 0

    asyncio.run(run())


def test_a_connection_that_is_taken_up_behind_the_look_at_all_is_stopped_too():
    """It was accepted in the turn of the loop in which the stop began, and kept that for STOP_SECONDS."""

    async def run() -> None:
        bench = Bench()
        first = bench.client()
        stopping = asyncio.create_task(bench.server.stop())
        async with asyncio.timeout(10):
            while not first.transport.eof_sent:  # noqa: ASYNC110  # the fake transport has no event
                await asyncio.sleep(0.001)
        late = bench.client(magic=False)
        assert late.transport.eof_sent
        late.transport.close()
        first.transport.close()
        await stopping
        assert bench.server.connections.closed == {"server stopped": 2}

    asyncio.run(run())
