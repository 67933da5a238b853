"""The history checker for the RocketMQ protocol: what clients saw, held against what a durable broker promises.

It follows the events as they come (``rocketmq_history``) and keeps what stands where in which queue. Every rule has a
name, which a violation carries; ``test_rocketmq_checker.py`` plants a violation of each. Ref:
docs/formats/delayed-messages.md, config-files.md.

What a rule may not blame the broker for: what was never answered may have happened or not; a delayed message that came
shortly before a crash may come again; a committed offset less than 5 s old, and an unconfirmed decision on a
transaction, may be forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from tests.crash.checker import JOURNAL_S, TOLERANCE_S
from tests.crash.history import BrokerComplained, Crashed, Drained, Outcome, Payload, lived, read_body
from tests.crash.rocketmq_history import (
    ChannelMade,
    ChannelRead,
    CheckAsked,
    CommitAnswered,
    CommitSent,
    CommittedFound,
    Decision,
    EndAnswered,
    Ended,
    KeyFound,
    Kind,
    Place,
    Pulled,
    Read,
    Scanned,
    SendAnswered,
    Sent,
    SentBack,
    SentBackAnswered,
    TopicAsked,
    TopicDeleteAsked,
    TopicDeleted,
    TopicGranted,
    TopicsFound,
    key_of,
)
from tests.crash.rocketmq_rules import CURSORS_S, OFFSETS_S, Rule
from tests.crash.rocketmq_state import Channel, Command, Copies, Queue, Slot
from tests.crash.violations import HistoryChecker

_RETRY, _DEAD = "%RETRY%", "%DLQ%"
_DELAYED = (Kind.LEVEL, Kind.TIMED)


_CopyKey = tuple[str, Payload, int]


class RocketmqChecker(HistoryChecker):
    """The rules, event by event."""

    def __init__(self) -> None:
        super().__init__(
            {
                Sent: self._sent,
                SendAnswered: self._send_answered,
                Ended: self._ended,
                EndAnswered: self._end_answered,
                CheckAsked: self._check_asked,
                Read: self._read,
                Pulled: self._pulled,
                Scanned: self._scanned,
                CommitSent: self._commit_sent,
                CommitAnswered: self._commit_answered,
                CommittedFound: self._committed_found,
                SentBack: self._sent_back,
                SentBackAnswered: self._sent_back_answered,
                KeyFound: self._key_found,
                ChannelMade: self._channel_made,
                ChannelRead: self._channel_read,
                TopicAsked: self._topic_asked,
                TopicGranted: self._topic_granted,
                TopicDeleteAsked: self._topic_delete_asked,
                TopicDeleted: self._topic_deleted,
                TopicsFound: self._topics_found,
                Crashed: self._crashed,
                Drained: self._drained,
                BrokerComplained: self._complained,
            }
        )
        self._commands: dict[int, Command] = {}
        self._command_of: dict[Payload, Command] = {}
        self._unanswered_batches: list[Command] = []
        self._queues: dict[Place, Queue] = defaultdict(Queue)
        self._deaths: list[float] = []  # when the broker was surely dead, of each crash
        self._stored_at: dict[Payload, list[float]] = defaultdict(list)
        self._owed: dict[Payload, float] = {}  # to when it is deliverable at the latest
        self._open: dict[int, Command] = {}  # acknowledged half messages without a decision
        self._copies: dict[_CopyKey, Copies] = defaultdict(Copies)
        self._owed_copies: set[_CopyKey] = set()
        self._backs: dict[int, _CopyKey] = {}
        self._commits: dict[int, CommitSent] = {}
        self._furthest: dict[tuple[str, Place], int] = {}
        self._confirmed: dict[tuple[str, Place], list[tuple[float, int]]] = defaultdict(list)
        self._channels: dict[tuple[str, str], Channel] = {}
        self._asked_topics: dict[str, int] = {}
        self._topics: dict[str, int] = {}
        self._once_deleted: set[str] = set()
        self._deleted_unread: Counter[str] = Counter()  # messages of NSQ: nobody was told their offsets
        self._gone: set[str] = set()
        self._acknowledged: list[tuple[float, float]] = []  # when answered, when sent

    def owed(self) -> int:
        """How many messages have still to come, and transactions to be asked about."""
        channels = sum(len(channel.owed) for channel in self._channels.values())
        return len(self._owed) + len(self._open) + len(self._owed_copies) + channels

    def is_ended(self, command: int) -> bool:
        """Whether the broker was told what becomes of a transaction."""
        return bool(self._commands[command].decisions & {Decision.COMMIT, Decision.ROLLBACK})

    # -- sending ----------------------------------------------------------------------------------------------------

    def _sent(self, event: Sent) -> None:
        command = self._commands[event.command] = Command(event)
        for payload in command.payloads():
            self._command_of[payload] = command

    def _send_answered(self, event: SendAnswered) -> None:
        command = self._commands[event.command]
        command.outcome = event.outcome
        sent = command.event
        if event.outcome is Outcome.UNKNOWN:
            if sent.messages > 1:
                self._unanswered_batches.append(command)
            return
        if event.outcome is Outcome.ERROR:
            for payload in command.payloads():
                if payload in self._stored_at:
                    self._blame(Rule.REFUSED, event.at, str(payload))
            return
        self._acknowledged.append((event.at, sent.at))
        if sent.kind is Kind.HALF:
            if not self.is_ended(event.command):
                self._open[event.command] = command
            return
        self._topics.setdefault(sent.place.topic, 0)
        if sent.kind not in _DELAYED and sent.place.queue_id >= 0:
            command.queue_offset = event.queue_offset
        for index, payload in enumerate(command.payloads()):
            if payload not in self._stored_at:
                self._owed[payload] = max(event.at, sent.due)
            if sent.kind not in _DELAYED and sent.place.queue_id >= 0:
                message_id = event.message_ids[index] if index < len(event.message_ids) else "none"
                self._put(event.at, sent.place, event.queue_offset + index, Slot(payload, 0, message_id))

    def _put(self, at: float, place: Place, queue_offset: int, slot: Slot) -> bool:
        """Note what stands at a place; return whether that is new."""
        queue = self._queues[place]
        known = queue.slots.get(queue_offset)
        if known is None:
            queue.slots[queue_offset] = slot
            queue.end = max(queue.end, queue_offset + 1)
            if queue_offset in queue.passed:
                self._blame(Rule.PASSED_OVER, at, f"{place} queue_offset={queue_offset} {slot}")
            return True
        if known != slot:
            self._blame(Rule.TWO_PAYLOADS, at, f"{place} queue_offset={queue_offset} {known} and {slot}")
        return False

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, event: Read) -> None:
        payload = read_body(event.body)
        where = f"{event.place} queue_offset={event.queue_offset} id={event.message_id}"
        if payload is None or not self._is_key_right(payload, event.keys):
            self._blame(Rule.CORRUPT, event.at, f"{where} keys={event.keys[:40]!r} body={event.body[:60]!r}")
            return
        queue = self._queues[event.place]
        self._put(event.at, event.place, event.queue_offset, Slot(payload, event.reconsume_times, event.message_id))
        queue.read_now.add(event.queue_offset)
        if event.queue_offset < queue.gone:
            self._blame(Rule.CAME_BACK, event.at, f"message of a deleted topic {where} {payload}")
        if event.queue_offset in queue.read:
            return
        queue.read.add(event.queue_offset)
        command = self._command_of.get(payload)
        if event.place.topic.startswith((_RETRY, _DEAD)):
            self._read_copy(event, payload, where)
        elif command is None or payload.topic != event.place.topic:
            self._blame(Rule.PHANTOM, event.at, f"{where} {payload}")
        else:
            self._read_first(event, payload, command, where)

    def _is_key_right(self, payload: Payload, keys: str) -> bool:
        command = self._command_of.get(payload)
        if command is not None and command.event.place.queue_id < 0:
            return not keys  # NSQ's messages have none
        return key_of(payload.producer, payload.sequence) in keys.split(" ")

    def _read_first(self, event: Read, payload: Payload, command: Command, where: str) -> None:
        """A place of a queue is read for the first time."""
        sent = command.event
        text = f"{where} {payload} kind={sent.kind}"
        self._owed.pop(payload, None)
        told = command.queue_offset
        is_there = told < 0 or event.queue_offset == told + payload.sequence - sent.first_sequence
        before = self._stored_at[payload]
        is_its_queue = sent.place.queue_id in (-1, event.place.queue_id)
        if not is_its_queue or not is_there:
            self._blame(Rule.MISPLACED, event.at, f"{text} sent_to={sent.place} told={told}")
        elif before and not (sent.kind in _DELAYED and self._may_repeat(before[-1], event.stored_at)):
            crash = self._crash_behind_copy(before[-1])
            crash_s = "none" if crash is None else f"{crash - before[-1]:.1f}"
            acknowledged = self._acknowledged_between(before[-1], crash)
            self._blame(
                Rule.DUPLICATE,
                event.at,
                f"{text} copies={len(before) + 1} crash_after_s={crash_s} acknowledged_meanwhile={acknowledged}",
            )
        before.append(event.stored_at)
        self._check_command(min(event.at, event.stored_at), command, text)
        for (topic, _), channel in self._channels.items():
            if topic == payload.topic and event.stored_at > channel.made_at and payload not in channel.seen:
                channel.owed.add(payload)

    def _check_command(self, at: float, command: Command, text: str) -> None:
        """Blame what must not be delivered at all, or not yet."""
        sent = command.event
        if command.outcome is Outcome.ERROR:
            self._blame(Rule.REFUSED, at, text)
        if sent.due - at > TOLERANCE_S:
            self._blame(Rule.EARLY, at, f"{text} early_s={sent.due - at:.3f}")
        if sent.kind is Kind.HALF and Decision.COMMIT not in command.decisions:
            self._blame(Rule.UNCOMMITTED, at, f"{text} decisions={sorted(command.decisions)}")

    def _crash_behind_copy(self, stored_at: float) -> float | None:
        """Return when the first crash began that was not over when a copy was stored."""
        number = bisect_left(self._deaths, stored_at)
        return self._crashes[number] if number < len(self._deaths) else None

    def _may_repeat(self, first: float, second: float) -> bool:
        """Whether a crash between two copies of a delayed message explains the second."""
        crash = self._crash_behind_copy(first)
        if crash is None or crash > second + TOLERANCE_S:
            return False
        return lived(self._held, first, crash) <= CURSORS_S

    def _acknowledged_between(self, first: float, crash: float | None) -> int:
        """Return how many sends made after ``first`` were acknowledged before the crash; none: the disk may be why."""
        end = len(self._acknowledged) if crash is None else bisect_left(self._acknowledged, (crash, 0.0))
        start = bisect_left(self._acknowledged, (first, 0.0))
        return sum(sent >= first for _, sent in self._acknowledged[start:end])

    def _read_copy(self, event: Read, payload: Payload, where: str) -> None:
        key = (event.place.topic, payload, event.reconsume_times)
        copies = self._copies.get(key)
        if copies is None:
            self._blame(Rule.PHANTOM, event.at, f"{where} {payload} reconsume_times={event.reconsume_times}")
            return
        early = copies.due - min(event.at, event.stored_at)
        if early > TOLERANCE_S:
            self._blame(Rule.EARLY, event.at, f"{where} {payload} early_s={early:.3f}")
        # Each of those that were sent back may come once more for every crash shortly behind one of them.
        lives = 1
        if not event.place.topic.startswith(_DEAD):
            crashes = {self._crash_behind_copy(at) for at in copies.stored_at if self._may_repeat(at, event.stored_at)}
            lives += len(crashes)
        if len(copies.stored_at) >= copies.asked * lives:
            self._blame(Rule.DUPLICATE, event.at, f"{where} {payload} copies={len(copies.stored_at) + 1}")
        copies.stored_at.append(event.stored_at)
        if not copies.is_owed:
            self._owed_copies.discard(key)

    def _pulled(self, event: Pulled) -> None:
        queue = self._queues[event.place]
        for queue_offset in set(range(event.first, event.following)).difference(event.found):
            if slot := queue.slots.get(queue_offset):
                text = f"{event.place} queue_offset={queue_offset} group={event.group} {slot}"
                self._blame(Rule.PASSED_OVER, event.at, text)
            else:
                queue.passed.add(queue_offset)  # what a kill cut off, if nothing is found there

    def _scanned(self, event: Scanned) -> None:
        queue = self._queues[event.place]
        for queue_offset in range(max(event.first, queue.floor), max(event.end, queue.end)):
            slot = queue.slots.get(queue_offset)
            if queue_offset in queue.read_now or queue_offset in queue.holes:
                continue
            if slot is not None:
                text = f"{event.place} queue_offset={queue_offset} end={event.end} {slot}"
                self._blame(Rule.LOST, event.at, text)
            elif queue_offset < event.end:
                self._check_hole(event, queue, queue_offset)
        for queue_offset in range(queue.ordered, event.end):
            if slot := queue.slots.get(queue_offset):
                self._check_order(event, queue, queue_offset, slot)
        queue.ordered = max(queue.ordered, event.end)

    def _check_hole(self, event: Scanned, queue: Queue, first: int) -> None:
        """Places without a message: what a kill left of a batch is cut off, and its offsets are never used again."""
        end = first
        while end < event.end and end not in queue.read_now and end not in queue.slots:
            end += 1
        queue.holes.update(range(first, end))
        topic = event.place.topic
        if end - first <= self._deleted_unread[topic]:
            self._deleted_unread[topic] -= end - first
            return
        for command in self._unanswered_batches:
            sent = command.event
            is_here = sent.place.topic == topic and sent.place.queue_id in (-1, event.place.queue_id)
            is_absent = not any(self._stored_at.get(payload) for payload in command.payloads())
            if is_here and is_absent and end - first < sent.messages:
                self._unanswered_batches.remove(command)  # it explains one
                return
        self._blame(Rule.HOLE, event.at, f"{event.place} queue_offsets={first}..{end - 1} end={event.end}")

    def _check_order(self, event: Scanned, queue: Queue, queue_offset: int, slot: Slot) -> None:
        command = self._command_of.get(slot.payload)
        if command is None or command.event.kind not in (Kind.PLAIN, Kind.BATCH) or slot.reconsume_times:
            return
        sent, payload = command.event, slot.payload
        last = queue.last_sequence.get(payload.producer, -1)
        if payload.sequence <= last:
            self._blame(
                Rule.ORDER, event.at, f"{event.place} queue_offset={queue_offset} {payload} behind sequence={last}"
            )
        queue.last_sequence[payload.producer] = max(last, payload.sequence)
        first = queue_offset - (payload.sequence - sent.first_sequence)
        whole = [queue.slots.get(first + index) for index in (0, sent.messages - 1)]
        sequences = [other.payload.sequence if other else -1 for other in whole]
        is_edge = payload.sequence in (sent.first_sequence, sent.first_sequence + sent.messages - 1)
        if is_edge and sequences != [sent.first_sequence, sent.first_sequence + sent.messages - 1]:
            self._blame(
                Rule.TORN_BATCH, event.at, f"{event.place} queue_offset={queue_offset} {payload} of={sent.messages}"
            )

    # -- transactions -----------------------------------------------------------------------------------------------

    def _ended(self, event: Ended) -> None:
        command = self._commands[event.command]
        command.decisions.add(event.decision)
        if event.decision is Decision.UNKNOWN:
            return  # it decides nothing, nor does its answer say that a decision before it has come
        command.end, command.end_answered_at = event.number, -1.0
        self._open.pop(event.command, None)
        (payload,) = command.payloads()
        is_there = command.outcome is Outcome.OK or command.was_asked_about
        if event.decision is Decision.COMMIT and is_there and payload not in self._stored_at:
            self._owed.setdefault(payload, event.at)

    def _end_answered(self, event: EndAnswered) -> None:
        command = self._commands[event.command]
        if event.number == command.end:  # a late answer to an earlier one says nothing of what came behind it
            command.end_answered_at = event.at

    def _check_asked(self, event: CheckAsked) -> None:
        payload = read_body(event.body)
        command = None if payload is None else self._command_of.get(payload)
        if payload is None or command is None or command.event.kind is not Kind.HALF:
            self._blame(Rule.PHANTOM, event.at, f"asked about {event.place} body={event.body[:60]!r}")
            return
        if event.place != command.event.place:
            self._blame(Rule.MISPLACED, event.at, f"asked about {event.place} {payload} sent_to={command.event.place}")
        if command.outcome is Outcome.ERROR:
            self._blame(Rule.REFUSED, event.at, f"asked about {payload}")
        command.was_asked_about = True
        if command.end_answered_at < 0 or not self.is_ended(command.event.command):
            return
        crash = self._first_crash_after(command.end_answered_at)
        if crash is None or lived(self._held, command.end_answered_at, crash) > JOURNAL_S:
            self._blame(Rule.ASKED_AGAIN, event.at, f"{payload} decisions={sorted(command.decisions)}")

    # -- committed offsets ------------------------------------------------------------------------------------------

    def _commit_sent(self, event: CommitSent) -> None:
        self._commits[event.number] = event
        key = (event.group, event.place)
        self._furthest[key] = max(self._furthest.get(key, 0), event.queue_offset)

    def _commit_answered(self, event: CommitAnswered) -> None:
        commit = self._commits.pop(event.number)
        self._confirmed[commit.group, commit.place].append((event.at, commit.queue_offset))

    def _committed_found(self, event: CommittedFound) -> None:
        key = (event.group, event.place)
        furthest = self._furthest.get(key, 0)
        text = f"group={event.group} {event.place} found={event.queue_offset}"
        if event.queue_offset > furthest:
            self._blame(Rule.AHEAD, event.at, f"{text} furthest={furthest}")
        least = 0
        for at, queue_offset in self._confirmed[key]:
            crash = self._first_crash_after(at)
            if crash is None or lived(self._held, at, crash) > OFFSETS_S:
                least = max(least, queue_offset)
        if max(event.queue_offset, 0) < least:
            self._blame(Rule.BEHIND, event.at, f"{text} least={least}")
        self._confirmed[key] = [(float("-inf"), max(least, event.queue_offset))]  # it came from the disk

    # -- messages sent back -----------------------------------------------------------------------------------------

    def _sent_back(self, event: SentBack) -> None:
        payload = read_body(event.body)
        assert payload is not None
        key = ((_DEAD if event.dead else _RETRY) + event.group, payload, event.reconsume_times)
        self._backs[event.number] = key
        copies = self._copies[key]
        copies.due = min(copies.due, event.due)
        copies.last_due = max(copies.last_due, event.due)
        copies.asked += 1

    def _sent_back_answered(self, event: SentBackAnswered) -> None:
        key = self._backs.pop(event.number)
        copies = self._copies[key]
        if event.outcome is Outcome.OK:
            copies.acknowledged += 1
            if copies.is_owed:
                self._owed_copies.add(key)
        elif event.outcome is Outcome.ERROR:
            copies.asked -= 1
            if len(copies.stored_at) > copies.asked:
                self._blame(Rule.REFUSED, event.at, f"sent back {key}")

    # -- channels of NSQ --------------------------------------------------------------------------------------------

    def _channel_made(self, event: ChannelMade) -> None:
        self._channels.setdefault((event.topic, event.channel), Channel(event.at))

    def _channel_read(self, event: ChannelRead) -> None:
        payload = read_body(event.body)
        text = f"channel={event.topic}/{event.channel} {payload}"
        if payload is None:
            self._blame(Rule.CORRUPT, event.at, f"{text} body={event.body[:60]!r}")
            return
        command = self._command_of.get(payload)
        if command is None or payload.topic != event.topic:
            self._blame(Rule.PHANTOM, event.at, text)
            return
        self._check_command(event.at, command, text)
        channel = self._channels[event.topic, event.channel]
        channel.seen.add(payload)
        channel.owed.discard(payload)

    # -- keys and topics --------------------------------------------------------------------------------------------

    def _key_found(self, event: KeyFound) -> None:
        payload = Payload(event.topic, event.producer, event.sequence)
        found = [read_body(body) for body in event.bodies]
        is_there = self._stored_at.get(payload) and event.topic not in self._once_deleted
        if payload not in found and is_there:
            self._blame(Rule.NOT_INDEXED, event.at, f"{payload} found={len(found)}")
        for other in found:
            if other != payload:
                self._blame(Rule.PHANTOM, event.at, f"query for the key of {payload} found {other}")

    def _topic_asked(self, event: TopicAsked) -> None:
        self._asked_topics[event.topic] = event.queues
        self._gone.discard(event.topic)

    def _topic_granted(self, event: TopicGranted) -> None:
        self._topics[event.topic] = max(self._topics.get(event.topic, 0), self._asked_topics[event.topic])

    def _topic_delete_asked(self, event: TopicDeleteAsked) -> None:
        """From here on nothing of it is owed. Its offsets are never used again, whatever becomes of it."""
        self._topics.pop(event.topic, None)
        self._once_deleted.add(event.topic)
        for place, queue in self._queues.items():
            if place.topic == event.topic:
                queue.floor = queue.end
        # What was never answered may be there too.
        unread = sum(
            command.event.place == (event.topic, -1) and payload not in self._stored_at
            for payload, command in self._command_of.items()
        )
        self._deleted_unread[event.topic] = unread
        self._owed = {payload: due for payload, due in self._owed.items() if payload.topic != event.topic}

    def _topic_deleted(self, event: TopicDeleted) -> None:
        self._gone.add(event.topic)
        for place, queue in self._queues.items():
            if place.topic == event.topic:
                queue.gone = queue.floor

    def _topics_found(self, event: TopicsFound) -> None:
        found = dict(event.topics)
        for topic in self._gone.intersection(found):
            self._blame(Rule.CAME_BACK, event.at, f"topic={topic}")
        for topic, queues in self._topics.items():
            if found.get(topic, -1) < queues:
                self._blame(Rule.VANISHED, event.at, f"topic={topic} queues={queues} found={found.get(topic)}")

    # -- the end ----------------------------------------------------------------------------------------------------

    def _crashed(self, event: Crashed) -> None:
        self._crashes.append(event.at)
        self._deaths.append(event.at + event.dead_after_s)
        for queue in self._queues.values():
            queue.read_now.clear()

    def _drained(self, event: Drained) -> None:
        for payload, due in self._owed.items():
            if due < event.at:
                sent = self._command_of[payload].event
                self._blame(
                    Rule.LOST, event.at, f"{payload} kind={sent.kind} {sent.place} overdue_s={event.at - due:.3f}"
                )
        for key in self._owed_copies:
            copies = self._copies[key]
            if copies.last_due < event.at:
                text = f"{key} acknowledged={copies.acknowledged} seen={len(copies.stored_at)}"
                self._blame(Rule.LOST, event.at, text)
        for command in self._open.values():
            self._blame(Rule.NOT_ASKED, event.at, f"{command.payloads()[0]} decisions={sorted(command.decisions)}")
        for name, channel in self._channels.items():
            for payload in channel.owed:
                self._blame(Rule.LOST, event.at, f"channel={name} {payload}")
            channel.owed.clear()
        self._owed.clear()
        self._owed_copies.clear()
        self._open.clear()

    def _complained(self, event: BrokerComplained) -> None:
        self._blame(Rule.COMPLAINT, event.at, event.line)
