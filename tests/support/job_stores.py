"""Stores for the jobs' tests, made by a broker without sockets whose clock the test sets: days pass in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.broker.message import Message, put
from headrace.broker.topic import TopicConfig
from headrace.broker.withheld.retry import RetryRules
from tests.support.messaging import send_back
from tests.support.remoting import RemotingRig

HOUR = 3_600_000
MINUTE = 60_000
BEGIN = 1_767_225_600_000
"""2026-01-01 00:00 UTC, where stores begin."""


def host_of(address: str, port: int = 4711) -> int:
    """Return a producer's address as records hold it."""
    number = 0
    for part in address.split("."):
        number = number << 8 | int(part)
    return number << 32 | port


class JobStore(RemotingRig):
    """A store that is filled message by message; ``close`` it before a job reads the folder."""

    def __init__(self, folder: Path, **broker: Any) -> None:
        self.folder = folder
        super().__init__(folder, broker)
        self.go_to(BEGIN)

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def go_to(self, time_ms: int) -> None:
        """Set the clock, forward as a rule, and let what is due be done; a minute's record is gathered and written."""
        self.store.flush()  # readers and services see what is durable
        self.clock.advance_ms(time_ms - self.clock.now_ms())
        for _ in range(3):
            self.broker.tick()

    def put(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        host: str = "10.0.0.1",
        latency_ms: int = 5,
        queue_id: int = 0,
        queues: int = 1,
        reconsume_times: int = 0,
        **properties: str,
    ) -> int:
        """Store a message now; return its physical offset."""
        if topic not in self.broker.topics:
            self.broker.create_topic(topic, TopicConfig(queues, queues))
        message = Message(
            topic,
            queue_id,
            body,
            dict(properties),
            born_ms=self.now - latency_ms,
            born_host=host_of(host),
            reconsume_times=reconsume_times,
        )
        placed, _ = put(self.broker, message)
        self.services.count_put(topic, queue_id, 1, len(body), host)
        return placed.physical_offset

    def get(self, group: str, topic: str, messages: int, *, host: str = "10.0.9.9") -> None:
        """Count messages as given to a group."""
        self.services.count_get(group, topic, 0, messages, 100 * messages, host)

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Say how far a group is."""
        self.services.offsets.commit(group, topic, 0, offset)

    def fail(self, group: str, physical_offset: int, *, give_up: bool = False) -> None:
        """Have a group send a message back; as a dead letter if it gives up."""
        rules = RetryRules(group)
        send_back(self.broker, self.services.messages.retries, rules, physical_offset, -1 if give_up else 0)
        if not give_up:
            self.services.statistics.note_send_back(group, "T")

    def raw(self, fields: Mapping[str, Any]) -> int:
        """Store a message of which every field is given."""
        placed, _ = put(self.broker, Message(**fields))
        return placed.physical_offset
