"""Clients that send more than their share, against a whole broker on real sockets. Ref: A-NET-06; net/turns.py."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from headrace import testing
from headrace.net import turns
from headrace.nsq.codec import MOST_TOPICS
from tests.unit.nsq.fake_client import mpub, pub

OK = b"\0\0\0\6\0\0\0\0OK"
COUNT = 60_000
LEAST_ASKED = 5
"""Publishes of another client that must be answered while the flood is. Without turns it is one or two."""


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    with testing.broker(store__durability="async") as running:
        yield running


def client_of(broker: testing.RunningBroker) -> socket.socket:
    host, _, port = broker.nsq_tcp.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=60)
    client.sendall(b"  V2")
    return client


def received(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        read = client.recv(min(size - len(data), 1 << 20))
        assert read, f"closed behind {bytes(data[-100:])!r}"
        data += read
    return bytes(data)


def send_all(client: socket.socket, data: bytes) -> None:
    """Send, and nothing more: what waits for its turn is done before the connection ends."""
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("between", [b"RDY 0\nRDY 1\n", b"FIN 0123456789abcdeZ\n"], ids=["RDY", "refused FIN"])
def test_others_are_served_while_one_client_floods(broker: testing.RunningBroker, between: bytes) -> None:
    """A flood whose every other command ends a batch is answered whole and in order, with others in between."""
    refusal = b"E_FIN_FAILED FIN 0123456789abcdeZ failed ID not in flight"
    answer = OK + (b"" if between.startswith(b"RDY") else (4 + len(refusal)).to_bytes(4) + b"\0\0\0\1" + refusal)
    topic = f"flood{len(between)}"
    with client_of(broker) as hostile, client_of(broker) as other:
        hostile.sendall(b"SUB busy channel\n")
        assert received(hostile, len(OK)) == OK
        flood = threading.Thread(target=send_all, args=(hostile, (pub(topic, b"x") + between) * COUNT))
        answers: list[bytes] = []
        reading = threading.Thread(target=lambda: answers.append(received(hostile, COUNT * len(answer))))
        flood.start()
        reading.start()
        asked = 0
        while reading.is_alive():
            other.sendall(pub("other", b"x"))
            assert received(other, len(OK)) == OK
            asked += 1
        flood.join()
        assert answers == [answer * COUNT]
        assert asked >= LEAST_ASKED


def test_what_is_put_off_is_done_once_and_in_order(
    broker: testing.RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns that end at once: commands of all sizes, those cut by the end of a read among them, in many small parts."""
    monkeypatch.setattr(turns, "TURN_MS", 0)
    stream, bodies = bytearray(), []
    for number in range(2_000):
        many = [b"%d %d" % (number, index) + bytes(number % 50 * 2_000) for index in range(3 if number % 40 else 40)]
        stream += b"RDY 0\nNOP\n" + (mpub("parts", many) if number % 7 == 0 else pub("parts", many[0]))
        bodies += many if number % 7 == 0 else many[:1]
    with client_of(broker) as client, client_of(broker) as reader:
        for each in (client, reader):
            each.sendall(b"SUB parts channel\n" if each is reader else b"SUB busy channel\n")
            assert received(each, len(OK)) == OK
        sending = threading.Thread(target=client.sendall, args=(stream,))
        sending.start()
        assert received(client, 2_000 * len(OK)) == OK * 2_000
        sending.join()
        reader.sendall(b"RDY 1\n")
        for body in bodies:
            size = int.from_bytes(received(reader, 4))
            frame = received(reader, size)
            assert frame[30:] == body
            reader.sendall(b"FIN " + frame[14:30] + b"\n")


def test_a_read_that_makes_many_topics_has_turns_too(
    broker: testing.RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publish of a read to a topic of its own, with turns that end at once: all are answered, and done once."""
    monkeypatch.setattr(turns, "TURN_MS", 0)
    count = 3 * MOST_TOPICS + 1
    with client_of(broker) as client:
        client.sendall(b"".join(pub(f"made{number}", b"x") for number in range(count)))
        assert received(client, count * len(OK)) == OK * count
    with urllib.request.urlopen(f"http://{broker.nsq_http}/stats?format=json") as response:
        topics = {topic["topic_name"]: topic["message_count"] for topic in json.load(response)["topics"]}
    assert [topics[f"made{number}"] for number in range(count)] == [1] * count
