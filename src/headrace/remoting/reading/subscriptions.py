"""What one pull lets through: the filter of a subscription, made once for each expression.

Ref: remoting.md 4.4, 4.12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from headrace.broker.consumers.sql92 import compile_filter
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


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """What ``read_queue`` takes; two Nones let everything through."""

    codes: Codes | None = None
    matcher: Callable[[bytes], bool] | None = None
    hashes: frozenset[int] | None = None
    """Those of ``codes``: messages with others need not wake a pull that waits; None = all may."""


EVERYTHING: Final = MessageFilter()


def filter_of(kind: str, expression: str) -> MessageFilter:
    """Return the filter of an expression; ``kind`` empty means TAG.

    Raises:
        RequestRefusedError: SUBSCRIPTION_PARSE_FAILED; the remark says what is wrong with it.
    """
    return (_short_filter if len(expression) <= SHORT_CHARACTERS else _long_filter)(kind, expression)


def _make_filter(kind: str, expression: str) -> MessageFilter:
    most = MAX_SQL_CHARACTERS if kind == SQL92 else MAX_EXPRESSION_CHARACTERS
    if len(expression) > most:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the expression has {len(expression)} characters, at most {most} are accepted",
        )
    if kind in ("", TAG):
        return _tag_filter(expression)
    if kind != SQL92:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"expression type {kind[:64]!r} is neither TAG nor SQL92"
        )
    try:
        return MessageFilter(matcher=compile_filter(expression).matches)
    except InvalidFilterError as error:
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
        ) from error


def _tag_filter(expression: str) -> MessageFilter:
    tags = parse_tags(expression)
    if tags is None:
        return EVERYTHING
    if not any(expression.split("||")):
        raise RequestRefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the tag expression {expression[:64]!r} has no tag in it"
        )
    hashes = frozenset(tag_hash(tag) for tag in tags)
    return MessageFilter(codes=Codes(hashes, tags), hashes=hashes)


_short_filter = lru_cache(maxsize=4096)(_make_filter)
_long_filter = lru_cache(maxsize=64)(_make_filter)
