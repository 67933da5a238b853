"""Writing a job's rows to a topic so that a second run of the job adds nothing: every row has a key of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.spark import functions as F  # noqa: N812  # as PySpark calls them
from headrace.spark.jobs.summary import Summary, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from headrace.spark.jobs.config import JobConfig
    from headrace.spark.jobs.message_writer import MessageWriter

MAX_LISTED: Final = 100
"""Messages left out that a summary names; all are counted."""


def publish(
    rows: DataFrame,
    config: JobConfig,
    *,
    txn: str,
    topic: str = "",
    named_by: str = "unique_key",
    skip_unsendable: bool = False,
) -> list[dict[str, Any]]:
    """Write rows as messages; a row whose ``unique_key`` was written under the same ``txn`` before is left out.

    Args:
        rows: Columns as the sink has them, ``unique_key`` among them; ``topic`` too unless it is given. Others are not
            written.
        txn: Name of the writer, the same in every run.
        named_by: Column that errors name a row by.
        skip_unsendable: Leave out what cannot be a message.

    Returns:
        What each task did, as ``MessageWriter.answer`` has it.

    Raises:
        ConfigError: the configuration names no servers, or the sink refuses a column or topic.
        HeadraceError: rows could not be written.
    """
    from headrace.spark.jobs.message_writer import MessageWriter  # noqa: PLC0415  # needs pyspark
    from headrace.spark.writing.sink import make_writer  # noqa: PLC0415  # needs pyspark

    plan = make_writer(_options(config, topic), rows.schema, False).plan
    writer = partial(MessageWriter, plan, txn, 0, named_by=named_by, skip=skip_unsendable)
    return [json.loads(row["answer"]) for row in rows.mapInArrow(partial(_send, writer), "answer string").collect()]


def closed_topics(config: JobConfig, topics: Iterable[str]) -> dict[str, str]:
    """Return those of some topics that no message can be written to, each with the reason.

    Raises:
        ConfigError: the configuration names no servers.
        ClientError: they do not answer.
    """
    from headrace.spark.connections import cluster_of  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.writing.options import WriteOptions  # noqa: PLC0415  # needs pyspark
    from headrace.spark.writing.plan import servers_of  # noqa: PLC0415  # needs pyspark
    from headrace.spark.writing.route import find_route  # noqa: PLC0415  # needs pyarrow

    options = WriteOptions.parse(_options(config))
    cluster = cluster_of(servers_of(options), use="write")
    closed = {}
    for topic in topics:
        try:
            find_route(cluster, topic, options.retries)
        except ConfigError as error:
            closed[topic] = str(error)
    return closed


def _options(config: JobConfig, topic: str = "") -> dict[str, str]:
    """Return the sink's options of a job that writes."""
    if not config.servers:
        raise ConfigError("--servers is needed: messages are written to a running cluster", key="servers")
    options = {"servers": config.servers, "extraColumns": "ignore", **config.auth_options()}
    return options | {"topic": topic} if topic else options


def _send(writer: partial[MessageWriter], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the rows of one task; yield one row that says what became of them, as JSON."""
    import pyarrow as pa  # noqa: PLC0415  # only in tasks
    from pyspark import TaskContext  # noqa: PLC0415  # only in tasks

    context = TaskContext.get()
    assert context is not None
    made = writer(context.partitionId())
    made.write(iter(batches))
    yield pa.record_batch([pa.array([json.dumps(made.answer())])], names=["answer"])


def summarise_skipped(summary: Summary, answers: Iterable[dict[str, Any]]) -> None:
    """Say what ``MessageWriter.answer`` tells of messages that were left out, if there are any."""
    skipped, listed = 0, []
    for answer in answers:
        skipped += answer["skipped"]
        listed += answer["listed"]
    if skipped:
        summary.facts["skipped"] = skipped
        summary.tables.append(Table("unsendable", "Messages left out", ("message", "reason"), listed[:MAX_LISTED]))


def born() -> Column:
    """Return when a message was made; null, the time of writing, where it claims a time before 1970."""
    return F.when(F.unix_millis("born_ts") > 0, F.col("born_ts")).alias("born_ts")


def name_of() -> Column:
    """Return what a message is called in errors, from its columns: ``BROKER:PHYSICAL_OFFSET of topic 'TOPIC'``."""
    return F.format_string("%s:%d of topic '%s'", "broker", "log_offset", "topic")
