"""Names that reach the broker through its own API."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidNameError
from headrace.nsq.names import canonical_name, is_spelled


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("t", "t"), ("t#ephemeral", "t#ephemeral"), ("t#tmp", "t#ephemeral"), ("a.b_c-D", "a.b_c-D")],
)
def test_tmp_is_another_spelling_of_ephemeral(name, canonical):
    """B-LMQ-03, X-NSQ-01."""
    assert canonical_name(name) == canonical


@pytest.mark.parametrize(
    "name", ["", "#tmp", "#ephemeral", "t#tmp#tmp", "a#b", "a b", "é", "x" * 65, "x" * 60 + "#tmp"]
)
def test_other_names_are_refused(name):
    """nsq.md 1.2."""
    with pytest.raises(InvalidNameError):
        canonical_name(name)


@pytest.mark.parametrize("name", ["t", "t#ephemeral", "a.b_c-D", ".", "x" * 64, "x" * 54 + "#ephemeral"])
def test_names_that_nsq_spells(name: str) -> None:
    """nsq.md 1.2. Listings, announcements and nsqlookupd ask the same."""
    assert is_spelled(name)


@pytest.mark.parametrize("name", ["", "#ephemeral", "t#tmp", "a#b", "a b", "é", "t\udcff", "t\n", "%RETRY%g", "x" * 65])
def test_names_that_nsq_does_not_spell(name: str) -> None:
    """Surrogates stand for bytes that are no UTF-8."""
    assert not is_spelled(name)
