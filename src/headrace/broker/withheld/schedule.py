"""The numbered delays: messages wait in a topic of their own, one queue for each level, until they are due.

Within a level all wait equally long, so its queue is in the order of delivery and one cursor per level is the whole
state. A queue's entries hold the time of delivery in place of the tag hash. What is due is appended again, to the topic
and queue named in its properties; only then the cursor moves on.

Crashes. ``config/delayOffset.json`` has the cursors as they were when everything below them was appended again *and*
durable, written every ``broker.delay_offsets_interval_ms`` and at the end. A start begins there: what was delivered
after that is delivered again, nothing is left out.

Ref: remoting.md 3.11; docs/formats/delayed-messages.md.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.batch import RecordBatch
from headrace.broker.config_file import FileWriter, lacks_table
from headrace.broker.message import Message, Placed, need_system_topic, put
from headrace.broker.pull import PullStatus, read_queue
from headrace.broker.withheld.redelivery import redeliver
from headrace.errors import InvalidDelayError, StoreError, UnreadableError
from headrace.format import fastjson
from headrace.format.names import SCHEDULE_TOPIC
from headrace.format.queue_entry import FILLER_BYTES
from headrace.log_pace import LogPace, Trouble
from headrace.store.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic

logger = logging.getLogger(__name__)

FILE_NAME: Final = "delayOffset.json"

DELAY_LEVEL: Final = "DELAY"
"""The property by which a message asks for a level."""

MAX_AT_ONCE: Final = 4_000
"""Messages delivered in one tick: some five milliseconds of the loop."""

MAX_BYTES_AT_ONCE: Final = 4 << 20

_AT_ONCE: Final = 500
_LEVEL: Final = re.compile(r"([+-]?)0*([0-9]{1,10})")
_INT32: Final = 1 << 31


def level_of(properties: Mapping[str, str]) -> int:
    """Return the level that a message asks for; 0 = none, as for a negative one.

    Raises:
        InvalidDelayError: it is no number of 32 bits, which RocketMQ refuses as well.
    """
    value = properties.get(DELAY_LEVEL)
    if not value:
        return 0
    found = _LEVEL.fullmatch(value)
    level = int("".join(found.groups())) if found else _INT32
    if not -_INT32 <= level < _INT32:
        raise InvalidDelayError(f"property {DELAY_LEVEL} = {value[:40]!r} is not a number of 32 bits")
    return max(0, level)


@dataclass
class DelayCounters:
    """Events since the start."""

    delivered: int = 0
    dropped: int = 0
    """Messages whose topic was deleted, or that do not say where they belong."""
    damaged: int = 0
    """Entries whose record could not be read."""
    clamped: int = 0
    """Cursors that lay beyond the end of their queue at the start."""
    errors: int = 0
    """Times that nothing could be delivered because the store took no writes."""


@dataclass(slots=True)
class _Level:
    """One level. Invariant: noted <= cursor; everything below ``noted`` is delivered and durable."""

    number: int
    delay_ms: int
    queue: ConsumeQueue
    cursor: int
    noted: int
    due_ms: int = 0
    """When the message at the cursor is due, 0 where that is not known: before it nothing is looked at."""
    latest_ms: int = 0
    latest_end: int = 0
    """Messages below this queue offset are due at ``latest_ms`` at the latest, whatever their entries say."""

    def find_due(self, queue_offset: int, due_ms: int, now_ms: int) -> int:
        """Return when a message is due whose entry says ``due_ms``.

        That is further away than the whole delay where the clock was set back, or the delay made shorter, since it was
        stored. Then it waits as long as one that is stored now, and so does everything behind it up to here: that is
        not too early for any of them, and holds none up for longer than the delay.
        """
        if queue_offset < self.latest_end:
            due_ms = min(due_ms, self.latest_ms)
        if due_ms > now_ms + self.delay_ms:
            due_ms = self.latest_ms = now_ms + self.delay_ms
            self.latest_end = self.queue.next_offset
        return due_ms

    def find_due_end(self, now_ms: int, most: int) -> int:
        """Return the queue offset behind the messages from the cursor on that are due, ``most`` of them at most.

        The cursor itself where none is; ``due_ms`` then says when one will be.
        """
        end = self.cursor
        if end >= self.queue.visible_offset:
            return end
        if self.due_ms:
            self.due_ms = self.find_due(end, self.due_ms, now_ms)
            if now_ms < self.due_ms:
                return end
        try:
            entries = self.queue.entries(end, most)
        except UnreadableError:
            return end  # named and counted by the store; the next tick tries again
        next_ms = 0
        for _, record_bytes, due_ms in entries:
            if record_bytes != FILLER_BYTES:
                next_ms = self.find_due(end, due_ms, now_ms)
                if now_ms < next_ms:
                    break
            end += 1
        self.due_ms = next_ms if end == self.cursor else 0  # what is read and appended now may be less than what is due
        return end


class DelayLevels:
    """Holds messages back by level. ``tick`` delivers what is due; add it to ``Broker.tickers``."""

    def __init__(self, broker: Broker, writer: FileWriter) -> None:
        """Take up where the last process noted that it was.

        Raises:
            SideFileError: the noted cursors are damaged, and so is their copy.
            OSError: some lie beyond the log, and that they do not any more cannot be written.
        """
        self.counters = DelayCounters()
        self._broker = broker
        self._writer = writer
        self._records = RecordBatch(verifies=True)
        self._unnoted: deque[tuple[int, int, int]] = deque()
        self._next_save_ms = -1
        self._is_changed = False
        self._trouble = Trouble(logger)
        self._drop_pace = LogPace(broker.clock)
        self._turn = 0
        delays = broker.settings.delays_ms
        topic = need_system_topic(broker, SCHEDULE_TOPIC, len(delays))
        cursors = self._load()
        self._levels = [
            self._open_level(number, delay, topic.queues[number - 1], cursors.get(number, 0))  # type: ignore[arg-type]
            for number, delay in enumerate(delays, 1)
        ]
        self._topic = topic
        # What was noted about levels that the setting has no more: it may have them again.
        self._unused = {number: cursor for number, cursor in cursors.items() if number > len(delays)}
        if self.counters.clamped:
            # Now: a kill would bring the old ones back, above what is delayed from now on.
            writer.replace_both(encode_cursors(self.cursors))
        self._stranded = {
            queue.queue_id + 1: left
            for queue in topic.queues[len(delays) :]
            if (left := queue.next_offset - self._unused.get(queue.queue_id + 1, 0)) > 0
        }
        for number, left in self._stranded.items():
            logger.error(
                "delayed messages wait at a level that broker.delay_levels has not level=%d count=%d", number, left
            )

    def _load(self) -> dict[int, int]:
        content = self._writer.file.load(find_cursors_fault) or {"offsetTable": {}}
        cursors, faults = read_cursors(content)
        for fault in faults:
            logger.warning(
                "delay cursor passed over, its level is delivered again path=%s %s", self._writer.path, fault
            )
        return cursors

    def _open_level(self, number: int, delay_ms: int, queue: ConsumeQueue, cursor: int) -> _Level:
        queue.delay_ms = delay_ms
        if cursor > queue.next_offset:
            self.counters.clamped += 1
            logger.warning(
                "delay cursor beyond the log clamped level=%d queue_offset=%d to=%d", number, cursor, queue.next_offset
            )
        cursor = max(queue.min_offset, min(cursor, queue.next_offset))
        return _Level(number, delay_ms, queue, cursor, cursor)

    # -- delaying ---------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many levels there are; a higher one means the last."""
        return len(self._levels)

    def waiting_place(self, level: int) -> tuple[Topic, ConsumeQueue]:
        """Return where messages wait at a level, 1 to ``count``."""
        return self._topic, self._levels[level - 1].queue

    def delay_ms(self, level: int) -> int:
        """Return how long messages wait at a level, 1 or more."""
        return self._levels[min(level, len(self._levels)) - 1].delay_ms

    def delayed(self, message: Message, level: int) -> Message:
        """Return the message as it waits at a level, 1 or more."""
        level = max(1, min(level, len(self._levels)))
        # A time beside it counts for nothing: left there, channels would wait for it once the message is delivered.
        return message.diverted(SCHEDULE_TOPIC, level - 1, DELAY=str(level), TIMER_DELIVER_MS=None)

    def put(self, message: Message, level: int) -> tuple[Placed, int]:
        """Append a message that is delivered to its topic and queue when the level's delay is over.

        Returns:
            Where it waits, and the physical offset that must be durable before its sender is answered.

        Raises:
            RequestError, StoreError: it was not appended.
        """
        return put(self._broker, self.delayed(message, level))

    @property
    def waiting(self) -> dict[int, int]:
        """Messages that wait, by level; those that the setting has no more are among them where messages do."""
        waiting = {level.number: max(0, level.queue.visible_offset - level.cursor) for level in self._levels}
        return waiting | self._stranded

    @property
    def cursors(self) -> dict[int, int]:
        """What ``delayOffset.json`` holds: queue offset of the next message, by level."""
        return {level.number: level.noted for level in self._levels} | self._unused

    @property
    def ends(self) -> dict[int, int]:
        """Where the queue of each of ``cursors`` goes on: tools show how far they are behind."""
        queues = self._topic.queues
        return {
            number: queues[number - 1].visible_offset if number <= len(queues) else cursor
            for number, cursor in self.cursors.items()
        }

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Deliver what is due, and write the cursors down now and then."""
        budget = MAX_AT_ONCE
        log = self._broker.store.log
        full_offset = log.end_offset + MAX_BYTES_AT_ONCE
        if self._broker.store.failure is None and not self._broker.overloaded:
            self._turn = (self._turn + 1) % len(self._levels)
            for level in self._levels[self._turn :] + self._levels[: self._turn]:
                while budget > 0 and log.end_offset < full_offset:
                    examined = self._deliver(level, now_ms, min(budget, _AT_ONCE))
                    budget -= examined
                    if not examined:
                        break
        self._note_durable()
        self._writer.tick(self._broker.clock.monotonic_ms())
        interval_ms = self._broker.settings.delay_offsets_interval_ms
        if self._next_save_ms < 0:
            # At once: a process that is killed again and again before its first interval is over must get on, too.
            self._next_save_ms = now_ms
        if self._next_save_ms - now_ms > interval_ms:
            self._next_save_ms = now_ms + interval_ms
        if now_ms >= self._next_save_ms and self._is_changed:
            self._next_save_ms = now_ms + interval_ms
            self._is_changed = False
            self._writer.request(lambda: partial(encode_cursors, self.cursors))

    def _deliver(self, level: _Level, now_ms: int, most: int) -> int:
        """Deliver up to ``most`` due messages of one level; return how many entries that took."""
        if level.cursor < level.queue.min_offset:
            self._pass_over(level, level.queue.min_offset - level.cursor)
            level.cursor = level.queue.min_offset
        start, end = level.cursor, level.find_due_end(now_ms, most)
        if end == start:
            return 0
        result = read_queue(level.queue, start, end - start, MAX_BYTES_AT_ONCE, None, None, self._records)
        try:
            if result.status is PullStatus.COLD:
                return 0  # a thread reads it: one of the next ticks finds it
            if not self._append(level, end):
                return 0
        finally:
            self._records.clear()
        level.cursor = min(result.next_offset, end)
        if level.cursor == start:
            return 0
        if result.skipped:
            self._pass_over(level, result.skipped)
        self._unnoted.append((self._broker.store.log.end_offset, level.number, level.cursor))
        return level.cursor - start

    def _pass_over(self, level: _Level, count: int) -> None:
        self.counters.damaged += count
        logger.warning(
            "delayed messages passed over, their records are damaged or gone level=%d count=%d", level.number, count
        )

    def _append(self, level: _Level, end: int) -> bool:
        """Append the records that were read again where they belong; False when the store takes none now."""
        count = len(self._records)
        while count and self._records.position(count - 1)[1] >= end:
            count -= 1  # read in place of damaged ones before it, and not due
        try:
            left_out = redeliver(self._broker, self._records, count)
        except StoreError as error:
            self.counters.errors += 1
            self._trouble.note("delayed messages wait, the store takes no writes error=%s", error)
            return False
        self._trouble.end()
        for reason, dropped in left_out.items():
            self._drop(level, reason, dropped)
        self.counters.delivered += count - left_out.total()
        return True

    def _drop(self, level: _Level, reason: str, count: int) -> None:
        self.counters.dropped += count
        if self._drop_pace.is_due():  # a producer may go on for hours, and each tick drops some
            logger.warning(
                "delayed messages dropped level=%d count=%d total=%d reason=%s",
                level.number,
                count,
                self.counters.dropped,
                reason,
            )

    # -- cursors ----------------------------------------------------------------------------------------------------

    def _note_durable(self) -> None:
        """Move the cursors for the file up to what was delivered and is durable."""
        durable = self._broker.store.durable_offset
        while self._unnoted and self._unnoted[0][0] <= durable:
            _, number, cursor = self._unnoted.popleft()
            self._levels[number - 1].noted = cursor
            self._is_changed = True

    def close(self) -> None:
        """Write the cursors down, with what was delivered up to now. Blocks."""
        try:
            self._broker.store.flush()
        except StoreError as error:
            logger.error("last delayed messages not durable, they come again error=%s", error)
        self._note_durable()
        self._writer.write_last(partial(encode_cursors, self.cursors), "delay cursors not written, messages come again")


def read_cursors(content: Mapping[str, Any]) -> tuple[dict[int, int], list[str]]:
    """Return the cursor of each level that a file's content has, and which of its rows no broker can have written."""
    cursors, faults = {}, []
    for level, cursor in content["offsetTable"].items():
        if str(level).isdecimal() and str(cursor).isdecimal():
            cursors[int(level)] = int(cursor)
        else:
            faults.append(f"level {level}: {str(cursor)[:40]!r} is no cursor")
    return cursors, faults


def find_cursors_fault(content: Mapping[str, Any]) -> str:
    """Say what the content of ``delayOffset.json`` lacks."""
    return lacks_table(content, "offsetTable")


def encode_cursors(cursors: dict[int, int]) -> bytes:
    """Return the content of ``delayOffset.json``, which is also what a slave gets."""
    return fastjson.dumps({"offsetTable": cursors})
