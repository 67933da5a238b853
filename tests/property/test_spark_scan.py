"""Splits and chunks of any size against a plain walk of the log: records of any size, some damaged (spark.md 5.4.2)."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.spark.decode import Decoder
from headrace.spark.scan import LogSplit, decode_split
from tests.support.record_rows import lay_log

SEGMENT = 1 << 20


@dataclass(frozen=True)
class Held:
    """A log in memory that stands for a source: chunks from one file each, up to the end of a file."""

    raw: bytes

    def chunks(self, broker, start, stop, chunk_bytes):
        at = start
        while at < len(self.raw) and (at < stop or at % SEGMENT):
            end = min(at + chunk_bytes, (at // SEGMENT + 1) * SEGMENT, len(self.raw))
            yield at, memoryview(self.raw)[at:end]
            at = end


def lay(sizes):
    fields = [{"body": b"x" * size, "topic": b"t", "queue_offset": i} for i, size in enumerate(sizes)]
    raw, _ = lay_log(fields, SEGMENT)
    at, places = 0, []
    for queue_offset in range(len(sizes)):
        while int.from_bytes(raw[at + 4 : at + 8]) == 0xCBD43194:
            at += int.from_bytes(raw[at : at + 4])
        size = int.from_bytes(raw[at : at + 4])
        places.append((at, size, queue_offset))
        at += size
    assert at == len(raw)
    return raw, places


def read(raw, bounds, chunk_bytes):
    found = []
    for start, end in pairwise(bounds):
        decoder = Decoder(["queue_offset"])
        split = LogSplit(Held(raw), "b", start, end, SEGMENT)  # type: ignore[arg-type]  # stands for a source
        for batch in decode_split(split, decoder, chunk_bytes):
            found += batch.column(0).to_pylist()
    return found


sizes_of_bodies = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(64_000, 300_000))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(sizes_of_bodies, min_size=1, max_size=25),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    chunk_bytes=st.one_of(st.integers(200, 5000), st.integers(5000, 400_000)),
    near=st.one_of(st.none(), st.tuples(st.integers(0, 24), st.integers(-50, 50))),
    harmed=st.lists(st.tuples(st.integers(0, 24), st.sampled_from(["size", "longer", "magic", "offset"])), max_size=2),
)
@example(sizes=[1000, 1000, 150_000, *[1000] * 24], cuts=[0.01], chunk_bytes=4000, near=None, harmed=[])
def test_any_cut_gives_what_a_plain_walk_gives(sizes, cuts, chunk_bytes, near, harmed):
    raw, places = lay(sizes)
    if near is not None and near[0] < len(places):
        # Chunks of the first split end a few bytes into that record, or before it.
        chunk_bytes = max(1, places[near[0]][0] + near[1])
    log, lost = bytearray(raw), set()
    for number, what in dict(harmed).items():
        if number >= len(places):
            continue
        at, size, queue_offset = places[number]
        lost.add(queue_offset)
        if what == "magic":
            log[at + 4] ^= 1
        elif what == "offset":
            log[at + 28] ^= 1
        else:
            log[at : at + 4] = (size // 2 if what == "size" else size * 2 + 1000).to_bytes(4)
    bounds = sorted({0, len(raw), *(int(cut * len(raw)) for cut in cuts)})
    expected = [queue_offset for _, _, queue_offset in places if queue_offset not in lost]
    assert read(bytes(log), bounds, chunk_bytes) == expected


def test_search_that_stops_inside_the_carry_keeps_the_rest_of_the_chunk():
    """A split begins in record 1; its first chunk ends 5 bytes into a record of 150 KB."""
    sizes = [1000, 1000, 150_000, *[1000] * 24]
    raw, places = lay(sizes)
    start = places[1][0] + 10
    chunk_bytes = places[2][0] + 5 - start
    assert read(raw, (start, len(raw)), chunk_bytes) == list(range(2, 27))


@pytest.mark.parametrize("size", [64_000, 66_000, 150_000])
def test_damaged_size_before_a_large_record(size):
    raw, places = lay([500, 500, size, *[500] * 20])
    log = bytearray(raw)
    log[places[1][0] : places[1][0] + 4] = (places[1][1] + 70).to_bytes(4)
    assert read(bytes(log), (0, len(raw)), places[2][0] + 30) == [0, *range(2, 23)]


def test_damaged_size_at_the_end_of_the_log_hides_nothing_behind_it():
    raw, places = lay([500] * 20)
    log = bytearray(raw)
    log[places[15][0] : places[15][0] + 4] = (100_000).to_bytes(4)
    assert read(bytes(log), (0, len(raw)), 4000) == [n for n in range(20) if n != 15]
