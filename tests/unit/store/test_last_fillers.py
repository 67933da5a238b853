"""Queues whose last offsets have no record: a clean end takes their fillers out of the files, and forgets no offset.

RocketMQ takes the size of a filler that ends a queue for how far into the log the queue reaches, and dispatches nothing
below. Ref: docs/formats/consume-queue.md, "Entry".
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.format.queue_entry import ENTRY, FILLER_BYTES
from headrace.format.side_file import read_side_file
from headrace.store.inspect import inspect_store
from headrace.store.reader import StoreReader
from headrace.store.store import Store
from tests.support.messaging import MessagingRig
from tests.support.stores import MakeBench, StoreBench

FILE_ENTRIES = 20


def cut_off(bench: StoreBench, *lost: bytes, topic: str = "t", written: bool = True) -> list[int]:
    """Publish messages, of which a power cut then takes all; return their queue offsets."""
    placed = bench.append(topic, *lost, flush=False)
    if written:
        bench.store.queue(topic, 0).write_out()
    bench.settle()
    bench.crash()
    bench.overwrite(placed[0][2], b"\xff" * 8)
    end = placed[-1][2] - placed[0][2]
    bench.overwrite(placed[0][2] + 8, bytes(end + 60))
    bench.open()
    return [offset for _, offset, _, _ in placed]


def entries_in_files(root: Path, topic: str = "t") -> list[tuple[int, int, int, int]]:
    queue = next(queue for queue in StoreReader(root).queues() if queue.topic == topic)
    return list(queue.entries(*queue.extent()))


def ends_in_filler(root: Path) -> bool:
    last = [
        list(queue.entries(queue.extent()[1] - 1, queue.extent()[1]))
        for queue in StoreReader(root).queues()
        if queue.extent()[1] > queue.extent()[0]
    ]
    return any(entry[2] == FILLER_BYTES for (entry,) in last)


@pytest.mark.parametrize("written", [True, False])
def test_a_clean_end_leaves_no_filler_behind_the_last_record(
    bench: StoreBench, caplog: pytest.LogCaptureFixture, written: bool
) -> None:
    bench.append("t", *[b"%d" % number for number in range(50)])
    lost = cut_off(bench, b"a", b"b", b"c", written=written)
    end = 53 if written else 50
    caplog.clear()
    for _ in range(3):
        assert (bench.store.queue("t", 0).next_offset, bench.store.queue("t", 0).visible_offset) == (end, end)
        bench.close()
        assert [entry[0] for entry in entries_in_files(bench.root)] == list(range(50))
        assert [path.stat().st_size for path in (bench.root / "consumequeue/t/0").iterdir()] == [400] * 3
        bench.open()
    for _ in range(3):
        bench.crash_and_open()
        assert bench.store.queue("t", 0).next_offset == end
    assert caplog.messages == []
    assert bench.append("t", b"new")[0][1] == end
    bench.restart()
    assert bench.messages("t") == {**{n: b"%d" % n for n in range(50)}, end: b"new"}
    assert (lost[0], ends_in_filler(bench.root)) == (50, False)


def test_files_of_nothing_but_fillers_go(bench: StoreBench) -> None:
    """RocketMQ looks for a queue's end in its last three files."""
    bench.append("t", *[b"%d" % number for number in range(FILE_ENTRIES)])
    cut_off(bench, *[b"lost"] * 100)
    assert bench.store.queue("t", 0).next_offset == 120
    bench.close()
    assert [int(path.name) for path in (bench.root / "consumequeue/t/0").iterdir()] == [0]
    bench.open()
    assert bench.append("t", b"new")[0][1] == 120
    bench.restart()
    assert bench.messages("t") == {**{n: b"%d" % n for n in range(FILE_ENTRIES)}, 120: b"new"}


def test_a_queue_of_nothing_but_fillers_keeps_its_first_file(bench: StoreBench) -> None:
    cut_off(bench, *[b"lost"] * 30)
    bench.restart()
    bench.close()
    assert [path.read_bytes() for path in (bench.root / "consumequeue/t/0").iterdir()] == [bytes(400)]
    bench.open()
    assert bench.append("t", b"new")[0][1] == 30


def test_the_note_of_a_clean_end_says_where_the_queue_goes_on(bench: StoreBench) -> None:
    """Also of offsets that no epoch knows of, such as a topic's whose messages the log has lost."""
    bench.append("t", b"one")
    bench.store.go_on_above(bench.store.queue("t", 0), 5)
    bench.close()
    note = read_side_file(bench.root / "headrace/checkpoint.json", "checkpoint", "")
    assert (note["queue_entries"], note["queue_ends"], note["clean"]) == (1, {"t/0": 5}, True)
    assert inspect_store(bench.root)[0]["topics"]["t"][0]["next_offset"] == 5
    bench.open()
    bench.crash_and_open()  # the note of a start or of a checkpoint keeps it
    bench.append("u", b"other")
    bench.store.checkpoints.start()
    bench.settle()
    bench.crash_and_open()
    assert bench.append("t", b"new")[0][1] == 5
    bench.close()
    assert "queue_ends" not in read_side_file(bench.root / "headrace/checkpoint.json", "checkpoint", "")
    bench.open()


@pytest.mark.parametrize("step", ["headrace.store.checkpoint.Checkpoints._note", "os.truncate"])
def test_an_end_that_is_killed_forgets_nothing(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    bench.append("t", b"one")
    bench.store.go_on_above(bench.store.queue("t", 0), 50)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(step, killed)
        with pytest.raises(KeyboardInterrupt):
            bench.store.close()
    bench.store._release()
    bench.open()
    assert "rebuilt" not in caplog.text
    assert bench.append("t", b"new")[0][1] == 50


def test_a_clean_end_is_noted_when_all_of_it_is_on_the_disk(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right behind it left files of another length, and a closed store that counts as damaged."""
    bench.append("t", b"one")
    cut_off(bench, b"a", b"b")
    steps: list[tuple[str, str]] = []

    def note(owner: object, name: str, path_of: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> object:
            steps.append((name, path_of(*args)))
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    for name in ("fsync", "fdatasync"):
        note(os, name, lambda fd: os.path.realpath(f"/proc/self/fd/{fd}"))
    note(os, "truncate", lambda path, size: str(path))
    note(Path, "unlink", str)
    bench.store.close()
    end = steps.index(("unlink", str(bench.root / "abort")))
    queue_file = str(bench.root / "consumequeue/t/0" / f"{0:020d}")
    behind_cut = len(steps) - steps[::-1].index(("truncate", queue_file))
    assert ("fdatasync", queue_file) in steps[behind_cut:end]
    assert ("fsync", str(bench.root / "checkpoint.new")) in steps[:end]
    assert ("fsync", str(bench.root)) in steps[:end]
    monkeypatch.undo()
    bench.open()


def test_the_checker_names_what_was_given_up(bench: StoreBench) -> None:
    """The files say it no more."""
    bench.append("t", b"one")
    cut_off(bench, b"a", b"b")
    bench.close()
    report = bench.check()
    found = [finding for finding in report.info if finding.kind == "skipped_offsets"]
    assert [(finding.topic, finding.queue_offset, finding.count) for finding in found] == [("t", 1, 2)]
    assert (report.queue_ends["t", 0], report.queues.entries) == (3, 1)
    bench.open()


def test_a_channel_behind_the_last_record_is_no_damage(tmp_path: Path) -> None:
    """It has read over fillers that a clean end took out of the files."""
    rig = MessagingRig(tmp_path / "store")
    subscription, channel = rig.subscribe("T", "ch")
    rig.publish("T", [b"a", b"b"])
    rig.store.go_on_above(rig.store.queue("T", 0), 5)
    ids = [message_id for _, _, message_id in rig.take(subscription, channel)]
    assert rig.finish(subscription, channel, ids) == 0
    for _ in range(3):
        assert rig.broker.topics["T"].channels["ch"].depth == 0
        rig.restart()  # the checker looks
    subscription, channel = rig.subscribe("T", "ch")
    rig.publish("T", [b"c"])
    assert [body for body, _, _ in rig.take(subscription, channel)] == [b"c"]
    rig.close()


@pytest.mark.parametrize("between", [0, 1, 3])
def test_a_checkpoint_counts_no_filler_behind_the_last_record(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture, between: int
) -> None:
    """Else the next start finds another number in the files, and makes all queues anew from the whole log."""
    bench = make_bench(durability="async")
    bench.append("t", *[b"%d" % number for number in range(30)])
    cut_off(bench, *[b"lost"] * 7)
    bench.append("u", b"durable")
    bench.append("t", *[b"behind"] * between, flush=False)
    bench.store.checkpoints.start()  # up to what is durable: the last of t are not below it
    bench.settle()
    bench.crash()
    caplog.clear()
    bench.open()
    assert caplog.messages == []
    assert bench.append("t", b"new")[0][1] == 37 + between


def test_a_stray_entry_at_the_end_stays_a_filler(bench: StoreBench, caplog: pytest.LogCaptureFixture) -> None:
    """It is another's; its offset may have been issued."""
    placed = bench.append("t", *[b"%d" % number for number in range(30)])
    bench.append("u", b"other")
    bench.append("t", b"last")
    bench.close()
    with (bench.root / "consumequeue/t/0" / f"{400:020d}").open("r+b") as file:
        file.seek(31 * ENTRY.size - 400)
        file.write(ENTRY.pack(placed[3][2] + 7, 100, 0))
    raw = read_side_file(bench.root / "headrace/checkpoint.json", "checkpoint", "")
    (bench.root / "headrace/checkpoint.json").unlink()
    assert raw["queue_entries"] == 32
    bench.open()
    for _ in range(2):
        assert bench.store.queue("t", 0).next_offset == 32
        bench.restart()
        assert "rebuilt" not in caplog.text
    assert bench.append("t", b"new")[0][1] == 32


@pytest.mark.parametrize("seed", range(12))
def test_no_offset_is_issued_twice_whatever_happens(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """Cuts, kills, clean ends and checkpoints in any order; after each clean end the files end with a record."""
    choice = random.Random(seed)
    bench = make_bench(durability=choice.choice(["async", "fsync"]))
    topics = ("a", "b", "c")
    kept: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
    issued = dict.fromkeys(topics, 0)
    for step in range(40):
        topic = choice.choice(topics)
        count = choice.choice([1, 2, 30])
        what = choice.choice(["append", "cut", "restart", "kill", "checkpoint", "write"])
        if what == "append":
            for _, offset, _, body in bench.append(topic, *[b"%d %d" % (step, n) for n in range(count)]):
                assert offset == issued[topic]
                kept[topic][offset] = body
                issued[topic] += 1
        elif what == "cut":
            lost = cut_off(bench, *[b"lost"] * count, topic=topic)
            assert lost[0] == issued[topic]
            issued[topic] = lost[-1] + 1
        elif what == "restart":
            bench.close()
            assert not ends_in_filler(bench.root)
            bench.open()
        elif what == "kill":
            bench.crash_and_open()
        elif what == "checkpoint":
            bench.store.checkpoints.start()
            bench.settle()
        else:
            bench.store.checkpoints.write_queue(bench.store.queue(topic, 0))
        assert {name: bench.store.queue(name, 0).next_offset for name in topics} == issued, (step, what)
        assert {name: bench.messages(name) for name in topics} == kept, (step, what)
    assert "rebuilt" not in caplog.text


def test_a_start_behind_a_clean_end_writes_no_queue(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fillers that it puts back are left to the next checkpoint."""
    bench.append("t", b"one")
    cut_off(bench, b"a")
    bench.close()
    with monkeypatch.context() as patch:
        patch.setattr("headrace.store.checkpoint.Checkpoints.write_all", None)
        bench.open()
    assert bench.store.queue("t", 0).next_offset == 2


def test_fillers_that_a_kill_leaves_at_the_end_count_as_issued(make_bench: MakeBench) -> None:
    """More of them than are read at once."""
    bench = make_bench()
    bench.append("t", *[b"%d" % number for number in range(30)])
    bench.store.go_on_above(bench.store.queue("t", 0), 30 + 5000)
    bench.store.checkpoints.write_all(bench.store.log.end_offset, clean=False)
    bench.crash()
    store = Store.open(bench.settings, ManualClock())
    assert (store.queue("t", 0).records_end, store.queue("t", 0).next_offset) == (30, 5030)
    store.abandon()
    bench.open()
    assert bench.append("t", b"new")[0][1] == 5030


def test_fillers_above_the_checkpoint_have_no_start_read_the_whole_log(
    bench: StoreBench, caplog: pytest.LogCaptureFixture
) -> None:
    """They were taken for entries below it, and with them the records in front of them."""
    bench.append("t", *[b"%d" % number for number in range(30)])
    bench.store.checkpoints.write_all(bench.store.log.end_offset, clean=False)
    bench.append("t", *[b"%d" % number for number in range(30, 40)])
    bench.crash()
    bench.open()
    queue = bench.store.queue("t", 0)
    bench.store.go_on_above(queue, 100)
    queue.write_out()  # a checkpoint that a kill kept from its note
    bench.crash()
    with caplog.at_level(logging.WARNING):
        bench.open()
    assert "rebuilt from the whole log" not in caplog.text
    assert list(bench.messages("t").values()) == [b"%d" % number for number in range(40)]
    assert bench.store.queue("t", 0).next_offset == 100
