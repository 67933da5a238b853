"""RocketMQ 4.9.7's own index class and our files: it finds what we wrote, and writes the same bytes.

docs/formats/index-file.md; requirements A-STORE-29..34.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.nsq_peers import PEERS
from tests.support.indexes import find, index_files, put
from tests.support.stores import StoreBench
from tests.support.toolchain import cannot_run

JARS = PEERS / "java" / "server-4.9.7" / "lib"
AGENT = Path(__file__).parent / "java" / "IndexAgent.java"
SLOTS, ENTRIES = 1000, 2000
END_MS = 2**62


def ask(path: Path, commands: list[str]) -> list[str]:
    """Give commands to RocketMQ's index class, opened on a file."""
    if not JARS.is_dir() or shutil.which("java") is None:
        cannot_run(f"{JARS} is missing: run tests/interop/java/build.sh")
    command = ["java", "-Xmx128m", "-cp", f"{JARS}/*", str(AGENT), str(SLOTS), str(ENTRIES), str(path)]
    done = subprocess.run(
        command, input="\n".join(commands) + "\n", capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "RocketmqStore" not in line]


@pytest.mark.parametrize("seed", [1, 2])
def test_rocketmq_reads_and_writes_the_same_file(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bench = StoreBench(tmp_path / "store", index_slots=SLOTS, index_entries=ENTRIES)
    bench.store.index.wait_live()
    puts: list[str] = []
    found: dict[tuple[str, str], list[int]] = {}
    for _ in range(400):
        topic, key, unique = f"T{rng.randrange(3)}", f"ключ{rng.randrange(40)}", f"U{rng.randrange(10**6)}"
        offset = put(bench, topic, key, unique)
        puts += [f"put\t{topic}#{name}\t{offset}\t{bench.clock.now_ms()}" for name in (unique, key)]
        found[topic, key] = found[topic, unique] = []
        bench.clock.advance_ms(rng.randrange(-300, 2500))
    for topic, key in found:
        found[topic, key] = find(bench, topic, key).offsets
    bench.close()
    (path,) = (bench.root / "index").iterdir()
    (ours,) = index_files(bench)
    wrote = ask(tmp_path / "20231114221320123", [*puts, "flush"])
    assert wrote == ["true"] * len(puts) + ["flushed"]
    assert (tmp_path / "20231114221320123").read_bytes() == ours
    header, *answers = ask(path, ["load", *(f"find\t{topic}#{key}\t64\t0\t{END_MS}" for topic, key in found)])
    assert int(header.split()[2]) == max(offset for offsets in found.values() for offset in offsets)
    for (topic, key), answer in zip(found, answers, strict=True):
        # RocketMQ's broker leaves it to the client to tell keys of one hash apart.
        assert set(found[topic, key]) <= set(json.loads(answer)), (topic, key)
    assert path.read_bytes() == ours
