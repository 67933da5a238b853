"""The story: what happens in which order."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from demo import flights, results, weather
from demo.broker import BrokerProcess
from demo.flights import flight_key, read_flights
from demo.judge import ChannelJudge
from demo.progress import Bars
from demo.publisher import BATCH_MESSAGES, BATCHES_ON_THE_WAY, Publisher
from demo.spark import SparkProcess
from demo.weather import read_weather
from demo.weather_client import WeatherClient, make_client
from demo.weather_publisher import WeatherPublisher

REPOSITORY: Final = Path(__file__).resolve().parents[1]
CHANNELS: Final = ("arrivals", "archive")

LOOK_SECONDS: Final = 0.1
STUCK_SECONDS: Final = 180.0  # above nsq.msg_timeout_ms: what a time-out gives back counts as progress
CONSUMER_STOP_SECONDS: Final = 5.0
MIDDLE: Final = flights.COUNT // 2
CAUGHT_UP_AT: Final = flights.COUNT // 4
KILL_AFTER: Final = flights.COUNT * 55 // 100


class StuckError(Exception):
    """Nothing arrived any more."""


class Demo:
    """One run, in a folder of its own.

    Attributes:
        broker: The broker's process.
        spark: The process with the standing query.
        publisher: Publishes flights.
        weather: Publishes the weather.
        judges: One for each channel of the flights.
        start_seconds: From the start of the broker until it accepted clients.
        restart_seconds: The same after it was killed.
    """

    def __init__(self, folder: Path, console: Console, bars: Bars) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder)
        self.spark = SparkProcess(self.broker.registry, folder)
        self.start_seconds = self.restart_seconds = 0.0
        self.publisher: Publisher
        self.weather: WeatherPublisher
        self.judges: list[ChannelJudge] = []
        self._console = console
        self._bars = bars
        self._kill_now = asyncio.Event()
        self._caught_up = asyncio.Event()

    @property
    def is_told(self) -> bool:
        """Whether the story came so far that there is something to report."""
        return hasattr(self, "publisher")

    async def run(self) -> None:
        """Start everything, publish, kill the broker, start it again, wait until everything arrived and was checked.

        Raises:
            StuckError: something did not arrive.
            RuntimeError: a process failed.
        """
        lines = read_flights()
        expected = {flight_key(line): line for line in lines}
        self.start_seconds = self.broker.start()
        self._console.print(f"broker {self.broker.pid} is ready after {self.start_seconds:.2f} s")
        self.broker.create_channels(flights.TOPIC, CHANNELS)
        for topic in (weather.TOPIC, results.TOPIC):
            self.broker.create_topic(topic)
        self.judges = [ChannelJudge(name, self.folder / f"{name}.notes", expected) for name in CHANNELS]
        async with contextlib.AsyncExitStack() as stack:
            await self.spark.start()
            stack.push_async_callback(self.spark.kill)
            client = await make_client()
            self._introduce(client)
            self.weather = WeatherPublisher(client, self.broker.registry, weather.TOPIC, self.folder / "weather.log")
            await self.weather.start()
            stack.push_async_callback(self.weather.kill)
            with self._consumers():
                self.publisher = Publisher(self.broker.nsq_tcp, flights.TOPIC, self._answered)
                async with asyncio.TaskGroup() as group:
                    for part in (self._publish(lines), self._publish_weather(), self._crash(), self._follow()):
                        group.create_task(part)
            for judge in self.judges:
                judge.read_to_end()
            await self._end_the_year()
            await self._wait_for_spark()

    def _introduce(self, client: WeatherClient) -> None:
        why = f" ({client.reason})" if client.reason else ""
        self._console.print(f"flights are published by pynsq, the weather by {client.name}{why}", markup=False)

    @contextlib.contextmanager
    def _consumers(self) -> Iterator[None]:
        """Run one consumer process per channel."""
        processes = []
        try:
            for judge in self.judges:
                command: list[str | Path] = [sys.executable, "-m", "demo.consumer", self.broker.nsq_tcp]
                command += [flights.TOPIC, judge.channel, judge.notes]
                with (self.folder / f"{judge.channel}.log").open("wb") as log:
                    processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY))
            yield
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(CONSUMER_STOP_SECONDS)
                except subprocess.TimeoutExpired:  # gnsq does not look up while messages pour in
                    process.kill()
                    process.wait()

    async def _publish(self, lines: list[bytes]) -> None:
        """Publish half, let all readers come to the middle of that, publish the rest."""
        await self.publisher.publish(lines[:MIDDLE])
        await self._caught_up.wait()
        await self.publisher.publish(lines[MIDDLE:])

    async def _publish_weather(self) -> None:
        """Publish each hour's weather beside its flights."""
        lines = read_weather()
        given = 0
        while given < len(lines):
            due = len(lines) * self.publisher.counts.answered // flights.COUNT
            await self.weather.publish(lines[given:due])
            given = due
            await asyncio.sleep(0.01)

    async def _crash(self) -> None:
        """Kill the broker while batches, deliveries and a micro-batch are on the way, and start it again."""
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
        watch = _Watch()
        while not await self._is_published_and_consumed():
            await asyncio.sleep(LOOK_SECONDS)
            self.broker.check()
            await self.spark.check()
            for judge in self.judges:
                judge.read()
            if self.spark.written and all(judge.deliveries >= CAUGHT_UP_AT for judge in self.judges):
                self._caught_up.set()
            self._bars.show(self)
            published = self.publisher.counts.answered + self.weather.answered
            watch.saw(published, sum(judge.deliveries for judge in self.judges), self.spark.written, self.spark.stage)

    async def _is_published_and_consumed(self) -> bool:
        """Whether everything was answered and the broker has nothing left for any channel."""
        if self.publisher.counts.answered < flights.COUNT or self.weather.answered < weather.COUNT:
            return False
        if any(judge.lost for judge in self.judges):
            return False
        channels = await asyncio.to_thread(self.broker.channels, flights.TOPIC)
        return all(
            not (channel["depth"] or channel["in_flight_count"] or channel["deferred_count"])
            for channel in channels.values()
        )

    async def _end_the_year(self) -> None:
        """Publish to both topics that nothing more is to come."""
        await self.publisher.publish([flights.END_OF_YEAR])
        await self.weather.publish([weather.END_OF_YEAR])
        await self.weather.finish()
        self.spark.finish()

    async def _wait_for_spark(self) -> None:
        """Wait until Spark has written, checked and reported."""
        watch = _Watch()
        while not self.spark.has_ended:
            await asyncio.sleep(LOOK_SECONDS)
            self.broker.check()
            self._bars.show(self)
            watch.saw(self.spark.stage, self.spark.written, self.spark.batches)
        await self.spark.check()
        self._bars.show(self)


class _Watch:
    """Notices when nothing happens any more."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._since = time.monotonic()

    def saw(self, *state: object) -> None:
        """Take a look; raise when nothing has changed for too long.

        Raises:
            StuckError: so it is.
        """
        if state not in self._seen:
            self._seen.add(state)
            self._since = time.monotonic()
        elif time.monotonic() > self._since + STUCK_SECONDS:
            raise StuckError(f"nothing happened for {STUCK_SECONDS:.0f} s")
