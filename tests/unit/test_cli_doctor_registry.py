"""`headrace doctor --registry`: a registry by itself, before it starts and while it runs."""

from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path
from unittest import mock

import pytest

from headrace.cli import checkup
from headrace.cli.program import run
from headrace.cli.registry_checkup import check_health, examine_registry
from headrace.settings import load_settings
from tests.support.ports import free_port
from tests.support.registries import RegistryProcess

FLAGS = {
    "registry": "--registry.address",
    "nsqlookupd_tcp": "--registry.nsq-tcp-address",
    "nsqlookupd_http": "--registry.nsq-http-address",
    "admin": "--registry.admin-address",
}


def flags(folder: Path, listeners: dict[str, str] | None = None, **other: str) -> list[tuple[str, str]]:
    """Return flags with the addresses of a registry that runs, or with free ones."""
    addresses = listeners or {name: f"127.0.0.1:{free_port()}" for name in FLAGS}
    return [("--data-dir", str(folder)), *((FLAGS[name], at) for name, at in (addresses | other).items())]


def examine(given: list[tuple[str, str]]) -> checkup.Report:
    return checkup.run_checkup(load_settings(environ={}, flags=given).settings, examine_registry)


def found(report: checkup.Report, name: str) -> list[tuple[str, str]]:
    return [(finding.status, finding.text) for finding in report.findings if finding.name == name]


def test_report_of_a_registry_that_does_not_run(tmp_path: Path) -> None:
    """It changes nothing; nothing of a broker is looked at."""
    report = examine(given := flags(tmp_path / "data"))
    assert report.is_healthy
    addresses = dict(given)
    for name, flag in FLAGS.items():
        assert found(report, name) == [("ok", f"{addresses[flag]} is free")]
    assert report.told == {"nsqlookupd_http": addresses[FLAGS["nsqlookupd_http"]]}
    assert found(report, "folder") == [("ok", f"{tmp_path / 'data' / 'namesrv'} is free")]
    names = {finding.name for finding in report.findings}
    assert names == {*FLAGS, "access", "open files", "folder"}
    assert not (tmp_path / "data").exists()


def test_report_of_a_registry_that_runs(tmp_path: Path) -> None:
    """Its admin port is asked; of another folder it is another's."""
    with RegistryProcess(tmp_path) as registry:
        report = examine(flags(registry.data_dir, registry.listeners))
        assert report.is_healthy
        admin = registry.listeners["admin"]
        assert found(report, "admin") == [("ok", f"{admin} answers")]
        assert found(report, "health") == [("ok", f"{admin} says ok, ready")]
        in_use = f"{registry.data_dir / 'namesrv'} is in use by process {registry.pid}"
        assert found(report, "folder") == [("ok", in_use)]
        ((status, text),) = found(examine(flags(tmp_path / "other", registry.listeners)), "folder")
        assert (status, "no registry has" in text) == ("problem", True)
        ((status, text),) = found(examine(flags(registry.data_dir)), "folder")
        assert (status, text.startswith(f"{in_use}, which does not answer on all")) == ("problem", True)


def test_the_admin_port_of_another_registry_is_not_taken_for_this_one_s(tmp_path: Path) -> None:
    """A second on one machine does without the default address that the first has."""
    with RegistryProcess(tmp_path / "one") as one, RegistryProcess(tmp_path / "two") as two:
        admin = one.listeners["admin"]
        ((status, text),) = found(examine(flags(two.data_dir, two.listeners, admin=admin)), "health")
        assert (status, text.startswith(f"{admin} is process {one.pid}'s, and process {two.pid} has")) == (
            "warning",
            True,
        )
        assert text.endswith("set registry.admin_address to another one")


def test_the_admin_port_is_asked_past_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the environment names for the web: what this machine's loopback is, it does not know."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("urllib.request._opener", None)  # else it has looked at the environment before
    with RegistryProcess(tmp_path) as registry:
        admin = registry.listeners["admin"]
        assert found(examine(flags(registry.data_dir, registry.listeners)), "health") == [
            ("ok", f"{admin} says ok, ready")
        ]


def test_what_the_admin_port_refuses_is_a_problem(tmp_path: Path) -> None:
    """With its words; and whoever else has the port is none."""
    with RegistryProcess(tmp_path) as registry:
        finding = check_health(registry.listeners["nsqlookupd_http"], str(registry.pid))
        assert (finding.status, "/healthz answers 404" in finding.text) == ("problem", True)
    assert check_health(registry.listeners["admin"], "1").status == "problem"


def test_ports_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default of those that a start does without is worth a warning only."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        given = flags(tmp_path / "data", admin=taken)
        ((status, text),) = found(examine(given), "admin")
        assert status == "problem"
        assert text.endswith("another program has it, or a registry with other settings")
        monkeypatch.setattr("headrace.net.ports._DISPENSABLE", {"registry.admin_address": taken})
        report = examine(given)
        ((status, text),) = found(report, "admin")
        assert (status, text.endswith("; registry does without it")) == ("warning", True)
        assert report.is_healthy


def test_settings_that_a_start_refuses(tmp_path: Path) -> None:
    """A registry that does not listen, a folder that cannot be one, too few files; in the words of the start."""
    assert found(examine([("--registry.address", "")]), "registry")[0][1].startswith('registry.address = "" is not')
    off = dict.fromkeys(FLAGS, "")
    assert [finding.name for finding in examine(flags(tmp_path, off)).findings if finding.status == "problem"] == [
        "registry"
    ]
    (tmp_path / "file").write_text("")
    ((status, text),) = found(examine(flags(tmp_path / "file" / "data")), "folder")
    assert (status, "is no directory" in text) == ("problem", True)
    for limit, expected in ((63, "problem"), (1024, "warning"), (resource.RLIM_INFINITY, "ok")):
        with mock.patch("resource.getrlimit", return_value=(limit, limit)):
            ((status, _),) = found(examine(flags(tmp_path / "data")), "open files")
        assert status == expected


def test_an_open_port_is_warned_of_and_told_by_name(tmp_path: Path) -> None:
    """The admin port asks nobody who he is, nor do nsqlookupd's."""
    given = flags(tmp_path, admin="0.0.0.0:0", nsqlookupd_http="0.0.0.0:0")
    report = examine(given)
    ((status, text),) = found(report, "access")
    assert (status, text) == ("warning", "whoever reaches them can use nsqlookupd_http, admin: no TLS, no access rules")
    assert report.told["nsqlookupd_http"].startswith(os.uname().nodename)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code and JSON as without the flag."""
    line = [word for pair in flags(tmp_path / "data") for word in pair]
    assert run(["doctor", "--registry", "--json", *line]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True
    assert run(["doctor", "--registry", *line, "--registry.address", ""]) == 1
    assert "PROBLEM  registry" in capsys.readouterr().out
