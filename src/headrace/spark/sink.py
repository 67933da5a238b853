"""``df.write.format("headrace")`` and ``df.writeStream.format("headrace")``: rows of a DataFrame to messages.

    driver    make_writer: options, columns, route, can the brokers do it -> WritePlan, pickled to the tasks
    task      write: Arrow batches -> encode.Encoder -> send.Sender -> brokers; returns what it wrote (Written)
    driver    commit: transactional writes are ended, the others are done already

Every task says who it is: (txn, epoch, partition), from Spark's task context. A stream's txn is the id of its query,
its epoch the number of the micro-batch; both are the same when Spark runs a micro-batch again. What a broker makes of
that is the mode: docs/spark/sink.md. An attempt has a random number on top, since Spark's own begin at 0 again with
each driver.

A writer opens nothing before ``write``, and keeps connections for the worker's next task.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from headrace.errors import ClientError, ConfigError, ConnectionLostError, InternalError, RequestTimeoutError
from headrace.format import fastjson
from headrace.remoting.blocking import Cluster
from headrace.remoting.codec import decode_batch
from headrace.remoting.codes import RequestCode, ResponseCode, response_name
from headrace.spark.connections import cluster_of
from headrace.spark.encode import Encoder
from headrace.spark.errors import ExtensionMissingError
from headrace.spark.route import NEW_TOPIC_QUEUES, TopicRoute, find_route, home_broker
from headrace.spark.scan import ServersSource
from headrace.spark.send import FIRST_PAUSE_S, LONGEST_PAUSE_S, MOST_ROWS_IN_FLIGHT, PASSING, Batch, Sender
from headrace.spark.write_options import (
    AT_LEAST_ONCE,
    FLUSHED,
    IDEMPOTENT,
    MOST_TXN_CHARS,
    STORED,
    TRANSACTIONAL,
    WriteColumns,
    WriteOptions,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.remoting.blocking import BlockingClient
    from headrace.remoting.codec import Command
    from headrace.spark.encode import Sealed

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
SPECULATION: Final = "spark.speculation"
CONNECT_URL: Final = "SPARK_CONNECT_LOCAL_URL"
"""What is in the environment where Spark Connect calls functions of queries."""
COMMIT_TIMEOUT_S: Final = 600.0
"""A commit is answered when every message of the batch is where it belongs, durably."""
COMMIT_ASK_S: Final = 30.0
"""How long it is waited for before it is asked for again: a broker closes a connection on which nothing is asked for
``remoting.idle_timeout_ms``, whoever waits there."""

_PROBE: Final = b'{"topics":[],"log":false}'
_ACK_SETTINGS: Final = {
    FLUSHED: ("flushDiskType", "SYNC_FLUSH", "store.durability=fsync"),
    "replicated": ("brokerRole", "SYNC_MASTER", "a RocketMQ broker with brokerRole=SYNC_MASTER"),
}


# -- on the driver -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What the driver found out, for every task of one write.

    Attributes:
        route: Of the option topic, None when rows name their topics.
        addresses: Masters, by broker name.
        unasked: Brokers that were away and could not be asked what they can do.
    """

    options: WriteOptions
    columns: WriteColumns
    route: TopicRoute | None
    addresses: Mapping[str, str]
    unasked: frozenset[str] = frozenset()

    @property
    def is_sequence(self) -> bool:
        """Whether duplicates are known by the number of a row."""
        return self.options.semantics == IDEMPOTENT and not self.columns.is_keyed

    def identity(self, txn: str) -> str:
        """Return what brokers know a write as: with its topic, so that one txn can write several."""
        topic = self.options.topic
        full = txn if topic is None else f"{txn}/{topic}"
        return full if len(full) <= MOST_TXN_CHARS else hashlib.sha256(full.encode()).hexdigest()

    def home(self, txn: str) -> str:
        """Return the broker on which a transaction is whole; ``txn`` is an ``identity``."""
        brokers = self.addresses if self.route is None else {broker for broker, _ in self.route.queues}
        return home_broker(txn, brokers)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> HeadraceWriter:
    """Return the writer of a batch; everything that can be wrong before a row is seen is found here.

    Raises:
        ConfigError: an option or a column is wrong, the save mode is overwrite, a topic does not exist and is not made.
        ExtensionMissingError: a broker cannot do what semantics asks for.
        ClientError: the registries do not answer.
    """
    plan = _make_plan(options, schema, overwrite)
    if plan.options.epoch is not None and plan.options.txn_id is None:
        raise ConfigError("option epoch counts the writes of a txnId: name one", key="epoch")
    return HeadraceWriter(plan, plan.options.txn_id or uuid.uuid4().hex, plan.options.epoch or 0)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> HeadraceStreamWriter:
    """Return the writer of a stream's micro-batch. Raises: as ``make_writer``."""
    plan = _make_plan(options, schema, overwrite)
    if plan.options.epoch is not None:
        raise ConfigError(
            "option epoch is for batch writes: in a stream it is the number of the micro-batch", key="epoch"
        )
    return HeadraceStreamWriter(plan)


def write_batch(df: DataFrame, batch_id: int, *, txn_id: str | None = None, **options: str | float | None) -> None:
    """Write one micro-batch from within ``foreachBatch``, with the guarantees of ``writeStream.format("headrace")``.

        def save(df, batch_id):
            write_batch(df.where("amount > 100"), batch_id, servers="localhost:9876", topic="large")
        stream.writeStream.foreachBatch(save).option("checkpointLocation", ...).start()

    Args:
        batch_id: What Spark calls the function with.
        txn_id: Identity of this writer over all micro-batches; by default the id of the query. A function that writes
            several DataFrames to one topic needs one for each.
        options: As for ``format("headrace")``.

    Raises:
        ConfigError: as ``make_writer``; there is no txn_id and this is no stream's thread, as with Spark Connect; or
            the micro-batch was written to that topic under that identity before.
    """
    session = df.sparkSession
    texts = {name: str(value) for name, value in options.items() if value is not None}
    given = WriteOptions.parse(texts)
    if given.epoch is not None or given.txn_id is not None:
        raise ConfigError("write_batch takes batch_id and txn_id as arguments, not as options epoch and txnId")
    writer = df.write.format("headrace").mode("append").options(**texts)
    columns = WriteColumns.plan(df.schema, given)
    is_sequence = given.semantics == IDEMPOTENT and not columns.is_keyed
    _require_no_speculation(is_sequence, session.conf.get(SPECULATION, "false"))
    txn = txn_id or _local_property(session, QUERY_ID)
    if not txn and given.semantics == AT_LEAST_ONCE:
        writer.save()  # only the keys that it makes hang on who it is
        return
    if not txn:
        raise ConfigError(
            "write_batch cannot find the id of the query: call it in the function of foreachBatch, or give txn_id",
            key="txnId",
        )
    identity = (_run_of(session), txn, given.topic)
    if identity[0] is not None and _batches.get(identity) == batch_id:
        # A broker, or who reads, would take every row of it for a duplicate.
        raise ConfigError(
            f"micro-batch {batch_id} was written to topic {given.topic!r} as {txn!r} before: give every write_batch of "
            "a function a txn_id of its own",
            key="txnId",
        )
    writer.option("txnId", txn).option("epoch", str(batch_id)).save()
    _batches[identity] = batch_id


_batches: dict[tuple[str | None, str, str | None], int] = {}
"""The last micro-batch that ``write_batch`` wrote: by run of the query, identity and topic."""


def _run_of(session: SparkSession) -> str | None:
    """Return what the run of the query is known by in whose function this is, None outside of such functions.

    Spark Connect calls the function in a process of the run's own, with a session that is a copy for the run.
    """
    if CONNECT_URL in os.environ:
        return str(session.session_id)  # type: ignore[attr-defined]  # only Connect's sessions have it
    return _local_property(session, RUN_ID)


def _local_property(session: SparkSession, name: str) -> str | None:
    """Return what Spark's stream says to the jobs of this thread, None where it says nothing."""
    try:
        found = session.sparkContext.getLocalProperty(name)
    except Exception as error:  # noqa: BLE001  # Spark Connect has no context, and says so in several ways
        logger.debug("no local properties error=%s", error)
        return None
    return str(found) if found else None


def _require_no_speculation(is_sequence: bool, speculation: str | None) -> None:
    if is_sequence and (speculation or "false").lower() == "true":
        raise ConfigError(
            "semantics=idempotent numbers the rows of a partition, which spark.speculation=true may write twice at "
            "once: switch speculation off, name a keyColumn, or use semantics=transactional",
            key="semantics",
        )


def _make_plan(options: Mapping[str, str], schema: StructType, overwrite: bool) -> WritePlan:
    if overwrite:
        raise ConfigError(
            'a topic is never overwritten: use .mode("append"), in a stream .outputMode("append")', key="mode"
        )
    parsed = WriteOptions.parse(options)
    columns = WriteColumns.plan(schema, parsed)
    cluster = cluster_of(_servers(parsed), use="write")
    addresses = _patiently(parsed, lambda: _masters(cluster))
    route = None
    if parsed.topic is not None:
        topic = parsed.topic
        route = _patiently(parsed, lambda: find_route(cluster, topic, live_only=parsed.semantics == AT_LEAST_ONCE))
    asked = {broker for broker, _ in route.queues} if route is not None else set(addresses)
    unasked = frozenset(
        broker for broker in sorted(asked) if not _has_abilities(cluster, parsed, broker, addresses.get(broker))
    )
    return WritePlan(parsed, columns, route, addresses, unasked)


def _masters(cluster: Cluster) -> dict[str, str]:
    """Return the masters by broker name.

    Raises:
        ConnectionLostError: there is none, as while the only broker restarts.
    """
    found = cluster.brokers()
    if not found:
        raise ConnectionLostError(";".join(cluster.servers), "the registries know of no broker")
    return found


def _has_abilities(cluster: Cluster, options: WriteOptions, broker: str, address: str | None) -> bool:
    """Ask a broker whether it can do what the options want; False for one that is away, which is left to the tasks.

    Raises:
        ExtensionMissingError, ConfigError: it cannot.
    """
    if address is None:
        return False
    try:
        if options.semantics != AT_LEAST_ONCE:
            probe = cluster.client(address).call(RequestCode.READER_STATE, {"group": "", "waitMs": "0"}, _PROBE)
            if probe.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ExtensionMissingError(options.semantics, address)
        if options.ack != STORED:
            _require_ack(cluster, options.ack, broker, address, options.topic)
    except (ConnectionLostError, RequestTimeoutError) as error:
        logger.warning("broker not asked what it can do broker=%s error=%s", broker, error)
        return False
    return True


def _require_ack(cluster: Cluster, ack: str, broker: str, address: str, topic: str | None) -> None:
    """Ask a broker whether it answers for messages of a topic, None for those without a level of their own, as wanted.

    Raises:
        ConfigError: it does not.
        ConnectionLostError, RequestTimeoutError: it does not answer.
    """
    key, wanted, remedy = _ACK_SETTINGS[ack]
    response = cluster.client(address).call(RequestCode.GET_BROKER_CONFIG)
    if response.code != ResponseCode.SUCCESS:
        reason = f"{response_name(response.code)} {response.remark}"
        raise ConfigError(f"ack={ack}: broker {broker!r} does not say how it stores: {reason}", key="ack")
    lines = dict(line.partition("=")[::2] for line in response.body.decode("utf-8", "replace").splitlines())
    own = None if topic is None else lines.get(f"{key}.{topic}")
    if own is not None and own != wanted:
        raise ConfigError(
            f"ack={ack} is not what broker {broker!r} does for topic {topic!r}: its {key}.{topic} is {own}; needs "
            f'topics."{topic}".durability = "fsync"',
            key="ack",
        )
    found = own or lines.get(key, "nothing")
    if found != wanted:
        raise ConfigError(
            f"ack={ack} is not what broker {broker!r} does: its {key} is {found}; needs {remedy}", key="ack"
        )


# -- in tasks ----------------------------------------------------------------------------------------------------------


def _servers(options: WriteOptions) -> ServersSource:
    """Return the brokers to write to."""
    return ServersSource(
        options.servers, options.access_key or "", options.secret_key or "", options.send_timeout_ms, options.retries
    )


def _patiently(options: WriteOptions, ask: Callable[[], Result]) -> Result:
    """Return an answer, asked for again when nobody answers.

    Raises:
        ClientError: nobody answered after ``retries``.
    """
    pause_s = FIRST_PAUSE_S
    for left in range(options.retries, -1, -1):
        try:
            return ask()
        except (ConnectionLostError, RequestTimeoutError) as error:
            if not left:
                raise
            logger.warning("no answer, asked again left=%d pause_s=%.1f error=%s", left, pause_s, error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    raise InternalError("the last try neither returned nor raised")


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote.

    Attributes:
        rows: Rows of the partition.
        stored: Of those, what a broker stored now; the rest were there already.
        rows_by_broker: Rows that each broker answered for.
        left_out: Properties of maps that are the broker's own and were not copied.
        retries: Requests sent again.
        home: Broker that keeps the transaction; empty without one.
    """

    txn: str
    epoch: int
    partition: int
    attempt: int
    rows: int = 0
    stored: int = 0
    duplicates: int = 0
    unsure: int = 0
    left_out: int = 0
    retries: int = 0
    rows_by_broker: dict[str, int] = field(default_factory=dict)
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
        servers = _servers(options)
        self._cluster = cluster_of(servers, use="write")
        self._cluster.remember(plan.addresses)
        # Connections of their own: a broker may be asked about a new topic while rows are under way to it.
        self._sender = Sender(
            cluster_of(servers, use="rows"),
            plan.addresses,
            semantics=options.semantics,
            window=options.max_in_flight,
            retries=options.retries,
            rows_in_flight=MOST_ROWS_IN_FLIGHT if options.semantics == AT_LEAST_ONCE else None,
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
            held_bytes=max(options.batch_bytes, 2 << 20) * options.max_in_flight,
        )

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write all rows and return once every one is acknowledged."""
        try:
            for batch in batches:
                self._push(self._encoder.feed(cast_columns(batch, self._plan.columns.casts)))
            self._push(self._encoder.finish())
            self._sender.drain()
        except BaseException:
            self._sender.close()
            raise
        counters, written = self._sender.counters, self.written
        written.rows = self._encoder.rows
        written.left_out = self._encoder.left_out
        written.stored = counters.stored
        written.duplicates = counters.duplicates
        written.unsure = counters.unsure
        written.retries = counters.retries
        written.rows_by_broker = dict(counters.rows_by_broker)
        if sum(written.rows_by_broker.values()) != written.rows:
            raise InternalError(f"{written.rows} rows, but {written.rows_by_broker} are acknowledged")
        return written

    def _resolve(self, topic: str) -> tuple[int, int, Sequence[int]]:
        plan, written = self._plan, self.written
        route = plan.route
        if route is None:
            live_only = plan.options.semantics == AT_LEAST_ONCE
            route = _patiently(plan.options, lambda: find_route(self._cluster, topic, live_only=live_only))
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
        _patiently(options, lambda: _require_ack(cluster, options.ack, broker, cluster.broker_address(broker), topic))

    def _push(self, sealed: list[Sealed]) -> None:
        for destination, seq, rows, born_ms, first_row, body in sealed:
            topic, index, is_delayed = self._encoder.place(destination)
            route = self._routes[topic]
            broker, queue_id = route.queues[index]
            born = str(born_ms or time.time_ns() // 1_000_000)
            if self._plan.options.semantics != AT_LEAST_ONCE:
                ext = self._sequenced_ext(route, queue_id, seq, rows, born)
                code = RequestCode.SEND_SEQUENCED
                self._sender.push(Batch(broker, topic, queue_id, rows, code, ext, body, first_row))
                continue
            ext = self._plain_ext(route, queue_id, born)
            if not is_delayed:
                ext["m"] = "true"
                code = RequestCode.SEND_BATCH_MESSAGE
                self._sender.push(Batch(broker, topic, queue_id, rows, code, ext, body, first_row))
                continue
            # A batch cannot wait: what is delayed goes one by one.
            for flag, one, properties in decode_batch(body):
                own = {**ext, "h": str(flag), "i": properties.decode("utf-8", "surrogateescape")}
                code = RequestCode.SEND_MESSAGE_V2
                self._sender.push(Batch(broker, topic, queue_id, 1, code, own, one, first_row))

    def _sequenced_ext(self, route: TopicRoute, queue_id: int, seq: int, rows: int, born: str) -> dict[str, str]:
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
            "sysFlag": "0",
            "defaultTopicQueueNums": str(NEW_TOPIC_QUEUES),
        }
        if route.template:
            ext["defaultTopic"] = route.template
        return ext

    def _plain_ext(self, route: TopicRoute, queue_id: int, born: str) -> dict[str, str]:
        """Return the header of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: short names, remoting.md 4.3."""
        return {
            "a": self._plan.options.producer_group,
            "b": route.topic,
            "c": route.template or "TBW102",
            "d": str(NEW_TOPIC_QUEUES),
            "e": str(queue_id),
            "f": "0",
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
    """Return the batch with these columns as text."""
    for position in casts:
        name = batch.schema.names[position]
        batch = batch.set_column(position, name, pc.cast(batch.column(position), pa.string()))
    return batch


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InternalError("write() runs outside of a Spark task")
    return context


# -- what Spark calls --------------------------------------------------------------------------------------------------


class HeadraceWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Spark pickles it to the tasks and back to the driver's commit."""

    def __init__(self, plan: WritePlan, txn: str, epoch: int) -> None:
        self.plan = plan
        self.txn = txn
        self.epoch = epoch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition, in a task. Raises: as ``PartitionWriter``."""
        context = _context()
        _require_no_speculation(self.plan.is_sequence, context.getLocalProperty(SPECULATION))
        return PartitionWriter(self.plan, self.txn, self.epoch, context.partitionId()).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows visible, if they are not yet."""
        end_write(self.plan, _written(messages), is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget the rows of tasks that succeeded, if they are not visible yet."""
        end_write(self.plan, _written(messages), is_commit=False, txn=self.txn, epoch=self.epoch)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Spark makes one for the tasks of each and another for its commit."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition, in a task. Raises: as ``PartitionWriter``."""
        context = _context()
        _require_no_speculation(self.plan.is_sequence, context.getLocalProperty(SPECULATION))
        query, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or epoch is None:
            raise InternalError("Spark does not tell a stream's task its query and micro-batch")
        txn = self.plan.options.txn_id or query
        return PartitionWriter(self.plan, txn, int(epoch), context.partitionId()).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make the micro-batch visible, if it is not yet."""
        end_write(self.plan, _written(messages), is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Forget the micro-batch, if it is not visible yet."""
        end_write(self.plan, _written(messages), is_commit=False)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def end_write(
    plan: WritePlan, written: Sequence[Written], *, is_commit: bool, txn: str | None = None, epoch: int = 0
) -> None:
    """Commit or abort what tasks wrote; only a transaction is open still.

    Args:
        txn, epoch: Of the write, where no task tells.

    Raises:
        ClientError: the broker refuses, or does not answer; for a commit. An abort that fails is logged: the broker
            forgets what nobody commits.
    """
    rows = sum(each.rows for each in written)
    logger.info(
        "write %s tasks=%d rows=%d duplicates=%d unsure=%d left_out=%d retries=%d",
        "done" if is_commit else "failed",
        len(written),
        rows,
        sum(each.duplicates for each in written),
        sum(each.unsure for each in written),
        sum(each.left_out for each in written),
        sum(each.retries for each in written),
    )
    if plan.options.semantics != TRANSACTIONAL:
        if not is_commit and rows:
            logger.warning(
                "rows of a failed write are visible already semantics=%s rows=%d", plan.options.semantics, rows
            )
        return
    if written:
        txn, epoch = written[0].txn, written[0].epoch
    elif txn is not None:
        txn = plan.identity(txn)
    if txn is None or (is_commit and not rows):
        return
    chosen = [
        {"partition": each.partition, "attempt": each.attempt, "count": each.rows} for each in written if each.rows
    ]
    # The tasks' broker, not that of this plan: in a stream it is another plan, with the route of this moment.
    home = written[0].home if written else plan.home(txn)
    try:
        end_batch(plan, home, txn, epoch, chosen if is_commit else [], is_commit=is_commit)
    except ClientError as error:
        if is_commit:
            raise
        logger.warning("abort not told, the broker forgets the rows later txn=%s epoch=%d error=%s", txn, epoch, error)


def end_batch(
    plan: WritePlan, broker: str, txn: str, epoch: int, chosen: list[dict[str, int]], *, is_commit: bool
) -> None:
    """Tell a transaction's broker how it ends; asking again is harmless.

    Raises:
        ClientError: it refuses, or did not answer.
    """
    options = plan.options
    ext = {
        "txn": txn,
        "epoch": str(epoch),
        "decision": "commit" if is_commit else "abort",
        "producerGroup": options.producer_group,
    }
    body = fastjson.dumps({"chosen": chosen})
    cluster = cluster_of(_servers(options), use="write")
    known = dict(plan.addresses)

    def ask() -> None:
        try:
            known.update(cluster.brokers())
        except (ConnectionLostError, RequestTimeoutError):
            logger.debug("registries do not answer, the last address is used broker=%s", broker)
        if broker not in known:
            raise ConnectionLostError(broker, "the registries know of no master")
        response = _call_long(cluster.client(known[broker]), ext, body)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ExtensionMissingError(options.semantics, known[broker])
        # SYSTEM_ERROR is how a commit is refused whose rows are not there: asking again does not bring them.
        if response.code in PASSING and response.code != ResponseCode.SYSTEM_ERROR:
            raise ConnectionLostError(known[broker], f"{response_name(response.code)} {response.remark}")
        if response.code != ResponseCode.SUCCESS:
            what = f"{ext['decision']} of txn {txn!r} epoch {epoch}"
            raise ClientError(f"broker {broker!r} refuses the {what}: {response_name(response.code)} {response.remark}")

    _patiently(options, ask)


def _call_long(client: BlockingClient, ext: Mapping[str, str], body: bytes) -> Command:
    """Ask for the end of a batch until it is answered; a commit that is asked for again waits with the one before.

    Raises:
        RequestTimeoutError: no answer within ``COMMIT_TIMEOUT_S``.
        ConnectionLostError: as ``BlockingClient.call``.
    """
    until = time.monotonic() + COMMIT_TIMEOUT_S
    while True:
        try:
            return client.call(RequestCode.END_BATCH, ext, body, timeout_s=COMMIT_ASK_S)
        except RequestTimeoutError:
            if time.monotonic() >= until:
                raise
            logger.warning("no answer to a commit or abort, waiting txn=%s epoch=%s", ext["txn"], ext["epoch"])
