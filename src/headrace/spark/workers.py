"""Spark's Python workers, each a process that runs one task after another."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

DAEMON: Final = "pyspark.daemon"
"""What runs as the program in a worker: it was forked off that."""
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


def quiet_worker() -> None:
    """Have a worker that cannot tell the JVM any more what it has done end without a traceback.

    The JVM closes the connection where a task is not wanted any more: somebody pressed Ctrl-C, or another task failed.
    pyspark prints every exception, this one too, amid what the user is told. Other exceptions are printed as before,
    and nothing happens in other processes.
    """
    main: dict[str, Any] = vars(sys.modules["__main__"])
    if getattr(main.get("__spec__"), "name", None) == DAEMON:
        main["traceback"] = SimpleNamespace(print_exc=_print_exception, format_exc=traceback.format_exc)


def _print_exception() -> None:
    if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


quiet_worker()  # sources, sinks and tasks of jobs import this module, in whatever process Spark loads them
