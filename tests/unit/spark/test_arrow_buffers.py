"""Batches large enough for their memory to be used again: what lay in it before must not show (spark.md 5.4.1)."""

from __future__ import annotations

import gc
import subprocess
import sys

import pyarrow as pa
import pytest

from headrace.format import record
from headrace.spark.arrow_buffers import spare_bytes
from headrace.spark.columns import COLUMNS
from headrace.spark.decode import Decoder

ALL = [*COLUMNS, "prop:region"]
MAX_SPARE_BYTES = 48 << 20


def records(count: int, *, body: bytes, every: int) -> bytes:
    """Return records of which one in ``every`` has properties, and is damaged: most rows have nulls or an empty map."""
    plain = record.encode(body, b"orders", store_ms=1_700_000_000_456)
    properties = record.encode_properties({"TAGS": "paid", "KEYS": "a b", "region": "größe", "note": "\x7f" * 40})
    rich = record.encode(body * 2, b"orders", properties=properties, store_ms=1_700_000_000_789)
    rich = rich.replace(b"paid", b"p\xffid")
    return b"".join(rich if i % every == 0 else plain for i in range(count))


def decode(raw: bytes, *, batch_rows: int = 65_536, batch_bytes: int = 16 << 20) -> pa.Table:
    decoder = Decoder(ALL, broker="b", batch_rows=batch_rows, batch_bytes=batch_bytes)
    decoder.feed_records(raw)
    batches = decoder.finish()
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("batch_rows", [65_536, 30_000, 6_007])
def test_used_memory_shows_in_no_column(batch_rows: int) -> None:
    raw = records(30_000, body=b"x" * 20, every=7)
    first = decode(raw, batch_rows=batch_rows)
    copy = pa.ipc.open_stream(as_stream(first)).read_all()  # it does not lie in the decoder's memory
    for body, every in ((b"\xff" * 25, 1), (b"\xff" * 3, 10_000), (b"\xff" * 40, 2)):
        decode(records(30_000, body=body, every=every))
        gc.collect()
        assert spare_bytes() > 0
        assert decode(raw, batch_rows=batch_rows).equals(copy)
    assert first.equals(copy), "memory of a batch that is there was used again"


def as_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_what_is_kept_has_a_bound() -> None:
    """Two batches of the default size, however much there was at a time."""
    raw = records(20_000, body=b"x" * 4_000, every=3)
    tables = [decode(raw) for _ in range(3)]
    assert sum(table.nbytes for table in tables) > 2 * MAX_SPARE_BYTES
    del tables
    gc.collect()
    assert MAX_SPARE_BYTES // 2 < spare_bytes() <= MAX_SPARE_BYTES
    decode(raw, batch_bytes=1 << 30)  # buffers larger than all that is kept
    assert spare_bytes() <= MAX_SPARE_BYTES


def test_a_decoder_that_is_left_gives_its_memory_back() -> None:
    decoder = Decoder(ALL)
    decoder.feed_records(records(20_000, body=b"x" * 100, every=3))
    before = spare_bytes()
    del decoder
    assert spare_bytes() > before


def test_a_small_batch_does_not_hold_the_memory_of_a_large_one() -> None:
    large, small = records(30_000, body=b"x" * 300, every=3), records(20, body=b"x", every=3)
    gc.collect()
    kept = []
    for _ in range(3):
        decode(large)
        kept.append(decode(small))
        gc.collect()
        assert spare_bytes() > 8 << 20, "it is there for the next large one"
    assert all(table.num_rows == 20 for table in kept)


def test_small_batches_keep_nothing() -> None:
    """In a process of its own: others of this file leave something behind."""
    code = (
        "from headrace.format import record\n"
        "from headrace.spark.arrow_buffers import spare_bytes\n"
        "from headrace.spark.decode import Decoder\n"
        "decoder = Decoder(['topic', 'body'])\n"
        "decoder.feed_records(record.encode(b'x' * 100, b't') * 100)\n"
        "del decoder\n"
        "print(spare_bytes())\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


@pytest.mark.parametrize("taken", range(7))
def test_memory_that_is_not_handed_over_is_freed_once(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bitmap of nulls was freed twice, and with it went the process."""
    hand_over = pa.foreign_buffer
    count = iter(range(100))

    def fail(*buffer: object) -> pa.Buffer:
        if next(count) == taken:
            raise MemoryError
        return hand_over(*buffer)

    decoder = Decoder(["tags", "keys", "queue_offset"])
    decoder.feed_records(records(20_000, body=b"", every=7))
    monkeypatch.setattr(pa, "foreign_buffer", fail)
    with pytest.raises(MemoryError):
        decoder.finish()
    del decoder
    monkeypatch.undo()
    assert decode(records(100, body=b"", every=7)).num_rows == 100
