"""Whether what a stream has read up to still fits what the brokers have: the one place that finds loss.

A position is right, or it is beyond what there is, or beyond what there was when a later epoch of the store began: a
power cut at level ``async`` took messages that had been shown, and others have their offsets now. Whatever does not fit
is an error that says what happened and which option goes on; with ``failOnDataLoss=false`` it is a loss that is counted
and logged.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.spark.errors import DataLossError
from headrace.spark.remote import BrokerState, QueueState
from headrace.spark.streams.positions import Position, QueueKey

logger = logging.getLogger(__name__)

_REMEDY = "failOnDataLoss=false goes on"


@dataclass(slots=True)
class Continuity:
    """Checks one position; ``lost`` counts the messages that are gone when that is no error."""

    begin: Position
    fail_on_data_loss: bool
    lost: int = 0

    def next_offset(self, key: QueueKey, state: BrokerState, queue: QueueState, offset: int) -> int:
        """Return where to go on in a queue, or a log, that the stream has read up to ``offset``.

        Raises:
            DataLossError: not there, and that is an error.
        """
        if self.has_other_store(state) and not self.fail_on_data_loss:
            # What was not read of the old store nobody knows; of the new one, what retention has removed is lost.
            self._lose(key, f"{key} begins anew at {queue.low}: {self._reason(state)}", lost=queue.low)
            return queue.low
        created = self.begin.creations.get(key.topic, {}).get(key.broker, 0)
        is_new_topic = created != 0 and state.topics[key.topic].epoch not in (0, created)
        if is_new_topic and self.fail_on_data_loss:
            text = (
                f"topic {key.topic!r} of broker {key.broker!r} was deleted and made again since the checkpoint was "
                f"written: {key} was read up to offset {offset} and now has {queue.low} to {queue.high}"
            )
            self._lose(key, text, f"{_REMEDY} with the new topic", offset, max(offset, queue.low))
        cut = self._cut_of(state, queue)
        if cut is not None and offset > cut:
            text = f"{key} ended at offset {cut}, but was read up to {offset}: {self._reason(state)}"
            self._lose(key, text, f"others have their offsets now, and {_REMEDY} with those", cut, offset)
            return max(cut, queue.low)
        if offset > queue.high:
            return self._beyond(key, state, queue, offset)
        if offset < queue.low:
            text = f"{key.span(offset, queue.low)} are gone: retention removed them before they were read"
            self._lose(key, text, f"{_REMEDY} at {queue.low}", offset, queue.low, queue.low - offset)
            return queue.low
        return offset

    def _cut_of(self, state: BrokerState, queue: QueueState) -> int | None:
        """Return where a queue ended when the first epoch began that the stream has not seen; None if none did."""
        _, seen = self.begin.stores.get(state.broker, ("", 0))
        return min((end for epoch, end in queue.ends.items() if epoch > seen > 0), default=None)

    def _beyond(self, key: QueueKey, state: BrokerState, queue: QueueState, offset: int) -> int:
        end = f"offset {queue.high}" if key.topic else queue.high
        text = f"{key} ends at {end}, but was read up to {offset}: {self._reason(state)}"
        if key.topic and not state.store_id:
            # RocketMQ begins a topic that is made again at 0 and tells no identity. A lost end looks the same, and then
            # all of it was read: from its begin whole queues would come twice.
            text += f", or the topic was deleted and made again, and what it has below {queue.high} is not read"
        # These were read: nothing is lost to this stream, but what is stored from here on is read.
        self._lose(key, text, f"{_REMEDY} from {queue.high}", queue.high, offset)
        return queue.high

    def _reason(self, state: BrokerState) -> str:
        store_id, epoch = self.begin.stores.get(state.broker, ("", 0))
        if self.has_other_store(state):
            return f"the broker has another store than then ({state.store_id}, not {store_id}): its folder was replaced"
        if state.epoch > epoch:
            return (
                f"a recovery of the broker cut off the end of its log (epoch {epoch} became {state.epoch}), "
                "and messages that it had already shown are gone"
            )
        return "the queue was emptied, or the broker lost its data"

    def check_store(self, state: BrokerState) -> None:
        """Look whether a broker has the store it had. Raises: as ``next_offset``."""
        if not self.has_other_store(state):
            return
        store_id, _ = self.begin.stores[state.broker]
        text = (
            f"broker {state.broker!r} has another store than when the checkpoint was written ({state.store_id}, not "
            f"{store_id}): its folder was replaced, so offsets name other messages"
        )
        self._lose(QueueKey.of_log(state.broker), text, f"{_REMEDY} with all that is there")

    def has_other_store(self, state: BrokerState) -> bool:
        """Return whether a broker has another store than when the position was written."""
        store_id, _ = self.begin.stores.get(state.broker, ("", 0))
        return bool(store_id and state.store_id and store_id != state.store_id)

    def end_unreadable(self, key: QueueKey, offset: int, high: int) -> int:
        """Return where a queue stays that brokers no longer give to readers; it ends at ``high``.

        Raises: as ``next_offset``.
        """
        if offset >= high:
            return offset
        text = (
            f"{key} is not among the topic's read queues any more (readQueueNums was lowered), "
            f"and its offsets {offset} to {high} were not read yet"
        )
        self._lose(key, text, f"raise readQueueNums again, or {_REMEDY} without them", offset, high, high - offset)
        return high

    def topic_gone(self, topic: str, broker: str) -> None:
        """A topic that was read is not there any more. Raises: as ``next_offset``."""
        text = f"topic {topic!r} of broker {broker!r} was deleted since the checkpoint was written"
        self._lose(QueueKey(topic, broker, -1), text, f"{_REMEDY} without it, or begin a new checkpoint")

    def _lose(self, key: QueueKey, text: str, remedy: str = "", first: int = 0, end: int = 0, lost: int = 0) -> None:
        """Count a loss and go on.

        Raises:
            DataLossError: it is an error.
        """
        if self.fail_on_data_loss:
            raise DataLossError(f"{text}; {remedy}", **key._asdict(), first_offset=first, end_offset=end)
        lost = lost if key.topic else 0  # of a log nobody knows how many messages they were
        self.lost += lost
        logger.warning("stream goes on over a loss messages=%d what=%s", lost, text)
