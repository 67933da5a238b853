"""The verify job: it must find what ``headrace store check`` finds. Ref: docs/spark/jobs/verify.md, spark.md 4.9."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from headrace import testing
from headrace.errors import ConfigError
from headrace.format.record import check
from headrace.spark.jobs import archive, manifest, run_job, verify
from headrace.store.check import check_store
from tests.support.spark_jobs import orders, send

SEGMENT = 1 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of two segments that was closed."""
    root = tmp_path_factory.mktemp("verify") / "store"
    with testing.broker(store__data_dir=root, store__durability="async") as running:
        send(running.remoting, orders(4000) + orders(2000, topic="flights"))
    return root


@pytest.fixture
def harmed(store, tmp_path):
    return shutil.copytree(store, tmp_path / "store")


def records(root, segment=0):
    """(physical offset, size) of each record of one segment."""
    raw = (root / "commitlog" / f"{segment:020d}").read_bytes()
    found, at = [], 0
    while (size := check(raw, at, segment + at)) > 0:
        found.append((segment + at, size))
        at += size
    return found


def write_at(root, physical_offset, data):
    path = root / "commitlog" / f"{physical_offset // SEGMENT * SEGMENT:020d}"
    with path.open("r+b") as file:
        file.seek(physical_offset % SEGMENT)
        file.write(data)


def flip_body(root):
    offset, size = records(root)[100]
    write_at(root, offset + size // 2, b"\xff\xfe")


def break_magic(root):
    write_at(root, records(root)[1000][0] + 4, b"\0")


def break_size(root):
    write_at(root, records(root)[1200][0], b"\0\0\x7f\0")


def zero_several(root):
    write_at(root, records(root)[500][0] + 10, bytes(5000))


def break_first(root):
    write_at(root, 8, b"\xff\xff")


def break_last(root):
    write_at(root, records(root, SEGMENT)[-1][0] + 40, b"\xff" * 8)


def break_blank(root):
    offset, size = records(root)[-1]
    write_at(root, offset + size, b"\1\1\1\1\1")


def break_tail(root):
    offset, size = records(root, SEGMENT)[-1]
    write_at(root, offset + size + 50, b"garbage")


def move_record(root):
    write_at(root, records(root)[700][0] + 28, b"\0\0\0\0\0\0\0\1")


def clear_entries(root):
    path = min((root / "consumequeue" / "orders" / "1").iterdir())
    with path.open("r+b") as file:
        file.seek(20 * 30)
        file.write(bytes(40))


def redirect_entry(root):
    path = min((root / "consumequeue" / "orders" / "1").iterdir())
    with path.open("r+b") as file:
        file.seek(20 * 50 + 3)
        file.write(b"\x09")


def shorten_queue_file(root):
    path = min((root / "consumequeue" / "orders" / "2").iterdir())
    path.write_bytes(path.read_bytes()[:-20])


def remove_queue(root):
    shutil.rmtree(root / "consumequeue" / "orders" / "3")


def remove_first_segment(root):
    (root / "commitlog" / f"{0:020d}").unlink()


def break_side_file(root):
    (root / "headrace" / "checkpoint.json").write_text("x")


def break_producers(root):
    (root / "headrace" / "producers.json").write_text("x")


def break_backup(root):
    (root / "headrace" / "store.json.bak").write_text("x")


def remove_identity(root):
    (root / "headrace" / "store.json").unlink()


def shorten_rocketmq_checkpoint(root):
    (root / "checkpoint").write_bytes(bytes(100))


def shorten_segment(root):
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: SEGMENT // 2])


def empty_last_segment(root):
    (root / "commitlog" / f"{SEGMENT:020d}").write_bytes(b"")


def remove_end(root):
    for path in (root / "commitlog").iterdir():
        if int(path.name) >= SEGMENT:
            path.unlink()


def remove_log(root):
    for path in (root / "commitlog").iterdir():
        path.unlink()


HARMS = [
    flip_body, break_magic, break_size, zero_several, break_first, break_last, break_blank, break_tail, clear_entries,
    redirect_entry, shorten_queue_file, remove_queue, remove_first_segment, break_side_file, break_producers,
    break_backup, remove_identity, shorten_rocketmq_checkpoint, shorten_segment, empty_last_segment,
    remove_end, remove_log,
]  # fmt: skip


def damage_of(summary):
    rows = next((table.rows for table in summary.tables if table.key == "damage"), ())
    return sorted((row[0], row[2], row[4], row[5], row[6]) for row in rows)


def verify_store(spark, root, **more):
    return run_job(spark, "verify", verify.Config(store=root, split_bytes=256 << 10, **more))


def test_whole_store_is_whole(spark, store):
    summary = verify_store(spark, store)
    report = check_store(store)
    assert (summary.exit_code, report.exit_code) == (0, 0)
    assert summary.facts["records"] == report.log.records
    assert summary.facts["queues"] == report.queues.queues
    assert damage_of(summary) == []


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_finds_what_store_check_finds(spark, harmed, harm):
    harm(harmed)
    summary, report = verify_store(spark, harmed), check_store(harmed)
    assert summary.exit_code == report.exit_code
    assert damage_of(summary) == sorted(
        (found.kind, found.physical_offset, found.topic, found.queue_id, found.queue_offset) for found in report.damage
    )


def test_misplaced_record_is_named(spark, harmed):
    offset = records(harmed)[700][0]
    move_record(harmed)
    summary = verify_store(spark, harmed)
    assert summary.exit_code == check_store(harmed).exit_code == 1
    assert offset in {found[1] for found in damage_of(summary)}


def test_every_split_finds_the_same(spark, harmed):
    """spark.md 5.4.2, for damage: where a log is cut does not matter."""
    for harm in (break_size, zero_several, flip_body, redirect_entry):  # from the end on: each looks for its place
        harm(harmed)
    found = [
        damage_of(run_job(spark, "verify", verify.Config(store=harmed, split_bytes=size)))
        for size in (64 << 10, 100_000, 1 << 30)
    ]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 10


def test_over_the_network_damage_is_named_by_its_own_fields(spark, harmed):
    offset = records(harmed)[100][0]
    with testing.broker(store__data_dir=harmed) as running:
        write_at(harmed, offset + 60, b"\xff\xfe\xfd")
        summary = run_job(spark, "verify", verify.Config(servers=running.registry))
    assert summary.exit_code == 1
    assert offset in {found[1] for found in damage_of(summary) if found[0] == "damaged_record"}


def test_living_broker_is_whole(spark, broker):
    send(broker.remoting, orders(2000))
    assert verify_store(spark, broker.data_dir).exit_code == 0
    assert run_job(spark, "verify", verify.Config(servers=broker.registry)).exit_code == 0


def test_second_store_is_compared(spark, store, harmed):
    assert verify_store(spark, store, against=harmed).exit_code == 0
    offset, _ = records(harmed)[3000]
    write_at(harmed, offset + 50, b"\1")
    summary = verify_store(spark, store, against=harmed)
    assert summary.exit_code == 1
    assert [found[:2] for found in damage_of(summary)] == [("differing_block", offset // SEGMENT * SEGMENT)]


def test_what_cannot_be_compared_is_said_before_the_work(spark, store, harmed, tmp_path):
    """It came behind all else, whose findings were not told: of a damaged store 'not checked' was all."""
    with pytest.raises(ConfigError, match=r"--against .* is no store: it has no folder commitlog"):
        verify.Config(store=store, against=tmp_path)
    flip_body(harmed)
    (tmp_path / "other" / "commitlog").mkdir(parents=True)
    (tmp_path / "other" / "commitlog" / f"{0:020d}").write_bytes(bytes(SEGMENT))
    (tmp_path / "other" / "commitlog" / f"{SEGMENT:020d}").write_bytes(bytes(2 * SEGMENT))
    summary = verify_store(spark, harmed, against=tmp_path / "other")
    assert (summary.exit_code, summary.facts.keys()) == (2, {"status", "error"})


def test_logs_without_a_common_range_are_not_whole(spark, store, harmed):
    """Nothing was compared, so nothing can be said."""
    assert verify_store(spark, store, against=harmed).facts["compared_bytes"] > SEGMENT
    (harmed / "commitlog" / f"{0:020d}").unlink()
    shutil.rmtree(harmed / "headrace")
    later = harmed / "commitlog" / f"{9 * SEGMENT:020d}"
    raw = bytearray((harmed / "commitlog" / f"{SEGMENT:020d}").read_bytes())
    size = int.from_bytes(raw[:4])
    raw[28:36] = (9 * SEGMENT).to_bytes(8)
    later.write_bytes(raw[:size].ljust(SEGMENT, b"\0"))
    (harmed / "commitlog" / f"{SEGMENT:020d}").unlink()
    summary = verify_store(spark, store, against=harmed)
    assert (summary.exit_code, summary.facts["status"], summary.facts["compared_bytes"]) == (2, "not checked", 0)
    assert any("nothing was compared" in note for note in summary.notes)


def test_brokers_that_are_away_cannot_be_checked(spark):
    """Exit code 1 would say that the log is damaged."""
    summary = run_job(spark, "verify", verify.Config(servers="127.0.0.1:1"))
    assert (summary.exit_code, summary.facts["status"]) == (2, "not checked")
    assert "127.0.0.1:1" in summary.facts["error"]


def test_error_of_a_task_is_not_damage(spark, store, monkeypatch):
    """Retention removes a file between the plan and the task."""
    import headrace.spark.jobs.verify as verify_job

    run_tasks = verify_job.run_tasks

    def lose(spark, tasks):
        return run_tasks(spark, [replace(task, split=replace(task.split, end=task.split.end << 9)) for task in tasks])

    monkeypatch.setattr(verify_job, "run_tasks", lose)
    summary = verify_store(spark, store)
    assert summary.exit_code == 2
    assert "ends at physical offset" in summary.facts["error"]


def test_key_index_is_compared(spark, store, harmed):
    """spark.md 4.9: index keys resolve."""
    assert verify_store(spark, store, index=True).exit_code == 0
    (path,) = (harmed / "index").iterdir()
    first_entry = 40 + 4 * 5_000_000 + 20
    with path.open("r+b") as file:
        file.seek(first_entry + 20 * 700)
        entry = file.read(20)
        file.seek(first_entry + 20 * 700)
        file.write(bytes(4) + entry[4:])
    summary = verify_store(spark, harmed, index=True)
    offset = int.from_bytes(entry[4:12])
    assert summary.exit_code == 1
    assert {found[:2] for found in damage_of(summary)} == {("index_file", offset)}
    flip_body(harmed)
    assert len(damage_of(verify_store(spark, harmed, index=True))) == 4
    path.unlink()
    assert ("index_file", 319) in {found[:2] for found in damage_of(verify_store(spark, harmed, index=True))}


def test_what_is_no_store_cannot_be_checked(spark, tmp_path):
    with pytest.raises(ConfigError, match="is no store"):
        verify_store(spark, tmp_path)


# -- archives ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(spark, store, tmp_path):
    config = archive.Config(store=store, to=tmp_path / "archive", split_bytes=256 << 10)
    run_job(spark, "archive", config)
    return config.to


def kinds(spark, root):
    summary = run_job(spark, "verify", verify.Config(archive=root))
    return summary.exit_code, {row[0] for table in summary.tables for row in table.rows}


def test_whole_archive_is_whole(spark, kept):
    assert kinds(spark, kept) == (0, set())


def test_flipped_byte_in_an_archive_is_found(spark, kept):
    path = kept / manifest.load(kept).files[1].path
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert kinds(spark, kept) == (1, {"file_checksum"})


def test_missing_and_cut_files_are_found(spark, kept):
    first, second = (kept / file.path for file in manifest.load(kept).files[:2])
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    assert kinds(spark, kept) == (1, {"missing_file", "file_size"})


def test_file_with_other_rows_than_noted_is_found(spark, kept):
    noted = kept / manifest.FOLDER / manifest.epoch_name(1)
    payload = json.loads(noted.read_text())
    del payload["crc32"]
    payload["files"][0]["rows"] += 1
    payload["files"][1]["min_ts"] -= 5
    manifest.write_json(noted, manifest.seal(payload))
    assert kinds(spark, kept) == (1, {"rows", "times"})


def test_unlisted_file_is_no_damage(spark, kept):
    path = kept / manifest.load(kept).files[0].path
    shutil.copy(path, path.with_name("part-stray.parquet"))
    assert kinds(spark, kept) == (0, {"unlisted_file"})


def test_a_plan_that_refuses_the_next_run_is_damage(spark, store, kept):
    plan = kept / manifest.FOLDER / manifest.PLAN
    plan.write_text("{")
    assert kinds(spark, kept) == (1, {"damaged_plan"})
    with pytest.raises(manifest.ArchiveError, match="is damaged"):
        run_job(spark, "archive", archive.Config(store=store, to=kept))
    manifest.write_json(plan, manifest.seal({
        "version": 1, "epoch": 2, "selection": {}, "splits": [], "starts": {}, "segment_bytes": {}, "store_ids": {},
    }))  # fmt: skip
    assert kinds(spark, kept) == (0, {"unfinished_epoch"})


def test_damaged_manifest_cannot_be_checked(spark, kept):
    noted = kept / manifest.FOLDER / manifest.epoch_name(1)
    noted.write_text(noted.read_text().replace('"rows": ', '"rows": 1'))
    summary = run_job(spark, "verify", verify.Config(archive=kept))
    assert summary.exit_code == 2
    assert "fails its checksum" in summary.facts["error"]
