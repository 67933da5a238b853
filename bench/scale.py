"""Measure Headrace with much of everything: ``python -m bench.scale [--messages N] [--channels N] [--connections N]``.

A long backlog, many idle channels and consumers, many messages in flight, many busy connections, starts; many topics
and clients of RocketMQ. The default sizes take about thirteen minutes and 10 GB of disk; such a run rewrites the scale
section of docs/performance.md. Runs of other sizes or of some cases write files that git ignores.
"""

import argparse
import os
import platform
import resource
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench.command_line import changed_sizes, exit_at_sigterm, take_sizes, tell_verdict
from bench.document import DOCUMENT
from bench.errors import BenchError
from bench.machine import Cores, current_commit, describe_machine
from bench.programs import build_programs
from bench.run import SCRATCH
from bench.scale_cases import CASES, Scale
from bench.scale_results import (
    FIGURES,
    SCALE_RESULTS,
    ScaleCase,
    ScaleRun,
    missed_targets,
    read_scale_run,
    update_scale_document,
    write_scale_run,
)

FULL = {
    "messages": 10_000_000,
    "channels": 10_000,
    "connections": 1_000,
    "log_mb": 1_000,
    "topics": 5_000,
    "clients": 2_000,
}
QUICK = {"messages": 100_000, "channels": 200, "connections": 50, "log_mb": 50, "topics": 100, "clients": 50}
PUBLISH_EACH = 200
# Files of the broker or of the load beside their connections.
SPARE_FILES = 2_000


def main() -> int:
    """Run what the command line asks for; return 1 if a case failed or missed its target."""
    arguments = _parse_arguments()
    if arguments.report:
        update_scale_document(read_scale_run(arguments.report), arguments.document)
        return 0
    exit_at_sigterm()
    build_programs()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    run = ScaleRun(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        command=_repeatable_command(arguments),
        machine=describe_machine(arguments.scratch.resolve()),
        versions={
            "headrace": metadata.version("headrace"),
            "python": platform.python_version(),
            "uvloop": metadata.version("uvloop"),
        },
        note=arguments.note,
    )
    cores = Cores.available()
    # This process samples and waits: it must not do so on the broker's core.
    os.sched_setaffinity(0, {cores.load})
    with tempfile.TemporaryDirectory(prefix="scale-", dir=arguments.scratch) as scratch:
        scale = Scale(
            scratch=Path(scratch),
            cores=cores,
            messages=arguments.messages,
            channels=arguments.channels,
            connections=arguments.connections,
            publish_each=PUBLISH_EACH,
            log_bytes=arguments.log_mb * 1_000_000,
            idle_s=3.0 if arguments.quick else 20.0,
            heartbeat_s=3.0 if arguments.quick else 30.0,
            topics=arguments.topics,
            clients=arguments.clients,
        )
        for name in arguments.only or CASES:
            _run_case(name, scale, run)
    is_whole = not arguments.only and all(getattr(arguments, key) == value for key, value in FULL.items())
    path = arguments.output or SCALE_RESULTS / f"{run.date[:10]}-{run.commit}{'' if is_whole else '-partial'}.json"
    write_scale_run(run, path)
    print(f"results: {path}")
    if is_whole and not run.failures:
        update_scale_document(run, arguments.document)
    missed = missed_targets(run)
    tell_verdict(run.failures, missed)
    return 1 if run.failures or missed else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and short waits: half a minute")
    parser.add_argument("--messages", type=int, metavar="N", help="messages behind a channel (default 10,000,000)")
    parser.add_argument(
        "--channels", type=int, metavar="N", help="idle channels, idle consumers, and queues (default 10,000)"
    )
    parser.add_argument(
        "--connections",
        type=int,
        metavar="N",
        help="busy connections, and channels with messages in flight (default 1,000)",
    )
    parser.add_argument("--log-mb", type=int, metavar="N", help="MB of log behind the checkpoint (default 1,000)")
    parser.add_argument("--topics", type=int, metavar="N", help="topics of four queues (default 5,000)")
    parser.add_argument("--clients", type=int, metavar="N", help="RocketMQ clients with heartbeats (default 2,000)")
    parser.add_argument("--only", action="append", choices=CASES, metavar="CASE", help=f"one of: {', '.join(CASES)}")
    parser.add_argument("--note", default="", help="what a reader should know, such as other load on the machine")
    parser.add_argument(
        "--scratch", type=Path, default=SCRATCH, help="directory whose file system is measured (default .cache/bench)"
    )
    parser.add_argument("--output", type=Path, help="results file (default bench/results/scale/DATE-COMMIT.json)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing: render this results file")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="default docs/performance.md")
    arguments = parser.parse_args()
    take_sizes(arguments, parser, QUICK if arguments.quick else FULL)
    _allow_files(max(arguments.channels, arguments.connections, arguments.clients) + SPARE_FILES, parser)
    return arguments


def _allow_files(count: int, parser: argparse.ArgumentParser) -> None:
    """Raise this process's limit of open files, which the broker and the loads inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        parser.error(f"these sizes need {count} open files and the limit is {hard}: raise it (ulimit -Hn {count})")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _repeatable_command(arguments: argparse.Namespace) -> str:
    """Return the command without the options that name places on this machine."""
    parts = ["python -m bench.scale", *(["--quick"] if arguments.quick else [])]
    parts += changed_sizes(arguments, QUICK if arguments.quick else FULL)
    parts += [f"--only {name}" for name in arguments.only or ()]
    return " ".join(parts)


def _run_case(name: str, scale: Scale, run: ScaleRun) -> None:
    print(f"{name} ...", flush=True)
    try:
        case: ScaleCase = CASES[name](scale)
    except (BenchError, OSError) as exc:  # OSError: the broker went away while it was asked
        run.failures.append(f"{name}: {exc}")
        print(f"  failed: {exc}", flush=True)
        return
    run.cases.append(case)
    for key, value in case.figures.items():
        metric = FIGURES[key].metric
        print(f"  {metric.title:40} {metric.show(value):>14}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
