"""The registry server: brokers that go, hostile peers, its file, start and stop."""

import asyncio
import json
import logging
import os
import socket
import struct
import threading
from pathlib import Path

import pytest
import uvloop

from headrace.clock import Clock
from headrace.errors import SideFileError, StoreError, StoreLockedError
from headrace.remoting.codec import Command, decode_command, encode_request
from headrace.remoting.registry.server import COMES_AGAIN_S, RegistryServer
from headrace.settings import RegistrySettings
from tests.support.memory import little_memory
from tests.unit.remoting.registry_bench import A, Bench, broker_ext, topic

ROUTE_OF_T = encode_request(0, 105, 1, False, {"topic": "T"})
_TOPICS = {"dataVersion": {"counter": 1, "timestamp": 1000}, "topicConfigTable": {"T": topic()}}
REGISTRATION = encode_request(
    0, 103, 1, False, {name: str(value) for name, value in broker_ext().items()},
    json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": _TOPICS}).encode(),
)  # fmt: skip


def test_silent_broker_is_dropped_at_the_first_scan_after_two_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """X-REG-06, A-REG-14, A-BROKER-04: at 119 s present; gone from all five tables, socket closed."""
    bench = Bench(idle_timeout_ms=3_600_000)
    link = bench.link()
    link.register(filters=["f:1"])
    bench.pass_time(119_000)
    assert A in bench.server.routes.live
    bench.pass_time(12_000)
    routes = bench.server.routes
    assert not any((routes.clusters, routes.brokers, routes.topics, routes.live, routes.filter_servers))
    assert link.transport.aborted
    assert bench.server.counters.brokers_expired == 1
    assert bench.server.counters.brokers_lost == 0
    assert "broker silent" in caplog.text


def test_a_broker_is_silent_by_the_time_up_to_which_registrations_have_been_read() -> None:
    """A loop that is long at its reads has not read what came meanwhile."""
    bench = Bench(idle_timeout_ms=3_600_000)
    bench.link().register()
    bench.clock.advance_ms(125_000)
    bench.server.check_timers(bench.clock.monotonic_ms() - 10_000)
    assert A in bench.server.routes.live
    bench.server.check_timers(bench.clock.monotonic_ms())
    assert bench.server.routes.live == {}


def test_broker_that_registers_every_30_seconds_stays() -> None:
    """X-NET-08, A-REG-10, A-REG-14."""
    bench = Bench()
    link = bench.link()
    for _ in range(10):
        link.register()
        bench.pass_time(30_000)
    assert A in bench.server.routes.live
    assert not link.transport.closed


@pytest.mark.parametrize("how", ["closed", "broken", "idle"])
def test_end_of_a_connection_drops_its_brokers_at_once(how: str) -> None:
    """X-REG-06, A-REG-16, X-NET-02: close, exception and idle."""
    bench = Bench(expiry_ms=3_600_000)
    link = bench.link()
    link.register()
    if how == "closed":
        link.connection.eof_received()
    elif how == "broken":
        link.connection.connection_lost(OSError(104, "Connection reset by peer"))
    else:
        bench.pass_time(122_000)
    assert bench.server.routes.live == {}
    assert bench.server.routes.topics == {}
    assert bench.server.counters.brokers_lost == 1


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">ii", -1, 0),
        struct.pack(">ii", 1 << 30, 0),
        struct.pack(">ii", 4, 5),
        struct.pack(">ii", 8, 7 << 24 | 4) + b"abcd",
        struct.pack(">ii", 8, 4) + b"{abc",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_frame_beyond_help_closes_the_connection(frame: bytes) -> None:
    """remoting.md 1.1: negative or oversized length, header beyond the frame, unknown serialize type."""
    bench = Bench()
    link = bench.link()
    assert [response.code for response in link.send(ROUTE_OF_T + frame)] == [17]
    assert link.transport.eof_sent
    assert bench.server.counters.bad_frames == 1


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (struct.pack(">i", 17 << 20), "frame length 17825792 outside 4..16777212 (registry.max_frame_bytes)"),
        (struct.pack(">i", 2), "frame length 2 outside 4..16777212 (registry.max_frame_bytes)"),
        (b"  V2", "the client speaks NSQ's protocol, which nsq.tcp_address takes"),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            "the client speaks HTTP, which nsq.http_address, registry.nsq_http_address, admin.address and "
            "registry.admin_address take",
        ),
        (b"\x16\x03\x01\x02\x00", "the client speaks TLS, which no port takes"),
    ],
)
def test_a_refused_frame_is_explained(start: bytes, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the setting that bounds it, or by the port that the client should have gone to."""
    Bench().link().send(start)
    assert [record.getMessage().partition(" error=")[2] for record in caplog.records] == [text]


def test_a_frame_without_memory_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """It was counted and logged as one that is malformed, and the connection closed without an answer."""
    body_bytes = 100 << 20
    bench = Bench(max_frame_bytes=128 << 20)
    link = bench.link()
    frame = encode_request(0, 103, 7, False, {name: str(value) for name, value in broker_ext().items()})
    with little_memory():
        (response,) = link.send((len(frame) - 4 + body_bytes).to_bytes(4) + frame[4:] + bytes(100))
    text = f"no memory for a frame of {len(frame) + body_bytes} bytes"
    assert (response.code, response.opaque, response.remark) == (1, 7, text)
    assert link.connection.cause == "no memory"
    assert bench.server.counters.bad_frames == 0
    assert [record.getMessage().partition(" client=")[0] for record in caplog.records] == ["no memory, client refused"]


def test_a_frame_without_memory_of_an_unknown_code_is_no_request() -> None:
    """Each such code had a row of its own in the metrics, of 0 requests: there are as many as a client likes."""
    bench = Bench(max_frame_bytes=128 << 20)
    frame = encode_request(0, 54_321, 7)
    with little_memory():
        (response,) = bench.link().send((len(frame) - 4 + (100 << 20)).to_bytes(4) + frame[4:] + bytes(100))
    assert "no memory" in response.remark
    assert 54_321 not in bench.server.counters.requests


def test_responses_and_one_way_requests_get_no_answer() -> None:
    """remoting.md 1.4."""
    bench = Bench()
    link = bench.link()
    frames = [
        encode_request(0, 105, 1, True, {"topic": "T"}),
        encode_request(0, 9999, 2, True),
        encode_request(0, 103, 3, True, broker_ext(), b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}}}}'),
    ]
    assert link.send(b"".join(frames)) == []
    assert [response.code for response in link.send(ROUTE_OF_T)] == [0]


def test_why_a_one_way_request_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ's brokers register a changed topic one-way: nobody else is told that it is not known."""
    link = Bench().link()
    for address in ("nowhere", "elsewhere"):
        link.send(encode_request(0, 103, 1, True, broker_ext(address=address)))
    link.send(encode_request(0, 103, 2, False, broker_ext(address="nowhere")))
    assert [record.getMessage().partition(" request=")[2] for record in caplog.records] == [
        "REGISTER_BROKER code=SYSTEM_ERROR error=the custom field <brokerAddr> is not host:port: 'nowhere'"
    ]


def test_what_is_not_served_is_logged_once_whatever_else_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    """Behind a hundred codes that a client made up, each request had its line."""
    bench = Bench()
    link = bench.link()
    for code in [*range(50_000, 50_100), 370, 370, 370]:
        assert link.call(code).code == 3
    assert caplog.text.count("request not served") == 1
    assert bench.server.counters.unsupported[370] == 3


def test_frame_may_come_in_pieces() -> None:
    """A-NET-05: fragments of one byte each."""
    link = Bench().link()
    for position in range(len(ROUTE_OF_T) - 1):
        assert link.send(ROUTE_OF_T[position : position + 1]) == []
    (response,) = link.send(ROUTE_OF_T[-1:])
    assert (response.code, response.opaque) == (17, 1)


@pytest.mark.provokes_bugs
def test_bug_in_a_handler_is_logged_and_answered_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 4, bad input: never a traceback to the peer, never a dead process."""
    bench = Bench()
    link = bench.link()
    monkeypatch.setattr(bench.server.routes, "route", lambda _topic: 1 // 0)
    response = link.call(105, {"topic": "T"})
    assert (response.code, response.remark) == (1, "internal error")
    assert "ZeroDivisionError" in caplog.text
    assert bench.server.counters.internal_errors == 1


def test_peer_that_does_not_read_is_not_read_from() -> None:
    """A slow peer never grows memory."""
    bench = Bench(write_high_water_bytes=16_384)
    bench.link().register(topics={f"topic-{number}": {} for number in range(1_000)})
    link = bench.link()
    link.transport.stalled = True
    for _ in range(10):
        if link.transport.reading:
            link.send(encode_request(0, 206, 1))
    assert not link.transport.reading
    link.transport.flow()
    assert link.transport.reading


def test_peers_that_do_not_read_are_bounded_together() -> None:
    bench = Bench(max_unread_bytes=1 << 20, write_high_water_bytes=1 << 20)
    bench.link().register(topics={f"topic-{number}": {} for number in range(1_000)})
    links = [bench.link() for _ in range(30)]
    for link in links:
        link.transport.stalled = True
        for _ in range(5):
            link.send(encode_request(0, 206, 1))
    assert sum(len(link.transport.waiting) for link in links) > 1 << 20, "none of them has too much for itself"
    bench.server.cut_unread()
    assert 0 < sum(len(link.transport.waiting) for link in links) <= 1 << 20
    assert bench.server.connections.closed["unread"] >= 1


def test_connection_above_the_limit_is_closed() -> None:
    bench = Bench(max_connections=1)
    first, second = bench.link(), bench.link()
    assert second.transport.eof_sent
    assert not first.transport.eof_sent
    assert bench.server.connections.refused == 1


def test_refusals_at_the_limit_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever connects again and again writes no line each time."""
    bench = Bench(max_connections=1)
    for _ in range(50):
        bench.link()
    (record,) = caplog.records
    assert record.getMessage().endswith(" limit=1 setting=registry.max_connections refused=1")


def test_default_limit_leaves_files_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the open files, 10,000 at most."""
    for files, connections in ((1024, 256), (1 << 20, 10_000)):
        monkeypatch.setattr("resource.getrlimit", lambda _what, files=files: (files, files))
        assert Bench().server.connections.limit == connections


# -- over a network, with a data directory ---------------------------------------------------------------------------


async def ask(address: str, *requests: tuple[int, dict[str, str]]) -> list[Command]:
    """Send requests over one connection and return their responses."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    responses = []
    for number, (code, ext) in enumerate(requests):
        writer.write(encode_request(0, code, number, False, ext))
        head = await reader.readexactly(4)
        responses.append(decode_command(head + await reader.readexactly(struct.unpack(">i", head)[0])))
    writer.close()
    await writer.wait_closed()
    return responses


def serve(data_dir: Path, *requests: tuple[int, dict[str, str]]) -> list[Command]:
    """Start a registry, ask it, stop it."""

    async def run() -> list[Command]:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=data_dir)
        await server.start("127.0.0.1:0")
        try:
            return await ask(server.address, *requests)
        finally:
            await server.stop()

    return asyncio.run(run())


NAMED = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}


def test_key_value_configuration_survives_a_restart(tmp_path: Path) -> None:
    """A-REG-21: PUT, restart registry: still there; stored in namesrv/kvConfig.json."""
    data_dir = tmp_path / "new" / "store"
    (response,) = serve(data_dir, (100, {**NAMED, "value": "broker-a:4"}))
    assert response.code == 0
    file = data_dir / "namesrv" / "kvConfig.json"
    assert json.loads(file.read_text()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}}}
    found, gone, lost = serve(data_dir, (101, NAMED), (102, NAMED), (101, NAMED))
    assert (found.ext["value"], gone.code, lost.code) == ("broker-a:4", 0, 22)
    assert json.loads(file.read_text()) == {"configTable": {}}
    empty, found = serve(data_dir, (100, {**NAMED, "value": ""}), (101, NAMED))
    assert (empty.code, found.code, found.ext["value"]) == (0, 0, "")


def test_two_registries_do_not_share_a_folder(tmp_path: Path) -> None:
    """Each would write over the ordered topics that the other was told."""

    async def run() -> None:
        first, second = (RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path) for _ in range(2))
        await first.start("127.0.0.1:0")
        with pytest.raises(StoreLockedError, match=rf"namesrv is in use by another registry \(pid {os.getpid()}\)"):
            await second.start("127.0.0.1:0")
        await ask(first.address, (100, {**NAMED, "value": "broker-a:4"}))
        await first.stop()
        await second.start("127.0.0.1:0")
        (found,) = await ask(second.address, (101, NAMED))
        await second.stop()
        assert found.ext["value"] == "broker-a:4"  # also what the first one wrote after the second had looked

    asyncio.run(run())


def test_a_second_registry_restores_nothing_that_the_first_is_about_to_replace(tmp_path: Path) -> None:
    """It took the new file away, put the copy in its place, and was refused then: what was answered was gone."""
    first = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
    first.claim()
    folder = tmp_path / "namesrv"
    (folder / "kvConfig.json.bak").write_text('{"configTable":{}}')
    (folder / "kvConfig.json.tmp").write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}')
    before = {path.name: path.read_text() for path in folder.iterdir()}
    with pytest.raises(StoreLockedError):
        RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path).claim()
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    first.release()


def test_a_new_folder_of_a_registry_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it answers as kept lies in it: a power cut took the folder, where its name was not synced."""
    synced: set[str] = set()
    real = os.fsync

    def note(fd: int) -> None:
        synced.add(os.path.realpath(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr("os.fsync", note)
    serve(tmp_path / "made", (100, {**NAMED, "value": "broker-a:4"}))
    assert {str(tmp_path), str(tmp_path / "made")} <= synced


def test_folder_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    """One sentence with the remedy."""
    (tmp_path / "namesrv" / "lock").mkdir(parents=True)

    async def run() -> None:
        await RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path).start("127.0.0.1:0")

    with pytest.raises(StoreError, match=r"cannot write to .*namesrv: Is a directory; .*choose another directory"):
        asyncio.run(run())


def test_flat_file_of_smartgo_is_read(tmp_path: Path) -> None:
    """A-REG-22, X-REG-03."""
    (tmp_path / "namesrv").mkdir()
    (tmp_path / "namesrv" / "kvConfig.json").write_text('{"T": "broker-a:8"}')
    (response,) = serve(tmp_path, (101, NAMED))
    assert response.ext["value"] == "broker-a:8"


def test_failed_write_is_answered_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked must know that it may not last."""
    (tmp_path / "namesrv").mkdir()

    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    put, found = serve(tmp_path, (100, {**NAMED, "value": "broker-a:4"}), (101, NAMED))
    assert put.code == 1
    assert "kvConfig.json: No space left on device" in put.remark
    assert found.code == 0


def test_another_folder_in_the_place_of_the_registry_s_gets_none_of_its_configuration(tmp_path: Path) -> None:
    """A lock is that of a folder, not of its path: the second registry there would be told what the first one is."""

    async def run() -> None:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
        await server.start("127.0.0.1:0")
        (tmp_path / "namesrv").rename(tmp_path / "moved away")
        (tmp_path / "namesrv").mkdir()
        (tmp_path / "namesrv" / "lock").touch()
        (put,) = await ask(server.address, (100, {**NAMED, "value": "broker-a:4"}))
        assert put.code == 1
        assert "kvConfig.json: its directory was replaced by another one" in put.remark
        await server.stop()
        assert [path.name for path in (tmp_path / "namesrv").iterdir()] == ["lock"]

    asyncio.run(run())


@pytest.mark.parametrize("again", [(100, {**NAMED, "value": "broker-a:4"}), (102, {**NAMED, "key": "other"})])
def test_request_that_changes_nothing_is_answered_when_all_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: tuple[int, dict[str, str]]
) -> None:
    """After a write that failed nothing is there yet: it is tried again, and answered as it ends."""
    (tmp_path / "namesrv").mkdir()

    def fail(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    put = (100, {**NAMED, "value": "broker-a:4"})
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        failed, repeated = serve(tmp_path, put, again)
        assert (failed.code, repeated.code) == (1, 1)
    done, found = serve(tmp_path, put, (101, NAMED))
    assert (done.code, found.code) == (0, 0)


@pytest.mark.parametrize("content", ["{", '{"configTable":{"NS":{"k":1}}}', "[]"])
def test_damaged_configuration_refuses_the_start(tmp_path: Path, content: str) -> None:
    """Names file and remedy; nothing is overwritten."""
    file = tmp_path / "namesrv" / "kvConfig.json"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(SideFileError, match=r"kvConfig\.json: .*restore"):
        RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path).claim()
    assert file.read_text() == content
    file.write_text("{}")
    whole = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
    whole.claim()  # which the other one has not kept
    whole.release()


def test_stop_needs_no_thread_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of address space none can be started: the stop failed, and the node's store was not closed."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
        await server.start("127.0.0.1:0")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            await server.stop()

    asyncio.run(run())


def test_stop_closes_connections_and_frees_the_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A clean stop."""

    async def run() -> None:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
        await server.start("127.0.0.1:0")
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(ROUTE_OF_T)
        await reader.readexactly(8)
        await server.stop()
        assert await reader.read() != b""  # the rest of the answer, then the end
        writer.close()
        await writer.wait_closed()
        assert len(server.connections) == 0
        again = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
        await again.start(server.address)
        await again.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert caplog.text == ""


def test_a_registry_that_stood_still_misses_no_broker_that_came_again_meanwhile(tmp_path: Path) -> None:
    """It read the end of the old connection first, and told whoever had asked that there is no route."""

    async def run() -> None:
        server = RegistryServer(RegistrySettings(start_wait_ms=0), Clock(), data_dir=tmp_path)
        await server.start("127.0.0.1:0")
        host, _, port = server.address.rpartition(":")

        def connect() -> socket.socket:
            return socket.create_connection((host, int(port)))

        with connect() as broker, connect() as client:
            broker.sendall(REGISTRATION)
            await asyncio.to_thread(broker.recv, 1 << 16)
            # From here on the loop stands still.
            broker.shutdown(socket.SHUT_WR)
            client.sendall(ROUTE_OF_T)
            with connect() as broker_again:
                broker_again.sendall(REGISTRATION)
                await asyncio.sleep(2 * COMES_AGAIN_S)
                answer = decode_command(client.recv(1 << 16))
        lost = server.counters.brokers_lost
        await asyncio.sleep(3 * COMES_AGAIN_S)
        left = dict(server.routes.live)
        await server.stop()
        assert (answer.code, lost) == (0, 0)
        assert left == {}  # the last connection's end is a broker's

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
