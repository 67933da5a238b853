"""Adding up sorted rows of counts in numpy. No Spark."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.spark.jobs.stats_merge import (
    DIMENSIONS,
    HISTOGRAMS,
    PEAKS,
    SCHEMA,
    SUMS,
    TABLE_SCHEMA,
    finish,
    fold,
    merge_sorted,
    quantiles,
)


def row(rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = dict.fromkeys(SCHEMA.names)
    made |= {"time": datetime(2026, 1, 1, 0, rng.randrange(3), tzinfo=UTC)}
    made |= {name: rng.choice("ab") if name in ("topic", "group") else "x" for name in DIMENSIONS}
    made |= {name: rng.randrange(10) for name in SUMS if rng.random() < 0.8}
    made |= {name: rng.randrange(10) for name in PEAKS if rng.random() < 0.4}
    if rng.random() < 0.7:
        made |= {name: [rng.randrange(3) for _ in range(width)] for name, width in HISTOGRAMS.items()}
    return made


def plainly(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The readable reference."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in rows:
        key = tuple(one[name] for name in ("time", *DIMENSIONS))
        total = found.setdefault(key, dict.fromkeys(SUMS, 0) | dict.fromkeys((*PEAKS, *HISTOGRAMS)))
        for name in SUMS:
            total[name] += one[name] or 0
        for name in PEAKS:
            if one[name] is not None:
                total[name] = max(one[name], total[name] if total[name] is not None else -1)
        for name in HISTOGRAMS:
            if one[name] is not None:
                before = total[name] or [0] * len(one[name])
                total[name] = [a + b for a, b in zip(one[name], before, strict=True)]
    return [dict(zip(("time", *DIMENSIONS), key, strict=True)) | found[key] for key in sorted(found)]


@pytest.mark.parametrize("cut", [1, 2, 7, 200])
def test_equal_keys_are_added_up_across_batches(cut: int) -> None:
    rng = random.Random(cut)
    rows = sorted((row(rng) for _ in range(200)), key=lambda one: tuple(one[name] for name in ("time", *DIMENSIONS)))
    batches = [pa.RecordBatch.from_pylist(rows[at : at + cut], schema=SCHEMA) for at in range(0, 200, cut)]
    assert pa.Table.from_batches(merge_sorted(batches), schema=SCHEMA).to_pylist() == plainly(rows)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_batches_may_be_as_spark_hands_them_over(text: pa.DataType) -> None:
    """spark.md 4.3. Spark says of texts that none is null, and makes them large where its session says so."""
    rng = random.Random(3)
    rows = sorted((row(rng) for _ in range(50)), key=lambda one: tuple(one[name] for name in ("time", *DIMENSIONS)))
    fields = [pa.field(one.name, text, nullable=False) if one.name in DIMENSIONS else one for one in SCHEMA]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 9], schema=pa.schema(fields)) for at in range(0, 50, 9)]
    assert pa.Table.from_batches(merge_sorted(batches), schema=SCHEMA).to_pylist() == plainly(rows)


def test_folding_makes_other_dimensions_empty() -> None:
    rng = random.Random(5)
    rows = [row(rng) for _ in range(100)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    found = fold(table, ("topic",)).to_pylist()
    assert [one["topic"] for one in found] == ["a", "b"]
    for one in found:
        expected = sum(each["put_messages"] or 0 for each in rows if each["topic"] == one["topic"])
        assert one["put_messages"] == expected
        assert one["group"] == ""
    (total,) = fold(table, ()).to_pylist()
    assert total["put_bytes"] == sum(each["put_bytes"] or 0 for each in rows)
    assert fold(table.slice(0, 0), ("topic",)).to_pylist() == []


def test_a_table_has_rates_peaks_and_percentiles() -> None:
    one = dict.fromkeys(SCHEMA.names) | dict.fromkeys(DIMENSIONS, "x")
    one |= {"time": datetime(2026, 1, 1, tzinfo=UTC), "put_messages": 120, "seconds": [0] * 59 + [7]}
    one |= {"latencies": [100, 0, 0, 0, 0, 20] + [0] * 24}
    (found,) = pa.Table.from_batches(
        finish([pa.RecordBatch.from_pylist([one], schema=SCHEMA)], 60), schema=TABLE_SCHEMA
    ).to_pylist()
    assert (found["put_per_second"], found["put_per_second_max"]) == (2.0, 7)
    assert found["latency_p50_ms"] == pytest.approx(0.6)
    assert 6 < found["latency_p99_ms"] < 10
    assert found["lag_messages"] is None


def test_percentiles_equal_those_of_the_values() -> None:
    rng = np.random.default_rng(1)
    bounds = (1, 2, 5, 10, 20, 50, 100)
    values = rng.uniform(0, 120, 10_000)
    counts = np.bincount(np.searchsorted(bounds, values), minlength=8)
    for share in (0.1, 0.5, 0.75):
        (found,) = quantiles(np.array([counts]), bounds, share).to_pylist()
        assert found == pytest.approx(np.quantile(values, share), rel=0.06)
    assert quantiles(np.zeros((1, 8), dtype=np.int64), bounds, 0.5).to_pylist() == [None]
    assert quantiles(np.array([[0] * 7 + [3]]), bounds, 0.5).to_pylist() == [100.0]
