"""Archive much and watch the memory: ``python -m bench.spark.scale [--sizes 20000000,100000000]``.

A broker's log grows to each size in turn and is archived whole into a new folder, each time by a new Spark session with
Spark's own default of 1 GiB for its JVM. Time must grow as the messages do, memory must not. The default sizes need
50 GB of disk; such a run rewrites its section of docs/performance.md.
"""

import argparse
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench.command_line import exit_at_sigterm, tell_verdict
from bench.document import DOCUMENT, update_section
from bench.errors import BenchError
from bench.machine import Cores, current_commit, describe_hardware, describe_machine
from bench.metrics import METRICS, show_ratio
from bench.results import RESULTS, CaseResult, ContestantResult, RunResult, read_results, write_results
from bench.servers import Headrace
from bench.spark.data import SHAPES, send_messages
from bench.spark.phases import wait_durable
from bench.spark.run import SCRATCH
from bench.spark.session import Session
from bench.spark.steps import emptied
from bench.spark.tree import TreeMemory
from headrace.spark.scan import StoreSource

SIZES = (20_000_000, 100_000_000)
QUICK_SIZES = (500_000, 2_000_000)
DRIVER_MEMORY = "1g"
CASE = "archive-scale"
TITLE = "Archive of whole logs, bodies of 100 B"
SECTION = "spark-scale"
COMMAND = "python -m bench.spark.scale"
# What must not grow with the messages, by more than this.
BOUNDED = ("s_per_million", "jvm_mib", "driver_mib", "worker_mib")
MAX_GROWTH = 1.25


def main() -> int:
    """Archive each size; return 1 if one failed or something grew that must not."""
    arguments = _parse_arguments()
    if arguments.report:
        update_document(read_results(arguments.report), arguments.document)
        return 0
    exit_at_sigterm()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    case = CaseResult(CASE, TITLE)
    sizes = "" if tuple(arguments.sizes) == SIZES else f" --sizes {','.join(map(str, arguments.sizes))}"
    run = RunResult(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        command=f"{COMMAND}{sizes}",
        machine=describe_machine(arguments.scratch.resolve()),
        versions={"headrace": metadata.version("headrace"), "python": platform.python_version()},
        cases=[case],
    )
    with tempfile.TemporaryDirectory(prefix="spark-scale-", dir=arguments.scratch) as scratch:
        try:
            _measure(arguments.sizes, Path(scratch), case, run)
        except (BenchError, OSError) as exc:  # OSError: the broker went away while it was asked
            run.failures.append(f"{CASE}: {exc}")
    is_whole = tuple(arguments.sizes) == SIZES
    name = f"{run.date[:10]}-{run.commit}-scale{'' if is_whole else '-partial'}.json"
    path = arguments.output or RESULTS / "spark" / name
    write_results(run, path)
    print(f"results: {path}")
    if is_whole and not run.failures:
        update_document(run, DOCUMENT)
    missed = [
        f"{METRICS[name].title} grew {show_ratio(by)} times, at most {show_ratio(MAX_GROWTH)}"
        for name, by in growth(case).items()
        if by > MAX_GROWTH
    ]
    tell_verdict(run.failures, missed)
    return 1 if run.failures or missed else 0


def _measure(sizes: list[int], scratch: Path, case: CaseResult, run: RunResult) -> None:
    cores = Cores.available()
    with Headrace(scratch, f"{cores.server},{cores.load}", durability="async") as broker:
        source = StoreSource(str(broker.data))
        sent = 0
        for size in sizes:
            rate = send_messages(broker.rocketmq_address, SHAPES["100"], size - sent, first=sent)
            sent = size
            print(f"{size:,} messages in the log, {rate:,.0f} per second", flush=True)
            wait_durable(source, size)
            name = f"{size:,} messages"
            with (
                Session("prepared", scratch, driver_memory=DRIVER_MEMORY) as session,
                emptied(scratch / "archive") as folder,
            ):
                run.versions["spark"] = session.version
                options = {"store": str(broker.data), "to": str(folder)}
                with TreeMemory(session.pid) as memory:
                    result = session.ask("job", name="archive", options=options, folder=str(folder))
            if (rows := result["summary"]["messages"]) != size:
                raise BenchError(f"{rows} rows were archived, {size} were sent")
            sample = {
                "rows_per_s": size / result["seconds"],
                "seconds": result["seconds"],
                "s_per_million": result["seconds"] * 1e6 / size,
                "spark_cpu_us": result["cpu_s"] * 1e6 / size,
                "jvm_mib": memory.peaks["jvm"],
                "driver_mib": memory.peaks["driver"],
                "workers_mib": memory.peaks["workers"],
                "worker_mib": memory.largest_worker,
                "output_bytes_per_row": result["bytes"] / size,
            }
            case.contestants[name] = ContestantResult("headrace job archive --store DIR --to DIR", [sample])
            for metric, value in sample.items():
                print(f"  {METRICS[metric].title:30} {METRICS[metric].show(value):>14}", flush=True)


def growth(case: CaseResult) -> dict[str, float]:
    """Return how many times as large the figures that must not grow are for the last size as for the first."""
    figures = [result.medians for result in case.contestants.values()]
    if len(figures) < 2:
        return {}
    return {name: figures[-1][name] / figures[0][name] for name in BOUNDED if figures[0].get(name)}


def update_document(run: RunResult, document: Path) -> None:
    """Replace the section.

    Raises:
        ValueError: the document exists but has no markers.
    """
    update_section(document, SECTION, COMMAND, render_markdown(run))


def render_markdown(run: RunResult) -> str:
    """Return the conditions and one table: a line for each figure, a column for each size."""
    (case,) = run.cases
    hardware = describe_hardware(run.machine).partition("; server on core")[0]
    figures = {name: result.medians for name, result in case.contestants.items()}
    grown = growth(case)
    lines = [
        f"Measured {run.date[:10]} at commit `{run.commit}` with `{run.command}`, one archive of each size with "
        f"{DRIVER_MEMORY} of heap; memory is what processes allocated (RssAnon) at its peak.",
        "",
        f"Hardware: {hardware}. Versions: {', '.join(f'{name} {version}' for name, version in run.versions.items())}.",
        "",
        "| | " + " | ".join(figures) + " | last / first |",
        "| --- |" + " ---: |" * (len(figures) + 1),
    ]
    for name in METRICS:
        if all(name in values for values in figures.values()):
            cells = [METRICS[name].show(values[name]) for values in figures.values()]
            verdict = show_ratio(grown[name]) if name in grown else ""
            lines.append(f"| {METRICS[name].title} | " + " | ".join(cells) + f" | {verdict} |")
    return "\n".join(lines) + "\n"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"sizes {','.join(map(str, QUICK_SIZES))}")
    parser.add_argument(
        "--sizes",
        type=lambda text: sorted(int(part) for part in text.split(",")),
        metavar="N,N",
        help=f"messages, from small to large (default {','.join(map(str, SIZES))})",
    )
    parser.add_argument(
        "--scratch", type=Path, default=SCRATCH, help="directory whose file system is measured (default .cache/bench)"
    )
    parser.add_argument("--output", type=Path, help="results file (default bench/results/spark/DATE-COMMIT-scale.json)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing: render this results file")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="default docs/performance.md")
    arguments = parser.parse_args()
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    arguments.sizes = list(sizes)
    if min(sizes) < 1:
        parser.error("--sizes must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
