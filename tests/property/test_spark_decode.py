"""The compiled decoder against the plain reference: any records, any way to cut them (spark.md 5.4.1, 5.4.2)."""

import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st

from headrace.format import record
from headrace.spark.columns import COLUMNS
from headrace.spark.decode import Decoder
from tests.support.record_rows import lay_log, row_of

i32 = st.integers(-(1 << 31), (1 << 31) - 1)
names = st.one_of(
    st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"region", b"x", b"", b"\xc3\xa4", b"\xff", b"__BATCH#"]),
    st.integers(0, 40).map(lambda number: b"p%d" % number),
)
values = st.one_of(st.binary(max_size=20), st.sampled_from([b"paid", "größe".encode(), b"\xed\xa0\x80", b"a\x01b"]))
properties = st.lists(st.tuples(names, values), max_size=60).map(
    lambda found: b"".join(
        name + b"\x01" + value.replace(b"\x02", b"").replace(b"\x00", b"") + b"\x02" for name, value in found
    )
)
bodies = st.one_of(
    st.tuples(st.binary(max_size=300), st.just(0)),
    st.tuples(st.binary(max_size=300).map(zlib.compress), st.just(1)),
    st.tuples(st.binary(max_size=30), st.just(1)),
)


@st.composite
def records(draw):
    body, compressed = draw(bodies)
    v6 = draw(st.one_of(st.none(), st.binary(min_size=20, max_size=20)))
    return {
        "body": body,
        "topic": draw(st.sampled_from([b"orders", b"a", b"%RETRY%g", "größe".encode(), b"\xffx", b"t" * 127])),
        "properties": draw(properties),
        "queue_id": draw(st.integers(0, 1 << 20)),
        "queue_offset": draw(st.integers(0, 1 << 60)),
        "born_host": draw(st.integers(1, (1 << 64) - 1)),
        "born_host_v6": v6,
        "store_host": draw(st.integers(0, (1 << 64) - 1)),
        "born_ms": draw(st.one_of(st.integers(0, 1 << 42), st.integers(-(1 << 63), (1 << 63) - 1))),
        "store_ms": draw(st.integers(0, 1 << 42)),
        "flag": draw(st.integers(0, (1 << 32) - 1)),
        "sys_flag": compressed | draw(st.sampled_from([0, 0x8, 0x40])),
        "reconsume_times": draw(i32),
    }


def decode(raws, columns, **options):
    decoder = Decoder(columns, broker="b", retry_topics=True, **options)
    for raw in raws:
        decoder.feed_records(raw)
    batches = decoder.finish()
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


@given(
    st.lists(records(), max_size=12), st.integers(1, 5), st.permutations(list(COLUMNS)), st.integers(1, len(COLUMNS))
)
def test_decoder_equals_reference(fields, batch_rows, order, count):
    whole = [record.encode(**found) for found in fields]
    columns = order[:count]
    expected = [{name: row_of(raw, with_body="body" in columns)[name] for name in columns} for raw in whole]
    assert decode([b"".join(whole)], columns, batch_rows=batch_rows) == expected


@given(st.lists(records(), min_size=1, max_size=30), st.integers(1, 3000), st.integers(1, 2000), st.integers(0, 2))
def test_any_cut_of_a_log_gives_every_record_once(fields, split, chunk, first_segment):
    """Splits of any size, read in chunks of any size that grow when a record does not fit."""
    segment = 2048
    fields = [
        found | {"queue_offset": i, "body": found["body"][:200], "properties": b""} for i, found in enumerate(fields)
    ]
    base = first_segment * segment
    raw, _ = lay_log(fields, segment, base)
    found = []
    for start in range(base, base + len(raw), split):
        end = min(start + split, base + len(raw))
        decoder = Decoder(["queue_offset"], retry_topics=True)
        at, size = start, chunk
        while at < end:
            segment_end = (at // segment + 1) * segment
            stop = min(segment_end, base + len(raw), at + size)
            reached = decoder.feed_log(raw[at - base : stop - base], at, at, end, segment_end=segment_end)
            if reached == at:
                if stop == min(segment_end, base + len(raw)):
                    break
                size *= 2
                continue
            at, size = reached, chunk
        found += [row["queue_offset"] for batch in decoder.finish() for row in batch.to_pylist()]
    assert found == list(range(len(fields)))


@given(st.binary(max_size=400), st.integers(0, 1 << 40), st.booleans())
def test_garbage_never_hurts(noise, base, with_magic):
    if with_magic:
        noise = noise[:4] + struct.pack(">I", 0xDAA320A7) + noise[8:]
    decoder = Decoder(list(COLUMNS))
    reached = decoder.feed_log(noise, base, base, base + len(noise), segment_end=base + len(noise))
    assert base <= reached <= base + len(noise)
    for batch in decoder.finish():
        batch.validate(full=True)
