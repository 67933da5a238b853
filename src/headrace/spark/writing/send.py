"""Batches to brokers: a window of requests on one connection to each broker, and what is done when one fails.

Requests to a broker leave in the order in which they were pushed, up to ``window`` ahead of the answers. When a batch
fails in a way that may pass (the connection is lost, nobody answers in time, the broker is busy), every batch that is
not answered with success is sent again in the same order, after a pause. A broker that numbers rows refuses what was
under way behind a refused batch for its gap, so those go again as well, and drops what it has stored already.

A batch that failed ``retries`` times more than once fails the task: ``WriteFailedError`` names broker, topic and queue.

Knows no rows and no Spark. Ref: docs/spark/sink.md, "Failures".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import ClientError, ConnectionLostError, RequestTimeoutError, RouteNotFoundError
from headrace.remoting.blocking import BlockingClient, Cluster
from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode, response_name
from headrace.spark.errors import ExtensionMissingError, WriteFailedError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
MAX_ROWS_IN_FLIGHT: Final = 60_000
"""Rows under way to a broker that answers with an id for each. A broker stops reading from who has 4 MiB of unread
answers (remoting.write_high_water_bytes), and we read answers only between two requests."""
QUIET_S: Final = 1.0
"""After so long without a request answers are read before the next one: a broker closes a connection that is silent
(remoting.idle_timeout_ms), and what is written to it then takes unread answers away."""

STORED_ALL_THE_SAME: Final = frozenset(
    (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
)
"""RocketMQ: the message is stored, but not yet where it was to be."""
PASSING: Final = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        *STORED_ALL_THE_SAME,
    )
)
"""Refusals that may pass."""


@dataclass(slots=True)
class Batch:
    """One request.

    Attributes:
        code, ext, body: The request.
        rows: Rows in it.
        first_row: Number of the first one in its partition.
        number: Order of sending to its broker.
        failures: How often it failed as the first one.
    """

    broker: str
    topic: str
    queue_id: int
    rows: int
    code: int
    ext: Mapping[str, str]
    body: bytes
    first_row: int = 0
    number: int = 0
    failures: int = 0


@dataclass(slots=True)
class SendCounters:
    """What became of the batches.

    Attributes:
        stored: Rows that a broker stored now.
        duplicates: Rows that the broker had already.
        unsure: Rows that are stored but, the broker says, not yet flushed or replicated.
        retries: Requests sent again.
    """

    stored: int = 0
    duplicates: int = 0
    unsure: int = 0
    retries: int = 0


class Sender:
    """Sends batches to any number of brokers.

    Attributes:
        counters: What became of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        addresses: Mapping[str, str],
        *,
        semantics: str,
        window: int = 8,
        retries: int = 3,
        rows_in_flight: int | None = None,
        accept_unsure: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect nothing yet.

        Args:
            addresses: Masters by broker name, as far as they are known.
            semantics: What the error says when a broker lacks it.
            rows_in_flight: Most rows under way to one broker, None for no bound.
            accept_unsure: ``STORED_ALL_THE_SAME`` is a success.
        """
        self.counters = SendCounters()
        self.addresses = dict(addresses)
        self.semantics = semantics
        self.window = window
        self.retries = retries
        self.rows_in_flight = rows_in_flight
        self.accept_unsure = accept_unsure
        self.sleep = sleep
        self._cluster = cluster
        self._lanes: dict[str, _Lane] = {}

    def push(self, batch: Batch) -> None:
        """Send a batch; waits while the window of its broker is full.

        Raises:
            WriteFailedError: a batch, this or one before, is given up.
            ExtensionMissingError: the broker does not know the request.
        """
        lane = self._lanes.get(batch.broker)
        if lane is None:
            lane = self._lanes[batch.broker] = _Lane(self, batch.broker)
        lane.push(batch)

    def drain(self) -> None:
        """Wait until every batch is answered. Raises: as ``push``."""
        for lane in self._lanes.values():
            lane.drain()

    def close(self) -> None:
        """Forget what is under way: its connections are closed, since answers would still come in."""
        for lane in self._lanes.values():
            lane.close()

    def client(self, broker: str, *, anew: bool = False) -> BlockingClient:
        """Return the connection to a broker's master; ``anew``: it may have another address by now.

        Raises:
            ClientError: nobody knows its address.
        """
        if anew or broker not in self.addresses:
            self._cluster.remember(self.addresses)
            self.addresses[broker] = self._cluster.broker_address(broker, anew=True)
        return self._cluster.client(self.addresses[broker])


class _Lane:
    """The requests to one broker. Invariant: ``_under_way`` is in the order of sending."""

    def __init__(self, sender: Sender, broker: str) -> None:
        self._sender = sender
        self._broker = broker
        self._under_way: dict[int, Batch] = {}
        self._rows = 0
        self._numbers = 0
        self._posted_at = 0.0
        self._client: BlockingClient | None = None

    def push(self, batch: Batch) -> None:
        sender = self._sender
        most_rows = sender.rows_in_flight
        if self._under_way and time.monotonic() - self._posted_at > QUIET_S:
            self.drain()
        while self._under_way and (
            len(self._under_way) >= sender.window or (most_rows is not None and self._rows + batch.rows > most_rows)
        ):
            self._settle()
        self._numbers += 1
        batch.number = self._numbers
        try:
            self._post(batch)
        except (ConnectionLostError, RequestTimeoutError, RouteNotFoundError) as error:
            self._again([batch], str(error))

    def drain(self) -> None:
        while self._under_way:
            self._settle()

    def close(self) -> None:
        if self._under_way and self._client is not None:
            self._client.close()
        self._under_way.clear()

    def _post(self, batch: Batch) -> None:
        if self._client is None:
            self._client = self._sender.client(self._broker)
        opaque = self._client.post(batch.code, batch.ext, batch.body, fresh=not self._under_way)
        self._under_way[opaque] = batch
        self._posted_at = time.monotonic()
        self._rows += batch.rows

    def _settle(self) -> None:
        """Wait for one answer and do what it asks for."""
        try:
            batch, response = self._take()
        except (ConnectionLostError, RequestTimeoutError) as error:
            self._again([], str(error))
            return
        failure = self._judge(batch, response)
        if failure is None:
            return
        failed = [batch]
        reason = failure
        # What else is under way is answered before anything is sent again: it may be refused for the gap that this
        # one left, or be stored.
        while self._under_way:
            try:
                other, response = self._take()
            except (ConnectionLostError, RequestTimeoutError) as error:
                reason = f"{reason}; then {error}"
                break
            if self._judge(other, response, behind=True) is not None:
                failed.append(other)
        self._again(failed, reason)

    def _take(self) -> tuple[Batch, Command]:
        assert self._client is not None
        first = next(iter(self._under_way.values()))
        while True:
            response = self._client.take(first.code)
            batch = self._under_way.pop(response.opaque, None)
            if batch is not None:
                self._rows -= batch.rows
                return batch, response

    def _judge(self, batch: Batch, response: Command, *, behind: bool = False) -> str | None:
        """Count a success; return why a batch has to be sent again.

        Args:
            behind: One before it has failed, so any refusal may come of that.

        Raises:
            WriteFailedError, ExtensionMissingError: it makes no sense to send it again.
        """
        sender = self._sender
        counters = sender.counters
        code = response.code
        if code == ResponseCode.SUCCESS or (code in STORED_ALL_THE_SAME and sender.accept_unsure):
            duplicates = int(response.ext.get("duplicates", 0))
            counters.duplicates += duplicates
            counters.stored += batch.rows - duplicates
            counters.unsure += batch.rows if code != ResponseCode.SUCCESS else 0
            return None
        reason = f"{response_name(code)} {response.remark}".rstrip()
        if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ExtensionMissingError(sender.semantics, sender.addresses[batch.broker])
        if code not in PASSING and not behind:
            raise WriteFailedError(batch.broker, batch.topic, batch.queue_id, batch.failures + 1, _where(batch, reason))
        return reason

    def _again(self, failed: list[Batch], reason: str) -> None:
        """Send everything again that is not answered with success: ``failed``, and what is under way."""
        sender = self._sender
        while True:
            waiting = sorted([*failed, *self._under_way.values()], key=lambda batch: batch.number)
            if self._client is not None and self._under_way:
                self._client.close()
            self._under_way.clear()
            self._rows = 0
            first = waiting[0]
            first.failures += 1
            if first.failures > sender.retries:
                # The reason has the cause; chained, Spark would show its traces, a page of them, before the sentence.
                raise WriteFailedError(
                    first.broker, first.topic, first.queue_id, first.failures, _where(first, reason)
                ) from None
            pause_s = min(FIRST_PAUSE_S * 2 ** (first.failures - 1), LONGEST_PAUSE_S)
            logger.warning(
                "batch not written, sent again broker=%s topic=%s queue_id=%d batches=%d failures=%d pause_s=%.1f "
                "reason=%s",
                first.broker,
                first.topic,
                first.queue_id,
                len(waiting),
                first.failures,
                pause_s,
                reason,
            )
            sender.sleep(pause_s)
            try:
                self._client = sender.client(self._broker, anew=True)
                for batch in waiting:
                    self._post(batch)
            except ClientError as error:
                reason = str(error)
                posted = {batch.number for batch in self._under_way.values()}
                failed = [batch for batch in waiting if batch.number not in posted]
                continue
            sender.counters.retries += len(waiting)
            return


def _where(batch: Batch, reason: str) -> str:
    """Add which rows a reason is about."""
    return f"{reason} (rows {batch.first_row} and following of the partition)"
