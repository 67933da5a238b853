"""Typed access to a request's ext fields; a missing or malformed one is a refusal that names it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace.remoting.reply import RequestRefusedError

MAX_I64: Final = (1 << 63) - 1
MAX_I32: Final = (1 << 31) - 1
_LONGEST_SHOWN: Final = 64
# What Java's parsers take, and int() takes more: spaces around, underscores within. Longer than any i64 would be slow.
NUMBER: Final = re.compile(r"[+-]?[0-9]{1,24}")


def text(ext: Mapping[str, str], name: str) -> str:
    """Return a required text.

    Raises:
        RequestRefusedError: it is missing or empty.
    """
    value = ext.get(name)
    if not value:
        raise RequestRefusedError(f"the custom field <{name}> is missing or empty")
    return value


def present(ext: Mapping[str, str], name: str) -> str:
    """Return a text that must be there and may be empty.

    Raises:
        RequestRefusedError: it is missing.
    """
    value = ext.get(name)
    if value is None:
        raise RequestRefusedError(f"the custom field <{name}> is missing")
    return value


def number(ext: Mapping[str, str], name: str, default: int | None = None, *, most: int = MAX_I64) -> int:
    """Return an integer from ``-most - 1`` to ``most``; required unless there is a ``default``.

    Raises:
        RequestRefusedError: it is missing, no integer, or out of range.
    """
    value = ext.get(name)
    if value is None or value == "":
        if default is None:
            raise RequestRefusedError(f"the custom field <{name}> is missing")
        return default
    result = int(value) if NUMBER.fullmatch(value) else MAX_I64 + 1
    if not -most - 1 <= result <= most:
        shown = value[:_LONGEST_SHOWN]
        raise RequestRefusedError(f"the custom field <{name}> is no valid number: {shown!r}")
    return result


def flag(ext: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return a boolean; anything but ``true`` is false, as in Java."""
    value = ext.get(name)
    return default if value is None else value.lower() == "true"
