"""Topics as tools see them: made, configured, deleted, listed, and looked into.

Ref: remoting.md 4.7.1.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.topic import PERM_INHERIT, PERM_READ, PERM_WRITE, Topic, TopicConfig
from headrace.broker.topics_file import FILTER_TYPES
from headrace.remoting import bodies, fields
from headrace.remoting.checks import nameable_topic
from headrace.remoting.codes import ResponseCode
from headrace.remoting.handlers.offsets import end_of, find_queue, last_stored_ms
from headrace.remoting.long_answers import encode_in_turns
from headrace.remoting.names import require_topic
from headrace.remoting.reading.subscriptions import filter_of
from headrace.remoting.reply import Reply, RequestRefusedError, saved_in_turn

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.reply import Parts
    from headrace.remoting.services import Services

PERM_PRIORITY: Final = 8
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
_PERM_BITS: Final = PERM_READ | PERM_WRITE | PERM_INHERIT | PERM_PRIORITY
_MAX_ENTRIES: Final = 1_000


def find_nameable_topic(services: Services, name: str) -> Topic:
    """Return a topic for a tool.

    Raises:
        RequestRefusedError: there is none that RocketMQ's clients can name.
    """
    topic = nameable_topic(services, name)
    if topic is None:
        raise RequestRefusedError(f"topic[{name}] not exist", ResponseCode.TOPIC_NOT_EXIST)
    return topic


def update_topic(peer: Peer, command: Command) -> Reply:
    """Make or configure a topic (17)."""
    services = peer.services
    name = fields.text(command.ext, "topic")
    require_topic(name)
    known = services.broker.topics.get(name)
    if (known is not None and known.is_system) or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise RequestRefusedError(f"the topic[{name}] is conflict with system reserved words.")
    wait = services.broker.configure_topic(name, _read_config(command.ext, services.settings.max_topic_queues))
    # Tools and people look at the file and ask for the route next (A-BROKER-18, A-BROKER-21).
    told = partial(services.when_registered, [name])
    return Reply(wait_offset=wait, wait_saved=saved_in_turn(services.group_services.topics_file.when_saved, told))


def _read_config(ext: dict[str, str], most: int) -> TopicConfig:
    """Return the configuration that a request gives a topic; ``most`` are the queues it may have.

    Raises:
        RequestRefusedError: a field is missing, malformed or out of range; the remark names it.
    """
    counts = {}
    for field in ("readQueueNums", "writeQueueNums"):
        counts[field] = fields.number(ext, field, most=fields.MAX_I32)
        if not 0 <= counts[field] <= most:
            raise RequestRefusedError(
                f"<{field}> = {counts[field]} is not accepted: 0 to {most} (remoting.max_topic_queues)"
            )
    if not any(counts.values()):
        raise RequestRefusedError(f"<readQueueNums> and <writeQueueNums> = 0 are not accepted: one of them 1 to {most}")
    perm = fields.number(ext, "perm", most=fields.MAX_I32)
    if perm & ~_PERM_BITS:
        raise RequestRefusedError(f"<perm> = {perm} is not accepted: 4 read + 2 write + 1 inherit")
    filter_type = ext.get("topicFilterType", FILTER_TYPES[0])
    if filter_type in ("0", "1"):  # as SmartGo says it
        filter_type = FILTER_TYPES[int(filter_type)]
    if filter_type not in FILTER_TYPES:
        raise RequestRefusedError(
            f"<topicFilterType> = {filter_type[:40]!r} is not accepted: {' or '.join(FILTER_TYPES)}"
        )
    return TopicConfig(
        read_queues=counts["readQueueNums"],
        write_queues=counts["writeQueueNums"],
        perm=perm,
        sys_flag=fields.number(ext, "topicSysFlag", 0, most=fields.MAX_I32),
        order=fields.flag(ext, "order"),
        filter_type=filter_type,
    )


def delete_topic(peer: Peer, command: Command) -> Reply:
    """Delete a topic, its messages' index and what groups committed of it (215)."""
    services = peer.services
    name = fields.text(command.ext, "topic")
    require_topic(name)
    if name not in services.broker.topics:
        return Reply()
    find_nameable_topic(services, name)
    wait = services.broker.delete_topic(name)
    when_saved = saved_in_turn(services.group_services.topics_file.when_saved, services.offsets.when_saved)
    return Reply(wait_offset=wait, wait_saved=when_saved)


def get_all_topic_config(peer: Peer, command: Command) -> Parts:
    """Return every topic's configuration (21).

    Its version is that of the beginning: whoever has it asks again for what changed since.
    """
    services = peer.services
    version = services.broker.topic_version.to_fields()
    names = list(services.broker.topics)
    found = (topic for name in names if (topic := nameable_topic(services, name)) is not None)
    table = yield from encode_in_turns((topic.name, bodies.topic_fields(topic)) for topic in found)
    return Reply(body=b'{"dataVersion":%b,"topicConfigTable":%b}' % (bodies.encode(version), table))


def get_topic_config(peer: Peer, command: Command) -> Reply:
    """Return one topic's configuration (351, asked by tools of 5.x)."""
    topic = find_nameable_topic(peer.services, fields.text(command.ext, "topic"))
    return Reply(body=bodies.encode(bodies.topic_fields(topic)))


def get_topic_stats(peer: Peer, command: Command) -> Reply:
    """Return where each queue of a topic begins and ends (202)."""
    services = peer.services
    topic = find_nameable_topic(services, fields.text(command.ext, "topic"))
    table = {
        bodies.queue_key(services.broker.name, topic.name, queue.queue_id): {
            "lastUpdateTimestamp": last_stored_ms(queue),
            "maxOffset": end_of(queue),
            "minOffset": queue.min_offset,
        }
        for queue in topic.queues[: topic.config.write_queues]
    }
    return Reply(body=bodies.encode({"offsetTable": table}))


def get_consumers_of_topic(peer: Peer, command: Command) -> Reply:
    """Return the groups that are subscribed to a topic or have committed offsets of it (300)."""
    services = peer.services
    topic = fields.text(command.ext, "topic")
    groups = dict.fromkeys([*services.clients.groups_of(topic), *services.offsets.groups_of(topic)])
    return Reply(body=bodies.encode({"groupList": list(groups)}))


def get_system_topics(peer: Peer, command: Command) -> Reply:
    """Return the topics that every broker has (305)."""
    topics = peer.services.broker.topics.values()
    names = [topic.name for topic in topics if topic.is_system and nameable_topic(peer.services, topic.name)]
    return Reply(body=bodies.encode({"topicList": names}))


def clean(peer: Peer, command: Command) -> Reply:
    """Answer the calls that have the broker remove what is no longer needed (306, 316, 329).

    Nothing is: there is no retention yet (docs/limits.md), and the consume queues of a deleted topic are kept on
    purpose, for a topic made again goes on with its old offsets.
    """
    return Reply()


def query_consume_queue(peer: Peer, command: Command) -> Reply:
    """Return entries of a queue, and whether a group's subscription lets them through (321).

    The answer does not say where its rows begin: tools number them from the index that they asked for.
    """
    services = peer.services
    ext = command.ext
    find_nameable_topic(services, fields.text(ext, "topic"))
    queue = find_queue(services, command)
    if queue is None:
        raise RequestRefusedError(f"{ext['queueId']}@{ext['topic']} is not exist!")
    index = fields.number(ext, "index", 0)
    if index < queue.min_offset:
        raise RequestRefusedError(
            f"index {index} is outside queue {ext['queueId']}@{ext['topic']}: it has entries from {queue.min_offset} on"
        )
    count = min(max(fields.number(ext, "count", 0), 0), _MAX_ENTRIES)
    name = ext.get("consumerGroup", "")
    subscription = services.clients.subscription(name, ext["topic"]) if name else None
    wanted = filter_of(subscription.kind, subscription.expression) if subscription else None
    end = end_of(queue)
    index = min(index, end)
    rows = []
    for physical_offset, record_bytes, tag_hash in queue.entries(index, min(count, end - index)):
        passes = wanted is not None and (wanted.codes is None or tag_hash in wanted.codes)
        rows.append({"eval": passes, "physicOffset": physical_offset, "physicSize": record_bytes, "tagsCode": tag_hash})
    body: dict[str, Any] = {
        "maxQueueIndex": end,
        "minQueueIndex": queue.min_offset,
        "queueData": rows,
    }
    if subscription is not None:
        body["subscriptionData"] = bodies.subscription_fields(subscription)
        body["filterData"] = "null"  # the text, which tools print
    elif name:
        body["filterData"] = f"{name}@{ext['topic']} is not online!"
    return Reply(body=bodies.encode(body))
