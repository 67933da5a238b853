"""The fast path of sending: one run of plain sends becomes one batch of the broker and one write of responses.

The codec has put sends to existing topics into the intake (``codec.SendIntake``), those that are delayed or prepared
among them. What is left to decide for each destination, not for each message, is decided here; a destination that is
refused does not touch the others.

Ref: remoting.md 4.3.
"""

from __future__ import annotations

import logging
import random
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import RequestError, StoreError
from headrace.remoting.checks import find_topic, require_sendable, require_writable, topic_not_found
from headrace.remoting.codes import RequestCode
from headrace.remoting.names import is_valid_topic
from headrace.remoting.reply import RequestRefusedError, code_of

if TYPE_CHECKING:
    from headrace.broker.topic import Topic
    from headrace.remoting.codec import SendIntake
    from headrace.remoting.connection import RemotingConnection
    from headrace.remoting.server import RemotingServer
    from headrace.remoting.services import Services
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)


def append_sends(connection: RemotingConnection) -> None:
    """Append what the intake holds and answer it."""
    server = connection.server
    intake = server.intake
    if not intake.sends:
        return
    if server.logs_commands:
        log_sends(connection, intake)
    services = connection.services
    batch = intake.batch
    try:
        batch.born_host = connection.born_host
        batch.born_host_v6 = connection.born_v6
        wait = publish_sends(server, intake)
        if refused := intake.untold():
            connection.note_untold(RequestCode.SEND_MESSAGE, *refused)
        count_sends(server, intake, connection.host)
        if intake.halves:
            places = intake.half_places()
            services.held_sends.note_halves(
                [
                    (at, queue_offset)
                    for destination, at, queue_offset in places
                    if batch.queues[destination] is not None
                ]
            )
        replies = intake.encode_replies(services.store_host)
        # What is held is refused one by one when the disk fails; who sent plain messages only asks elsewhere.
        refuse = partial(connection.refuse_sends, replies) if any(intake.holds) else None
        connection.send_when_durable(wait, replies, refuse)
    finally:
        intake.clear()


def log_sends(connection: RemotingConnection, intake: SendIntake) -> None:
    """Write the line that log level ``debug`` has for each send; a signed one has that of its request too."""
    for index in range(intake.sends):
        opaque, _, is_oneway, topic, queue_id, messages = intake.sent(index)
        logger.debug(
            "send client=%s opaque=%d topic=%s queue=%d messages=%d bytes=%d oneway=%s",
            connection.remote_address,
            opaque,
            topic,
            queue_id,
            len(messages),
            sum(len(message[0]) for message in messages),
            is_oneway,
        )


def publish_sends(server: RemotingServer, intake: SendIntake) -> int:
    """Append what the intake holds, or refuse it by destination; return what to wait for on the disk, 0: nothing."""
    server.counters.sends += intake.sends
    topics, is_waited_for = _place_sends(server, intake)
    try:
        return server.broker.publish_placed(intake.batch, topics, is_waited_for=is_waited_for)
    except (RequestError, StoreError) as error:
        _refuse_rest(server, intake, error)
        return 0


def _place_sends(server: RemotingServer, intake: SendIntake) -> tuple[list[Topic | None], bool]:
    """Choose the queue of each destination, or refuse it.

    Returns:
        The topics, None where a destination is refused, and whether messages that are held must be on the disk before
        their producer is answered.
    """
    services, batch = server.services, intake.batch
    topics: list[Topic | None] = []
    queues: list[QueueBase | None] = []
    is_waited_for = False
    found: Topic | None = None
    for index, ((name, queue_id), hold) in enumerate(zip(batch.destinations, intake.holds, strict=True)):
        topic: Topic | None = None
        queue: QueueBase | None = None
        try:
            if found is None or found.name != name:
                found = find_open_topic(services, name)
            topic, queue = found, queue_of(found, queue_id)
            if hold:
                awaits_flush = queue.awaits_flush
                topic, queue = services.held_sends.waiting_place(hold)
                is_waited_for |= awaits_flush
        except (RequestError, StoreError) as error:
            topic = queue = None
            code = code_of(error)
            server.counters.refusals[code] += intake.refuse(index, code, str(error))
        topics.append(topic)
        queues.append(queue)
    batch.queues = queues
    return topics, is_waited_for


def _refuse_rest(server: RemotingServer, intake: SendIntake, error: RequestError | StoreError) -> None:
    """Refuse every destination that is not refused yet, since nothing was appended."""
    batch, code = intake.batch, code_of(error)
    for destination, queue in enumerate(batch.queues):
        if queue is not None:
            server.counters.refusals[code] += intake.refuse(destination, code, str(error))
    batch.queues = [None] * len(batch.queues)


def count_sends(server: RemotingServer, intake: SendIntake, host: str, first: int = 0, count: int = -1) -> None:
    """Count what ``count`` sends from ``first`` on, all of one host, have appended; a negative count means all."""
    batch = intake.batch
    puts = [
        (*batch.destinations[at], messages, size, sends)
        for at, sends, messages, size in intake.totals_of(first, count)
        if batch.queues[at] is not None
    ]
    server.counters.messages_in += server.services.count_puts(host, puts)


def find_open_topic(services: Services, name: str) -> Topic:
    """Return a topic to which clients may send.

    Raises:
        RequestRefusedError: the checks of remoting.md 4.3 that concern broker and topic.
    """
    require_sendable(name)
    if not is_valid_topic(name):
        raise topic_not_found(name)
    topic = find_topic(services, name)
    require_writable(services, topic)
    return topic


def queue_of(topic: Topic, queue_id: int) -> QueueBase:
    """Return the queue of that id; a negative one chooses at random.

    Raises:
        RequestRefusedError: there is none.
    """
    config = topic.config
    if queue_id >= max(config.read_queues, config.write_queues):
        raise RequestRefusedError(
            f"request queueId[{queue_id}] is illegal, topic[{topic.name}] has {config.write_queues} write queues"
        )
    if queue_id < 0:
        queue_id = random.randrange(max(1, config.write_queues))  # spreads load, keeps no secret
    queue = topic.queue(queue_id)
    if queue is None:
        raise RequestRefusedError(f"request queueId[{queue_id}] of topic[{topic.name}] does not exist")
    return queue
