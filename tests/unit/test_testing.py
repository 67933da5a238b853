"""headrace.testing: a real broker inside pytest in under half a second."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import testing
from headrace.errors import ConfigError, StoreClosedError, StoreLockedError
from headrace.node import Node
from headrace.settings import TopicSettings
from tests.support.remoting import RemotingSocket, send_fields

RESPONSE, ERROR, MESSAGE = range(3)


class Client:
    """NSQ's protocol by hand: one blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")
        self.send(b"  V2")

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """Return the next frame that is no heartbeat."""
        while True:
            size, kind = struct.unpack(">ii", self._file.read(8))
            data = self._file.read(size - 4)
            if data != b"_heartbeat_":
                return kind, data

    def publish(self, topic: str, body: bytes) -> None:
        self.send(f"PUB {topic}\n".encode() + struct.pack(">i", len(body)) + body)
        assert self.frame() == (RESPONSE, b"OK")

    def subscribe(self, topic: str, channel: str) -> None:
        self.send(f"SUB {topic} {channel}\n".encode())
        assert self.frame() == (RESPONSE, b"OK")
        self.send(b"RDY 10\n")

    def take(self) -> tuple[int, bytes]:
        """Take one message and finish it; return attempts and body."""
        kind, data = self.frame()
        assert kind == MESSAGE
        _, attempts, message_id = struct.unpack_from(">qH16s", data)
        self.send(b"FIN " + message_id + b"\n")
        return attempts, data[26:]

    def close(self) -> None:
        self._file.close()
        self._sock.close()


@contextmanager
def connect(address: str) -> Iterator[Client]:
    host, _, port = address.rpartition(":")
    client = Client(socket.create_connection((host, int(port)), timeout=10))
    try:
        yield client
    finally:
        client.close()


def open_files() -> int:
    folder = Path("/proc/self/fd")  # Linux only
    return len(list(folder.iterdir())) if folder.exists() else 0


def get(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        content: bytes = answer.read()
        return content


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_publish_and_consume(durability: str) -> None:
    with testing.broker(store__durability=durability) as broker:
        with connect(broker.nsq_tcp) as client:
            client.publish("orders", b"one")
        with connect(broker.nsq_tcp) as client:
            client.subscribe("orders", "billing")
            assert client.take() == (1, b"one")


def test_every_listener_answers() -> None:
    with testing.broker() as broker:
        assert get(broker.nsq_http, "/ping") == b"OK"
        assert get(broker.admin, "/readyz").startswith(b"ready")
        assert broker.data_dir.is_dir()


def ask_route(registry: str, topic: str) -> tuple[int, Any]:
    """Ask a registry as RocketMQ clients do."""
    with RemotingSocket(registry) as client:
        header, body = client.call(105, {"topic": topic})
        return header["code"], json.loads(body) if body else None


def test_rocketmq_clients_find_the_broker_through_its_registry() -> None:
    with testing.broker() as broker:
        assert broker.remoting_vip == f"127.0.0.1:{int(broker.remoting.rpartition(':')[2]) - 2}"
        with RemotingSocket(broker.remoting) as client:
            assert client.call(310, send_fields("orders"), b"one")[0]["code"] == 0
        deadline = time.monotonic() + 10
        while (answer := ask_route(broker.registry, "orders"))[0] != 0 and time.monotonic() < deadline:
            time.sleep(0.02)  # the registration that tells of the new topic is under way
        code, route = answer
        assert code == 0
        assert [data["brokerAddrs"]["0"] for data in route["brokerDatas"]] == [broker.remoting]


def test_restart_keeps_the_port_of_every_listener() -> None:
    with testing.broker() as broker:
        before = dict(broker.listeners)
        assert set(before) == {
            "nsq_tcp",
            "nsq_http",
            "remoting",
            "remoting_vip",
            "registry",
            "nsqlookupd_tcp",
            "nsqlookupd_http",
            "admin",
        }
        broker.restart()
        for address in before.values():
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        assert broker.listeners == before


def test_nobody_else_is_given_a_port_while_the_broker_is_down() -> None:
    """Else a test beside this one takes one of them as a free one, now and then, and the broker cannot start again."""
    with testing.broker() as broker:
        broker.stop()
        for address in broker.listeners.values():
            where = ("127.0.0.1", int(address.rpartition(":")[2]))
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(where, timeout=10)
            # A free port is one that can be bound in this way.
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(where)
        broker.start()


def test_nothing_stays_behind() -> None:
    with testing.broker():
        pass  # whatever is loaded or cached on first use is there now
    threads, files = set(threading.enumerate()), open_files()
    with testing.broker() as broker, connect(broker.nsq_tcp) as client:
        client.publish("orders", b"one")
        client.subscribe("orders", "billing")
        address, folder = broker.nsq_tcp, broker.data_dir.parent
    assert set(threading.enumerate()) == threads
    assert open_files() == files
    assert not folder.exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10)


def test_an_error_in_the_block_stops_the_broker() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), testing.broker():
        raise ZeroDivisionError
    assert set(threading.enumerate()) == threads


def test_several_at_once_share_nothing() -> None:
    with testing.broker() as first, testing.broker() as second:
        assert first.nsq_tcp != second.nsq_tcp
        for broker, body in ((first, b"one"), (second, b"two")):
            with connect(broker.nsq_tcp) as client:
                client.publish("orders", body)
                client.subscribe("orders", "billing")
                assert client.take() == (1, body)


def test_restart_keeps_ports_messages_and_channels() -> None:
    with testing.broker() as broker:
        before = dict(broker.listeners)
        with connect(broker.nsq_tcp) as client:
            client.publish("orders", b"one")
            client.publish("orders", b"two")
            client.subscribe("orders", "billing")
            assert client.take() == (1, b"one")
        broker.restart()
        assert broker.listeners == before
        with connect(broker.nsq_tcp) as client:
            client.subscribe("orders", "billing")
            assert client.take()[1] == b"two"


def test_stop_and_start_may_be_called_twice() -> None:
    with testing.broker() as broker:
        broker.start()
        broker.stop()
        broker.stop()


@pytest.mark.parametrize("again", [testing.RunningBroker.start, testing.RunningBroker.restart])
def test_a_broker_whose_block_has_ended_does_not_start_again(again: Callable[[testing.RunningBroker], None]) -> None:
    """It did, in a folder that nobody removed, and ran until the interpreter's end."""
    with testing.broker() as broker:
        pass
    with pytest.raises(StoreClosedError, match="has ended"):
        again(broker)
    broker.stop()
    assert not broker.data_dir.parent.exists()


def test_a_folder_of_the_caller_stays(tmp_path: Path) -> None:
    for body in (b"one", b"two"):
        with testing.broker(store__data_dir=tmp_path / "store") as broker, connect(broker.nsq_tcp) as client:
            client.publish("orders", body)
    with testing.broker(store__data_dir=str(tmp_path / "store")) as broker, connect(broker.nsq_tcp) as client:
        client.subscribe("orders", "billing")
        assert [client.take()[1], client.take()[1]] == [b"one", b"two"]


def test_a_relative_folder_is_the_same_when_the_test_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next segment was looked for where the test had gone, and a restart made an empty store there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with testing.broker(store__data_dir="kept") as broker:
        with connect(broker.nsq_tcp) as client:
            client.publish("t", b"before")
            monkeypatch.chdir(elsewhere)
            for _ in range(3):
                client.publish("t", bytes(testing.SEGMENT_BYTES // 2))
        broker.restart()
        with connect(broker.nsq_tcp) as client:
            client.subscribe("t", "c")
            assert client.take() == (1, b"before")
    assert not list(elsewhere.iterdir())


def test_settings_reach_the_broker() -> None:
    topics = {"fast": TopicSettings(durability="async")}
    with testing.broker(
        nsq__max_rdy_count=5,
        nsq__msg_timeout_ms="200ms",
        remoting__read_log_bytes_per_s="2MiB",
        store__topics=topics,
        admin__enabled=False,
    ) as broker:
        assert broker.settings.remoting.read_log_bytes_per_s == 2 << 20
        assert broker.settings.nsq.max_rdy_count == 5
        assert broker.settings.store.durability_of("fast") == "async"
        assert broker.settings.nsq.msg_timeout_ms == 200
        assert broker.admin == ""
        with connect(broker.nsq_tcp) as client:
            client.subscribe("orders", "billing")
            assert client.frame()[0] == ERROR  # RDY 10 is above the limit


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"durability": "async"}, r"durability is no setting; did you mean store__durability\?"),
        ({"store__durabilty": "async"}, r"store__durabilty is no setting; did you mean store__durability\?"),
        ({"colour": "red"}, "colour is no setting: write SECTION__FIELD, such as store__durability"),
        ({"store__durability": "maybe"}, "store.durability"),
        ({"nsq__enabled": "false"}, 'nsq__enabled: nsq.enabled = "false" is not accepted: true or false'),
        ({"nsq__max_rdy_count": "5"}, "nsq__max_rdy_count: nsq.max_rdy_count = "),
        ({"nsq__max_rdy_count": None}, "nsq.max_rdy_count = None is not accepted: a whole number"),
        ({"store__topics": {"fast": {"durability": "async"}}}, "store__topics is not accepted"),
    ],
)
def test_a_wrong_setting_is_refused(overrides: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text), testing.broker(**overrides):
        pass


def until_written(path: Path) -> None:
    """Wait for a file that a thread writes after the start, and for the thread to let go of it."""
    deadline = time.monotonic() + 10
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    # Without a registry: registering opens and closes a connection or two just after the start.
    with testing.broker(store__data_dir=tmp_path / "store", registry__enabled=False):
        until_written(tmp_path / "store/config/topics.json")
        threads, files = set(threading.enumerate()), open_files()
        with pytest.raises(StoreLockedError), testing.broker(store__data_dir=tmp_path / "store"):
            pass
        assert set(threading.enumerate()) <= threads  # those of a test before may end meanwhile
        assert open_files() == files


def test_a_start_that_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C, or a start that takes too long: else the thread would keep the process from ending."""
    before = threading.active_count()
    monkeypatch.setattr(testing, "START_SECONDS", 0.0)
    monkeypatch.setattr(testing, "STOP_SECONDS", 10.0)
    with pytest.raises(TimeoutError), testing.broker(store__data_dir=tmp_path / "store"):
        pass
    assert threading.active_count() <= before
    monkeypatch.undo()
    with testing.broker(store__data_dir=tmp_path / "store"):
        pass


def test_ready_in_under_half_a_second() -> None:
    """The best of three: a busy machine or disk may spoil one."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        with testing.broker():
            seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5


FORKING = """
import os, socket, sys
from headrace import testing

with testing.broker() as broker:
    read, write = os.pipe()
    over, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        {child}
    os.close(write)
    os.read(read, 1)  # the child has done it
    {parent}
"""


def run_forking(child: str, parent: str) -> str:
    """Run a script that forks in the block; return what it printed."""
    # Python 3.12 warns of a fork where threads are.
    code = FORKING.format(child=child, parent=parent)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_that_leaves_the_block_does_not_end_its_parents_broker() -> None:
    assert (
        run_forking("sys.exit(0)", "os.waitpid(child, 0); broker.restart(); print(broker.data_dir.is_dir())")
        == "True\n"
    )


def test_a_forked_child_does_not_keep_the_store_and_the_ports() -> None:
    """Its copies of the lock and of the listening sockets would: restart() fails, a stopped broker's port accepts."""
    parent = """
    broker.restart()
    broker.stop()
    host, _, port = broker.nsq_tcp.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10)
    except ConnectionRefusedError:
        print("refused")
    os.close(hold)
    os.waitpid(child, 0)
"""
    # It lives until its parent lets it go, or ends in whatever way.
    assert run_forking('os.write(write, b"x"); os.read(over, 1); os._exit(0)', parent) == "refused\n"


def test_a_broker_that_nobody_stops_does_not_keep_the_interpreter(tmp_path: Path) -> None:
    """It ends in good order, as a fixture's does that is never closed; the thread would be waited for otherwise."""
    script = f"""
import logging
logging.basicConfig(level="WARNING")
from headrace import testing
broker = testing.broker(store__data_dir={str(tmp_path)!r})
broker.__enter__()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "abort").exists()


def test_the_block_may_end_while_another_thread_restarts() -> None:
    """One waits for the other; else both would wait for a thread that only one of them ends."""
    with testing.broker() as broker:
        began = threading.Barrier(3)

        def restart() -> None:
            began.wait()
            broker.restart()

        threads = [threading.Thread(target=restart) for _ in range(2)]
        for thread in threads:
            thread.start()
        began.wait()
        broker.restart()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        host, _, port = broker.nsq_tcp.rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()


def test_the_own_process_is_not_called_another(tmp_path: Path) -> None:
    own = "in use by this process already"
    with testing.broker(store__data_dir=tmp_path) as broker, pytest.raises(StoreLockedError, match=own):
        testing.RunningBroker(testing.make_settings(broker.data_dir, {})).start()


def test_a_broker_that_has_ended_by_itself_says_why_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(node: Node) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Node, "wait_stopped", fail)
    broker = testing.RunningBroker(testing.make_settings(tmp_path, {}))
    broker.start()
    assert broker._thread is not None
    broker._thread.join(10)
    assert not broker._thread.is_alive()
    with pytest.raises(ZeroDivisionError):
        broker.close()


def test_threads_that_gevent_has_replaced_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start hung for good, without a word: the broker's thread was a greenlet."""
    patched = SimpleNamespace(is_module_patched=lambda name: name == "threading")
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)
    with (
        pytest.raises(ConfigError, match=r"gevent has replaced threads .*`headrace serve --free-ports"),
        testing.broker(),
    ):
        pass
