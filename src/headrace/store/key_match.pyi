"""Which records of the log have a key; key_match.pyx says how."""

from headrace.store.segment import Segment

class KeyMatcher:
    """Holds records against one topic, key and time range."""

    def __init__(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int, *, unique: bool = False) -> None:
        """Take what is looked for.

        Args:
            key: Not empty.
            begin_ms: Earliest store time, ms since 1970.
            end_ms: Latest store time.
            unique: The key is a client's message id (UNIQ_KEY). Times do not count then.
        """

    def match(self, candidates: list[tuple[Segment, int]]) -> list[tuple[int, int, int, bool]]:
        """Return those of up to 64 candidates that are whole records with the key, in their order.

        Args:
            candidates: Segments, and physical offsets in them at which a record should begin.

        Returns:
            (physical offset, queue id, queue offset, whether it is prepared or was rolled back) of each.

        Raises:
            OSError: the log cannot be read.
        """
