from collections.abc import Iterable

class QueueFiles:
    """The bounded pool of open consume-queue files of one store.

    Attributes:
        file_bytes: Size of each, a whole number of entries.
    """

    file_bytes: int

    def __init__(self, file_bytes: int, most_open: int) -> None: ...
    def make_first(self, directories: Iterable[str]) -> None:
        """Make the first file of each queue, given by its directory, that has none. Without the GIL: for a thread.

        Raises:
            OSError: one cannot be made; those behind it were not tried.
        """

    def close(self) -> None: ...
