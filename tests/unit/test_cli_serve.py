"""`headrace serve`: what it hands to the node, and how it logs."""

import errno
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.node
from headrace.cli.options import SettingOption
from headrace.cli.program import run
from headrace.cli.registry import registry
from headrace.cli.serve import serve, start_logging
from headrace.errors import MEMORY_REMEDY, StoreLockedError
from headrace.foreground import LogOutput
from headrace.settings import LogSettings, Settings
from headrace.settings.load import COMMAND_FLAGS


class FakeNode:
    """Stands for `run_node`: keeps its arguments and ends as told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Settings, bool, Path | None]] = []
        self.error: Exception | None = None
        self.code = 0

    def __call__(self, settings: Settings, free_ports: bool, ready_file: Path | None) -> int:
        self.calls.append((settings, free_ports, ready_file))
        if self.error:
            raise self.error
        return self.code


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """Keep `serve` from starting a broker."""
    fake = FakeNode()
    monkeypatch.setattr(headrace.node, "run_node", fake)
    return fake


def test_flags_that_are_no_settings_are_known_to_who_reads_variables() -> None:
    """A variable of such a name is refused: it would do nothing. --config has one of its own."""
    flags = {option for command in (serve, registry) for one in command.params for option in one.opts
             if not isinstance(one, SettingOption)}  # fmt: skip
    assert flags - {"--config"} == set(COMMAND_FLAGS)


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """`serve` sets up logging and signals for its process: undo it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    actions = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, action in actions.items():
        signal.signal(number, action)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_serve_hands_settings_and_options_to_the_node(node: FakeNode, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text("[store]\ndurability = 'async'\n")
    arguments = ["serve", "--data-dir", f"{tmp_path}/d", "--free-ports", "--ready-file", f"{tmp_path}/r.json"]
    arguments += ["--config", str(config)]
    assert run([*arguments, "--store.segment_bytes", "1MiB", "--nsq.max-rdy-count=9", "--nsq.enabled", "false"]) == 0
    ((settings, free_ports, ready_file),) = node.calls
    assert free_ports
    assert ready_file == tmp_path / "r.json"
    assert settings.store.data_dir == tmp_path / "d"
    assert settings.store.durability == "async"
    assert settings.store.segment_bytes == 1 << 20
    assert settings.nsq.max_rdy_count == 9
    assert not settings.nsq.enabled


def test_serve_exits_with_what_the_node_returns(node: FakeNode) -> None:
    """A node that failed says so in the exit code."""
    node.code = 3
    assert run(["serve"]) == 3
    assert node.calls[0] == (Settings(), False, None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StoreLockedError("the store is in use by process 7"), "the store is in use by process 7"),
        (OSError(98, "Address already in use", "a:4150"), "a:4150: Address already in use"),
        (MemoryError(), f"not enough memory: {MEMORY_REMEDY}"),
        (SystemError("error return without exception set"), f"not enough memory: {MEMORY_REMEDY}"),
        (OSError(12, "Cannot allocate memory"), f"not enough memory: {MEMORY_REMEDY}"),
        (ImportError("_ssl.so: failed to map segment from shared object"), f"not enough memory: {MEMORY_REMEDY}"),
    ],
)
def test_failures_to_start_are_one_line_and_exit_1(
    node: FakeNode, error: Exception, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """C-LIFE-01, C-LIFE-06: port in use: exit code 1 with the address in the message."""
    node.error = error
    assert run(["serve"]) == 1
    assert capsys.readouterr().err == f"headrace: {text}\n"


def test_a_message_is_one_log_line_whatever_it_holds(capfd: pytest.CaptureFixture[str]) -> None:
    """A client's text cannot make up lines; a traceback has its own."""
    start_logging(LogSettings())
    logger = logging.getLogger("headrace.x")
    try:
        raise KeyError("k")
    except KeyError:
        logger.exception("client=%s", "a\n2026-01-01T00:00:00.000Z ERROR forged\r\x1b[2J\u2028é")
    first, *trace = capfd.readouterr().err.split("\n")
    assert first.endswith("client=a\\n2026-01-01T00:00:00.000Z ERROR forged\\r\\x1b[2J\\u2028é")
    assert trace[0] == "Traceback (most recent call last):"


def test_log_lines_have_utc_time_level_and_module(capfd: pytest.CaptureFixture[str]) -> None:
    """Lines go to standard error and can be sorted by time."""
    start_logging(LogSettings(level="warning"))
    logging.getLogger("headrace.store").warning("rolled segment path=%s", "a")
    logging.getLogger("headrace.store").info("not shown")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING headrace\.store rolled segment path=a\n", captured.err
    )


def test_lines_that_a_full_disk_does_not_take_are_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were lost without a word, and what Python had to say of each came in their place."""
    write, room = os.write, len("first\nse")

    def take(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(fd, data[:room])
        room -= taken
        return taken

    log = logging.getLogger("headrace.foreground")
    with (tmp_path / "log").open("ab") as file, monkeypatch.context() as patch:
        patch.setattr("headrace.foreground.STANDARD_ERROR", file.fileno())
        patch.setattr(os, "write", take)
        patch.setattr(LogOutput, "left_out_total", 0)
        output = LogOutput()
        handler = logging.StreamHandler(output)
        log.addHandler(handler)
        try:
            for line in ("first", "second", "third"):
                output.write(f"{line}\n")
            assert LogOutput.left_out_total == 2
            room = 1000
            output.write("fourth\n")
        finally:
            log.removeHandler(handler)
    said = "log lines left out, nobody took them lines=2"
    assert (tmp_path / "log").read_text().splitlines() == ["first", "se", said, "fourth"]
