"""Reading a queue at an offset the reader chooses: what consumer groups do."""

from collections.abc import Iterable
from enum import IntEnum

from headrace.batch import RecordBatch
from headrace.broker.consumers.sql92_evaluation import Filter
from headrace.store.queue_base import QueueBase

class PullStatus(IntEnum):
    """What a read found; the numbers but the last are RocketMQ's, names are what answers carry as their remark."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    COLD = 9
    """The next record must come from the disk and a thread reads it ahead: hold, and read again from
    ``next_offset`` when the store calls ``on_warm``."""

class Codes:
    """The tag hashes of one subscription, made once; with ``tags`` also compared exactly, against collisions."""

    def __init__(self, codes: Iterable[int], tags: Iterable[str] = ()) -> None: ...
    @property
    def tags(self) -> frozenset[bytes]: ...
    def __len__(self) -> int: ...
    def __contains__(self, tag_hash: int) -> bool: ...
    def matches(self, properties: bytes) -> bool:
        """Whether a message with these properties would pass both tests."""

class PullResult:
    """What ``read_queue`` found besides the records."""

    @property
    def status(self) -> PullStatus: ...
    @property
    def next_offset(self) -> int:
        """Where to read on: behind the last entry that was examined, or the corrected offset."""
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int:
        """Where the visible part of the queue ends."""
    @property
    def examined(self) -> int:
        """Entries looked at."""
    @property
    def skipped(self) -> int:
        """Entries passed over because their record is damaged, removed or was never there."""
    def __init__(self, status: PullStatus, next_offset: int, min_offset: int, max_offset: int) -> None: ...

def read_queue(
    queue: QueueBase | None,
    from_offset: int,
    max_messages: int,
    max_bytes: int,
    codes: Codes | None,
    matcher: Filter | None,
    into: RecordBatch,
) -> PullResult:
    """Add the records of ``queue`` from ``from_offset`` on that pass the filters to ``into``.

    One pass examines 800 entries when it filters (4,000 while nothing matched), 4,000 when it does not, and shows
    fewer records to a ``matcher`` that has many ``steps``, or where properties are long: some milliseconds' worth, and
    one record at least, for which a hostile expression may take some ten times as long. So it is with records whose tag
    only shares the hash of a wanted one. The first record is added whatever its size. Nothing here waits: see
    ``PullStatus.COLD``.

    Args:
        max_messages: Records to add at most; at least one is added if there is one.
        codes: Tag hashes that pass; None lets all pass.
        matcher: Looks at the properties of what ``codes`` let pass; None lets all pass.

    Ref: remoting.md 3.10.
    """

def read_range(
    queue: QueueBase,
    from_offset: int,
    end_offset: int,
    max_messages: int,
    max_bytes: int,
    codes: Codes | None,
    into: RecordBatch,
) -> PullResult:
    """Read on for a bulk reader: as ``read_queue``, but up to ``end_offset``, and 8,192 entries at a time.

    One answer is read by several calls, so that its reader can look at the clock in between: ``into`` holds the records
    of this answer and nothing else, and the bounds are those of all of it. A call that adds nothing and gets no further
    found a bound reached.
    """

def store_time(queue: QueueBase, queue_offset: int) -> int:
    """Return when the message was stored (ms), -1 when it cannot be read. May read the disk: some 100 us."""

def find_offset_by_time(queue: QueueBase, timestamp_ms: int, upper: bool) -> int:
    """Return the queue offset that belongs to a time of storing. May read the disk some 20 times.

    Args:
        upper: False: the first message at or after the time, else the queue's end. True: the last message at or
            before it, else 0.

    Ref: remoting.md 4.5, columns "5.x".
    """
