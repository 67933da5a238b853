"""Counting in numpy equals counting message by message. No Spark."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.spark.jobs import stats_partials
from headrace.spark.jobs.stats_partials import (
    COLUMNS,
    LATENCIES,
    LATENCY_BOUNDS_MS,
    SCHEMA,
    SIZE_BOUNDS,
    SIZES,
    PartialCounts,
    count_batches,
)

BEGIN = 1_767_225_600_000
Message = tuple[str, str, str, int, int, int]
"""topic, source, host, born ms, stored ms, bytes."""


def messages(seed: int, count: int, *, hosts: int = 3, span_ms: int = 600_000) -> list[Message]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        stored = BEGIN + rng.randrange(span_ms)
        made.append(
            (
                rng.choice(("a", "b", "%DLQ%g")), rng.choice(("rocketmq", "nsq", "retry")),
                rng.choice((f"10.0.0.{rng.randrange(hosts)}:{rng.randrange(9)}", f"[::{rng.randrange(hosts)}]:5", "")),
                stored - rng.choice((-5, 0, 1, 7, 1_000, 10_000_000)), stored, rng.choice((91, 128, 129, 5_000_000)),
            )
        )  # fmt: skip
    return made


def batch(rows: list[Message]) -> pa.RecordBatch:
    topic, source, host, born, stored, size = zip(*rows, strict=True) if rows else ([],) * 6
    moment = pa.timestamp("us", tz="UTC")
    arrays = [
        pa.array(topic, pa.string()), pa.array(source, pa.string()), pa.array(host, pa.string()),
        pa.array([at * 1000 for at in born], moment), pa.array([at * 1000 for at in stored], moment),
        pa.array(size, pa.int32()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def plainly(rows: list[Message]) -> dict[tuple[int, str, str, str], dict[str, Any]]:
    """The readable reference."""
    found: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    for topic, source, host, born, stored, size in rows:
        address = host.rpartition(":")[0].strip("[]")
        key = (stored // 60_000 * 60_000, topic, source, address)
        row = found.setdefault(
            key,
            {
                "put_messages": 0,
                "put_bytes": 0,
                "skewed": 0,
                "untimed": 0,
                "seconds": [0] * 60,
                "sizes": [0] * SIZES,
                "latencies": [0] * LATENCIES,
            },
        )
        row["put_messages"] += 1
        row["put_bytes"] += size
        row["skewed"] += born > stored
        row["seconds"][stored // 1000 % 60] += 1
        row["sizes"][bisect_left(SIZE_BOUNDS, size)] += 1
        row["latencies"][bisect_left(LATENCY_BOUNDS_MS, stored - born)] += 1
    return found


def by_key(batches: list[pa.RecordBatch]) -> dict[tuple[int, str, str, str], dict[str, Any]]:
    found: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    for one in batches:
        assert one.schema == SCHEMA
        for row in one.to_pylist():
            key = (int(row.pop("time").timestamp() * 1000), row.pop("topic"), row.pop("source"), row.pop("host"))
            assert row.pop("broker") == "broker-a"
            assert key not in found
            found[key] = row
    return found


@pytest.mark.parametrize("seed", range(5))
def test_counts_equal_plain_counting(seed: int) -> None:
    """spark.md 4.3: partial aggregation in the task."""
    rows = messages(seed, 3_000)
    cuts = [0, 1, 700, 700, 2_999, 3_000]
    batches = [batch(rows[low:high]) for low, high in pairwise(cuts)]
    assert by_key(list(count_batches(iter(batches), "broker-a"))) == plainly(rows)


def test_a_batch_of_very_many_keys_is_sorted_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = messages(9, 2_000, hosts=500, span_ms=10**11)
    monkeypatch.setattr(stats_partials, "_DENSE", 10)
    assert by_key(list(count_batches(iter([batch(rows)]), "broker-a"))) == plainly(rows)


def test_hosts_can_be_left_out() -> None:
    rows = messages(1, 500)
    found = by_key(list(count_batches(iter([batch(rows)]), "broker-a", hosts=False)))
    assert found == plainly([(topic, source, "", *rest) for topic, source, _, *rest in rows])  # type: ignore[misc]


def test_many_groups_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_partials, "MAX_GROUPS", 50)
    rows = messages(2, 1_000, hosts=100)
    pieces = list(count_batches((batch(rows[at : at + 100]) for at in range(0, 1_000, 100)), "broker-a"))
    assert len(pieces) > 3
    total: Counter[tuple[Any, ...]] = Counter()
    for piece in pieces:
        for row in piece.to_pylist():
            total[int(row["time"].timestamp() * 1000), row["topic"], row["source"], row["host"]] += row["put_messages"]
    assert total == {key: row["put_messages"] for key, row in plainly(rows).items()}


def test_nothing_is_nothing() -> None:
    assert list(count_batches(iter([batch([])]), "broker-a")) == []
    counts = PartialCounts("broker-a")
    assert counts.take().num_rows == 0


def test_messages_without_times_are_in_no_minute_and_have_no_latency() -> None:
    """The decoder gives null for times outside of the years 1 to 9999: 1970 would be a lie."""
    rows = [("a", "rocketmq", "h:1", BEGIN - 7, BEGIN + 1, 100)] * 4
    made = batch(rows)
    moment = made.schema.field("store_ts").type
    stored = pa.array([None, (BEGIN + 1) * 1000, (BEGIN + 2) * 1000, None], moment)
    born = pa.array([None, None, (BEGIN - 7) * 1000, BEGIN * 1000], moment)
    made = made.set_column(made.schema.get_field_index("store_ts"), "store_ts", stored)
    made = made.set_column(made.schema.get_field_index("born_ts"), "born_ts", born)
    (counts,) = count_batches(iter([made]), "b")
    timed, untimed = counts.to_pylist()
    assert (timed["put_messages"], timed["untimed"], sum(timed["latencies"]), timed["skewed"]) == (2, 0, 1, 0)
    assert sum(timed["seconds"]) == sum(timed["sizes"]) == 2
    assert (untimed["time"], untimed["untimed"], untimed["put_messages"]) == (None, 2, None)
    only = made.filter(pc.is_null(made.column("store_ts")))
    (counts,) = count_batches(iter([only]), "b")
    assert counts.column("untimed").to_pylist() == [2]
