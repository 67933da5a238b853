"""``headrace job alerts``: planted anomalies are found, and little else is."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import testing
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.jobs import alerts, alerts_looking, alerts_model, stats_placing
from headrace.spark.jobs.alerts_series import FEATURES
from headrace.spark.jobs.config import show_time
from headrace.spark.jobs.stats_merge import TABLE_SCHEMA
from headrace.spark.reading import read
from tests.support.job_stores import MINUTE, JobStore
from tests.support.minute_series import BEGIN, DAY, Traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(600)


def write_tables(traffic: Traffic, folder: Path) -> None:
    """Write made-up minutes as the table of ``headrace job stats``."""
    by_day: dict[str, list[dict[str, Any]]] = {}
    for row in traffic.rows():
        moment = datetime.fromtimestamp(row.pop("time_ms") / 1000, UTC)
        row |= {"time": moment, "source": "rocketmq", "broker": "b", "host": ""}
        by_day.setdefault(f"{moment:%Y-%m-%d}", []).append(row)
    for day, rows in by_day.items():
        path = folder / "minute" / f"dt={day}" / "hour=00" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=TABLE_SCHEMA), path)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int], Traffic]:
    traffic = Traffic(seed=11)
    at = traffic.plant(7)
    folder = tmp_path_factory.mktemp("alerts") / "tables"
    write_tables(traffic, folder)
    return folder, at, traffic


def in_files(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.rglob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def minute_of(alert: dict[str, Any]) -> int:
    return int(alert["time"].timestamp() * 1000 - BEGIN) // MINUTE


def test_planted_anomalies_are_found_and_little_else(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic], tmp_path: Path
) -> None:
    """spark.md 4.7: rules, baseline and model on a day of 1,440 minutes of two series, six anomalies in it."""
    folder, at, traffic = planted
    config = alerts.Config(
        tables=folder, to=tmp_path / "alerts", model=tmp_path / "model", fit=True, since=BEGIN + 7 * DAY * MINUTE,
        until=traffic.end_ms,
    )  # fmt: skip
    summary = alerts.run(spark, config)
    found = in_files(tmp_path / "alerts")
    assert summary.facts["alerts"] == len(found)
    assert (summary.facts["series"], summary.facts["minutes_judged"]) == (2, 2 * DAY)  # the model is made of more
    for rule, begin in at.items():
        hits = [one for one in found if one["rule"] == rule and begin - 1 <= minute_of(one) <= begin + 15]
        assert hits, (rule, found)
    near = {minute for begin in at.values() for minute in range(begin - 2, begin + 45)}
    false = [one for one in found if minute_of(one) not in near]
    assert len(false) <= 3, false
    again = alerts.run(spark, alerts.Config(**{**_options(config), "fit": False}))
    assert again.facts["alerts"] == summary.facts["alerts"]
    assert in_files(tmp_path / "alerts") == found


def _options(config: alerts.Config) -> dict[str, Any]:
    return {option.name: getattr(config, option.name) for option in config.options()}


def test_the_model_sees_what_rules_do_not(spark: SparkSession) -> None:
    """Features that always go together, and then do not, each within its usual range."""
    rng = np.random.default_rng(3)
    common = rng.normal(0, 1, 4_000)
    rows = rng.normal(0, 0.1, (4_000, len(FEATURES)))
    rows[:, 0] += common
    rows[:, 2] += common
    model = alerts_model.fit(spark.createDataFrame([(row.tolist(),) for row in rows], "features array<double>"), 0)
    odd = rows[:3].copy()
    odd[:, 0], odd[:, 2] = 1.5, -1.5
    score = alerts_model.score(
        model, spark.createDataFrame([(row.tolist(),) for row in [*odd, *rows[:500]]], "features array<double>")
    ).collect()
    assert all(row["distance"] > model.note.threshold for row in score[:3])
    assert sum(row["distance"] > model.note.threshold for row in score[3:]) == 0
    assert {row["widest"] for row in score[:3]} <= {"put_messages", "get_messages"}


def test_a_model_is_kept_with_its_features_and_threshold(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = [(row.tolist(),) for row in rng.normal(0, 1, (600, len(FEATURES)))]
    frame = spark.createDataFrame(rows, "features array<double>")
    model = alerts_model.fit(frame, 17)
    alerts_model.save(model, tmp_path / "model")
    loaded = alerts_model.load(tmp_path / "model")
    assert loaded.note == model.note
    first = [row["distance"] for row in alerts_model.score(model, frame.limit(5)).collect()]
    second = [row["distance"] for row in alerts_model.score(loaded, frame.limit(5)).collect()]
    assert first == pytest.approx(second)
    note = json.loads((tmp_path / "model" / "model.json").read_text())
    (tmp_path / "model" / "model.json").write_text(json.dumps(note | {"features": ["other"]}))
    with pytest.raises(ConfigError, match="made of other features"):
        alerts_model.load(tmp_path / "model")
    (tmp_path / "model" / "model.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        alerts_model.load(tmp_path / "model")
    with pytest.raises(ConfigError, match="no model"):
        alerts_model.load(tmp_path / "none")
    with pytest.raises(ConfigError, match="too few"):
        alerts_model.fit(frame.limit(10), 0)


def test_a_model_is_replaced_in_one_step(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was ended while it saved left no model, and a standing job that read it meanwhile failed."""
    rng = np.random.default_rng(4)
    frame = spark.createDataFrame(
        [(row.tolist(),) for row in rng.normal(0, 1, (600, len(FEATURES)))], "features array<double>"
    )
    folder = tmp_path / "model"
    first = alerts_model.fit(frame, 17)
    notes = [replace(first.note, made_ms=made_ms, pipeline=f"pipeline-{made_ms}") for made_ms in (17, 18, 19)]
    models = [alerts_model.AlertModel(first.pipeline, note) for note in notes]
    alerts_model.save(models[0], folder)

    def end(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", end)
        with pytest.raises(KeyboardInterrupt):
            alerts_model.save(models[1], folder)
    assert alerts_model.load(folder).note == models[0].note
    alerts_model.save(models[2], folder)
    assert alerts_model.load(folder).note == models[2].note
    # That of the model before stays for whoever is just reading it; what was not finished goes.
    assert sorted(path.name for path in folder.glob("pipeline*")) == ["pipeline-17", "pipeline-19"]


def test_alerts_go_to_a_topic_once(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic], tmp_path: Path
) -> None:
    """Keyed: topic, group, minute and rule; a second run adds none."""
    folder, at, _ = planted
    begin = BEGIN + (at["no_traffic"] - 30) * MINUTE
    with testing.broker() as broker:
        config = alerts.Config(
            tables=folder, servers=broker.registry, to_topic="HR_ALERTS", since=begin, until=begin + 90 * MINUTE
        )
        counts = [alerts.run(spark, config).facts["alerts"] for _ in range(2)]
        rows = read(spark, servers=broker.registry, topics="HR_ALERTS", columns="body,keys,tags").collect()
    assert counts[0] == counts[1] == len(rows) > 0
    bodies = [json.loads(bytes(row["body"])) for row in rows]
    assert "no_traffic" in {body["rule"] for body in bodies} == {row["tags"] for row in rows}
    assert all(row["keys"].startswith("orders") for row in rows)


@pytest.mark.parametrize("ahead_days", [0, 3])
def test_alerts_of_earlier_days_are_sent_after_those_of_later_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_days: int
) -> None:
    """Also after a look at a clock that was days ahead; a second run adds none."""
    traffic = Traffic(days=5, seed=11)
    begins = [BEGIN + (traffic.plant(day)["throughput_high"] - 10) * MINUTE for day in (4, 2)]
    write_tables(traffic, tmp_path)
    ahead = SimpleNamespace(time=lambda: time.time() + 86_400 * ahead_days, monotonic=time.monotonic)
    monkeypatch.setattr(alerts_looking, "time", ahead)
    with testing.broker() as broker:
        sent = 0
        for begin in begins * 2:
            config = alerts.Config(
                tables=tmp_path, servers=broker.registry, to_topic="HR_ALERTS", since=begin,
                until=begin + 20 * MINUTE,
            )  # fmt: skip
            found = alerts.run(spark, config).facts["alerts"]
            monkeypatch.setattr(alerts_looking, "time", time)
            assert found
            sent += found
        sent //= 2
        assert read(spark, servers=broker.registry, topics="HR_ALERTS", columns="keys").count() == sent


def test_the_end_of_the_tables_is_no_silence(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic]
) -> None:
    """Tables are some minutes to an hour old when they are judged, and their last minute may be a part of one."""
    folder, _, traffic = planted
    shown = alerts.run(spark, alerts.Config(tables=folder)).to_dict()
    assert shown["until"] == show_time(traffic.end_ms - MINUTE)
    assert shown["since"] == show_time(traffic.end_ms - 61 * MINUTE)
    assert not {"no_traffic", "throughput_low"} & {row["rule"] for row in shown["found"]}
    later = alerts.run(spark, alerts.Config(tables=folder, since=traffic.end_ms))
    assert "the tables end at" in later.notes[0]


def test_messages_of_a_clock_that_was_ahead_are_not_the_end_of_the_tables(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic], tmp_path: Path
) -> None:
    """All that the tables do not have yet was judged until that time had come, and was silence."""
    folder, _, traffic = planted
    tables = shutil.copytree(folder, tmp_path / "tables")
    path = tables / "minute" / "dt=2126-01-01" / "hour=00" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    (last, *_) = traffic.rows()
    ahead = {**last, "time": datetime(2126, 1, 1, tzinfo=UTC), "source": "rocketmq", "broker": "b", "host": ""}
    del ahead["time_ms"]
    pq.write_table(pa.Table.from_pylist([ahead], schema=TABLE_SCHEMA), path)
    shown = alerts.run(spark, alerts.Config(tables=tables)).to_dict()
    assert shown["until"] == show_time(traffic.end_ms - MINUTE)
    assert not {"no_traffic", "throughput_low"} & {row["rule"] for row in shown["found"]}


def test_folders_that_cannot_be_made_are_said_before_the_work(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    for options in ({"to": tmp_path / "file"}, {"model": tmp_path / "file" / "model", "fit": True}):
        with pytest.raises(ConfigError, match=r"is no folder|cannot be made: Not a directory"):
            alerts.run(spark, alerts.Config(store=tmp_path / "store", **options))


def test_what_brokers_wrote_down_is_judged_too(spark: SparkSession, tmp_path: Path) -> None:
    """--store: HR_STATS, without tables."""
    made = JobStore(tmp_path / "store")
    made.put("orders")
    for minute in range(1, 240):
        for _ in range(60 if minute == 200 else 4):
            made.services.count_put("orders", 0, 5, 500, "10.0.0.1")
        made.go_to(BEGIN + minute * MINUTE)
    made.close()
    config = alerts.Config(store=tmp_path / "store", since=BEGIN + 190 * MINUTE, until=BEGIN + 210 * MINUTE)
    shown = alerts.run(spark, config).to_dict()
    assert [(row["rule"], row["time"]) for row in shown["found"]] == [("throughput_high", "2026-01-01 03:19")]


def test_a_lag_of_one_broker_lasts_while_another_says_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Lags were added up before they were held: a minute in which one broker had nothing to say was a fall of lag."""
    end = write_two_brokers(tmp_path / "tables", lambda name, minute: True)
    config = alerts.Config(tables=tmp_path / "tables", since=BEGIN + 190 * MINUTE, until=end)
    rows = alerts.run(spark, config).to_dict()["found"]
    shown = [(row["rule"], row["time"], row["minutes"]) for row in rows if row["group"]]
    assert shown == [("lag_high", "2026-01-01 03:20", 40)]


def write_two_brokers(folder: Path, is_there: Callable[[str, int], bool]) -> int:
    """Write four hours of tables; return their end. From 03:20 on 3,000 messages wait on b, which says so once."""
    blank = {"topic": "orders", "group": "", "source": "rocketmq", "host": ""}
    rows: list[dict[str, Any]] = []
    for minute in range(240):
        of_minute = {**blank, "time": datetime.fromtimestamp((BEGIN + minute * MINUTE) / 1000, UTC)}
        rows += [of_minute | {"broker": name, "put_messages": 20} for name in "ab" if is_there(name, minute)]
        of_minute |= {"group": "billing", "get_messages": 20}
        rows.append(of_minute | {"broker": "a", "lag_messages": 5, "lag_seconds": 1.0})
        if minute in (0, 200):
            rows.append(of_minute | {"broker": "b", "lag_messages": 15 * minute, "lag_seconds": 1.0})
    path = folder / "minute" / "dt=2026-01-01" / "hour=00" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=TABLE_SCHEMA), path)
    return BEGIN + 240 * MINUTE


def test_a_broker_that_is_gone_is_an_alert(spark: SparkSession, tmp_path: Path) -> None:
    """It raised none: of tables those of its minutes that are missing tell, of servers the registries."""
    tables = tmp_path / "tables"
    end = write_two_brokers(tables, lambda name, minute: name == "a" or not minute >= 215)
    summary = alerts.run(spark, alerts.Config(tables=tables, since=BEGIN + 210 * MINUTE, until=end, to=tmp_path / "to"))
    assert [row["explanation"] for row in summary.to_dict()["found"]] == [
        "nothing of broker 'b' for 25 minutes, while others go on"
    ]
    (written,) = in_files(tmp_path / "to")
    assert (written["broker"], written["rule"], minute_of(written)) == ("b", "broker_gone", 224)
    with testing.broker() as broker:
        config = alerts.Config(
            servers=broker.registry, brokers=("broker-z",), to_topic="HR_ALERTS", to=tmp_path / "asked"
        )
        assert alerts.run(spark, config).facts["alerts"] == 1
        (row,) = read(spark, servers=broker.registry, topics="HR_ALERTS", columns="body,keys,tags").collect()
    (written,) = in_files(tmp_path / "asked")
    assert (row["keys"], row["tags"], written["broker"]) == ("broker-z", "broker_gone", "broker-z")
    assert json.loads(row["body"])["explanation"].startswith("the registries know no broker 'broker-z'")


def test_tables_that_a_run_changes_meanwhile_are_read_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside ``stats`` a look ended with a stack of Spark's, of a file that was there before."""
    tables = tmp_path / "tables"
    config = alerts.Config(tables=tables, since=BEGIN, until=write_two_brokers(tables, lambda name, minute: True))
    expected = alerts.run(spark, config).to_dict()
    judge_all = alerts_looking.judge_all

    def change(*args: Any) -> Any:
        """Put the hour in place anew between the looking for files and their reading."""
        judged = judge_all(*args)
        if not caplog.records:
            (part,) = tables.rglob("*.parquet")
            new = tables / "_new" / part.parent.relative_to(tables) / "part-1.parquet"
            new.parent.mkdir(parents=True)
            part.rename(new)
            stats_placing.put_in_place(tables)
        return judged

    monkeypatch.setattr(alerts_looking, "judge_all", change)
    caplog.set_level(logging.INFO, alerts_looking.__name__)
    again = alerts.run(spark, config).to_dict()
    assert again | {"seconds": 0} == expected | {"seconds": 0}
    assert caplog.text.count("tables changed while they were read") == 1
    (tables / "_ready").mkdir()
    monkeypatch.setattr(alerts_looking, "_WAIT_S", 0.1)
    with pytest.raises(HeadraceError, match=f"{tables}: headrace job stats puts hours in place, or was killed"):
        alerts.run(spark, config)


def test_standing_mode_looks_again_and_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    with testing.broker() as broker:
        config = alerts.Config(servers=broker.registry, every_ms=200, rounds=2)
        began = time.monotonic()
        summary = alerts.run(spark, config)
        assert time.monotonic() - began >= 0.2
    assert summary.facts["alerts"] == 0


def test_a_model_that_is_not_made_is_said(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic], tmp_path: Path
) -> None:
    """A daily job whose tables have nothing new."""
    folder, _, traffic = planted
    config = alerts.Config(tables=folder, model=tmp_path / "model", fit=True, since=traffic.end_ms)
    summary = alerts.run(spark, config)
    assert any("no model was made" in note for note in summary.notes)


def test_what_can_be_read_is_said() -> None:
    with pytest.raises(ConfigError, match=r"name --tables DIR .*--store DIR .*or --servers"):
        alerts.Config()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fit": True}, "--fit needs --model"),
        ({"to_topic": "HR_ALERTS"}, "needs --servers"),
        ({"threshold": 1.0}, "--threshold"),
        ({"every_ms": 1_000, "until": BEGIN}, "leave --until away"),
        ({"every_ms": 1_000}, "--to or --to-topic"),
        ({"every_ms": 1_000, "to": Path("x"), "dry_run": True}, "--rounds"),
    ],
)
def test_wrong_use_is_said(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(ConfigError, match=says):
        alerts.Config(store=tmp_path, **options)


def test_tables_that_are_not_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no table of minutes"):
        alerts.Config(tables=tmp_path)


def test_a_session_with_large_texts_serves_and_stays_as_it_is(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic]
) -> None:
    """docs/spark/jobs/README.md: any session serves."""
    folder, _, traffic = planted
    config = alerts.Config(tables=folder, until=traffic.end_ms)
    expected = alerts.run(spark, config).facts
    key = "spark.sql.execution.arrow.useLargeVarTypes"
    before = spark.conf.get(key)
    assert before is not None
    spark.conf.set(key, "true")
    try:
        assert alerts.run(spark, config).facts == expected
        assert spark.conf.get(key) == "true"
    finally:
        spark.conf.set(key, before)


def test_a_missing_topic_names_the_nearest(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic], tmp_path: Path
) -> None:
    """No alerts would say that all is well. One that is there without minutes in these days is no error."""
    folder, _, traffic = planted
    known = str(next(iter(traffic.rows()))["topic"])
    options: dict[str, Any] = {"tables": folder, "until": traffic.end_ms}
    with pytest.raises(ConfigError, match=f"there is no topic '{known}x' in the tables: did you mean '{known}'"):
        alerts.run(spark, alerts.Config(**options, topics=(known, f"{known}x")))
    early = alerts.Config(tables=folder, until=BEGIN - 40 * DAY * MINUTE, topics=(known,))
    assert alerts.run(spark, early).facts["alerts"] == 0
    made = JobStore(tmp_path / "store")
    made.put("orders")
    made.close()
    with pytest.raises(ConfigError, match="there is no topic 'ordres': did you mean 'orders'"):
        alerts.run(spark, alerts.Config(store=tmp_path / "store", topics=("ordres",)))
    assert alerts.run(spark, alerts.Config(store=tmp_path / "store", topics=("orders",))).facts["alerts"] == 0


def test_minutes_that_are_still_to_come_are_no_silence(
    spark: SparkSession, planted: tuple[Path, dict[str, int], Traffic]
) -> None:
    """Neither behind what the tables have nor behind this very moment, however far off --until is."""
    folder, _, traffic = planted
    for until in (traffic.end_ms + 20 * MINUTE, 253_402_300_799_999):
        config = alerts.Config(tables=folder, since=traffic.end_ms - 5 * MINUTE, until=until)
        summary = alerts.run(spark, config)
        assert summary.facts["until"] == show_time(traffic.end_ms)
        assert [row for row in summary.to_dict()["found"] if row["rule"] == "no_traffic"] == []
