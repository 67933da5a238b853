"""Plain sends of one read, as a batch to append and as replies to encode; send_intake.pyx says how it works."""

from collections.abc import Container
from typing import Final

from headrace.batch import PublishBatch

SentMessage = tuple[bytes, bytes, int, int, int, int, int, int]

class Limits:
    """What a client may ask for; one per server.

    Attributes:
        topics: The topics that exist, by name; looked at anew for each read.
    """

    max_frame_bytes: Final[int]
    max_message_bytes: Final[int]
    topics: Final[Container[str]]
    cluster: Final[bytes]
    def __init__(
        self,
        topics: Container[str],
        *,
        cluster: bytes = b"DefaultCluster",
        max_frame_bytes: int = 16_777_216,
        max_message_bytes: int = 4_194_304,
    ) -> None: ...

class SendIntake:
    """Plain sends that wait to be appended and answered. One per event loop.

    Attributes:
        batch: Their messages; ``batch.destinations`` holds (topic, queue id), -1 where the broker chooses.
            The caller puts the queue of each into ``batch.queues``, None for a destination it refuses.
    """

    batch: Final[PublishBatch]
    @property
    def sends(self) -> int:
        """Requests, one-way ones included."""

    def sent(self, index: int) -> tuple[int, int, bool, str, int, list[SentMessage]]:
        """Return a copy of one send: (opaque, serialize type, one-way, topic, queue id, messages).

        A message is (body, properties, tag hash, flag, sysFlag, born ms, reconsumeTimes, command_entries).
        """

    def refuse(self, destination: int, code: int, remark: str) -> None:
        """Have the sends to one destination answered with a failure."""

    def encode_replies(self, store_host: bytes) -> bytes:
        """Encode a response to every send that wants one, after the append.

        Args:
            store_host: Address (4 or 16 bytes) and i32 port of this broker, as records have it.
        """

    def encode_failure(self, code: int, remark: str) -> bytes:
        """Encode the same failure for every send that wants an answer."""

    def clear(self) -> None:
        """Forget the sends; what their bytes were borrowed from may be used again."""
