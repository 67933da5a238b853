"""The section about Spark in docs/performance.md: ``python -m bench.spark.report RESULTS [--document FILE]``."""

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.document import DOCUMENT, render_commands, update_section
from bench.machine import describe_hardware
from bench.metrics import METRICS, Sample, show_ratio
from bench.results import CaseResult, RunResult, read_results
from bench.spark.targets import TARGETS
from bench.targets import render_targets

SECTION = "spark"
COMMAND = "python -m bench.spark.report"
COLUMNS = (
    "rows_per_s",
    "megabytes_per_s",
    "latency_p50_ms",
    "latency_p90_ms",
    "latency_p99_ms",
    "batches_per_s",
    "spark_cpu_us",
    "server_cpu_us",
    "output_bytes_per_row",
    "disk_bytes_per_row",
)
# A case's first figure that is among these is divided by that of each of these contestants.
RATIO_OF = ("rows_per_s", "latency_p50_ms", "disk_bytes_per_row")
RATIO_TO = ("ceiling", "store-writer", "store-wide-writer", "kafka", "kafka-value", "kafka-plain")


def update_document(run: RunResult, document: Path = DOCUMENT) -> None:
    """Replace the section.

    Raises:
        ValueError: the document exists but has no markers.
    """
    update_section(document, SECTION, COMMAND, render_markdown(run))


def render_markdown(run: RunResult) -> str:
    """Return the conditions, the targets, and a table for each case with the commands behind it."""
    counts = sorted({len(result.samples) for case in run.cases for result in case.contestants.values()})
    samples = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    hardware = describe_hardware(run.machine).partition("; server on core")[0]
    lines = [
        f"Measured {run.date[:10]} at commit `{run.commit}` with `{run.command}`: medians of {samples} samples, "
        "contestants alternating.",
        "",
        f"Hardware: {hardware}; brokers and Spark share all cores. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in run.versions.items())}.",
        *render_targets(run, TARGETS, names_contestant=True),
    ]
    for case in run.cases:
        if case.contestants:
            lines += ["", f"### {case.title}", "", *render_table(case), "", *render_commands(case)]
    return "\n".join(lines) + "\n"


def render_table(case: CaseResult) -> list[str]:
    """Return a case's figures, and how many times those of some contestants they are."""
    figures = {name: result.medians for name, result in case.contestants.items()}
    columns = [name for name in COLUMNS if any(name in values for values in figures.values())]
    judged = next((name for name in RATIO_OF if name in columns), None)
    bases = [name for name in RATIO_TO if judged and judged in figures.get(name, {}) and len(figures) > 1]
    titles = [METRICS[name].title for name in columns] + [f"/ {name}" for name in bases]
    lines = ["| | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
    for contestant, values in figures.items():
        cells = [METRICS[name].show(values[name]) if name in values else "" for name in columns]
        cells += [_ratio(values, figures[base], str(judged)) if base != contestant else "" for base in bases]
        lines.append(f"| {contestant} | " + " | ".join(cells) + " |")
    return lines


def _ratio(values: Sample, base: Sample, metric: str) -> str:
    return show_ratio(values[metric] / base[metric]) if metric in values and base[metric] > 0 else ""


def main(update: Callable[[RunResult, Path], None] = update_document) -> None:
    """Regenerate the section from a results file."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("results", type=Path, help="a file of bench/results/spark")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="default docs/performance.md")
    arguments = parser.parse_args()
    update(read_results(arguments.results), arguments.document)


if __name__ == "__main__":
    main()
