"""Entries of a consume queue that readers get from a shared read of its files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UnreadableError
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.memory_log import MemoryLog
from headrace.store.queue_files import QueueFiles
from tests.support.stores import count_reads

ENTRY_BYTES = 20
ENTRIES_IN_FILE = 700  # no multiple of what is read at once


class QuietLog(MemoryLog):
    """A log that is told of files that cannot be read."""

    def on_unreadable(self, error: OSError) -> None:
        pass


def open_queue(folder: Path, files: QueueFiles | None = None, queue_id: int = 0) -> ConsumeQueue:
    files = files or QueueFiles(ENTRIES_IN_FILE * ENTRY_BYTES, 8)
    return ConsumeQueue("t", queue_id, str(folder / "t" / str(queue_id)), files, QuietLog(1, 1))


def grow(queue: ConsumeQueue, entries: int) -> None:
    """Add entries, write them out, and let readers see them."""
    for number in range(queue.next_offset, queue.next_offset + entries):
        queue.restore(number, *entry(number))
    queue.advance_visible(1 << 62)
    queue.write_out()


def entry(number: int) -> tuple[int, int, int]:
    return number * 100, 100, number % 7


steps = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 600)),
        st.tuples(st.just("read"), st.integers(0, 4000), st.integers(1, 800)),
        st.tuples(st.just("hide"), st.integers(0, 2000)),
    ),
    min_size=4,
    max_size=12,
)


@settings(deadline=None)
@given(steps)
def test_readers_get_what_was_written(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """A-STORE-28: wherever a read begins, however much it asks for, and whatever came or went meanwhile."""
    queue = open_queue(tmp_path_factory.mktemp("queue"))
    grow(queue, 1)
    for step in steps:
        if step[0] == "grow":
            grow(queue, step[1])
        elif step[0] == "hide":
            queue.hide_below(step[1])
        else:
            offset = max(queue.min_offset, min(step[1], queue.visible_offset - 1))
            most = min(step[2], queue.visible_offset - offset)
            assert queue.entries(offset, most) == [entry(number) for number in range(offset, offset + most)]


def test_entries_of_files_and_memory_come_together(tmp_path: Path) -> None:
    """Who asked for 16 got 10 where memory began behind the tenth: rows were missing from the answer to 321."""
    queue = open_queue(tmp_path)
    grow(queue, ENTRIES_IN_FILE + 298)
    everything = [entry(number) for number in range(queue.next_offset)]
    assert 0 < queue.tail_offset - ENTRIES_IN_FILE < len(everything) - ENTRIES_IN_FILE - 10
    assert queue.entries(queue.tail_offset - 10, 16) == everything[queue.tail_offset - 10 : queue.tail_offset + 6]
    assert queue.entries(0, 2 * ENTRIES_IN_FILE) == everything
    assert queue.entries(queue.next_offset, 1) == []


def test_entries_in_front_of_a_file_that_cannot_be_read_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due of a delay level is delivered as far as it can be read, though more of it lies in a damaged file."""
    queue = open_queue(tmp_path)
    grow(queue, 2 * ENTRIES_IN_FILE)
    pread = os.pread

    def refuse_second(fd: int, size: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().name.endswith(str(ENTRIES_IN_FILE * ENTRY_BYTES)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", refuse_second)
    assert queue.entries(600, 200) == [entry(number) for number in range(600, ENTRIES_IN_FILE)]
    with pytest.raises(UnreadableError):
        queue.entries(ENTRIES_IN_FILE, 1)


def test_a_backlog_is_read_with_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls of 32 messages share a read of the files; one that looks for a single entry disturbs nobody."""
    queue = open_queue(tmp_path)
    grow(queue, 3 * ENTRIES_IN_FILE)
    reads = count_reads(monkeypatch)
    for offset in range(0, 512, 32):
        assert queue.entries(offset, 32) == [entry(number) for number in range(offset, offset + 32)]
    assert len(reads) == 1
    assert queue.entries(1400, 1) == [entry(1400)]
    assert queue.entries(480, 32) == [entry(number) for number in range(480, 512)]
    assert reads[1:] == [ENTRY_BYTES]


def test_few_queues_keep_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand queues that were read once keep nothing in memory but those read last."""
    files = QueueFiles(ENTRIES_IN_FILE * ENTRY_BYTES, 8)
    queues = [open_queue(tmp_path, files, number) for number in range(300)]
    for queue in queues:
        grow(queue, 2 * ENTRIES_IN_FILE)
        assert len(queue.entries(0, 32)) == 32
    reads = count_reads(monkeypatch)
    assert [len(queues[number].entries(0, 32)) for number in (299, 290, 0, 1)] == [32, 32, 32, 32]
    assert len(reads) == 2
