"""Sends that the fast path leaves aside: to topics that do not exist yet, delayed, half and retry messages.

The steps are those of remoting.md 4.3, in their order. What is delayed or prepared goes to the core's services, which
keep it in internal topics; everything else is appended to its queue.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.message import Message, Outbox, Placed, put
from headrace.broker.withheld.schedule import DELAY_LEVEL, level_of
from headrace.broker.withheld.timed import DELAY_MS, DELAY_SECONDS, DELIVER_AT
from headrace.errors import ProtocolError, RequestError, StoreError
from headrace.format.names import RETRY_PREFIX
from headrace.format.record import SYS_TRANSACTION, message_id, properties_of
from headrace.remoting.checks import find_group, require_sendable, require_writable
from headrace.remoting.codec import decode_batch
from headrace.remoting.codes import ResponseCode
from headrace.remoting.names import require_topic
from headrace.remoting.reply import Reply, RequestRefusedError, code_of
from headrace.remoting.sending.intake import queue_of
from headrace.remoting.sending.send_request import SendRequest, read_send, stored_properties
from headrace.remoting.topics import find_or_create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.consumers.groups import SubscriptionGroup
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services

MAX_PARTS: Final = 10_000
"""Messages of a batch that does not go the fast way: they take 8 us each, and nobody else is served meanwhile."""


def send(peer: Peer, command: Command) -> Reply:
    """Store what a producer sends (codes 10, 310, 320)."""
    topics = peer.services.broker.topics
    known = len(topics)
    try:
        request = read_send(command)
        reply = store(peer, request)
    except (RequestError, StoreError) as error:
        return Reply(code_of(error), str(error), send_ext())
    if len(topics) > known:
        reply.wait_saved = partial(peer.services.when_known, [request.topic])
    return reply


def send_ext(**more: str) -> dict[str, str]:
    """Return the ext fields that every response to a send has, and some more."""
    return {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", **more}


def store(peer: Peer, request: SendRequest) -> Reply:
    """Check, place and append one message or batch.

    Raises:
        RequestError, StoreError: it is refused; nothing was appended.
    """
    services = peer.services
    check(services, request)
    if request.is_batch:
        _require_plain_batch(request)
    group = None
    if request.topic.startswith(RETRY_PREFIX):
        group = find_group(services, request.topic.removeprefix(RETRY_PREFIX))  # no topic is made for one that is none
    topic = find_or_create(
        services, request.topic, request.default_topic, request.default_queues, is_unit=request.is_unit
    )
    queue = queue_of(topic, request.queue_id)
    message = make_message(peer, request, topic.name, queue.queue_id)
    if request.is_batch:
        return store_batch(peer, request, message)
    if group is not None:
        return store_retry(peer, request, message, group)
    if request.is_prepared:
        placed, wait = services.messages.transactions.prepare(message, services.clock.now_ms())
        services.count_put(message.topic, message.queue_id, 1, len(message.body), peer.host)
        placed = placed._replace(queue_id=message.queue_id)
        return stored_reply(services, [placed], wait, transactionId=request.properties.get("UNIQ_KEY", ""))
    return append(peer, message)


def append(peer: Peer, message: Message) -> Reply:
    """Append one message, or have it wait for the time that it names.

    Raises:
        RequestError, StoreError: it is refused; nothing was appended.
    """
    services = peer.services
    if level := level_of(message.properties):  # before all other times, which may be wrong then
        placed, wait = services.messages.delays.put(message, level)
    elif due_ms := services.messages.timed.due_ms(message.properties, services.clock.now_ms()):
        placed, wait = services.messages.timed.put(message, due_ms)
    else:
        placed, wait = put(services.broker, message)
    services.count_put(message.topic, message.queue_id, 1, len(message.body), peer.host)
    return stored_reply(services, [placed._replace(queue_id=message.queue_id)], wait)


def make_message(peer: Peer, request: SendRequest, topic: str, queue_id: int) -> Message:
    """Return the message as it is stored."""
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=request.body,
        properties=stored_properties(request.properties, peer.services.settings.cluster),
        flag=request.flag,
        sys_flag=request.sys_flag & ~SYS_TRANSACTION,
        born_ms=request.born_ms,
        born_host=peer.born_host,
        born_v6=peer.born_v6,
        reconsume_times=request.reconsume_times,
    )


def check(services: Services, request: SendRequest) -> None:
    """Refuse what must not be stored whatever its topic is.

    Raises:
        RequestRefusedError: checks 1 to 3 and the size.
    """
    known = services.broker.topics.get(request.topic)
    if known is not None:
        require_writable(services, known)
    require_topic(request.topic)
    require_sendable(request.topic)
    most = services.settings.max_message_bytes
    if len(request.body) > most:
        raise RequestRefusedError(
            f"the message is illegal, body of {len(request.body)} bytes is above remoting.max_message_bytes = {most}",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def store_retry(peer: Peer, request: SendRequest, message: Message, group: SubscriptionGroup) -> Reply:
    """Store a consumer's own retry: after too many, among the dead letters.

    Its properties are those of the message as it was delivered. That it was a half message once means nothing any more.

    Raises:
        RequestError, StoreError: it is refused; nothing was appended.
    """
    services = peer.services
    most = group.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
    if request.reconsume_times < most:
        return append(peer, message)
    dead = services.messages.retries.ensure_dead_letter_topic(group.name)
    properties = message.with_properties(**dict.fromkeys((DELAY_LEVEL, DELIVER_AT, DELAY_SECONDS, DELAY_MS)))
    reply = append(peer, replace(message, topic=dead.name, queue_id=0, properties=properties))
    services.messages.letters.note(
        group.name,
        properties.get("RETRY_TOPIC", request.topic),
        properties.get("UNIQ_KEY") or properties.get("ORIGIN_MESSAGE_ID", ""),
        request.reconsume_times,
        services.clock.now_ms(),
    )
    return reply


def store_batch(peer: Peer, request: SendRequest, message: Message) -> Reply:
    """Append a batch: all of its messages or none.

    Raises:
        RequestRefusedError: it is malformed, or one of its messages is delayed or transactional.
    """
    try:
        parts = decode_batch(request.body)
    except ProtocolError as error:
        raise RequestRefusedError(f"the batch is illegal: {error}", ResponseCode.MESSAGE_ILLEGAL) from error
    if not parts:
        raise RequestRefusedError("the batch is illegal: it has no message", ResponseCode.MESSAGE_ILLEGAL)
    if len(parts) > MAX_PARTS:
        raise RequestRefusedError(
            f"the batch is illegal: {len(parts)} messages, at most {MAX_PARTS} are accepted where its topic is new, "
            "a body is empty or a property is the broker's",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    services = peer.services
    outbox = Outbox(services.broker)
    for index, (flag, body, own) in enumerate(parts):
        properties = stored_properties({**properties_of(own), **message.properties}, services.settings.cluster)
        one = replace(message, flag=flag, body=body, properties=properties)
        _require_plain(services, one, index)
        outbox.add(one, command_entries=0 if index else len(parts))
    wait = outbox.publish()
    places = [outbox.placed(index) for index in range(len(outbox))]
    body_bytes = sum(len(body) for _, body, _ in parts)
    services.count_put(message.topic, message.queue_id, len(parts), body_bytes, peer.host)
    return stored_reply(services, places, wait)


def _require_plain_batch(request: SendRequest) -> None:
    """Refuse a batch that could not go to its queue at once, before a topic is made for it (remoting.md 2.9).

    Raises:
        RequestRefusedError: it is delayed, transactional or a retry.
    """
    is_transactional = request.is_prepared or request.sys_flag & SYS_TRANSACTION
    if level_of(request.properties) or is_transactional or request.topic.startswith(RETRY_PREFIX):
        raise RequestRefusedError(
            "the batch is illegal: it may be neither delayed nor transactional nor a retry",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def _require_plain(services: Services, message: Message, index: int) -> None:
    """Refuse a message of a batch that would not go to its queue at once: RocketMQ forgets what it asks for.

    Raises:
        RequestRefusedError: it is delayed or transactional.
        InvalidDelayError: it names a time or a level that is none.
    """
    properties = message.properties
    is_prepared = properties.get("TRAN_MSG", "").lower() == "true"
    if is_prepared or level_of(properties) or services.messages.timed.due_ms(properties, services.clock.now_ms()):
        raise RequestRefusedError(
            f"the batch is illegal: its message {index} is delayed or transactional; send such messages one by one",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def stored_reply(services: Services, places: Sequence[Placed], wait: int, **more: str) -> Reply:
    """Return the response that says where messages went."""
    ids = ",".join(message_id(services.store_host, placed.physical_offset) for placed in places)
    first = places[0]
    ext = send_ext(msgId=ids, queueId=str(first.queue_id), queueOffset=str(first.queue_offset), **more)
    return Reply(ext=ext, wait_offset=wait, may_be_late=True)
