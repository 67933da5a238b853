"""What bulk readers (Spark) ask: the state of many queues in one call, raw pieces of the log, ranges of a queue.

Headrace's own requests; a RocketMQ broker answers them with REQUEST_CODE_NOT_SUPPORTED. ``reader_stream`` serves the
reads of one connection, ``readers`` has what all of them share.

Ref: docs/protocols/extensions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from headrace.broker.access import Action
from headrace.broker.consumers.subscription import TAG
from headrace.format import fastjson
from headrace.format.epochs import Epoch
from headrace.format.names import DEAD_LETTER_PREFIX, INTERNAL_TOPICS, RETRY_PREFIX, SYSTEM_TOPICS
from headrace.remoting import bodies, fields
from headrace.remoting.checks import find_readable_queue, require_consuming, require_readable, visible_topic
from headrace.remoting.codes import ResponseCode
from headrace.remoting.guard import Need
from headrace.remoting.handlers.offsets import end_of
from headrace.remoting.reading.reader_stream import LogRead, QueueRead
from headrace.remoting.reading.readers import StateWait
from headrace.remoting.reading.subscriptions import EVERYTHING, filter_of
from headrace.remoting.reply import Reply, RequestRefusedError

if TYPE_CHECKING:
    from headrace.broker.access import User
    from headrace.broker.topic import Topic
    from headrace.remoting.codec import Command
    from headrace.remoting.connection import RemotingConnection
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services

MAX_WAIT_MS: Final = 500
MAX_READ_BYTES: Final = 8 << 20
MAX_MESSAGES: Final = 65_536
MIN_READ_BYTES: Final = 4 << 10
MAX_TOPICS: Final = 10_000
"""Topics that one request may name; who wants more of them asks for all."""
ROWS_AT_ONCE: Final = 1_000
"""Queues that one turn of the loop describes."""


class _Known(msgspec.Struct):
    """What a reader has seen."""

    topics: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    log: int | None = None


class _StateBody(msgspec.Struct):
    """The body of a READER_STATE.

    Attributes:
        topics: Those asked for; None = all ordinary ones, with ``system`` and ``retry`` also those.
        known: What the reader has seen; None where it has not said, then nothing waits.
    """

    topics: list[str] | None = None
    log: bool = False
    known: _Known | None = None
    system: bool = False
    retry: bool = False


_STATE_BODIES: Final = msgspec.json.Decoder(_StateBody)


@dataclass(slots=True)
class StateRequest:
    """A READER_STATE; ``missing`` are the topics asked for that do not exist."""

    group: str
    user: User | None
    asked: _StateBody
    missing: list[str] = field(default_factory=list)


# -- READER_STATE ------------------------------------------------------------------------------------------------------


def reader_state(peer: Peer, command: Command) -> None:
    """Return what a reader plans with (27001), at once or when something is new."""
    services = peer.services
    wait_ms = fields.number(command.ext, "waitMs", 0, most=fields.MAX_I32)
    request = _state_request(command, peer.user)
    if peer.user is not None:
        for topic in request.asked.topics or ():
            peer.require(peer.user, Need(Action.SUBSCRIBE, topic), command.code)
        if request.asked.log:
            peer.require(peer.user, Need(Action.READ_LOG), command.code)
    known, topics = request.asked.known, request.asked.topics
    if wait_ms <= 0 or known is None:
        _answer_state(peer, command, request)
        return
    waits = services.readers.waits
    wait = StateWait(
        topics=None if topics is None else frozenset(topics),
        wants=lambda topic: topic is None or _is_selected(topic, request),
        log_known=-1 if known.log is None else known.log,
        due_ms=services.clock.monotonic_ms() + min(wait_ms, MAX_WAIT_MS),
        # In a later turn of the loop: one publish wakes many, and the next one may wake as well.
        wake=lambda: services.broker.store.notify(lambda: _answer_state(peer, command, request)),
        owner=peer,
    )
    if waits.hold(wait):
        # It waits first and looks then: what grows behind its back wakes it.
        _look_for_news(services, request, wait, lambda: _answer_state(peer, command, request))
    else:
        _answer_state(peer, command, request)


def _look_for_news(services: Services, request: StateRequest, wait: StateWait, answer: Callable[[], None]) -> None:
    """End a wait if something is new already; some queues are looked at in each turn of the loop."""
    news = _news(services, request)

    def go_on() -> None:
        if wait.is_over:
            return  # woken, or its connection has ended
        seen = 0
        for queues, is_new in news:
            if is_new:
                services.readers.waits.cancel(wait)
                answer()
                return
            seen += queues
            if seen >= ROWS_AT_ONCE:
                services.broker.store.notify(go_on)
                return
        services.readers.counters.held_states += 1

    go_on()


def _state_request(command: Command, user: User | None) -> StateRequest:
    """Return what a request says.

    Raises:
        RequestRefusedError: the body is not what it must be; the remark names the member.
    """
    asked = bodies.read_form(command.body, _STATE_BODIES)
    if asked.topics is not None:
        if len(asked.topics) > MAX_TOPICS:
            raise RequestRefusedError(f"the body's <topics> has more than {MAX_TOPICS} names; null stands for all")
        asked.topics = list(dict.fromkeys(asked.topics))
    return StateRequest(command.ext.get("group", ""), user, asked)


def _selected(services: Services, request: StateRequest) -> Iterator[Topic]:
    """Yield the topics that a request is about; those that do not exist are noted in ``missing``."""
    if request.asked.topics is not None:
        request.missing = []
        for name in request.asked.topics:
            topic = visible_topic(services, name)
            if topic is None:
                request.missing.append(name)
            else:
                yield topic
        return
    for topic in list(services.broker.topics.values()):
        if _is_selected(topic, request):
            yield topic


def _is_selected(topic: Topic, request: StateRequest) -> bool:
    """Return whether a topic is among those that a request which names none is about."""
    name = topic.name
    if topic.ephemeral:
        return False
    if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        if not request.asked.retry:
            return False
    elif not request.asked.system and (topic.is_system or name in SYSTEM_TOPICS or name in INTERNAL_TOPICS):
        return False
    return request.user is None or request.user.may(Action.SUBSCRIBE, topic=name)


def _news(services: Services, request: StateRequest) -> Iterator[tuple[int, bool]]:
    """Yield, topic by topic, how many queues were looked at and whether something is not as the reader knows it."""
    known = request.asked.known or _Known()
    yield 0, known.log is not None and known.log != services.broker.store.durable_offset
    for topic in _selected(services, request):
        ends = known.topics.get(topic.name)
        queues = topic.queues[: topic.config.read_queues]
        yield (
            len(queues),
            ends is None or any(ends.get(str(queue.queue_id)) != end_of(queue) for queue in queues),
        )
    yield 0, any(name in known.topics for name in request.missing)


def _answer_state(peer: Peer, command: Command, request: StateRequest) -> None:
    """Gather the state, some queues in each turn of the loop, and send it."""
    peer.services.long_answers.begin(peer, command, _gather_state(peer.services, request))


def _gather_state(services: Services, request: StateRequest) -> Generator[None, None, Reply]:
    """Return the answer; ``yield`` when a turn of the loop is over."""
    topics: list[bytes] = []  # in JSON, as is each turn's part: that of all at once would take a tenth of a second
    seen = 0
    for name, row in _rows(services, request):
        topics.append(fastjson.dumps({name: row})[1:-1])
        seen += max(1, len(row["queues"]))
        if seen >= ROWS_AT_ONCE:
            seen = 0
            yield
    head = fastjson.dumps(_head(services, request))
    return Reply(body=b'%b,"topics":{%b}}' % (head[:-1], b",".join(topics)))


def _rows(services: Services, request: StateRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, state) of each topic."""
    cuts = [epoch for epoch in services.broker.store.epochs if epoch.previous_end is not None]
    for topic in _selected(services, request):
        committed = services.offsets.queues(request.group, topic.name) if request.group else {}
        yield (
            topic.name,
            {
                "epoch": services.broker.creation_of(topic),
                "queues": {
                    str(queue.queue_id): {
                        "min": queue.min_offset,
                        "max": end_of(queue),
                        "committed": committed.get(queue.queue_id, -1),
                        **({"ends": _ends_of(cuts, (topic.name, queue.queue_id))} if cuts else {}),
                    }
                    for queue in topic.queues[: topic.config.read_queues]
                },
            },
        )


def _ends_of(epochs: Sequence[Epoch], queue: tuple[str, int]) -> dict[str, int]:
    """Return where a queue ended when each of some epochs began."""
    return {str(epoch.number): epoch.queue_ends[queue] for epoch in epochs if queue in epoch.queue_ends}


def _head(services: Services, request: StateRequest) -> dict[str, Any]:
    store = services.broker.store
    head = {
        "broker": services.broker.name,
        "store_id": store.store_id,
        "epoch": store.epoch,
        "epochs": [{"epoch": epoch.number, "offset": epoch.first_offset} for epoch in store.epochs],
        "segment_bytes": store.log.segment_bytes,
        "missing": request.missing,
    }
    if request.asked.log:
        log: dict[str, Any] = {"min": store.log.first_offset, "max": store.durable_offset}
        head["log"] = log
        if store.missing:
            log["missing"] = store.missing
    return head


# -- READ_LOG and READ_QUEUE -------------------------------------------------------------------------------------------


def read_log(peer: Peer, command: Command) -> None:
    """Return bytes of the commit log from a physical offset on (27002)."""
    offset = fields.number(command.ext, "offset")
    max_bytes = _max_bytes(command)
    _require_readable_here(peer.services, command)
    if not command.is_oneway:
        _stream(peer).add(LogRead(command, offset, max_bytes))


def read_queue(peer: Peer, command: Command) -> None:
    """Return the records of a range of a queue (27003)."""
    services = peer.services
    ext = command.ext
    _require_readable_here(services, command)
    group = services.groups.get(ext.get("group", ""))
    if group is not None:
        require_consuming(group)
    name, queue_id = fields.text(ext, "topic"), fields.number(ext, "queueId", most=fields.MAX_I32)
    queue = find_readable_queue(services, name, queue_id, ext.get("group", ""))
    offset, end_offset = fields.number(ext, "offset"), fields.number(ext, "endOffset")
    if end_offset < offset:
        raise RequestRefusedError(f"the custom field <endOffset> = {end_offset} is below <offset> = {offset}")
    tags = ext.get("tags", "")
    wanted = filter_of(TAG, tags) if tags else EVERYTHING
    most = fields.number(ext, "maxMessages", MAX_MESSAGES)
    read = QueueRead(
        command=command,
        group="" if group is None else group.name,
        topic=name,
        queue=queue,
        offset=offset,
        end_offset=end_offset,
        max_messages=min(max(most, 1), MAX_MESSAGES),
        max_bytes=_max_bytes(command),
        codes=wanted.codes,
    )
    if not command.is_oneway:
        _stream(peer).add(read)


def _require_readable_here(services: Services, command: Command) -> None:
    """Refuse a read where this is not the broker that the reader means, or where it may not be read."""
    meant = command.ext.get("broker", "")
    if meant and meant != services.broker.name:
        raise RequestRefusedError(
            f"broker {services.broker.name!r} is here now, not {meant[:256]!r}", ResponseCode.SERVICE_NOT_AVAILABLE
        )
    require_readable(services)


def _max_bytes(command: Command) -> int:
    return min(max(fields.number(command.ext, "maxBytes", MAX_READ_BYTES), MIN_READ_BYTES), MAX_READ_BYTES)


def _stream(peer: Peer) -> Any:
    return cast("RemotingConnection", peer).reads
