"""What was written to a connection and its peer does not have: in the transport, and in the system.

The system holds megabytes for a peer that was fast, and takes more from the transport once a third of that is gone.
Over a link that has become slow this is minutes, in which the transport sees nothing move.
"""

from __future__ import annotations

import fcntl
import sys
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the peer's system has not acknowledged; of a transport that is not closed."""
    waiting = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is None:
        return waiting
    try:
        held = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # this system does not tell
        return waiting
    return waiting + int.from_bytes(held, sys.byteorder)
