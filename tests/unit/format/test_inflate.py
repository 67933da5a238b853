"""Compressed bodies of RocketMQ clients are readable for everybody (X-NET-05, docs/protocols/mapping.md)."""

import zlib

import cramjam
import pytest

from headrace.batch import RecordBatch
from headrace.format.compression import INFLATE_ERRORS, MAX_INFLATED_BYTES, inflate
from headrace.format.inflate import inflate_bodies

PLAIN = b"headrace " * 1000
COMPRESSED = {
    0: zlib.compress(PLAIN, 5),
    3: zlib.compress(PLAIN),
    1: bytes(cramjam.lz4.compress(PLAIN)),
    2: bytes(cramjam.zstd.compress(PLAIN)),
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_every_kind_of_compression_is_undone(kind: int) -> None:
    """spec/remoting.md 2.3: bits 8 to 10 of the system flag."""
    assert inflate(COMPRESSED[kind], kind) == PLAIN


@pytest.mark.parametrize("kind", COMPRESSED)
def test_what_is_cut_short_or_damaged_is_an_error(kind: int) -> None:
    for wrong in (COMPRESSED[kind][:-3], b"x" * 64, b""):
        with pytest.raises(INFLATE_ERRORS):
            inflate(wrong, kind)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_bomb_ends_at_the_bound(kind: int) -> None:
    """Issue 4, "Bad input": decompression bombs."""
    zeros = bytes(4 * MAX_INFLATED_BYTES)
    if kind == 1:
        bomb = bytes(cramjam.lz4.compress(zeros))
    elif kind == 2:
        bomb = bytes(cramjam.zstd.compress(zeros))
    else:
        bomb = zlib.compress(zeros)
    with pytest.raises(ValueError, match="more than"):
        inflate(bomb, kind)


def test_an_empty_batch_has_nothing_to_inflate() -> None:
    assert inflate_bodies(RecordBatch(), 1) is None
