"""Count messages, bytes, rates, sizes and latencies by topic, group, source, broker, host and time.

Reads the log (a store's files, or brokers) once, with the few columns it needs, and counts inside the tasks; Spark adds
up. What was got, sent back and left to do comes from the brokers' own records in HR_STATS. Writes tables of minutes,
hours and days as Parquet below --to, and a report in HTML. A second run replaces the hours of the brokers that it has
counted anew, and only those (with --topics: the rows of these topics), so it may be repeated at any time, also while a
broker is away; --since -2h makes it quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import ConfigError
from headrace.spark.jobs.config import BROKER_OF_STORE, JobConfig, option
from headrace.spark.jobs.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS: Final = 3_600_000
REPORT: Final = "report.html"


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job stats``."""

    to: Path = option(Path(), help="Folder of the tables and the report.", metavar="DIR", required=True)
    hosts: bool = option(True, help="Count each producer's and consumer's host apart.")
    report: Literal["html", "none"] = option("html", help=f"Write {REPORT} into the folder.")
    title: str = option("Messages", help="Heading of the report.", form="text")
    top: int = option(20, help="Rows in each table of the report and of the summary.", least=1, most=10_000)
    split_bytes: int = option(64 << 20, help="Most bytes of log in a range.", least=1 << 20, most=1 << 40)
    broker: str = option("", help="What to call the broker of --store; by default the folder's name.", metavar="NAME")

    def validate(self) -> None:
        """Check what belongs together."""
        self.require_source()
        if self.broker and self.store is None:
            raise ConfigError(BROKER_OF_STORE, key="broker")

    @property
    def from_ms(self) -> int | None:
        """Begin of the first whole hour that is counted."""
        return None if self.since is None else self.since // HOUR_MS * HOUR_MS

    @property
    def to_ms(self) -> int | None:
        """End of the last one."""
        return None if self.until is None else -(-self.until // HOUR_MS) * HOUR_MS


def run(spark: SparkSession, config: Config) -> Summary:
    """Count, write the tables, and say what was counted.

    Raises:
        ConfigError: wrong use.
        FolderBusyError: another run writes to the folder.
        HeadraceError: the log cannot be read, or the folder cannot be written.
    """
    from headrace.spark.jobs.stats_counting import count_log  # noqa: PLC0415  # needs pyarrow

    return count_log(spark, config)
