"""Requests, replies and routes of nsqd's HTTP API, without a socket and without the broker.

Routing follows Go's httprouter as nsqd 1.3.0 uses it: a path that is nearly right is redirected within the routes of
its method, a right path with a wrong method is 405, the rest 404.

Ref: nsq.md 1.14, 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headrace.errors import HeadraceError, InvalidNameError
from headrace.net.http import Receive
from headrace.nsq.names import canonical_name, topic_name

INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")

NSQ_HEADER: Final = (b"X-Nsq-Content-Type", b"nsq; version=1.0")
JSON_TYPE: Final = b"application/json; charset=utf-8"
TEXT_TYPE: Final = b"text/plain; charset=utf-8"
HTML_TYPE: Final = b"text/html; charset=utf-8"
CONFIG_PREFIX: Final = "/config/"
CONFIG_PATH: Final = "/config/:opt"


class HttpRefusal(HeadraceError):
    """A request is refused with this status and nsqd's code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass(slots=True)
class Request:
    """One HTTP request, its body still to be read."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    receive: Receive
    peer: tuple[str, int] | None = None
    """Host and port of the client."""
    body_begun: bool = False

    @property
    def content_length(self) -> int:
        """The announced length of the body; 0 when it is not announced."""
        return int(self.headers.get(b"content-length", b"0"))

    def arguments(self) -> dict[str, str]:
        """Return the first value of each query argument.

        Raises:
            HttpRefusal: 400 INVALID_REQUEST, an escape is broken or a semicolon separates arguments (as in Go).
        """
        values: dict[str, str] = {}
        for pair in self.query.split("&"):
            if not pair:
                continue
            if ";" in pair or BAD_ESCAPE.search(pair):
                raise HttpRefusal(400, "INVALID_REQUEST")
            name, _, value = pair.partition("=")
            values.setdefault(_unescape(name), _unescape(value))
        return values


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = (NSQ_HEADER,)
    pieces: tuple[bytes, ...] = ()
    """What goes out instead of ``body``, one behind the other: for what is long and comes more than once."""

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with those of the body."""
        length = sum(map(len, self.pieces)) or len(self.body)
        headers = [(b"Content-Length", b"%d" % length), *self.headers]
        if self.content_type:
            headers.append((b"Content-Type", self.content_type))
        return headers


def route_of(path: str) -> str:
    """Return the key of ``path`` in a route table: itself, but for the one route with a parameter."""
    name = path.removeprefix(CONFIG_PREFIX)
    return CONFIG_PATH if name and name != path and "/" not in name else path


def find_similar_path(path: str, routes: Container[str]) -> str | None:
    """Return the path that was probably meant: without a trailing slash, doubled slashes, dots, or capitals."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    cleaned = "/" + "/".join(parts)
    if route_of(cleaned) in routes:
        return cleaned
    if len(parts) == 2 and parts[0].lower() == "config" and CONFIG_PATH in routes:
        return CONFIG_PREFIX + parts[1]
    lowered = cleaned.lower()
    return lowered if lowered in routes else None


def redirect(request: Request, path: str) -> Reply:
    """Return what Go answers for a path that was nearly right: 301 for GET, 307 for the rest."""
    location = quote(path, safe="/:@!$&'()*+,;=~") + (f"?{request.query}" if request.query else "")
    headers = ((b"Location", location.encode("latin-1")),)
    if request.method != "GET":
        return Reply(307, headers=headers)
    escaped = location.replace("&", "&amp;").replace('"', "&#34;").replace("'", "&#39;").replace("<", "&lt;")
    body = f'<a href="{escaped}">Moved Permanently</a>.\n\n'.encode("latin-1")
    return Reply(301, body, HTML_TYPE, headers)


def json_reply(value: Any) -> Reply:
    """Return a 200 with ``value`` as JSON."""
    return Reply(200, msgspec.json.encode(value), JSON_TYPE)


def topic_argument(arguments: Mapping[str, str], *, exists: bool = False) -> str:
    """Return the topic argument as the broker spells it, or refuse it; of those that exist none has a wrong name."""
    try:
        return topic_name(named_argument(arguments, "topic"))
    except InvalidNameError:
        raise (HttpRefusal(404, "TOPIC_NOT_FOUND") if exists else HttpRefusal(400, "INVALID_TOPIC")) from None


def channel_arguments(request: Request) -> tuple[str, str]:
    """Return the topic and channel arguments, or refuse the first that is missing or invalid."""
    arguments = request.arguments()
    names = []
    for kind in ("topic", "channel"):
        name = named_argument(arguments, kind)
        try:
            names.append(topic_name(name) if kind == "topic" else canonical_name(name))
        except InvalidNameError:
            raise HttpRefusal(400, f"INVALID_ARG_{kind.upper()}") from None
    return names[0], names[1]


def named_argument(arguments: Mapping[str, str], kind: str) -> str:
    """Return a name as it was given, or refuse the request for lack of it."""
    if kind not in arguments:
        raise HttpRefusal(400, f"MISSING_ARG_{kind.upper()}")
    return arguments[kind]


def name_filter(arguments: Mapping[str, str], kind: str) -> str:
    """Return a name to look for; one that cannot exist stays as it is and finds nothing."""
    name = arguments.get(kind, "")
    try:
        return canonical_name(name)
    except InvalidNameError:
        return name


def parse_integer(text: str) -> int | None:
    """Return a decimal 64-bit integer as Go's ParseInt reads it; None when it is not one."""
    if not INTEGER.fullmatch(text) or len(text.lstrip("+-0")) > 19:
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


def _unescape(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ").encode("latin-1")).decode("utf-8", "surrogateescape")
