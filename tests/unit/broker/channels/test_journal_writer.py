"""What writes the channels' states behind the broker, where a part of it fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.channels import journal, journal_writer
from headrace.broker.channels.channel import Channel
from headrace.broker.channels.journal_writer import JournalWriter
from headrace.clock import ManualClock


class FakeChannel:
    """A channel with one change to note, whose snapshot may fail."""

    def __init__(self, name: bytes, *, fails: bool = False) -> None:
        self.name = name
        self.fails = fails

    def take_changes(self) -> bytes:
        return b"change of " + self.name

    def snapshot_parts(self) -> Iterator[bytes]:
        if self.fails:
            raise ZeroDivisionError("a bug")
        yield b"snapshot of " + self.name


def test_a_snapshot_that_failed_by_a_bug_replaces_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has only some of the channels: with the journals gone the others would deliver all they ever finished."""
    monkeypatch.setattr(journal, "MIN_COMPACTION_BYTES", 0)
    clock = ManualClock()
    good, bad = FakeChannel(b"good"), FakeChannel(b"bad", fails=True)

    def open_writer(executor: ThreadPoolExecutor) -> JournalWriter:
        writer = JournalWriter(tmp_path, executor, clock, 1000)
        channels: dict[Any, int] = {good: 1, bad: 2}
        writer.keys = cast("dict[Channel, int]", channels)
        return writer

    with ThreadPoolExecutor(max_workers=1) as executor:
        writer = open_writer(executor)
        for channel in writer.keys:
            writer.look_at(channel)
        with pytest.raises(ZeroDivisionError):
            writer.tick()
        clock.advance_ms(50)
        writer.tick()
    writer.close()
    with ThreadPoolExecutor(max_workers=1) as executor:
        again = open_writer(executor)
        for key, fake in ((1, good), (2, bad)):
            assert again.take_history(key) == [fake.take_changes()]
        bad.fails = False
        clock.advance_ms(1000)
        again.tick()
    again.close()
    with ThreadPoolExecutor(max_workers=1) as executor:
        last = open_writer(executor)
        for key, fake in ((1, good), (2, bad)):
            assert last.take_history(key)[0] == b"snapshot of " + fake.name
    last.close()


def test_each_time_the_disk_is_full_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not each write that fails, but again when the journal was whole in between."""
    clock = ManualClock()
    channel = FakeChannel(b"busy")
    write = os.pwrite

    def refuse(descriptor: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def tick(writer: JournalWriter) -> None:
        writer.look_at(cast("Channel", channel))
        clock.advance_ms(1000)
        writer.tick()
        executor.submit(int).result()  # what the tick gave to the thread is done

    with ThreadPoolExecutor(max_workers=1) as executor:
        writer = JournalWriter(tmp_path, executor, clock, 1000)
        writer.keys = cast("dict[Channel, int]", {channel: 1})
        for outage in (1, 2):
            monkeypatch.setattr(os, "pwrite", refuse)
            for _ in range(3):
                tick(writer)
            assert caplog.text.count("journal not written") == outage
            monkeypatch.setattr(os, "pwrite", write)
            for _ in range(3):
                tick(writer)
        assert writer.errors > 2
    writer.close()


@pytest.mark.parametrize("lacking", ["begin", "snapshot", "changes"])
def test_what_there_was_no_memory_for_is_in_the_next_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    """It was taken for a bug each second, nothing was synced meanwhile, and what was lost stayed lost."""
    clock = ManualClock()
    channel = FakeChannel(b"busy")
    synced: list[int] = []

    def refuse(*_: Any, **__: Any) -> Any:
        raise MemoryError

    def tick(writer: JournalWriter) -> None:
        writer.look_at(cast("Channel", channel))
        clock.advance_ms(1000)
        writer.tick()
        executor.submit(int).result()

    monkeypatch.setattr(os, "fdatasync", synced.append)
    with ThreadPoolExecutor(max_workers=1) as executor:
        writer = JournalWriter(tmp_path, executor, clock, 1000)
        writer.keys = cast("dict[Channel, int]", {channel: 1})
        with monkeypatch.context() as patch:
            if lacking == "changes":
                patch.setattr(channel, "take_changes", refuse)
            else:
                patch.setattr(journal, "MIN_COMPACTION_BYTES", 0)
                place: Any = Path if lacking == "begin" else channel
                patch.setattr(place, "open" if lacking == "begin" else "snapshot_parts", refuse)
            tick(writer)
        assert writer.errors == 1
        assert "journal not written" in caplog.text
        assert synced
        tick(writer)
        assert writer._journal.is_whole
    writer.close()
    with ThreadPoolExecutor(max_workers=1) as executor:
        again = JournalWriter(tmp_path, executor, clock, 1000)
        assert again.take_history(1)[0] == b"snapshot of busy"
    again.close()


class SlowChannel(FakeChannel):
    """A channel whose changes take a millisecond to gather."""

    def __init__(self, name: bytes, clock: ManualClock) -> None:
        super().__init__(name)
        self._clock = clock

    def take_changes(self) -> bytes:
        self._clock.advance_ms(1)
        return super().take_changes()


def test_many_busy_channels_do_not_hold_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick writes some, those that wait longest first, and behind the last of an interval all are synced."""
    monkeypatch.setattr(journal_writer, "WRITE_AT_ONCE", 4)
    clock = ManualClock()
    channels = [SlowChannel(b"%d" % number, clock) for number in range(20)]
    synced: list[int] = []
    written: list[int] = []
    with ThreadPoolExecutor(max_workers=1) as executor:
        writer = JournalWriter(tmp_path, executor, clock, 1000)
        writer.keys = cast("dict[Channel, int]", {channel: number for number, channel in enumerate(channels)})
        monkeypatch.setattr(writer._journal, "sync", lambda: synced.append(len(written)))
        monkeypatch.setattr(
            writer._journal, "write", lambda blocks: written.extend(int(data[10:]) for _, data in blocks)
        )
        for channel in channels:
            writer.look_at(cast("Channel", channel))
        for count in (8, 16, 20):
            writer.tick()
            executor.submit(int).result()
            assert written == list(range(count))
            writer.look_at(cast("Channel", channels[0]))  # busy again: it waits for the others
            clock.advance_ms(50)
        assert synced == [20]
        clock.advance_ms(50)
        writer.tick()
        assert written[20:] == [0]
    writer.close()
