"""The answer of a nsqlookupd to ``GET /channels``, read as it comes. No I/O.

Asked in HTTP/1.0, nobody may answer in chunks: the body ends with the connection, or where Content-Length says.
Ref: nsq.md 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import msgspec

from headrace.errors import ProtocolError
from headrace.format.names import EPHEMERAL_SUFFIX
from headrace.nsq.lookup_peers.codec import shown
from headrace.nsq.names import is_spelled

MAX_ANSWER_BYTES: Final = 8 << 20
"""Of a whole answer: 100,000 channels with names of 64 characters have room."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})\b")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})[ \t]*\r\n", re.IGNORECASE)
_BETWEEN_NAMES: Final = re.compile(rb'"\s*,\s*"')
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 64 << 10


SLICE_BYTES: Final = 32 << 10
"""Of names that are decoded at once: a millisecond."""


class _Channels(msgspec.Struct):
    channels: msgspec.Raw


class AnswerReader:
    """Takes the bytes of one answer; ``is_whole`` says whether more are wanted."""

    def __init__(self) -> None:
        self.is_whole = False
        self._bytes = bytearray()
        self._body_at = 0
        self._end = MAX_ANSWER_BYTES

    def feed(self, data: bytes) -> None:
        """Take what came.

        Raises:
            ProtocolError: it is too much, no HTTP, or no success.
        """
        self._bytes += data
        if not self._body_at:
            self._read_head()
        if self._body_at and len(self._bytes) >= self._end:
            self.is_whole = True
        if len(self._bytes) > MAX_ANSWER_BYTES:
            raise ProtocolError(f"its answer has more than {MAX_ANSWER_BYTES} bytes")

    def _read_head(self) -> None:
        end = self._bytes.find(_HEAD_END)
        if end < 0:
            if len(self._bytes) > _MAX_HEAD_BYTES:
                raise ProtocolError("its answer does not come to an end of the headers")
            return
        head = bytes(self._bytes[: end + 2])
        status = _STATUS.match(head)
        if status is None:
            raise ProtocolError(f"its answer is no HTTP: {shown(head.split(_LINE_END, 1)[0])}")
        if status[1] != b"200":
            raise ProtocolError(f"it answered {status[1].decode()}")
        self._body_at = end + len(_HEAD_END)
        length = _LENGTH.search(head)
        if length is not None:
            self._end = self._body_at + int(length[1])
            if self._end > MAX_ANSWER_BYTES:
                raise ProtocolError(f"it announces {int(length[1])} bytes, more than {MAX_ANSWER_BYTES}")

    def channels(self) -> Iterator[str]:
        """Return the channels that a whole answer names, which are decoded as they are taken.

        Raises:
            ProtocolError: it is not whole, or names none; the iterator, too.
        """
        has_length = self._end < MAX_ANSWER_BYTES
        if not self._body_at or (has_length and not self.is_whole):
            raise ProtocolError("it closed in the middle of its answer")
        body = bytes(self._bytes[self._body_at : self._end])
        try:
            names = bytes(msgspec.json.decode(body, type=_Channels).channels).strip()
        except (msgspec.DecodeError, RecursionError):
            raise _names_none(body) from None
        if not names.startswith(b"["):
            raise _names_none(body)
        return _decode_names(names)


def _names_none(body: bytes) -> ProtocolError:
    return ProtocolError(f"its answer names no channels: {shown(body)}")


def _decode_names(names: bytes) -> Iterator[str]:
    """Decode a list, some of it at a time.

    It is cut between two names, or what looks so: no channel has a quote or a comma in its name, and a list in which
    something has may be refused for it.
    """
    at, end = 1, len(names) - 1
    while at < end:
        cut = _BETWEEN_NAMES.search(names, at + SLICE_BYTES)
        some = names[at : cut.start() + 1 if cut else end]
        try:
            yield from msgspec.json.decode(b"[%b]" % some, type=list[str])
        except msgspec.DecodeError:
            raise _names_none(some) from None
        at = cut.end() - 1 if cut else end


def is_lasting(channel: str) -> bool:
    """Return whether a channel can be made without a consumer."""
    return is_spelled(channel) and not channel.endswith(EPHEMERAL_SUFFIX)


def encode_question(topic: str, host: str) -> bytes:
    """Encode the request for the channels of a topic; ``host`` has no blanks."""
    return (
        f"GET /channels?topic={quote(topic, safe='')} HTTP/1.0\r\nHost: {host}\r\n"
        "Accept: application/vnd.nsq; version=1.0\r\nUser-Agent: headrace\r\n\r\n"
    ).encode()
