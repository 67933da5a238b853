"""The progress display: a bar for each thing that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from demo import flights, weather

if TYPE_CHECKING:
    from demo.story import Demo


class Bars:
    """The bars of one run; use it as a context."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<17}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, demo: Demo) -> None:
        """Show how far everything is."""
        self._set("flights, pynsq", min(demo.publisher.counts.answered, flights.COUNT), flights.COUNT)
        self._set("weather, RocketMQ", min(demo.weather.answered, weather.COUNT), weather.COUNT)
        for judge in demo.judges:
            note = f"{judge.redelivered:,} redelivered" if judge.redelivered else ""
            self._set(f"{judge.channel}, gnsq", len(judge.flights), flights.COUNT, note)
        self._set("joined by Spark", demo.spark.written, flights.COUNT, demo.spark.stage)

    def _set(self, name: str, done: int, total: int, note: str = "") -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, note="")
        self._progress.update(self._tasks[name], completed=done, note=note)
