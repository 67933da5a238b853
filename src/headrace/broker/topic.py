"""A topic: its queues, its channels, and how far messages have been offered to them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.channel import Channel
from headrace.store.consume_queue import QueueBase


class Topic:
    """One topic of this broker.

    ``frozen`` is the fan-out position (one queue offset per queue) while it stands still, because the topic is paused
    or has no channel; None while it follows the end of the queues. Messages between it and the end are the topic's
    own depth.
    """

    def __init__(
        self, name: str, queues: Sequence[QueueBase], *, ephemeral: bool, paused: bool, frozen: list[int] | None
    ) -> None:
        self.name = name
        self.queues = list(queues)
        self.ephemeral = ephemeral
        self.paused = paused
        self.frozen = frozen
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self._next_queue = 0
        for queue in self.queues:
            queue.owner = self

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def depth(self) -> int:
        """Messages that wait in the topic itself."""
        if self.frozen is None:
            return 0
        return sum(
            max(0, queue.visible_offset - max(at, queue.min_offset))
            for queue, at in zip(self.queues, self.frozen, strict=True)
        )

    def ends(self) -> list[int]:
        """Return where each queue goes on: what is published from now on lies at or above."""
        return [queue.next_offset for queue in self.queues]

    def fan_out(self) -> list[int]:
        """Return the positions below which everything was offered to the channels."""
        return self.ends() if self.frozen is None else list(self.frozen)

    def pick_queue(self) -> QueueBase:
        """Return the queue for the next batch of a publisher that names none: each in turn."""
        if len(self.queues) == 1:
            return self.queues[0]
        self._next_queue = (self._next_queue + 1) % len(self.queues)
        return self.queues[self._next_queue]

    def limit_channels(self) -> None:
        """Let the channels read up to the frozen position while the topic is paused, else to the end."""
        for channel in self.channels.values():
            self.limit_channel(channel)

    def limit_channel(self, channel: Channel) -> None:
        """Do so for one channel."""
        for queue, at in zip(self.queues, self.frozen or [-1] * len(self.queues), strict=True):
            channel.set_limit(queue.queue_id, at if self.paused else -1)
