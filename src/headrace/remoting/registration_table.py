"""What a registration says: every topic of the broker, in the JSON that registries read.

Ref: remoting.md 4.8.1; docs/protocols/registry.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.topic import PERM_READ, PERM_WRITE, Topic, TopicConfig
from headrace.format import fastjson
from headrace.remoting import bodies
from headrace.remoting.names import is_valid_topic

if TYPE_CHECKING:
    from headrace.broker.data_version import DataVersion

ENCODED_AT_ONCE: Final = 200
"""Topics: about a millisecond."""

_BODY: Final = b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":%b,"topicConfigTable":{%b}}}'


class BrokerTable(Protocol):
    """What is registered; ``Broker`` is one."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name."""

    @property
    def topic_version(self) -> DataVersion:
        """Changes with each change of a topic."""


class TopicTable:
    """The body of a registration. What has not changed is not encoded again: a broker may have 20,000 topics."""

    def __init__(self, broker: BrokerTable, permission: Callable[[], int]) -> None:
        self._broker = broker
        self._permission = permission
        self._pieces: dict[str, tuple[TopicConfig, bytes]] = {}
        self._encoded: tuple[DataVersion, int] | None = None
        self._last_permission = permission()
        self._permission_changes = 0
        self._announcements = 0
        self._announced: set[str] = set()  # since the last body was begun
        self._body = b""
        self._encoding = asyncio.Lock()

    async def encode(self) -> bytes:
        """Return the body as of now. Of many topics a few are encoded before others have their turn."""
        async with self._encoding:
            return await self._encode()

    async def _encode(self) -> bytes:
        version, permission = self._broker.topic_version, self._permission()
        if self._encoded == (version, permission):
            return self._body
        if permission != self._last_permission:
            # It changes what is registered of every topic, but not the broker's table of topics.
            self._last_permission = permission
            self._permission_changes += 1
            self._pieces.clear()
        # What changes meanwhile has a later version, and is registered with that once more.
        topics = list(self._broker.topics.values())
        self._announced.clear()
        pieces = {}
        for start in range(0, len(topics), ENCODED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            for topic in topics[start : start + ENCODED_AT_ONCE]:
                if not topic.ephemeral and is_valid_topic(topic.name):
                    pieces[topic.name] = self._piece(topic, permission)
        # Their clients were told that registries know them: those would take what is not here for gone.
        for name in self._announced:
            announced = self._broker.topics.get(name)
            if announced is None:
                pieces.pop(name, None)
            else:
                pieces[name] = self._piece(announced, permission)
        self._pieces = pieces
        data_version = fastjson.dumps(
            {"counter": version.counter + self._permission_changes, "timestamp": version.timestamp_ms}
        )
        self._body = _BODY % (data_version, b",".join(piece for _config, piece in pieces.values()))
        self._encoded = (version, permission)
        return self._body

    def encode_some(self, names: Iterable[str]) -> bytes | None:
        """Return the body of a registration of some topics, None when none of them is registered.

        Its version is that of no other registration: one of a version that they have registries drop.
        """
        found = [topic for name in names if (topic := self._broker.topics.get(name)) is not None]
        topics = [topic for topic in found if not topic.ephemeral and is_valid_topic(topic.name)]
        if not topics:
            return None
        pieces = [self._piece(topic, self._permission())[1] for topic in topics]
        self._announcements += 1
        self._announced.update(topic.name for topic in topics)
        counted = {"counter": -self._announcements, "timestamp": self._broker.topic_version.timestamp_ms}
        return _BODY % (fastjson.dumps(counted), b",".join(pieces))

    def _piece(self, topic: Topic, permission: int) -> tuple[TopicConfig, bytes]:
        known = self._pieces.get(topic.name)
        if known is not None and known[0] is topic.config:
            return known
        described = bodies.topic_fields(topic)
        # A broker that may not be written to says so for each of its topics.
        described["perm"] &= permission | ~(PERM_READ | PERM_WRITE)
        return topic.config, fastjson.dumps(topic.name) + b":" + fastjson.dumps(described)
