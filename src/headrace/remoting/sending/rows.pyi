"""The body of SEND_SEQUENCED as a batch to append; rows.pyx says how it works."""

from headrace.batch import PublishBatch
from headrace.remoting.sending.send_intake import Limits

def too_large(row: int, body_bytes: int, most: int) -> str:
    """Say that a message's body is above what the broker accepts."""

class RowIntake:
    """Messages of one request. One per event loop: a request is over before the next begins.

    Attributes:
        batch: Entry 0 for the state record (destination 0), then the messages (destination 1).
    """

    def __init__(self, limits: Limits) -> None: ...
    @property
    def batch(self) -> PublishBatch: ...
    def take(self, body: bytes, expected: int, skip: int, born_ms: int, sys_flag: int) -> int:
        """Take the messages of a body but for the first ``skip``; forget what was there before.

        Returns:
            -1, or the number of the first row that asks for more than a place in a queue: the batch is of no use then.

        Raises:
            ProtocolError: not fatal; the lengths do not add up, there are not ``expected`` messages, or one that is
                taken has a longer body than the broker accepts.
        """

    def set_record(self, record: bytes) -> None:
        """Make ``record`` the body of entry 0, and one command of all entries."""

    def clear(self) -> None:
        """Forget the messages and what they borrow from."""
