"""docs/protocols/remoting.md lists every request code; tests/unit/test_documentation.py sees to its tests."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.remoting.handlers.table import SERVED

ROOT = Path(__file__).parents[3]


def test_every_request_code_is_on_the_page():
    page = (ROOT / "docs/protocols/remoting.md").read_text()
    table = page[page.index("## Request codes") : page.index("## Features")]
    own = (ROOT / "docs/protocols/extensions.md").read_text()
    table += own[: own.index("## READER_STATE")]
    listed = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    assert {int(code) for code in SERVED} <= listed
