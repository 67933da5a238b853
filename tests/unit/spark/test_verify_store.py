"""What the verify job finds in one log, without Spark: its tasks are run here. Ref: docs/spark/jobs/verify.md."""

import json
import os

import pytest

from headrace.errors import StoreFullError
from headrace.format.names import segment_name
from headrace.format.side_file import read_side_file, write_side_file
from headrace.spark.jobs.verify import Config
from headrace.spark.jobs.verify_log import check_log
from headrace.spark.jobs.verify_store import StoreCheck
from headrace.spark.scan import StoreSource
from headrace.store.opening import Opening
from headrace.store.segment_supply import SegmentSupply
from tests.support.record_rows import lay_log
from tests.support.stores import SEGMENT_BYTES, store_bench
from tests.unit.spark.test_files import harm, make_store
from tests.unit.store.test_epoch_gaps import CUT, cut_off


def findings_of(root, **options):
    """Return all damage of a store."""
    source = StoreSource(str(root), "b")
    (extent,) = source.extents()
    check = StoreCheck(source, extent, Config(store=root, **options))
    check.judge([json.loads(json.dumps(check_log(task))) for task in check.tasks()])
    return check.damage


def verify(root):
    """Return (kind, physical offset, reason) of all damage of a store."""
    return [(found.kind, found.physical_offset, found.reason) for found in findings_of(root)]


def break_mark(root):
    (root / "headrace" / "durable").write_bytes(b"\xff" * 48)


def remove_mark(root):
    (root / "headrace" / "durable").unlink()


@pytest.fixture
def store(tmp_path):
    """A store whose broker has not ended: 50 records."""
    raw, whole = make_store(tmp_path, 50)
    (tmp_path / "abort").touch()
    return tmp_path, sum(map(len, whole[:10])), len(raw)


def log_damage(found):
    return [(kind, offset) for kind, offset, _ in found if kind in ("hole", "side_file", "checkpoint_beyond_log")]


def test_damage_in_a_folder_without_a_mark_is_found(store):
    """The magic of record 10 is flipped, and nothing says how far the log was durable."""
    root, at, end = store
    assert log_damage(verify(root)) == []
    remove_mark(root)
    (root / "headrace" / "store.json").unlink()
    assert log_damage(verify(root)) == []
    harm(root, at + 4)
    assert ("hole", at) in log_damage(verify(root))
    assert StoreSource(str(root)).extents()[0].end == end


@pytest.mark.parametrize(("lose", "reason"), [(break_mark, "damaged"), (remove_mark, "missing")])
def test_a_store_that_lost_its_mark_is_damaged(store, lose, reason):
    root, at, _ = store
    lose(root)
    assert ("side_file", None, reason) in verify(root)
    harm(root, at + 4)
    assert log_damage(verify(root)) == [("side_file", None), ("hole", at)]


def test_a_mark_that_no_clean_end_leaves_is_damaged(store):
    """Its written slot is gone: a power cut may do that, but not in a store that was closed."""
    root, _, _ = store
    (root / "headrace" / "durable").write_bytes(bytes(48))
    assert verify(root) == []
    (root / "abort").unlink()
    assert ("side_file", None, "damaged") in verify(root)


def test_a_log_without_its_last_file_is_damaged(store):
    """What is durable is what the mark says, also where no file is there up to it."""
    root, _, end = store
    (root / "commitlog" / segment_name(0)).unlink()
    (found,) = (found for found in findings_of(root) if found.kind == "durable_loss")
    assert (found.physical_offset, found.end_offset) == (0, end)


def test_a_repeated_queue_offset_is_that_of_its_record_in_whatever_range_it_lies(tmp_path):
    """Of two ranges the second begins with a record of another queue."""
    rows = [{"body": bytes(1000), "topic": b"t", "queue_offset": number, "store_ms": 1} for number in range(60)]
    rows += [{"body": bytes(1000), "topic": b"u", "queue_offset": number, "store_ms": 1} for number in range(60)]
    raw, whole = lay_log([*rows, {"body": b"x", "topic": b"t", "queue_offset": 7, "store_ms": 1}], 1 << 20)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / segment_name(0)).write_bytes(raw.ljust(1 << 20, b"\0"))
    for split_bytes in (1 << 16, 1 << 20):
        repeated = [one for one in findings_of(tmp_path, split_bytes=split_bytes) if "before it has too" in one.message]
        assert [one.physical_offset for one in repeated] == [len(raw) - len(whole[-1])]


FULL_DISK = [(SegmentSupply, "take")]
KILL = [(Opening, "_blank_rest"), (Opening, "_sync_log")]


@pytest.mark.parametrize("ends_at", [FULL_DISK, KILL], ids=["full disk", "kill behind the note"])
@pytest.mark.parametrize("starts", [1, 2, 3, 4])
def test_epochs_without_a_file_are_no_damage(tmp_path, monkeypatch, starts, ends_at):
    """Starts that begin an epoch each, and end before they make its file: nobody lost anything.

    Ref: docs/formats/side-files.md, "Side file".
    """

    def end(*_):
        raise StoreFullError("no room")

    with store_bench(tmp_path / "store", durability="async") as bench:
        for number in range(100):
            bench.append("t", b"kept %d" % number + bytes(1000))
        bench.crash()
        for boot in range(starts):
            monkeypatch.setattr("headrace.store.boot_note.current_boot_id", lambda boot=boot: f"boot {boot}")
            with monkeypatch.context() as short:
                for owner, name in ends_at:
                    short.setattr(owner, name, end)
                with pytest.raises(StoreFullError):
                    bench.open()
        bench.open()
        assert bench.store.epoch == 1 + starts
        for number in range(100):
            bench.append("t", b"new %d" % number + bytes(1000))
    assert bench.check().damage == []
    assert verify(bench.root) == []


def flip_body(bench, placed):
    bench.overwrite(placed[20][2] + 200, b"\xff\xfe")


def misplace_record(bench, placed):
    size = placed[31][2] - placed[30][2]
    bench.overwrite(placed[20][2], bench.bytes_at(placed[30][2], size))


def lose_first_file(bench, _):
    bench.segment(0).unlink()


def lose_inner_file(bench, placed):
    bench.segment(placed[len(placed) // 2][2]).unlink()


def lengthen_file(bench, _):
    with bench.segment(0).open("ab") as file:
        file.write(b"more")


def clear_entries(bench, _):
    path = min((bench.root / "consumequeue" / "t" / "0").iterdir())
    path.write_bytes(bytes(40) + path.read_bytes()[40:])


def redirect_entry(bench, _):
    path = min((bench.root / "consumequeue" / "t" / "0").iterdir())
    path.write_bytes(b"\0\0\0\0\0\0\0\7" + path.read_bytes()[8:])


def shorten_queue_file(bench, _):
    path = max((bench.root / "consumequeue" / "t" / "0").iterdir())
    path.write_bytes(path.read_bytes()[:-20])


def lose_queue_file(bench, _):
    sorted((bench.root / "consumequeue" / "t" / "0").iterdir())[2].unlink()


def misname_queue_file(bench, _):
    path = max((bench.root / "consumequeue" / "t" / "0").iterdir())
    path.rename(path.with_name(segment_name(int(path.name) + 20)))


def raise_checkpoint(bench, _):
    path = bench.root / "headrace" / "checkpoint.json"
    payload = read_side_file(path, "checkpoint", "")
    write_side_file(path, "checkpoint", payload | {"physical_offset": payload["physical_offset"] + 1000})
    break_mark(bench.root)


def replace_mark_by_a_fifo(bench, _):
    """To read it waits for a writer."""
    remove_mark(bench.root)
    os.mkfifo(bench.root / "headrace" / "durable")


def cut_rocketmq_checkpoint(bench, _):
    (bench.root / "checkpoint").write_bytes(bytes(9))


@pytest.mark.parametrize(
    "do_harm",
    [
        flip_body, misplace_record, lose_first_file, lose_inner_file, lengthen_file, clear_entries, redirect_entry,
        shorten_queue_file, lose_queue_file, misname_queue_file, raise_checkpoint, cut_rocketmq_checkpoint,
        replace_mark_by_a_fifo,
    ],
    ids=lambda harm: harm.__name__,
)  # fmt: skip
def test_the_job_says_what_store_check_says(tmp_path, do_harm):
    """The same kinds in the same words. Ref: docs/formats/store-check.md."""
    with store_bench(tmp_path / "store") as bench:
        placed = [bench.append("t", b"%d" % number + bytes(2000))[0] for number in range(150)]
    do_harm(bench, placed)
    assert (
        {(found.kind, found.message) for found in findings_of(bench.root)}
        == {(found.kind, found.message) for found in bench.check().damage}
        != set()
    )


@pytest.mark.parametrize("is_filled", [True, False])
def test_a_file_that_is_missing_behind_a_gap_is_said_once(tmp_path, is_filled):
    """What was left out in front of it was called unreadable, and the missing file with it a second time."""
    with store_bench(tmp_path / "store") as bench:
        bench.append("t", b"one")
        cut_off(bench)
        bench.append("t", *[bytes(1000)] * 100)
    bench.segment(CUT).unlink()
    if not is_filled:
        bench.segment(SEGMENT_BYTES).unlink()
    assert log_damage(verify(bench.root)) == [("hole", CUT)]
    assert sorted(found.message for found in findings_of(bench.root)) == sorted(
        found.message for found in bench.check().damage
    )


@pytest.mark.parametrize("name", [f"commitlog/{SEGMENT_BYTES * 64:020d}", "consumequeue/t/\u00b2", "consumequeue/t/00"])
def test_the_job_passes_over_what_store_check_passes_over(tmp_path, name):
    """A folder that is named as a file, or not as a folder is."""
    with store_bench(tmp_path / "store") as bench:
        bench.append("t", *[b"a"] * 100)
    (bench.root / name).mkdir()
    (bench.root / name / f"{0:020d}").write_bytes(b"no entries")
    assert (findings_of(bench.root), bench.check().damage) == ([], [])
    break_mark(bench.root)
    assert [found.kind for found in findings_of(bench.root)] == [found.kind for found in bench.check().damage]
