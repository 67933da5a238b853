"""The replay job on a real Spark and a real broker. Ref: docs/spark/jobs/replay.md, spark.md 4.2."""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace import testing
from headrace.errors import ConfigError, HeadraceError
from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import RequestCode
from headrace.spark.jobs import archive, manifest, replay, run_job
from tests.spark.conftest import delete_topic, make_topic, wait_registered
from tests.support.job_stores import BEGIN, HOUR, JobStore
from tests.support.messages import publish_lines, read_bodies
from tests.support.sink import read_topic
from tests.support.spark_jobs import Sent, archived, flip_page_byte, orders, send


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


def test_a_target_that_was_deleted_gets_everything_again(spark, broker, kept):
    """Whoever deletes it for the replay would find nothing in it, and be told that all went well."""
    config = replay.Config(archive=kept, servers=broker.registry, topics=("flights",), to="again")
    run_job(spark, "replay", config)
    delete_topic(broker, "again")
    anew, repeated = run_job(spark, "replay", config), run_job(spark, "replay", config)
    assert (anew.facts["stored"], anew.facts["duplicates"]) == (200, 0)
    assert (repeated.facts["stored"], repeated.facts["duplicates"]) == (0, 200)


def test_task_that_failed_half_way_leaves_no_duplicates(spark, broker, kept, tmp_path):
    """What a crash leaves is the beginning of each part; the same replay goes on behind it."""
    config = replay.Config(archive=kept, servers=broker.registry, topics=("flights",), to="again")
    found = manifest.load(kept)
    files = found.select(topics=("flights",))
    tasks = replay.make_tasks(spark, config, found, ["flights"], files)
    from headrace.spark.jobs.replay_rows import read_rows, to_messages
    from headrace.spark.writing.partition_writer import PartitionWriter

    (task,) = tasks
    first = pa.Table.from_batches(read_rows(task)).slice(0, 120)
    messages = (to_messages(batch, task) for batch in first.to_batches())
    PartitionWriter(task.plan, task.txn, 0, task.part).write(messages)
    summary = run_job(spark, "replay", config)
    assert summary.facts["messages"] == 200
    assert summary.facts["duplicates"] == first.num_rows == 120
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


def test_one_name_for_two_parts_of_time_sends_both(spark, broker, kept):
    """The rows of each are numbered from the first on: those of the second were taken for the first's, and not sent."""
    times = sorted(int(row["store_ts"].timestamp() * 1000) for row in archived(kept) if row["topic"] == "orders")
    middle = times[len(times) // 2]
    config = replay.Config(archive=kept, servers=broker.registry, topics=("orders",), to="both", txn="nightly")
    before = run_job(spark, "replay", replace(config, until=middle)).facts["stored"]
    assert before < len(times)
    assert run_job(spark, "replay", replace(config, since=middle)).facts["stored"] == len(times) - before
    again = run_job(spark, "replay", replace(config, since=middle)).facts
    assert (again["stored"], again["duplicates"]) == (0, len(times) - before)


class Arrivals:
    """Looks at a topic while a job runs: (seconds since the first message, messages stored)."""

    def __init__(self, broker, topic):
        self.seen = []
        self._broker, self._topic = broker, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()

    def _watch(self):
        with Cluster(self._broker.registry) as cluster:
            client = cluster.client(cluster.broker_address("broker-a"))
            began = None
            is_over = False
            while not is_over:
                is_over = self._stopped.wait(0.1)
                counts = [
                    client.call(RequestCode.GET_MAX_OFFSET, {"topic": self._topic, "queueId": str(queue_id)})
                    for queue_id in range(4)
                ]
                total = sum(int(found.ext["offset"]) for found in counts if found.code == 0)
                if total and began is None:
                    began = time.monotonic()
                if began is not None:
                    self.seen.append((time.monotonic() - began, total))


def test_rate_is_kept_all_the_time(spark, broker, kept):
    """Messages come one by one, not when a request is full or the job ends."""
    config = replay.Config(archive=kept, servers=broker.registry, topics=("flights",), to="slow", rate=50)
    with Arrivals(broker, "slow") as arrivals:
        assert run_job(spark, "replay", config).seconds >= 3.5
    assert arrivals.seen[-1][1] == 200
    for seconds, total in arrivals.seen:
        assert total <= 50 * (seconds + 0.5) + 5, (seconds, total)
        assert total >= min(200, 50 * (seconds - 1)), (seconds, total)


def test_speed_keeps_the_distances_of_all_queues(spark, broker, tmp_path):
    made = JobStore(tmp_path / "store")
    for number in range(60):
        made.go_to(BEGIN + number * 100)
        made.put("t", b"%d" % number, queue_id=number % 4, queues=4)
    made.close()
    run_job(spark, "archive", archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    config = replay.Config(archive=tmp_path / "archive", servers=broker.registry, speed=1, to="paced")
    with Arrivals(broker, "paced") as arrivals:
        run_job(spark, "replay", config)
    assert arrivals.seen[-1][1] == 60
    for seconds, total in arrivals.seen:
        assert abs(total - min(60, 10 * seconds)) <= 12, (seconds, total)


def test_a_pause_in_which_the_broker_hangs_up_repeats_nothing(spark, tmp_path):
    made = JobStore(tmp_path / "store")
    for number in range(3):
        made.go_to(BEGIN + number * 3000)
        made.put("t", b"%d" % number)
    made.close()
    run_job(spark, "archive", archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    with testing.broker(broker__name="broker-a", remoting__idle_timeout_ms=1000) as running:
        wait_registered(running)
        config = replay.Config(archive=tmp_path / "archive", servers=running.registry, speed=1, to="paced")
        facts = run_job(spark, "replay", config).facts
    assert (facts["stored"], facts["duplicates"], facts["retries"]) == (3, 0, 0)


def test_order_of_a_queue_survives_a_clock_that_goes_back_over_midnight(spark, broker, tmp_path):
    """Messages lie in turn in the files of two days; an empty body is one."""
    made = JobStore(tmp_path / "store")
    for number, step in enumerate((-2000, -1000, 0, 1000, -500, -400, 2000, 3000)):
        made.go_to(BEGIN + 24 * HOUR + step)
        made.put("t", b"%d" % number if number != 5 else b"")
    made.close()
    run_job(spark, "archive", archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    assert len(manifest.load(tmp_path / "archive").files) == 2
    make_topic(broker, "one", 1)
    wait_registered(broker, "one")
    config = replay.Config(archive=tmp_path / "archive", servers=broker.registry, to="one")
    assert run_job(spark, "replay", config).facts["stored"] == 8
    after = received(spark, broker, tmp_path, "one")
    assert by_queue(after, lambda row: row["body"]) == {0: [b"0", b"1", b"2", b"3", b"4", b"", b"6", b"7"]}


def test_another_archive_of_the_store_is_another_replay(spark, broker, tmp_path):
    """Its rows have other numbers: what the first archive lacks must not be taken for what it had."""
    made = JobStore(tmp_path / "store")
    for number in range(20):
        made.go_to(BEGIN + number * HOUR)
        made.put("t", b"%d" % number)
    made.close()
    config = archive.Config(store=tmp_path / "store", to=tmp_path / "late", since=BEGIN + 10 * HOUR)
    run_job(spark, "archive", config)
    run_job(spark, "archive", replace(config, to=tmp_path / "all", since=None))
    for name, stored in (("late", 10), ("all", 20), ("late", 0)):
        found = replay.Config(archive=tmp_path / name, servers=broker.registry, to="again")
        assert run_job(spark, "replay", found).facts["stored"] == stored
    bodies = {row["body"] for row in received(spark, broker, tmp_path, "again")}
    assert bodies == {b"%d" % number for number in range(20)}


def test_dry_run_sends_nothing(spark, broker, kept):
    config = replay.Config(archive=kept, servers=broker.registry, to="again", dry_run=True)
    facts = run_job(spark, "replay", config).facts
    assert (facts["messages"], facts["since"]) == (800, None)  # null in JSON
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


def test_a_topic_that_cannot_have_its_own_name_says_where_it_can_go(spark, broker, tmp_path):
    """NSQ's names may have a dot, RocketMQ's not."""
    publish_lines(broker, "a.b", ["dotted"])
    to = tmp_path / "archive"
    run_job(spark, "archive", archive.Config(servers=broker.registry, to=to))
    config = replay.Config(archive=to, servers=broker.registry)
    with pytest.raises(
        ConfigError, match=r"topic 'a\.b' cannot be sent to under its own name: --map a\.b=TOPIC or --to"
    ):
        run_job(spark, "replay", config)
    run_job(spark, "replay", replace(config, map=("a.b=dotless",)))
    assert read_bodies(broker, "dotless") == ["dotted"]


def test_a_topic_that_is_not_sent_is_not_mapped(tmp_path):
    """``--map %DLQ%billing=again`` alone sent all ordinary topics, and no dead letter."""
    (tmp_path / manifest.FOLDER).mkdir()
    covered = manifest.Manifest(tmp_path, [])
    config = replay.Config(archive=tmp_path, servers="127.0.0.1:1", map=("%DLQ%billing=again",))
    selection = manifest.Selection(topics=("%DLQ%billing",))
    covered.epochs.append(manifest.Epoch(epoch=1, selection=selection, brokers={}, files=[]))
    with pytest.raises(ConfigError, match=r"--map %DLQ%billing=\.\.\.: this is no ordinary topic .* --topics names it"):
        replay.choose_topics(config, covered)
    chosen = replay.choose_topics(replace(config, topics=("%DLQ%billing",)), covered)
    assert chosen == ["%DLQ%billing"]


def test_times_before_1970_hold_up_nothing(spark, broker, tmp_path):
    """Brokers store what a producer claims; the replay of such a message ended at it for ever."""
    made = JobStore(tmp_path / "store")
    for latency_ms in (BEGIN + 1, BEGIN + HOUR, BEGIN - 1, 3):
        made.put("orders", b"%d" % latency_ms, latency_ms=latency_ms)
    made.close()
    to = tmp_path / "archive"
    run_job(spark, "archive", archive.Config(store=tmp_path / "store", to=to))
    run_job(spark, "replay", replay.Config(archive=to, servers=broker.registry, to="again"))
    now = {row["body"]: row["born_ts"].timestamp() for row in received(spark, broker, tmp_path, "again")}
    assert (now[b"%d" % (BEGIN - 1)], now[b"3"]) == (0.001, BEGIN / 1000 - 0.003)
    assert now[b"%d" % (BEGIN + 1)] > BEGIN / 1000
    assert now[b"%d" % (BEGIN + HOUR)] > BEGIN / 1000


def test_bodies_that_came_compressed_reach_consumers(spark, broker, tmp_path):
    """One that the archive holds compressed, for it has more than 16 MiB, and one too large to be sent plain."""
    wanted = [b"hello world " * 3_000_000, b"hello world " * 500_000, b"hello"]
    send(broker.remoting, [Sent("big", zlib.compress(body), sys_flag=1) for body in wanted])
    to = tmp_path / "archive"
    run_job(spark, "archive", archive.Config(servers=broker.registry, to=to))
    run_job(spark, "replay", replay.Config(archive=to, servers=broker.registry, to="again"))
    assert [message["body"] for message in read_topic(broker.registry, "again")] == wanted


def test_a_message_that_cannot_be_sent_is_named_and_may_be_left_out(spark, broker, tmp_path):
    """By its properties, which a replay adds to; those around it are sent, once."""
    made = JobStore(tmp_path / "store")
    for body, size in ((b"first", 32_000), (b"long", 32_630), (b"last", 1)):
        made.put("orders", body, p="x" * size)
    made.close()
    to = tmp_path / "archive"
    run_job(spark, "archive", archive.Config(store=tmp_path / "store", to=to))
    [name] = [f"{row['broker']}:{row['log_offset']}" for row in archived(to) if row["body"] == b"long"]
    config = replay.Config(archive=to, servers=broker.registry, to="again")
    with pytest.raises(HeadraceError, match=rf"message {name} of topic 'orders' cannot be sent: .*--skip-unsendable"):
        run_job(spark, "replay", config)
    facts = run_job(spark, "replay", replace(config, skip_unsendable=True)).to_dict()
    assert (facts["stored"], facts["messages"], facts["skipped"]) == (2, 2, 1)
    assert [row["message"] for row in facts["unsendable"]] == [f"{name} of topic 'orders'"]
    assert run_job(spark, "replay", replace(config, skip_unsendable=True)).facts["duplicates"] == 2
    assert [message["body"] for message in read_topic(broker.registry, "again")] == [b"first", b"last"]


@pytest.mark.parametrize("part", [slice(-200, None), slice(500, 3000)], ids=["end", "middle"])
def test_a_damaged_file_is_named(spark, broker, kept, part):
    """Of the right length, so that only who reads it notices."""
    path = next(kept.rglob("topic=orders/**/*.parquet"))
    raw = bytearray(path.read_bytes())
    raw[part] = bytes(len(raw[part]))
    path.write_bytes(raw)
    with pytest.raises(HeadraceError, match=rf"{path.name}.* (cannot be read|was changed).*; restore it from a copy"):
        run_job(spark, "replay", replay.Config(archive=kept, servers=broker.registry, topics=("orders",), to="again"))


def test_a_changed_byte_is_never_sent(spark, broker, kept):
    """docs/spark/jobs/archive.md, "What is checked"; also one that no page's checksum covers."""
    path = next(kept.rglob("topic=orders/**/*.parquet"))
    raw = path.read_bytes()
    flip_page_byte(path, "body")
    in_page = path.read_bytes()
    in_footer = raw.replace(b"unique_key", b"unique_kez")
    config = replay.Config(archive=kept, servers=broker.registry, topics=("orders",), to="again")
    for harmed in (in_page, in_footer):
        path.write_bytes(harmed)
        with pytest.raises(HeadraceError, match=rf"{path.name} was changed after it was archived: its CRC-32 is"):
            run_job(spark, "replay", config)
    path.write_bytes(raw)
    summary = run_job(spark, "replay", config)
    assert (summary.facts["stored"], summary.facts["duplicates"]) == (600, 0)
