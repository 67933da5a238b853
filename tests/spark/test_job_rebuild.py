"""The rebuild job: byte for byte what the broker writes. Ref: docs/spark/jobs/rebuild.md, spark.md 4.8."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

from headrace import testing
from headrace.errors import ConfigError, HeadraceError, StoreLockedError
from headrace.format.side_file import read_side_file
from headrace.spark.jobs import rebuild, run_job
from headrace.store.check import check_store
from tests.support.spark_jobs import Sent, orders, send
from tests.support.stores import StoreBench
from tests.unit.store.test_recovery_rules import put_numbered

SMALL_INDEX = {"store__index_slots": 1000, "store__index_entries": 5000}
SPLIT = 100_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with several queues and index files, delayed messages among them, that was closed."""
    root = tmp_path_factory.mktemp("rebuild") / "store"
    delayed = [Sent("later", b"x", n % 2, {"DELAY": str(1 + n % 18), "KEYS": f"d{n}"}) for n in range(40)]
    with testing.broker(store__data_dir=root, store__queue_file_bytes=4000, **SMALL_INDEX) as running:
        send(running.remoting, orders(3000) + orders(500, topic="flights") + delayed)
    return root


def tree(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_queues_and_index_are_byte_for_byte_the_brokers(spark, store, tmp_path):
    summary = run_job(spark, "rebuild", rebuild.Config(store=store, to=tmp_path / "views", split_bytes=SPLIT))
    assert summary.exit_code == 0
    assert tree(tmp_path / "views" / "consumequeue") == tree(store / "consumequeue")
    made = [raw for _, raw in sorted(tree(tmp_path / "views" / "index").items())]
    assert len(made) > 1
    assert made == [raw for _, raw in sorted(tree(store / "index").items())]


def test_replaced_views_serve_a_broker(spark, store, tmp_path):
    root = shutil.copytree(store, tmp_path / "store")
    before = tree(root / "consumequeue")
    shutil.rmtree(root / "consumequeue" / "orders")
    shutil.rmtree(root / "index")
    summary = run_job(spark, "rebuild", rebuild.Config(store=root, replace=True, split_bytes=SPLIT))
    assert summary.facts["replaced"]
    assert tree(root / "consumequeue") == before
    report = check_store(root)
    assert (report.exit_code, report.damage, report.info) == (0, [], [])
    with testing.broker(store__data_dir=root, **SMALL_INDEX) as running:
        send(running.remoting, orders(10))
    assert check_store(root).exit_code == 0


def test_open_store_is_not_replaced(spark, broker):
    send(broker.remoting, orders(10))
    with pytest.raises(StoreLockedError, match="stop it first"):
        run_job(spark, "rebuild", rebuild.Config(store=broker.data_dir, replace=True))


def test_a_removed_lock_file_makes_no_store_a_closed_one(spark, broker):
    """The job made and locked another file of the name, and took the queues away from a living broker."""
    send(broker.remoting, orders(10))
    (broker.data_dir / "lock").unlink()
    config = rebuild.Config(store=broker.data_dir, replace=True)
    with pytest.raises(StoreLockedError, match="is open in a broker: stop it first"):
        rebuild.run(spark, config)


def test_damaged_record_becomes_a_filler_as_in_a_broker(spark, tmp_path):
    """A broker that makes its queues anew from a damaged log writes the same."""
    bench = StoreBench(tmp_path / "store", segment_bytes=1 << 20)
    placed = bench.append("t", *(f"body {n}".encode() for n in range(100)))
    bench.overwrite(placed[50][2] + 95, b"\xff\xff")
    bench.close(whole=False)
    root = tmp_path / "store"
    summary = run_job(spark, "rebuild", rebuild.Config(store=root, to=tmp_path / "views"))
    assert (summary.exit_code, summary.facts["damaged"], summary.facts["fillers"]) == (1, 1, 1)
    shutil.rmtree(root / "consumequeue")
    (root / "headrace" / "checkpoint.json").unlink()
    bench.open()
    bench.close(whole=False)
    assert tree(tmp_path / "views" / "consumequeue") == tree(root / "consumequeue")


def test_the_offset_of_a_damaged_last_record_is_not_given_out_again(spark, tmp_path):
    """A reader may have had it: the queue goes on behind its old files' end."""
    bench = StoreBench(tmp_path / "store", segment_bytes=1 << 20)
    placed = bench.append("t", *(b"body" for _ in range(10)))
    bench.append("u", b"behind it in the log")
    bench.overwrite(placed[9][2] + 95, b"\xff\xff")
    bench.close(whole=False)
    summary = run_job(spark, "rebuild", rebuild.Config(store=bench.root, replace=True))
    assert (summary.facts["damaged"], summary.facts["fillers"]) == (1, 1)
    bench.open()
    assert bench.append("t", b"new")[0][1] == 10
    bench.close(whole=False)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_swap_that_is_broken_off_anywhere_gives_no_offset_out_again(spark, tmp_path, monkeypatch, is_killed):
    """Between two renames there were no queues at all, and the broker began the damaged offset again."""
    changes = ("rename", "replace", "unlink", "rmdir")
    real = {name: getattr(os, name) for name in changes}
    swap, give_up = rebuild.Rebuild.swap, rebuild.Rebuild.give_up

    def broken_at(step):
        def broken(job):
            left = iter(range(step))

            def count(name):
                def counted(*args, **options):
                    if next(left, None) is None:
                        raise KeyboardInterrupt
                    return real[name](*args, **options)

                return counted

            with monkeypatch.context() as patched:
                for name in changes:
                    patched.setattr(os, name, count(name))
                swap(job)

        return broken

    ended = None
    for step in range(40):
        bench = StoreBench(tmp_path / f"store-{step}", segment_bytes=1 << 20)
        placed = bench.append("t", *(b"body" for _ in range(10)))
        bench.append("u", b"behind it in the log")
        bench.overwrite(placed[9][2] + 95, b"\xff\xff")
        bench.close(whole=False)
        monkeypatch.setattr(rebuild.Rebuild, "swap", broken_at(step))
        monkeypatch.setattr(rebuild.Rebuild, "give_up", (lambda job: None) if is_killed else give_up)
        with contextlib.suppress(KeyboardInterrupt):
            ended = rebuild.run(spark, rebuild.Config(store=bench.root, replace=True, what="queues"))
        bench.open()
        assert bench.append("t", b"new")[0][1] == 10, step
        bench.close(whole=False)
        if ended:
            break
    assert ended
    assert step > 2


def test_queue_offsets_cut_off_by_a_recovery_are_fillers(spark, tmp_path):
    """What was issued is not issued again (docs/formats/consume-queue.md)."""
    bench = StoreBench(tmp_path / "store", segment_bytes=1 << 20)
    bench.append("t", *(b"durable" for _ in range(20)))
    bench.append("t", *(b"torn" for _ in range(5)))
    bench.crash()
    last = max(found for found in _offsets(bench))
    bench.overwrite(last, bytes(300))
    bench.open()
    bench.append("t", b"after")
    bench.close(whole=False)
    run_job(spark, "rebuild", rebuild.Config(store=tmp_path / "store", to=tmp_path / "views"))
    assert tree(tmp_path / "views" / "consumequeue") == tree(tmp_path / "store" / "consumequeue")


def _offsets(bench):
    raw = (bench.root / "commitlog" / f"{0:020d}").read_bytes()
    at = raw.find(b"\xda\xa3\x20\xa7")
    while at >= 0:
        yield at - 4
        at = raw.find(b"\xda\xa3\x20\xa7", at + 4)


def test_a_log_that_grows_meanwhile_is_taken_up_to_one_end(spark, broker, tmp_path, monkeypatch):
    """Keys behind what the note says would be in the index twice, once a broker goes on there."""
    send(broker.remoting, orders(100))

    def look_and_send(summary, extents):
        send(broker.remoting, orders(50, first=100))

    monkeypatch.setattr(rebuild, "note_missing", look_and_send)
    summary = run_job(spark, "rebuild", rebuild.Config(store=broker.data_dir, to=tmp_path / "views"))
    assert summary.facts["keys"] == 100 * 3
    note = read_side_file(tmp_path / "views" / "index.json", "index", "")
    assert note.files[-1].end_offset < note.physical_offset


@pytest.mark.parametrize("split_bytes", [64 * 1024, SPLIT])
def test_a_topic_that_rocketmq_numbered_anew_keeps_its_messages(spark, tmp_path, split_bytes):
    """The broker knows by the order of offsets that the second topic counts; here the first had its queue again."""
    bench = StoreBench(tmp_path / "store", segment_bytes=1 << 20)
    bench.append("t", b"x")
    at = bench.store.log.end_offset
    bench.crash()
    old = [(offset, b"old %d" % offset + bytes(5_000)) for offset in range(30)]
    put_numbered(bench, at, [*old, *((offset, b"new %d" % offset) for offset in range(10))])
    bench.open()
    wanted = bench.messages("r")
    assert wanted == {offset: b"new %d" % offset for offset in range(10)}
    bench.close()
    before = tree(bench.root)
    config = rebuild.Config(store=bench.root, replace=True, split_bytes=split_bytes)
    with pytest.raises(HeadraceError, match=r"10 queue offsets are in the log twice, .*: nothing was replaced"):
        run_job(spark, "rebuild", config)
    assert {**tree(bench.root), "lock": b""} == {**before, "lock": b""}
    shutil.rmtree(bench.root / "consumequeue")  # what the error says
    bench.open()
    assert bench.messages("r") == wanted
    bench.close()


def test_only_what_is_asked_for(spark, store, tmp_path):
    run_job(spark, "rebuild", rebuild.Config(store=store, to=tmp_path / "queues", what="queues"))
    assert {path.name for path in (tmp_path / "queues").iterdir()} == {"consumequeue"}
    run_job(spark, "rebuild", rebuild.Config(store=store, to=tmp_path / "index", what="index"))
    assert {path.name for path in (tmp_path / "index").iterdir()} == {"index", "index.json"}


def test_dry_run_and_bad_input(spark, store, tmp_path):
    summary = run_job(spark, "rebuild", rebuild.Config(store=store, to=tmp_path / "views", dry_run=True))
    assert summary.facts["log_bytes"] > 0
    assert not (tmp_path / "views").exists()
    with pytest.raises(ConfigError, match="--store is missing"):
        rebuild.Config(to=tmp_path / "views")
    with pytest.raises(ConfigError, match="either --to"):
        rebuild.Config(store=store)
    config = rebuild.Config(store=store, to=tmp_path / "taken")
    (tmp_path / "taken" / "keys").mkdir(parents=True)  # by a run that began since
    with pytest.raises(ConfigError, match=r"--to .*/taken: another run has begun to write there: name a new folder"):
        run_job(spark, "rebuild", config)
    assert (tmp_path / "taken" / "keys").is_dir()
    (tmp_path / "rocketmq" / "commitlog").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"--replace is for a store of Headrace, and .*/rocketmq has no"):
        rebuild.Config(store=tmp_path / "rocketmq", replace=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name a new folder"):
        rebuild.Config(store=store, to=tmp_path / "file")
