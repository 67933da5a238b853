"""The archive job on a real Spark and a real broker. Ref: docs/spark/jobs/archive.md, spark.md 4.1."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.errors import ConfigError
from headrace.spark.errors import DataLossError
from headrace.spark.jobs import archive, lake, manifest, run_job, verify
from headrace.spark.jobs.archive_files import can_bloom
from tests.support.job_stores import BEGIN, JobStore
from tests.support.spark_jobs import Sent, archived, contents, orders, send

KIB = 1024


def expected(messages):
    """What an archive of these messages holds; queue offsets count within each topic and queue."""
    counts: dict[tuple[str, int], int] = {}
    rows = []
    for message in messages:
        key = (message.topic, message.queue_id)
        rows.append((message.topic, message.queue_id, counts.get(key, 0), message.body))
        counts[key] = counts.get(key, 0) + 1
    return sorted(rows)


@pytest.fixture
def config(broker, tmp_path):
    return archive.Config(servers=broker.registry, to=tmp_path / "archive", split_bytes=64 * KIB)


def test_second_run_adds_only_what_is_new(spark, broker, config):
    """spark.md 4.1: exactly once, continued at the manifest's offsets."""
    first, second = orders(2000) + orders(500, topic="flights"), orders(300, first=2000)
    send(broker.remoting, first)
    summary = run_job(spark, "archive", config)
    assert (summary.exit_code, summary.facts["messages"], summary.facts["epoch"]) == (0, 2500, 1)
    send(broker.remoting, second)
    assert run_job(spark, "archive", config).facts["messages"] == 300
    nothing = run_job(spark, "archive", config)
    assert (nothing.facts["messages"], nothing.facts["epoch"], nothing.facts["archived_messages"]) == (0, 2, 2800)
    assert contents(archived(config.to)) == expected(first + second)


def test_rows_hold_all_that_a_message_is(spark, broker, config):
    message = Sent("orders", b"body \xff", 2, {"TAGS": "t", "KEYS": "k1 k2", "UNIQ_KEY": "U", "region": "eu"}, 7)
    send(broker.remoting, [message])
    run_job(spark, "archive", config)
    (row,) = archived(config.to)
    assert (row["topic"], row["queue_id"], row["flag"], row["body"]) == ("orders", 2, 7, b"body \xff")
    assert (row["tags"], row["keys"], row["unique_key"]) == ("t", "k1 k2", "U")
    assert dict(row["properties"])["region"] == "eu"
    assert row["born_ts"].timestamp() == 1_700_000_000
    assert set(archive.DEFAULT_COLUMNS) == set(row)


def test_layout_order_and_options_of_files(spark, broker, config):
    """spark.md 4.1: folders, order in a file, codec, statistics, Bloom filters, sizes and checksums."""
    send(broker.remoting, orders(1500) + orders(300, topic="flights"))
    run_job(spark, "archive", config)
    found = manifest.load(config.to)
    for file in found.files:
        folder, day, at_broker, name = file.path.split("/")
        assert (folder[:6], day[:3], at_broker[:7]) == ("topic=", "dt=", "broker=")
        assert name == f"part-{file.start:020d}-{file.end:020d}.parquet"
        opened = pq.ParquetFile(found.locate(file))
        keys = opened.read(columns=["topic", "queue_id", "queue_offset"]).to_pydict()
        order = list(zip(*keys.values(), strict=True))
        assert order == sorted(order)
        row_group = opened.metadata.row_group(0)
        columns = {leaf.path_in_schema: leaf for leaf in map(row_group.column, range(row_group.num_columns))}
        assert columns["topic"].compression == "ZSTD"
        assert columns["log_offset"].statistics.has_min_max
        assert not columns["body"].is_stats_set
    assert {file.path.split("/")[0] for file in found.files} == {"topic=orders", "topic=flights"}
    assert can_bloom()


def test_each_run_chooses_the_compression_of_its_files(spark, broker, config):
    """A later run may choose another: readers ask each file."""
    used = []
    for number, chosen in enumerate((replace(config, compression="snappy"), replace(config, compression_level=9))):
        send(broker.remoting, orders(100, first=100 * number))
        run_job(spark, "archive", chosen)
        found = manifest.load(config.to)
        footer = pq.ParquetFile(found.locate(found.epochs[-1].files[0])).metadata
        used.append(footer.row_group(0).column(0).compression)
    assert used == ["SNAPPY", "ZSTD"]
    assert contents(archived(config.to)) == expected(orders(200))


@pytest.mark.parametrize("codec", ["snappy", "lz4", "none"])
def test_a_level_of_another_codec_than_zstd_is_refused(tmp_path, codec):
    with pytest.raises(ConfigError, match=f"--compression-level is for zstd: --compression {codec} has none"):
        archive.Config(servers="a:1", to=tmp_path / "archive", compression=codec, compression_level=3)


def test_hour_layout_has_all_topics_in_one_file(spark, broker, config):
    messages = orders(200) + orders(100, topic="flights")
    send(broker.remoting, messages)
    run_job(spark, "archive", replace(config, layout="hour", split_bytes=1 << 20))
    found = manifest.load(config.to)
    assert {tuple(part.split("=")[0] for part in file.path.split("/")[:3]) for file in found.files} == {
        ("dt", "hour", "broker")
    }
    assert contents(archived(config.to)) == expected(messages)


def test_spark_reads_the_files_of_the_manifest(spark, broker, config):
    send(broker.remoting, orders(400))
    run_job(spark, "archive", config)
    found = manifest.load(config.to)
    frame = spark.read.parquet(*(found.locate(file) for file in found.files))
    assert frame.count() == 400
    assert frame.where("tags = 't1'").count() == len([n for n in range(400) if n % 3 == 1])


def test_topics_are_selected_and_stay_selected(spark, broker, config):
    send(broker.remoting, orders(50) + orders(30, topic="flights"))
    chosen = replace(config, topics=("flights",))
    assert run_job(spark, "archive", chosen).facts["messages"] == 30
    with pytest.raises(ConfigError, match="was begun with --topics flights"):
        run_job(spark, "archive", config)


def test_missing_topic_names_the_nearest(spark, broker, config, tmp_path):
    send(broker.remoting, orders(5))
    wrong = replace(config, topics=("ordres",))
    with pytest.raises(ConfigError, match="did you mean 'orders'"):
        run_job(spark, "archive", wrong)
    broker.stop()
    with pytest.raises(ConfigError, match="did you mean 'orders'"):
        run_job(spark, "archive", replace(wrong, servers="", store=broker.data_dir))
    assert not config.to.exists()


@pytest.mark.parametrize("layout", ["topic", "hour"])
def test_a_time_that_no_column_holds_is_archived_as_null(spark, tmp_path, layout):
    """A broker whose clock stood in the year 11476; ``dt`` is what Spark calls the folder of such rows."""
    made = JobStore(tmp_path / "store")
    made.put("orders", b"now")
    made.go_to(300_000_000_000_000)
    made.put("orders", b"far")
    made.put("orders", b"farther")
    made.close()
    config = archive.Config(store=made.folder, to=tmp_path / "archive", layout=layout)
    assert run_job(spark, "archive", config).facts["messages"] == 3
    rows = {row["body"]: row["store_ts"] for row in archived(config.to)}
    assert rows.keys() == {b"now", b"far", b"farther"}
    assert [body for body, time in rows.items() if time is not None] == [b"now"]
    found = manifest.load(config.to)
    assert {"dt=__HIVE_DEFAULT_PARTITION__" in file.path for file in found.files} == {True, False}
    assert [file.rows for file in found.select(until=BEGIN + 1)] == [1]
    assert run_job(spark, "verify", verify.Config(archive=config.to)).exit_code == 0


def test_killed_run_is_finished_by_the_next(spark, broker, config, monkeypatch):
    """A driver that dies before the commit: the next run carries out the same plan, nothing is there twice."""
    messages = orders(1000)
    send(broker.remoting, messages)

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(archive, "write_epoch", die)
    with pytest.raises(KeyboardInterrupt):
        run_job(spark, "archive", config)
    monkeypatch.undo()
    written = set(manifest.data_files(config.to))
    assert written
    with pytest.raises(ConfigError, match="run headrace job archive again"):
        manifest.load(config.to)
    send(broker.remoting, orders(200, first=1000))
    summary = run_job(spark, "archive", config)
    assert summary.facts["messages"] == 1000
    assert any("had begun epoch 1 and not finished it" in note for note in summary.notes)
    assert set(manifest.data_files(config.to)) == written == {file.path for file in manifest.load(config.to).files}
    assert run_job(spark, "archive", config).facts["messages"] == 200
    assert contents(archived(config.to)) == expected(messages + orders(200, first=1000))


@pytest.mark.parametrize("files_gone", [1, 2])
def test_killed_run_whose_range_is_gone_is_finished_without_it(spark, broker, tmp_path, monkeypatch, files_gone):
    """Retention has removed some or all of what the killed run had planned."""
    send(broker.remoting, [Sent("big", bytes(60_000), number % 4) for number in range(20)])
    broker.stop()
    config = archive.Config(
        store=broker.data_dir, to=tmp_path / "archive", split_bytes=64 * KIB, max_bytes=(1 << 20) + 100_000,
        topics=("big",),
    )  # fmt: skip

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(archive, "write_epoch", die)
    with pytest.raises(KeyboardInterrupt):
        run_job(spark, "archive", config)
    monkeypatch.undo()
    segments = sorted((broker.data_dir / "commitlog").iterdir())
    shutil.copy(segments[-1], segments[-1].with_name(f"{8 << 20:020d}"))
    for path in segments[:files_gone]:
        path.unlink()
    monkeypatch.setattr(archive, "require_topics", None)  # the topic may be deleted by now
    with pytest.raises(DataLossError, match="--on-data-loss continue"):
        run_job(spark, "archive", config)
    summary = run_job(spark, "archive", replace(config, on_data_loss="continue"))
    assert summary.facts["missing_bytes"] >= 1 << 20
    assert (summary.facts["messages"] > 0) == (files_gone == 1)
    assert len(archived(config.to)) == summary.facts["messages"]
    assert [epoch.epoch for epoch in manifest.load(config.to).epochs] == [1]


def test_two_runs_of_one_range_write_the_same_bytes(spark, broker, config, tmp_path):
    send(broker.remoting, orders(500))
    other = replace(config, to=tmp_path / "other")
    for each in (config, other):
        run_job(spark, "archive", each)
    first, second = manifest.load(config.to).files, manifest.load(other.to).files
    assert [(file.path, file.crc32) for file in first] == [(file.path, file.crc32) for file in second]


def test_store_folder_and_brokers_give_the_same_rows(spark, broker, config, tmp_path):
    send(broker.remoting, orders(300))
    run_job(spark, "archive", config)
    broker.stop()
    offline = archive.Config(store=broker.data_dir, to=tmp_path / "offline")
    run_job(spark, "archive", offline)
    assert contents(archived(offline.to)) == contents(archived(config.to))
    with pytest.raises(ConfigError, match="go on with --store DIR --broker broker-a"):
        run_job(spark, "archive", replace(offline, to=config.to))


def test_damaged_record_is_counted_and_the_rest_archived(spark, broker, tmp_path):
    send(broker.remoting, orders(300))
    broker.stop()
    segment = broker.data_dir / "commitlog" / f"{0:020d}"
    raw = segment.read_bytes()
    at = raw.index(b"orders 150")
    start = raw.rindex(b"\xda\xa3\x20\xa7", 0, at)
    raw = raw[:start] + b"\0\0\0\0" + raw[start + 4 :]
    segment.write_bytes(raw.replace(b"orders 160", b"orders 16O"))  # a wrong magic, and a wrong checksum
    config = archive.Config(store=broker.data_dir, to=tmp_path / "archive")
    summary = run_job(spark, "archive", config)
    assert (summary.exit_code, summary.facts["messages"], summary.facts["damaged"]) == (1, 298, 2)


def test_retention_passed_is_an_error_or_counted(spark, broker, tmp_path):
    """What is gone before it was archived is never left out in silence."""
    send(broker.remoting, [Sent("big", bytes(60_000), number % 4) for number in range(20)])
    broker.stop()
    config = archive.Config(store=broker.data_dir, to=tmp_path / "archive", max_bytes=100_000, split_bytes=64 * KIB)
    run_job(spark, "archive", config)
    send_more = broker.data_dir / "commitlog" / f"{0:020d}"
    send_more.unlink()
    rest = replace(config, max_bytes=0)
    with pytest.raises(DataLossError, match="are gone"):
        run_job(spark, "archive", rest)
    summary = run_job(spark, "archive", replace(rest, on_data_loss="continue"))
    assert summary.facts["missing_bytes"] > 0
    assert any("removed before" in note for note in summary.notes)
    manifest.load(config.to)


def test_another_store_is_refused(spark, broker, config, tmp_path):
    send(broker.remoting, orders(100))
    run_job(spark, "archive", config)
    noted = config.to / manifest.FOLDER / manifest.epoch_name(1)
    payload = json.loads(noted.read_text())
    del payload["crc32"]
    for covered in payload["brokers"].values():
        covered["store_id"] = "0" * 32
    manifest.write_json(noted, manifest.seal(payload))
    with pytest.raises(ConfigError, match="another store"):
        run_job(spark, "archive", config)


def test_changed_file_is_refused_before_anything_is_added(spark, broker, config):
    send(broker.remoting, orders(100))
    run_job(spark, "archive", config)
    (config.to / manifest.load(config.to).files[0].path).unlink()
    with pytest.raises(manifest.ArchiveError, match="cannot be read"):
        run_job(spark, "archive", config)


@pytest.mark.parametrize("file", ["letter.txt", "_manifest"])
def test_folder_that_is_no_archive_is_refused(spark, broker, config, file):
    config.to.mkdir()
    (config.to / file).write_text("dear")
    with pytest.raises(ConfigError, match="is no archive"):
        run_job(spark, "archive", config)


def test_folder_that_cannot_be_written_is_one_clear_error(spark, broker, config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be (written|read)"):
        run_job(spark, "archive", replace(config, to=tmp_path / "file" / "archive"))


def test_dry_run_writes_nothing(spark, broker, config):
    send(broker.remoting, orders(100))
    summary = run_job(spark, "archive", replace(config, dry_run=True))
    assert summary.facts["ranges"] == 1
    assert summary.facts["log_bytes"] > 0
    assert not config.to.exists()


def test_delta_table_follows_the_manifest(spark, broker, config):
    """spark.md 4.1: one commit for each epoch, never twice."""
    deltalake = pytest.importorskip("deltalake")
    config = replace(config, table_format="delta")
    send(broker.remoting, orders(200))
    assert run_job(spark, "archive", config).facts["table_version"] == 1
    send(broker.remoting, orders(100, first=200))
    run_job(spark, "archive", config)
    run_job(spark, "archive", config)
    table = deltalake.DeltaTable(str(config.to))
    assert table.version() == 1
    assert table.transaction_version("headrace-archive") == 2
    assert table.to_pyarrow_table(columns=["topic"]).num_rows == 300
    (config.to / manifest.FOLDER / manifest.epoch_name(2)).unlink()
    with pytest.raises(manifest.ArchiveError, match="has epoch 2, the archive ends with epoch 1"):
        run_job(spark, "archive", config)
    assert len(manifest.load(config.to).epochs) == 1


def test_delta_commit_that_was_missed_is_caught_up(spark, broker, config):
    deltalake = pytest.importorskip("deltalake")
    send(broker.remoting, orders(200))
    run_job(spark, "archive", config)
    send(broker.remoting, orders(100, first=200))
    assert run_job(spark, "archive", replace(config, table_format="delta")).facts["table_version"] == 2
    assert deltalake.DeltaTable(str(config.to)).to_pyarrow_table(columns=["topic"]).num_rows == 300


def test_iceberg_table_follows_the_manifest(spark, broker, config, tmp_path):
    """spark.md 4.1: files of an epoch are added once; all of it lies in the archive, whatever its path looks like."""
    pytest.importorskip("pyiceberg.catalog.sql")
    parent = tmp_path / "späte #1 ?x=%41"
    config = replace(config, to=parent / "archive", table_format="iceberg")
    send(broker.remoting, orders(200))
    run_job(spark, "archive", config)
    send(broker.remoting, orders(100, first=200))
    assert run_job(spark, "archive", config).facts["table_version"] == 2
    run_job(spark, "archive", config)
    folder = config.to / "_iceberg"
    assert sorted(path.name for path in folder.iterdir()) == ["catalog.db", "warehouse"]
    assert list(tmp_path.iterdir()) == [parent]
    catalog = lake.open_catalog(folder)
    try:
        table = catalog.load_table("headrace.messages")
        assert table.scan(selected_fields=("topic",)).to_arrow().num_rows == 300
        assert len(table.snapshots()) == 2
    finally:
        catalog.close()


def test_leftovers_in_the_temporary_folder_are_removed(spark, broker, config):
    send(broker.remoting, orders(10))
    (config.to / manifest.FOLDER).mkdir(parents=True)
    (config.to / manifest.TEMPORARY / "old").mkdir(parents=True)
    run_job(spark, "archive", config)
    assert not (config.to / manifest.TEMPORARY).exists()
    shutil.rmtree(Path(config.to))
