"""Memory of Arrow columns in the making; arrow_buffers.pyx says how it is used again."""

def spare_bytes() -> int:
    """Return how many bytes this process keeps for batches to come."""
