"""``headrace job dedup``: what is there twice, and each key once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace import testing
from headrace.broker.topic import TopicConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.format.names import segment_name
from headrace.spark.jobs import archive, dedup, run_job, search
from headrace.spark.reading import read
from headrace.spark.times import FIRST_MS
from tests.support.job_stores import BEGIN, HOUR, MINUTE, JobStore
from tests.support.record_rows import lay_log
from tests.support.sink import bodies as bodies_of_topic
from tests.support.spark_jobs import flip_page_byte

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten keys in ``orders``, three of them again, one of these a third time; two messages without a key; ``other``."""
    made = JobStore(tmp_path_factory.mktemp("dedup") / "store")
    numbers = [*range(10), 2, 5, 7, 5]
    for step, number in enumerate(numbers):
        made.go_to(BEGIN + step * MINUTE)
        made.put(
            "orders",
            f"{number} at {step}".encode(),
            queue_id=step % 2,
            queues=2,
            UNIQ_KEY=f"U{number}",
            KEYS=f"k{number}",
        )
    made.put("orders", b"keyless")
    made.put("orders", b"keyless")
    made.put("other", b"same key, other topic", UNIQ_KEY="U1")
    made.close()
    return made.folder


def bodies(spark: SparkSession, folder: Path, topic: str = "orders") -> list[str]:
    rows = spark.read.parquet(str(folder)).where(f"topic = '{topic}'").collect()
    return sorted(bytes(row["body"]).decode() for row in rows)


@pytest.mark.parametrize("by", ["unique_key", "keys"])
def test_duplicates_are_reported_with_places_and_distance(spark: SparkSession, store: Path, by: Any) -> None:
    """spark.md 4.4."""
    summary = dedup.run(spark, dedup.Config(store=store, by=by))
    facts = summary.facts
    assert (facts["messages"], facts["duplicated_keys"], facts["surplus"]) == (17, 3, 4)
    assert facts["without_key"] == (2 if by == "unique_key" else 3)
    worst = summary.to_dict()["duplicates"][0]
    assert worst["key"] == ("U5" if by == "unique_key" else "k5")
    assert (worst["count"], worst["seconds_apart"]) == (3, 8 * 60.0)
    assert len(worst["places"]) == 3
    assert worst["places"][0].startswith("store/1@")


@pytest.mark.parametrize("keep", ["first", "last"])
def test_each_key_is_written_once(spark: SparkSession, store: Path, tmp_path: Path, keep: Any) -> None:
    summary = dedup.run(spark, dedup.Config(store=store, keep=keep, to=tmp_path / "clean", report=tmp_path / "twice"))
    at = {number: number for number in range(10)}
    if keep == "last":
        at |= {2: 10, 7: 12, 5: 13}
    expected = [*(f"{number} at {step}" for number, step in at.items()), "keyless", "keyless"]
    assert bodies(spark, tmp_path / "clean") == sorted(expected)
    assert bodies(spark, tmp_path / "clean", "other") == ["same key, other topic"]
    assert summary.facts["kept_messages"] == 13
    assert spark.read.parquet(str(tmp_path / "twice")).count() == 3
    again = dedup.run(spark, dedup.Config(store=store, keep=keep, to=tmp_path / "clean"))
    assert again.facts == {key: value for key, value in summary.facts.items() if key != "report"}
    assert bodies(spark, tmp_path / "clean") == sorted(expected)


def test_within_a_millisecond_the_log_says_which_is_the_first(spark: SparkSession, tmp_path: Path) -> None:
    """A producer that repeats a send takes another queue, whose number says nothing of when."""
    made = JobStore(tmp_path / "store")
    for queue_id, body in ((3, b"first"), (0, b"second"), (2, b"third")):
        made.put("orders", body, queue_id=queue_id, queues=4, UNIQ_KEY="U1")
    made.close()
    for keep, kept in (("first", "first"), ("last", "third")):
        config: Any = {"store": made.folder, "to": tmp_path / keep, "keep": keep}
        summary = dedup.run(spark, dedup.Config(**config))
        assert bodies(spark, tmp_path / keep) == [kept]
        (shown,) = summary.tables[0].rows
        assert shown[-1] == ["store/3@0", "store/0@0", "store/2@0"]


@pytest.mark.parametrize("is_archive", [False, True])
def test_both_passes_read_the_same(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_archive: bool
) -> None:
    """A copy that comes between the passes is not among what was counted, so it must not be written either."""
    grown = shutil.copytree(store, tmp_path / "store")
    place: dict[str, Any] = {"store": grown}
    if is_archive:
        place = {"archive": tmp_path / "archive"}
        archive.run(spark, archive.Config(store=grown, to=tmp_path / "archive"))
    read_messages = dedup.read_messages
    columns: list[Any] = []

    def grow() -> None:
        made = JobStore(grown)
        made.go_to(BEGIN + HOUR)
        made.put("orders", b"a copy that came meanwhile", UNIQ_KEY="U0")
        made.close()
        if is_archive:
            archive.run(spark, archive.Config(store=grown, to=tmp_path / "archive"))

    def read(spark: Any, config: Any, places: Any, wanted: Any) -> Any:
        if columns:
            grow()
        columns.append(wanted)
        return read_messages(spark, config, places, wanted)

    monkeypatch.setattr(dedup, "read_messages", read)
    dedup.run(spark, dedup.Config(**place, to=tmp_path / "clean"))
    assert len(columns) == 2
    assert bodies(spark, tmp_path / "clean").count("0 at 0") == 1
    assert "a copy that came meanwhile" not in bodies(spark, tmp_path / "clean")


def test_the_source_is_never_replaced(spark: SparkSession, store: Path) -> None:
    for config in (
        dedup.Config(store=store, to=store),
        dedup.Config(store=store, report=store / "report"),
        dedup.Config(store=store, to=store.parent),
    ):
        with pytest.raises(ConfigError, match=r"lies in a store|would be replaced"):
            dedup.run(spark, config)
    assert (store / "commitlog").is_dir()
    with pytest.raises(ConfigError, match="are two folders"):
        dedup.Config(store=store, to=store / "x", report=store / "x")
    for to, report in (("a", "a/b"), ("a/b", "a"), ("a", "c/../a")):
        with pytest.raises(ConfigError, match="are two folders"):
            dedup.Config(store=store, to=store.parent / to, report=store.parent / report)


def test_an_archive_gives_the_same(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    archive.run(spark, archive.Config(store=store, to=tmp_path / "archive"))
    from_log = dedup.run(spark, dedup.Config(store=store))
    from_archive = dedup.run(spark, dedup.Config(archive=tmp_path / "archive"))
    assert from_archive.to_dict() == from_log.to_dict()


@pytest.mark.parametrize(("topics", "since"), [(("orders",), 1_000), (("empty",), 0), ((), 0)])
def test_an_archive_without_such_messages_has_no_duplicates(
    spark: SparkSession, store: Path, tmp_path: Path, topics: tuple[str, ...], since: int
) -> None:
    """As an empty topic of a log has none."""
    of = JobStore(tmp_path / "store") if not since else None
    if of is not None:
        of.broker.create_topic("empty", TopicConfig(1, 1))
        of.put("other")
        of.close()
    made = archive.Config(store=of.folder if of else store, to=tmp_path / "archive", topics=("empty",) if of else ())
    archive.run(spark, made)
    config = dedup.Config(
        archive=made.to, topics=topics, since=BEGIN + since * HOUR, to=tmp_path / "clean", report=tmp_path / "report"
    )
    summary = run_job(spark, "dedup", config)
    assert summary.exit_code == 0
    names = ("messages", "without_key", "keys", "duplicated_keys", "surplus", "kept_messages")
    assert [summary.facts[name] for name in names] == [0] * 6
    assert spark.read.parquet(str(config.report)).count() == 0


@pytest.mark.parametrize("is_passed_over", ["false", "true"])
def test_a_changed_byte_is_not_compacted(spark: SparkSession, store: Path, tmp_path: Path, is_passed_over: str) -> None:
    """docs/spark/jobs/archive.md, "What is checked"; also where the session passes over files that cannot be read."""
    archive.run(spark, archive.Config(store=store, to=tmp_path / "archive"))
    path = next((tmp_path / "archive").rglob("topic=orders/**/*.parquet"))
    flip_page_byte(path, "body")
    config = dedup.Config(archive=tmp_path / "archive", topics=("orders",), to=tmp_path / "clean")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", is_passed_over)
    try:
        with pytest.raises(HeadraceError, match=path.name):
            run_job(spark, "dedup", config)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert not list((tmp_path / "clean").glob("topic=*"))


def test_the_cleaned_topic_gets_each_key_once_however_often_the_job_runs(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    """Idempotent: keys of an earlier run are known to the broker."""
    archive.run(spark, archive.Config(store=store, to=tmp_path / "archive"))
    with testing.broker() as broker:
        config = dedup.Config(
            archive=tmp_path / "archive", servers=broker.registry, topics=("orders",), to_topic="orders_clean"
        )
        sent = [dedup.run(spark, config).facts["sent"] for _ in range(2)]
        assert sent == [12, 0]
        rows = read(spark, servers=broker.registry, topics="orders_clean", columns="body,keys,unique_key").collect()
    found = sorted(bytes(row["body"]).decode() for row in rows)
    assert found == sorted([*(f"{number} at {number}" for number in range(10)), "keyless", "keyless"])
    assert {row["keys"] for row in rows} >= {"k0", "k5"}
    assert {row["unique_key"] for row in rows} >= {"U0", "U5"}


def test_topics_written_one_after_the_other_lose_no_message(spark: SparkSession, tmp_path: Path) -> None:
    """A message of another topic is another one, whatever its key: one run over both says so, too."""
    made = JobStore(tmp_path / "store")
    for topic in ("a", "b"):
        made.put(topic, f"of {topic}".encode(), UNIQ_KEY="U1")
    made.close()
    archive.run(spark, archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    with testing.broker() as broker:
        options: dict[str, Any] = {"archive": tmp_path / "archive", "servers": broker.registry}
        for topics in (("a",), ("b",), ("a",)):
            dedup.run(spark, dedup.Config(**options, topics=topics, to_topic="apart"))
        dedup.run(spark, dedup.Config(**options, topics=("a", "b"), to_topic="together"))
        for name in ("apart", "together"):
            assert bodies_of_topic(broker.registry, name) == {"of a": 1, "of b": 1}


def test_bodies_are_bytes_in_a_session_that_takes_them_for_text(spark: SparkSession, tmp_path: Path) -> None:
    """``spark.sql.parquet.binaryAsString``, which sessions have that read files of Impala or Hive."""
    body = b"refund \xff\xfe"
    made = JobStore(tmp_path / "store")
    made.put("orders", body, UNIQ_KEY="U1", KEYS="k1")
    made.close()
    archive.run(spark, archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    spark.conf.set("spark.sql.parquet.binaryAsString", "true")
    try:
        dedup.run(spark, dedup.Config(archive=tmp_path / "archive", to=tmp_path / "clean"))
        found = search.run(spark, search.Config(archive=tmp_path / "archive", key=("k1",), bodies=True)).facts["found"]
        assert spark.conf.get("spark.sql.parquet.binaryAsString") == "true"
    finally:
        spark.conf.unset("spark.sql.parquet.binaryAsString")
    assert found == 1
    (row,) = spark.read.parquet(str(tmp_path / "clean")).select("body").collect()
    assert bytes(row["body"]) == body


def test_a_message_that_cannot_be_sent_is_named_and_may_be_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """A second run adds nothing."""
    made = JobStore(tmp_path / "store")
    made.put("orders", b"first", UNIQ_KEY="U1")
    made.put("orders", b"long", UNIQ_KEY="U2", p="x" * 32_640)
    made.put("orders", b"last", UNIQ_KEY="U3")
    made.close()
    archive.run(spark, archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    with testing.broker() as broker:
        options: dict[str, Any] = {"archive": tmp_path / "archive", "servers": broker.registry, "topics": ("orders",)}
        config = dedup.Config(**options, to_topic="clean")
        with pytest.raises(
            HeadraceError, match=r"message \S+:\d+ of topic 'orders' cannot be sent: .*--skip-unsendable"
        ):
            run_job(spark, "dedup", config)
        for _ in range(2):
            summary = run_job(spark, "dedup", replace(config, skip_unsendable=True))
            assert summary.facts["skipped"] == 1
        assert bodies_of_topic(broker.registry, "clean") == {"first": 1, "last": 1}


def test_what_was_stored_on_the_first_day_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    """A broker whose clock was never set; Python has no local time there."""
    record = {"body": b"same", "topic": b"orders", "store_ms": FIRST_MS, "properties": b"UNIQ_KEY\x01U\x02"}
    log, _ = lay_log([record, record], 1 << 20)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / segment_name(0)).write_bytes(log.ljust(1 << 20, b"\0"))
    (row,) = dedup.run(spark, dedup.Config(store=tmp_path / "store")).to_dict()["duplicates"]
    assert (row["count"], row["first_stored"], len(row["places"])) == (2, "0001-01-01 00:00:00.000", 2)


def test_the_session_is_the_callers(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """Days are UTC in any time zone, a folder is replaced as a whole, and no setting is changed."""
    settings = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.sources.partitionOverwriteMode": "dynamic"}
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        for topics in (("orders", "other"), ("orders",)):
            dedup.run(spark, dedup.Config(store=store, topics=topics, to=tmp_path / "clean"))
        assert {name: spark.conf.get(name) for name in settings} == settings
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    folders = {str(path.parent.relative_to(tmp_path / "clean")) for path in (tmp_path / "clean").rglob("*.parquet")}
    assert folders == {"topic=orders/dt=2026-01-01"}


def test_a_run_that_fails_leaves_the_last_result(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """It was deleted before the first row of the new one was written."""
    config = dedup.Config(store=store, to=tmp_path / "clean")
    dedup.run(spark, config)
    there = bodies(spark, tmp_path / "clean")

    def broken(kept: Any, *_: Any) -> Any:
        return kept.selectExpr("*", "assert_true(length(body) < 3, 'broken') as x")

    compacted = dedup.compacted
    monkeypatch.setattr(dedup, "compacted", lambda *args: broken(compacted(*args)))
    with pytest.raises(HeadraceError, match="broken"):
        run_job(spark, "dedup", config)
    assert bodies(spark, tmp_path / "clean") == there
    monkeypatch.setattr(dedup, "compacted", compacted)
    dedup.run(spark, config)
    assert bodies(spark, tmp_path / "clean") == there
    assert not (tmp_path / "clean" / "_new").exists()


def test_paths_are_no_patterns(spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """And a relative one begins where this process is, not where Spark's JVM was started."""
    here = tmp_path / "späte [1] {a,b} *?\\ #%41"
    shutil.copytree(store, here / "store")
    monkeypatch.chdir(here)
    archive.run(spark, archive.Config(store=Path("store"), to=Path("archive")))
    for place in (dedup.Config(store=Path("store"), to=Path("a")), dedup.Config(archive=Path("archive"), to=Path("b"))):
        assert dedup.run(spark, place).facts["surplus"] == 4
    locks = {".a.lock", ".b.lock"}
    assert {path.name for path in here.iterdir()} == {"store", "archive", "a", "b"} | locks
    assert len(list((here / "b").rglob("*.parquet"))) > 0


@pytest.mark.parametrize("is_archive", [False, True])
def test_missing_topic_names_the_nearest(spark: SparkSession, store: Path, tmp_path: Path, is_archive: bool) -> None:
    place: dict[str, Any] = {"store": store}
    if is_archive:
        place = {"archive": tmp_path / "archive"}
        archive.run(spark, archive.Config(store=store, to=tmp_path / "archive"))
    with pytest.raises(ConfigError, match="did you mean 'orders'"):
        dedup.run(spark, dedup.Config(**place, topics=("other", "ordres")))


def test_a_topic_whose_folder_no_file_system_takes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark cannot make ``topic=%25%25...``; nothing that is there is deleted for it."""
    made = JobStore(tmp_path / "store")
    made.put("orders")
    made.put("%" * 90)
    made.close()
    dedup.run(spark, dedup.Config(store=made.folder, topics=("orders",), to=tmp_path / "clean"))
    with pytest.raises(ConfigError, match=r"--to .*: the folder of topic '%%%.*' would have a name of 276 bytes"):
        dedup.run(spark, dedup.Config(store=made.folder, to=tmp_path / "clean"))
    assert bodies(spark, tmp_path / "clean") == ["body"]


def test_a_dry_run_writes_nothing(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    summary = dedup.run(spark, dedup.Config(store=store, to=tmp_path / "clean", dry_run=True))
    assert summary.facts["surplus"] == 4
    assert not list((tmp_path / "clean").glob("topic=*"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"to_topic": "x"}, "needs --servers"),
        ({"servers": "h:1", "to_topic": "x"}, "needs --topics"),
        ({"servers": "h:1", "to_topic": "x", "topics": ("x",)}, "must not be one of them"),
        ({"by": "body"}, "unique_key"),
    ],
)
def test_wrong_use_is_said(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    place: dict[str, Any] = {} if "servers" in options else {"store": tmp_path}
    with pytest.raises(ConfigError, match=says):
        dedup.Config(**place, **options)


def test_places_of_a_key_that_all_messages_have_are_cut_down_before_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every message of a topic has the same KEYS the driver would hold a row for each of them."""
    made = JobStore(tmp_path / "store")
    for number in range(300):
        made.put("orders", b"x", queue_id=number % 2, queues=2, KEYS="all")
        made.put("other", b"x", KEYS="all")
    made.close()
    frame = type(spark.range(1))
    collected: list[int] = []
    collect = frame.collect

    def counting(self: Any) -> Any:
        rows = collect(self)
        collected.append(len(rows))
        return rows

    monkeypatch.setattr(frame, "collect", counting)
    summary = dedup.run(spark, dedup.Config(store=made.folder, by="keys"))
    assert max(collected) <= 2 * dedup.MAX_PLACES
    places = {row["topic"]: row["places"] for row in summary.to_dict()["duplicates"]}
    assert places["orders"] == [f"store/{number % 2}@{number // 2}" for number in range(dedup.MAX_PLACES)]
    assert places["other"] == [f"store/0@{number}" for number in range(dedup.MAX_PLACES)]
