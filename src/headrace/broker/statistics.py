"""Messages and bytes put and got, by topic, group, queue, host and protocol, in the last minute, hour and day.

A counter keeps its running sum as it was at the beginning of each of the last 6 slots of 10 s, 6 of 10 min and 24 of an
hour: RocketMQ's windows, but brought up to date when a counter is used, not by a sweep over all. What was counted in a
window is the sum now less the sum then; the window reaches from a slot's beginning to now, so the last minute is 60 to
70 s long, and rates are per its real length (A-BROKER-49, X-BROKER-17). ``now_ms`` is monotonic time: with a clock that
is set back by hours one slot would last as long.
"""

from __future__ import annotations

import logging
from array import array
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.format.names import EPHEMERAL_SUFFIX
from headrace.settings import BrokerSettings

logger = logging.getLogger(__name__)

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
GROUP_GET_FALL_SIZE: Final = "GROUP_GET_FALL_SIZE"
QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS: Final = "QUEUE_GET_NUMS"
QUEUE_GET_SIZE: Final = "QUEUE_GET_SIZE"
SOURCE_PUT_NUMS: Final = "SOURCE_PUT_NUMS"
"""Key: where a message came from, a protocol's name or "retry"."""
SOURCE_GET_NUMS: Final = "SOURCE_GET_NUMS"
HOST_PUT_NUMS: Final = "HOST_PUT_NUMS"
"""Key: the producer's host."""
HOST_GET_NUMS: Final = "HOST_GET_NUMS"
CHANNEL_GET_NUMS: Final = "CHANNEL_GET_NUMS"
"""Of a call, not of a counter: channels have their own counters, and their names may be those of groups."""

GROUPS_SOURCE: Final = "remoting"
"""The source of what groups get and send back: the protocol whose consumers they are."""
CHANNELS_SOURCE: Final = "nsq"
"""The same of channels."""

_OF_GROUP: Final = frozenset(
    {GROUP_GET_NUMS, GROUP_GET_SIZE, SNDBCK_PUT_NUMS, QUEUE_GET_NUMS, QUEUE_GET_SIZE, GROUP_GET_FALL_SIZE}
)
_OF_TOPIC: Final = _OF_GROUP | {TOPIC_PUT_NUMS, TOPIC_PUT_SIZE, QUEUE_PUT_NUMS, QUEUE_PUT_SIZE}
"""Counters of the whole broker, of sources and of hosts are nobody's."""

# (ms of a slot, slots of the window) of minute, hour and day. A ring has one place more: the slot that runs.
_WINDOWS: Final = ((10_000, 6), (600_000, 6), (3_600_000, 24))
_RING_AT: Final = (0, 7, 14)
_RING_SLOTS: Final = 39
_DAY: Final = 2
_SWEEP_MS: Final = 600_000
_SWEEP_AT_ONCE: Final = 500
"""Counters that one tick looks at: some 1.5 ms of the loop."""
_SETTLE_ROWS: Final = 1_000
"""Kinds of calls that are settled in one go: some 1.5 ms of the loop."""
_ROW_SWEEP_MS: Final = 60_000
"""Between two looks for rows without a call since the last: so many channels, hosts and topics as a minute has."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was counted in one span of time.

    Attributes:
        sum: Counted, messages or bytes.
        per_second: Rate over the real length of the span.
        per_call: Mean of one call.
    """

    sum: int
    per_second: float
    per_call: float


@dataclass(frozen=True, slots=True)
class StatsSnapshot:
    """One counter in its three windows."""

    minute: Window
    hour: Window
    day: Window


class StatsItem:
    """One counter. Invariant: each place of a ring has the sum as it was when that place's slot began."""

    __slots__ = ("_calls_at", "_made_ms", "_slots", "_sums_at", "calls", "group", "minute_slot", "sum", "topic")

    def __init__(self, now_ms: int, topic: str = "", group: str = "") -> None:
        self.sum = 0
        self.calls = 0
        self.topic = topic
        self.group = group
        self._made_ms = now_ms
        self._slots = [now_ms // width for width, _ in _WINDOWS]
        self.minute_slot = self._slots[0]
        """The slot of 10 s it is up to date for."""
        self._sums_at = array("q", bytes(8 * _RING_SLOTS))
        self._calls_at = array("q", bytes(8 * _RING_SLOTS))

    def roll(self, now_ms: int) -> None:
        """Begin the slots that began since the last use: nothing was counted in between."""
        for window, (width, count) in enumerate(_WINDOWS):
            slot, last = now_ms // width, self._slots[window]
            if slot <= last:
                continue  # also when the clock was set back: the running slot just lasts longer
            self._slots[window] = slot
            for begun in range(max(last + 1, slot - count), slot + 1):
                place = _RING_AT[window] + begun % (count + 1)
                self._sums_at[place] = self.sum
                self._calls_at[place] = self.calls
        self.minute_slot = self._slots[0]

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing was counted in the last day."""
        self.roll(now_ms)
        return self._window(_DAY, now_ms).sum == 0 and now_ms - self._made_ms > _WINDOWS[_DAY][0]

    def snapshot(self, now_ms: int) -> StatsSnapshot:
        """Return the windows that end now."""
        self.roll(now_ms)
        return StatsSnapshot(*(self._window(window, now_ms) for window in range(3)))

    def _window(self, window: int, now_ms: int) -> Window:
        width, count = _WINDOWS[window]
        first = self._slots[window] - count
        place = _RING_AT[window] + first % (count + 1)
        counted, calls = self.sum - self._sums_at[place], self.calls - self._calls_at[place]
        seconds = max(1_000, now_ms - max(first * width, self._made_ms)) / 1000
        return Window(counted, counted / seconds, counted / calls if calls else 0.0)


_Key = tuple[str, str]
"""Name of a counter and what it counts for."""


_RowKey = tuple[str, str, str, str, str, int]
"""A ``Call`` as what it is looked up by: a plain tuple is made faster."""


class Call(NamedTuple):
    """One kind of call, in all dimensions."""

    name: str
    """``TOPIC_PUT_NUMS``, ``GROUP_GET_NUMS``, ``CHANNEL_GET_NUMS`` or ``SNDBCK_PUT_NUMS``."""
    group: str
    """A channel where the source is ``CHANNELS_SOURCE``; empty for a put."""
    topic: str
    source: str
    host: str
    """Empty where it is not known."""
    queue_id: int
    """-1 where queues are not counted apart."""


class Counted:
    """What one kind of call counted in a span of time."""

    __slots__ = ("bytes", "call", "messages")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.messages = 0
        self.bytes = 0


class Row:
    """The counters that are raised together, by messages and by bytes, for one kind of call. All of them exist."""

    __slots__ = (
        "bytes", "call", "calls", "counted", "is_idle", "messages", "new_bytes", "new_messages", "span",
    )  # fmt: skip

    def __init__(self, call: Call, messages: list[StatsItem], size: list[StatsItem]) -> None:
        self.call = call
        self.messages = messages
        self.bytes = size
        # What its counters do not have yet. Invariant: the row is in ``Statistics._unsettled`` exactly if calls > 0.
        self.calls = 0
        self.new_messages = 0
        self.new_bytes = 0
        self.is_idle = False  # no call came since the last sweep
        # What it counted in the span, from one ``take_counted`` to the next, in which it last did.
        self.counted = Counted(call)
        self.span = -1


K = TypeVar("K")


class _Owned(Generic[K]):
    """Which keys are of a topic, or of a group: what goes with it is found without a look at what others have."""

    def __init__(self) -> None:
        self._keys: dict[str, set[K]] = {}

    def add(self, owner: str, key: K) -> None:
        """Note whose a key is; an empty ``owner`` is nobody."""
        if owner:
            self._keys.setdefault(owner, set()).add(key)

    def discard(self, owner: str, key: K) -> None:
        """Forget a key; one that is not known is nothing."""
        keys = self._keys.get(owner)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys[owner]

    def of(self, owner: str) -> list[K]:
        """Return the keys that somebody has."""
        return list(self._keys.get(owner, ()))

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()


class Statistics:
    """All counters of one broker; what time it is comes from ``tick``, at most 50 ms ago."""

    def __init__(self, settings: BrokerSettings, now_ms: int, broker_key: str) -> None:
        """Begin to count.

        Args:
            broker_key: Key of the counters of the whole broker: the cluster's name, where there is one.
        """
        self.refused = 0
        """Counts that were not taken because ``broker.max_statistics`` counters exist."""
        self.broker_key = broker_key
        self._most = settings.max_statistics
        self.by_queue = settings.queue_statistics
        """Whether queues are counted apart."""
        self._items: dict[_Key, StatsItem] = {}
        self._items_of_topic: _Owned[_Key] = _Owned()
        self._items_of_group: _Owned[_Key] = _Owned()
        # What note_put and note_get look up, once for each call; those of a counter that goes are forgotten, and each
        # that was idle from one sweep to the next.
        self._rows: dict[_RowKey, Row] = {}
        self._rows_of_topic: _Owned[_RowKey] = _Owned()
        self._rows_of_group: _Owned[_RowKey] = _Owned()
        self.rows_version = 0
        """Rises when rows are forgotten: what ``row_of_get`` gave before is not to be used."""
        # Of the rows that counted since ``take_counted``, also of those that ``_rows`` forgot since. Where no records
        # are written nobody takes them.
        self._is_recorded = settings.statistics_records
        self._counted: list[Counted] = []
        self._span = 0
        # Rows whose counters are to be raised by what they counted since the last time.
        self._unsettled: list[Row] = []
        self.left_out = 0
        """Messages of calls that are not in ``take_counted`` because there are too many kinds of calls."""
        self._now_ms = now_ms
        self._slot = now_ms // _WINDOWS[0][0]
        self._next_sweep_ms = now_ms + _SWEEP_MS
        self._to_sweep: list[_Key] = []
        self._next_row_sweep_ms = now_ms + _ROW_SWEEP_MS
        self._rows_to_sweep: list[_RowKey] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, name: str, key: str, count: int, *, topic: str = "", group: str = "") -> None:
        """Count: ``count`` messages or bytes of one call."""
        item = self._item(name, key, topic, group)
        if item is not None:
            item.sum += count
            item.calls += 1

    def _item(self, name: str, key: str, topic: str, group: str) -> StatsItem | None:
        """Return a counter, made now if need be and brought up to date; None when there are too many."""
        item = self._items.get((name, key))
        if item is None:
            if len(self._items) >= self._most:
                if not self.refused:
                    logger.warning("statistics full, new topics and groups are not counted limit=%d", self._most)
                self.refused += 1
                return None
            owners = (topic if name in _OF_TOPIC else "", group if name in _OF_GROUP else "")
            item = self._items[name, key] = StatsItem(self._now_ms, *owners)
            self._items_of_topic.add(item.topic, (name, key))
            self._items_of_group.add(item.group, (name, key))
        elif item.minute_slot != self._slot:
            item.roll(self._now_ms)
        return item

    def _count_first(
        self, call: Call, keys: list[_Key], size_keys: list[_Key], messages: int, size: int, calls: int = 1
    ) -> None:
        """Count calls whose counters are looked up one by one; the next like it finds them in one step."""
        counted = [item for key in keys if (item := self._item(*key, call.topic, call.group)) is not None]
        sized = [item for key in size_keys if (item := self._item(*key, call.topic, call.group)) is not None]
        row = Row(call, counted, sized)
        if len(counted) + len(sized) == len(keys) + len(size_keys) and len(self._rows) < self._most:
            self._rows[call] = row
            self._rows_of_topic.add(call.topic, call)
            self._rows_of_group.add(call.group, call)
        else:
            row.span = self._span  # not in take_counted: each such call would add a row
            self.left_out += messages
        self.count(row, messages, size, calls)

    def row_of_get(self, group: str, topic: str, *, source: str, host: str) -> Row | None:
        """Return where ``note_get`` counts, for ``count``; None when it has not counted such a call, or by queue."""
        return None if self.by_queue else self._rows.get((GROUP_GET_NUMS, group, topic, source, host, -1))

    def row_of_put(self, topic: str, *, source: str, host: str) -> Row | None:
        """Return where ``note_put`` counts, as ``row_of_get``."""
        return None if self.by_queue else self._rows.get((TOPIC_PUT_NUMS, "", topic, source, host, -1))

    def count(self, row: Row, messages: int, size: int, calls: int = 1) -> None:
        """Count calls; the counters are raised by all calls of some time at once."""
        if not row.calls:
            self._unsettled.append(row)
        row.calls += calls
        row.new_messages += messages
        row.new_bytes += size

    def _settle(self) -> None:
        """Raise the counters by what was counted since the last time: before a slot ends, or anybody reads."""
        for row in self._unsettled:
            for items, count in ((row.messages, row.new_messages), (row.bytes, row.new_bytes)):
                for item in items:
                    if item.minute_slot != self._slot:
                        item.roll(self._now_ms)
                    item.sum += count
                    item.calls += row.calls
            if self._is_recorded and row.span != self._span:
                row.span = self._span
                row.counted = Counted(row.call)
                self._counted.append(row.counted)
            row.counted.messages += row.new_messages
            row.counted.bytes += row.new_bytes
            row.calls = row.new_messages = row.new_bytes = 0
            row.is_idle = False
        self._unsettled.clear()

    def take_counted(self) -> list[Counted]:
        """Return what each kind of call counted since the last time; it is then forgotten here, however much it is."""
        self._settle()
        taken, self._counted = self._counted, []
        self._span += 1
        return taken

    def note_put(
        self,
        topic: str,
        messages: int,
        body_bytes: int,
        *,
        source: str,
        host: str = "",
        queue_id: int = -1,
        calls: int = 1,
    ) -> None:
        """Count messages of one topic that were appended for ``calls`` calls."""
        place = queue_id if self.by_queue else -1
        call = (TOPIC_PUT_NUMS, "", topic, source, host, place)
        known = self._rows.get(call)
        if known is not None:
            self.count(known, messages, body_bytes, calls)
            return
        keys = [(BROKER_PUT_NUMS, self.broker_key), (SOURCE_PUT_NUMS, source)]
        size_keys = []
        if host:
            keys.append((HOST_PUT_NUMS, host))
        is_lasting = not topic.endswith(EPHEMERAL_SUFFIX)
        if is_lasting:
            keys.append((TOPIC_PUT_NUMS, topic))
            size_keys.append((TOPIC_PUT_SIZE, topic))
        if is_lasting and place >= 0:
            keys.append((QUEUE_PUT_NUMS, f"{topic}@{place}"))
            size_keys.append((QUEUE_PUT_SIZE, f"{topic}@{place}"))
        self._count_first(Call(*call), keys, size_keys, messages, body_bytes, calls)

    def note_get(
        self, group: str, topic: str, messages: int, size: int, *, source: str, host: str = "", queue_id: int = -1
    ) -> None:
        """Count messages of one topic that a group was given."""
        place = queue_id if self.by_queue else -1
        call = (GROUP_GET_NUMS, group, topic, source, host, place)
        known = self._rows.get(call)
        if known is not None:
            self.count(known, messages, size)
            return
        key = f"{topic}@{group}"
        keys = [(GROUP_GET_NUMS, key), (BROKER_GET_NUMS, self.broker_key), (SOURCE_GET_NUMS, source)]
        size_keys = [(GROUP_GET_SIZE, key)]
        if host:
            keys.append((HOST_GET_NUMS, host))
        if place >= 0:
            keys.append((QUEUE_GET_NUMS, f"{topic}@{place}@{group}"))
            size_keys.append((QUEUE_GET_SIZE, f"{topic}@{place}@{group}"))
        self._count_first(Call(*call), keys, size_keys, messages, size)

    def note_channel_get(
        self, channel: str, topic: str, messages: int, size: int, *, source: str, host: str = "", calls: int = 1
    ) -> None:
        """Count messages of one topic that a channel delivered in ``calls`` writes, by source and host."""
        call = (CHANNEL_GET_NUMS, channel, topic, source, host, -1)
        known = self._rows.get(call)
        if known is not None:
            self.count(known, messages, size, calls)
            return
        keys = [(BROKER_GET_NUMS, self.broker_key), (SOURCE_GET_NUMS, source)]
        if host:
            keys.append((HOST_GET_NUMS, host))
        self._count_first(Call(*call), keys, [], messages, size, calls)

    def note_send_back(self, group: str, topic: str) -> None:
        """Count a message that a group sent back to be tried again (A-BROKER-34)."""
        call = (SNDBCK_PUT_NUMS, group, topic, GROUPS_SOURCE, "", -1)
        known = self._rows.get(call)
        if known is not None:
            self.count(known, 1, 0)
        else:
            self._count_first(Call(*call), [(SNDBCK_PUT_NUMS, f"{topic}@{group}")], [], 1, 0)

    def note_lag(self, group: str, topic: str, queue_id: int, size: int) -> None:
        """Count how far behind the log's end, in bytes, a group read a queue."""
        if self.by_queue:
            self.add(GROUP_GET_FALL_SIZE, f"{queue_id}@{topic}@{group}", size, topic=topic, group=group)

    def snapshot(self, name: str, key: str) -> StatsSnapshot | None:
        """Return a counter's windows; None when there is none."""
        self._settle()
        item = self._items.get((name, key))
        return None if item is None else item.snapshot(self._now_ms)

    def keys(self, name: str) -> list[str]:
        """Return the keys for which a name is counted."""
        return [key for own, key in self._items if own == name]

    def remove_topic(self, topic: str) -> None:
        """Forget the counters of a topic that is deleted."""
        self._remove(self._items_of_topic.of(topic), self._rows_of_topic.of(topic))

    def remove_group(self, group: str) -> None:
        """Forget the counters of a group that is deleted."""
        self._remove(self._items_of_group.of(group), self._rows_of_group.of(group))

    def _forget_rows(self) -> None:
        """A counter of some row goes: all are looked up again."""
        self._rows.clear()
        self._rows_of_topic.clear()
        self._rows_of_group.clear()
        self.rows_version += 1

    def _remove(self, items: list[_Key], rows: list[_RowKey]) -> None:
        """Forget counters and the rows that raise them; other rows stay, so that each is one in ``take_counted``."""
        self._settle()
        for key in items:
            self._drop_item(key)
        for row in rows:
            self._drop_row(row)
        self.rows_version += 1

    def _drop_item(self, key: _Key) -> None:
        item = self._items.pop(key)
        self._items_of_topic.discard(item.topic, key)
        self._items_of_group.discard(item.group, key)

    def _drop_row(self, key: _RowKey) -> None:
        call = self._rows.pop(key).call
        self._rows_of_topic.discard(call.topic, key)
        self._rows_of_group.discard(call.group, key)

    def tick(self, now_ms: int) -> None:
        """Let time pass; now and then forget counters that were idle for a day."""
        slot = now_ms // _WINDOWS[0][0]
        # Time within a slot changes nothing: where few kinds of calls are many, each is settled once for all of them.
        if (
            slot != self._slot
            or len(self._unsettled) >= _SETTLE_ROWS
            or self._to_sweep
            or now_ms >= self._next_sweep_ms
        ):
            self._settle()
        self._now_ms = now_ms
        self._slot = slot
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + _SWEEP_MS
            self._to_sweep = list(self._items)
        if self._to_sweep:
            for key in self._to_sweep[-_SWEEP_AT_ONCE:]:
                item = self._items.get(key)
                if item is not None and item.is_idle(now_ms):
                    self._drop_item(key)
                    self._forget_rows()
            del self._to_sweep[-_SWEEP_AT_ONCE:]
        self._sweep_rows(now_ms)

    def _sweep_rows(self, now_ms: int) -> None:
        """Now and then forget rows without a call for a while: who calls again has them looked up again."""
        if now_ms >= self._next_row_sweep_ms:
            self._next_row_sweep_ms = now_ms + _ROW_SWEEP_MS
            self._rows_to_sweep = list(self._rows)
        before = len(self._rows)
        for call in self._rows_to_sweep[-_SWEEP_AT_ONCE:]:
            row = self._rows.get(call)
            if row is not None and row.is_idle and not row.calls:
                self._drop_row(call)
            elif row is not None:
                row.is_idle = True
        del self._rows_to_sweep[-_SWEEP_AT_ONCE:]
        if len(self._rows) < before:
            self.rows_version += 1
