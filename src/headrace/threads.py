"""Threads for what blocks, all of them there from the start.

A ``ThreadPoolExecutor`` starts a thread when there is work for it. Where the system gives none by then (the limit of
processes of a user or container, or memory), the call that has work fails, and what waits for that work waits for good.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import NoThreadError


class Threads(ThreadPoolExecutor):
    """An executor whose ``submit`` needs nothing of the system."""

    def __init__(self, name: str, count: int = 1) -> None:
        """Start ``count`` threads.

        Raises:
            NoThreadError: the system gives fewer; none is left.
        """
        super().__init__(count, name)
        # An idle thread would take the next call, and no further one be started.
        all_there = threading.Barrier(count + 1)
        try:
            for _ in range(count):
                self.submit(all_there.wait)
            all_there.wait()
        except BaseException as error:  # a signal's, too: threads that wait for others keep the process from its end
            all_there.abort()
            self.shutdown(cancel_futures=True)
            if isinstance(error, RuntimeError):
                raise NoThreadError(name) from error
            raise
