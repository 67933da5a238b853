"""SQL92 filters: language and values of remoting.md 4.12, with the corrections of section 0."""

from __future__ import annotations

import pytest

from headrace.broker.consumers.sql92 import MAX_CHARACTERS, MAX_NESTED, compile_filter
from headrace.errors import InvalidFilterError
from tests.support.layouts import encode_properties

MESSAGE = {"a": "5", "b": "true", "c": "2.5", "s": "it's", "e": "héllo", "TAGS": "TagA", "KEYS": "k1", "_x$1": "y"}
PROPERTIES = encode_properties(MESSAGE) + b"__CRC32#\x010123456789\x02"


def matches(text: str, properties: bytes = PROPERTIES) -> bool:
    return compile_filter(text).matches(properties)


@pytest.mark.parametrize(
    "text",
    [
        "a = 5", "a = '5'", "a <> 6", "a > 4", "a >= 5", "a < 6", "a <= 5", "5 = a", "4 < a",
        "a = 5.0", "c = 2.5", "c > .5", "c < 5E10", "c < 25e-1 OR c = 25e-1", "a > -1", "a > - 1", "a < +6", "a = 5L",
        "a BETWEEN 5 AND 5", "a between 1 and 10", "a NOT BETWEEN 6 AND 10", "a NOT BETWEEN 6 AND 4",
        "a>4and a<6", "a = 5or b", "a BETWEEN 5and 5", "a = 5Land TRUE",
        "c BETWEEN a AND 9.0 OR c BETWEEN 1.0 AND a",
        "TAGS IN ('TagB', 'TagA')", "TAGS NOT IN ('TagB')", "KEYS = 'k1'", "s = 'it''s'", "e = 'héllo'",
        "missing IS NULL", "a IS NOT NULL", "a is not null and not (missing is not null)",
        "b = TRUE", "b = true", "TRUE = b", "b <> FALSE", "TRUE", "(a > 1) = TRUE", "NOT b",
        "a > 1 AND c > 1. AND TAGS = 'TagA'", "missing = 1 OR a = 5", "a = 5 OR c = 'never reached'", "NOT (a = 1)",
        "a = 1 OR a = 2 AND a = 3 OR a = 5", "a = 5 -- the rest\n AND /* in\nside */ c > 1.5", "_x$1 = 'y'",
        "TAGS CONTAINS 'agA'", "TAGS STARTSWITH 'Tag'", "TAGS ENDSWITH 'A'", "TAGS NOT CONTAINS 'B'",
        "NOT (TAGS CONTAINS 'B')", "TAGS NOT STARTSWITH 'A' AND TAGS NOT ENDSWITH 'T'",
        "missing = other", "a > c", "a = 9223372036854775807 OR a <= 5", "a > -9223372036854775808",
        "a > - 9223372036854775808 AND a > -9223372036854775808L",
    ],
)  # fmt: skip
def test_what_delivers(text: str) -> None:
    """remoting.md 4.12: only a result of true delivers."""
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = 6", "a <> 5", "a > 5", "FALSE", "NULL", "b", "b AND TRUE", "missing",
        # a missing property is neither true nor false
        "missing = 1", "missing <> 1", "NOT (missing = 1)", "missing > 1", "missing = 1 AND TRUE", "NOT missing",
        "missing IN ('1')", "missing NOT IN ('1')", "NULL OR FALSE", "missing NOT BETWEEN 1 AND 2",
        "a BETWEEN 6 AND -4", "a BETWEEN 6 AND (-4)", "a BETWEEN (-1) AND (-4)", "a BETWEEN +(-1) AND - (4)",
        # read as the kind of the literal: 2.5 is no integer, it's is no number
        "c > 2", "c <> 2", "NOT (c = 2)", "s > 1", "s <> 1", "a > s", "TAGS < KEYS", "c > 2 OR TRUE",
        "TAGS CONTAINS ''", "TAGS NOT CONTAINS ''", "missing CONTAINS 'a'", "missing NOT CONTAINS 'a'",
        "A = 5", "tags = 'TagA'", "-a = -5",
    ],
)  # fmt: skip
def test_what_does_not_deliver(text: str) -> None:
    """remoting.md 4.12 and section 0: false, unknown and every failure of evaluation deliver nothing."""
    assert not matches(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "a =", "= 5", "a", "s > 'a'", "'a' < s", "a > TRUE", "a = NULL", "a == 5", "a != 5", "a LIKE 'x'", "(a = 5",
        "a = 5)", "a = 5 6", "5", "'x'", "a IN (5)", "a IN ()", "a IN 'x'", "5 IN ('5')", "a BETWEEN 6 AND 5",
        "a BETWEEN +6 AND 5", "a BETWEEN (6) AND (+5)",
        "a BETWEEN 1", "a NOT 5", "a IS 5", "a = 'open", "a = 1e999", "a = 9223372036854775809",
        "a < 9223372036854775808", "a < 9223372036854775808L", "a < +9223372036854775808", "a > -(9223372036854775808)",
        "a < - -9223372036854775808", "a > -9223372036854775809",
        "a = 5x", "a AND", "a = \"5\"", "TRUE = 5", "NOT", "a CONTAINS 5", "5 CONTAINS '5'", "a = 5;", "(a > 1) > 1",
        "a # 5", "/* a = 1",
        "NOT TAGS CONTAINS 'B'", "NOT a IN ('5')",
    ],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    """remoting.md 4.12: what RocketMQ's parser refuses is code 23, with a text that says where."""
    if text == "a":
        compile_filter(text)  # a bare property is a filter that is never true
        return
    with pytest.raises(InvalidFilterError, match="filter expression is not valid"):
        compile_filter(text)


def test_a_refusal_names_the_place() -> None:
    """Bad input: the remark names what is wrong."""
    with pytest.raises(InvalidFilterError) as refused:
        compile_filter("a = 1 AND s > 'x'")
    assert refused.value.position == 14
    assert "character 15" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "a = 1" + ")" * 5000,
        "NOT " * 5000 + "TRUE",
        "-" * 5000 + "5 = a",
        "a" + " = a" * 5000,
        "a > " + "+" * 5000 + "1",
        "a = 1 OR " * MAX_CHARACTERS + "a = 2",
        "((a = 1 AND " * (MAX_NESTED // 2 + 1) + "TRUE" + "))" * (MAX_NESTED // 2 + 1),
    ],
)
def test_texts_that_would_exhaust_the_stack_are_refused(text: str) -> None:
    """Bad input: limits, never a dead process."""
    with pytest.raises(InvalidFilterError):
        compile_filter(text)


def test_long_chains_are_no_nesting() -> None:
    """A filter that lists a thousand values is large, not deep."""
    text = " OR ".join(f"a = {number}" for number in range(2000))
    assert matches(text)
    assert not matches(text, encode_properties({"a": "2000"}))


@pytest.mark.parametrize("word", ["BETWEEN", "NOT BETWEEN"])
def test_ranges_inside_of_ranges_take_no_more_for_each(word: str) -> None:
    """Bad input: 30 of them, in 600 characters, took some 40 s for each message: these would not end."""
    text = "-a"
    for _ in range(30):
        text = f"-({text} {word} 0 AND 1)"
    wanted = compile_filter(f"{text} IS NULL")
    assert all(wanted.matches(PROPERTIES) for _ in range(100))
    assert not matches(f"-(s > 1) {word} 0 AND 1 IS NULL")  # s is no number: that fails the whole expression


@pytest.mark.parametrize(
    ("value", "delivers"),
    [
        ("2147483647", True), ("2147483648", False), ("+5", True), (" 5", False), ("000000005", True),
        ("0000000005", True), ("1_0", False), ("\u00b2\u00b2", False),
    ],
)  # fmt: skip
def test_an_integer_literal_reads_the_property_as_one_of_its_size(value: str, delivers: bool) -> None:
    """remoting.md 4.12: parsed as the literal's type, as Integer.valueOf does."""
    assert matches("a > 4", encode_properties({"a": value})) is delivers


@pytest.mark.parametrize("value", ["2147483648", "-2147483649"])
@pytest.mark.parametrize("literal", ["9223372036854775807", "-2147483648"])
def test_a_long_literal_reads_the_property_as_a_long(value: str, literal: str) -> None:
    """remoting.md 4.12; the literal -2147483648 is 2147483648, a long, behind a sign."""
    assert matches(f"a <> {literal}", encode_properties({"a": value}))


@pytest.mark.parametrize(
    ("value", "delivers"),
    [
        ("NaN", True), ("Infinity", True), ("1e3f", True), (" 9 ", True), ("0x1", False),
        ("\x039\t", True), ("\u30009", False), ("9\u00a0", False),
        ("NaNd", False), ("Infinityf", False), ("9".zfill(1000), True), ("9".zfill(1001), False),
    ],
)  # fmt: skip
def test_a_decimal_literal_reads_the_property_as_java_does(value: str, delivers: bool) -> None:
    """remoting.md 4.12: Double.valueOf, and Double.compareTo, to which NaN is the largest."""
    assert matches("a > 5.5", encode_properties({"a": value})) is delivers


def test_hundreds_of_names_are_told_apart() -> None:
    """Names of many properties are looked for in buckets, of which there are fewer than names here."""
    names = [f"name{number}" for number in range(600)]
    wanted = compile_filter(" AND ".join(f"{name} = '{name}'" for name in names))
    properties = {name: name for name in names}
    assert wanted.matches(encode_properties(properties))
    for name in names[::37]:
        assert not wanted.matches(encode_properties(properties | {name: "other"}))


def test_properties_without_a_last_separator_are_read() -> None:
    """remoting.md 2.5: the trailing 0x02 may be absent; empty values are not there."""
    assert matches("a = 1 AND b = 2 AND c IS NULL", b"c\x01\x02b\x012\x02a\x011")
    assert not matches("a = 1", b"ba\x011\x02")
