from typing import Any

class QueueBase:
    """What readers need of a queue, durable or in memory."""

    topic: str
    queue_id: int
    min_offset: int
    next_offset: int
    visible_offset: int
    awaits_flush: bool
    owner: Any
    log: Any
    def entries(self, from_offset: int, most: int) -> list[tuple[int, int, int]]:
        """Return ``most`` entries as (physical_offset, record_bytes, tag_hash).

        Fewer at the end of what is visible, and in front of a file that the system refuses.

        Raises:
            UnreadableError: it refuses the file that has the first of them.
        """

    def position_of(self, queue_offset: int) -> int:
        """Return the physical offset that an entry points at, also of one not visible yet; -1 where there is none.

        Raises:
            UnreadableError: the system refuses the file that has it.
        """
