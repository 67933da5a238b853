"""Lines in packets: as many whole ones as fit.

Ref: nsq.md 6.1; nsqd 1.3.0, internal/writers/boundary_buffered_writer.go.
"""

from __future__ import annotations


class Packer:
    """Fills packets with lines, in their order."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, line: bytes) -> bytes | None:
        """Put a line into the packet; return the one before when it did not fit there any more.

        A line that is longer than a packet may be has one of its own, as nsqd sends it. The settings admit no prefix
        that makes one (``settings.validate``).
        """
        full = None
        if self._lines and self._size + len(line) > self._most_bytes:
            full = self.take()
        self._lines.append(line)
        self._size += len(line)
        return full

    def take(self) -> bytes:
        """Return the packet as it is and begin another; empty when there is no line in it."""
        packet = b"".join(self._lines)
        self._lines, self._size = [], 0
        return packet
