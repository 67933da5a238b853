"""SQL92 filters over message properties: which messages a subscription wants.

``compile_filter`` turns text into a ``Filter`` once, which is then asked for each message. The language is
RocketMQ's (remoting.md 4.12 and section 0): properties are strings; compared with a number they are read as a number of
the literal's kind, and what cannot be read so fails the whole expression, which then does not match. Logic has three
values: a missing property is neither true nor false.

The grammar, each line binding closer than the one before:

    or          and (OR and)*
    and         equality (AND equality)*
    equality    comparison (= comparison | <> comparison | IS [NOT] NULL)*
    comparison  unary (< <= > >= unary | [NOT] BETWEEN unary AND unary | [NOT] IN ('a', ...)
                       | [NOT] CONTAINS | STARTSWITH | ENDSWITH 's')*
    unary       + unary | - unary | NOT unary | literal | name | ( or )
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from headrace.broker.consumers.sql92_evaluation import Filter
from headrace.errors import InvalidFilterError

MAX_CHARACTERS: Final = 32_768
"""Longest accepted text; what a client may send in a property is not longer either."""

MAX_NESTED: Final = 100
"""Deepest nesting of an expression: a bound against texts that are all parentheses."""

_MAX_INTEGER: Final = (1 << 63) - 1

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n\r]*|/\*.*?\*/)
      | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?)
      | (?P<integer>(?:0|[1-9][0-9]*)[lL]?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<sign><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS: Final = frozenset(
    "AND BETWEEN CONTAINS ENDSWITH FALSE IN IS NOT NULL OR STARTSWITH TRUE".split()  # noqa: SIM905  # reads as a list
)
_TEXT_TESTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")

NOT_ADDED: Final = -1

Value = str | int | float | bool | None


def compile_filter(text: str) -> Filter:
    """Compile an SQL92 expression.

    Raises:
        InvalidFilterError: it is not one; the text of the error says where and why.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidFilterError(f"it has {len(text)} characters, at most {MAX_CHARACTERS} are accepted")
    return _Parser(text).parse()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


@dataclass(frozen=True)
class _Node:
    """A part of an expression. ``kind`` is what the rules about operands look at."""

    kind: str  # "constant", "property", "boolean" or "number" (a sign before something)
    number: int
    """Of its operation in the filter; a constant has one once it is an operand: a sign may stand before it."""
    position: int
    depth: int = 1
    value: Value = None
    is_signed: bool = False
    """Whether it is a constant behind a minus, which RocketMQ does not count among the literals."""


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._filter = Filter(text)
        self._steps = 0
        self._tokens = list(_tokenize(text))
        self._at = 0
        self._open = 0

    def parse(self) -> Filter:
        node = self._boolean(self._either())
        if self._token.kind != "end":
            self._refuse(f"{self._token.text!r} is not expected here")
        self._filter.finish(self._operand(node), self._steps)
        return self._filter

    # -- tokens -----------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _refuse(self, reason: str, position: int = -1) -> NoReturn:
        raise InvalidFilterError(reason, position=self._token.position if position < 0 else position)

    def _take(self, *texts: str) -> str:
        """Take the next token if it is one of these keywords or signs; return its text, else nothing."""
        token = self._token
        if token.kind in ("keyword", "sign") and token.text in texts:
            self._at += 1
            return token.text
        return ""

    def _need(self, text: str) -> None:
        if not self._take(text):
            self._refuse(f"{text} is expected" + (f", not {self._token.text!r}" if self._token.text else ""))

    def _string(self) -> str:
        token = self._token
        if token.kind != "string":
            self._refuse("a string in single quotes is expected")
        self._at += 1
        return token.text[1:-1].replace("''", "'")

    # -- grammar ----------------------------------------------------------------------------------------------------

    def _either(self) -> _Node:
        self._open += 1
        if self._open > MAX_NESTED:
            self._refuse(f"it is nested more than {MAX_NESTED} deep")
        node = self._all()
        if self._token.text == "OR" and self._token.kind == "keyword":
            parts = [self._boolean(node)]
            while self._take("OR"):
                parts.append(self._boolean(self._all()))
            node = self._node(
                "boolean", self._filter.add_any([self._operand(part) for part in parts]), node.position, *parts
            )
        self._open -= 1
        return node

    def _all(self) -> _Node:
        node = self._equality()
        if self._token.text != "AND" or self._token.kind != "keyword":
            return node
        parts = [self._boolean(node)]
        while self._take("AND"):
            parts.append(self._boolean(self._equality()))
        return self._node(
            "boolean", self._filter.add_all([self._operand(part) for part in parts]), node.position, *parts
        )

    def _equality(self) -> _Node:
        left = self._comparison()
        while sign := self._take("=", "<>", "IS"):
            position = self._token.position
            if sign == "IS":
                negated = bool(self._take("NOT"))
                self._need("NULL")
                left = self._node(
                    "boolean", self._filter.add_null_test(self._operand(left), negated=negated), position, left
                )
                continue
            right = self._comparison()
            self._need_equal_operands(left, right)
            test = self._filter.add_equality(self._operand(left), self._operand(right), negated=sign == "<>")
            left = self._node("boolean", test, position, left, right)
        return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            position = self._token.position
            if sign := self._take("<", "<=", ">", ">="):
                left = self._order(sign, left, self._unary(), position)
                continue
            start = self._at
            negated = bool(self._take("NOT"))
            word = self._take("BETWEEN", "IN", *_TEXT_TESTS)
            if not word:
                self._at = start
                return left
            if word == "BETWEEN":
                left = self._between(left, negated, position)
            elif word == "IN":
                left = self._within(left, negated, position)
            else:
                left = self._text_test(word, left, negated, position)

    def _order(self, sign: str, left: _Node, right: _Node, position: int) -> _Node:
        for operand in (left, right):
            if operand.kind == "boolean" or (
                operand.kind == "constant" and (operand.value is None or isinstance(operand.value, bool | str))
            ):
                self._refuse(f"only numbers and properties can be compared with {sign}", operand.position)
        return self._node(
            "boolean", self._filter.add_order(sign, self._operand(left), self._operand(right)), position, left, right
        )

    def _between(self, left: _Node, negated: bool, position: int) -> _Node:
        low = self._unary()
        self._need("AND")
        high = self._unary()
        # What has a sign before it fails or is null, and failed already when the second bound asks. Evaluated twice it
        # would double the work with each BETWEEN inside of another.
        again = left if left.kind != "number" else replace(left, number=self._filter.add_constant(None))
        if negated:
            parts = [self._order("<", left, low, position), self._order(">", again, high, position)]
            test = self._filter.add_any([self._operand(part) for part in parts])
        else:
            parts = [self._order(">=", left, low, position), self._order("<=", again, high, position)]
            test = self._filter.add_all([self._operand(part) for part in parts])
        # RocketMQ looks at the order of two literals only.
        are_literals = low.kind == high.kind == "constant" and not (low.is_signed or high.is_signed)
        if are_literals and not negated and _is_above(low.value, high.value):
            self._refuse("the first bound of BETWEEN is above the second", low.position)
        return self._node("boolean", test, position, *parts)

    def _within(self, left: _Node, negated: bool, position: int) -> _Node:
        if left.kind != "property":
            self._refuse("IN wants a property on its left", left.position)
        self._need("(")
        choices = {self._string()}
        while self._take(","):
            choices.add(self._string())
        self._need(")")
        return self._node(
            "boolean", self._filter.add_membership(self._operand(left), choices, negated=negated), position, left
        )

    def _text_test(self, word: str, left: _Node, negated: bool, position: int) -> _Node:
        if left.kind != "property":
            self._refuse(f"{word} wants a property on its left", left.position)
        test = self._filter.add_text_test(word, self._operand(left), self._string(), negated=negated)
        return self._node("boolean", test, position, left)

    def _unary(self) -> _Node:
        position = self._token.position
        sign = self._take("+", "-", "NOT")
        if not sign:
            return self._primary()
        self._open += 1
        if self._open > MAX_NESTED:
            self._refuse(f"it is nested more than {MAX_NESTED} deep")
        node = self._unary()
        self._open -= 1
        if sign == "+":
            return node
        if sign == "NOT":
            part = self._boolean(node)
            return self._node("boolean", self._filter.add_not(self._operand(part)), position, part)
        if node.kind == "constant" and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            if isinstance(node.value, int) and node.value < -_MAX_INTEGER:
                self._refuse(f"{-node.value} does not fit 64 bits", position)
            return replace(self._constant(-node.value, position), is_signed=True)
        return self._node("number", self._filter.add_minus(self._operand(node)), position, node)

    def _primary(self) -> _Node:
        token = self._token
        if token.kind == "string":
            return self._constant(self._string(), token.position)
        if self._take("("):
            node = self._either()
            self._need(")")
            return node
        if word := self._take("TRUE", "FALSE", "NULL"):
            return self._constant({"TRUE": True, "FALSE": False, "NULL": None}[word], token.position)
        if token.kind not in ("name", "integer", "float"):
            self._refuse("it ends too early" if token.kind == "end" else f"{token.text!r} is not expected here")
        self._at += 1
        if token.kind == "name":
            return _Node("property", self._filter.add_property(token.text), token.position)
        return self._constant(self._number(token), token.position)

    def _number(self, token: _Token) -> int | float:
        if token.kind == "float":
            number = float(token.text)
            if number == float("inf"):
                self._refuse(f"{token.text} is too large", token.position)
            return number
        digits = token.text.rstrip("lL")
        # The least number is one further away from 0 than the largest, and its sign another token.
        before = self._tokens[max(0, self._at - 2)]
        if len(digits) > 19 or int(digits) > _MAX_INTEGER + (before.kind == "sign" and before.text == "-"):
            self._refuse(f"{token.text} does not fit 64 bits", token.position)
        return int(digits)

    # -- nodes ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _constant(value: Value, position: int) -> _Node:
        return _Node("constant", NOT_ADDED, position, value=value)

    def _operand(self, node: _Node) -> int:
        """Return the number of a node's operation."""
        return self._filter.add_constant(node.value) if node.number == NOT_ADDED else node.number

    def _node(self, kind: str, number: int, position: int, *parts: _Node) -> _Node:
        depth = 1 + max(part.depth for part in parts)
        if depth > MAX_NESTED:
            self._refuse(f"it is nested more than {MAX_NESTED} deep", position)
        self._steps += 1
        return _Node(kind, number, position, depth)

    def _boolean(self, node: _Node) -> _Node:
        """Return the node where a truth value is wanted: a bare property is a string, never true."""
        if node.kind == "property":
            return self._node("boolean", self._filter.add_never_true(self._operand(node)), node.position, node)
        if node.kind == "boolean":
            return node
        if node.kind == "constant" and (node.value is None or isinstance(node.value, bool)):
            self._steps += 1  # 500 of them may stand between ORs
            return node
        self._refuse("a comparison is expected: this is not true or false", node.position)

    def _need_equal_operands(self, left: _Node, right: _Node) -> None:
        for node in (left, right):
            if node.kind == "constant" and node.value is None:
                self._refuse("NULL cannot be compared: write IS NULL", node.position)
        if left.kind == right.kind == "constant" and isinstance(left.value, bool) and not isinstance(right.value, bool):
            self._refuse("TRUE and FALSE cannot be compared with this", right.position)


def _is_above(low: Value, high: Value) -> bool:
    return isinstance(low, int | float) and isinstance(high, int | float) and low > high


def _tokenize(text: str) -> Iterable[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            reason = "a string has no end" if text[at] == "'" else f"{text[at]!r} is not part of the language"
            raise InvalidFilterError(reason, position=at)
        kind, found = str(match.lastgroup), match.group()
        if kind == "name" and found.upper() in _KEYWORDS:
            kind, found = "keyword", found.upper()
        if kind != "space":
            yield _Token(kind, found, at)
        at = match.end()
    yield _Token("end", "", len(text))
