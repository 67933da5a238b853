"""The one history checker: what clients saw, held against what a durable broker promises.

It follows the events as they come and keeps, per channel, what is still owed to it. Each rule has a name, which a
violation carries; ``test_checker.py`` plants a violation of every rule.

What a rule may not blame the broker for: a command that was never answered may or may not have happened; a FIN sent
less than 5 s before a crash may be forgotten, so may a REQ; a TOUCH shortly before the time-out may come too late.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from tests.crash.history import (
    Answered,
    Asked,
    BrokerComplained,
    ChangeAsked,
    ChangeGranted,
    Crashed,
    Delivered,
    Drained,
    Finished,
    Granted,
    Observed,
    Outcome,
    Payload,
    Published,
    Requeued,
    SettleFailed,
    Thing,
    Touched,
    What,
    lived,
    read_body,
)
from tests.crash.violations import HistoryChecker

JOURNAL_S = 5.0
"""A settlement older than this survives any crash."""

TOLERANCE_S = 0.1

HELD_UP_S = 0.4
"""How much later than its time-out begins a message may leave the broker, on a machine that holds it up."""

TOUCH_S = 1.0
"""A TOUCH sent less than this before a message times out may be too late."""


class Rule(StrEnum):
    """What can be broken."""

    LOST = "an acknowledged message is lost"
    PHANTOM = "a message that nobody sent"
    CORRUPT = "a body whose bytes nobody sent"
    REFUSED = "a refused message is delivered"
    DUPLICATE = "a duplicate without a cause"
    FINISHED = "a message finished long before the crash comes again"
    ORDER = "first deliveries out of a producer's order"
    TWO_PAYLOADS = "one message id with two payloads"
    TWO_IDS = "one message with two ids"
    TORN_BATCH = "a part of an MPUB"
    EARLY = "a delayed message before its time"
    CAME_BACK = "something deleted is there again"
    VANISHED = "something created is gone"
    BEFORE_BIRTH = "a message from before its channel"
    EMPTIED = "a message from before its channel was emptied"
    PAUSED = "a paused channel delivers"
    ATTEMPTS = "a number of attempts that is none, or stood with another delivery"
    COMPLAINT = "the broker reports damage"


@dataclass(slots=True)
class _Command:
    """One PUB, MPUB or DPUB."""

    event: Published
    outcome: Outcome = Outcome.UNKNOWN
    answered_at: float = float("inf")


@dataclass(slots=True)
class _Delivery:
    """What one channel's consumers did with one message."""

    message_id: str
    count: int = 0
    attempts: set[int] = field(default_factory=set)  # of the deliveries since the last crash
    last_at: float = 0.0  # earliest time at which the last delivery can have left, or its last TOUCH
    timeout_s: float = 0.0
    finished_at: float = -1.0
    finishes: int = 0  # FINs since the last crash that have not failed
    requeued_at: float = -1.0
    requeue_delay_s: float = 0.0
    excused: bool = False  # the next delivery has a cause


@dataclass(slots=True)
class _Channel:
    """One life of a channel, from its creation to its deletion."""

    thing: Thing
    asked_at: float
    created_at: float  # known to exist from here on
    one_consumer: bool
    owed: dict[Payload, float] = field(default_factory=dict)  # to when it is deliverable at the latest
    deliveries: dict[Payload, _Delivery] = field(default_factory=dict)
    last_sequence: dict[tuple[int, int], int] = field(default_factory=dict)  # by producer and queue
    parts: dict[int, int] = field(default_factory=dict)  # command -> messages of it seen, while not all
    emptied_at: float = float("-inf")  # nothing published before is owed
    empty_asked_at: float = float("-inf")
    empty_from: float = float("-inf")  # what was acknowledged before ...
    empty_since: float = float("inf")  # ... does not come from here on
    paused_since: float = float("inf")


class _Existence(StrEnum):
    THERE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


class Checker(HistoryChecker):
    """The rules, event by event."""

    def __init__(self) -> None:
        super().__init__(
            {
                Published: self._published,
                Answered: self._answered,
                Delivered: self._delivered,
                Finished: self._finished,
                Requeued: self._requeued,
                Touched: self._touched,
                SettleFailed: self._settle_failed,
                Asked: self._has_asked,
                Granted: self._granted,
                ChangeAsked: self._change_asked,
                ChangeGranted: self._change_granted,
                Crashed: self._crashed,
                Observed: self._observed,
                Drained: self._drained,
                BrokerComplained: self._complained,
            }
        )
        self._commands: dict[int, _Command] = {}
        self._command_of: dict[Payload, _Command] = {}
        self._payload_of: dict[str, Payload] = {}
        self._ids: dict[Payload, str] = {}
        self._channels: dict[Thing, _Channel] = {}
        self._channels_of: dict[str, list[_Channel]] = defaultdict(list)
        self._deleting: dict[Thing, _Channel] = {}  # their deletion was asked for and not answered
        self._existence: dict[Thing, _Existence] = {}
        self._asked: dict[Thing, Asked] = {}
        self._topic_deleted: dict[str, tuple[float, float]] = {}
        self.maybe_paused: set[Thing] = set()

    def owed(self) -> int:
        """How many messages the consumers have still to get or to finish."""
        return sum(len(channel.owed) + len(channel.parts) for channel in self._channels.values())

    # -- publishing -------------------------------------------------------------------------------------------------

    def _published(self, event: Published) -> None:
        command = _Command(event)
        self._commands[event.command] = command
        for i in range(event.messages):
            self._command_of[Payload(event.topic, event.producer, event.first_sequence + i)] = command

    def _answered(self, event: Answered) -> None:
        command = self._commands[event.command]
        command.outcome, command.answered_at = event.outcome, event.at
        published = command.event
        if event.outcome is Outcome.UNKNOWN:
            return
        payloads = [
            Payload(published.topic, published.producer, published.first_sequence + i)
            for i in range(published.messages)
        ]
        for channel in self._channels_of[published.topic]:
            for payload in payloads:
                delivery = channel.deliveries.get(payload)
                if event.outcome is Outcome.ERROR:
                    if delivery is not None:
                        self._blame(Rule.REFUSED, event.at, f"{payload} channel={channel.thing.channel}")
                elif published.at >= channel.created_at and not self._is_settled(delivery):
                    self._owe(channel, payload, event.at + published.delay_s)

    @staticmethod
    def _is_settled(delivery: _Delivery | None) -> bool:
        """Whether a FIN was sent, perhaps behind a time-out that brought the message a second time."""
        return delivery is not None and (delivery.finished_at >= 0 or delivery.finishes > 0)

    def _owe(self, channel: _Channel, payload: Payload, due: float) -> None:
        if self._command_of[payload].event.at >= channel.emptied_at:
            channel.owed[payload] = due

    # -- delivering -------------------------------------------------------------------------------------------------

    def _delivered(self, event: Delivered) -> None:
        payload = read_body(event.body)
        if payload is None:
            self._blame(Rule.CORRUPT, event.at, f"{event.thing} id={event.message_id} body={event.body[:60]!r}")
            return
        command = self._command_of.get(payload)
        if command is None or payload.topic != event.thing.topic:
            self._blame(Rule.PHANTOM, event.at, f"{event.thing} id={event.message_id} {payload}")
            return
        if command.event.may_repeat and self._ids.get(payload, event.message_id) != event.message_id:
            payload = payload._replace(topic=f"{payload.topic} {event.message_id}")  # a message of its own
            self._command_of[payload] = command
        self._check_identity(event, payload)
        self._check_command(event, payload, command)
        channel = self._channels.get(event.thing)
        if channel is None:
            return
        self._check_channel(event, payload, command, channel)
        delivery = channel.deliveries.get(payload)
        if delivery is None:
            delivery = channel.deliveries[payload] = _Delivery(event.message_id)
            self._check_first(event, payload, command, channel)
        else:
            self._check_again(event, payload, delivery)
        # It may have timed out and left again before the broker read the FIN, which then settled this delivery. Of
        # several that lay in the client's sockets it is any.
        is_settled = self._is_settled(delivery) and self._may_have_timed_out(event, delivery)
        if self._first_crash_after(delivery.last_at) is not None:
            delivery.finishes = 0
            delivery.attempts.clear()  # a crash may forget some, and count them again
        self._check_attempts(event, payload, delivery)
        delivery.count += 1
        delivery.last_at = event.at - event.slack_s
        delivery.timeout_s = event.timeout_s
        delivery.finished_at = delivery.requeued_at = -1.0
        delivery.excused = False
        if not is_settled:
            self._owe(channel, payload, event.at)

    def _check_identity(self, event: Delivered, payload: Payload) -> None:
        other = self._payload_of.setdefault(event.message_id, payload)
        if other != payload:
            self._blame(Rule.TWO_PAYLOADS, event.at, f"id={event.message_id} {other} and {payload}")
        first_id = self._ids.setdefault(payload, event.message_id)
        if first_id != event.message_id:
            self._blame(Rule.TWO_IDS, event.at, f"{payload} ids={first_id},{event.message_id}")

    def _check_command(self, event: Delivered, payload: Payload, command: _Command) -> None:
        if command.outcome is Outcome.ERROR:
            self._blame(Rule.REFUSED, event.at, f"{event.thing} {payload}")
        published = command.event
        early = published.at + published.delay_s - event.at
        if published.delay_s and early > TOLERANCE_S:
            self._blame(Rule.EARLY, event.at, f"{event.thing} {payload} DPUB early_s={early:.3f}")
        asked, granted = self._topic_deleted.get(payload.topic, (0.0, 0.0))
        if command.answered_at < asked and event.at - event.slack_s > granted:
            self._blame(Rule.CAME_BACK, event.at, f"message of a deleted topic {event.thing} {payload}")

    def _check_channel(self, event: Delivered, payload: Payload, command: _Command, channel: _Channel) -> None:
        left_at = event.at - event.slack_s - TOLERANCE_S
        if left_at > channel.paused_since:
            self._blame(Rule.PAUSED, event.at, f"{event.thing} {payload} for_s={event.at - channel.paused_since:.3f}")
        is_emptied = command.answered_at < channel.empty_from and left_at > channel.empty_since
        if is_emptied and not command.event.may_repeat:
            self._blame(Rule.EMPTIED, event.at, f"{event.thing} {payload} id={event.message_id}")

    def _check_first(self, event: Delivered, payload: Payload, command: _Command, channel: _Channel) -> None:
        published = command.event
        if command.answered_at < channel.asked_at and not published.may_repeat:
            self._blame(Rule.BEFORE_BIRTH, event.at, f"{event.thing} {payload}")
        if published.messages > 1:
            seen = channel.parts.get(published.command, 0) + 1
            if seen == published.messages:
                channel.parts.pop(published.command, None)
            else:
                channel.parts[published.command] = seen
        # What timed out came before: a client that was held up as the broker died did not read it.
        is_first = event.attempts == 1
        if is_first and channel.one_consumer and not published.delay_s and published.queue_id >= 0:
            line = (payload.producer, published.queue_id)
            last = channel.last_sequence.get(line, -1)
            if payload.sequence < last:
                self._blame(Rule.ORDER, event.at, f"{event.thing} {payload} after sequence={last}")
            channel.last_sequence[line] = max(last, payload.sequence)

    def _check_again(self, event: Delivered, payload: Payload, delivery: _Delivery) -> None:
        at = event.at
        what = f"{event.thing} {payload} id={event.message_id} attempts={event.attempts} deliveries={delivery.count}"
        if delivery.finished_at >= 0:
            crash = self._first_crash_after(delivery.finished_at)
            if crash is None:
                if not self._may_have_timed_out(event, delivery):
                    self._blame(Rule.DUPLICATE, at, f"{what} finished, no crash since")
            elif lived(self._held, delivery.finished_at, crash) > JOURNAL_S:
                self._blame(Rule.FINISHED, at, f"{what} finished_s_before_crash={crash - delivery.finished_at:.3f}")
            return
        if delivery.requeued_at >= 0:
            crash = self._first_crash_after(delivery.requeued_at)
            early = delivery.requeued_at + delivery.requeue_delay_s - at
            forgotten = crash is not None and lived(self._held, delivery.requeued_at, crash) <= JOURNAL_S
            if early > TOLERANCE_S and not forgotten and not self._may_have_timed_out(event, delivery):
                self._blame(Rule.EARLY, at, f"{what} REQ early_s={early:.3f}")
            return
        if delivery.excused or self._first_crash_after(delivery.last_at) is not None:
            return
        if not self._may_have_timed_out(event, delivery):
            self._blame(Rule.DUPLICATE, at, f"{what} in flight for_s={at - delivery.last_at:.3f}")

    def _check_attempts(self, event: Delivered, payload: Payload, delivery: _Delivery) -> None:
        """Each delivery counts one: what lay in a lost connection may be missing, but no number comes twice."""
        if event.attempts < 1 or event.attempts in delivery.attempts:
            known = sorted(delivery.attempts)
            self._blame(Rule.ATTEMPTS, event.at, f"{event.thing} {payload} attempts={event.attempts} before={known}")
        delivery.attempts.add(event.attempts)

    def _may_have_timed_out(self, event: Delivered, delivery: _Delivery) -> bool:
        if self._first_crash_after(delivery.last_at) is not None:
            return False
        return event.at - delivery.last_at >= delivery.timeout_s - HELD_UP_S

    # -- settling ---------------------------------------------------------------------------------------------------

    def _delivery_of(self, thing: Thing, message_id: str) -> tuple[_Channel, Payload, _Delivery] | None:
        channel = self._channels.get(thing)
        payload = self._payload_of.get(message_id)
        if channel is None or payload is None or payload not in channel.deliveries:
            return None
        return channel, payload, channel.deliveries[payload]

    def _finished(self, event: Finished) -> None:
        if found := self._delivery_of(event.thing, event.message_id):
            channel, payload, delivery = found
            delivery.finished_at = event.at
            delivery.finishes += 1
            channel.owed.pop(payload, None)

    def _requeued(self, event: Requeued) -> None:
        if found := self._delivery_of(event.thing, event.message_id):
            channel, payload, delivery = found
            delivery.requeued_at, delivery.requeue_delay_s = event.at, event.delay_s
            if not delivery.finishes:  # else the FIN of an earlier delivery may have settled this one before
                self._owe(channel, payload, event.at + event.delay_s)

    def _touched(self, event: Touched) -> None:
        if found := self._delivery_of(event.thing, event.message_id):
            delivery = found[2]
            # Shortly before the time-out the broker may read it behind that: the second copy is on its way then.
            if event.at - delivery.last_at < delivery.timeout_s - TOUCH_S:
                delivery.last_at = event.at

    def _settle_failed(self, event: SettleFailed) -> None:
        """The broker knew better: it had timed out. It comes again, so it is owed again."""
        if found := self._delivery_of(event.thing, event.message_id):
            channel, payload, delivery = found
            delivery.excused = True
            delivery.requeued_at = -1.0
            delivery.finishes -= event.was_fin
            if delivery.finishes > 0:
                channel.owed.pop(payload, None)  # another FIN of the same message was good
            else:
                delivery.finished_at = -1.0
                self._owe(channel, payload, event.at)

    # -- topics and channels ----------------------------------------------------------------------------------------

    def _has_asked(self, event: Asked) -> None:
        self._asked[event.thing] = event
        if event.creates and self._existence.get(event.thing) is _Existence.THERE:
            return
        self._existence[event.thing] = _Existence.UNKNOWN
        if not event.creates:
            # From here on nothing is owed: the deletion may happen at any time.
            for thing in self._below(event.thing):
                self._existence[thing] = _Existence.UNKNOWN
                if channel := self._forget(thing):
                    self._deleting[thing] = channel

    def _below(self, thing: Thing) -> list[Thing]:
        if thing.channel:
            return [thing]
        return [known for known in self._existence if known.topic == thing.topic]

    def _granted(self, event: Granted) -> None:
        asked = self._asked[event.thing]
        if asked.creates:
            self._existence[event.thing] = _Existence.THERE
            if event.thing.channel:
                self._existence[Thing(event.thing.topic)] = _Existence.THERE
                self._begin(event.thing, asked, event.at)
            return
        for thing in self._below(event.thing):
            self._existence[thing] = _Existence.GONE
            self._deleting.pop(thing, None)
        if not event.thing.channel:
            self._topic_deleted[event.thing.topic] = (asked.at, event.at)

    def _change_asked(self, event: ChangeAsked) -> None:
        channel = self._channels.get(event.thing)
        if channel is None:
            return
        if event.what is What.PAUSE:
            self.maybe_paused.add(event.thing)
        elif event.what is What.UNPAUSE:
            channel.paused_since = float("inf")
        else:
            # From here on nothing is owed until it is known when it was empty.
            channel.emptied_at = float("inf")
            channel.owed.clear()
            channel.parts.clear()
            channel.empty_asked_at = event.at

    def _change_granted(self, event: ChangeGranted) -> None:
        channel = self._channels.get(event.thing)
        if channel is None:
            return
        if event.what is What.PAUSE:
            channel.paused_since = event.at
        elif event.what is What.UNPAUSE:
            self.maybe_paused.discard(event.thing)
        else:
            channel.emptied_at = channel.empty_since = event.at
            channel.empty_from = channel.empty_asked_at

    def _begin(self, thing: Thing, asked: Asked, at: float) -> None:
        if thing not in self._channels:
            channel = _Channel(thing, asked.at, at, asked.one_consumer)
            self._channels[thing] = channel
            self._channels_of[thing.topic].append(channel)

    def _resume(self, channel: _Channel) -> None:
        """The deletion of a channel did not happen: what was owed is owed."""
        self._channels[channel.thing] = channel
        self._channels_of[channel.thing.topic].append(channel)
        if channel.paused_since < float("inf"):
            self.maybe_paused.add(channel.thing)

    def _forget(self, thing: Thing) -> _Channel | None:
        channel = self._channels.pop(thing, None)
        self.maybe_paused.discard(thing)
        if channel is not None:
            self._channels_of[thing.topic].remove(channel)
        return channel

    def _crashed(self, event: Crashed) -> None:
        self._crashes.append(event.at)
        for channel in self._channels.values():
            channel.emptied_at = min(channel.emptied_at, event.at)

    def _observed(self, event: Observed) -> None:
        for thing, existence in list(self._existence.items()):
            is_there = thing in event.things
            if existence is _Existence.THERE and not is_there:
                self._blame(Rule.VANISHED, event.at, str(thing))
                self._forget(thing)
            elif existence is _Existence.GONE and is_there:
                self._blame(Rule.CAME_BACK, event.at, str(thing))
            if existence is _Existence.UNKNOWN and is_there and thing.channel:
                if thing in self._deleting:
                    self._resume(self._deleting[thing])
                else:
                    self._begin(thing, self._asked[thing], event.at)
            self._existence[thing] = _Existence.THERE if is_there else _Existence.GONE
        self._deleting.clear()

    def exists(self, thing: Thing) -> bool:
        """Whether a topic or channel is known to be there."""
        return self._existence.get(thing) is _Existence.THERE

    # -- the end ----------------------------------------------------------------------------------------------------

    def _drained(self, event: Drained) -> None:
        for channel in self._channels.values():
            for payload, due in channel.owed.items():
                if due < event.at:
                    delivery = channel.deliveries.get(payload)
                    how = f"deliveries={delivery.count if delivery else 0} id={self._ids.get(payload, '?')}"
                    self._blame(Rule.LOST, event.at, f"{channel.thing} {payload} {how}")
            for number, seen in channel.parts.items():
                command = self._commands[number].event
                # Who was created while the batch was under way may have come in its middle: only whole lives count.
                if command.at >= max(channel.created_at, channel.emptied_at):
                    text = f"{channel.thing} producer={command.producer} first_sequence={command.first_sequence}"
                    self._blame(Rule.TORN_BATCH, event.at, f"{text} seen={seen} of={command.messages}")
            channel.owed = {payload: due for payload, due in channel.owed.items() if due >= event.at}
            channel.parts.clear()

    def _complained(self, event: BrokerComplained) -> None:
        self._blame(Rule.COMPLAINT, event.at, event.line)
