"""Registries and brokers of both kinds: RocketMQ's broker at our registry, our broker at RocketMQ's name server.

Ref: remoting.md 4.8, section 11, "Minimal conformance runs"; docs/protocols/registry.md.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_peers as peers
from tests.interop.nsq_peers import HEADRACE, running
from tests.support.ports import free_port
from tests.support.rocketmq_programs import BROKER, broker_properties, write_properties
from tests.support.waiting import until

VERSIONS = ["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)]


@contextlib.contextmanager
def registry(folder: Path, *flags: str) -> Iterator[str]:
    """Run ``headrace registry``; give its address."""
    folder.mkdir(parents=True)
    ready = folder / "ready.json"
    command = [str(HEADRACE), "registry", "--free-ports", "--data-dir", str(folder), "--ready-file", str(ready)]
    command += flags
    with running(command, folder / "registry.log") as process:
        until(lambda: ready.exists() or process.poll() is not None, peers.START_SECONDS)
        assert process.poll() is None, (folder / "registry.log").read_text()
        yield json.loads(ready.read_text())["listeners"]["registry"]


@contextlib.contextmanager
def real_broker(version: str, folder: Path, namesrv: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run RocketMQ's broker alone; give its address and process."""
    home = folder / f"broker-{version}"
    environment = peers._make_home(home)
    port = free_port(below=2)
    properties = broker_properties(port, free_port(), home / "store")
    properties |= {"brokerClusterName": "Real", "brokerName": "real-a", "namesrvAddr": namesrv}
    conf = write_properties(home / "broker.conf", properties)
    command = peers._java(version, home, BROKER, "-c", str(conf))
    with running(command, home / "broker.log", env=environment) as process:
        yield f"127.0.0.1:{port}", process


@contextlib.contextmanager
def tools(version: str, folder: Path) -> Iterator[peers.Admin]:
    """Run mqadmin."""
    admin = peers.Admin(version, folder)
    try:
        yield admin
    finally:
        admin.close()
        for pipe in (admin.process.stdin, admin.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_real_broker_registers_with_our_registry(tmp_path: Path, version: str) -> None:
    """Its topics are routed to; a new one at once; killed, it is gone at once; told to stop, it says goodbye."""
    with registry(tmp_path / "registry") as address, tools(version, tmp_path) as admin:
        with real_broker(version, tmp_path, address) as (broker, process):
            until(lambda: f"0     {broker}" in admin.run("clusterList", "-n", address), peers.START_SECONDS)
            assert '"brokerName":"real-a"' in admin.run("topicRoute", "-n", address, "-t", "TBW102")
            admin.run("updateTopic", "-n", address, "-c", "Real", "-t", "Made", "-r", "3", "-w", "3", "-o", "true")
            until(lambda: '"readQueueNums":3' in admin.run("topicRoute", "-n", address, "-t", "Made"), 10)
            assert '"orderTopicConf":"real-a:3"' in admin.run("topicRoute", "-n", address, "-t", "Made")
            process.kill()
            until(lambda: "No topic route info" in admin.run("topicRoute", "-n", address, "-t", "Made"), 10)
        with real_broker(version, tmp_path, address) as (broker, process):
            until(lambda: "Made" in admin.run("topicList", "-n", address), peers.START_SECONDS)
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            assert "No topic route info" in admin.run("topicRoute", "-n", address, "-t", "Made")


@pytest.mark.parametrize("version", VERSIONS)
def test_our_broker_registers_with_a_real_registry(tmp_path: Path, version: str) -> None:
    """Beside a real broker; and with ours too: it keeps to several registries (issue 4, item 4)."""
    with (
        peers.rocketmq(version, tmp_path) as real,
        registry(tmp_path / "registry") as ours,
        peers.headrace(
            tmp_path / "headrace", "--broker.name=head-a", f"--broker.registries={real.namesrv},{ours}"
        ) as head,
        tools(version, tmp_path) as admin,
    ):
        for address in (real.namesrv, ours):
            until(lambda at=address: head.broker in admin.run("clusterList", "-n", at), 20)  # type: ignore[misc]
        admin.run("updateTopic", "-n", real.namesrv, "-b", head.broker, "-t", "Made", "-r", "3", "-w", "3")
        for address in (real.namesrv, ours):
            until(
                lambda at=address: '"brokerName":"head-a"' in admin.run("topicRoute", "-n", at, "-t", "Made"),  # type: ignore[misc]
                10,
            )
        assert peers.stop(head.process) == 0
        for address in (real.namesrv, ours):
            assert "No topic route info" in admin.run("topicRoute", "-n", address, "-t", "Made")


@pytest.mark.parametrize("version", VERSIONS)
def test_tools_write_to_every_registry_and_say_which_refuses(tmp_path: Path, version: str) -> None:
    """X-REG-04: registries share nothing, not even ordered topics; a refusal of one is told, and the other has it."""
    first_folder, second_folder = tmp_path / "first", tmp_path / "second"
    with (
        registry(first_folder) as first,
        registry(second_folder, "--registry.max-kv-bytes=1KiB") as second,
        tools(version, tmp_path) as admin,
    ):

        def kept(folder: Path) -> dict[str, str]:
            content = json.loads((folder / "namesrv" / "kvConfig.json").read_text())["configTable"]
            return dict(content["ORDER_TOPIC_CONFIG"])

        def order(value: str, at: str) -> str:
            return admin.run("updateOrderConf", "-n", at, "-t", "Ordered", "-m", "put", "-v", value)

        both = f"{first};{second}"
        assert "update orderConf success" in order("broker-a:4", both)
        assert kept(first_folder) == kept(second_folder) == {"Ordered": "broker-a:4"}
        long = ";".join(f"broker-{number}:4" for number in range(200))
        assert "registry.max_kv_bytes" in order(long, both)
        assert kept(first_folder) == {"Ordered": long}
        assert kept(second_folder) == {"Ordered": "broker-a:4"}
        for at, value in ((first, "broker-199:4"), (second, "broker-a:4")):
            assert value in admin.run("updateOrderConf", "-n", at, "-t", "Ordered", "-m", "get")
        assert "update orderConf success" in order("broker-b:8", first)
        assert kept(first_folder) == {"Ordered": "broker-b:8"}
        assert kept(second_folder) == {"Ordered": "broker-a:4"}
