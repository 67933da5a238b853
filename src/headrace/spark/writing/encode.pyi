"""Rows to messages: Arrow buffers to the batch encoding of RocketMQ. encode.pyx says how it works."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

MAX_PROPERTIES: Final[int]
"""Bytes of all properties of a message; the broker adds its own to them."""
MAX_ROWS: Final[int]
"""Rows of a partition."""

Resolve = Callable[[str], tuple[int, int, Sequence[int]]]
"""Called with a topic; returns the number of its queues on all brokers together, the index of the queue for rows that
do not say where they go (-1: as the hash of their unique key says), and for each queue id the index of its queue, -1
where there is none."""

Sealed = tuple[int, int, int, int, int, int, bytes]
"""Destination, number of the first row within that destination, rows, born time in ms (0: not said), system flag (how
the bodies are compressed), number of the first row within the partition, and the request's body."""

def sharding_hash(key: bytes) -> int:
    """Return the number by which a sharding key chooses its queue: that modulo the number of queues.

    FNV-1a of 64 bits, finished as in MurmurHash3. It never changes: the order of messages hangs on it.
    """

class Encoder:
    """Encodes the rows of one partition.

    Attributes:
        rows: Rows encoded so far.
        left_out: Properties of maps that are the broker's own, and so were not copied.
        partition: What errors call the partition.
    """

    rows: Final[int]
    left_out: Final[int]
    partition: Final[int]
    def __init__(
        self,
        columns: Mapping[str, int],
        extras: Sequence[tuple[str, int]],
        resolve: Resolve,
        *,
        topic: str | None = None,
        key_prefix: bytes | None = None,
        key_required: bool = False,
        delayed_apart: bool = False,
        partition: int = 0,
        batch_bytes: int = ...,
        batch_rows: int = 10_000,
        stored_bytes: int = 3_670_016,
        max_message_bytes: int = 4_194_304,
        held_bytes: int = ...,
        max_body_bytes: int = 4_194_304,
    ) -> None:
        """Make an encoder.

        Args:
            columns: Role (row_columns.ROLE_NAMES) -> position of its column.
            extras: Name of a property, position of its column.
            topic: Where all rows go; the role topic is then not read.
            key_prefix: What keys are made of, with 12 hexadecimal digits for the row's number, where a row has none.
            key_required: A row without a unique key is an error.
            delayed_apart: Delayed rows, and those above ``max_body_bytes``, have destinations of their own.
            batch_bytes: A body is sealed before it is longer, unless it is one message.
            batch_rows: Most messages of a body, up to 65,535.
            stored_bytes: Most bytes, about, that a body takes in the log.
            max_message_bytes: A longer body is an error.
            held_bytes: All bodies are sealed when they have more together.
            max_body_bytes: The longest plain batch that brokers take; of a row its 22 fixed bytes, body and properties
                count.
        """

    @property
    def held(self) -> int:
        """Bytes that wait to be sealed."""

    def place(self, destination: int) -> tuple[str, int, bool]:
        """Return topic, index of the queue in its route, and whether it is for the rows of ``delayed_apart``."""

    def feed(self, batch: Any) -> list[Sealed]:
        """Encode an Arrow batch (whatever has ``__arrow_c_array__``) and return the bodies that became full.

        Raises:
            InvalidRowError: a row cannot be a message; names row, column and limit. The rows before it are taken, and
                the next batch goes on behind them.
            TypeError: a column has the wrong type.
        """

    def finish(self) -> list[Sealed]:
        """Return the bodies that are left."""
