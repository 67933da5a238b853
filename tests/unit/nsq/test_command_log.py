"""At level ``debug`` each command is a line, whatever way it takes through the server."""

from __future__ import annotations

import logging

import pytest

from headrace.nsq.command_log import MAX_IDENTIFY_BYTES
from tests.unit.nsq.fake_client import Bench, Client, identify, mpub, pub, sized


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    """A server whose logger writes everything."""
    caplog.set_level(logging.DEBUG, "headrace")
    return Bench()


def commands_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the lines since the last call say behind the client."""
    lines = [line.split(" ", 2) for line in caplog.messages if line.startswith("command client=")]
    caplog.clear()
    return [rest for _, _, rest in lines]


def ids_of(client: Client) -> list[bytes]:
    """Return the ids of the messages that came since the last call."""
    return [data[10:26] for kind, data in client.frames() if kind == 2]


def test_each_command_is_a_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """C-PROTO-08: with its parameters, in the order in which they came; bodies are left out, but for IDENTIFY's."""
    consumer = bench.client(peer=("10.0.0.2", 7))
    now_ms = bench.clock.now_ms()
    consumer.send(identify('{"client_id":"me"}') + b"SUB orders all\nRDY 2\n")
    assert "command client=10.0.0.2:7 SUB topic=orders channel=all" in caplog.messages
    assert commands_of(caplog) == [
        'IDENTIFY body=b\'{"client_id":"me"}\'',
        "SUB topic=orders channel=all",
        "RDY count=2",
    ]
    bench.client().send(pub("orders", b"one"))
    ids = ids_of(consumer)
    caplog.clear()
    bench.client().send(pub("orders", b"xyz") + mpub("orders", [b"1", b"22"]) + b"DPUB orders 1500\n" + sized(b"late"))
    assert commands_of(caplog) == [
        "publish topic=orders messages=1 bytes=3",
        "publish topic=orders messages=2 bytes=3",
        f"publish topic=orders messages=1 bytes=4 deliver_at_ms={now_ms + 1500}",
    ]
    ids += ids_of(consumer)
    first, second = (one.decode() for one in ids)
    consumer.send(f"TOUCH {first}\n".encode() + pub("other", b"abcd") + f"REQ {first} 20\nFIN {second}\nCLS\n".encode())
    assert commands_of(caplog) == [
        f"TOUCH id={first}",
        "publish topic=other messages=1 bytes=4",
        f"REQ id={first} delay_ms=20",
        f"FIN id={second}",
        "CLS",
    ]


def test_secrets_and_large_bodies_stay_out(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """C-PROTO-08: a log is read by others."""
    bench.client().send(b"AUTH\n" + sized(b"secret"))
    bench.client().send(identify('{"long":"' + "x" * MAX_IDENTIFY_BYTES + '"}'))
    auth, identity = commands_of(caplog)
    assert auth == "AUTH"
    assert identity.endswith("x'...")
    assert "secret" not in caplog.text


def test_what_is_done_in_compiled_code_is_a_line_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """C-PROTO-08: joined publishes and FINs of small windows, from when the level is set."""
    publishers = [bench.client(peer=("10.0.0.3", port)) for port in (1, 2)]
    consumer = bench.client(peer=("10.0.0.2", 7))
    caplog.set_level(logging.INFO, "headrace")
    bench.server.check_timers(bench.server.clock.monotonic_ms())
    consumer.subscribe("orders", "all", 1)
    for _ in range(50):
        for publisher in publishers:
            publisher.post(pub("orders", b"x"))
        bench.work()
    for _ in range(20):
        (message_id,) = ids_of(consumer)
        consumer.post(b"FIN " + message_id + b"\n")
        bench.work()
    joined, finished = bench.server.joint_publishes.joined, bench.server.finishes.reads
    assert joined
    assert finished
    assert commands_of(caplog) == []
    caplog.set_level(logging.DEBUG, "headrace")
    bench.server.check_timers(bench.server.clock.monotonic_ms())
    for publisher in publishers:
        publisher.post(pub("orders", b"y"))
    bench.work()
    assert commands_of(caplog) == ["publish topic=orders messages=1 bytes=1"] * 2
    (message_id,) = ids_of(consumer)
    consumer.send(b"FIN " + message_id + b"\n")
    assert commands_of(caplog) == [f"FIN id={message_id.decode()}"]
    assert bench.server.finishes.reads == finished


def test_an_rdy_that_changes_nothing_is_a_line_too(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where commands were not logged when it came the first time."""
    consumer = bench.client()
    monkeypatch.setattr(bench.server, "logs_commands", False)
    consumer.send(b"SUB orders all\nRDY 2\nRDY 2\n")
    assert commands_of(caplog) == []
    monkeypatch.setattr(bench.server, "logs_commands", True)
    consumer.send(b"RDY 2\nRDY 2\n")
    assert commands_of(caplog) == ["RDY count=2"] * 2
