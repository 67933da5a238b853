"""The feature table of docs/protocols/nsq.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs/protocols/nsq.md").read_text()
    features = page[page.index("## Features") : page.index("## Where Headrace differs")]
    for cell in re.findall(r"\| ([^|]*`[^|]*test_[^|]*) \|$", features, re.MULTILINE):
        path = None
        for file, test in re.findall(r"`([\w/.]*)(?:::(\w+))?`", cell):
            if file:
                candidates = [ROOT / file, ROOT / "tests/unit/nsq" / file, ROOT / "tests/interop" / file]
                path = next((candidate for candidate in candidates if candidate.exists()), None)
            assert path is not None, f"{file} named in {cell!r} does not exist"
            assert not test or f"def {test}(" in path.read_text(), f"{test} is not in {path}"
