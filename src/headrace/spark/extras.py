"""The optional groups of dependencies, and how one is installed."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Return the end of a sentence: the command that brings an extra, and where it works.

    Headrace is on no package index, so pip is given its clone instead of its name.
    """
    return f"pip install '.[{extra}]' in a clone of Headrace"
