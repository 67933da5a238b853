"""A broker for batches with an identity, and the bytes of such a batch in plain struct code."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.batch import RecordBatch
from headrace.broker.pull import read_queue
from headrace.remoting.codes import RequestCode
from headrace.remoting.reply import Reply
from tests.support.remoting import RecordingPeer, RemotingRig
from tests.support.stored_message import StoredMessage

TOPIC = "T"
BORN_MS = 1_700_000_000_000

Row = tuple[bytes, Mapping[str, str]]


def encode_rows(rows: Iterable[Row], flag: int = 0) -> bytes:
    """Return the body of a batch: total, magic, crc, flag, length, body, length, properties of each message."""
    parts = []
    for body, properties in rows:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        total = 22 + len(body) + len(text)
        parts.append(struct.pack(">iiiii", total, 0, 0, flag, len(body)) + body + struct.pack(">h", len(text)) + text)
    return b"".join(parts)


def sequenced_ext(semantics: str, count: int, **more: object) -> dict[str, object]:
    """Return the ext fields of SEND_SEQUENCED."""
    fields: dict[str, object] = {"producerGroup": "P", "topic": TOPIC, "queueId": 0, "semantics": semantics}
    fields |= {"txn": "q1", "epoch": 0, "partition": 0, "attempt": 0, "seq": 0, "count": count}
    return fields | {"bornTimestamp": BORN_MS, "sysFlag": 0, "defaultTopicQueueNums": 4} | more


class ExactlyOnceRig(RemotingRig):
    """A broker whose event loop turns when the test says so."""

    def _open(self) -> None:
        super()._open()
        self.calls: list[Callable[[], None]] = []
        self.calls_of_threads: list[Callable[[], None]] = []  # apart: when they come is up to chance
        self.store.notify = self._notify
        self.asker = self.peer()

    def peer(self, port: int = 40_000) -> RecordingPeer:
        return RecordingPeer(self.services, port)

    def _notify(self, call: Callable[[], None]) -> None:
        is_own = threading.current_thread() is threading.main_thread()
        (self.calls if is_own else self.calls_of_threads).append(call)

    def turn(self, most: int = 1_000_000) -> int:
        """Run what waits for a turn of the event loop; return how many calls were made, without those of threads."""
        made = 0
        while self.calls_of_threads:
            self.calls_of_threads.pop(0)()
        while self.calls and made < most:
            self.calls.pop(0)()
            made += 1
        return made

    def send(self, semantics: str, rows: Sequence[Row], **more: object) -> Reply:
        """Send a batch; what it appended is not durable yet."""
        return self.request(RequestCode.SEND_SEQUENCED, sequenced_ext(semantics, len(rows), **more), encode_rows(rows))

    def end(self, decision: str, chosen: Iterable[tuple[int, int, int]] = (), **more: object) -> Reply | None:
        """End a batch; None when the answer comes later."""
        names = ("partition", "attempt", "count")
        body = json.dumps({"chosen": [dict(zip(names, one, strict=True)) for one in chosen]}).encode()
        ext = {"producerGroup": "P", "txn": "q1", "epoch": 0, "decision": decision} | more
        self.asker.answers.clear()
        return self.asker.request(RequestCode.END_BATCH, ext, body)

    def commit(self, chosen: Iterable[tuple[int, int, int]] = (), **more: object) -> Reply:
        """Commit a batch and let the event loop turn until it is done."""
        reply = self.end("commit", chosen, **more)
        self.turn()
        return reply or self.asker.answers.pop()

    def request(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> Reply:
        """Do a request that is answered at once, by its handler or by what that began."""
        return self.asker.request(code, ext, body) or self.asker.answers.pop()

    def read(self, queue_id: int = 0, topic: str = TOPIC) -> list[StoredMessage]:
        """Return every message of a queue, durable or not."""
        self.store.flush()
        queue = self.store.queue(topic, queue_id)
        records = RecordBatch()
        found: list[StoredMessage] = []
        offset = queue.min_offset
        while offset < queue.visible_offset:
            offset = read_queue(queue, offset, 4_000, 1 << 30, None, None, records).next_offset
            found += [StoredMessage.from_record(records.record(index)) for index in range(len(records))]
            records.clear()
        return found

    def bodies(self, queue_id: int = 0, topic: str = TOPIC) -> list[bytes]:
        return [message.body for message in self.read(queue_id, topic)]

    def save_state(self) -> None:
        """Have the state of producers saved, as it is after a minute."""
        log = self.services.producers.log
        self.clock.advance_ms(61_000)
        for _ in range(2):
            log.tick(self.clock.now_ms())
            self.clock.advance_ms(61_000)
        self.store.flush()
        log.wait_for_file()
        self.turn()


def ext_of(reply: Reply) -> dict[str, Any]:
    """Return the numbers of a successful answer."""
    assert reply.code == 0, (reply.code, reply.remark)
    return {name: int(value) for name, value in (reply.ext or {}).items()}
