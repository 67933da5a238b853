"""NSQ protocol V2 without I/O; codec.pyx says how it works."""

from typing import Final

from headrace.batch import RecordBatch
from headrace.net.stream_input import StreamInput
from headrace.nsq.intake import Intake
from headrace.nsq.refusal import RefusedError

FRAME_RESPONSE: Final[int]
FRAME_ERROR: Final[int]
FRAME_MESSAGE: Final[int]
OK_FRAME: Final[bytes]
HEARTBEAT_FRAME: Final[bytes]
CLOSE_WAIT_FRAME: Final[bytes]
MOST_PUBLISHES: Final[int]
MOST_TOPICS: Final[int]

class Identify:
    """IDENTIFY with its JSON body, not yet decoded."""

    body: Final[bytes]
    def __init__(self, body: bytes) -> None: ...

class Auth:
    """AUTH with its secret."""

    secret: Final[bytes]
    def __init__(self, secret: bytes) -> None: ...

class Sub:
    """SUB with names that are valid."""

    topic: Final[str]
    channel: Final[str]
    def __init__(self, topic: str, channel: str) -> None: ...

class Rdy:
    """RDY with a count within its range."""

    count: Final[int]
    def __init__(self, count: int) -> None: ...

class Cls:
    """CLS."""

class More:
    """No command: what was parsed is for MOST_TOPICS, or has MOST_PUBLISHES, and is to be done before more is.

    To make all the topics that a read has room to name would hold the event loop for too long.
    """

Command = Identify | Auth | Sub | Rdy | Cls

class Limits:
    """What a client may ask for; one per server."""

    max_message_bytes: Final[int]
    max_body_bytes: Final[int]
    max_rdy_count: Final[int]
    max_req_timeout_ms: Final[int]
    def __init__(
        self, *, max_message_bytes: int, max_body_bytes: int, max_rdy_count: int, max_req_timeout_ms: int
    ) -> None: ...

class Reader(StreamInput):
    """The parsing state of one connection.

    Attributes:
        allowed: Bit per command, numbered as in COMMAND_NAMES: may be parsed in this state.
        ignored: Bit per command: swallowed in this state.
        heartbeats_off: The client switched heartbeats off, so SUB is refused.
        magic_seen: The client has said that it speaks this protocol.
    """

    allowed: int
    ignored: int
    heartbeats_off: bool

    @property
    def magic_seen(self) -> bool: ...
    def __init__(self, limits: Limits, allowed: int, ignored: int = 0) -> None: ...
    def next_command(self, run: Intake, now_ms: int) -> Command | More | None:
        """Parse on; return the command that stopped it, or None when all input was taken or kept. More: call again.

        Raises:
            RefusedError: what came before it is in ``run`` and is executed and answered first. If it is not fatal,
                parsing may go on.
        """

    def keep_ready(self, count: int) -> None:
        """Note that RDY was done with this count: while the next one says the same, it is counted and that is all."""

    def forget_ready(self) -> None:
        """Return the next RDY in any case."""

    def cut_short(self) -> RefusedError | None:
        """Return what refuses the command that was begun, if no more input comes; None where nsqd says nothing."""

def encode_frame(frame_type: int, data: bytes) -> bytes:
    """Encode one frame: size u32 (of what follows) | frame type u32 | data."""

def encode_messages(batch: RecordBatch, node_id: int) -> bytes:
    """Encode a message frame per record, in one pass.

    Layout of a frame: size u32 | frame type u32 = 2 | timestamp i64 ns | attempts u16 | id: 16 hex digits | body.
    The id is node_id << 48 | physical_offset; attempts are the channel's, which stop at 32767.
    """
