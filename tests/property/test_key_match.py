"""Which records have a key, against the plain reference: any properties, damage, times. remoting.md 2.8, 3.4."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.format import record
from headrace.store.key_match import KeyMatcher
from headrace.store.segment import Segment

SEGMENT_BYTES = 1 << 20
NAMES = st.sampled_from([b"KEYS", b"UNIQ_KEY", b"TAGS", b"KEY", b"UNIQ_KEYS", b""])
VALUES = st.sampled_from([b"k", b"k1", b"k k1", b" k", b"x  k1 ", b"", b"a\x01k", "ключ".encode(), b"k" * 5_000])
PIECES = st.one_of(st.tuples(NAMES, VALUES).map(b"\x01".join), NAMES)
KEYS = st.sampled_from([b"k", b"k1", b"a", b"k k1", "ключ".encode(), b"k" * 5_000])
RECORDS = st.fixed_dictionaries(
    {
        "body": st.sampled_from([b"", b"k", b"UNIQ_KEY\x01k\x02", b"b" * 6_000]),
        "topic": st.sampled_from([b"T", b"T2", b"%RETRY%k"]),
        "properties": st.lists(PIECES, max_size=5).map(b"\x02".join),
        "queue_id": st.integers(0, 65_535),
        "queue_offset": st.integers(0, 1 << 60),
        "store_ms": st.integers(0, 20),
        "sys_flag": st.sampled_from([0, 0x4, 0x8, 0xC]),
    }
)


def has_key(properties: bytes, key: bytes, *, unique: bool) -> bool:
    """What counts of a record: the last property of a name that has a value, as with RocketMQ."""
    pairs = [piece.partition(b"\x01") for piece in properties.split(b"\x02")]
    values = {name: value for name, _, value in pairs if name and value}
    return values.get(b"UNIQ_KEY") == key or (not unique and key in values.get(b"KEYS", b"").split(b" "))


@given(
    st.lists(st.tuples(RECORDS, st.booleans()), max_size=8),
    st.sampled_from([b"T", b"T2", b"t"]),
    KEYS,
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.booleans(),
)
def test_matcher_equals_reference(
    records: list[tuple[dict[str, Any], bool]], topic: bytes, key: bytes, times: tuple[int, int], unique: bool
) -> None:
    log = bytearray()
    offsets = []
    expected = []
    for fields, is_damaged in records:
        offsets.append(len(log))
        raw = bytearray(record.encode(**fields, physical_offset=len(log)))
        if is_damaged:
            raw[-1] ^= 1
        elif (
            fields["topic"] == topic
            and (unique or times[0] <= fields["store_ms"] <= times[1])
            and has_key(fields["properties"], key, unique=unique)
        ):
            is_prepared = bool(fields["sys_flag"] & 0x4)
            expected.append((len(log), fields["queue_id"], fields["queue_offset"], is_prepared))
        log += raw
    with TemporaryDirectory() as folder:
        path = Path(folder) / "0"
        path.write_bytes(log.ljust(SEGMENT_BYTES, b"\0"))
        segment = Segment(str(path), 0, SEGMENT_BYTES)
        # Where no record begins, before the first, at the blank rest and at the end, nothing is.
        beside = [offset + 1 for offset in offsets] + [len(log), SEGMENT_BYTES - 3]
        matcher = KeyMatcher(topic, key, *times, unique=unique)
        assert matcher.match([(segment, offset) for offset in [*offsets, *beside]]) == expected
