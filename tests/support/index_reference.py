"""RocketMQ's index file in plain ``struct`` code: what the compiled index is held to."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")


def java_hash(text: str) -> int:
    """Return Java's String.hashCode."""
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", raw):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def index_hash(topic: str, key: str) -> int:
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


@dataclass
class ReferenceFile:
    """One index file."""

    slot_count: int
    capacity: int
    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    entries: list[tuple[int, int, int, int]] = field(default_factory=lambda: [(0, 0, 0, 0)])

    @property
    def count(self) -> int:
        return len(self.entries)

    def put(self, hashed: int, physical_offset: int, store_ms: int) -> None:
        slot = hashed % self.slot_count
        before = self.slots.get(slot, 0)
        if before == 0:
            self.used += 1
        if self.count == 1:
            self.begin_ms, self.begin_offset = store_ms, physical_offset
        seconds = max(0, min((store_ms - self.begin_ms) // 1000, 2**31 - 1)) if self.begin_ms > 0 else 0
        self.slots[slot] = self.count
        self.entries.append((hashed, physical_offset, seconds, before))
        self.end_ms, self.end_offset = store_ms, physical_offset

    def encode(self) -> bytes:
        head = HEADER.pack(self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used, self.count)
        slots = b"".join(SLOT.pack(self.slots.get(slot, 0)) for slot in range(self.slot_count))
        entries = b"".join(ENTRY.pack(*entry) for entry in self.entries)
        return head + slots + entries.ljust(ENTRY.size * self.capacity, b"\0")


class ReferenceIndex:
    """A set of index files, rolled as RocketMQ does."""

    def __init__(self, slot_count: int, capacity: int) -> None:
        self.slot_count, self.capacity = slot_count, capacity
        self.files: list[ReferenceFile] = []

    def put_record(self, topic: str, properties: dict[str, str], physical_offset: int, store_ms: int) -> None:
        keys = [properties["UNIQ_KEY"]] if properties.get("UNIQ_KEY") else []
        keys += [part for part in properties.get("KEYS", "").split(" ") if part]
        for key in keys:
            if not self.files or self.files[-1].count >= self.capacity:
                self.files.append(ReferenceFile(self.slot_count, self.capacity))
            self.files[-1].put(index_hash(topic, key), physical_offset, store_ms)
