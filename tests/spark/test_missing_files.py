"""Stores that lack a file of their log, read from the folder and through the broker: a loss that everybody tells of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace import testing
from headrace.errors import ConfigError
from headrace.spark.errors import DataLossError
from headrace.spark.jobs import alerts, archive, deadletters, dedup, manifest, rebuild, run_job, search, stats, verify
from headrace.spark.options import ReadOptions
from headrace.spark.streams.stream import StreamReader
from tests.support.spark_jobs import Sent, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

SEGMENT = 1 << 20
MESSAGES = 1_600


def orders(count: int) -> Iterator[Sent]:
    for number in range(count):
        yield Sent("orders", b"x" * 2_000, number % 4, {"UNIQ_KEY": f"U{number}", "KEYS": "k"})


@pytest.fixture(scope="module", params=["first", "middle"])
def broker(request: pytest.FixtureRequest) -> Iterator[testing.RunningBroker]:
    """A broker that was started without its first or its third file of some four."""
    with testing.broker(broker__name="b") as running:
        send(running.remoting, orders(MESSAGES))
        running.stop()
        gone = 0 if request.param == "first" else 2 * SEGMENT
        (running.data_dir / "commitlog" / f"{gone:020d}").unlink()
        running.start()
        yield running


@pytest.fixture(params=["store", "servers"])
def place(request: pytest.FixtureRequest, broker: testing.RunningBroker) -> dict[str, Any]:
    return {"store": broker.data_dir} if request.param == "store" else {"servers": broker.registry}


def options_of(place: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in place.items()}


def test_a_batch_is_refused(spark: SparkSession, place: dict[str, Any]) -> None:
    """source.md, "Loss": whatever it was, its rows would be missing silently."""
    options = options_of(place) | {"scan": "log"}
    with pytest.raises(Exception, match=r"has no files for") as caught:  # Spark wraps it
        spark.read.format("headrace").options(**options).load().count()
    assert DataLossError.__name__ in str(caught.value)
    assert 0 < spark.read.format("headrace").options(**options, failOnDataLoss="false").load().count() < MESSAGES


@pytest.mark.parametrize("job", [stats, dedup, search, deadletters])
def test_a_job_fails_and_says_what_is_missing(
    spark: SparkSession, place: dict[str, Any], tmp_path: Path, job: Any
) -> None:
    """jobs/README.md: exit code 1, something is damaged."""
    options: dict[Any, dict[str, Any]] = {search: {"key": ("k",), "limit": 10_000}, stats: {"to": tmp_path / "stats"}}
    more = options.get(job, {})
    summary = job.run(spark, job.Config(**place, **more))
    assert summary.exit_code == 1
    assert summary.facts["missing_bytes"] == SEGMENT
    assert sum("are in no file of its log" in note for note in summary.notes) == 1
    if job is search:
        assert 0 < len(summary.to_dict()["messages"]) < MESSAGES


def test_a_missing_file_hides_no_misspelt_topic(spark: SparkSession, broker: testing.RunningBroker) -> None:
    """No alert would say that it is quiet."""
    with pytest.raises(ConfigError, match="there is no topic 'ordres': did you mean 'orders'"):
        alerts.run(spark, alerts.Config(store=broker.data_dir, topics=("ordres",)))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.RunningBroker]:
    """A broker with a stretch of its log overwritten."""
    folder = tmp_path_factory.mktemp("damaged") / "store"
    with testing.broker(broker__name="b", store__data_dir=folder) as running:
        send(
            running.remoting,
            (Sent("orders", b"x" * 2_000, n % 4, {"UNIQ_KEY": f"U{n}", "KEYS": "k"}) for n in range(100)),
        )
        running.stop()
        with (folder / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(50_000)
            file.write(bytes(10_000))
        running.start()
        yield running


@pytest.mark.parametrize("kind", ["store", "servers"])
@pytest.mark.parametrize("job", [stats, dedup, search])
def test_a_job_fails_and_says_that_there_is_damage(
    spark: SparkSession, damaged: testing.RunningBroker, tmp_path: Path, kind: str, job: Any
) -> None:
    """jobs/README.md: exit code 1, something is damaged."""
    place: dict[str, Any] = {"store": damaged.data_dir} if kind == "store" else {"servers": damaged.registry}
    options: dict[Any, dict[str, Any]] = {search: {"key": ("k",), "limit": 10_000}, stats: {"to": tmp_path / "stats"}}
    summary = job.run(spark, job.Config(**place, **options.get(job, {})))
    assert summary.exit_code == 1
    assert sum("hold no record" in note for note in summary.notes) == 1
    assert "damage" not in summary.to_dict()


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.RunningBroker]:
    """A broker with one bit of one body wrong, in a topic and in a dead-letter topic."""
    folder = tmp_path_factory.mktemp("flipped") / "store"
    with testing.broker(broker__name="b", store__data_dir=folder) as running:
        for topic in ("orders", "%DLQ%group"):
            send(
                running.remoting,
                (Sent(topic, b"%s %d." % (topic.encode(), n), 0, {"UNIQ_KEY": f"U{n}", "KEYS": "k"}) for n in range(9)),
            )
        running.stop()
        with (folder / "commitlog" / f"{0:020d}").open("r+b") as file:
            log = file.read(64 << 10)
            for body in (b"orders 7.", b"%DLQ%group 7."):
                file.seek(log.index(body))
                file.write(bytes([body[0] ^ 1]))
        running.start()
        yield running


@pytest.mark.parametrize("kind", ["store", "servers"])
def test_a_record_whose_checksum_is_wrong_is_no_message(
    spark: SparkSession, flipped: testing.RunningBroker, tmp_path: Path, kind: str
) -> None:
    """jobs/README.md: it is not counted, found or sent on, and the job ends with 1."""
    place: dict[str, Any] = {"store": flipped.data_dir} if kind == "store" else {"servers": flipped.registry}
    summaries = {
        "dedup": dedup.run(spark, dedup.Config(**place, topics=("orders",), to=tmp_path / "once")),
        "search": search.run(spark, search.Config(**place, key=("k",), topics=("orders",))),
        "stats": stats.run(spark, stats.Config(**place, to=tmp_path / "stats", topics=("orders",))),
        "deadletters": deadletters.run(spark, deadletters.Config(**place)),
    }
    for summary in summaries.values():
        assert summary.exit_code == 1
        assert sum("whose checksum is wrong" in note for note in summary.notes) == 1
    assert summaries["dedup"].facts["messages"] == summaries["dedup"].facts["kept_messages"] == 8
    assert spark.read.parquet(str(tmp_path / "once")).count() == 8
    assert len(summaries["search"].to_dict()["messages"]) == 8
    assert summaries["stats"].facts["put_messages"] == 8
    assert summaries["deadletters"].facts["dead_letters"] == 8


def test_an_id_of_a_damaged_record_is_told_from_one_that_is_made_up(
    spark: SparkSession, flipped: testing.RunningBroker
) -> None:
    """Nothing is found of both; only of the first it is damage."""
    log = (flipped.data_dir / "commitlog" / f"{0:020d}").read_bytes()
    place = log.rindex(b"\xda\xa3\x20\xa7", 0, log.index(b"rders 7.")) - 4
    for physical_offset, code in ((place, 1), (place + 1, 0)):
        message_id = f"7F00000100002A9F{physical_offset:016X}"
        found = search.run(spark, search.Config(store=flipped.data_dir, id=(message_id,)))
        assert (found.exit_code, found.to_dict()["messages"]) == (code, [])


def test_a_rebuild_says_what_is_missing(spark: SparkSession, broker: testing.RunningBroker, tmp_path: Path) -> None:
    summary = run_job(spark, "rebuild", rebuild.Config(store=broker.data_dir, to=tmp_path / "rebuilt"))
    assert summary.exit_code == 1
    assert summary.facts["missing_bytes"] == SEGMENT


def test_an_id_that_is_made_up_is_no_damage(spark: SparkSession, damaged: testing.RunningBroker) -> None:
    config = search.Config(store=damaged.data_dir, id=("7F00000100002A9F0000000000000003",))
    assert search.run(spark, config).exit_code == 0


def test_an_archive_is_refused_or_counts_the_loss(spark: SparkSession, place: dict[str, Any], tmp_path: Path) -> None:
    config = {"to": tmp_path / "archive", **place}
    with pytest.raises(DataLossError, match="a file of the log is missing"):
        run_job(spark, "archive", archive.Config(**config))
    summary = run_job(spark, "archive", archive.Config(**config, on_data_loss="continue"))
    assert summary.facts["missing_bytes"] == SEGMENT
    assert 0 < summary.facts["messages"] < MESSAGES
    assert manifest.load(tmp_path / "archive").epochs[0].brokers["b" if "servers" in place else "store"].start == 0


def test_verify_finds_it(spark: SparkSession, place: dict[str, Any]) -> None:
    summary = run_job(spark, "verify", verify.Config(**place))
    assert summary.exit_code == 1


@pytest.mark.parametrize("is_error", [True, False])
def test_a_stream_over_the_log_is_refused(place: dict[str, Any], *, is_error: bool) -> None:
    """source.md, "Loss"."""
    given = {**options_of(place), "scan": "log", "group": "missing", "failOnDataLoss": str(is_error).lower()}
    stream = StreamReader(ReadOptions.parse(given | {"startingOffsets": "earliest"}), ("body",))
    try:
        if is_error:
            with pytest.raises(DataLossError, match="has no files for"):
                stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        else:
            start = stream.initialOffset()
            assert stream.latestOffset(start, ReadAllAvailable()) != start
    finally:
        stream.stop()
