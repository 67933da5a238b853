from headrace.format.record import DecodedRecord

END: int
"""The segment is through."""
INVALID: int
"""No whole record begins at ``position``; ``found`` says why."""
NEW_QUEUE: int
"""The record at hand is of a queue not yet added: ``claims(position)`` names it."""
FETCH: int
"""Entries from ``queue_offset`` on are wanted for queue ``track``: ``put_entries``."""
GAP: int
"""The record skips queue offsets: ``accept_offset``."""
REPEAT: int
"""The record has a queue offset that came before: ``skip_record``."""
WRONG_ENTRY: int
"""The entry is there and does not point at the record: ``judge_entry``."""
MISSING: int
"""A run of missing entries ended: ``take_missing``."""
PROGRESS: int
"""Another stretch is done."""
UNREADABLE: int
"""A read failed: ``read_errno``."""

class LogWalk:
    """A walk over the segments of a log, one after the other; see the module's text for its protocol."""

    segment_bytes: int
    promised_offset: int
    """Entries of records that end at or below this physical offset must be there; later ones may be missing."""
    records: int
    position: int
    first_offset: int
    found: int
    record_bytes: int
    queue_offset: int
    track: int
    track_count: int
    command_offset: int
    command_records: int
    last_offset: int
    """Physical offset of the record that was met last, -1 before."""
    last_command: int
    """Where the command begins that was open in front of its end, -1 without one; ``last_records`` of it were met."""
    last_records: int
    lost_checksum: bool
    """Whether it has no checksum of the whole record, and the one before it has: not all of its end was written."""
    def __init__(self, segment_bytes: int, promised_offset: int) -> None: ...
    def open(self, path: str, first_offset: int) -> None:
        """Go to the beginning of a segment.

        Raises:
            OSError: it cannot be opened.
        """
    def close(self) -> None: ...
    def reread(self) -> None:
        """Forget what was read ahead: the file may have grown."""
    def stop_at(self, position: int) -> None:
        """Let the segment end there: an epoch ended in it."""
    def seek(self, position: int) -> None:
        """Go on behind what was lost or left out; a command that is open ends there."""
    def walk(self) -> int:
        """Check records from ``position`` on until an event; return it."""
    def add_queue(self, topic: bytes, queue_id: int, compare_tags: bool = True) -> int:
        """Track a queue; return its index."""
    def wanted_entries(self, index: int) -> int: ...
    def put_entries(self, index: int, first_offset: int, raw: bytes) -> None: ...
    def entry(self, index: int, queue_offset: int) -> bytes: ...
    def accept_offset(self, index: int, queue_offset: int) -> None:
        """Go on with ``queue_offset`` as if it were the one expected."""
    def begin_anew(self, index: int, queue_offset: int) -> None:
        """Forget what a queue had before: its topic was deleted, and this is one of the same name."""
    def skip_record(self) -> None:
        """Step over the record at hand without a look at its queue."""
    def judge_entry(self) -> None:
        """Do not compare the entry of the record at hand again."""
    def take_missing(self, index: int) -> tuple[int, int]:
        """Return and forget the run (first queue offset, count) of missing entries."""
    def totals(self, index: int) -> tuple[int, int]:
        """Return (next queue offset, pending entries) of one queue."""
    def last_position(self, index: int) -> int:
        """Return the physical offset of the last record of one queue, -1 before there was one."""
    def name(self, index: int) -> tuple[bytes, int]:
        """Return (topic, queue id) of one queue."""
    def read_errno(self) -> int: ...
    def record(self, position: int) -> DecodedRecord | int:
        """Return the whole record at ``position``, or what ``format.record.check`` says of another. Raises: OSError."""
    def find(self, position: int) -> int:
        """Return the first position at or behind ``position`` where a whole record of this segment begins, or -1."""
    def has_bytes_behind(self, position: int) -> bool:
        """Return whether any byte at or behind ``position`` is not zero. Raises: OSError."""
    def is_whole_elsewhere(self, position: int) -> int:
        """Return the size of the record at ``position`` if all is right but its place, else 0."""
    def claims(self, position: int) -> DecodedRecord | None:
        """Return what the fields of a record say, which may be damaged; None if they do not add up."""
