"""The key index against its plain reference, over appends, notes, clean ends, kills and lost files.

docs/formats/index-file.md; requirements A-STORE-01, A-STORE-29..35, X-STORE-14..17.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.batch import PublishBatch
from headrace.store.index import key_hash
from tests.support.index_reference import index_hash
from tests.support.indexes import find, index_files, note_index, properties, reference_of
from tests.support.stores import StoreBench

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02 "), max_size=12)
KEYS = st.lists(st.sampled_from(["a", "b", "Aa", "BB", "ключ", "k1", "", "long-" * 9]), max_size=6)
RECORDS = st.tuples(
    st.sampled_from(["T", "U", "%RETRY%g"]), KEYS, st.sampled_from(["", "u1", "u2", "a"]), st.booleans()
)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(RECORDS, min_size=1, max_size=12)),
    st.tuples(st.just("pass"), st.integers(-5_000, 90_000)),
    st.tuples(st.sampled_from(["note", "restart", "crash", "lose-note", "lag"]), st.none()),
    st.tuples(st.just("lose-file"), st.integers(0, 5)),
)


@given(TEXTS, TEXTS)
def test_hashes_equal_the_reference(topic: str, key: str) -> None:
    assert key_hash(topic.encode(), key.encode()) == index_hash(topic, key)


@given(st.lists(STEPS, max_size=14), st.integers(1, 30), st.integers(2, 30))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_index_is_what_the_log_says(steps: list[tuple[str, object]], slots: int, capacity: int) -> None:
    with TemporaryDirectory() as folder:
        bench = StoreBench(Path(folder) / "store", index_slots=slots, index_entries=capacity)
        try:
            run(bench, steps)
        finally:
            bench.crash()


def run(bench: StoreBench, steps: list[tuple[str, object]]) -> None:
    expected: dict[tuple[str, str], list[int]] = {}
    for action, value in steps:
        if action == "append":
            assert isinstance(value, list)
            append(bench, value, expected)
        elif action == "pass":
            assert isinstance(value, int)
            bench.clock.advance_ms(value)
        elif action == "note":
            bench.store.index.wait_live()
            if bench.store.index.keys.active is not None:
                bench.clock.advance_ms(20_000)
                bench.store.tick()
        elif action == "restart":
            bench.store.close()
            bench.open()
        elif action == "crash":
            bench.crash()
            bench.open()
        elif action == "lag":
            bench.store.index.keys.stop_live()
        elif action == "lose-note":
            bench.store.close()
            # It is not there when the store was closed before the index was read again: what was noted before counts.
            (bench.root / "headrace" / "index.json").unlink(missing_ok=True)
            bench.open()
        elif action == "lose-file":
            assert isinstance(value, int)
            bench.store.close()
            paths = sorted((bench.root / "index").iterdir()) if (bench.root / "index").exists() else []
            for path in paths[value : value + 1]:
                path.unlink()
            bench.open()
    bench.store.index.wait_live()
    for (topic, key), offsets in expected.items():
        assert find(bench, topic, key).offsets == offsets[::-1][:64]
    bench.store.close()
    assert index_files(bench) == reference_of(bench)
    assert bench.check().damage == []
    bench.open()


def append(
    bench: StoreBench, records: list[tuple[str, list[str], str, bool]], expected: dict[tuple[str, str], list[int]]
) -> None:
    batch = PublishBatch()
    batch.destinations = sorted({topic for topic, _, _, _ in records})
    batch.queues = [bench.store.queue(topic, 0) for topic in batch.destinations]
    for topic, keys, unique, is_plain in records:
        raw = b"" if is_plain else properties(" ".join(keys), unique)
        batch.append(b"x", batch.destinations.index(topic), properties=raw)
    bench.store.append(batch)
    bench.store.flush()
    for number, (topic, keys, unique, is_plain) in enumerate(records):
        for key in {*keys, unique} - {""} if not is_plain else ():
            expected.setdefault((topic, key), []).append(batch.placed(number)[0])


def test_the_index_catches_up_beside_appends() -> None:
    """The thread and the appends never add keys at once, whatever the moment at which they meet."""
    with TemporaryDirectory() as folder:
        bench = StoreBench(Path(folder) / "store", index_slots=500, index_entries=700)
        expected: dict[tuple[str, str], list[int]] = {}
        for number in range(400):
            append(bench, [("T", ["a", f"k{number}"], f"u{number}", False)] * 3, expected)
            if number % 7 == 0:
                bench.store.index.keys.stop_live()
            if number % 3 == 0:
                bench.store.tick()
        bench.store.tick()
        bench.store.index.wait_live()
        for number in range(0, 400, 13):
            assert find(bench, "T", f"k{number}").offsets == expected["T", f"k{number}"][::-1]
        note_index(bench)
        bench.store.close()
        assert index_files(bench) == reference_of(bench)
