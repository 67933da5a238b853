"""Plots as SVG texts that stand inside an HTML page: drawn by matplotlib without a display, text kept as text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that differ in lightness too, and for the colour-blind (after Okabe and Ito); "others" is grey.
COLOURS: Final = ("#0b6e99", "#e07a1f", "#2a9d6f", "#b5438a", "#6a5acd", "#c9a227", "#9aa0a6")
_BOUNDS: Final = (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
"""Of times that matplotlib can write."""
_INK: Final = "#3c4650"
_GRID: Final = "#e3e7eb"
_STYLE: Final[Any] = {  # matplotlib names each of 400 keys in its types
    "svg.fonttype": "none",
    "svg.hashsalt": "headrace",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": _INK,
    "text.parse_math": False,  # a topic may be called anything
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "ytick.left": False,
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, and a value (or None) for each point in time."""

    name: str
    values: Sequence[float | None]


def lines(
    axis: Sequence[int],
    series: Sequence[Series],
    label: str,
    *,
    unit: str = "",
    stacked: bool = False,
    log: bool = False,
) -> str:
    """Return a plot of lines over time.

    Args:
        axis: Points in time, seconds since 1970.
        label: What the values are.
        unit: "bytes" to write values with KiB, MiB, ...
        stacked: Areas on top of each other, for parts of a whole.
        log: Logarithmic values.
    """
    import matplotlib as mpl  # noqa: PLC0415  # an extra
    from matplotlib import dates  # noqa: PLC0415  # an extra

    with mpl.rc_context(_STYLE):
        figure, axes = _figure()
        times: list[Any] = [datetime.fromtimestamp(at, UTC) for at in axis]
        names = [_label(one.name) for one in series]
        if stacked and len(axis) > 1:
            values = [[value or 0.0 for value in one.values] for one in series]
            drawn: list[Any] = list(axes.stackplot(times, values, colors=COLOURS, alpha=0.85, linewidth=0))
        else:
            drawn = []
            for number, one in enumerate(series):
                points = [float("nan") if value is None else value for value in one.values]
                style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.4}
                if len(axis) < 40:
                    style |= {"marker": "o", "markersize": 3}
                drawn += axes.plot(times, points, **style)
        if log:
            axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        locator = dates.AutoDateLocator(minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        if times:
            axes.margins(x=0.01)
            # Of times near them the margin lies outside.
            (left, right), (low, high) = axes.get_xlim(), dates.date2num(_BOUNDS)  # type: ignore[no-untyped-call]
            axes.set_xlim(max(left, low), min(right, high))
        axes.yaxis.set_major_formatter(_write_bytes if unit == "bytes" else _write_number)
        axes.set_ylabel(label)
        axes.legend(drawn, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=min(4, len(names)), borderaxespad=0.2)
        return _svg(figure)


def bars(names: Sequence[str], counts: Sequence[int], label: str) -> str:
    """Return a plot of bars, one for each name; empty ones at both ends are left out."""
    import matplotlib as mpl  # noqa: PLC0415  # an extra

    filled = [place for place, value in enumerate(counts) if value]
    first, last = (filled[0], filled[-1] + 1) if filled else (0, len(names))
    first, last = max(0, first - 1), min(len(names), last + 1)
    with mpl.rc_context(_STYLE):
        figure, axes = _figure()
        axes.bar(range(last - first), counts[first:last], color=COLOURS[0], width=0.85)
        axes.set_xticks(range(last - first), names[first:last], rotation=40, ha="right")
        axes.yaxis.set_major_formatter(_write_number)
        axes.set_ylabel(label)
        return _svg(figure)


def _figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    figure = Figure(figsize=(7.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(axis="y", color=_GRID)
    return figure, axes


def _svg(figure: Figure) -> str:
    """Return the drawing without what an SVG file has before it."""
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _label(name: str) -> str:
    """Keep matplotlib from leaving out names that begin with an underscore."""
    name = name if len(name) <= 40 else name[:38] + "…"
    return "\u200b" + name if name.startswith("_") else name


def _write_number(value: float, _position: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _write_bytes(value: float, _position: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:g}"
