"""The task that pushes to a statsd: what, when, and what goes wrong (nsq.md 6.1)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.nsq.statsd import destination, pusher
from headrace.nsq.statsd.pusher import ROWS_PER_TURN, StatsdPusher
from headrace.settings import NsqSettings
from tests.support.ports import free_port
from tests.support.statsd import FakeStatsd, Figures
from tests.unit.nsq.lookup_peers.scripted_lookupd import run, wait_until

LOG = "headrace.nsq.statsd.pusher"
FIGURES = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count")


def channel_of(name: str, **figures: int) -> SimpleNamespace:
    facts = {"name": name, "ephemeral": name.endswith("#ephemeral"), "subscriptions": (), "paused": False}
    return SimpleNamespace(**{**facts, **dict.fromkeys(FIGURES, 0), **figures})


class Broker:
    """Topics with channels, and who listens."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.presence_listeners: list[Callable[[Any, str], None]] = []

    def put(self, name: str, *channels: str, is_system: bool = False, **figures: int) -> Any:
        """Make a topic, or one anew."""
        figures = {"depth": 0, "message_count": 0, "message_bytes": 0, **figures}
        made = {channel: channel_of(channel) for channel in channels}
        facts = {"name": name, "ephemeral": False, "paused": False, "is_system": is_system, "channels": made}
        self.topics[name] = topic = SimpleNamespace(**facts, **figures)
        self.tell(topic, "")
        return topic

    def drop(self, name: str) -> None:
        """Delete a topic and its channels."""
        topic = self.topics[name]
        for channel in list(topic.channels):
            del topic.channels[channel]
            self.tell(topic, channel)
        del self.topics[name]
        self.tell(topic, "")

    def tell(self, topic: Any, channel: str) -> None:
        for listener in self.presence_listeners:
            listener(topic, channel)


class FakeSocket:
    """Takes packets, or raises what ``fail`` returns."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.times: list[float] = []
        self.late_error = 0
        self.opened = 0
        self.closed = 0
        self.connect_error = 0
        self.fail: Callable[[int], int] = lambda sends: 0
        self.sends = 0

    def make(self, family: socket.AddressFamily, kind: socket.SocketKind) -> Any:
        """Stand in for ``socket.socket``."""
        assert kind == socket.SOCK_DGRAM
        self.family = family
        self.opened += 1
        return self

    def __enter__(self) -> FakeSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def connect(self, address: tuple[str, int]) -> None:
        if self.connect_error:
            raise OSError(self.connect_error, os.strerror(self.connect_error))

    def send(self, packet: bytes) -> None:
        self.sends += 1
        number = self.fail(self.sends)
        if number:
            raise OSError(number, os.strerror(number))
        self.packets.append(packet)
        self.times.append(time.monotonic())

    def getsockopt(self, level: int, name: int) -> int:
        assert (level, name) == (socket.SOL_SOCKET, socket.SO_ERROR)
        number, self.late_error = self.late_error, 0
        return number

    def figures(self) -> Figures:
        figures = Figures()
        for packet in self.packets:
            figures.take(packet)
        return figures


@contextlib.asynccontextmanager
async def pushing(
    broker: Broker, address: str, *, sock: FakeSocket | None = None, interval_ms: int = 60, **settings: Any
) -> AsyncIterator[StatsdPusher]:
    """Push to ``address`` while the block runs, a thousand times as often as by default."""
    options = {"statsd_mem_stats": False, **settings}
    nsq = NsqSettings(statsd_address=address, statsd_interval_ms=interval_ms, **options)
    make = sock.make if sock is not None else socket.socket
    pushes = StatsdPusher(broker, nsq, "p.", make_socket=make)  # type: ignore[arg-type]
    pushes.start()
    try:
        yield pushes
    finally:
        await pushes.stop()
        assert not broker.presence_listeners


def lines_about(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG and text in record.getMessage()]


def test_everything_first_then_what_rose() -> None:
    """C-LIFE-09; nsq.md 6.1: counters are differences since the last push, gauges what there is."""

    async def test() -> None:
        broker = Broker()
        topic = broker.put("t", "c", message_count=7, message_bytes=70, depth=3)
        with FakeStatsd() as statsd:
            async with pushing(broker, statsd.address) as pushes:
                await asyncio.sleep(0.03)
                assert statsd.receive() == []
                await wait_until(statsd.receive)
                assert statsd.packets == [
                    b"p.topic.t.message_count:7|c\np.topic.t.message_bytes:70|c\np.topic.t.depth:3|g\n"
                    b"p.topic.t.backend_depth:3|g\np.topic.t.channel.c.message_count:0|c\np.topic.t.channel.c.depth:0|g\n"
                    b"p.topic.t.channel.c.backend_depth:0|g\np.topic.t.channel.c.in_flight_count:0|g\n"
                    b"p.topic.t.channel.c.deferred_count:0|g\np.topic.t.channel.c.requeue_count:0|c\n"
                    b"p.topic.t.channel.c.timeout_count:0|c\np.topic.t.channel.c.clients:0|g\n"
                ]
                topic.message_count, topic.depth = 9, 1
                topic.channels["c"].timeout_count = 2
                await wait_until(statsd.receive)
                assert (
                    b"p.topic.t.message_count:2|c\np.topic.t.message_bytes:0|c\np.topic.t.depth:1|g\n"
                    in (statsd.packets[1])
                )
                assert b"p.topic.t.channel.c.timeout_count:2|c\n" in statsd.packets[1]
                await wait_until(lambda: pushes.counters.pushes >= 2)
                assert pushes.counters.packets >= 2
                assert not pushes.counters.lost_packets + pushes.counters.failed_pushes

    run(test)


def test_memory_is_pushed_unless_it_is_not_wanted() -> None:
    """nsq.md 8.1, statsd-mem-stats: alone where there is no topic, which without it is no packet at all."""

    async def test() -> None:
        for wanted in (True, False):
            sock = FakeSocket()
            async with pushing(Broker(), "127.0.0.1:1", sock=sock, statsd_mem_stats=wanted) as pushes:
                await wait_until(lambda pushes=pushes: pushes.counters.pushes == 2)  # type: ignore[misc]
            assert len(sock.packets) == (2 if wanted else 0)
            assert ("p.mem.gc_runs" in sock.figures().counters) is wanted
            assert len(sock.figures().gauges) == (8 if wanted else 0)

    run(test)


def test_what_nsq_s_listings_do_not_show_is_not_pushed() -> None:
    """Nor, where it is not wanted, what is ephemeral."""

    async def test(*, is_excluded: bool) -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("%RETRY%group", "c")
        broker.put("TBW102", is_system=True)
        broker.put("a.b", "c#ephemeral", "d.e")
        broker.put("e#ephemeral", "c")
        async with pushing(broker, "127.0.0.1:1", sock=sock, statsd_exclude_ephemeral=is_excluded) as pushes:
            await wait_until(lambda: pushes.counters.pushes)
        depths = sorted(key for key in sock.figures().gauges if key.endswith(".depth"))
        assert depths == sorted(
            ["p.topic.a.b.depth", "p.topic.a.b.channel.d.e.depth"]
            + [
                "p.topic.a.b.channel.c#ephemeral.depth",
                "p.topic.e#ephemeral.depth",
                "p.topic.e#ephemeral.channel.c.depth",
            ]
            * (not is_excluded)
        )

    run(lambda: test(is_excluded=False))
    run(lambda: test(is_excluded=True))


def test_a_topic_that_is_made_again_counts_anew() -> None:
    """Whether it has counted less than the former by now, or more."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("less", "c", message_count=10).channels["c"].message_count = 10
        broker.put("more", "c", message_count=10).channels["c"].message_count = 10
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.pushes == 1)
            for name, count in (("less", 4), ("more", 14)):
                broker.drop(name)
                broker.put(name, "c", message_count=count).channels["c"].message_count = count
            await wait_until(lambda: pushes.counters.pushes == 2)
        counters = sock.figures().counters
        for name, count in (("less", 14), ("more", 24)):
            assert counters[f"p.topic.{name}.message_count"] == count
            assert counters[f"p.topic.{name}.channel.c.message_count"] == count

    run(test)


def test_what_goes_while_a_push_is_under_way_is_not_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic's figures would come up again; nothing of it is left behind for the next of its name."""
    monkeypatch.setattr(pusher, "SHORTEST_PAUSE_S", 0.0)

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        channels = [f"c{number}" for number in range(20)]
        broker.put("first", *channels)
        broker.put("second", "c")

        def drop(sends: int) -> int:
            if sends == 1:
                broker.drop("first")
                broker.drop("second")
            return 0

        sock.fail = drop
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.pushes)
        gauges = sock.figures().gauges
        assert "p.topic.first.channel.c0.depth" in gauges
        assert "p.topic.first.channel.c19.depth" not in gauges
        assert "p.topic.second.depth" not in gauges
        assert pushes._lines._before == {}

    run(test)


def test_what_fits_in_one_packet_leaves_at_once() -> None:
    """As from nsqd, whose first packet waits for nothing."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("t", "c")
        async with pushing(broker, "127.0.0.1:1", sock=sock, interval_ms=400) as pushes:
            began = time.monotonic()
            await wait_until(lambda: pushes.counters.pushes)
            whole = time.monotonic() - began
        assert len(sock.packets) == 1
        assert whole - (sock.times[0] - began) > 0.1  # the push is not over before its time

    run(test)


def test_packets_are_spread_over_the_interval() -> None:
    """nsq.md 6.1: but for its last second, or the half of a short one."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        for number in range(50):
            broker.put(f"t{number}", "c")
        async with pushing(broker, "127.0.0.1:1", sock=sock, interval_ms=600) as pushes:
            await wait_until(lambda: sock.packets)
            assert pushes.counters.pushes == 0
            await wait_until(lambda: pushes.counters.pushes)
        assert len(sock.packets) > 40
        assert 0.2 < sock.times[-1] - sock.times[0] < 0.6
        middle = sock.times[0] + (sock.times[-1] - sock.times[0]) / 2
        assert 0.25 < sum(at < middle for at in sock.times) / len(sock.times) < 0.75
        assert all(len(packet) <= 508 for packet in sock.packets)

    run(test)


def test_a_turn_of_the_loop_has_so_many_rows_and_no_more() -> None:
    """However far the push is behind: at a stop it does not wait any more."""
    rows = 2_000

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("t", *(f"c{number}" for number in range(rows)))
        turns: list[int] = []

        def count() -> None:
            turns.append(len(sock.packets))
            asyncio.get_running_loop().call_soon(count)

        async with pushing(broker, "127.0.0.1:1", sock=sock, interval_ms=2_000) as pushes:
            await wait_until(lambda: sock.packets)
            asyncio.get_running_loop().call_soon(count)
        assert pushes.counters.pushes == 1
        assert sum(key.endswith(".depth") for key in sock.figures().gauges) == rows + 1
        most = max(after - before for before, after in itertools.pairwise(turns))
        assert 0 < most <= 2 * ROWS_PER_TURN  # not even two packets each
        assert sock.opened == sock.closed == 1

    run(test)


def test_rows_that_are_not_pushed_take_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 topics of which NSQ shows none are as much to look at."""
    looked = 0

    def look(topic: Any) -> bool:
        nonlocal looked
        looked += 1
        return False

    monkeypatch.setattr(pusher, "is_listed", look)

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        for number in range(1_000):
            broker.put(f"t{number}")
        turns: list[int] = []

        def count() -> None:
            turns.append(looked)
            asyncio.get_running_loop().call_soon(count)

        asyncio.get_running_loop().call_soon(count)
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.pushes)
        assert max(after - before for before, after in itertools.pairwise(turns)) <= ROWS_PER_TURN

    run(test)


def test_a_name_that_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    """Counted each time, logged once; what was not pushed comes with the next push."""
    caplog.set_level(logging.INFO, LOG)

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        topic = broker.put("t", message_count=5)
        async with pushing(broker, "nobody.invalid:8125", sock=sock) as pushes:
            looked_up = pushes._names.addresses
            await wait_until(lambda: pushes.counters.failed_pushes["name"] >= 3)
            assert sock.opened == 0
            topic.message_count = 8

            async def found(host: str) -> list[str]:
                return ["127.0.0.1"]

            pushes._names.addresses = found  # type: ignore[method-assign]
            await wait_until(lambda: pushes.counters.pushes == 2)
            assert sock.figures().counters["p.topic.t.message_count"] == 8
            pushes._names.addresses = looked_up  # type: ignore[method-assign]
            failed = pushes.counters.failed_pushes["name"]
            await wait_until(lambda: pushes.counters.failed_pushes["name"] > failed + 1)

    run(test)
    assert len(lines_about(caplog, "cause=name")) == 2  # new trouble
    assert len(lines_about(caplog, "again")) == 1


def test_a_resolver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is not waited for beyond a second, nor at a stop."""
    monkeypatch.setattr(destination, "ANSWER_S", 0.1)
    monkeypatch.setattr(pusher, "STOP_S", 0.05)

    async def never(host: str) -> list[str]:
        await asyncio.sleep(60)
        return []

    async def test() -> None:
        async with pushing(Broker(), "silent.example:8125") as pushes:
            pushes._names.addresses = never  # type: ignore[method-assign]
            await wait_until(lambda: pushes.counters.failed_pushes["name"] >= 2)
            assert pushes.counters.skipped_pushes >= 1

    run(test)
    assert "its name was not resolved within 0.1 s" in caplog.text


def test_nobody_listens_then_somebody_does(caplog: pytest.LogCaptureFixture) -> None:
    """What comes back refused is counted, also the last packet's; the broker goes on, and says it once."""
    caplog.set_level(logging.INFO, LOG)

    async def test() -> None:
        broker = Broker()
        for number in range(10):
            broker.put(f"t{number}", "c")
        port = free_port()
        async with pushing(broker, f"127.0.0.1:{port}") as pushes:
            counters = pushes.counters
            await wait_until(lambda: counters.pushes >= 2)
            assert 0 <= counters.packets - counters.lost_packets["refused"] <= 1  # one may be on its way
            assert counters.packets > 2
            with FakeStatsd(port) as statsd:
                await wait_until(lambda: lines_about(caplog, "again"))
                statsd.receive()
                refused, before = counters.lost_packets["refused"], len(statsd.packets)
                await wait_until(lambda: statsd.receive() and len(statsd.packets) >= before + 10)
                assert counters.lost_packets["refused"] == refused
                assert len(lines_about(caplog, "cause=refused")) == 1

    run(test)


def test_a_packet_that_met_the_refusal_of_another_is_sent_again() -> None:
    """Linux hands the refusal to the next packet, and does not send that."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        for number in range(10):
            broker.put(f"t{number}", "c")
        sock.fail = lambda sends: errno.ECONNREFUSED if sends == 3 else 0
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.pushes)
            assert pushes.counters.lost_packets == {"refused": 1}
        assert sum(key.endswith(".depth") for key in sock.figures().gauges) == 20

    run(test)


def test_a_full_buffer_is_waited_for_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A moment; then the packet is lost and counted."""
    monkeypatch.setattr(pusher, "FULL_S", 0.05)

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("t", "c")
        sock.fail = lambda sends: errno.EAGAIN if sends < 3 else errno.ENOBUFS if sends < 4 else 0
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: sock.packets)
            assert not pushes.counters.lost_packets
            sock.fail = lambda sends: errno.EAGAIN
            await wait_until(lambda: pushes.counters.lost_packets["full"] >= 2)

    run(test)
    assert len(lines_about(caplog, "cause=full")) == 1


def test_a_buffer_that_stays_full_does_not_make_pushes_longer_and_longer() -> None:
    """Beyond the end of its interval a push waits for nothing."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        for number in range(200):
            broker.put(f"t{number}", "c")
        sock.fail = lambda sends: errno.EAGAIN
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            began = time.monotonic()
            await wait_until(lambda: pushes.counters.pushes)
            assert time.monotonic() - began < 5  # it would be twenty
            assert pushes.counters.lost_packets["full"] > 150

    run(test)


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENETUNREACH, "unreachable"), (errno.ENETDOWN, "unreachable"), (errno.EPERM, "system")],
)
def test_no_way_leads_there(caplog: pytest.LogCaptureFixture, number: int, cause: str) -> None:
    """An interface that is down, before a push or while it is under way; descriptors are given back."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("t", "c", message_count=5)
        sock.connect_error = number
        async with pushing(broker, "192.0.2.1:8125", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.failed_pushes[cause] >= 2)
            assert pushes.counters.pushes == 0
            sock.connect_error = 0
            await wait_until(lambda: pushes.counters.pushes)
            assert sock.figures().counters["p.topic.t.message_count"] == 5
            sock.fail = lambda sends: number
            await wait_until(lambda: pushes.counters.lost_packets[cause] >= 2)
        assert sock.opened == sock.closed

    run(test)
    assert len(lines_about(caplog, f"cause={cause}")) == 2
    assert os.strerror(number) in caplog.text


def test_no_descriptor_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """The push is not made; the next one that gets a socket has everything."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("t", "c", message_count=5)
        make, sock.make = sock.make, lambda *_: _raise(errno.EMFILE)  # type: ignore[method-assign]
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.failed_pushes["system"] >= 2)
            pushes._make_socket = make
            await wait_until(lambda: pushes.counters.pushes)
        assert sock.figures().counters["p.topic.t.message_count"] == 5

    run(test)
    assert len(lines_about(caplog, "cause=system error=Too many open files")) == 1


def _raise(number: int) -> Any:
    raise OSError(number, os.strerror(number))


def test_an_address_of_ipv6() -> None:
    """The family of the socket is the address's."""

    async def test() -> None:
        sock = FakeSocket()
        async with pushing(Broker(), "[::1]:8125", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.pushes)
        assert sock.family == socket.AF_INET6

    run(test)


def test_a_push_that_takes_longer_than_the_interval() -> None:
    """The next ones are left out and counted, and their figures come with the one that follows."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        topic = broker.put("t", "c")

        def stand_still(sends: int) -> int:
            if sends == 1:
                time.sleep(0.2)  # the loop is what stands still
                topic.message_count = 3
            return 0

        sock.fail = stand_still
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.pushes == 2)
            assert 2 <= pushes.counters.skipped_pushes <= 5
        assert sock.figures().counters["p.topic.t.message_count"] == 3

    run(test)


@pytest.mark.provokes_bugs
def test_a_bug_ends_one_push(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged, and the next push is made."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        topic = broker.put("t", "c")
        del topic.message_bytes
        async with pushing(broker, "127.0.0.1:1", sock=sock) as pushes:
            await wait_until(lambda: pushes.counters.failed_pushes["internal"] == 2)
            topic.message_bytes = 1
            await wait_until(lambda: pushes.counters.pushes)
        assert sock.opened == sock.closed

    run(test)
    assert "pushing to statsd failed by a bug" in caplog.text


def test_a_stop_between_two_pushes_sends_nothing() -> None:
    """As from nsqd: what has been counted since the last push is not told."""

    async def test() -> None:
        broker, sock = Broker(), FakeSocket()
        broker.put("t", "c")
        async with pushing(broker, "127.0.0.1:1", sock=sock, interval_ms=60_000):
            await asyncio.sleep(0.05)
        assert sock.opened == 0

    run(test)
