"""What requests must keep before they are served: checks that several of them share, each with RocketMQ's answer.

Ref: remoting.md 4.3, 4.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.topic import PERM_READ, PERM_WRITE
from headrace.remoting.codes import ResponseCode
from headrace.remoting.names import NOT_SENDABLE, is_valid_topic
from headrace.remoting.reply import RequestRefusedError

if TYPE_CHECKING:
    from headrace.broker.consumers.groups import SubscriptionGroup
    from headrace.broker.topic import Topic
    from headrace.remoting.services import Services
    from headrace.store.queue_base import QueueBase


def require_writable(services: Services, topic: Topic | None = None) -> None:
    """Refuse while producers may not send to this broker.

    To a topic that is not ordered they still may: they leave by its route, which names the permission, and until they
    have heard of it an error would only be one more (remoting.md 4.3).
    """
    if not services.permission & PERM_WRITE and (topic is None or topic.config.order):
        raise RequestRefusedError(
            f"the broker[{services.address}] sending message is forbidden", ResponseCode.NO_PERMISSION
        )


def require_readable(services: Services) -> None:
    """Refuse while consumers may not pull from this broker."""
    if not services.permission & PERM_READ:
        raise RequestRefusedError(
            f"the broker[{services.address}] pulling message is forbidden", ResponseCode.NO_PERMISSION
        )


def require_sendable(name: str) -> None:
    """Refuse a send to a topic that only the broker writes to."""
    if name in NOT_SENDABLE:
        raise RequestRefusedError(
            f"the topic[{name}] is for the broker alone, not for sending", ResponseCode.NO_PERMISSION
        )


def visible_topic(services: Services, name: str) -> Topic | None:
    """Return a topic that clients of this protocol may read: any that lasts; None if there is none of that name."""
    topic = services.broker.topics.get(name)
    return None if topic is None or topic.ephemeral else topic


def nameable_topic(services: Services, name: str) -> Topic | None:
    """Return a topic that RocketMQ's own clients and tools can name, too; None if there is none of that name."""
    return visible_topic(services, name) if is_valid_topic(name) else None


def find_topic(services: Services, name: str) -> Topic:
    """Return a topic that clients of this protocol may read.

    Raises:
        RequestRefusedError: TOPIC_NOT_EXIST.
    """
    topic = visible_topic(services, name)
    if topic is None:
        raise topic_not_found(name)
    return topic


def topic_not_found(name: str) -> RequestRefusedError:
    """Return RocketMQ's answer where a topic is not there."""
    return RequestRefusedError(f"topic[{name}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST)


def find_readable_queue(services: Services, name: str, queue_id: int, group: str) -> QueueBase:
    """Return a queue that a group may read.

    Raises:
        RequestRefusedError: there is no such topic, it may not be read, or it has no such queue.
    """
    topic = find_topic(services, name)
    if not topic.config.perm & PERM_READ:
        raise RequestRefusedError(f"the topic[{name}] pulling message is forbidden", ResponseCode.NO_PERMISSION)
    queue = topic.queue(queue_id) if 0 <= queue_id < topic.config.read_queues else None
    if queue is None:
        raise RequestRefusedError(
            f"queueId[{queue_id}] is illegal, topic:[{name}] "
            f"topicConfig.readQueueNums:[{topic.config.read_queues}] consumer:[{group}]"
        )
    return queue


def find_group(services: Services, name: str) -> SubscriptionGroup:
    """Return a consumer group.

    Raises:
        RequestRefusedError: SUBSCRIPTION_GROUP_NOT_EXIST.
    """
    group = services.groups.get(name)
    if group is None:
        raise RequestRefusedError(f"subscription group not exist, {name}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    return group


def require_consuming(group: SubscriptionGroup) -> None:
    """Refuse a group that may not consume."""
    if not group.consume_enabled:
        raise RequestRefusedError(
            f"subscription group no permission, {group.name} (consumeEnable)", ResponseCode.NO_PERMISSION
        )
