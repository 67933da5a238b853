"""NSQ clients beside those of the RocketMQ crash load: they publish to, and consume from, the same topics."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from tests.crash.history import Outcome, Payload, leaves_open, make_body
from tests.crash.nsq_client import ERROR, MESSAGE, RESPONSE, NsqSocket, mpub, pub
from tests.crash.rocketmq_history import ChannelMade, ChannelRead, Kind, Place, SendAnswered, Sent

if TYPE_CHECKING:
    from tests.crash.rocketmq_load import RocketmqLoad

SHARED_TOPIC = "shared"
CHANNEL = "nsq"
CHANNEL_TOPICS = (SHARED_TOPIC, "plain", "delayed", "half")

_IN_FLIGHT = 10
_SIZES = (64, 150, 700)


class NsqProducer(NsqSocket):
    """PUB and MPUB: the broker chooses the queue."""

    def __init__(self, load: RocketmqLoad, address: str) -> None:
        self.load = load
        self.producer = load.next_number("producer")
        self.sequence = 0
        self.unanswered: deque[int] = deque()
        self._is_identified = False
        super().__init__(load.selector, address, {"heartbeat_interval": 10000})
        self.on_cut_off = lambda: load.complain("an NSQ publisher's connection was closed")

    @property
    def waiting(self) -> int:
        """Commands under way."""
        return len(self.unanswered)

    def publish(self) -> None:
        """Send up to the number that may be under way."""
        load, rng = self.load, self.load.rng
        while self.is_open and self.waiting < _IN_FLIGHT and not load.is_behind:
            count = rng.choice((2, 5, 30)) if rng.random() < 0.2 else 1
            first, self.sequence = self.sequence, self.sequence + count
            bodies = [
                make_body(Payload(SHARED_TOPIC, self.producer, first + index), rng.choice(_SIZES))
                for index in range(count)
            ]
            number = load.next_number("command")
            kind = Kind.BATCH if count > 1 else Kind.PLAIN
            load.record(Sent(time.monotonic(), number, kind, Place(SHARED_TOPIC, -1), self.producer, first, count))
            load.sent(count)
            self.unanswered.append(number)
            self.send(mpub(SHARED_TOPIC, bodies) if count > 1 else pub(SHARED_TOPIC, bodies[0]))

    def frame(self, kind: int, data: bytes) -> None:
        if not self._is_identified:
            self._is_identified = True
            return
        load = self.load
        outcome = Outcome.OK if kind == RESPONSE else Outcome.ERROR
        if kind == ERROR:
            load.refusals.append(data)
            outcome = Outcome.UNKNOWN if leaves_open(data) else outcome
        load.acknowledged += outcome is Outcome.OK
        load.record(SendAnswered(load.now(), self.unanswered.popleft(), outcome))

    def lost(self) -> None:
        while self.unanswered:
            self.load.record(SendAnswered(self.load.now(), self.unanswered.popleft(), Outcome.UNKNOWN))


class NsqConsumer(NsqSocket):
    """The one consumer of a topic's channel: it finishes everything at once."""

    def __init__(self, load: RocketmqLoad, address: str, topic: str) -> None:
        self.load = load
        self.topic = topic
        self.is_subscribed = False
        self._answers = 0
        super().__init__(load.selector, address, {"heartbeat_interval": 10000})
        self.on_cut_off = lambda: load.complain(f"the connection of an NSQ consumer of {topic} was closed")
        self.send(b"SUB %s %s\n" % (topic.encode(), CHANNEL.encode()))

    def frame(self, kind: int, data: bytes) -> None:
        load = self.load
        if kind == MESSAGE:
            load.record(ChannelRead(load.now(), self.topic, CHANNEL, data[26:]))
            if not load.crashed_at:
                self.send(b"FIN %s\n" % data[10:26])
            return
        if kind == ERROR:
            if not data.startswith(b"E_FIN_FAILED"):  # this process was held up, and the message timed out
                load.refusals.append(data)
            return
        self._answers += 1
        if self._answers == 2:
            self.is_subscribed = True
            load.record(ChannelMade(load.now(), self.topic, CHANNEL))
            self.send(b"RDY 500\n")
