"""The receive buffer that all connections of an event loop share.

uvloop asks for a buffer, reads the socket into it and calls ``buffer_updated`` without running anything in between,
so one buffer serves every connection, as long as nobody keeps a view of it after that call. 10,000 idle connections
then hold no buffers at all; only one whose turn is over in the middle of a read (``turns``) keeps the rest of it. The
headroom in front lets a codec put the unfinished command of the previous read right before the new bytes.
"""

from __future__ import annotations

from typing import Final

READ_BYTES: Final = 256 * 1024
SHORT_READ_BYTES: Final = 16 * 1024
"""The most that a read brings while the connections of a server keep much of theirs."""


class ReceiveBuffer:
    """Memory for one socket read at a time.

    Attributes:
        memory: The whole buffer.
        view: Where sockets read to: ``memory`` behind its headroom.
    """

    def __init__(self, headroom_bytes: int, read_bytes: int = READ_BYTES) -> None:
        self.memory = bytearray(headroom_bytes + read_bytes)
        self._headroom_bytes = headroom_bytes
        self.limit(read_bytes)

    def limit(self, read_bytes: int) -> None:
        """Have no read from now on bring more than so many bytes."""
        self.view = memoryview(self.memory)[self._headroom_bytes :][:read_bytes]
