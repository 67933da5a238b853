"""Headrace's NSQ TCP protocol beside nsqd's: the same bytes sent, the same frames back, the same close or not."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.interop.nsq_peers import Node
from tests.support.waiting import until
from tests.unit.nsq.fake_client import identify, mpub, pub
from tests.unit.nsq.test_connection import CUT_SHORT, FATAL

MAGIC = b"  V2"
ID = b"0123456789abcdef"

Answer = tuple[list[tuple[int, bytes]], bool]
"""Frames, messages by attempts and body only, and whether the connection was closed."""


class Talk:
    """A connection that a stream was sent on, and what came back."""

    def __init__(self, node: Node, stream: bytes, *, half_close: bool = False) -> None:
        self._received = b""
        self._closed = False
        host, port = node.tcp.rsplit(":", 1)
        self._connection = socket.create_connection((host, int(port)), timeout=5)
        self._connection.sendall(stream)
        if half_close:
            self._connection.shutdown(socket.SHUT_WR)
        self._connection.settimeout(0.3)

    def read(self) -> Answer:
        """Read until nothing comes for a while; return all frames so far, and whether it was closed."""
        while not self._closed:
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                break
            except ConnectionResetError:
                data = b""
            self._received += data
            self._closed = not data
        return [plain(kind, data) for kind, data in split(self._received)], self._closed

    def close(self) -> None:
        self._connection.close()


def talk(nodes: tuple[Node, Node], stream: bytes, *, half_close: bool = False) -> tuple[Answer, Answer]:
    """Send ``stream`` to both; return what each answers. Where one has said less, it gets some time more."""
    until_s = time.monotonic() + 5
    theirs, ours = (Talk(node, stream, half_close=half_close) for node in nodes)
    with closing(theirs), closing(ours):
        answers = theirs.read(), ours.read()
        while extent(answers[0]) != extent(answers[1]) and time.monotonic() < until_s:
            answers = theirs.read(), ours.read()
    return answers


def extent(answer: Answer) -> tuple[int, bool]:
    frames, closed = answer
    return len(frames), closed


def split(received: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(received):
        size, kind = struct.unpack_from(">II", received, at)
        assert at + 4 + size <= len(received), "a frame is cut short"
        yield kind, received[at + 8 : at + 4 + size]
        at += 4 + size


def plain(kind: int, data: bytes) -> tuple[int, bytes]:
    """Leave out what must differ: timestamps and ids of messages."""
    if kind == 2:
        assert re.fullmatch(rb"[0-9a-f]{16}", data[10:26])
        return kind, data[8:10] + data[26:]
    return kind, data


def compare(nodes: tuple[Node, Node], stream: bytes) -> None:
    theirs, ours = talk(nodes, stream)
    assert ours == theirs


@pytest.mark.parametrize("stream", [stream for stream, _ in FATAL], ids=lambda value: value[:40].decode("latin-1"))
def test_fatal_refusals(nodes: tuple[Node, Node], stream: bytes) -> None:
    """nsq.md 1.13, 12.2 check 2."""
    compare(nodes, MAGIC + stream)


@pytest.mark.parametrize("stream", [stream for stream, _ in CUT_SHORT], ids=lambda value: value[:40].decode("latin-1"))
def test_commands_cut_short(nodes: tuple[Node, Node], stream: bytes) -> None:
    """nsq.md 1.13: the client shuts its sending side within a command."""
    stream = MAGIC + pub("d-cut", b"before") + stream
    theirs, ours = talk(nodes, stream, half_close=True)
    assert ours == theirs
    assert len(ours[0]) == 2
    assert ours[1]


@pytest.mark.parametrize(
    "stream",
    [
        b" V3x",
        b"  V1",
        MAGIC + b"x" * 16384,
        MAGIC + b"x" * 16383 + b"\n",
        MAGIC + b"NOP\r\nNOP\nNOP now\n",
        MAGIC + pub("d-pub", b"a") + mpub("d-pub", [b"b", b"c"]) + b"DPUB d-pub 5\r\n\0\0\0\1d",
        MAGIC + b"MPUB d-pub\n\0\0\0\1\0\0\0\1\0\0\0\1x" + pub("d-pub", b"in step"),
        MAGIC + b"MPUB d-pub\n\0\0\1\0\0\0\0\1\0\0\0\1x" + pub("d-pub", b"in step"),
        MAGIC + b"DPUB d-pub  \n\0\0\0\1d",
        MAGIC + b'PUB \xff\xfe"\\\x01\xc3\xa9\xc2\xa0\n',
        MAGIC + b"SUB d-chan \t\n",
        MAGIC + b"SUB d-chan c extra words\nRDY\nRDY \nRDY 0 1\nCLS\nRDY x\nCLS\n",
        MAGIC + b"SUB d-chan c\nFIN " + ID + b"\nREQ " + ID + b" 0\nTOUCH " + ID + b"\nNOP\n",
        MAGIC + b"SUB d-chan c\nFIN 0123456789ABCDEF extra\nREQ not-hexadecimal! 99999999999\n",
        MAGIC + b"SUB d-chan c\n" + identify("{}"),
        MAGIC + b"SUB d-chan c\nAUTH\n\0\0\0\1x",
        MAGIC + identify("{}") * 2 + b"RDY 1\n",
        MAGIC + identify("null"),
        MAGIC + identify("[]"),
        MAGIC + identify('{"heartbeat_interval":-1}') + b"SUB t c\n",
        *[
            MAGIC + identify(json.dumps(request))
            for request in (
                {"heartbeat_interval": 999},
                {"heartbeat_interval": 60001},
                {"output_buffer_size": 63},
                {"output_buffer_timeout": 24},
                {"sample_rate": 100},
                {"msg_timeout": 900001},
                {"msg_timeout": "x"},
                {"client_id": 1},
                {"topology_region": 1, "topology_zone": []},
                {"sample_rate": 100, "heartbeat_interval": 1, "output_buffer_size": 1, "output_buffer_timeout": 1},
                {"output_buffer_size": 1, "output_buffer_timeout": 1, "msg_timeout": 1},
                {"sample_rate": 100, "msg_timeout": 1},
            )
        ],
    ],
    ids=lambda value: value[4:44].decode("latin-1"),
)
def test_streams(nodes: tuple[Node, Node], stream: bytes) -> None:
    """nsq.md 1.1 to 1.11: framing, grammar, states, order of replies, order of checks."""
    compare(nodes, stream)


def test_second_subscription(nodes: tuple[Node, Node]) -> None:
    """nsq.md 1.6: refused, and fatal. Whether a message still goes out before the refusal is a race inside nsqd."""
    stream = MAGIC + b"SUB d-twice c\nRDY 3\n" + pub("d-twice", b"one") + b"SUB d-twice c\n"
    theirs, ours = talk(nodes, stream)
    for frames, _ in (theirs, ours):
        assert [frame for frame in frames if frame[0] == 2] in ([], [(2, b"\0\1one")])
    assert without_messages(ours) == without_messages(theirs)


def without_messages(answer: Answer) -> Answer:
    frames, closed = answer
    return [frame for frame in frames if frame[0] != 2], closed


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"heartbeat_interval": -1, "output_buffer_size": -1, "output_buffer_timeout": -1, "msg_timeout": 5000},
        {"output_buffer_size": 64, "output_buffer_timeout": 25, "sample_rate": 10, "tls_v1": True},
        {"output_buffer_timeout": -1, "deflate_level": 9, "client_id": "é", "short_id": "s", "long_id": "l"},
    ],
)
def test_negotiation(nodes: tuple[Node, Node], request_: dict[str, object]) -> None:
    """nsq.md 1.5: every field nsqd gives, in its order, with its value; the version and what is off differ."""
    stream = MAGIC + identify(json.dumps({"feature_negotiation": True, **request_}))
    ((theirs,), _), ((ours,), _) = talk(nodes, stream)
    their_fields, our_fields = json.loads(theirs[1]), json.loads(ours[1])
    assert [name for name in our_fields if name in their_fields] == list(their_fields)
    for fields in (their_fields, our_fields):
        del fields["version"]
    assert {name: our_fields[name] for name in their_fields} == their_fields


def test_messages_and_attempts(nodes: tuple[Node, Node]) -> None:
    """nsq.md 1.1, 1.8: a backlog, its attempts, an ephemeral channel.

    Whether a message or the answer to its PUB goes out first is a race inside nsqd.
    """
    compare(nodes, MAGIC + mpub("d-msgs", [b"1", b"22", b"333"]))
    compare(nodes, MAGIC + b"SUB d-msgs c\nRDY 3\n")
    theirs, ours = talk(nodes, MAGIC + b"SUB d-msgs tail#ephemeral\nRDY 3\n" + pub("d-msgs", b"later"))
    assert (sorted(ours[0]), ours[1]) == (sorted(theirs[0]), theirs[1])


def frames_of(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield frames until the server closes."""
    with connection.makefile("rb") as stream:
        while head := stream.read(8):
            size, kind = struct.unpack(">II", head)
            yield kind, stream.read(size - 4)


def open_headrace(nodes: tuple[Node, Node], **options: int) -> socket.socket:
    return connect(nodes[1], **options)


def connect(node: Node, **options: int) -> socket.socket:
    host, port = node.tcp.rsplit(":", 1)
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.settimeout(10)
    connection.connect((host, int(port)))
    connection.sendall(MAGIC)
    return connection


def test_a_late_fin_finishes_what_its_connection_was_sent_again(nodes: tuple[Node, Node]) -> None:
    """An id says nothing of the attempt: the FIN meant for the first delivery ends the second, whose REQ then fails."""
    for node in nodes:
        with connect(node) as consumer:
            consumer.sendall(identify('{"msg_timeout":1000}') + b"SUB d-late c\nRDY 2\n" + pub("d-late", b"m"))
            received = frames_of(consumer)
            messages = (data for kind, data in received if kind == 2)
            first, second = next(messages), next(messages)
            message_id = first[10:26]
            assert second[8:] == b"\0\2" + message_id + b"m"
            consumer.sendall(b"FIN %s\nREQ %s 0\n" % (message_id, message_id))
            assert next(received) == (1, b"E_REQ_FAILED REQ %s failed ID not in flight" % message_id)
            consumer.settimeout(1.5)
            with pytest.raises(TimeoutError):
                next(received)


def test_error_frame_survives_when_the_client_goes_on_sending(nodes: tuple[Node, Node]) -> None:
    """nsq.md 1.13, 12.1 trap 20: a reset would take the frame with it."""
    for _ in range(20):
        with open_headrace(nodes) as connection:
            connection.sendall(b"PUB bad$name\n" + b"x" * 3_000_000)
            assert list(frames_of(connection)) == [(1, b'E_BAD_TOPIC PUB topic name "bad$name" is not valid')]


def test_largest_messages_and_batches(nodes: tuple[Node, Node]) -> None:
    """nsq.md 1.4: bodies at their limits, pipelined, and back byte for byte."""
    largest = bytes(range(256)) * 4096
    batch = [b"y" * 1_000_000 + b"%d" % number for number in range(5)]
    with open_headrace(nodes) as connection:
        connection.sendall(b"SUB d-large c\nRDY 100\n" + pub("d-large", largest) * 3 + mpub("d-large", batch))
        received = frames_of(connection)
        frames = [next(received) for _ in range(13)]
    assert sorted(data for kind, data in frames if kind == 0) == [b"OK"] * 5
    assert [data[26:] for kind, data in frames if kind == 2] == [largest] * 3 + batch


def test_consumer_that_does_not_read_is_bounded_and_then_cut(nodes: tuple[Node, Node]) -> None:
    """A slow consumer never grows memory; nsq.md 1.10: write deadline of one heartbeat interval."""
    headrace = nodes[1]
    with open_headrace(nodes, SO_RCVBUF=4096) as consumer, open_headrace(nodes) as publisher:
        consumer.sendall(identify('{"heartbeat_interval":1000}') + b"SUB d-stuck c\nRDY 2500\n")
        until(lambda: headrace.channel("d-stuck", "c").get("client_count"))
        before = anonymous_bytes(headrace.process.pid)
        replies = frames_of(publisher)
        for _ in range(50):
            publisher.sendall(mpub("d-stuck", [b"z" * 50_000] * 20))
            assert next(replies) == (0, b"OK")
        assert anonymous_bytes(headrace.process.pid) - before < 16 << 20
        until(lambda: headrace.channel("d-stuck", "c")["client_count"] == 0, seconds=5)


def anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
