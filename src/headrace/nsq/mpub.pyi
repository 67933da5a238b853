from headrace.batch import PublishBatch

class MpubBody:
    """The messages of one body. Made by ``read_lines`` and ``read_counted``."""

    left: int
    """Messages that are not given out yet."""

    def take(self, batch: PublishBatch, most_messages: int, deliver_at_ms: int) -> int:
        """Add the next messages, at most so many, to an empty ``batch`` as one command for destination 0.

        Returns:
            How many; 0 when all are given out.
        """

def read_lines(body: bytes, most_message_bytes: int) -> MpubBody:
    """Check a body each line of which is a message.

    Empty lines are left out, the last line needs no newline, and a carriage return belongs to its message.

    Raises:
        ProtocolError: ``MSG_TOO_BIG``, a line is longer than ``most_message_bytes``.

    Ref: nsq.md 3.2, "/mpub modes", text.
    """

def read_counted(body: bytes, most_message_bytes: int, most_messages: int) -> MpubBody:
    """Check a body of counted messages.

    Layout (big-endian, lengths signed): count i32 | (length i32 | bytes) * count. Ignores what follows, as nsqd.

    Raises:
        ProtocolError: ``BAD_BODY`` (no count, or not 1..``most_messages``) or ``BAD_MESSAGE`` (a length that is not
            1..``most_message_bytes``, or a body cut short).

    Ref: nsq.md 1.7, 3.2, "/mpub modes", binary.
    """
