"""What ``headrace job`` prints for people."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len

from headrace.cli import job
from headrace.cli.job import held_interrupts, plain_interrupts, print_summary, quiet_py4j, visible
from headrace.cli.output import PIPE_COLUMNS, widest_column
from headrace.cli.program import run
from headrace.spark.jobs.summary import Summary, Table, count_of
from tests.support.signals import unignored


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    with unignored():
        yield


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders 17 ü 中", "orders 17 ü 中"),
        ("two\nlines\tx", "two\nlines\tx"),
        ("\x1b[2Jk", "\\x1b[2Jk"),
        ("a\rb\x00\u202e", "a\\rb\\x00\\u202e"),
    ],
)
def test_a_terminal_gets_nothing_to_obey(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_what_producers_wrote_is_shown_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A key, a reason or a body with escapes must not clear the screen of who looks for it, nor be markup."""
    table = Table("messages", "Messages", ("keys",), [["\x1b[31m[red]k"]])
    print_summary(Summary(job="search", facts={"written": "\x1b[2J"}, tables=[table], notes=["\x1b]0;title\x07"]))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "[red]k" in printed


@pytest.mark.parametrize("long", ["k" * 30_000, "日本" * 300, "a\tb " * 200, "short\n" + "x" * 500])
def test_a_long_text_leaves_the_other_columns_whole(long: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One long key must not hide where all the messages are."""
    columns = ("stored", "topic", "log_offset", "msg_id", "keys", "body")
    place: list[Any] = ["2026-11-26 13:07:22.369", "orders", 123456789012, "7F000001000051AF0000000000009DAC"]
    rows = [[*place, long, long], [*place, "k7", "short"]]
    print_summary(Summary(job="search", tables=[Table("messages", "Messages", columns, rows)]))
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "orders" in line]
    assert len(lines) == len(rows)
    for line in lines:
        assert line.split()[:5] == [*place[0].split(), *map(str, place[1:])]
        assert cell_len(line) <= PIPE_COLUMNS
    assert "…" in printed
    assert lines[1].split()[5:] == ["k7", "short"]


def test_titles_are_lines_however_narrow_their_tables_are(capsys: pytest.CaptureFixture[str]) -> None:
    ages = Table("ages", "Age of the dead letters", ("age", "messages"), [["older", number] for number in range(100)])
    print_summary(Summary(job="deadletters", facts={"a": 1}, tables=[ages], dry_run=True))
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "deadletters (dry run: nothing was changed)" in printed
    assert "Age of the dead letters (100)" in printed
    assert "... and 50 more: --json lists them all" in printed


@pytest.mark.parametrize(
    ("widths", "space", "most"),
    [([3, 4, 5], 12, 5), ([3, 4, 5], 100, 5), ([3, 90, 50], 43, 20), ([3, 10, 50], 43, 30), ([9, 9], 1, 1), ([], 5, 0)],
)
def test_only_the_widest_columns_are_cut(widths: list[int], space: int, most: int) -> None:
    assert widest_column(widths, space) == most


def test_an_interrupt_waits_until_spark_has_started(capsys: pytest.CaptureFixture[str]) -> None:
    """Which is said at once, and once."""
    before = signal.getsignal(signal.SIGINT)
    done = []

    def start() -> None:
        with held_interrupts():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            done.append(capsys.readouterr().err)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["headrace: interrupted; the job ends as soon as Spark has started\n"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", [held_interrupts, plain_interrupts])
def test_what_else_ends_a_job_is_said_and_its_exit_code_names_it(
    phase: Any, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler or a service manager sends SIGTERM, a terminal that is closed SIGHUP."""

    def interrupted(*_: Any) -> Any:
        with phase():
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    monkeypatch.setattr(job, "run_job", interrupted)
    assert run(["job", "doctor"]) == 128 + number
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"headrace: job doctor was interrupted by {number.name} before its end; it may be run again"
    assert signal.getsignal(number) is before


def test_a_signal_to_all_processes_while_spark_starts_is_why_the_job_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JVM that is being started gets it as well, and nobody answers any more."""

    def started(*_: Any) -> Any:
        with held_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(job, "run_job", started)
    assert run(["job", "doctor"]) == 128 + signal.SIGTERM
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "headrace: job doctor was interrupted by SIGTERM before its end; it may be run again"
    with pytest.raises(OSError, match="full"), held_interrupts():
        raise OSError("full")


def test_a_signal_that_is_ignored_stays_so() -> None:
    """``nohup headrace job ...``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with plain_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handler_that_spark_brings_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with held_interrupts():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_of_a_job_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "run_job", interrupted)
    assert run(["job", "doctor"]) == 130
    error = capsys.readouterr().err
    assert error == "headrace: job doctor was interrupted before its end; it may be run again\n"


def test_an_interrupt_while_a_job_runs_asks_nobody() -> None:
    """Spark's handler would ask the JVM on the connection that waits."""
    told: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: told.append(number))

    def wait() -> None:
        with plain_interrupts():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                raise OSError("the connection is closed")

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        with pytest.raises(OSError, match="full"), plain_interrupts():
            raise OSError("full")
        os.kill(os.getpid(), signal.SIGINT)
        assert told == [signal.SIGINT]  # the second, once the job has ended
    finally:
        signal.signal(signal.SIGINT, before)


def test_py4j_says_nothing_of_what_it_raises(caplog: pytest.LogCaptureFixture) -> None:
    said = logging.LogRecord("root", logging.ERROR, "py4j/java_gateway.py", 1, "while sending", (), None)
    with quiet_py4j():
        logging.getLogger().handle(said)
        logging.getLogger("py4j.clientserver").error("shutting down")
        logging.getLogger().error("ours")
    assert caplog.messages == ["ours"]
    logging.getLogger().handle(said)
    assert caplog.messages == ["ours", "while sending"]


@pytest.mark.parametrize(("number", "said"), [(0, "0 hours stay"), (1, "1 hour stays"), (2, "2 hours stay")])
def test_what_is_counted_agrees_with_its_number(number: int, said: str) -> None:
    assert count_of(number, "hour stays", "hours stay") == said
