"""The values of SQL92 filters against the plain reference: any expression, any properties. remoting.md 4.12."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.broker.consumers.sql92 import compile_filter
from headrace.errors import InvalidFilterError
from tests.support import sql92_reference as reference
from tests.support.sql92_reference import Evaluate, Value

Part = tuple[str, Evaluate]
"""An expression's text, and what it is of a message."""

NAMES = ["a", "b", "c", "d"]
TEXTS = [
    "5", "+5", "-5", "-0", "007", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "0" * 39 + "5", "0" * 40 + "5", "1" * 45,
    "9007199254740993", "1e3", "1E-3f", "1e", "1e+", "1.5", "1.5D", "5.", ".5", ".", "+.5e1", "1.2.3",
    "+", "-", "5e+3", "1e5e", ".e5", " 9 ", "\t9\n",
    "\x005", "1" * 200 + ".5",
    "5.5".zfill(1000), "5.5".zfill(1001), "NaNf", "1e999", "-1e999",
    "NaN", "-NaN", "nan", "Infinity", "-Infinityd", "inf", "0x1", "1_0",
    "٣", "²", "\u30009", "true", "TRUE", "tRuE", "true ", "false", "", " ", "it's", "é", "größe", "\ufffd", "a\x01b",
]  # fmt: skip
RAW = [text.encode() for text in TEXTS] + [b"\xff", b"\xfe", b"g\xc3", b"\xed\xa0\x80", b"5\xff", b"\xff" * 40]
INTEGERS = [0, 1, 5, -5, 1000, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
DECIMALS = [0.0, 0.5, 1.5, 5.0, 1000.0, 0.001, 9007199254740992.0, 2.0**63, 9.3e18, 1e300]
NUMBERS: list[Value] = [*INTEGERS, *DECIMALS]
OTHERS: list[Value] = [*TEXTS, True, False]


def literal(value: Value) -> Part:
    if isinstance(value, str):
        text = "'" + value.replace("'", "''") + "'"
    elif isinstance(value, bool):
        text = str(value).upper()
    else:
        text = repr(value)
    return text, lambda values: value


def by_name(name: str) -> Part:
    return name, lambda values: values[name]


def ordered(left: Part, sign: str, right: Part) -> Part:
    return f"{left[0]} {sign} {right[0]}", reference.ordering(sign, left[1], right[1])


def equal(left: Part, negated: bool, right: Part) -> Part:
    test = reference.equality(left[1], right[1])
    return f"{left[0]} {'<>' if negated else '='} {right[0]}", reference.negation(test) if negated else test


def between(left: Part, negated: bool, low: Part, high: Part) -> Part:
    text = f"{left[0]}{' NOT' * negated} BETWEEN {low[0]} AND {high[0]}"
    signs = ("<", ">") if negated else (">=", "<=")
    tests = [reference.ordering(sign, left[1], bound[1]) for sign, bound in zip(signs, (low, high), strict=True)]
    return text, reference.any_of(tests) if negated else reference.all_of(tests)


def member(name: str, negated: bool, choices: list[str]) -> Part:
    text = ", ".join(literal(choice)[0] for choice in choices)
    part, evaluate = by_name(name)
    return f"{part}{' NOT' * negated} IN ({text})", reference.membership(evaluate, frozenset(choices), negated)


def text_test(name: str, negated: bool, word: str, wanted: str) -> Part:
    tests = {"CONTAINS": lambda text, part: part in text, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith}
    part, evaluate = by_name(name)
    test = reference.text_test(tests[word], evaluate, wanted, negated)
    return f"{part}{' NOT' * negated} {word} {literal(wanted)[0]}", test


def connect(word: str, parts: list[Part]) -> Part:
    join = reference.any_of if word == "OR" else reference.all_of
    return f" {word} ".join(f"({text})" for text, _ in parts), join([evaluate for _, evaluate in parts])


properties = st.sampled_from(NAMES).map(by_name)
minus = properties.map(lambda part: (f"-{part[0]}", reference.minus(part[1])))
numbers = st.one_of(properties, minus, st.sampled_from(NUMBERS).map(literal))
anything = st.one_of(numbers, st.sampled_from(OTHERS).map(literal))
flags = st.booleans()
tests = st.one_of(
    st.builds(ordered, numbers, st.sampled_from(["<", "<=", ">", ">="]), numbers),
    st.builds(equal, anything, flags, anything),
    st.builds(between, numbers, flags, numbers, numbers),
    st.builds(member, st.sampled_from(NAMES), flags, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5)),
    st.builds(
        text_test,
        st.sampled_from(NAMES),
        flags,
        st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
        st.sampled_from(TEXTS),
    ),
    st.builds(
        lambda part, negated: (f"{part[0]} IS{' NOT' * negated} NULL", reference.null_test(part[1], negated)),
        properties,
        flags,
    ),
    properties.map(lambda part: (f"NOT {part[0]}", reference.negation(reference.never_true(part[1])))),
)
expressions = st.recursive(
    tests,
    lambda parts: st.one_of(
        st.builds(connect, st.sampled_from(["AND", "OR"]), st.lists(parts, min_size=2, max_size=4)),
        parts.map(lambda part: (f"NOT ({part[0]})", reference.negation(part[1]))),
        st.builds(
            lambda left, negated, right: equal((f"({left[0]})", left[1]), negated, right), parts, flags, anything
        ),
    ),
    max_leaves=8,
)


def is_true(evaluate: Evaluate, values: dict[str, str | None]) -> bool:
    try:
        return evaluate(values) is True
    except reference.EvaluationError:
        return False


@given(expressions, st.lists(st.tuples(st.sampled_from([*NAMES, "aa", ""]), st.sampled_from(RAW)), max_size=8), flags)
def test_values_equal_the_reference(part: Part, pairs: list[tuple[str, bytes]], ends: bool) -> None:
    """Of a property that is there twice the last one counts; one without a value is not there."""
    text, evaluate = part
    try:
        compiled = compile_filter(text)
    except InvalidFilterError:
        assume(False)  # two literals that do not go together
    encoded = b"\x02".join(name.encode() + b"\x01" + value for name, value in pairs) + b"\x02" * ends
    found = {name: value.decode("utf-8", "replace") for name, value in pairs if name and value}
    values = {name: found.get(name) for name in NAMES}
    assert compiled.matches(encoded) == is_true(evaluate, values), (text, values)


SIGNS = ["=", "<>", "<", "<=", ">", ">="]


def compared(left: Part, sign: str, right: Part) -> Part:
    return equal(left, sign == "<>", right) if sign in {"=", "<>"} else ordered(left, sign, right)


def differences(part: Part, rows: Iterable[dict[str, bytes]]) -> list[dict[str, bytes]]:
    """Return the properties for which an expression is not what the reference says; none where it is refused."""
    try:
        compiled = compile_filter(part[0])
    except InvalidFilterError:
        return []
    found = []
    for row in rows:
        encoded = b"".join(name.encode() + b"\x01" + value + b"\x02" for name, value in row.items())
        values = {name: row.get(name, b"").decode("utf-8", "replace") or None for name in NAMES}
        if compiled.matches(encoded) != is_true(part[1], values):
            found.append(row)
    return found


@pytest.mark.parametrize("sign", SIGNS)
def test_every_text_is_read_as_what_it_is_compared_with(sign: str) -> None:
    """remoting.md 4.12: each text against each literal, on either side."""
    rows = [{"a": raw} for raw in RAW]
    for value in [*NUMBERS, *OTHERS]:
        assert differences(compared(by_name("a"), sign, literal(value)), rows) == [], value
        assert differences(compared(literal(value), sign, by_name("a")), rows) == [], value


@pytest.mark.parametrize("sign", SIGNS)
def test_every_text_against_every_other(sign: str) -> None:
    """remoting.md 4.12: equal as texts, ordered as decimals; what is no UTF-8 is U+FFFD, also in both."""
    rows = [{"a": first, "b": second} for first in RAW for second in RAW]
    assert differences(compared(by_name("a"), sign, by_name("b")), rows) == []


@pytest.mark.parametrize("sign", SIGNS)
def test_every_number_against_every_other(sign: str) -> None:
    """Exactly: not every integer is a decimal, 2^53 + 1 is above 9007199254740992.0."""
    for first in NUMBERS:
        for second in NUMBERS:
            assert differences(compared(literal(first), sign, literal(second)), [{}]) == [], (first, second)
