"""How far a job is: phases that the job names, and tasks that Spark counts.

A job calls ``phase("copying")`` when something new begins; it needs to know nothing else. Whoever shows a bar makes a
``Watcher``, which asks Spark's status tracker for the tasks of the running stages from a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.2

Listener = Callable[[str, int, int], None]
"""Called with the phase, tasks done and tasks in all; 0 while nothing is counted."""


class _Current:
    """The phase of the job that runs in this process; jobs of one process follow each other."""

    phase = ""


def phase(text: str) -> None:
    """Say what the job does now, in one or two words."""
    _Current.phase = text
    logger.debug("job phase phase=%s", text)


class Watcher:
    """Tells a listener several times a second how far the running Spark stages are; use it in a ``with`` block."""

    def __init__(self, spark: Any, listener: Listener) -> None:
        # There is none without a session, and in Spark Connect.
        self._tracker = spark.sparkContext.statusTracker() if hasattr(spark, "_jsparkSession") else None
        self._listener = listener
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-job-progress", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            try:
                done, total = self._count()
            except Exception:  # the thread's outermost line: a bar must not end the job it shows
                logger.debug("progress cannot be read any more", exc_info=True)
                return
            self._listener(_Current.phase, done, total)

    def _count(self) -> tuple[int, int]:
        """Return the tasks done and in all of the stages that run."""
        if self._tracker is None:
            return 0, 0
        stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
