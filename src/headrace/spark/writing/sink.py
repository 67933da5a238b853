"""``df.write.format("headrace")`` and ``df.writeStream.format("headrace")``: rows of a DataFrame to messages.

    driver    make_writer: options, columns, route, can the brokers do it -> WritePlan, pickled to the tasks
    task      PartitionWriter.write: Arrow batches -> Encoder -> Sender -> brokers; returns what it wrote (Written)
    driver    end_write: transactional writes are committed or aborted, the others are done already

Every task says who it is: (txn, epoch, partition), from Spark's task context. A stream's txn is the id of its query,
its epoch the number of the micro-batch; both are the same when Spark runs a micro-batch again. What a broker makes of
that is the mode: docs/spark/sink.md. An attempt has a random number on top, since Spark's own begin at 0 again with
each driver.

A writer opens nothing before ``write``, and keeps connections for the worker's next task.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.errors import ConfigError, InternalError
from headrace.spark.workers import settle_worker
from headrace.spark.writing.end import end_write
from headrace.spark.writing.options import AT_LEAST_ONCE, WriteColumns, WriteOptions
from headrace.spark.writing.partition_writer import PartitionWriter, Written
from headrace.spark.writing.plan import WritePlan, is_numbered, plan_write

logger = logging.getLogger(__name__)


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
SPECULATION: Final = "spark.speculation"
CONNECT_URL: Final = "SPARK_CONNECT_LOCAL_URL"
"""What is in the environment where Spark Connect calls functions of queries."""


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> HeadraceWriter:
    """Return the writer of a batch; everything that can be wrong before a row is seen is found here.

    Raises:
        ConfigError: an option or a column is wrong, the save mode is overwrite, a topic does not exist and is not made.
        ExtensionMissingError: a broker cannot do what semantics asks for.
        ClientError: the registries do not answer.
    """
    plan = plan_write(options, schema, overwrite)
    if plan.options.epoch is not None and plan.options.txn_id is None:
        raise ConfigError("option epoch counts the writes of a txnId: name one", key="epoch")
    return HeadraceWriter(plan, plan.options.txn_id or uuid.uuid4().hex, plan.options.epoch or 0)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> HeadraceStreamWriter:
    """Return the writer of a stream's micro-batch. Raises: as ``make_writer``."""
    plan = plan_write(options, schema, overwrite)
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
    _require_no_speculation(is_numbered(given, columns), session.conf.get(SPECULATION, "false"))
    txn = txn_id or _local_property(session, QUERY_ID)
    if not txn and given.semantics == AT_LEAST_ONCE:
        _settle_thread(session)
        writer.save()  # only the keys that it makes hang on who it is
        return
    if not txn:
        raise ConfigError(
            "write_batch cannot find the id of the query: call it in the function of foreachBatch, or give txn_id",
            key="txnId",
        )
    identity, written = (txn, given.topic), (_run_of(session), batch_id)
    if written[0] is not None and _batches.get(identity) == written:
        # A broker, or who reads, would take every row of it for a duplicate.
        raise ConfigError(
            f"micro-batch {batch_id} was written to topic {given.topic!r} as {txn!r} before: give every write_batch of "
            "a function a txn_id of its own",
            key="txnId",
        )
    _settle_thread(session)
    writer.option("txnId", txn).option("epoch", str(batch_id)).save()
    _batches[identity] = written


def _settle_thread(session: SparkSession) -> None:
    """Make the session this thread's, where the thread has none: the caller's own, which writes several topics at once.

    Spark looks for the Python source that it is to write with in the session of the thread alone, and does not find it
    in a thread that it did not make: DATA_SOURCE_NOT_FOUND. ``createDataFrame`` is what sets it, by the way.
    """
    if SparkSession.getActiveSession() is None:
        session.createDataFrame([], "none INT")


_batches: dict[tuple[str, str | None], tuple[str | None, int]] = {}
"""The last micro-batch that ``write_batch`` wrote, and the run of its query: by identity and topic."""


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


def _begin_task(plan: WritePlan) -> TaskContext:
    settle_worker()
    context = TaskContext.get()
    if context is None:
        raise InternalError("write() runs outside of a Spark task")
    _require_no_speculation(is_numbered(plan.options, plan.columns), context.getLocalProperty(SPECULATION))
    return context


class HeadraceWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Spark pickles it to the tasks and back to the driver's commit."""

    def __init__(self, plan: WritePlan, txn: str, epoch: int) -> None:
        self.plan = plan
        self.txn = txn
        self.epoch = epoch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition, in a task. Raises: as ``PartitionWriter``."""
        context = _begin_task(self.plan)
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
        context = _begin_task(self.plan)
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
