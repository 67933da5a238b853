"""What several commands print: bars on standard error while they work, tables on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn
from rich.table import Table
from rich.text import Text

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


def draw_table(names: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, is_right: Sequence[bool]) -> Table:
    """Return a table; where it is wider than ``width``, its widest columns are cut.

    Rich would take as much from each column: one long name or key, and the others say nothing any more.

    Args:
        is_right: Which columns stand on the right, as numbers do.
    """
    drawn = Table(box=None)
    widths = [max(map(text_width, texts)) for texts in zip(names, *rows, strict=True)]
    most = widest_column(widths, width - len(names) * sum(drawn.padding[1::2]))
    for name, right in zip(names, is_right, strict=True):
        drawn.add_column(name, justify="right" if right else "left", no_wrap=True, max_width=most)
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return max(map(cell_len, text.expandtabs().split("\n")))


def widest_column(widths: Sequence[int], space: int) -> int:
    """Return how wide a column may be, at least 1, so that all of them fit into ``space``."""
    for number, width in enumerate(sorted(widths)):
        share = space // (len(widths) - number)
        if width > share:
            return max(share, 1)
        space -= width
    return max(widths, default=0)


@contextmanager
def byte_bars() -> Iterator[ShowBytes]:
    """Show a bar for each thing that is done, on standard error when that is a terminal."""
    if not sys.stderr.isatty():  # Rich would take a log for a terminal where FORCE_COLOR is set, as in CI
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show
