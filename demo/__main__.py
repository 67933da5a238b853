"""Tell the story: ``python -m demo``. The exit code is 0 when everything was right, 1 when not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress, TaskID

from demo.broker import BrokerProcess, store_bytes
from demo.flights import COUNT, TOPIC, flight_key, read_flights
from demo.judge import ChannelJudge, find_faults
from demo.publisher import BATCH_MESSAGES, BATCHES_ON_THE_WAY, Publisher
from demo.report import Story, make_progress, print_report

REPOSITORY: Final = Path(__file__).resolve().parents[1]
OUTPUT: Final = REPOSITORY / "demo-output"
CHANNELS: Final = ("arrivals", "archive")

LOOK_SECONDS: Final = 0.1
STUCK_SECONDS: Final = 90.0  # above nsq.msg_timeout_ms: what a time-out gives back counts as progress
CAUGHT_UP_AT: Final = COUNT // 4
KILL_AFTER: Final = COUNT * 55 // 100


class StuckError(Exception):
    """Nothing arrived any more."""


class Demo:
    """One run, in a folder of its own."""

    def __init__(self, folder: Path, console: Console, progress: Progress) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder)
        self.restart_seconds = 0.0
        self.publisher: Publisher
        self.judges: list[ChannelJudge] = []
        self._console = console
        self._progress = progress
        self._bars: list[TaskID] = []
        self._published_bar: TaskID
        self._kill_now = asyncio.Event()
        self._caught_up = asyncio.Event()

    async def run(self) -> None:
        """Start, publish, consume, kill, start again, and wait until everything arrived.

        Raises:
            StuckError: something did not arrive.
        """
        flights = read_flights()
        expected = {flight_key(line): line for line in flights}
        seconds = self.broker.start()
        self._console.print(f"broker {self.broker.pid} is ready after {seconds:.2f} s on {self.broker.nsq_tcp}")
        self.broker.create_channels(TOPIC, CHANNELS)
        self._published_bar = self._progress.add_task("published (pynsq)", total=COUNT, note="")
        for channel in CHANNELS:
            self.judges.append(ChannelJudge(channel, self.folder / f"{channel}.notes", expected))
            self._bars.append(self._progress.add_task(f"{channel} (gnsq)", total=COUNT, note=""))
        with self._consumers():
            self.publisher = Publisher(self.broker.nsq_tcp, TOPIC, self._answered)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish(flights))
                group.create_task(self._crash())
                group.create_task(self._follow())
        for judge in self.judges:
            judge.read_to_end()
        self._show()

    @contextlib.contextmanager
    def _consumers(self) -> Iterator[None]:
        """Run one consumer process per channel."""
        processes = []
        try:
            for judge in self.judges:
                command: list[str | Path] = [sys.executable, "-m", "demo.consumer", self.broker.nsq_tcp]
                command += [TOPIC, judge.channel, judge.notes]
                with (self.folder / f"{judge.channel}.log").open("wb") as log:
                    processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY))
            yield
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()

    async def _publish(self, flights: list[bytes]) -> None:
        """Publish half, let the consumers come to the middle of that, publish the rest."""
        middle = COUNT // 2
        await self.publisher.publish(flights[:middle])
        await self._caught_up.wait()
        await self.publisher.publish(flights[middle:])

    async def _crash(self) -> None:
        """Kill the broker while batches and deliveries are on the way, and start it again."""
        await self._kill_now.wait()
        pid = self.broker.pid
        self.broker.kill()
        self._console.print(
            f"broker {pid} was killed (SIGKILL) after {self.publisher.counts.answered:,} answered flights, with up to "
            f"{BATCHES_ON_THE_WAY * BATCH_MESSAGES:,} more on the way"
        )
        self.restart_seconds = await asyncio.to_thread(self.broker.start)
        self._console.print(f"broker {self.broker.pid} is ready after {self.restart_seconds:.2f} s and has recovered")

    def _answered(self, count: int) -> None:
        if count >= KILL_AFTER:
            self._kill_now.set()

    async def _follow(self) -> None:
        """Read what consumers note until nothing is left to come."""
        progress, since = -1, time.monotonic()
        while not await self._is_done():
            await asyncio.sleep(LOOK_SECONDS)
            for judge in self.judges:
                judge.read()
            if all(judge.deliveries >= CAUGHT_UP_AT for judge in self.judges):
                self._caught_up.set()
            self._show()
            now = self.publisher.counts.answered + sum(judge.deliveries for judge in self.judges)
            if now != progress:
                progress, since = now, time.monotonic()
            elif time.monotonic() > since + STUCK_SECONDS:
                raise StuckError(f"nothing was published or delivered for {STUCK_SECONDS:.0f} s")

    async def _is_done(self) -> bool:
        """Whether every flight was answered and the broker has nothing left for any channel."""
        if self.publisher.counts.answered < COUNT or any(judge.lost for judge in self.judges):
            return False
        channels = await asyncio.to_thread(self.broker.channels, TOPIC)
        return all(
            not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])
            for channel in channels.values()
        )

    def _show(self) -> None:
        self._progress.update(self._published_bar, completed=self.publisher.counts.answered)
        for bar, judge in zip(self._bars, self.judges, strict=True):
            note = f"{judge.redelivered:,} redelivered" if judge.redelivered else ""
            self._progress.update(bar, completed=len(judge.flights), note=note)


def run_demo(folder: Path, console: Console) -> bool:
    """Run the demo in a folder; return whether everything was right."""
    began = time.monotonic()
    faults: list[str] = []
    with make_progress(console) as progress:
        demo = Demo(folder, console, progress)
        try:
            asyncio.run(demo.run())
        except* (StuckError, RuntimeError) as errors:
            faults += [str(error) for error in errors.exceptions]
        finally:
            exit_code = demo.broker.end()
    if exit_code:
        faults.append(f"the broker ended with exit code {exit_code}: {demo.broker.last_lines(3)}")
    damage = demo.broker.check_store()
    if damage:
        faults.append(f"headrace store check: {damage}")
    if not demo.judges:
        console.print("\n".join(faults), style="bold red")
        return False
    faults += find_faults(demo.judges, demo.publisher.counts.resent_messages)
    story = Story(demo.restart_seconds, *store_bytes(demo.broker.data_dir), time.monotonic() - began)
    print_report(console, demo.publisher.counts, demo.judges, story, faults)
    return not faults


def main() -> int:
    """Run the demo in a folder below demo-output, which stays only when something was wrong."""
    console = Console()
    logging.basicConfig(level=logging.CRITICAL)  # pynsq reports every lost connection; the story does too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    OUTPUT.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=OUTPUT))
    keep = False
    try:
        right = run_demo(folder, console)
        keep = not right
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    finally:
        if keep:
            console.print(f"store and logs are kept in {folder}")
        else:
            shutil.rmtree(folder)
            with contextlib.suppress(OSError):  # another run may be there
                OUTPUT.rmdir()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
