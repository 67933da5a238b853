"""Check every record of a store, or every file of an archive; change nothing.

Of a store, or of running brokers: size, magic, place and checksums of each record, that records touch and files are all
there, that queue offsets rise by one, and (with --store) that each consume-queue entry points at its record. Each
damaged record is named. With --against the log of a second store, such as a backup's, is compared byte by byte. Of an
archive: that every file of the manifest is there unchanged, and holds what the manifest says.

Exit codes: 0 whole, 1 damaged, 2 could not be checked, or --against has nothing to compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.format.findings import Finding
from headrace.settings import BrokerSettings
from headrace.spark.jobs.config import BROKER_OF_STORE, JobConfig, option, require_store
from headrace.spark.jobs.failure import explain
from headrace.spark.jobs.manifest import require_archive
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import DONE, FAILED, NOT_CHECKED, Summary, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.jobs.verify_log import LogTask

MIB: Final = 1 << 20
DEFAULT_LEVELS: Final = BrokerSettings().delay_levels
STATUS: Final = {DONE: "whole", FAILED: "damaged", NOT_CHECKED: "not checked"}
COLUMNS: Final = ("kind", "broker", "physical_offset", "end_offset", "topic", "queue_id", "queue_offset", "message")


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job verify``."""

    without = frozenset({"topics", "since", "until"})

    archive: Path | None = option(None, help="Folder of an archive to check instead of a log.", metavar="DIR")
    against: Path | None = option(None, help="Folder of a store whose log is to be the same.", metavar="DIR")
    index: bool = option(False, help="Also compare the key index with every record; takes about twice as long.")
    broker: str = option("", help="What to call the broker of --store; by default the folder's name.", metavar="NAME")
    split_bytes: int = option(64 * MIB, help="Bytes of log in a range.", least=64 * 1024, most=1 << 30)
    time_tolerance_ms: int = option(
        1_000, help="How far store times may go back before it is noted.", least=0, most=10**12
    )
    delay_levels: str = option(DEFAULT_LEVELS, help="The broker's delay levels.", metavar="LIST", form="delays")

    def validate(self) -> None:
        """Check that there is one thing to look at."""
        if self.archive is None:
            self.require_source()
            if self.index and self.store is None:
                raise ConfigError("--index reads files: name the broker's --store", key="index")
            if self.broker and self.store is None:
                raise ConfigError(BROKER_OF_STORE, key="broker")
            require_store(self.against, "against")
        elif self.servers or self.store or self.against or self.index or self.broker:
            raise ConfigError("--archive is checked by itself: leave options of logs away", key="archive")
        else:
            require_archive(self.archive)


def run(spark: SparkSession, config: Config) -> Summary:
    """Check, and return the findings; what cannot be checked is a summary with exit code 2.

    Raises:
        ConfigError: wrong use.
    """
    summary = Summary(job="verify", dry_run=config.dry_run)
    try:
        if config.archive is not None:
            from headrace.spark.jobs.verify_archive import verify_archive  # noqa: PLC0415  # needs pyarrow

            damage, info = verify_archive(spark, config.archive, summary)
        else:
            damage, info = verify_source(spark, config, summary)
    except Exception as error:
        # Exit code 1 says damaged: whatever kept the check from its end is not that.
        found = error if isinstance(error, (HeadraceError, OSError)) else explain(error)
        if found is None or isinstance(found, ConfigError):
            raise
        summary.exit_code = NOT_CHECKED
        summary.facts |= {"status": STATUS[NOT_CHECKED], "error": str(found)}
        return summary
    if config.dry_run:
        return summary
    is_checked = summary.facts.get("compared_bytes") != 0
    summary.exit_code = FAILED if damage else DONE if is_checked else NOT_CHECKED
    summary.facts = {"status": STATUS[summary.exit_code], **summary.facts, "findings": len(damage)}
    summary.tables.append(_table("damage", "Damage", damage))
    summary.tables.append(_table("info", "Notes", info))
    return summary


def verify_source(spark: SparkSession, config: Config, summary: Summary) -> tuple[list[Finding], list[Finding]]:
    """Check the logs of a store or of brokers; return damage and what is only worth knowing."""
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.cut_source import cut_source_of  # noqa: PLC0415
    from headrace.spark.jobs.verify_store import StoreCheck  # noqa: PLC0415

    phase("planning")
    source = cut_source_of(config, config.broker)
    damage: list[Finding] = []
    info: list[Finding] = []
    facts = {"brokers": 0, "log_bytes": 0, "records": 0, "queues": 0, "pending_entries": 0}
    extents = source.extents()
    if config.against is not None:  # now: what is found meanwhile would be lost
        if len(extents) != 1:
            raise ConfigError("--against compares one log: name the broker's --store", key="against")
        scan.StoreSource(str(config.against)).extents()
    checks = [StoreCheck(source, extent, config) for extent in extents]
    plans = [check.tasks() for check in checks]
    tasks = list(chain.from_iterable(plans))
    if config.dry_run:
        summary.facts |= {"ranges": len(tasks), "log_bytes": sum(task.split.size_bytes for task in tasks)}
        return [], []
    results = iter(run_tasks(spark, tasks))
    phase("judging")
    for check, plan in zip(checks, plans, strict=True):
        check.judge(list(islice(results, len(plan))))
        damage += check.damage
        info += check.info
        facts["brokers"] += 1
        facts["log_bytes"] += check.extent.end - check.extent.start
        facts["records"] += check.queues.records
        facts["queues"] += check.queues.queue_count
        facts["pending_entries"] += check.queues.pending
    summary.facts |= facts
    if config.against is not None:
        phase("comparing")
        damage += compare(spark, source, config, summary)
    return damage, info


def run_tasks(spark: SparkSession, tasks: list[LogTask]) -> list[dict[str, Any]]:
    """Check all ranges; return what each task found, in their order.

    Raises:
        HeadraceError: a task gave no answer.
    """
    from headrace.spark.jobs.answers import ask_tasks  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.verify_log import check_log  # noqa: PLC0415  # needs pyarrow

    if tasks:
        phase("checking")
    return ask_tasks(spark, tasks, check_log, "ranges were to be checked")


def compare(spark: SparkSession, source: Any, config: Config, summary: Summary) -> list[Finding]:
    """Compare the log with that of ``against`` where both have it, and say how much that is."""
    from headrace.spark import scan  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.verify_blocks import BLOCK_BYTES, common_ranges, compare_logs  # noqa: PLC0415

    other = scan.StoreSource(str(config.against))
    (theirs,) = other.extents()
    mine = source.extents()
    ranges = common_ranges(mine[0], theirs)
    summary.facts["compared_bytes"] = sum(end - start for start, end in ranges)
    if not ranges:
        summary.notes.append(
            f"nothing was compared: this log has {mine[0].start} to {mine[0].end}, that of --against {theirs.start} to "
            f"{theirs.end}"
        )
    return [
        Finding(
            kind="differing_block", broker=mine[0].broker, physical_offset=at, end_offset=min(at + BLOCK_BYTES, end),
            message=f"the logs differ between {at} and {min(at + BLOCK_BYTES, end)}",
        )
        for start, end in ranges
        for at in compare_logs(spark, source, mine[0], other, theirs, start, end)
    ]  # fmt: skip


def _table(key: str, title: str, findings: list[Finding]) -> Table:
    rows = [tuple(getattr(finding, column) for column in COLUMNS) for finding in findings]
    return Table(key, title, COLUMNS, rows)
