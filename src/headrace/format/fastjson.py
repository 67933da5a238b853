"""JSON as RocketMQ's Java side writes and reads it: fastjson's dialect.

Reading. Plain JSON takes the fast way. What only fastjson writes goes through a small recursive-descent parser: map
keys that are bare integers (``{0:"a"}``) or whole objects (``{{"queueId":3,"topic":"t"}:5}``), and
``{"$ref":"$.a[0]"}`` where one object stands for the second time. An integer key, bare or quoted, becomes the same
``str``; an object key becomes an ``ObjectKey``.

Writing. Keys in alphabetical order, no spaces (a Go client cuts the raw text of ``brokerAddrs`` apart), members that
are None left out, integer keys quoted, object keys raw; never a reference.

Ref: docs/formats/fastjson.md.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 100
"""Objects and arrays within each other, at most; protocol bodies have fewer than ten."""
MAX_VALUES: Final = 1_000_000
"""Values that a text with references may stand for, each counted as often as it is meant: twenty references of
references would mean more than any memory holds."""
MAX_STEPS: Final = 10_000
"""Steps on the ways of all references of a text: fastjson writes a few, each with as many steps as it is deep."""
_MAX_HOPS: Final = 2
"""References to references, at most: fastjson writes none, and a chain of them would cost a peer nothing."""

_LARGEST: Final = sys.float_info.max
_ENCODER = msgspec.json.Encoder(order="sorted")
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_INTEGER = re.compile(r"-?\d{1,19}")
_STEP = re.compile(r'\.((?:\\.|[^.\[\\])+)|\[(\d+)\]|\["((?:\\.|[^"\\])+)"\]', re.DOTALL)
_NULL = re.compile(rb"(?:^|[:,\[])null(?:$|[,\]}])")
_FLAT: Final = frozenset((str, int, bool, float))
_WORDS: Final = (("true", True), ("false", False), ("null", None))
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}


class ObjectKey(Mapping[str, Any]):
    """An object that is the key of a map, such as a message queue: a mapping that never changes.

    Two are equal when their members are, whatever their order. Arrays within become tuples, objects ``ObjectKey``.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, members: Mapping[str, Any]) -> None:
        if any(isinstance(name, ObjectKey) for name in members):  # they have no order among names
            raise ValueError("JSON has an object as a key within an object that is a key")
        self._items = tuple(sorted((name, _freeze(value)) for name, value in members.items()))
        self._hash = hash(self._items)

    def __getitem__(self, name: str) -> Any:
        for key, value in self._items:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self._items == other._items

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"ObjectKey({dict(self._items)!r})"


def _freeze(value: Any) -> Any:
    if type(value) in _FLAT:
        return value
    if isinstance(value, Mapping):
        return value if isinstance(value, ObjectKey) else ObjectKey(value)
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return value


# -- reading -----------------------------------------------------------------------------------------------------------


def loads(data: bytes, most_slow_bytes: int | None = None) -> Any:
    """Return what ``data`` says: dicts with keys of ``str`` or ``ObjectKey``, lists, str, int, float, bool, None.

    References are resolved: one to an object around itself (``$``, ``@``, ``..``) leaves a structure with a cycle.

    Args:
        most_slow_bytes: Longest text that may take the slow way, for what comes from the network: it takes about
            2 us a byte.

    Raises:
        ValueError: the text is not JSON in this dialect, a reference leads nowhere, or what is written in a few bytes
            would stand for more than MAX_VALUES values.
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        if most_slow_bytes is not None and len(data) > most_slow_bytes:
            raise ValueError(f"{error}; JSON that only fastjson writes may have {most_slow_bytes} bytes") from error
        found = _parse(data)
    return _resolve(found) if b'"$ref"' in data else found


def _parse(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"JSON is not UTF-8 at byte {error.start}") from error
    parser = _Parser(text)
    value = parser.value(0)
    parser.skip_space()
    if parser.at != len(text):
        raise parser.error("the end")
    return value


class _Parser:
    """Recursive descent over ``text``; ``at`` is where it goes on."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def error(self, wanted: str) -> ValueError:
        return ValueError(f"JSON has {self.text[self.at : self.at + 12]!r} at character {self.at}, not {wanted}")

    def skip_space(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches nothing at least

    def take(self, char: str) -> bool:
        self.skip_space()
        if not self.text.startswith(char, self.at):
            return False
        self.at += 1
        return True

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"JSON is nested more than {MAX_DEPTH} deep")
        self.skip_space()
        first = self.text[self.at : self.at + 1]
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if first == '"':
            return self.string()
        for word, meaning in _WORDS:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return meaning
        return self.number()

    def number(self) -> int | float:
        found = _NUMBER.match(self.text, self.at)
        if found is None or found.end() - found.start() > 400:
            raise self.error("a value")
        number = int(found[0]) if found[1] is None and found[2] is None else float(found[0])
        if not -_LARGEST <= number <= _LARGEST:
            raise self.error("a number that fits")
        self.at = found.end()
        return number

    def string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise self.error("a string")
        self.at = found.end()
        return _unescape(found[1]) if "\\" in found[1] else found[1]

    def array(self, depth: int) -> list[Any]:
        self.at += 1
        values: list[Any] = []
        if self.take("]"):
            return values
        while True:
            values.append(self.value(depth + 1))
            if self.take("]"):
                return values
            if not self.take(","):
                raise self.error("',' or ']'")

    def object(self, depth: int) -> dict[Any, Any]:
        self.at += 1
        members: dict[Any, Any] = {}
        if self.take("}"):
            return members
        while True:
            key = self.key(depth)
            if not self.take(":"):
                raise self.error("':'")
            members[key] = self.value(depth + 1)
            if self.take("}"):
                return members
            if not self.take(","):
                raise self.error("',' or '}'")

    def key(self, depth: int) -> str | ObjectKey:
        self.skip_space()
        if self.text.startswith('"', self.at):
            return self.string()
        if self.text.startswith("{", self.at):
            if depth >= MAX_DEPTH:
                raise ValueError(f"JSON is nested more than {MAX_DEPTH} deep")
            return ObjectKey(self.object(depth + 1))
        found = _INTEGER.match(self.text, self.at)
        if found is None:
            raise self.error("a key")
        self.at = found.end()
        return found[0]


def _unescape(text: str) -> str:
    """Undo escapes: JSON's, and ``\\v``, ``\\0``, ``\\'`` and ``\\xHH``, which fastjson knows besides."""

    def one(found: re.Match[str]) -> str:
        escape = found[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        if escape in "ux":
            raise ValueError(f"JSON has a \\{escape} without its digits")
        return _ESCAPED.get(escape, escape)

    plain = _ESCAPE.sub(one, text)
    # Two escapes make one character beyond U+FFFF; a half of it alone is no text.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# -- references --------------------------------------------------------------------------------------------------------


def _reference(value: Any) -> str | None:
    if isinstance(value, dict) and len(value) == 1:
        path = value.get("$ref")
        return path if isinstance(path, str) else None
    return None


def _resolve(root: Any) -> Any:
    """Put in place of each reference what it stands for."""
    if _reference(root) is not None:
        raise ValueError("JSON is nothing but a reference")
    found: list[tuple[Any, Any, Any]] = []  # container, key, what replaces the reference there
    steps = _Steps()
    # Iterative, and finite: references are replaced only when all of them are known.
    waiting: list[tuple[Any, Any]] = [(root, None)]
    while waiting:
        container, parent = waiting.pop()
        if isinstance(container, dict):
            members: Any = container.items()
        elif isinstance(container, list):
            members = enumerate(container)
        else:
            continue
        for key, value in members:
            path = _reference(value)
            if path is None:
                waiting.append((value, container))
            elif path == "@":
                found.append((container, key, container))
            elif path == "..":
                found.append((container, key, parent if parent is not None else container))
            else:
                found.append((container, key, _follow(root, path, 0, steps)))
    for container, key, value in found:
        container[key] = value
    if found and _count(root, {}, 0) > MAX_VALUES:
        raise ValueError(f"JSON with references stands for more than {MAX_VALUES} values")
    return root


def _count(value: Any, known: dict[int, int], depth: int) -> int:
    """Return how many values there are, each as often as it is referred to; what is around itself counts once."""
    if not isinstance(value, dict | list):
        return 1
    if depth > MAX_DEPTH:
        raise ValueError(f"JSON is nested more than {MAX_DEPTH} deep")
    size = known.get(id(value))
    if size is None:
        known[id(value)] = size = 1
        for item in value.values() if isinstance(value, dict) else value:
            size += _count(item, known, depth + 1)
        known[id(value)] = size
    return size


class _Steps:
    """What is left to walk for the references of one text."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"JSON has references of more than {MAX_STEPS} steps")


def _follow(root: Any, path: str, hops: int, steps: _Steps) -> Any:
    """Return what ``$.a.b[0]`` names; references on the way are followed too."""
    if not path.startswith("$") or hops > _MAX_HOPS:
        raise ValueError(f"JSON has a reference {path!r} that cannot be followed")
    value, at = root, 1
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValueError(f"JSON has a reference {path!r} that cannot be followed")
        at = step.end()
        steps.take()
        name = step[1] or step[2] or step[3]
        try:
            # [0] is also how fastjson names the integer key 0 of a map.
            value = value[int(name)] if isinstance(value, list) else value[re.sub(r"\\(.)", r"\1", name)]
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"JSON has a reference {path!r} to nothing") from error
        further = _reference(value)
        if further is not None:
            value = _follow(root, further, hops + 1, steps)
    return value


# -- writing -----------------------------------------------------------------------------------------------------------


def dumps(value: Any) -> bytes:
    """Return ``value`` in the form that every reader of this protocol takes.

    Raises:
        ValueError: there is a float without a spelling in JSON, or nesting beyond MAX_DEPTH.
        TypeError: there is something that has no form in JSON.
    """
    try:
        quick = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        quick = b"null"
    # Neither a member to leave out nor a number without a spelling; the plain search is thirty times as fast.
    if b"null" not in quick or _NULL.search(quick) is None:
        return quick
    parts: list[str] = []
    _write(value, parts.append, 0)
    return "".join(parts).encode("utf-8", "replace")


def _write(value: Any, put: Callable[[str], None], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        put(encode_basestring(value))
    elif value is None or isinstance(value, bool):
        put("null" if value is None else "true" if value else "false")
    elif isinstance(value, int):
        put(int.__repr__(value))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no form in JSON")
        put(float.__repr__(value))
    elif isinstance(value, Mapping):
        _write_object(value, put, depth)
    elif isinstance(value, list | tuple | set | frozenset):
        put("[")
        for number, item in enumerate(value):
            if number:
                put(",")
            _write(item, put, depth + 1)
        put("]")
    else:
        raise TypeError(f"{type(value).__name__} has no form in JSON")


def _write_object(members: Mapping[Any, Any], put: Callable[[str], None], depth: int) -> None:
    put("{")
    first = True
    for key in sorted(members, key=_order):
        value = members[key]
        if value is None:
            continue
        if not first:
            put(",")
        first = False
        if isinstance(key, ObjectKey):
            _write_row(dict(key._items), put, depth + 1)
        elif isinstance(key, str):
            put(encode_basestring(key))
        elif isinstance(key, int) and not isinstance(key, bool):
            put(f'"{int(key)}"')
        else:
            raise TypeError(f"{type(key).__name__} is no key in JSON")
        put(":")
        if type(value) is dict:
            _write_row(value, put, depth + 1)
        else:
            _write(value, put, depth + 1)
    put("}")


def _write_row(members: dict[Any, Any], put: Callable[[str], None], depth: int) -> None:
    """Write an object of a table: in one step where it is flat, as queues and what is said of them are."""
    if depth <= MAX_DEPTH and _FLAT.issuperset(map(type, members.values())):
        try:
            quick = _ENCODER.encode(members)
        except (TypeError, ValueError):
            quick = b"null"
        if b"null" not in quick:
            put(quick.decode())
            return
    _write(members, put, depth)


def _order(key: Any) -> tuple[int, int, str]:
    """Sort numbers by value before words, object keys last."""
    if isinstance(key, ObjectKey):
        return 2, 0, repr(key._items)
    return (0, key, "") if isinstance(key, int) else (1, 0, str(key))
