"""The store rules of design.md section 7 that recovery keeps, one test for each."""

from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.errors import StoreFullError
from tests.support import layouts
from tests.support.stores import MakeBench, StoreBench, SEGMENT_BYTES


def test_refused_batch_does_not_come_back(make_bench: MakeBench) -> None:
    """design.md 7, StoreFull by budget: a batch that was refused at a segment roll is never delivered."""
    bench = make_bench(budget_bytes=3 * SEGMENT_BYTES)
    bench.append("t", b"kept")
    with pytest.raises(StoreFullError):
        for _ in range(100):
            before = bench.messages("t")
            bench.append("t", *(b"%03d" % n + b"x" * 1000 for n in range(20)))
    assert bench.messages("t") == before
    bench.append("t", b"small")
    expected = bench.messages("t")
    bench.crash_and_open()
    assert bench.messages("t") == expected
    bench.restart()
    assert bench.messages("t") == expected


def test_offsets_known_only_to_the_views_are_not_issued_again(bench: StoreBench) -> None:
    """design.md 7, offsets are never issued twice: a power cut took records whose queue entries reached the disk."""
    first = bench.append("t", b"durable")
    lost = bench.append("t", b"lost", flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(lost[0][2], bytes(1000))
    bench.open()
    after = bench.append("t", b"new")
    assert after[0][2] > lost[0][2]
    assert after[0][1] > lost[0][1]
    assert bench.messages("t") == {first[0][1]: b"durable", after[0][1]: b"new"}
