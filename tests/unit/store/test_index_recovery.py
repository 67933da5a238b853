"""The key index after a crash, with damage, on a log that lost its end: it equals what the log says.

docs/formats/index-file.md, "After a crash"; A-STORE-35.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headrace.format.side_file import read_side_file, write_side_file
from headrace.store.index_file import IndexFile
from tests.support.indexes import SMALL, find, header_count, index_files, note_index, properties, put, require_whole
from tests.support.stores import MakeBench, StoreBench


@pytest.fixture
def small(make_bench: MakeBench) -> StoreBench:
    bench = make_bench("small", **SMALL)
    bench.store.index.wait_live()
    return bench


def fill(bench: StoreBench, count: int, start: int = 0) -> list[int]:
    """Append messages with two keys each."""
    offsets = []
    for n in range(start, start + count):
        offsets.append(put(bench, "T", "all", f"U{n}"))
        bench.clock.advance_ms(130)
    bench.store.index.wait_live()  # it stops where files fill up faster than they are finished
    return offsets


def files(bench: StoreBench) -> list[Path]:
    return sorted((bench.root / "index").iterdir())


@pytest.mark.parametrize("noted", [0, 1, 10, 19, 20, 45])
def test_a_crash_costs_only_what_was_not_noted(small: StoreBench, noted: int) -> None:
    """The note may lie anywhere: before the first file, in one, at its end."""
    offsets = fill(small, noted)
    if noted:
        note_index(small)
    offsets += fill(small, 33, noted)
    small.crash_and_open()
    small.store.index.wait_live()
    assert small.store.index.keys.added_keys == 2 * 33
    found = find(small, "T", "all")
    assert (found.offsets, found.is_complete) == (offsets[::-1][:64], True)
    require_whole(small)


def test_a_crash_after_a_lost_file_was_made_anew_in_the_same_moment(small: StoreBench) -> None:
    """The note names the lost file: one made in its place, and not noted yet, must not be taken for it."""
    offset = put(small, "T", "all")
    small.close()
    for path in files(small):
        path.unlink()
    small.open()
    small.store.index.wait_live()
    small.crash()
    small.open()
    small.store.index.wait_live()
    assert find(small, "T", "all").offsets == [offset]
    require_whole(small)


def test_a_crash_before_the_index_caught_up(small: StoreBench) -> None:
    fill(small, 50)
    for _ in range(3):
        small.crash()
        small.open()
    fill(small, 5, 50)
    require_whole(small)


def test_a_crash_after_a_clean_start(small: StoreBench) -> None:
    """The file's slots are older than its entries, which are older than the log."""
    fill(small, 5)
    small.restart()
    small.store.index.wait_live()
    fill(small, 5, 5)
    note_index(small)
    fill(small, 5, 10)
    small.crash_and_open()
    assert find(small, "T", "U7").offsets
    require_whole(small)


def test_a_clean_end_that_was_cut_short(small: StoreBench) -> None:
    """Slots newer than the note are seen to be, and made anew from the entries."""
    fill(small, 5)
    small.restart()
    small.store.index.wait_live()
    fill(small, 8, 5)
    active = small.store.index.keys.active
    assert active is not None
    active.write_out()
    active.write_slots()
    active.write_header()
    small.crash_and_open()
    require_whole(small)


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"\x01"])
def test_a_power_cut_leaves_anything_behind_the_note(small: StoreBench, filling: bytes) -> None:
    """What was not synced may be on the disk or not, in any order: header, slots and later entries say nothing."""
    fill(small, 7)
    note_index(small)
    fill(small, 7, 7)
    small.crash()
    (path,) = files(small)
    with path.open("r+b") as file:
        file.write(filling * (40 + 4 * 50))
        file.seek(40 + 4 * 50 + 20 * 15)
        file.write(filling * 20 * 25)
    small.open()
    small.store.index.wait_live()
    assert small.store.index.keys.added_keys == 14
    fill(small, 10, 14)  # bytes behind the last entry mean nothing: fill the file
    require_whole(small)


@pytest.mark.parametrize("what", ["note", "folder", "all", "first", "middle", "last"])
def test_lost_files_are_made_anew(small: StoreBench, what: str) -> None:
    fill(small, 60)
    small.close()
    paths = files(small)
    lost = {"first": paths[:1], "middle": paths[1:2], "last": paths[-1:]}.get(what, paths)
    if what in {"note", "all"}:
        (small.root / "headrace" / "index.json").unlink()
    for path in lost if what != "note" else []:
        path.unlink()
    assert small.check().exit_code == (1 if what in {"folder", "first", "middle", "last"} else 0)
    small.open()
    small.store.index.wait_live()
    require_whole(small)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_file_of_another_length_is_made_anew(small: StoreBench, which: int, caplog: pytest.LogCaptureFixture) -> None:
    fill(small, 60)
    small.close()
    with files(small)[which].open("r+b") as file:
        file.truncate(777)
    assert small.check().exit_code == 1
    small.open()
    assert "index file damaged" in caplog.text
    require_whole(small)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, number) for name in ("used_slots", "count", "slots_count") for number in (1 << 31, 1 << 64, -1)),
        *((name, 1 << 63) for name in ("begin_ms", "end_ms", "begin_offset", "end_offset")),
    ],
)
@pytest.mark.parametrize("which", [0, -1])
def test_a_number_that_no_file_has_is_damage_of_the_note(small: StoreBench, which: int, name: str, number: int) -> None:
    """A check and a start ended with errors of Python's."""
    fill(small, 60)
    small.close()
    note = asdict(read_side_file(small.store.directory.index_note, "index", ""))
    note["files"][which][name] = number
    require_damaged_note(small, note)


@pytest.mark.parametrize(
    ("name", "number"),
    [*((name, number) for name in ("slot_count", "capacity") for number in (0, 1 << 31)), ("physical_offset", 1 << 63)],
)
def test_a_size_that_no_index_has_is_damage_of_the_note(small: StoreBench, name: str, number: int) -> None:
    fill(small, 60)
    small.close()
    require_damaged_note(small, asdict(read_side_file(small.store.directory.index_note, "index", "")) | {name: number})


def require_damaged_note(small: StoreBench, note: dict[str, Any]) -> None:
    """Replace the note of a closed store: the check says so, and a start makes the index anew."""
    write_side_file(small.store.directory.index_note, "index", note)
    assert [finding.kind for finding in small.check().damage] == ["side_file"]
    small.open()
    small.store.index.wait_live()
    require_whole(small)


def test_a_file_with_another_header_is_made_anew(small: StoreBench) -> None:
    fill(small, 60)
    small.close()
    with files(small)[1].open("r+b") as file:
        file.write(b"\1" * 8)
    assert [finding.kind for finding in small.check().damage] == ["index_file"]
    small.open()
    require_whole(small)


def test_another_header_of_the_newest_file_is_left_to_the_next_stop(small: StoreBench) -> None:
    fill(small, 5)
    small.close()
    with files(small)[0].open("r+b") as file:
        file.write(b"\1" * 8)
    (finding,) = small.check().damage
    assert "its header is not what was noted; " in finding.message
    assert finding.message.endswith("the next stop writes it")
    small.open()
    require_whole(small)
    assert small.check().damage == []


@pytest.mark.parametrize("older", [1, 30])
def test_an_older_copy_of_the_newest_file_is_made_anew(
    small: StoreBench, older: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A single file restored from a backup: it is whole, and has not the last entries that the note counts."""
    offsets = fill(small, older)
    small.close()
    newest = files(small)[-1]
    copy = newest.read_bytes()
    small.open()
    offsets += fill(small, 5, older)
    small.close()
    assert newest == files(small)[-1]
    newest.write_bytes(copy)
    assert [finding.kind for finding in small.check().damage] == ["index_file"]
    small.open()
    small.store.index.wait_live()
    assert "index file damaged, made anew from the log" in caplog.text
    assert find(small, "T", "all").offsets == offsets[::-1]
    require_whole(small)


def test_a_note_that_the_stop_could_not_write_is_no_damage(small: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """The checker held the slots to the note from before, and had the file removed; a start needs no such help."""
    offsets = fill(small, 10)
    small.close()
    small.open()
    small.store.index.wait_live()
    offsets += fill(small, 10, 100)
    in_the_way = small.store.directory.index_note.with_name("index.json.new")
    in_the_way.mkdir()
    small.close(whole=False)
    assert "key index not written" in caplog.text
    in_the_way.rmdir()
    assert small.check().damage == []
    small.open()
    small.store.index.wait_live()
    assert "damaged" not in caplog.text
    assert find(small, "T", "all").offsets == offsets[::-1]
    require_whole(small)


def test_new_entries_in_the_place_of_lost_ones_are_no_damage(
    small: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """A start cut off what the log lost, others were written there, and a kill came before the next note."""
    offsets = fill(small, 10)
    note_index(small)
    small.crash()
    small.overwrite(offsets[-3], bytes(offsets[-1] - offsets[-3] + 8))
    small.open()
    small.store.index.wait_live()
    more = fill(small, 5, 100)
    for file in small.store.index.files:
        small.store.index.executor.submit(file.write_out).result(10)
    small.crash()
    caplog.clear()
    small.open()
    small.store.index.wait_live()
    assert "index file damaged" not in caplog.text
    assert find(small, "T", "all").offsets == (offsets[:-3] + more)[::-1]
    small.close(whole=False)


def test_lost_slots_of_the_newest_file_are_made_anew(small: StoreBench) -> None:
    """A lost sector: zeros. The note says how many slots were used."""
    fill(small, 5)
    small.close()
    with files(small)[0].open("r+b") as file:
        file.seek(40)
        file.write(bytes(4 * 50))
    assert [finding.reason for finding in small.check().damage] == ["the slots are not those of the entries"]
    small.open()
    small.store.index.wait_live()
    require_whole(small)


def test_slots_that_could_not_be_loaded_are_loaded_again(small: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses to read an entry (no memory for the page): slots of a part would miss the other keys."""
    offsets = fill(small, 15)
    note_index(small)
    small.crash()
    pread = os.pread
    refused: list[int] = []

    def refuse_once(fd: int, size: int, at: int) -> bytes:
        if threading.current_thread().name.startswith("headrace-index") and not refused:
            refused.append(size)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", refuse_once)
    small.open()
    small.store.index.executor.submit(int).result(10)
    assert refused
    small.clock.advance_ms(2000)
    small.store.tick()
    small.store.index.wait_live()
    assert find(small, "T", "all").offsets == offsets[::-1]


@pytest.mark.parametrize("at", [40, 40 + 4 * 50 + 20 * 5])
@pytest.mark.parametrize("which", [0, 1])
def test_the_checker_names_what_mends_a_damaged_file(small: StoreBench, which: int, at: int) -> None:
    """Slots and entries of full files are not read at a start."""
    fill(small, 60)
    small.close()
    with files(small)[which].open("r+b") as file:
        file.seek(at)
        file.write(bytes(4 * 40))
    (finding,) = small.check().damage
    assert "remove it while the broker is down, the next start makes it and all newer ones anew" in finding.message
    assert finding.file is not None
    (small.root / finding.file).unlink()
    small.open()
    small.store.index.wait_live()
    require_whole(small)


@pytest.mark.parametrize("text", [b"", b"no side file", b"headrace index 1 00000000 2\n{}"])
def test_a_damaged_note_makes_the_index_anew(small: StoreBench, text: bytes) -> None:
    fill(small, 30)
    small.close()
    (small.root / "headrace" / "index.json").write_bytes(text)
    assert "side_file" in [finding.kind for finding in small.check().damage]
    small.open()
    require_whole(small)


@pytest.mark.parametrize("lost", [1, 3, 25])
def test_a_log_that_lost_its_end_takes_the_entries_along(small: StoreBench, lost: int) -> None:
    """The lost records' places are not issued again, so their entries would be there for ever."""
    offsets = fill(small, 40)
    small.close()
    small.overwrite(offsets[-lost], bytes(offsets[-1] - offsets[-lost] + 8))
    small.open()
    small.store.index.wait_live()
    assert find(small, "T", "all").offsets == offsets[-lost - 1 :: -1]
    more = fill(small, 10, 100)
    assert find(small, "T", "all", max_count=10).offsets == more[::-1]
    for file in small.store.index.files:
        small.store.index.executor.submit(file.write_out).result(10)
        numbers = [file.entry(number)[1] for number in range(1, file.count)]
        assert not set(numbers) & set(offsets[-lost:])
    small.crash()
    small.open()
    small.store.index.wait_live()
    assert find(small, "T", "all", max_count=10).offsets == more[::-1]
    small.close(whole=False)


def test_entries_of_a_record_that_spans_two_files_are_cut_in_both(small: StoreBench) -> None:
    fill(small, 5)
    wide = put(small, "T", " ".join(f"p{n}" for n in range(100)))
    small.close()
    assert len(files(small)) == 3
    small.overwrite(wide, bytes(8))
    small.open()
    small.store.index.wait_live()
    assert [file.count for file in small.store.index.files] == [11]
    assert find(small, "T", "p1").offsets == []
    small.close(whole=False)
    assert header_count(index_files(small)[0]) == 11


def test_the_rest_of_a_record_s_keys_is_made_anew(small: StoreBench) -> None:
    """The second file of a record that spans two is lost: its first keys are not added again."""
    fill(small, 5)
    wide = put(small, "T", " ".join(f"p{n}" for n in range(100)))
    fill(small, 5, 5)
    small.close()
    files(small)[1].unlink()
    small.open()
    small.store.index.wait_live()
    assert find(small, "T", "p99").offsets == [wide]
    require_whole(small)


def test_a_hole_in_the_log_is_stepped_over(small: StoreBench) -> None:
    offsets = fill(small, 40)
    small.close()
    (small.root / "headrace" / "index.json").unlink()
    small.overwrite(offsets[7] + 10, b"\xff" * 20)
    small.open()
    small.store.index.wait_live()
    assert find(small, "T", "all").offsets == [offset for offset in offsets[::-1] if offset != offsets[7]]
    small.close(whole=False)


def test_an_old_log_gets_its_index(small: StoreBench) -> None:
    """Many segments, no index at all, as a store of an older Headrace."""
    for n in range(12):
        small.append("T", b"x" * 30_000, properties=b"KEYS\x01k%d\x02" % n)
    small.close()
    (small.root / "headrace" / "index.json").unlink()
    for path in files(small):
        path.unlink()
    small.open()
    require_whole(small)


def test_records_that_are_gone_are_not_found(small: StoreBench) -> None:
    """A file whose records are all gone goes with them."""
    for n in range(60):
        small.append("T", b"x" * 6_000, properties=b"KEYS\x01all k%d\x02" % n)
    small.store.index.wait_live()
    small.close()
    segments = sorted((small.root / "commitlog").iterdir())
    for path in segments[:3]:
        path.unlink()
    (small.root / "headrace" / "checkpoint.json").unlink()
    names = [path.name for path in files(small)]
    small.open()
    small.store.index.wait_live()
    left = find(small, "T", "all").offsets
    assert left
    assert min(left) >= 3 * 65536
    assert [path.name for path in files(small)] == names[1:]
    small.close(whole=False)


def test_sizes_are_kept_from_the_store(small: StoreBench) -> None:
    fill(small, 30)
    small.restart(index_slots=77, index_entries=99)
    assert (small.store.index.slot_count, small.store.index.capacity) == (50, 40)
    fill(small, 30, 30)
    assert len(find(small, "T", "all").offsets) == 60


def test_the_note_counts_nothing_that_the_log_may_lose(make_bench: MakeBench) -> None:
    bench = make_bench("async", durability="async", flush_interval_ms=60_000, **SMALL)
    bench.store.index.wait_live()
    bench.append("T", b"x", flush=False, properties=b"KEYS\x01k\x02")
    bench.clock.advance_ms(20_000)
    bench.store.tick()
    bench.store.index.executor.submit(int).result(10)
    assert not (bench.root / "headrace" / "index.json").exists()
    bench.store.flush()
    bench.store.tick()
    bench.store.index.executor.submit(int).result(10)
    note = json.loads((bench.root / "headrace" / "index.json").read_bytes().partition(b"\n")[2])
    assert note["physical_offset"] == bench.store.log.durable_offset


def test_a_file_that_fills_up_before_its_note_is_synced(small: StoreBench) -> None:
    """What is noted is written to the file of then, be it finished and closed meanwhile."""
    index = small.store.index
    put(small, "T", "before")
    small.append("T", b"x", flush=False, properties=properties("then"))
    small.clock.advance_ms(20_000)
    index.tick()
    assert index._mark is not None
    for number in range(60):
        small.append("T", b"x", flush=False, properties=properties(f"k{number}"))
    index.executor.submit(int).result(10)
    assert len(index.files) == 2
    assert not index.files[0].has_slots
    small.store.flush()
    index.tick()
    index.executor.submit(int).result(10)
    assert small.store.directory.index_note.exists()
    assert index.counters.write_errors == 0
    small.restart()
    assert small.store.index._noted_offset == small.store.log.end_offset
    assert len(find(small, "T", "then").offsets) == 1


@pytest.mark.parametrize(
    ("call", "code", "is_noted"),
    [
        ("open", errno.EMFILE, True),
        ("open", errno.ENOENT, True),
        ("pwrite", errno.ENOSPC, True),
        ("fsync", errno.EIO, False),
        ("fdatasync", errno.EIO, False),
    ],
)
def test_notes_go_on_when_there_is_room_and_files_can_be_opened_again(
    small: StoreBench, monkeypatch: pytest.MonkeyPatch, call: str, code: int, *, is_noted: bool
) -> None:
    """What could not be opened or written was not synced in vain; of what could not be synced nobody knows."""
    index = small.store.index

    def noted_files() -> int:
        note = read_side_file(small.store.directory.index_note, "index", "")
        return len(note.files) if note is not None else 0

    def refuse(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    small.append("T", b"x", properties=properties("k"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        small.clock.advance_ms(60_000)
        index.tick()
        index.executor.submit(int).result(10)
        assert (noted_files(), index.counters.write_errors) == (0, 1)
    small.clock.advance_ms(60_000)
    index.tick()
    index.executor.submit(int).result(10)
    assert noted_files() == is_noted


@pytest.mark.parametrize("ending", ["kill", "stop"])
@pytest.mark.parametrize("at", ["note", "full", "stop"])
def test_a_file_that_could_not_be_synced_is_made_anew(
    small: StoreBench, monkeypatch: pytest.MonkeyPatch, at: str, ending: str
) -> None:
    """The next start went on in the same file: ext4 writes beside what it takes for written, and it was noted as whole.

    A full file was synced once more, which succeeds though the disk has it not, and noted.
    """
    index = small.store.index
    fill(small, 25)
    note_index(small)
    kept, doubtful = (path.name for path in files(small))
    fill(small, 3, 25)

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        if at == "full":
            for n in range(28, 45):
                small.append("T", b"x", flush=False, properties=properties("all", f"U{n}"))
            index.executor.submit(int).result(10)
        elif at == "note":
            small.clock.advance_ms(60_000)
            index.tick()
            index.executor.submit(int).result(10)
        else:
            index.close()
    if at != "stop":
        small.store.flush()
        for _ in range(3):
            small.clock.advance_ms(60_000)
            index.tick()
            index.executor.submit(int).result(10)
    small.crash() if ending == "kill" or at == "stop" else small.close()
    noted = [file.name for file in read_side_file(small.root / "headrace/index.json", "index", "").files]
    assert noted == [kept]
    small.open()
    small.store.index.wait_live()
    assert doubtful not in {path.name for path in files(small)}
    require_whole(small)


def test_a_query_while_the_index_is_made_says_what_it_covers(
    small: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = fill(small, 30)
    small.crash()
    small.open()
    small.store.index.wait_live()
    small.store.index.keys.stop_live()
    offsets.append(put(small, "T", "all", "U30"))
    found = find(small, "T", "all")
    assert (found.is_complete, found.offsets, found.covered_offset) == (False, offsets[-2::-1], offsets[-1])
    assert small.store.index.behind_bytes == small.store.log.end_offset - offsets[-1]
    small.store.tick()
    small.store.index.wait_live()
    assert find(small, "T", "all").is_complete


def test_a_file_is_not_made_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "1")
    IndexFile.create(path, 10, 10)
    with pytest.raises(FileExistsError):
        IndexFile.create(path, 10, 10)
    assert Path(path).exists(), "what was there is not removed"
