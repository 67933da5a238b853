"""Which splits of a log a time range needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.jobs.log_rows import CLOCK_MARGIN_MS, splits_between
from headrace.spark.scan import LogSplit, StoreSource, plan_log, read_split
from tests.support.job_stores import BEGIN, HOUR, MINUTE, JobStore

SPLIT_BYTES = 1 << 17


@pytest.fixture
def job_store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "store")


def fill(store: JobStore, messages: int) -> None:
    """Store messages of 4 KB now."""
    for _ in range(messages):
        store.put("t", b"x" * 4_000)


def plan(store: JobStore) -> list[LogSplit]:
    store.close()
    return plan_log(StoreSource(str(store.folder)), split_bytes=SPLIT_BYTES)


def stored_between(splits: list[LogSplit], since: int | None, until: int | None) -> list[Any]:
    """Return the physical offsets of messages stored in a time range."""
    limits: dict[str, Any] = {"topics": ["t"], "start_ms": since, "end_ms": until}
    return [
        offset for split in splits for batch in read_split(split, ("log_offset",), **limits)
        for offset in batch.column(0).to_pylist()
    ]  # fmt: skip


def test_a_time_range_needs_a_part_of_the_log(job_store: JobStore) -> None:
    """Requirement: A-BROKER-49."""
    for hour in range(10):
        job_store.go_to(BEGIN + hour * HOUR)
        fill(job_store, 100)
    splits = plan(job_store)
    since, until = BEGIN + 4 * HOUR, BEGIN + 6 * HOUR
    part = splits_between(splits, since, until)
    assert len(stored_between(part, since, until)) == 200
    assert len(part) <= len(splits) // 2
    assert splits_between(splits, None, None) == splits
    assert splits_between(splits, BEGIN + 1_000 * HOUR, None) == splits[-1:]
    assert splits_between(splits, None, BEGIN - HOUR) == []


@pytest.mark.parametrize("jump", [24 * HOUR, 24 * HOUR + CLOCK_MARGIN_MS])
def test_a_clock_that_once_jumped_hides_no_message(job_store: JobStore, jump: int) -> None:
    """Requirement: A-BROKER-49. The clock is a day ahead for a while."""
    job_store.go_to(BEGIN + 10 * HOUR)
    fill(job_store, 200)
    job_store.clock.advance_ms(jump)
    fill(job_store, 400)
    job_store.clock.advance_ms(-jump)
    fill(job_store, 200)
    job_store.go_to(BEGIN + 12 * HOUR)
    fill(job_store, 200)
    splits = plan(job_store)
    hours = [(None, 11), (9, 11), (11, 13), (11, None), (12, None), (33, 35), (33, None), (13, 30)]
    found = []
    for since, until in hours:
        times = tuple(None if hour is None else BEGIN + hour * HOUR for hour in (since, until))
        part = splits_between(splits, *times)
        found.append((len(stored_between(part, *times)), len(stored_between(splits, *times))))
    assert [of_part for of_part, _ in found] == [of_all for _, of_all in found]
    assert found[1] == (400, 400)


def test_what_a_split_had_before_its_clock_was_set_back_is_found(job_store: JobStore) -> None:
    """Requirement: A-BROKER-49. Only the beginnings of splits are looked at."""
    job_store.go_to(BEGIN + 10 * HOUR)
    fill(job_store, 40)  # the second split begins
    job_store.go_to(BEGIN + 20 * HOUR)
    fill(job_store, 10)
    job_store.clock.advance_ms(-15 * HOUR)
    fill(job_store, 100)
    splits = plan(job_store)
    for hour, count in ((20, 10), (5, 100)):
        since, until = BEGIN + hour * HOUR, BEGIN + hour * HOUR + MINUTE
        assert len(stored_between(splits_between(splits, since, until), since, until)) == count
