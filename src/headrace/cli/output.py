"""What several commands print: bars on standard error while they work, tables on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn

PIPE_COLUMNS: Final = 240
"""Where nobody looks, lines are as long as programs like them."""

ShowBytes = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and how many there are."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def print_json(value: object) -> None:
    """Print an object as JSON, which is UTF-8 also where the locale is not."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # The name of a file may hold bytes that are no text; escaped like this they are legal in JSON.
    click.echo(text.encode("utf-8", "backslashreplace"))


def result_console() -> Console:
    """Return what prints a command's result."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)


@contextmanager
def byte_bars() -> Iterator[ShowBytes]:
    """Show a bar for each thing that is done, on standard error when that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show
