"""What is fuzzed of a store: a start, and a check, of one whose log is damaged anywhere."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from headrace.batch import PublishBatch
from headrace.clock import ManualClock
from headrace.store.check import check_store
from headrace.store.check_report import DAMAGED, WHOLE
from headrace.store.store import Store
from tests.support import layouts
from tests.support.stores import SEGMENT_BYTES, Published, StoreBench, small_settings

MAX_CHANGES: Final = 16
MOST_OVERHEAD: Final = 300
"""Bytes of a record beside its body."""
SHARED_MEMORY: Final = Path("/dev/shm")


@cache
def scratch() -> Path:
    """Return a folder that lies in memory, where there is such a place."""
    folder = tempfile.mkdtemp(prefix="headrace-fuzz-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def template() -> tuple[Path, list[Published]]:
    """A store that was killed: two segments, commands of one message and of several."""
    bench = StoreBench(scratch() / "template")
    placed = []
    for number in range(12):
        placed += bench.append("ab"[number % 2], b"%d " % number + b"x" * 700)
        placed += bench.append("a", b"%d" % number, b"y" * 60, command=True)
    for number in range(20):
        placed += bench.append("b", b"%d " % number + b"z" * 4000)
    bench.crash()
    return bench.root, placed


def damaged_log(data: bytes) -> None:
    """A start succeeds, and what stands before the first change of its segment is served, behind holes too.

    A change is a place of 24 bits, a length and as many bytes.
    """
    root = scratch() / "store"
    shutil.rmtree(root, ignore_errors=True)
    source, placed = template()
    shutil.copytree(source, root)
    first_changes = _change(root, data)
    report = check_store(root)
    assert report.exit_code in (WHOLE, DAMAGED), report.to_json()
    store = Store.open(small_settings(root), ManualClock())
    try:
        for topic, queue_offset, physical_offset, body in placed:
            raw = store.log.read(physical_offset)
            if raw is None:
                # It was hit, or is behind what says that the rest of its segment is blank.
                first_change = first_changes.get(physical_offset // SEGMENT_BYTES, 2 * SEGMENT_BYTES)
                assert physical_offset + len(body) + MOST_OVERHEAD > first_change
                continue
            record = layouts.decode_record(raw)
            assert (record.topic.decode(), record.queue_offset, record.body) == (topic, queue_offset, body)
        _append(store)
    finally:
        store.close()
    Store.open(small_settings(root), ManualClock()).close()


def _append(store: Store) -> None:
    """A store that was opened takes messages, and has them."""
    batch = PublishBatch()
    batch.destinations, batch.queues = ["a"], [store.queue("a", 0)]
    batch.append(b"after")
    store.append(batch)
    store.flush()
    raw = store.log.read(batch.placed(0)[0])
    assert raw is not None
    assert layouts.decode_record(raw).body == b"after"


def _change(root: Path, data: bytes) -> dict[int, int]:
    """Write the changes; return where in the log the first of each changed segment begins, by the segment's number."""
    firsts: dict[int, int] = {}
    at = 0
    for _ in range(MAX_CHANGES):
        if at + 4 > len(data):
            break
        place, size = int.from_bytes(data[at : at + 3]) % (2 * SEGMENT_BYTES), data[at + 3]
        content = data[at + 4 : at + 4 + size][: SEGMENT_BYTES - place % SEGMENT_BYTES]
        at += 4 + size
        path = root / "commitlog" / f"{place // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
        with path.open("r+b") as file:
            file.seek(place % SEGMENT_BYTES)
            file.write(content)
        number = place // SEGMENT_BYTES
        firsts[number] = min(firsts.get(number, place), place)
    return firsts


def seeds() -> dict[str, list[bytes]]:
    """Return the first inputs of each target by its name."""
    placed = template()[1]
    place = placed[10][2].to_bytes(3)
    last = placed[-1][2].to_bytes(3)
    blank = (SEGMENT_BYTES - placed[10][2]).to_bytes(4) + layouts.BLANK.to_bytes(4)
    return {
        "damaged_log": [
            place + b"\1\xff",
            last + b"\4\0\0\0\0",
            place + b"\x08" + blank,
            place + b"\x08\0\0\0\x10\xda\xa3\x20\xa7" + last + b"\2zz",
        ]
    }
