"""Measure Headrace on Spark: ``python -m bench.spark.run --quick|--full [--only CASE] [--contestants NAME,NAME]``.

A round opens a Spark session of each kind, and the contestants of a case take turns in them, so that a machine that is
slower for a minute is slower for all; only one does something at a time. A full run takes three rounds of 1 GiB, the
second with the contestants in the other order, and rewrites the section of docs/performance.md; a quick one takes one
round of 128 MiB.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path

from bench.command_line import changed_sizes, exit_at_sigterm, take_sizes, tell_verdict
from bench.errors import BenchError
from bench.machine import REPOSITORY, Cores, current_commit, describe_machine
from bench.metrics import METRICS
from bench.results import RESULTS, CaseResult, ContestantResult, RunResult, write_results
from bench.spark import kafka
from bench.spark.data import SHAPES
from bench.spark.phases import SCHEMAS, LatencyPhase, LogPhase, Phase, SinkPhase, Stage
from bench.spark.report import update_document
from bench.spark.session import Session
from bench.spark.steps import Step
from bench.spark.targets import TARGETS
from bench.targets import missed_targets

SCRATCH = REPOSITORY / ".cache" / "bench" / "scratch"
FULL = {"log_mib": 1024, "sink_rows": 3_000_000, "latency_s": 30, "rounds": 3}
QUICK = {"log_mib": 128, "sink_rows": 400_000, "latency_s": 8, "rounds": 1}
KINDS = ("headrace", "prepared", "kafka")
VERSION_NAMES = {"headrace": "spark", "prepared": "spark", "kafka": "spark of kafka"}
MIB = 1 << 20
CONTESTANTS = (
    *("ceiling", "store", "servers", "servers-session", "servers-snappy", "topics", "kafka", "kafka-value"),
    *("kafka-plain", "store-writer", "store-wide", "store-wide-writer", "headrace", "headrace-session"),
    "headrace-fsync",
)
TITLES = {
    **{f"scan-{size}-{schema}": f"Scan, {schema} rows, bodies of {size} B" for size in SHAPES for schema in SCHEMAS},
    **{f"archive-{size}": f"Archive to Parquet, bodies of {size} B" for size in SHAPES},
    **{f"disk-{size}": f"Bytes on disk, bodies of {size} B" for size in SHAPES},
    "latency": "From a send to foreachBatch, default settings",
    "sink": "Sink, rows of 200 B",
}


def main() -> int:
    """Run what the command line asks for; return 1 if a sample could not be taken or a full run missed a target."""
    arguments = _parse_arguments()
    exit_at_sigterm()
    with_kafka = any(name.startswith("kafka") for name in arguments.contestants)
    if with_kafka:
        kafka.fetch_kafka()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    run = RunResult(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        command=_repeatable_command(arguments),
        machine=describe_machine(arguments.scratch.resolve()),
        versions={"headrace": metadata.version("headrace"), "python": platform.python_version()},
    )
    if with_kafka:
        run.versions["kafka"] = kafka.VERSION
    cores = Cores.available()
    with tempfile.TemporaryDirectory(prefix="spark-", dir=arguments.scratch) as scratch:
        stage = Stage(
            scratch=Path(scratch),
            cores=f"{cores.server},{cores.load}",
            contestants=frozenset(arguments.contestants),
            cases=frozenset(arguments.only or TITLES),
            log_bytes=arguments.log_mib * MIB,
            sink_rows=arguments.sink_rows,
            latency_s=float(arguments.latency_s),
            driver_memory=arguments.driver_memory,
        )
        for make, cases in _phases():
            if stage.cases & cases:
                _run_phase(make, stage, arguments.rounds, run)
    path = arguments.output or _results_path(run, arguments)
    write_results(run, path)
    print(f"results: {path}")
    if _is_whole(arguments) and not run.failures:
        update_document(run)
    missed = missed_targets(run, TARGETS)
    tell_verdict(run.failures, missed)
    # One round is no proof of anything but that the case works.
    return 1 if run.failures or (missed and arguments.full) else 0


def _phases() -> list[tuple[Callable[[Stage], Phase], set[str]]]:
    """Return the phases with the cases that they have."""
    phases: list[tuple[Callable[[Stage], Phase], set[str]]] = []
    for size, shape in SHAPES.items():
        cases = {case for case in TITLES if case.startswith((f"scan-{size}-", f"archive-{size}", f"disk-{size}"))}
        phases.append((lambda stage, shape=shape: LogPhase(stage, shape), cases))  # type: ignore[misc]
    phases.append((LatencyPhase, {"latency"}))
    phases.append((SinkPhase, {"sink"}))
    return phases


def _run_phase(make: Callable[[Stage], Phase], stage: Stage, rounds: int, run: RunResult) -> None:
    """Take every sample of a phase; a contestant that fails once is out of its case."""
    samples = Samples(run)
    try:
        with make(stage) as phase:
            for number in range(rounds):
                run_round(phase, samples, partial(_open_session, stage), is_reversed=number % 2 == 1)
    except (BenchError, OSError) as exc:  # OSError: a broker went away while it was asked
        run.failures.append(str(exc))
        print(f"  failed: {exc}", flush=True)
    run.cases += [samples.cases[case] for case in TITLES if case in samples.cases and samples.cases[case].contestants]


def _open_session(stage: Stage, kind: str) -> Session:
    return Session(kind, stage.scratch, driver_memory=stage.driver_memory)


def run_round(phase: Phase, samples: Samples, open_session: Callable[[str], Session], *, is_reversed: bool) -> None:
    """Open a session of each kind, and in them warm up and measure case by case, contestants in turn.

    Sessions that wait take no processor time, so that what they are worth is compared within seconds.
    """
    if not phase.steps():
        return
    with ExitStack() as stack:
        sessions: dict[str, Session] = {}
        for kind in KINDS:
            if kind in phase.kinds:
                sessions[kind] = stack.enter_context(open_session(kind))
                samples.run.versions[VERSION_NAMES[kind]] = sessions[kind].version
                phase.prepare(sessions[kind])
        for _, group in groupby(sorted(phase.steps(), key=by_case), key=by_case):
            steps = list(group)
            samples.take(steps[::-1] if is_reversed else steps, sessions)


def by_case(step: Step) -> int:
    """Return where a step's case stands among all."""
    return list(TITLES).index(step.case)


class Samples:
    """The samples of a phase by case; who failed in a case takes no part in it any more."""

    def __init__(self, run: RunResult) -> None:
        self.run = run
        self.cases: dict[str, CaseResult] = {}
        self._failed: set[tuple[str, str]] = set()

    def take(self, steps: Sequence[Step], sessions: Mapping[str, Session]) -> None:
        """Warm the contestants of one case up, then take their samples in turn."""
        case = steps[0].case
        print(case, flush=True)
        result = self.cases.setdefault(case, CaseResult(case, TITLES[case]))
        for turn in range(1 + steps[0].samples):
            for step in steps:
                if (case, step.contestant) not in self._failed:
                    self._take_one(step, sessions[step.session], result, is_warm_up=turn == 0)
        for step in steps:
            if step.contestant in result.contestants:
                figures = result.contestants[step.contestant].medians
                shown = ", ".join(
                    f"{METRICS[name].show(value)} {METRICS[name].title}" for name, value in figures.items()
                )
                print(f"  {step.contestant:18} {shown}", flush=True)

    def _take_one(self, step: Step, session: Session, result: CaseResult, *, is_warm_up: bool) -> None:
        try:
            if is_warm_up:
                step.warm_up(session)
                return
            sample = step.measure(session)
        except (BenchError, OSError) as exc:
            self._failed.add((step.case, step.contestant))
            self.run.failures.append(f"{step.case} {step.contestant}: {exc}")
            print(f"  {step.contestant:18} failed: {exc}", flush=True)
            result.contestants.pop(step.contestant, None)
            return
        taken = result.contestants.setdefault(step.contestant, ContestantResult(step.command))
        taken.samples.append(sample)


def _is_whole(arguments: argparse.Namespace) -> bool:
    """Tell a run that may be documented: every case with every contestant; its command says how much and how often."""
    return not (arguments.quick or arguments.only or set(arguments.contestants) != set(CONTESTANTS))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", action="store_true", help="one round of small data")
    length.add_argument("--full", action="store_true", help="medians of three rounds")
    parser.add_argument("--only", action="append", choices=TITLES, metavar="CASE", help=f"one of: {', '.join(TITLES)}")
    parser.add_argument(
        "--contestants",
        type=lambda text: text.split(","),
        default=list(CONTESTANTS),
        metavar="NAME,NAME",
        help=f"only these: {', '.join(CONTESTANTS)}; without kafka nothing of it is fetched",
    )
    for key, meaning in (
        ("log-mib", "MiB of log that scans and archives read"),
        ("sink-rows", "rows that the sink writes"),
        ("latency-s", "seconds that latency is looked at"),
        ("rounds", "sessions of each kind in a phase"),
    ):
        name = key.replace("-", "_")
        text = f"{meaning} (default {FULL[name]:,}; quick {QUICK[name]:,})"
        parser.add_argument(f"--{key}", type=int, metavar="N", help=text)
    parser.add_argument("--driver-memory", default="3g", metavar="SIZE", help="heap of Spark's driver (default 3g)")
    parser.add_argument(
        "--scratch", type=Path, default=SCRATCH, help="directory whose file system is measured (default .cache/bench)"
    )
    parser.add_argument("--output", type=Path, help="results file (default bench/results/spark/DATE-COMMIT.json)")
    arguments = parser.parse_args()
    take_sizes(arguments, parser, QUICK if arguments.quick else FULL)
    unknown = set(arguments.contestants) - set(CONTESTANTS)
    if unknown:
        parser.error(f"unknown in --contestants: {', '.join(sorted(unknown))}")
    return arguments


def _repeatable_command(arguments: argparse.Namespace) -> str:
    """Return the command without the options that name places on this machine."""
    parts = ["python -m bench.spark.run", "--quick" if arguments.quick else "--full"]
    parts += changed_sizes(arguments, QUICK if arguments.quick else FULL)
    parts += [f"--only {name}" for name in arguments.only or ()]
    if set(arguments.contestants) != set(CONTESTANTS):
        parts.append(f"--contestants {','.join(arguments.contestants)}")
    return " ".join(parts)


def _results_path(run: RunResult, arguments: argparse.Namespace) -> Path:
    kind = "-quick" if arguments.quick else "" if _is_whole(arguments) else "-partial"
    return RESULTS / "spark" / f"{run.date[:10]}-{run.commit}{kind}.json"


if __name__ == "__main__":
    sys.exit(main())
