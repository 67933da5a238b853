"""The broker's side of nsqlookupd against one that follows a script, on the loopback (nsq.md 4.4)."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
import time

import pytest

from headrace.net.address import format_address
from headrace.nsq.lookup_peers import connection, link
from tests.unit.nsq.lookup_peers.scripted_lookupd import (
    ScriptedLookupd,
    Topics,
    announcing,
    framed,
    run,
    scripted,
    serving,
    wait_until,
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)


def test_everything_is_said_first_then_what_changes() -> None:
    """nsq.md 4.4, "sync" and "changes": a topic is implied by its channels."""

    async def test() -> None:
        topics = Topics()
        topics.put("without")
        topics.put("with", "a", "b#ephemeral")
        topics.put("%RETRY%g")
        topics.put("x" * 65)
        topics.put("TBW102", is_system=True)
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            await wait_until(lambda: peers.links[0].is_connected)
            assert lookupd.identities == [
                {"broadcast_address": "b", "hostname": "h", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}
            ]
            assert lookupd.commands == ["REGISTER without", "REGISTER with a", "REGISTER with b#ephemeral"]
            lookupd.commands.clear()
            topics.put("new", "c")
            topics.put("%RETRY%h")
            topics.drop("with", "b#ephemeral")
            topics.drop("without")
            await wait_until(lambda: len(lookupd.commands) == 4)
            assert lookupd.commands == [
                "REGISTER new",
                "REGISTER new c",
                "UNREGISTER with b#ephemeral",
                "UNREGISTER without",
            ]
            await wait_until(lambda: (peers.counters.registrations, peers.counters.unregistrations) == (5, 2))
            topics.drop("with")
            await wait_until(lambda: len(lookupd.commands) == 6)
            assert lookupd.commands[4:] == ["UNREGISTER with a", "UNREGISTER with"]

    run(test)


def test_a_system_topic_is_there_while_it_has_channels() -> None:
    """As in NSQ's listings."""

    async def test() -> None:
        topics = Topics()
        topics.put("TBW102", is_system=True)
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            await wait_until(lambda: peers.links[0].is_connected)
            topics.put("TBW102", "c")
            await wait_until(lambda: len(lookupd.commands) == 2)
            topics.drop("TBW102", "c")
            await wait_until(lambda: len(lookupd.commands) == 4)
            assert lookupd.commands == [
                "REGISTER TBW102 c",
                "REGISTER TBW102",
                "UNREGISTER TBW102 c",
                "UNREGISTER TBW102",
            ]

    run(test)


def test_what_changes_while_everything_is_said_is_said_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was said of it before."""
    monkeypatch.setattr(link, "WINDOW", 2)

    async def test() -> None:
        topics = Topics()
        for number in range(10):
            topics.put(f"t{number}", "c")

        def reply(command: str) -> bytes:
            if command == "REGISTER t3 c" and "t1" in topics.topics:
                topics.drop("t1")  # was said
                topics.drop("t8", "c")  # was not
                topics.put("made")
            return b"OK"

        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            lookupd.reply = reply
            await wait_until(lambda: len(lookupd.commands) == 14)
            said = [f"REGISTER t{number} c" for number in range(10)]
            said[8] = "REGISTER t8"
            assert lookupd.commands[:10] == said
            assert lookupd.commands[10:] == ["UNREGISTER t1 c", "UNREGISTER t1", "UNREGISTER t8 c", "REGISTER made"]
            assert peers.links[0].is_connected

    run(test)


def test_changes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One that takes less than comes is told everything anew, as what it was not told is not kept without end."""
    monkeypatch.setattr(link, "MAX_CHANGES", 5)

    async def test() -> None:
        topics = Topics()
        topics.put("t")
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            await wait_until(lambda: peers.links[0].is_connected)

            def reply(command: str) -> bytes:
                if lookupd.connections == 1:
                    for number in range(6):
                        topics.put(f"many{number}")
                return b"OK"

            lookupd.reply = reply
            topics.put("go")
            await wait_until(lambda: lookupd.connections == 2 and peers.links[0].is_connected)
            everything = ["t", "go", *(f"many{number}" for number in range(6))]
            assert lookupd.commands == ["REGISTER t", "REGISTER go", *(f"REGISTER {name}" for name in everything)]
            assert peers.counters.failures == {"closed": 1}

    run(test)
    assert "more than 5 changes wait" in caplog.text


def test_many_channels_take_few_round_trips() -> None:
    """A nsqlookupd a tenth of a second away: one by one they would take hours."""
    reads = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reads
        await reader.readline()
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.write(framed(b"{}"))
        while data := await reader.read(1 << 20):
            reads += 1
            await asyncio.sleep(0.002)
            writer.write(framed(b"OK") * data.count(b"\n"))

    async def test() -> None:
        topics = Topics()
        for number in range(20):
            topics.put(f"t{number}", *[f"channel-{channel}" for channel in range(1000)])
        most = before = 0
        async with serving(serve) as address, announcing(topics, address) as peers:
            while not peers.links[0].is_connected:
                await asyncio.sleep(0)
                most, before = max(most, peers.counters.registrations - before), peers.counters.registrations
            assert peers.counters.registrations == 20_000
        assert reads <= 2 * 20_000 / link.WINDOW
        assert 0 < most <= link.WINDOW  # others had the loop in between

    run(test)


@pytest.mark.parametrize("way", ["hang up", "restart"])
def test_a_lost_connection_is_made_again_and_told_everything(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """nsq.md 4.4, "failure": what changed meanwhile is in it."""

    async def test() -> None:
        topics = Topics()
        topics.put("a")
        lookupd = ScriptedLookupd()
        await lookupd.start()
        async with announcing(topics, lookupd.address) as peers:
            await wait_until(lambda: peers.links[0].is_connected)
            if way == "restart":
                port = int(lookupd.address.split(":")[1])
                await lookupd.stop()
                await wait_until(lambda: not peers.links[0].is_connected)
                topics.drop("a")
                topics.put("b", "c")
                lookupd = ScriptedLookupd()
                await lookupd.start(port)
                await wait_until(lambda: peers.links[0].is_connected)
                assert lookupd.commands == ["REGISTER b c"]
            else:
                lookupd.hang_up()
                await wait_until(lambda: lookupd.connections == 2 and peers.links[0].is_connected)
                assert lookupd.commands == ["REGISTER a", "REGISTER a"]
            assert peers.counters.failures["closed"] == 1
        await lookupd.stop()

    caplog.set_level(logging.INFO, "headrace.nsq")
    run(test)
    said = [message.partition(" address=")[0] for message in caplog.messages]
    assert [words for words in said if "announced" in words] == [
        "announced to nsqlookupd",
        "not announced to nsqlookupd, tried again",
        "announced to nsqlookupd",
    ]


def test_pings_are_sent_and_answered(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """nsq.md 4.4, "keep-alive": a nsqlookupd hides who is silent; one that does not answer is closed."""
    monkeypatch.setattr(link, "PING_S", 0.05)

    async def test() -> None:
        topics = Topics()
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            await wait_until(lambda: lookupd.commands[:3] == ["PING"] * 3)
            assert lookupd.connections == 1
            lookupd.reply = lambda command: None if command == "PING" else b"OK"
            await wait_until(lambda: lookupd.connections > 1)
            assert peers.counters.failures["timeout"] == 1

    run(test)
    assert "did not answer PING within 0.5 s" in caplog.text


def test_a_reply_that_came_while_the_loop_stood_still_is_in_time() -> None:
    """Else a disk that blocks for a second has every nsqlookupd told everything again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            served, _ = listener.accept()
            with served, served.makefile("rb") as lines:
                lines.readline()
                lines.read(int.from_bytes(lines.read(4), "big"))
                served.sendall(framed(b"{}"))
                while lines.readline():
                    served.sendall(framed(b"OK"))

        async def test() -> None:
            topics = Topics()
            async with announcing(topics, format_address(listener.getsockname())) as peers:
                await wait_until(lambda: peers.links[0].is_connected)
                topics.put("t")
                await asyncio.sleep(0)  # the link takes it
                await asyncio.sleep(0)
                time.sleep(0.7)  # noqa: ASYNC251  # the loop stands still
                await wait_until(lambda: peers.counters.registrations or peers.counters.failures)
                assert (peers.counters.registrations, peers.counters.failures) == (1, {})

        server = threading.Thread(target=serve)
        server.start()
        run(test)
        server.join()


@pytest.mark.parametrize(
    ("identity", "cause", "said"),
    [
        (b"E_INVALID", "refused", "refused IDENTIFY: E_INVALID"),
        (b"E_BAD_BODY IDENTIFY missing fields", "refused", "refused IDENTIFY: E_BAD_BODY IDENTIFY missing fields"),
        (b"OK", "protocol", "answered IDENTIFY with OK"),
    ],
)
def test_one_that_refuses_is_tried_again_and_logged_once(
    identity: bytes, cause: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """nsq.md 4.4: E_INVALID closes. It does not fill the log."""

    async def test() -> None:
        topics = Topics()
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            lookupd.identity = identity
            await wait_until(lambda: lookupd.connections >= 3)
            assert peers.counters.failures[cause] >= 2
            assert peers.links[0].last_error == said
            assert lookupd.commands == []

    run(test)
    assert [record.levelno for record in caplog.records if said in record.message] == [logging.WARNING]


def test_the_reason_of_a_refusal_is_told_not_the_close(caplog: pytest.LogCaptureFixture) -> None:
    """Every error of a nsqlookupd ends the connection; both arrive together."""

    async def test() -> None:
        topics = Topics()
        topics.put("a")
        topics.put("b")
        topics.put("c")
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:

            def reply(command: str) -> bytes | None:
                if command == "REGISTER b":
                    asyncio.get_running_loop().call_soon(lookupd.hang_up_gently)
                    return b"E_BAD_TOPIC REGISTER topic name 'b' is not valid"
                return b"OK" if command == "REGISTER a" else None

            lookupd.reply = reply
            await wait_until(lambda: peers.counters.failures)
            assert peers.counters.failures == {"refused": 1}

    run(test)
    assert "refused REGISTER b: E_BAD_TOPIC REGISTER topic name 'b' is not valid" in caplog.text


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"", "timeout"),
        (b"\xff\xff\xff\xff", "protocol"),
        (b"\x00\x01\x00\x01", "protocol"),
        (framed(b"{}") * 2, "protocol"),
        (framed(b"{}") + b"\x00\x00", "timeout"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol"),
    ],
)
def test_a_peer_that_is_no_nsqlookupd(sent: bytes, cause: str) -> None:
    """Silence, an announced 4 GiB, replies that nobody asked for, the beginning of one, another protocol."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await reader.read(-1)

    async def test() -> None:
        topics = Topics()
        topics.put("t")
        async with serving(serve) as address, announcing(topics, address) as peers:
            await wait_until(lambda: peers.counters.failures)
            assert list(peers.counters.failures) == [cause]
            assert not peers.links[0].is_connected

    run(test)


def test_one_that_is_not_there_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-REG-07: brokers keep retrying; with growing pauses."""
    monkeypatch.setattr(link, "LONGEST_PAUSE_S", 0.05)

    async def test() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            absent = format_address(free.getsockname())
            topics = Topics()
            topics.put("t")
            async with scripted() as lookupd, announcing(topics, absent, "a name", lookupd.address) as peers:
                await wait_until(lambda: peers.links[2].is_connected)
                assert "Connection refused" in peers.links[0].last_error
                assert "an address is host:port" in peers.links[1].last_error
                await wait_until(lambda: peers.counters.failures["connect"] > 6)

    run(test)


def test_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a bound; they are short again behind a connection that lasted."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def test() -> None:
        topics = Topics()
        monkeypatch.setattr(link, "FIRST_PAUSE_S", 1.0)
        monkeypatch.setattr(link, "LONGEST_PAUSE_S", 5.0)
        async with scripted() as lookupd:
            lookupd.identity = b"E_INVALID"
            monkeypatch.setattr(asyncio, "sleep", note)
            async with announcing(topics, lookupd.address) as peers:
                while len(pauses) < 5:
                    await sleep(0.001)
                assert pauses[:5] == [1.0, 2.0, 4.0, 5.0, 5.0]
                monkeypatch.setattr(link, "PING_S", 0.0)
                del pauses[:]
                while not pauses:
                    await sleep(0.001)
                assert pauses[-1] == 1.0
                assert not peers.links[0].is_connected
            monkeypatch.undo()

    run(test)


def test_addresses_change_while_it_runs() -> None:
    """nsq.md 4.4, "reconfigure": removed peers are closed, new ones are told, the others do not notice."""

    async def test() -> None:
        topics = Topics()
        topics.put("t")
        async with scripted() as one, scripted() as two, scripted() as three, announcing(topics) as peers:
            peers.set_addresses([one.address, two.address, one.address])
            await wait_until(lambda: all(link.is_connected for link in peers.links))
            assert len(peers.links) == 2
            peers.set_addresses([three.address, two.address])
            assert peers.addresses == [three.address, two.address]
            await wait_until(lambda: peers.links[0].is_connected and not one.is_connected)
            topics.put("u")
            await wait_until(lambda: two.commands == three.commands == ["REGISTER t", "REGISTER u"])
            assert (one.commands, two.connections) == (["REGISTER t"], 1)
            peers.set_addresses([])
            await wait_until(lambda: not two.is_connected and not three.is_connected)

    run(test)


def test_the_end_says_nothing_and_leaves_nothing() -> None:
    """nsq.md 4.4, "stop": the connection is closed, and the registrations go with it."""

    async def test() -> None:
        topics = Topics()
        topics.put("t")
        before = len(asyncio.all_tasks())
        async with scripted() as lookupd:
            async with announcing(topics, lookupd.address) as peers:
                await wait_until(lambda: peers.links[0].is_connected)
            await wait_until(lambda: not lookupd.is_connected)
            assert lookupd.commands == ["REGISTER t"]
            assert topics.presence_listeners == []
        assert len(asyncio.all_tasks()) == before

    run(test)


@pytest.mark.provokes_bugs
def test_a_bug_ends_nothing_for_good(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with its traceback, and tried again."""

    async def test() -> None:
        topics = Topics()
        topics.put("t")
        async with scripted() as lookupd:
            with monkeypatch.context() as patched:
                patched.setattr(link, "announce_all", None)
                async with announcing(topics, lookupd.address) as peers:
                    await wait_until(lambda: peers.counters.failures["internal"])
                    patched.undo()
                    await wait_until(lambda: peers.links[0].is_connected)

    run(test)
    assert "announcing to a nsqlookupd failed by a bug" in caplog.text


def registered_by(commands: list[str]) -> set[tuple[str, str]]:
    """Return what commands of one connection leave in a nsqlookupd (nsq.md 4.2): topics, and their channels."""
    rows: set[tuple[str, str]] = set()
    for command in commands:
        verb, topic, channel = (command + " ").split(" ")[:3]
        if verb == "REGISTER":
            rows |= {(topic, ""), (topic, channel)}
        elif channel:
            rows.discard((topic, channel))
        else:
            rows = {row for row in rows if row[0] != topic}
    return rows


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_and_goes_ends_in_what_is_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while everything is said, and over lost connections."""
    monkeypatch.setattr(link, "WINDOW", 3)
    monkeypatch.setattr(link, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(link, "LONGEST_PAUSE_S", 0.002)
    choose = random.Random(seed)

    async def test() -> None:
        topics = Topics()
        for number in range(6):
            topics.put(f"t{number}", *"ab"[: number % 3])
        async with scripted() as lookupd, announcing(topics, lookupd.address) as peers:
            for _ in range(400):
                name, channel = f"t{choose.randrange(8)}", choose.choice("abcd")
                if choose.random() < 0.6:
                    topics.put(name, *([channel] if choose.random() < 0.7 else []))
                elif name in topics.topics:
                    known = topics.topics[name].channels
                    topics.drop(name, channel if channel in known else "")
                if choose.random() < 0.02:
                    lookupd.hang_up()
                if choose.random() < 0.4:
                    await asyncio.sleep(choose.choice((0, 0, 0, 0.001)))
            wanted = {(name, channel) for name, topic in topics.topics.items() for channel in ("", *topic.channels)}

            def is_told() -> bool:
                return peers.links[0].is_connected and registered_by(lookupd.by_connection[-1]) == wanted

            await wait_until(is_told)
            await asyncio.sleep(0.01)
            assert is_told()

    run(test)
