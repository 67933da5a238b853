"""Topics that come to be because somebody uses them: by a send, by a consumer group, and those every broker has.

A new topic is registered at the registries at once (``Broker.on_topics_changed``), so the clients that asked for its
route in vain find it with their next try.

Ref: remoting.md 4.3, 4.10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.topic import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from headrace.format.names import (
    BENCHMARK_TOPIC,
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    STATISTICS_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
)
from headrace.remoting.codes import TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB, ResponseCode
from headrace.remoting.names import is_valid_topic, require_topic
from headrace.remoting.reply import RequestRefusedError

if TYPE_CHECKING:
    from headrace.broker.topic import Topic
    from headrace.remoting.services import Services
    from headrace.settings import RemotingSettings

READ_WRITE: Final = PERM_READ | PERM_WRITE
TEMPLATE_PERM: Final = READ_WRITE | PERM_INHERIT
BENCHMARK_QUEUES: Final = 16


def template_queues(settings: RemotingSettings) -> int:
    """Return the queues of TBW102, which RocketMQ calls ``defaultTopicQueueNums``."""
    return max(1, settings.default_topic_queues // 2)


def system_topics(settings: RemotingSettings, broker_name: str, delay_levels: int) -> dict[str, TopicConfig]:
    """Return the topics that every broker has (A-BROKER-13)."""
    queues = settings.default_topic_queues
    one = TopicConfig(1, 1, READ_WRITE)
    half = template_queues(settings)
    benchmark = TopicConfig(BENCHMARK_QUEUES, BENCHMARK_QUEUES, READ_WRITE)
    configs = {
        # Whatever cluster and broker are called: what stands below them keeps its own shape.
        settings.cluster: TopicConfig(16, 16, TEMPLATE_PERM),
        broker_name: TopicConfig(1, 1, TEMPLATE_PERM),
        f"{settings.cluster}_REPLY_TOPIC": one,  # replies of request-reply
        "DEFAULT_TOPIC": TopicConfig(queues, queues, TEMPLATE_PERM),
        "TBW102": TopicConfig(half, half, TEMPLATE_PERM),
        SELF_TEST_TOPIC: one,
        OFFSET_MOVED_TOPIC: one,
        BENCHMARK_TOPIC: benchmark,
        "BENCHMARK_TOPIC": benchmark,
        SCHEDULE_TOPIC: TopicConfig(delay_levels, delay_levels, READ_WRITE),
        HALF_TOPIC: one,
        OP_TOPIC: one,
        CHECK_MAX_TOPIC: one,
        TIMER_TOPIC: one,
        TRACE_TOPIC: one,
        STATISTICS_TOPIC: TopicConfig(1, 1, PERM_READ),
    }
    # A host's name may have dots: clients could not name such a topic.
    return {name: config for name, config in configs.items() if is_valid_topic(name)}


def find_or_create(services: Services, name: str, template: str, wanted_queues: int, *, is_unit: bool = False) -> Topic:
    """Return the topic a producer sends to, made from its template if it does not exist.

    Who gives a topic of their own the permission to inherit lets it be a template, whatever the setting says.

    Args:
        is_unit: The producer is in unit mode.

    Raises:
        RequestRefusedError: there is none, and none may be made.
        QuotaExceededError: the broker has ``broker.max_topics``.
    """
    topic = services.broker.topics.get(name)
    if topic is not None:
        return topic
    require_topic(name)
    is_retry = name.startswith(RETRY_PREFIX)
    sys_flag = (TOPIC_FLAG_UNIT_SUB if is_retry else TOPIC_FLAG_UNIT) if is_unit else 0
    source = services.broker.topics.get(template)
    if (
        source is not None
        and source.config.perm & PERM_INHERIT
        and (services.auto_create_topics or not source.is_system)
    ):
        queues = max(1, min(wanted_queues, source.config.write_queues))
        config = TopicConfig(queues, queues, source.config.perm & ~PERM_INHERIT, sys_flag)
        return services.broker.create_topic(name, config)
    if is_retry:
        return services.broker.create_topic(name, TopicConfig(1, 1, READ_WRITE, sys_flag))
    if services.auto_create_topics:
        why = f"its template topic[{template[:64]}] is none"
    else:
        why = "remoting.auto_create_topics is off"
    raise RequestRefusedError(
        f"topic[{name}] not exist, apply first please! It is not made now: {why}", ResponseCode.TOPIC_NOT_EXIST
    )
