"""The publisher: pynsq's Writer, which sends batches and sends again what was not answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import nsq
from nsq.protocol import SendError

BATCH_MESSAGES: Final = 250
BATCHES_ON_THE_WAY: Final = 8
RECONNECT_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 0.05


@dataclass
class PublishCounts:
    """What the publisher did so far.

    Attributes:
        answered: Messages whose batch was answered with OK.
        resent_batches: Batches sent again because they were not answered with OK: the broker may have stored them
            before it was killed, and then they are there twice.
        resent_messages: Messages in those.
        seconds: Time spent publishing, without waits that were asked for.
    """

    answered: int = 0
    resent_batches: int = 0
    resent_messages: int = 0
    seconds: float = 0.0


class Publisher:
    """Publishes to one broker until every message was answered. Use it within a running event loop.

    ``on_answer`` is called with the number of messages answered so far.
    """

    def __init__(self, address: str, topic: str, on_answer: Callable[[int], None]) -> None:
        self.counts = PublishCounts()
        self._on_answer = on_answer
        self._topic = topic
        self._writer = nsq.Writer([address], reconnect_interval=RECONNECT_SECONDS)

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish messages in batches, several of which are on the way at any time; what failed goes first."""
        began = time.monotonic()
        batches = asyncio.PriorityQueue[tuple[int, list[bytes]]]()
        for start in range(0, len(messages), BATCH_MESSAGES):
            batches.put_nowait((start, list(messages[start : start + BATCH_MESSAGES])))
        async with asyncio.TaskGroup() as group:
            for _ in range(BATCHES_ON_THE_WAY):
                group.create_task(self._publish_batches(batches))
        self.counts.seconds += time.monotonic() - began

    async def _publish_batches(self, batches: asyncio.PriorityQueue[tuple[int, list[bytes]]]) -> None:
        while not batches.empty():
            start, batch = batches.get_nowait()
            if await self._send(batch):
                self.counts.answered += len(batch)
                self._on_answer(self.counts.answered)
            else:
                batches.put_nowait((start, batch))
                await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, batch: list[bytes]) -> bool:
        """Send one batch; return whether it was answered with OK."""
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(_: object, data: Any) -> None:
            if not outcome.done():  # pynsq tells of a connection that fails while it sends twice
                outcome.set_result(data)

        self._writer.mpub(self._topic, batch, callback=done)
        answer = await outcome
        if answer == b"OK":
            return True
        if not _was_never_sent(answer):
            self.counts.resent_batches += 1
            self.counts.resent_messages += len(batch)
        return False


def _was_never_sent(answer: object) -> bool:
    """Whether pynsq had no connection to send a batch on: then the broker cannot have it."""
    return isinstance(answer, SendError) and answer.error is None
