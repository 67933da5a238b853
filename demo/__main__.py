"""Run the demo: ``python -m demo``. The exit code is 0 when everything was right, 1 when not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from demo import flights, results
from demo.broker import store_bytes
from demo.judge import find_faults
from demo.progress import Bars
from demo.report import Ending, print_report
from demo.story import Demo, StuckError

OUTPUT: Final = Path(__file__).resolve().parents[1] / "demo-output"
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEPT: Final = ("report", results.FOLDER)


def run_demo(folder: Path, console: Console) -> bool:
    """Run the demo in a folder; return whether everything was right."""
    began = time.monotonic()
    faults: list[str] = []
    with Bars(console) as bars:
        demo = Demo(folder, console, bars)
        try:
            asyncio.run(demo.run())
        except* (StuckError, RuntimeError, OSError) as errors:
            faults += [str(error) for error in leaves(errors)]
        finally:
            exit_code = demo.broker.end()
    if exit_code:
        faults.append(f"the broker ended with exit code {exit_code}: {demo.broker.last_lines(3)}")
    damage = demo.broker.check_store() if demo.start_seconds else ""  # what never began has no store
    if damage:
        faults.append(f"headrace store check: {damage}")
    if not demo.is_told:
        console.print("\n".join(faults), style="bold red", markup=False)
        return False
    if not faults:  # what did not come to its end lacks much that is not lost
        faults += find_faults(demo.judges, demo.publisher.counts.resent_messages)
        faults += find_result_faults(demo.spark.outcome)
    if not faults:
        keep_results(folder)
    ending = Ending(*store_bytes(demo.broker.data_dir), time.monotonic() - began, OUTPUT)
    print_report(console, demo, ending, faults)
    return not faults


def leaves(errors: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    """Yield the errors of a group and of the groups in it."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def find_result_faults(outcome: dict[str, Any]) -> list[str]:
    """Return what is not as it must be in what Spark wrote, one sentence each."""
    if not outcome:
        return ["Spark did not come to its end"]
    faults = []
    for place, found in outcome["found"].items():
        for name in ("lost", "twice", "wrong"):
            if found[name]:
                faults.append(f"results in the {place}: {found[name]:,} flights {name}")
        if found["rows"] != flights.COUNT:
            faults.append(f"results in the {place}: {found['rows']:,} rows for {flights.COUNT:,} flights")
    if outcome["dropped_late"]:
        faults.append(f"the query dropped {outcome['dropped_late']:,} rows as too late")
    return faults


def keep_results(folder: Path) -> None:
    """Move report and results to where they stay, in place of those of an earlier run."""
    for name in KEPT:
        kept = OUTPUT / name
        if kept.is_dir():
            shutil.rmtree(kept)
        (folder / name).replace(kept)


def _stop(number: int, _: object) -> None:
    """End the run. The broker and Spark may have got the same signal: that they end then is no fault to report."""
    for other in STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    """Run the demo in a folder below demo-output, of which the store and logs stay only when something was wrong."""
    console = Console()
    logging.basicConfig(level=logging.CRITICAL)  # pynsq reports every lost connection; the story does too
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)
    OUTPUT.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=OUTPUT, prefix="run-"))
    keep = False
    try:
        right = run_demo(folder, console)
        keep = not right
    except SystemExit:
        console.print("interrupted")
        raise
    finally:
        if keep:
            console.print(f"store and logs are kept in {folder}", markup=False, soft_wrap=True)
        else:
            shutil.rmtree(folder)
            with contextlib.suppress(OSError):  # results or another run may be there
                OUTPUT.rmdir()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
