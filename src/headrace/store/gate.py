"""Replies that wait until the log is durable up to an offset."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from headrace.errors import StoreError

logger = logging.getLogger(__name__)

Opened = Callable[[StoreError | None], None]


class Gate:
    """Calls that wait for durability, kept in the order of the log.

    One entry stands for a whole socket read's worth of replies. Offsets in ``_waiting`` rise as the log grows. A lower
    one (of a change made earlier) stands behind higher ones all the same, which can only make it wait longer.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Opened]] = deque()
        self._failure: StoreError | None = None
        self.open_offset = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, offset: int, opened: Opened) -> None:
        """Call ``opened(None)`` once the log is durable up to ``offset``, or ``opened(error)`` when it never will be.

        The call is made at once where nothing has to be waited for; what was durable before a failure still is.
        """
        if offset <= self.open_offset:
            opened(None)
        elif self._failure is not None:
            opened(self._failure)
        else:
            self._waiting.append((offset, opened))

    def open_to(self, offset: int) -> None:
        """Let everything through that waits for ``offset`` or less."""
        self.open_offset = max(self.open_offset, offset)
        while self._waiting and self._waiting[0][0] <= self.open_offset:
            _call(self._waiting.popleft()[1], None)

    def fail(self, failure: StoreError) -> None:
        """Tell everybody who waits, and whoever comes to wait, that the log will not become durable any more.

        Not those that ``open_to`` was about to let through when one of its calls ended here.
        """
        self._failure = failure
        waiting, self._waiting = self._waiting, deque()
        for offset, opened in waiting:
            _call(opened, None if offset <= self.open_offset else failure)


def _call(opened: Opened, failure: StoreError | None) -> None:
    """Make one call; a bug behind it must not keep the others from theirs."""
    try:
        opened(failure)
    except Exception:
        logger.exception("reply failed by a bug")
