"""What is logged and counted of producers that come and go.

Whoever reaches the port may come and go as often as it likes, under any names: each has a line a minute for either, all
together ``log_pace.LINES_A_MINUTE``, and their names are cut. The counters have all of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.log_pace import LineLimit

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.registry.producers import ProducerInfo

logger = logging.getLogger(__name__)

LONGEST_NAME: Final = 128
"""Characters of what a producer calls itself."""


class ProducerLog:
    """One registry's.

    Attributes:
        came: Producers that have registered since the start.
        went: Those of them that have gone.
    """

    def __init__(self, clock: Clock) -> None:
        self.came = 0
        self.went = 0
        self._limit = LineLimit(clock, self._tell_of_more)

    def _tell_of_more(self) -> None:
        logger.warning("more producers come and go than are logged came=%d gone=%d", self.came, self.went)

    def note_came(self, info: ProducerInfo) -> None:
        """Note that a producer has registered."""
        self.came += 1
        node = info.node[:LONGEST_NAME]
        if self._limit.is_due(f"came {node}"):
            logger.info(
                "producer registered node=%s client=%s version=%s",
                node,
                info.remote_address,
                info.version[:LONGEST_NAME],
            )

    def note_went(self, info: ProducerInfo, cause: str) -> None:
        """Note that a producer is gone."""
        self.went += 1
        node = info.node[:LONGEST_NAME]
        if self._limit.is_due(f"went {node}"):
            logger.info("producer gone node=%s client=%s cause=%s", node, info.remote_address, cause)
