"""One partition of a DataFrame to messages, in a task: Arrow batches to requests, requests to brokers.

Every row that was written is acknowledged when ``PartitionWriter.write`` returns; what it returns (``Written``) goes
to the driver's commit.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from headrace.errors import InternalError
from headrace.format.compression import COMPRESSED, GIVEN_AS_STORED, deflate
from headrace.remoting.codec import decode_batch
from headrace.remoting.codes import RequestCode
from headrace.spark.connections import cluster_of
from headrace.spark.retry import insist
from headrace.spark.writing.encode import Encoder
from headrace.spark.writing.options import AT_LEAST_ONCE, STORED, TRANSACTIONAL
from headrace.spark.writing.plan import WritePlan, require_ack, servers_of
from headrace.spark.writing.route import NEW_TOPIC_QUEUES, TopicRoute, find_route
from headrace.spark.writing.send import MAX_ROWS_IN_FLIGHT, Batch, SendCounters, Sender

if TYPE_CHECKING:
    from headrace.spark.writing.encode import Sealed


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        rows: Rows of the partition.
        counters: What became of them.
        left_out: Properties of maps that are the broker's own and were not copied.
        home: Broker that keeps the transaction; empty without one.
    """

    txn: str
    epoch: int
    partition: int
    attempt: int
    rows: int = 0
    counters: SendCounters = field(default_factory=SendCounters)
    left_out: int = 0
    home: str = ""


class PartitionWriter:
    """Writes one partition.

    Raises, all methods:
        InvalidRowError: a row cannot be a message.
        WriteFailedError: a broker did not take rows; names it, the topic and the queue.
        ConfigError: a topic that rows name does not exist, or not where it has to be.
    """

    def __init__(self, plan: WritePlan, txn: str, epoch: int, partition: int) -> None:
        options, columns = plan.options, plan.columns
        txn = plan.identity(txn)
        self.written = Written(txn, epoch, partition, secrets.randbits(62))
        self._plan = plan
        if options.semantics == TRANSACTIONAL:
            self.written.home = plan.home(txn)
        self._routes: dict[str, TopicRoute] = {}
        servers = servers_of(options)
        self._cluster = cluster_of(servers, use="write")
        self._cluster.remember(plan.addresses)
        # Connections of their own: a broker may be asked about a new topic while rows are under way to it.
        self._sender = Sender(
            cluster_of(servers, use="rows"),
            plan.addresses,
            semantics=options.semantics,
            window=options.max_in_flight,
            retries=options.retries,
            rows_in_flight=MAX_ROWS_IN_FLIGHT if options.semantics == AT_LEAST_ONCE else None,
            accept_unsure=options.ack == STORED,
        )
        self._encoder = Encoder(
            {role: at for role, at in columns.roles.items() if role != "topic" or options.topic is None},
            columns.extras,
            self._resolve,
            topic=options.topic,
            key_prefix=key_prefix(txn, epoch, partition),
            key_required=columns.is_keyed,
            delayed_apart=options.semantics == AT_LEAST_ONCE,
            partition=partition,
            batch_bytes=options.batch_bytes,
            max_message_bytes=options.max_message_bytes,
            max_body_bytes=plan.max_body_bytes,
            held_bytes=max(options.batch_bytes, 2 << 20) * options.max_in_flight,
        )

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows and return once every one is acknowledged."""
        try:
            for batch in batches:
                self._push(self._encode(batch))
            self._push(self._encoder.finish())
            self._sender.drain()
        except BaseException:
            self._sender.close()
            raise
        counters, written = self._sender.counters, self.written
        written.rows = self._encoder.rows
        written.left_out = self._encoder.left_out
        written.counters = counters
        if counters.stored + counters.duplicates != written.rows:
            raise InternalError(f"{written.rows} rows, but {counters} are acknowledged")
        return written

    def _encode(self, batch: pa.RecordBatch) -> list[Sealed]:
        """Return the requests that become full with these rows."""
        return self._encoder.feed(self._prepare(batch))

    def _prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as the encoder reads them; all columns are where they were."""
        roles = self._plan.columns.roles
        batch = cast_columns(batch, self._plan.columns.casts)
        if "sys_flag" in roles:
            batch = compress_again(batch, roles["body"], roles["sys_flag"], self._plan.options.max_message_bytes)
        return batch

    def _resolve(self, topic: str) -> tuple[int, int, Sequence[int]]:
        plan, written = self._plan, self.written
        route = plan.route
        if route is None:
            live_only = plan.options.semantics == AT_LEAST_ONCE
            route = find_route(self._cluster, topic, plan.options.retries, live_only=live_only)
        if written.home:
            route = route.on_broker(written.home)
        if plan.options.ack != STORED:
            for broker in sorted({broker for broker, _ in route.queues}):
                if plan.route is None or broker in plan.unasked:
                    self._require_ack(broker, topic)
        self._routes[topic] = route
        return route.resolve(written.partition, written.epoch, is_keyed=plan.columns.is_keyed)

    def _require_ack(self, broker: str, topic: str) -> None:
        """Ask what the driver could not: about a topic that rows name, or a broker that was away.

        Raises:
            ConfigError: the broker does not answer as ``ack`` wants.
        """
        cluster, options = self._cluster, self._plan.options

        def ask() -> None:
            require_ack(cluster, options.ack, broker, cluster.broker_address(broker), topic)

        insist(cluster, broker, "its settings", options.retries, ask)

    def _push(self, sealed: list[Sealed]) -> None:
        for destination, seq, rows, born_ms, sys_flag, first_row, body in sealed:
            topic, index, is_apart = self._encoder.place(destination)
            route = self._routes[topic]
            broker, queue_id = route.queues[index]
            born = str(born_ms or time.time_ns() // 1_000_000)
            if self._plan.options.semantics != AT_LEAST_ONCE:
                ext = self._sequenced_ext(route, queue_id, seq, rows, born, sys_flag)
                code = RequestCode.SEND_SEQUENCED
                self._sender.push(Batch(broker, topic, queue_id, rows, code, ext, body, first_row))
                continue
            ext = self._plain_ext(route, queue_id, born, sys_flag)
            if not is_apart:
                ext["m"] = "true"
                code = RequestCode.SEND_BATCH_MESSAGE
                self._sender.push(Batch(broker, topic, queue_id, rows, code, ext, body, first_row))
                continue
            # A batch cannot wait, and counts as one body: what is delayed or large goes one by one.
            for flag, one, properties in decode_batch(body):
                own = {**ext, "h": str(flag), "i": properties.decode("utf-8", "surrogateescape")}
                code = RequestCode.SEND_MESSAGE_V2
                self._sender.push(Batch(broker, topic, queue_id, 1, code, own, one, first_row))

    def _sequenced_ext(
        self, route: TopicRoute, queue_id: int, seq: int, rows: int, born: str, sys_flag: int
    ) -> dict[str, str]:
        options, written = self._plan.options, self.written
        semantics = (
            "stage" if options.semantics == TRANSACTIONAL else "key" if self._plan.columns.is_keyed else "sequence"
        )
        ext = {
            "producerGroup": options.producer_group,
            "topic": route.topic,
            "queueId": str(queue_id),
            "semantics": semantics,
            "txn": written.txn,
            "epoch": str(written.epoch),
            "partition": str(written.partition),
            "attempt": str(written.attempt),
            "seq": str(seq),
            "count": str(rows),
            "bornTimestamp": born,
            "sysFlag": str(sys_flag),
            "defaultTopicQueueNums": str(NEW_TOPIC_QUEUES),
        }
        if route.template:
            ext["defaultTopic"] = route.template
        return ext

    def _plain_ext(self, route: TopicRoute, queue_id: int, born: str, sys_flag: int) -> dict[str, str]:
        """Return the header of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: short names, remoting.md 4.3."""
        return {
            "a": self._plan.options.producer_group,
            "b": route.topic,
            "c": route.template or "TBW102",
            "d": str(NEW_TOPIC_QUEUES),
            "e": str(queue_id),
            "f": str(sys_flag),
            "g": born,
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
        }


def key_prefix(txn: str, epoch: int, partition: int) -> bytes:
    """Return what the unique keys of a partition's rows begin with: 20 hexadecimal digits.

    With the row's number in 12 more they are as long as RocketMQ's own ids, and the time that tools read in those lies
    in the past, so that they find the message.
    """
    return hashlib.sha256(f"{txn}\n{epoch}\n{partition}".encode()).hexdigest()[:20].upper().encode()


def cast_columns(batch: pa.RecordBatch, casts: Sequence[int]) -> pa.RecordBatch:
    """Return the batch with these columns as text; times, which come in the session's zone, are written in UTC."""
    for position in casts:
        name, column = batch.schema.names[position], batch.column(position)
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            column = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
        batch = batch.set_column(position, name, pc.cast(column, pa.string()))
    return batch


def compress_again(batch: pa.RecordBatch, body_at: int, sys_flag_at: int, most_bytes: int) -> pa.RecordBatch:
    """Return the batch with bodies compressed that are longer than a message may be, where they came compressed."""
    bodies, flags = batch.column(body_at), batch.column(sys_flag_at)
    if pa.types.is_null(bodies.type) or pa.types.is_null(flags.type):
        return batch
    came_compressed = pc.equal(pc.bit_wise_and(flags, COMPRESSED | GIVEN_AS_STORED), COMPRESSED)
    chosen = pc.and_(came_compressed, pc.greater(pc.binary_length(bodies), most_bytes))
    if not pc.any(chosen).as_py():
        return batch
    rows = pc.indices_nonzero(chosen)
    small = [deflate(pc.cast(bodies[row], pa.large_binary()).as_py(), flags[row].as_py()) for row in rows.to_pylist()]
    compressed = pc.replace_with_mask(pc.cast(bodies, pa.binary()), chosen.fill_null(False), pa.array(small))
    marked = pc.if_else(chosen.fill_null(False), pc.bit_wise_or(flags, GIVEN_AS_STORED), flags)
    for at, column in ((body_at, compressed), (sys_flag_at, marked)):
        batch = batch.set_column(at, batch.schema.names[at], column)
    return batch
