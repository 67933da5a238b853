"""Consumer and producer groups as tools see them: settings, members, and how far behind they are.

Ref: remoting.md 4.7.2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.broker.consumers.groups import SubscriptionGroup
from headrace.broker.pull import store_time
from headrace.broker.statistics import GROUP_GET_NUMS
from headrace.errors import UnreadableError
from headrace.format import fastjson
from headrace.format.fastjson import ObjectKey
from headrace.format.names import RETRY_PREFIX
from headrace.remoting import bodies, fields
from headrace.remoting.checks import find_group, visible_topic
from headrace.remoting.codes import ResponseCode
from headrace.remoting.handlers.offsets import end_of, first_stored_ms, last_stored_ms
from headrace.remoting.handlers.topics import find_nameable_topic
from headrace.remoting.long_answers import encode_in_turns
from headrace.remoting.reply import Reply, RequestRefusedError, saved_in_turn

if TYPE_CHECKING:
    from headrace.broker.topic import Topic
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.reply import Parts
    from headrace.remoting.services import Services

ROWS_AT_ONCE: Final = 200
"""Queues that one turn of the loop describes: some 5 ms."""


def update_group(peer: Peer, command: Command) -> Reply:
    """Make or change a consumer group (200)."""
    services = peer.services
    body = bodies.read_object(command.body)
    name = bodies.member_text(body, "groupName")
    try:
        group = SubscriptionGroup.from_fields(body, services.groups.get(name))
    except ValueError as error:
        raise RequestRefusedError(str(error)) from error
    services.groups.put(group, services.clock.now_ms())
    return Reply(wait_saved=services.groups.when_saved)


def get_all_groups(peer: Peer, command: Command) -> Parts:
    """Return every consumer group's settings (201)."""
    groups = peer.services.groups
    version = groups.version.to_fields()
    table = yield from encode_in_turns((group.name, group.to_fields()) for group in groups.all())
    return Reply(body=b'{"dataVersion":%b,"subscriptionGroupTable":%b}' % (bodies.encode(version), table))


def get_group(peer: Peer, command: Command) -> Reply:
    """Return one consumer group's settings (352, asked by tools and the proxy of 5.x).

    Where groups are made when they are first seen, one that does not exist has those that it would be made with. The
    proxy asks before it lets a consumer in, and refuses one whose group is not there. RocketMQ makes the group; here
    a question needs no right to the group, so its first pull or heartbeat does.
    """
    services = peer.services
    name = fields.text(command.ext, "group")
    if services.auto_create_groups and services.groups.get(name) is None:
        group = services.groups.default(name)
    else:
        group = find_group(services, name)
    return Reply(body=bodies.encode(group.to_fields()))


def delete_group(peer: Peer, command: Command) -> Reply:
    """Delete a consumer group's settings, and its committed offsets if asked to (207)."""
    services = peer.services
    ext = command.ext
    name = fields.text(ext, "groupName")
    services.groups.remove(name, services.clock.now_ms())
    # RocketMQ 4.9 calls it removeOffset, 5.x cleanOffset.
    offsets = fields.flag(ext, "removeOffset") or fields.flag(ext, "cleanOffset")
    services.group_services.forget_group(name, offsets=offsets)
    services.messages.letters.forget_group(name)
    when_saved = services.groups.when_saved
    return Reply(wait_saved=saved_in_turn(when_saved, services.offsets.when_saved) if offsets else when_saved)


def get_consumer_connections(peer: Peer, command: Command) -> Reply:
    """Return who consumes for a group, and what it subscribes to (203)."""
    name = fields.text(command.ext, "consumerGroup")
    group = peer.services.clients.consumer_group(name)
    if group is None:
        raise RequestRefusedError(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
    body = {
        "connectionSet": bodies.connection_set(group.members.values()),
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {
            topic: bodies.subscription_fields(subscription) for topic, subscription in group.subscriptions.items()
        },
    }
    return Reply(body=bodies.encode(body))


def get_producer_connections(peer: Peer, command: Command) -> Reply:
    """Return who produces for a group (204)."""
    name = fields.text(command.ext, "producerGroup")
    members = peer.services.clients.producers(name)
    if not members:
        raise RequestRefusedError(f"the producer group[{name}] not exist")
    return Reply(body=bodies.encode({"connectionSet": bodies.connection_set(members)}))


def get_all_producers(peer: Peer, command: Command) -> Parts:
    """Return the producers of every group (328)."""
    services = peer.services
    rows = (
        (
            group,
            [
                {
                    "clientId": member.client.client_id,
                    "language": member.client.language or "OTHER",
                    "lastUpdateTimestamp": services.group_services.seen_at_ms(member),
                    "remoteIP": f"/{member.client.remote_address}",
                    "version": member.client.version,
                }
                for member in members
            ],
        )
        for group, members in services.clients.producer_groups().items()
    )
    table = yield from encode_in_turns(rows)
    return Reply(body=b'{"data":%b}' % table)


def get_consume_stats(peer: Peer, command: Command) -> Parts:
    """Return how far a group is behind in each queue it consumes (208).

    A turn of the loop never ends amid a topic: it may be deleted then.
    """
    services = peer.services
    name = fields.text(command.ext, "consumerGroup")
    tables = []  # each topic's rows, in JSON
    tps = 0.0
    seen = 0
    for topic in consumed_topics(services, name, command.ext.get("topic", "")):
        table = dict(queue_rows(services, name, topic))
        if table:
            tables.append(fastjson.dumps(table)[1:-1])
        tps += consume_tps(services, name, topic.name)
        seen += len(table)
        if seen >= ROWS_AT_ONCE:
            seen = 0
            yield
    return Reply(body=b'{"consumeTps":%b,"offsetTable":{%b}}' % (fastjson.dumps(tps), b",".join(tables)))


def consumed_topics(services: Services, group: str, wanted: str = "") -> Iterator[Topic]:
    """Yield the topics of which a group has offsets, but for those that it has left.

    A group whose consumers subscribe to nothing has left none: they choose their queues themselves.
    """
    online = services.clients.consumer_group(group)
    subscribed = online.subscriptions if online is not None else None
    for name in [wanted] if wanted else services.offsets.topics_of(group):
        topic = visible_topic(services, name)
        if topic is None:
            continue
        if subscribed and name not in subscribed and not name.startswith(RETRY_PREFIX):
            continue
        yield topic


def queue_rows(services: Services, group: str, topic: Topic) -> Iterator[tuple[ObjectKey, dict[str, int]]]:
    """Yield (queue, where it ends and where the group is) for each queue that consumers are told of."""
    for queue in topic.queues[: topic.config.read_queues]:
        offset = max(services.offsets.committed(group, topic.name, queue.queue_id) or 0, 0)
        last_ms = 0
        if queue.min_offset < offset <= queue.visible_offset:
            with contextlib.suppress(UnreadableError):  # how far it is behind is told all the same
                last_ms = max(0, store_time(queue, offset - 1))
        row = {
            "brokerOffset": end_of(queue),
            "consumerOffset": offset,
            "pullOffset": offset,  # tools of 5.x show how far it is ahead as in flight: not tracked here
            "lastTimestamp": last_ms,
        }
        yield bodies.queue_key(services.broker.name, topic.name, queue.queue_id), row


def consume_tps(services: Services, group: str, topic: str) -> float:
    """Return how many messages a second a group was given of a topic in the last minute."""
    found = services.statistics.snapshot(GROUP_GET_NUMS, f"{topic}@{group}")
    return found.minute.per_second if found else 0.0


def get_time_span(peer: Peer, command: Command) -> Reply:
    """Return from when to when each queue's messages are, and how far a group is in time (303)."""
    services = peer.services
    group = fields.text(command.ext, "group")
    topic = find_nameable_topic(services, fields.text(command.ext, "topic"))
    now_ms = services.clock.now_ms()
    spans = []
    for queue in topic.queues[: topic.config.write_queues]:
        offset = services.offsets.committed(group, topic.name, queue.queue_id) or 0
        consumed_ms = first_stored_ms(queue) if offset <= queue.min_offset else -1
        if queue.min_offset < offset <= queue.visible_offset:
            consumed_ms = store_time(queue, offset - 1)
        # What is not consumed yet has waited since it was stored.
        delay_ms = 0
        if max(offset, queue.min_offset) < queue.visible_offset:
            delay_ms = max(0, now_ms - store_time(queue, max(offset, queue.min_offset)))
        spans.append(
            {
                "messageQueue": bodies.queue_fields(services.broker.name, topic.name, queue.queue_id),
                "minTimeStamp": first_stored_ms(queue),
                "maxTimeStamp": last_stored_ms(queue) or -1,
                "consumeTimeStamp": consumed_ms,
                "delayTime": delay_ms,
            }
        )
    return Reply(body=bodies.encode({"consumeTimeSpanSet": spans}))


def get_broker_consume_stats(peer: Peer, command: Command) -> Parts:
    """Return how far every group is behind (317); a turn of the loop never ends amid a topic, as above."""
    services = peer.services
    is_order = fields.flag(command.ext, "isOrder")
    total = seen = 0
    groups: list[bytes] = []  # in JSON, as is each topic: that of all at once would take long too
    for group in services.groups.all():
        topics: list[bytes] = []
        seen += 1
        for topic in consumed_topics(services, group.name):
            if is_order and not topic.config.order:
                continue
            table = dict(queue_rows(services, group.name, topic))
            total += sum(max(0, row["brokerOffset"] - row["consumerOffset"]) for row in table.values())
            tps = consume_tps(services, group.name, topic.name)
            topics.append(bodies.encode({"consumeTps": tps, "offsetTable": table}))
            seen += len(table)
            if seen >= ROWS_AT_ONCE:
                seen = 0
                yield
        if topics:
            groups.append(b"{%b:[%b]}" % (fastjson.dumps(group.name), b",".join(topics)))
        if seen >= ROWS_AT_ONCE:
            seen = 0
            yield
    body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d}'
    return Reply(body=body % (fastjson.dumps(services.address), b",".join(groups), total))
