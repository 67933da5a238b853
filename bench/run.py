"""Run the benchmarks: ``python -m bench.run --quick|--full [--protocol NAME] [--only CASE] [--servers NAME,NAME]``.

Contestants alternate inside every case, so that a machine that is slower for a minute is slower for all of them. A
full run takes five samples of each (``--samples``) and rewrites docs/performance.md, or with --protocol its section; a
quick one takes one short sample, enough to see that everything works and roughly where it stands.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench.case import Case, Stage
from bench.cases import CASES, CASES_OF
from bench.command_line import changed_sizes, exit_at_sigterm, take_sizes, tell_verdict
from bench.errors import BenchError
from bench.history import update_history
from bench.machine import REPOSITORY, Cores, current_commit, describe_machine
from bench.metrics import METRICS
from bench.programs import PEERS, build_programs
from bench.report import update_document
from bench.results import RESULTS, CaseResult, ContestantResult, RunResult, write_results
from bench.rocketmq_servers import HEAP, VERSIONS, fetch_rocketmq, java_version
from bench.targets import missed_targets

SCRATCH = REPOSITORY / ".cache" / "bench" / "scratch"
# What RocketMQ's cases take beside their time, see bench.case.Stage.
FULL = {"warm": 1_000_000, "backlog": 5_000_000, "messages": 10_000_000, "held": 200_000}
SAMPLES = 5
MIN_SAMPLES = 3
QUICK = {"warm": 100_000, "backlog": 500_000, "messages": 500_000, "held": 20_000}


def main() -> int:
    """Run what the command line asks for; return 1 if a sample could not be taken or a full run missed a target."""
    arguments = _parse_arguments()
    selected = _select_cases(arguments)
    if not selected:
        sys.exit("no case is left: --protocol, --only and --servers exclude each other")
    with_rocketmq = any(name.startswith("rocketmq-") for _, contestants in selected for name in contestants)
    exit_at_sigterm()
    build_programs()
    if with_rocketmq:
        fetch_rocketmq()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    cores = Cores.available()
    # This process samples and waits: it must not do so on the server's core.
    os.sched_setaffinity(0, {cores.load})
    run = RunResult(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        command=_repeatable_command(arguments),
        machine=arguments.machine,
        versions=_versions(with_rocketmq=with_rocketmq),
    )
    with tempfile.TemporaryDirectory(prefix="run-", dir=arguments.scratch) as scratch:
        write_s, read_s = (2.0, 0.5) if arguments.quick else (2.4, 0.6)
        stage = Stage(
            Path(scratch),
            cores,
            write_s,
            read_s,
            warm_messages=arguments.warm,
            backlog=arguments.backlog,
            memory_messages=arguments.messages,
            held_messages=arguments.held,
        )
        path = arguments.output or _results_path(run, arguments)
        for case, contestants in selected:
            samples = min(arguments.samples, case.samples_at_most)
            run.cases.append(_run_case(case, contestants, stage, samples, run.failures))
            write_results(run, path)  # a run of hours that is broken off has taken something
    print(f"results: {path}")
    if _is_whole(arguments) and not run.failures:
        update_document(run)
        update_history()
    missed = missed_targets(run)
    tell_verdict(run.failures, missed)
    # One short sample is no proof of anything but that the case works.
    return 1 if run.failures or (missed and arguments.full) else 0


def _select_cases(arguments: argparse.Namespace) -> list[tuple[Case, list[str]]]:
    """Return the cases asked for with their contestants."""
    selected = []
    for case in CASES_OF[arguments.protocol] if arguments.protocol else CASES:
        contestants = [name for name in case.contestants if not arguments.servers or name in arguments.servers]
        if contestants and (not arguments.only or case.name in arguments.only):
            selected.append((case, contestants))
    return selected


def _is_whole(arguments: argparse.Namespace) -> bool:
    """Tell a run that may be documented: every case of a protocol, with every contestant, in full."""
    is_cut = arguments.quick or arguments.only or arguments.servers or arguments.samples < MIN_SAMPLES
    return not is_cut and all(getattr(arguments, key) == value for key, value in FULL.items())


def _parse_arguments() -> argparse.Namespace:
    names = [case.name for case in CASES]
    contestants = sorted({contestant for case in CASES for contestant in case.contestants})
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", action="store_true", help="one short sample of each")
    length.add_argument("--full", action="store_true", help="medians of several samples")
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"samples of each (default {SAMPLES}; quick 1); below {MIN_SAMPLES} a run is not documented",
    )
    parser.add_argument("--protocol", choices=CASES_OF, help="only the cases of one protocol")
    parser.add_argument("--only", action="append", choices=names, metavar="CASE", help=f"one of: {', '.join(names)}")
    parser.add_argument(
        "--servers",
        type=lambda text: text.split(","),
        metavar="NAME,NAME",
        help=f"only these contestants: {', '.join(contestants)}",
    )
    for key, meaning in (
        ("warm", "messages that a server of a RocketMQ case takes before it is measured"),
        ("backlog", "messages of the backlog that RocketMQ's pull cases read"),
        ("messages", "messages after which rocket-memory looks at the memory"),
        ("held", "messages that are delayed, committed or sent back"),
    ):
        parser.add_argument(
            f"--{key}", type=int, metavar="N", help=f"{meaning} (default {FULL[key]:,}; quick {QUICK[key]:,})"
        )
    parser.add_argument(
        "--scratch", type=Path, default=SCRATCH, help="directory whose file system is measured (default .cache/bench)"
    )
    parser.add_argument("--output", type=Path, help="results file (default bench/results/DATE-COMMIT.json)")
    arguments = parser.parse_args()
    take_sizes(arguments, parser, QUICK if arguments.quick else FULL)
    if arguments.samples is None:
        arguments.samples = 1 if arguments.quick else SAMPLES
    if arguments.samples < 1:
        parser.error("--samples must be at least 1")
    unknown = set(arguments.servers or ()) - set(contestants)
    if unknown:
        parser.error(f"unknown in --servers: {', '.join(sorted(unknown))}")
    # Read before this process is pinned to one core.
    arguments.machine = describe_machine(arguments.scratch.resolve())
    return arguments


def _repeatable_command(arguments: argparse.Namespace) -> str:
    """Return the command without the options that name places on this machine."""
    parts = ["python -m bench.run", "--quick" if arguments.quick else "--full"]
    if arguments.protocol:
        parts.append(f"--protocol {arguments.protocol}")
    if arguments.samples != (1 if arguments.quick else SAMPLES):
        parts.append(f"--samples {arguments.samples}")
    parts += changed_sizes(arguments, QUICK if arguments.quick else FULL)
    parts += [f"--only {name}" for name in arguments.only or ()]
    if arguments.servers:
        parts.append(f"--servers {','.join(arguments.servers)}")
    return " ".join(parts)


def _run_case(case: Case, contestants: list[str], stage: Stage, repetitions: int, failures: list[str]) -> CaseResult:
    """Take every sample of a case in turn; a contestant that fails once is out of this case."""
    print(f"{case.name}: {case.title}", flush=True)
    result = CaseResult(case.name, case.title)
    remaining = list(contestants)
    for _ in range(repetitions):
        for contestant in list(remaining):
            try:
                measurement = case.measure(contestant, stage)
            except (BenchError, OSError) as exc:  # OSError: the server went away while it was asked
                failures.append(f"{case.name} {contestant}: {exc}")
                print(f"  {contestant:15} failed: {exc}", flush=True)
                remaining.remove(contestant)
                result.contestants.pop(contestant, None)
                continue
            taken = result.contestants.setdefault(contestant, ContestantResult(measurement.command))
            taken.samples.append(measurement.sample)
    for contestant, taken in result.contestants.items():
        figures = taken.medians
        shown = ", ".join(f"{METRICS[name].show(value)} {METRICS[name].title}" for name, value in figures.items())
        print(f"  {contestant:15} {shown}", flush=True)
    return result


def _versions(*, with_rocketmq: bool) -> dict[str, str]:
    nsqd = subprocess.run([PEERS / "nsqd", "--version"], capture_output=True, text=True, check=True)
    versions = {"nsqd": nsqd.stdout.strip().removeprefix("nsqd v"), "python": platform.python_version()}
    if with_rocketmq:
        versions["rocketmq"] = f"{' and '.join(VERSIONS)} (-Xmx{HEAP}, java {java_version()})"
    with suppress(metadata.PackageNotFoundError):  # a run of the peers alone needs no Headrace
        versions |= {name: metadata.version(name) for name in ("headrace", "uvloop")}
    return versions


def _results_path(run: RunResult, arguments: argparse.Namespace) -> Path:
    kind = "-quick" if arguments.quick else "" if _is_whole(arguments) else "-partial"
    # bench.compare takes the newest file of the folder itself for a run of NSQ's cases.
    folder = RESULTS / "rocketmq" if arguments.protocol == "rocketmq" else RESULTS
    return folder / f"{run.date[:10]}-{run.commit}{kind}.json"


if __name__ == "__main__":
    sys.exit(main())
