"""Ranges of queues, read from brokers: by READ_QUEUE, or by pulls where the broker is RocketMQ's.

A read that fails because the broker is away goes on where it has come to. What the queue does not have any more is an
error, or it is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.errors import RemotingRefusedError
from headrace.remoting.blocking import BlockingClient, Cluster, Pulled, Request, read_queue_request, require
from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode
from headrace.spark import connections
from headrace.spark.errors import REMOVED, DataLossError
from headrace.spark.retry import MAY_PASS, Retry
from headrace.spark.scan import ServersSource

logger = logging.getLogger(__name__)

_PULL_MESSAGES: Final = 1024
_GONE: Final = "the topic, or this queue of it, is not there any more"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Records [start, end) of one queue; ``record_bytes`` is about how large one is."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int
    record_bytes: int = 1024

    def describe(self) -> str:
        """Return what messages call it."""
        return f"topic {self.topic!r} queue {self.queue_id} offsets {self.start} to {self.end}"


@dataclass(frozen=True, slots=True)
class QueueReading:
    """How a range is read.

    Attributes:
        tags: Tag expression for the broker, empty for none; it compares hashes, so look at what comes.
    """

    source: ServersSource
    tags: str = ""
    pull_bytes: int = 4 << 20
    fail_on_data_loss: bool = True

    def records(self, wanted: QueueRange) -> Iterator[tuple[bytes, int, int]]:
        """Yield (records, first offset, end offset) until the range is read, in order.

        Records may go beyond the offsets they are yielded with: those do not count.

        Raises:
            DataLossError: the queue no longer has part of the range, and that is an error.
            BrokerGoneError: the broker does not answer.
            RemotingRefusedError: it refuses.
        """
        cluster = connections.cluster_of(self.source)
        retry = Retry(cluster, wanted.broker, wanted.describe(), self.source.retries)
        at, is_headrace = wanted.start, True
        while at < wanted.end:
            try:
                if is_headrace:
                    reader = self._ranges(cluster.client(cluster.broker_address(wanted.broker)), wanted, at)
                else:
                    reader = self._pulls(cluster, wanted, at)
                for records, first, end in reader:
                    retry.succeeded()
                    if records:
                        yield records, first, end
                    at = end
            except _NotHeadraceError:
                is_headrace = False
            except MAY_PASS as error:
                retry.failed(error)

    def _ranges(self, client: BlockingClient, wanted: QueueRange, at: int) -> Iterator[tuple[bytes, int, int]]:
        """Ask for pieces of the range, several ahead; what an answer leaves out is asked for on another connection."""
        # Half of what may come: sizes vary, and an answer that stops early costs a round trip.
        rows = max(1, min(65_536, self.pull_bytes // 2 // max(wanted.record_bytes, 1)))
        starts = range(at, wanted.end, rows)
        # Made as they are sent: of a queue that is one task's there may be very many.
        requests = (self._request(wanted, low, min(low + rows, wanted.end)) for low in starts)
        beside: Cluster | None = None
        try:
            for low, response in zip(starts, client.call_many(requests, connections.WINDOW), strict=True):
                high = min(low + rows, wanted.end)
                while True:
                    records, reached = self._answer(response, wanted, low, high, client.address)
                    yield records, low, reached
                    low = reached
                    if low >= high:
                        break
                    beside = beside or connections.new_cluster(self.source)
                    response = beside.client(client.address).call(*self._request(wanted, low, high))
        finally:
            if beside is not None:
                beside.close()

    def _request(self, wanted: QueueRange, low: int, high: int) -> Request:
        return read_queue_request(
            wanted.topic, wanted.queue_id, low, high, self.pull_bytes,
            group=self.source.group, tags=self.tags, broker=wanted.broker,
        )  # fmt: skip

    def _answer(self, response: Command, wanted: QueueRange, low: int, high: int, address: str) -> tuple[bytes, int]:
        """Return the records of an answer and up to where it goes."""
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise _NotHeadraceError
        if _is_gone(response.code, response.remark, wanted.queue_id):
            return b"", self._lose(wanted, low, high, _GONE)
        if response.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
            return b"", self._step_over(
                wanted, low, high, int(response.ext["minOffset"]), int(response.ext["maxOffset"])
            )
        require(response, address)
        reached = int(response.ext["nextOffset"])
        skipped = int(response.ext.get("skipped", 0))
        if skipped:
            _tell_skipped(wanted, low, reached, skipped)
        if reached <= low:
            # Nothing there although the queue is longer: what was planned is gone.
            return response.body, self._step_over(
                wanted, low, high, int(response.ext["minOffset"]), int(response.ext["maxOffset"])
            )
        return response.body, min(reached, high)

    def _step_over(self, wanted: QueueRange, low: int, high: int, queue_low: int, queue_high: int) -> int:
        """Return where to go on when the queue does not have ``low``.

        Raises:
            DataLossError: unless failOnDataLoss=false.
        """
        if low < queue_low:
            end, reason = min(high, queue_low), f"{REMOVED}, the queue begins at {queue_low}"
        else:
            end, reason = (
                high,
                f"the queue ends at {queue_high}: its broker lost the end of its log, or the topic is new",
            )
        return self._lose(wanted, low, end, reason)

    def _lose(self, wanted: QueueRange, low: int, end: int, reason: str) -> int:
        """Return ``end``, where to go on. Raises: as ``_step_over``."""
        if self.fail_on_data_loss:
            raise DataLossError(
                f"topic {wanted.topic!r} queue {wanted.queue_id} of broker {wanted.broker!r} has no more offsets {low} "
                f"to {end}: {reason}; failOnDataLoss=false goes on without them",
                broker=wanted.broker, topic=wanted.topic, queue_id=wanted.queue_id, first_offset=low, end_offset=end,
            )  # fmt: skip
        logger.warning(
            "messages lost topic=%s queue_id=%d broker=%s from=%d to=%d count=%d",
            wanted.topic, wanted.queue_id, wanted.broker, low, end, end - low,
        )  # fmt: skip
        return end

    def _pulls(self, cluster: Cluster, wanted: QueueRange, at: int) -> Iterator[tuple[bytes, int, int]]:
        """Read by pulls, as RocketMQ's own consumers do."""
        while at < wanted.end:
            most = min(_PULL_MESSAGES, wanted.end - at)
            group, low = self.source.group or "spark", at
            try:
                found: Pulled = cluster.pull(
                    wanted.broker, group, wanted.topic, wanted.queue_id, at, most, self.tags or "*"
                )
            except RemotingRefusedError as error:
                if not _is_gone(error.code, error.remark, wanted.queue_id):
                    raise
                yield b"", low, self._lose(wanted, low, wanted.end, _GONE)
                return
            if found.code == ResponseCode.SUCCESS or (
                found.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
                and found.next_offset > low
            ):
                at = min(found.next_offset, wanted.end)
                if not found.records and not self.tags:  # as where a file of its log is gone: nothing is left out here
                    _tell_skipped(wanted, low, at, at - low)
            elif found.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                continue
            else:
                at = self._step_over(wanted, low, wanted.end, found.min_offset, found.max_offset)
            yield found.records, low, at


def _tell_skipped(wanted: QueueRange, low: int, reached: int, count: int) -> None:
    logger.warning(
        "queue offsets without a record topic=%s queue_id=%d broker=%s from=%d to=%d count=%d",
        wanted.topic, wanted.queue_id, wanted.broker, low, reached, count,
    )  # fmt: skip


def _is_gone(code: int, remark: str, queue_id: int) -> bool:
    """Return whether a refused read says that there is no such topic or queue."""
    # Of a missing queue brokers say code 1, newer ones 29, which both say of other things too.
    return code == ResponseCode.TOPIC_NOT_EXIST or remark.startswith(f"queueId[{queue_id}] is illegal")


class _NotHeadraceError(Exception):
    """The broker has no READ_QUEUE."""
