"""Find unusual throughput, lag and latency by topic and group, minute by minute.

Reads minutes: the tables of headrace job stats (--tables), or what brokers wrote into HR_STATS (--servers, --store).
Compares each with what is usual at that time of day (median of the days before, median absolute deviation), and has
rules for lag that grows, traffic that stops, bursts of dead letters and brokers that are gone. With --model a Spark ML
model looks at all measures of a minute together; --fit makes it anew. Alerts go to a topic (--to-topic, usually
HR_ALERTS), each with a key, so that a second run adds none, and to a folder (--to) of Parquet by day. --every-ms 1m
goes on for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.spark.jobs.config import JobConfig, option, require_target_topic
from headrace.spark.jobs.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job alerts``."""

    tables: Path | None = option(None, help="Folder of headrace job stats to read instead of HR_STATS.", metavar="DIR")
    to: Path | None = option(None, help="Folder of the alerts, as Parquet by day.", metavar="DIR")
    to_topic: str = option("", help="Topic for the alerts (of --servers), such as HR_ALERTS.", metavar="TOPIC")
    model: Path | None = option(None, help="Folder of the model; without it only rules and baselines.", metavar="DIR")
    fit: bool = option(False, help="Make the model anew from the days before --until.")
    history_days: int = option(7, help="Days that say what is usual.", least=1, most=60)
    threshold: float = option(6.0, help="Deviations from the usual that make an alert.", least=2, most=1_000)
    lag_minutes: int = option(10, help="Minutes that lag grows in a row.", least=3, most=120)
    lag_least: int = option(100, help="Messages below which growth of lag is nothing.", least=1, most=1_000_000_000)
    quiet_minutes: int = option(5, help="Minutes without traffic where there usually is some.", least=1, most=1_440)
    quiet_least: float = option(10.0, help="Usual messages a minute below which silence is nothing.", least=0.1)
    dead_burst: int = option(10, help="Dead letters of a group in five minutes.", least=1, most=1_000_000_000)
    gone_minutes: int = option(10, help="Minutes for which a broker is gone, to be an alert.", least=1, most=1_440)
    brokers: tuple[str, ...] = option((), help="Brokers that have to be there, whether they ever were or not.")
    every_ms: int = option(0, help="Look again after so long, for ever; 0: look once.", least=0, most=86_400_000)
    rounds: int = option(0, help="With --every-ms, stop after so many looks; 0: never.", least=0, most=1_000_000_000)
    failures: int = option(
        60,
        help="With --every-ms, looks that fail in a row and end the job; 0: any number.",
        least=0,
        most=1_000_000_000,
    )
    top: int = option(50, help="Alerts shown, the newest ones.", least=1, most=10_000)

    def validate(self) -> None:
        """Check what belongs together."""
        if self.tables is None and self.store is None and not self.servers:
            raise ConfigError(
                "name --tables DIR (made by headrace job stats), --store DIR (its files are read) or "
                "--servers HOST:PORT (the brokers are asked)",
                key="tables",
            )
        if self.tables is None:
            self.require_source()
        elif self.store is not None:
            raise ConfigError("name either --tables DIR or --store DIR", key="tables")
        elif not (self.tables / "minute").is_dir():
            raise ConfigError(
                f"--tables {self.tables} has no table of minutes: run headrace job stats first", key="tables"
            )
        if self.to_topic and not self.servers:
            raise ConfigError("--to-topic needs --servers: alerts are written to a running cluster", key="to_topic")
        require_target_topic(self.to_topic, "--to-topic")
        if self.brokers and (self.tables is not None or not self.servers):
            raise ConfigError(
                "--brokers are looked for in the registries: it needs --servers, and no --tables", key="brokers"
            )
        if self.fit and self.model is None:
            raise ConfigError("--fit needs --model DIR, the folder of the model", key="model")
        if self.every_ms and self.until is not None:
            raise ConfigError("--every-ms looks at what comes: leave --until away", key="every_ms")
        is_written = not self.dry_run and (self.to is not None or self.to_topic)
        if self.every_ms and not self.rounds and not is_written:
            raise ConfigError(
                "--every-ms goes on for ever and shows alerts when it ends: say where they go with --to or --to-topic, "
                "or how many looks with --rounds",
                key="every_ms",
            )


def run(spark: SparkSession, config: Config) -> Summary:
    """Look once, or again and again, and say what was found.

    Raises:
        ConfigError: wrong use.
        HeadraceError: the minutes cannot be read, or alerts not be written.
    """
    from headrace.spark.jobs.alerts_rounds import look  # noqa: PLC0415  # needs pyarrow

    summary = Summary(job="alerts", dry_run=config.dry_run)
    look(spark, config, summary)
    return summary
