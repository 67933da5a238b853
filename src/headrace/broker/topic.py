"""A topic: its queues, its channels, and how far messages have been offered to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.broker.channels.channel import Channel
from headrace.store.queue_base import QueueBase

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
"""A topic that a send makes may take its configuration from this one."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic offers its clients. The core keeps it; who serves a protocol enforces it.

    Attributes:
        read_queues: Consumers are told of so many queues. With fewer than ``write_queues`` some are never read; one
            reads a topic empty before its queues become fewer by lowering ``write_queues`` first.
        write_queues: Producers are told of so many queues.
        perm: The sum of ``PERM_READ``, ``PERM_WRITE`` and ``PERM_INHERIT``.
        sys_flag: Opaque to us (RocketMQ: topicSysFlag).
        order: Whether clients were promised that a key stays with its queue.
        filter_type: Opaque to us: "SINGLE_TAG" or "MULTI_TAG".
    """

    read_queues: int
    write_queues: int
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    filter_type: str = "SINGLE_TAG"

    @property
    def queues(self) -> int:
        """Queues the topic must have."""
        return max(self.read_queues, self.write_queues)


class Topic:
    """One topic of this broker.

    ``queues`` never becomes shorter: ``config`` may tell clients of fewer, but what is in the others stays readable.

    ``frozen`` is the fan-out position (one queue offset per queue) while it stands still, because the topic is paused
    or has no channel; None while it follows the end of the queues. Messages between it and the end are the topic's
    own depth.

    ``consumed`` has the channels that have a consumer: what is published gives the others nothing to do.

    ``is_system``: the broker has it whether or not anybody made it.
    """

    def __init__(
        self,
        name: str,
        queues: Sequence[QueueBase],
        *,
        ephemeral: bool,
        paused: bool,
        frozen: list[int] | None,
        config: TopicConfig | None = None,
        is_system: bool = False,
    ) -> None:
        self.name = name
        self.queues = list(queues)
        self.ephemeral = ephemeral
        self.paused = paused
        self.frozen = frozen
        self.config = config or TopicConfig(len(self.queues), len(self.queues))
        self.is_system = is_system
        self.channels: dict[str, Channel] = {}
        self.consumed: dict[Channel, None] = {}
        self.message_count = 0
        self.message_bytes = 0
        self.dropped: list[int] = []
        """Where it was emptied last, while channels had what they had: empty when it never was."""
        self.awaited_answers = 0
        """Questions which channels it should have had from its start: one made meanwhile may be among them."""
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

    def lasting(self, frozen: list[int] | None, without: Channel | None = None) -> list[int] | None:
        """Return the frozen position as a start must find it: ephemeral channels do not come back.

        A topic without a durable channel holds what is published, but for what all its ephemeral ones have finished
        and what lies below the position at which it was emptied.
        """
        others = [channel for channel in self.channels.values() if channel is not without]
        if frozen is not None or not all(channel.ephemeral for channel in others):
            return frozen
        return [
            max(at, min(channel.position(queue.queue_id)[0] for channel in others))
            for queue, at in zip(self.queues, self._dropped_below(), strict=True)
        ]

    def beginnings(self) -> list[int]:
        """Return where each queue begins to have what was published to the topic, but for what emptying it dropped."""
        return [max(queue.min_offset, at) for queue, at in zip(self.queues, self._dropped_below(), strict=True)]

    def _dropped_below(self) -> list[int]:
        return [*self.dropped, *[0] * (len(self.queues) - len(self.dropped))]

    def queue(self, queue_id: int) -> QueueBase | None:
        """Return a queue, None if the topic has none of that id."""
        return self.queues[queue_id] if 0 <= queue_id < len(self.queues) else None

    def queue_or_other(self, queue_id: int) -> QueueBase:
        """Return the queue that a stored message is for; another where the topic was made again with fewer."""
        return self.queue(queue_id) or self.pick_queue()

    def pick_queue(self) -> QueueBase:
        """Return the queue for the next batch of a publisher that names none: each that may be written to in turn."""
        if len(self.queues) == 1:
            return self.queues[0]
        self._next_queue = (self._next_queue + 1) % (self.config.write_queues or len(self.queues))
        return self.queues[self._next_queue]

    def configure(self, config: TopicConfig, added: Sequence[QueueBase], start: Sequence[int]) -> None:
        """Take a new configuration and the queues it needs; the channels get those from ``start`` on."""
        self.config = config
        for queue, at in zip(added, start, strict=True):
            queue.owner = self
            self.queues.append(queue)
            for channel in self.channels.values():
                channel.add_queue(queue, at)
        if self.frozen is not None:
            self.frozen = [*self.frozen, *start]
        self.limit_channels()

    def limit_channels(self) -> None:
        """Let the channels read up to the frozen position while the topic is paused, else to the end."""
        for channel in self.channels.values():
            self.limit_channel(channel)

    def limit_channel(self, channel: Channel) -> None:
        """Do so for one channel."""
        for queue, at in zip(self.queues, self.frozen or [-1] * len(self.queues), strict=True):
            channel.set_limit(queue.queue_id, at if self.paused else -1)
