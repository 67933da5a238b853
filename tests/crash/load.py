"""A mixed load on one broker: publishers, consumers, and topics and channels that come and go.

One thread drives every connection and records what it does and sees. Nothing here decides what is right: that is the
checker's business.
"""

from __future__ import annotations

import json
import random
import selectors
import time
from collections import Counter, deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from tests.crash.checker import Checker
from tests.crash.history import (
    Answered,
    Asked,
    ChangeAsked,
    ChangeGranted,
    Delivered,
    Finished,
    Granted,
    History,
    Observed,
    Outcome,
    Payload,
    Published,
    Requeued,
    SettleFailed,
    Thing,
    Touched,
    What,
    leaves_open,
    make_body,
)
from tests.crash.nsq_client import ERROR, MESSAGE, RESPONSE, HttpSocket, NsqSocket, dpub, mpub, pub
from tests.crash.turns import Turning, take_turns

MSG_TIMEOUT_S = 1.5

_TOUCH_AFTER_S, _TOUCHES, _FINISH_AFTER_S = 0.4, 2, 0.9
"""What is touched is finished behind the time-out of its delivery, before that of its last TOUCH: one that the broker
forgets shows. Each comes so early that the checker relies on it (``checker.TOUCH_S``)."""

_PAUSE_S = 0.25
_PILE_S = 3.0

LASTING = (
    Thing("single", "main"),
    Thing("single", "second"),
    Thing("batches", "main"),
    Thing("delayed", "main"),
    Thing("mixed", "main"),
    Thing("mixed", "second"),
)
"""Channels that live as long as the store; "main" has one consumer, so that order can be seen."""

PASSING_TOPICS = ("passing0", "passing1")
PASSING_CHANNELS = (Thing("single", "passing"), Thing("mixed", "passing"), Thing("batches", "passing"))

_SIZES = (64, 100, 150, 200, 300, 700, 2000)


@dataclass
class Rates:
    """How much a load does; all random choices come from the load's own generator."""

    commands_in_flight: int = 30  # per publisher
    messages_per_s: float = 3000.0
    backlog: int = 3000  # messages not finished, over all channels, at which publishing pauses
    publishers: int = 3
    http_publishers: int = 3
    consumers_of_second: int = 2
    changes_per_s: float = 6.0
    reconnects_per_s: float = 0.7
    longest_delay_ms: int = 2500


@dataclass
class Command:
    """One publish command that a producer is about to send, and has recorded."""

    topic: str
    bodies: list[bytes]
    delay_ms: int


class Producer:
    """Draws what one producer publishes.

    Attributes:
        waiting: Numbers and topics of the commands that await their answers.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.producer = load.next_producer()
        self.sequences: dict[str, int] = {}
        self.waiting: deque[tuple[int, str]] = deque()

    def draw(self) -> Command:
        """Record the next command, and return it: it must be sent now."""
        load, rng = self.load, self.load.rng
        topic = rng.choice(load.topics)
        draw = rng.random()
        delayed = topic == "delayed" and draw < 0.3
        count = 1
        if not delayed and (topic == "batches" or draw > 0.95):
            count = rng.choice((2, 3, 10, 40, 100)) if draw < 0.99 else 800
        first = self.sequences.get(topic, 0)
        self.sequences[topic] = first + count
        sizes = [rng.choice(_SIZES) for _ in range(count)]
        if draw < 0.002:
            sizes[0] = rng.choice((30_000, 200_000))
        bodies = [make_body(Payload(topic, self.producer, first + i), size) for i, size in enumerate(sizes)]
        delay_ms = rng.choice((1, 50, 300, 700, 1200, 2500 if draw < 0.01 else 100)) if delayed else 0
        delay_ms = min(delay_ms, load.rates.longest_delay_ms)
        number = load.next_command()
        load.record(Published(time.monotonic(), number, topic, self.producer, first, count, delay_ms / 1000))
        self.waiting.append((number, topic))
        load.pending[topic] += 1
        load.sent_bytes += sum(sizes)
        load.published += count
        return Command(topic, bodies, delay_ms)

    def lost(self) -> None:
        """The connection is gone: nobody knows what became of what waited."""
        while self.waiting:
            command, topic = self.waiting.popleft()
            self.load.answered(command, topic, Outcome.UNKNOWN)


class Publisher(Producer, NsqSocket):
    """One producer: keeps a number of commands under way; answers come in order."""

    def __init__(self, load: Load, address: str) -> None:
        self.identified = False
        Producer.__init__(self, load)
        NsqSocket.__init__(self, load.selector, address, {"heartbeat_interval": 10000})
        self.on_cut_off = lambda: load.complain("a publisher's connection was closed")

    def frame(self, kind: int, data: bytes) -> None:
        if not self.identified:
            self.identified = True
            return
        command, topic = self.waiting.popleft()
        if kind == RESPONSE and data == b"OK":
            self.load.answered(command, topic, Outcome.OK)
            return
        is_refusal = kind == ERROR and data.startswith((b"E_PUB", b"E_MPUB", b"E_DPUB")) and not leaves_open(data)
        self.load.refusals.append(data)
        self.load.answered(command, topic, Outcome.ERROR if is_refusal else Outcome.UNKNOWN)

    def publish(self) -> None:
        """Send commands up to the number that may be under way."""
        load = self.load
        out = []
        most = load.rates.commands_in_flight
        while self.is_open and len(self.waiting) < most and self.unsent_bytes < 1 << 18 and not load.is_behind:
            command = self.draw()
            if command.delay_ms:
                out.append(dpub(command.topic, command.bodies[0], command.delay_ms))
            elif len(command.bodies) > 1:
                out.append(mpub(command.topic, command.bodies))
            else:
                out.append(pub(command.topic, command.bodies[0]))
        if out:
            self.send(b"".join(out))


class HttpPublisher(Producer, HttpSocket):
    """One producer over HTTP: a command under way, and the next when it is answered."""

    def __init__(self, load: Load, address: str) -> None:
        Producer.__init__(self, load)
        HttpSocket.__init__(self, load.selector, address)
        self.on_cut_off = lambda: load.complain("an HTTP publisher's connection was closed")

    def publish(self) -> None:
        """Send a command if none is under way."""
        if not self.is_open or self.waiting or self.load.is_behind:
            return
        command = self.draw()
        path = "/mpub" if len(command.bodies) > 1 else "/pub"
        delay = f"&defer={command.delay_ms}" if command.delay_ms else ""
        self.request("POST", f"{path}?topic={command.topic}{delay}", self.answered, b"\n".join(command.bodies))

    def answered(self, status: int, body: bytes) -> None:
        """Note the outcome: one code stands for a full store, which leaves nothing, and a failed flush, which may."""
        if self.waiting:
            command, topic = self.waiting.popleft()
            if status not in (0, 200):
                self.load.complain(f"HTTP publish answered {status}: {body[:100]!r}")
            self.load.answered(command, topic, Outcome.OK if status == 200 else Outcome.UNKNOWN)

    def lost(self) -> None:
        """The connection is gone."""
        HttpSocket.lost(self)
        Producer.lost(self)


class Consumer(NsqSocket):
    """One subscription. It finishes most messages at once; the rest it requeues, touches or leaves lying."""

    def __init__(self, load: Load, address: str, thing: Thing) -> None:
        self.load = load
        self.thing = thing
        self.step = 0
        self.is_steady = thing.channel == "main"
        options = {"heartbeat_interval": 10000, "msg_timeout": int(MSG_TIMEOUT_S * 1000)}
        super().__init__(load.selector, address, options)
        if thing in load.lasting:  # the others go with their channels
            self.on_cut_off = lambda: load.complain(f"the connection of a consumer of {thing} was closed")
        load.record(Asked(time.monotonic(), thing, True, self.is_steady))
        self.send(b"SUB %s %s\n" % (thing.topic.encode(), thing.channel.encode()))

    def frame(self, kind: int, data: bytes) -> None:
        load = self.load
        if kind == MESSAGE:
            self._message(data)
        elif kind == ERROR:
            name, _, rest = data.partition(b" ")
            if name in (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"):
                message_id = rest.split()[1].decode()
                load.record(SettleFailed(time.monotonic(), self.thing, message_id, name == b"E_FIN_FAILED"))
            else:
                load.refusals.append(data)
        else:
            self.step += 1
            if self.step == 2:
                load.record(Granted(time.monotonic(), self.thing))
                self.send(b"RDY %d\n" % (200 if self.is_steady else load.rng.choice((10, 60, 300))))

    def _message(self, data: bytes) -> None:
        load, rng = self.load, self.load.rng
        attempts = int.from_bytes(data[8:10], "big")
        message_id = data[10:26].decode("ascii", "backslashreplace")
        now = load.now()
        load.deliveries += 1
        load.record(
            Delivered(
                now,
                self.thing,
                message_id,
                attempts,
                data[26:],
                MSG_TIMEOUT_S,
                now - load.earliest_leaving(now, self.clear_at),
            )
        )
        if load.crashed_at:
            return  # nobody is there to be told
        if load.draining:
            self.finish(message_id)
            return
        draw = rng.random()
        if draw < 0.85:
            self.finish(message_id)
        elif draw < 0.93:
            load.later(now + rng.random() * rng.choice((0.01, 0.1, 1.0)), self, message_id, "fin")
        elif draw < 0.96:
            delay_ms = 0 if draw < 0.94 else min(rng.choice((20, 200, 1000)), load.rates.longest_delay_ms)
            load.record(Requeued(now, self.thing, message_id, delay_ms / 1000))
            self.settles += b"REQ %s %d\n" % (message_id.encode(), delay_ms)
        elif draw < 0.98:
            load.later(now + _TOUCH_AFTER_S, self, message_id, f"touch {_TOUCHES}")
        # else: it times out

    settles = b""

    def finish(self, message_id: str) -> None:
        """FIN."""
        self.load.record(Finished(time.monotonic(), self.thing, message_id))
        self.settles += b"FIN %s\n" % message_id.encode()

    def touch(self, message_id: str, times: int) -> None:
        """TOUCH so many times, and FIN at last."""
        now = time.monotonic()
        self.load.record(Touched(now, self.thing, message_id))
        self.settles += b"TOUCH %s\n" % message_id.encode()
        if times > 1:
            self.load.later(now + _TOUCH_AFTER_S, self, message_id, f"touch {times - 1}")
        else:
            self.load.later(now + _FINISH_AFTER_S, self, message_id, "fin")

    def send_settles(self) -> None:
        """Send what was decided since the last call."""
        if self.settles:
            self.send(self.settles)
            self.settles = b""

    def lost(self) -> None:
        self.load.consumer_lost(self)


class Load:
    """All connections to one run of a broker. ``run`` drives them until a time.

    Attributes:
        refusals: Errors that the broker answered, such as a full store gives.
        complaints: What else no broker that runs may do: close a connection, or leave something without its answer.
    """

    def __init__(
        self,
        history: History,
        checker: Checker,
        rng: random.Random,
        counters: dict[str, int],
        rates: Rates | None = None,
    ) -> None:
        self.history = history
        self.checker = checker
        self.rng = rng
        self.rates = rates or Rates()
        self.selector = selectors.DefaultSelector()
        self.loads: list[Turning] = [self]  # who else is driven by the way
        self.draining = False
        self.deliveries = 0
        self.acknowledged = 0
        self.sent_bytes = 0
        self.published = 0
        self._began_at = time.monotonic()
        self.refusals: list[bytes] = []
        self.complaints: list[bytes] = []
        self.pending: Counter[str] = Counter()  # unanswered publish commands per topic
        self.lasting: tuple[Thing, ...] = LASTING
        self.topics: list[str] = []
        self._counters = counters
        self._addresses: dict[str, str] = {}
        self._publishers: list[Publisher | HttpPublisher] = []
        self._consumers: list[Consumer] = []
        self._timers: list[tuple[float, int, Consumer, str, str]] = []
        self._http: HttpSocket | None = None
        self._to_delete: str = ""
        self._next_change_at = 0.0
        self.crashed_at = 0.0
        self._turned_at = time.monotonic()
        self._paused_from = self._paused_until = 0.0

    # -- numbers that go on from run to run --------------------------------------------------------------------------

    def _next(self, name: str) -> int:
        self._counters[name] = self._counters.get(name, 0) + 1
        return self._counters[name]

    def next_producer(self) -> int:
        """Return a producer's number: unique in the history."""
        return self._next("producer")

    def next_command(self) -> int:
        """Return a command's number: unique in the history."""
        return self._next("command")

    def record(self, event: Any) -> None:
        """Record an event."""
        self.history.record(event)

    def complain(self, text: str) -> None:
        """Note what a broker may do only as it dies."""
        if not self.crashed_at:
            self.complaints.append(text.encode())

    def later(self, at: float, consumer: Consumer, message_id: str, what: str) -> None:
        """Settle a message at a later time."""
        heappush(self._timers, (at, self._next("timer"), consumer, message_id, what))

    # -- life --------------------------------------------------------------------------------------------------------

    def connect(self, listeners: dict[str, str]) -> None:
        """Look at what exists, then open consumers."""
        self._addresses = listeners
        self._http = HttpSocket(self.selector, listeners["nsq_http"])
        self._http.on_cut_off = lambda: self.complain("the connection for requests was closed")
        self._observe()
        things = list(self.lasting) + [thing for thing in self._passing() if self.checker.exists(thing)]
        for thing in things:
            self._subscribe(thing)
        self.run(time.monotonic() + 20, until=lambda: all(consumer.step >= 2 for consumer in self._consumers))
        for consumer in self._consumers:
            if consumer.step < 2:
                self.complain(f"{consumer.thing} was not subscribed to")

    def begin_publishing(self) -> None:
        """Open the publishers."""
        self.draining = False
        self._began_at, self.published = time.monotonic(), 0
        self.topics = sorted({thing.topic for thing in self.lasting} | {t for t in PASSING_TOPICS if self._is_open(t)})
        self._publishers = [
            # First, as each sends one command where the others send what there is room for.
            *(HttpPublisher(self, self._addresses["nsq_http"]) for _ in range(self.rates.http_publishers)),
            *(Publisher(self, self._addresses["nsq_tcp"]) for _ in range(self.rates.publishers)),
        ]

    def _passing(self) -> list[Thing]:
        return [*PASSING_CHANNELS, *(Thing(topic, "main") for topic in PASSING_TOPICS)]

    def _is_open(self, topic: str) -> bool:
        return self.checker.exists(Thing(topic, "main"))

    def _subscribe(self, thing: Thing) -> None:
        for _ in range(1 if thing.channel == "main" else self.rates.consumers_of_second):
            self._consumers.append(Consumer(self, self._addresses["nsq_tcp"], thing))

    def _observe(self) -> None:
        """Record which topics and channels the broker lists."""
        assert self._http is not None
        answers: list[tuple[int, bytes]] = []
        self._http.request("GET", "/stats?format=json&include_clients=false", lambda *answer: answers.append(answer))
        self.run(time.monotonic() + 10, until=lambda: bool(answers))
        if not answers or answers[0][0] != 200:
            self.complain(f"/stats answered {answers}")
            return
        things = set()
        for topic in json.loads(answers[0][1])["topics"]:
            things.add(Thing(topic["topic_name"]))
            things |= {Thing(topic["topic_name"], channel["channel_name"]) for channel in topic["channels"]}
        self.record(Observed(time.monotonic(), frozenset(things)))

    def earliest_leaving(self, now: float, clear_at: float) -> float:
        """Return since when a message that arrives now may have been on its way.

        Not before its socket was last found empty; but when this process did not run for a while, messages pile up in
        the broker's own buffers too, and what comes in the seconds behind that may be as old as the pause.
        """
        if now - self._paused_until < _PILE_S:
            clear_at = min(clear_at, self._paused_from)
        return min(now, clear_at)

    def _note_pause(self, now: float) -> None:
        if now - self._turned_at > _PAUSE_S:
            if self._turned_at - self._paused_until > _PILE_S:
                self._paused_from = self._turned_at
            self._paused_until = now
        self._turned_at = now

    @property
    def is_behind(self) -> bool:
        """Whether the consumers have enough to do, or the publishers sent their share."""
        share = 300 + self.rates.messages_per_s * (time.monotonic() - self._began_at)
        return self.published > share or self.checker.owed() + sum(self.pending.values()) > self.rates.backlog

    def run(self, until_at: float, until: Any = None) -> None:
        """Drive everything until a time, or until ``until()`` is true."""
        take_turns(self.loads, self.selector, until_at, until)
        self._note_pause(time.monotonic())

    def begin_turn(self, now: float) -> None:
        """Publish."""
        self._note_pause(now)
        for publisher in self._publishers:
            publisher.publish()

    def end_turn(self, now: float, busy: set[Any]) -> None:
        """Settle what was delivered; make or delete something now and then."""
        for consumer in self._consumers:
            if consumer not in busy:
                consumer.clear_at = now
        self._settle_later(time.monotonic())
        for consumer in self._consumers:
            consumer.send_settles()
        if self._publishers and not self.draining and now >= self._next_change_at:
            self._change(now)

    def _settle_later(self, now: float) -> None:
        while self._timers and (self._timers[0][0] <= now or self.draining):
            _, _, consumer, message_id, what = heappop(self._timers)
            if not consumer.is_open:
                continue
            if what.startswith("touch") and not self.draining:
                consumer.touch(message_id, int(what.removeprefix("touch ")))
            else:
                consumer.finish(message_id)

    def drain(self, most_s: float) -> None:
        """Stop publishing, finish everything that is owed."""
        self.stop_publishing()
        self._unpause_all()
        self.run(time.monotonic() + most_s, until=lambda: not self.checker.owed())

    def stop_publishing(self) -> None:
        """From here on consumers finish what they get."""
        self.draining = True
        publishers, self._publishers = self._publishers, []
        for publisher in publishers:
            self.run(time.monotonic() + 10, until=lambda waiting=publisher.waiting: not waiting)
            publisher.close()

    def now(self) -> float:
        """Return the time of what happens now: what the broker sent before its death did not happen after it."""
        return self.crashed_at or time.monotonic()

    def read_rest(self, crashed_at: float) -> None:
        """The broker was killed: read what it had sent, then let go of the connections."""
        self.crashed_at = crashed_at
        self._publishers, waiting = [], self._publishers
        until = time.monotonic() + 2
        while self.selector.get_map() and time.monotonic() < until:
            for key, events in self.selector.select(0.05):
                key.data.on_ready(events & selectors.EVENT_READ)
        for publisher in waiting:
            publisher.close()
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self.crashed_at = self.crashed_at or time.monotonic()
        for key in list((self.selector.get_map() or {}).values()):
            key.data.close()
        self.selector.close()

    # -- what connections report -------------------------------------------------------------------------------------

    def answered(self, command: int, topic: str, outcome: Outcome) -> None:
        """A publish command has its outcome."""
        self.pending[topic] -= 1
        self.acknowledged += outcome is Outcome.OK
        self.record(Answered(self.now(), command, outcome))

    def consumer_lost(self, consumer: Consumer) -> None:
        """A consumer's connection ended: the channel was deleted, or the broker is gone."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    # -- topics and channels that come and go ------------------------------------------------------------------------

    def _change(self, now: float) -> None:
        rng = self.rng
        if rng.random() < self.rates.reconnects_per_s / (self.rates.changes_per_s + self.rates.reconnects_per_s):
            self._reconnect()
        if self._http is None or not self._http.is_open or self._http.is_busy:
            return
        self._next_change_at = now + rng.expovariate(self.rates.changes_per_s)
        if self._to_delete:
            if not self.pending[self._to_delete]:
                # Every publish is answered: none can make the topic anew behind its deletion.
                self._ask(Thing(self._to_delete), creates=False)
                self._to_delete = ""
            return
        draw = rng.random()
        if draw < 0.15:
            self._pause_or_empty()
        elif draw < 0.6:
            thing = rng.choice(PASSING_CHANNELS)
            if not self._is_in_between(thing):
                self._ask(thing, creates=not self.checker.exists(thing))
        else:
            topic = rng.choice(PASSING_TOPICS)
            if self._is_in_between(Thing(topic, "main")):
                return
            if self._is_open(topic):
                self._to_delete = topic
                self.close_topic(topic)
            else:
                self._ask(Thing(topic, "main"), creates=True)

    def open_topic(self, topic: str) -> None:
        """Publish to a topic from here on."""
        self.topics.append(topic)

    def close_topic(self, topic: str) -> None:
        """Publish to it no more: it will be deleted."""
        self.topics = [name for name in self.topics if name != topic]

    def _pause_or_empty(self) -> None:
        """What is paused goes on; else pause or empty a channel."""
        paused = sorted(self.checker.maybe_paused)
        if paused:
            self._ask_change(paused[0], What.UNPAUSE)
            return
        thing = self.rng.choice((*self.lasting, *PASSING_CHANNELS))
        if self.checker.exists(thing):
            self._ask_change(thing, self.rng.choice((What.PAUSE, What.PAUSE, What.EMPTY)))

    def _ask_change(self, thing: Thing, what: What) -> None:
        assert self._http is not None
        self.record(ChangeAsked(time.monotonic(), thing, what))

        def answered(status: int, body: bytes) -> None:
            if status == 200:
                self.record(ChangeGranted(self.now(), thing, what))
            else:
                self._complain_of(f"{what} {thing}", status, body)

        self._http.request("POST", f"/channel/{what}?topic={thing.topic}&channel={thing.channel}", answered)

    def _unpause_all(self) -> None:
        http = self._http
        for thing in sorted(self.checker.maybe_paused):
            if http is not None and http.is_open and self.checker.exists(thing):
                self.run(time.monotonic() + 10, until=lambda: not http.is_busy)
                self._ask_change(thing, What.UNPAUSE)

    def _is_in_between(self, thing: Thing) -> bool:
        """Whether a SUB is under way (it could make the channel anew), or a consumer of a deleted channel lingers."""
        consumers = [consumer for consumer in self._consumers if consumer.thing == thing]
        return any(consumer.step < 2 for consumer in consumers) or (bool(consumers) and not self.checker.exists(thing))

    def _reconnect(self) -> None:
        """One consumer goes and comes again; what it had in flight times out."""
        candidates = [
            consumer for consumer in self._consumers if consumer.thing in self.lasting and not consumer.is_steady
        ]
        if candidates:
            consumer = self.rng.choice(candidates)
            consumer.send_settles()
            consumer.close()
            self._consumers.append(Consumer(self, self._addresses["nsq_tcp"], consumer.thing))

    def _ask(self, thing: Thing, *, creates: bool) -> None:
        assert self._http is not None
        if thing.channel:
            path = f"/channel/{'create' if creates else 'delete'}?topic={thing.topic}&channel={thing.channel}"
        else:
            path = f"/topic/delete?topic={thing.topic}"
        if creates and thing.topic in PASSING_TOPICS and not self.checker.exists(Thing(thing.topic)):
            self._ask_topic(thing)
            return
        self.record(Asked(time.monotonic(), thing, creates, thing.channel == "main"))

        def answered(status: int, body: bytes) -> None:
            if status != 200:
                self._complain_of(path, status, body)
                return
            self.record(Granted(self.now(), thing))
            if creates and not self.crashed_at:
                if thing.topic in PASSING_TOPICS:
                    self.open_topic(thing.topic)
                if not self.draining:
                    self._subscribe(thing)

        self._http.request("POST", path, answered)

    def _ask_topic(self, channel: Thing) -> None:
        """Create a topic; its channel follows."""
        assert self._http is not None
        thing = Thing(channel.topic)
        self.record(Asked(time.monotonic(), thing, True))

        def answered(status: int, body: bytes) -> None:
            if status == 200:
                self.record(Granted(self.now(), thing))
            else:
                self._complain_of(f"create {thing}", status, body)

        self._http.request("POST", f"/topic/create?topic={thing.topic}", answered)

    def _complain_of(self, request: str, status: int, body: bytes) -> None:
        """Note an answer that is none, unless the broker died (0)."""
        if status:
            self.complain(f"{request} answered {status}: {body[:100]!r}")
