"""Offsets: what groups committed, where queues begin and end, where a time lies, and resets.

Ref: remoting.md 4.4, 4.5, 4.7.5.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.consumers.groups import require_group_name
from headrace.broker.pull import find_offset_by_time, store_time
from headrace.errors import UnreadableError
from headrace.format.fastjson import ObjectKey
from headrace.format.names import DECIDED_GROUP
from headrace.format.queue_entry import FILLER_BYTES
from headrace.remoting import bodies, fields
from headrace.remoting.calls import on_behalf_of
from headrace.remoting.checks import visible_topic
from headrace.remoting.codes import FIRST_VERSION_WITH_OFFSET_RESET, RequestCode, ResponseCode
from headrace.remoting.long_answers import encode_in_turns
from headrace.remoting.members import follows_resets, is_broadcasting, peer_of
from headrace.remoting.reply import Reply, RequestRefusedError

if TYPE_CHECKING:
    from headrace.broker.topic import Topic
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.reply import Parts
    from headrace.remoting.services import Services
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

_TO_THE_END: Final = -1
"""The time of a reset that stands for the end; others before 1970 are times."""

NEAR_SHARE: Final = 0.4
"""A queue counts as young while its first message is within this share of the memory behind the log's end."""


_FILLERS_AT_MOST: Final = 4_096
"""Lost messages at a queue's beginning behind which its first one is looked for."""


def find_queue(services: Services, command: Command) -> QueueBase | None:
    """Return the queue a request names, None if there is none."""
    topic = visible_topic(services, fields.text(command.ext, "topic"))
    queue_id = fields.number(command.ext, "queueId", most=fields.MAX_I32)
    return None if topic is None else topic.queue(queue_id)


def query_consumer_offset(peer: Peer, command: Command) -> Reply:
    """Return a group's committed offset (14); where a young queue begins for one that has none of it."""
    ext = command.ext
    services = peer.services
    group = fields.text(ext, "consumerGroup")
    topic = fields.text(ext, "topic")
    queue_id = fields.number(ext, "queueId", most=fields.MAX_I32)
    offset = services.offsets.committed(group, topic, queue_id)
    if offset is None:
        queue = find_queue(services, command)
        if not fields.flag(ext, "setZeroIfNotFound", default=True) or not (queue is None or is_young(services, queue)):
            return Reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        offset = 0 if queue is None else queue.min_offset
    return Reply(ext={"offset": str(offset)})


def is_young(services: Services, queue: QueueBase) -> bool:
    """Return whether a new group reads a queue from its beginning, whatever it asks for (remoting.md 4.4, code 14)."""
    if not services.broker.is_whole(queue):
        return False
    try:
        first = queue.entries(queue.min_offset, 1)
        if first and first[0][1] == FILLER_BYTES:
            first = [entry for entry in queue.entries(queue.min_offset, _FILLERS_AT_MOST) if entry[1] != FILLER_BYTES]
    except UnreadableError:
        return True  # as in RocketMQ: a refusal is "no offset" to 4.9's clients, which then begin at the queue's end
    return not first or services.broker.store.log.end_offset - first[0][0] <= NEAR_SHARE * services.memory_bytes


def require_open_group(group: str) -> None:
    """Accept a group whose offsets clients set: not that of decided transactions, open ones below them would be lost.

    Raises:
        InvalidNameError: no group may have that name.
        RequestRefusedError: NO_PERMISSION.
    """
    require_group_name(group)
    if group == DECIDED_GROUP:
        raise RequestRefusedError(
            f"the offsets of group [{group}] are set by the broker alone", ResponseCode.NO_PERMISSION
        )


def update_consumer_offset(peer: Peer, command: Command) -> Reply:
    """Note how far a group has consumed a queue (15)."""
    ext = command.ext
    offsets = peer.services.offsets
    topic = fields.text(ext, "topic")
    group = fields.text(ext, "consumerGroup")
    queue = find_queue(peer.services, command)
    offset = fields.number(ext, "commitOffset")
    require_open_group(group)
    is_kept = True
    if fields.flag(ext, "forget"):  # Headrace's own, as "durable"
        offsets.forget(group, topic, fields.number(ext, "queueId", most=fields.MAX_I32))
    elif queue is None:
        raise RequestRefusedError(
            f"topic[{topic}] has no queue {ext.get('queueId')}, no offset is kept for it", ResponseCode.TOPIC_NOT_EXIST
        )
    else:
        if fields.flag(ext, "endsReset"):  # Headrace's own: who reads without pulls hears of no reset
            offsets.take_reset(group, topic, queue.queue_id)
        is_kept = offsets.commit(group, topic, queue.queue_id, offset)
    if not fields.flag(ext, "durable"):
        return Reply()
    # Headrace's own (docs/protocols/extensions.md): a bulk reader's start must not be forgotten.
    said = None if is_kept else {"ignored": "true"}
    return Reply(ext=said, wait_saved=offsets.when_saved)


def search_offset(peer: Peer, command: Command) -> Reply:
    """Return the offset that belongs to a time of storing (29)."""
    queue = find_queue(peer.services, command)
    timestamp_ms = fields.number(command.ext, "timestamp")
    upper = command.ext.get("boundaryType", "").upper() == "UPPER"
    offset = 0 if queue is None else find_offset_by_time(queue, timestamp_ms, upper)
    return Reply(ext={"offset": str(offset)})


def get_max_offset(peer: Peer, command: Command) -> Reply:
    """Return where a queue ends: what readers see (30)."""
    queue = find_queue(peer.services, command)
    return Reply(ext={"offset": str(0 if queue is None else end_of(queue))})


def end_of(queue: QueueBase) -> int:
    """Return where a queue ends; one made again may begin above what readers may see yet."""
    return max(queue.min_offset, queue.visible_offset)


def get_min_offset(peer: Peer, command: Command) -> Reply:
    """Return where a queue begins (31)."""
    queue = find_queue(peer.services, command)
    return Reply(ext={"offset": str(0 if queue is None else queue.min_offset)})


def get_earliest_store_time(peer: Peer, command: Command) -> Reply:
    """Return when a queue's oldest message was stored, -1 without any (32)."""
    queue = find_queue(peer.services, command)
    return Reply(ext={"timestamp": str(first_stored_ms(queue))})


def first_stored_ms(queue: QueueBase | None) -> int:
    """Return when a queue's oldest message was stored, -1 without any."""
    if queue is None or queue.min_offset >= queue.visible_offset:
        return -1
    return store_time(queue, queue.min_offset)


def last_stored_ms(queue: QueueBase) -> int:
    """Return when a queue's newest message was stored, 0 without any, and while it cannot be read."""
    if queue.min_offset >= queue.visible_offset:
        return 0
    try:
        return max(0, store_time(queue, queue.visible_offset - 1))
    except UnreadableError:  # where its queue begins and ends is told all the same
        return 0


def get_all_consumer_offset(peer: Peer, command: Command) -> Parts:
    """Return every committed offset (43), for slaves."""
    offsets = peer.services.offsets
    keys = offsets.keys()
    rows = (
        (f"{topic}@{group}", {str(queue_id): offset for queue_id, offset in queues.items()})
        for group, topic in keys
        if (queues := offsets.queues(group, topic))
    )
    table = yield from encode_in_turns(rows)
    return Reply(body=b'{"offsetTable":%b}' % table)


def clone_group_offset(peer: Peer, command: Command) -> Reply:
    """Give one group the committed offsets of another (314)."""
    ext = command.ext
    source, target = fields.text(ext, "srcGroup"), fields.text(ext, "destGroup")
    require_open_group(target)
    peer.services.offsets.clone(source, target, ext.get("topic", ""))
    return Reply(wait_saved=peer.services.offsets.when_saved)


def reset_offset(peer: Peer, command: Command) -> Reply:
    """Have a group go on at a time, at an offset or at the end (222).

    The stored offsets are set, whether or not anybody is online; consumers that are get RESET_CONSUMER_CLIENT_OFFSET,
    and what they commit before they have heard of it is ignored. Waiting pulls of those that do nothing then are woken.
    Consumers that broadcast and follow what they are told keep their offsets themselves: one stored here would lag for
    ever.
    """
    services = peer.services
    ext = command.ext
    name, group = fields.text(ext, "topic"), fields.text(ext, "group")
    require_open_group(group)
    topic = visible_topic(services, name)
    if topic is None:
        raise RequestRefusedError(
            f"the topic[{name}] not exist, so no offset of it is reset", ResponseCode.TOPIC_NOT_EXIST
        )
    if services.groups.get(group) is None and not services.offsets.queues(group, name):
        raise RequestRefusedError(f"the consumer group <{group}> does not exist, so no offset of it is reset")
    targets = find_targets(services, topic, group, ext)
    follows = follows_resets(services, group)
    if not (follows and is_broadcasting(services, group)):
        services.offsets.assign_resets(group, name, targets)
    table = {bodies.queue_key(services.broker.name, name, queue_id): at for queue_id, at in targets.items()}
    tell_reset(services, group, ext, table)
    if not follows:
        for queue_id in targets:
            services.holds.wake_all(topic.queue(queue_id))
    return Reply(body=bodies.encode({"offsetTable": table}), wait_saved=services.offsets.when_saved)


def find_targets(services: Services, topic: Topic, group: str, ext: dict[str, str]) -> dict[int, int]:
    """Return where each queue of a reset goes on.

    Raises:
        RequestRefusedError: the topic has no such queue, or the offset lies outside of it.
    """
    timestamp_ms = fields.number(ext, "timestamp")
    only = fields.number(ext, "queueId", -1, most=fields.MAX_I32)
    wanted = fields.number(ext, "offset", -1)
    is_named = only >= 0 and wanted >= 0  # 5.x: such an offset is set, without isForce
    force = fields.present(ext, "isForce").lower() == "true"
    if only >= 0 and topic.queue(only) is None:
        raise RequestRefusedError(f"topic[{topic.name}] has no queue {only}")
    targets = {}
    for queue in topic.queues:
        if only >= 0 and queue.queue_id != only:
            continue
        if is_named:
            if not queue.min_offset <= wanted <= end_of(queue):
                raise RequestRefusedError(
                    f"offset {wanted} is outside queue {only}: {queue.min_offset} to {end_of(queue)}"
                )
            at = wanted
        elif timestamp_ms == _TO_THE_END:
            at = end_of(queue)
        else:
            at = find_offset_by_time(queue, timestamp_ms, False)
        committed = services.offsets.committed(group, topic.name, queue.queue_id)
        if not force and committed is not None and at > committed and not is_named:
            at = committed
        targets[queue.queue_id] = at
    return targets


def tell_reset(services: Services, group: str, ext: dict[str, str], table: dict[ObjectKey, int]) -> None:
    """Send RESET_CONSUMER_CLIENT_OFFSET to every consumer of a group that understands it."""
    header = {
        "topic": ext["topic"],
        "group": group,
        "timestamp": ext["timestamp"],
        "isForce": str(fields.flag(ext, "isForce")).lower(),
    }
    as_map = bodies.encode({"offsetTable": table})
    as_list = bodies.encode({"offsetTable": [{**queue, "offset": offset} for queue, offset in table.items()]})
    for member in services.clients.members(group):
        if member.client.version >= FIRST_VERSION_WITH_OFFSET_RESET:
            body = as_list if member.client.language == "CPP" else as_map
            peer_of(member).notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)


def get_consumer_status(peer: Peer, command: Command) -> Reply | None:
    """Ask each consumer of a group where it is, and return all answers together (223)."""
    services = peer.services
    ext = command.ext
    topic, group = fields.text(ext, "topic"), fields.text(ext, "group")
    only = ext.get("clientAddr", "")
    online = services.clients.members(group)
    if not online:
        raise RequestRefusedError(f"No Any Consumer online in the consumer group: [{group}]")
    members = [
        member
        for member in online
        if member.client.version >= FIRST_VERSION_WITH_OFFSET_RESET and only in ("", member.client.client_id)
    ]
    if not members:
        return Reply(body=bodies.encode(_statuses({})))
    found: dict[str, Any] = {}
    left_out: list[str] = []
    waiting = set(range(len(members)))
    header = {"topic": topic, "group": group}

    def gather(number: int, client_id: str, response: Command | None) -> None:
        waiting.discard(number)
        if response is not None and response.code == ResponseCode.SUCCESS:
            try:
                found[client_id] = read_status(response.body)
            except RequestRefusedError as error:
                left_out.append(f"{client_id} is left out, {error}")
                logger.warning("answer of a consumer left out group=%s client=%s: %s", group, client_id, error)
        if not waiting:
            peer.answer(command, Reply(remark="; ".join(left_out), body=bodies.encode(_statuses(found))))

    for number, member in enumerate(members):
        client_id = member.client.client_id
        peer_of(member).call(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            header,
            None,
            on_behalf_of(peer, command, partial(gather, number, client_id)),
        )
    return None


def _statuses(found: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an answer: RocketMQ's has the table of one consumer too, which only consumers fill."""
    return {"messageQueueTable": {}, "consumerTable": found}


def read_status(body: bytes) -> dict[str, Any]:
    """Return the table of a consumer's answer.

    Raises:
        RequestRefusedError: it has none that can be passed on, such as one that refers to itself.
    """
    table = bodies.read_object(body).get("messageQueueTable")
    try:
        bodies.encode({"messageQueueTable": table})
    except (TypeError, ValueError) as error:
        raise RequestRefusedError(f"its table cannot be passed on: {error}") from error
    if not isinstance(table, dict):
        raise RequestRefusedError("its answer has no messageQueueTable")
    return table
