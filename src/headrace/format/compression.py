"""Undoing what RocketMQ clients do to large bodies: zlib, LZ4 frames and ZSTD, each with a bound for bombs."""

from __future__ import annotations

import zlib
from typing import Final

MAX_INFLATED_BYTES: Final = 16 << 20
"""Largest body that is decompressed; a larger one is delivered as it is stored."""

INFLATE_ERRORS: Final = (zlib.error, ValueError)
"""What ``inflate`` raises for bytes that are not what the flag says, or too many of them."""

COMPRESSED: Final = 0x1
"""Bit of a record's system flag: the body is compressed."""

COMPRESSION_BITS: Final = 0x701
"""All bits of a system flag that speak of compression: that, and in bits 8 to 10 how (``inflate``)."""

GIVEN_AS_STORED: Final = 1 << 30
"""Bit of ``sys_flag`` in rows, of no record: this body is compressed still, since it could not be decompressed."""

_KIND_SHIFT: Final = 8
_KIND_MASK: Final = 0x7
_LZ4: Final = 1
_ZSTD: Final = 2
_ZLIB_LEVEL: Final = 5
"""What RocketMQ's clients take."""


def inflate(body: bytes, kind: int, most: int = MAX_INFLATED_BYTES) -> bytes:
    """Decompress one body.

    Args:
        kind: Bits 8 to 10 of the record's system flag: 0 and 3 zlib, 1 LZ4 frame, 2 ZSTD.
        most: Largest result in bytes.

    Raises:
        ValueError, zlib.error: damaged, cut short, or larger than ``most``.
    """
    if kind in (_LZ4, _ZSTD):
        return _inflate_into_room(body, kind, most)
    stream = zlib.decompressobj()
    plain = stream.decompress(body, most)
    if stream.unconsumed_tail or not stream.eof:
        raise ValueError(f"a compressed body is cut short or has more than {most} bytes")
    return plain


def deflate(body: bytes, sys_flag: int) -> bytes:
    """Compress a body again as its system flag says: what ``inflate`` undoes."""
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    if kind in (_LZ4, _ZSTD):
        import cramjam  # noqa: PLC0415  # few processes ever see such a body

        codec = cramjam.lz4 if kind == _LZ4 else cramjam.zstd
        return bytes(codec.compress(body))
    return zlib.compress(body, _ZLIB_LEVEL)


def _inflate_into_room(body: bytes, kind: int, most: int) -> bytes:
    """Decompress into a buffer of ours, which grows up to the bound: a bomb ends there."""
    import cramjam  # noqa: PLC0415  # few processes ever see such a body

    codec = cramjam.lz4 if kind == _LZ4 else cramjam.zstd
    room = bytearray(min(most, max(64 << 10, 32 * len(body))))
    while True:
        try:
            written = codec.decompress_into(body, room)
        except cramjam.DecompressionError as error:
            if len(room) >= most:
                raise ValueError(f"a compressed body is damaged or has more than {most} bytes: {error}") from None
            room = bytearray(min(most, 8 * len(room)))
        else:
            return bytes(memoryview(room)[:written])
