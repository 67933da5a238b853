"""The replay job on a real Spark and a real broker. Ref: docs/spark/jobs/replay.md, spark.md 4.2."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from headrace.errors import ConfigError
from headrace.spark.jobs import archive, manifest, replay, run_job
from tests.support.spark_jobs import archived, orders, send


@pytest.fixture
def kept(spark, broker, tmp_path):
    """An archive of two topics; returns its folder."""
    send(broker.remoting, orders(600) + orders(200, topic="flights"))
    config = archive.Config(servers=broker.registry, to=tmp_path / "archive", split_bytes=64 << 10)
    run_job(spark, "archive", config)
    return config.to


def received(spark, broker, tmp_path, *topics):
    """Every row of some topics, by way of another archive."""
    config = archive.Config(servers=broker.registry, to=tmp_path / f"of-{'-'.join(topics)}", topics=topics)
    run_job(spark, "archive", config)
    return archived(config.to)


def by_queue(rows, key):
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["queue_offset"]):
        found[row["queue_id"]].append(key(row))
    return dict(found)


def test_replay_keeps_content_and_the_order_of_queues(spark, broker, kept, tmp_path):
    config = replay.Config(archive=kept, servers=broker.registry, topics=("orders",), to="again")
    summary = run_job(spark, "replay", config)
    assert (summary.facts["messages"], summary.facts["stored"], summary.facts["duplicates"]) == (600, 600, 0)
    before = [row for row in archived(kept) if row["topic"] == "orders"]
    after = received(spark, broker, tmp_path, "again")
    shown = ("body", "tags", "keys", "unique_key", "flag", "born_ts")
    assert by_queue(after, lambda row: [row[name] for name in shown]) == by_queue(
        before, lambda row: [row[name] for name in shown]
    )
    origins = {dict(row["properties"])["REPLAY_OF"] for row in after}
    assert origins == {f"{row['broker']}:{row['log_offset']}" for row in before}


def test_repeat_adds_nothing_also_when_the_archive_has_grown(spark, broker, kept, tmp_path):
    config = replay.Config(archive=kept, servers=broker.registry, topics=("orders",), to="again")
    run_job(spark, "replay", config)
    repeated = run_job(spark, "replay", config)
    assert (repeated.facts["stored"], repeated.facts["duplicates"]) == (0, 600)
    send(broker.remoting, orders(50, first=600))
    run_job(spark, "archive", archive.Config(servers=broker.registry, to=kept))
    grown = run_job(spark, "replay", config)
    assert (grown.facts["stored"], grown.facts["duplicates"]) == (50, 600)
    anew = run_job(spark, "replay", replace(config, txn="second time"))
    assert anew.facts["stored"] == 650


def test_task_that_failed_half_way_leaves_no_duplicates(spark, broker, kept, tmp_path):
    """What a crash leaves is the beginning of each part; the same replay goes on behind it."""
    config = replay.Config(archive=kept, servers=broker.registry, topics=("flights",), to="again")
    found = manifest.load(kept)
    files = found.select(topics=("flights",))
    tasks = replay.make_tasks(spark, config, found, ["flights"], files)
    from headrace.spark.jobs.replay_rows import read_rows, to_messages
    from headrace.spark.sink import PartitionWriter

    (task,) = tasks
    first = next(iter(read_rows(task)))
    first = first.slice(0, first.num_rows - 3)
    PartitionWriter(task.plan, task.txn, 0, task.part).write(iter([to_messages(first, task)]))
    summary = run_job(spark, "replay", config)
    assert summary.facts["messages"] == 200
    assert summary.facts["duplicates"] == first.num_rows
    rows = received(spark, broker, tmp_path, "again")
    assert sorted(row["body"] for row in rows) == sorted(message.body for message in orders(200, topic="flights"))


def test_times_mapping_parts_and_new_keys(spark, broker, kept, tmp_path):
    rows = [row for row in archived(kept) if row["topic"] == "orders"]
    middle = sorted(row["store_ts"] for row in rows)[300]
    since = int(middle.timestamp() * 1000)
    wanted = [row for row in rows if row["store_ts"].timestamp() * 1000 >= since]
    config = replay.Config(
        archive=kept,
        servers=broker.registry,
        topics=("orders",),
        map=("orders=copy",),
        since=since,
        keys="new",
        parts=2,
    )
    assert run_job(spark, "replay", config).facts["stored"] == len(wanted)
    after = received(spark, broker, tmp_path, "copy")
    assert sorted(row["body"] for row in after) == sorted(row["body"] for row in wanted)
    assert {row["unique_key"] for row in after} == {f"{row['broker']}:{row['log_offset']}" for row in wanted}


def test_rate_is_a_limit(spark, broker, kept):
    config = replay.Config(archive=kept, servers=broker.registry, topics=("flights",), to="slow", rate=100)
    assert run_job(spark, "replay", config).seconds >= 1.5


def test_dry_run_sends_nothing(spark, broker, kept):
    config = replay.Config(archive=kept, servers=broker.registry, to="again", dry_run=True)
    assert run_job(spark, "replay", config).facts["messages"] == 800
    assert run_job(spark, "replay", replace(config, dry_run=False)).facts["stored"] == 800


def test_bad_input_is_one_clear_error(spark, broker, kept, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'orders'"):
        run_job(spark, "replay", replay.Config(archive=kept, servers=broker.registry, topics=("order",)))
    with pytest.raises(ConfigError, match="is not an archive"):
        run_job(spark, "replay", replay.Config(archive=tmp_path, servers=broker.registry))
    narrow = archive.Config(servers=broker.registry, to=tmp_path / "narrow", columns=("topic", "body"))
    run_job(spark, "archive", narrow)
    with pytest.raises(ConfigError, match="made without the column"):
        run_job(spark, "replay", replay.Config(archive=narrow.to, servers=broker.registry, to="again"))
    with pytest.raises(ConfigError, match="--rate and --speed"):
        replay.Config(archive=kept, servers=broker.registry, rate=1, speed=1)
