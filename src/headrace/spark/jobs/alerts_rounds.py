"""Looking again and again: what ``headrace job alerts`` does with ``--every-ms``.

A broker that restarts, a registry that is away or a disk that is full for a while end no standing job: a look that
fails is logged and counted, and the next one takes its minutes too, as it begins where the last good one ended. Before
the first good one, and where Spark itself is gone, errors end the job, as they do one that looks once.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.jobs import stats_tables
from headrace.spark.jobs.alerts import Config
from headrace.spark.jobs.alerts_brokers import KnownBrokers
from headrace.spark.jobs.alerts_looking import look_once, show_alerts, write_found
from headrace.spark.jobs.alerts_model import require_own
from headrace.spark.jobs.failure import JobFailedError, explain
from headrace.spark.jobs.folder import make_folder
from headrace.spark.jobs.log_rows import note_damage
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import FAILED, Summary, count_of
from headrace.spark.jobs.table import is_java_gone
from headrace.spark.jobs.target import require_outside
from headrace.spark.scan import ServersSource
from headrace.spark.session import settings_of

logger = logging.getLogger(__name__)


def look(spark: SparkSession, config: Config, summary: Summary) -> None:
    """Look once, or again and again, and fill in the summary. Raises: as ``alerts.run``."""
    require_outside(config.to, "to")
    if config.fit and config.model is not None:
        require_outside(config.model, "model")
        require_own(config.model)
    if not config.dry_run:
        make_folder(config.to, "to")
        make_folder(config.model if config.fit else None, "model")
    found: list[dict[str, Any]] = []
    failures = Failures(config.failures, summary)
    brokers = KnownBrokers(config) if config.servers and config.tables is None else None
    rounds = 0
    with settings_of(spark, stats_tables.SETTINGS):
        while True:
            started = time.monotonic()
            try:
                if rounds:  # checks the options again, and whether folders are there
                    config = replace(config, since=summary.facts.get("until_ms", config.since), fit=False)
                if brokers is not None:
                    found += look_for_brokers(spark, config, brokers, summary)
                found += look_once(spark, config, summary)
                note_damage(summary)
                failures.end()
            except Exception as error:  # the job's outermost line, where it goes on
                if not config.every_ms or not failures.bear(error) or is_java_gone(spark):
                    raise
            rounds += 1
            if not config.every_ms or (config.rounds and rounds >= config.rounds):
                break
            # What is shown is bounded; everything was written already.
            del found[: -10 * config.top]
            phase("waiting")
            time.sleep(max(0.0, config.every_ms / 1000 - (time.monotonic() - started)))
    failures.describe()
    show_alerts(found, config, summary)


def look_for_brokers(
    spark: SparkSession, config: Config, brokers: KnownBrokers, summary: Summary
) -> list[dict[str, Any]]:
    """Ask the registries who is there; write alerts of brokers that are gone, and return them.

    Before the minutes are read: without any broker there are none.
    """
    from headrace.spark.connections import cluster_of  # noqa: PLC0415  # a network, which tables do without

    phase("looking for brokers")
    there = cluster_of(ServersSource(config.servers, config.access_key, config.secret_key())).brokers()
    found = brokers.missing(there, int(time.time() * 1000))
    if found:
        if not config.dry_run:
            write_found(spark, found, config)
        brokers.note(found)
        summary.facts["alerts"] = summary.facts.get("alerts", 0) + len(found)
    return found


class Failures:
    """Looks that failed."""

    def __init__(self, most: int, summary: Summary) -> None:
        """Begin without any.

        Args:
            most: So many in a row end the job; 0: none do.
        """
        self._most = most
        self._summary = summary
        self._in_a_row = 0
        self._was_good = False

    def end(self) -> None:
        """Take note of a look that did not fail."""
        if self._in_a_row:
            logger.info("looks succeed again failed=%d", self._in_a_row)
        self._in_a_row, self._was_good = 0, True

    def bear(self, error: Exception) -> bool:
        """Count a look that failed, and log the first of several; return False where its error ends the job.

        Raises:
            JobFailedError: it was one too many.
        """
        reason = error if isinstance(error, HeadraceError | OSError) else explain(error)
        if not self._was_good or reason is None:
            return False
        self._in_a_row += 1
        self._summary.facts["failed_looks"] = self._summary.facts.get("failed_looks", 0) + 1
        if self._most and self._in_a_row >= self._most:
            raise JobFailedError(f"{count_of(self._in_a_row, 'look', 'looks')} in a row failed: {reason}") from error
        if self._in_a_row == 1:
            logger.warning("look failed, the next one takes its minutes too error=%s", reason)
        return True

    def describe(self) -> None:
        """Say of the last looks that they failed: what they were to judge is not."""
        if self._in_a_row:
            self._summary.exit_code = FAILED
            self._summary.notes.append(
                f"{count_of(self._in_a_row, 'look', 'looks')} at the end failed: what came since is not judged"
            )
