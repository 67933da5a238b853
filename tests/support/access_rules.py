"""Rule files of access control, as a broker takes them. Ref: docs/access.md."""

from __future__ import annotations

from pathlib import Path


def write_rules(folder: Path, rules: str) -> Path:
    """Write a rule file and return its path: it holds secrets, so nobody else may read it."""
    path = folder / "access.toml"
    path.write_text(rules)
    path.chmod(0o600)
    return path
