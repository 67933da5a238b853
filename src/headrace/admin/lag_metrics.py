"""How far RocketMQ's groups are behind, as Prometheus families.

What mqadmin's consumerProgress sums up: of each topic that a group has offsets of and has not left, all queues that
consumers are told of, also those where it has committed nothing. A sample costs a few looks into tables and no read of
the log; of very many the rest is counted, not told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from headrace.admin.families import gauge
from headrace.admin.slices import SAMPLES_PER_SLICE
from headrace.format.names import TEMPLATE_TOPICS
from headrace.remoting.handlers.groups import consumed_topics

if TYPE_CHECKING:
    from headrace.broker.topic import Topic
    from headrace.remoting.services import Services

MAX_SAMPLES: Final = 20_000
"""As many as a record of statistics has lags; some 2 MB of text."""
STEPS_PER_SLICE: Final = 2_000
"""Queues, groups and topics that are looked at before others have their turn."""


def lag_families(services: Services) -> Iterator[Metric]:
    """Yield the lag of each group by topic, in slices, and for how many there was no room."""
    family = _empty()
    samples = steps = left_out = 0
    for group, topic in _consumed(services):
        steps += 1
        if topic is not None and samples < MAX_SAMPLES:
            samples += 1
            steps += topic.config.read_queues
            family.add_metric((group, topic.name), lag_of(services, group, topic))
        elif topic is not None:
            left_out += 1
        if steps >= STEPS_PER_SLICE or len(family.samples) >= SAMPLES_PER_SLICE:
            yield family
            family, steps = _empty(), 0
    yield family
    yield gauge("headrace_broker_untold_group_lags", "Lags that have no sample, as there are too many.", left_out)


def _empty() -> GaugeMetricFamily:
    text = "Messages of a topic that a group has not committed."
    return GaugeMetricFamily("headrace_broker_group_lag_messages", text, labels=("group", "topic"))


def _consumed(services: Services) -> Iterator[tuple[str, Topic | None]]:
    """Yield each group with each topic that it consumes; None for one that it does not, which takes time as well.

    Between two of them the loop may have its turn.
    """
    for group in services.groups.all():
        yield group.name, None
        for name in services.offsets.topics_of(group.name):
            # The templates have no messages: what is committed there are marks of readers of whole logs.
            wanted = () if name in TEMPLATE_TOPICS else consumed_topics(services, group.name, name)
            yield group.name, next(iter(wanted), None)


def lag_of(services: Services, group: str, topic: Topic) -> int:
    """Return how many messages of a topic a group has not committed; what is gone from the log does not count."""
    committed = services.offsets.queues(group, topic.name)
    return sum(
        max(0, queue.visible_offset - max(committed.get(queue.queue_id, 0), queue.min_offset))
        for queue in topic.queues[: topic.config.read_queues]
    )
