"""READ_LOG and READ_QUEUE of one connection: one after the other, as fast as the client takes them.

The next request is looked at when the connection takes output again, so a client that does not read costs one answer
and the transport's high-water mark, however many requests it has sent; their number is bounded as well.

READ_LOG. A thread brings the range into memory; then the loop hands the transport a view of the mapped segment. The
kernel copies from there to the socket: no byte of the log is touched by Python or copied by us, and no message is
looked at. The view pins its segment until it is sent. Pacing delays answers so that a connection gets
``remoting.read_log_bytes_per_s`` on average.

READ_QUEUE reads on the loop, a millisecond at a time up to TURN_S, and copies the records into one frame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.broker.pull import PullResult, PullStatus, read_range
from headrace.remoting.codec import encode_records_response, encode_response_head
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import Reply, RequestRefusedError
from headrace.store.log_ranges import LogRange, find_range, next_file

if TYPE_CHECKING:
    from headrace.broker.pull import Codes
    from headrace.remoting.codec import Command
    from headrace.remoting.connection import RemotingConnection
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 64
"""Reads of one connection that wait for those before them."""
TURN_S: Final = 0.003
"""Time after which a READ_QUEUE is answered with what it has."""
COLD_RETRY_MS: Final = 1_000
COLD_MOST_MS: Final = 8_000
"""How long a READ_QUEUE or a pull waits for the disk: clients give up after 10 s, pulls that may wait after 30."""


@dataclass(slots=True)
class LogRead:
    """A READ_LOG."""

    command: Command
    offset: int
    max_bytes: int


@dataclass(slots=True)
class QueueRead:
    """A READ_QUEUE; ``group`` is empty where nothing is counted for one."""

    command: Command
    group: str
    topic: str
    queue: QueueBase
    offset: int
    end_offset: int
    max_messages: int
    max_bytes: int
    codes: Codes | None
    skipped: int = 0
    cold_since_ms: int = 0  # when it first waited for the disk; 0 = it has not


class ReaderStream:
    """The reads of one connection that are not answered yet."""

    def __init__(self, connection: RemotingConnection) -> None:
        self._connection = connection
        self._services = connection.services
        self._readers = connection.services.readers
        self._waiting: deque[LogRead | QueueRead] = deque()
        self._is_busy = False  # the first one is out to a thread, or waits for the disk
        self._paid_until_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None

    def add(self, read: LogRead | QueueRead) -> None:
        """Take a read; it is answered when those before it are.

        Raises:
            RequestRefusedError: SYSTEM_BUSY, too many wait.
        """
        if len(self._waiting) >= MAX_WAITING:
            self._readers.counters.refused += 1
            raise RequestRefusedError(
                f"{MAX_WAITING} reads of this connection wait, no more are taken at once", ResponseCode.SYSTEM_BUSY
            )
        self._waiting.append(read)
        if len(self._waiting) == 1:
            self.go_on()

    def drop(self) -> None:
        """Forget everything: the connection ends."""
        self._waiting.clear()
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()
        self._timer = self._turn = None

    def go_on(self) -> None:
        """Serve the next read, if there is one and the connection takes its answer."""
        connection = self._connection
        if not self._waiting or self._is_busy or connection.is_blocked or connection.cause or self._timer is not None:
            return
        if isinstance(self._waiting[0], LogRead) and self._is_too_early():
            return
        read = self._waiting.popleft()
        try:
            if isinstance(read, LogRead):
                self._read_log(read)
            else:
                self._read_queue(read)
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            connection.answer(read.command, connection.reply_to(error, read.command.code))
        self._have_next_turn()

    def _have_next_turn(self) -> None:
        """Serve the next read in a later turn of the loop, behind other connections."""
        if self._waiting and not self._is_busy and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        self.go_on()

    def _end(self) -> None:
        """Go on behind a read that was out."""
        self._is_busy = False
        self.go_on()

    # -- READ_LOG ------------------------------------------------------------------------------------------------

    def _is_too_early(self) -> bool:
        """Return whether the pace has the next answer wait; a timer then brings it back."""
        if not self._services.settings.read_log_bytes_per_s:
            return False
        wait_ms = self._paid_until_ms - self._now_ms()
        if wait_ms <= 0:
            return False
        self._readers.counters.log_paced += 1
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._pace_over)
        return True

    def _pace_over(self) -> None:
        self._timer = None
        self._paid_until_ms = min(self._paid_until_ms, self._now_ms())
        self.go_on()

    def _pay(self, size: int) -> None:
        rate = self._services.settings.read_log_bytes_per_s
        if rate:
            self._paid_until_ms = max(self._paid_until_ms, self._now_ms()) + size * 1000 / rate

    def _now_ms(self) -> int:
        return self._services.clock.monotonic_ms()

    def _read_log(self, read: LogRead) -> None:
        log = self._services.broker.store.log
        least, most, segment_bytes = log.first_offset, log.durable_offset, log.segment_bytes
        ext = {"offset": read.offset, "minOffset": least, "maxOffset": most, "segmentBytes": segment_bytes}
        if not least <= read.offset <= most:
            nearest = str(least if read.offset < least else most)
            texts = {name: str(value) for name, value in ext.items()} | {"nextOffset": nearest}
            raise RequestRefusedError(
                f"physical offset {read.offset} is outside the log: {least} to {most}",
                ResponseCode.PULL_OFFSET_MOVED,
                texts,
            )
        self._readers.counters.log_requests += 1
        piece = find_range(log, read.offset, read.max_bytes) if read.offset < most else None
        if piece is None:
            # The end; or a part that the log jumped over (docs/formats/side-files.md).
            following = next_file(log, read.offset) if read.offset < most else most
            self._send_log(read, ext | {"nextOffset": following}, memoryview(b""))
            return
        ext["nextOffset"] = read.offset + piece.size
        done = self._readers.submit(piece.read_in)
        self._is_busy = True
        notify = self._services.broker.store.notify
        done.add_done_callback(lambda done: notify(lambda: self._has_read_in(read, ext, piece, done)))

    def _has_read_in(self, read: LogRead, ext: dict[str, int], piece: LogRange, done: Future[None]) -> None:
        if self._connection.cause or done.cancelled():
            return
        try:
            self._answer_log(read, ext, piece, done.exception())
        except Exception as error:  # noqa: BLE001  # the reads behind it would wait for ever
            self._connection.fail(error)
            return
        self._end()

    def _answer_log(self, read: LogRead, ext: dict[str, int], piece: LogRange, error: BaseException | None) -> None:
        if error is not None:
            if self._services.read_pace.is_due(piece.segment.path):
                logger.error("log not read path=%s position=%d error=%s", piece.segment.path, piece.position, error)
            self._connection.answer(
                read.command, Reply(ResponseCode.SYSTEM_ERROR, f"the log cannot be read at {read.offset}: {error}")
            )
            return
        self._send_log(read, ext, piece.view())
        self._pay(piece.size)

    def _send_log(self, read: LogRead, ext: dict[str, int], body: memoryview) -> None:
        self._readers.counters.log_bytes += len(body)
        command = read.command
        head = encode_response_head(command.serialize, command.opaque, ext, len(body))
        self._connection.send_view(head, body)

    # -- READ_QUEUE ----------------------------------------------------------------------------------------------

    def _read_queue(self, read: QueueRead) -> None:
        readers, queue = self._readers, read.queue
        records = readers.records
        start, ends_at_s = read.offset, time.perf_counter() + TURN_S
        try:
            while True:
                before = read.offset
                result = read_range(
                    queue, before, read.end_offset, read.max_messages, read.max_bytes, read.codes, records
                )
                if result.status in _OUTSIDE:
                    break
                read.offset = result.next_offset
                read.skipped += result.skipped
                if (
                    read.offset in (before, read.end_offset)
                    or result.status == PullStatus.COLD
                    or records.count >= read.max_messages
                    or time.perf_counter() >= ends_at_s
                ):
                    break
            if result.status == PullStatus.COLD and not records.count and read.offset == start:
                self._wait_for_disk(read)
                return
            if result.status in _NOTHING and read.offset == start and start < read.end_offset:
                self._refuse_nothing(read, result)
            readers.counters.queue_requests += 1
            readers.counters.queue_messages += records.count
            readers.counters.queue_bytes += records.record_bytes
            self._count(read, records.count, records.record_bytes)
            ext = {
                "nextOffset": read.offset,
                "minOffset": result.min_offset,
                "maxOffset": result.max_offset,
                "skipped": read.skipped,
            }
            self._connection.send(encode_records_response(read.command.serialize, read.command.opaque, ext, records))
        finally:
            records.clear()

    @staticmethod
    def _refuse_nothing(read: QueueRead, result: PullResult) -> None:
        """Refuse a range at whose start nothing can be read, with a pull's codes."""
        ext = {
            "nextOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "skipped": "0",
        }
        at_end = read.offset == result.max_offset or result.status == PullStatus.OFFSET_FOUND_NULL
        code = ResponseCode.PULL_NOT_FOUND if at_end else ResponseCode.PULL_OFFSET_MOVED
        raise RequestRefusedError(result.status.name, code, ext)

    def _count(self, read: QueueRead, messages: int, size: int) -> None:
        services = self._services
        self._connection.server.counters.messages_out += messages
        if read.group:
            services.count_get(read.group, read.topic, read.queue.queue_id, messages, size, self._connection.host)
        else:
            services.throughput.transferred += messages

    def _wait_for_disk(self, read: QueueRead) -> None:
        """Have a read wait until the store has read its next record ahead."""
        self._readers.counters.queue_cold += 1
        now_ms = self._now_ms()
        read.cold_since_ms = read.cold_since_ms or now_ms
        if now_ms - read.cold_since_ms >= COLD_MOST_MS:
            raise RequestRefusedError(
                f"message {read.offset} of queue {read.queue.queue_id} of topic {read.topic} has not been read from "
                f"the disk for {COLD_MOST_MS / 1000:g} s: try again",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        due_ms = now_ms + COLD_RETRY_MS
        notify = self._services.broker.store.notify

        def wake() -> None:
            notify(lambda: self._again(read))

        cold_pulls = self._services.group_services.cold_pulls
        held = cold_pulls.hold(read.queue, read.offset, due_ms, wake, owner=self._connection)
        if held is None:
            self._readers.counters.refused += 1
            raise RequestRefusedError(
                "too many reads wait for the disk (broker.max_held_pulls): try again", ResponseCode.SYSTEM_BUSY
            )
        self._is_busy = True

    def _again(self, read: QueueRead) -> None:
        if self._connection.cause:
            return
        self._waiting.appendleft(read)
        self._end()


_OUTSIDE: Final = frozenset(
    (
        PullStatus.NO_MESSAGE_IN_QUEUE,
        PullStatus.OFFSET_TOO_SMALL,
        PullStatus.OFFSET_OVERFLOW_ONE,
        PullStatus.OFFSET_OVERFLOW_BADLY,
    )
)
_NOTHING: Final = _OUTSIDE | {PullStatus.OFFSET_FOUND_NULL}
