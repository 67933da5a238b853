"""Choices of a property test that are drawn more often than others."""

from __future__ import annotations

from hypothesis import strategies as st


def weighted(*choices: tuple[int, st.SearchStrategy]) -> st.SearchStrategy:
    """Return a strategy that takes each choice as often as its weight says; ``one_of`` counts a repeated one once."""
    each = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.integers(0, len(each) - 1).flatmap(each.__getitem__)
