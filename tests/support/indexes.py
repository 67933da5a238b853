"""Stores with keys, and the index that the reference makes of their log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.format.record import check, decode
from headrace.store.key_query import KeyMatches, KeyQuery
from tests.support.index_reference import ReferenceIndex
from tests.support.stores import StoreBench

if TYPE_CHECKING:
    from headrace.format.record import DecodedRecord

SMALL = {"index_slots": 50, "index_entries": 40}
"""Far below what the settings allow: a file has room for 39 keys."""

_ROLLBACK = 0xC


def properties(keys: str = "", unique: str = "") -> bytes:
    """Encode properties of a message."""
    named = {"UNIQ_KEY": unique, "KEYS": keys, "K": "t"}
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in named.items() if value)


def put(bench: StoreBench, topic: str, keys: str = "", unique: str = "", *, sys_flag: int = 0) -> int:
    """Append one message and return its physical offset."""
    return bench.append(topic, b"body", properties=properties(keys, unique), sys_flag=sys_flag)[0][2]


def find(bench: StoreBench, topic: str, key: str, **query: int) -> KeyMatches:
    """Look for a key as a front end does."""
    unique = bool(query.pop("unique", 0))
    return bench.store.find_by_key(KeyQuery(topic=topic, key=key, unique=unique, **query)).result(10)


def note_index(bench: StoreBench) -> None:
    """Have the index synced and noted."""
    index = bench.store.index
    index.wait_live()
    note = bench.store.directory.index_note
    before = note.stat().st_ino if note.exists() else 0
    bench.clock.advance_ms(20_000)
    bench.store.tick()
    index.executor.submit(int).result(10)
    bench.store.tick()
    index.executor.submit(int).result(10)
    assert note.stat().st_ino != before, "it was not replaced"


def index_files(bench: StoreBench) -> list[bytes]:
    """Return the content of every index file, oldest first."""
    folder = bench.root / "index"
    return [path.read_bytes() for path in sorted(folder.iterdir())] if folder.exists() else []


def records(bench: StoreBench) -> Iterator[DecodedRecord]:
    """Yield every whole record of a closed store's log."""
    for path in sorted((bench.root / "commitlog").iterdir()):
        raw, first = path.read_bytes(), int(path.name)
        at = 0
        while at < len(raw):
            size = check(raw, at, first + at)
            if size > 0:
                yield decode(raw, at)
            at += size if size > 0 else len(raw)


def reference_of(bench: StoreBench) -> list[bytes]:
    """Return the files that the reference makes of a closed store's log."""
    reference = ReferenceIndex(bench.settings.index_slots, bench.settings.index_entries)
    for record in records(bench):
        if record["sys_flag"] & _ROLLBACK != _ROLLBACK:
            pieces = [piece.decode().partition("\x01") for piece in record["properties"].split(b"\x02")]
            named = {name: value for name, _, value in pieces}
            reference.put_record(record["topic"], named, record["physical_offset"], record["store_timestamp_ms"])
    return [file.encode() for file in reference.files]


def require_whole(bench: StoreBench) -> None:
    """Close the store, compare the index with the reference's, open again."""
    bench.store.index.wait_live()
    bench.close(whole=False)
    assert index_files(bench) == reference_of(bench)
    assert (bench.root / "index").exists() or not reference_of(bench)
    bench.open()
    bench.store.index.wait_live()
    assert bench.store.index.keys.added_keys == 0, "a clean start makes nothing anew"


def header_count(raw: bytes) -> int:
    """Return the number of the next entry that a file's header says."""
    return int(struct.unpack_from(">i", raw, 36)[0])
