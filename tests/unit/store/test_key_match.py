"""Which records have a key, rule by rule; tests/property/test_key_match.py has any of them. remoting.md 2.8, 3.4."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.format import record
from headrace.store import key_query
from headrace.store.key_match import KeyMatcher
from headrace.store.segment import Segment
from tests.support.indexes import SMALL, find, put
from tests.support.stores import MakeBench, StoreBench

SEGMENT_BYTES = 1 << 20


@pytest.fixture
def small(make_bench: MakeBench) -> StoreBench:
    bench = make_bench("small", **SMALL)
    bench.store.index.wait_live()
    return bench


def is_match(folder: Path, raw: bytes, *, unique: bool = False) -> bool:
    """Return whether what stands at the beginning of a log is a record of topic T with the key k."""
    path = folder / "0"
    path.write_bytes(raw.ljust(SEGMENT_BYTES, b"\0"))
    matcher = KeyMatcher(b"T", b"k", 0, 10, unique=unique)
    return bool(matcher.match([(Segment(str(path), 0, SEGMENT_BYTES), 0)]))


def encode(properties: bytes, body: bytes = b"body", physical_offset: int = 0) -> bytes:
    return record.encode(body, b"T", properties=properties, physical_offset=physical_offset)


def test_damaged_record_has_no_key(tmp_path: Path) -> None:
    """design.md 7: what is served was checked."""
    raw = bytearray(encode(b"KEYS\x01k\x02"))
    assert is_match(tmp_path, bytes(raw))
    raw[raw.index(b"body")] ^= 1
    assert not is_match(tmp_path, bytes(raw))


def test_record_of_another_place_has_no_key(tmp_path: Path) -> None:
    """design.md 7: a record says where it stands."""
    assert not is_match(tmp_path, encode(b"KEYS\x01k\x02", physical_offset=4096))


@pytest.mark.parametrize(
    ("properties", "is_key", "is_unique_key"),
    [
        (b"KEYS\x01k\x02", True, False),
        (b"KEYS\x01a k b\x02", True, False),
        (b"UNIQ_KEY\x01k\x02", True, True),
        (b"KEYS\x01k\x02UNIQ_KEY\x01u\x02", True, False),
        # of a property that is there twice the last one counts
        (b"UNIQ_KEY\x01k\x02UNIQ_KEY\x01u\x02", False, False),
        (b"UNIQ_KEY\x01u\x02UNIQ_KEY\x01k\x02", True, True),
        (b"KEYS\x01k\x02KEYS\x01a\x02", False, False),
        (b"KEYS\x01a\x02KEYS\x01b k\x02", True, False),
        (b"KEYS\x01k\x02KEYS\x01\x02", True, False),
        (b"TAGS\x01k\x02", False, False),
    ],
)
def test_which_properties_are_keys(tmp_path: Path, properties: bytes, is_key: bool, is_unique_key: bool) -> None:
    """remoting.md 2.5, 2.8. The body has what a unique key looks like."""
    raw = encode(properties, b"UNIQ_KEY\x01k\x02")
    assert is_match(tmp_path, raw) is is_key
    assert is_match(tmp_path, raw, unique=True) is is_unique_key


def test_record_that_has_a_key_in_three_ways_is_found_once(small: StoreBench) -> None:
    """A-STORE-29: also where its entries of the index are looked at one after the other."""
    offsets = [put(small, "T", "x x", "x") for _ in range(3)]
    for count in (1, 2, 3, 10):
        assert find(small, "T", "x", max_count=count).offsets == offsets[::-1][:count]


def test_no_more_are_found_than_wanted(small: StoreBench) -> None:
    """A-STORE-29: also where the newest ones are none."""
    offsets = [put(small, "T", "x") for _ in range(5)]
    small.clock.advance_ms(3)
    put(small, "T", "x")
    end_ms = small.clock.now_ms() - 1
    assert find(small, "T", "x", max_count=1, end_ms=end_ms).offsets == offsets[-1:]
    assert find(small, "T", "x", max_count=3, end_ms=end_ms).offsets == offsets[:1:-1]


def test_a_query_that_looked_at_every_candidate_is_complete(small: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """design.md 7, bounds: also where these are as many as one query looks at. "Aa" and "BB" have one hash code."""
    monkeypatch.setattr(key_query, "MAX_EXAMINED", 70)
    for _ in range(70):
        put(small, "T", "Aa")
    assert find(small, "T", "BB").is_complete
    put(small, "T", "Aa")
    assert not find(small, "T", "BB").is_complete
    assert find(small, "T", "Aa").is_complete
