"""A registry that has just started: routes are told when brokers had time to come."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import Clock
from headrace.remoting.codec import Command, encode_request
from headrace.remoting.registry import server as registry_server
from headrace.remoting.registry.server import COMES_AGAIN_S, RegistryServer
from headrace.settings import RegistrySettings
from tests.unit.remoting.registry_bench import A_SLAVE, A, B, Bench, Link, broker_ext

ROUTE_OF_T = encode_request(0, 105, 77, False, {"topic": "T"})


def started(tmp_path: Path, *known: str, own: str = "", **settings: Any) -> Bench:
    """Return a registry that had these brokers when it ended."""
    folder = tmp_path / "namesrv"
    folder.mkdir(exist_ok=True)
    if known:
        (folder / "brokers.json").write_text(json.dumps({"brokers": known}))
    bench = Bench(data_dir=tmp_path, own_broker=own, **settings)
    bench.server.begin_wait()
    return bench


def brokers_of(link: Link) -> list[list[str]]:
    """Return the brokers of each route that was told."""
    return [[broker["brokerName"] for broker in json.loads(answer.body)["brokerDatas"]] for answer in link.taken()]


def test_route_is_told_when_the_brokers_are_back_that_were_there(tmp_path: Path) -> None:
    """A-REG-20: who is told of the first one alone lets the queues of the other go."""
    bench = started(tmp_path, "broker-a", "broker-b")
    client, brokers = bench.link(), bench.link()
    assert client.send(ROUTE_OF_T) == []
    brokers.register()
    brokers.register("broker-c", 0, "10.0.0.9:10911")
    brokers.register("broker-b", 1, A_SLAVE)  # its slave brings no topics
    assert brokers_of(client) == []
    brokers.register("broker-b", 0, B)
    assert brokers_of(client) == [["broker-a", "broker-c", "broker-b"]]
    assert client.send(ROUTE_OF_T)[0].code == 0
    counters = bench.server.counters
    assert (counters.requests[105], counters.routes_held, counters.routes_refused) == (2, 1, 0)


def test_without_those_that_do_not_come_routes_are_told_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = started(tmp_path, "broker-a", "broker-b")
    client, brokers = bench.link(), bench.link()
    brokers.register()
    assert client.send(ROUTE_OF_T) == []
    bench.pass_time(1_900, 100)
    assert brokers_of(client) == []
    bench.pass_time(100, 100)
    assert brokers_of(client) == [["broker-a"]]
    assert "routes are told without them count=1 brokers=broker-b waited_ms=2000" in caplog.text
    assert "routes are told waited_ms=2000 requests_held=1 requests_refused=0" in caplog.text


def test_where_no_broker_is_known_all_of_the_time_is_waited(tmp_path: Path) -> None:
    """Its first start, or one without its files: others may be on their way."""
    bench = started(tmp_path)
    client = bench.link()
    bench.link().register()
    assert client.send(ROUTE_OF_T) == []
    bench.pass_time(2_000, 100)
    assert brokers_of(client) == [["broker-a"]]


def test_a_lone_broker_is_told_at_once(tmp_path: Path) -> None:
    """Nobody else was there: there is nobody to wait for. Nor is there anything to write down."""
    bench = started(tmp_path, own="broker-a")
    client = bench.link()
    assert client.send(ROUTE_OF_T) == []
    bench.link().register()
    assert brokers_of(client) == [["broker-a"]]
    assert list((tmp_path / "namesrv").iterdir()) == []


def test_registry_of_one_broker_waits_for_the_others_that_it_knows(tmp_path: Path) -> None:
    """They register with a registry that runs inside the first one."""
    bench = started(tmp_path, "broker-b", own="broker-a")
    client, brokers = bench.link(), bench.link()
    brokers.register()
    assert client.send(ROUTE_OF_T) == []
    brokers.register("broker-b", 0, B)
    assert brokers_of(client) == [["broker-a", "broker-b"]]


def test_a_request_is_refused_before_its_client_gives_up(tmp_path: Path) -> None:
    """RocketMQ 5 says the same while it waits: Java's and Go's clients keep the route they have."""
    bench = started(tmp_path, "broker-a", start_wait_ms=45_000)
    client = bench.link()
    assert client.send(ROUTE_OF_T) == []
    bench.pass_time(2_000, 100)
    (refused,) = client.taken()
    refused_at_once = client.call(105, {"topic": "T"})
    for response in (refused, refused_at_once):
        assert response.code == 1
        assert response.remark == ("name server not ready: brokers have yet to register (registry.start_wait_ms)")
    bench.link().register()
    assert client.call(105, {"topic": "T"}).code == 0
    counters = bench.server.counters
    assert (counters.routes_held, counters.routes_refused, counters.refusals[1]) == (1, 2, 2)


def test_a_bug_in_one_held_answer_keeps_no_other_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to 10,000 wait. The one it befell is closed, and asks again."""
    bench = started(tmp_path, "broker-a")
    clients = [bench.link() for _ in range(3)]
    for client in clients:
        assert client.send(ROUTE_OF_T) == []

    def fail(*_args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(clients[1].connection, "respond", fail)
    assert bench.link().register().code == 0
    assert [brokers_of(client) for client in clients] == [[["broker-a"]], [], [["broker-a"]]]
    assert [client.connection.cause for client in clients] == ["", "no memory", ""]


@pytest.mark.provokes_bugs
def test_a_bug_that_is_no_want_of_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a request that is answered at once."""
    bench = started(tmp_path, "broker-a")
    client = bench.link()
    assert client.send(ROUTE_OF_T) == []

    def fail(*_args: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(client.connection, "respond", fail)
    bench.pass_time(2_000, 100)
    assert (client.connection.cause, bench.server.counters.internal_errors) == ("internal error", 1)


def test_lists_and_registrations_are_answered_meanwhile(tmp_path: Path) -> None:
    """Also those of a broker that asks for a route on the connection that it registers through."""
    bench = started(tmp_path, "broker-a")
    link = bench.link()
    assert link.send(ROUTE_OF_T) == []
    assert [link.call(code).code for code in (106, 206)] == [0, 0]
    assert link.send(encode_request(0, 105, 78, True, {"topic": "T"})) == []  # one-way
    assert bench.server.counters.routes_held == 1
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}}}}'
    answers = link.send(encode_request(0, 103, 79, False, broker_ext(), body))
    assert [(answer.opaque, answer.code) for answer in answers] == [(77, 0), (79, 0)]


def test_no_wait_is_a_setting(tmp_path: Path) -> None:
    bench = started(tmp_path, "broker-a", start_wait_ms=0)
    assert bench.link().call(105, {"topic": "T"}).code == 17


def test_held_requests_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is too many is refused: its client keeps the route it has."""
    monkeypatch.setattr(registry_server, "MAX_HELD", 3)
    bench = started(tmp_path, "broker-a")
    client = bench.link()
    assert [answer.code for answer in client.send(ROUTE_OF_T * 4)] == [1]
    bench.link().register()
    assert [answer.code for answer in client.taken()] == [0, 0, 0]


def test_connection_that_ends_takes_its_requests_with_it(tmp_path: Path) -> None:
    bench = started(tmp_path, "broker-a")
    client = bench.link()
    client.send(ROUTE_OF_T)
    client.connection.abort("test")
    bench.link().register()
    assert client.taken() == []
    assert bench.server.counters.internal_errors == 0


# -- with its file ---------------------------------------------------------------------------------------------------


async def served(data_dir: Path, *, own: str = "", **settings: Any) -> RegistryServer:
    server = RegistryServer(RegistrySettings(**settings), Clock(), data_dir=data_dir, own_broker=own)
    await server.start("127.0.0.1:0")
    return server


def names_in(data_dir: Path) -> list[str]:
    names: list[str] = json.loads((data_dir / "namesrv" / "brokers.json").read_text())["brokers"]
    return names


def test_brokers_are_written_down(tmp_path: Path) -> None:
    """Their masters; who has left or was lost is not waited for, those of a registry that stops are."""

    async def run() -> None:
        server = await served(tmp_path, start_wait_ms=0)
        link, other = Link(server, "10.9.9.9"), Link(server, "10.9.9.9")
        link.register("broker-b", 0, B)
        link.register("broker-a", 0, A)
        link.register("broker-c", 1, "10.0.0.4:10911")
        other.register("broker-d", 0, "10.0.0.5:10911")
        server.check_timers(server.clock.monotonic_ms())
        other.connection.connection_lost(None)
        await asyncio.sleep(2 * COMES_AGAIN_S)
        await server.stop()
        assert names_in(tmp_path) == ["broker-a", "broker-b"]
        server = await served(tmp_path)
        assert server.awaited.missing == {"broker-a", "broker-b"}
        server.check_timers(server.clock.monotonic_ms())
        await server.stop()
        assert names_in(tmp_path) == ["broker-a", "broker-b"], "not known to be gone yet"
        server = await served(tmp_path, start_wait_ms=1)
        Link(server, "10.9.9.9").register("broker-b", 0, B)
        await asyncio.sleep(0.01)
        await server.stop()
        assert names_in(tmp_path) == ["broker-b"]

    asyncio.run(run())


def test_a_lone_broker_writes_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        server = await served(tmp_path, own="broker-a")
        Link(server, "10.9.9.9").register("broker-a", 0, A)
        server.check_timers(server.clock.monotonic_ms())
        await server.stop()

    asyncio.run(run())
    assert [path.name for path in (tmp_path / "namesrv").iterdir()] == ["lock"]


def test_a_damaged_file_is_no_reason_not_to_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "namesrv").mkdir()
    (tmp_path / "namesrv" / "brokers.json").write_text('{"brokers":[1]}')

    async def run() -> None:
        server = await served(tmp_path)
        assert not server.is_telling_routes()
        await server.stop()

    asyncio.run(run())
    assert "not known which brokers were there, all of the wait is waited error=" in caplog.text


def test_what_is_held_is_answered_when_the_registry_stops_and_in_turns(tmp_path: Path) -> None:
    """Refused: what it knew is not all. However many there are, the loop has its turn between some of them."""

    async def run() -> list[Command]:
        server = await served(tmp_path)
        link = Link(server, "10.9.9.9")
        for _ in range(250):
            assert link.send(ROUTE_OF_T) == []
        await server.stop()
        return link.taken()

    responses = asyncio.run(run())
    assert [response.code for response in responses] == [1] * 250
