"""What the verify job finds in one log, without Spark: its tasks are run here. Ref: docs/spark/jobs/verify.md."""

import json

import pytest

from headrace.errors import StoreFullError
from headrace.spark.jobs.verify import Config
from headrace.spark.jobs.verify_log import check_log
from headrace.spark.jobs.verify_store import StoreCheck
from headrace.spark.scan import StoreSource
from headrace.store.opening import Opening
from headrace.store.segment_supply import SegmentSupply
from tests.support.stores import store_bench
from tests.unit.spark.test_files import harm, make_store


def verify(root):
    """Return (kind, physical offset, reason) of all damage of a store."""
    source = StoreSource(str(root), "b")
    (extent,) = source.extents()
    check = StoreCheck(source, extent, Config(store=root))
    check.judge([json.loads(next(check_log(task)).column(1)[0].as_py()) for task in check.tasks()])
    return [(found.kind, found.physical_offset, found.reason) for found in check.damage]


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
