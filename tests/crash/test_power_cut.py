"""A power cut takes what was not synced, page by page; at level fsync that is nothing acknowledged.

The cut is simulated on a copy: of what no fdatasync has covered yet, each page is kept, zeroed or cut within.
Ref: docs/formats/side-files.md, "Durable mark".
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.errors import FlushError
from headrace.format import record
from headrace.format.queue_entry import FILLER_BYTES
from headrace.settings import StoreSettings
from headrace.store.store import Store
from tests.crash.damage import SEGMENT_BYTES, Appended, StoreRig, expected, readable

PAGE = 4096


def lose_pages(path: Path, keep_below: int, rng: random.Random) -> None:
    """Lose what lies behind ``keep_below`` in a file, page by page at random."""
    data = bytearray(path.read_bytes())
    fate = rng.choice(("all", "some", "tail"))
    for start in range(keep_below // PAGE * PAGE, len(data), PAGE):
        first, end = max(start, keep_below), min(start + PAGE, len(data))
        draw = rng.random()
        if fate == "all" or (fate == "some" and draw < 0.5):
            data[first:end] = bytes(end - first)
        elif fate == "some" and draw < 0.7:
            sector = first + (rng.randrange(8) * 512)
            data[sector:end] = bytes(max(0, end - sector))
        elif fate == "tail" and draw < 0.3:
            data[first:] = bytes(len(data) - first)
            break
    path.write_bytes(data)


def cut_power(rig: StoreRig, into: Path, durable_offset: int, rng: random.Random) -> None:
    """Copy the store as a power cut may leave it when fdatasync has returned for ``durable_offset``."""
    rig.snapshot(into)
    for path in (into / "commitlog").iterdir():
        first = int(path.name)
        if first + SEGMENT_BYTES > durable_offset:
            lose_pages(path, max(0, durable_offset - first), rng)
    checkpoint = rig.store.checkpoints.offset
    for path in (into / "consumequeue").rglob("*"):
        if path.is_file():
            lose_pages(path, synced_entries(path, checkpoint) * 20, rng)
    mark = into / "headrace" / "durable"
    if rng.random() < 0.3:
        data = bytearray(mark.read_bytes().ljust(48, b"\0"))
        slot = rng.choice((0, 24))
        data[slot : slot + 24] = bytes(24)  # an older slot stands
        mark.write_bytes(data)


def synced_entries(path: Path, checkpoint: int) -> int:
    """Return how many entries of a queue file a checkpoint has made sure of."""
    raw = path.read_bytes()
    count = 0
    while count * 20 < len(raw):
        position = int.from_bytes(raw[count * 20 : count * 20 + 8], "big", signed=True)
        size = int.from_bytes(raw[count * 20 + 8 : count * 20 + 12], "big", signed=True)
        if size <= 0 or position + size > checkpoint:
            break
        count += 1
    return count


@pytest.mark.parametrize("seed", range(60))
def test_nothing_durable_is_lost(folder: Path, seed: int) -> None:
    """Whatever of the rest the disk kept: every record below the durable offset is served, and the store goes on.

    Ref: E-STORE-03.
    """
    rng = random.Random(seed)
    rig = StoreRig(folder / "live", {"queue_file_bytes": rng.choice((4000, 6_000_000))})
    for _ in range(rng.randrange(20, 200)):
        size = rng.choice((1, 1, 1, 5, 30))
        rig.append(*(rng.randbytes(rng.choice((20, 300, 3000))) for _ in range(size)), topic=rng.choice("ab"))
        draw = rng.random()
        if draw < 0.3:
            rig.store.flush()
        if draw < 0.1:
            rig.clock.advance_ms(1500)
            rig.store.tick()
            if rng.random() < 0.5 and rig.store.checkpoints.job is not None:
                rig.store.checkpoints.job.result()
    durable = rig.store.durable_offset
    cut_power(rig, folder / "cut", durable, rng)
    rig.store.abandon()
    acknowledged = [one for one in rig.appended if one.end_offset <= durable]
    store = Store.open(StoreSettings(data_dir=folder / "cut", segment_bytes=SEGMENT_BYTES), ManualClock())
    found = readable(store)
    assert expected(acknowledged).items() <= found.items()
    assert store.recovery.lost_bytes == 0
    assert found.items() <= expected(rig.appended).items(), "nothing that nobody sent"
    check_batches(rig.appended, found, store)
    check_goes_on(folder / "cut", store, found)


@pytest.mark.parametrize("seed", range(20))
def test_no_record_has_two_entries_after_several_power_cuts(folder: Path, seed: int) -> None:
    """Of two in flight one could not be told from the other. What a cut took has no entry when its place is used again.

    Ref: C-REL-02.
    """
    rng = random.Random(seed)
    rig = StoreRig(folder / "0")
    for cut in range(1, 6):
        for _ in range(rng.randrange(5, 60)):
            rig.append(*(rng.randbytes(rng.choice((20, 3000))) for _ in range(rng.choice((1, 1, 5)))), topic="t")
            if rng.random() < 0.2:
                rig.store.flush()
            if rng.random() < 0.1:
                rig.clock.advance_ms(11_000)  # a checkpoint syncs the queues
                rig.store.tick()
                if rig.store.checkpoints.job is not None:
                    rig.store.checkpoints.job.result()
        cut_power(rig, folder / str(cut), rig.store.durable_offset, rng)
        rig.store.abandon()
        rig = StoreRig(folder / str(cut))
        readable(rig.store)  # each entry is of the record that says so
        queue = rig.store.queue("t", 0)
        named = [place for place, size, _ in queue.entries(0, queue.visible_offset) if size != FILLER_BYTES]
        assert len(named) == len(set(named)) > 0
    rig.store.abandon()


def check_batches(appended: list[Appended], found: dict[tuple[str, int], bytes], store: Store) -> None:
    """An MPUB is whole or absent, unless a hole that was named took a part of it."""
    for command in {one.command for one in appended}:
        parts = [one for one in appended if one.command == command]
        seen = [one for one in parts if (one.topic, one.queue_offset) in found]
        in_hole = any(
            hole.first_offset < parts[-1].end_offset and hole.end_offset > parts[0].physical_offset
            for hole in store.holes
        )
        assert len(seen) in (0, len(parts)) or in_hole, f"{len(seen)} of {len(parts)}"


def check_goes_on(at: Path, store: Store, found: dict[tuple[str, int], bytes]) -> None:
    store.close()
    again = StoreRig(at)
    assert readable(again.store) == found
    new = again.append(b"new", topic="a")
    again.store.flush()
    again.store.abandon()
    last = Store.open(StoreSettings(data_dir=at, segment_bytes=SEGMENT_BYTES), ManualClock())
    assert readable(last) == {**found, **expected(new)}
    last.close()


def test_recovery_syncs_what_the_killed_process_had_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start serves must survive a power cut: every segment above the durable mark is synced, and the queues."""
    rig = StoreRig(folder / "live")
    rig.store.flush()
    while rig.store.log.end_offset < 2 * SEGMENT_BYTES + 10_000:
        rig.append(b"z" * 3000)
    rig.snapshot(folder / "killed")
    rig.store.abandon()
    synced: set[str] = set()
    real = store_sync

    def note(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr("os.fdatasync", note)
    store = Store.open(StoreSettings(data_dir=folder / "killed", segment_bytes=SEGMENT_BYTES), ManualClock())
    assert {f"{index * SEGMENT_BYTES:020d}" for index in range(3)} <= synced
    store.close()


def store_sync(fd: int) -> None:
    """The tests' disk is memory."""


class FailingFlusher:
    """Answers flush requests by script: errno for the first, success for the second."""

    def __init__(self, errors: list[int]) -> None:
        self.errors = errors
        self.requests: list[int] = []

    def request(self, target: int, *_: Any) -> bool:
        self.requests.append(target)
        return True

    def take_result(self) -> tuple[int, int, float]:
        return self.requests.pop(0), self.errors.pop(0), 0.001

    def close(self) -> None:
        pass


def test_a_failed_flush_of_the_older_segment_is_not_healed_by_the_newer(folder: Path) -> None:
    """A roll syncs both segments: when the first fails, the success of the second makes nothing durable."""
    rig = StoreRig(folder / "live")
    rig.append(b"before")
    rig.store.flush()
    durable, mark = rig.store.durable_offset, rig.store.mark.noted_offset
    while rig.store.log.end_offset < SEGMENT_BYTES + 5000:
        rig.append(b"z" * 3000)
    told: list[object] = []
    rig.store.gate.wait(rig.store.log.end_offset, told.append)
    rig.store.commits.flusher.close()
    rig.store.commits.flusher = FailingFlusher([5, 0])  # type: ignore[assignment]
    rig.store.request_flush()
    while rig.store.commits.flusher.requests:  # type: ignore[attr-defined]
        rig.store.finish_flush()
    assert isinstance(rig.store.failure, FlushError)
    assert [type(answer) for answer in told] == [FlushError]
    assert rig.store.durable_offset == durable
    assert rig.store.mark.noted_offset == mark
    assert rig.store.queue("t", 0).visible_offset == 1, "what is not durable is not served"
    assert record.decode(rig.store.log.read(0) or b"")["body"] == b"before"
    with pytest.raises(FlushError):
        rig.append(b"after")
    rig.store.abandon()
