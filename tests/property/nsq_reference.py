"""NSQ protocol V2 commands in plain Python: the readable truth that the compiled codec is held to.

It gets the whole stream at once and never hears of reads, buffers or batches. Ref: docs/protocols/nsq.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
LINE_BYTES = 16 * 1024
NO_HEX = re.compile(rb"[^0-9a-f]")

ALLOWED = {
    "init": {"IDENTIFY", "AUTH", "SUB", "NOP", "PUB", "MPUB", "DPUB"},
    "subscribed": {"RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP", "PUB", "MPUB", "DPUB"},
    "closing": {"RDY", "FIN", "REQ", "TOUCH", "NOP", "PUB", "MPUB", "DPUB"},
}
COMMANDS = ALLOWED["init"] | ALLOWED["subscribed"]


class Incomplete(Exception):
    """The stream ends within a command."""


class Refused(Exception):
    def __init__(self, data: bytes, *, fatal: bool = True) -> None:
        self.data = data
        self.fatal = fatal


@dataclass(frozen=True)
class ReferenceLimits:
    max_message_bytes: int = 1024
    max_body_bytes: int = 4096
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 3_600_000


@dataclass
class Stream:
    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise Incomplete
        self.at += count
        return self.data[self.at - count : self.at]

    def length(self) -> int:
        return struct.unpack(">i", self.take(4))[0]


def is_name(name: bytes) -> bool:
    return len(name) <= 64 and NAME.fullmatch(name) is not None


def quote(name: bytes) -> bytes:
    """Go's %q for ASCII; the generators put nothing else into names."""
    return b'"' + name.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def number(text: bytes, refusal: bytes) -> int:
    if text.strip(b"0123456789"):
        raise Refused(b"E_INVALID " + refusal + b" " + text)
    return min(int(text or b"0"), 2**64 - 1)


@dataclass
class Reference:
    """Parses a stream into events: tuples, the last of them perhaps ("refused", data, fatal)."""

    limits: ReferenceLimits = field(default_factory=ReferenceLimits)
    state: str = "init"
    now_ms: int = 0

    def parse(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        stream = Stream(data)
        try:
            if stream.take(4) != b"  V2":
                raise Refused(b"E_BAD_PROTOCOL")
            while stream.at < len(data):
                try:
                    yield from self.command(stream)
                except Refused as refused:
                    if refused.fatal:
                        raise
                    yield "refused", refused.data, False
        except Incomplete:
            return
        except Refused as refused:
            yield "refused", refused.data, True

    def command(self, stream: Stream) -> Iterator[tuple[Any, ...]]:
        end = stream.data.find(b"\n", stream.at, stream.at + LINE_BYTES)
        if end < 0:
            if len(stream.data) - stream.at >= LINE_BYTES:
                raise Refused(b"")
            raise Incomplete
        line = stream.take(end + 1 - stream.at)[:-1].removesuffix(b"\r")
        word, *params = line.split(b" ")
        name = word.decode("latin-1")
        if name not in COMMANDS:
            raise Refused(b"E_INVALID invalid command " + word)
        if name not in ALLOWED[self.state]:
            raise Refused(b"E_INVALID cannot " + word + b" in current state")
        if name == "NOP" or (name == "RDY" and self.state == "closing"):
            return
        yield getattr(self, f"parse_{name.lower()}")(stream, word, params)
        if name == "SUB":
            self.state = "subscribed"
        if name == "CLS":
            self.state = "closing"

    def topic(self, word: bytes, params: list[bytes], at_least: int) -> str:
        if len(params) < at_least:
            raise Refused(b"E_INVALID " + word + b" insufficient number of parameters")
        if not is_name(params[0]):
            again = b"E_BAD_TOPIC " if word == b"MPUB" else b""
            raise Refused(b"E_BAD_TOPIC " + again + word + b" topic name " + quote(params[0]) + b" is not valid")
        return params[0].decode()

    def message(self, stream: Stream, word: bytes) -> bytes:
        length = stream.length()
        if length <= 0:
            raise Refused(b"E_BAD_MESSAGE %s invalid message body size %d" % (word, length))
        if length > self.limits.max_message_bytes:
            raise Refused(b"E_BAD_MESSAGE %s message too big %d > %d" % (word, length, self.limits.max_message_bytes))
        return stream.take(length)

    def parse_pub(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        topic = self.topic(word, params, 1)
        return "publish", topic, (self.message(stream, word),), 0

    def parse_dpub(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        topic = self.topic(word, params, 2)
        delay_ms = number(params[1], b"DPUB could not parse timeout")
        most = self.limits.max_req_timeout_ms
        if delay_ms > most:
            raise Refused(b"E_INVALID DPUB timeout %d out of range 0-%d" % (delay_ms, most))
        return "publish", topic, (self.message(stream, word),), self.now_ms + delay_ms if delay_ms else 0

    def parse_mpub(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        topic = self.topic(word, params, 1)
        size = stream.length()
        most = self.limits.max_body_bytes
        if size <= 0:
            raise Refused(b"E_BAD_BODY MPUB invalid body size %d" % size)
        if size > most:
            raise Refused(b"E_BAD_BODY MPUB body too big %d > %d" % (size, most))
        start = stream.at
        count = stream.length()
        if not 0 < count <= (most - 4) // 5:
            raise Refused(b"E_BAD_BODY MPUB invalid message count %d" % count)
        bodies = []
        for index in range(count):
            length = stream.length()
            if length <= 0:
                raise Refused(b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d" % (index, length))
            if length > self.limits.max_message_bytes:
                raise Refused(b"E_BAD_MESSAGE MPUB message too big %d > %d" % (length, self.limits.max_message_bytes))
            if stream.at + length - start > most:
                raise Refused(b"E_BAD_BODY MPUB body too big %d > %d" % (stream.at + length - start, most))
            bodies.append(stream.take(length))
        return "publish", topic, tuple(bodies), 0

    def settle(self, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        if len(params) < (2 if word == b"REQ" else 1):
            raise Refused(b"E_INVALID " + word + b" insufficient number of params")
        message_id = params[0]
        if len(message_id) != 16:
            raise Refused(b"E_INVALID invalid message ID")
        delay_ms = number(params[1], b"REQ could not parse timeout") if word == b"REQ" else 0
        if NO_HEX.search(message_id):
            name = word.decode()
            raise Refused(f"E_{name}_FAILED {name} ".encode() + message_id + b" failed ID not in flight", fatal=False)
        return "settle", word.decode(), int(message_id, 16), min(delay_ms, self.limits.max_req_timeout_ms)

    def parse_fin(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        return self.settle(word, params)

    parse_req = parse_touch = parse_fin

    def parse_rdy(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        count = number(params[0], b"RDY could not parse count") if params else 1
        if count > self.limits.max_rdy_count:
            raise Refused(b"E_INVALID RDY count %d out of range 0-%d" % (count, self.limits.max_rdy_count))
        return "RDY", count

    def parse_cls(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        return ("CLS",)

    def parse_sub(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        topic = self.topic(word, params, 2)
        if not is_name(params[1]):
            raise Refused(b"E_BAD_CHANNEL SUB channel name " + quote(params[1]) + b" is not valid")
        return "SUB", topic, params[1].decode()

    def body(self, stream: Stream, word: bytes) -> bytes:
        length = stream.length()
        if length > self.limits.max_body_bytes:
            raise Refused(b"E_BAD_BODY %s body too big %d > %d" % (word, length, self.limits.max_body_bytes))
        if length <= 0:
            raise Refused(b"E_BAD_BODY %s invalid body size %d" % (word, length))
        return stream.take(length)

    def parse_identify(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        return "IDENTIFY", self.body(stream, word)

    def parse_auth(self, stream: Stream, word: bytes, params: list[bytes]) -> tuple[Any, ...]:
        if params:
            raise Refused(b"E_INVALID AUTH invalid number of parameters")
        return "AUTH", self.body(stream, word)
