"""Producers that number what they send, or give each message a key: what was stored once is not stored again.

Sequence. A producer, (txn, partition, topic, queue id), numbers its messages from 0 in each epoch. The broker keeps the
last epoch and the number behind the last message stored in it. What lies below is a duplicate; what begins above
leaves a gap and is refused: something in between was refused or is still under way. An epoch of a txn ends those before
it for all of its producers: which queue a partition writes to changes with the epoch, so of a txn that is counted from
0 again some messages would be stored and others taken for duplicates.

State is bounded: at ``most_ids`` the producer that was quiet for longest is forgotten, which is counted and logged. If
it comes back within its epoch, it is refused for a gap; if it begins anew, it is stored a second time.

Key. Within a txn a message's UNIQ_KEY is its identity. The broker keeps the keys of the newest epoch and of the one
before it, as fingerprints (``key_set``); they are in the records too, so that the saved copy only has to name these. At
``most_keys``, and where many txns with few keys take more memory than so many keys of one, the txn that was quiet for
longest is forgotten; a batch that does not fit then either is refused.

What was stored in a topic that was deleted is nowhere: it counts as not stored once a topic of that name is made again,
which goes on above the queue offsets of the former one. Of a txn with messages for several topics the keys are kept
until none of these is as it was, or until the next start.

Ref: docs/protocols/extensions.md; docs/adr/0009-exactly-once-writes.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from headrace.broker.exactly_once.key_set import FINGERPRINT_BYTES, KeySet
from headrace.clock import Clock
from headrace.errors import QuotaExceededError
from headrace.log_pace import LogPace

logger = logging.getLogger(__name__)

KEY_BYTES: Final = 43
"""What a key takes in a set that has just grown."""
SET_BYTES: Final = 2 << 10
"""What a set and its txn take beside the keys."""
MIN_BYTES: Final = 16 << 20
"""What the sets may take, however few keys are allowed."""

IsFormer = Callable[[str, int, int], bool]
"""Whether what was stored at an offset of a topic's queue is gone with a former topic: ``Broker.is_former``."""

_UNKNOWN_OFFSET: Final = 1 << 62
"""Of a copy that an earlier build has saved: not below any beginning."""
_LOG_EVERY: Final = 1_000
_ROWS_AT_ONCE: Final = 256
"""Rows of the saved copy that are made together: fewer than the collector's first threshold."""


class ProducerKey(NamedTuple):
    """Who numbers messages."""

    txn: str
    partition: int
    topic: str
    queue_id: int


class Progress(NamedTuple):
    """How far a producer is."""

    epoch: int
    end: int
    """Number behind the last message stored in this epoch."""
    wait_offset: int
    """What must be durable for all of them to be; 0 for nothing."""
    offset: int
    """Queue offset of the last batch; minus the first due time (ms) while all messages of the epoch were delayed."""


@dataclass(slots=True)
class _Txn:
    """What the producers of a txn have in common; it is forgotten with the last of them."""

    newest_epoch: int = -1
    producers: int = 0


class Verdict(NamedTuple):
    """What is to be done with a batch."""

    expected: int
    """The number that the next new message of this epoch has; -1 when the epoch is over."""
    duplicates: int
    """How many messages at the beginning were stored before."""
    wait_offset: int
    """What must be durable before those may be acknowledged."""

    @property
    def is_over(self) -> bool:
        """Whether the epoch is over."""
        return self.expected < 0

    def has_gap(self, seq: int) -> bool:
        """Whether messages before ``seq`` are missing."""
        return 0 <= self.expected < seq


class OutdatedMessages:
    """Counts messages that were dropped because their txn has had a later epoch, and says so once a minute.

    A late repetition is no loss; of two writers that share a txn, one loses what it sends.

    Attributes:
        by_semantics: How many since the start; they count as duplicates too.
    """

    def __init__(self, clock: Clock) -> None:
        self.by_semantics = {"sequence": 0, "key": 0, "stage": 0}
        self._pace = LogPace(clock)

    def note(self, semantics: str, key: ProducerKey, epoch: int, count: int) -> None:
        """Count the messages of a batch."""
        self.by_semantics[semantics] += count
        if self._pace.is_due():
            logger.warning(
                "messages dropped, their txn has had a later epoch: has it two writers? semantics=%s txn=%s epoch=%d "
                "partition=%d topic=%s queue_id=%d messages=%d dropped=%d",
                semantics, key.txn, epoch, key.partition, key.topic, key.queue_id, count,
                sum(self.by_semantics.values()),
            )  # fmt: skip


@dataclass
class SequenceCounters:
    """Events since the start."""

    stored: int = 0
    duplicates: int = 0
    """Messages dropped because they were stored before."""
    gaps: int = 0
    """Batches refused because messages before them are missing."""
    forgotten: int = 0
    """Producers dropped at the bound."""


class Sequences:
    """How far each producer is. Insertion order is the order of their last stored batch."""

    name = "sequences"
    ops: Sequence[str] = ("sequence",)

    def __init__(self, most_ids: int, is_former: IsFormer, has_holes: Callable[[], bool] = lambda: False) -> None:
        """``has_holes`` says whether the log has lost records between others."""
        self.counters = SequenceCounters()
        self._most_ids = most_ids
        self._is_former = is_former
        self._has_holes = has_holes
        self._table: dict[ProducerKey, Progress] = {}
        self._txns: dict[str, _Txn] = {}

    def __len__(self) -> int:
        return len(self._table)

    def judge(self, key: ProducerKey, epoch: int, seq: int, count: int) -> Verdict:
        """Say which of ``count`` messages from ``seq`` on are duplicates; nothing is changed."""
        known = self._table.get(key)
        txn = self._txns.get(key.txn)
        if txn is not None and epoch < txn.newest_epoch:
            return Verdict(-1, count, 0 if known is None else known.wait_offset)
        if known is None or epoch > known.epoch or self._is_former(key.topic, key.queue_id, known.offset):
            return Verdict(0, 0, 0)
        return Verdict(known.end, min(max(known.end - seq, 0), count), known.wait_offset)

    @staticmethod
    def change(key: ProducerKey, epoch: int, attempt: int, seq: int, count: int, queue_offset: int) -> dict[str, Any]:
        """Return the record of ``count`` messages stored from ``queue_offset`` on, the first numbered ``seq``."""
        return {
            "op": "sequence",
            "txn": key.txn,
            "partition": key.partition,
            "topic": key.topic,
            "queue": key.queue_id,
            "epoch": epoch,
            "attempt": attempt,
            "seq": seq,
            "count": count,
            "offset": queue_offset,
        }

    def apply(self, change: dict[str, Any], tail: bytes, number: int) -> None:
        """Take in a record."""
        key = ProducerKey(change["txn"], change["partition"], change["topic"], change["queue"])
        epoch, seq = change["epoch"], change["seq"]
        known = self._table.get(key)
        reached = known.end if known is not None and known.epoch == epoch else 0
        end = seq + change["count"]
        if seq > reached and self._has_holes():
            # A power cut took the batch before this one and left this one: what is missing must not count as stored.
            logger.error("batch is lost, those behind it may be stored twice queue_offset=%d end=%d", number, reached)
            end = reached
        offset = change["offset"]
        if offset < 0 and known is not None and min(seq, reached) > 0:
            # Of messages that all waited: those before them stand, or come, earlier.
            offset = max(offset, known.offset)
        self._put(key, Progress(epoch, end, 0, offset))

    def note_wait(self, key: ProducerKey, wait_offset: int) -> None:
        """Note what must be durable before duplicates of what was just stored may be acknowledged."""
        self._table[key] = self._table[key]._replace(wait_offset=wait_offset)

    def _put(self, key: ProducerKey, progress: Progress) -> None:
        table = self._table
        txn = self._txns.get(key.txn) or self._txns.setdefault(key.txn, _Txn())
        txn.newest_epoch = max(txn.newest_epoch, progress.epoch)
        txn.producers += table.pop(key, None) is None
        table[key] = progress
        if len(table) > self._most_ids:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Drop who was quiet for longest: a thousandth together, for a dict passes over what was dropped each time."""
        before = self.counters.forgotten
        dropped = list(islice(self._table, 1 + self._most_ids // 1_000))
        for oldest in dropped:
            del self._table[oldest]
            txn = self._txns[oldest.txn]
            txn.producers -= 1
            if not txn.producers:
                del self._txns[oldest.txn]
        self.counters.forgotten += len(dropped)
        if not before or before // _LOG_EVERY != self.counters.forgotten // _LOG_EVERY:
            logger.warning(
                "producer forgotten at the bound txn=%s partition=%d topic=%s queue_id=%d forgotten=%d "
                "setting=remoting.max_producer_ids",
                *dropped[0],
                self.counters.forgotten,
            )

    def snapshot(self) -> Callable[[], Any]:
        """Copy the table: its rows do not change."""
        table = self._table.copy()  # a tenth of what a list of pairs takes
        return lambda: _encode_rows([*key, known.epoch, known.end, known.offset] for key, known in table.items())

    def restore(self, saved: Any, read: Callable[[int], tuple[dict[str, Any], bytes] | None]) -> None:
        """Take up the saved table; all of it is durable."""
        for row in saved or ():
            offset = _UNKNOWN_OFFSET if row.offset is None else row.offset
            self._put(
                ProducerKey(row.txn, row.partition, row.topic, row.queue_id), Progress(row.epoch, row.end, 0, offset)
            )


def _encode_rows(rows: Iterator[list[Any]]) -> msgspec.Raw:
    """Return rows as JSON, made some at a time.

    A list of all of them would have the garbage collector look through everything, which holds every thread: with
    100,000 producers for 70 ms.
    """
    parts = []
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        parts.append(msgspec.json.encode(some)[1:-1])
    return msgspec.Raw(b"[%b]" % b",".join(parts))


@dataclass
class KeyCounters:
    """Events since the start."""

    stored: int = 0
    duplicates: int = 0
    """Messages dropped because their key was seen."""
    refused: int = 0
    """Batches refused because the window of keys is full."""
    forgotten: int = 0
    """Txns whose keys were dropped at the bound."""


@dataclass(slots=True)
class _Window:
    """The keys of one txn. ``sets`` and ``numbers`` have the epochs from ``last`` - 1 on that have any."""

    last: int = -1
    wait_offset: int = 0
    size: int = 0
    """Bytes of memory, about, as of its last batch."""
    sets: dict[int, KeySet] = field(default_factory=dict)
    numbers: dict[int, list[int]] = field(default_factory=dict)
    """Of the records that have the keys."""
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """Queue offset of the last batch in each queue, by topic and queue id."""

    def __len__(self) -> int:
        return sum(len(keys) for keys in self.sets.values())


class KeyChoice(NamedTuple):
    """Which keys a batch is compared with."""

    into: KeySet
    others: tuple[KeySet, ...]
    wait_offset: int
    """What must be durable before duplicates may be acknowledged."""


class KeyWindows:
    """The keys of each txn. Insertion order is the order of their last stored batch."""

    name = "keys"
    ops: Sequence[str] = ("keys",)

    def __init__(self, most_keys: int, is_former: IsFormer) -> None:
        self.counters = KeyCounters()
        self._most_keys = most_keys
        self._gone = is_former
        self._most_bytes = max(most_keys * KEY_BYTES, MIN_BYTES)
        self._windows: dict[str, _Window] = {}
        self._count = 0
        self._bytes = 0
        self._chosen: KeySet | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """What the sets take, about."""
        return self._bytes

    def wait_offset(self, txn: str) -> int:
        """Return what must be durable before duplicates of a txn may be acknowledged."""
        window = self._windows.get(txn)
        return 0 if window is None else window.wait_offset

    def choose(self, txn: str, epoch: int) -> KeyChoice | None:
        """Return what a batch is compared with; None when its epoch is long over.

        The caller adds new keys to ``into``, makes room for them and appends the record, or takes them out again.
        """
        self._forget_former(txn)
        window = self._window_of(txn)
        if epoch < window.last - 1:
            return None
        known = window.sets.get(epoch)
        self._chosen = KeySet() if known is None else known
        first = max(epoch, window.last) - 1
        others = tuple(keys for other, keys in window.sets.items() if other >= first and other != epoch)
        return KeyChoice(self._chosen, others, window.wait_offset)

    def _window_of(self, txn: str) -> _Window:
        window = self._windows.get(txn)  # one without keys is false
        return _Window() if window is None else window

    def _forget_former(self, txn: str) -> None:
        """Forget the keys of a txn all of whose messages were for topics that have been made again since."""
        window = self._windows.get(txn)
        if window is not None and window.offsets and self._are_former(window.offsets):
            del self._windows[txn]
            self._count -= len(window)
            self._bytes -= window.size

    def _are_former(self, offsets: dict[tuple[str, int], int]) -> bool:
        """Return whether all places are of topics that were made again, though what waits goes to the new ones."""
        if not all(offset < 0 or self._is_former(place, offset) for place, offset in offsets.items()):
            return False
        topics = {place[0] for place, offset in offsets.items() if self._is_former(place, offset)}
        return all(topic in topics for topic, _ in offsets)

    def _is_former(self, place: tuple[str, int], offset: int) -> bool:
        return self._gone(*place, offset)

    def make_room(self, txn: str, epoch: int, count: int) -> None:
        """Forget the keys of other txns where ``count`` new ones need their place; none when that is not enough.

        Raises:
            QuotaExceededError: the keys of the txn's two epochs do not fit.
        """
        window = self._window_of(txn)
        # What goes with the first batch of a new epoch makes room.
        first = max(epoch, window.last) - 1
        own = sum(len(keys) for other, keys in window.sets.items() if first <= other != epoch)
        own += 0 if self._chosen is None else len(self._chosen)
        if own > self._most_keys:
            self.counters.refused += 1
            raise QuotaExceededError(
                f"txn {txn!r} has {own - count} keys in two epochs, {count} more exceed the limit of "
                f"{self._most_keys} (remoting.max_window_keys)"
            )
        leaving = sum(len(keys) for other, keys in window.sets.items() if other < first)
        self._make_room(count - leaving, txn)

    def forget_choice(self) -> None:
        """Nothing of the batch was appended, and its keys were taken out again."""
        self._chosen = None

    def _make_room(self, count: int, but: str) -> None:
        while self._count + count > self._most_keys or self._bytes > self._most_bytes:
            oldest = next((txn for txn in self._windows if txn != but), None)
            if oldest is None:
                return
            window = self._windows.pop(oldest)
            self._count -= len(window)
            self._bytes -= window.size
            self.counters.forgotten += 1
            if self.counters.forgotten % _LOG_EVERY == 1:
                logger.warning(
                    "keys of a txn forgotten at the bound txn=%s keys=%d forgotten=%d setting=remoting.max_window_keys",
                    oldest,
                    len(window),
                    self.counters.forgotten,
                )

    @staticmethod
    def change(key: ProducerKey, epoch: int, attempt: int, count: int, queue_offset: int) -> dict[str, Any]:
        """Return the record of ``count`` new messages, stored from ``queue_offset`` on; behind it come their keys."""
        return {
            "op": "keys",
            "txn": key.txn,
            "partition": key.partition,
            "topic": key.topic,
            "queue": key.queue_id,
            "epoch": epoch,
            "attempt": attempt,
            "count": count,
            "offset": queue_offset,
        }

    def apply(self, change: dict[str, Any], tail: bytes, number: int) -> None:
        """Take in a record."""
        txn, epoch = change["txn"], change["epoch"]
        place, offset = (change["topic"], change["queue"]), change["offset"]
        if self._is_former(place, offset):
            return
        window = self._window_of(txn)
        self._windows.pop(txn, None)
        self._windows[txn] = window  # now the last
        self._note_place(window, place, offset)
        chosen, self._chosen = self._chosen, None
        if epoch > window.last:
            window.last = epoch
            for old in [old for old in window.sets if old < epoch - 1]:
                self._count -= len(window.sets.pop(old))
                window.numbers.pop(old, None)
        if chosen is not None:
            window.sets[epoch] = chosen
            self._count += len(tail) // FINGERPRINT_BYTES  # the caller has added them
        else:
            self._count += window.sets.setdefault(epoch, KeySet()).add(tail)
        window.numbers.setdefault(epoch, []).append(number)
        self._measure(window)
        self._make_room(0, txn)

    def _note_place(self, window: _Window, place: tuple[str, int], offset: int) -> None:
        known = window.offsets.get(place)
        if offset < 0 and known is not None and not self._is_former(place, known):
            offset = max(offset, known)  # what stands there, or comes first
        window.offsets[place] = offset

    def _measure(self, window: _Window) -> None:
        size = sum(SET_BYTES + keys.memory_bytes for keys in window.sets.values())
        self._bytes += size - window.size
        window.size = size

    def note_wait(self, txn: str, wait_offset: int) -> None:
        """Note what must be durable before duplicates of what was just stored may be acknowledged."""
        window = self._windows[txn]
        window.wait_offset = max(window.wait_offset, wait_offset)  # queues of several levels of durability

    def snapshot(self) -> Callable[[], Any]:
        """Copy where the keys are."""
        rows = [
            (txn, window.last, [(epoch, list(numbers)) for epoch, numbers in window.numbers.items()])
            for txn, window in self._windows.items()
        ]
        return lambda: rows

    def restore(self, saved: Any, read: Callable[[int], tuple[dict[str, Any], bytes] | None]) -> None:
        """Read the keys of the saved records."""
        for txn, last, epochs in saved or ():
            window = self._windows[txn] = _Window(last)
            is_former = bool(epochs)
            for epoch, numbers in epochs:
                keys = window.sets[epoch] = KeySet()
                window.numbers[epoch] = list(numbers)
                for number in numbers:
                    found = read(number)
                    if found is None:
                        is_former = False
                        continue
                    place, offset = (found[0]["topic"], found[0]["queue"]), found[0]["offset"]
                    if not self._is_former(place, offset):
                        is_former = False
                        self._note_place(window, place, offset)
                        self._count += keys.add(found[1])
            if is_former:
                del self._windows[txn]  # with the epochs that it had: what is sent again of them is nowhere
            else:
                self._measure(window)
