"""Topics whose records mean something to the broker alone: nobody else writes to them or reads with a channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.broker.withheld.transaction_end import Decision
from headrace.errors import InvalidNameError
from headrace.format.names import CONTROL_TOPIC, HALF_TOPIC, INTERNAL_TOPICS, OP_TOPIC, TIMER_TOPIC
from headrace.nsq.names import topic_name
from tests.support.messaging import MessagingRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MessagingRig]:
    made = MessagingRig(tmp_path / "store")
    yield made
    made.close()


def publish(rig: MessagingRig, topic: str, body: bytes) -> None:
    """Publish as NSQ does."""
    batch = PublishBatch()
    batch.destinations = [topic]
    batch.append(body, 0)
    rig.broker.publish(batch)


def test_a_publish_cannot_decide_a_transaction(rig: MessagingRig) -> None:
    """A message in the topic of op records would have the next start take a half message for decided, and lose it."""
    message = rig.message("T", b"body", queue_id=2, PGROUP="P", TRAN_MSG="true")
    placed, _ = rig.transactions.prepare(message, rig.clock.now_ms())
    with pytest.raises(InvalidNameError):
        publish(rig, OP_TOPIC, str(placed.queue_offset).encode())
    rig.restart()
    assert rig.end("P", placed.queue_offset, placed.physical_offset, Decision.COMMIT)
    rig.store.flush()
    assert rig.bodies("T", 2) == [b"body"]


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_neither_written_to_nor_subscribed(rig: MessagingRig, topic: str) -> None:
    """A consumer of the timer topic's channel would take away, and finish, what waits for its time."""
    for attempt in (lambda: publish(rig, topic, b"x"), lambda: rig.broker.ensure_topic(topic)):
        with pytest.raises(InvalidNameError, match=r"own topic|reserved"):
            attempt()


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS - {CONTROL_TOPIC}))
def test_nsqs_http_api_knows_no_internal_topic(topic: str) -> None:
    """POST /channel/delete of the timer topic's channel would drop every message that waits for its time."""
    assert {TIMER_TOPIC, HALF_TOPIC} < INTERNAL_TOPICS
    with pytest.raises(InvalidNameError):
        topic_name(topic)
