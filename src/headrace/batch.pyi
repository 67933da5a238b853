from typing import Any

class PublishBatch:
    """Messages to append, borrowed from a codec's receive buffer.

    ``destinations`` is what the codec names (one key per destination, such as a topic's name), ``queues`` what the
    caller resolves them to; the store appends by the latter and fills in where each message went. Where a queue is None
    the destination was refused: its entries are passed over.
    """

    count: int
    body_bytes: int
    destinations: list[Any]
    queues: list[Any]
    owner: Any
    born_host: int
    born_host_v6: bytes | None
    uses_reserve: bool
    """Whether it may fill what a full log keeps free at its end: for what an operator asks for."""
    def __len__(self) -> int: ...
    def append(
        self,
        body: bytes,
        destination: int = 0,
        *,
        properties: bytes | None = None,
        tag_hash: int = 0,
        deliver_at_ms: int = 0,
        command_entries: int = 1,
        born_ms: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        born_host: int = 0,
        born_v6: bytes | None = None,
    ) -> None:
        """Add one message; the batch keeps ``body``, ``properties`` and ``born_v6`` alive until ``clear()``.

        Args:
            command_entries: How many entries the command has that begins with this one; 0 inside a command.
            born_ms: When its producer made it, ms since 1970; 0 for the time at which it is stored.
            sys_flag: The record's; the bits that say whether the hosts are IPv6 are set from the hosts.
            prepared_offset: Physical offset of the half message that it commits or rolls back.
            born_host: IPv4 address << 32 | port of its producer; 0 for the batch's.
            born_v6: 16 address bytes and an i32 port; wins over ``born_host``; None for the batch's.

        Raises:
            ValueError: ``born_v6`` has not 20 bytes.
        """
    def placed(self, index: int) -> tuple[int, int, int]:
        """Return where the store put entry ``index``: (physical_offset, queue_offset, record_bytes).

        The physical offset is -1 where the destination was refused.
        """
    def totals(self) -> list[tuple[int, int]]:
        """Return (messages, body bytes) per destination."""
    def delayed(self) -> list[tuple[int, int, int, int]]:
        """Return (destination, queue_offset, physical_offset, deliver_at_ms) of each stored entry that has a delay."""
    def clear(self) -> None:
        """Forget the entries and let go of what they borrowed."""

class CopiedBatch(PublishBatch):
    """Messages of several batches, copied so that they outlive what these borrowed from. Its memory does not grow."""

    def __init__(self, memory_bytes: int) -> None: ...
    def take(self, source: PublishBatch, places: list[int]) -> bool:
        """Add a copy of every entry; return False, having added none, if there is no room.

        An entry that has no born host of its own gets that of ``source``.

        Args:
            places: Which of the ``destinations`` here, which the caller fills, each destination of ``source`` is.
        """

    def part(self, first: int, count: int) -> PublishBatch:
        """Return a batch of ``count`` entries, all for the destination of the first; it borrows from this one.

        Raises:
            IndexError: there are not so many.
        """

class RecordBatch:
    """Records to deliver, borrowed from mapped segments until ``clear()``.

    Attributes:
        verifies: The log verifies the checksum of each record that it adds, also of those this process wrote: for
            records that are stored again, as a copy of damaged bytes would get a checksum that vouches for them.
    """

    count: int
    record_bytes: int
    verifies: bool
    def __init__(self, *, verifies: bool = False) -> None: ...
    def __len__(self) -> int: ...
    def body(self, index: int) -> bytes:
        """Return a copy of one body."""
    def record(self, index: int) -> bytes:
        """Return a copy of one whole record."""
    def position(self, index: int) -> tuple[int, int, int, int]:
        """Return (queue_id, queue_offset, physical_offset, attempts) of one record."""
    def clear(self) -> None:
        """Forget the views and unpin their segments."""

class SettleBatch:
    """One socket read's worth of FIN, REQ and TOUCH."""

    count: int
    def __len__(self) -> int: ...
    def append(self, kind: int, message_id: int, delay_ms: int = 0) -> None:
        """Add one operation: kind 0 finish, 1 requeue, 2 touch."""
    def result(self, index: int) -> tuple[int, int, int]:
        """Return (kind, message_id, result) of one operation; result 0 is success."""
    def clear(self) -> None:
        """Forget the operations."""
