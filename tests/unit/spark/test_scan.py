"""Splits of a log: any size gives the same rows, over files and over a broker (spark.md 5.4.2)."""

import pickle
from itertools import pairwise

import pytest

from headrace.format.names import segment_name
from headrace.spark.decode import Decoder
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent
from headrace.spark.scan import (
    LogSplit,
    StoreSource,
    cut,
    decode_split,
    even_bytes,
    plan_log,
    raw_chunks,
    read_split,
)
from tests.unit.spark.test_files import SEGMENT, make_store, write_mark


def offsets(splits):
    return [
        row["queue_offset"]
        for split in splits
        for batch in read_split(split, ["queue_offset"])
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("size", [1, 100, 4096, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT, 1 << 40])
def test_every_split_size_gives_the_same_rows(tmp_path, size):
    count = 60 if size == 1 else 1500
    make_store(tmp_path, count)
    splits = plan_log(StoreSource(str(tmp_path)), split_bytes=max(size, 37))
    assert offsets(splits) == list(range(count))


@pytest.mark.parametrize("chunk", [64, 100, 1000, 5000, 1 << 20])
def test_every_chunk_size_gives_the_same_rows(tmp_path, chunk):
    make_store(tmp_path, 1500)
    found = []
    for split in plan_log(StoreSource(str(tmp_path)), split_bytes=10_000):
        decoder = Decoder(["queue_offset"])
        for batch in decode_split(split, decoder, chunk):
            found += [row["queue_offset"] for row in batch.to_pylist()]
        assert decoder.damaged == 0
    assert found == list(range(1500))


def test_splits_cover_the_log_once(tmp_path):
    raw, _ = make_store(tmp_path, 1500)
    splits = plan_log(StoreSource(str(tmp_path), "b"), split_bytes=10_000)
    assert splits[0].start == 0
    assert splits[-1].end == len(raw)
    assert all(a.end == b.start for a, b in pairwise(splits))
    assert all(split.broker == "b" and split.size_bytes <= 10_000 for split in splits)
    assert pickle.loads(pickle.dumps(splits)) == splits
    assert b"".join(data for split in splits for _, data in raw_chunks(split, 999)) == raw


@pytest.mark.parametrize("at_once", [1, 2, 3, 16])
def test_even_splits_cover_what_is_there_once(tmp_path, at_once):
    """Also across files of the log, and around one that is missing."""
    raw, whole = make_store(tmp_path, 3000)
    source = StoreSource(str(tmp_path), "b")
    splits = plan_log(source, split_bytes=20_000, at_once=at_once)
    assert (splits[0].start, splits[-1].end) == (0, len(raw))
    assert all(a.end == b.start for a, b in pairwise(splits))
    assert len(splits) % at_once == 0
    sizes = {split.size_bytes for split in splits}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 20_000
    assert offsets(splits) == list(range(3000))
    assert offsets(plan_log(source, start={"b": len(whole[0])}, split_bytes=20_000, at_once=at_once))[0] == 1
    (tmp_path / "commitlog" / segment_name(SEGMENT)).unlink()
    rest = plan_log(source, split_bytes=20_000, at_once=at_once)
    assert sum(split.size_bytes for split in rest) == len(raw) - SEGMENT
    assert not any(split.start < 2 * SEGMENT and split.end > SEGMENT for split in rest)
    assert offsets(rest)[-1] == 2999


@pytest.mark.parametrize(
    ("total", "at_once", "count"),
    [
        (0, 4, 1),
        (1, 4, 1),
        (100, 4, 1),
        (101, 2, 2),
        (101, 4, 4),
        (101, 64, 4),
        (1_700, 2, 18),
        (1_800, 2, 18),
        (1_700, 16, 32),
    ],
)
def test_pieces_are_as_many_for_each_task_and_not_too_small(total, at_once, count):
    assert even_bytes(total, 100, at_once) == max(1, -(-total // count))


def test_bounds(tmp_path):
    _, whole = make_store(tmp_path, 100)
    source = StoreSource(str(tmp_path), "b")
    at = [sum(map(len, whole[:i])) for i in range(101)]
    splits = plan_log(source, start={"b": at[10]}, end={"b": at[20]})
    assert offsets(splits) == list(range(10, 20))
    assert offsets(plan_log(source, start={"b": at[10] + 1}, end={"b": at[20] + 1})) == list(range(11, 21))
    assert plan_log(source, start={"b": at[100]}) == []


def test_start_that_is_gone_is_data_loss(tmp_path):
    make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / segment_name(0)).unlink()
    with pytest.raises(DataLossError, match="begins at physical offset 65536"):
        plan_log(StoreSource(str(tmp_path), "b"), start={"b": 5})


def test_missing_file_in_the_middle_is_left_out(tmp_path):
    make_store(tmp_path, 2000)
    (tmp_path / "commitlog" / segment_name(SEGMENT)).unlink()
    splits = plan_log(StoreSource(str(tmp_path)), split_bytes=1 << 40)
    assert (splits[0].start, splits[0].end) == (0, SEGMENT)
    assert offsets(splits)[-1] == 1999


def test_split_that_ends_in_a_part_without_a_file_is_whole(tmp_path):
    """Brokers do not say where such parts are, so splits may end in them."""
    raw, _ = make_store(tmp_path, 2000)
    source = StoreSource(str(tmp_path), "b")
    found = list(raw_chunks(LogSplit(source, "b", 0, SEGMENT, SEGMENT)))
    (tmp_path / "commitlog" / segment_name(SEGMENT)).unlink()
    split = LogSplit(source, "b", 0, SEGMENT + 500, SEGMENT)
    assert list(raw_chunks(split)) == found
    assert offsets([split]) == offsets([LogSplit(source, "b", 0, SEGMENT, SEGMENT)])
    assert len(raw) > 2 * SEGMENT


def test_cut_follows_a_grid():
    """A log that grew is cut in the same places."""
    extent = LogExtent("b", 1000, ((0, 2500),))
    assert list(cut(extent, 0, 2500, 300))[:4] == [(0, 300), (300, 600), (600, 900), (900, 1000)]
    assert list(cut(extent, 0, 2500, 2100)) == [(0, 2000), (2000, 2500)]
    assert list(cut(extent, 450, 700, 300)) == [(450, 600), (600, 700)]
    assert list(cut(extent, 700, 700, 300)) == []


def test_filters_and_batches_pass_through(tmp_path):
    raw, _ = make_store(tmp_path, 100)
    split = LogSplit(StoreSource(str(tmp_path)), "b", 0, len(raw), SEGMENT)
    batches = list(read_split(split, ["queue_offset", "broker"], start_ms=50, batch_rows=7))
    assert sum(batch.num_rows for batch in batches) == 50
    assert batches[0].num_rows == 7
    assert batches[0].column("broker").to_pylist() == ["b"] * 7


def test_log_that_ends_within_a_planned_split_is_data_loss(tmp_path):
    """It was cut off or replaced after the plan: its rows are read, and the rest is named."""
    raw, whole = make_store(tmp_path, 100)
    split = LogSplit(StoreSource(str(tmp_path), "b"), "b", 0, len(raw), SEGMENT)
    end = sum(map(len, whole[:60]))
    write_mark(tmp_path, end)
    batches = read_split(split, ["queue_offset"])
    assert next(batches).column(0).to_pylist() == list(range(60))
    with pytest.raises(DataLossError, match=f"'b' ends at physical offset {end}: {end} to {len(raw)} are") as caught:
        next(batches)
    assert (caught.value.broker, caught.value.first_offset, caught.value.end_offset) == ("b", end, len(raw))
    with pytest.raises(DataLossError, match="ends at physical offset"):
        list(raw_chunks(split, 1000))


@pytest.mark.parametrize("cut_off", [0, 5])
def test_only_a_log_that_ends_within_a_record_is_said_to(tmp_path, caplog, cut_off):
    """Not one whose last record begins before the split, as in the last piece of a stream that takes so many bytes."""
    raw, whole = make_store(tmp_path, 100)
    end = len(raw) - cut_off
    write_mark(tmp_path, end)
    source, last = StoreSource(str(tmp_path), "b"), len(raw) - len(whole[-1])
    for start in (last + 1, len(raw) - 9, len(raw) - 6):
        assert offsets([LogSplit(source, "b", start, end, SEGMENT)]) == []
    assert not caplog.records
    rows = offsets([LogSplit(source, "b", last - len(whole[-2]), end, SEGMENT)])
    assert (rows, len(caplog.records)) == (([98], 1) if cut_off else ([98, 99], 0))
    assert all(f"record broker=b physical_offset={last} end={end}" in record.message for record in caplog.records)
