"""Records to Arrow columns: every column, filters, batches, damage (spark.md 5.4.1, 5.4.2)."""

import struct
import zlib

import cramjam
import pyarrow as pa
import pytest

from headrace.errors import CorruptRecordError
from headrace.format import record
from headrace.format.compression import GIVEN_AS_STORED
from headrace.spark.columns import COLUMNS
from headrace.spark.decode import Decoder
from headrace.spark.schema import arrow_schema
from tests.support.record_rows import lay_log, row_of

ALL = list(COLUMNS)
HOST = 0x0A00_0001_0000_2A9F
HOST_V6 = bytes(range(16)) + struct.pack(">i", 9876)


def encode(body=b"hello", topic=b"orders", properties=None, **more):
    fields = {"store_host": HOST, "born_host": HOST, "born_ms": 1_700_000_000_123, "store_ms": 1_700_000_000_456}
    packed = record.encode_properties(properties or {})
    return record.encode(body, topic, properties=packed, **(fields | more))


def rows(raw, columns=ALL, **options):
    decoder = Decoder(columns, broker="b", **options)
    decoder.feed_records(raw)
    batches = decoder.finish()
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "raw",
    [
        encode(),
        encode(b""),
        encode(properties={"KEYS": "a b", "TAGS": "paid", "UNIQ_KEY": "0A00", "region": "eu"}),
        encode(topic=b"%RETRY%g", reconsume_times=3),
        encode(topic="größe".encode(), properties={"näme": "wört"}),
        encode(topic=b"bad\xff\xe2\x82topic", properties={"x": "y"}),
        encode(born_host_v6=HOST_V6),
        encode(flag=(1 << 32) - 5, sys_flag=0x8, born_ms=1 << 62),
        encode(zlib.compress(b"z" * 5000), sys_flag=1),
        encode(bytes(cramjam.lz4.compress(b"z" * 5000)), sys_flag=1 | 1 << 8),
        encode(bytes(cramjam.zstd.compress(b"z" * 5000)), sys_flag=1 | 2 << 8),
        encode(b"not compressed", sys_flag=1),
        encode(born_ms=1_700_000_000_456, command_entries=3),
        encode(born_ms=1_700_000_000_456, deliver_at_ms=1_700_000_009_000),
    ],
)
def test_every_column_is_what_the_reference_says(raw):
    """spark.md 5.4.1: optional fields, empty body, no properties, IPv6 hosts, compressed bodies."""
    assert rows(raw, retry_topics=True) == [row_of(raw)]


def test_properties_without_final_separator():
    """spark.md 5.4.1: RocketMQ leaves the last separator away."""
    raw = bytearray(encode(properties={"a": "b"}))
    raw = raw[: -20 - 1]  # the checksum property and the separator before it
    raw[:4] = struct.pack(">I", len(raw))
    at = len(raw) - len(b"a\x01b") - 2
    raw[at : at + 2] = struct.pack(">H", 3)
    assert rows(bytes(raw))[0]["properties"] == [("a", "b")]
    assert rows(bytes(raw)) == [row_of(bytes(raw))]


def test_last_value_of_a_repeated_name_counts():
    packed = b"a\x011\x02b\x012\x02a\x013\x02TAGS\x01x\x02TAGS\x01y\x02"
    raw = record.encode(b"", b"t", properties=packed)
    assert rows(raw)[0]["properties"] == [("a", "3"), ("b", "2"), ("TAGS", "y")]
    assert rows(raw)[0]["tags"] == "y"


def test_many_properties_keep_order_and_last_values():
    packed = b"".join(b"n%d\x01v%d\x02" % (i % 300, i) for i in range(500))
    raw = record.encode(b"", b"t", properties=packed)
    assert rows(raw) == [row_of(raw)]


def test_v2_records_have_longer_topics():
    """docs/formats/commit-log.md: magic V2, a topic length of two bytes."""
    raw = bytearray(encode())
    raw[4:8] = struct.pack(">I", 0xDAA320AB)
    at = bytes(raw).index(b"\x06orders")
    raw[at : at + 1] = b"\x00\x06"
    raw[:4] = struct.pack(">I", len(raw))
    assert rows(bytes(raw), ["topic", "queue_offset"]) == [{"topic": "orders", "queue_offset": 0}]


def test_property_columns():
    raw = encode(properties={"region": "eu", "TAGS": "t"})
    assert rows(raw, ["prop:region", "prop:none", "prop:TAGS", "tags"]) == [
        {"prop_region": "eu", "prop_none": None, "prop_TAGS": "t", "tags": "t"}
    ]


def test_schema_is_the_declared_one():
    decoder = Decoder(ALL)
    decoder.feed_records(encode())
    assert decoder.finish()[0].schema == arrow_schema(ALL)


def test_nulls_beside_values():
    raws = [encode(properties={"TAGS": "x"} if i % 3 else {}) for i in range(100)]
    assert [row["tags"] for row in rows(b"".join(raws))] == ["x" if i % 3 else None for i in range(100)]


@pytest.mark.parametrize(("option", "value"), [("batch_rows", 7), ("batch_bytes", 500)])
def test_batches_are_cut(option, value):
    raw = b"".join(encode(queue_offset=i) for i in range(100))
    decoder = Decoder(["queue_offset", "body", "tags", "properties", "body_crc_ok"], **{option: value})
    decoder.feed_records(raw)
    batches = decoder.take()
    batches += decoder.finish()
    assert [row["queue_offset"] for batch in batches for row in batch.to_pylist()] == list(range(100))
    assert len(batches) > 3
    if option == "batch_rows":
        assert {batch.num_rows for batch in batches[:-1]} == {7}


def test_rows_without_columns_are_counted():
    decoder = Decoder([])
    decoder.feed_records(encode() * 5)
    assert sum(batch.num_rows for batch in decoder.finish()) == 5


def test_filters():
    raws = [
        encode(topic=b"a", properties={"TAGS": "x", "KEYS": "k1 k2", "UNIQ_KEY": "u1"}, queue_offset=0, store_ms=1000),
        encode(topic=b"b", properties={"TAGS": "y", "KEYS": "k12"}, queue_offset=1, store_ms=2000),
        encode(topic=b"a", properties={}, queue_offset=2, store_ms=3000),
        encode(topic=b"%RETRY%g", queue_offset=3, store_ms=4000),
        encode(topic=b"%SYS%CONTROL", queue_offset=4, store_ms=5000),
        encode(topic=b"TBW102", queue_offset=5, store_ms=6000),
        encode(topic=b"a", queue_offset=6, sys_flag=4, store_ms=7000),
        encode(topic=b"a", queue_offset=7, sys_flag=0xC, store_ms=7000),
    ]

    def found(**options):
        return [row["queue_offset"] for row in rows(b"".join(raws), ["queue_offset"], **options)]

    assert found() == [0, 1, 2]
    assert found(topics=["a"]) == [0, 2]
    assert found(topics=["%RETRY%g"]) == [3]
    assert found(tags=["x", "z"]) == [0]
    assert found(keys=["k2"]) == [0]
    assert found(keys=["k1"]) == [0]
    assert found(keys=["u1", "k12"]) == [0, 1]
    assert found(start_ms=2000, end_ms=3000) == [1]
    assert found(retry_topics=True) == [0, 1, 2, 3]
    assert found(system_topics=True) == [0, 1, 2, 4, 5, 6, 7]


def test_one_bound_of_time_is_no_other():
    """Years that Spark cannot show are after and before all others."""
    raw = b"".join(
        encode(queue_offset=i, physical_offset=0, store_ms=ms) for i, ms in enumerate((-(1 << 60), 5, 1 << 60))
    )
    for start_ms, end_ms, wanted in ((5, None, [1, 2]), (None, 6, [0, 1]), (6, 7, [])):
        decoder = Decoder(["queue_offset"], start_ms=start_ms, end_ms=end_ms)
        decoder.feed_records(raw)
        assert [row["queue_offset"] for batch in decoder.finish() for row in batch.to_pylist()] == wanted


def test_many_topics_are_found():
    topics = [f"topic-{i}" for i in range(1000)]
    raws = b"".join(encode(topic=topic.encode(), queue_offset=i) for i, topic in enumerate(topics))
    assert len(rows(raws, ["topic"], topics=topics[::2])) == 500


def test_queue_offsets_bound_what_is_taken():
    raw = b"".join(encode(queue_offset=i) for i in range(10))
    decoder = Decoder(["queue_offset"])
    assert decoder.feed_records(raw, first_queue_offset=3, end_queue_offset=6) == 3
    assert decoder.finish()[0].to_pydict() == {"queue_offset": [3, 4, 5]}


def test_damaged_answer_is_an_error():
    decoder = Decoder(["queue_offset"])
    with pytest.raises(CorruptRecordError, match="byte"):
        decoder.feed_records(encode() + b"garbage that is no record at all")
    assert decoder.rows == 1
    with pytest.raises(CorruptRecordError):
        decoder.feed_records(encode()[:-1])


def test_wrong_checksum_is_a_row_that_says_so():
    raw = bytearray(encode(b"hello world"))
    raw[bytes(raw).index(b"world")] ^= 1
    assert rows(bytes(raw), ["body_crc_ok"]) == [{"body_crc_ok": False}]
    assert rows(encode(), ["body_crc_ok"]) == [{"body_crc_ok": True}]
    decoder = Decoder(["topic"], verify_crc=True)
    decoder.feed_records(bytes(raw) + encode())
    assert (decoder.rows, decoder.damaged) == (2, 1)
    decoder = Decoder(["body", "body_crc_ok"], only_right=True)
    decoder.feed_records(bytes(raw) + encode(b"right") + bytes(raw))
    assert (decoder.rows, decoder.damaged, decoder.wrong_checksums) == (1, 2, 2)
    assert decoder.finish()[0].to_pylist() == [{"body": b"right", "body_crc_ok": True}]


def test_body_that_cannot_be_decompressed_is_counted():
    decoder = Decoder(["body"])
    decoder.feed_records(encode(b"not compressed", sys_flag=1))
    assert decoder.inflate_failures == 1
    assert decoder.finish()[0].to_pylist() == [{"body": b"not compressed"}]


def test_sys_flag_says_which_body_is_compressed_still():
    """The other bits, and those of bodies that were decompressed, are as stored."""
    bodies = ((b"damaged", 0x301), (zlib.compress(b"plain"), 0x301), (b"", 8))
    raws = [encode(body, sys_flag=sys_flag) for body, sys_flag in bodies]
    assert rows(b"".join(raws), ["body", "sys_flag"]) == [
        {"body": b"damaged", "sys_flag": 0x301 | GIVEN_AS_STORED},
        {"body": b"plain", "sys_flag": 0x301},
        {"body": b"", "sys_flag": 8},
    ]
    assert rows(raws[0], ["sys_flag"]) == [{"sys_flag": 0x301}]


def test_unknown_columns_and_limits_are_refused():
    with pytest.raises(ValueError, match="column"):
        Decoder(["topics"], schema=pa.schema([("topics", pa.string())]))
    with pytest.raises(ValueError, match="batch_rows"):
        Decoder(["topic"], batch_rows=0)


# Raw logs


SEGMENT = 4096


def log(count=200, first=0):
    fields = [
        {"body": bytes([i % 256]) * (i % 90), "topic": b"t%d" % (i % 3), "queue_offset": i, "store_ms": 1000 + i}
        for i in range(count)
    ]
    return lay_log(fields, SEGMENT, first)


def offsets(raw, start, end, base=0, chunk=None, total=None):
    """Queue offsets of a split of a log whose bytes come in chunks."""
    decoder = Decoder(["queue_offset"])
    total = base + len(raw)
    at = start
    while at < min(end, total):
        segment_end = (at // SEGMENT + 1) * SEGMENT
        stop = min(segment_end, total)
        size = chunk or SEGMENT
        while True:
            reached = decoder.feed_log(
                raw[at - base : min(at + size, stop) - base], at, at, end, segment_end=segment_end
            )
            if reached > at or at + size >= stop:
                break
            size *= 2
        if reached == at:
            break
        at = reached
    return [row["queue_offset"] for batch in decoder.finish() for row in batch.to_pylist()], decoder


@pytest.mark.parametrize("chunk", [None, 1000, 137, 40])
def test_whole_log(chunk):
    raw, whole = log()
    found, decoder = offsets(raw, 0, len(raw), chunk=chunk)
    assert found == list(range(200))
    assert (decoder.damaged, decoder.bytes) == (0, sum(map(len, whole)))


@pytest.mark.parametrize("split", [1, 50, 113, 120, 121, 500, 4096, 5000, 100_000])
def test_every_split_size_gives_the_same_rows(split):
    """spark.md 5.4.2."""
    raw, _ = log(80, 3 * SEGMENT)
    base, end = 3 * SEGMENT, 3 * SEGMENT + len(raw)
    found = []
    for start in range(base, end, split):
        found += offsets(raw, start, min(start + split, end), base=base)[0]
    assert found == list(range(80))


def test_truncated_tail_is_not_consumed():
    """spark.md 5.4.1: a record that is cut off is left for the next call."""
    raw, whole = log(3)
    decoder = Decoder(["queue_offset"])
    cut = len(raw) - 1
    assert decoder.feed_log(raw[:cut], 0, 0, cut, segment_end=SEGMENT) == len(raw) - len(whole[-1])
    assert decoder.rows == 2
    at = len(raw) - len(whole[-1])
    assert decoder.feed_log(raw[at:], at, at, len(raw), segment_end=SEGMENT) == len(raw)
    assert decoder.rows == 3


def test_damage_is_stepped_over_and_counted():
    raw, whole = log(100)
    damaged = bytearray(raw)
    at = sum(map(len, whole[:10]))
    damaged[at : at + 60] = b"\xda" * 60
    at = sum(map(len, whole[:20]))
    damaged[at + 28] ^= 0xFF  # its physical offset
    at = sum(map(len, whole[:25]))
    damaged[at : at + 4] = b"\x7f\xff\xff\xff"  # its size
    found, decoder = offsets(bytes(damaged), 0, len(raw))
    assert found == [i for i in range(100) if i not in (10, 20, 25)]
    assert decoder.damaged == 3
    for split in (64, 500, 4096):
        found = []
        for start in range(0, len(raw), split):
            found += offsets(bytes(damaged), start, min(start + split, len(raw)))[0]
        assert found == [i for i in range(100) if i not in (10, 20, 25)]


def test_damaged_size_is_not_waited_for():
    """A flipped bit makes a record of half a gigabyte, which the file could hold: nobody gathers it."""
    raw, whole = lay_log([{"body": b"x" * 50, "topic": b"t", "queue_offset": i} for i in range(20)], 1 << 30)
    damaged = bytearray(raw)
    damaged[2 * len(whole[0])] ^= 0x20
    decoder = Decoder(["queue_offset"])
    assert decoder.feed_log(bytes(damaged), 0, 0, len(raw), segment_end=1 << 30) == len(raw)
    assert (decoder.rows, decoder.damaged) == (19, 1)


def test_body_that_holds_a_log_is_not_taken_for_one():
    inner = encode(physical_offset=77)
    raw, _ = lay_log([{"body": inner * 5, "topic": b"t", "queue_offset": 0}], 1 << 20)
    assert offsets(raw, 50, len(raw))[0] == []


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"keys": ["key7"]}, b"key7"),
        ({"tags": ["paid"]}, b"paid"),
        ({"topics": ["orders"]}, b"orders"),
        ({"end_ms": 1_700_000_001_000}, (1_700_000_000_456).to_bytes(8, "big")),
    ],
    ids=["keys", "tags", "topics", "times"],
)
def test_a_damaged_record_that_no_filter_wants_is_damage(options, part):
    """A job that asked for a key said that there was none, and ended with 0."""
    raw = bytearray(encode(properties={"KEYS": "key7", "TAGS": "paid"}))
    raw[raw.index(part)] ^= 0x40
    decoder = Decoder(["queue_offset"], only_right=True, **options)
    decoder.feed_records(bytes(raw))
    assert (decoder.rows, decoder.damaged, decoder.wrong_checksums) == (0, 1, 1)
    other = Decoder(["queue_offset"], **options)  # no job: nobody asked for it to be looked at
    other.feed_records(bytes(raw))
    assert (other.rows, other.damaged) == (0, 0)
