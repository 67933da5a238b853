"""`headrace doctor` and nsqlookupds: what NSQ consumers are told, and whether it leads them here."""

from __future__ import annotations

import asyncio
import io
import socket
from pathlib import Path
from urllib.request import Request

import pytest

from headrace.cli import checkup, lookup_checkup
from headrace.cli.findings import Finding
from headrace.cli.lookup_checkup import check_lookupds, find_lookupds, told_address
from headrace.net.address import own_name
from headrace.net.ports import LISTENERS
from headrace.settings import Settings, load_settings
from headrace.testing import RunningBroker
from headrace.testing import broker as running_broker
from tests.support.ports import free_port
from tests.unit.nsq.lookup_peers.scripted_lookupd import run, scripted, serving


def settings(**flags: str) -> Settings:
    """Return settings of a broker without a registry in its process."""
    pairs = [(f"--nsq.{name.replace('_', '-')}", value) for name, value in flags.items()]
    return load_settings(environ={}, flags=[("--registry.enabled", "false"), *pairs]).settings


def check(wanted: Settings, *, is_running: bool = False) -> list[tuple[str, str]]:
    findings = asyncio.run(check_lookupds(wanted, is_running=is_running))
    return [(finding.status, finding.text) for finding in findings]


def test_without_nsqlookupds_nothing_is_said() -> None:
    """And what consumers would be told is there all the same."""
    assert check(settings()) == []
    assert find_lookupds(settings()) == []
    assert told_address(settings()) == "127.0.0.1:4150"
    assert told_address(settings(tcp_address="0.0.0.0:4150")) == f"{own_name()}:4150"
    told = settings(broadcast_address="proxy.example", broadcast_tcp_port="14150")
    assert told_address(told) == "proxy.example:14150"
    assert told_address(settings(broadcast_address="::1")) == "[::1]:4150"


def test_the_registry_of_the_own_process_is_a_nsqlookupd() -> None:
    """It comes with the broker, so nobody need be there yet."""
    nobody = f"127.0.0.1:{free_port()}"
    own = load_settings(environ={}, flags=[("--registry.nsq-tcp-address", nobody)]).settings
    assert find_lookupds(own) == [nobody]
    (status, text), _ = check(own)
    assert status == "warning"
    assert text.startswith(f"no connection to {nobody}: ")
    assert text.endswith("; it runs inside headrace serve")


def test_a_default_address_that_another_has_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` does without it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_tcp_address": address})
        listeners = {"nsqlookupd_tcp": address, "nsq_tcp": f"127.0.0.1:{free_port()}"}
        for is_answering in (True, False):
            running = {"nsqlookupd_tcp": is_answering, "nsq_tcp": False}
            free, taken = checkup.check_listeners(listeners, running)
            assert free.status == "ok"
            assert taken.status == "warning"
            assert taken.text.endswith("; serve does without it")


def test_an_address_that_was_set_goes_before_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a start, which does without the other."""
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_http_address": address})
    listeners = {"nsqlookupd_http": address, "admin": address}
    found = {finding.name: finding for finding in checkup.check_listeners(listeners, dict.fromkeys(listeners, False))}
    assert found["admin"].status == "ok"
    assert found["nsqlookupd_http"].status == "warning"
    assert "is taken by another listener of this process" in found["nsqlookupd_http"].text


def test_a_broker_that_does_without_a_default_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had the address may have gone since; the store is this broker's all the same."""
    with running_broker(store__data_dir=tmp_path / "store", registry__nsq_tcp_address="") as running:
        default = f"127.0.0.1:{free_port()}"
        monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_tcp_address": default})
        flags = [("--data-dir", str(tmp_path / "store")), ("--registry.nsq-tcp-address", default)]
        flags += [
            (f"--{LISTENERS[name].replace('_', '-')}", address)
            for name, address in running.listeners.items()
            if name in LISTENERS
        ]
        report = checkup.run_checkup(load_settings(environ={}, flags=flags).settings)
        assert [finding.text for finding in report.findings if finding.status == "problem"] == []


def test_what_answers_in_the_place_of_the_own_registry_is_asked_whom_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does without a default that another has: then consumers of that one are told of others only.

    Past a proxy that the environment names.
    """
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("urllib.request._opener", None)  # else it has looked at the environment before

    def look(owner: RunningBroker, tcp_address: str) -> tuple[str, str]:
        flags = [
            ("--nsq.tcp-address", tcp_address),
            ("--registry.nsq-tcp-address", owner.listeners["nsqlookupd_tcp"]),
            ("--registry.nsq-http-address", owner.listeners["nsqlookupd_http"]),
        ]
        return check(load_settings(environ={}, flags=flags).settings, is_running=True)[0]

    with running_broker() as one, running_broker() as other:
        status, text = look(one, one.nsq_tcp)
        assert (status, f"sends consumers to {one.nsq_tcp}" in text) == ("ok", True)
        status, text = look(other, one.nsq_tcp)
        assert (status, "it is another program's" in text) == ("warning", True)


def test_nodes_are_asked_for_without_the_old_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as long again, and what is read has a bound."""
    asked: list[str | None] = []

    def answer(request: Request, **_: object) -> io.BytesIO:
        asked.append(request.get_header("Accept"))
        return io.BytesIO(b'{"producers":[{"broadcast_address":"b","tcp_port":1}]}')

    monkeypatch.setattr(lookup_checkup, "open_directly", answer)
    assert lookup_checkup._read_nodes("h:4161") == {"b:1"}
    assert asked == ["application/vnd.nsq; version=1.0"]


def test_the_own_registry_by_another_address() -> None:
    """It is told anyway; who names it may think that something is won."""
    with running_broker(registry__nsq_tcp_address="0.0.0.0:0") as running:
        listener = running.listeners["nsqlookupd_tcp"]
        other = f"127.0.0.2:{listener.rpartition(':')[2]}"
        flags = [("--registry.nsq-tcp-address", listener), ("--nsq.lookupd-addresses", other)]
        found = check(load_settings(environ={}, flags=flags).settings)
        assert found[1][0] == "ok"
        assert found[1][1].startswith(f"{other} leads to the port of the registry in the broker's own process")
        assert found[1][1].endswith(": leave it out of nsq.lookupd_addresses")


def test_a_name_of_a_default_port_that_another_may_have_is_not_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a nsqlookupd has it, a start does without its own, and nobody told that one any more."""
    with running_broker(registry__nsq_tcp_address="0.0.0.0:0") as running:
        listener = running.listeners["nsqlookupd_tcp"]
        monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_tcp_address": listener})
        other = f"127.0.0.2:{listener.rpartition(':')[2]}"
        flags = [("--registry.nsq-tcp-address", listener), ("--nsq.lookupd-addresses", other)]
        found = check(load_settings(environ={}, flags=flags).settings)
        assert found[1][0] == "ok"
        assert found[1][1].endswith("; keep it in nsq.lookupd_addresses if another program has the port")


def test_a_broker_without_nsq_is_announced_to_nobody() -> None:
    """Somebody thinks that it is."""
    ((status, text),) = check(settings(tcp_address="", lookupd_addresses="127.0.0.1:4160"))
    assert (status, "of no use" in text) == ("warning", True)
    assert told_address(settings(enabled="false")) is None
    assert check(settings(enabled="false")) == []


def test_a_nsqlookupd_that_answers() -> None:
    """It is asked with a PING, which changes nothing."""

    async def test() -> None:
        async with scripted() as lookupd:
            wanted = settings(lookupd_addresses=lookupd.address, broadcast_address="127.0.0.1")
            findings = await check_lookupds(wanted, is_running=False)
            assert findings == [
                Finding("ok", "nsqlookupd", f"{lookupd.address} answers"),
                Finding(
                    "ok",
                    "nsqlookupd",
                    "consumers are told 127.0.0.1:4150; start the broker to see whether it is reachable",
                ),
            ]
            assert (lookupd.commands, lookupd.identities) == (["PING"], [])

    run(test)


def test_a_nsqlookupd_that_is_not_there() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    (status, text), _ = check(settings(lookupd_addresses=nobody, broadcast_address="127.0.0.1"))
    assert status == "problem"
    assert text.startswith(f"no connection to {nobody}: ")
    assert text.endswith("; see nsq.lookupd_addresses")


@pytest.mark.parametrize("sent", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\0"])
def test_what_is_no_nsqlookupd(sent: bytes) -> None:
    """Its HTTP port is easily taken for the other one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await reader.read(100)

    async def test() -> None:
        async with serving(answer) as address:
            wanted = settings(lookupd_addresses=address, broadcast_address="127.0.0.1")
            finding = (await check_lookupds(wanted, is_running=False))[0]
            assert finding.status == "problem"
            assert finding.text.startswith(f"{address} is no nsqlookupd, or not its TCP port (4160): ")

    run(test)


def test_a_loopback_address_told_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads every consumer to its own machine; so does a host name that is 127.0.1.1 here, as Debian has it."""
    monkeypatch.setattr(lookup_checkup, "ANSWER_S", 0.05)  # nobody is there
    for told in ("127.0.0.1", "localhost"):
        text = check(settings(lookupd_addresses="192.0.2.1:4160", broadcast_address=told))[-1]
        assert text[0] == "warning"
        assert text[1].startswith(f"192.0.2.1:4160 tells consumers {told}:4150, which leads each to its own machine")
        assert text[1].endswith("set nsq.broadcast_address to what consumers reach")


def test_a_name_that_is_none() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    status, text = check(settings(lookupd_addresses=nobody, broadcast_address="no.such.host.invalid"))[-1]
    assert status == "warning"
    assert "this machine finds no address of that name" in text


def test_a_port_that_is_chosen_at_the_start() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    wanted = settings(lookupd_addresses=nobody, broadcast_address="127.0.0.1", tcp_address="127.0.0.1:0")
    assert "chosen at the start (port 0)" in check(wanted)[-1][1]


def test_a_broker_without_http() -> None:
    """nsq.md 4.1: http_port is required."""
    nobody = f"127.0.0.1:{free_port()}"
    wanted = settings(lookupd_addresses=nobody, broadcast_address="127.0.0.1", http_address="")
    assert [text for status, text in check(wanted)[1:] if status == "problem"] == [
        "nsqlookupds refuse a broker without HTTP: set nsq.http_address, or nsq.broadcast_http_port"
    ]
    wanted = settings(
        lookupd_addresses=nobody, broadcast_address="127.0.0.1", http_address="", broadcast_http_port="4151"
    )
    assert len(check(wanted)) == 2


def test_an_address_that_is_reached_and_one_that_is_not() -> None:
    """Of a broker that runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        nobody = f"127.0.0.1:{free_port()}"
        told = {"lookupd_addresses": nobody, "broadcast_address": "127.0.0.1"}
        wanted = settings(**told, broadcast_tcp_port=str(port))
        reached = ("ok", f"consumers are told 127.0.0.1:{port}, which is reached from here")
        assert check(wanted, is_running=True)[-1] == reached
        status, text = check(settings(**told, broadcast_tcp_port=str(free_port())), is_running=True)[-1]
        assert (status, "is not reached from here" in text) == ("warning", True)


def test_the_report_of_a_running_broker(tmp_path: Path) -> None:
    """What is told is in it."""
    with running_broker(store__data_dir=tmp_path / "store") as running:
        nobody = f"127.0.0.1:{free_port()}"
        flags = [
            ("--data-dir", str(tmp_path / "store")),
            ("--nsq.tcp-address", running.listeners["nsq_tcp"]),
            ("--nsq.http-address", running.listeners["nsq_http"]),
            ("--nsq.broadcast-address", "127.0.0.1"),
            ("--nsq.lookupd-addresses", nobody),
            ("--registry.nsq-tcp-address", running.listeners["nsqlookupd_tcp"]),
            ("--registry.nsq-http-address", running.listeners["nsqlookupd_http"]),
        ]
        report = checkup.run_checkup(load_settings(environ={}, flags=flags).settings)
    assert report.told["nsq_address"] == running.listeners["nsq_tcp"]
    assert report.told["nsqlookupds"] == [running.listeners["nsqlookupd_tcp"], nobody]
    said = [finding for finding in report.findings if finding.name == "nsqlookupd"]
    assert [finding.status for finding in said] == ["ok", "problem", "ok"]
