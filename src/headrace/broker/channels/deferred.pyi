from headrace.broker.channels.spill import SpillDirectory

class DeferredSet:
    """Messages that become ready at a time, 24 bytes each.

    The method names without a compiled twin (``defer``, ``take_due``) are for tests and tools.
    """

    max_in_memory: int
    spill: SpillDirectory | None
    @property
    def count(self) -> int:
        """All entries, spilled ones included."""
    @property
    def in_memory(self) -> int: ...
    @property
    def spilled(self) -> int:
        """Entries in files."""
    @property
    def lost_spills(self) -> int:
        """Entries whose spill file could not be read back."""
    @property
    def memory_bytes(self) -> int: ...
    def __init__(self, max_in_memory: int = ..., spill: SpillDirectory | None = None) -> None: ...
    def defer(
        self, now_ms: int, due_ms: int, physical_offset: int, attempts: int, queue_offset: int, queue_id: int
    ) -> None: ...
    def take_due(self, now_ms: int, most: int) -> list[tuple[int, int, int, int, int]]:
        """Move what has come near and take up to ``most`` due entries, earliest first."""
    def wake_ms(self) -> int:
        """Return when take_due() next has something to do, or -1."""
