"""Starts that fail: each is one sentence that names the thing and the remedy."""

import asyncio
import errno
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from headrace.errors import ConfigError, StoreError, StoreLockedError
from headrace.net.http import HttpLimits
from headrace.net.ports import GUARDED, LISTENERS, bind_port, with_addresses
from headrace.node import Node, run_node
from headrace.remoting.assembly import RemotingAssembly
from headrace.settings import (
    AccessSettings,
    RegistrySettings,
    RemotingSettings,
    Settings,
    StoreSettings,
)
from headrace.settings.validate import VIP_DISTANCE
from headrace.store.store import Store
from headrace.testing import broker
from tests.support.ports import free_port


def _settings(tmp_path: Path) -> Settings:
    return Settings(store=StoreSettings(data_dir=tmp_path / "store", segment_bytes=1 << 20))


def _only_admin(tmp_path: Path, address: str) -> Settings:
    """Settings with one listener, whose address may be taken."""
    return with_addresses(_settings(tmp_path), {"admin": address})


def test_a_broker_without_a_listener_is_refused(tmp_path: Path) -> None:
    """It said that it is ready, with no way in; the text names the settings."""
    with pytest.raises(ConfigError, match="every listener is off, nobody could connect") as refused:
        run_node(_only_admin(tmp_path, ""), free_ports=True, ready_file=None)
    assert all(setting in str(refused.value) for setting in LISTENERS.values())
    assert not (tmp_path / "store").exists()


def test_wrong_access_rules_are_refused_before_a_store_is_made(tmp_path: Path) -> None:
    """With a large store the start recovered for minutes first, and without one two segments were left behind."""
    wrong = replace(_settings(tmp_path), access=AccessSettings(rules_file=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="cannot read the rule file"):
        Node(wrong, free_ports=True).open()
    assert not (tmp_path / "store").exists()


def test_listeners_that_ask_who_sends_a_request_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The doctor goes by the names, a start by what each server does."""
    monkeypatch.setattr("headrace.net.listener.is_loopback", lambda host: False)
    rules = tmp_path / "rules.toml"
    rules.write_text("[[users]]\nname = 'a'\naccess_key = 'a-key'\nsecret_key = 'a-secret'\nadmin = true\n")
    with caplog.at_level("WARNING"), broker(access__rules_file=str(rules), access__broker_user="a") as running:
        listeners = dict(running.listeners)
    lines = [message for message in caplog.messages if message.startswith("listening without TLS")]
    assert len(lines) == len(listeners)
    unasked = {line.rpartition("=")[2] for line in lines if "authentication" in line}
    assert {name for name, address in listeners.items() if address not in unasked} == GUARDED


def test_ready_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    """Before a store is made."""
    with pytest.raises(ConfigError, match=r"--ready-file .* is a directory"):
        run_node(_settings(tmp_path), free_ports=True, ready_file=tmp_path)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling link"])
def test_ready_file_that_is_no_ordinary_file_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    """It is replaced and removed: root would take ``/dev/stdout`` or ``/dev/null`` away from the whole machine."""
    ready = tmp_path / "ready.json"
    if kind == "fifo":
        os.mkfifo(ready)
    else:
        (tmp_path / "theirs").write_text("theirs")
        ready.symlink_to("theirs" if kind == "link" else "nowhere")
    with pytest.raises(ConfigError, match=r"--ready-file .* is no ordinary file; name another"):
        run_node(_settings(tmp_path), free_ports=True, ready_file=ready)
    assert ready.is_symlink() or ready.is_fifo()
    assert not (tmp_path / "store").exists()


def test_ready_file_in_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a store is made. Root may write everywhere, so the kernel's answer is made up."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match=r"--ready-file .* cannot be written"):
        run_node(_settings(tmp_path), free_ports=True, ready_file=tmp_path / "ready.json")
    assert not (tmp_path / "store").exists()


def test_second_start_by_mistake_leaves_the_ready_file_of_the_first(tmp_path: Path) -> None:
    """Whoever waits for the file would think that the broker which serves has gone."""
    ready = tmp_path / "ready.json"
    ready.write_text("the first one's")
    with broker(store__data_dir=tmp_path / "store") as first:
        with pytest.raises(StoreLockedError):
            run_node(_settings(tmp_path), free_ports=True, ready_file=ready)
        elsewhere = replace(_only_admin(tmp_path, first.admin), store=StoreSettings(data_dir=tmp_path / "other"))
        with pytest.raises(ConfigError, match="is taken"):
            run_node(elsewhere, free_ports=False, ready_file=ready)
    assert ready.read_text() == "the first one's"


def test_folder_of_others_is_left_alone_where_a_port_is_taken(tmp_path: Path) -> None:
    """A RocketMQ broker's store has a file ``lock`` too, and its broker the port."""
    theirs = tmp_path / "store" / "lock"
    theirs.parent.mkdir()
    theirs.write_text("lock")
    with broker() as other, pytest.raises(ConfigError, match="is taken"):
        Node(_only_admin(tmp_path, other.admin)).open()
    assert theirs.read_text() == "lock"


@pytest.mark.parametrize("kind", ["file", "link", "device"])
def test_data_directory_that_is_none_is_named(tmp_path: Path, kind: str) -> None:
    """It said "File exists"."""
    path = tmp_path / "store"
    if kind == "file":
        path.write_text("")
    elif kind == "link":
        path.symlink_to(tmp_path / "gone")
    else:
        path = Path("/dev/null")
    settings = replace(_settings(tmp_path), store=StoreSettings(data_dir=path, segment_bytes=1 << 20))
    with pytest.raises(StoreError, match=f"^{path} is no directory; choose another with --data-dir$"):
        Node(settings, free_ports=True).open()


def test_host_that_cannot_be_resolved_is_named() -> None:
    """The resolver's error numbers are not the system's."""
    with pytest.raises(ConfigError, match=r"cannot listen on host\.invalid:4150: (?!Unknown error)"):
        bind_port("host.invalid:4150", "nsq.tcp_address", free_port=False)


def test_two_settings_with_one_port_are_told_so() -> None:
    """Nobody has to look for another program that there is not."""
    with bind_port("127.0.0.1:0", "nsq.tcp_address", free_port=True) as bound:
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        bound.listen(1)
        with pytest.raises(
            ConfigError, match=f"^{address} is taken by another listener of this process; .*--nsq.http-"
        ):
            bind_port(address, "nsq.http_address", free_port=False)


@pytest.mark.parametrize("other", ["admin", "remoting", "remoting_vip"])
def test_an_address_that_was_set_goes_before_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Whoever had a listener at 4161 before the registry had one there starts as before."""
    upper = free_port(below=VIP_DISTANCE)
    port = upper - VIP_DISTANCE if other == "remoting_vip" else upper
    default = f"127.0.0.1:{port}"
    monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.nsq_http_address": default})
    settings = replace(
        _only_admin(tmp_path, default if other == "admin" else ""),
        registry=RegistrySettings(address="", nsq_tcp_address="", nsq_http_address=default),
    )
    if other != "admin":
        settings = replace(settings, remoting=RemotingSettings(address=f"127.0.0.1:{upper}"))
    node = Node(settings, free_ports=False)
    try:
        node._bind_all()
        assert node.listeners[other] == default
        assert "nsqlookupd_http" not in node.listeners
    finally:
        node._close_sockets()


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "make room on its disk"), (errno.EIO, "the disk")])
def test_disk_error_while_the_store_opens_names_store_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """A bare ``[Errno 28] No space left on device`` helps nobody."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Store, "open", fail)
    with pytest.raises(StoreError) as caught:
        Node(_settings(tmp_path), free_ports=True).open()
    text = str(caught.value)
    assert str(tmp_path / "store") in text
    assert os.strerror(number) in text
    assert remedy in text


def test_file_system_that_maps_no_files_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FUSE with direct I/O: it said "No such device; see to the disk", of no file."""

    def refuse(_fd: int, _size: int) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    # Whatever these tests write to: elsewhere the mark is not mapped.
    monkeypatch.setattr("headrace.store.durable_mark.is_overwritten_in_place", lambda _path: True)
    monkeypatch.setattr("headrace.store.durable_mark.mmap.mmap", refuse)
    with pytest.raises(StoreError, match=r"/headrace/durable: No such device; use a file system that maps files"):
        Node(_settings(tmp_path), free_ports=True).open()
    monkeypatch.undo()
    with broker(store__data_dir=tmp_path / "store"):
        pass


@pytest.mark.parametrize(("files", "connections"), [(1024, 64), (4096, 256), (1 << 20, 1024)])
def test_http_peers_cannot_take_the_store_s_files(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    """At 1024 open files, 700 silent HTTP connections had the store fail to open its next segment."""
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (files, files))
    assert HttpLimits.within_open_files().connections == connections


def test_a_start_that_waits_for_a_registry_keeps_time_for_whom_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are served meanwhile: nothing was due for two seconds, nor flushed at level async."""
    wait = RemotingAssembly.start

    async def wait_for_registries(assembly: RemotingAssembly, sockets: dict[str, socket.socket]) -> None:
        ticked, flushed = asyncio.Event(), asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(node.broker, "tick", lambda _read_ms: ticked.set())
            patch.setattr(node.store, "request_flush", flushed.set)
            await asyncio.wait_for(asyncio.gather(ticked.wait(), flushed.wait()), 10)
        await wait(assembly, sockets)

    monkeypatch.setattr(RemotingAssembly, "start", wait_for_registries)
    node = Node(_settings(tmp_path), free_ports=True)
    node.open()

    async def run() -> None:
        try:
            await node.start()
        finally:
            await node.stop()

    asyncio.run(run())


def test_listeners_without_an_address_are_left_out() -> None:
    """Empty = not at all, for each of them."""
    off = {setting.replace(".", "__"): "" for name, setting in LISTENERS.items() if name != "nsq_http"}
    with broker(**off) as running:
        assert list(running.listeners) == ["nsq_http"]
        with urlopen(f"http://{running.nsq_http}/stats?format=json", timeout=10) as answer:
            assert answer.status == 200


def test_a_data_directory_that_is_no_text_is_spelled_where_it_is_shown(tmp_path: Path) -> None:
    """JSON cannot have such bytes: the admin port's page and nsqd's option answered 500."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with broker(store__data_dir=folder) as running:
        for address, path in ((running.admin, "/"), (running.nsq_http, "/config/data_path")):
            with urlopen(f"http://{address}{path}", timeout=10) as answer:
                assert rb"\xff" in answer.read()


@pytest.mark.parametrize("name", ["nsqlookupd_http", "nsq_tcp", "registry", "admin"])
def test_a_start_that_cannot_listen_ends_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Delayed messages may have been delivered by then: behind a start that ended as a kill does they came again."""
    start = Node.start

    async def start_beside_another(node: Node) -> None:
        host, port = node.listeners[name].rsplit(":", 1)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind((host, int(port)))
            other.listen()
            await start(node)

    monkeypatch.setattr(Node, "start", start_beside_another)
    with pytest.raises(ConfigError, match="cannot listen on"):
        run_node(_settings(tmp_path), free_ports=True, ready_file=None)
    assert not (tmp_path / "store" / "abort").exists(), "the end was noted"
    assert "ERROR" not in caplog.text
