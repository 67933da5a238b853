"""Fingerprints and sets of them against plain Python."""

from __future__ import annotations

import random

import pytest

from headrace.batch import PublishBatch
from headrace.broker.exactly_once.key_set import FINGERPRINT_BYTES, KeySet, fingerprint, select_new, siphash

KEY = int.from_bytes(bytes(range(8)), "little"), int.from_bytes(bytes(range(8, 16)), "little")
MASK = (1 << 64) - 1


def reference_siphash(data: bytes, key_0: int, key_1: int) -> bytes:
    """SipHash-2-4 with 128 bits as its paper has it."""

    def turn(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    v = [0x736F6D6570736575 ^ key_0, 0x646F72616E646F6D ^ key_1 ^ 0xEE, 0x6C7967656E657261 ^ key_0]
    v.append(0x7465646279746573 ^ key_1)
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return low.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", "a3817f04ba25a8e66df67214c7550293"), (bytes(range(15)), "5493e99933b0a8117e08ec0f97cfc3d9")],
)
def test_siphash_gives_the_published_values(data: bytes, expected: str) -> None:
    """vectors.h of the reference implementation."""
    assert siphash(data, *KEY).hex() == expected == reference_siphash(data, *KEY).hex()


@pytest.mark.parametrize("size", [*range(1, 20), 32, 255, 256, 1000])
def test_siphash_of_every_length(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert siphash(data, *KEY) == reference_siphash(data, *KEY)


def test_a_set_is_what_a_python_set_is() -> None:
    """Growing and removing: what had to make way for a key that goes is found again."""
    chance = random.Random(5)
    keys, model = KeySet(), set()
    for _ in range(40_000):
        one = fingerprint(b"%d" % chance.randrange(6_000))
        if chance.random() < 0.6:
            assert keys.add(one) == (one not in model)
            model.add(one)
        else:
            keys.discard(one)
            model.discard(one)
    assert len(keys) == len(model)
    assert {one for one in map(fingerprint, (b"%d" % number for number in range(6_000))) if one in keys} == model
    assert keys.memory_bytes <= 16 * 64 * max(64, 4 * len(model) // 64)


def batch_of(*keys: str, name: str = "UNIQ_KEY") -> PublishBatch:
    batch = PublishBatch()
    batch.append(b"record")
    for key in keys:
        batch.append(key.encode(), properties=f"A\x01b\x02{name}\x01{key}\x02".encode())
    return batch


def test_select_new_keeps_the_first_of_each_key() -> None:
    into, before = KeySet(), KeySet()
    before.add(fingerprint(b"old"))
    into.add(fingerprint(b"seen"))
    batch = batch_of("a", "old", "b", "a", "seen", "c")
    new = select_new(batch, 1, into, (before,))
    assert new == b"".join(fingerprint(key) for key in (b"a", b"b", b"c"))
    assert len(batch) == 4
    assert batch.body_bytes == len(b"recordabc")
    assert len(into) == 4
    into.discard(new)
    assert len(into) == 1


def test_select_new_names_the_entry_without_a_key() -> None:
    into = KeySet()
    batch = batch_of("a", "")
    with pytest.raises(KeyError) as caught:
        select_new(batch, 1, into, ())
    assert caught.value.args == (1,)
    assert (len(batch), len(into)) == (3, 0)


def test_what_is_no_fingerprint_is_refused() -> None:
    keys = KeySet()
    for call in (keys.add, keys.discard, keys.__contains__):
        with pytest.raises(ValueError, match="fingerprint"):
            call(b"x" * (FINGERPRINT_BYTES + 1))
