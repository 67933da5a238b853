"""PULL_MESSAGE and LITE_PULL_MESSAGE: read at an offset, or wait until there is something to read.

A pull that finds the end of its queue is held: the queue's growth, or its deadline, brings it back and it is read and
answered once more, then for good. A pull whose next record lies on the disk waits for the thread that reads it.
Held pulls cost nothing while nothing happens. Most pulls are as the one before but for their offset: ``known_pulls``
answers those that need not be checked again.

Two deviations from RocketMQ, both in the consumer's favour. A subscription that is newer than the last heartbeat's is
not refused with 25: what the pull says counts, or for a tag subscription that it does not say, everything is sent and
the client picks, as it does anyway. And an invalid SQL92 expression is refused, where RocketMQ delivers everything.

Ref: remoting.md 3.10, 4.4.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from headrace.broker.consumers.clients import MAX_WORD
from headrace.broker.consumers.subscription import ALL, SQL92, TAG
from headrace.broker.pull import PullResult, PullStatus, read_queue
from headrace.errors import RequestError
from headrace.format.names import DECIDED_GROUP
from headrace.remoting.checks import find_readable_queue, require_consuming, require_readable
from headrace.remoting.codec import encode_pull_response, pull_request
from headrace.remoting.codes import ResponseCode
from headrace.remoting.handlers.offsets import end_of
from headrace.remoting.members import follows_resets
from headrace.remoting.reading.subscriptions import EVERYTHING, MessageFilter, filter_of, require_readable_length
from headrace.remoting.reply import RequestRefusedError

if TYPE_CHECKING:
    from headrace.broker.consumers.groups import SubscriptionGroup
    from headrace.remoting.codec import Command, PullRequest
    from headrace.remoting.connection import RemotingConnection
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services
    from headrace.store.queue_base import QueueBase

_CODES: Final = {
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.COLD: ResponseCode.PULL_RETRY_IMMEDIATELY,  # its client goes on waiting with another pull
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY: Final = (PullStatus.NO_MESSAGE_IN_QUEUE, PullStatus.NO_MATCHED_LOGIC_QUEUE)
_FOUND: Final = PullStatus.FOUND
_FOUND_REMARK: Final = PullStatus.FOUND.name


@dataclass(slots=True, eq=False)
class ServedPull:
    """A pull that is being served; it lives on while it waits."""

    connection: RemotingConnection
    request: PullRequest
    queue: QueueBase
    wanted: MessageFilter
    offset: int
    deadline_ms: int = 0  # monotonic; 0 = it has not waited yet
    cold_since_ms: int = 0  # when it first waited for the disk; 0 = it has not
    is_over: bool = False


def pull(connection: RemotingConnection, request: PullRequest) -> None:
    """Answer a pull, now or when there is something for it.

    Raises:
        RequestRefusedError: a text is too long, or one of the checks of remoting.md 4.4.
    """
    services = connection.services
    if not connection.is_blocked:
        answer = connection.server.known_pulls.answer(request, connection.host)
        if answer is not None:
            connection.send(answer)
            return
    check_texts(request)
    queue, wanted = check_pull(services, request)
    is_reset = False
    if not request.is_oneway:  # nobody waits for what such a pull finds
        moved = services.offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
        is_reset = moved is not None
        if moved is not None and moved != request.queue_offset:
            answer_moved(connection, request, queue, moved)
            return
        serve(ServedPull(connection, request, queue, wanted, request.queue_offset))
    if request.has_commit_offset and not is_reset and request.consumer_group != DECIDED_GROUP:
        # Refused, it is counted; the pull is answered, or waits, all the same.
        with contextlib.suppress(RequestError):
            services.offsets.commit(request.consumer_group, request.topic, request.queue_id, request.commit_offset)


def pull_command(peer: Peer, command: Command) -> None:
    """Answer a pull that the codec left as a command: it is signed, or a field is wrong.

    Raises:
        ProtocolError, RequestRefusedError: it is refused.
    """
    pull(cast("RemotingConnection", peer), pull_request(command))


def answer_moved(connection: RemotingConnection, request: PullRequest, queue: QueueBase, offset: int) -> None:
    """Answer a pull of a group whose offset was reset with where it goes on.

    One that is there already must not get this answer: it costs a Java client, which has reset by itself, ten seconds.
    """
    result = PullResult(PullStatus.OFFSET_TOO_SMALL, offset, queue.min_offset, end_of(queue))
    _answer_without(connection, request, ResponseCode.PULL_OFFSET_MOVED, result)


def check_texts(request: PullRequest) -> None:
    """Refuse a pull whose texts are longer than any client's: they are kept as long as it waits.

    Raises:
        RequestRefusedError: one is.
    """
    if len(request.language) > MAX_WORD:
        raise RequestRefusedError(f"a language has at most {MAX_WORD} characters")
    if len(request.expression_type or "") > MAX_WORD:
        raise RequestRefusedError(
            f"an expression type has at most {MAX_WORD} characters", ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )
    require_readable_length(request.subscription or "")


def check_pull(services: Services, request: PullRequest) -> tuple[QueueBase, MessageFilter]:
    """Return what to read with which filter.

    Raises:
        RequestRefusedError: one of the checks of remoting.md 4.4, in their order.
    """
    require_readable(services)
    group = services.ensure_group(request.consumer_group)
    require_consuming(group)
    queue = find_readable_queue(services, request.topic, request.queue_id, group.name)
    if request.has_subscription:
        return queue, filter_of(request.expression_type or TAG, request.subscription or ALL)
    return queue, find_filter(services, group, request)


def find_filter(services: Services, group: SubscriptionGroup, request: PullRequest) -> MessageFilter:
    """Return the filter of a pull that relies on its group's heartbeats.

    Raises:
        RequestRefusedError: the group is not there, may not broadcast, or has not subscribed to the topic.
    """
    name = request.consumer_group
    members = services.clients.consumer_group(name)
    if members is None:
        raise RequestRefusedError(
            f"the consumer's group info not exist, group: {name}", ResponseCode.SUBSCRIPTION_NOT_EXIST
        )
    if not group.broadcast_enabled and members.message_model == "BROADCASTING":
        raise RequestRefusedError(
            f"the consumer group[{name}] can not consume by broadcast way", ResponseCode.NO_PERMISSION
        )
    subscription = services.clients.subscription(name, request.topic)
    if subscription is None:
        raise RequestRefusedError(
            f"the consumer's subscription not exist, group: {name}, topic: {request.topic}",
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
        )
    if subscription.version < request.sub_version:
        if request.subscription:
            return filter_of(request.expression_type or TAG, request.subscription)
        if subscription.kind != SQL92:
            return EVERYTHING
    return filter_of(subscription.kind, subscription.expression)


def serve(held: ServedPull) -> None:
    """Read for a pull and answer it, or have it wait."""
    connection, request = held.connection, held.request
    if connection.is_blocked:
        connection.postpone(held)
        return
    server = connection.server
    records = server.records
    most, most_bytes = server.known_pulls.bounds_of(request)
    try:
        result = read_queue(held.queue, held.offset, most, most_bytes, held.wanted.codes, held.wanted.matcher, records)
        if result.status is _FOUND:
            held.is_over = True
            _answer_found(connection, request, result)
            server.known_pulls.learn(request, connection.host, held.queue, held.wanted)
            return
    finally:
        records.clear()
    if result.status is PullStatus.COLD:
        held.offset = result.next_offset
        if server.hold_cold(held):
            return
    code = _code_of(held, result.status)
    waited = held.deadline_ms > 0
    # Behind the last message: wait. Messages that came meanwhile and do not match are passed over silently.
    at_end = code == ResponseCode.PULL_NOT_FOUND or (
        waited and code == ResponseCode.PULL_RETRY_IMMEDIATELY and result.next_offset >= result.max_offset
    )
    if at_end and request.may_suspend and server.hold(held, result.next_offset):
        return
    held.is_over = True
    _answer_without(connection, request, code, result)


def _code_of(held: ServedPull, status: PullStatus) -> ResponseCode:
    """Return what a pull is answered with that found nothing."""
    if status in _EMPTY:
        return ResponseCode.PULL_OFFSET_MOVED if held.offset else ResponseCode.PULL_NOT_FOUND
    if (
        status is PullStatus.OFFSET_TOO_SMALL
        and held.offset >= 0
        and held.connection.services.broker.is_whole(held.queue)
    ):
        return ResponseCode.PULL_RETRY_IMMEDIATELY  # the topic was made again: nothing that was its own is missing
    return _CODES[status]


def resume(held: ServedPull) -> None:
    """Go on with a pull that waited: its queue grew, its record was read in, its offset was reset or its time is over.

    A consumer that is told of resets by itself gets no answer about one from a pull that waited: Java's goes to the new
    offset 10 s after either, and after the second once more.
    """
    connection, request = held.connection, held.request
    if held.is_over or connection.cause:
        return
    try:
        held.queue, wanted = check_pull(connection.services, request)
        if not follows_resets(connection.services, request.consumer_group):
            offsets = connection.services.offsets
            moved = offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
            if moved is not None and moved != request.queue_offset:
                held.is_over = True
                answer_moved(connection, request, held.queue, moved)
                return
        if wanted is not held.wanted:
            # Its group subscribed anew. Clients drop what they did not want when they pulled, so they pull once more.
            held.is_over = True
            bounds = held.queue.min_offset, end_of(held.queue)
            again = PullResult(PullStatus.NO_MATCHED_MESSAGE, request.queue_offset, *bounds)
            _answer_without(connection, request, ResponseCode.PULL_RETRY_IMMEDIATELY, again)
            return
        serve(held)
    except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
        held.is_over = True
        connection.answer(request, connection.reply_to(error, request.code))


def refuse_waiting(held: ServedPull, error: RequestError) -> None:
    """Refuse a pull that waits, unless it is over or its client leaves."""
    connection, request = held.connection, held.request
    if not held.is_over and not connection.cause:
        held.is_over = True
        connection.answer(request, connection.reply_to(error, request.code))


def _answer_found(connection: RemotingConnection, request: PullRequest, result: PullResult) -> None:
    """Answer with the records that the server has read."""
    server, services = connection.server, connection.services
    records = server.records
    messages = records.count
    server.counters.messages_out += messages
    services.throughput.found += 1
    group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
    services.count_get(group, topic, queue_id, messages, records.record_bytes, connection.host)
    if services.statistics.by_queue:
        last = records.position(messages - 1)[2]
        services.statistics.note_lag(group, topic, queue_id, services.broker.store.log.end_offset - last)
    bounds = result.next_offset, result.min_offset, result.max_offset
    connection.send(encode_pull_response(request, 0, _FOUND_REMARK, *bounds, records))


def _answer_without(
    connection: RemotingConnection, request: PullRequest, code: ResponseCode, result: PullResult
) -> None:
    """Answer that there is nothing at this offset."""
    connection.services.throughput.missed += 1
    if code == ResponseCode.PULL_OFFSET_MOVED:
        connection.server.counters.refusals[code] += 1
        connection.services.messages.offset_moved.note(
            request.consumer_group, request.topic, request.queue_id, request.queue_offset, result.next_offset
        )
    bounds = result.next_offset, result.min_offset, result.max_offset
    connection.send(encode_pull_response(request, int(code), result.status.name, *bounds))
