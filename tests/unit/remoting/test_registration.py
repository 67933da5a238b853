"""The broker's side of registration, against real registries on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.broker.access import User, parse_rules
from headrace.broker.data_version import DataVersion
from headrace.broker.topic import Topic, TopicConfig
from headrace.clock import Clock
from headrace.registry.routes import MasterAddresses, Registration, TopicData
from headrace.remoting import registration
from headrace.remoting.codec import decode_command, encode_response
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.registration import BrokerIdentity, Registrar, find_address_problem
from headrace.remoting.registration_table import TopicTable
from headrace.remoting.registry.server import RegistryServer
from headrace.settings import BrokerSettings, RegistrySettings

RULES = parse_rules(
    {"users": [{"name": "root", "access_key": "root-key", "secret_key": "root-secret", "admin": True}]}, "test"
)


@dataclass
class Table:
    """A broker's topics."""

    topics: dict[str, Topic] = field(default_factory=dict)
    topic_version: DataVersion = field(default_factory=lambda: DataVersion(1000, 1))
    permission: int = 6

    def put(self, name: str, config: TopicConfig | None = None, *, ephemeral: bool = False) -> None:
        self.topics[name] = Topic(name, [], ephemeral=ephemeral, paused=False, frozen=None, config=config)
        self.topic_version = self.topic_version.next(1001)


@pytest.fixture
def table() -> Table:
    table = Table()
    table.put("TBW102", TopicConfig(8, 8, 7))
    table.put("T", TopicConfig(4, 2, 6, 1))
    table.put("t#ephemeral", ephemeral=True)
    table.put("%SYS%CONTROL")
    table.put("with.dot")
    return table


def identity(address: str = "127.0.0.1:10911") -> BrokerIdentity:
    return BrokerIdentity(cluster="C", name="broker-a", address=address)


def registrar(table: Table, *registries: str, interval_ms: int = 30_000, user: User | None = None) -> Registrar:
    return Registrar(
        table, identity(), registries, interval_ms=interval_ms, permission=lambda: table.permission, user=user
    )


@contextlib.asynccontextmanager
async def registry(address: str = "127.0.0.1:0", **options: object) -> AsyncIterator[RegistryServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=Path(folder), **options)  # type: ignore[arg-type]
        await server.start(address)
        try:
            yield server
        finally:
            await server.stop()


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # it is about a table, which tells nobody
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_broker_and_its_topics_are_registered_with_every_registry(table: Table) -> None:
    """A-BROKER-02, A-BROKER-03, X-REG-02, X-REG-05. What RocketMQ's clients cannot name is left out."""

    async def test() -> None:
        async with registry() as one, registry() as two:
            broker = registrar(table, one.address, two.address)
            await broker.start()
            for server in (one, two):
                assert sorted(server.routes.topics) == ["T", "TBW102"]
                live = server.routes.live["127.0.0.1:10911"]
                assert (live.name, live.broker_id, live.ha_address) == ("broker-a", 0, "127.0.0.1:10912")
                assert (live.version.timestamp_ms, live.version.counter) == (1001, table.topic_version.counter)
                queue = server.routes.topics["T"]["broker-a"]
                assert (queue.read_queues, queue.write_queues, queue.perm, queue.sys_flag) == (4, 2, 6, 1)
            await broker.stop()

    run(test)


def test_stopping_broker_says_goodbye(table: Table) -> None:
    """remoting.md 4.8.1, code 104."""

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            await broker.stop()
            assert server.routes.live == {}
            assert server.counters.brokers_lost == 0
            assert server.counters.requests[RequestCode.UNREGISTER_BROKER] == 1

    run(test)


def test_registry_that_stops_has_lost_no_broker(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Each stop of a registry warned of every broker, as of one that dies."""

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            await server.stop()
            assert server.counters.brokers_lost == 0
            await broker.stop()

    run(test)
    assert "broker lost" not in caplog.text


def test_changed_topics_are_registered_at_once_and_together(table: Table) -> None:
    """A-BROKER-22, issue 4 item 3: immediate registration; a burst costs few."""

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            for number in range(100):
                table.put(f"new-{number}")
                broker.topics_changed()
            await wait_until(lambda: "new-99" in server.routes.topics)
            assert server.counters.registrations == 2
            del table.topics["new-0"]
            table.topic_version = table.topic_version.next(1002)
            broker.topics_changed()
            await wait_until(lambda: "new-0" not in server.routes.topics)
            assert "new-1" in server.routes.topics
            await broker.stop()

    run(test)


def test_who_waits_for_a_change_is_told_when_the_registry_has_it(table: Table) -> None:
    """A tool that made a topic asks for its route next."""

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            known: list[bool] = []
            table.put("New")
            assert broker.announce(["New"], lambda: known.append("New" in server.routes.topics)) == 1
            assert broker.announce(["None"], lambda: known.append(False)) == 0
            await wait_until(lambda: known)
            assert known == [True]
            await broker.stop()

    run(test)


def test_registration_is_repeated(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-BROKER-03, A-REG-14: each says the same as the one before."""

    async def test() -> None:
        async with registry() as server:
            seen = []
            register = server.routes.register

            def note(said: Registration, owner: Hashable, now_ms: int) -> MasterAddresses | None:
                seen.append((said.cluster, said.broker_name, said.broker_id, said.address, dict(said.topics())))
                return register(said, owner, now_ms)

            monkeypatch.setattr(server.routes, "register", note)
            broker = registrar(table, server.address, interval_ms=20)
            await broker.start()
            await wait_until(lambda: broker.links[0].registrations >= 3)
            topics = {"T": TopicData(4, 2, 6, 1), "TBW102": TopicData(8, 8, 7)}
            assert seen[:3] == [("C", "broker-a", 0, "127.0.0.1:10911", topics)] * 3
            await broker.stop()

    run(test)


def test_time_between_two_registrations_is_the_setting_s(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-BROKER-03, A-BROKER-22: 30 s, in which a change is waited for."""
    waits: list[float | None] = []
    timeout = asyncio.timeout

    def note(delay: float | None) -> asyncio.Timeout:
        waits.append(delay)
        return timeout(delay)

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address, interval_ms=BrokerSettings().registration_interval_ms)
            monkeypatch.setattr(asyncio, "timeout", note)
            await broker.start()
            await wait_until(lambda: 30.0 in waits)
            assert broker.links[0].registrations == 1
            await broker.stop()

    run(test)


def test_restarted_registry_gets_the_topics_back(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-REG-04, A-REG-20: a restart is healed by the brokers; here at once, since their connection broke."""
    monkeypatch.setattr(registration, "FIRST_PAUSE_S", 0.02)

    async def test() -> None:
        async with registry() as server:
            address = server.address
            broker = registrar(table, address)
            await broker.start()
        link = broker.links[0]
        await wait_until(lambda: link.failures)
        assert not link.is_registered
        async with registry(address) as server:
            await wait_until(lambda: "T" in server.routes.topics)
            await wait_until(lambda: link.is_registered)
            assert link.last_error == ""
            await broker.stop()

    run(test)


def test_registry_that_is_not_there_is_asked_for_again_and_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-REG-20: when it is back after a long time it knows the broker before it tells clients who is there."""
    monkeypatch.setattr(registration, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(registration, "ABSENT_PAUSE_S", 0.02)

    async def test() -> None:
        broker = registrar(table, "127.0.0.1:1")
        await broker.start()
        await asyncio.sleep(0.5)  # time for six tries whose pauses double
        assert broker.links[0].failures > 10
        await broker.stop()

    run(test)


def test_registry_that_hangs_up_after_each_registration_is_not_stormed(table: Table) -> None:
    """A-BROKER-03: a broken proxy in front of a registry must not cost a core."""

    async def test() -> None:
        connections = 0

        async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            size = int.from_bytes(await reader.readexactly(4), "big")
            request = decode_command(size.to_bytes(4, "big") + await reader.readexactly(size))
            writer.write(encode_response(request.serialize, request.opaque, 0))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()[:2]
            broker = registrar(table, f"{host}:{port}")
            await broker.start()
            await wait_until(lambda: connections >= 2)
            await asyncio.sleep(0.3)
            assert connections <= 3
            await broker.stop()

    run(test)


def test_lost_connection_is_replaced_at_once(table: Table) -> None:
    """To the registry a broker goes with its connection (A-REG-16)."""

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            for connection in server.connections:
                connection.abort("test")
            await wait_until(lambda: broker.links[0].registrations == 2)
            assert "T" in server.routes.topics
            await broker.stop()

    run(test)


def test_connection_on_which_a_registration_is_not_answered_is_replaced(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-BROKER-02, remoting.md 5.1: what lies between may have forgotten it, and neither end is told."""
    monkeypatch.setattr(registration, "FIRST_PAUSE_S", 0.5)
    monkeypatch.setattr(registration, "TIMEOUT_S", 0.1)

    async def test() -> None:
        connections = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            is_first, requests = connections == 1, 0
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    request = decode_command(size.to_bytes(4, "big") + await reader.readexactly(size))
                    requests += 1
                    if requests == 1 or not is_first:
                        writer.write(encode_response(request.serialize, request.opaque, 0))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()[:2]
            broker = registrar(table, f"{host}:{port}", interval_ms=20)
            await broker.start()
            link = broker.links[0]
            await wait_until(lambda: link.failures == 1)
            assert connections == 1, "it may only be late"
            await wait_until(lambda: link.failures == 2)
            given_up = time.monotonic()
            await wait_until(lambda: connections == 2)
            assert time.monotonic() - given_up < 0.5, "until then the registry may know no broker"
            taken = link.registrations
            await wait_until(lambda: link.registrations > taken + 2)
            assert (connections, link.failures, link.is_registered) == (2, 2, True)
            await broker.stop()

    run(test)


def test_registry_that_does_not_answer_holds_up_no_other(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """X-REG-07: brokers keep trying; one warning, not one for each try."""
    monkeypatch.setattr(registration, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(registration, "LONGEST_PAUSE_S", 0.02)

    async def test() -> None:
        with socket.socket() as dead:
            dead.bind(("127.0.0.1", 0))
            nobody = f"127.0.0.1:{dead.getsockname()[1]}"
            async with registry() as server:
                broker = registrar(table, nobody, server.address)
                await broker.start()
                assert "T" in server.routes.topics
                await wait_until(lambda: broker.links[0].failures > 3)
                assert nobody in broker.links[0].last_error
                await broker.stop()

    run(test)
    assert caplog.text.count("registration failed") == 1


def test_refused_registration_is_a_failure_with_the_registry_s_words(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """Access control at the registry: without a key the broker says what is wrong."""

    async def test() -> None:
        async with registry(rules=RULES) as server:
            broker = registrar(table, server.address)
            await broker.start()
            assert server.routes.live == {}
            assert "REGISTER_BROKER from 127.0.0.1 is not signed" in broker.links[0].last_error
            await broker.stop()
            signing = registrar(table, server.address, user=RULES.named("root"))
            await signing.start()
            assert "T" in server.routes.topics
            await signing.stop()
            assert server.routes.live == {}

    run(test)
    assert "code 16" in caplog.text
    assert "access.broker_user must name" in caplog.text


def test_broker_that_must_not_be_written_to_registers_so(table: Table) -> None:
    """The permission of the whole broker takes bits from every topic's, and makes a new version."""

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            before = server.routes.live["127.0.0.1:10911"].version
            for permission, expected in ((4, (4, 5)), (6, (6, 7))):
                table.permission = permission
                broker.topics_changed()
                await wait_until(lambda: server.routes.topics["T"]["broker-a"].perm == expected[0])  # noqa: B023
                assert server.routes.topics["TBW102"]["broker-a"].perm == expected[1]
            assert server.routes.live["127.0.0.1:10911"].version.counter == before.counter + 2
            await broker.stop()

    run(test)


def test_unchanged_body_is_not_encoded_again(table: Table) -> None:
    """20,000 topics every 30 s; a changed one costs only itself."""
    topics = TopicTable(table, lambda: 6)
    body = asyncio.run(topics.encode())
    assert asyncio.run(topics.encode()) is body
    pieces = dict(topics._pieces)
    table.put("U")
    wrapper = json.loads(asyncio.run(topics.encode()))["topicConfigSerializeWrapper"]
    assert sorted(wrapper["topicConfigTable"]) == ["T", "TBW102", "U"]
    assert wrapper["dataVersion"] == table.topic_version.to_fields()
    assert topics._pieces["T"] is pieces["T"]


def test_many_topics_are_encoded_a_few_at_a_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is not held, and two registries do not mix; what changes meanwhile goes with the next registration."""
    monkeypatch.setattr("headrace.remoting.registration_table.ENCODED_AT_ONCE", 10)
    for number in range(100):
        table.put(f"Many{number}")
    version = table.topic_version
    topics = TopicTable(table, lambda: 6)

    async def test() -> None:
        first, second = (asyncio.create_task(topics.encode()) for _ in range(2))
        turns = 0
        while not first.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 3:
                table.put("Late")
                del table.topics["Many99"]
        assert turns > 10
        found = [json.loads(body)["topicConfigSerializeWrapper"] for body in (await first, await second)]
        assert found[0]["dataVersion"] == version.to_fields()
        assert found[1]["dataVersion"] == table.topic_version.to_fields()
        names = {"T", "TBW102", *(f"Many{number}" for number in range(99))}
        assert found[0]["topicConfigTable"].keys() == {*names, "Many99"}
        assert found[1]["topicConfigTable"].keys() == {*names, "Late"}

    run(test)


def test_a_topic_that_is_announced_while_all_are_encoded_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A-BROKER-21: whoever had it made asks for its route next; what names all topics has it, or would take it back."""
    monkeypatch.setattr("headrace.remoting.registration_table.ENCODED_AT_ONCE", 1)
    for number in range(100):
        table.put(f"Many{number}")

    async def test() -> None:
        async with registry() as server:
            broker = registrar(table, server.address)
            await broker.start()
            link, topics = broker.links[0], broker._table
            table.put("First")
            broker.topics_changed()
            while not topics._encoding.locked():  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0)
            for name in ("New", "Gone"):
                table.put(name)
                broker.topics_changed()
                broker.announce([name], lambda: None)
            del table.topics["Gone"]
            before = link.registrations
            while link.registrations == before:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0)
            assert {"First", "New"} <= server.routes.topics.keys()
            assert "Gone" not in server.routes.topics
            await broker.stop()

    run(test)


def test_address_that_clients_cannot_use_is_explained() -> None:
    """Issue 4, item 4: the advertised address is checked for reachability at registration."""

    async def test() -> None:
        async with registry() as server:
            assert "no RocketMQ broker" in await find_address_problem(server.address, ["127.0.0.1:9876"])
            assert "every client to its own" in await find_address_problem(server.address, ["192.0.2.1:9876"])
            address = server.address
        for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\x04\0\0\0\0"):

            async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
                writer.write(answer)
                writer.close()

            async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
                port = other.sockets[0].getsockname()[1]
                found = await find_address_problem(f"127.0.0.1:{port}", [])
                assert "RocketMQ broker" in found, answer
        assert "cannot be reached from here" in await find_address_problem(address, [])
        nowhere = "127.0.0.1:0"  # what clients up to 4.4 make of port 2
        assert "cannot be reached from here" in await find_address_problem(nowhere, [])

    run(test)


def test_address_of_a_process_that_is_stopped_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes the connection; the words were those of an address that leads nowhere."""
    monkeypatch.setattr("headrace.remoting.registration.REACH_S", 0.1)

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as stopped:
            found = await find_address_problem(f"127.0.0.1:{stopped.getsockname()[1]}", [])
        assert "is reached from here, but answers nothing within 0.1 s: its process hangs or is stopped" in found

    run(test)


@pytest.mark.parametrize(
    ("code", "body", "problem"),
    [
        (0, b"brokerClusterName=C\nbrokerName=broker-a\n", ""),
        (0, b"brokerIP1=10.0.0.1\nbrokerName=broker-b\n", "leads to another broker, 'broker-b', and not to broker-a"),
        (0, b"", ""),
        (ResponseCode.NO_PERMISSION, b"", ""),
    ],
)
def test_address_of_another_broker_is_a_problem(code: int, body: bytes, problem: str) -> None:
    """A settings file that was copied: the registry drops the broker whose address it is."""

    async def test() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(encode_response(0, 1, code, None, None, body))
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            found = await find_address_problem(f"127.0.0.1:{port}", [], name="broker-a")
            assert problem in found
            assert bool(found) is bool(problem)

    run(test)


def test_wrong_advertised_address_is_one_warning(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """remoting.md section 8: checked and logged at start."""

    async def test() -> None:
        with socket.socket() as dead:
            dead.bind(("127.0.0.1", 0))
            name = identity(f"127.0.0.1:{dead.getsockname()[1]}")
            async with registry() as server:
                broker = Registrar(table, name, [server.address], interval_ms=20)
                await broker.start()
                await wait_until(lambda: "clients may not find" in caplog.text)
                await wait_until(lambda: broker.links[0].registrations > 2)
                await broker.stop()

    with caplog.at_level(logging.WARNING):
        run(test)
    assert caplog.text.count("clients may not find this broker") == 1
    assert "remoting.advertised_address" in caplog.text


def test_an_address_that_the_machine_has_no_more_is_one_warning(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """It went on registering the old one, and nothing said so; and one where no route leads outwards for a while."""
    hosts = ["127.0.0.1", "10.0.0.7", "10.0.0.7", "", "10.0.0.7", "127.0.0.1", "127.0.0.1", "10.0.0.8"]

    async def test() -> None:
        async with registry() as server:
            broker = Registrar(
                table, identity(), [server.address], interval_ms=1, find_host=lambda: hosts.pop(0) if hosts else ""
            )
            await broker.start()
            await wait_until(lambda: not hosts)
            await broker.stop()

    with caplog.at_level(logging.INFO):
        run(test)
    said = [line.rpartition(" address=")[2] for line in caplog.messages if "the address of this machine" in line]
    assert said == ["127.0.0.1:10911 now=10.0.0.7", "127.0.0.1:10911", "127.0.0.1:10911 now=10.0.0.8"]
