"""NSQ protocol V2 without I/O; codec.pyx says how it works."""

from typing import Final

from headrace.batch import PublishBatch, RecordBatch, SettleBatch
from headrace.net.stream_input import StreamInput
from headrace.nsq.refusal import RefusedError

COMMAND_NAMES: Final[tuple[str, ...]]
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

class Intake:
    """What one read brought, up to the next command that is neither a publish nor a settle. One per event loop."""

    @property
    def publishes(self) -> PublishBatch: ...
    @property
    def settles(self) -> SettleBatch: ...
    @property
    def publish_commands(self) -> int:
        """PUB, MPUB and DPUB commands in ``publishes``: that many OKs are owed."""

    @property
    def first_publish_name(self) -> str:
        """The name of the first of them."""

    @property
    def requeues_clamped(self) -> int:
        """REQ delays cut to max_req_timeout_ms so far."""

    def clear(self) -> None:
        """Forget the commands; what their bytes were borrowed from may be used again."""

    def drop_settles_behind_publishes(self) -> None:
        """Forget each FIN, REQ and TOUCH that came after a publish: that publish failed and ends the connection."""

    def failures(self) -> list[tuple[int, str, bytes]]:
        """Return the error of each failed settle: (publish commands before it, code, frame data)."""

    def published(self, index: int) -> tuple[str, bytes, int, int]:
        """Return a copy of one publish entry: (topic, body, deliver_at_ms, command_entries)."""

    def settled(self, index: int) -> tuple[str, int, int, int]:
        """Return one settle entry: (command, message_id, delay_ms, publish commands before it)."""

    def command_counts(self) -> dict[str, int]:
        """Return how often each command was taken, by name, since the Intake was made."""

class Reader(StreamInput):
    """The parsing state of one connection.

    Attributes:
        allowed: Bit per command, numbered as in COMMAND_NAMES: may be parsed in this state.
        ignored: Bit per command: swallowed in this state.
        heartbeats_off: The client switched heartbeats off, so SUB is refused.
    """

    allowed: int
    ignored: int
    heartbeats_off: bool

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

def is_valid_name(name: bytes) -> bool:
    """Match ``^[.a-zA-Z0-9_-]+(#ephemeral)?$`` of 1 to 64 bytes: topics and channels alike (nsq.md 1.2)."""

def encode_frame(frame_type: int, data: bytes) -> bytes:
    """Encode one frame: size u32 (of what follows) | frame type u32 | data."""

def encode_messages(batch: RecordBatch, node_id: int) -> bytes:
    """Encode a message frame per record, in one pass.

    Layout of a frame: size u32 | frame type u32 = 2 | timestamp i64 ns | attempts u16 | id: 16 hex digits | body.
    The id is node_id << 48 | physical_offset; attempts stop at 32767.
    """
