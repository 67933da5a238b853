"""`headrace doctor`: what clients will be told, and whether it will work."""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from headrace.broker.data_version import DataVersion
from headrace.broker.topic import Topic
from headrace.cli import checkup
from headrace.cli.findings import Finding
from headrace.cli.program import run
from headrace.clock import Clock, ManualClock
from headrace.errors import ConfigError
from headrace.net.ports import LISTENERS
from headrace.remoting.advertised import Advertised
from headrace.remoting.registration import BrokerIdentity, Registrar
from headrace.remoting.registry.server import RegistryServer
from headrace.settings import RegistrySettings, Settings, StoreSettings, load_settings
from headrace.settings.validate import VIP_DISTANCE
from headrace.store.store import Store
from headrace.testing import broker as running_broker
from tests.support.ports import free_port
from tests.support.stores import StoreBench


def settings(tmp_path: Path, *flags: tuple[str, str]) -> Settings:
    """Settings whose listeners are free, and whose registry is none unless a flag says so."""
    base = [
        ("--data-dir", str(tmp_path / "store")),
        ("--store.segment-bytes", "1MiB"),
        ("--broker.name", "broker-a"),
        ("--registry.enabled", "false"),
        *((f"--{setting.replace('_', '-')}", f"127.0.0.1:{free_port()}") for setting in LISTENERS.values()),
        ("--remoting.address", f"127.0.0.1:{free_port(below=VIP_DISTANCE)}"),
    ]
    return load_settings(environ={}, flags=[*base, *flags]).settings


def found(report: checkup.Report, name: str) -> list[tuple[str, str]]:
    return [(finding.status, finding.text) for finding in report.findings if finding.name == name]


def examine(tmp_path: Path, *flags: tuple[str, str]) -> checkup.Report:
    return checkup.run_checkup(settings(tmp_path, *flags))


def test_report_of_a_broker_that_does_not_run(tmp_path: Path) -> None:
    """Ports are free, and what clients will be told is said all the same."""
    wanted = settings(tmp_path)
    report = checkup.run_checkup(wanted)
    assert report.is_healthy
    assert report.told["advertised_address"] == wanted.remoting.address
    assert report.told["broker"] == "broker-a"
    assert report.told["cluster"] == "DefaultCluster"
    port = int(wanted.remoting.address.rpartition(":")[2])
    assert report.told["vip_address"] == f"127.0.0.1:{port - 2}"
    assert report.told["store_host"] == wanted.remoting.address
    assert found(report, "nsq_tcp") == [("ok", f"{wanted.nsq.tcp_address} is free")]
    assert "start the broker" in found(report, "advertised")[0][1]
    assert found(report, "java")[0][0] == "ok"
    assert not (tmp_path / "store").exists()


def test_listener_by_name(tmp_path: Path) -> None:
    """It is resolved as the broker would."""
    port = free_port(below=VIP_DISTANCE)
    report = examine(tmp_path, ("--remoting.address", f"localhost:{port}"))
    assert report.told["advertised_address"] == f"127.0.0.1:{port}"


def test_listeners_that_are_switched_off(tmp_path: Path) -> None:
    """An empty address is none."""
    names = ("nsq.tcp-address", "nsq.http-address", "remoting.address")
    report = examine(tmp_path, *((f"--{name}", "") for name in names))
    assert report.is_healthy
    assert not any(found(report, name) for name in ("nsq_tcp", "nsq_http", "remoting"))


@pytest.mark.parametrize(
    ("flags", "name", "text"),
    [
        (
            [(f"--{setting.partition('.')[0]}.enabled", "false") for setting in LISTENERS.values()],
            "listeners",
            "every listener is off, nobody could connect",
        ),
        (
            [("--registry.enabled", "true"), ("--registry.expiry-ms", "10s")],
            "registry",
            "registry.expiry_ms = 10s is not accepted: more than broker.registration_interval_ms = 30s",
        ),
        ([("--store.budget-bytes", "1MiB")], "disk", "no room for another segment of 1048576 bytes"),
    ],
)
def test_settings_that_a_start_refuses_are_a_problem(
    tmp_path: Path, flags: list[tuple[str, str]], name: str, text: str
) -> None:
    """docs/running.md: exit code 1 is for what keeps a start from succeeding; with the words of ``serve``."""
    problems = [said for status, said in found(examine(tmp_path, *flags), name) if status == "problem"]
    assert any(said.startswith(text) for said in problems), problems


def test_store_of_a_broker_with_other_settings_is_a_problem(tmp_path: Path) -> None:
    """It answers, but on other ports."""
    with running_broker(store__data_dir=tmp_path / "store") as running:
        report = examine(tmp_path)
        (finding,) = found(report, "store")
        assert finding[0] == "problem"
        assert f"is in use by process {os.getpid()}, which does not answer on all of these ports" in finding[1]
        same = examine(tmp_path, *listener_flags(running.listeners))
        assert found(same, "store") == []
    assert found(examine(tmp_path), "store") == []


def test_a_port_that_is_chosen_at_the_start_is_not_asked_for_a_running_broker(tmp_path: Path) -> None:
    """Nobody can know it from the settings: the others say whether the broker runs."""
    with running_broker(store__data_dir=tmp_path / "store") as running:
        flags = [*listener_flags(running.listeners), ("admin.address", "127.0.0.1:0")]
        assert found(examine(tmp_path, *flags), "store") == []
        flags = [(flag, "127.0.0.1:0") for flag, _ in flags]
        assert found(examine(tmp_path, *flags), "store") == []


def test_ports_that_all_answer_are_not_ours_where_nobody_has_the_store(tmp_path: Path) -> None:
    """An nsqd that still runs has both of its ports; a start with these settings fails."""
    with contextlib.ExitStack() as others:
        sockets = [others.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        addresses = [f"127.0.0.1:{other.getsockname()[1]}" for other in sockets]
        flags = dict(zip(("--nsq.tcp-address", "--nsq.http-address"), addresses, strict=True))
        sections = {setting.partition(".")[0] for setting in LISTENERS.values()} - {"nsq"}
        report = examine(tmp_path, *flags.items(), *((f"--{section}.enabled", "false") for section in sections))
    ((status, text),) = found(report, "store")
    assert status == "problem"
    assert "no process has" in text


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_listener_on_every_address_is_looked_for_by_ipv4(host: str) -> None:
    """Many containers have no ::1, and the listener on [::] answers there all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert asyncio.run(checkup.answers(f"{host}:{listener.getsockname()[1]}"))


def test_taken_port_is_a_problem(tmp_path: Path) -> None:
    """A port that is bound and does not answer belongs to something else."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        report = examine(tmp_path, ("--admin.address", address))
    assert not report.is_healthy
    ((status, text),) = found(report, "admin")
    assert status == "problem"
    assert f"{address} is taken" in text


def registered_at(tmp_path: Path, advertised: str) -> checkup.Report:
    """Examine with a registry that knows broker-a under ``advertised``."""

    async def test() -> checkup.Report:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
        await server.start("127.0.0.1:0")
        wanted = settings(tmp_path, ("--broker.registries", server.address))
        name = BrokerIdentity(cluster="C", name="broker-a", address=advertised or wanted.remoting.address)
        registrar = Registrar(FakeBroker(), name, [server.address], interval_ms=30_000)
        await registrar.start()
        try:
            return await checkup.examine(wanted)
        finally:
            await registrar.stop()
            await server.stop()

    return asyncio.run(test())


@pytest.mark.parametrize(("is_running", "status"), [(True, "problem"), (False, "warning")])
def test_registry_that_does_not_know_a_running_broker_is_a_problem(
    tmp_path: Path, is_running: bool, status: str
) -> None:
    """Whatever keeps it from registering: clients find none of its topics."""

    async def test() -> list[Finding]:
        server = RegistryServer(RegistrySettings(), Clock(), data_dir=tmp_path)
        await server.start("127.0.0.1:0")
        advertised = Advertised("127.0.0.1", 10911)
        try:
            return await checkup.check_registry(
                server.address, "broker-a", advertised, settings(tmp_path), None, is_running=is_running
            )
        finally:
            await server.stop()

    (finding,) = asyncio.run(test())
    assert finding.status == status
    assert "does not know broker broker-a" in finding.text
    assert ("the broker's log says why" in finding.text) is is_running


class FakeBroker:
    """A broker without topics."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.topic_version = DataVersion()


def test_registry_that_knows_the_broker(tmp_path: Path) -> None:
    """Registries reachable, and they tell clients what the settings say."""
    ((status, text),) = found(registered_at(tmp_path, ""), "registry")
    assert status == "ok"
    assert "sends clients of broker-a to 127.0.0.1:" in text


def test_registry_that_knows_another_address_is_a_problem(tmp_path: Path) -> None:
    """remoting.md section 8: a broker registers a wrong address."""
    report = registered_at(tmp_path, "192.0.2.1:10911")
    ((status, text),) = found(report, "registry")
    assert status == "problem"
    assert "192.0.2.1:10911, the settings say 127.0.0.1:" in text


def test_registry_that_does_not_answer(tmp_path: Path) -> None:
    """A problem if it was named; our own just does not run."""
    nobody = f"127.0.0.1:{free_port()}"
    ((status, text),) = found(examine(tmp_path, ("--broker.registries", nobody)), "registry")
    assert status == "problem"
    assert nobody in text
    own = (("--registry.enabled", "true"), ("--registry.address", nobody))
    ((status, text),) = found(examine(tmp_path, *own), "registry")[-1:]
    assert status == "warning"
    assert "runs inside headrace serve" in text


def test_a_broker_is_no_registry(tmp_path: Path) -> None:
    """Its port is easily taken for the registry's; it answers that it does not know the request."""
    with running_broker() as running:
        address = running.listeners["remoting"]
        report = examine(tmp_path, ("--broker.registries", address))
    text = f"{address} is no registry, a broker it seems: name the registry's address in broker.registries"
    assert found(report, "registry") == [("problem", text)]


def test_address_that_leads_elsewhere(tmp_path: Path) -> None:
    """Issue 4, item 4: explains what clients will be told and whether it is reachable."""
    report = examine(tmp_path, ("--remoting.advertised-address", "192.0.2.1"))
    statuses = dict(found(report, "advertised"))
    assert "no address of this machine" in statuses["warning"]
    assert "listens on 127.0.0.1 only" in statuses["problem"]


def test_address_that_is_not_reached_from_here_may_be_right_behind_a_nat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not lead back to the machine behind it; who runs that has to try it from outside."""

    async def unreached(address: str, _registries: object, **_options: object) -> str:
        return f"{address} cannot be reached from here (Connection refused)"

    monkeypatch.setattr(checkup, "find_address_problem", unreached)
    for host, says_so in ("192.0.2.1", True), ("127.0.0.1", False):
        advertised = Advertised(host, 10911)
        found = asyncio.run(checkup.check_advertised(settings(tmp_path), advertised, [], None, is_running=True))
        assert found[0].status == "problem"
        assert ("a NAT that does not lead back" in found[0].text) is says_so


def test_port_of_old_clients_is_tried(tmp_path: Path) -> None:
    """A container's or NAT's port that nobody thought of; it is not in the settings."""
    port = free_port(below=VIP_DISTANCE)
    advertised = Advertised("127.0.0.1", port)
    (finding,) = asyncio.run(checkup.check_vip(settings(tmp_path), advertised, None))
    assert (finding.status, finding.name) == ("warning", "vip")
    assert f"127.0.0.1:{port - VIP_DISTANCE} cannot be reached from here" in finding.text
    assert "remoting.vip_listener = false" in finding.text
    without = settings(tmp_path, ("--remoting.vip-listener", "false"))
    assert not asyncio.run(checkup.check_vip(without, advertised, None))


def test_protocol_that_is_switched_off(tmp_path: Path) -> None:
    """There is nothing to tell then."""
    report = examine(tmp_path, ("--remoting.enabled", "false"), ("--broker.registries", "127.0.0.1:1"))
    assert report.told["advertised_address"] is None
    assert report.told["registries"] == []
    assert found(report, "registry") == []


def test_no_address_for_rocketmq_is_the_protocol_switched_off(tmp_path: Path) -> None:
    """Nor is a port told that is chosen at the start, or one two below it."""
    told = examine(tmp_path, ("--remoting.address", "")).told
    assert (told["advertised_address"], told["vip_address"], told["store_host"]) == (None, None, None)
    report = examine(tmp_path, ("--remoting.address", "127.0.0.1:0"))
    assert report.told["vip_address"] is None
    assert found(report, "remoting") == [("ok", "127.0.0.1:0 has its port chosen at the start")]


def test_a_registry_on_a_port_that_is_chosen_at_the_start_is_not_asked(tmp_path: Path) -> None:
    """There was a warning that nobody answers on port 0."""
    report = examine(tmp_path, ("--registry.enabled", "true"), ("--registry.address", "127.0.0.1:0"))
    assert found(report, "registry") == [("ok", "127.0.0.1:0 has its port chosen at the start")]


def test_folder_that_this_user_may_not_look_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may look everywhere, so the kernel's answer is made up."""
    look = Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if "private" in path.parts[:-1]:
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).name != "private")
    (tmp_path / "private").mkdir()
    report = examine(tmp_path, ("--data-dir", str(tmp_path / "private" / "store")))
    ((status, text),) = found(report, "disk")
    assert status == "problem"
    assert f"{tmp_path}/private is not writable for this user" in text


def test_running_broker_is_reachable(tmp_path: Path) -> None:
    """While it runs, the advertised address is tried."""
    with running_broker(broker__name="broker-a") as running:
        flags = [(f"--{name}", address) for name, address in listener_flags(running.listeners)]
        report = examine(tmp_path, *flags, ("--data-dir", str(running.data_dir)))
        as_another = examine(tmp_path, *flags, ("--data-dir", str(running.data_dir)), ("--broker.name", "broker-b"))
    assert found(report, "store") == []
    status, text = found(as_another, "advertised")[0]
    assert (status, "leads to another broker, 'broker-a', and not to broker-b" in text) == ("problem", True)
    assert ("ok", f"{running.listeners['remoting']} is reachable from here") in found(report, "advertised")
    assert found(report, "nsq_tcp") == [("ok", f"{running.listeners['nsq_tcp']} answers")]


def listener_flags(listeners: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Those of every listener but the registry's, which is off here."""
    for name, setting in LISTENERS.items():
        if not setting.startswith("registry."):
            yield setting.replace("_", "-"), listeners[name]


def test_port_that_alone_answers_is_a_problem(tmp_path: Path) -> None:
    """A broker with these settings would answer on all of them: the start will say that the port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        report = examine(tmp_path, ("--nsq.http-address", address))
    ((status, text),) = found(report, "nsq_http")
    assert status == "problem"
    assert "another program has it" in text


def test_port_that_two_settings_name_is_a_problem(tmp_path: Path) -> None:
    """Each is free, both are not; the remedy names a flag that there is."""
    address = f"127.0.0.1:{free_port()}"
    report = examine(tmp_path, ("--nsq.tcp-address", address), ("--nsq.http-address", address))
    assert found(report, "nsq_tcp")[0][0] == "ok"
    ((status, text),) = found(report, "nsq_http")
    assert status == "problem"
    assert "choose another address with --nsq.http-address" in text


def test_open_port_without_rules_is_warned_about(tmp_path: Path) -> None:
    report = examine(tmp_path, ("--remoting.address", f"0.0.0.0:{free_port(below=VIP_DISTANCE)}"))
    ((status, text),) = found(report, "access")
    assert status == "warning"
    assert "remoting, remoting_vip" in text
    rules = tmp_path / "rules.toml"
    rules.write_text("[[users]]\nname = 'a'\naccess_key = 'a-key'\nsecret_key = 'a-secret'\n")
    rules.chmod(0o600)
    own = (("--registry.enabled", "true"), ("--registry.address", f"127.0.0.1:{free_port()}"))
    report = examine(tmp_path, ("--access.rules-file", str(rules)), *own)
    assert found(report, "access")[0] == ("ok", f"1 users in {rules}")
    status, text = found(report, "access")[1]
    assert (status, "access.broker_user is empty: the registry in this process" in text) == ("problem", True)
    report = examine(tmp_path, ("--access.rules-file", str(rules)), ("--broker.registries", "127.0.0.1:1"))
    status, text = found(report, "access")[1]
    assert (status, "access.broker_user is empty: this broker does not sign" in text) == ("warning", True)


def test_rule_file_that_everybody_may_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was a bare log line beside the report, which `--json` did not have."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[[users]]\nname = 'a'\naccess_key = 'a-key'\nsecret_key = 'a-secret'\nadmin = true\n")
    flags = (("--access.rules-file", str(rules)), ("--access.broker-user", "a"))
    rules.chmod(0o644)
    exposed = ("warning", f"{rules} holds secrets and is open to every user of this machine: chmod 600")
    assert exposed in found(examine(tmp_path, *flags), "access")
    assert caplog.text == ""
    rules.chmod(0o600)
    assert [status for status, _ in found(examine(tmp_path, *flags), "access")] == ["ok"]


def test_wrong_rule_file_is_refused(tmp_path: Path) -> None:
    """Wrong settings are exit code 2, as everywhere."""
    with pytest.raises(ConfigError, match="cannot read the rule file"):
        examine(tmp_path, ("--access.rules-file", str(tmp_path / "gone.toml")))


@pytest.mark.parametrize(
    ("now_s", "status"),
    [
        (0, "problem"),
        (1_699_999_999, "problem"),
        (1_800_000_000, "ok"),
        (1_900_000_000, "ok"),
        (1_799_999_000, "problem"),
    ],
)
def test_clock_that_was_never_set_or_went_back_is_a_problem(tmp_path: Path, now_s: int, status: str) -> None:
    """Records would be stored in the past. A few seconds are nothing."""
    os.utime(tmp_path, (1_800_000_003, 1_800_000_003))
    (finding,) = checkup.check_clock(tmp_path, now_s)
    assert finding.status == status


@pytest.mark.parametrize(
    ("hard", "status"), [(32, "problem"), (1024, "warning"), (8192, "ok"), (resource.RLIM_INFINITY, "ok")]
)
def test_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, status: str) -> None:
    """A client takes a descriptor."""
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (32, hard))
    (finding,) = checkup.check_files("a client takes one")
    assert finding.status == status


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for a segment, a folder that is one, and the right to write."""
    wanted = settings(tmp_path)
    assert checkup.check_disk(wanted)[0].status == "ok"
    for free, status in ((3 << 20, "warning"), (1 << 19, "problem")):
        monkeypatch.setattr(
            "shutil.disk_usage", lambda _path, free=free: type("U", (), {"free": free, "total": 1 << 40})
        )
        assert checkup.check_disk(wanted)[0].status == status
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "not writable" in checkup.check_disk(wanted)[0].text
    (tmp_path / "store").write_text("")
    assert "is no directory" in checkup.check_disk(wanted)[0].text


@pytest.mark.parametrize(("inodes", "left", "status"), [(104, 0, "problem"), (0, 0, "ok"), (1 << 20, 1 << 19, "ok")])
def test_disk_that_has_room_but_no_inodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: int, left: int, status: str
) -> None:
    """It says "No space left on device" too, with most of its bytes free; a file system may count none."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _path: type("S", (), {"f_files": inodes, "f_favail": left}))
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    (finding,) = checkup.check_disk(settings(tmp_path))
    assert finding.status == status
    assert ("df -i" in finding.text) == (status == "problem")


def test_a_stores_own_segments_are_what_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is fixed for the life of a store, whatever the setting says by now."""
    Store.open(StoreSettings(data_dir=tmp_path / "store", segment_bytes=1 << 20), ManualClock()).close()
    wanted = settings(tmp_path)
    assert wanted.store.segment_bytes == 1 << 20
    larger = replace(wanted, store=replace(wanted.store, segment_bytes=1 << 30))
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("U", (), {"free": 8 << 20, "total": 1 << 40}))
    assert checkup.check_disk(larger)[0].status == "ok"
    (tmp_path / "store" / "commitlog" / f"{1 << 40:020d}").mkdir()  # no file: a start passes it over
    assert checkup.check_disk(larger)[0].status == "ok"
    (tmp_path / "store" / "headrace" / "store.json").write_text("x")
    assert checkup.check_disk(larger)[0].status == "problem"


def test_a_store_at_its_refuse_mark_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing is refused though the disk has room: what counts is the budget, its own bytes included."""
    bench = StoreBench(tmp_path / "store", segment_bytes=1 << 20, budget_bytes=3 << 20, refuse_percent=99)
    wanted = settings(tmp_path, ("--store.budget-bytes", "3MiB"), ("--store.refuse-percent", "99"))
    try:
        bench.settle()
        assert checkup.check_disk(wanted)[0].status == "ok"  # of its two segments one is empty
        bench.append("T", bytes(600_000))
        bench.append("T", bytes(600_000))
    finally:
        bench.close()
    (finding,) = checkup.check_disk(wanted)
    assert (finding.status, "raise store.budget_bytes" in finding.text) == ("problem", True)
    free = settings(tmp_path)
    assert checkup.check_disk(free)[0].status == "ok"
    usage = type("U", (), {"free": 1 << 20, "total": 1 << 40})
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    assert "free space on the disk" in checkup.check_disk(free)[0].text


def test_a_folder_that_a_start_refuses_is_a_problem(tmp_path: Path) -> None:
    """With the words of ``serve``; the folder is only looked at."""
    wanted = settings(tmp_path)
    store = tmp_path / "store"
    store.symlink_to(tmp_path / "gone")
    assert checkup.check_disk(wanted)[0].text == f"{store} is no directory; choose another with --data-dir"
    store.unlink()
    store.mkdir()
    assert checkup.check_disk(wanted)[0].status == "ok"
    (store / "thesis.tex").write_text("")
    (finding,) = checkup.check_disk(wanted)
    assert (finding.status, "holds 'thesis.tex' and no headrace/store.json" in finding.text) == ("problem", True)
    assert [path.name for path in store.iterdir()] == ["thesis.tex"]


def test_command_prints_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes: 0 no problem, 1 a problem, 2 wrong settings."""
    address = f"127.0.0.1:{free_port()}"
    flags = ["--data-dir", str(tmp_path / "s"), "--registry.enabled=false", "--nsq.enabled=false"]
    flags += [
        "--admin.address",
        f"127.0.0.1:{free_port()}",
        "--store.segment-bytes=1MiB",
        "--remoting.address",
        address,
    ]
    assert run(["doctor", *flags]) == 0
    text = capsys.readouterr().out
    assert f"advertised_address {address}" in text
    assert "warning  advertised" in text
    assert run(["doctor", "--json", *flags, "--broker.registries", f"127.0.0.1:{free_port()}"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False
    assert report["told"]["advertised_address"] == address
    assert {"status", "name", "text"} == set(report["findings"][0])
    assert run(["doctor", "--remoting.address", "nonsense"]) == 2


def test_what_a_registry_says_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line's end in it would begin a line that looks like one of ours."""
    finding = Finding("problem", "registry", "bad\n\x1b[31mok       fake")
    with mock.patch.object(checkup, "run_checkup", return_value=checkup.Report({}, [finding])):
        assert run(["doctor", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "PROBLEM  registry         bad\\n\\x1b[31mok       fake"
