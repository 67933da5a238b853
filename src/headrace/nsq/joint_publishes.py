"""Small publishes of many clients, appended together: one batch for what one turn of the event loop has read.

A client that waits for each PUB sends one message a read; ``net.joint_turn`` says why they are joined. Each client has
a share of the batch, and is answered as if it had published alone. If the batch is refused each share is tried alone,
so what is wrong with one client's publish does not touch another's.

Ref: docs/adr/0013-joint-publishes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.batch import CopiedBatch, PublishBatch
from headrace.errors import RequestError, StoreError
from headrace.net.joint_turn import MAX_SHARE_BYTES, MEMORY_BYTES, JointTurn
from headrace.nsq.stats import SOURCE

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.statistics import Statistics
    from headrace.net.busy_poll import BusyPoll
    from headrace.nsq.codec import Intake
    from headrace.nsq.connection import NsqConnection


@dataclass(slots=True)
class Share:
    """What one read of one client has in the batch.

    Attributes:
        topic: Of all its messages.
        first: Its first entry of the batch, which has ``messages`` of them.
        commands: PUB, MPUB and DPUB commands in it: that many answers are owed.
        command_name: The name of the first of them.
    """

    client: NsqConnection
    topic: str
    first: int
    messages: int
    body_bytes: int
    commands: int
    command_name: str


class JointPublishes(JointTurn[Share]):
    """One server's."""

    def __init__(self, broker: Broker, statistics: Statistics | None, busy_poll: BusyPoll) -> None:
        super().__init__()
        self._broker = broker
        self._statistics = statistics
        self._busy_poll = busy_poll
        self._batch = CopiedBatch(MEMORY_BYTES)
        self._places: dict[str, int] = {}  # of topics among the batch's destinations

    def take(self, client: NsqConnection, intake: Intake) -> bool:
        """Take over what ``client`` publishes, and answer it later in this turn; return False where it does not pay."""
        if not self.is_worth_it():
            return False
        source = intake.publishes
        topics = source.destinations
        if len(topics) != 1 or source.body_bytes > MAX_SHARE_BYTES:
            return False
        batch = self._batch
        topic = topics[0]
        place = self._places.get(topic, len(self._places))
        first = batch.count
        if not batch.take(source, [place]):
            self.end_turn()
            return False
        self._places[topic] = place
        self.add(
            Share(
                client,
                topic,
                first,
                source.count,
                source.body_bytes,
                intake.publish_commands,
                intake.first_publish_name,
            )
        )
        return True

    def append(self, shares: list[Share]) -> None:
        """Append what the shares have in the batch, and answer."""
        batch = self._batch
        batch.destinations = list(self._places)
        error = self._append(batch, shares)
        if error is not None and len(shares) == 1:
            shares[0].client.publish_refused(shares[0].command_name, error)
        elif error is not None:
            for share in shares:
                self._append_alone(batch, share)

    def clear(self) -> None:
        """Forget what is in the batch."""
        self._batch.clear()
        self._places.clear()

    def _append_alone(self, batch: CopiedBatch, share: Share) -> None:
        error = self._append(batch.part(share.first, share.messages), [share])
        if error is not None:
            share.client.publish_refused(share.command_name, error)

    def _append(self, batch: PublishBatch, shares: list[Share]) -> RequestError | StoreError | None:
        """Append and answer; return why nothing was appended."""
        try:
            physical_offset = self._broker.publish(batch)
        except (RequestError, StoreError) as error:
            return error
        # Who publishes to a topic that nobody waits for the disk for does not wait for that of another.
        offsets = {
            topic: physical_offset if queue.awaits_flush else 0
            for topic, queue in zip(batch.destinations, batch.queues, strict=True)
        }
        # The clients first: what follows is done while they make their next publishes.
        for share in shares:
            share.client.joint_published(share, offsets[share.topic])
        if self._statistics is not None:
            self._note_put(self._statistics, shares)
        if self._broker.overloaded:
            for share in shares:
                share.client.wait_for_store()
        if self._broker.gate:
            self._busy_poll.waits()
        return None

    @staticmethod
    def _note_put(statistics: Statistics, shares: list[Share]) -> None:
        """Count by topic and host."""
        sums: dict[tuple[str, str], list[int]] = {}
        for share in shares:
            counted = sums.setdefault((share.topic, share.client.host), [0, 0, 0])
            counted[0] += 1
            counted[1] += share.messages
            counted[2] += share.body_bytes
        for (topic, host), (calls, messages, size) in sums.items():
            statistics.note_put(topic, messages, size, source=SOURCE, host=host, calls=calls)
