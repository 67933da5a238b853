"""At what pace and in what order a replay's rows go, without Spark. Ref: docs/spark/jobs/replay.md."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("pyspark", reason="the extra spark is not installed")

from headrace.errors import ConfigError  # noqa: E402
from headrace.spark.jobs import replay  # noqa: E402
from headrace.spark.jobs.manifest import FOLDER, BrokerRange, Epoch, Manifest, Selection, write_epoch  # noqa: E402
from headrace.spark.jobs.replay_rows import Pace  # noqa: E402
from headrace.spark.jobs.summary import Summary  # noqa: E402
from tests.unit.spark.test_manifest import a_file  # noqa: E402


class Clock:
    """A clock that goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def rows(*stored_ms):
    times = pa.array([time_ms * 1000 for time_ms in stored_ms], pa.timestamp("us", tz="UTC"))
    return pa.record_batch([times], names=["store_ts"])


def sent(batches, rate=0.0, speed=0.0, oldest_ms=0, stall_at=None):
    """Return when each row went, in seconds since the beginning."""
    clock = Clock()
    pace = Pace(rate, speed, oldest_ms, clock, clock.sleep)
    times: list[float] = []
    for batch in batches:
        for part in pace.cut(batch):
            times += [clock.now - 100.0] * part.num_rows
            if stall_at is not None and len(times) >= stall_at:
                clock.now += 60
                stall_at = None
    return times


@pytest.mark.parametrize("rate", [0.5, 3, 100, 7000, 1e6])
def test_no_second_has_more_than_the_rate(rate):
    times = sent([rows(*range(5000)), rows(*range(3000))] if rate > 10 else [rows(*range(20))], rate=rate)
    assert times[-1] == pytest.approx(len(times) / rate, abs=0.1 + 1 / rate)
    most = max(sum(1 for other in times if at <= other < at + 1) for at in set(times))
    assert most <= rate * 1.05 + 1


def test_what_was_held_up_is_not_made_up_for():
    """A broker was away for a minute: what waited does not come at once."""
    times = sent([rows(*range(1000))], rate=100, stall_at=500)
    after = [at for at in times if at > 60]
    assert len(after) > 400
    assert max(sum(1 for other in after if at <= other < at + 1) for at in set(after)) <= 106


def test_rows_go_as_far_apart_as_they_were_stored():
    stored = [0, 10, 60_000, 60_000, 61_000, 59_000, 600_000]
    assert sent([rows(*stored[:3]), rows(*stored[3:])], speed=1) == pytest.approx([0, 0, 60, 60, 61, 61, 600], abs=0.06)
    assert sent([rows(*stored)], speed=60)[-1] == pytest.approx(10, abs=0.06)


def test_no_pace_is_no_cut():
    batch = rows(1, 2, 3)
    pace = Pace(0, 0, 0)
    assert list(pace.cut(batch)) == [batch]
    assert not pace.is_set


def test_files_that_overlap_in_the_log_are_read_together():
    """A clock that went back over midnight: two days in turn."""
    first = a_file(0, 100, min_offset=0, max_offset=90)
    today, yesterday = (a_file(100, 200, path=day, min_offset=low, max_offset=high)
                        for day, low, high in (("b", 110, 190), ("a", 100, 180)))  # fmt: skip
    last = a_file(200, 300, min_offset=200, max_offset=290)
    assert replay.beside_each_other([last, today, first, yesterday]) == [[first], [yesterday, today], [last]]


@pytest.fixture
def folder(tmp_path):
    """Folder of an archive without epochs."""
    (tmp_path / FOLDER).mkdir()
    return tmp_path


def test_another_archive_of_the_same_store_has_another_identity(folder):
    """It numbers other rows: those that the first one lacks would be taken for duplicates."""
    config = replay.Config(archive=folder, servers="h:1")

    def identity(start, since=None, epochs=1):
        covered = {"b": BrokerRange(start=start, end=500, store_id="s")}
        more = {"b": BrokerRange(start=500, end=600, store_id="s")}
        made = [
            Epoch(epoch=n + 1, selection=Selection(since=since), brokers=more if n else covered, files=[])
            for n in range(epochs)
        ]
        return replay.identity(config, Manifest(folder, made), "b", "t")

    assert identity(0) == identity(0, epochs=2)
    assert len({identity(0), identity(100), identity(0, since=7)}) == 3


def test_a_store_that_once_did_not_say_what_it_is_is_the_same(folder):
    """As a copy of the log alone, from which an archive went on: the replay of before would send everything again."""
    config = replay.Config(archive=folder, servers="h:1")
    known = BrokerRange(start=0, end=500, store_id="s")
    unknown = BrokerRange(start=500, end=600)

    def made(*ranges):
        return Manifest(folder, [
            Epoch(epoch=number, selection=Selection(), brokers={"b": covered}, files=[])
            for number, covered in enumerate(ranges, 1)
        ])  # fmt: skip

    before, grown = made(known), made(known, unknown)
    assert grown.store_ids == {"b": "s"}
    assert replay.identity(config, before, "b", "t") == replay.identity(config, grown, "b", "t")
    assert made(unknown).store_ids == {}


def test_a_name_of_ones_own_stands_for_the_rows_of_the_same_times(folder):
    """Rows are numbered from the first one sent on: of other times they would be taken for duplicates."""
    covered = {"b": BrokerRange(start=0, end=500, store_id="s")}
    made = Manifest(folder, [Epoch(epoch=1, selection=Selection(), brokers=covered, files=[])])

    def identity(**options):
        return replay.identity(replay.Config(archive=folder, servers="h:1", **options), made, "b", "t")

    assert identity(txn="a", since=5, until=9) == identity(txn="a", since=5, until=9)
    times = [{}, {"since": 5}, {"since": 5, "until": 9}, {"since": 7, "until": 9}]
    assert len({identity(txn=txn, **of) for txn in ("", "a", "b") for of in times}) == 12


@pytest.mark.parametrize("written", ["true", "TRUE", "True"])
def test_speculation_is_refused_however_spark_lets_it_be_written(written, folder):
    write_epoch(folder, Epoch(epoch=1, selection=Selection(), brokers={}, files=[]))
    spark: Any = SimpleNamespace(conf={"spark.speculation": written})
    with pytest.raises(ConfigError, match=r"switch spark\.speculation off"):
        replay.run(spark, replay.Config(archive=folder, servers="h:1"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"map": ("a=b", "a=c")}, "sent elsewhere already"),
        ({"map": ("a=b",), "topics": ("c",)}, "not among --topics"),
        ({"map": ("a",)}, "write FROM=TO"),
    ],
)
def test_map_that_says_nothing_is_refused(options, says, folder):
    with pytest.raises(ConfigError, match=says):
        replay.Config(archive=folder, servers="h:1", **options)


@pytest.mark.parametrize("retries", [0, 2])
def test_duplicates_may_be_of_this_run_too(retries):
    """A broker that was killed may have stored what it had not answered yet; a task that is lost counts no retries."""
    summary = Summary(job="replay")
    task: Any = SimpleNamespace(topic="t", plan=SimpleNamespace(options=SimpleNamespace(topic="u")))
    result = {"rows": 5, "stored": 3, "duplicates": 2, "retries": retries, "skipped": 0, "listed": []}
    replay.describe_run(summary, [task], [result])
    [note] = summary.notes
    assert "by an earlier run of the same replay, or by this one before an answer or a task was lost" in note
