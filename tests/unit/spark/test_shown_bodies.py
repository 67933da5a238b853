"""Bodies as ``headrace job search`` and ``deadletters`` show them."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.spark.jobs.search import SHOWN_CHARACTERS, show_body


@pytest.mark.parametrize("letter", ["a", "é", "日", "😀"])
@pytest.mark.parametrize("before", ["", "x", "xx", "xxx"])
def test_a_long_text_is_cut_between_its_letters(letter: str, before: str) -> None:
    text = before + letter * 1_000
    assert show_body(text.encode()) == text[: SHOWN_CHARACTERS - 1] + "…"
    assert show_body(text[:SHOWN_CHARACTERS].encode()) == text[:SHOWN_CHARACTERS]


@pytest.mark.parametrize("times", [1, 1_000])
def test_what_is_no_text_is_shown_as_hex_digits_however_long_it_is(times: int) -> None:
    """As Latin-1: the letters that UTF-8 does not have would be missing."""
    body = "café ".encode("latin-1") * times
    assert show_body(body).rstrip("…") == body.hex()[: SHOWN_CHARACTERS - 1]


@pytest.mark.parametrize(("body", "shown"), [(None, ""), (b"", ""), (b"\x00\x01", "0001"), (b"a\tb\r\n", "a\tb\r\n")])
def test_short_bodies(body: bytes | None, shown: str) -> None:
    assert show_body(body) == shown
