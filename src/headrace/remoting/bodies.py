"""JSON bodies: what requests carry is checked member by member, what responses carry is built from the core's objects.

Ref: remoting.md 1.8, 4.4, 4.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headrace.broker import topics_file
from headrace.format import fastjson
from headrace.format.fastjson import ObjectKey
from headrace.remoting import fields
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import RequestRefusedError

if TYPE_CHECKING:
    from headrace.broker.consumers.clients import Member
    from headrace.broker.consumers.subscription import Subscription
    from headrace.broker.topic import Topic

MAX_SLOW_BYTES: Final = 64 * 1024
"""Longest body in the dialect that only fastjson writes, which is read slowly, 0.4 ms a KiB: clients send plain JSON
but for the offsets of a topic's queues, some hundred at most."""
MAX_BYTES: Final = 8 << 20
"""Longest body that is read. Heartbeats with 10,000 subscriptions, the most that a client may have, and what a reader
says it knows of 20,000 topics, are shorter."""
MAX_VALUES: Final = 400_000
"""Values in a body, which take some 0.3 us each; a subscription with 16 tags has 40."""
MAX_VALUES_AROUND_REFERENCES: Final = 50_000
"""The same where ``{"$ref":"$.a[0]"}`` stands for one of them: each is looked at, which takes 1 us."""
_LONGEST_SHOWN: Final = 80
Form = TypeVar("Form")
_OBJECTS: Final = (dict, msgspec.Raw)  # read, and not read yet
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_HALF: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_OUTLINE: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[msgspec.Raw])


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object a body holds.

    Raises:
        RequestRefusedError: it is too long, or no JSON object; the remark says where.
    """
    _require_readable(body)
    try:
        value = fastjson.loads(body, MAX_SLOW_BYTES)
    except ValueError as error:
        raise RequestRefusedError(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestRefusedError("the body is no JSON object")
    return value


def read_outline(body: bytes, name: str) -> dict[str, Any]:
    """Return the object a body holds; if it is large, the list ``name`` of it has its entries as they are written.

    ``read_entries`` reads these, as many as a turn of the loop has time for.

    Raises:
        RequestRefusedError: as of ``read_object``; what is wrong with entries is found with ``read_entries``.
    """
    if len(body) <= MAX_SLOW_BYTES or b'"$ref"' in body:
        return read_object(body)
    _require_readable(body)
    try:
        members = _OUTLINE.decode(body)
        return {key: _ENTRIES.decode(raw) if key == name else msgspec.json.decode(raw) for key, raw in members.items()}
    except _MALFORMED as error:
        raise RequestRefusedError(f"the body is malformed: {_reason(body, error)}") from error


def read_entry(entry: Any, name: str) -> dict[str, Any]:
    """Return one entry of a list that ``read_outline`` found, read in the same way as to its own list ``name``.

    Raises:
        RequestRefusedError: it is no object.
    """
    return read_outline(bytes(entry), name) if isinstance(entry, msgspec.Raw) else entry


def read_entries(entries: Sequence[Any], name: str) -> list[dict[str, Any]]:
    """Return some entries of a list that ``read_outline`` found.

    Raises:
        RequestRefusedError: one is malformed, or no object.
    """
    if entries and isinstance(entries[0], msgspec.Raw):
        try:
            entries = msgspec.json.decode(b"[" + b",".join(entries) + b"]")
        except _MALFORMED as error:
            reason = _reason(b",".join(entries), error)
            raise RequestRefusedError(f"the body is malformed: {reason}") from error
    return member_list({name: entries}, name, len(entries), "")


def read_form(body: bytes, form: msgspec.json.Decoder[Form]) -> Form:
    """Return what a body of one of Headrace's own requests holds.

    Raises:
        RequestRefusedError: it is too long or not of that form; the remark says where.
    """
    _require_readable(body)
    try:
        return form.decode(body)
    except _MALFORMED as error:
        raise RequestRefusedError(f"the body is malformed: {_reason(body, error)}") from error


def _reason(body: bytes, error: Exception) -> str:
    """Return what is wrong with a body: of half a character msgspec says that the end of the body is missing."""
    half = _HALF.search(body) if "truncated" in str(error) else None
    if half is None:
        return str(error)
    before = body[: half.start()]
    is_text = (len(before) - len(before.rstrip(b"\\"))) % 2  # the backslash is written by the one in front of it
    return str(error) if is_text else f"{half[0].decode()} is half of a character (byte {half.start()})"


def _require_readable(body: bytes) -> None:
    if not body:
        raise RequestRefusedError("the body is missing")
    if len(body) > MAX_BYTES:
        raise RequestRefusedError(f"the body has {len(body)} bytes, at most {MAX_BYTES} are read")
    most = MAX_VALUES_AROUND_REFERENCES if b'"$ref"' in body else MAX_VALUES
    # Each value has a comma or a bracket of its own, but for the last.
    if body.count(b",") + body.count(b"{") + body.count(b"[") > most:
        raise RequestRefusedError(f"the body has more values than the {most} that are read")


def member_text(given: Mapping[str, Any], name: str, default: str | None = None, *, most: int | None = None) -> str:
    """Return a text of at most ``most`` characters; required unless there is a ``default``.

    Raises:
        RequestRefusedError: it is missing, no text, or too long.
    """
    value = given.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None):
        raise RequestRefusedError(f"the body's <{name}> is missing or no text")
    if most is not None and len(value) > most:
        raise RequestRefusedError(f"the body's <{name}> has more than {most} characters")
    return value


def member_int(given: Mapping[str, Any], name: str, default: int = 0, *, most: int = fields.MAX_I64) -> int:
    """Return an integer from ``-most - 1`` to ``most``, written as a number or as text.

    Raises:
        RequestRefusedError: it is neither, or out of range.
    """
    value = given.get(name, default)
    if value is None:
        return default
    number = int(value) if isinstance(value, str) and fields.NUMBER.fullmatch(value) else value
    if isinstance(number, int) and not isinstance(number, bool) and -most - 1 <= number <= most:
        return number
    shown = str(value)[:_LONGEST_SHOWN]
    raise RequestRefusedError(f"the body's <{name}> is no whole number: {shown!r}")


def member_constant(given: Mapping[str, Any], name: str, constants: Sequence[str], default: str) -> str:
    """Return the name of a constant, which the C++ client gives as its number in ``constants``.

    Raises:
        RequestRefusedError: it is neither a text nor the number of one.
    """
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return member_text(given, name, default)
    if not 0 <= value < len(constants):
        raise RequestRefusedError(f"the body's <{name}> is no number from 0 to {len(constants) - 1}")
    return constants[value]


def member_list(given: Mapping[str, Any], name: str, most: int, setting: str) -> list[dict[str, Any]]:
    """Return a list of objects, empty when missing.

    Raises:
        RequestRefusedError: it is none, or has more than ``most``, which ``setting`` names.
    """
    value = given.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, _OBJECTS) for item in value):
        raise RequestRefusedError(f"the body's <{name}> is no list of objects")
    if len(value) > most:
        raise RequestRefusedError(
            f"the body's <{name}> has {len(value)} entries, at most {most} ({setting})", ResponseCode.SYSTEM_BUSY
        )
    return value


def queue_key(broker: str, topic: str, queue_id: int) -> ObjectKey:
    """Return a message queue as the key of a map."""
    return ObjectKey({"brokerName": broker, "queueId": queue_id, "topic": topic})


def queue_fields(broker: str, topic: str, queue_id: int) -> dict[str, Any]:
    """Return a message queue as a value."""
    return {"brokerName": broker, "queueId": queue_id, "topic": topic}


def topic_fields(topic: Topic) -> dict[str, Any]:
    """Return a topic's configuration."""
    return topics_file.topic_fields(topic.name, topic.config)


def subscription_fields(subscription: Subscription) -> dict[str, Any]:
    """Return a subscription."""
    return {
        "classFilterMode": False,
        "codeSet": sorted(subscription.codes),
        "expressionType": subscription.kind,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": list(subscription.tags),
        "topic": subscription.topic,
    }


def connection_set(members: Iterable[Member]) -> list[dict[str, Any]]:
    """Return the connections of a group's members."""
    return [
        {
            "clientAddr": member.client.remote_address,
            "clientId": member.client.client_id,
            "language": member.client.language or "OTHER",
            "version": member.client.version,
        }
        for member in members
    ]


def encode(body: Mapping[str, Any]) -> bytes:
    """Return a body as Java and Go clients read it."""
    return fastjson.dumps(body)
