"""A mixed load of the RocketMQ protocol on one broker, and the scan that reads every queue of it again.

One thread drives every connection and records what it does and sees. Nothing here decides what is right: that is the
checker's business.
"""

from __future__ import annotations

import json
import random
import selectors
import time
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.crash import rocketmq_client as wire
from tests.crash.history import History, Outcome, Payload
from tests.crash.rocketmq_checker import RocketmqChecker
from tests.crash.rocketmq_client import Frame, RemotingSocket
from tests.crash.rocketmq_history import (
    KeyFound,
    Place,
    Scanned,
    TopicAsked,
    TopicDeleteAsked,
    TopicDeleted,
    TopicGranted,
    TopicsFound,
    key_of,
)
from tests.crash.rocketmq_nsq import CHANNEL_TOPICS, SHARED_TOPIC, NsqConsumer, NsqProducer
from tests.crash.rocketmq_roles import (
    PASSING,
    Consumer,
    Producer,
    TransactionProducer,
    read_event,
    send_answered_event,
)
from tests.crash.turns import Turning, take_turns

LISTENER = "remoting"

ARGUMENTS = (
    "--broker.delay-levels", "1s 1s 2s 3s",
    "--broker.delay-offsets-interval-ms", "1000",
    "--broker.transaction-timeout-ms", "300",
    "--broker.transaction-check-interval-ms", "500",
    "--broker.transaction-check-max", "1000",
)  # fmt: skip
"""How the broker is started: delays and questions that fit into a cycle."""

EXPECTED = ("dead letter group=",)
"""Errors in the log that this load causes by intent."""

TOPICS = {"plain": 4, "batches": 2, "delayed": 2, "half": 2, SHARED_TOPIC: 3}
AUTO_TOPIC = "mixed"  # made by the first send
MAX_PASSING = 12
GROUPS = ("steady", "second")

_KEYS = 6
_MAX_KEYS = 2000


class RocketmqLoad:
    """All connections to one run of a broker. ``run`` drives them until a time.

    Args:
        state: What goes on from run to run: numbers, and how far each queue was scanned.
        has_times: The broker knows TIMER_DELIVER_MS and TIMER_DELAY_MS.

    Attributes:
        refusals: Errors that the broker answered, such as a full store gives.
        complaints: What else no broker that runs may do: close a connection, or leave something without its answer.
    """

    def __init__(
        self,
        history: History,
        checker: RocketmqChecker,
        rng: random.Random,
        state: dict[str, Any],
        *,
        has_times: bool = True,
    ) -> None:
        self.history = history
        self.checker = checker
        self.rng = rng
        self.has_times = has_times
        self.selector = selectors.DefaultSelector()
        self.loads: list[Turning] = [self]  # who else is driven by the way
        self.draining = False
        self.crashed_at = 0.0
        self.deliveries = 0
        self.acknowledged = 0
        self.published = 0
        self.in_flight = 30  # per producer
        self.messages_per_s = 1500.0
        self.backlog = 3000
        self.refusals: list[bytes] = []
        self.complaints: list[bytes] = []
        self.places: list[Place] = []
        self.topics = dict(TOPICS)  # made by this load, with their queues
        self.auto_topics = {AUTO_TOPIC: 2}
        self.passing_names = [f"{PASSING}{number}" for number in range(MAX_PASSING)]
        self.pending: Counter[str] = Counter()  # sends under way that will be answered, per topic
        self.commands: dict[Payload, int] = state.setdefault("halves", {})
        self._state = state
        self._payloads: list[Payload] = state.setdefault("keyed", [])
        self._scanned: dict[Place, int] = state.setdefault("scanned", {})
        self._passing: dict[str, int] = {}
        self._to_delete = ""
        self._wall_ms = round((time.time() - time.monotonic()) * 1000)
        self._address = self._nsq_address = ""
        self._began_at = time.monotonic()
        self._next_change_at = 0.0
        self._producers: list[Producer | NsqProducer] = []
        self._transactions: TransactionProducer | None = None
        self._consumers: list[Consumer] = []
        self._admin: RemotingSocket | None = None
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._pending_scans = 0

    # -- what the connections need -----------------------------------------------------------------------------------

    def next_number(self, name: str) -> int:
        """Return a number that is unique in the history."""
        self._state[name] = self._state.get(name, 0) + 1
        return int(self._state[name])

    def record(self, event: tuple[Any, ...]) -> None:
        """Record an event."""
        self.history.record(event)

    def now(self) -> float:
        """Return the time of what happens now: what the broker sent before its death did not happen after it."""
        return self.crashed_at or time.monotonic()

    def wall_ms(self, at: float) -> int:
        """Return a time of the monotonic clock as ms since 1970."""
        return self._wall_ms + int(at * 1000)

    def mono(self, wall_ms: int) -> float:
        """Return ms since 1970 as a time of the monotonic clock."""
        return (wall_ms - self._wall_ms) / 1000

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something later."""
        heappush(self._timers, (time.monotonic() + seconds, self.next_number("timer"), do))

    def sent(self, messages: int) -> None:
        """Count messages that left."""
        self.published += messages

    def send_answered(self, number: int, frame: Frame | None) -> Outcome:
        """A send has its outcome."""
        event = send_answered_event(self, number, frame)
        if frame is not None and frame.code != wire.SUCCESS:
            self.refused(frame)
        self.acknowledged += event.outcome is Outcome.OK
        self.record(event)
        return event.outcome

    def refused(self, frame: Frame) -> None:
        """The broker refused something it should not have."""
        self.refusals.append(f"code={frame.code} {frame.remark}".encode())

    def expect_success(self, frame: Frame | None) -> bool:
        """Tell whether an answer is a good one; any other is a complaint, but for that of a broker that stops."""
        if frame is None:
            return False
        if frame.code != wire.SUCCESS and frame.remark != wire.STOPPING:
            self.complain(f"code={frame.code} {frame.remark}")
        return frame.code == wire.SUCCESS

    def complain(self, text: str) -> None:
        """Note what a broker may do only as it dies."""
        if not self.crashed_at:
            self.complaints.append(text.encode())

    @property
    def is_behind(self) -> bool:
        """Whether the consumers have enough to do, or the producers sent their share."""
        share = 100 + self.messages_per_s * (time.monotonic() - self._began_at)
        return self.published > share or self.checker.owed() > self.backlog

    # -- life --------------------------------------------------------------------------------------------------------

    def connect(self, listeners: dict[str, str]) -> None:
        """Look at what exists, read it all again, then open the consumers."""
        self._address, self._nsq_address = listeners[LISTENER], listeners.get("nsq_tcp", "")
        self._admin = RemotingSocket(self.selector, self._address)
        self._admin.on_cut_off = lambda: self.complain("the connection for tools was closed")
        found = self._list_topics()
        self.record(TopicsFound(time.monotonic(), tuple(sorted(found.items()))))
        self._passing = {topic: queues for topic, queues in found.items() if topic.startswith(PASSING)}
        self.scan(found, full=self.rng.random() < 0.15)
        self._query_keys()
        for topic, queues in self.topics.items():
            if topic not in found:
                self._create(topic, queues)
        self._wait(lambda: self._admin is None or not self._admin.waiting)
        self._transactions = TransactionProducer(self, self._address)
        if self._nsq_address:
            channels = [NsqConsumer(self, self._nsq_address, topic) for topic in CHANNEL_TOPICS]
            self._wait(lambda: all(channel.is_subscribed for channel in channels))
            if missing := [channel.topic for channel in channels if not channel.is_subscribed]:
                self.complain(f"NSQ's channels of {missing} were not subscribed to")
        topics = {**self.topics, **self.auto_topics}
        self._consumers = [Consumer(self, self._address, group, topics) for group in GROUPS]

    def begin_publishing(self) -> None:
        """Open the producers."""
        self.draining = False
        self._began_at, self.published = time.monotonic(), 0
        queues = {**self.topics, **self.auto_topics, **self._passing}
        queues.pop(self._to_delete, None)  # a send behind its deletion would make it anew
        self.places = [Place(topic, number) for topic in queues if topic != "half" for number in range(queues[topic])]
        self.places += [Place("delayed", number) for number in range(queues["delayed"])] * 3  # they would be few
        self._producers = [Producer(self, self._address) for _ in range(3)]
        if self._nsq_address:
            self._producers.append(NsqProducer(self, self._nsq_address))

    def run(self, until_at: float, until: Callable[[], bool] | None = None) -> None:
        """Drive everything until a time, or until ``until()`` is true."""
        take_turns(self.loads, self.selector, until_at, until)

    def begin_turn(self, now: float) -> None:
        """Send."""
        if self._producers and self._transactions is not None:
            self._transactions.publish()
        for producer in self._producers:
            producer.publish()

    def end_turn(self, now: float, busy: set[Any]) -> None:
        """Do what was put off; make or delete a topic now and then."""
        while self._timers and self._timers[0][0] <= time.monotonic():
            heappop(self._timers)[2]()
        if self._producers and now >= self._next_change_at:
            self._next_change_at = now + self.rng.expovariate(1.5)
            self._change()

    def _wait(self, until: Callable[[], bool], seconds: float = 20.0) -> None:
        self.run(time.monotonic() + seconds, until)

    def drain(self, most_s: float) -> None:
        """Stop sending; wait until everything that is owed has come, then read every queue to its end."""
        self.stop_publishing()
        until = time.monotonic() + most_s
        while True:
            self.scan(self._list_topics())
            if not self.checker.owed() or time.monotonic() > until:
                break
            self._wait(lambda: not self.checker.owed(), 0.5)
        self._wait(lambda: not self._read_in_part(), max(until - time.monotonic(), 0.5))
        for text in self._read_in_part():
            self.complain(text)

    def _read_in_part(self) -> list[str]:
        """Say which groups have not read a queue to where the last scan ended, which nobody has written to since."""
        return [
            f"group {consumer.group} is at {following} of {end} in {place}"
            for consumer in self._consumers
            for place, following in consumer.following.items()
            if following < (end := self._scanned.get(place, 0))
        ]

    def stop_publishing(self) -> None:
        """Send no more; questions about transactions are answered, and consumers send nothing back."""
        self.draining = True
        producers, self._producers = self._producers, []
        for producer in producers:
            self._wait(lambda one=producer: not one.waiting)  # type: ignore[misc]
            producer.close()

    def read_rest(self, crashed_at: float) -> None:
        """The broker was killed: read what it had sent, then let go of the connections."""
        self.crashed_at = crashed_at
        self._producers = []
        until = time.monotonic() + 2
        while self.selector.get_map() and time.monotonic() < until:
            for key, events in self.selector.select(0.05):
                key.data.on_ready(events & selectors.EVENT_READ)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self.crashed_at = self.crashed_at or time.monotonic()
        for key in list((self.selector.get_map() or {}).values()):
            key.data.close()
        self.selector.close()

    @property
    def _ours(self) -> tuple[str, ...]:
        return (*self.topics, *self.auto_topics, PASSING, "%RETRY%", "%DLQ%")

    # -- topics ------------------------------------------------------------------------------------------------------

    def _ask(self, code: int, ext: dict[str, Any]) -> Frame | None:
        """Ask and wait for the answer."""
        assert self._admin is not None
        answers: list[Frame | None] = []
        self._admin.request(code, ext, answered=answers.append)
        self._wait(lambda: bool(answers))
        return answers[0] if answers else None

    def _list_topics(self) -> dict[str, int]:
        """Return the topics of this load that exist, with their numbers of queues to read."""
        frame = self._ask(wire.ALL_TOPICS, {})
        if not self.expect_success(frame):
            return {}
        assert frame is not None
        table = json.loads(frame.body)["topicConfigTable"]
        return {name: int(config["readQueueNums"]) for name, config in table.items() if name.startswith(self._ours)}

    def _create(self, topic: str, queues: int) -> None:
        assert self._admin is not None
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        self.record(TopicAsked(time.monotonic(), topic, queues))

        def answered(frame: Frame | None) -> None:
            if frame is None:
                return
            if frame.code != wire.SUCCESS:
                self.refused(frame)
                return
            self.record(TopicGranted(self.now(), topic))
            if topic.startswith(PASSING):
                self.open_topic(topic, queues)

        self._admin.request(wire.CREATE_TOPIC, ext, answered=answered)

    def open_topic(self, topic: str, queues: int) -> None:
        """Send to a passing topic from here on, or to more queues of it."""
        self.places += [Place(topic, number) for number in range(self._passing.get(topic, 0), queues)]
        self._passing[topic] = queues

    def close_topic(self, topic: str) -> None:
        """Send to it no more: it will be deleted."""
        self.places = [place for place in self.places if place.topic != topic]
        self._passing.pop(topic, None)

    def _change(self) -> None:
        """A new topic, more queues for one, or one less."""
        if self._admin is None or self._admin.waiting:
            return
        if self._to_delete:
            if not self.pending[self._to_delete]:
                self._delete(self._to_delete)
                self._to_delete = ""
            return
        name = self.rng.choice(self.passing_names)
        if name in self._passing and self.rng.random() < 0.5:
            self._to_delete = name
            self.close_topic(name)
            return
        self._create(name, min(self._passing.get(name, 0) + self.rng.choice((1, 2)), 6))

    def _delete(self, topic: str) -> None:
        assert self._admin is not None
        self.record(TopicDeleteAsked(time.monotonic(), topic))

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code == wire.SUCCESS:
                self.record(TopicDeleted(self.now(), topic))
            elif frame is not None:
                self.refused(frame)

        self._admin.request(wire.DELETE_TOPIC, {"topic": topic}, answered=answered)

    # -- reading everything again ------------------------------------------------------------------------------------

    def scan(self, topics: dict[str, int], *, full: bool = False) -> None:
        """Read every queue to its end: from the start, or from a little before where the last scan ended."""
        scanner = RemotingSocket(self.selector, self._address)
        scanner.on_cut_off = lambda: self.complain("the connection of a scan was closed")
        self._pending_scans = 0
        for topic, queues in topics.items():
            for queue_id in range(queues):
                self._pending_scans += 1
                place = Place(topic, queue_id)
                first = 0 if full else max(0, self._scanned.get(place, 0) - 20)
                self._scan_queue(scanner, place, first)
        self._wait(lambda: not self._pending_scans or not scanner.is_open, 60.0)
        if self._pending_scans:
            self.complain(f"{self._pending_scans} queues could not be read to their end")
        scanner.close()

    def _scan_queue(self, scanner: RemotingSocket, place: Place, first: int) -> None:
        where = {"topic": place.topic, "queueId": place.queue_id}

        def told(frame: Frame | None) -> None:
            if self.expect_success(frame):
                assert frame is not None
                pull(first, int(frame.ext["offset"]))

        def pull(offset: int, end: int) -> None:
            if offset >= end:
                self.record(Scanned(self.now(), place, first, end))
                self._scanned[place] = end
                self._pending_scans -= 1
                return
            ext = {
                "consumerGroup": "scan", **where, "queueOffset": offset, "maxMsgNums": 500, "sysFlag": 4,
                "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 1,
                "expressionType": "TAG",
            }  # fmt: skip
            scanner.request(wire.PULL, ext, answered=lambda frame: pulled(frame, offset, end))

        def pulled(frame: Frame | None, offset: int, end: int) -> None:
            if frame is None:
                return
            if "nextBeginOffset" not in frame.ext:
                self.refused(frame)
                return
            if frame.code == wire.SUCCESS:
                for record in wire.decode_records(frame.body):
                    if record.queue_offset < end:
                        self.record(read_event(self, place, record))
                        self._note_key(place, record)
            following = int(frame.ext["nextBeginOffset"])
            if following == offset:
                self.later(0.02, lambda: pull(offset, end))
            else:
                pull(following, end)

        scanner.request(wire.MAX_OFFSET, where, answered=told)

    def _note_key(self, place: Place, record: wire.Record) -> None:
        """Keep a sample of the messages that were read, to ask for them by key."""
        key = record.properties.get("KEYS", "")
        if place.topic.startswith("%") or self.rng.random() > 0.05 or not key.startswith("k"):
            return
        producer, _, sequence = key[1:].partition("-")
        payload = Payload(place.topic, int(producer), int(sequence))
        if len(self._payloads) < _MAX_KEYS:
            self._payloads.append(payload)
        else:
            self._payloads[self.rng.randrange(_MAX_KEYS)] = payload

    def _query_keys(self) -> None:
        """Ask for a few messages by their keys. The index may be behind the log for a moment."""
        for payload in self.rng.sample(self._payloads, min(_KEYS, len(self._payloads))):
            ext = {
                "topic": payload.topic, "key": key_of(payload.producer, payload.sequence), "maxNum": 32,
                "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1, "_UNIQUE_KEY_QUERY": "false",
            }  # fmt: skip
            until = time.monotonic() + 5
            while True:
                frame = self._ask(wire.QUERY_MESSAGE, ext)
                if frame is None or frame.code == wire.SUCCESS or time.monotonic() > until:
                    break
                self.run(time.monotonic() + 0.05)
            if frame is None or frame.code not in (wire.SUCCESS, wire.QUERY_NOT_FOUND):
                self.expect_success(frame)
            else:
                bodies = tuple(record.body for record in wire.decode_records(frame.body))
                self.record(KeyFound(time.monotonic(), payload.topic, payload.producer, payload.sequence, bodies))
