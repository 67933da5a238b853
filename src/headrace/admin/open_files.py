"""Whether the process has file descriptors left.

Where it has none the event loop's library closes new connections without a word to anybody, so somebody has to look.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from typing import TYPE_CHECKING

from headrace.log_pace import LogPace

if TYPE_CHECKING:
    from headrace.clock import Clock

logger = logging.getLogger(__name__)


class OpenFilesWatch:
    """To be asked once a second.

    Attributes:
        seconds_without: Looks that found no descriptor.
    """

    def __init__(self, clock: Clock, bounds: str = "nsq.max_connections and remoting.max_connections") -> None:
        """Prepare to look; ``bounds`` are the settings that keep connections from taking all descriptors."""
        self.seconds_without = 0
        self._bounds = bounds
        self._pace = LogPace(clock)

    def look(self) -> None:
        """Count and log it if there is no descriptor left."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.seconds_without += 1
            if self._pace.is_due("no descriptor left"):
                logger.warning(
                    "no file descriptor left, new connections are closed unanswered limit=%d error=%s; raise the limit "
                    "(ulimit -n), or bound connections by %s",
                    resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                    error.strerror,
                    self._bounds,
                )
