"""Small publishes of several clients are appended together, and each client is answered as if it were alone."""

from __future__ import annotations

import random
import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from headrace import testing
from headrace.batch import CopiedBatch, PublishBatch
from headrace.broker.statistics import TOPIC_PUT_NUMS
from headrace.errors import StoreFullError
from headrace.format import record
from headrace.format.names import STATISTICS_TOPIC
from headrace.net.joint_turn import ALONE, LONE_TURNS, MAX_SHARE_BYTES, MEMORY_BYTES
from tests.unit.nsq.fake_client import Bench, mpub, pub
from tests.unit.nsq.real_bench import real_bench

OK = (0, b"OK")
CLIENTS = 20


def batches_of(bench: Bench) -> list[int]:
    """Have the number of messages of every append noted, in the list that is returned."""
    counts: list[int] = []
    publish = bench.broker.publish

    def noting(batch: PublishBatch) -> int:
        counts.append(len(batch))
        return publish(batch)

    bench.broker.publish = noting  # type: ignore[method-assign]
    return counts


def stored(bench: Bench, topic: str) -> list[bytes]:
    """Return the bodies of a topic, in their order."""
    reader = bench.client(peer=("10.0.0.1", 1))
    reader.subscribe(topic, "check")
    reader.post(b"RDY 2500\n")
    bench.work()
    return reader.messages()


def test_a_turn_is_one_append() -> None:
    """Reads of one turn are appended once, in the order in which they came; each client gets its own OKs."""
    bench = Bench()
    consumer = bench.client(peer=("10.0.0.2", 1))
    consumer.subscribe("orders", "all")
    publishers = [bench.client(peer=("10.0.0.3", port)) for port in (1, 2, 3)]
    counts = batches_of(bench)
    publishers[0].post(pub("orders", b"a"))
    publishers[1].post(pub("orders", b"b") + mpub("orders", [b"c", b"d"]))
    publishers[2].post(pub("others", b"e"))
    assert [client.frames() for client in publishers] == [[], [], []]
    bench.work()
    assert counts == [5]
    assert [client.frames() for client in publishers] == [[OK], [OK, OK], [OK]]
    counted = [client.connection.pub_counts for client in publishers]
    assert counted == [{"orders": 1}, {"orders": 3}, {"others": 1}]
    consumer.post(b"RDY 10\n")
    bench.work()
    assert consumer.messages() == [b"a", b"b", b"c", b"d"]
    assert bench.server.joint_publishes.joined == 3


def test_who_is_alone_is_not_joined_for_a_while() -> None:
    """Few publishes of a lone client wait for the end of their turns, then many do not."""
    bench = Bench()
    client = bench.client()
    waited = []
    for _ in range(2 * (LONE_TURNS + ALONE)):
        client.post(pub("orders", b"x"))
        waited.append(not client.frames())
        bench.work()
        assert client.frames() == ([OK] if waited[-1] else [])
    assert waited == 2 * [*[True] * LONE_TURNS, *[False] * ALONE]
    assert bench.server.joint_publishes.joined == 0


def test_a_publish_that_is_refused_does_not_touch_the_others() -> None:
    """The batch is refused, then each share is tried alone."""
    bench = Bench()
    good, bad = bench.client(), bench.client()
    counts = batches_of(bench)
    publish = bench.broker.publish

    def refusing(batch: PublishBatch) -> int:
        if "bad" in batch.destinations:
            raise StoreFullError("/data", 1, 2)
        return publish(batch)

    bench.broker.publish = refusing  # type: ignore[method-assign]
    good.post(pub("good", b"1"))
    bad.post(pub("bad", b"2"))
    bench.work()
    assert good.frames() == [OK]
    [(kind, data)] = bad.frames()
    assert (kind, data[:12]) == (1, b"E_PUB_FAILED")
    assert bad.connection.cause == "refused"
    assert not good.connection.cause
    assert counts == [1]
    assert good.send(pub("good", b"3")) == [OK]


def test_one_that_is_refused_alone() -> None:
    """A batch of one share is not tried a second time."""
    bench = Bench()
    client = bench.client()
    bench.broker.refuse_next = StoreFullError("/data", 1, 2)
    [(kind, data)] = client.send(mpub("orders", [b"1"]))
    assert (kind, data[:13]) == (1, b"E_MPUB_FAILED")
    assert bench.broker.topics == {}


@pytest.mark.parametrize("behind", [b"BAD\n", b"PUB bad/name\n\0\0\0\1x", b"SUB orders #\n", b"FIN zzzzzzzzzzzzzzzz\n"])
def test_an_error_comes_behind_the_oks(behind: bytes) -> None:
    """A command behind a publish, in the same read or the next of the same turn, is answered after it."""
    for cut in (True, False):
        bench = Bench()
        client = bench.client()
        if cut:
            client.post(pub("orders", b"1"))
            client.post(behind)
        else:
            client.post(pub("orders", b"1") + behind)
        frames = client.frames()
        assert [kind for kind, _ in frames] == [0, 1], frames
        bench.work()
        assert client.frames() == []


def test_a_client_that_goes_within_the_turn_has_published() -> None:
    """Half a close, an end of the connection and a stop of the server come behind what was read before."""
    for go in (
        lambda client: client.connection.eof_received(),
        lambda client: client.transport.abort(),
        lambda client: client.connection.stop("server stopped"),
    ):
        bench = Bench()
        client = bench.client()
        client.post(pub("orders", b"1"))
        go(client)
        assert stored(bench, "orders") == [b"1"]
        if not client.transport.aborted:
            assert client.frames() == [OK]


def test_the_rest_of_a_read_may_wait_for_more() -> None:
    """A publish in front of half a command is joined, and answered before that half is refused."""
    bench = Bench()
    client = bench.client()
    client.post(pub("orders", b"1") + b"PUB orders\n\0\0")
    assert client.frames() == []
    client.connection.eof_received()
    frames = client.frames()
    assert frames[0] == OK
    assert frames[1][1].startswith(b"E_BAD_MESSAGE")


def test_answers_wait_for_the_disk() -> None:
    """One flush answers all; where it fails each client is refused."""
    bench = Bench()
    bench.broker.gate.open_all = False
    clients = [bench.client() for _ in range(3)]
    for client in clients:
        client.post(pub("orders", b"1"))
    bench.work()
    assert [client.frames() for client in clients] == [[], [], []]
    bench.broker.gate.open(bench.broker.offset)
    assert [client.frames() for client in clients] == [[OK], [OK], [OK]]
    for client in clients:
        client.post(mpub("orders", [b"2"]))
    bench.work()
    bench.broker.gate.fail()
    for client in clients:
        [(kind, data)] = client.frames()
        assert (kind, data[:13]) == (1, b"E_MPUB_FAILED")
        assert client.connection.cause == "flush failed"


def test_a_full_memory_is_appended_at_once() -> None:
    """Nothing is lost or turned around where a turn brings more than the copies have room for."""
    bench = Bench()
    counts = batches_of(bench)
    body = bytes(MAX_SHARE_BYTES)
    clients = [bench.client() for _ in range(MEMORY_BYTES // MAX_SHARE_BYTES + 10)]
    for client in clients:
        client.post(pub("orders", body))
    assert len(counts) == 2  # the memory, and the one that found it full
    bench.work()
    assert sum(counts) == len(clients)
    assert all(client.frames() == [OK] for client in clients)


def test_much_in_one_read_is_not_copied() -> None:
    """A read with more bytes than a share may have is appended by itself, behind what the client has waiting."""
    bench = Bench()
    client = bench.client()
    counts = batches_of(bench)
    client.post(pub("orders", b"1"))
    client.post(pub("orders", bytes(MAX_SHARE_BYTES + 1)))
    assert counts == [1, 1]
    assert client.frames() == [OK, OK]


def test_consumers_are_joined_from_their_second_publish_on() -> None:
    """The first is noted at once; errors of FINs stand behind the OKs of what was published before them."""
    bench = Bench()
    clients = [bench.client() for _ in range(3)]
    clients[0].subscribe("orders", "all", 1)
    for client in clients:
        client.post(pub("others", b"1"))
    assert [client.frames() for client in clients] == [[OK], [], []]
    bench.work()
    for client in clients:
        client.post(pub("others", b"2"))
    assert clients[0].frames() == []
    clients[0].post(b"FIN 00070000000f0000\n")
    assert clients[0].frames() == [OK, (1, b"E_FIN_FAILED FIN 00070000000f0000 failed ID not in flight")]
    bench.work()
    assert [client.frames() for client in clients] == [[], [OK, OK], [OK, OK]]
    clients[0].post(pub("others", b"3") + b"FIN 00070000000f0000\n")
    assert [kind for kind, _ in clients[0].frames()] == [0, 1]
    assert stored(bench, "others") == [b"1", b"1", b"1", b"2", b"2", b"2", b"3"]


def test_a_consumer_that_is_sent_away_has_published() -> None:
    """Its channel goes within the turn: what it published stays, and its OK comes before the end."""
    bench = Bench()
    client = bench.client()
    client.subscribe("orders", "all", 1)
    for number in range(2):
        client.post(pub("others", b"%d" % number))
    bench.broker.delete_channel("orders", "all")
    assert client.frames() == [OK, OK]
    assert client.transport.eof_sent
    assert stored(bench, "others") == [b"0", b"1"]


def test_all_of_them_wait_for_a_store_that_is_behind() -> None:
    """Nobody who publishes is read from while more waits for the disk than may."""
    bench = Bench()
    clients = [bench.client() for _ in range(3)]
    for client in clients:
        client.post(pub("orders", b"1"))
    bench.broker.overloaded = True
    bench.work()
    assert [client.transport.reading for client in clients] == [False, False, False]
    bench.broker.overloaded = False
    bench.server.relieve()
    assert [client.transport.reading for client in clients] == [True, True, True]


@pytest.mark.provokes_bugs
def test_a_bug_ends_the_clients_that_were_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    """As where a bug meets one connection's read: they cannot know what became of their publishes."""
    bench = Bench()
    clients = [bench.client() for _ in range(2)]

    def failing(batch: PublishBatch) -> int:
        raise ZeroDivisionError

    publish, bench.broker.publish = bench.broker.publish, failing  # type: ignore[method-assign]
    for client in clients:
        client.post(pub("orders", b"1"))
    bench.work()
    assert all(client.transport.aborted for client in clients)
    assert "failed by a bug" in caplog.text
    bench.broker.publish = publish  # type: ignore[method-assign]
    others = [bench.client() for _ in range(2)]
    for client in others:
        client.post(pub("orders", b"2"))
    bench.work()
    assert stored(bench, "orders") == [b"2", b"2"]


@pytest.mark.provokes_bugs
def test_a_bug_in_one_answer_ends_that_client_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages of all are stored by then: who is cut off without an answer publishes again."""
    bench = Bench()
    clients = [bench.client() for _ in range(3)]

    def failing(data: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(clients[1].transport, "write", failing)
    for number, client in enumerate(clients):
        client.post(pub("orders", b"%d" % number))
    bench.work()
    assert [client.transport.aborted for client in clients] == [False, True, False]
    assert [client.frames() for client in (clients[0], clients[2])] == [[(0, b"OK")]] * 2
    assert stored(bench, "orders") == [b"0", b"1", b"2"]
    assert caplog.text.count("failed by a bug") == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_is_answered_as_if_each_were_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client's messages are stored once, in its order, and its answers are those of its commands."""
    monkeypatch.setattr("headrace.net.joint_turn.ALONE", seed % 2)
    chosen = random.Random(seed)
    bench = Bench()
    clients = [bench.client(peer=("10.0.0.2", port + 1)) for port in range(CLIENTS)]
    sent: dict[int, list[bytes]] = {number: [] for number in range(CLIENTS)}
    owed = [0] * CLIENTS
    for number in range(400):
        who = chosen.randrange(CLIENTS)
        data = b""
        for _ in range(chosen.choice([1, 1, 1, 3])):
            bodies = [
                b"%d %d %d" % (who, number, len(sent[who]) + place) + bytes(chosen.choice([0, 10, 3000]))
                for place in range(chosen.choice([1, 1, 4]))
            ]
            sent[who] += bodies
            owed[who] += 1
            data += pub("t", bodies[0]) if len(bodies) == 1 else mpub("t", bodies)
        cut = chosen.randrange(1, len(data)) if chosen.random() < 0.1 else len(data)
        for part in (data[:cut], data[cut:]):
            clients[who].post(part)
            if chosen.random() < 0.3:
                bench.work()
    bench.work()
    assert [client.frames() for client in clients] == [[OK] * count for count in owed]
    found = stored(bench, "t")
    assert {who: [body for body in found if body.startswith(b"%d " % who)] for who in range(CLIENTS)} == sent
    assert bench.server.joint_publishes.joined > 50


ODD_READS = (
    b"PUB t\n\x00\x00\x00\x02ab",
    b"PUB t\n\x00\x00\x00\x02ab" * 3,
    b"PUB t\n\x00\x00\x00\x02abPUB t\n\x00\x00\x00\x02a",  # the rest comes later
    b"PUB t\n\x00\x00\x00\x05abcde",
    b"PUB t\n\x00\x00\x00\x02ab\n",
    b"PUB t\n\x00\x00\x00\x00",
    b"PUB t\n\x00\x00\x00\x00PUB t\n\x00\x00\x00\x02ab",
    b"PUB t\n\xff\xff\xff\xffab",
    b"PUB t\n\x00\x10\x00\x01ab",  # more than nsq.max_message_bytes
    b"PUB t\r\n\x00\x00\x00\x02cr",
    b"PUB  t\n\x00\x00\x00\x02sp",
    b"PUB other\n\x00\x00\x00\x02ot",
    b"PUB tt\n\x00\x00\x00\x02tt",
    b"PUB t\n\x00\x00\x00\x02abPUB other\n\x00\x00\x00\x02ot",
    b"PUB t\n",
    b"P",
    b"pub t\n\x00\x00\x00\x02ab",
    b"DPUB t 0\n\x00\x00\x00\x02dp",
    b"MPUB t\n\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x02mp",
    b"PUB t\n\x00\x00\x00\x02abFIN 0123456789abcdef\n",
    b"PUB t\n\x00\x00\x00\x02abNOP\n",
    b"NOP\nPUB t\n\x00\x00\x00\x02ab",
    b"PUB t\n\x00\x00\x00\x02abCLS\n",
    b"SUB other ch\n",
    b"RDY 1\n",
    b"PUB t\n\x00\x00\x10\x00" + bytes(4096),
    b"PUB t\n\x00\x00\x0f\xf0" + bytes(4080),
)


@pytest.mark.parametrize("seed", range(60))
def test_a_read_is_taken_over_only_where_that_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes behind a client's first PUB, joined or not, has the same answers, effects and end."""
    monkeypatch.setattr("headrace.net.joint_turn.ALONE", 0)
    benches = [Bench(), Bench()]
    benches[1].server.joint_publishes._alone = 1 << 40  # nothing is joined
    outcomes = []
    for bench in benches:
        chosen = random.Random(seed)
        clients = [bench.client(peer=("10.0.0.2", port + 1)) for port in range(3)]
        for client in clients:
            client.post(pub("t", b"%d" % clients.index(client)))
        bench.work()
        for _ in range(30):
            client = clients[chosen.randrange(3)]
            data = ODD_READS[0] if chosen.random() < 0.7 else chosen.choice(ODD_READS)
            if client.transport.closed or client.connection.cause:
                continue
            client.post(data)
            if chosen.random() < 0.3:
                bench.work()
        bench.work()
        outcomes.append(
            (
                [(client.frames(), client.connection.cause, client.connection.pub_counts) for client in clients],
                bench.server.intake.command_counts(),
                bench.server.counters.bytes_in,
                sorted(stored(bench, "t")),
                sorted(stored(bench, "other")),
            )
        )
    assert outcomes[0] == outcomes[1]
    assert benches[0].server.joint_publishes.joined > 0
    assert benches[1].server.joint_publishes.joined == 0


def test_who_only_publishes_is_not_taken_for_gone() -> None:
    """A read that is taken over is a sign of life as any other."""
    bench = Bench()
    clients = [bench.client() for _ in range(2)]
    for _ in range(40):
        bench.advance(10_000)
        for client in clients:
            client.post(pub("t", b"x"))
        bench.work()
    assert [client.connection.cause for client in clients] == ["", ""]
    assert bench.server.joint_publishes.joined == 80


@pytest.mark.parametrize("reads_before", [0, 1])
def test_who_publishes_at_the_last_moment_is_not_taken_for_gone(reads_before: int) -> None:
    """Timers come between a read and the end of its turn: what was read is published and answered before them."""
    bench = Bench()
    client = bench.client()
    for _ in range(reads_before):
        assert client.send(pub("t", b"before")) == [OK]
    bench.clock.advance_ms(2 * bench.server.settings.heartbeat_interval_ms - 50)
    client.post(pub("t", b"last"))
    bench.clock.advance_ms(150)
    bench.server.check_timers(bench.server.clock.monotonic_ms())
    assert client.connection.cause == ""
    assert client.frames()[0] == OK
    bench.work()
    assert stored(bench, "t") == [b"before"] * reads_before + [b"last"]


# -- with a broker and its log ---------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Bench]:
    """A server with the product's broker."""
    with real_bench(tmp_path) as bench:
        yield bench


def records_of(bench: Bench, topic: str) -> list[record.DecodedRecord]:
    store = bench.server.broker.store
    found = []
    for physical_offset, _, _ in store.queue(topic, 0).entries(0, 100):
        raw = store.log.read(physical_offset)
        assert raw is not None
        found.append(record.decode(raw))
    return found


def test_each_record_has_its_own_born_host(real: Bench) -> None:
    """Who published it, over IPv4 and IPv6, in one batch."""
    clients = [real.client(peer=peer) for peer in (("10.0.0.2", 11), ("fd00::7", 12), ("10.0.0.4", 13))]
    for number, client in enumerate(clients):
        client.post(pub("orders", b"%d" % number))
    real.end_turn()
    found = [(found["body"], found["born_host"]) for found in records_of(real, "orders")]
    assert found == [(b"0", "10.0.0.2:11"), (b"1", "[fd00::7]:12"), (b"2", "10.0.0.4:13")]


def test_statistics_count_every_read(real: Bench) -> None:
    """X-BROKER-17: messages, bytes and calls by topic and host are those of publishes that are not joined."""
    for port in range(5):
        real.client(peer=("10.0.0.2", port + 1)).post(mpub("orders", [b"12345", b"1"]))
    real.end_turn()
    snapshot = real.server.statistics.snapshot(TOPIC_PUT_NUMS, "orders")
    assert snapshot is not None
    assert (snapshot.minute.sum, snapshot.minute.per_call) == (10, 2.0)
    [counted] = real.server.statistics.take_counted()
    assert (counted.call.host, counted.messages, counted.bytes) == ("10.0.0.2", 10, 30)


def test_statistics_are_right_whoever_publishes_where_before(real: Bench) -> None:
    """X-BROKER-17: where a client's last publish was counted is remembered, until it is another topic or forgotten."""
    statistics = real.server.statistics
    clients = [real.client(peer=(host, port)) for port in (1, 2) for host in ("10.0.0.2", "10.0.0.3")]
    published: Counter[tuple[str, str]] = Counter()
    rng = random.Random(1)
    for _ in range(60):
        for client in clients:
            topic = rng.choice(["orders", "orders", "news", "news", "more"])
            client.post(pub(topic, b"12"))
            published[topic, client.connection.host] += 1
        real.end_turn()
        if rng.random() < 0.2:
            statistics._forget_rows()
    counted: Counter[tuple[str, str]] = Counter()
    sizes: Counter[str] = Counter()
    for row in statistics.take_counted():
        counted[row.call.topic, row.call.host] += row.messages
        sizes[row.call.topic] += row.bytes
    assert counted == published
    for topic in ("orders", "news", "more"):
        snapshot = statistics.snapshot(TOPIC_PUT_NUMS, topic)
        assert snapshot is not None
        messages = sum(count for (name, _), count in published.items() if name == topic)
        assert (snapshot.minute.sum, snapshot.minute.per_call, sizes[topic]) == (messages, 1.0, 2 * messages)


def test_the_brokers_own_topic_is_refused_to_one(real: Bench) -> None:
    """A name that only the broker writes to does not spoil the turn of the others."""
    good, bad = real.client(), real.client()
    bad.post(pub(STATISTICS_TOPIC, b"x"))
    good.post(pub("orders", b"1"))
    real.end_turn()
    assert good.frames() == [OK]
    assert [kind for kind, _ in bad.frames()] == [1]
    assert [found["body"] for found in records_of(real, "orders")] == [b"1"]


def test_a_delay_keeps_its_message(real: Bench) -> None:
    """C-FLOW-06: of a DPUB in a turn with PUBs only its own message is deferred."""
    broker = real.server.broker
    channel = broker.ensure_channel(broker.ensure_topic("orders"), "all")
    clients = [real.client(peer=("10.0.0.2", port)) for port in (1, 2, 3)]
    clients[0].post(pub("orders", b"now"))
    clients[1].post(b"DPUB orders 5000\n\0\0\0\5later")
    clients[2].post(pub("orders", b"too"))
    real.end_turn()
    assert [client.frames() for client in clients] == [[OK], [OK], [OK]]
    assert (channel.depth, channel.deferred_count) == (2, 1)


def test_what_is_sent_away_with_its_topic_has_published_behind_it(tmp_path: Path) -> None:
    """A record in the log behind that of the deletion would have the next start bring the topic back."""
    with real_bench(tmp_path) as bench:
        client = bench.client(peer=("10.0.0.2", 1))
        client.post(b"SUB orders all\nRDY 10\n")
        for number in range(2):
            client.post(pub("orders", b"%d" % number))
        bench.server.broker.delete_topic("orders")
        assert client.connection.cause == "topic deleted"
        topic = bench.server.broker.topics["orders"]  # made again by what came last
        assert (topic.depth, list(topic.channels)) == (1, [])
    with real_bench(tmp_path) as bench:
        topic = bench.server.broker.topics["orders"]
        assert (topic.depth, list(topic.channels)) == (1, [])
        bench.server.broker.delete_topic("orders")
    with real_bench(tmp_path) as bench:
        assert "orders" not in bench.server.broker.topics


def test_who_publishes_to_an_ephemeral_topic_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """What is never on a disk is answered at once, as if its client were alone in the turn."""
    with real_bench(tmp_path, durability="fsync") as bench:
        passing, lasting = bench.client(), bench.client()
        passing.post(pub("news#ephemeral", b"1"))
        lasting.post(pub("orders", b"1"))
        bench.end_turn()
        assert (passing.frames(), lasting.frames()) == ([OK], [])


def test_an_ok_that_waits_for_the_disk_holds_up_those_behind_it(tmp_path: Path) -> None:
    """nsq.md 1.7: clients match replies first in, first out: it would be taken for that of a durable message."""
    with real_bench(tmp_path, durability="fsync") as bench:
        client = bench.client()
        for _ in range(3):
            client.post(pub("orders", b"1"))
            client.post(pub("news#ephemeral", b"2"))
            bench.end_turn()
            assert client.frames() == []
            bench.server.broker.store.flush()
            assert client.frames() == [OK, OK]


# -- with sockets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_clients_that_wait_for_each_publish(durability: Literal["async", "fsync"]) -> None:
    """Reads of one turn are joined over real sockets; every message is delivered once, each client's in its order."""
    rounds = 60
    with testing.broker(store__durability=durability) as broker, ExitStack() as sockets:
        host, _, port = broker.nsq_tcp.rpartition(":")

        def connect() -> socket.socket:
            client = sockets.enter_context(socket.create_connection((host, int(port)), timeout=20))
            client.sendall(b"  V2")
            return client

        clients = [connect() for _ in range(CLIENTS)]
        for number in range(rounds):
            for who, client in enumerate(clients):
                client.sendall(pub("orders", b"%02d %02d" % (who, number)))
            for client in clients:
                assert client.recv(100).endswith(b"OK")
        with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10) as answer:
            joined = re.search(r"^headrace_nsq_joint_publishes_total (\S+)$", answer.read().decode(), re.MULTILINE)
        assert joined is not None
        assert float(joined[1]) > 0
        consumer = connect()
        consumer.sendall(b"SUB orders all\nRDY 2500\n")
        received = b""
        while len(received) < 10 + CLIENTS * rounds * 39:  # frame and body: 34 + 5 bytes
            received += consumer.recv(65536)
    bodies = [received[at + 34 : at + 39] for at in range(10, len(received), 39)]
    assert sorted(bodies) == [b"%02d %02d" % (who, number) for who in range(CLIENTS) for number in range(rounds)]
    for who in range(CLIENTS):
        own = [body for body in bodies if body.startswith(b"%02d " % who)]
        assert own == sorted(own)


# -- the batch itself ------------------------------------------------------------------------------------------------


def test_copies_do_not_change_with_what_they_were_made_of() -> None:
    """Bodies, properties and hosts are the batch's own; what an entry says of itself wins over its batch."""
    source = PublishBatch()
    source.born_host = 7
    source.append(b"one", properties=b"k\x01v\x02", tag_hash=9, flag=3)
    source.append(b"two", born_v6=bytes(range(20)))
    batch = CopiedBatch(64)
    batch.destinations = ["a", "b"]
    assert batch.take(source, [1])
    source.clear()
    part = batch.part(0, 2)
    assert (part.destinations, len(part), part.body_bytes) == (["b"], 2, 6)
    assert (len(batch), batch.body_bytes, batch.totals()) == (2, 6, [(0, 0), (2, 6)])
    for first, count in ((0, 3), (-1, 1), (2, 1), (0, 0)):
        with pytest.raises(IndexError):
            batch.part(first, count)


def test_what_has_no_room_is_not_taken() -> None:
    """All of a batch or nothing; after clear() there is room again."""
    source = PublishBatch()
    source.append(bytes(30))
    source.append(bytes(30))
    batch = CopiedBatch(120)
    assert batch.take(source, [0])
    assert not batch.take(source, [0])
    assert len(batch) == 2
    batch.clear()
    assert len(batch) == 0
    assert batch.take(source, [0])
