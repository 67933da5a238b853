"""The parts of a channel's state against plain Python: finished offsets, deferred messages, the in-flight hash."""

from __future__ import annotations

import heapq
import operator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.channels.deferred import DeferredSet
from headrace.broker.channels.finished import FinishedSet
from headrace.broker.channels.in_flight import OffsetMap
from headrace.broker.channels.spill import SpillDirectory

PAGE = 32_768
OFFSETS = st.one_of(
    st.integers(0, 200),
    st.integers(PAGE - 70, PAGE + 70),
    st.integers(3 * PAGE - 5, 3 * PAGE + 5),
    st.integers(0, 5 * PAGE),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("finish"), OFFSETS, st.just(0)),
        st.tuples(st.just("range"), OFFSETS, st.integers(1, 2 * PAGE)),
        st.tuples(st.just("join"), OFFSETS, st.integers(0, 3 * PAGE)),
        st.tuples(st.just("lift"), OFFSETS, st.just(0)),
        st.tuples(st.just("cut"), OFFSETS, st.just(0)),
        st.tuples(st.just("count"), OFFSETS, st.integers(0, 3 * PAGE)),
        st.tuples(st.just("probe"), OFFSETS, st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, start=st.sampled_from([0, 0, 5, 64, PAGE - 1, PAGE]))
def test_finished_set_equals_a_set(steps: list[tuple[str, int, int]], start: int) -> None:
    finished, model = FinishedSet(start), set(range(start))
    for action, offset, size in steps:
        if action == "finish":
            assert finished.finish(offset) == (offset not in model)
            model.add(offset)
        elif action == "range":
            order = range(offset + size - 1, offset - 1, -1) if size % 2 else range(offset, offset + size)
            for member in order:
                finished.finish(member)
            model.update(order)
        elif action == "join":
            joining = set(range(offset, offset + size))
            assert finished.finish_range(offset, offset + size) == len(joining - model)
            model |= joining
        elif action == "lift":
            assert finished.lift(offset) == len(set(range(offset)) - model)
            model.update(range(offset))
        elif action == "cut":
            gone = {member for member in model if member >= offset}
            assert finished.cut(offset) == len(gone)
            model -= gone
        elif action == "count":
            assert finished.count_between(offset, offset + size) == sum(
                member in model for member in range(offset, offset + size)
            )
        else:
            assert (offset in finished) == (offset in model)
        floor = next(member for member in range(8 * PAGE) if member not in model)
        assert finished.floor == floor
        assert finished.ahead == len(model) - floor
        for near in range(max(offset - 2, 0), offset + 66):
            assert (near in finished) == (near in model)


@pytest.mark.parametrize("end", [2, 63, 64, 65, 70, 127, 129, PAGE - 1, PAGE, PAGE + 1, PAGE + 70])
def test_cut_takes_what_lies_in_the_same_word_and_no_more(end: int) -> None:
    """A message that gets such an offset anew would count as finished, and be lost."""
    finished = FinishedSet()
    finished.finish_range(1, PAGE + 100)
    assert finished.cut(end) == PAGE + 100 - end
    assert [offset for offset in range(PAGE + 200) if offset in finished] == list(range(1, end))
    assert all(finished.finish(offset) for offset in range(end, end + 70))


def test_full_pages_collapse() -> None:
    """One stuck message must not hold a bit per message behind it."""
    finished = FinishedSet()
    for offset in range(1, 40 * PAGE):
        finished.finish(offset)
    assert finished.ahead == 40 * PAGE - 1
    assert finished.memory_bytes < 12_000
    assert finished.finish(0)
    assert (finished.floor, finished.ahead) == (40 * PAGE, 0)
    assert finished.memory_bytes < 12_000


def test_a_range_of_pages_needs_no_bits() -> None:
    """nsq.md 2.1: what an emptied topic drops behind a message in flight costs a page at each end."""
    finished = FinishedSet()
    assert finished.finish_range(1, 40 * PAGE) == 40 * PAGE - 1
    assert finished.memory_bytes < 12_000
    assert finished.finish(0)
    assert (finished.floor, finished.ahead) == (40 * PAGE, 0)


def test_finishing_in_order_needs_no_page() -> None:
    finished = FinishedSet(7)
    for offset in range(7, 3 * PAGE):
        finished.finish(offset)
    assert (finished.floor, finished.memory_bytes) == (3 * PAGE, 0)


DELAYS = st.one_of(st.integers(0, 10_000), st.integers(0, 600_000), st.integers(0, 40_000_000), st.integers(0, 10**11))


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("defer"), st.lists(DELAYS, min_size=1, max_size=60)),
            st.tuples(st.just("advance"), DELAYS),
            st.tuples(st.just("advance"), DELAYS.map(operator.neg)),
        ),
        max_size=20,
    ),
    most=st.sampled_from([1, 10, 1_000]),
    bound=st.sampled_from([0, 5, 50, 10**9]),
)
def test_deferred_messages_come_out_when_due(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]], most: int, bound: int
) -> None:
    """Nothing early, nothing lost, nothing twice; in order of time; also through spill files and clocks set back."""
    directory = tmp_path_factory.mktemp("spill")
    deferred = DeferredSet(bound, SpillDirectory(directory / "d"))
    model: list[tuple[int, int]] = []
    now, serial = 1_700_000_000_000, 0
    for action, argument in [*steps, ("advance", 10**13)]:
        if action == "defer":
            assert isinstance(argument, list)
            for delay in argument:
                serial += 1
                deferred.defer(now, now + delay, serial, 3, serial * 2, 9)
                heapq.heappush(model, (now + delay, serial))
        else:
            assert isinstance(argument, int)
            now += argument
            taken = []
            while True:
                got = deferred.take_due(now, most)
                taken += got
                if len(got) < most and deferred.wake_ms() != 0:
                    break
            wanted = []
            while model and model[0][0] <= now:
                wanted.append(heapq.heappop(model))
            assert sorted((due, physical) for due, physical, *_ in taken) == wanted
            assert all((attempts, offset, queue) == (3, physical * 2, 9)
                       for _, physical, attempts, offset, queue in taken)  # fmt: skip
        assert deferred.count == len(model)
        assert deferred.in_memory + deferred.spilled == deferred.count
        assert deferred.wake_ms() <= (model[0][0] if model else -1)
    assert list(directory.rglob("*.spill")) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=400), st.sampled_from([1, 64, 1 << 40]))
def test_offset_map_equals_a_dict(steps: list[tuple[int, bool]], stride: int) -> None:
    offsets, model = OffsetMap(), dict[int, int]()
    for number, (key, insert) in enumerate(steps):
        if insert:
            offsets[key * stride] = model[key * stride] = number
        elif key * stride in model:
            del offsets[key * stride], model[key * stride]
        else:
            with pytest.raises(KeyError):
                del offsets[key * stride]
    assert offsets.count == len(model)
    for key in range(61):
        if key * stride in model:
            assert offsets[key * stride] == model[key * stride]
        else:
            with pytest.raises(KeyError):
                offsets[key * stride]


def test_a_clock_that_was_ahead_for_a_moment_keeps_nothing_in_memory(tmp_path: Path) -> None:
    """What is due before the time that it showed went to the heap, which is not spilled, as long as anything waited."""
    deferred = DeferredSet(100, SpillDirectory(tmp_path / "spill"))
    now, years_ms = 1_700_000_000_000, 10**12
    deferred.defer(now, now + 2 * years_ms, 1, 1, 1, 0)
    assert deferred.take_due(now + years_ms, 10) == []
    for serial in range(2, 1_002):
        deferred.defer(now, now + 3_600_000 + serial, serial, 1, serial, 0)
    assert deferred.in_memory <= 101
    taken = [entry for _ in range(3) for entry in deferred.take_due(now + 4_000_000, 1_000)]
    assert [physical for _, physical, *_ in taken] == list(range(2, 1_002))


def test_damaged_spill_file_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "spill"
    deferred = DeferredSet(10, SpillDirectory(directory))
    for serial in range(100):
        deferred.defer(0, 10_000_000, serial, 1, serial, 0)
    (path,) = directory.iterdir()
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    taken = deferred.take_due(20_000_000, 1_000) + deferred.take_due(20_000_000, 1_000)
    assert deferred.lost_spills > 0
    assert len(taken) + deferred.lost_spills == 100
    assert deferred.count == 0
    assert not path.exists()
