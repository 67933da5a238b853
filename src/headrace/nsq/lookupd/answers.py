"""What nsqlookupd's HTTP API tells of the table: the fields of one JSON object, in slices.

A slice is about a millisecond's work, whatever the table holds: others have turns between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.registry.producers import NEVER_MS

if TYPE_CHECKING:
    from headrace.registry.producers import Entry, Lookup, Node

Fragment = tuple[bytes, int]
"""Some JSON, and what it has cost, in names."""

SLICE_COST: Final = 2_000
"""Names in a slice."""
PRODUCER_COST: Final = 4
NODE_COST: Final = 8
ROW_COST: Final = 10
"""Of /debug."""
NEVER_NS: Final = -6_795_364_578_871_345_152
"""What Go's UnixNano says of a time that was never set; /debug shows it."""

_encode: Final = msgspec.json.Encoder().encode


def info_fields(version: str) -> Iterator[bytes]:
    """Write which server this is."""
    yield b'"version":' + _encode(version)


def names_fields(kind: str, names: Sequence[str]) -> Iterator[bytes]:
    """Write names, of topics or channels."""
    return _slices(_field(kind, names, 1))


def lookup_fields(found: Lookup) -> Iterator[bytes]:
    """Write a topic's channels and producers."""

    def fragments() -> Iterator[Fragment]:
        yield from _field("channels", found.channels, 1)
        yield b",", 0
        yield from _field("producers", found.producers, PRODUCER_COST)

    return _slices(fragments())


def nodes_fields(nodes: Iterable[Node]) -> Iterator[bytes]:
    """Write producers with their topics."""

    def fragments() -> Iterator[Fragment]:
        yield b'"producers":[', 0
        comma = b""
        for node in nodes:
            yield comma + _encode(node.info)[:-1] + b",", NODE_COST
            yield from _field("tombstones", node.tombstones, 1)
            yield b",", 0
            yield from _field("topics", node.topics, 1)
            yield b"}", 0
            comma = b","
        yield b"]", 0

    return _slices(fragments())


def debug_fields(entries: Iterable[Entry], now_ms: int, to_wall_ms: int) -> Iterator[bytes]:
    """Write the whole table, key by key; entries of one key come one behind the other."""

    def fragments() -> Iterator[Fragment]:
        last = ""
        for entry in entries:
            key = f"{entry.category}:{entry.topic}:{entry.channel}"
            behind = b"," if key == last else (b"]," if last else b"") + _encode(key) + b":["
            yield behind + _encode(_debug_row(entry, now_ms, to_wall_ms)), ROW_COST
            last = key
        if last:
            yield b"]", 0

    return _slices(fragments())


def _slices(fragments: Iterable[Fragment]) -> Iterator[bytes]:
    held: list[bytes] = []
    cost = 0
    for text, more in fragments:
        held.append(text)
        cost += more
        if cost >= SLICE_COST:
            yield b"".join(held)
            held.clear()
            cost = 0
    if held:
        yield b"".join(held)


def _field(name: str, values: Sequence[Any], cost: int) -> Iterator[Fragment]:
    """Write a field that is a list; ``cost`` is that of one value."""
    yield b'"%b":[' % name.encode(), 0
    at_once = SLICE_COST // cost
    for at in range(0, len(values), at_once):
        some = values[at : at + at_once]
        yield b"," * bool(at) + _encode(some)[1:-1], cost * len(some)
    yield b"]", 0


def _debug_row(entry: Entry, now_ms: int, to_wall_ms: int) -> dict[str, Any]:
    producer, info = entry.producer, entry.producer.info
    is_tombstoned = entry.tombstoned_ms != NEVER_MS
    return {
        "id": info.remote_address,
        "hostname": info.hostname,
        "broadcast_address": info.broadcast_address,
        "tcp_port": info.tcp_port,
        "http_port": info.http_port,
        "version": info.version,
        "last_update": (min(producer.seen_ms, now_ms) + to_wall_ms) * 1_000_000,
        "tombstoned": is_tombstoned,
        "tombstoned_at": (entry.tombstoned_ms + to_wall_ms) * 1_000_000 if is_tombstoned else NEVER_NS,
    }
