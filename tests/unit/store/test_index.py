"""The key index: layout, growth, what queries find. requirements A-STORE-29..35, X-STORE-14..17; remoting.md 3.4."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.format.side_shapes import IndexNote
from headrace.store import index_folder
from headrace.store.index import key_hash
from headrace.store.index_file import file_bytes
from headrace.store.index_folder import MAX_PATIENCE_MS
from headrace.store.index_note import name_of_time
from tests.support.index_reference import ReferenceIndex, index_hash, java_hash
from tests.support.indexes import SMALL, find, index_files, note_index, properties, put, require_whole
from tests.support.stores import SEGMENT_BYTES, MakeBench, StoreBench

UNIQUE = "0A0000051B5900000000000000010000"


@pytest.fixture
def small(make_bench: MakeBench) -> StoreBench:
    bench = make_bench("small", **SMALL)
    bench.store.index.wait_live()
    return bench


def test_the_vector_of_the_specification(make_bench: MakeBench) -> None:
    """remoting.md 10.9: header, slots and entries after three insertions.

    Ref: A-STORE-30, A-STORE-31, X-STORE-15, X-STORE-16.
    """
    bench = make_bench("vector", index_slots=5000, index_entries=20000)
    bench.store.index.wait_live()
    bench.clock.advance_ms(1_700_000_000_123 - bench.clock.now_ms())
    first = put(bench, "T1", "K1", UNIQUE)
    bench.clock.advance_ms(5876)
    second = put(bench, "T1", "K1")
    bench.close()
    (raw,) = index_files(bench)
    assert first == 0
    assert len(raw) == file_bytes(5000, 20000) == 420_040
    other = second.to_bytes(8, "big").hex()
    assert raw[:40].hex() == f"0000018bcfe5687b0000018bcfe57f6f0000000000000000{other}0000000200000004"
    slots = {at: value for at in range(5000) if (value := int.from_bytes(raw[40 + 4 * at : 44 + 4 * at], "big"))}
    assert slots == {862: 1, 1532: 3}
    entries = 40 + 4 * 5000
    assert raw[entries + 20 : entries + 40].hex() == "1ed0f5ae00000000000000000000000000000000"
    assert raw[entries + 40 : entries + 60].hex() == "04b6892c00000000000000000000000000000000"
    assert raw[entries + 60 : entries + 80].hex() == f"04b6892c{other}0000000500000002"


@pytest.mark.parametrize(
    ("topic", "key", "hashed"),
    [
        ("T1", "K1", 79071532),
        ("T1", UNIQUE, 517010862),
        ("TopicA", "K1", 1903241641),
        ("温度", "ключ", index_hash("温度", "ключ")),
        ("t", "\U0001f600", index_hash("t", "\U0001f600")),
        ("t", "", index_hash("t", "")),
    ],
)
def test_hashes_are_java_s(topic: str, key: str, hashed: int) -> None:
    """remoting.md 10.7, X-STORE-17."""
    assert key_hash(topic.encode(), key.encode()) == index_hash(topic, key) == hashed


def test_the_hash_without_a_positive_twin_is_zero() -> None:
    """remoting.md 11.29: Integer.MIN_VALUE."""
    # Any string can be completed to any hash: solve for the last six characters.
    target, stem = 1 << 31, "T#polygene"
    value = 0
    for character in stem:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    left = (target - value * 31**7 - sum(64 * 31**i for i in range(7))) & 0xFFFFFFFF
    digits = []
    for place in range(6, -1, -1):
        digit, left = divmod(left, 31**place)
        digits.append(digit)
    key = "polygene" + "".join(chr(64 + digit) for digit in digits)
    assert java_hash("T#" + key) == -(1 << 31)
    assert key_hash(b"T", key.encode()) == 0


def test_queries_find_the_newest_first(small: StoreBench) -> None:
    """A-STORE-29: by each part of KEYS and by the unique key; nothing twice."""
    offsets = [put(small, "T", f"all one{n} a  b", f"U{n}") for n in range(5)]
    assert find(small, "T", "all").offsets == offsets[::-1]
    assert find(small, "T", "all", max_count=2).offsets == offsets[:2:-1]
    assert find(small, "T", "one3").offsets == [offsets[3]]
    assert find(small, "T", "U2", unique=True).offsets == [offsets[2]]
    assert find(small, "T", "U2").offsets == [offsets[2]]
    assert find(small, "T", "one3", unique=True).offsets == []
    assert find(small, "T", "b").offsets == offsets[::-1]
    assert find(small, "T", "").offsets == []
    assert find(small, "T", "o").offsets == []
    same = put(small, "T", "x x", "x")
    assert find(small, "T", "x").offsets == [same]


def test_a_key_of_two_topics_does_not_mix(small: StoreBench) -> None:
    """A-STORE-34."""
    one, two = put(small, "T1", "k"), put(small, "T2", "k")
    assert find(small, "T1", "k").offsets == [one]
    assert find(small, "T2", "k").offsets == [two]
    assert find(small, "T3", "k").offsets == []


def test_equal_hashes_are_told_apart(small: StoreBench) -> None:
    """A-STORE-32, X-STORE-17: "Aa" and "BB" have one hash code, the broker looks at the message."""
    assert index_hash("T", "Aa") == index_hash("T", "BB")
    one, two = put(small, "T", "Aa"), put(small, "T", "BB")
    assert find(small, "T", "Aa").offsets == [one]
    assert find(small, "T", "BB").offsets == [two]


def test_unique_key_that_is_among_the_keys_of_many(small: StoreBench) -> None:
    """remoting.md 2.8: a query by unique key looks at each of them, more than it does in one go."""
    wanted = put(small, "T", "common", "common")
    for number in range(200):
        put(small, "T", "common other", f"U{number}")
    small.store.index.wait_live()  # on a slow disk full files wait for it, and the index falls behind
    assert find(small, "T", "common", unique=True).offsets == [wanted]
    assert len(find(small, "T", "common").offsets) == 64


def test_times_are_exact_but_for_unique_keys(small: StoreBench) -> None:
    """remoting.md 2.8, 3.4: begin and end are inclusive."""
    offsets, times = [], []
    for _ in range(6):
        offsets.append(put(small, "T", "k", "U"))
        times.append(small.clock.now_ms())
        small.clock.advance_ms(700)
    assert find(small, "T", "k", begin_ms=times[2], end_ms=times[4]).offsets == offsets[4:1:-1]
    assert find(small, "T", "k", begin_ms=times[2] + 1, end_ms=times[4] - 1).offsets == [offsets[3]]
    assert find(small, "T", "k", begin_ms=times[5] + 1).offsets == []
    assert find(small, "T", "U", begin_ms=times[5] + 1, unique=True).offsets == offsets[::-1]


def test_files_roll_and_queries_span_them(small: StoreBench) -> None:
    """A-STORE-30, A-STORE-32, A-STORE-33; the files are those of the reference, bit for bit."""
    reference = ReferenceIndex(50, 40)
    offsets = []
    for n in range(60):
        offsets.append(put(small, "T", f"k{n % 7} all", f"U{n}"))
        reference.put_record("T", {"UNIQ_KEY": f"U{n}", "KEYS": f"k{n % 7} all"}, offsets[-1], small.clock.now_ms())
        small.clock.advance_ms(900)
    small.store.index.wait_live()  # on a slow disk full files wait for it, and the index falls behind
    assert find(small, "T", "all").offsets == offsets[::-1]
    assert find(small, "T", "k3").offsets == offsets[3::7][::-1]
    found = find(small, "T", "U0")
    assert found.offsets == [offsets[0]]
    assert (found.last_update_offset, found.is_complete) == (offsets[-1], True)
    small.close()
    assert index_files(small) == [file.encode() for file in reference.files]
    assert len(reference.files) == 5
    small.open()
    assert find(small, "T", "all").offsets == offsets[::-1]


def test_a_batch_rolls_in_the_middle_of_a_message(small: StoreBench) -> None:
    """remoting.md 3.4: "full" is asked for each key."""
    batch = PublishBatch()
    batch.destinations, batch.queues = ["T"], [small.store.queue("T", 0)]
    keys = " ".join(f"p{n}" for n in range(100))
    for n in range(3):
        batch.append(b"x", properties=properties(keys, f"U{n}"))
    small.store.append(batch)
    small.store.flush()
    reference = ReferenceIndex(50, 40)
    for n in range(3):
        reference.put_record("T", {"UNIQ_KEY": f"U{n}", "KEYS": keys}, batch.placed(n)[0], small.clock.now_ms())
    # More files than may wait to be finished: the index falls behind for a moment.
    small.store.tick()
    small.store.index.wait_live()
    assert small.store.index.counters.write_errors == 0
    assert find(small, "T", "p99").offsets == [batch.placed(n)[0] for n in (2, 1, 0)]
    small.close()
    assert index_files(small) == [file.encode() for file in reference.files]
    small.open()


def test_what_is_not_durable_is_not_found(small: StoreBench) -> None:
    """A-STORE-35: never indexed without being queued and visible there."""
    batch = PublishBatch()
    batch.destinations, batch.queues = ["T"], [small.store.queue("T", 0)]
    batch.append(b"x", properties=properties("k"))
    small.store.append(batch)
    assert find(small, "T", "k").offsets == []
    small.store.flush()
    assert find(small, "T", "k").offsets == [0]


def test_a_deleted_topic_s_messages_are_not_found(small: StoreBench) -> None:
    put(small, "T", "k")
    queue = small.store.queue("T", 0)
    queue.hide_below(queue.next_offset)
    assert find(small, "T", "k").offsets == []
    again = put(small, "T", "k")
    assert find(small, "T", "k").offsets == [again]


def test_transactions_rolled_back_are_not_indexed(small: StoreBench) -> None:
    """remoting.md 3.4: skipped; a prepared record has no queue entry and is found once durable."""
    put(small, "T", "k", sys_flag=0xC)
    prepared = put(small, "T", "k", sys_flag=0x4)
    committed = put(small, "T", "k", sys_flag=0x8)
    assert find(small, "T", "k").offsets == [committed, prepared]
    assert small.store.index.keys.added_keys == 2
    later = small.append("T", b"x", properties=properties("later", ""), sys_flag=0x4, flush=False)[0][2]
    assert find(small, "T", "later").offsets == []
    small.store.flush()
    assert find(small, "T", "later").offsets == [later]


def test_records_without_keys_make_no_file(small: StoreBench) -> None:
    small.append("T", b"a", b"b")
    assert not (small.root / "index").exists()
    assert small.store.index.behind_bytes == 0
    assert find(small, "T", "k").offsets == []


def test_the_last_of_two_equal_properties_counts(small: StoreBench) -> None:
    raw = b"KEYS\x01first\x02KEYS\x01second\x02"
    offset = small.append("T", b"x", properties=raw)[0][2]
    assert find(small, "T", "second").offsets == [offset]
    assert find(small, "T", "first").offsets == []


def test_a_damaged_file_is_made_anew(small: StoreBench) -> None:
    """Found by a query: it says so, and the index is whole again soon after."""
    offsets = [put(small, "T", "all", f"U{n}") for n in range(60)]
    small.store.index.wait_live()
    before = [path.name for path in sorted((small.root / "index").iterdir())]
    small.restart()
    small.store.index.wait_live()
    paths = sorted((small.root / "index").iterdir())
    with paths[1].open("r+b") as file:
        file.seek(40 + 4 * 50 + 20 * 5)
        file.write(b"\xff" * 20 * 35)
    found = find(small, "T", "all")
    assert not found.is_complete
    assert 0 < len(found.offsets) < 60
    small.store.tick()
    small.store.index.wait_live()
    found = find(small, "T", "all")
    assert (found.offsets, found.is_complete) == (offsets[::-1], True)
    assert small.store.index.counters.damaged_files == len(before) - 1


def test_files_that_are_damaged_again_and_again_are_made_anew_ever_more_rarely(
    small: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that does not read what is made had the log indexed ten times a second, with a line for each file."""
    offsets = [put(small, "T", "all", f"U{n}") for n in range(60)]
    index = small.store.index
    index.wait_live()

    made_anew_at = []
    for tick in range(200):
        index.report_damage(index.files[0], "Input/output error")  # as a query does
        before = index.counters.damaged_files
        small.store.tick()
        index.wait_live()
        if index.counters.damaged_files > before:
            made_anew_at.append(tick / 10)
        small.clock.advance_ms(100)
    assert made_anew_at == [0, 1, 3, 7, 15]
    assert "reason=Input/output error" in caplog.text
    small.clock.advance_ms(MAX_PATIENCE_MS)
    small.store.tick()
    index.wait_live()
    found = find(small, "T", "all")
    assert (found.offsets, found.is_complete) == (offsets[::-1], True)


def test_an_entry_that_names_itself_is_damage(small: StoreBench) -> None:
    """A query must come to an end, whatever a file says."""
    offsets = [put(small, "T", "all", f"U{n}") for n in range(60)]
    small.restart()
    small.store.index.wait_live()
    number = 5
    with sorted((small.root / "index").iterdir())[1].open("r+b") as file:
        file.seek(40 + 4 * 50 + 20 * number + 16)
        file.write(number.to_bytes(4, "big"))
    for key in ("all", "U0", "U59"):
        find(small, "T", key)
    small.store.tick()
    small.store.index.wait_live()
    assert find(small, "T", "all").offsets == offsets[::-1]


def open_paths() -> list[str]:
    """What this process has open."""
    return [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()]


def test_a_file_that_is_lost_while_the_broker_runs_is_made_anew(small: StoreBench) -> None:
    """Only the newest files stay open, so the index may have thousands."""
    offsets = [put(small, "T", "all", f"U{n}") for n in range(450)]
    small.store.index.wait_live()  # a start keeps the newest of those that are there open
    small.restart()
    small.store.index.wait_live()
    lost = sorted((small.root / "index").iterdir())[2]
    ends_at = time.monotonic() + 60
    while str(lost) in open_paths() and time.monotonic() < ends_at:  # what is open can still be read
        time.sleep(0.01)
    lost.unlink()
    found = find(small, "T", "U60")
    assert (found.is_complete, found.offsets) == (False, [offsets[60]])
    small.store.tick()
    small.store.index.wait_live()
    for n in (0, 60, 449):
        assert find(small, "T", f"U{n}").offsets == [offsets[n]]
    assert len(small.store.index.files) == 24
    assert sum(str(small.root / "index") in name for name in open_paths()) <= 17


def test_a_full_disk_leaves_the_index_behind(small: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends go on, queries find what is indexed; once there is room again, all."""
    offsets = [put(small, "T", "all", f"U{n}") for n in range(10)]
    provide = small.store.index.keys.provide_file

    def refuse(first_ms: int) -> Any:
        raise OSError(28, "No space left on device")

    small.store.index.keys.provide_file = refuse
    offsets += [put(small, "T", "all", f"U{n}") for n in range(10, 40)]
    assert not small.store.index.keys.is_live
    assert small.store.index.behind_bytes > 0
    found = find(small, "T", "all")
    assert (found.is_complete, found.offsets) == (False, offsets[18::-1])
    assert small.store.index.counters.write_errors == 1
    small.store.tick()
    small.store.index.keys.provide_file = provide
    small.clock.advance_ms(2000)
    small.store.tick()
    small.store.index.wait_live()
    found = find(small, "T", "all")
    assert (found.is_complete, found.offsets) == (True, offsets[::-1])


def test_keys_that_are_in_already_are_counted_across_segments(small: StoreBench) -> None:
    """Where a batch needs another file that cannot be made, some of its keys are in; they may be of two segments."""
    index = small.store.index
    provide = index.keys.provide_file
    refusals: list[int] = []

    def refuse_the_second(first_ms: int) -> Any:
        if index.keys.active is not None:
            refusals.append(index.keys.active.count)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return provide(first_ms)

    small.append("T", bytes(SEGMENT_BYTES - 2000))
    index.keys.provide_file = refuse_the_second
    placed = small.append("T", *(b"body" for _ in range(60)), properties=properties("all"))
    assert placed[0][2] < SEGMENT_BYTES < placed[30][2]
    assert refusals == [40]
    index.keys.provide_file = provide
    require_whole(small)
    assert find(small, "T", "all").offsets == [physical_offset for _, _, physical_offset, _ in placed[::-1]]


def test_a_slow_disk_leaves_the_index_behind(small: StoreBench) -> None:
    """Full files wait in memory, but not more than a few: appends go on, queries say that they do not know all."""
    index = small.store.index
    is_ready = threading.Event()
    index.executor.submit(is_ready.wait, 10)
    offsets = [put(small, "T", "all", f"U{n}") for n in range(100)]
    assert not index.keys.is_live
    assert len(index.files) == 3
    is_ready.set()
    found = find(small, "T", "all")
    assert (found.is_complete, found.offsets) == (False, offsets[57::-1])
    assert index.counters.write_errors == 0
    small.store.tick()
    index.wait_live()
    assert find(small, "T", "all").offsets == offsets[:-65:-1]  # 64 at most
    require_whole(small)


def test_full_files_that_no_sync_took_are_finished_later(small: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk takes no full file three gather, and the index stays behind; once there is room it goes on."""
    index = small.store.index

    def refuse(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        for n in range(100):
            small.append("T", b"body", flush=False, properties=properties("all", f"U{n}"))
            index.executor.submit(int).result(10)
        assert (index.keys.is_live, len(index.files)) == (False, 3)
    small.store.flush()
    for _ in range(2):
        small.clock.advance_ms(2000)
        small.store.tick()
        index.executor.submit(int).result(10)
    index.wait_live()
    assert find(small, "T", "U99").is_complete
    small.restart()  # nobody knows what the disk has of them: they are made anew
    require_whole(small)


def test_entries_wait_for_a_disk_that_takes_none(make_bench: MakeBench, caplog: pytest.LogCaptureFixture) -> None:
    """The file's entries lie above the limit that stands for a full disk: one line in the log, queries go on."""
    bench = make_bench("full", index_slots=20_000, index_entries=50_000)
    index = bench.store.index
    index.wait_live()
    offsets = [put(bench, "T", "all")]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bench.settings.segment_bytes, limit[1]))
    try:
        for n in range(3):
            offsets.append(put(bench, "T", "all " + " ".join(f"{n}{part:x}" for part in range(5_000))))
            bench.clock.advance_ms(20_000)
            bench.store.tick()
        assert find(bench, "T", "all").offsets == offsets[::-1]
        assert find(bench, "T", "2fff").offsets == offsets[3:]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caplog.text.count("key index not written") == 1
    assert index.counters.write_errors > 1
    assert index.keys.is_live
    note_index(bench)
    bench.store.flush()
    bench.crash_and_open()
    bench.store.index.wait_live()
    assert bench.store.index.keys.added_keys == 0
    assert find(bench, "T", "2fff").offsets == offsets[3:]


def test_a_note_that_cannot_be_written_is_tried_once_a_second(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: each tick synced the newest file and its folder first, and had a line of the log."""
    bench = make_bench("refused", checkpoint_bytes=100)
    index = bench.store.index
    index.wait_live()
    tries = []

    def refuse(note: IndexNote, path: Path) -> None:
        tries.append(path)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    put(bench, "T", "key")
    bench.store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(index_folder, "write_note", refuse)
        for _ in range(40):
            bench.store.tick()
            index.executor.submit(int).result(10)
            bench.clock.advance_ms(100)
    assert 3 <= len(tries) <= 5
    assert caplog.text.count("key index not written") == 1
    note_index(bench)


def test_names_rise_although_the_clock_goes_back() -> None:
    first = name_of_time(1_700_000_000_123, "")
    assert len(first) == 17
    second = name_of_time(1_700_000_000_123, first)
    third = name_of_time(1_600_000_000_000, second)
    assert first < second < third
    assert len(third) == 17
    assert name_of_time(0, "20231231235959999")[:4] == "2024"
