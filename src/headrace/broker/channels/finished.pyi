class FinishedSet:
    """A set of queue offsets that is complete below a floor.

    Members above the floor are a paged bitmap: one bit per offset, pages of 32,768 offsets allocated when the first
    offset of a page joins and collapsed to a flag when the last one does. Joining in order touches no page at all.
    """

    @property
    def floor(self) -> int:
        """The lowest offset that is not a member."""
    @property
    def ahead(self) -> int:
        """How many members lie above the floor."""
    def __init__(self, floor: int = 0, *, records_changes: bool = True) -> None: ...
    def __contains__(self, offset: int) -> bool: ...
    def finish(self, offset: int) -> bool:
        """Add one offset; False when it was a member already."""
    def finish_range(self, start: int, end: int) -> int:
        """Add every offset of [start, end); return how many were not members."""
    def count_between(self, start: int, end: int) -> int:
        """How many members lie in [start, end)."""
    def lift(self, floor: int) -> int:
        """Make every offset below ``floor`` a member; return how many were not."""
    def cut(self, end: int) -> int:
        """Remove every member at or above ``end``; return how many there were."""
    @property
    def memory_bytes(self) -> int: ...
