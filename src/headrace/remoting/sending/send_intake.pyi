"""Plain sends of one read, as a batch to append and as replies to encode; plain_send.pyx says what is one."""

from collections.abc import Container
from typing import Final

from headrace.batch import PublishBatch
from headrace.remoting.sending.held_sends import HeldSends

SentMessage = tuple[bytes, bytes, int, int, int, int, int, int]

HOLD_NONE: Final[int]
HOLD_TIMED: Final[int]
HOLD_HALF: Final[int]

class Limits:
    """What a client may ask for; one per server.

    Attributes:
        topics: The topics that exist, by name; looked at anew for each read.
        frame_setting: The setting that ``max_frame_bytes`` comes from, for the text of a refusal.
        leaves_sends: Whether every send stays a command, plain or not: with access control each is looked at.
        held_sends: What messages may be held for; None where those that ask for it are not plain.
    """

    max_frame_bytes: Final[int]
    frame_setting: Final[str]
    max_message_bytes: Final[int]
    topics: Final[Container[str]]
    cluster: Final[bytes]
    held_sends: Final[HeldSends | None]
    leaves_sends: Final[bool]
    def __init__(
        self,
        topics: Container[str],
        *,
        cluster: bytes = b"DefaultCluster",
        max_frame_bytes: int = 16_777_216,
        frame_setting: str = "",
        max_message_bytes: int = 4_194_304,
        held_sends: HeldSends | None = None,
        leaves_sends: bool = False,
    ) -> None: ...

class SendIntake:
    """Plain sends that wait to be appended and answered. One per event loop.

    Attributes:
        batch: Their messages; ``batch.destinations`` holds (topic, queue id), -1 where the broker chooses.
            The caller puts the queue of each into ``batch.queues``, None for a destination it refuses.
        holds: What the messages of each destination are held for: HOLD_NONE, a delay level, HOLD_TIMED or HOLD_HALF.
            Its queue is then the one where they wait.
        halves: Half messages.
    """

    batch: Final[PublishBatch]
    @property
    def sends(self) -> int:
        """Requests, one-way ones included."""

    def sent(self, index: int) -> tuple[int, int, bool, str, int, list[SentMessage]]:
        """Return a copy of one send: (opaque, serialize type, one-way, topic, queue id, messages).

        A message is (body, properties, tag hash, flag, sysFlag, born ms, reconsumeTimes, command_entries).
        """

    holds: Final[list[int]]
    halves: Final[int]
    def half_places(self) -> list[tuple[int, int, int]]:
        """Return (destination, physical offset, queue offset) of each half message, after the append."""

    def refuse(self, destination: int, code: int, remark: str) -> int:
        """Have the sends to one destination answered with a failure; return how many these are."""

    def untold(self, first: int = 0, count: int = -1) -> tuple[int, str] | None:
        """Return code and remark of the first refused one-way send, whose client gets no answer; None without one."""

    def totals_of(self, first: int = 0, count: int = -1) -> list[tuple[int, int, int, int]]:
        """Return (destination, sends, messages, body bytes) of what ``count`` sends from ``first`` on bring, or all.

        Raises:
            IndexError: there are not so many.
        """

    def encode_replies(self, store_host: bytes, first: int = 0, count: int = -1) -> bytes:
        """Encode a response to every send that wants one, after the append.

        Args:
            store_host: Address (4 or 16 bytes) and i32 port of this broker, as records have it.
            first: The first send that is answered.
            count: How many are; a negative one means all from there on.

        Raises:
            IndexError: there are not so many.
        """

    def clear(self) -> None:
        """Forget the sends; what their bytes were borrowed from may be used again."""

class JointIntake(SendIntake):
    """Sends of several reads, copied so that they outlive what these borrowed from. Its memory does not grow."""

    def __init__(self, memory_bytes: int) -> None: ...
    def join(self, source: SendIntake) -> list[int] | None:
        """Add copies of all that ``source`` has; return the numbers here of its destinations.

        None, having added none, if there is no room.

        Raises:
            ValueError: a message is held.
        """
