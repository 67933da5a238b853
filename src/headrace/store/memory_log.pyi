from headrace.batch import PublishBatch
from headrace.store.queue_base import QueueBase

class MemoryLog:
    """A log that is never on disk: for ``#ephemeral`` topics. Holds the newest messages up to two bounds."""

    max_messages: int
    max_bytes: int
    held_bytes: int
    evicted_messages: int
    def __init__(self, max_messages: int, max_bytes: int, now_ms: int = 0) -> None: ...
    def append(self, batch: PublishBatch, now_ms: int) -> int:
        """Append the entries whose queue belongs to this log; return how many messages had to go for them."""
    def clear(self) -> None:
        """Let go of all messages, uncounted: the topic has ended."""

class MemoryQueue(QueueBase):
    """The one queue of an ephemeral topic."""

    def __init__(self, topic: str, queue_id: int, log: MemoryLog) -> None: ...
