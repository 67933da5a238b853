"""Writing a job's rows to a topic so that a second run of the job adds nothing: every row has a key of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.spark.jobs.config import JobConfig

DAY_MS: Final = 86_400_000


def publish(rows: DataFrame, config: JobConfig, *, txn: str, topic: str = "", epoch: int = 0) -> None:
    """Write rows as messages; a row whose ``unique_key`` was written under the same ``txn`` before is left out.

    Args:
        rows: Columns as the sink has them, ``unique_key`` among them; ``topic`` too unless it is given.
        txn: Name of the writer, the same in every run.
        epoch: Brokers remember the keys of the newest epoch and the one before it.

    Raises:
        ConfigError: the configuration names no servers, or the sink refuses a column or topic.
        HeadraceError: rows could not be written.
    """
    if not config.servers:
        raise ConfigError("--servers is needed: messages are written to a running cluster", key="servers")
    options = {"servers": config.servers, "txnId": txn, "epoch": str(epoch)}
    if topic:
        options["topic"] = topic
    if config.access_key:
        options |= {"auth.accessKey": config.access_key, "auth.secretKey": config.secret_key()}
    rows.write.format("headrace").mode("append").options(**options).save()


def born() -> Column:
    """Return when a message was made; null, the time of writing, where it claims a time before 1970."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # its usual name

    return F.when(F.unix_millis("born_ts") > 0, F.col("born_ts")).alias("born_ts")
