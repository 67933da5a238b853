"""The seeds of the fuzzer, and small damage to them, through every reader of peers and logs. Ref: tests/fuzz."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import targets

SEEDS = {group: targets.seeds(group) for group in targets.GROUPS}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, seeds in SEEDS.items() for name in seeds])
def test_seed_and_damaged_copies_are_read_or_refused(group: str, name: str) -> None:
    seed = SEEDS[group][name]
    targets.run(group, seed)
    chance = random.Random(name)
    for _ in range(60):
        damaged = bytearray(seed)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(1, len(damaged))
            damaged[at : at + chance.randint(0, 2)] = bytes(chance.randbytes(chance.randint(0, 2)))
            damaged += b" "  # never shorter than its first byte
        targets.run(group, bytes(damaged))


@pytest.mark.parametrize("group", targets.GROUPS)
def test_every_target_has_a_seed(group: str) -> None:
    assert {name.rpartition("-")[0] for name in SEEDS[group]} == {target.__name__ for target in targets.GROUPS[group]}
