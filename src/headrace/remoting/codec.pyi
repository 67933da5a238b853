"""RocketMQ remoting without I/O: socket reads to batches of messages and commands, replies to frames.

codec.pyx says how it works.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.batch import RecordBatch
from headrace.errors import ProtocolError
from headrace.net.stream_input import StreamInput
from headrace.remoting.sending.send_intake import Limits as Limits
from headrace.remoting.sending.send_intake import SendIntake as SendIntake

class Command:
    """A request or a response.

    Attributes:
        code: Request code, or response code of a response.
        flag: Bit 0: response; bit 1: one-way request.
        language: Name, as the peer gave it; of a number that we know, its name; empty when missing.
        serialize: 0 JSON, 1 ROCKETMQ, 2 JSON in SmartGo's spelling: how its header is written, and how the answer's has
            to be. The names of ``ext`` are RocketMQ's in each.
        remark: Empty when missing.
    """

    code: Final[int]
    language: Final[str]
    version: Final[int]
    opaque: Final[int]
    flag: Final[int]
    serialize: Final[int]
    remark: Final[str]
    ext: Final[dict[str, str]]
    body: Final[bytes]
    is_response: Final[bool]
    is_oneway: Final[bool]
    def __init__(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        opaque: int = 0,
        flag: int = 0,
        version: int = 409,
        language: str = "PYTHON",
        serialize: int = 0,
        remark: str | None = None,
    ) -> None: ...

class PullRequest:
    """PULL_MESSAGE or LITE_PULL_MESSAGE with every required field in its range (remoting.md 4.4).

    Attributes:
        subscription: None when missing; so is expression_type.
        max_message_bytes: 0 when missing (5.x sends it).
    """

    code: Final[int]
    version: Final[int]
    opaque: Final[int]
    serialize: Final[int]
    language: Final[str]
    is_oneway: Final[bool]
    consumer_group: Final[str]
    topic: Final[str]
    queue_id: Final[int]
    queue_offset: Final[int]
    max_messages: Final[int]
    max_message_bytes: Final[int]
    sys_flag: Final[int]
    commit_offset: Final[int]
    suspend_timeout_ms: Final[int]
    sub_version: Final[int]
    subscription: Final[str | None]
    expression_type: Final[str | None]
    @property
    def has_commit_offset(self) -> bool:
        """sysFlag bit 1: commit_offset is to be stored."""

    @property
    def may_suspend(self) -> bool:
        """sysFlag bit 2: the answer may wait until there is a message."""

    @property
    def has_subscription(self) -> bool:
        """sysFlag bit 4: subscription and expression_type count, not the heartbeat's."""

class UnheldFrameError(ProtocolError):
    """A frame that is longer than there is memory for.

    Attributes:
        command: What it is, without its body; None where its header has not all come.
    """

    command: Final[Command | None]
    def __init__(self, size_bytes: int, command: Command | None) -> None: ...

class Reader(StreamInput):
    """The parsing state of one connection."""

    def __init__(self, limits: Limits) -> None: ...
    def next_command(self, intake: SendIntake) -> Command | PullRequest | None:
        """Parse on; return the command that stopped it, or None when all input was taken or kept.

        Plain sends before that command are in ``intake``; their bytes stay where they are until the next received().

        Raises:
            ProtocolError: the frame is beyond help, and so is the connection; what came before it is in ``intake``.
            UnheldFrameError: the same, for want of memory.
        """

def pull_request(command: Command) -> PullRequest:
    """Return the typed form of a pull that came as a Command: it was signed, or a field is wrong.

    Raises:
        ProtocolError: not fatal; the text names the field.
    """

def add_send(intake: SendIntake, limits: Limits, command: Command) -> bool:
    """Put a send that came as a Command among the plain ones; False when it still is none.

    For whoever has made its topic, or checked its signature: the message then goes the common way.

    Raises:
        ProtocolError: its texts, which were no UTF-8, have grown beyond a header.
    """

def encode_response(
    serialize: int,
    opaque: int,
    code: int,
    remark: str | None = None,
    ext: Mapping[str, Any] | None = None,
    body: bytes | None = None,
) -> bytes:
    """Encode one response. Values of ``ext`` become text, booleans ``true`` and ``false``; None is left out."""

def encode_request(
    serialize: int,
    code: int,
    opaque: int,
    oneway: bool = False,
    ext: Mapping[str, Any] | None = None,
    body: bytes | None = None,
) -> bytes:
    """Encode one request."""

def encode_pull_response(
    pull: PullRequest,
    code: int,
    remark: str,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    records: RecordBatch | None = None,
) -> bytes:
    """Encode the answer to a pull: all four offsets with every code, the records as they lie in the log."""

def encode_records_response(serialize: int, opaque: int, ext: Mapping[str, Any] | None, records: RecordBatch) -> bytes:
    """Encode a successful response whose body is the records, back to back, as they lie in the log."""

def encode_response_head(serialize: int, opaque: int, ext: Mapping[str, Any] | None, body_bytes: int) -> bytes:
    """Encode a successful response up to its body, which the caller sends behind it."""

def decode_command(frame: bytes) -> Command:
    """Decode one whole frame, its length included.

    Raises:
        ProtocolError: it is none, or something follows it.
    """

def decode_batch(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (flag, body, properties string) of each message of a SEND_BATCH_MESSAGE body.

    Layout of one: total i32 | magic i32 | crc i32 | flag i32 | length i32, body | length i16, properties.

    Raises:
        ProtocolError: not fatal; the lengths do not add up.
    """
