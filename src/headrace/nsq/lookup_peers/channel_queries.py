"""The channels that others have of a topic that is made here: asked for, and made as if they had come with it.

nsqd blocks the first command for a topic until every nsqlookupd has answered. This broker serves the topic at once, and
a channel that an answer names begins where the topic began: it gets what was published meanwhile all the same. So does
one that a consumer makes before the answer is there, as it may be named in it (``Topic.awaited_answers``).

Each nsqlookupd has a queue of topics to ask for and a few questions at a time, so one that does not answer holds up
none of the others, and thousands of topics made at once are no thousands of connections. Nor do they wait for minutes:
what is not asked within ``WAIT_S`` is not asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from headrace.errors import ClientError, HeadraceError, InternalError, ProtocolError, RequestError, StoreError
from headrace.nsq.lookup_peers.answer import is_lasting
from headrace.nsq.lookup_peers.counters import LookupCounters, cause_of

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic
    from headrace.log_pace import LogPace

logger = logging.getLogger(__name__)

AT_ONCE: Final = 4
MAX_WAITING: Final = 10_000
"""Topics that wait to be asked for; those made beyond it are not."""
WAIT_S: Final = 5.0
"""How long one waits at most: a nsqlookupd answers thousands in it."""
MADE_AT_ONCE: Final = 50
"""Channels, some milliseconds."""
LOOKED_AT_ONCE: Final = 1_000
"""Names, with those that are not made: less than a millisecond."""
MAX_NAMED: Final = 20
"""Channels that a line of the log names."""

Find = Callable[[str], Awaitable[Iterable[str]]]
"""Returns the channels of a topic; they may be found out as they are taken."""


class ChannelQueries:
    """The questions for one nsqlookupd."""

    def __init__(self, address: str, find: Find, broker: Broker, counters: LookupCounters, pace: LogPace) -> None:
        self._address = address
        self._find = find
        self._broker = broker
        self._counters = counters
        self._pace = pace
        self._waiting: deque[tuple[Topic, float]] = deque()  # with the time until which to ask
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, topic: Topic) -> None:
        """Have the channels of a new topic asked for; cheap."""
        if len(self._waiting) >= MAX_WAITING:
            self._note_failed(topic, "dropped", f"{MAX_WAITING} other topics wait to be asked for")
            return
        self._waiting.append((topic, asyncio.get_running_loop().time() + WAIT_S))
        topic.awaited_answers += 1
        if len(self._tasks) < AT_ONCE:
            task = asyncio.create_task(self._serve())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask nothing more, and forget what is on its way."""
        for topic, _ in self._waiting:
            topic.awaited_answers -= 1
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self) -> None:
        """Ask for one topic after the other until none waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            topic, until = self._waiting.popleft()
            try:
                if loop.time() < until:
                    await self._make(topic, await self._find(topic.name))
                    self._counters.queries += 1
                else:
                    self._note_failed(topic, "dropped", f"it does not answer as many questions in {WAIT_S:g} s")
            except (ClientError, ProtocolError, RequestError, StoreError) as error:
                self._note_failed(topic, cause_of(error), error)
            except Exception:
                logger.exception("asking a nsqlookupd for channels failed by a bug address=%s", self._address)
                self._note_failed(topic, cause_of(InternalError()), "internal error")
            finally:
                topic.awaited_answers -= 1

    async def _make(self, topic: Topic, names: Iterable[str]) -> None:
        """Make the lasting channels that a topic lacks, unless it was deleted meanwhile."""
        count, named = 0, []
        cost = 0
        try:
            for name in names:
                if cost >= LOOKED_AT_ONCE:
                    cost = 0
                    await asyncio.sleep(0)
                cost += 1
                if self._broker.topics.get(topic.name) is not topic:
                    return
                if name in topic.channels or not is_lasting(name):
                    continue
                self._broker.ensure_channel(topic, name, from_start=True, logged=False)
                self._counters.channels += 1
                cost += LOOKED_AT_ONCE // MADE_AT_ONCE
                count += 1
                named += [name] * (count <= MAX_NAMED)
        finally:
            if count and not topic.ephemeral:
                self._log_made(topic, count, named)

    def _log_made(self, topic: Topic, count: int, named: list[str]) -> None:
        """Write one line for all: there may be a hundred thousand."""
        channels = ",".join(named) + ",..." * (count > len(named))
        logger.info(
            "channels created that a nsqlookupd knows address=%s topic=%s count=%d channels=%s",
            self._address,
            topic.name,
            count,
            channels,
        )

    def _note_failed(self, topic: Topic, cause: str, error: HeadraceError | str) -> None:
        self._counters.query_failures[cause] += 1
        if self._pace.is_due(f"channels {self._address}"):
            logger.warning(
                "channels of a new topic not found out, those of other nodes may miss its first messages "
                "address=%s topic=%s error=%s",
                self._address,
                topic.name,
                error,
            )
