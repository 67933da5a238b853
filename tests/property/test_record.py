"""The compiled record code against the plain reference, and against everything that can be wrong with bytes."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.batch import PublishBatch
from headrace.format import record
from headrace.format.checksum import checksum, checksum_by_table, implementation
from tests.support import layouts
from tests.support.guarded import GUARDED
from tests.support.layouts import Record

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
OFFSETS = st.integers(0, 2**47 - 1)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=4)
TOPICS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(str.encode).filter(lambda t: len(t) <= 127)
ROCKETMQ_TOPICS = st.from_regex(rb"[%|a-zA-Z0-9_-]{1,30}", fullmatch=True)
INNER_BATCH = 0x80


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record that RocketMQ or Headrace could have written, without a checksum."""
    sys_flag = draw(st.integers(0, 0x3FF))
    physical_offset = draw(OFFSETS)
    most = 2**63 - 1 if sys_flag & INNER_BATCH else physical_offset // 91
    return Record(
        queue_id=draw(st.integers(0, 65_535)), flag=draw(INT32), queue_offset=draw(st.integers(0, most)),
        physical_offset=physical_offset,
        sys_flag=sys_flag, born_ms=draw(INT64), store_ms=draw(INT64), reconsume_times=draw(INT32),
        prepared_offset=draw(INT64),
        born_host=draw(st.binary(min_size=20, max_size=20) if sys_flag & 0x10 else st.binary(min_size=8, max_size=8)),
        store_host=draw(st.binary(min_size=20, max_size=20) if sys_flag & 0x20 else st.binary(min_size=8, max_size=8)),
        body=draw(st.binary(max_size=200)), topic=draw(ROCKETMQ_TOPICS),
        properties=layouts.encode_properties(draw(PROPERTIES)),
        magic=draw(st.sampled_from([layouts.MESSAGE_V1, layouts.MESSAGE_V2])),
    )  # fmt: skip


@given(
    body=st.binary(max_size=300), topic=TOPICS, properties=PROPERTIES, separator=st.booleans(),
    queue_id=st.integers(0, 2**31 - 1), queue_offset=OFFSETS, physical_offset=OFFSETS,
    born_host=st.integers(0, 2**64 - 1), born_host_v6=st.none() | st.binary(min_size=20, max_size=20),
    store_host=st.integers(0, 2**64 - 1), born_ms=INT64, store_ms=INT64, deliver_at_ms=st.integers(0, 2**53),
    command_entries=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_encode_is_the_reference(
    body: bytes, topic: bytes, properties: dict[str, str], separator: bool, queue_id: int, queue_offset: int,
    physical_offset: int, born_host: int, born_host_v6: bytes | None, store_host: int, born_ms: int, store_ms: int,
    deliver_at_ms: int, command_entries: int,
) -> None:  # fmt: skip
    """remoting.md 2.1, A-STORE-11, A-STORE-12; 2.5: a missing trailing separator is repaired before appending."""
    given_properties = layouts.encode_properties(properties)
    expected = given_properties
    if deliver_at_ms:
        expected += layouts.encode_properties({"TIMER_DELIVER_MS": str(deliver_at_ms)})
    if command_entries > 1:
        expected += layouts.encode_properties({"__BATCH#": str(command_entries)})
    if not separator:
        given_properties = given_properties.removesuffix(b"\x02")
    compiled = record.encode(
        body, topic, properties=given_properties, queue_id=queue_id, queue_offset=queue_offset,
        physical_offset=physical_offset, born_host=born_host, born_host_v6=born_host_v6, store_host=store_host,
        born_ms=born_ms, store_ms=store_ms, deliver_at_ms=deliver_at_ms, command_entries=command_entries,
    )  # fmt: skip
    reference = Record(
        body=body, topic=topic, properties=expected, queue_id=queue_id, queue_offset=queue_offset,
        physical_offset=physical_offset, born_ms=born_ms, store_ms=store_ms,
        sys_flag=0 if born_host_v6 is None else layouts.BORN_V6,
        born_host=born_host_v6 or struct.pack(">Q", born_host), store_host=struct.pack(">Q", store_host),
    )  # fmt: skip
    assert compiled == reference.encode_checked()
    assert record.check(compiled, 0, physical_offset) == len(compiled)


@given(records())
def test_decode_is_the_reference(expected: Record) -> None:
    """remoting.md 2.1, 2.2: V1 and V2, IPv4 and IPv6, with the body's checksum alone as RocketMQ 4 writes it.

    Ref: X-STORE-05.
    """
    raw = expected.encode()
    assert layouts.decode_record(raw) == Record(**{**expected.__dict__, "body_crc": layouts.crc31(expected.body)})
    assert record.check(raw, 0, expected.physical_offset) == len(raw)
    decoded = record.decode(raw)
    assert decoded["record_bytes"] == len(raw)
    assert decoded["physical_offset"] == expected.physical_offset
    assert decoded["topic"].encode() == expected.topic
    assert decoded["queue_id"] % 2**32 == expected.queue_id % 2**32
    assert decoded["queue_offset"] == expected.queue_offset
    assert decoded["sys_flag"] == expected.sys_flag
    assert decoded["flag"] == expected.flag
    assert decoded["born_timestamp_ms"] == expected.born_ms
    assert decoded["store_timestamp_ms"] == expected.store_ms
    assert (decoded["body"], decoded["properties"]) == (expected.body, expected.properties)
    assert decoded["born_host"] == record.describe_host(expected.born_host)
    assert decoded["store_host"] == record.describe_host(expected.store_host)
    assert decoded["reconsume_times"] == expected.reconsume_times
    assert decoded["prepared_offset"] == expected.prepared_offset
    assert decoded["body_crc"] == layouts.crc31(expected.body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": b"or\xe4ers"}, {"topic": b"or/ers"}, {"topic": b"or\x00ers"}, {"topic": b"or ers"},
        {"queue_id": -1}, {"queue_id": 65_536}, {"queue_offset": -1}, {"queue_offset": 8}, {"queue_offset": 1 << 40},
    ],
)  # fmt: skip
def test_what_no_checksum_covers_must_be_possible(wrong: dict[str, Any]) -> None:
    """RocketMQ 4 has no checksum of a whole record: what no broker writes is damage. With one it is believed."""
    right = Record(body=b"x", topic=b"orders", physical_offset=91 * 7, queue_offset=7)
    assert record.check(right.encode()) > 0
    damaged = replace(right, **wrong)
    assert record.describe(record.check(damaged.encode())) == "topic, queue id or queue offset that cannot be"
    assert record.check(damaged.encode_checked()) > 0


@pytest.mark.parametrize(
    ("properties", "right"),
    [
        (b"id\x01\x00\x02CLUSTER\x01C1", True), (b"id\x01a" + bytes(16) + b"\x02CLUSTER\x01C1\x02", True),
        (b"id\x01a" + bytes(64) + b"\x02", False), (b"id\x01a\x02CLUST" + bytes(5), False), (bytes(12), False),
    ],
)  # fmt: skip
def test_zeros_among_properties_are_text_unless_a_write_left_them(properties: bytes, right: bool) -> None:
    """RocketMQ stores a value with U+0000 in it; a torn write leaves zeros to the end of a sector or of the record."""
    raw = Record(body=b"x", topic=b"orders", properties=properties).encode()
    assert (record.check(raw) > 0) == right


@given(PROPERTIES)
def test_properties_are_the_reference(properties: dict[str, str]) -> None:
    """remoting.md 2.5."""
    raw = layouts.encode_properties(properties)
    assert record.encode_properties(properties) == raw
    assert record.properties_of(raw) == record.properties_of(raw.removesuffix(b"\x02")) == properties


@given(st.binary(max_size=80))
def test_any_bytes_are_some_properties(raw: bytes) -> None:
    """Clients may send anything as properties; what can be read is written back the same."""
    found = record.properties_of(raw)
    assert all(found)
    assert all(found.values())
    assert record.properties_of(record.encode_properties(found)) == found


@given(records(), st.binary(max_size=40))
def test_trailing_bytes_do_not_matter(expected: Record, behind: bytes) -> None:
    """Style 3: whole, byte by byte, with trailing bytes."""
    raw = expected.encode()
    assert record.check(raw + behind, 0, expected.physical_offset) == len(raw)
    assert record.check(behind + raw, len(behind), expected.physical_offset) == len(raw)
    assert record.find(behind + raw, 0, expected.physical_offset - len(behind)) == len(behind)


@given(records())
def test_a_record_cut_anywhere_is_none(expected: Record) -> None:
    """A-STORE-13: every cut is refused; none reads behind the buffer's end."""
    raw = expected.encode()
    for size in range(len(raw)):
        part = GUARDED.put(raw[:size])
        assert record.check(part, 0, expected.physical_offset) <= 0
        assert record.find(part, 0, expected.physical_offset) == -1
        with pytest.raises(ValueError, match="no record"):
            record.decode(part)


@given(records(), st.data())
def test_a_changed_bit_of_our_record_is_found(expected: Record, data: st.DataObject) -> None:
    """Every record carries a checksum over the whole record. A-STORE-15."""
    raw = bytearray(Record(**{**expected.__dict__, "magic": layouts.MESSAGE_V1}).encode_checked())
    assert record.check(raw, 0, expected.physical_offset) == len(raw)
    position = data.draw(st.integers(0, len(raw) - 1))
    bit = data.draw(st.integers(0, 7))
    raw[position] ^= 1 << bit
    assert record.check(raw, 0, expected.physical_offset) <= 0


@given(st.binary(max_size=400), st.integers(0, 500))
@example(struct.pack(">II", 0xFFFFFFFF, layouts.MESSAGE_V1) + bytes(300), 0)
@example(struct.pack(">II", 91, layouts.MESSAGE_V1) + b"\xff" * 83, 0)
@example(struct.pack(">II", 100, layouts.MESSAGE_V2) + b"\xff" * 92, 0)
@example(struct.pack(">II", 8, layouts.BLANK), 0)
def test_no_bytes_crash_a_decoder(noise: bytes, position: int) -> None:
    """Hostile input: any bytes get an answer."""
    guarded = GUARDED.put(noise)
    if position <= len(noise):
        assert record.check(guarded, position) <= len(noise) - position
    else:
        with pytest.raises(IndexError):
            record.check(noise, position)
    assert -1 <= record.find(guarded) < max(len(noise), 1)


@given(records(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
def test_mutated_records_get_an_answer(expected: Record, changes: list[tuple[int, int]]) -> None:
    """Lengths that lie never lead a reader out of bounds."""
    raw = bytearray(expected.encode())
    for position, value in changes:
        raw[position % len(raw)] = value
    guarded = GUARDED.put(bytes(raw))
    assert record.check(guarded) <= len(raw)
    if record.check(guarded, 0, -1, False) > 0:
        assert len(record.decode(guarded)["body"]) <= len(raw)


@given(st.integers(8, 4096), st.integers(-64, 64))
def test_a_blank_record_says_how_much_is_left(size: int, difference: int) -> None:
    """A-STORE-14, remoting.md 3.2."""
    room = max(8, size + difference)
    raw = layouts.encode_blank(size).ljust(room, b"\0")
    assert record.describe(record.check(raw)) == ("blank to the end of the segment" if room == size else "bad size")


@given(st.text(max_size=40))
def test_tag_hash_is_javas(tag: str) -> None:
    """remoting.md 2.7, X-STORE-07."""
    assert record.tag_hash(tag) == layouts.java_hash(tag)


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1), st.integers(0, 2000))
def test_checksum_is_zlibs(data: bytes, start: int, cut: int) -> None:
    """Both implementations, whole and in two pieces."""
    expected = zlib.crc32(data, start)
    assert checksum(data, start) == checksum_by_table(data, start) == expected
    assert checksum(data[cut:], checksum(data[:cut], start)) == expected
    assert implementation() in {"clmul", "table"}


def test_checksum_of_every_length() -> None:
    """Each way in which the odd bytes and the last blocks of a length are put together, with and without a start."""
    data = random.Random(1).randbytes(400)
    for size in range(len(data) + 1):
        for start in (0, 0x5A0F3C91):
            assert (
                checksum(data[:size], start) == checksum_by_table(data[:size], start) == zlib.crc32(data[:size], start)
            )


def test_a_property_that_looks_a_little_like_the_checksum() -> None:
    """RocketMQ's own record: its last name begins with two underscores and has eight characters, its value ten."""
    raw = Record(properties=b"__user_1\x010123456789\x02").encode()
    assert record.check(raw) == len(raw)
    nearly = Record(properties=b"__CRC33#\x010123456789\x02").encode()
    assert record.describe(record.check(nearly)) == "bad checksum"


@given(st.lists(records(), max_size=6), st.binary(max_size=30))
def test_find_steps_over_damage(following: list[Record], noise: bytes) -> None:
    """An invalid range followed by valid records is a hole; the search finds where it ends."""
    raw = noise
    places = []
    for expected in following:
        places.append(len(raw))
        raw += replace(expected, physical_offset=len(raw), queue_offset=len(places) - 1).encode()
    for damaged in range(len(places)):
        broken = bytearray(raw)
        broken[places[damaged] + 5] ^= 0xFF
        later = places[damaged + 1 :]
        assert record.find(bytes(broken), places[damaged]) == (later[0] if later else -1)


@given(st.lists(st.tuples(st.binary(max_size=50), st.integers(0, 2**40)), max_size=20))
def test_a_batch_keeps_what_was_put_in(messages: list[tuple[bytes, int]]) -> None:
    """The batch is the currency between layers: nothing may get lost or mixed up in it."""
    batch = PublishBatch()
    for body, due in messages:
        batch.append(body, deliver_at_ms=due)
    assert len(batch) == len(messages)
    assert batch.body_bytes == sum(len(body) for body, _ in messages)
    assert [due for _, _, _, due in batch.delayed()] == [due for _, due in messages if due > 0]
