"""Spark's Python workers, each a process that runs one task after another."""

from __future__ import annotations

import gc
import os
from functools import cache
from typing import Final

REUSED: Final = "SPARK_REUSE_WORKER"
"""Spark sets it for workers that run more than one task."""


@cache
def settle_worker() -> None:
    """Keep what this worker has imported out of the garbage collections that Spark makes behind every task.

    A collection (pyspark/daemon.py) goes through all objects of all modules, 25 ms in which the worker takes no task.
    What is there when the first task begins stays there; only what tasks have made since is gone through. Nothing
    happens in other processes, nor when it is called again.
    """
    if os.environ.get(REUSED):
        gc.freeze()
