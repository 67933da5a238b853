"""What is fuzzed of NSQ: the commands of a connection, reads that are taken over in compiled code, and HTTP publishes.

Each is held to the longer way to the same end: the readable parser of tests/property, the connection's own code, h11.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl

import h11

from headrace.batch import PublishBatch
from headrace.errors import HeadraceError, ProtocolError
from headrace.net.http import INCOMPLETE, LEFT, TAKEN
from headrace.net.request_parser import RequestParser
from headrace.nsq import mpub
from headrace.nsq.codec import Limits
from headrace.nsq.http_publishes import HttpPublishes
from headrace.nsq.http_request import Reply
from headrace.nsq.intake import Intake
from headrace.nsq.joint_publishes import JointPublishes, Publisher
from tests.property.nsq_driver import drive
from tests.property.nsq_reference import Reference, ReferenceLimits
from tests.unit.nsq.fake_client import Bench, Client, pub

REFERENCE_LIMITS: Final = ReferenceLimits()
MAX_MESSAGE: Final = REFERENCE_LIMITS.max_message_bytes
MAX_BODY: Final = REFERENCE_LIMITS.max_body_bytes
LIMITS: Final = Limits(
    max_message_bytes=MAX_MESSAGE,
    max_body_bytes=MAX_BODY,
    max_rdy_count=REFERENCE_LIMITS.max_rdy_count,
    max_req_timeout_ms=REFERENCE_LIMITS.max_req_timeout_ms,
)
MAX_READS: Final = 60
MAX_READY: Final = 2500
MAX_DIGITS: Final = 4000
"""Python makes no number of more."""


def nsq_commands(data: bytes) -> None:
    """However a stream is cut into reads, the readable parser's events come out of it."""
    step, stream = (data[0] or 256) if data else 1, b"  V2" + data[1:]
    events = drive(LIMITS, [stream])
    assert events == drive(LIMITS, [stream[at : at + step] for at in range(0, len(stream), step)])
    if not any(len(word) > MAX_DIGITS for word in stream.split()):
        wanted = list(Reference(REFERENCE_LIMITS).parse(stream))
        assert _without_texts(events) == _without_texts(wanted), (events, wanted)


def _without_texts(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Leave out what refusals say: the reference quotes plain ASCII only."""
    return [(event[0], event[2]) if event[0] == "refused" else event for event in events]


class _Alone(JointPublishes):
    """Has every publish appended by its own read."""

    def take(self, publisher: Publisher, intake: Intake) -> bool:
        return False


def nsq_reads(data: bytes) -> None:
    """A consumer, or a publisher, whose reads may be taken over is answered as by the connection's own code."""
    assert _play(data, is_taken=True) == _play(data, is_taken=False)


def _play(data: bytes, *, is_taken: bool) -> Any:
    """Send reads as the data says: who, a length and as many bytes each; 0 ends the turn. Return what was seen."""
    bench = Bench(max_message_bytes=MAX_MESSAGE, max_body_bytes=MAX_BODY)
    if not is_taken:
        bench.server.joint_publishes = _Alone(bench.server)
        bench.server.joint_publishes.call_soon = bench.soon.append
    clients = [Client(bench, ("10.0.0.9", port)) for port in (1, 2)]
    if not is_taken:
        for client in clients:
            client.connection.takers = ()
    clients[0].send(b"".join(pub("t", b"%d" % number) for number in range(9)))
    clients[1].send(b"SUB t c\nRDY 5\n")
    seen: list[Any] = []
    last = clients[0]
    at = iter(data)
    for head in islice(at, MAX_READS):
        read = bytes(islice(at, head >> 1))
        client = clients[head & 1]
        if client is not last or not head:
            bench.end_turn()  # whose messages of one turn come first is nobody's business
            last = client
        if not head:
            bench.work()
            bench.advance(100)
            seen.append([client.frames() for client in clients])
        elif client.transport.reading and not client.transport.closed:
            client.post(read)
    bench.work()
    channel = bench.broker.topics["t"].channels["c"]
    seen.append((channel.depth, channel.in_flight_count, channel.finish_count, channel.requeue_count))
    seen += [(client.frames(), client.connection.cause, client.transport.closed) for client in clients]
    seen.append(sorted((name, topic.queue.next_offset) for name, topic in bench.broker.topics.items()))
    seen.append(bench.server.intake.command_counts())
    return seen


# -- HTTP --------------------------------------------------------------------------------------------------------------


class _App:
    """Answers what was refused."""

    def refuse(self, path: str, error: HeadraceError) -> Reply:
        return Reply(500, str(error).encode())


@dataclass
class _Connection:
    """The HTTP connection of a request that may be taken over."""

    client: tuple[str, int] | None = ("10.0.0.9", 1)
    date: list[tuple[bytes, bytes]] = field(default_factory=list)
    attached: Any = None
    answers: list[tuple[int, bool]] = field(default_factory=list)

    def encode(self, status: int, headers: object, body: bytes, *, is_last: bool) -> bytes:
        return b"%d" % status

    def answer(self, data: bytes, *, is_last: bool) -> None:
        self.answers.append((int(data), is_last))


def http_publish(data: bytes) -> None:
    """A request that is taken over, or held, is what h11 reads in the same bytes."""
    bench = Bench(max_message_bytes=MAX_MESSAGE, max_body_bytes=MAX_BODY)
    publishes = HttpPublishes(_App(), bench.server)  # type: ignore[arg-type]
    connection = _Connection()
    taken = publishes.take(connection, data)  # type: ignore[arg-type]
    bench.end_turn()
    stored = {name: topic.queue.next_offset for name, topic in bench.broker.topics.items()}
    if taken == LEFT:
        assert (stored, connection.answers) == ({}, [])
        return
    request, body, is_whole, rest = _parse(data)
    assert (request.method, request.http_version) == (b"POST", b"1.1")
    path, _, query = request.target.partition(b"?")
    arguments = dict(parse_qsl(query.decode("ascii"), keep_blank_values=True))
    assert set(arguments) <= {"topic", "defer"}
    assert query.count(b"=") == len(arguments)
    if taken == INCOMPLETE:
        assert (is_whole, stored, connection.answers) == (False, {}, [])
        return
    assert taken == TAKEN
    assert (is_whole, rest) == (True, b"")
    lines = [line for line in body.split(b"\n") if line] if path == b"/mpub" else [body]
    assert path in (b"/pub", b"/mpub")
    assert stored == {arguments["topic"]: len(lines)}
    is_last = any(name == b"connection" and value.lower() == b"close" for name, value in request.headers)
    assert connection.answers == [(200, is_last)]
    if not int(arguments.get("defer", 0)):
        assert _messages(bench, arguments["topic"]) == lines


def _messages(bench: Bench, topic: str) -> list[bytes]:
    """Return the first messages of a topic."""
    reader = bench.client(peer=("10.0.0.1", 1))
    reader.subscribe(topic, "check")
    reader.post(b"RDY %d\n" % MAX_READY)
    bench.work()
    return reader.messages()


def _parse(data: bytes) -> tuple[h11.Request, bytes, bool, bytes]:
    """Return a request, as much of its body as is there, whether it is whole, and what is behind it."""
    parser = RequestParser()
    parser.receive_data(data)
    request = parser.next_event()
    assert isinstance(request, h11.Request), request
    body = b""
    while isinstance(event := parser.next_event(), h11.Data):
        body += bytes(event.data)
    return request, body, isinstance(event, h11.EndOfMessage), parser.trailing_data[0]


def mpub_bodies(data: bytes) -> None:
    """The body of an HTTP /mpub, of lines or counted, is given out in portions of any size."""
    portion, body = (data[0] or 1) if data else 1, data[1:]
    most = MAX_MESSAGE
    try:
        messages = mpub.read_lines(body, most)
    except ProtocolError:
        assert any(len(line) > most for line in body.split(b"\n"))
    else:
        _give_out(messages, portion, [line for line in body.split(b"\n") if line])
    try:
        messages = mpub.read_counted(body, most, (MAX_BODY - 4) // 5)
    except ProtocolError:
        return
    bodies, at = [], 4
    for _ in range(int.from_bytes(body[:4])):
        size = int.from_bytes(body[at : at + 4])
        bodies.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    _give_out(messages, portion, bodies)


def _give_out(messages: mpub.MpubBody, portion: int, wanted: list[bytes]) -> None:
    """Publish all of a body; its messages must be the wanted ones."""
    bench = Bench()
    while messages.left:
        batch = PublishBatch()
        batch.destinations = ["t"]
        assert messages.take(batch, portion, 0) == len(batch) <= portion
        bench.broker.publish(batch)
    if not wanted:
        assert not bench.broker.topics
        return
    assert bench.broker.topics["t"].queue.next_offset == len(wanted)
    assert _messages(bench, "t") == wanted[:MAX_READY]


def seeds() -> dict[str, list[bytes]]:
    """Return the first inputs of each target by its name."""
    stream = (
        b"NOP\nPUB t\n\0\0\0\1xPUB t\n\0\0\0\1yDPUB t 5\r\n\0\0\0\1dMPUB t\n\0\0\0\x0e\0\0\0\2\0\0\0\1a\0\0\0\1b"
        b"IDENTIFY\n\0\0\0\2{}SUB t c\nRDY 2\nRDY 2\nFIN 0123456789abcdef\nREQ 0123456789abcdef 7\n"
        b"TOUCH 0123456789ABCDEF\nCLS\nRDY x\n"
    )
    held = [_ids()[number] for number in range(5)]
    fin = [b"FIN " + each + b"\n" for each in held]
    consumed = [fin[0], b"RDY 5\n" + fin[1], fin[2] + fin[3], b"REQ " + held[4] + b" 0\n", b"CLS\n", fin[0]]
    published = [pub("t", b"one"), pub("t", b"two") + pub("t", b"three"), pub("u", b"x"), b"PUB t\n\0\0"]
    consumer = b"".join(bytes([len(read) << 1 | 1]) + read for read in consumed)
    publisher = b"".join(bytes([len(read) << 1]) + read for read in published)
    head = b" HTTP/1.1\r\nHost: h:4151\r\nUser-Agent: x\r\nContent-Length: 3\r\n"
    return {
        "nsq_commands": [b"\0" + stream, b"\1" + stream, b"\7MPUB t\n\0\0\0\1\0\0\0\1\0\0\0\1x"],
        "nsq_reads": [consumer, publisher, publisher + b"\0" + consumer],
        "http_publish": [
            b"POST /pub?topic=orders" + head + b"\r\nabc",
            b"POST /pub?topic=orders&defer=10" + head + b"Connection: close\r\n\r\nabc",
            b"POST /mpub?topic=orders" + head + b"Connection: Keep-Alive\r\n\r\na\nb",
            b"POST /mpub?topic=orders" + head + b"\r\na",
        ],
        "mpub_bodies": [b"\1a\nb\n\nc", b"\2\0\0\0\2\0\0\0\1a\0\0\0\1b"],
    }


def _ids() -> list[bytes]:
    """Return the ids of the messages that ``nsq_reads`` begins with."""
    bench = Bench()
    client = bench.client()
    client.send(b"".join(pub("t", b"%d" % number) for number in range(9)))
    client.frames()
    client.subscribe("t", "c")
    return [data[10:26] for kind, data in client.send(b"RDY 9\n") if kind == 2]
