"""What the demo shows at the end: tables, a verdict, where the results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from demo import flights, results, weather
from demo.story import Demo

_PLACES: Final = {"topic": "result topic", "parquet": "Parquet"}


@dataclass(frozen=True)
class Ending:
    """What is known when all has ended.

    Attributes:
        store_bytes: Bytes of the store that are in use.
        allocated_bytes: Bytes its files take on the disk.
        seconds: Duration of the whole run.
        output: The folder with the report and the results.
    """

    store_bytes: int
    allocated_bytes: int
    seconds: float
    output: Path


def print_report(console: Console, demo: Demo, ending: Ending, faults: Sequence[str]) -> None:
    """Print the tables and the verdict."""
    console.print(_clients_table(demo))
    outcome = demo.spark.outcome
    if outcome:
        console.print(_spark_table(outcome))
        console.print(_delay_table(outcome["delays"]))
        repeated = outcome["read"] - flights.COUNT - weather.COUNT - 2  # the two that end the year
        console.print(
            f"Spark read {outcome['read']:,} messages in {demo.spark.batches} micro-batches, "
            f"{_rate(outcome['read'], outcome['seconds'])} a second, and passed over {repeated:,} repetitions"
        )
    back = f"broker back {demo.restart_seconds:.2f} s after the kill; " if demo.restart_seconds else ""
    console.print(
        f"store: {_mib(ending.store_bytes)} used, {_mib(ending.allocated_bytes)} allocated; "
        f"{back}{ending.seconds:.0f} s in all"
    )
    counts = demo.publisher.counts
    if demo.restart_seconds:
        console.print(
            "redelivered: finished or on the way when the broker was killed, so delivered once more with the same id. "
            f"sent twice: {counts.resent_batches} batches of flights were not answered when it was killed, so pynsq "
            "sent them again; those the broker had already stored are there twice, under two ids. Spark's query "
            "passes over them by their key.",
            style="dim",
        )
    for reason in demo.spark.restarts:
        console.print(f"the query was started again from its checkpoint after: {reason}", style="dim", markup=False)
    for fault in faults:
        console.print(f"WRONG: {fault}", style="bold red", markup=False)
    if not faults:
        console.print(
            "Right: every flight reached both channels, and the topic and the Parquet files of the results once each, "
            "with the weather it had; none was lost. `headrace store check`: whole.",
            style="bold green",
        )
        console.print(
            f"report:  {ending.output / 'report' / 'report.html'}\nresults: {ending.output / results.FOLDER} (Parquet)",
            markup=False,
            soft_wrap=True,  # a path that is broken cannot be copied
        )


def _clients_table(demo: Demo) -> Table:
    counts, judges = demo.publisher.counts, demo.judges
    is_published = counts.answered >= flights.COUNT  # else nobody can say what is lost
    table = Table(title="Flights and weather through a broker that was killed", title_justify="left")
    for name in ("", "flights published", "weather published", *(f"channel {judge.channel}" for judge in judges)):
        table.add_column(name, justify="right" if name else "left")
    rows: list[tuple[str, str, str, list[str]]] = [
        (
            "messages",
            f"{min(counts.answered, flights.COUNT):,}",
            f"{min(demo.weather.answered, weather.COUNT):,}",
            [f"{len(judge.flights):,}" for judge in judges],
        ),
        ("lost", "", "", [f"{judge.lost:,}" if is_published else "" for judge in judges]),
        ("with wrong content", "", "", [f"{judge.wrong + judge.changed:,}" for judge in judges]),
        ("deliveries", "", "", [f"{judge.deliveries:,}" for judge in judges]),
        ("redelivered", "", "", [f"{judge.redelivered:,}" for judge in judges]),
        (
            "sent twice / stored twice",
            f"{counts.resent_messages:,}",
            f"{demo.weather.resent:,}",
            [f"{judge.duplicates:,}" for judge in judges],
        ),
        (
            "messages per second",
            _rate(counts.answered, counts.seconds),
            "beside flights",
            [_rate(judge.deliveries, judge.seconds) for judge in judges],
        ),
    ]
    for name, of_flights, of_weather, of_channels in rows:
        table.add_row(name, of_flights, of_weather, *of_channels)
    return table


def _spark_table(outcome: Mapping[str, Any]) -> Table:
    table = Table(title="Joined by Spark, read again from both places", title_justify="left")
    table.add_column("")
    for place in _PLACES:
        table.add_column(_PLACES[place], justify="right")
    found = [outcome["found"][place] for place in _PLACES]
    rows = [
        ("flights with weather", [f"{place['with_weather']:,}" for place in found]),
        ("+ flights without weather", [f"{place['rows'] - place['with_weather']:,}" for place in found]),
        ("= flights", [f"{place['rows']:,}" for place in found]),
        ("lost", [f"{place['lost']:,}" for place in found]),
        ("duplicated", [f"{place['twice']:,}" for place in found]),
        ("with wrong content", [f"{place['wrong']:,}" for place in found]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    return table


def _delay_table(delays: Sequence[Sequence[Any]]) -> Table:
    table = Table(title="Delay by weather", title_justify="left")
    for name in ("weather", "flights", "mean delay, minutes", "over 15 minutes", "never left"):
        table.add_column(name, justify="left" if name == "weather" else "right")
    for word, count, mean, late, cancelled in delays:
        table.add_row(word or "unknown", f"{count:,}", f"{mean:.1f}", f"{late:.1%}", f"{cancelled:.1%}")
    return table


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds > 0 else ""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
