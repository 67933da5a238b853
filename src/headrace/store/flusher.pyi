class Flusher:
    """A thread that calls fdatasync, and two pipes to it."""

    done_read: int
    def __init__(self) -> None: ...
    def request(self, target: int, fd: int) -> None:
        """Ask for fdatasync of a file; ``target`` comes back with the result."""
    def take_result(self) -> tuple[int, int, float]:
        """Wait for the next result: (target, errno or 0, seconds)."""
    def close(self) -> None: ...
