"""The clients of the RocketMQ crash load: producers, a producer with transactions, and consumers of a group."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tests.crash import rocketmq_client as wire
from tests.crash.history import Outcome, Payload, leaves_open, make_body, read_body
from tests.crash.rocketmq_client import Frame, Record, RemotingSocket
from tests.crash.rocketmq_history import (
    CheckAsked,
    CommitAnswered,
    CommitSent,
    CommittedFound,
    Decision,
    EndAnswered,
    Ended,
    Kind,
    Place,
    Pulled,
    Read,
    SendAnswered,
    Sent,
    SentBack,
    SentBackAnswered,
    key_of,
)

if TYPE_CHECKING:
    from tests.crash.rocketmq_load import RocketmqLoad

DELAYS_S = (1.0, 1.0, 2.0, 3.0)
"""The delay levels that the broker is started with."""

PASSING = "passing"
"""Beginning of the names of topics that come and go."""

MAX_RECONSUMES = 2
TRANSACTION_GROUP = "TX"

_SIZES = (64, 100, 150, 200, 300, 700, 2000)
_PULL_AND_COMMIT, _PULL = 7, 6  # bits: commit offset is valid, may be held, subscription is in the header
_CODES = {Decision.COMMIT: wire.COMMIT, Decision.ROLLBACK: wire.ROLLBACK, Decision.UNKNOWN: wire.UNKNOWN}


def fate_of(payload: Payload) -> Decision:
    """Return what becomes of a half message: the same whenever its producer is asked."""
    return Decision.ROLLBACK if payload.sequence % 3 == 1 else Decision.COMMIT


def read_event(load: RocketmqLoad, place: Place, record: Record) -> Read:
    """Return the event of a message that was pulled."""
    return Read(
        load.now(), place, record.queue_offset, record.message_id, record.body, record.properties.get("KEYS", ""),
        record.reconsume_times, load.mono(record.store_ms),
    )  # fmt: skip


class Producer(RemotingSocket):
    """Keeps a number of sends under way; some are one-way."""

    def __init__(self, load: RocketmqLoad, address: str) -> None:
        self.load = load
        self.producer = load.next_number("producer")
        self.sequences: dict[str, int] = {}
        super().__init__(load.selector, address)
        self.on_cut_off = lambda: load.complain("a producer's connection was closed")

    def publish(self) -> None:
        """Send up to the number that may be under way."""
        load = self.load
        while self.is_open and self.waiting < load.in_flight and self.unsent_bytes < 1 << 18 and not load.is_behind:
            self._send(load.rng.choice(load.places))

    def _send(self, place: Place) -> None:
        load, rng = self.load, self.load.rng
        draw = rng.random()
        kind = Kind.PLAIN
        if place.topic == "delayed":
            kind = Kind.TIMED if load.has_times and draw < 0.5 else Kind.LEVEL
        elif place.topic == "batches" or draw > 0.95:
            kind = Kind.BATCH
        count = rng.choice((1, 2, 3, 10, 40, 100)) if kind is Kind.BATCH else 1
        first = self.sequences.get(place.topic, 0)
        self.sequences[place.topic] = first + count
        number = load.next_number("command")
        now = time.monotonic()
        messages = []
        for index in range(count):
            payload = Payload(place.topic, self.producer, first + index)
            size = rng.choice((30_000, 200_000)) if draw < 0.002 and not index else rng.choice(_SIZES)
            messages.append((make_body(payload, size), self._properties(payload)))
        due = self._delay(kind, messages[0][1], now)
        load.record(Sent(now, number, kind, place, self.producer, first, count, due))
        load.sent(count)
        ext = wire.send_ext(place.topic, place.queue_id, messages[0][1], load.wall_ms(now))
        # A passing topic must have no send under way when it is deleted: a late one would make it anew.
        is_one_way = kind is Kind.PLAIN and draw < 0.05 and not place.topic.startswith(PASSING)
        answered = None if is_one_way else partial(self._answered, place.topic, number)
        load.pending[place.topic] += not is_one_way
        if kind is Kind.BATCH:
            ext |= {"i": "WAIT\x01true\x02", "m": "true"}
            self.request(wire.SEND_BATCH, ext, wire.encode_batch(messages), answered)
        elif draw < 0.3:
            self.request(wire.SEND, wire.long_names(ext), messages[0][0], answered)
        else:
            self.request(wire.SEND_V2, ext, messages[0][0], answered)

    def _answered(self, topic: str, number: int, frame: Frame | None) -> None:
        self.load.pending[topic] -= 1
        self.load.send_answered(number, frame)

    @staticmethod
    def _properties(payload: Payload) -> dict[str, str]:
        unique = f"{payload.producer:016X}{payload.sequence:016X}"
        return {"KEYS": key_of(payload.producer, payload.sequence), "UNIQ_KEY": unique, "WAIT": "true", "TAGS": "A"}

    def _delay(self, kind: Kind, properties: dict[str, str], now: float) -> float:
        """Put the delay into the properties; return when the message is due."""
        load, rng = self.load, self.load.rng
        if kind is Kind.LEVEL:
            level = rng.choice((1, 2, 3))
            properties["DELAY"] = str(level)
            return now + DELAYS_S[level - 1]
        if kind is Kind.TIMED:
            delay_ms = rng.choice((50, 300, 700, 1200, 2500))
            if rng.random() < 0.5:
                properties["TIMER_DELAY_MS"] = str(delay_ms)
            else:
                properties["TIMER_DELIVER_MS"] = str(load.wall_ms(now) + delay_ms)
            return now + delay_ms / 1000 - 0.001
        return 0.0


class TransactionProducer(Producer):
    """Sends half messages; decides them, or waits to be asked."""

    def __init__(self, load: RocketmqLoad, address: str) -> None:
        super().__init__(load, address)
        body = b'{"clientID":"tx@1","producerDataSet":[{"groupName":"%s"}],"consumerDataSet":[]}'
        self.request(wire.HEART_BEAT, {}, body % TRANSACTION_GROUP.encode(), load.expect_success)

    def publish(self) -> None:
        """Send a few half messages."""
        load = self.load
        while self.is_open and self.waiting < 6 and load.rng.random() < 0.3 and not load.is_behind:
            place = Place("half", load.rng.randrange(2))
            sequence = self.sequences.get("half", 0)
            self.sequences["half"] = sequence + 1
            payload = Payload("half", self.producer, sequence)
            number = load.next_number("command")
            now = time.monotonic()
            load.commands[payload] = number
            load.record(Sent(now, number, Kind.HALF, place, self.producer, sequence))
            load.sent(1)
            properties = self._properties(payload) | {"TRAN_MSG": "true", "PGROUP": TRANSACTION_GROUP}
            ext = wire.send_ext(place.topic, place.queue_id, properties, load.wall_ms(now), group=TRANSACTION_GROUP)
            ext["f"] = 4
            body = make_body(payload, load.rng.choice(_SIZES))
            self.request(wire.SEND_V2, ext, body, partial(self._prepared, payload))

    def _prepared(self, payload: Payload, frame: Frame | None) -> None:
        load = self.load
        number = load.commands[payload]
        if load.send_answered(number, frame) is not Outcome.OK or load.crashed_at:
            return
        assert frame is not None
        draw = load.rng.random()
        if draw < 0.15:
            return  # the producer forgets: it will be asked
        decision = Decision.UNKNOWN if draw < 0.25 else fate_of(payload)
        self._end(payload, decision, frame.ext["queueOffset"], int(frame.ext["msgId"][-16:], 16))

    def _end(self, payload: Payload, decision: Decision, half_offset: str, physical_offset: int) -> None:
        load = self.load
        number = load.commands[payload]
        end = load.next_number("end")
        load.record(Ended(time.monotonic(), number, decision, end))
        ext = {
            "producerGroup": TRANSACTION_GROUP,
            "tranStateTableOffset": half_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": _CODES[decision],
            "fromTransactionCheck": "false",
            "msgId": "0",
        }

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code == wire.SUCCESS:
                load.record(EndAnswered(load.now(), number, end))
            elif frame is not None:
                load.refused(frame)

        self.request(wire.END_TRANSACTION, ext, answered=answered if load.rng.random() < 0.5 else None)

    def asked(self, frame: Frame) -> None:
        load = self.load
        if frame.code != wire.CHECK_TRANSACTION:
            return
        (record,) = wire.decode_records(frame.body)
        load.record(CheckAsked(load.now(), Place(record.topic, record.queue_id), record.body))
        payload = read_body(record.body)
        if payload is None or payload not in load.commands or load.crashed_at:
            return
        draw = 1.0 if load.draining else load.rng.random()
        if draw < 0.1:
            return
        decision = Decision.UNKNOWN if draw < 0.2 else fate_of(payload)
        self._end(payload, decision, frame.ext["tranStateTableOffset"], int(frame.ext["commitLogOffset"]))


class Consumer(RemotingSocket):
    """One member of a group that reads all its queues, commits, and sends some messages back.

    Attributes:
        following: Where its next pull of each queue begins.
    """

    def __init__(self, load: RocketmqLoad, address: str, group: str, topics: dict[str, int]) -> None:
        self.load = load
        self.group = group
        self.following: dict[Place, int] = {}
        super().__init__(load.selector, address)
        self.on_cut_off = lambda: load.complain(f"the connection of group {group} was closed")
        self._heartbeat(topics)
        retry = f"%RETRY%{group}"
        for topic, queues in {**topics, retry: 1}.items():
            for queue_id in range(queues):
                self._ask_offset(Place(topic, queue_id))

    def _heartbeat(self, topics: dict[str, int]) -> None:
        subscriptions = ",".join(
            f'{{"topic":"{topic}","subString":"*","tagsSet":[],"codeSet":[],"subVersion":1,"expressionType":"TAG"}}'
            for topic in (*topics, f"%RETRY%{self.group}")
        )
        body = (
            f'{{"clientID":"{self.group}@1","producerDataSet":[],"consumerDataSet":[{{"groupName":"{self.group}",'
            '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":'
            f'"CONSUME_FROM_FIRST_OFFSET","unitMode":false,"subscriptionDataSet":[{subscriptions}]}}]}}'
        )
        self.request(wire.HEART_BEAT, {}, body.encode(), self.load.expect_success)

    def _ask_offset(self, place: Place) -> None:
        ext = {"consumerGroup": self.group, "topic": place.topic, "queueId": place.queue_id}
        self.following[place] = 0

        def answered(frame: Frame | None) -> None:
            if frame is None:
                return
            offset = int(frame.ext["offset"]) if frame.code == wire.SUCCESS else -1
            self.load.record(CommittedFound(self.load.now(), self.group, place, offset))
            self._pull(place, max(offset, 0), -1)

        self.request(wire.QUERY_OFFSET, ext, answered=answered)

    def _pull(self, place: Place, offset: int, commit: int) -> None:
        """Ask for what stands at ``offset``, and commit by the way, unless ``commit`` is -1."""
        load = self.load
        number = -1
        if commit >= 0:
            number = load.next_number("commit")
            load.record(CommitSent(time.monotonic(), number, self.group, place, commit))
        ext = {
            "consumerGroup": self.group,
            "topic": place.topic,
            "queueId": place.queue_id,
            "queueOffset": offset,
            "maxMsgNums": load.rng.choice((8, 32, 200)),
            "sysFlag": _PULL if commit < 0 else _PULL_AND_COMMIT,
            "commitOffset": max(commit, 0),
            "suspendTimeoutMillis": 400,
            "subscription": "*",
            "subVersion": 1,
            "expressionType": "TAG",
        }
        self.request(wire.PULL, ext, answered=lambda frame: self._pulled(place, offset, number, frame))

    def _pulled(self, place: Place, offset: int, commit: int, frame: Frame | None) -> None:
        load = self.load
        if frame is None:
            return
        if "nextBeginOffset" not in frame.ext:
            if frame.code != wire.TOPIC_NOT_EXIST and frame.remark != wire.STOPPING:
                load.refused(frame)
            load.later(0.3, lambda: self._pull(place, offset, -1))
            return
        if commit >= 0:
            load.record(CommitAnswered(load.now(), commit))
        following = self.following[place] = int(frame.ext["nextBeginOffset"])
        found = wire.decode_records(frame.body) if frame.code == wire.SUCCESS else []
        for record in found:
            load.deliveries += 1
            load.record(read_event(load, place, record))
            if not load.draining and load.rng.random() < 0.02:
                self._send_back(record)
        places = tuple(record.queue_offset for record in found)
        load.record(Pulled(load.now(), self.group, place, offset, following, places))
        if load.crashed_at:
            return
        draw = load.rng.random()
        if draw > 0.4 and following > offset:
            self._commit(place, following, one_way=draw < 0.7)
        self._pull(place, following, following if draw < 0.4 else -1)

    def _commit(self, place: Place, offset: int, *, one_way: bool) -> None:
        load = self.load
        number = load.next_number("commit")
        load.record(CommitSent(time.monotonic(), number, self.group, place, offset))
        ext = {
            "consumerGroup": self.group, "topic": place.topic, "queueId": place.queue_id, "commitOffset": offset
        }  # fmt: skip

        def answered(frame: Frame | None) -> None:
            if load.expect_success(frame):
                load.record(CommitAnswered(load.now(), number))

        self.request(wire.COMMIT_OFFSET, ext, answered=None if one_way else answered)

    def _send_back(self, record: Record) -> None:
        load = self.load
        if load.crashed_at:
            return
        draw = load.rng.random()
        level = -1 if draw < 0.2 else 0 if draw < 0.3 else load.rng.choice((1, 2, 3))
        delay_s = DELAYS_S[min(level or 3 + record.reconsume_times, len(DELAYS_S)) - 1]
        is_dead = level < 0 or record.reconsume_times >= MAX_RECONSUMES
        number = load.next_number("back")
        now = time.monotonic()
        due = 0.0 if is_dead else now + delay_s
        load.record(SentBack(now, number, self.group, record.body, record.reconsume_times + 1, is_dead, due))
        ext = {
            "offset": record.physical_offset,
            "group": self.group,
            "delayLevel": level,
            "originMsgId": record.message_id,
            "originTopic": record.topic,
            "unitMode": "false",
            "maxReconsumeTimes": MAX_RECONSUMES,
        }

        def answered(frame: Frame | None) -> None:
            if frame is not None and frame.code != wire.SUCCESS:
                load.refused(frame)
            load.record(SentBackAnswered(load.now(), number, outcome_of(frame)))

        self.request(wire.SEND_BACK, ext, answered=answered)


def send_answered_event(load: RocketmqLoad, number: int, frame: Frame | None) -> SendAnswered:
    """Return the event of an answer to a send."""
    if frame is None:
        return SendAnswered(load.now(), number, Outcome.UNKNOWN)
    if frame.code == wire.SUCCESS:
        ids = tuple(frame.ext["msgId"].split(","))
        return SendAnswered(load.now(), number, Outcome.OK, int(frame.ext["queueOffset"]), ids)
    return SendAnswered(load.now(), number, outcome_of(frame))


def outcome_of(frame: Frame | None) -> Outcome:
    """Return what is known of something that was asked for: a failed store leaves open whether it is in the log."""
    if frame is None or frame.code in (10, 11, 12) or leaves_open(frame.remark):
        return Outcome.UNKNOWN
    return Outcome.OK if frame.code == wire.SUCCESS else Outcome.ERROR
