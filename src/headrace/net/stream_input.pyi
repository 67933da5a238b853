"""Socket reads of one connection as the input of a parser; stream_input.pyx says how."""

from typing import Final

HEADROOM_BYTES: Final[int]
"""What a receive buffer must keep free in front of a read."""

class StreamInput:
    """What a parser reads from."""

    @property
    def commands(self) -> int:
        """Whole commands taken so far."""

    @property
    def held_bytes(self) -> int:
        """Bytes of an unfinished command."""

    def room(self) -> memoryview | None:
        """Return where the socket must read to instead of the receive buffer, or None."""

    def received(self, memory: bytearray, length: int) -> None:
        """Take ``length`` bytes that were read to room(), or to ``memory`` at HEADROOM_BYTES if that was None.

        Nothing is copied but the beginning of a small unfinished command; the parser must be asked until it has kept
        the rest before ``memory`` is used again.
        """

    @property
    def has_more(self) -> bool:
        """Whether there is input behind the command that the parser has just handed out."""

    def take_rest(self) -> bytes:
        """Return the input behind the command that the parser has just handed out, and forget it.

        For whoever goes on later: it is received again then, as if it had come in another read.
        """

    def discard(self) -> None:
        """Forget all input: the connection is being closed."""
