"""This broker in the registry of its own process: in the table itself, without a connection.

It is there as soon as a topic is made, and not a moment longer than it is deleted: nobody could tell a client why a
channel that it has just deleted is back. For the same reason a name that nobody else has is forgotten with it here,
where nsqlookupd would keep it for new nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import QuotaExceededError
from headrace.nsq.lookup_peers.announcements import is_there, present
from headrace.registry.producers import ALWAYS_HEARD_MS

if TYPE_CHECKING:
    from headrace.log_pace import LogPace
    from headrace.nsq.lookup_peers.announcements import Change
    from headrace.nsq.lookup_peers.link import Topics
    from headrace.registry.producers import ProducerInfo, ProducerTable

logger = logging.getLogger(__name__)

AGAIN_S: Final = 15.0
"""Between two tries to register what there was no room for, as with nsqlookupds in other processes."""
AT_ONCE: Final = 500
"""Registrations, about a millisecond."""


class OwnProducer:
    """This broker as a producer."""

    def __init__(self, table: ProducerTable, info: ProducerInfo, broker: Topics, pace: LogPace) -> None:
        """Say nothing yet."""
        self._table = table
        self._info = info
        self._broker = broker
        self._pace = pace
        self._is_there = False
        self._was_refused = False

    def enter(self) -> None:
        """Register everything, unless that was done."""
        if self._identify():
            for change in present(self._broker.topics):
                self._register(change)

    def _identify(self) -> bool:
        """Return whether this broker is in the table, as far as there is room."""
        if self._is_there:
            return True
        try:
            self._table.identify(self, self._info, ALWAYS_HEARD_MS)
        except QuotaExceededError as error:
            self._note_refused(error)
            return False
        self._is_there = True
        return True

    async def keep_told(self) -> None:
        """Register again and again what there was no room for, until cancelled: others may have left since."""
        while True:
            await asyncio.sleep(AGAIN_S)
            if not self._was_refused:
                continue
            self._was_refused = False
            try:
                if self._identify():
                    await self._register_all()
            except Exception:
                logger.exception("registering with the registry in this process failed by a bug")

    async def _register_all(self) -> None:
        """Register everything in turns; what is gone before its own is left out."""
        changes = present(self._broker.topics)
        while some := list(itertools.islice(changes, AT_ONCE)):
            for change in some:
                if is_there(self._broker.topics, change):
                    self._register(change)
            await asyncio.sleep(0)

    def leave(self) -> None:
        """Be gone, as a producer whose connection has ended."""
        self._table.connection_closed(self)
        self._is_there = False

    def note(self, change: Change) -> None:
        """Register a topic or channel that was made, or end it."""
        if not self._is_there:
            return
        if is_there(self._broker.topics, change):
            self._register(change)
        else:
            self._table.unregister(self, *change, is_final=True)

    def knows_channels(self, topic: str) -> bool:
        """Return whether others have a channel of a topic, or a tool has made one known."""
        return self._is_there and self._table.has_channels(topic)

    async def find_channels(self, topic: str) -> list[str]:
        """Return these channels."""
        return self._table.channels_of(topic) if self._is_there else []

    def _register(self, change: Change) -> None:
        try:
            self._table.register(self, *change)
        except QuotaExceededError as error:
            self._note_refused(error)

    def _note_refused(self, error: QuotaExceededError) -> None:
        self._was_refused = True
        if self._pace.is_due("own registry"):
            logger.warning(
                "not told by the registry in this process, tried again node=%s error=%s", self._info.node, error
            )
