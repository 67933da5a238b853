"""What is published to a busy channel is delivered some messages at a time, a millisecond later at most (ADR 0014)."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import testing
from headrace.broker.channels.channel_table import MANY
from headrace.clock import ManualClock
from headrace.net.loop_load import Load
from headrace.nsq.delivery_coalescing import BUSY, MEASURED, SITS_OUT
from headrace.nsq.delivery_interval import MEASURED as LOOKS
from tests.unit.nsq.fake_client import Client, identify, mpub, pub
from tests.unit.nsq.real_bench import RealBench, real_bench


def publish(bench: RealBench, publisher: Client, messages: int) -> None:
    """Publish one message a turn."""
    for _ in range(messages):
        publisher.post(pub("orders", b"x"))
        bench.end_turn()
    assert publisher.frames() == [(0, b"OK")] * messages


def work_for(bench: RealBench, publisher: Client, consumer: Client, intervals: int, messages: int) -> None:
    """Publish so many messages an interval, each consumed and finished at once."""
    for _ in range(intervals):
        for _ in range(messages):
            publish(bench, publisher, 1)
            finish_all(consumer)
            bench.end_turn()
        bench.pass_interval()
        finish_all(consumer)
        bench.end_turn()


def finish_all(consumer: Client) -> int:
    frames = [data for kind, data in consumer.frames() if kind == 2]
    for data in frames:
        consumer.post(b"FIN " + data[10:26] + b"\n")
    return len(frames)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RealBench]:
    with real_bench(tmp_path, delivery_coalescing_ms=1) as made:
        yield made


def consumer_of(bench: RealBench, ready: int = 100, said: str | None = None) -> Client:
    consumer = bench.client(peer=("10.0.0.2", 1))
    if said is not None:
        consumer.send(identify(said))
    consumer.post(b"SUB orders all\n")
    bench.server.broker.store.flush()
    bench.end_turn()
    consumer.post(b"RDY %d\n" % ready)
    bench.end_turn()
    assert consumer.frames() == [(0, b"OK")]
    return consumer


def make_busy(bench: RealBench, publisher: Client, consumer: Client) -> None:
    """Have the channel deliver what makes it busy, for as long as that is measured, and the interval end."""
    work_for(bench, publisher, consumer, 2 * MEASURED + 1, 2 * BUSY)
    bench.pass_interval()
    assert finish_all(consumer) == 0


def test_a_busy_channel_gathers_for_an_interval(bench: RealBench) -> None:
    """C-FLOW-10: the first message leaves at once, those behind it together at the interval's end."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_busy(bench, publisher, consumer)
    writes = bench.server.counters.messages_out
    publish(bench, publisher, 1)
    assert finish_all(consumer) == 1
    publish(bench, publisher, 5)
    assert finish_all(consumer) == 0
    assert bench.server.counters.messages_out == writes + 1
    bench.pass_interval()
    assert finish_all(consumer) == 5
    assert bench.server.delivery_coalescing.holds > 0


def test_a_channel_that_is_not_busy_holds_nothing(bench: RealBench) -> None:
    """Fewer messages an interval leave as they come, however long that goes on."""
    publisher, consumer = bench.client(), consumer_of(bench)
    work_for(bench, publisher, consumer, 4 * MEASURED, BUSY - 1)
    publish(bench, publisher, 1)
    assert finish_all(consumer) == 1
    publish(bench, publisher, 1)
    assert finish_all(consumer) == 1
    assert bench.server.delivery_coalescing.holds == 0


def test_a_channel_is_busy_no_more_when_it_calms_down(bench: RealBench) -> None:
    """It is measured anew: a message an interval waits for nothing."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_busy(bench, publisher, consumer)
    work_for(bench, publisher, consumer, 2 * MEASURED, 1)
    holds = bench.server.delivery_coalescing.holds
    work_for(bench, publisher, consumer, 2 * MEASURED, 1)
    assert bench.server.delivery_coalescing.holds == holds


@pytest.mark.parametrize(
    ("ready", "said"),
    [
        (15, None),
        (1, None),
        (100, '{"output_buffer_size": -1}'),
        (100, '{"output_buffer_timeout": -1}'),
    ],
)
def test_who_has_little_to_do_or_wants_no_buffer_gets_each_at_once(
    bench: RealBench, ready: int, said: str | None
) -> None:
    """IDENTIFY's output buffer is the client's word on whether its messages may wait."""
    publisher, consumer = bench.client(), consumer_of(bench, ready, said)
    make_busy(bench, publisher, consumer)
    for _ in range(3):
        publish(bench, publisher, 1)
        assert finish_all(consumer) == 1
        bench.end_turn()
    assert bench.server.delivery_coalescing.holds == 0


def test_who_wants_no_buffer_waits_for_no_other_consumer(bench: RealBench) -> None:
    """A channel is not held while one of its consumers wants each message at once, whoever was sent the last one."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_busy(bench, publisher, consumer)
    quick = consumer_of(bench, 100, '{"output_buffer_timeout": -1}')
    who: list[int] = []
    for _ in range(6):
        publish(bench, publisher, 1)
        taken = [finish_all(consumer), finish_all(quick)]
        assert sum(taken) == 1
        who.append(taken.index(1))
        bench.end_turn()
        quick.post(b"RDY 100\n")  # a dispatch more, for the other to be the first
        bench.end_turn()
    assert set(who) == {0, 1}
    quick.transport.abort()
    publish(bench, publisher, 2)
    assert finish_all(consumer) == 1
    bench.pass_interval()
    assert finish_all(consumer) == 1


def test_a_window_that_is_half_full_is_filled_at_once(bench: RealBench) -> None:
    """A consumer that may soon be without waits for nothing."""
    publisher, consumer = bench.client(), consumer_of(bench, 20)
    make_busy(bench, publisher, consumer)
    publish(bench, publisher, 12)
    bench.pass_interval()
    assert len(consumer.messages()) == 12  # in flight, and more than half of the window
    for _ in range(3):
        publish(bench, publisher, 1)
        assert len(consumer.messages()) == 1


def test_many_messages_end_the_interval(bench: RealBench) -> None:
    """What is much is worth a write of its own."""
    publisher, consumer = bench.client(), consumer_of(bench, 2 * MANY)
    make_busy(bench, publisher, consumer)
    publish(bench, publisher, 1)
    assert finish_all(consumer) == 1
    publish(bench, publisher, MANY - 1)
    assert finish_all(consumer) == 0
    publish(bench, publisher, 1)
    assert finish_all(consumer) == MANY
    bench.pass_interval()
    publish(bench, publisher, 1)
    finish_all(consumer)
    publisher.post(mpub("orders", [b"y"] * MANY))
    bench.end_turn()
    assert finish_all(consumer) == MANY


def make_long(bench: RealBench) -> None:
    """Have intervals be longer than they are set to, as under full load."""
    interval = bench.server.delivery_coalescing.interval
    while not interval.is_longer:
        interval.adapt(Load(0.05, 1.0), deliveries=1000, messages=1000)


def pass_long(bench: RealBench, consumer: Client) -> int:
    """Let such an interval pass; return how many messages came at its end."""
    bench.now_ns += int(bench.server.delivery_coalescing.interval.ms * 1_000_000)
    bench.pass_interval()
    return finish_all(consumer)


def work_long(bench: RealBench, publisher: Client, consumer: Client, intervals: int, messages: int) -> list[int]:
    """Publish so many messages in each such interval; return how many came at the ends."""
    at_ends = []
    for _ in range(intervals):
        publish(bench, publisher, messages)
        finish_all(consumer)
        at_ends.append(pass_long(bench, consumer))
    return at_ends


def test_a_few_messages_an_interval_are_gathered_under_full_load(bench: RealBench) -> None:
    """A channel that is too calm for the interval that is set is busy for the longer one."""
    publisher, consumer = bench.client(), consumer_of(bench)
    assert not any(work_long(bench, publisher, consumer, 4 * MEASURED, 3))
    make_long(bench)
    assert work_long(bench, publisher, consumer, 4 * MEASURED, 3)[-MEASURED:] == [3] * MEASURED


def test_a_message_an_interval_is_not_gathered_under_full_load(bench: RealBench) -> None:
    """Nothing would be saved. So it is with who sends the next one only when the last has come: it is left alone."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_long(bench)
    work_long(bench, publisher, consumer, 4 * MEASURED, 3)
    assert bench.server.delivery_coalescing.holds > 0
    work_long(bench, publisher, consumer, 4 * MEASURED, 1)
    holds = bench.server.delivery_coalescing.holds
    assert not any(work_long(bench, publisher, consumer, SITS_OUT * MEASURED // 2, 3))
    assert bench.server.delivery_coalescing.holds == holds
    work_long(bench, publisher, consumer, SITS_OUT * MEASURED, 3)
    assert bench.server.delivery_coalescing.holds > holds


def test_the_server_counts_what_the_load_is_made_of(bench: RealBench) -> None:
    """Deliveries and messages since the last look make the interval longer, if the loop is full."""
    publisher, consumer = bench.client(), consumer_of(bench)
    for _ in range(2 * LOOKS):
        work_for(bench, publisher, consumer, 3, 2)
        bench.server.note_load(Load(0.001, 1.0))
    assert bench.server.delivery_coalescing.interval.ms > 1
    for _ in range(10):
        bench.server.note_load(Load(0.05, 0.1))
    assert bench.server.delivery_coalescing.interval.ms == 1


def test_another_channel_does_not_wait(bench: RealBench) -> None:
    """Only the busy channel is held, though both are dispatched together."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_busy(bench, publisher, consumer)
    other = bench.client(peer=("10.0.0.3", 1))
    other.post(b"SUB orders other\n")
    bench.server.broker.store.flush()
    bench.end_turn()
    other.post(b"RDY 100\n")
    bench.end_turn()
    assert other.frames() == [(0, b"OK")]
    for _ in range(3):
        publish(bench, publisher, 1)
        assert finish_all(other) == 1
    assert finish_all(consumer) == 1
    bench.pass_interval()
    assert finish_all(consumer) == 2


def test_a_channel_that_is_deleted_while_it_is_held(bench: RealBench) -> None:
    """Its consumers are sent away, the end of the interval finds nothing, and its name may be made again."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_busy(bench, publisher, consumer)
    publish(bench, publisher, 3)
    bench.server.broker.delete_channel("orders", "all")
    assert len(consumer.messages()) == 1
    assert consumer.transport.eof_sent
    bench.pass_interval()
    publish(bench, publisher, 1)  # it waits in the topic: there is no channel
    again = bench.client()
    again.post(b"SUB orders all\n")
    bench.server.broker.store.flush()
    bench.end_turn()
    again.post(b"RDY 10\n")
    bench.end_turn()
    assert again.messages() == [b"x"]


def test_a_fin_behind_a_held_channel_that_is_deleted_is_a_sign_of_life(bench: RealBench) -> None:
    """No dispatch comes for what was finished last there: the time of that is not the time of the next FIN."""
    publisher, slow = bench.client(), bench.client(peer=("10.0.0.3", 1))
    slow.post(b"SUB films all\n")
    bench.server.broker.store.flush()
    bench.end_turn()
    slow.post(b"RDY 1\n")
    publisher.post(pub("films", b"x"))
    bench.end_turn()
    held = slow.frames()[-1][1][10:26]
    publisher.frames()
    consumer = consumer_of(bench)
    make_busy(bench, publisher, consumer)
    publish(bench, publisher, 1)
    assert finish_all(consumer) == 1
    bench.server.broker.delete_channel("orders", "all")
    bench.pass_interval()
    clock = bench.server.clock
    assert isinstance(clock, ManualClock)
    for command in (b"NOP\n", b"NOP\n", b"NOP\n", b"FIN " + held + b"\n", b""):
        slow.post(command)
        clock.advance_ms(25_000)
        bench.server.check_timers(bench.server.clock.monotonic_ms())
    assert not slow.transport.aborted


def test_several_consumers_share_what_there_is(bench: RealBench) -> None:
    """Where there is time each of them gets a part, not the first one everything."""
    publisher = bench.client()
    consumers = [consumer_of(bench) for _ in range(4)]
    publisher.post(mpub("orders", [b"%d" % number for number in range(10)]))
    bench.end_turn()
    assert sorted(len(consumer.messages()) for consumer in consumers) == [1, 3, 3, 3]


def test_a_channel_that_calmed_down_spreads_its_few_messages(bench: RealBench) -> None:
    """Also where its consumers have small windows now, so that it is not to be held anyway."""
    publisher, consumer = bench.client(), consumer_of(bench)
    make_busy(bench, publisher, consumer)
    consumers = [consumer_of(bench, 10) for _ in range(4)]
    consumer.transport.abort()
    for _ in range(2 * MEASURED):
        bench.pass_interval()
    publisher.post(mpub("orders", [b"x"] * 10))
    bench.end_turn()
    assert sorted(len(consumer.messages()) for consumer in consumers) == [1, 3, 3, 3]


def test_nothing_is_forgotten_with_sockets() -> None:
    """Every message of a busy channel arrives, the last ones too, and the metric counts that it was held."""
    messages = 20_000
    # No heartbeats: whatever comes, on a slow machine too, is an answer or a message.
    quiet = {"nsq__heartbeat_interval_ms": 600_000, "nsq__max_heartbeat_interval_ms": 600_000}
    with testing.broker(store__durability="async", nsq__delivery_coalescing_ms=10, **quiet) as broker:
        host, _, port = broker.nsq_tcp.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as consumer,
            socket.create_connection((host, int(port)), timeout=20) as publisher,
        ):
            consumer.sendall(b"  V2SUB orders all\nRDY 2500\n")
            publisher.sendall(b"  V2")
            stream = b""
            while len(stream) < 10:
                stream += consumer.recv(65536)
            stream = stream[10:]

            answers = publisher.makefile("rb")

            def publish_all() -> None:
                waiting = 0
                for number in range(messages):
                    publisher.sendall(pub("orders", b"%05d" % number))
                    waiting += 1
                    if waiting == 4:
                        answers.read(40)
                        waiting = 0

            publishing = threading.Thread(target=publish_all)
            publishing.start()
            bodies: list[bytes] = []
            while len(bodies) < messages:
                came = consumer.recv(65536)
                assert came
                stream += came
                finishes = []
                while len(stream) >= 39:
                    frame, stream = stream[:39], stream[39:]
                    bodies.append(frame[34:])
                    finishes.append(b"FIN " + frame[18:34] + b"\n")
                consumer.sendall(b"".join(finishes))
            publishing.join()
            answers.close()
        with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=10) as answer:
            holds = re.search(r"^headrace_nsq_delivery_holds_total (\S+)$", answer.read().decode(), re.MULTILINE)
    assert bodies == [b"%05d" % number for number in range(messages)]
    assert holds is not None
    assert float(holds[1]) > 0
