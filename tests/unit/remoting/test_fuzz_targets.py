"""The seeds of the fuzzer, and small damage to them, through every reader of peers and logs. Ref: tests/fuzz."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import targets

SEEDS = targets.seeds()


@pytest.mark.parametrize("name", SEEDS)
def test_seed_and_damaged_copies_are_read_or_refused(name: str) -> None:
    seed = SEEDS[name]
    targets.run(seed)
    chance = random.Random(name)
    for _ in range(60):
        damaged = bytearray(seed)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(1, len(damaged))
            damaged[at : at + chance.randint(0, 2)] = bytes(chance.randbytes(chance.randint(0, 2)))
            damaged += b" "  # never shorter than its first byte
        targets.run(bytes(damaged))


def test_every_target_has_a_seed() -> None:
    assert {name.rpartition("-")[0] for name in SEEDS} == {target.__name__ for target in targets.TARGETS}
