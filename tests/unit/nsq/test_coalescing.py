"""Which consumers' FINs are read many at once: with a loop and a clock of our own, and with a broker and sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from headrace import testing
from headrace.nsq import coalescing
from headrace.nsq.coalescing import (
    FIN_BYTES,
    FIRST_STAY,
    LOOKS,
    MAX_LOW_WATER_BYTES,
    MIN_FINISHED,
    MIN_IN_FLIGHT,
    MOST_LOOKED_AT,
    SHARE,
    TRIAL,
    ConsumerReads,
    ReadCoalescing,
)
from headrace.testing import RunningBroker
from tests.unit.nsq.fake_client import Bench

INTERVAL_MS = 1
INTERVAL_NS = INTERVAL_MS * 1_000_000
LOOK_NS = 2 * INTERVAL_NS // LOOKS


class Socket:
    """Knows its low-water mark, and how often it was told one."""

    def __init__(self) -> None:
        self.low_water_bytes = 1
        self.calls = 0
        self.error: OSError | None = None
        self.unread_bytes = 0
        self.counts = 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        if self.error is not None:
            raise self.error
        self.low_water_bytes = value
        self.calls += 1

    def fileno(self) -> int:
        return id(self)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.socket = Socket()
        self.closing = False
        self.aborted = False

    def abort(self) -> None:
        self.closing = self.aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def is_closing(self) -> bool:
        return self.closing


class Subscription:
    """The two figures that are asked of one."""

    def __init__(self, in_flight_count: int) -> None:
        self.in_flight_count = in_flight_count
        self.finish_count = 0


class Consumer:
    def __init__(self, place: Place, in_flight: int) -> None:
        self.place = place
        self.transport = Transport()
        self.socket = self.transport.socket
        place.sockets[self.socket.fileno()] = self.socket
        self.reads = ConsumerReads(self.transport)
        self.subscription = Subscription(in_flight)

    def finish(self, count: int) -> bool:
        """Finish messages, which are made up for; return whether the next read waits for many."""
        self.subscription.finish_count += count
        return self.place.coalescing.note(self.reads, cast(Any, self.subscription))

    def finish_for(self, intervals: int, count: int) -> bool:
        """Finish ``count`` messages in each of some intervals; return as ``finish``."""
        waits = False
        for _ in range(intervals):
            waits = self.finish(count)
            self.place.pass_interval()
        return waits


class Place:
    """A server's coalescing and what it runs in.

    Attributes:
        due_ns: When it looks next; None: not at all.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interval_ms: int = INTERVAL_MS) -> None:
        self.now_ns = 10**15
        self.due_ns: int | None = None
        self.sockets: dict[int, Socket] = {}
        monkeypatch.setattr("headrace.nsq.coalescing.perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr("headrace.nsq.coalescing.FineTimer", self._timer)
        monkeypatch.setattr("headrace.nsq.coalescing.fcntl.ioctl", self._count_unread)
        self.coalescing = ReadCoalescing(interval_ms)

    def _timer(self, call: Callable[[], None]) -> Place:
        self._call = call
        return self

    def start(self, ns: int) -> None:
        assert self.due_ns is None
        self.due_ns = self.now_ns + ns

    def _count_unread(self, fd: int, request: int, argument: bytes) -> bytes:
        assert (request, len(argument)) == (termios.FIONREAD, 4)
        self.sockets[fd].counts += 1
        return self.sockets[fd].unread_bytes.to_bytes(4, sys.byteorder)

    def pass_interval(self) -> None:
        self.pass_time(INTERVAL_NS)

    def pass_time(self, ns: int) -> None:
        end_ns = self.now_ns + ns
        while self.due_ns is not None and self.due_ns <= end_ns:
            self.now_ns, self.due_ns = self.due_ns, None
            self._call()
        self.now_ns = end_ns


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


QUICK = 1000
"""Messages that a quick consumer finishes in an interval."""
TRIED = TRIAL + 1
"""Intervals behind which a new consumer may wait for many."""


def test_a_quick_consumer_with_plenty_is_read_from_when_a_quarter_may_be_finished(place: Place) -> None:
    consumer = Consumer(place, 400)
    assert not consumer.finish_for(TRIED - 1, QUICK), "it is tried the other way first"
    assert consumer.finish_for(3, QUICK)
    assert consumer.socket.low_water_bytes == 400 // SHARE * FIN_BYTES
    assert consumer.socket.calls == 1
    assert place.coalescing.reads == 2


def test_what_it_finishes_in_half_an_interval_is_waited_for_at_most(place: Place) -> None:
    """It may keep most of its window: then a quarter of it never comes."""
    consumer = Consumer(place, 2500)
    consumer.finish_for(TRIED + 1, 100)
    assert consumer.socket.low_water_bytes == 50 * FIN_BYTES


@pytest.mark.parametrize(("in_flight", "waits"), [(MIN_IN_FLIGHT, True), (MIN_IN_FLIGHT - 1, False)])
def test_a_consumer_that_may_run_out_of_messages_is_read_from_at_once(
    place: Place, in_flight: int, *, waits: bool
) -> None:
    consumer = Consumer(place, 400)
    consumer.finish_for(TRIED, QUICK)
    consumer.subscription.in_flight_count = in_flight
    assert consumer.finish(QUICK) == waits
    assert (consumer.socket.low_water_bytes > 1) == waits


@pytest.mark.parametrize(("finished", "waits"), [(MIN_FINISHED, True), (MIN_FINISHED - 1, False)])
def test_a_slow_consumer_is_read_from_at_once(place: Place, finished: int, *, waits: bool) -> None:
    consumer = Consumer(place, 2500)
    assert consumer.finish_for(TRIED + 1, finished) == waits
    assert bool(consumer.socket.calls) == waits


def test_the_rate_is_that_of_a_whole_interval(place: Place) -> None:
    """Single FINs that come close behind each other are not many, also from one that was quick a moment ago."""
    consumer = Consumer(place, 2500)
    consumer.finish_for(TRIED + 1, QUICK)
    place.pass_interval()
    consumer.finish(1)
    for _ in range(TRIAL):
        place.pass_interval()
        consumer.finish(1)
        place.now_ns += 1_000
        assert not consumer.finish(2), "2,000 an interval, for a microsecond"


def test_a_consumer_that_becomes_slow_waits_two_intervals_at_most(place: Place) -> None:
    """What it sent last lies unread below the mark: the timer lowers it, and stops when nobody waits any more."""
    consumer = Consumer(place, 2500)
    consumer.finish_for(TRIED + 1, QUICK)
    place.pass_interval()
    assert consumer.socket.low_water_bytes == 1
    assert place.coalescing.misses == 1
    assert place.due_ns is None
    place.now_ns += 100 * INTERVAL_NS
    assert not consumer.finish(100), "a hundred in a hundred intervals"


def test_what_has_come_is_read_when_no_more_is_added_to_it(place: Place) -> None:
    """The client may wait for that: its kernel holds back what follows until this is acknowledged."""
    consumer = Consumer(place, 2500)
    consumer.finish_for(TRIED, QUICK)
    consumer.finish(QUICK)
    consumer.socket.unread_bytes = 44 * FIN_BYTES
    place.pass_time(2 * LOOK_NS)
    assert (consumer.socket.low_water_bytes, place.coalescing.misses) == (1, 1)


def test_what_grows_from_look_to_look_is_waited_for_but_not_for_ever(place: Place) -> None:
    consumer = Consumer(place, 2500)
    consumer.finish_for(TRIED, QUICK)
    consumer.finish(QUICK)
    for _ in range(LOOKS - 1):
        consumer.socket.unread_bytes += FIN_BYTES
        place.pass_time(LOOK_NS)
        assert consumer.socket.low_water_bytes > 1
    consumer.socket.unread_bytes += FIN_BYTES
    place.pass_time(LOOK_NS)
    assert (consumer.socket.low_water_bytes, place.coalescing.misses) == (1, 1)


def test_as_much_as_before_but_other_fins_is_waited_for(place: Place) -> None:
    """A client that writes blocks has the same number of bytes unread at every second look."""
    consumer = Consumer(place, 2500)
    consumer.finish_for(TRIED, QUICK)
    consumer.socket.unread_bytes = 4096
    for _ in range(3 * LOOKS):
        consumer.finish(QUICK // LOOKS)
        place.pass_time(LOOK_NS)
    assert place.coalescing.misses == 0


@pytest.mark.parametrize("more", [0, 1])
def test_where_many_wait_it_is_not_looked_at_each(place: Place, more: int) -> None:
    """A system call for each and look would cost more than the reads."""
    consumers = [Consumer(place, 400) for _ in range(MOST_LOOKED_AT + more)]
    for _ in range(TRIED):
        for consumer in consumers:
            consumer.finish(QUICK)
        place.pass_interval()
    for consumer in consumers:
        consumer.socket.counts = 0
        consumer.finish(QUICK)
    place.pass_interval()
    assert all(bool(consumer.socket.counts) == (not more) for consumer in consumers)
    place.pass_interval()
    assert place.coalescing.misses == len(consumers)
    assert place.due_ns is None


def test_a_mark_that_is_lowered_ends_the_timer(place: Place) -> None:
    consumer = Consumer(place, 400)
    consumer.finish_for(TRIED, QUICK)
    assert place.due_ns is not None
    consumer.subscription.in_flight_count = 1
    consumer.finish(1)
    place.pass_interval()
    assert place.due_ns is None


def test_the_mark_follows_what_is_in_flight_but_not_each_little_change(place: Place) -> None:
    consumer = Consumer(place, 400)
    consumer.finish_for(TRIED + 1, QUICK)
    for in_flight in (280, 520, 350, 550, 795, 270):
        consumer.subscription.in_flight_count = in_flight
        consumer.finish_for(1, QUICK)
    assert consumer.socket.calls == 1
    for in_flight, size in ((805, 201 * FIN_BYTES), (532, 133 * FIN_BYTES), (100, 25 * FIN_BYTES)):
        consumer.subscription.in_flight_count = in_flight
        consumer.finish_for(1, QUICK)
        assert consumer.socket.low_water_bytes == size
    consumer.subscription.in_flight_count = 1_000_000
    consumer.finish_for(1, 1_000_000)
    assert consumer.socket.low_water_bytes == MAX_LOW_WATER_BYTES


def waiting_intervals(consumer: Consumer, intervals: int, at_once: int, waiting: int) -> list[bool]:
    """Return in which intervals a consumer waited that finishes so many in one, by whether it waits."""
    waits = []
    is_waiting = False
    for _ in range(intervals):
        is_waiting = consumer.finish(waiting if is_waiting else at_once)
        consumer.place.pass_interval()
        waits.append(is_waiting)
    return waits


def test_a_consumer_that_waiting_slows_down_rests_longer_and_longer(place: Place) -> None:
    """It keeps most of its window, or its kernel waits for acknowledgements."""
    waits = waiting_intervals(Consumer(place, 2500), 5_000, at_once=100, waiting=40)
    assert 3 * TRIAL <= sum(waits) <= 8 * TRIAL
    begins = [number for number in range(1, len(waits)) if waits[number] > waits[number - 1]]
    rests = [later - earlier for earlier, later in pairwise(begins)]
    assert all(later > 1.5 * earlier for earlier, later in pairwise(rests))


def test_a_consumer_that_waiting_does_not_slow_down_stays_with_it(place: Place) -> None:
    waits = waiting_intervals(Consumer(place, 2500), 5_000, at_once=100, waiting=90)
    assert sum(waits) > 0.97 * len(waits)
    assert not all(waits[100:]), "it is tried again now and then"


def test_a_slow_beginning_is_no_reason_to_give_up(place: Place) -> None:
    """A congestion window grows; what is slow for longer than that is."""
    waits = waiting_intervals(Consumer(place, 2500), 200, at_once=100, waiting=60)
    began = waits.index(True)
    assert all(waits[began : began + FIRST_STAY])
    assert not any(waits[began + TRIAL + FIRST_STAY : began + TRIAL + 2 * FIRST_STAY])


@pytest.mark.parametrize("pause", [50, 200])
def test_pauses_between_bursts_count_for_neither_way(place: Place, pause: int) -> None:
    """Bursts of 40 intervals, and waiting leaves a fifth of the rate: idle time must not make the ways look alike."""
    consumer = Consumer(place, 2500)
    waited = 0
    for _ in range(60):
        waited += sum(waiting_intervals(consumer, 40, at_once=500, waiting=100))
        for _ in range(pause):
            place.pass_interval()
    assert TRIAL <= waited <= 10 * TRIAL, "of 2,400"


def test_bursts_of_a_consumer_that_waiting_does_not_slow_down_are_coalesced(place: Place) -> None:
    consumer = Consumer(place, 2500)
    waited = 0
    for _ in range(60):
        waited += sum(waiting_intervals(consumer, 40, at_once=500, waiting=480))
        for _ in range(100):
            place.pass_interval()
    assert waited > 2_000, "of 2,400"


def test_each_consumer_has_a_mark_of_its_own(place: Place) -> None:
    quick, slow = Consumer(place, 400), Consumer(place, 400)
    for _ in range(TRIED + 1):
        quick.finish(QUICK)
        slow.finish(1)
        place.pass_interval()
    assert (quick.socket.low_water_bytes > 1, slow.socket.low_water_bytes) == (True, 1)
    place.coalescing.end(quick.reads)
    assert quick.socket.low_water_bytes == 1


def test_a_closing_socket_is_left_alone(place: Place) -> None:
    """Its number may be another's already."""
    consumer = Consumer(place, 400)
    consumer.finish_for(TRIED + 1, QUICK)
    calls = consumer.socket.calls
    consumer.transport.closing = True
    place.coalescing.end(consumer.reads)
    place.pass_interval()
    place.pass_interval()
    assert consumer.socket.calls == calls
    assert place.due_ns is None


def test_zero_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(Place(monkeypatch, interval_ms=0), 2500)
    assert not consumer.finish_for(2 * TRIED, QUICK)
    assert consumer.socket.calls == 0


def test_a_system_that_refuses_the_option_is_told_of_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    consumer, other = Consumer(place, 400), Consumer(place, 400)
    other.finish_for(TRIED + 1, QUICK)
    consumer.socket.error = other.socket.error = OSError(92, "Protocol not available")
    assert not consumer.finish_for(2 * TRIED, QUICK)
    place.coalescing.end(other.reads)
    assert (consumer.transport.aborted, other.transport.aborted) == (False, True), "its FINs would never be read"
    assert [record.getMessage() for record in caplog.records] == [
        "every FIN is read as it comes, the system refuses SO_RCVLOWAT error=[Errno 92] Protocol not available"
    ]


class RaisedBench(Bench):
    """A server and a consumer whose socket waits for many FINs."""

    def __init__(self) -> None:
        super().__init__()
        self.consumer = self.client()
        self.socket = Socket()
        peer = self.consumer.transport.peer
        extra = {"socket": self.socket, "peername": peer}
        self.consumer.transport.get_extra_info = lambda name, default=None: extra.get(name, default)  # type: ignore[method-assign]
        self.consumer.subscribe("t", "c", ready=1)
        reads = self.consumer.connection._consumer_reads
        assert reads is not None
        reads.set_low_water(1000)
        self.server.coalescing._waiting[reads] = None

    def waits(self) -> bool:
        return self.socket.low_water_bytes > 1 or bool(self.server.coalescing._waiting)


@pytest.mark.parametrize(
    "sent",
    [pytest.param(b"PUB other\n\0\0\0\1x", id="a publish"), pytest.param(b"NONSENSE\n", id="a fatal command")],
)
def test_a_consumer_that_is_none_any_more_is_read_from_at_once(sent: bytes) -> None:
    """A publish is waited for; and the last words of a connection that is left must not be overtaken by a reset."""
    bench = RaisedBench()
    assert bench.waits()
    bench.consumer.send(sent)
    assert not bench.waits()
    assert bench.consumer.connection._consumer_reads is None


def test_a_consumer_whose_channel_is_deleted_is_read_from_at_once() -> None:
    bench = RaisedBench()
    bench.consumer.connection.closed_by_broker("channel deleted")
    assert not bench.waits()


# -- with a broker ---------------------------------------------------------------------------------------------------

MESSAGES = 20_000
WINDOW = 1_000
FINS_A_WRITE = 10


class Peer:
    """A consumer on a socket that finishes messages a few at a time."""

    def __init__(self, broker: RunningBroker) -> None:
        host, _, port = broker.nsq_tcp.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"  V2SUB t c\n")
        self._received = bytearray()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def consume(self, count: int) -> None:
        """Ask for a window of messages, and finish ``count`` of them."""
        self.socket.sendall(b"RDY %d\n" % WINDOW)
        fins = []
        for message_id in islice(self.messages(), count):
            fins.append(b"FIN %s\n" % message_id)
            if len(fins) == FINS_A_WRITE:
                self.socket.sendall(b"".join(fins))
                fins.clear()
        self.socket.sendall(b"".join(fins))

    def messages(self) -> Iterator[bytes]:
        """Yield the ids of messages as they come."""
        while True:
            while len(self._received) >= 8:
                size, kind = struct.unpack_from(">II", self._received)
                if len(self._received) < 4 + size:
                    break
                frame = bytes(self._received[8 : 4 + size])
                del self._received[: 4 + size]
                if kind == 2:
                    yield frame[10:26]
            data = self.socket.recv(1 << 16)
            assert data, "closed"
            self._received += data


@pytest.fixture
def pays_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a trial say that it pays to wait: on a busy machine the rates that it compares say anything."""
    for name, value in {"KEPT_IN_TRIAL": 0.0, "KEPT_RATE": 0.0, "MIN_FINISHED": 4}.items():
        monkeypatch.setattr(coalescing, name, value)


def publish_and_subscribe(broker: RunningBroker) -> Peer:
    request(broker, "/topic/create?topic=t")
    request(broker, "/channel/create?topic=t&channel=c")
    bodies = b"".join(struct.pack(">I", 5) + b"%05d" % number for number in range(MESSAGES))
    request(broker, "/mpub?topic=t&binary=true", struct.pack(">I", MESSAGES) + bodies)
    return Peer(broker)


def request(broker: RunningBroker, target: str, body: bytes = b"") -> None:
    call = urllib.request.Request(f"http://{broker.nsq_http}{target}", data=body, method="POST")
    with urllib.request.urlopen(call, timeout=10) as answer:
        assert answer.status == 200


def channel_stats(broker: RunningBroker) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{broker.nsq_http}/stats?format=json&topic=t", timeout=10) as answer:
        channel: dict[str, Any] = json.load(answer)["topics"][0]["channels"][0]
        return channel


def coalesced_reads(broker: RunningBroker) -> int:
    with urllib.request.urlopen(f"http://{broker.listeners['admin']}/metrics", timeout=10) as answer:
        found = re.search(r"^headrace_nsq_coalesced_reads_total (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.usefixtures("pays_always")
def test_every_fin_is_read_also_the_last_few() -> None:
    """What is below the mark when the client has finished everything is read all the same."""
    with testing.broker(store__durability="async") as broker, publish_and_subscribe(broker) as peer:
        peer.consume(MESSAGES)
        wait_until(lambda: not channel_stats(broker)["in_flight_count"], "a FIN is not read")
        assert channel_stats(broker)["depth"] == 0
        assert coalesced_reads(broker) > 0


def consume_until_coalesced(broker: RunningBroker, peer: Peer) -> int:
    """Finish messages until many FINs are read at once, all but a tenth at most; return how many."""
    finished = 0
    for _ in range(9):  # it is tried both ways first, for some intervals
        peer.consume(MESSAGES // 10)
        finished += MESSAGES // 10
        if coalesced_reads(broker):
            break
    return finished


@pytest.mark.usefixtures("pays_always")
def test_other_commands_of_such_a_consumer_are_taken() -> None:
    """CLS behind FINs that are below the mark is answered."""
    with testing.broker(store__durability="async") as broker, publish_and_subscribe(broker) as peer:
        consume_until_coalesced(broker, peer)
        peer.consume(MESSAGES // 10)
        peer.socket.sendall(b"CLS\n")
        received = b""
        while b"CLOSE_WAIT" not in received:
            data = peer.socket.recv(1 << 16)
            assert data, "closed"
            received = received[-20:] + data
        assert coalesced_reads(broker) > 0


@pytest.mark.usefixtures("pays_always")
def test_what_is_handed_back_below_the_mark_and_a_closed_window_count() -> None:
    """REQ and RDY are 21 and 6 bytes: nothing that is sent behind them makes the socket readable."""
    with testing.broker(store__durability="async") as broker, publish_and_subscribe(broker) as peer:
        finished = consume_until_coalesced(broker, peer)
        message_id = next(peer.messages())
        peer.socket.sendall(b"TOUCH %s\nREQ %s 60000\nRDY 0\n" % (message_id, message_id))
        wait_until(lambda: channel_stats(broker)["clients"][0]["ready_count"] == 0, "RDY is not read")
        channel = channel_stats(broker)
        assert (channel["requeue_count"], channel["deferred_count"]) == (1, 1)
        assert channel["clients"][0]["finish_count"] == finished
        assert coalesced_reads(broker) > 0


@pytest.mark.usefixtures("pays_always")
def test_a_half_close_behind_fins_below_the_mark_loses_none_of_them() -> None:
    """A client that shuts its side down has finished what it said: no more than the rest comes again."""
    with testing.broker(store__durability="async") as broker, publish_and_subscribe(broker) as peer:
        finished = consume_until_coalesced(broker, peer)
        peer.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: not channel_stats(broker)["client_count"], "the end of file is not seen")
        channel = channel_stats(broker)
        assert channel["depth"] + channel["in_flight_count"] == MESSAGES - finished
        assert coalesced_reads(broker) > 0


def test_fins_that_came_before_a_stop_count(tmp_path: Path) -> None:
    """A broker that stops reads what its consumers have sent: nothing of it is delivered again."""
    folder = tmp_path / "store"
    with testing.broker(store__data_dir=folder) as broker, publish_and_subscribe(broker) as peer:
        peer.consume(MESSAGES // 2)
        broker.stop()  # at once: the last FINs are below the mark
    with testing.broker(store__data_dir=folder) as broker:
        assert channel_stats(broker)["depth"] == MESSAGES // 2
