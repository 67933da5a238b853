"""`headrace registry`: a registry by itself, as a process."""

import json
import logging
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.program import run

TIMEOUT_S = 20


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """`registry` sets up logging and signals for its process: undo it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    actions = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, action in actions.items():
        signal.signal(number, action)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def start(*arguments: str, command: str = "registry") -> subprocess.Popen[str]:
    code = "import sys; from headrace.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> dict[str, object]:
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    content: dict[str, object] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_registry_runs_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """Issue 4, item 4: alone as `headrace registry`: ready file, graceful stop, exit 0."""
    ready = tmp_path / "ready.json"
    process = start("--free-ports", "--ready-file", str(ready), "--data-dir", str(tmp_path / "data"))
    try:
        content = wait_for(ready, process)
        listeners = content["listeners"]
        assert isinstance(listeners, dict)
        assert list(listeners) == ["registry", "nsqlookupd_tcp", "nsqlookupd_http", "admin"]
        assert content["pid"] == process.pid
        assert content["data_dir"] == str(tmp_path / "data")
        host, _, port = str(listeners["registry"]).rpartition(":")
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
        process.send_signal(number)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert f"  folder           {tmp_path / 'data' / 'namesrv'}\n" in output
    assert all(f"  {name:<15}  {address}\n" in output for name, address in listeners.items())
    assert "Traceback" not in errors
    assert not ready.exists()
    # It keeps ordered topics only, and there are none: no store was made.
    assert sorted(path.name for path in (tmp_path / "data").rglob("*")) == ["lock", "namesrv"]


def test_second_registry_leaves_the_ready_file_of_the_first(tmp_path: Path) -> None:
    """A second start by mistake is refused and changes nothing."""
    ready = tmp_path / "ready.json"
    arguments = ("--free-ports", "--ready-file", str(ready), "--data-dir", str(tmp_path / "data"))
    first = start(*arguments)
    try:
        content = wait_for(ready, first)
        second = start(*arguments)
        _, errors = second.communicate(timeout=TIMEOUT_S)
        assert second.returncode != 0
        assert "in use by another registry" in errors
        assert "Traceback" not in errors
        assert json.loads(ready.read_text()) == content
    finally:
        first.kill()
        first.communicate()


def test_broker_beside_a_registry_is_refused_before_it_serves_anybody(tmp_path: Path) -> None:
    """And its store is closed, so that the next start has nothing to recover."""
    ready, data = tmp_path / "ready.json", tmp_path / "data"
    first = start("--free-ports", "--ready-file", str(ready), "--data-dir", str(data))
    try:
        wait_for(ready, first)
        second = start("--free-ports", "--registry.enabled", "true", "--data-dir", str(data), command="serve")
        _, errors = second.communicate(timeout=TIMEOUT_S)
        assert second.returncode != 0
        assert "in use by another registry" in errors
        assert "listening" not in errors
        assert "Traceback" not in errors
        assert (data / "lock").exists()
        assert not (data / "abort").exists()
    finally:
        first.kill()
        first.communicate()


def test_address_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """A registry alone that does not listen is none."""
    assert run(["registry", "--registry.address", ""]) == 2
    assert 'registry.address = "" is not accepted' in capsys.readouterr().err


def test_taken_port_is_one_sentence_with_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C-LIFE-06."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert run(["registry", "--registry.address", address, "--data-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"headrace: {address} is taken by another program; choose another address with --registry.address, "
        "or use --free-ports\n"
    )


def test_data_directory_that_cannot_be_one_refuses_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ordered topics that are made later could not be kept."""
    (tmp_path / "file").write_text("")
    assert run(["registry", "--free-ports", "--data-dir", str(tmp_path / "file" / "data")]) == 1, "as serve"
    assert capsys.readouterr().err == (f"headrace: {tmp_path}/file is no directory; choose another with --data-dir\n")


def test_working_directory_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bare "No such file or directory" names nothing."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["registry", "--free-ports"]) == 1
    assert "the working directory does not exist any more; choose" in capsys.readouterr().err


def test_damaged_configuration_is_one_sentence_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was changed, and the file is named."""
    file = tmp_path / "namesrv" / "kvConfig.json"
    file.parent.mkdir()
    file.write_text("{")
    assert run(["registry", "--free-ports", "--data-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert str(file) in error
    assert "restore" in error
    assert error.count("\n") == 1


def test_wrong_rule_file_refuses_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Access control must not be off because of a slip in a path."""
    gone = tmp_path / "gone.toml"
    assert run(["registry", "--free-ports", "--access.rules-file", str(gone), "--data-dir", str(tmp_path)]) == 2
    assert f"cannot read the rule file {gone}" in capsys.readouterr().err


def test_help_of_registry_lists_what_a_registry_uses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It listed the settings of stores and of NSQ, as if they did something here."""
    assert run(["registry", "--help"]) == 0
    out = capsys.readouterr().out
    flags = re.findall(r"^  (?:--data-dir, )?--(\w+)\.[\w-]+", out, re.MULTILINE)
    assert set(flags) == {"store", "registry", "access", "log"}
    assert flags.count("store") == flags.count("access") == 1
    file = tmp_path / "shared.toml"
    file.write_text('[nsq]\nmax_rdy_count = 7\n[registry]\naddress = ""\n')
    assert run(["registry", "--config", str(file), "--nsq.max-rdy-count", "8"]) == 2
    assert "registry.address" in capsys.readouterr().err, "what brokers use is passed over"
