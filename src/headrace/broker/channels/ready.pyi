class ReadyRing:
    """First in, first out: messages that are ready again after a requeue, a time-out or a delay."""

    @property
    def count(self) -> int: ...
