"""Batches with an identity: what a producer sends again, because it does not know what became of it, is stored once.

One request is one batch to one queue. Its messages go from the body into the log without an object for each
(``rows.RowIntake``); those that wait for a time go one by one. What the broker has to remember of the batch is a record
that is appended with it (``producer_log``).

Ref: docs/protocols/extensions.md, "SEND_SEQUENCED"; docs/adr/0009-exactly-once-writes.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from headrace.batch import PublishBatch
from headrace.broker.access import Action
from headrace.broker.exactly_once.key_set import FINGERPRINT_BYTES, fingerprint, select_new
from headrace.broker.exactly_once.producers import ProducerKey, Sequences
from headrace.broker.exactly_once.staged_batch import Chosen, Run
from headrace.broker.message import Message, Outbox
from headrace.broker.withheld.schedule import level_of
from headrace.errors import InvalidDelayError, ProtocolError, RequestError, StoreError
from headrace.format.names import RETRY_PREFIX
from headrace.format.record import SYS_TRANSACTION, properties_of
from headrace.remoting import fields
from headrace.remoting.checks import require_sendable, require_writable
from headrace.remoting.codec import decode_batch
from headrace.remoting.codes import ResponseCode
from headrace.remoting.guard import Need
from headrace.remoting.handlers.send import MAX_PARTS
from headrace.remoting.names import require_topic
from headrace.remoting.reply import Reply, RequestRefusedError, refuse
from headrace.remoting.sending.intake import queue_of
from headrace.remoting.sending.rows import too_large
from headrace.remoting.sending.send_request import stored_properties
from headrace.remoting.topics import find_or_create

if TYPE_CHECKING:
    from headrace.broker.topic import Topic
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services
    from headrace.store.queue_base import QueueBase

MAX_ROWS: Final = 65_535
"""Messages of one batch."""

MAX_BODY_BYTES: Final = (4 << 20) + (64 << 10)
"""Bytes of one batch, whatever ``remoting.max_message_bytes`` allows: of the largest message with its properties."""

MAX_TXN_CHARS: Final = 128

MAX_CHOSEN: Final = 100_000
"""Attempts that one commit may name."""

Row = tuple[int, Message]
"""A message and its number in its request."""

_FromZero = Annotated[int, msgspec.Meta(ge=0, le=fields.MAX_I64)]

TEMPLATE: Final = "DEFAULT_TOPIC"
"""What a topic that does not exist is made from, unless the request names another."""


@dataclass(frozen=True, slots=True)
class SequencedSend:
    """One request as the client means it."""

    topic: str
    queue_id: int
    semantics: str
    txn: str
    epoch: int
    partition: int
    attempt: int
    seq: int
    count: int
    born_ms: int
    sys_flag: int
    default_topic: str
    default_queues: int
    body: bytes


def read_request(peer: Peer, command: Command) -> SequencedSend:
    """Read a request.

    Raises:
        RequestRefusedError: a field is missing or malformed; the remark names it.
    """
    ext = command.ext
    fields.text(ext, "producerGroup")
    txn = _read_txn(peer, ext)
    count = _from_zero(ext, "count", fields.MAX_I32)
    if not 0 < count <= MAX_ROWS:
        raise _illegal(f"<count> = {count} is not accepted: 1 to {MAX_ROWS}")
    if len(command.body) > MAX_BODY_BYTES:
        raise _illegal(f"the body has {len(command.body)} bytes, at most {MAX_BODY_BYTES} are accepted")
    return SequencedSend(
        topic=fields.text(ext, "topic"),
        queue_id=_from_zero(ext, "queueId", fields.MAX_I32),
        semantics=fields.text(ext, "semantics"),
        txn=txn,
        epoch=_from_zero(ext, "epoch"),
        partition=_from_zero(ext, "partition", fields.MAX_I32),
        attempt=_from_zero(ext, "attempt"),
        seq=_from_zero(ext, "seq"),
        count=count,
        born_ms=fields.number(ext, "bornTimestamp"),
        sys_flag=fields.number(ext, "sysFlag", 0, most=fields.MAX_I32) & ~SYS_TRANSACTION & 0xFFFFFFFF,
        default_topic=ext.get("defaultTopic") or TEMPLATE,
        default_queues=fields.number(ext, "defaultTopicQueueNums", 4, most=fields.MAX_I32),
        body=command.body,
    )


def _read_txn(peer: Peer, ext: dict[str, str]) -> str:
    """Return whose batches they are: with access control, a txn of the same name of another user is another."""
    txn = fields.text(ext, "txn")
    if len(txn) > MAX_TXN_CHARS:
        raise _illegal(f"<txn> has {len(txn)} characters, at most {MAX_TXN_CHARS} are accepted")
    try:
        txn.encode()
    except UnicodeEncodeError as error:
        raise _illegal(f"<txn> = {txn!r} is no text") from error
    # The length keeps user "a" with txn "b:c" apart from user "a:b" with txn "c".
    return txn if peer.user is None else f"{len(peer.user.name)}:{peer.user.name}:{txn}"


def _from_zero(ext: dict[str, str], name: str, most: int = fields.MAX_I64) -> int:
    value = fields.number(ext, name, most=most)
    if value < 0:
        raise _illegal(f"<{name}> = {value} is not accepted: a whole number from 0 on")
    return value


def _illegal(text: str) -> RequestRefusedError:
    return RequestRefusedError(f"the batch is illegal: {text}", ResponseCode.MESSAGE_ILLEGAL)


def send_sequenced(peer: Peer, command: Command) -> Reply:
    """Store a batch with an identity (27004)."""
    services = peer.services
    request = read_request(peer, command)
    semantics = SEMANTICS.get(request.semantics)
    if semantics is None:
        raise _illegal(f"<semantics> = {request.semantics[:32]!r} is not accepted: {', '.join(SEMANTICS)}")
    known = len(services.broker.topics)
    topic, queue = place(services, request)
    reply = semantics(peer, request, topic, queue)
    if len(services.broker.topics) > known:
        reply.wait_saved = partial(services.when_known, [request.topic])
    return reply


def place(services: Services, request: SequencedSend) -> tuple[Topic, QueueBase]:
    """Return where a batch goes; the topic is made if it does not exist.

    Raises:
        RequestRefusedError: it cannot go there.
        QuotaExceededError: the topic cannot be made.
    """
    require_writable(services)
    require_topic(request.topic)
    require_sendable(request.topic)
    if request.topic.startswith(RETRY_PREFIX):
        raise _illegal(f"the topic[{request.topic}] takes retries, which have no identity")
    topic = find_or_create(services, request.topic, request.default_topic, request.default_queues)
    return topic, queue_of(topic, request.queue_id)


def _send_sequence(peer: Peer, request: SequencedSend, topic: Topic, queue: QueueBase) -> Reply:
    """Store what a producer that numbers its messages has not stored before."""
    services = peer.services
    sequences = services.producers.sequences
    key = ProducerKey(request.txn, request.partition, topic.name, queue.queue_id)
    verdict = sequences.judge(key, request.epoch, request.seq, request.count)
    if verdict.has_gap(request.seq):
        sequences.counters.gaps += 1
        raise _gap(request, verdict.expected)
    duplicates = verdict.duplicates
    if duplicates == request.count:
        sequences.counters.duplicates += duplicates
        if verdict.is_over:
            _note_outdated(services, request)
        return _reply(0, duplicates, -1, verdict.wait_offset)
    stored = request.count - duplicates
    offset = queue.next_offset
    change = Sequences.change(key, request.epoch, request.attempt, request.seq + duplicates, stored, offset)
    rows = services.rows
    try:
        special = _take(peer, request, duplicates)
        if special < 0:
            size = rows.batch.body_bytes
            rows.set_record(services.producers.log.encode(change))
            wait = services.producers.log.append(rows.batch, [queue], [topic], change)
        else:
            messages = _read_messages(peer, request, queue, special, duplicates)
            size = sum(len(message.body) for _, message in messages[duplicates:])
            offset, wait = _append_singly(peer, messages[duplicates:], change)
    finally:
        rows.clear()
    sequences.note_wait(key, max(wait, verdict.wait_offset))
    sequences.counters.stored += stored
    sequences.counters.duplicates += duplicates
    services.count_put(topic.name, queue.queue_id, stored, size, peer.host)
    return _reply(stored, duplicates, offset, wait)


def _send_keys(peer: Peer, request: SequencedSend, topic: Topic, queue: QueueBase) -> Reply:
    """Store the messages whose keys the txn has not had."""
    services = peer.services
    windows = services.producers.keys
    choice = windows.choose(request.txn, request.epoch)
    if choice is None:
        windows.counters.duplicates += request.count
        _note_outdated(services, request)
        return _reply(0, request.count, -1, windows.wait_offset(request.txn))
    rows = services.rows
    new = b""
    is_appended = False
    try:
        special = _take(peer, request, 0)
        if special < 0:
            batch = rows.batch
            messages = None
        else:
            messages = _read_messages(peer, request, queue, special, 0)
            batch = _batch_of_keys(messages)
        try:
            new = select_new(batch, 1, choice.into, choice.others)
        except KeyError as error:
            raise _illegal(f"row {error.args[0]} has no property UNIQ_KEY, its identity with key semantics") from error
        stored = len(new) // FINGERPRINT_BYTES
        offset, wait, size = -1, choice.wait_offset, batch.body_bytes
        if stored:
            windows.make_room(request.txn, request.epoch, stored)
            offset = queue.next_offset
            key = ProducerKey(request.txn, request.partition, topic.name, queue.queue_id)
            change = windows.change(key, request.epoch, request.attempt, stored, offset)
            if messages is None:
                rows.set_record(services.producers.log.encode(change, new))
                wait = services.producers.log.append(batch, [queue], [topic], change, new)
            else:
                offset, wait = _append_singly(peer, _with_keys(messages, new), change, new)
            is_appended = True
    finally:
        rows.clear()
        if not is_appended:
            choice.into.discard(new)
            windows.forget_choice()
    if stored:
        windows.note_wait(request.txn, wait)
        services.count_put(topic.name, queue.queue_id, stored, size, peer.host)
    duplicates = request.count - stored
    windows.counters.stored += stored
    windows.counters.duplicates += duplicates
    return _reply(stored, duplicates, offset, wait)


def _batch_of_keys(messages: list[Row]) -> PublishBatch:
    """Return a batch of which only the keys count, behind the entry of the record."""
    batch = PublishBatch()
    batch.append(b"")
    for _, message in messages:
        key = message.properties.get("UNIQ_KEY", "")
        properties = f"UNIQ_KEY\x01{key}\x02".encode("utf-8", "surrogateescape")
        batch.append(message.body, properties=properties)
    return batch


def _with_keys(messages: list[Row], fingerprints: bytes) -> list[Row]:
    """Return the first message of each key that is among the fingerprints, which are in the messages' order."""
    found = []
    at = 0
    for row, message in messages:
        key = message.properties["UNIQ_KEY"].encode("utf-8", "surrogateescape")
        if fingerprint(key) == fingerprints[at : at + FINGERPRINT_BYTES]:
            found.append((row, message))
            at += FINGERPRINT_BYTES
    return found


def _send_stage(peer: Peer, request: SequencedSend, topic: Topic, queue: QueueBase) -> Reply:
    """Keep messages for a batch that is not committed yet."""
    services = peer.services
    staged = services.producers.staged
    key, attempt = (request.txn, request.epoch), (request.partition, request.attempt)
    place = (topic.name, queue.queue_id)
    verdict = staged.judge(key, attempt, place, request.seq, request.count)
    if verdict.has_gap(request.seq):
        staged.counters.gaps += 1
        raise _gap(request, verdict.expected)
    duplicates = verdict.duplicates
    if duplicates == request.count:
        staged.counters.duplicates += duplicates
        if staged.is_outdated(key):
            _note_outdated(services, request)
        return _reply(0, duplicates, -1, verdict.wait_offset)
    stored = request.count - duplicates
    rows = services.rows
    try:
        special = _take(peer, request, duplicates)
        if special >= 0:
            raise _illegal(
                f"row {special} asks for a delay or a transaction, which staged messages cannot have, "
                "or its properties are too long"
            )
        run = Run(topic.name, queue.queue_id, staged.queue.next_offset, stored)
        change = staged.change(
            key, attempt, run, request.seq + duplicates, rows.batch.body_bytes, services.clock.now_ms()
        )
        rows.set_record(services.producers.log.encode(change))
        services.producers.log.append(rows.batch, [staged.queue], [None], change)
    finally:
        rows.clear()
    wait = 0
    if queue.awaits_flush:  # staged messages are as durable as they will be
        store = services.broker.store
        wait = store.log.end_offset
        store.request_flush()
    staged.note_wait(key, wait)
    staged.counters.staged += stored
    staged.counters.duplicates += duplicates
    return _reply(stored, duplicates, -1, wait)


def _note_outdated(services: Services, request: SequencedSend) -> None:
    key = ProducerKey(request.txn, request.partition, request.topic, request.queue_id)
    services.producers.outdated.note(request.semantics, key, request.epoch, request.count)


def _gap(request: SequencedSend, expected: int) -> RequestRefusedError:
    return _illegal(
        f"a gap: <seq> = {request.seq}, expected {expected} of txn {request.txn!r} partition {request.partition} "
        f"epoch {request.epoch} attempt {request.attempt} in queue {request.queue_id} of topic {request.topic}"
    )


def _take(peer: Peer, request: SequencedSend, skip: int) -> int:
    """Put the messages of a request into the batch; return the number of the first that is not plain, -1 for none.

    Raises:
        RequestRefusedError: the body is malformed.
    """
    rows = peer.services.rows
    try:
        special = rows.take(request.body, request.count, skip, request.born_ms, request.sys_flag)
    except ProtocolError as error:
        raise _illegal(str(error)) from error
    rows.batch.born_host = peer.born_host
    rows.batch.born_host_v6 = peer.born_v6
    return special


def _read_messages(peer: Peer, request: SequencedSend, queue: QueueBase, special: int, skip: int) -> list[Row]:
    """Return the messages of a request whose row ``special`` is not plain; the first ``skip`` are stored already.

    Raises:
        RequestRefusedError: the body is malformed, there are too many, or one is transactional or too large.
    """
    try:
        parts = decode_batch(request.body)
    except ProtocolError as error:
        raise _illegal(str(error)) from error
    if len(parts) != request.count:
        raise _illegal(f"{len(parts)} rows came where count = {request.count} were announced")
    if len(parts) > MAX_PARTS:
        raise _illegal(
            f"{len(parts)} rows, at most {MAX_PARTS} are accepted where one is delayed or has long properties, "
            f"as row {special} does"
        )
    most = peer.services.settings.max_message_bytes
    messages = []
    for row, (flag, body, own) in enumerate(parts):
        if row >= skip and len(body) > most:
            raise _illegal(too_large(row, len(body), most))
        properties = stored_properties(properties_of(own), peer.services.settings.cluster)
        if properties.get("TRAN_MSG", "").lower() == "true":
            raise _illegal(f"row {row} is transactional, which a batch with an identity cannot be")
        message = Message(
            topic=request.topic,
            queue_id=queue.queue_id,
            body=body,
            properties=properties,
            flag=flag,
            sys_flag=request.sys_flag,
            born_ms=request.born_ms,
            born_host=peer.born_host,
            born_v6=peer.born_v6,
        )
        messages.append((row, message))
    return messages


def _append_singly(peer: Peer, messages: list[Row], change: dict[str, Any], tail: bytes = b"") -> tuple[int, int]:
    """Append messages of which some are delayed, with their record, all or nothing.

    Returns:
        The queue offset of the first that is not delayed (-1: all are), and the physical offset to wait for.
    """
    services = peer.services
    log = services.producers.log
    now_ms = services.clock.now_ms()
    waiting = []
    offset = -1
    for row, message in messages:
        try:
            due_ms = services.messages.timed.due_ms(message.properties, now_ms)
            level = level_of(message.properties)
        except InvalidDelayError as error:
            raise _illegal(f"row {row}: {error}") from error
        if level:
            message = services.messages.delays.delayed(message, level)
            due_ms = now_ms + services.messages.delays.delay_ms(level)
        elif due_ms:
            message = services.messages.timed.delayed(message)
        else:
            offset = change["offset"]
        waiting.append((message, level, due_ms))
    if offset < 0:
        change["offset"] = -services.broker.due_of_present(change["topic"], min(due_ms for _, _, due_ms in waiting))
    outbox = Outbox(services.broker)
    outbox.add_record(log.queue, log.encode(change, tail), command_entries=len(messages) + 1)
    for message, level, due_ms in waiting:
        outbox.add(message, deliver_at_ms=0 if level else due_ms, command_entries=0)
    joint = outbox.joint
    wait = log.append(joint.batch, joint.queues[1:], joint.topics[1:], change, tail, is_waited_for=joint.is_waited_for)
    return offset, wait


def _reply(stored: int, duplicates: int, offset: int, wait: int) -> Reply:
    ext = {"stored": str(stored), "duplicates": str(duplicates), "offset": str(offset)}
    return Reply(ext=ext, wait_offset=wait)


SEMANTICS: Final = {
    "sequence": _send_sequence,
    "key": _send_keys,
    "stage": _send_stage,
}


class _ChosenAttempt(msgspec.Struct, frozen=True, gc=False):
    """A ``Chosen`` as the body has it; of 100,000 the collector would look at each, which takes as long as all else."""

    partition: _FromZero
    attempt: _FromZero
    rows: _FromZero = msgspec.field(name="count")


class _EndBatchBody(msgspec.Struct):
    chosen: list[_ChosenAttempt]


_END_BATCH_BODY: Final = msgspec.json.Decoder(_EndBatchBody)


def end_batch(peer: Peer, command: Command) -> Reply | None:
    """Commit or abort a staged batch (27005); a commit is answered when its messages are durable in their queues."""
    services = peer.services
    ext = command.ext
    fields.text(ext, "producerGroup")
    key = (_read_txn(peer, ext), _from_zero(ext, "epoch"))
    decision = fields.text(ext, "decision")
    if decision not in ("commit", "abort"):
        raise _illegal(f"<decision> = {decision[:32]!r} is not accepted: commit, abort")
    if peer.user is not None:
        # The request names no topic: whoever ends a batch must be allowed to publish what it has.
        for topic in services.producers.staged.topics_of(key):
            peer.require(peer.user, Need(Action.PUBLISH, topic), command.code)
    done = {"alreadyCommitted": "true"} if services.producers.staged.is_decided(key) else {}
    if decision == "abort":
        return Reply(ext=done, wait_offset=services.producers.staged.abort(key))
    require_writable(services)
    chosen = read_chosen(command.body)
    reply: Reply | None = None
    is_later = False

    def finished(error: RequestError | StoreError | None, wait_offset: int) -> None:
        nonlocal reply
        result = Reply(ext=done, wait_offset=wait_offset) if error is None else refuse(error)
        if is_later:
            peer.answer(command, result)
        else:
            reply = result

    services.producers.staged.commit(key, chosen, services.clock.now_ms(), finished)
    is_later = True
    return reply


def read_chosen(body: bytes) -> Sequence[Chosen]:
    """Read which attempts a commit names.

    Raises:
        RequestRefusedError: the body is malformed, or names a partition twice.
    """
    objects = body.count(b"{")
    if objects > MAX_CHOSEN + 1:  # before they cost anything
        raise _illegal(f"its body has {objects} objects: at most {MAX_CHOSEN} attempts are accepted")
    try:
        found = _END_BATCH_BODY.decode(body).chosen
    except msgspec.DecodeError as error:
        raise _illegal(f'its body is not {{"chosen": [{{partition, attempt, count}}]}}: {error}') from error
    if len({one.partition for one in found}) < len(found):
        partition, _ = Counter(one.partition for one in found).most_common(1)[0]
        raise _illegal(f"partition {partition} is chosen twice")
    return found
