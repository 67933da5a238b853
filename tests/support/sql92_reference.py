"""The readable reference of headrace.broker.consumers.sql92_evaluation: closures over a message's properties.

Each function returns a closure over a plain dict of text with every name of the expression. None stands for a missing
property and for what follows from one. Ref: remoting.md 4.12; the odd rules are RocketMQ's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Value = str | int | float | bool | None
Evaluate = Callable[[dict[str, str | None]], Value]

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
# What was matched is not given back: digits of a property that is no number would be tried in every division.
_DECIMAL: Final = re.compile(
    r"[\x00- ]*+"
    r"(?:([+-]?+(?:NaN|Infinity))|([+-]?+(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+)[dDfF]?+)"
    r"[\x00- ]*+"
)


class EvaluationError(Exception):
    """A message's values cannot be compared as the expression wants: it does not match."""


def _truth(value: Value) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise EvaluationError


def any_of(parts: list[Evaluate]) -> Evaluate:
    """OR: true if one is; else unknown if one is."""

    def evaluate(values: dict[str, str | None]) -> Value:
        result: Value = False
        for part in parts:
            truth = part(values)
            if truth is True:
                return True
            if truth is not False and _truth(truth) is None:
                result = None
        return result

    return evaluate


def all_of(parts: list[Evaluate]) -> Evaluate:
    """AND: false if one is; else unknown if one is."""

    def evaluate(values: dict[str, str | None]) -> Value:
        result: Value = True
        for part in parts:
            truth = part(values)
            if truth is False:
                return False
            if truth is not True and _truth(truth) is None:
                result = None
        return result

    return evaluate


def negation(part: Evaluate) -> Evaluate:
    """NOT; unknown stays unknown."""

    def evaluate(values: dict[str, str | None]) -> Value:
        truth = _truth(part(values))
        return None if truth is None else not truth

    return evaluate


def never_true(part: Evaluate) -> Evaluate:
    """A bare property where a truth value is wanted: it is a text, so never true."""
    return lambda values: None if part(values) is None else False


def minus(part: Evaluate) -> Evaluate:
    """A sign before something that is no literal; a text has no negative."""

    def evaluate(values: dict[str, str | None]) -> Value:
        value = part(values)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return evaluate


def null_test(part: Evaluate, negated: bool) -> Evaluate:
    """IS NULL and IS NOT NULL: the one test that is never unknown."""
    return lambda values: (part(values) is None) != negated


def equality(left: Evaluate, right: Evaluate) -> Evaluate:
    """``=``, and negated ``<>``. Two missing properties are equal, as in RocketMQ."""

    def evaluate(values: dict[str, str | None]) -> Value:
        first, second = left(values), right(values)
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return compare(first, second) == 0

    return evaluate


def ordering(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """The four inequalities; two texts are read as decimals."""
    accepted = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[sign]

    def evaluate(values: dict[str, str | None]) -> Value:
        first, second = left(values), right(values)
        if first is None or second is None:
            return None
        if type(first) is str and type(second) is str:
            first, second = _read_decimal(first), _read_decimal(second)
        return compare(first, second) in accepted

    return evaluate


def membership(part: Evaluate, choices: frozenset[str], negated: bool) -> Evaluate:
    """IN and NOT IN."""

    def evaluate(values: dict[str, str | None]) -> Value:
        value = part(values)
        return None if value is None else (value in choices) != negated

    return evaluate


def text_test(test: Callable[[str, str], bool], part: Evaluate, wanted: str, negated: bool) -> Evaluate:
    """Return the test of a property's text; neither it nor its negation is true of a missing one or an empty text."""

    def evaluate(values: dict[str, str | None]) -> Value:
        value = part(values)
        if not isinstance(value, str) or not wanted:
            return False
        return test(value, wanted) != negated

    return evaluate


def compare(first: Value, second: Value) -> int:
    """Return -1, 0 or 1; a text is read as what it is compared with.

    Raises:
        EvaluationError: the two cannot be compared.
    """
    if type(first) is not type(second):
        if type(first) is str:
            first = _read_as(second, first)
        elif type(second) is str:
            second = _read_as(first, second)
        if isinstance(first, bool) != isinstance(second, bool):
            return -1  # neither equal nor larger, as in RocketMQ
    if first == second:
        return 0
    if first < second:  # type: ignore[operator]  # both are texts, numbers or truth values
        return -1
    if first > second:  # type: ignore[operator]
        return 1
    return int(first != first) - int(second != second)  # NaN is above every number and equal to itself in Java


def _read_as(other: Value, text: str) -> Value:
    """Read a property as the kind of value it is compared with."""
    if type(other) is int and len(text) < 10 and text.isdigit() and text.isascii():
        return int(text)  # fits 31 bits
    if isinstance(other, bool):
        return text.lower() == "true"
    if isinstance(other, float):
        return _read_decimal(text)
    if not _INTEGER.fullmatch(text) or len(text) > 40:
        raise EvaluationError
    number = int(text)
    # A literal of 32 bits makes RocketMQ read the property as such a number too. The least of them is not: to Java, its
    # sign is another token, and without it the number needs 64 bits.
    bits = 31 if isinstance(other, int) and -(1 << 31) < other < 1 << 31 else 63
    if not -(1 << bits) <= number < 1 << bits:
        raise EvaluationError
    return number


def _read_decimal(text: str) -> float:
    match = _DECIMAL.fullmatch(text)
    if match is None or len(text) > 1000:
        raise EvaluationError
    return float(match[1] or match[2])
