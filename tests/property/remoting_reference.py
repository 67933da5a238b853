"""RocketMQ remoting in plain Python: what the compiled codec is held to. Readable, slow, and of whole streams only."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_PROPERTIES_BYTES = 32767 - 64
LANGUAGES = [
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
]
SHORT_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
REQUIRED = [SHORT_NAMES[letter] for letter in "abcdefgh"]
SIGNATURE = {"AccessKey", "Signature", "SecurityToken"}
DROPPED = {b"WAIT", b"CLUSTER", b"__BATCH#", b"__CRC32#", b"TIMER_OUT_MS"}
NOT_PLAIN = {b"TRAN_MSG", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS"}
PULL_TEXTS = ["consumerGroup", "topic"]
PULL_NUMBERS = {
    "queueId": 32,
    "queueOffset": 64,
    "maxMsgNums": 32,
    "sysFlag": 32,
    "commitOffset": 64,
    "suspendTimeoutMillis": 64,
    "subVersion": 64,
}


class BadFrameError(Exception):
    """The connection has to be closed."""


class NotPlainError(Exception):
    """The send is a command."""


@dataclass
class ReferenceLimits:
    topics: set[str] = field(default_factory=lambda: {"T1", "orders", "温度", "%RETRY%G1"})
    cluster: bytes = b"C1"
    max_frame_bytes: int = 8192
    max_message_bytes: int = 2048


def java_hash(text: bytes) -> int:
    """String.hashCode over UTF-16 code units."""
    units = text.decode().encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_frame(
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 0,
    flag: int = 0,
    serialize: int = 0,
    version: int = 409,
    language: str = "JAVA",
    remark: str | None = None,
    separators: tuple[str, str] = (",", ":"),
    ensure_ascii: bool = False,
) -> bytes:
    """Encode a frame as remoting.md 1.1 to 1.3 say."""
    if serialize == 0:
        header: dict[str, Any] = {
            "code": code,
            "flag": flag,
            "language": language,
            "opaque": opaque,
            "version": version,
        }
        if ext is not None:
            header["extFields"] = ext
        if remark is not None:
            header["remark"] = remark
        text = json.dumps(header, sort_keys=True, separators=separators, ensure_ascii=ensure_ascii).encode()
    else:
        said = (remark or "").encode()
        pairs = [(name.encode(), value.encode()) for name, value in (ext or {}).items()]
        fields = b"".join(
            struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value for name, value in pairs
        )
        text = struct.pack(">hBhiii", code, LANGUAGES.index(language), version, opaque, flag, len(said))
        text += said + struct.pack(">i", len(fields)) + fields
    return struct.pack(">iI", 4 + len(text) + len(body), serialize << 24 | len(text)) + text + body


def encode_sub_message(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """Encode one message of a batch (remoting.md 2.9)."""
    total = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", total, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def encode_properties(properties: dict[str, str], *, last_separator: bool = True) -> str:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return text if last_separator else text[:-1]


# -- reading -----------------------------------------------------------------------------------------------------------


def decode_header(serialize: int, text: bytes) -> dict[str, Any]:
    if serialize == 0:
        header = json.loads(text)
        ext = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in (header.get("extFields") or {}).items()
            if value is not None
        }
        language = header.get("language") or ""
        return {
            "code": header.get("code") or 0,
            "language": language,
            "version": header.get("version") or 0,
            "opaque": header.get("opaque") or 0,
            "flag": header.get("flag") or 0,
            "remark": header.get("remark") or "",
            "ext": ext,
        }
    code, language_code, version, opaque, flag, size = struct.unpack_from(">hBhiii", text)
    at = 17
    remark = text[at : at + size].decode()
    at += size + 4
    ext = {}
    while at < len(text):
        (size,) = struct.unpack_from(">h", text, at)
        name = text[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", text, at)
        ext[name] = text[at + 4 : at + 4 + size].decode()
        at += 4 + size
    language = LANGUAGES[language_code]
    return {
        "code": code,
        "language": language,
        "version": version,
        "opaque": opaque,
        "flag": flag,
        "remark": remark,
        "ext": ext,
    }


def decode_stream(limits: ReferenceLimits, stream: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield an event for each whole frame, and ("refused",) in place of the first that is beyond help."""
    at = 0
    while len(stream) - at >= 4:
        (total,) = struct.unpack_from(">i", stream, at)
        if not 4 <= total <= limits.max_frame_bytes - 4:
            yield ("refused",)
            return
        if len(stream) - at < 8:
            return
        (word,) = struct.unpack_from(">I", stream, at + 4)
        size = word & 0xFFFFFF
        if word >> 24 > 1 or size > total - 4:
            yield ("refused",)
            return
        if len(stream) - at < 4 + total:
            return
        frame = stream[at + 8 : at + 4 + total]
        yield decode_event(limits, word >> 24, frame[:size], frame[size:])
        at += 4 + total


def decode_event(limits: ReferenceLimits, serialize: int, text: bytes, body: bytes) -> tuple[Any, ...]:
    header = decode_header(serialize, text)
    code, ext = header["code"], header["ext"]
    if code in (10, 310, 320):
        try:
            return take_send(limits, serialize, header, body)
        except NotPlainError:
            pass
    if code in (11, 361) and not header["flag"] & 1 and not SIGNATURE & set(ext):
        numbers = {name: number(ext.get(name), bits) for name, bits in PULL_NUMBERS.items()}
        most = number(ext.get("maxMsgBytes", "0"), 32)
        if None not in numbers.values() and most is not None and all(ext.get(name) for name in PULL_TEXTS):
            texts = [ext[name] for name in PULL_TEXTS]
            optional = (ext.get("subscription"), ext.get("expressionType"))
            return ("pull", code, header["opaque"], serialize, *texts, *numbers.values(), *optional, most)
    return ("command", serialize, *header.values(), body)


def number(text: str | None, bits: int) -> int | None:
    if text is None or not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > 20:
        return None
    value = int(text)
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def take_send(limits: ReferenceLimits, serialize: int, header: dict[str, Any], body: bytes) -> tuple[Any, ...]:
    ext = header["ext"]
    if header["flag"] & 1 or not 0 < len(body) <= limits.max_message_bytes or SIGNATURE & set(ext):
        raise NotPlainError
    if header["code"] != 10:
        ext = {SHORT_NAMES[name]: value for name, value in ext.items() if name in SHORT_NAMES}
    if not all(name in ext for name in REQUIRED):
        raise NotPlainError
    topic = ext["topic"]
    if topic not in limits.topics or topic.startswith("%"):
        raise NotPlainError
    default_queues, queue_id, sys_flag, application_flag = (
        number(ext[name], 32) for name in ("defaultTopicQueueNums", "queueId", "sysFlag", "flag")
    )
    born_ms = number(ext["bornTimestamp"], 64)
    reconsume_times = number(ext.get("reconsumeTimes", "0"), 32)
    if default_queues is None or queue_id is None or sys_flag is None or application_flag is None:
        raise NotPlainError
    if born_ms is None or reconsume_times is None or sys_flag & 0xC:
        raise NotPlainError
    if not ext["producerGroup"] or number(ext.get("maxReconsumeTimes", "0"), 32) is None:
        raise NotPlainError
    common = ext.get("properties", "").encode()
    if ext.get("batch", "false") not in ("true", "false"):
        raise NotPlainError
    if header["code"] == 320 or ext.get("batch") == "true":
        parts = list(decode_batch(body))
    else:
        parts = [(application_flag, body, b"")]
    messages: list[tuple[Any, ...]] = []
    for flag, content, own in parts:
        properties, tag = keep_properties(limits, own, common)
        first = len(parts) if not messages else 0
        messages.append(
            (content, properties, java_hash(tag) if tag else 0, flag, sys_flag, born_ms, reconsume_times, first)
        )
    oneway = bool(header["flag"] & 2)
    return ("send", header["opaque"], serialize, oneway, topic, queue_id, messages)


def decode_batch(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at < len(body):
        if len(body) - at < 22:
            raise NotPlainError
        total, _, _, flag, size = struct.unpack_from(">iiiii", body, at)
        if not 0 < size <= len(body) - at - 22:
            raise NotPlainError
        (own,) = struct.unpack_from(">h", body, at + 20 + size)
        if own < 0 or total != 22 + size + own or total > len(body) - at:
            raise NotPlainError
        yield flag, body[at + 20 : at + 20 + size], body[at + 22 + size : at + total]
        at += total


def keep_properties(limits: ReferenceLimits, *texts: bytes) -> tuple[bytes, bytes]:
    """Return the properties that are stored, and the tag."""
    kept, tag = b"", b""
    for text in texts:
        for piece in text.split(b"\x02"):
            name, separator, value = piece.partition(b"\x01")
            if not name or not separator or not value or name in DROPPED:
                continue
            if name in NOT_PLAIN or (name == b"DELAY" and value.strip(b"0")):
                raise NotPlainError
            if name == b"TAGS":
                tag = value
            kept += piece + b"\x02"
    kept += b"CLUSTER\x01" + limits.cluster + b"\x02"
    if len(kept) > MAX_PROPERTIES_BYTES:
        raise NotPlainError
    return kept, tag
