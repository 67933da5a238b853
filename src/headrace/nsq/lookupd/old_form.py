"""The form that answers had before NSQ 1.0: ``{"status_code": ..., "status_txt": ..., "data": {...}}``.

Who does not ask for version 1.0 is answered in both forms at once: what is in ``data`` is beside it as well. An old
client finds what it looks for, and so does a newer one that asks for nothing. A refusal has the status of today's
nsqlookupd; in its body is the number of the old ones, 500 for all that a handler refuses.

Ref: requirements X-NSQ-18.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.nsq.http_request import JSON_TYPE, Reply

SHORT_BYTES: Final = 64 << 10
"""Fields up to here go out in one piece with the others."""

_VERSION: Final = re.compile(rb"version=1\.0(?![0-9.])")
_OK: Final = b'{"status_code":200,"status_txt":"OK"'
_ROUTING: Final = ("NOT_FOUND", "METHOD_NOT_ALLOWED")
"""What no handler has refused had its own number then, too."""


def asks_for_today(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request asks for answers of version 1.0; gnsq does it without the semicolon."""
    return _VERSION.search(headers.get(b"accept", b"")) is not None


def told_in_both_forms(parts: Sequence[bytes]) -> Reply:
    """Return the answer that has these fields, or parts of them, in both forms.

    Long fields are in memory once: they are sent twice.
    """
    fields = b"".join(parts)
    pieces = (_OK, b"," if fields else b"", fields, b',"data":{', fields, b"}}")
    if len(fields) <= SHORT_BYTES:
        return Reply(200, b"".join(pieces), JSON_TYPE)
    return Reply(200, content_type=JSON_TYPE, pieces=pieces)


def refused_in_both_forms(reply: Reply) -> Reply:
    """Return a refusal with the old fields beside its message."""
    message = msgspec.json.decode(reply.body)["message"]
    number = reply.status if message in _ROUTING else 500
    body = {"status_code": number, "status_txt": message, "data": None, "message": message}
    return Reply(reply.status, msgspec.json.encode(body), reply.content_type, reply.headers)
