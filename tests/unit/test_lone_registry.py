"""A registry by itself, in this process: its admin port from the start to the end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import ConfigError, StoreError, StoreLockedError
from headrace.lone_registry import LoneRegistry
from headrace.settings import RegistrySettings, Settings, StoreSettings
from tests.support.ports import free_port
from tests.support.registries import ask

LISTENERS = ["registry", "nsqlookupd_tcp", "nsqlookupd_http", "admin"]


def settings(folder: Path, **registry: Any) -> Settings:
    """Settings whose listeners have ports that are chosen at the start, unless they are named."""
    free = dict.fromkeys(("address", "nsq_tcp_address", "nsq_http_address", "admin_address"), "127.0.0.1:0")
    return Settings(store=StoreSettings(data_dir=folder), registry=RegistrySettings(**{**free, **registry}))


@asynccontextmanager
async def running(wanted: Settings, *, free_ports: bool = False) -> AsyncIterator[LoneRegistry]:
    made = LoneRegistry(wanted, free_ports=free_ports)
    made.open()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def asked(registry: LoneRegistry, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(ask, registry.listeners["admin"], path)


def test_paths_of_the_admin_port(tmp_path: Path) -> None:
    """As a broker's; what only a broker has is not there, and a sentence says so."""

    async def scenario() -> None:
        async with running(settings(tmp_path)) as registry:
            assert await asked(registry, "/healthz") == (200, "ok\n")
            assert await asked(registry, "/readyz") == (200, "ready\n")
            index = msgspec.json.decode((await asked(registry, "/"))[1])
            assert index["listeners"] == registry.listeners
            assert list(registry.listeners) == LISTENERS
            assert (index["phase"], index["data_dir"]) == ("ready", str(tmp_path))
            for path in ("/stats", "/config/log_level", "/topic/create", "/lookup", "/readyz/"):
                status, text = await asked(registry, path)
                assert status == 404
                assert text == (
                    "not here: this admin port has /, /healthz, /readyz and /metrics; nsqlookupd's API is on "
                    "registry.nsq_http_address, and what only a broker has on a broker\n"
                )

    asyncio.run(scenario())


def test_the_admin_port_says_stopping_while_connections_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-LIFE-11: a load balancer has to find out; the port closes behind all others."""

    async def scenario() -> None:
        async with running(settings(tmp_path)) as registry:
            goes_on = asyncio.Event()
            stop = registry.registry.stop

            async def stop_slowly() -> None:
                await goes_on.wait()
                await stop()

            monkeypatch.setattr(registry.registry, "stop", stop_slowly)
            stopping = asyncio.ensure_future(registry.stop())
            await asyncio.sleep(0)
            assert await asked(registry, "/readyz") == (503, "stopping\n")
            assert await asked(registry, "/healthz") == (200, "ok\n")
            goes_on.set()
            await stopping
            with pytest.raises(OSError, match="refused"):
                await asked(registry, "/readyz")
            monkeypatch.undo()

    asyncio.run(scenario())


def test_a_server_that_does_not_stop_keeps_none_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-LIFE-11: its error is told when all have had their end."""

    async def scenario() -> None:
        made = LoneRegistry(settings(tmp_path))
        made.open()
        await made.start()
        assert made.lookupd is not None

        async def fail() -> None:
            raise OSError("no end")

        monkeypatch.setattr(made.lookupd, "stop", fail)
        with pytest.raises(OSError, match="no end"):
            await made.stop()
        again = LoneRegistry(settings(tmp_path))
        again.open()  # the folder is free
        again.registry.release()
        again._close_sockets()
        for name in ("registry", "admin"):
            with pytest.raises(OSError, match="refused"):
                await asyncio.to_thread(ask, made.listeners[name], "/")
        monkeypatch.undo()
        await made.lookupd.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["", "127.0.0.1:0"])
def test_an_admin_port_may_be_off_or_chosen(tmp_path: Path, address: str) -> None:
    """Empty = not at all, port 0 = a free one, as every listener."""

    async def scenario() -> None:
        async with running(settings(tmp_path, admin_address=address)) as registry:
            assert ("admin" in registry.listeners) == bool(address)
            assert (registry.admin is not None) == bool(address)

    asyncio.run(scenario())


def test_free_ports_are_for_the_admin_port_too(tmp_path: Path) -> None:
    """Though its address is set and taken."""

    async def scenario(taken: str) -> None:
        async with running(settings(tmp_path, admin_address=taken), free_ports=True) as registry:
            assert registry.listeners["admin"] != taken
            assert (await asked(registry, "/readyz"))[0] == 200

    with socket.create_server(("127.0.0.1", 0)) as other:
        asyncio.run(scenario(f"127.0.0.1:{other.getsockname()[1]}"))


def test_a_taken_default_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second registry on a machine has worked before there was an admin port; an address that was set is refused."""

    async def scenario(taken: str) -> None:
        async with running(settings(tmp_path, admin_address=taken)) as registry:
            assert list(registry.listeners) == LISTENERS[:-1]

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"is taken by another program; .*--registry\.admin-address"):
            LoneRegistry(settings(tmp_path, admin_address=taken)).open()
        assert not (tmp_path / "namesrv").exists()
        monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.admin_address": taken})
        asyncio.run(scenario(taken))
    assert f"its default address is taken name=admin address={taken} remedy=set registry.admin_address" in caplog.text


def test_what_was_set_goes_before_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings may name one port: the start does without the default, as a broker's."""
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_tcp_address": address})

    async def scenario() -> None:
        async with running(settings(tmp_path, nsq_tcp_address=address, admin_address=address)) as registry:
            assert list(registry.listeners) == ["registry", "nsqlookupd_http", "admin"]

    asyncio.run(scenario())


def test_without_nsqlookupd_there_are_no_families_of_it(tmp_path: Path) -> None:
    """They would be 0 for ever."""

    async def scenario() -> None:
        async with running(settings(tmp_path, nsq_tcp_address="", nsq_http_address="")) as registry:
            assert registry.lookupd is None
            text = (await asked(registry, "/metrics"))[1]
            assert "headrace_registry_brokers 0.0" in text
            assert "headrace_registry_nsq" not in text
            assert "nsqlookupd" not in text

    asyncio.run(scenario())


def test_an_admin_port_for_others_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a broker's: nobody is asked who he is."""
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        async with running(settings(tmp_path, admin_address="0.0.0.0:0")):
            pass

    asyncio.run(scenario())
    (line,) = [message for message in caplog.messages if message.startswith("listening without")]
    assert "whoever reaches the port can use it protocol=admin" in line


@pytest.mark.provokes_bugs
def test_descriptors_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-LIFE-12: connections are closed unanswered where there are none; nobody looked in a registry by itself."""
    monkeypatch.setattr("headrace.lone_registry.FILES_LOOK_SECONDS", 0.01)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("a bug")

    async def scenario() -> None:
        made = LoneRegistry(settings(tmp_path))
        monkeypatch.setattr(made._files, "look", look)
        made.open()
        await made.start()
        while looks < 3:  # noqa: ASYNC110  # a look has no event
            await asyncio.sleep(0.01)
        await made.stop()
        at_the_end = looks
        await asyncio.sleep(0.05)
        assert looks == at_the_end

    asyncio.run(scenario())


def test_a_folder_that_takes_no_files_refuses_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-LIFE-05: with a lock file of its own in another user's folder it started, and could keep no ordered topic."""
    folder = tmp_path / "namesrv"
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != folder or not mode & os.W_OK)  # root may always
    with pytest.raises(StoreError, match=r"cannot write to .*namesrv: Permission denied; make it writable"):
        LoneRegistry(settings(tmp_path)).open()
    monkeypatch.undo()
    made = LoneRegistry(settings(tmp_path))
    made.open()  # nobody has the lock
    made.registry.release()
    made._close_sockets()


def test_a_lock_file_that_was_removed_does_not_let_another_in(tmp_path: Path) -> None:
    """docs/running.md: removing the file does not help; each would write over the ordered topics of the other."""
    first = LoneRegistry(settings(tmp_path))
    first.open()
    try:
        (tmp_path / "namesrv" / "lock").unlink()
        with pytest.raises(StoreLockedError, match=r"in use by another registry, whose lock file was removed; stop"):
            LoneRegistry(settings(tmp_path)).open()
    finally:
        first.registry.release()
        first._close_sockets()


def test_a_second_start_is_told_of_the_first_not_of_its_ports(tmp_path: Path) -> None:
    """C-LIFE-06: with the same settings it found port 9876 "taken by another program", which is the first registry."""
    names = ("address", "nsq_tcp_address", "nsq_http_address", "admin_address")
    addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
    first = LoneRegistry(settings(tmp_path, **addresses))
    first.open()
    try:
        with pytest.raises(StoreLockedError, match=r"namesrv is in use by another registry \(pid \d+\)"):
            LoneRegistry(settings(tmp_path, **addresses)).open()
        with pytest.raises(ConfigError, match="is taken by another listener of this process"):
            LoneRegistry(settings(tmp_path / "other", **addresses)).open()
        assert not (tmp_path / "other").exists()
    finally:
        first.registry.release()
        first._close_sockets()
