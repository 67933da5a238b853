"""What one pull lets through: the filter of a subscription, made once for each expression.

There is one filter of an expression as long as anything has it, a pull that waits above all: so whether two pulls want
the same is whether they have the same filter, and none is compiled anew because it waited.

Ref: remoting.md 4.4, 4.12.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from headrace.broker.consumers.sql92 import compile_filter
from headrace.broker.consumers.sql92_evaluation import Filter
from headrace.broker.consumers.subscription import SQL92, TAG, parse_tags
from headrace.broker.pull import Codes
from headrace.errors import InvalidFilterError
from headrace.format.record import tag_hash
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import RequestRefusedError

MAX_EXPRESSION_CHARACTERS: Final = 16 * 1024
MAX_SQL_CHARACTERS: Final = 4 * 1024
"""5 us each to compile, and nobody else is served meanwhile."""
SHORT_CHARACTERS: Final = 256
"""Expressions up to this length are kept compiled in numbers; longer ones take megabytes, so only a few are."""
FILTER_CHARACTERS: Final = 300
"""What a filter takes however short its expression is, in characters of one: some 10 KB."""
MAX_CHARACTERS_IN_USE: Final = 8 << 20
"""Of the expressions of all filters together, each of which takes some 35 times that; beyond it pulls do not wait."""

Key = tuple[str, str]
"""Kind and text of an expression."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class MessageFilter:
    """What ``read_queue`` takes; two Nones let everything through. Equal are only those of one expression."""

    codes: Codes | None = None
    matcher: Filter | None = None
    hashes: frozenset[int] | None = None
    """Those of ``codes``: messages with others need not wake a pull that waits; None = all may."""


EVERYTHING: Final = MessageFilter()


def filter_of(kind: str, expression: str) -> MessageFilter:
    """Return the filter of an expression; ``kind`` empty means TAG.

    Raises:
        RequestRefusedError: SUBSCRIPTION_PARSE_FAILED; the remark says what is wrong with it.
    """
    return (_short_filter if len(expression) <= SHORT_CHARACTERS else _long_filter)(kind, expression)


def require_readable_length(expression: str, most: int = MAX_EXPRESSION_CHARACTERS) -> None:
    """Refuse an expression that is longer than any that is read.

    Raises:
        RequestRefusedError: SUBSCRIPTION_PARSE_FAILED.
    """
    if len(expression) > most:
        raise RequestRefusedError(
            f"the expression has {len(expression)} characters, at most {most} are accepted",
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        )


class _FiltersInUse:
    """The filters that anything has, by their expressions.

    Attributes:
        characters: How long their expressions are together, each with FILTER_CHARACTERS.
    """

    def __init__(self) -> None:
        self._filters: dict[Key, weakref.ref[MessageFilter]] = {}
        self.characters = 0

    def find(self, key: Key) -> MessageFilter | None:
        """Return the filter of an expression, if anything has it."""
        found = self._filters.get(key)
        return None if found is None else found()

    def add(self, key: Key, made: MessageFilter) -> None:
        """Note a filter until nothing has it any more."""
        self._filters[key] = weakref.ref(made, partial(self._forget, key))
        self.characters += len(key[1]) + FILTER_CHARACTERS

    def _forget(self, key: Key, gone: weakref.ref[MessageFilter]) -> None:
        self.characters -= len(key[1]) + FILTER_CHARACTERS
        if self._filters.get(key) is gone:
            del self._filters[key]


_in_use = _FiltersInUse()


def is_crowded() -> bool:
    """Return whether so many and such long expressions are in use that no further pull may keep its own."""
    return _in_use.characters > MAX_CHARACTERS_IN_USE


def _find_filter(kind: str, expression: str) -> MessageFilter:
    found = _in_use.find((kind, expression))
    if found is None:
        found = _make_filter(kind, expression)
        if found is not EVERYTHING:
            _in_use.add((kind, expression), found)
    return found


def _make_filter(kind: str, expression: str) -> MessageFilter:
    require_readable_length(expression, MAX_SQL_CHARACTERS if kind == SQL92 else MAX_EXPRESSION_CHARACTERS)
    if kind in ("", TAG):
        return _tag_filter(expression)
    if kind != SQL92:
        raise RequestRefusedError(
            f"expression type {kind[:64]!r} is neither TAG nor SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )
    try:
        return MessageFilter(matcher=compile_filter(expression))
    except InvalidFilterError as error:
        raise RequestRefusedError(
            f"parse the consumer's subscription failed: {error}", ResponseCode.SUBSCRIPTION_PARSE_FAILED
        ) from error


def _tag_filter(expression: str) -> MessageFilter:
    tags = parse_tags(expression)
    if tags is None:
        return EVERYTHING
    if not any(expression.split("||")):
        raise RequestRefusedError(
            f"the tag expression {expression[:64]!r} has no tag in it", ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )
    hashes = frozenset(tag_hash(tag) for tag in tags)
    return MessageFilter(codes=Codes(hashes, tags), hashes=hashes)


_short_filter = lru_cache(maxsize=4096)(_find_filter)
_long_filter = lru_cache(maxsize=64)(_find_filter)
