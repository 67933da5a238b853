"""Locks of queues, for consumers that consume in order.

A client may ask for tens of thousands of queues in one request, each of which takes some microseconds. They are read,
locked and answered in parts, with others served in between.

Ref: remoting.md 4.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.consumers.clients import MAX_NAME
from headrace.broker.consumers.groups import require_group_name
from headrace.format import fastjson
from headrace.format.names import MAX_TOPIC_BYTES
from headrace.remoting import bodies, fields
from headrace.remoting.reply import Reply

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from headrace.broker.consumers.locks import QueueKey
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.reply import Parts
    from headrace.remoting.services import Services

QUEUES_AT_ONCE: Final = 1_000
"""Queues of one part: 1 to 3 ms."""


def lock_queues(peer: Peer, command: Command) -> Parts:
    """Give queues to an orderly consumer, as far as no other holds them (41).

    Where the broker has not room for the locks of all of them, none is given, unless others took it between two parts.
    """
    services = peer.services
    group, client_id, wanted = yield from _read_locks(services, command)
    new: set[QueueKey] = set()
    for number, keys in enumerate(_parts(wanted)):
        if number:
            yield
        new |= services.locks.unknown(group, keys)
    services.locks.require_room(len(new))
    rows: list[bytes] = []
    for keys in _parts(wanted):
        if rows:
            yield
        held = services.locks.lock(group, client_id, keys, services.clock.monotonic_ms())
        queues = [bodies.queue_fields(services.broker.name, topic, queue_id) for topic, queue_id in held]
        rows.append(fastjson.dumps(queues)[1:-1])
    return Reply(body=b'{"lockOKMQSet":[%b]}' % b",".join(filter(None, rows)))


def unlock_queues(peer: Peer, command: Command) -> Parts:
    """Take back the queues of an orderly consumer (42)."""
    group, client_id, wanted = yield from _read_locks(peer.services, command)
    for number, keys in enumerate(_parts(wanted)):
        if number:
            yield
        peer.services.locks.unlock(group, client_id, keys)
    return Reply()


def _read_locks(services: Services, command: Command) -> Generator[None, None, tuple[str, str, list[QueueKey]]]:
    """Return the group, the client and the queues of a request."""
    body = bodies.read_outline(command.body, "mqSet")
    group = bodies.member_text(body, "consumerGroup")
    require_group_name(group)
    client_id = bodies.member_text(body, "clientId", most=MAX_NAME)
    most = services.broker.settings.max_queue_locks
    given = bodies.member_list(body, "mqSet", most, "broker.max_queue_locks")
    wanted: list[QueueKey] = []
    for number, entries in enumerate(_parts(given)):
        if number:
            yield
        wanted += [
            (
                bodies.member_text(entry, "topic", most=MAX_TOPIC_BYTES),
                bodies.member_int(entry, "queueId", most=fields.MAX_I32),
            )
            for entry in bodies.read_entries(entries, "mqSet")
            if entry.get("brokerName", services.broker.name) == services.broker.name
        ]
    return group, client_id, wanted


def _parts(rows: list[Any]) -> Iterator[list[Any]]:
    return (rows[at : at + QUEUES_AT_ONCE] for at in range(0, len(rows), QUEUES_AT_ONCE))
