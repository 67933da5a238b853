class Flusher:
    """A thread that calls fdatasync, one request after the other, and a pipe that tells of the results."""

    done_read: int
    def __init__(self) -> None: ...
    def request(self, target: int, fd: int) -> bool:
        """Ask for fdatasync of a file; ``target`` comes back with the result.

        Returns:
            True if there will be another result for it; False where the last request is for the same file and was not
            begun yet: it has this target now. Blocks only while the line of requests is full.
        """
    def take_result(self) -> tuple[int, int, float]:
        """Wait for the next result, in the order of the requests: (target, errno or 0, seconds)."""
    def close(self) -> None:
        """End the thread after the requests already made."""
