"""``headrace job deadletters``: why, since when, how many; and sending them again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import testing
from headrace.errors import ConfigError
from headrace.format.names import segment_name
from headrace.remoting.blocking import Cluster
from headrace.spark.errors import UnsendableError
from headrace.spark.jobs import deadletters
from headrace.spark.reading import read
from tests.spark.conftest import make_topic, wait_registered
from tests.support.job_stores import BEGIN, HOUR, MINUTE, JobStore
from tests.support.record_rows import lay_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


class Failures:
    """Twelve orders; ``billing`` gives up six of them for two reasons, ``audit`` one, and one is to be tried again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = JobStore(folder)
        self.ids = []
        for number in range(12):
            made.go_to(BEGIN + number * MINUTE)
            end = ("\n", "\r\n")[number % 2]
            reason: dict[str, Any] = (
                {"EXCEPTION": f"timeout after {1000 + number} ms{end}  at line {number}"} if number < 4 else {}
            )
            offset = made.put("orders", f"order {number}".encode(), KEYS=f"o{number}", UNIQ_KEY=f"U{number}", **reason)
            self.ids.append(offset)
        made.go_to(BEGIN + HOUR)
        for number in range(6):
            made.fail("billing", self.ids[number], give_up=True)
        made.go_to(BEGIN + 2 * HOUR)
        made.fail("audit", self.ids[0], give_up=True)
        made.fail("billing", self.ids[11])
        made.go_to(BEGIN + 3 * HOUR)  # its delay is over
        made.close()


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return Failures(tmp_path_factory.mktemp("deadletters") / "store")


def test_who_why_since_when_and_how_many(spark: SparkSession, failures: Failures) -> None:
    """spark.md 4.5."""
    shown = deadletters.run(spark, deadletters.Config(store=failures.folder)).to_dict()
    assert (shown["dead_letters"], shown["retries"], shown["groups_found"]) == (7, 1, 2)
    groups = {(row["group"], row["kind"]): row for row in shown["groups"]}
    assert groups["billing", "dead"]["messages"] == 6
    assert groups["billing", "dead"]["origin_topic"] == "orders"
    assert groups["billing", "dead"]["first"].startswith("2026-01-01 01:00")
    assert groups["billing", "retry"]["messages"] == 1
    assert groups["audit", "dead"]["messages"] == 1
    causes = {(row["group"], row["cause"]): row["messages"] for row in shown["causes"]}
    assert causes == {
        ("billing", "timeout after # ms"): 4,
        ("billing", "no reason given, tried 1 times"): 2,
        ("audit", "timeout after # ms"): 1,
    }
    samples = [row["body"] for row in shown["samples"] if row["group"] == "billing"]
    assert len(samples) == 5
    assert set(samples) <= {f"order {number}" for number in range(6)}
    assert sum(row["messages"] for row in shown["ages"]) == 7


def test_only_some_groups(spark: SparkSession, failures: Failures) -> None:
    shown = deadletters.run(spark, deadletters.Config(store=failures.folder, groups=("audit",), samples=0)).to_dict()
    assert shown["dead_letters"] == 1
    assert "samples" not in shown


@pytest.mark.parametrize("by_servers", [False, True])
def test_what_does_not_exist_is_said(spark: SparkSession, tmp_path: Path, by_servers: bool) -> None:
    """A wrong name would look like one without failures. A group that never failed is no error: the note says it."""
    folder = tmp_path / "store"
    assert Failures(folder).ids
    with ExitStack() as stack:
        place: dict[str, Any] = {"store": folder}
        if by_servers:
            running = stack.enter_context(testing.broker(store__data_dir=folder))
            place = {"servers": running.registry}
            wait_registered(running, "orders")
        with pytest.raises(ConfigError, match="there is no topic 'ordres': did you mean 'orders'"):
            deadletters.run(spark, deadletters.Config(**place, topics=("orders", "ordres"), to=tmp_path / "list"))
        assert not (tmp_path / "list").exists()
        summary = deadletters.run(spark, deadletters.Config(**place, groups=("billling", "audit")))
        assert summary.facts["dead_letters"] == 1
        (note,) = summary.notes
        assert note.startswith("there is no group 'billling' with dead letters or retries: did you mean 'billing'?")


def test_no_dead_letters_are_no_error(spark: SparkSession, tmp_path: Path) -> None:
    made = JobStore(tmp_path / "store")
    made.put("orders")
    made.close()
    shown = deadletters.run(spark, deadletters.Config(store=tmp_path / "store")).to_dict()
    assert (shown["dead_letters"], shown["retries"], shown["causes"]) == (0, 0, [])


def test_properties_whose_names_are_no_utf8_hold_up_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Both names are U+FFFD in a column; a map of Spark's may not have a key twice, if nobody says else."""
    made = JobStore(tmp_path / "store")
    two: dict[str, Any] = dict.fromkeys(("\udcd6", "\udcb9"), "x")
    offsets = [made.put("orders", b"gbk", **two), made.put("orders", b"plain")]
    for offset in offsets:
        made.fail("billing", offset, give_up=True)
    made.close()
    with testing.broker(store__data_dir=tmp_path / "store") as broker:
        wait_registered(broker, "orders")
        shown = deadletters.run(spark, deadletters.Config(servers=broker.registry, resend=True)).facts
        assert (shown["chosen"], shown["sent"]) == (2, 2)


def test_the_list_says_where_each_belongs(spark: SparkSession, failures: Failures, tmp_path: Path) -> None:
    deadletters.run(spark, deadletters.Config(store=failures.folder, to=tmp_path / "list"))
    rows = spark.read.parquet(str(tmp_path / "list")).collect()
    assert len(rows) == 7
    assert {row["origin_topic"] for row in rows} == {"orders"}
    assert all(row["origin_id"] for row in rows)


def test_sending_again_happens_once(spark: SparkSession, tmp_path: Path) -> None:
    """Once, whatever number of groups gave a message up and however often the job runs."""
    folder = tmp_path / "store"
    failures = Failures(folder)
    assert failures.ids
    with testing.broker(store__data_dir=folder) as broker:
        config = deadletters.Config(servers=broker.registry, resend=True)
        dry = deadletters.run(spark, deadletters.Config(servers=broker.registry, resend=True, dry_run=True))
        assert "chosen" not in dry.facts
        for _ in range(2):
            summary = deadletters.run(spark, config)
            assert summary.facts["chosen"] == 6
        rows = read(
            spark, servers=broker.registry, topics="orders", columns="queue_offset,body,keys,unique_key,properties"
        ).collect()
    again = sorted((row for row in rows if row["queue_offset"] >= 12), key=lambda row: row["queue_offset"])
    assert sorted(bytes(row["body"]).decode() for row in again) == [f"order {number}" for number in range(6)]
    assert len({row["unique_key"] for row in again}) == 6
    assert all(row["unique_key"].startswith("dlq:") for row in again)
    assert {row["keys"] for row in again} == {f"o{number}" for number in range(6)}
    for row in again:
        number = int(bytes(row["body"]).decode().split()[1])
        assert int(row["properties"]["ORIGIN_MESSAGE_ID"][-16:], 16) == failures.ids[number]
        assert "RETRY_TOPIC" not in row["properties"]


def test_a_message_given_up_again_is_sent_again(spark: SparkSession, tmp_path: Path) -> None:
    """The key of a second dead letter is another one, also where the message is the same."""
    folder = tmp_path / "store"
    made = JobStore(folder)
    offset = made.put("orders", b"order", UNIQ_KEY="U1")
    made.fail("billing", offset, give_up=True)
    made.close()
    counts = []
    for _ in range(2):
        with testing.broker(store__data_dir=folder) as broker:
            config = deadletters.Config(servers=broker.registry, resend=True)
            for _ in range(2):
                deadletters.run(spark, config)
            counts.append(read(spark, servers=broker.registry, topics="orders", columns="body").count())
        made = JobStore(folder)
        made.go_to(BEGIN + HOUR)
        made.fail("billing", offset, give_up=True)
        made.close()
    assert counts == [2, 3]


def test_a_topic_that_takes_no_messages_does_not_keep_back_others(spark: SparkSession, tmp_path: Path) -> None:
    """Told before anything is sent; with --skip-unsendable its dead letters are left out, counted and listed."""
    folder = tmp_path / "store"
    made = JobStore(folder)
    for number in range(3):
        for topic in ("orders", "closed")[: 2 - number % 2]:
            made.fail("billing", made.put(topic, f"{topic} {number}".encode()), give_up=True)
    made.close()
    with testing.broker(store__data_dir=folder, broker__name="broker-a") as broker:
        wait_registered(broker, "closed")
        make_topic(broker, "closed", 4, perm=4)
        with Cluster(broker.registry) as cluster:
            while cluster.route("closed").queues[0].perm != 4:
                time.sleep(0.01)
        with pytest.raises(
            UnsendableError, match=r"'closed' cannot be sent: .* no queue to write to.*--skip-unsendable"
        ):
            deadletters.run(spark, deadletters.Config(servers=broker.registry, resend=True))
        assert read(spark, servers=broker.registry, topics="orders", columns="body").count() == 3
        config = deadletters.Config(servers=broker.registry, resend=True, skip_unsendable=True)
        summary = deadletters.run(spark, config)
        assert [summary.facts[name] for name in ("chosen", "sent", "skipped")] == [5, 3, 2]
        (table,) = [table for table in summary.tables if table.key == "unsendable"]
        assert [row[0] for row in table.rows] == ["2 of topic 'closed'"]
        assert read(spark, servers=broker.registry, topics="orders", columns="body").count() == 6


@pytest.mark.parametrize(
    ("options", "says"), [({"resend": True}, "--resend needs --servers"), ({"samples": -1}, "--samples")]
)
def test_wrong_use_is_said(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        deadletters.Config(store=tmp_path, **options)


def test_a_group_whose_dead_letters_have_no_time(spark: SparkSession, tmp_path: Path) -> None:
    """Stored in no year from 1 to 9999: null is neither before nor behind the others."""
    times = {b"%DLQ%a": 253_402_300_800_000, b"%DLQ%b": BEGIN}
    log, _ = lay_log([{"body": b"x", "topic": topic, "store_ms": at} for topic, at in times.items()], 1 << 20)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / segment_name(0)).write_bytes(log.ljust(1 << 20, b"\0"))
    shown = deadletters.run(spark, deadletters.Config(store=tmp_path)).to_dict()
    assert (shown["dead_letters"], shown["since"]) == (2, "2026-01-01 00:00:00.000")
    assert {row["group"]: row["first"] for row in shown["groups"]} == {"a": None, "b": "2026-01-01 00:00:00.000"}
