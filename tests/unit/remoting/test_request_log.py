"""At level ``debug`` each request is a line, whatever way it takes through the server."""

from __future__ import annotations

import logging

import pytest

from headrace.remoting.codec import encode_request
from tests.support.remoting import BrokerLink, RemotingRig, send_fields
from tests.unit.remoting.registry_bench import Bench


def send(opaque: int, topic: str, body: bytes, queue_id: int = 0) -> bytes:
    fields = {name: str(value) for name, value in send_fields(topic, queue_id=queue_id).items()}
    return encode_request(0, 310, opaque, False, fields, body)


def pull(opaque: int, topic: str, offset: int) -> bytes:
    fields = {"consumerGroup": "group", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32}
    fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    return encode_request(0, 11, opaque, ext={name: str(value) for name, value in fields.items()})


def lines_of(caplog: pytest.LogCaptureFixture, client: BrokerLink) -> list[str]:
    """Return the lines of a client's requests since the last call, without the client."""
    named = f"client={client.connection.remote_address} "
    lines = [line.replace(named, "") for line in caplog.messages if named in line]
    caplog.clear()
    return lines


def test_each_request_is_a_line(rig: RemotingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 3, errors and logs: settings.md, ``log.level``: plain sends and pulls too."""
    caplog.set_level(logging.DEBUG, "headrace")
    link = BrokerLink(rig)
    link.ask(send(1, "orders", b"makes the topic"))
    caplog.clear()
    link.ask(
        send(2, "orders", b"12345"),
        send(3, "orders", b"1", queue_id=2),
        pull(4, "orders", 1),
        encode_request(0, 30, 5, ext={"topic": "orders", "queueId": "2", "Signature": "proof"}),
    )
    pulled = {"topic": "orders", "consumerGroup": "group", "queueId": "0", "queueOffset": "1"}
    assert lines_of(caplog, link) == [
        "send opaque=2 topic=orders queue=0 messages=1 bytes=5 oneway=False",
        "send opaque=3 topic=orders queue=2 messages=1 bytes=1 oneway=False",
        f"request code=11 opaque=4 ext={pulled}",
        "request code=30 opaque=5 ext={'Signature': '...', 'queueId': '2', 'topic': 'orders'}",
    ]


def test_sends_that_are_joined_are_a_line_each(rig: RemotingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 3, errors and logs: of the client that sent it, once."""
    caplog.set_level(logging.DEBUG, "headrace")
    first = BrokerLink(rig)
    first.ask(send(1, "orders", b"makes the topic"))
    clients = [first, BrokerLink(rig, first.server, "10.0.0.77")]
    for number in range(2, 12):
        caplog.clear()
        for client in clients:
            client.send(send(number, "orders", b"123"))
        first.server.joint_sends.end_turn()
        for client in clients:
            expected = f"send client={client.connection.remote_address} opaque={number} topic=orders queue=0"
            assert sum(line.startswith(expected) for line in caplog.messages) == 1
    assert first.server.joint_sends.joined


def test_registries_write_lines_too(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 3, errors and logs: who asks for which route is what is looked for there."""
    caplog.set_level(logging.DEBUG, "headrace")
    bench = Bench()
    link = bench.link()
    link.call(105, {"topic": "orders"})
    assert [line for line in caplog.messages if "code=105" in line and "{'topic': 'orders'}" in line]
