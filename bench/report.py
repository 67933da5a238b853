"""Write a run's figures into docs/performance.md: ``python -m bench.report RESULTS [--document FILE]``.

NSQ's cases and RocketMQ's have a section each; what the file has is replaced, between the markers only. The plots need
matplotlib (``pip install '.[bench]'``).
"""

import argparse
from dataclasses import replace
from pathlib import Path

from bench.cases import CASES_OF
from bench.document import DOCUMENT, render_commands, update_section
from bench.machine import describe_hardware
from bench.metrics import METRICS, show_ratio
from bench.results import CaseResult, RunResult, read_results
from bench.targets import render_targets

SECTIONS = {"nsq": "bench", "rocketmq": "rocketmq"}
COLUMNS = (
    "start_s",
    "messages_per_s",
    "megabytes_per_s",
    "server_cpu_us",
    "latency_p50_us",
    "latency_p99_us",
    "latency_p999_us",
    "rss_anon_mib",
    "rss_anon_peak_mib",
    "rss_peak_mib",
    "server_cpu_share",
    "load_cpu_share",
    "ns_per_record",
    "syncs_per_s",
)


# What the second table of a case compares.
RATIOS = ("messages_per_s", "server_cpu_us", "latency_p50_us", "latency_p99_us", "rss_anon_mib", "start_s")

# Marker and colour: ours are blue, nsqd's orange, RocketMQ's green and purple, limits grey.
MARKS = {
    "headrace": ("o", "tab:blue"),
    "headrace-fsync": ("D", "tab:cyan"),
    "nsqd": ("s", "tab:orange"),
    "nsqd-memory": ("^", "tab:red"),
    "rocketmq-4.9.7": ("s", "tab:green"),
    "rocketmq-5.5.0": ("^", "tab:purple"),
    "rocketmq-4.9.7-sync": ("s", "tab:olive"),
    "rocketmq-5.5.0-sync": ("^", "tab:pink"),
    "null": ("|", "black"),
    "disk": ("x", "dimgrey"),
    "store": ("P", "tab:grey"),
}


def update_document(run: RunResult, document: Path = DOCUMENT) -> None:
    """Replace the generated parts of the document for which the run has cases, and their plots.

    Raises:
        ValueError: the document exists but has no markers.
    """
    for protocol, section in SECTIONS.items():
        part = part_of(run, protocol)
        if not part.cases:
            continue
        plot = document.with_name(f"{document.stem}{'' if protocol == 'nsq' else f'-{protocol}'}.svg")
        image = f"![Messages per second by case]({plot.name})\n\n" if draw_plot(part, plot) else ""
        update_section(document, section, "python -m bench.report", image + render_markdown(part))


def part_of(run: RunResult, protocol: str) -> RunResult:
    """Return the run with the cases of one protocol only."""
    names = {case.name for case in CASES_OF[protocol]}
    return replace(run, cases=[case for case in run.cases if case.name in names and case.contestants])


def render_markdown(run: RunResult) -> str:
    """Return the conditions, the targets, the tables of each case, and how to repeat it."""
    most = max(len(result.samples) for case in run.cases for result in case.contestants.values())
    samples = "one sample" if most == 1 else f"{most} samples"
    lines = [
        f"Measured {run.date[:10]} at commit `{run.commit}` with `{run.command}`: median of {samples}, contestants "
        "alternating.",
        "",
        f"Hardware: {describe_hardware(run.machine)}. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in run.versions.items())}.",
        *render_targets(run),
    ]
    for case in run.cases:
        lines += ["", f"### {case.title}", "", *_render_table(case), *_render_ratios(case)]
        lines += ["", *render_commands(case)]
    return "\n".join(lines) + "\n"


def _render_ratios(case: CaseResult) -> list[str]:
    """Return how ours compares with each RocketMQ broker: figure by figure, divided by the broker's."""
    peers = [name for name in case.contestants if name.startswith("rocketmq-")]
    ours = [name for name in case.contestants if name.startswith("headrace")]
    if not peers or not ours:
        return []
    figures = {name: case.contestants[name].medians for name in (*ours, *peers)}
    columns = [name for name in RATIOS if all(name in figures[contestant] for contestant in figures)]
    lines = ["", "| divided | " + " | ".join(METRICS[name].title for name in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for our in ours:
        for peer in peers:
            cells = [_show_ratio(figures[our][name], figures[peer][name]) for name in columns]
            lines.append(f"| {our} / {peer} | " + " | ".join(cells) + " |")
    return lines


def _show_ratio(ours: float, theirs: float) -> str:
    return show_ratio(ours / theirs) if theirs > 0 else ""


def _render_table(case: CaseResult) -> list[str]:
    figures = {contestant: result.medians for contestant, result in case.contestants.items()}
    columns = [name for name in COLUMNS if any(name in f for f in figures.values())]
    lines = [
        "| | " + " | ".join(METRICS[name].title for name in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for contestant, values in figures.items():
        cells = [METRICS[name].show(values[name]) if name in values else "" for name in columns]
        lines.append(f"| {contestant} | " + " | ".join(cells) + " |")
    return lines


def draw_plot(run: RunResult, path: Path) -> bool:
    """Draw messages per second of every case beside each other; return False where matplotlib is missing."""
    try:
        import matplotlib  # noqa: PLC0415 - optional: the tables do without
    except ImportError:
        print("no plot: matplotlib is not installed (pip install '.[bench]')")
        return False
    matplotlib.use("Agg")
    # The same run gives the same file: element ids come from a fixed salt instead of a random one.
    matplotlib.rcParams["svg.hashsalt"] = "headrace"
    from matplotlib import pyplot  # noqa: PLC0415 - only after the backend is chosen

    cases = [case for case in run.cases if all("messages_per_s" in c.medians for c in case.contestants.values())]
    contestants = [name for name in MARKS if any(name in case.contestants for case in cases)]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.36 * len(cases)), layout="constrained")
    for contestant in contestants:
        rows = [row for row, case in enumerate(cases) if contestant in case.contestants]
        rates = [cases[row].contestants[contestant].medians["messages_per_s"] for row in rows]
        marker, colour = MARKS[contestant]
        axes.plot(rates, rows, marker, color=colour, markersize=8, alpha=0.9, label=contestant)
    axes.set_yticks(range(len(cases)), [case.title for case in cases])
    axes.set_ylim(len(cases) - 0.5, -0.5)
    # Cases differ by four orders of magnitude: one at a time, and millions in batches. Marks, not bars: a length means
    # nothing on this axis.
    axes.set_xscale("log")
    axes.grid(visible=True, which="major", color="0.85")
    axes.grid(visible=True, which="minor", axis="x", color="0.95")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("messages per second (logarithmic)")
    figure.legend(loc="outside upper center", ncols=len(contestants), frameon=False, handletextpad=0.1)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return True


def main() -> None:
    """Regenerate the document from a results file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="a file of bench/results")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="default docs/performance.md")
    arguments = parser.parse_args()
    run = read_results(arguments.results)
    if not any(case.contestants for case in run.cases):
        parser.error(f"{arguments.results} has no figures")
    update_document(run, arguments.document)


if __name__ == "__main__":
    main()
