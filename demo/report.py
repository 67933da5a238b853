"""What the demo shows: progress while it runs, a table and a verdict at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.judge import ChannelJudge
from demo.publisher import PublishCounts


@dataclass(frozen=True)
class Story:
    """What happened around the messages.

    Attributes:
        restart_seconds: From the second start of the broker until it accepted clients.
        store_bytes: Bytes of the store that are in use.
        allocated_bytes: Bytes its files take on the disk.
        seconds: Duration of the whole run.
    """

    restart_seconds: float
    store_bytes: int
    allocated_bytes: int
    seconds: float


def make_progress(console: Console) -> Progress:
    """Return the progress display: one bar per task."""
    return Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    )


def print_report(
    console: Console, published: PublishCounts, judges: Sequence[ChannelJudge], story: Story, faults: Sequence[str]
) -> None:
    """Print the table and the verdict."""
    table = Table(title="Flights through a broker that was killed", title_justify="left")
    table.add_column("")
    table.add_column("published", justify="right")
    for judge in judges:
        table.add_column(f"channel {judge.channel}", justify="right")
    rows: list[tuple[str, str, list[str]]] = [
        ("flights", f"{published.answered:,}", [f"{len(judge.flights):,}" for judge in judges]),
        ("lost", "", [f"{judge.lost:,}" for judge in judges]),
        ("with wrong content", "", [f"{judge.wrong + judge.changed:,}" for judge in judges]),
        ("deliveries", "", [f"{judge.deliveries:,}" for judge in judges]),
        ("redelivered", "", [f"{judge.redelivered:,}" for judge in judges]),
        ("sent twice / stored twice", f"{published.resent_messages:,}", [f"{judge.duplicates:,}" for judge in judges]),
        (
            "messages per second",
            _rate(published.answered, published.seconds),
            [_rate(judge.deliveries, judge.seconds) for judge in judges],
        ),
    ]
    for name, of_publisher, of_channels in rows:
        table.add_row(name, of_publisher, *of_channels)
    console.print(table)
    console.print(
        f"store: {_mib(story.store_bytes)} used, {_mib(story.allocated_bytes)} allocated; "
        f"broker back {story.restart_seconds:.2f} s after the kill; {story.seconds:.0f} s in all"
    )
    console.print(
        "redelivered: finished or on the way when the broker was killed, so delivered once more with the same id. "
        f"sent twice: {published.resent_batches} batches were not answered when it was killed, so pynsq sent them "
        "again; those the broker had already stored are there twice, under two ids.",
        style="dim",
    )
    for fault in faults:
        console.print(f"WRONG: {fault}", style="bold red")
    if not faults:
        console.print(
            "Right: every flight reached both channels, unchanged; none was lost. `headrace store check`: whole.",
            style="bold green",
        )


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds > 0 else ""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
