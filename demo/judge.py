"""The judge: compares what one channel's consumer noted with what was published.

Three counts that look alike are kept apart. A message is *delivered again* when its id comes a second time: the broker
may do that, after a crash it must. A flight is there *twice* under two ids when a batch was sent again whose first
sending had been stored, but not answered. A flight that never comes is *lost*.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from demo.flights import flight_key


@dataclass
class ChannelJudge:
    """Reads the notes of one channel's consumer while they grow.

    Attributes:
        channel: Its name.
        deliveries: Lines read.
        redelivered: Deliveries of a message that had been delivered before.
        wrong: Deliveries whose content is not that of the flight, or of no flight.
        changed: Ids that came with two different flights.
        ids: Every message id seen, with its flight's key.
        flights: Keys of the flights seen.
    """

    channel: str
    notes: Path
    expected: Mapping[bytes, bytes]
    deliveries: int = 0
    redelivered: int = 0
    wrong: int = 0
    changed: int = 0
    ids: dict[bytes, bytes] = field(default_factory=dict)
    flights: set[bytes] = field(default_factory=set)
    first_at: float = 0.0
    last_at: float = 0.0
    _file: BinaryIO | None = None
    _rest: bytes = b""

    @property
    def duplicates(self) -> int:
        """Flights that are in the log more than once."""
        return len(self.ids) - len(set(self.ids.values()))

    @property
    def lost(self) -> int:
        """Flights that did not arrive."""
        return len(self.expected) - len(self.flights)

    @property
    def seconds(self) -> float:
        """Time from the first to the last delivery."""
        return self.last_at - self.first_at

    def read(self) -> None:
        """Judge what was noted since the last call."""
        if self._file is None:
            if not self.notes.exists():
                return
            self._file = self.notes.open("rb")
        *lines, self._rest = (self._rest + self._file.read(4 << 20)).split(b"\n")
        for line in lines:
            _, message_id, body = line.split(b" ", 2)
            self._judge(message_id, body)
        if lines:
            self.last_at = time.monotonic()
            self.first_at = self.first_at or self.last_at

    def read_to_end(self) -> None:
        """Judge everything that is left, and close."""
        before = -1
        while before != self.deliveries:
            before = self.deliveries
            self.read()
        if self._file is not None:
            self._file.close()

    def _judge(self, message_id: bytes, body: bytes) -> None:
        self.deliveries += 1
        key = flight_key(body) if body.count(b",") == 18 else b""
        if self.expected.get(key) != body:
            self.wrong += 1
            return
        known = self.ids.get(message_id)
        if known is None:
            self.ids[message_id] = key
        elif known == key:
            self.redelivered += 1
        else:
            self.changed += 1
        self.flights.add(key)


def find_faults(judges: list[ChannelJudge], resent_messages: int) -> list[str]:
    """Return what is not as it must be, one sentence each; empty when all is right."""
    faults = []
    for judge in judges:
        if judge.lost:
            faults.append(f"channel {judge.channel}: {judge.lost:,} flights lost")
        if judge.wrong:
            faults.append(f"channel {judge.channel}: {judge.wrong:,} deliveries with wrong content")
        if judge.changed:
            faults.append(f"channel {judge.channel}: {judge.changed:,} message ids stood for two different messages")
        if judge.duplicates > resent_messages:
            faults.append(
                f"channel {judge.channel}: {judge.duplicates:,} flights are there twice, "
                f"but only {resent_messages:,} were sent twice"
            )
    if any(judge.ids.keys() != judges[0].ids.keys() for judge in judges):
        faults.append("the channels did not get the same messages")
    return faults
