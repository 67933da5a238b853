"""``headrace job search`` over a log and an archive."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.format.names import segment_name
from headrace.spark.jobs import archive, run_job, search
from headrace.spark.jobs.summary import Summary
from headrace.spark.times import FIRST_MS, LAST_MS
from tests.support.job_stores import BEGIN, HOUR, JobStore, host_of
from tests.support.record_rows import lay_log, row_of
from tests.support.spark_jobs import flip_page_byte

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = JobStore(folder)
        self.offsets = []
        for number in range(60):
            made.go_to(BEGIN + number * HOUR // 10)
            topic = ("orders", "payments")[number % 2]
            properties: dict[str, Any] = {
                "KEYS": f"k{number} all",
                "UNIQ_KEY": f"U{number:04d}",
                "TAGS": ("red", "blue")[number % 3 == 0],
            }
            self.offsets.append(made.put(topic, f"body of {number}".encode(), **properties))
        made.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("search") / "store")


@pytest.fixture(scope="module")
def archived(spark: SparkSession, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "archive"
    archive.run(spark, archive.Config(store=store.folder, to=folder))
    return folder


def found(summary: Summary) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = summary.to_dict()["messages"]
    return rows


@pytest.fixture(params=["log", "archive", "both"])
def place(request: pytest.FixtureRequest, store: Store, archived: Path) -> dict[str, Any]:
    places = {"log": {"store": store.folder}, "archive": {"archive": archived}}
    return places["log"] | places["archive"] if request.param == "both" else places[request.param]


def test_a_message_is_found_by_any_of_its_names(spark: SparkSession, store: Store, place: dict[str, Any]) -> None:
    """spark.md 4.6: key, unique key, id; log and archive agree, and a message that is in both is found once."""
    (by_key,) = found(search.run(spark, search.Config(**place, key=("k17",))))
    assert by_key["log_offset"] == store.offsets[17]
    assert by_key["topic"] == "payments"
    (by_unique,) = found(search.run(spark, search.Config(**place, key=("U0018",))))
    assert by_unique["log_offset"] == store.offsets[18]
    node_id = f"{7 << 48 | store.offsets[19]:016x}"
    (by_id,) = found(search.run(spark, search.Config(**place, id=(node_id,))))
    assert by_id["log_offset"] == store.offsets[19]


def test_conditions_are_met_together(spark: SparkSession, place: dict[str, Any]) -> None:
    config = search.Config(
        **place,
        key=("all",),
        topics=("orders",),
        tags=("red",),
        since=BEGIN + HOUR,
        until=BEGIN + 3 * HOUR,
        bodies=True,
    )
    bodies = [row["body"] for row in found(search.run(spark, config))]
    assert bodies == [f"body of {number}" for number in range(10, 30, 2) if number % 3]


def test_text_in_bodies(spark: SparkSession, place: dict[str, Any]) -> None:
    rows = found(search.run(spark, search.Config(**place, contains="of 5", bodies=True)))
    assert {row["body"] for row in rows} == {f"body of {number}" for number in (5, *range(50, 60))}


def test_an_archive_may_be_called_anything(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """Spark's readers take brackets for a pattern."""
    archive.run(spark, archive.Config(store=store.folder, to=tmp_path / "a[1]{b}"))
    assert len(found(search.run(spark, search.Config(archive=tmp_path / "a[1]{b}", key=("k17",))))) == 1


def test_limit_and_writing(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    summary = search.run(spark, search.Config(store=store.folder, since=BEGIN, limit=5, to=tmp_path / "found"))
    assert summary.facts["found"] == 60
    assert [row["log_offset"] for row in found(summary)] == store.offsets[:5]
    assert "55 more" in summary.notes[0]
    assert spark.read.parquet(str(tmp_path / "found")).count() == 60


def test_a_message_that_claims_the_first_or_the_last_day_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    """spark.md 4.6. What .NET sends for a time that was never set: Python has no local time there."""
    made = JobStore(tmp_path / "store")
    for key, born_ms in (("least", FIRST_MS), ("most", LAST_MS)):
        made.put("orders", latency_ms=made.now - born_ms, KEYS=key)
    made.close()
    archive.run(spark, archive.Config(store=tmp_path / "store", to=tmp_path / "archive"))
    config = search.Config(store=tmp_path / "store", archive=tmp_path / "archive", since=BEGIN, to=tmp_path / "found")
    assert [row["keys"] for row in found(search.run(spark, config))] == ["least", "most"]
    written = spark.read.parquet(str(tmp_path / "found")).selectExpr("unix_millis(born_ts) AS born_ms").collect()
    assert sorted(row["born_ms"] for row in written) == [FIRST_MS, LAST_MS]
    # As INT96 others than Spark would read other years.
    times = pq.read_table(tmp_path / "found").column("born_ts").cast(pa.int64()).to_pylist()
    assert sorted(times) == [FIRST_MS * 1000, LAST_MS * 1000]


def test_an_offset_id_names_broker_and_place(spark: SparkSession, store: Store) -> None:
    (row,) = found(search.run(spark, search.Config(store=store.folder, key=("k3",))))
    (by_id,) = found(search.run(spark, search.Config(store=store.folder, id=(row["msg_id"].lower(),))))
    assert by_id == row
    other_host = "0A" + row["msg_id"][2:]
    assert found(search.run(spark, search.Config(store=store.folder, id=(other_host,)))) == []


def lay_store(folder: Path, address: str, bodies: list[bytes]) -> list[str]:
    """Lay a log as a broker at an address would have written it; return its messages' ids."""
    records = [
        {"body": body, "topic": b"orders", "store_ms": BEGIN + number, "born_ms": BEGIN, "store_host": host_of(address)}
        for number, body in enumerate(bodies)
    ]
    log, whole = lay_log(records, 1 << 20)
    (folder / "commitlog").mkdir(parents=True)
    (folder / "commitlog" / segment_name(0)).write_bytes(log.ljust(1 << 20, b"\0"))
    return [row_of(record)["msg_id"] for record in whole]


def test_an_offset_id_names_its_broker_in_an_archive_too(spark: SparkSession, tmp_path: Path) -> None:
    """Two brokers' logs have a record at the same physical offset."""
    ids = {name: lay_store(tmp_path / name, f"10.0.0.{name[-1]}", [name.encode()]) for name in ("b1", "b2")}
    for name in ids:
        archive.run(spark, archive.Config(store=tmp_path / name, to=tmp_path / "archive"))
    for name, (message_id,) in ids.items():
        config = search.Config(archive=tmp_path / "archive", id=(message_id,), bodies=True)
        assert [(row["broker"], row["body"]) for row in found(search.run(spark, config))] == [(name, name)]


def test_a_store_is_the_same_under_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """docs/spark/jobs/archive.md: with --store the broker is called by the folder's name."""
    made = JobStore(tmp_path / "data")
    offset = made.put("orders", b"one", KEYS="k")
    made.close()
    archive.run(spark, archive.Config(store=tmp_path / "data", to=tmp_path / "archive", broker="broker-a"))
    config = search.Config(store=tmp_path / "data", archive=tmp_path / "archive", key=("k",))
    (row,) = found(search.run(spark, config))
    assert (row["log_offset"], row["broker"]) == (offset, "data")
    assert row["msg_id"] is not None  # the log's row: an archive has no ids


def test_another_store_of_the_same_name_hides_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """docs/limits.md: a new store is the only way to give room back; offsets begin anew."""
    for name in ("old", "new"):
        made = JobStore(tmp_path / name / "broker-a")
        made.put("orders", name.encode(), KEYS="k")
        made.close()
    archive.run(spark, archive.Config(store=tmp_path / "old" / "broker-a", to=tmp_path / "archive"))
    config = search.Config(
        store=tmp_path / "new" / "broker-a", archive=tmp_path / "archive", key=("k",), bodies=True
    )  # fmt: skip
    rows = found(search.run(spark, config))
    assert sorted(row["body"] for row in rows) == ["new", "old"]
    assert len({(row["broker"], row["log_offset"]) for row in rows}) == 1


def test_a_missing_topic_names_the_nearest(spark: SparkSession, place: dict[str, Any]) -> None:
    """Zeros would say that it has no such message. One that is there without such a message is no error."""
    with pytest.raises(ConfigError, match=r"there is no topic 'ordres'.*: did you mean 'orders'"):
        search.run(spark, search.Config(**place, key=("k2",), topics=("payments", "ordres")))
    assert search.run(spark, search.Config(**place, key=("k2",), topics=("payments",))).facts["found"] == 0


def test_a_topic_of_the_log_or_of_the_archive_is_one(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """The archive has what the log no longer has, and the other way round."""
    made = JobStore(tmp_path / "old")
    made.put("invoices", KEYS="k")
    made.close()
    archive.run(spark, archive.Config(store=tmp_path / "old", to=tmp_path / "archive"))
    places: dict[str, Any] = {"store": store.folder, "archive": tmp_path / "archive"}
    assert search.run(spark, search.Config(**places, key=("x",), topics=("invoices", "orders"))).facts["found"] == 0
    with pytest.raises(ConfigError, match="there is no topic 'invoice': did you mean 'invoices'"):
        search.run(spark, search.Config(**places, key=("x",), topics=("invoice",)))


def test_the_archive_is_pruned_by_its_manifest(spark: SparkSession, archived: Path) -> None:
    summary = search.run(spark, search.Config(archive=archived, topics=("orders",), key=("k2",)))
    assert summary.facts["archive_files_passed_over"] >= 1
    later = search.run(spark, search.Config(archive=archived, since=BEGIN + 1_000 * HOUR))
    assert (later.facts["archive_files"], later.facts["found"]) == (0, 0)


def test_a_changed_byte_is_no_result(spark: SparkSession, archived: Path, tmp_path: Path) -> None:
    """docs/spark/jobs/archive.md, "What is checked"."""
    shutil.copytree(archived, tmp_path / "copy")
    path = next((tmp_path / "copy").rglob("topic=orders/**/*.parquet"))
    flip_page_byte(path, "body")
    with pytest.raises(HeadraceError, match=path.name):
        run_job(spark, "search", search.Config(archive=tmp_path / "copy", contains="body"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"store": "S"}, "say what to look for"),
        ({"store": "S", "id": ("xyz",)}, "no message id"),
        ({"store": "S", "id": ("0007800000000010",)}, "ephemeral"),
        ({"key": ("k",)}, "--store DIR"),
        ({"archive": "nowhere", "key": ("k",)}, "not a directory"),
    ],
)
def test_wrong_use_is_said(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    if options.get("store") == "S":
        options = {**options, "store": tmp_path}
    with pytest.raises(ConfigError, match=says):
        search.Config(**options)
