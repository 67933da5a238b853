"""``headrace job``: run a packaged job on Spark."""

from __future__ import annotations

import importlib
import inspect
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable
from rich.text import Text

from headrace.cli.output import draw_table, print_json, result_console
from headrace.cli.program import INTERRUPTED, complain
from headrace.errors import ConfigError, HeadraceError, one_line
from headrace.spark.jobs.config import JobConfig, JobOption, unknown
from headrace.spark.jobs.progress import Watcher, phase
from headrace.spark.jobs.summary import Summary, Table, show
from headrace.spark.jobs.table import JOBS, Job, load_job, missing_library, run_job
from headrace.spark.session import is_submitted, quiet_accumulators, session

MAX_ROWS: Final = 50
LOCAL_MASTER: Final = "local[*]"
FRAMEWORK: Final = ("master", "conf", "as_json")
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a job: Ctrl-C, what a scheduler or a service manager sends, and a terminal that is closed."""


class JobEnded(KeyboardInterrupt):
    """A signal other than Ctrl-C asks a job to end; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Jobs(click.Group):
    """A group with one command for each job, made of the job's options when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all jobs, in the order of the table."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make one command.

        Raises:
            ConfigError: a library that the job needs is not installed.
        """
        return make_command(load_job(cmd_name)) if cmd_name in JOBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a wrong name the nearest is named."""
        if args and not args[0].startswith("-") and args[0] not in JOBS:
            raise ConfigError(unknown(f"job {args[0]!r}", args[0], JOBS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the jobs without importing them."""
        with formatter.section("Jobs"):
            formatter.write_dl([(name, entry.help) for name, entry in JOBS.items()])


@click.group(cls=Jobs, short_help="Run a data pipeline on Spark.")
def job() -> None:
    """Run a data pipeline job on Spark: in this process by default, on a cluster with --master.

    `headrace job doctor` says whether this machine can run them.
    """


def make_command(found: Job) -> click.Command:
    """Return the command of one job."""
    options = [click_option(declared) for declared in found.config.options()]
    if JOBS[found.name].needs_spark:
        options += [
            click.Option(["--master"], metavar="URL", help=f"Spark master, or sc://host:port. [{LOCAL_MASTER}]"),
            click.Option(["--conf"], multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
        ]
    options.append(click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object instead of text."))

    def callback(**given: Any) -> int:
        framework = {name: given.pop(name, None) for name in FRAMEWORK}
        return run_command(found, given, **framework)

    return click.Command(
        found.name,
        callback=callback,
        params=list(options),
        help=inspect.cleandoc(found.doc).replace("``", "`"),
        short_help=JOBS[found.name].help,
    )


def click_option(declared: JobOption) -> click.Option:
    """Return the flag of one option. Its text is read by the option itself, so that every way in has one reader."""
    shown = "on" if declared.is_flag else ",".join(declared.default) if declared.is_list else str(declared.default)
    default = "" if declared.default in (None, "", (), False) else f" [{shown}]"
    text = f"{declared.help}{' [required]' if declared.required else default}"
    if declared.is_flag:
        names = f"{declared.flag}/--no-{declared.flag[2:]}" if declared.default else declared.flag
        return click.Option([names, declared.name], is_flag=True, default=None, help=text)
    return click.Option(
        [declared.flag, declared.name], multiple=declared.is_list, metavar=declared.placeholder, help=text, type=str
    )


def run_command(found: Job, given: dict[str, Any], *, master: str | None, conf: Any, as_json: bool) -> int:
    """Run a job with what the command line says, print its summary and return the exit code."""
    texts = {name: value for name, value in given.items() if value is not None and value != ()}
    config = found.config.parse(texts)
    try:
        needs_spark = JOBS[found.name].needs_spark
        summary = start_job(found, config, master, conf) if needs_spark else run_job(None, found.name, config)
    except ConfigError:
        raise
    except (HeadraceError, OSError) as error:
        return complain(str(error), JOBS[found.name].failure_code)
    except KeyboardInterrupt as end:
        by = f" by {signal.Signals(end.number).name}" if isinstance(end, JobEnded) else ""
        code = 128 + end.number if isinstance(end, JobEnded) else INTERRUPTED
        return complain(f"job {found.name} was interrupted{by} before its end; it may be run again", code)
    if as_json:
        print_json(summary.to_dict())
    else:
        print_summary(summary)
    return summary.exit_code


def start_job(found: Job, config: JobConfig, master: str | None, conf: Any) -> Summary:
    """Run a job in a Spark session, which ends with it unless it was there before."""
    if master is None and not is_submitted():
        master = LOCAL_MASTER
    with missing_library(found.name):  # which every job on Spark needs: else some seconds pass before it is told
        importlib.import_module("pyarrow")
    with ExitStack() as stack:
        stack.enter_context(quiet_py4j())
        watch = stack.enter_context(show_progress(found.name))
        phase("starting Spark")
        with watch(None), held_interrupts():
            settings = read_conf(conf or ())
            spark = stack.enter_context(session(f"headrace {found.name}", master=master, conf=settings))
        with watch(spark), plain_interrupts():
            summary = run_job(spark, found.name, config)
            phase("stopping Spark")
    return summary


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold Ctrl-C, and what else ends a job, back for the seconds in which Spark's JVM starts, and say so.

    One whose Python goes away before the two have met never ends: pyspark removes the file by which they would. A
    signal to all processes, as service managers send it, ends the JVM itself: that it is gone is not why the job ended.
    """
    came: list[int] = []

    def hold(number: int) -> None:
        if not came:
            click.echo("headrace: interrupted; the job ends as soon as Spark has started", err=True)
        came.append(number)

    with on_interrupt(hold), _told_as_signal(came):
        yield
    if came:
        raise interrupt_by(came[0])


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Have Ctrl-C, and what else ends a job, be an exception and nothing else while it runs; its tasks end with the
    session.

    Spark's own handler of Ctrl-C asks the JVM to cancel, over the connection on which the interrupted call waits for
    its answer. That connection is closed: what a job does on its way out may fail for it, which is not why the job
    ended.
    """
    came: list[int] = []

    def interrupt(number: int) -> NoReturn:
        came.append(number)
        quiet_accumulators()
        raise interrupt_by(number)

    with on_interrupt(interrupt), _told_as_signal(came):
        yield


@contextmanager
def _told_as_signal(came: Sequence[int]) -> Iterator[None]:
    """Have what fails inside be told as the first signal that came, where one did."""
    try:
        yield
    except Exception as error:
        if came:
            raise interrupt_by(came[0]) from error
        raise


def interrupt_by(number: int) -> KeyboardInterrupt:
    """Return what a signal raises in a job."""
    return KeyboardInterrupt() if number == signal.SIGINT else JobEnded(number)


@contextmanager
def on_interrupt(handle: Callable[[int], None]) -> Iterator[None]:
    """Have the signals that end a job call ``handle``, but for those that the process ignores, as below ``nohup``.

    Outside of the main thread, where no signals are handled, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _frame: object) -> None:
        handle(number)

    before = {
        number: signal.signal(number, handler) for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, known in before.items():
            if signal.getsignal(number) is handler:  # Spark puts its own there, which ends its tasks first
                signal.signal(number, known)


@contextmanager
def quiet_py4j() -> Iterator[None]:
    """Keep py4j from logging tracebacks of what it also raises: a Ctrl-C, a JVM that has gone.

    Some of them it writes to its own loggers, some to the root logger.
    """
    root, own = logging.getLogger(), logging.getLogger("py4j")
    root.addFilter(_is_not_of_py4j)
    before, own.propagate = own.propagate, False
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        own.propagate = before


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def read_conf(pairs: Any) -> dict[str, str]:
    """Return Spark settings given as ``KEY=VALUE``.

    Raises:
        ConfigError: one of them has no ``=``.
    """
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--conf {pair!r}: write KEY=VALUE, such as spark.driver.memory=4g", key="conf")
        settings[key.strip()] = value
    return settings


@contextmanager
def show_progress(name: str) -> Iterator[Callable[[Any], Watcher]]:
    """Show a bar on standard error when that is a terminal; yield what makes a watcher that feeds it."""
    if not sys.stderr.isatty():  # not Rich's own idea of a terminal, as for ``byte_bars``
        yield lambda spark: Watcher(None, lambda *_: None)
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(name, total=None)

        def update(phase: str, done: int, total: int) -> None:
            bars.update(task, description=f"{name}: {phase}", completed=done, total=total or None)

        yield lambda spark: Watcher(spark, update)


def print_summary(summary: Summary) -> None:
    """Print a summary for people."""
    console = result_console()
    title = f"{summary.job}{' (dry run: nothing was changed)' if summary.dry_run else ''}"
    facts = RichTable(box=None, show_header=False)
    for name, text in [*summary.rows(), ("seconds", f"{summary.seconds:.1f}")]:
        facts.add_row(name, Text(visible(text)))
    # Rich would wrap a title, or a caption, where its table is narrow.
    console.print(Text(title, "table.title"), facts, sep="\n")
    for table in summary.tables:
        if table.rows:
            heading = f"{table.title} ({len(table.rows)})"
            console.print(Text(heading, "table.title"), make_table(table, console.width), sep="\n")
            if len(table.rows) > MAX_ROWS:
                more = f"... and {len(table.rows) - MAX_ROWS} more: --json lists them all"
                console.print(Text(more, "table.caption"))
    for note in summary.notes:
        console.print(f"note: {visible(note)}", markup=False)


def make_table(table: Table, width: int) -> RichTable:
    """Return a table for people, cut after so many rows; where it is too wide, the widest columns are cut."""
    names = [column.replace("_", " ") for column in table.columns]
    rows = [
        [visible(show(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:MAX_ROWS]
    ]
    is_number = [all(isinstance(row[at], int | float) for row in table.rows) for at in range(len(names))]
    return draw_table(names, rows, width, is_right=is_number)


def visible(text: str) -> str:
    """Write what a terminal would obey as escapes: keys, bodies and reasons say what producers like."""
    return "".join(letter if letter in "\n\t" else one_line(letter) for letter in text)
