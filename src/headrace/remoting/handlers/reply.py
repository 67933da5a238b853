"""Request-reply: a responder's reply goes straight to the client that asked.

Ref: remoting.md 4.6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.message import put
from headrace.broker.withheld.timed import DELIVER_AT
from headrace.errors import RequestError, StoreError
from headrace.format.record import encode_properties
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.handlers.send import check, make_message, send_ext, stored_reply
from headrace.remoting.members import peer_of
from headrace.remoting.reply import Reply, code_of
from headrace.remoting.sending.intake import queue_of
from headrace.remoting.sending.send_request import SendRequest, read_send
from headrace.remoting.topics import find_or_create

if TYPE_CHECKING:
    from headrace.broker.message import Message
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer


def send_reply(peer: Peer, command: Command) -> Reply | None:
    """Pass a reply on to its requester, and store it (324, 325).

    When it is stored, the answer is that of a send and does not wait for the requester; else it waits for it.
    """
    services = peer.services
    try:
        request = read_send(command)
        check(services, request)
        topic = find_or_create(services, request.topic, request.default_topic, request.default_queues)
        queue = queue_of(topic, request.queue_id)
        message = make_message(peer, request, request.topic, queue.queue_id)
        if services.settings.store_replies:
            # The requester has it at once, whatever time it asks for: left there, channels would wait for that time.
            kept = replace(message, properties=message.with_properties(**{DELIVER_AT: None}))
            placed, wait = put(services.broker, kept)
            services.count_put(message.topic, message.queue_id, 1, len(message.body), peer.host)
            push(peer, None, request, message)
            return stored_reply(services, [placed], wait)
        push(peer, command, request, message)
    except (RequestError, StoreError) as error:
        return Reply(code_of(error), str(error), send_ext())
    return None


def push(peer: Peer, command: Command | None, request: SendRequest, message: Message) -> None:
    """Send a reply to the client that waits for it (326); then answer ``command``, if it waits for that."""
    services = peer.services
    client_id = message.properties.get("REPLY_TO_CLIENT", "")
    member = services.clients.find_producer(client_id) if client_id else None

    def answered(response: Command | None) -> None:
        if command is None:
            return
        if response is not None and response.code == ResponseCode.SUCCESS:
            peer.answer(command, Reply(ext=send_ext(msgId="0", queueId=str(message.queue_id), queueOffset="0")))
            return
        why = "did not answer in time" if response is None else f"answered {response.code} {response.remark}"
        text = f"push reply message fail: the requester {client_id!r} {why}"
        peer.answer(command, Reply(ResponseCode.SYSTEM_ERROR, text, send_ext()))

    if member is None:
        if command is not None:
            text = f"push reply message fail, channel of <{client_id}> not found"
            peer.answer(command, Reply(ResponseCode.SYSTEM_ERROR, text, send_ext()))
        return
    now_ms = services.clock.now_ms()
    properties = {**request.properties, "PUSH_REPLY_TIME": str(now_ms)}
    ext = {
        "producerGroup": request.group,
        "topic": message.topic,
        "defaultTopic": request.default_topic,
        "defaultTopicQueueNums": str(request.default_queues),
        "queueId": str(message.queue_id),
        "sysFlag": str(message.sys_flag),
        "bornTimestamp": str(message.born_ms),
        "flag": str(message.flag),
        "properties": encode_properties(properties).decode("utf-8", "replace"),
        "reconsumeTimes": str(message.reconsume_times),
        "unitMode": "false",
        "bornHost": peer.remote_address,
        "storeHost": services.address,
        "storeTimestamp": str(now_ms),
    }
    peer_of(member).call(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, message.body, answered)
