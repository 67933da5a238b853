"""A compact RocketMQ client for the crash tests: plain struct and json, nothing of Headrace's own codec.

What broker and test share they can get wrong together, so frames, headers, properties, batches and records are written
down here once more. Connections are driven by one selector, as those of ``nsq_client``. Ref: remoting.md 1, 2 and 4.3.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.crash.nsq_client import Socket

SEND, PULL, QUERY_MESSAGE, QUERY_OFFSET, COMMIT_OFFSET = 10, 11, 12, 14, 15
CREATE_TOPIC, ALL_TOPICS, MAX_OFFSET, HEART_BEAT, SEND_BACK = 17, 21, 30, 34, 36
DELETE_TOPIC = 215
END_TRANSACTION, CHECK_TRANSACTION, SEND_V2, SEND_BATCH = 37, 39, 310, 320

SUCCESS, QUERY_NOT_FOUND, TOPIC_NOT_EXIST = 0, 22, 17
PULL_NOT_FOUND, PULL_RETRY, PULL_MOVED = 19, 20, 21
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

STOPPING = "the broker is stopping"
"""The remark with which it refuses what comes behind SIGTERM."""

_RESPONSE, _ONE_WAY = 1, 2
_VERSION = 409

_LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


class Frame(NamedTuple):
    """A request or response."""

    code: int
    opaque: int
    flag: int
    remark: str
    ext: dict[str, str]
    body: bytes

    @property
    def is_response(self) -> bool:
        """Whether it answers something."""
        return bool(self.flag & _RESPONSE)


class Record(NamedTuple):
    """A message as a pull brings it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_ms: int
    message_id: str
    reconsume_times: int
    body: bytes
    properties: dict[str, str]


def encode_frame(code: int, opaque: int, ext: Mapping[str, Any], body: bytes = b"", flag: int = 0) -> bytes:
    """Return a request (``flag`` 2: one-way) or response (``flag`` 1) with a JSON header."""
    header = {
        "code": code,
        "language": "JAVA",
        "version": _VERSION,
        "opaque": opaque,
        "flag": flag,
        "extFields": {name: str(value) for name, value in ext.items()},
    }
    raw = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">ii", 4 + len(raw) + len(body), len(raw)) + raw + body


def decode_frame(content: bytes) -> Frame:
    """Read what stands behind the length of a frame."""
    (size,) = struct.unpack_from(">i", content)
    assert size >> 24 == 0, "a JSON request got another answer"
    header = json.loads(content[4 : 4 + size])
    ext = {str(name): str(value) for name, value in (header.get("extFields") or {}).items()}
    remark = header.get("remark") or ""
    return Frame(header["code"], header["opaque"], header["flag"], remark, ext, content[4 + size :])


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the text form: name 1 value 2."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties of a text."""
    pairs = (part.partition("\x01") for part in text.split("\x02"))
    return {name: value for name, separator, value in pairs if separator}


def encode_batch(messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> bytes:
    """Return the body of a batch send: remoting.md 2.9."""
    parts = []
    for body, properties in messages:
        text = encode_properties(properties).encode()
        size = 4 * 5 + len(body) + 2 + len(text)
        parts.append(struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(text)) + text)
    return b"".join(parts)


def decode_records(content: bytes) -> list[Record]:
    """Return the messages of a pull's body: remoting.md 2.1."""
    records = []
    at = 0
    while at < len(content):
        (size,) = struct.unpack_from(">i", content, at)
        records.append(_decode_record(content[at : at + size]))
        at += size
    return records


def _decode_record(raw: bytes) -> Record:
    _, _, _, queue_id, _, queue_offset, physical_offset, sys_flag, _ = struct.unpack_from(">iiiiiqqiq", raw)
    at = 56 + (12 if sys_flag & 0x10 else 0)
    (store_ms,) = struct.unpack_from(">q", raw, at)
    host_bytes = 20 if sys_flag & 0x20 else 8
    host = raw[at + 8 : at + 8 + host_bytes]
    at += 8 + host_bytes
    reconsume_times, _, body_bytes = struct.unpack_from(">iqi", raw, at)
    at += 16
    body = raw[at : at + body_bytes]
    at += body_bytes
    topic = raw[at + 1 : at + 1 + raw[at]].decode()
    at += 1 + len(topic)
    (properties_bytes,) = struct.unpack_from(">h", raw, at)
    text = raw[at + 2 : at + 2 + properties_bytes].decode()
    message_id = (host + struct.pack(">q", physical_offset)).hex().upper()
    return Record(
        topic, queue_id, queue_offset, physical_offset, sys_flag, store_ms, message_id, reconsume_times, body,
        decode_properties(text),
    )  # fmt: skip


def send_ext(
    topic: str, queue_id: int, properties: Mapping[str, str], born_ms: int, *, group: str = "P", batch: bool = False
) -> dict[str, Any]:
    """Return the header fields of a send, by their short names."""
    return {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": born_ms,
        "h": 0,
        "i": encode_properties(properties),
        "j": 0,
        "k": "false",
        "m": "true" if batch else "false",
    }


def long_names(ext: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header fields of a send by their long names (code 10)."""
    return {_LONG_NAMES[name]: value for name, value in ext.items()}


Answer = Callable[[Frame | None], Any]
"""Gets the response; None when the connection died before one came."""


class RemotingSocket(Socket):
    """One connection: many requests under way, answers by their opaque, requests of the broker to ``asked``."""

    def __init__(self, selector: Any, address: str) -> None:
        self._in = bytearray()
        self._opaque = 0
        self._waiting: dict[int, Answer] = {}
        super().__init__(selector, address)

    @property
    def waiting(self) -> int:
        """Requests under way."""
        return len(self._waiting)

    def request(self, code: int, ext: Mapping[str, Any], body: bytes = b"", answered: Answer | None = None) -> None:
        """Send a request; without ``answered`` it is a one-way one."""
        self._opaque += 1
        if answered is None:
            self.send(encode_frame(code, self._opaque, ext, body, _ONE_WAY))
            return
        if not self.is_open:
            answered(None)
            return
        self._waiting[self._opaque] = answered
        self.send(encode_frame(code, self._opaque, ext, body))

    def received(self, data: bytes) -> None:
        self._in += data
        at, end = 0, len(self._in)
        while end - at >= 4:
            (size,) = struct.unpack_from(">i", self._in, at)
            if end - at < 4 + size:
                break
            frame = decode_frame(bytes(self._in[at + 4 : at + 4 + size]))
            at += 4 + size
            if not frame.is_response:
                self.asked(frame)
            elif answered := self._waiting.pop(frame.opaque, None):
                answered(frame)
        del self._in[:at]

    def asked(self, frame: Frame) -> None:
        """Take a request of the broker."""

    def lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None)
