"""Reading what brokers wrote down: the same bytes that the broker's own code makes. No Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.broker.statistics_records import Minute
from headrace.spark.jobs.broker_counts import SCHEMA, note_uncounted, rows_of_record
from headrace.spark.jobs.summary import Summary
from tests.support.steps import all_of

BEGIN = 1_767_225_600_000


def record(**sections: Any) -> bytes:
    minute = Minute(BEGIN + 7, BEGIN + 60_003)
    for name, rows in sections.items():
        setattr(minute, name, rows)
    (body,) = all_of(minute.encode("broker-a"))
    return body


def test_each_section_is_read() -> None:
    body = record(
        put=[["T", -1, "remoting", "10.0.0.1", 5, 500]],
        get=[["T", -1, "G", "remoting", "10.0.0.2", 4, 400], ["T", -1, "c", "nsq", "", 1, 10]],
        back=[["T", "G", "remoting", 2]],
        dead=[["T", "G", 1]],
        lag=[["T", "G", "remoting", 0, 7, 3.5], ["T", "G", "remoting", 1, 5, -1.0], ["T", "c", "nsq", -1, 2, -1.0]],
        latency={"flush_ms": {"count": 9, "p50": 1, "p90": 2, "p99": 3.25}},
        left_out=12,
    )
    rows = rows_of_record("broker-a", body)
    table = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).to_pylist()
    assert {(row["time"].timestamp(), row["broker"], row["damaged"]) for row in table} == {
        (BEGIN / 1000, "broker-a", 0)
    }
    shown = [{name: value for name, value in row.items() if value not in (None, "", 0)} for row in rows]
    for row in shown:
        del row["time"], row["broker"]
    billing = {"topic": "T", "group": "G", "source": "rocketmq"}
    assert shown == [
        {"topic": "T", "source": "rocketmq", "host": "10.0.0.1", "put_messages": 5, "put_bytes": 500},
        {**billing, "host": "10.0.0.2", "get_messages": 4, "get_bytes": 400},
        {"topic": "T", "group": "c", "source": "nsq", "get_messages": 1, "get_bytes": 10},
        {**billing, "sent_back": 2},
        {**billing, "dead_letters": 1},
        {**billing, "lag_messages": 12, "lag_seconds": 3.5},
        {"topic": "T", "group": "c", "source": "nsq", "lag_messages": 2},
        {"left_out": 12},
    ]


def test_only_the_wanted_minutes_are_taken() -> None:
    body = record(put=[["T", -1, "nsq", "", 1, 1]])
    assert rows_of_record("b", body, since=BEGIN, until=BEGIN + 60_000)
    assert not rows_of_record("b", body, since=BEGIN + 60_000)
    assert not rows_of_record("b", body, until=BEGIN)


@pytest.mark.parametrize(
    "body",
    [
        None, b"", b"{", b"[]", b"\xff", b'{"v":2,"from_ms":1}', b'{"v":1}', b'{"v":1,"from_ms":1,"put":[["T"]]}',
        b'{"v":1,"from_ms":1,"lag":7}', b'{"v":1,"from_ms":1e999}', b'{"v":1,"from_ms":99999999999999999999}',
        b'{"v":1,"from_ms":1,"put":[["T",0,"nsq","h","many",1]]}', b'{"v":1,"from_ms":1,"put":[[7,0,"nsq","h",1,1]]}',
        b'{"v":1,"from_ms":1,"left_out":"x"}', b'{"v":1,"from_ms":1,"dead":[["\\ud800","G",1]]}',
        b'{"v":1,"from_ms":1,"dead":[["T","G",99999999999999999999]]}',
        b'{"v":1,"from_ms":1,"lag":[["T","G","nsq",0,1,NaN]]}', b'{"v":1,"from_ms":1,"lag":[["T","G",{},0,1,1]]}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(body: bytes | None) -> None:
    """Never left out silently: the job counts such rows and notes them."""
    (row,) = rows_of_record("b", body)
    assert row["damaged"] == 1
    assert row["topic"] == ""
    assert pa.RecordBatch.from_pylist([row], schema=SCHEMA).num_rows == 1


def test_what_is_in_no_row_is_said_once() -> None:
    summary = Summary(job="alerts")
    for _ in range(2):
        note_uncounted(summary, 3, 12)
    assert summary.facts == {"unreadable_records": 3, "left_out_messages": 12}
    assert [note.partition(" messages")[0] for note in summary.notes] == [
        "3 records of HR_STATS are unreadable: what they counted is missing", "brokers counted 12",
    ]  # fmt: skip
    note_uncounted(summary := Summary(job="stats"), 0, 0)
    assert not summary.facts


def test_keys_that_are_not_known_are_passed_over() -> None:
    content = json.loads(record(put=[["T", -1, "nsq", "", 1, 1]])) | {"new": 1}
    assert len(rows_of_record("b", json.dumps(content).encode())) == 1
