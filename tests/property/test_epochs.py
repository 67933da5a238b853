"""Epochs, by a model that is a set of physical offsets. Ref: docs/formats/side-files.md, "Side file"."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.format.epochs import Epoch, Epochs

SIZE = 8
"""Of a file: an epoch begins with one."""


@st.composite
def logs(draw: st.DrawFn) -> tuple[Epochs, set[int]]:
    """Epochs as starts begin them, many without a record, and the physical offsets that they left out."""
    at = draw(st.integers(0, 2)) * SIZE
    epochs, left_out = Epochs([Epoch(1, at)]), set()
    for now_ms in range(draw(st.integers(0, 6))):
        end = at + draw(st.just(0) | st.integers(0, 3 * SIZE))
        at = (end // SIZE + draw(st.integers(1, 3))) * SIZE
        queue_ends = draw(st.dictionaries(st.tuples(st.text(min_size=1), st.integers(0, 9)), st.integers(0, 9)))
        epochs = epochs.begin(at, end=end, now_ms=now_ms, queue_ends=queue_ends)
        left_out |= set(range(end, at))
    return epochs, left_out


@given(logs(), st.integers(0, 80), st.integers(1, 80))
def test_a_range_is_a_gap_when_all_of_it_was_left_out(log: tuple[Epochs, set[int]], first: int, size: int) -> None:
    epochs, left_out = log
    assert epochs.is_gap(first, first + size) == left_out.issuperset(range(first, first + size))
    assert epochs.behind(first) == next(offset for offset in range(first, 10_000) if offset not in left_out)


@given(logs())
def test_epochs_come_back_from_their_file(log: tuple[Epochs, set[int]]) -> None:
    epochs, _ = log
    again = Epochs.of(epochs.to_payload())
    assert list(again) == list(epochs)
    assert (again.gaps, again.newest, again.beginning) == (epochs.gaps, epochs.newest, epochs.beginning)
    assert again.to_payload() == epochs.to_payload()


@given(logs(), st.integers(0, 8))
def test_ends_after_an_epoch_are_those_of_the_later_ones(log: tuple[Epochs, set[int]], number: int) -> None:
    epochs, _ = log
    assert epochs.ends_after(number) == [end for end, _ in epochs.gaps][max(0, number - 1) :]


def test_without_a_file_there_is_one_epoch_from_0_on() -> None:
    assert Epochs.of(None).to_payload() == Epochs.of([]).to_payload() == [{"epoch": 1, "first_physical_offset": 0}]
