"""The documents of registry and access rules: codes with a handler have rows, the rule file is one."""

import re
from pathlib import Path

from headrace.broker.access import load_rules
from headrace.remoting.registry.handlers import HANDLERS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/protocols/registry.md").read_text()
FEATURES = PAGE[PAGE.index("## Features") : PAGE.index("## Where Headrace differs")]


def test_every_code_with_a_handler_has_a_row() -> None:
    """But for 318, which is refused, and so stands among the differences."""
    codes = {
        int(code)
        for row in re.findall(r"^\| ([\d, +]+) \|", FEATURES, re.MULTILINE)
        for code in re.findall(r"\d+", row)
    }
    assert codes == set(HANDLERS) - {318}
    assert "UPDATE_NAMESRV_CONFIG (318)" in PAGE


def test_rule_file_of_the_document_is_accepted(tmp_path: Path) -> None:
    """docs/access.md, "The rule file"."""
    text = (ROOT / "docs/access.md").read_text()
    block = text[text.index("    [[users]]") : text.index("Start the broker with it")]
    file = tmp_path / "access.toml"
    file.write_text("\n".join(line.removeprefix("    ") for line in block.splitlines()).replace('"..."', '"secret"'))
    rules = load_rules(file)
    assert list(rules.users) == ["orders", "operations", "old-batch-jobs"]
