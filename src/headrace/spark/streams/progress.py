"""How far running queries are behind: ``lag`` for people, ``ProgressListener`` for the broker's tools and for metrics.

Spark calls a source's ``commit`` only when the next batch is made, so what the stream reader reports by itself is one
batch late. The listener runs on the driver and reports with each progress event.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.errors import HeadraceError
from headrace.spark.connections import new_cluster
from headrace.spark.options import ReadOptions
from headrace.spark.remote import PROGRESS, ServersView
from headrace.spark.scan import ServersSource
from headrace.spark.streams.admission import UNKNOWN_RECORD_BYTES
from headrace.spark.streams.pin import StartPin
from headrace.spark.streams.positions import Position, PositionError, QueueKey

logger = logging.getLogger(__name__)

METRICS: Final = {
    "spark_reader_lag_messages": "messages between what was read and what there is",
    "spark_reader_lag_bytes": "about as many bytes of records",
    "spark_reader_lost_messages_total": "messages that were gone before they were read",
    "spark_reader_batch_seconds": "duration of the last micro-batch",
    "spark_reader_rows_total": "rows read",
}
"""Names and meanings of ``ProgressListener.metrics``."""
_SELECTIONS: Final = frozenset(("topics", "topicpattern", "assign"))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a query is behind.

    Attributes:
        messages: Over all queues; with a log that is read as a whole, -1: nobody has counted them.
        size_bytes: About, by the size of records read before; exact for logs.
        lost: Messages that were gone before they were read, since the stream began.
        queues: Messages by topic, broker and queue id; of logs, bytes under an empty topic.
    """

    messages: int = 0
    size_bytes: int = 0
    lost: int = 0
    queues: Mapping[tuple[str, str, int], int] = field(default_factory=dict)


def lag(query: Any) -> Lag:
    """Return how far a ``StreamingQuery`` is behind, as of its last progress; nothing at all before the first.

    Sources of other formats do not count.
    """
    progress = query.lastProgress
    return Lag() if progress is None else lag_of_progress(progress)


def lag_of_progress(progress: Any) -> Lag:
    """Return the same of a progress, as an object or as a dict."""
    queues: dict[tuple[str, str, int], int] = {}
    messages = size_bytes = lost = 0
    has_log = False
    for end, latest in _positions(progress):
        lost += end.lost
        if latest is None:
            continue
        for key, high in sorted(latest.offsets.items()):
            queues[key] = behind = max(0, high - end.offsets.get(key, 0 if key.topic else high))
            if key.topic:
                messages += behind
                size_bytes += behind * end.record_bytes.get(key.topic, UNKNOWN_RECORD_BYTES)
            else:
                has_log = True
                size_bytes += behind
    return Lag(-1 if has_log else messages, size_bytes, lost, queues)


def _positions(progress: Any) -> Iterator[tuple[Position, Position | None]]:
    """Yield (end, latest) of each of our sources."""
    for source in _field(progress, "sources") or ():
        end = _position(_field(source, "endOffset"))
        if end is not None:
            yield end, _position(_field(source, "latestOffset"))


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _position(text: Any) -> Position | None:
    """Return an offset of ours, None for those of other sources."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
        if not isinstance(found, dict) or not {"q", "log"} & set(found):
            return None
        return Position.from_json(found)
    except (ValueError, PositionError):
        return None


class ProgressListener(StreamingQueryListener):
    """Reports the progress of one query to the brokers with each batch: ``spark.streams.addListener(listener)``.

    Attributes:
        lag: Of the last progress.
        metrics: Figures by their names in ``METRICS``.
    """

    def __init__(self, servers: str, group: str, *, query_name: str | None = None, **options: str) -> None:
        """Listen for a query that reads with this ``group``.

        Args:
            query_name: Only the query of that name; needed when several queries of a session read with ``headrace``.
            options: As for the source: ``auth.accessKey`` and the like, in a ``**{...}``. With ``topics``,
                ``topicPattern`` or ``assign`` only what they select is reported: a query with several sources that have
                a group each needs a listener for each.

        Raises:
            ConfigError: an option is wrong.
        """
        super().__init__()
        self._selects = any(name.lower() in _SELECTIONS for name in options)
        everything = {} if self._selects else {"topicPattern": ".*"}
        self._options = ReadOptions.parse({"servers": servers, "group": group, **everything, **options})
        self._query_name = query_name
        source = self._options.source
        assert isinstance(source, ServersSource)
        # Connections of its own: Spark calls it in another thread than the one that made it.
        self._view = ServersView(source, self._options, new_cluster(source))
        self._pin_dropped_of: str | None = None  # run; the next one may have a new checkpoint, and a pin of its own
        self._has_warned = False
        self.lag = Lag()
        self.metrics: dict[str, float] = dict.fromkeys(METRICS, 0.0)
        self.failures = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Nothing to report yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """Nothing new to report."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Close the connections."""
        self._view.cluster.close()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Report; failing here is logged and stops nothing."""
        progress = event.progress
        if self._query_name is not None and progress.name != self._query_name:
            return
        self.lag = lag_of_progress(progress)
        metrics = self.metrics
        metrics["spark_reader_lag_messages"] = max(self.lag.messages, 0)
        metrics["spark_reader_lag_bytes"] = self.lag.size_bytes
        metrics["spark_reader_lost_messages_total"] = self.lag.lost
        metrics["spark_reader_batch_seconds"] = progress.batchDuration / 1000
        metrics["spark_reader_rows_total"] += progress.numInputRows
        try:
            self._report([end for end, _ in _positions(progress) if not end.is_log], str(progress.runId))
        except HeadraceError as error:
            self.failures += 1
            logger.warning("progress not reported group=%s error=%s", self._options.group, error)

    def _report(self, ends: list[Position], run: str = "") -> None:
        """Report how far the sources of a run are; of a queue that several read, how far the last of them is."""
        options = self._options
        if len(ends) > 1 and not self._selects and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "query with several sources, all reported under one group group=%s sources=%d: if they have groups of "
                "their own, add a listener for each with its topics, topicPattern or assign", options.group, len(ends),
            )  # fmt: skip
        reached: dict[QueueKey, int] = {}
        for end in ends:
            for key, offset in end.offsets.items():
                if not self._selects or (options.wants_topic(key.topic) and options.wants_queue(*key)):
                    reached[key] = min(offset, reached.get(key, offset))
        if not reached:
            return
        there = self._view.brokers()
        rows = [(key, offset) for key, offset in sorted(reached.items()) if key.broker in there]
        self._view.commit(options.group, rows, more=PROGRESS)
        if self._pin_dropped_of != run and len(rows) == len(reached):
            StartPin(self._view, options.group).drop(reached)
            self._pin_dropped_of = run
