"""Messages asked for one by one, and messages that come back: by id, by key, and those a consumer could not process.

Ref: remoting.md 4.4 (code 36), 4.5.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from headrace.broker.access import Action
from headrace.broker.withheld.retry import RETRY_TOPIC
from headrace.errors import MessageNotFoundError, RequestError, StoreClosedError, StoreError
from headrace.remoting import fields
from headrace.remoting.checks import find_group, nameable_topic, require_writable
from headrace.remoting.codes import FIRST_VERSION_WITH_OWN_RETRY_LIMIT, ResponseCode
from headrace.remoting.guard import Need
from headrace.remoting.handlers.gathered import write_alone
from headrace.remoting.reading.single_records import answer_when_read, find_visible
from headrace.remoting.reply import Reply, RequestRefusedError, refuse
from headrace.remoting.services import retry_rules
from headrace.store.key_query import MAX_MATCHES, KeyMatches, KeyQuery
from headrace.store.log_ranges import find_cold

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.gathering import Gathering
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services

logger = logging.getLogger(__name__)

MAX_QUERIES: Final = 32
"""Queries by key at once; one thread does them."""
MAX_BYTES: Final = 8 << 20
"""Records one query is answered with."""
MAX_UNIQUE: Final = 32
"""Matches of a query by unique key, whatever it asks for: RocketMQ's."""
NOTHING_FOUND: Final = "can not find message, maybe time range not correct"


def send_back(peer: Peer, command: Command, gathering: Gathering) -> Reply | Callable[[], Reply] | None:
    """Take back a message that a consumer could not process (36)."""
    services = peer.services
    ext = command.ext
    name = fields.text(ext, "group")
    group = find_group(services, name)
    require_writable(services)
    physical_offset = fields.number(ext, "offset")
    level = fields.number(ext, "delayLevel", most=fields.MAX_I32)
    most = None
    if command.version >= FIRST_VERSION_WITH_OWN_RETRY_LIMIT and ext.get("maxReconsumeTimes"):
        most = fields.number(ext, "maxReconsumeTimes", most=fields.MAX_I32)
    rules = retry_rules(group, unit_mode=fields.flag(ext, "unitMode"))
    user = peer.user

    def put_back(gathering: Gathering) -> Reply | Callable[[], Reply]:
        stored = find_visible(services, physical_offset)
        if user is not None:
            # What is sent back is delivered to the group: it must be one of the messages that its consumer may read.
            peer.require(user, Need(Action.SUBSCRIBE, stored.topic), command.code)
        work = services.messages.retries.sending_back(gathering, rules, stored, level, max_times=most)

        def finish() -> Reply:
            wait_offset = 0 if work is None else work.finish(services.clock.now_ms())
            # Of a message that was sent back before, its property says where it was published; a producer may set it.
            origin = stored.property(RETRY_TOPIC.encode()) or ""
            services.statistics.note_send_back(name, origin if origin in services.broker.topics else stored.topic)
            return Reply(wait_offset=wait_offset)

        return finish() if work is None else finish

    if find_cold(services.broker.store.log, physical_offset) is None:
        return put_back(gathering)
    return answer_when_read(peer, command, [physical_offset], lambda: write_alone(services.broker, put_back))


def view_message(peer: Peer, command: Command) -> Reply | None:
    """Return one record by its physical offset (33)."""
    physical_offset = fields.number(command.ext, "offset")
    user = peer.user

    def view() -> Reply:
        try:
            stored = find_visible(peer.services, physical_offset)
        except MessageNotFoundError as error:
            raise RequestRefusedError(str(error)) from error
        if user is not None:
            peer.require(user, Need(Action.SUBSCRIBE, stored.topic), command.code)
        return Reply(body=stored.raw)

    return answer_when_read(peer, command, [physical_offset], view)


def query_message(peer: Peer, command: Command) -> Reply | None:
    """Return the newest messages of a topic that have a key, oldest first (12); the index is read in a thread."""
    services = peer.services
    ext = command.ext
    unique = fields.flag(ext, "_UNIQUE_KEY_QUERY")
    count = fields.number(ext, "maxNum", most=fields.MAX_I32)
    query = KeyQuery(
        topic=fields.text(ext, "topic"),
        key=fields.text(ext, "key"),
        max_count=MAX_UNIQUE if unique else min(count, MAX_MATCHES),
        begin_ms=fields.number(ext, "beginTimestamp"),
        end_ms=fields.number(ext, "endTimestamp"),
        unique=unique,
    )
    if query.max_count <= 0 or nameable_topic(services, query.topic) is None:
        return Reply(ResponseCode.QUERY_NOT_FOUND, NOTHING_FOUND)
    if services.key_queries >= MAX_QUERIES:
        raise RequestRefusedError(
            f"{MAX_QUERIES} queries by key are running, no more are taken at once", ResponseCode.SYSTEM_BUSY
        )
    services.key_queries += 1
    store = services.broker.store

    def found(job: Future[KeyMatches]) -> None:
        services.key_queries -= 1
        reply = _query_failure(services, job)
        if reply is None:
            matches = job.result()
            try:
                reply = answer_when_read(peer, command, matches.offsets, lambda: _query_reply(services, matches))
            except (RequestError, StoreError) as error:
                reply = refuse(error)
        if reply is not None:
            peer.answer(command, reply)

    store.find_by_key(query).add_done_callback(lambda job: store.notify(lambda: found(job)))
    return None


def _query_failure(services: Services, job: Future[KeyMatches]) -> Reply | None:
    """Return the response to a query that failed, None when it did not."""
    error = job.exception() if not job.cancelled() else StoreClosedError("the store is closed")
    if error is None:
        return None
    if services.read_pace.is_due("query"):
        logger.error("query by key failed error=%s", error)
    return Reply(ResponseCode.SYSTEM_ERROR, f"messages with a key cannot be looked for: {error}")


def _query_reply(services: Services, matches: KeyMatches) -> Reply:
    """Return the response to a query that has ended."""
    records, size = [], 0
    for physical_offset in matches.offsets:
        if size >= MAX_BYTES:
            break
        raw = services.broker.store.log.read(physical_offset)
        if raw is not None:
            records.append(raw)
            size += len(raw)
    ext = {
        "indexLastUpdateTimestamp": str(matches.last_update_ms),
        "indexLastUpdatePhyoffset": str(matches.last_update_offset),
    }
    if not records:
        return Reply(ResponseCode.QUERY_NOT_FOUND, NOTHING_FOUND, ext)
    records.reverse()  # tools show them as they come, a message's trace from its sending on
    return Reply(ext=ext, body=b"".join(records))
