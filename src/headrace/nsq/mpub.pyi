from headrace.batch import PublishBatch

def split_lines(batch: PublishBatch, body: bytes, most_message_bytes: int, deliver_at_ms: int) -> int:
    """Add each line of ``body`` to ``batch`` as one message for destination 0; return how many.

    Empty lines are left out, the last line needs no newline, and a carriage return belongs to its message.

    Raises:
        ProtocolError: ``MSG_TOO_BIG``, a line is longer than ``most_message_bytes``. The batch is then empty.

    Ref: nsq.md 3.2, "/mpub modes", text.
    """

def split_counted(
    batch: PublishBatch, body: bytes, most_message_bytes: int, most_messages: int, deliver_at_ms: int
) -> int:
    """Add the counted messages of ``body`` to ``batch``, all for destination 0; return how many.

    Layout (big-endian, lengths signed): count i32 | (length i32 | bytes) * count. Ignores what follows, as nsqd.

    Raises:
        ProtocolError: ``BAD_BODY`` (no count, or not 1..``most_messages``) or ``BAD_MESSAGE`` (a length that is not
            1..``most_message_bytes``, or a body cut short). The batch is then empty.

    Ref: nsq.md 1.7, 3.2, "/mpub modes", binary.
    """
