"""One NSQ connection: refusals, windows, order of replies, pauses and deadlines, with time standing still."""

from __future__ import annotations

import asyncio
import struct

import pytest

from headrace.errors import ClosingError, StoreFullError
from headrace.nsq.connection import MAX_ENDED
from headrace.nsq.states import State
from headrace.nsq.stats import StatsFilter, client_row, read_producers
from tests.support.memory import little_memory
from tests.unit.nsq.fake_client import Bench, identify, mpub, pub

OK = (0, b"OK")
HEARTBEAT = (0, b"_heartbeat_")


def settle(command: str, message: bytes, *params: str) -> bytes:
    """Return FIN, REQ or TOUCH for a message frame's data."""
    return " ".join([command, message[10:26].decode(), *params]).encode() + b"\n"


# nsq.md 1.13: (bytes after the magic, data of the last frame). All fatal.
FATAL = [
    (b"\n", b"E_INVALID invalid command "),
    (b"nop\n", b"E_INVALID invalid command nop"),
    (b"HELLO you\n", b"E_INVALID invalid command HELLO"),
    (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
    (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
    (b"SUB t c\nFIN\n", b"E_INVALID FIN insufficient number of params"),
    (b"SUB t c\nREQ 0123456789abcdef\n", b"E_INVALID REQ insufficient number of params"),
    (b"SUB t c\nTOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    (b"SUB t c\nFIN 0123\n", b"E_INVALID invalid message ID"),
    (b"SUB t c\nREQ 0123456789abcdef0 1\n", b"E_INVALID invalid message ID"),
    (b"SUB t c\nTOUCH \n", b"E_INVALID invalid message ID"),
    (b"SUB t c\nRDY abc\n", b"E_INVALID RDY could not parse count abc"),
    (b"SUB t c\nRDY +1\n", b"E_INVALID RDY could not parse count +1"),
    (b"SUB t c\nRDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
    (b"SUB t c\nREQ 0123456789abcdef 1.0\n", b"E_INVALID REQ could not parse timeout 1.0"),
    (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    (b"DPUB t 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (identify('{"heartbeat_interval":-1}') + b"SUB t\n", b"E_INVALID cannot SUB with heartbeats disabled"),
    (b"AUTH secret\n", b"E_INVALID AUTH invalid number of parameters"),
    (b"AUTH\n\0\0\0\1x", b"E_AUTH_DISABLED AUTH disabled"),
    (b"IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY invalid body size 0"),
    (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
    (b"IDENTIFY\n\0\x50\0\1", b"E_BAD_BODY IDENTIFY body too big 5242881 > 5242880"),
    (b"AUTH\n\0\0\0\0", b"E_BAD_BODY AUTH invalid body size 0"),
    (b"AUTH\n\0\x50\0\1", b"E_BAD_BODY AUTH body too big 5242881 > 5242880"),
    (b"MPUB t\n\0\0\0\0", b"E_BAD_BODY MPUB invalid body size 0"),
    (b"MPUB t\n\0\x50\0\1", b"E_BAD_BODY MPUB body too big 5242881 > 5242880"),
    (b"MPUB t\n\0\0\0\x09\0\0\0\0", b"E_BAD_BODY MPUB invalid message count 0"),
    (b"MPUB t\n\0\0\0\x09\0\x10\0\0", b"E_BAD_BODY MPUB invalid message count 1048576"),
    (b"MPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\0", b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (b"MPUB t\n\0\0\0\x09\0\0\0\2\0\0\0\1x\xff\xff\xff\xff", b"E_BAD_MESSAGE MPUB invalid message(1) body size -1"),
    (b"MPUB t\n\0\0\0\x09\0\0\0\1\0\x10\0\1", b"E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"),
    (b"PUB t\n\0\0\0\0", b"E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n\xff\xff\xff\xff", b"E_BAD_MESSAGE PUB invalid message body size -1"),
    (b"PUB t\n\0\x10\0\1", b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    (b"DPUB t 1\n\0\0\0\0", b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    (b"DPUB t 1\n\0\x10\0\1", b"E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
    (b"PUB x$\n", b'E_BAD_TOPIC PUB topic name "x$" is not valid'),
    (b"PUB t#tmp\n", b'E_BAD_TOPIC PUB topic name "t#tmp" is not valid'),
    (b"PUB  t\n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    (b"DPUB x$ 1\n", b'E_BAD_TOPIC DPUB topic name "x$" is not valid'),
    (b"MPUB x$\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "x$" is not valid'),
    (b"SUB x$ c\n", b'E_BAD_TOPIC SUB topic name "x$" is not valid'),
    (b"SUB t x$\n", b'E_BAD_CHANNEL SUB channel name "x$" is not valid'),
]


@pytest.mark.parametrize(("stream", "data"), FATAL, ids=lambda value: value[:40].decode("latin-1"))
def test_fatal_refusals(stream, data):
    """X-NSQ-08, B-LMQ-08, C-PROTO-09, C-PROTO-15, C-PROTO-16: text, and the frame survives the close; nsq.md 1.13."""
    bench = Bench()
    client = bench.client()
    assert client.send(stream)[-1] == (1, data)
    # The write side is shut behind the frame; what the client still sends is thrown away, and then it is cut.
    assert client.transport.eof_sent
    assert not client.transport.closed
    assert client.send(b"PUB t\n\0\0\0\1x") == []
    bench.advance(1100)
    assert client.transport.closed
    assert bench.server.connections.closed == {"refused": 1}
    assert bench.server.counters.refusals[data.split()[0].decode()] == 1


@pytest.mark.parametrize("name", ["PUB", "DPUB", "MPUB"])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_messages_of_the_shortest_and_the_longest_size_are_taken(name, size):
    """X-NSQ-08, B-LMQ-08: those beside them are refused."""
    body = bytes(size)
    commands = {"PUB": pub("t", body), "MPUB": mpub("t", [body])}
    commands["DPUB"] = b"DPUB t 1\n" + struct.pack(">i", size) + body
    assert Bench().client().send(commands[name]) == [OK]


CUT_SHORT = [
    (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\r\n\0\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    (b"PUB t\n\0\0\0\2", b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"PUB t\n\0\1\0\0" + b"x" * 65535, b"E_BAD_MESSAGE PUB failed to read message body"),
    (b"DPUB t 5\n\0", b"E_BAD_MESSAGE DPUB failed to read message body size"),
    (b"DPUB t 5\n\0\0\0\2x", b"E_BAD_MESSAGE DPUB failed to read message body"),
    (b"MPUB t\n\0\0\0", b"E_BAD_BODY MPUB failed to read body size"),
    (b"MPUB t\n\0\0\0\x20", b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n\0\0\0\x20\0\0\0", b"E_BAD_BODY MPUB failed to read message count"),
    (b"MPUB t\n\0\0\0\x20\0\0\0\2", b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (b"MPUB t\n\0\0\0\x20\0\0\0\2\0\0\0\2x", b"E_BAD_MESSAGE MPUB failed to read message body"),
    (b"MPUB t\n\0\0\0\x20\0\0\0\2\0\0\0\1x\0\0\0", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (b"MPUB t\n\0\0\0\x20\0\0\0\2\0\0\0\1x\0\0\0\1", b"E_BAD_MESSAGE MPUB failed to read message body"),
    (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
    (b"IDENTIFY\n\0\0\0\2{", b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"AUTH\r\n", b"E_BAD_BODY AUTH failed to read body size"),
    (b"AUTH\n\0\0\0\5", b"E_BAD_BODY AUTH failed to read body"),
]


@pytest.mark.parametrize(("stream", "data"), CUT_SHORT, ids=lambda value: value[:40].decode("latin-1"))
def test_command_cut_short_by_the_end_of_file_is_refused(stream, data):
    """nsq.md 1.13: what could not be read is named, behind the replies that are owed."""
    for pieces in ([stream], [stream[index : index + 1] for index in range(len(stream))]):
        bench = Bench()
        bench.broker.gate.open_all = False
        client = bench.client()
        assert client.send(pub("t", b"before")) == []
        for piece in pieces:
            client.send(piece)
        assert client.connection.eof_received() is True
        bench.broker.gate.open(bench.broker.offset)
        assert client.frames() == [OK, (1, data)]
        assert client.transport.eof_sent
        assert bench.server.counters.refusals[data.split()[0].decode()] == 1


@pytest.mark.parametrize("stream", [b"", b"NOP", b"PUB t", b"IDENTIFY\r", pub("t", b"x")])
def test_end_of_file_between_commands_or_in_a_line_is_no_error(stream):
    """nsq.md 1.13: as nsqd, closed without a word."""
    client = Bench().client()
    client.send(stream)
    assert client.connection.eof_received() is False
    assert client.frames() == []
    assert client.transport.closed


def test_wrong_magic_is_refused():
    """nsq.md 1.1, C-PROTO-01, X-NSQ-11."""
    client = Bench().client(magic=False)
    assert client.send(b" V3x") == [(1, b"E_BAD_PROTOCOL")]
    assert client.transport.eof_sent


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b" V3x", "E_BAD_PROTOCOL"),
        (b"\x00\x00\x00\x7b\x00\x00\x00\x77", "RocketMQ's protocol, which remoting.address and registry.address take"),
        (
            b"GET /ping HTTP/1.1\r\n\r\n",
            "HTTP, which nsq.http_address, registry.nsq_http_address, admin.address and registry.admin_address take",
        ),
        (b"\x16\x03\x01\x02\x00", "TLS, which no port takes"),
    ],
)
def test_a_wrong_magic_is_logged_and_explained(start: bytes, text: str, caplog: pytest.LogCaptureFixture):
    """As nsqd does; what another protocol's client sends tells which port it should have gone to."""
    Bench().client(magic=False).send(start)
    (record,) = caplog.records
    assert record.getMessage().startswith("bytes refused, connection closed client=")
    assert record.getMessage().endswith(text)


def test_refused_protocols_are_logged_once_a_minute_each(caplog: pytest.LogCaptureFixture):
    """Whoever knocks at a port needs no name: their number is in the counters."""
    bench = Bench()
    for start in (b"SSH-2.0-x", b"GET / HTTP/1.1", b"SSH-2.0-y", b"GET / HTTP/1.1"):
        bench.client(magic=False).send(start)
    assert [record.getMessage().rpartition("=")[2] for record in caplog.records] == [
        "E_BAD_PROTOCOL",
        "the client speaks HTTP, which nsq.http_address, registry.nsq_http_address, admin.address and "
        "registry.admin_address take",
    ]
    bench.clock.advance_ms(60_000)
    bench.client(magic=False).send(b"SSH-2.0-z")
    assert len(caplog.records) == 3
    assert bench.server.counters.refusals["E_BAD_PROTOCOL"] == 5


def test_a_command_without_memory_is_refused_by_its_own_error(caplog: pytest.LogCaptureFixture):
    """The connection was closed without a word, and the log had a traceback; what came before it counts."""
    body_bytes = 512 << 20  # so much no thread's part of malloc has left
    bench = Bench(max_body_bytes=body_bytes)
    client, other = bench.client(), bench.client()
    begun = b"MPUB t\n" + struct.pack(">III", body_bytes, 512, 1 << 20) + bytes(400_000)
    with little_memory():
        assert client.send(pub("t", b"before") + begun) == [
            OK,
            (1, b"E_MPUB_FAILED MPUB failed no memory for a command of %d bytes" % (len(b"MPUB t\n") + 4 + body_bytes)),
        ]
        assert other.send(pub("t", b"small")) == [OK]
    assert client.transport.eof_sent
    assert bench.server.counters.refusals == {"E_MPUB_FAILED": 1}
    assert [record.getMessage().partition(" client=")[0] for record in caplog.records] == ["no memory, client refused"]


def test_half_a_magic_then_close_frees_the_connection():
    """C-PROTO-01, X-NSQ-12."""
    bench = Bench()
    client = bench.client(magic=False)
    client.send(b"  ")
    assert client.connection.eof_received() is False
    assert len(bench.server.connections) == 0


def test_too_long_line_closes_without_a_frame():
    """nsq.md 1.2."""
    client = Bench().client()
    assert client.send(b"x" * 16384) == []
    assert client.transport.eof_sent


def test_what_came_before_a_refusal_is_executed_and_answered_first():
    """C-PROTO-10; nsq.md 1.2: pipelining, replies in command order."""
    client = Bench().client()
    frames = client.send(pub("t", b"a") + mpub("t", [b"b", b"c"]) + b"PUB t$\n" + pub("t", b"lost"))
    assert frames == [OK, OK, (1, b'E_BAD_TOPIC PUB topic name "t$" is not valid')]
    assert client.connection.pub_counts == {"t": 3}


def test_failed_settles_are_answered_among_the_oks():
    """C-REL-03; nsq.md 1.2, 1.11: strictly in command order, and the connection lives on."""
    client = Bench().client()
    client.subscribe("t", "c")
    bad = b"FIN 0123456789abcdef\n"
    failed = (1, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
    foreign = b"TOUCH NOT-ONE-OF-OURS!\n"
    frames = client.send(bad + pub("t", b"a") + bad + foreign + pub("t", b"b") + bad)
    unknown = (1, b"E_TOUCH_FAILED TOUCH NOT-ONE-OF-OURS! failed ID not in flight")
    assert frames == [failed, OK, failed, unknown, OK, failed]
    assert not client.transport.eof_sent


@pytest.mark.parametrize("before", [b"", pub("t", b"a")])
def test_settles_that_fail_are_answered_in_one_write(before: bytes, monkeypatch: pytest.MonkeyPatch):
    """A write each held the event loop for 50 ms where 12,000 of one read failed."""
    client = Bench().client()
    client.subscribe("t", "c")
    writes: list[bytes] = []
    monkeypatch.setattr(client.transport, "write", writes.append)
    client.send(before + b"FIN 0123456789abcdef\n" * 50)
    assert len(writes) == 1 + bool(before)
    assert b"".join(writes).count(b"E_FIN_FAILED") == 50


def test_oks_wait_for_the_flush_in_order():
    """A-STORE-43; nsq.md 1.7 [H]: an OK means durable, and errors queue behind it."""
    bench = Bench()
    client = bench.client()
    client.subscribe("t", "c")
    bench.broker.gate.open_all = False
    assert client.send(pub("t", b"a") + pub("t", b"b")) == []
    assert client.send(b"FIN 0123456789abcdef\n") == []
    assert client.send(pub("t", b"c")) == []
    assert client.send(b"CLS\n") == []
    bench.broker.gate.open(bench.broker.offset - 100)
    assert [data[:12] for _, data in client.frames()] == [b"OK", b"OK", b"E_FIN_FAILED"]
    bench.broker.gate.open(bench.broker.offset)
    assert client.frames() == [OK, (0, b"CLOSE_WAIT")]


def test_messages_and_heartbeats_do_not_wait_for_a_flush():
    """Heartbeats, FIN and reads on the same connection do not wait for it."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.subscribe("t", "c", ready=10)
    bench.broker.gate.open_all = False
    frames = client.send(pub("t", b"a"))
    assert [kind for kind, _ in frames] == [2]
    bench.advance(1000)
    assert client.frames() == [HEARTBEAT]
    bench.broker.gate.open(bench.broker.offset)
    assert client.frames() == [OK]


def test_sub_is_answered_when_the_channel_is_durable_and_delivers_only_then():
    """An answered topic or channel creation is durable."""
    bench = Bench()
    bench.client().send(pub("t", b"a"))
    bench.broker.gate.open_all = False
    client = bench.client()
    assert client.send(b"SUB t c\nRDY 5\n") == []
    bench.broker.gate.open(bench.broker.last_change)
    bench.work()
    frames = client.frames()
    assert frames[0] == OK
    assert [data[26:] for kind, data in frames[1:] if kind == 2] == [b"a"]


def test_failed_flush_refuses_the_publish_and_closes():
    """X-NSQ-05: a failed flush is never answered with OK."""
    bench = Bench()
    bench.broker.gate.open_all = False
    client = bench.client()
    client.send(mpub("t", [b"a"]) + pub("t", b"b"))
    bench.broker.gate.fail()
    frames = client.frames()
    assert len(frames) == 1
    assert frames[0][1].startswith(b"E_MPUB_FAILED MPUB failed fdatasync of /data/commitlog/0 failed")
    assert client.transport.eof_sent


@pytest.mark.parametrize(
    ("stream", "error", "data"),
    [
        (pub("t", b"x"), ClosingError("t"), b"E_PUB_FAILED PUB failed exiting"),
        (mpub("t", [b"x"]), ClosingError("t"), b"E_MPUB_FAILED MPUB failed exiting"),
        (b"DPUB t 5\n\0\0\0\1x", StoreFullError("disk full"), b"E_DPUB_FAILED DPUB failed disk full"),
    ],
)
def test_refused_publish_closes_and_nothing_after_it_is_done(stream, error, data):
    """C-PROTO-17; nsq.md 1.13: E_PUB_FAILED and its kin are fatal; settles before it count, those after it do not."""
    bench = Bench()
    client = bench.client()
    client.subscribe("t", "c", ready=2)
    bench.client().send(pub("t", b"1") + pub("t", b"2"))
    first, second = [data for kind, data in client.frames() if kind == 2]
    channel = bench.broker.topics["t"].channels["c"]
    bench.broker.refuse_next = error
    frames = client.send(settle("FIN", first) + stream + settle("FIN", second))
    assert frames == [(1, data)]
    assert channel.in_flight_count == 1
    assert client.transport.eof_sent


def test_window_is_sticky():
    """C-FLOW-09; nsq.md 1.8, 12.2 check 9: RDY n gives n messages, k FINs give k more."""
    client = Bench().client()
    client.send(b"".join(pub("t", b"%d" % number) for number in range(6)))
    client.subscribe("t", "c")
    frames = client.send(b"RDY 2\n")
    assert [data[26:] for _, data in frames] == [b"0", b"1"]
    frames = client.send(b"".join(settle("FIN", data) for _, data in frames))
    assert [data[26:] for _, data in frames] == [b"2", b"3"]
    assert client.send(b"RDY 0\n") == []
    assert client.send(settle("FIN", frames[0][1])) == []
    assert [data[26:] for _, data in client.send(b"RDY\n" + settle("FIN", frames[1][1]))] == [b"4"]


def test_requeue_and_attempts():
    """nsq.md 1.8, 1.11, C-FLOW-13: each delivery counts an attempt; REQ 0 comes back at once."""
    client = Bench().client()
    client.send(pub("t", b"m"))
    client.subscribe("t", "c")
    (kind, data), *_ = client.send(b"RDY 1\n")
    for attempt in range(1, 4):
        assert (kind, struct.unpack_from(">H", data, 8)[0], data[26:]) == (2, attempt, b"m")
        ((kind, data),) = client.send(settle("REQ", data, "0"))


def test_message_of_another_connection_cannot_be_finished():
    """C-REL-03; nsq.md 1.11."""
    bench = Bench()
    first, second = bench.client(), bench.client()
    first.subscribe("t", "c", ready=1)
    second.subscribe("t", "c")
    second.send(pub("t", b"m"))
    ((_, data),) = first.frames()
    frames = second.send(settle("FIN", data))
    assert frames == [(1, b"E_FIN_FAILED FIN " + data[10:26] + b" failed client does not own message")]
    assert not second.transport.eof_sent


def test_cls_stops_delivery_and_goes_on_answering():
    """nsq.md 1.11, 12.1 trap 21."""
    client = Bench().client()
    client.subscribe("t", "c", ready=1)
    frames = client.send(pub("t", b"1") + pub("t", b"2"))
    data = next(data for kind, data in frames if kind == 2)
    assert client.send(b"CLS\n") == [(0, b"CLOSE_WAIT")]
    assert client.send(settle("TOUCH", data) + settle("FIN", data)) == []
    assert client.connection.state is State.CLOSING
    assert client_row(client.connection, "")["finish_count"] == 1
    assert client.send(pub("t", b"3")) == [OK]


def test_consumer_limit():
    """nsq.md 1.8: max_channel_consumers."""
    bench = Bench(max_channel_consumers=1)
    bench.client().subscribe("t", "c")
    client = bench.client()
    assert client.send(b"SUB t c\n") == [(1, b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")]
    assert client.transport.eof_sent


def test_sub_as_the_very_first_packet_with_rdy_behind_it():
    """C-PROTO-04, nsq.md 1.2: pipelining in one segment."""
    bench = Bench()
    bench.client().send(pub("t", b"a"))
    client = bench.client(magic=False)
    frames = client.send(b"  V2SUB t c\nRDY 1\n")
    assert frames[0] == OK
    assert frames[1][1][26:] == b"a"


def test_deleted_channel_closes_its_clients():
    """nsq.md 2.1."""
    bench = Bench()
    client = bench.client()
    client.subscribe("t", "c")
    bench.broker.delete_channel("t", "c")
    assert client.transport.eof_sent
    bench.advance(1100)
    assert client.transport.closed
    assert bench.server.connections.closed == {"channel deleted": 1}


def test_disconnect_leaves_messages_in_flight():
    """nsq.md 2.1, C-PROTO-11: they come back by time-out."""
    bench = Bench()
    client = bench.client()
    client.subscribe("t", "c", ready=1)
    client.send(pub("t", b"m"))
    channel = bench.broker.topics["t"].channels["c"]
    client.connection.eof_received()
    assert client.transport.closed
    assert channel.subscriptions == []
    assert channel.in_flight_count == 1
    assert bench.server.connections.closed == {"client closed": 1}


def test_half_closed_publisher_still_gets_its_ok():
    """A client that sends its publishes and its end of file together is answered."""
    bench = Bench()
    bench.broker.gate.open_all = False
    client = bench.client()
    client.send(pub("t", b"m"))
    assert client.connection.eof_received() is True
    assert not client.transport.closed
    bench.broker.gate.open(bench.broker.offset)
    assert client.frames() == [OK]
    assert client.transport.closed


def test_half_closed_consumer_that_reads_nothing_is_cut():
    """Closing waits for output that nobody takes, but not for ever."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.subscribe("t", "c", ready=10)
    client.transport.stalled = True
    bench.client().send(pub("t", b"m"))
    client.connection.eof_received()
    assert not client.transport.closed
    bench.advance(4000)
    assert client.transport.aborted
    assert bench.server.connections.closed == {"client closed": 1}


def test_refused_client_that_reads_slowly_gets_its_error_frame():
    """nsq.md 1.13: also when megabytes of messages stand before it."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.subscribe("t", "c", ready=100)
    client.transport.stalled = True
    bench.client().send(mpub("t", [b"x" * 1000] * 100))
    client.send(b"NOPE\n")
    frames = []
    for _ in range(12):
        client.transport.flow(10_000)
        bench.advance(900)
        frames += client.frames()
    assert frames[-1] == (1, b"E_INVALID invalid command NOPE")
    bench.advance(2000)
    assert client.transport.closed


def test_heartbeats_and_read_deadline():
    """nsq.md 1.10, C-PROTO-05: heartbeats from connect on, also to publishers; silence for two intervals closes.

    Ref: X-NET-08.
    """
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.frames()
    bench.advance(900)
    assert client.frames() == []
    bench.advance(100)
    assert client.frames() == [HEARTBEAT]
    client.send(b"NOP\n")
    bench.advance(1900)
    assert client.frames() == [HEARTBEAT]
    bench.advance(100)
    assert client.transport.aborted
    assert bench.server.counters.heartbeats_missed == 1
    assert bench.server.connections.closed == {"read timeout": 1}


@pytest.mark.parametrize("start", [b"", b"  V"])
def test_who_has_not_said_its_magic_is_sent_nothing_and_closed(start: bytes):
    """As nsqd, which waits for it: what speaks first is none of this protocol. X-NSQ-12."""
    bench = Bench(heartbeat_interval_ms=1000)
    client = bench.client(magic=False)
    client.send(start)
    bench.advance(1900)
    assert client.frames() == []
    bench.advance(200)
    assert client.transport.aborted
    assert bench.server.connections.closed == {"read timeout": 1}


def test_unfinished_command_does_not_extend_the_deadline():
    """Slow loris. The deadline runs from the last whole command."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.send(b"PUB t\n\0\0\1\0")
    for _ in range(19):
        bench.advance(100)
        client.send(b"x")
    bench.advance(100)
    assert client.transport.aborted


def test_without_heartbeats_only_an_unfinished_command_ends():
    """nsq.md 1.10: -1 switches deadlines off; a command must still end some time."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":-1}'))
    client.frames()
    bench.advance(600_000, step_ms=1000)
    assert client.frames() == []
    assert not client.transport.closed
    client.send(b"NOP\nPUB ")
    bench.advance(200_000, step_ms=1000)
    assert client.transport.aborted


def test_without_heartbeats_the_time_of_a_command_runs_from_its_first_bytes():
    """An idle publisher has no deadline, so how long it was idle is nothing that its next command could exceed."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":-1}'))
    client.frames()
    bench.advance(119_000, step_ms=1000)
    for _ in range(3):
        client.send(b"PUB t\n\0\0\0\2x")
        bench.advance(110_000, step_ms=1000)
        assert not client.transport.closed
        assert client.send(b"y") == [(0, b"OK")]
        bench.advance(9_000, step_ms=1000)


def test_connection_that_never_sends_a_magic_is_closed():
    """X-NSQ-12: a time limit for the magic."""
    bench = Bench()
    client = bench.client(magic=False)
    bench.advance(60_000, step_ms=1000)
    assert client.transport.aborted


def test_consumer_that_does_not_read_costs_bounded_memory_and_is_closed():
    """nsq.md 1.10: write deadline of one heartbeat interval."""
    bench = Bench(write_high_water_bytes=64 * 1024)
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.subscribe("t", "c", ready=2500)
    client.transport.stalled = True
    publisher = bench.client()
    for _ in range(40):
        publisher.send(mpub("t", [b"x" * 1000] * 50))
    assert client.transport.paused_protocol
    subscription = client.connection.subscription
    assert subscription is not None
    assert not subscription.writable
    # One batch may go over the mark, no more.
    assert len(client.transport.waiting) <= 64 * 1024 + 256 * 1024 + 1100
    bench.advance(900)
    assert not client.transport.closed
    bench.advance(200)
    assert client.transport.aborted
    assert bench.server.connections.closed == {"write timeout": 1}


def test_slow_consumer_that_makes_progress_is_kept_and_served():
    """nsq.md 1.10: the write deadline is for a peer that takes nothing."""
    bench = Bench(write_high_water_bytes=64 * 1024)
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    client.subscribe("t", "c", ready=2500)
    client.transport.stalled = True
    bench.client().send(mpub("t", [b"x" * 1000] * 1000))
    frames = []
    for _ in range(30):
        client.transport.flow(1000)
        bench.advance(300)
        frames += client.send(b"NOP\n")
    assert not client.transport.closed
    client.transport.stalled = False
    client.transport.flow()
    bench.work()
    frames += client.frames()
    assert sum(kind == 2 for kind, _ in frames) == 1000


def test_publisher_that_does_not_read_its_replies_is_not_read_from():
    """Everything that buffers has a bound; resumed when the client reads."""
    bench = Bench(write_high_water_bytes=16 * 1024)
    client = bench.client()
    client.transport.stalled = True
    one_read = pub("t", b"x") * 500
    for _ in range(8):
        if client.transport.reading:
            client.send(one_read)
    assert not client.transport.reading
    assert len(client.transport.waiting) < 64 * 1024
    client.transport.stalled = False
    client.transport.flow()
    assert client.transport.reading
    assert bench.server.counters.read_pauses == 1


def test_overloaded_store_pauses_reading_until_relieved():
    """Bytes awaiting a flush are bounded, then reading pauses."""
    bench = Bench()
    client = bench.client()
    client.send(identify('{"heartbeat_interval":1000}'))
    bench.broker.overloaded = True
    client.send(pub("t", b"x"))
    assert not client.transport.reading
    bench.advance(5000)
    assert not client.transport.closed, "it cannot send: its deadline stands still"
    bench.broker.overloaded = False
    bench.server.relieve()
    assert client.transport.reading
    client.send(b"NOP\n")


def test_overloaded_store_does_not_pause_who_only_consumes():
    """settings.md, store.max_unflushed_bytes: publishers wait; a FIN that is not read lets its message time out."""
    bench = Bench()
    consumer, producer = bench.client(), bench.client()
    consumer.subscribe("t", "c", 2)
    producer.send(pub("t", b"x"))
    ((_, message),) = consumer.frames()
    bench.broker.overloaded = True
    producer.send(pub("t", b"y"))
    assert not producer.transport.reading
    consumer.send(b"FIN " + message[10:26] + b"\n")
    assert consumer.transport.reading
    assert client_row(consumer.connection, "")["finish_count"] == 1
    consumer.send(pub("t", b"z"))
    assert not consumer.transport.reading, "now it publishes, too"


@pytest.mark.parametrize(
    ("waits", "one_read"),
    [
        (pub("t", b"x"), b"FIN 0123456789abcdef\n" * 500),
        (pub("t", b"x"), pub("u#ephemeral", b"y") * 500),
        (pub("t", b"x"), pub("u#ephemeral", b"y")),
    ],
    ids=["failed", "published", "published one by one"],
)
def test_replies_behind_one_that_waits_for_the_disk_are_bounded(waits: bytes, one_read: bytes):
    """architecture.md, net: at the bound reading stops. A disk may hang for minutes."""
    bench = Bench()
    client = bench.client()
    client.subscribe("t", "c")
    client.send(pub("u#ephemeral", b"y"))
    bench.broker.gate.open_all = False
    client.send(waits)
    reads = 0
    while client.transport.reading and reads < 50_000:
        client.send(one_read)
        reads += 1
    assert not client.transport.reading
    assert reads * len(one_read) < 16 << 20
    bench.broker.gate.open(bench.broker.offset)
    bench.server.relieve()
    assert client.transport.reading
    assert len(client.frames()) == 1 + reads * one_read.count(b"\n")
    bench.broker.gate.open_all = True
    assert client.send(pub("u#ephemeral", b"z")) == [OK]


@pytest.mark.provokes_bugs
def test_bug_in_the_broker_closes_that_connection_only():
    """Our bug is logged, the request fails, the process lives."""
    bench = Bench()
    client, other = bench.client(), bench.client()
    bench.broker.refuse_next = RuntimeError("boom")  # type: ignore[assignment]
    client.send(pub("t", b"x"))
    assert client.transport.aborted
    assert other.send(pub("t", b"x")) == [OK]
    assert bench.server.connections.closed == {"internal error": 1}


def test_stats_of_a_consumer_and_of_a_producer():
    """nsq.md 3.4."""
    bench = Bench()
    consumer = bench.client(peer=("10.1.2.3", 5000))
    consumer.send(identify('{"client_id":"c1","hostname":"h1","user_agent":"ua/1","sample_rate":0}'))
    consumer.subscribe("t", "c", ready=5)
    producer = bench.client(peer=("10.1.2.4", 6000))
    producer.send(mpub("t", [b"a", b"b"]) + pub("u", b"c") + pub("t", b"d"))
    row = client_row(consumer.connection, "")
    assert (row["client_id"], row["hostname"], row["user_agent"]) == ("c1", "h1", "ua/1")
    assert (row["remote_address"], row["state"], row["ready_count"]) == ("10.1.2.3:5000", 3, 5)
    assert (row["in_flight_count"], row["message_count"], "pub_counts" in row) == (3, 3, False)
    row = client_row(producer.connection, "")
    # Never identified: nsqd shows the address.
    assert (row["client_id"], row["hostname"], row["state"]) == ("10.1.2.4", "10.1.2.4", 0)
    assert row["pub_counts"] == [{"topic": "t", "count": 3}, {"topic": "u", "count": 1}]
    rows = asyncio.run(read_producers(bench.server.connections, StatsFilter()))
    assert rows == [row]
    # Identified without a name.
    producer.send(identify("{}"))
    assert client_row(producer.connection, "")["client_id"] == ""


def test_a_producer_that_is_left_is_not_listed():
    """nsq-http.md, /stats: nsqd's connection ends with its error frame; ours only waits for the client to read it."""
    bench = Bench()
    producer, other = bench.client(), bench.client(peer=("10.0.0.9", 40001))
    for client in (producer, other):
        client.send(pub("t", b"x"))
    producer.send(b"nonsense\n")
    assert not producer.transport.closed
    rows = asyncio.run(read_producers(bench.server.connections, StatsFilter()))
    assert [row["remote_address"] for row in rows or ()] == [other.connection.remote_address]


def test_topics_that_ended_are_not_counted_for_ever():
    """limits.md: names that are used once leave nothing, neither with who publishes to each of them."""
    bench = Bench()
    producer = bench.client()
    producer.send(pub("lasting", b"x"))
    for number in range(3 * MAX_ENDED):
        name = f"reply-{number}#ephemeral"
        producer.send(pub(name, b"x"))
        del bench.broker.topics[name]
    producer.send(pub("lasting", b"x"))
    counts = producer.connection.pub_counts
    assert counts["lasting"] == 2
    assert len(counts) <= MAX_ENDED + 3


def test_catching_up_does_not_deliver_before_sub_is_answered():
    """The window opens behind SUB's OK, whatever the client's socket did meanwhile."""
    bench = Bench(write_high_water_bytes=16 * 1024)
    bench.client().send(pub("t", b"m"))
    client = bench.client()
    client.transport.stalled = True
    client.send(identify('{"feature_negotiation":true}') * 60)
    bench.broker.gate.open_all = False
    client.send(b"SUB t new\nRDY 5\n")
    assert client.transport.paused_protocol
    client.transport.stalled = False
    client.transport.flow()
    bench.work()
    assert {kind for kind, _ in client.frames()} == {0}
    assert client.connection.subscription is not None
    assert not client.connection.subscription.writable
    bench.broker.gate.open(bench.broker.last_change)
    assert client.frames() == [OK]
    assert client.connection.subscription.writable
