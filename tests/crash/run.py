"""``make crash``: kill -9 a broker under load again and again, and hold what clients saw against what was promised.

    python -m tests.crash.run --cycles 200 --seed 1 --protocol nsq

The choices of a run follow from its seed; what the clock decides (where exactly a kill hits) does not. A run that finds
something keeps its folder: the store as the last kill left it, the broker's log and, with ``--history``, every event.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.crash import rocketmq_load
from tests.crash.both_load import BothLoad
from tests.crash.broker_process import BrokerProcess, StartError
from tests.crash.checker import Checker
from tests.crash.history import BrokerComplained, Crashed, Drained, Held, History
from tests.crash.load import Load
from tests.crash.rocketmq_checker import RocketmqChecker

CHECK_EVERY = 10
_DRAIN_S = 25.0


@dataclass(frozen=True)
class Protocol:
    """Who loads the broker, and who checks it.

    Attributes:
        make_load: Called with history, checker, generator, and a dict that goes on from run to run.
        arguments: Settings of the broker.
        expected: Errors in its log that the load causes by intent.
    """

    make_checker: Callable[[], Any]
    make_load: Callable[..., Any]
    arguments: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()


PROTOCOLS = {
    "nsq": Protocol(Checker, Load),
    "rocketmq": Protocol(RocketmqChecker, rocketmq_load.RocketmqLoad, rocketmq_load.ARGUMENTS, rocketmq_load.EXPECTED),
    "both": Protocol(BothLoad.checker, BothLoad, rocketmq_load.ARGUMENTS, rocketmq_load.EXPECTED),
}


@dataclass
class Totals:
    """What a run did."""

    kills: int = 0
    kills_in_start: int = 0
    stops: int = 0
    held: int = 0
    drains: int = 0
    checks: int = 0
    acknowledged: int = 0
    deliveries: int = 0
    start_seconds: list[float] = field(default_factory=list)


class CrashRun:
    """One store that is killed again and again.

    Args:
        long_share: Share of cycles so long that a FIN or a committed offset can be older than what a crash may forget.
        others: ``src`` folders of other builds; each start takes one of these or the own one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        durability: str = "fsync",
        segment_bytes: str = "1MiB",
        history: Path | None = None,
        long_share: float = 1 / 20,
        protocol: str = "nsq",
        others: Sequence[Path] = (),
    ) -> None:
        self.seed = seed
        self.others = others
        self.long_share = long_share
        self.totals = Totals()
        self._protocol = PROTOCOLS[protocol]
        self.checker = self._protocol.make_checker()
        self.history = History(history)
        self.history.observers.append(self.checker.observe)
        arguments = ("--store.durability", durability, "--store.segment-bytes", segment_bytes)
        self.broker = BrokerProcess(folder, arguments + self._protocol.arguments, expected=self._protocol.expected)
        self._state: dict[str, Any] = {}

    def cycle(self, number: int) -> None:
        """Start, verify or not, load, kill."""
        rng = random.Random(f"{self.seed}/{number}")  # choices of a test
        kills_in_start, drains = number > 0 and rng.random() < 0.2, rng.random() < 0.3
        seconds = rng.uniform(7.0, 8.5) if rng.random() < self.long_share else rng.uniform(0.02, 1.2)
        if kills_in_start:
            self._kill_in_start(rng)
        load = self._start(rng)
        if drains:
            self._drain(load)
        load.begin_publishing()
        load.run(time.monotonic() + seconds)
        if rng.random() < 0.1:
            self._hold(rng.choice((0.1, 0.6, 2.5)))  # the last lets what is in flight time out
            load.run(time.monotonic() + rng.uniform(0.02, 0.5))
        if rng.random() < 0.1:
            self._stop()
            crashed_at = time.monotonic()  # until then it delivers
        else:
            crashed_at = time.monotonic()
            self.broker.kill()
            self.totals.kills += 1
        dead_at = time.monotonic()
        load.read_rest(crashed_at)
        self.history.record(Crashed(crashed_at, dead_at - crashed_at))
        self._count(load)

    def finish(self) -> None:
        """Start once more, let the consumers finish everything, stop in good order, start and look again."""
        for _ in range(2):
            load = self._start(random.Random(f"{self.seed}/end"))
            self._drain(load)
            self._count(load)
            load.close()
            self._stop()
            self._read_log()
        self.history.close()

    def store_check(self) -> None:
        """Run ``headrace store check``; the store must be whole."""
        program = str(Path(sys.executable).with_name("headrace"))
        self.totals.checks += 1
        command = [program, "store", "check", "--json", str(self.broker.data_dir)]
        told = subprocess.run(command, capture_output=True, check=False, timeout=120)
        if told.returncode != 0:
            self._complain(f"store check: exit code {told.returncode}: {(told.stdout + told.stderr).decode()[:800]}")

    @property
    def violations(self) -> list[Any]:
        """What was found."""
        return list(self.checker.violations)

    def _take_build(self, rng: random.Random) -> None:
        if self.others:
            self.broker.build = rng.choice((None, *self.others))

    def _start(self, rng: random.Random) -> Any:
        self._take_build(rng)
        began = time.monotonic()
        self.broker.start()
        self.totals.start_seconds.append(time.monotonic() - began)
        self._read_log()
        load = self._protocol.make_load(self.history, self.checker, rng, self._state)
        load.connect(self.broker.listeners)
        return load

    def _kill_in_start(self, rng: random.Random) -> None:
        self._take_build(rng)
        self.broker.spawn()
        slowest = max(self.totals.start_seconds[-5:], default=0.3)
        time.sleep(rng.uniform(0.0, slowest * 1.1))
        crashed_at = time.monotonic()
        self.broker.kill()
        self.history.record(Crashed(crashed_at, time.monotonic() - crashed_at))
        self.totals.kills += 1
        self.totals.kills_in_start += 1

    def _hold(self, seconds: float) -> None:
        """Neither broker nor load run for a time."""
        began_at = time.monotonic()
        self.broker.hold(seconds)
        self.history.record(Held(began_at, seconds))
        self.totals.held += 1

    def _stop(self) -> None:
        code = self.broker.stop()
        if code != 0:
            self._complain(f"SIGTERM: exit code {code}")
        self.totals.stops += 1

    def _drain(self, load: Any) -> None:
        load.drain(_DRAIN_S)
        self.history.record(Drained(time.monotonic()))
        self.totals.drains += 1

    def _count(self, load: Any) -> None:
        self.totals.acknowledged += load.acknowledged
        self.totals.deliveries += load.deliveries
        for refusal in load.refusals:
            self._complain(f"refused: {refusal.decode(errors='replace')[:200]}")
        for complaint in load.complaints:
            self._complain(complaint.decode()[:200])

    def _read_log(self) -> None:
        for line in self.broker.new_complaints():
            self._complain(line)

    def _complain(self, text: str) -> None:
        self.history.record(BrokerComplained(time.monotonic(), text))


def summarize(run: CrashRun, seconds: float) -> dict[str, object]:
    """Return the figures of a run."""
    totals = run.totals
    starts = sorted(totals.start_seconds) or [0.0]
    by_rule = Counter(violation.rule.name for violation in run.violations)
    return {
        "seed": run.seed,
        "seconds": round(seconds, 1),
        "kills": totals.kills,
        "kills_in_start": totals.kills_in_start,
        "stops": totals.stops,
        "held": totals.held,
        "drains": totals.drains,
        "store_checks": totals.checks,
        "acknowledged_commands": totals.acknowledged,
        "deliveries": totals.deliveries,
        "slowest_start_s": round(starts[-1], 3),
        "events": run.history.events,
        "violations": run.checker.violation_count,
        **by_rule,
    }


def run_cycles(run: CrashRun, cycles: int, console: Console, *, stop_at_first: bool) -> None:
    """Run the cycles with a progress bar."""
    columns = (
        TextColumn("kill -9"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[found]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("cycles", total=cycles, found="")
        for number in range(cycles):
            run.cycle(number)
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                run.store_check()
            found = run.checker.violation_count
            progress.update(task, advance=1, found=f"violations {found}" if found else "")
            if found and stop_at_first:
                return
            if not console.is_terminal and number % 20 == 19:
                console.print(f"{number + 1} of {cycles} cycles, violations {found}")
        run.finish()
        run.store_check()


def run_protocol(run: CrashRun, name: str, cycles: int, console: Console, *, stop_at_first: bool) -> bool:
    """Run the cycles of one protocol, print what was found; return whether nothing was."""
    began = time.monotonic()
    try:
        run_cycles(run, cycles, console, stop_at_first=stop_at_first)
    except StartError as error:
        run.history.record(BrokerComplained(time.monotonic(), f"start failed: {error}"))
    finally:
        run.broker.kill()
    for violation in run.violations[:40]:
        console.print(str(violation), markup=False, highlight=False, soft_wrap=True)
    figures = {"protocol": name, **summarize(run, time.monotonic() - began)}
    console.print(json.dumps(figures, indent=1), markup=False)
    if not (run.totals.acknowledged and run.totals.deliveries):
        console.print("nothing was acknowledged, or nothing delivered: the run says nothing of the broker")
        return False
    return run.checker.violation_count == 0


@click.command()
@click.option("--cycles", default=200, show_default=True, help="How often to kill, for each protocol.")
@click.option("--seed", default=1, show_default=True, help="Seed of all random choices.")
@click.option("--protocol", default="all", show_default=True, type=click.Choice([*PROTOCOLS, "all"]))
@click.option("--durability", default="fsync", show_default=True, type=click.Choice(["fsync", "async"]))
@click.option("--segment-bytes", default="1MiB", show_default=True, help="From 4MiB on zeros are written ahead.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work; a temporary folder by default.")
@click.option("--history", is_flag=True, help="Write every event to history.jsonl in the folder.")
@click.option(
    "--other",
    "others",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Folder src of another build, of an older version: each start takes one of them at random.",
)
@click.option("--stop-at-first", is_flag=True, help="Stop at the first violation, with the store as it is.")
def main(
    cycles: int,
    seed: int,
    protocol: str,
    durability: str,
    segment_bytes: str,
    folder: Path | None,
    history: bool,
    others: tuple[Path, ...],
    stop_at_first: bool,
) -> None:
    """Kill a broker under load, restart it, and check that it kept its promises."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    made = folder is None
    folder = folder or Path(tempfile.mkdtemp(prefix="headrace-crash-"))
    failed = False
    for name in PROTOCOLS if protocol == "all" else (protocol,):
        (folder / name).mkdir(parents=True, exist_ok=True)
        run = CrashRun(
            folder / name,
            seed=seed,
            durability=durability,
            segment_bytes=segment_bytes,
            history=folder / name / "history.jsonl" if history else None,
            protocol=name,
            others=others,
        )
        failed |= not run_protocol(run, name, cycles, console, stop_at_first=stop_at_first)
    if failed or not made:
        console.print(f"stores, broker.log and histories are in {folder}", markup=False)
    else:
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
