"""``headrace job stats`` on stores whose every message is known."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import testing
from headrace.errors import ConfigError
from headrace.format.names import STATISTICS_TOPIC, segment_name
from headrace.spark.jobs import alerts, broker_counts, stats, stats_counting
from headrace.spark.jobs.log_rows import splits_between
from headrace.spark.scan import StoreSource, plan_log
from tests.support.job_stores import BEGIN, HOUR, MINUTE, JobStore
from tests.support.record_rows import lay_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


class Counted:
    """A store with three hours of messages, and what is in it."""

    def __init__(self, folder: Path) -> None:
        rng = random.Random(7)
        self.store = folder
        self.puts: Counter[tuple[int, str, str]] = Counter()  # minute, topic, host
        self.gets: Counter[tuple[int, str, str]] = Counter()  # minute, topic, group
        self.seconds: Counter[tuple[int, str, str]] = Counter()
        made = JobStore(folder)
        for minute in range(0, 180, 3):
            made.go_to(BEGIN + minute * MINUTE)
            for _ in range(rng.randint(1, 12)):
                made.clock.advance_ms(rng.choice((0, 0, 500, 2_000)))
                topic, host = rng.choice(("orders", "payments")), f"10.0.0.{rng.randint(1, 3)}"
                made.put(topic, b"x" * rng.randint(1, 3_000), host=host, latency_ms=rng.choice((1, 8, 300)))
                self.puts[made.now // MINUTE * MINUTE, topic, host] += 1
                self.seconds[made.now // 1_000, topic, host] += 1
            taken = rng.randint(1, 9)
            made.get("billing", "orders", taken)
            self.gets[made.now // MINUTE * MINUTE, "orders", "billing"] += taken
        made.commit("billing", "orders", 3)
        made.go_to(made.now + MINUTE)
        made.close()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    return Counted(tmp_path_factory.mktemp("stats") / "store")


def rows_of(folder: Path, span: str) -> list[dict[str, Any]]:
    rows = [
        row for path in sorted((folder / span).rglob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()
    ]
    return [{**row, "at": int(row["time"].timestamp() * 1000)} for row in rows]


def files_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("at", "topic", "group", "source", "broker", "host"))

    return {span: sorted(rows_of(folder, span), key=key) for span in ("minute", "hour", "day")}


def test_every_message_is_in_its_minute(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    """A-BROKER-49, A-BROKER-50, X-BROKER-17, spark.md 4.3: topic, group, source, broker, host, time."""
    out = tmp_path / "out"
    summary = stats.run(spark, stats.Config(store=counted.store, to=out, split_bytes=1 << 20))
    minutes = rows_of(out, "minute")
    puts = {(row["at"], row["topic"], row["host"]): row["put_messages"] for row in minutes if row["put_messages"]}
    assert puts == dict(counted.puts)
    gets = {(row["at"], row["topic"], row["group"]): row["get_messages"] for row in minutes if row["get_messages"]}
    assert gets == dict(counted.gets)
    assert {row["source"] for row in minutes} == {"rocketmq"}
    peaks = {
        (row["at"], row["topic"], row["host"]): row["put_per_second_max"] for row in minutes if row["put_messages"]
    }
    for (at, topic, host), peak in peaks.items():
        of_minute = [
            count
            for (second, *rest), count in counted.seconds.items()
            if at <= second * 1000 < at + MINUTE and rest == [topic, host]
        ]
        assert peak == max(of_minute)
    assert all(
        sum(row["latencies"]) == sum(row["sizes"]) == row["put_messages"] for row in minutes if row["put_messages"]
    )
    assert any(row["lag_messages"] for row in minutes if row["group"] == "billing")
    assert summary.facts["put_messages"] == sum(counted.puts.values())
    assert summary.facts["get_messages"] == sum(counted.gets.values())
    hours = rows_of(out, "hour")
    for hour in range(3):
        expected = sum(count for (at, *_), count in counted.puts.items() if (at - BEGIN) // HOUR == hour)
        assert sum(row["put_messages"] for row in hours if row["at"] == BEGIN + hour * HOUR) == expected
    days = rows_of(out, "day")
    assert "INT96" not in {
        pq.ParquetFile(path).schema.column(0).physical_type for path in (out / "day").rglob("*.parquet")
    }
    assert {row["at"] for row in days} == {BEGIN}
    assert sum(row["put_messages"] for row in days) == sum(counted.puts.values())
    for row in days:
        if row["put_messages"]:
            assert 0 <= row["latency_p50_ms"] <= row["latency_p90_ms"] <= row["latency_p99_ms"] <= 400


def test_counts_that_spark_hands_over_in_many_batches_are_added_up(
    spark: SparkSession, counted: Counted, tmp_path: Path
) -> None:
    """spark.md 4.3. Spark cuts what it gives to Python after 10,000 rows; a busy day has more of them."""
    stats.run(spark, stats.Config(store=counted.store, to=tmp_path / "whole", report="none"))
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, "7")
    try:
        stats.run(spark, stats.Config(store=counted.store, to=tmp_path / "cut", report="none"))
    finally:
        spark.conf.set(key, str(before))
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


def test_a_second_run_changes_nothing_and_a_part_only_its_hours(
    spark: SparkSession, counted: Counted, tmp_path: Path
) -> None:
    """spark.md 4.3: overwritten per (day, hour)."""
    out = tmp_path / "out"
    stats.run(spark, stats.Config(store=counted.store, to=out, report="none"))
    first = files_of(out)
    again = stats.run(spark, stats.Config(store=counted.store, to=out, report="none", since=BEGIN + HOUR + 5 * MINUTE))
    assert again.facts["hours_written"] == 2
    assert files_of(out) == first


def test_hours_that_the_log_has_lost_in_part_stay(
    spark: SparkSession, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes the beginning of an hour: what was counted before is worth more."""
    out = tmp_path / "out"
    stats.run(spark, stats.Config(store=counted.store, to=out, report="none"))
    first = files_of(out)
    plan = plan_log

    def without_beginning(*arguments: Any, **options: Any) -> Any:
        return plan(*arguments, **options, start={counted.store.name: 100_000})

    monkeypatch.setattr(stats_counting, "plan_log", without_beginning)
    summary = stats.run(spark, stats.Config(store=counted.store, to=out, report="none"))
    assert files_of(out) == first
    assert any(note.startswith("1 hour up to") and "stays as it was counted" in note for note in summary.notes)


def made(folder: Path, *messages: tuple[int, str]) -> Path:
    """Return a store with messages, each (hour, topic)."""
    store = JobStore(folder)
    for hour, topic in messages:
        store.go_to(BEGIN + hour * HOUR + MINUTE)
        store.put(topic)
    store.go_to(store.now + MINUTE)
    store.close()
    return folder


def puts_of(folder: Path, span: str) -> Counter[tuple[str, str, int]]:
    """Return the messages of each broker, topic and hour (of ``day``: day)."""
    counts: Counter[tuple[str, str, int]] = Counter()
    for row in rows_of(folder, span):
        counts[row["broker"], row["topic"], (row["at"] - BEGIN) // HOUR] += row["put_messages"]
    return +counts


def test_what_was_counted_of_a_broker_stays_while_it_is_away(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever brokers a run reads, in whichever order, and whichever has lost the beginning of its log."""
    out = tmp_path / "out"
    b1 = made(tmp_path / "b1", (0, "orders"), (1, "orders"), (1, "payments"))
    b4 = made(tmp_path / "b4", (1, "orders"), (1, "orders"), (2, "orders"))
    for store in (b1, b4):
        summary = stats.run(spark, stats.Config(store=store, to=out, report="none"))
    everything = {
        ("b1", "orders", 0): 1, ("b1", "orders", 1): 1, ("b1", "payments", 1): 1,
        ("b4", "orders", 1): 2, ("b4", "orders", 2): 1,
    }  # fmt: skip
    assert puts_of(out, "minute") == puts_of(out, "hour") == everything
    assert puts_of(out, "day") == {("b1", "orders", 0): 2, ("b1", "payments", 0): 1, ("b4", "orders", 0): 3}
    assert summary.notes == ["broker 'b1' was not read: its rows in the tables stay as they are"]
    stats.run(spark, stats.Config(store=b1, to=out, report="none", topics=("orders",)))
    assert puts_of(out, "minute") == everything
    # Of b4 the log has lost what was before; of a broker that nobody has counted yet there is nothing to keep.
    monkeypatch.setattr(
        stats_counting, "last_cut_hours", lambda splits, _: {split.broker: "2026-01-0101" for split in splits}
    )
    made(tmp_path / "b5", (1, "orders"))
    for store in (tmp_path / "b5", b4):
        summary = stats.run(spark, stats.Config(store=store, to=out, report="none"))
    assert puts_of(out, "minute") == everything | {("b5", "orders", 1): 1}
    assert summary.facts["hours_written"] == 1
    assert any("counted earlier: the log of b4 no longer" in note for note in summary.notes)


def test_a_broker_that_comes_back_while_a_run_has_begun_keeps_what_was_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its log nothing is read, but its records of the same hours are: they took the place of its puts."""
    out = tmp_path / "out"
    b1, b2 = made(tmp_path / "b1", (1, "orders")), made(tmp_path / "b2", (1, "orders"), (1, "orders"))
    for store in (b1, b2):
        stats.run(spark, stats.Config(store=store, to=out, report="none"))
    before = files_of(out)
    names = {"broker": "b2", "topic": "orders", "group": "billing", "source": "rocketmq", "host": ""}
    came = [{"time": (BEGIN + HOUR) * 1_000, **names, "get_messages": 5, "damaged": 0}]

    def with_another(*arguments: Any, **options: Any) -> Any:
        rows = broker_counts.broker_counts(*arguments, **options)
        return rows.unionByName(spark.createDataFrame(pa.Table.from_pylist(came, schema=broker_counts.SCHEMA)))

    monkeypatch.setattr(stats_counting, "broker_counts", with_another)
    summary = stats.run(spark, stats.Config(store=b1, to=out, report="none"))
    assert files_of(out) == before
    assert summary.facts["get_messages"] == 0


def test_a_run_that_is_killed_while_it_puts_hours_in_place_loses_nothing(
    spark: SparkSession, counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tables had of other brokers was lost; the next run, of few hours, brings those of the killed one too."""
    other = JobStore(tmp_path / "b")
    for minute in range(180):
        other.go_to(BEGIN + minute * MINUTE)
        other.put("orders")
    other.close()
    stores = {"a": counted.store, "b": tmp_path / "b"}

    def count(broker: str, to: str, **options: Any) -> None:
        stats.run(spark, stats.Config(store=stores[broker], broker=broker, to=tmp_path / to, report="none", **options))

    for to in ("whole", "killed"):
        count("a", to)
    before = files_of(tmp_path / "killed")
    count("b", "whole")
    rename = Path.rename
    renamed: list[Path] = []

    def until(path: Path, target: Path) -> Path:
        if len(renamed) == 4:  # the first hour is in its place, the second is aside
            raise KeyboardInterrupt
        renamed.append(path)
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", until)
        with pytest.raises(KeyboardInterrupt):
            count("b", "killed")
    assert files_of(tmp_path / "killed") != before
    (tmp_path / "killed" / "minute" / ".spark-staging-1").mkdir()
    count("b", "killed", since=BEGIN + 2 * HOUR)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    left = {path.name for path in (tmp_path / "killed").rglob("*") if path.name.startswith(("_", ".spark"))}
    assert left <= {"_SUCCESS"}


def test_a_store_that_comes_under_another_name_is_not_counted_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Its folder was renamed, copied or moved, or its broker was asked before; the tables stay as they are."""
    out = tmp_path / "out"
    b1 = made(tmp_path / "b1", (0, "orders"))
    stats.run(spark, stats.Config(store=b1, to=out, report="none", broker="broker-a"))
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match=r"have this store as broker 'broker-a', not 'b1': .* --broker "):
            stats.run(spark, stats.Config(store=b1, to=out, report="none", dry_run=dry_run))
    # Another store of the same name, as of a broker that began anew, is none under another one.
    b2 = made(tmp_path / "b2", (1, "orders"))
    for store in (b2, b1.rename(tmp_path / "moved")):
        stats.run(spark, stats.Config(store=store, to=out, report="none", broker="broker-a"))
    assert puts_of(out, "minute") == {("broker-a", "orders", 0): 1, ("broker-a", "orders", 1): 1}
    (out / "stores.json").write_text("{")
    with pytest.raises(ConfigError, match=r"stores\.json cannot be read"):
        stats.run(spark, stats.Config(store=b2, to=out, report="none", broker="broker-a"))


def test_a_dry_run_writes_nothing(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = stats.run(spark, stats.Config(store=counted.store, to=out, dry_run=True))
    assert not out.exists()
    assert summary.facts["put_messages"] == sum(counted.puts.values())


def test_a_folder_may_be_called_anything(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    """Spark's readers take brackets, braces and stars for patterns: of other folders too."""
    for name in ("o[1]", "o*", "o{a,b}?"):
        summary = stats.run(spark, stats.Config(store=counted.store, to=tmp_path / name))
        assert Path(summary.facts["report"]).is_file()
        days = rows_of(tmp_path / name, "day")
        assert sum(row["put_messages"] for row in days) == sum(counted.puts.values())


def test_a_folder_that_cannot_be_made_is_said_before_the_work(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    for to, says in ((tmp_path / "file", "is no folder"), (tmp_path / "file" / "x", "Not a directory")):
        with pytest.raises(ConfigError, match=says):
            stats.run(spark, stats.Config(store=tmp_path / "store", to=to))


def test_topics_and_hosts_can_be_left_out(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    config = stats.Config(store=counted.store, to=tmp_path, topics=("orders",), hosts=False, report="none")
    stats.run(spark, config)
    rows = rows_of(tmp_path, "minute")
    assert {row["topic"] for row in rows} == {"orders"}
    assert {row["host"] for row in rows} == {""}


def test_a_run_for_some_topics_keeps_the_rows_of_others(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    stats.run(spark, stats.Config(store=counted.store, to=tmp_path, report="none"))
    first = files_of(tmp_path)
    stats.run(spark, stats.Config(store=counted.store, to=tmp_path, topics=("orders",), report="none"))
    assert files_of(tmp_path) == first


def test_a_missing_topic_names_the_nearest(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    """Zeros would say that it is quiet. One that is there and was quiet in these hours is no error."""
    with pytest.raises(ConfigError, match="there is no topic 'ordres': did you mean 'orders'"):
        stats.run(spark, stats.Config(store=counted.store, to=tmp_path, topics=("payments", "ordres")))
    assert files_of(tmp_path) == {"minute": [], "hour": [], "day": []}
    late = stats.Config(store=counted.store, to=tmp_path, topics=("orders",), since=BEGIN + 24 * HOUR)
    assert stats.run(spark, late).facts["put_messages"] == 0


def test_messages_without_a_store_time_are_said_and_in_no_table(spark: SparkSession, tmp_path: Path) -> None:
    """A broker whose clock was wrong: null is no time, and 1970 none of its own."""
    far = 253_402_300_800_000  # the year 10000
    records = [
        {"body": b"x", "topic": b"orders", "store_ms": at, "born_ms": at} for at in (far, BEGIN, BEGIN + 1, far + 1)
    ]
    log, _ = lay_log(records, 1 << 20)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / segment_name(0)).write_bytes(log.ljust(1 << 20, b"\0"))
    for since in (None, BEGIN):
        summary = stats.run(spark, stats.Config(store=tmp_path / "store", to=tmp_path / "out", since=since))
        assert (summary.facts["put_messages"], summary.facts["untimed_messages"]) == (2, 2)
        assert any("2 messages were stored in no year" in note for note in summary.notes)
        for span in ("minute", "hour", "day"):
            (row,) = rows_of(tmp_path / "out", span)
            assert (row["at"], row["put_messages"]) == (BEGIN, 2)


@pytest.mark.parametrize(("first", "began"), [(None, "9999-12-31 23:59"), (BEGIN, "2026-01-01 00:00")])
def test_the_last_hour_of_all_has_a_report(spark: SparkSession, tmp_path: Path, first: int | None, began: str) -> None:
    """A broker whose clock was wrong: behind that hour there is no time, and many days without messages before it."""
    last = 253_402_300_799_999
    times = {b"orders": first, b"payments": last}
    log, _ = lay_log(
        [{"body": b"x", "topic": topic, "store_ms": at, "born_ms": at} for topic, at in times.items() if at], 1 << 20
    )
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / segment_name(0)).write_bytes(log.ljust(1 << 20, b"\0"))
    summary = stats.run(spark, stats.Config(store=tmp_path / "store", to=tmp_path / "out"))
    assert summary.facts["hours_written"] == (2 if first else 1)
    page = Path(summary.facts["report"]).read_text(encoding="utf-8")
    assert f"{began} to 9999-12-31 23:59 UTC" in page
    assert len(page) < 200_000


def test_what_brokers_counted_in_no_row_or_wrote_strangely_is_said_once(spark: SparkSession, tmp_path: Path) -> None:
    """statistics-records.md: ``left_out``. What cannot be read is passed over and counted, whatever is wrong."""
    store = JobStore(tmp_path / "store", max_statistics=1)
    store.put("orders")
    for _ in range(3):
        store.get("billing", "orders", 7)
    strange = {"v": 1, "from_ms": BEGIN, "put": [["T", 0, "nsq", "h", "many", 1]]}
    for body in (json.dumps(strange).encode(), b'{"v":1,"from_ms":1e999}'):
        store.raw({"topic": STATISTICS_TOPIC, "queue_id": 0, "body": body, "properties": {}})
    store.go_to(store.now + 2 * MINUTE)
    until = store.now
    store.close()
    summaries = [
        stats.run(spark, stats.Config(store=tmp_path / "store", to=tmp_path / "out", topics=("orders",))),
        alerts.run(spark, alerts.Config(store=tmp_path / "store", since=BEGIN, until=until)),
    ]
    for summary in summaries:
        assert (summary.facts["unreadable_records"], summary.facts["left_out_messages"]) == (2, 22)
        assert [note.partition(" messages")[0] for note in summary.notes] == [
            "2 records of HR_STATS are unreadable: what they counted is missing", "brokers counted 22",
        ]  # fmt: skip
    assert {(row["at"], row["topic"], row["put_messages"]) for row in rows_of(tmp_path / "out", "minute")} == {
        (BEGIN, "orders", 1)
    }


def test_the_report_stands_for_itself(spark: SparkSession, counted: Counted, tmp_path: Path) -> None:
    """No script, no link to elsewhere; names are escaped."""
    summary = stats.run(spark, stats.Config(store=counted.store, to=tmp_path, title="<b>Shop</b>"))
    page = Path(summary.facts["report"]).read_text(encoding="utf-8")
    assert "<script" not in page
    assert " src=" not in page
    assert "@import" not in page
    assert "&lt;b&gt;Shop&lt;/b&gt;" in page
    assert "<b>Shop" not in page
    assert page.count("<svg") >= 5
    for word in ("orders", "payments", "billing", "10.0.0.1"):
        assert word in page


def test_splits_are_found_by_time(counted: Counted) -> None:
    splits = plan_log(StoreSource(str(counted.store)), split_bytes=50_000)
    part = splits_between(splits, BEGIN + 90 * MINUTE, BEGIN + 100 * MINUTE)
    assert 0 < len(part) < len(splits)
    assert splits_between(splits, None, None) == splits
    assert splits_between(splits, BEGIN + 1_000 * HOUR, None) == splits[-1:]


def test_a_running_broker_is_counted(spark: SparkSession, tmp_path: Path, send: Callable[..., None]) -> None:
    """--servers: the same over the network."""
    with testing.broker() as broker:
        send(broker, "orders", [b"one", b"two", b"three"])
        summary = stats.run(spark, stats.Config(servers=broker.registry, to=tmp_path))
    assert summary.facts["put_messages"] == 3
    (row,) = [row for row in rows_of(tmp_path, "day") if row["topic"] == "orders" and row["put_messages"]]
    assert (row["source"], row["host"]) == ("nsq", "127.0.0.1")


def test_wrong_use_is_said() -> None:
    with pytest.raises(ConfigError, match="--to is missing"):
        stats.Config(servers="127.0.0.1:1")
    with pytest.raises(ConfigError, match="--store DIR"):
        stats.Config(to=Path("x"))


@pytest.fixture
def send() -> Callable[..., None]:
    """Publish as an NSQ client does."""
    import socket

    def publish(broker: testing.RunningBroker, topic: str, bodies: list[bytes]) -> None:
        host, _, port = broker.nsq_tcp.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"  V2")
            for body in bodies:
                connection.sendall(b"PUB " + topic.encode() + b"\n" + len(body).to_bytes(4, "big") + body)
                assert connection.recv(100).endswith(b"OK")

    return publish
