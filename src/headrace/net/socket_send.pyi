"""``send`` on a socket of the event loop; socket_send.pyx says how."""

def send_now(fd: int, data: bytes) -> int:
    """Return how many bytes the socket took at once; -1 when it is broken, which its next use by the loop tells."""
