"""NSQ's and RocketMQ's loads at once, on the same topics of one broker: each publishes where the other consumes.

Ref: docs/protocols/mapping.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from tests.crash.both_checker import BothChecker
from tests.crash.history import History, Thing
from tests.crash.load import LASTING, PASSING_TOPICS, Load
from tests.crash.rocketmq_load import AUTO_TOPIC, TOPICS, RocketmqLoad

_ONE_QUEUE = frozenset({"single", *PASSING_TOPICS})


class BothLoad:
    """All connections to one run of a broker. ``run`` drives them until a time."""

    def __init__(self, history: History, checker: BothChecker, rng: random.Random, state: dict[str, Any]) -> None:
        self.nsq = _NsqLoad(history, checker.nsq, rng, state)
        self.rocketmq = _RocketmqLoad(history, checker.rocketmq, rng, state)
        self.nsq.other, self.rocketmq.other = self.rocketmq, self.nsq
        self.rocketmq.selector, self.rocketmq.pending = self.nsq.selector, self.nsq.pending
        self.refusals = self.rocketmq.refusals = self.nsq.refusals
        self.nsq.loads = self.rocketmq.loads = [self.nsq, self.rocketmq]

    @staticmethod
    def checker() -> BothChecker:
        """Return a checker that knows the topics."""
        return BothChecker(_ONE_QUEUE)

    @property
    def acknowledged(self) -> int:
        """Publish commands with a good answer."""
        return self.nsq.acknowledged + self.rocketmq.acknowledged

    @property
    def complaints(self) -> list[bytes]:
        """What a broker may do only as it dies."""
        return self.nsq.complaints + self.rocketmq.complaints

    @property
    def deliveries(self) -> int:
        """Messages that came, to channels and groups."""
        return self.nsq.deliveries + self.rocketmq.deliveries

    def connect(self, listeners: dict[str, str]) -> None:
        """Look at what exists, read it all again, then open the consumers."""
        self.rocketmq.connect(listeners)
        self.nsq.connect(listeners)

    def begin_publishing(self) -> None:
        """Open the publishers."""
        self.nsq.begin_publishing()
        self.rocketmq.begin_publishing()

    def run(self, until_at: float, until: Callable[[], bool] | None = None) -> None:
        """Drive everything until a time, or until ``until()`` is true."""
        self.nsq.run(until_at, until)

    def drain(self, most_s: float) -> None:
        """Stop publishing, finish everything that is owed, and read every queue to its end."""
        self.nsq.stop_publishing()
        self.rocketmq.stop_publishing()
        self.rocketmq.drain(most_s)
        self.nsq.drain(most_s)

    def read_rest(self, crashed_at: float) -> None:
        """The broker was killed: read what it had sent, then let go of the connections."""
        self.rocketmq.crashed_at = crashed_at
        self.nsq.read_rest(crashed_at)

    def close(self) -> None:
        """Close what is open."""
        self.rocketmq.crashed_at = self.rocketmq.crashed_at or time.monotonic()
        self.nsq.close()


class _NsqLoad(Load):
    """Publishes to RocketMQ's topics too."""

    other: _RocketmqLoad

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lasting = (*LASTING, *(Thing(topic, "main") for topic in TOPICS if topic not in ("batches", "delayed")))
        self.rates.messages_per_s = 1500.0
        self.rates.backlog = 6000

    def begin_publishing(self) -> None:
        super().begin_publishing()
        # The first channel of a topic gets what waits for it: send to those that have theirs.
        for topic in PASSING_TOPICS:
            if topic not in self.topics:
                RocketmqLoad.close_topic(self.other, topic)
        self.topics += [topic for topic in self.other.passing if topic not in PASSING_TOPICS]

    def open_topic(self, topic: str) -> None:
        super().open_topic(topic)
        RocketmqLoad.open_topic(self.other, topic, 1)

    def close_topic(self, topic: str) -> None:
        super().close_topic(topic)
        RocketmqLoad.close_topic(self.other, topic)


class _RocketmqLoad(RocketmqLoad):
    """Sends to NSQ's topics too; the passing ones of NSQ are made and deleted by NSQ alone."""

    other: _NsqLoad

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.topics |= {AUTO_TOPIC: 2, "single": 1}
        self.auto_topics = {}
        self.passing_names = [name for name in self.passing_names if name not in PASSING_TOPICS]
        self.messages_per_s = 1000.0
        self.backlog = 20_000  # groups do not read the passing topics

    @property
    def passing(self) -> list[str]:
        """The topics that come and go, those that are there."""
        return list(self._passing)

    def open_topic(self, topic: str, queues: int) -> None:
        super().open_topic(topic, queues)
        if topic not in self.other.topics:
            Load.open_topic(self.other, topic)

    def close_topic(self, topic: str) -> None:
        super().close_topic(topic)
        Load.close_topic(self.other, topic)
