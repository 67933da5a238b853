r"""Transactions: a message that nobody sees until its producer says whether it counts.

    prepare --> half message --commit----> op record + the message in its topic
                  |   ^     \--rollback--> op record
                  |   |
                  +---+ check: op record + a newer copy of the half message; its producer is asked
                  |
                  +--> op record + a copy in TRANS_CHECK_MAX_TIME_TOPIC: asked too often, or nobody there for days;
                       it is remembered (``given_up``), and a late commit delivers it

Half messages stand in one queue of an internal topic, op records in one of another: an op record says that the half
message at a queue offset is done with. What an arrow makes is one command of the log, so a crash leaves all of it or
nothing: a commit neither loses the message nor delivers it without its op record.

Which half messages have no op record (``open_halves``) is not written down: a start (``transaction_opening``) reads
both queues from the offsets below which everything is decided (``decided_floors``).
Ref: remoting.md 3.9, 4.6; docs/formats/transactions.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.broker.copies import RecordCopy
from headrace.broker.gathering import Gathering, Joint
from headrace.broker.message import Message, Placed, need_system_topic, put
from headrace.broker.withheld.decided_floors import DecidedFloors
from headrace.broker.withheld.given_up import GIVE_UP, GivenUp
from headrace.broker.withheld.half_message import (
    CHECK_TIMES,
    FIRST_OFFSET,
    IMMUNITY_SECONDS,
    HalfLimits,
    immunity_ms,
    make_half,
    number_or,
    real_place,
    require_undelayed,
)
from headrace.broker.withheld.open_halves import OpenHalf, OpenHalves
from headrace.broker.withheld.renewal import Renewal
from headrace.broker.withheld.transaction_end import (
    Decision,
    Ending,
    RepeatedEnding,
    TransactionCounters,
    add_op_record,
)
from headrace.broker.withheld.transaction_opening import TransactionOpening
from headrace.errors import MessageNotFoundError, QuotaExceededError, RequestError, StoreError, UnreadableError
from headrace.format import record
from headrace.format.names import CHECK_MAX_TOPIC, HALF_TOPIC, MAX_QUEUES, OP_TOPIC
from headrace.log_pace import LogPace, Trouble

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.consumers.offsets import OffsetTable
    from headrace.broker.topic import Topic
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 200
"""Transactions looked at in one tick."""

TICK_MS: Final = 10
"""Time of one tick, after which the others are looked at with the next."""

MAX_BYTES_AT_ONCE: Final = 4 << 20
"""Bytes of half messages after which a tick looks at no more: each is read, and appended anew."""

MAX_BEHIND: Final = 100_000
"""Decided half messages behind an open one, before that one is appended anew: they are remembered and read again."""

_RETRY_MS: Final = 1_000
_MIN_SET_BACK_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class TransactionCheck:
    """One question to a producer: what became of this transaction?"""

    group: str
    topic: str
    """What the message is meant for."""
    half_offset: int
    """Queue offset of the newest copy of the half message."""
    physical_offset: int
    unique_key: str
    message_id: str
    """Offset id of that copy."""
    record: bytes
    """That copy as a record, with the topic and queue it is meant for."""


class Transactions:
    """All open transactions of one broker. Add it to ``Broker.tickers``, before the table of offsets."""

    def __init__(self, broker: Broker, offsets: OffsetTable) -> None:
        """Find out which transactions are open.

        Args:
            offsets: The table of committed offsets, loaded.
        """
        self.counters = TransactionCounters()
        self.has_producer: Callable[[str, str], bool] = lambda group, topic: True
        """Whether a producer of a group is there that may be asked about a message to a topic."""
        self.on_check: Callable[[TransactionCheck], None] = lambda check: None
        """Asks one of them."""
        self._broker = broker
        half_topic = need_system_topic(broker, HALF_TOPIC)
        self.half_place: tuple[Topic, QueueBase] = half_topic, half_topic.queues[0]
        """Where half messages stand."""
        self._half = half_topic.queues[0]
        self.half_limits: Final = HalfLimits.of(broker.store.log.segment_bytes)
        op_topic = need_system_topic(broker, OP_TOPIC)
        self._op: QueueBase = op_topic.queues[0]
        self.op_place: tuple[Topic, QueueBase] = op_topic, self._op
        """Where op records stand."""
        self._aside_topic = need_system_topic(broker, CHECK_MAX_TOPIC)
        self.given_up = GivenUp(broker.store)
        self.counters.torn += self.given_up.torn
        self._open = OpenHalves()
        self._ending: dict[int, Ending] = {}  # those of them that are being decided, by queue offset
        self._floors = DecidedFloors(broker.store, offsets, self._half, self._op)
        self.decided_offset = 0
        """What must be durable for what producers decided so far to be; what a start finds is."""
        self._trouble = Trouble(logger)
        self._given_up_pace = LogPace(broker.clock)  # by group
        self._lost_pace = LogPace(broker.clock)  # by topic
        self._latest_ms = broker.clock.now_ms()
        opening = TransactionOpening(broker.store, self._half, self._op, self._open, self.given_up, self.counters)
        opening.load(self._floors, self._take_up)

    def _take_up(self, half: RecordCopy, first_offset: int) -> None:
        """Take a half message of the log for an open one."""
        settings = self._broker.settings
        checks = number_or(half.property(CHECK_TIMES.encode()), 0)
        immune_ms = immunity_ms(half.property(IMMUNITY_SECONDS.encode()), settings)
        wait_ms = settings.transaction_check_interval_ms if checks else immune_ms
        since_ms = min(half.store_ms, self._latest_ms)  # above it where the clock was set back
        entry = OpenHalf(half.physical_offset, first_offset, checks, since_ms, since_ms + wait_ms)
        self._open.add(half.queue_offset, entry)

    # -- the producer's side ----------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Transactions that are open."""
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more may be open (``broker.max_open_transactions``)."""
        return max(0, self._broker.settings.max_open_transactions - len(self._open))

    def note_prepared(self, places: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Take half messages that were appended at (physical offset, queue offset) for open transactions."""
        check_ms = now_ms + self._broker.settings.transaction_timeout_ms
        for physical_offset, queue_offset in places:
            self._open.add(queue_offset, OpenHalf(physical_offset, queue_offset, 0, now_ms, check_ms))

    def prepare(self, message: Message, now_ms: int) -> tuple[Placed, int]:
        """Append a half message; ``message`` says where it is to go, its property PGROUP whose it is.

        Returns:
            Where the half message stands, and the physical offset that must be durable before its producer is answered.

        Raises:
            InvalidDelayError: it is delayed, too, or by what is no number: it would be delivered with its commit,
                before its time.
            QuotaExceededError: ``broker.max_open_transactions`` are open.
            MessageTooLargeError: its copies would be above a limit.
            RequestError, StoreError: it was not appended.
        """
        half = make_half(message)
        try:
            require_undelayed(message, now_ms)
            self._require_room()
            self.half_limits.require_room(half)
        except RequestError:
            self.counters.refused += 1
            raise
        placed, wait = put(self._broker, half)
        check_ms = now_ms + immunity_ms(message.properties.get(IMMUNITY_SECONDS), self._broker.settings)
        entry = OpenHalf(placed.physical_offset, placed.queue_offset, 0, now_ms, check_ms)
        self._open.add(placed.queue_offset, entry)
        return placed, wait

    def _require_room(self) -> None:
        if not self.room:
            most = self._broker.settings.max_open_transactions
            raise QuotaExceededError(
                f"the broker has its limit of {most} open transactions (broker.max_open_transactions)"
            )

    def ending(
        self, gathering: Gathering, group: str, half_offset: int, physical_offset: int, decision: Decision
    ) -> Ending | RepeatedEnding | None:
        """Add what decides a transaction to a gathering; its ``finish`` is to be called when that was published.

        Args:
            half_offset: Queue offset of the half message, or of any copy of it that was asked about.
            physical_offset: That of the same record.

        Returns:
            None where nothing is to be written: it was decided before (see ``decided_offset``), or the producer does
            not know.

        Raises:
            MessageNotFoundError: there is no such half message of that group.
        """
        half = self._find_half(group, half_offset, physical_offset)
        first = number_or(half.property(FIRST_OFFSET.encode()), half_offset)
        current = self._open.newest_of(first, half_offset)
        entry = self._open.get(current)
        is_open = entry is not None and entry.first_offset == first
        if not is_open:
            if first not in self.given_up:
                self.counters.repeated += 1
                return None
            current = first
        if current in self._ending:
            return RepeatedEnding(self.counters, self._ending[current])
        if decision == Decision.UNKNOWN:
            self.counters.left_open += 1
            return None
        ending = Ending(self, current, first, is_open=is_open)
        if decision == Decision.COMMIT:
            ending.commit(half, self._place_of(half))
        self._ending[current] = ending
        gathering.add(ending)
        return ending

    def _find_half(self, group: str, half_offset: int, physical_offset: int) -> RecordCopy:
        raw = self._broker.store.log.read(physical_offset)
        reason = "there is no record"
        if raw is not None:
            half = RecordCopy(raw)
            if half.topic != HALF_TOPIC:
                reason = "it is no half message"
            elif half.queue_offset != half_offset:
                reason = f"its queue offset is {half.queue_offset}, not {half_offset}"
            elif half.property(b"PGROUP") != group:
                reason = f"its producer group is {half.property(b'PGROUP')!r}, not {group!r}"
            elif self._position_of(half_offset) != physical_offset:
                # A record within a body says of itself what its author likes.
                reason = "the queue of half messages does not have it"
            else:
                return half
        self.counters.refused += 1
        raise MessageNotFoundError(physical_offset, reason)

    def _position_of(self, half_offset: int) -> int:
        """Return the physical offset of a half message, -1 where the queue of half messages has none."""
        entry = self._open.get(half_offset)
        return entry.physical_offset if entry is not None else self._half.position_of(half_offset)

    def _place_of(self, half: RecordCopy) -> tuple[Topic, QueueBase] | None:
        """Return where a half message belongs, None where that is gone."""
        queue_id = number_or(half.property(b"REAL_QID"), MAX_QUEUES)
        topic = self._broker.topics.get(half.property(b"REAL_TOPIC") or "")
        if topic is None or queue_id >= MAX_QUEUES:
            return None
        return topic, topic.queue_or_other(queue_id)

    def _is_waited_for(self, half: RecordCopy) -> bool:
        place = self._place_of(half)
        return place is not None and place[1].awaits_flush

    def note_dropped(self, ending: Ending) -> None:
        """Note that nothing decides a transaction any more."""
        self._ending.pop(ending.half_offset, None)

    def note_ended(self, ending: Ending) -> int:
        """Note that what decides a transaction was written, or not; return the physical offset to wait for."""
        self.note_dropped(ending)
        wait_offset = ending.require_written()
        self.decided_offset = max(self.decided_offset, wait_offset)
        if ending.is_open:
            self._note_decided(ending.half_offset, ending.placed()[1])
        if ending.was_given_up:
            self.given_up.discard(ending.first_offset)
        if ending.is_lost:
            self.counters.dropped += 1
            if self._lost_pace.is_due(ending.topic):
                logger.warning("transaction committed to a topic that is gone topic=%s", ending.topic)
        elif ending.is_commit:
            self.counters.committed += 1
            if not ending.is_open:
                logger.info(
                    "transaction committed after it was given up topic=%s half_offset=%d",
                    ending.topic,
                    ending.first_offset,
                )
        else:
            self.counters.rolled_back += 1
        return wait_offset

    def _decide(self, half_offset: int, joint: Joint) -> None:
        """Write a command that begins with the op record of a half message, which is done with then."""
        joint.publish(self._broker)
        self._trouble.end()
        self._note_decided(half_offset, joint.batch.placed(0)[1])

    def _note_decided(self, half_offset: int, op_offset: int) -> None:
        """Note that a half message is done with, which the op record at a queue offset says."""
        self._open.remove(half_offset)
        self._floors.add_op(op_offset, half_offset)

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Ask about transactions that are open for long, and note how far all is decided."""
        self._follow_clock(now_ms)
        if self._broker.store.failure is None:
            try:
                self._check_due(now_ms)
                self._lift_floor()
            except StoreError as error:
                self.counters.errors += 1
                self._trouble.note("transactions not asked about, the store refuses error=%s", error)
        self._floors.note(self._open)

    def _follow_clock(self, now_ms: int) -> None:
        back_ms = self._latest_ms - now_ms
        if back_ms <= _MIN_SET_BACK_MS:
            self._latest_ms = max(self._latest_ms, now_ms)
            return
        self._latest_ms = now_ms
        settings = self._broker.settings
        longest_ms = max(settings.transaction_timeout_ms, settings.transaction_check_interval_ms)
        self._open.set_back(now_ms, back_ms, longest_ms)

    def _check_due(self, now_ms: int) -> None:
        """Look at what is due, as far as a tick goes; newer copies are appended together, and asked about then."""
        clock = self._broker.clock
        until_ms = clock.monotonic_ms() + TICK_MS
        looked_at = read_bytes = 0
        while looked_at < MAX_AT_ONCE and read_bytes < MAX_BYTES_AT_ONCE and not self._broker.overloaded:
            gathering = Gathering(self._broker)
            renewals: list[Renewal] = []
            while not gathering.is_full and looked_at < MAX_AT_ONCE and (due := self._open.pop_due(now_ms)):
                looked_at += 1
                half_offset, entry = due
                if entry is None:
                    continue
                self._open.look_again(half_offset, entry, now_ms + _RETRY_MS)
                try:
                    read_bytes += self._check(half_offset, entry, now_ms, gathering, renewals)
                except RequestError as error:
                    self._discard(half_offset, str(error))
                except UnreadableError:
                    continue  # named and counted by the store; this one is looked at again, the others now
            failure = self._write_renewals(gathering, renewals)
            for renewal in renewals:  # a full disk may have room for some: those count as asked
                self._ask(renewal)
            if failure is not None:
                raise failure
            if not gathering.is_full or clock.monotonic_ms() >= until_ms:
                return

    def _check(
        self, half_offset: int, entry: OpenHalf, now_ms: int, gathering: Gathering, renewals: list[Renewal]
    ) -> int:
        """Have a transaction asked about, or give it up; return the bytes of its record."""
        settings = self._broker.settings
        raw = self._broker.store.log.read(entry.physical_offset)
        if raw is None:
            self._discard(half_offset, "its record is damaged")
            return 0
        if entry.checks >= settings.transaction_check_max:
            self._give_up(half_offset, entry, raw)
            return len(raw)
        half = RecordCopy(raw)
        check_ms = now_ms + settings.transaction_check_interval_ms
        if self.has_producer(half.property(b"PGROUP") or "", half.property(b"REAL_TOPIC") or ""):
            # Only a question that can be asked counts: on a full disk there is no newer copy to ask with.
            asked = OpenHalf(-1, entry.first_offset, entry.checks + 1, now_ms, check_ms)
            renewals.append(self._renewal(half_offset, half, asked))
            gathering.add(renewals[-1])
        elif now_ms - entry.since_ms >= settings.transaction_keep_ms:
            self._give_up(half_offset, entry, raw)
        else:
            self.counters.unasked += 1
            self._open.look_again(half_offset, entry, check_ms)
        return len(raw)

    def _lift_floor(self) -> None:
        """Append the oldest open half messages anew where too much that is decided stands behind them.

        Not before there are as many decided as open ones, so that each is appended again at most once for each.
        """
        full_offset = self._broker.store.log.end_offset + MAX_BYTES_AT_ONCE
        clock = self._broker.clock
        until_ms = clock.monotonic_ms() + TICK_MS
        for _ in range(MAX_AT_ONCE):
            if self._broker.store.log.end_offset >= full_offset or self._broker.overloaded:
                return
            if clock.monotonic_ms() >= until_ms:
                return
            self._floors.raise_over(self._open)
            half_offset = self._floors.half
            decided = self._half.next_offset - half_offset - len(self._open)
            entry = self._open.get(half_offset)
            if entry is None or decided < max(MAX_BEHIND, len(self._open)):
                return
            try:
                raw = self._broker.store.log.read(entry.physical_offset)
            except UnreadableError:
                return  # named and counted by the store; a later tick tries again
            if raw is None:
                self._discard(half_offset, "its record is damaged")
                continue
            gathering = Gathering(self._broker)
            renewal = self._renewal(half_offset, RecordCopy(raw), entry)
            gathering.add(renewal)
            failure = self._write_renewals(gathering, [renewal])
            if failure is not None:
                raise failure

    def _renewal(self, half_offset: int, half: RecordCopy, entry: OpenHalf) -> Renewal:
        """Return what appends a half message anew; ``entry`` is to be that of its copy."""
        return Renewal(self, half_offset, half, entry, is_waited_for=self._is_waited_for(half))

    def _write_renewals(self, gathering: Gathering, renewals: list[Renewal]) -> StoreError | None:
        """Append half messages anew; those that cannot be are left out of ``renewals``, and dropped if they never can.

        Returns:
            Why the store did not take all of them; what was not written is as before.
        """
        gathering.publish()
        failure: StoreError | None = None
        refused: list[tuple[Renewal, RequestError]] = []
        for renewal in list(renewals):
            try:
                renewal.require_written()
            except StoreError as error:
                failure = error
                renewals.remove(renewal)
            except RequestError as error:
                refused.append((renewal, error))
                renewals.remove(renewal)
            else:
                self._note_renewed(renewal)
        if failure is not None:
            return failure
        if renewals:
            self._trouble.end()
        for renewal, why in refused:
            # A copy has a few bytes more than its original: it may break a limit that the original kept.
            self._discard(renewal.half_offset, str(why))
        return None

    def _note_renewed(self, renewal: Renewal) -> None:
        self._note_decided(renewal.half_offset, renewal.placed(0)[1])
        physical_offset, queue_offset, _ = renewal.placed(1)
        self._open.add(queue_offset, replace(renewal.entry, physical_offset=physical_offset))

    def _ask(self, renewal: Renewal) -> None:
        self.counters.checks += 1
        physical_offset, queue_offset, _ = renewal.placed(1)
        raw = self._broker.store.log.read(physical_offset)
        if raw is None:
            return  # damaged as soon as it was written: the next check finds out
        copy = RecordCopy(raw)
        topic, queue_id = real_place(copy)
        self.on_check(
            TransactionCheck(
                group=copy.property(b"PGROUP") or "",
                topic=topic,
                half_offset=queue_offset,
                physical_offset=physical_offset,
                unique_key=copy.property(b"UNIQ_KEY") or "",
                message_id=copy.message_id,
                record=record.with_place(raw, topic, queue_id),
            )
        )

    def _give_up(self, half_offset: int, entry: OpenHalf, raw: bytes) -> None:
        """Put a message aside whose producer never said what became of it."""
        half, joint = RecordCopy(raw), Joint()
        # The op record begins the command, so that the message carries nothing of it.
        add_op_record(joint, self.op_place, half_offset, command_entries=3)
        # Its place among the half messages means nothing to who reads it there.
        aside = joint.destination(self._aside_topic, self._aside_topic.queues[0])
        half.add_to(joint.batch, aside, changes={FIRST_OFFSET.encode(): None}, command_entries=0)
        note = GivenUp.encode(GIVE_UP, entry.first_offset)
        joint.batch.append(note, joint.destination(None, self.given_up.queue), command_entries=0)
        joint.is_waited_for = self._is_waited_for(half)
        self._decide(half_offset, joint)
        self.given_up.add(entry.first_offset, joint.batch.placed(2)[1])
        self.counters.discarded += 1
        group = half.property(b"PGROUP") or ""
        if self._given_up_pace.is_due(group):  # a million may be: of a producer that is gone, all within a minute
            logger.warning(
                "transaction given up group=%s topic=%s checks=%s total=%d",
                group,
                half.property(b"REAL_TOPIC"),
                half.property(CHECK_TIMES.encode()) or 0,
                self.counters.discarded,
            )

    def _discard(self, half_offset: int, reason: str) -> None:
        joint = Joint()
        add_op_record(joint, self.op_place, half_offset, command_entries=1)
        self._decide(half_offset, joint)
        self.counters.dropped += 1
        logger.error("half message dropped queue_offset=%d reason=%s", half_offset, reason)

    def close(self) -> None:
        """Note how far all is decided. Blocks; the table of offsets is closed after it."""
        try:
            self._broker.store.flush()
        except StoreError as error:
            logger.error("last transactions not durable, they are asked about again error=%s", error)
            return
        self._floors.note(self._open)
        self._floors.note(self._open)  # what the first one found, which waited for nothing more
