"""Bodies of registry requests: registrations in, routes and lists out.

A registration is read in two steps. The version of its topics comes first; the topics, most of its bytes, are decoded
when the route table asks for them, which for an unchanged version it does not.

Answers are compact and have quoted integer keys, the one form that every client reads (remoting.md 1.8).

Ref: remoting.md 4.8, 1.8.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec

from headrace.errors import MessageTooLargeError, QuotaExceededError
from headrace.format import fastjson
from headrace.registry.routes import BrokerData, DataVersion, QueueData, Route, RouteTable, TopicData
from headrace.remoting.bodies import MAX_SLOW_BYTES
from headrace.remoting.codes import FIRST_VERSION_WITH_FILTER_LIST
from headrace.remoting.reply import RequestRefusedError

MAX_I32: Final = (1 << 31) - 1
LONGEST_NAME: Final = 255
"""Characters of a topic, a broker, an address."""
MAX_FILTER_SERVERS: Final = 64
MAX_ROUTE_BYTES: Final = 1 << 20
"""Longest route that an administrator may register: some 10,000 brokers."""
_LENGTH: Final = struct.Struct(">i")
_OBJECTS_OF_TOPIC: Final = 2
"""A topic in JSON is an object; 5.x writes its attributes in another one."""
_TOPIC_PARTS: Final = 5
"""name, read queues, write queues, permission, filter type; 5.x may add attributes."""


@dataclass(frozen=True, slots=True)
class RegistrationBody:
    """What the body of REGISTER_BROKER says."""

    version: DataVersion
    topics: Callable[[], Mapping[str, TopicData]]
    filter_servers: tuple[str, ...] | None


class _Version(msgspec.Struct):
    timestamp: int = 0
    counter: int = 0


class _Wrapper(msgspec.Struct):
    dataVersion: _Version | None = None  # noqa: N815  # names of the wire
    topicConfigTable: msgspec.Raw = msgspec.Raw(b"{}")  # noqa: N815


class _Body(msgspec.Struct):
    topicConfigSerializeWrapper: _Wrapper | None = None  # noqa: N815
    filterServerList: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815


_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_I32)]


class _Topic(msgspec.Struct, frozen=True, gc=False):
    readQueueNums: _Number = 16  # noqa: N815
    writeQueueNums: _Number = 16  # noqa: N815
    perm: _Number = 6
    topicSysFlag: _Number = 0  # noqa: N815


class _Queue(msgspec.Struct):
    brokerName: str  # noqa: N815
    readQueueNums: _Number = 0  # noqa: N815
    writeQueueNums: _Number = 0  # noqa: N815
    perm: _Number = 6
    topicSysFlag: _Number | None = None  # noqa: N815
    topicSynFlag: _Number = 0  # noqa: N815


class _RouteBody(msgspec.Struct):
    queueDatas: list[_Queue] | None = None  # noqa: N815


_NO_WRAPPER: Final = _Wrapper()

Form = TypeVar("Form", bound=msgspec.Struct)


# -- registrations in --------------------------------------------------------------------------------------------------


def decode_registration(
    body: bytes, version: int, *, compressed: bool, max_bytes: int, max_topics: int = MAX_I32
) -> RegistrationBody:
    """Decode the body of REGISTER_BROKER.

    Args:
        version: The sender's, which decides the form of an uncompressed body.
        max_bytes: Most bytes of a compressed one after decompression.

    Raises:
        RequestRefusedError: it is malformed; the remark says where.
        MessageTooLargeError: it decompresses to more than ``max_bytes``.
        QuotaExceededError: it has more than ``max_topics``; of an uncompressed one when they are asked for.
    """
    if not body:
        return RegistrationBody(DataVersion(0, 0), dict, None)
    if compressed:
        return _decode_compressed(_inflate(body, max_bytes), max_topics)
    if version < FIRST_VERSION_WITH_FILTER_LIST:
        wrapper, filters = _decode_json(body, _Wrapper), None
    else:
        decoded = _decode_json(body, _Body)
        wrapper = decoded.topicConfigSerializeWrapper or _NO_WRAPPER
        filters = _decode_filter_servers(bytes(decoded.filterServerList))
    found = wrapper.dataVersion or _Version()
    topics = bytes(wrapper.topicConfigTable)
    return RegistrationBody(
        DataVersion(found.timestamp, found.counter), lambda: _decode_topics(topics, max_topics), filters
    )


def decode_version(body: bytes) -> DataVersion:
    """Decode a DataVersion.

    Raises:
        RequestRefusedError: it is none.
    """
    found = _decode_json(body, _Version)
    return DataVersion(found.timestamp, found.counter)


def decode_queues(body: bytes) -> list[QueueData]:
    """Decode the queues of a TopicRouteData, the body of REGISTER_TOPIC_IN_NAMESRV.

    Raises:
        RequestRefusedError: it is none.
    """
    if len(body) > MAX_ROUTE_BYTES:
        raise _malformed(f"it has {len(body)} bytes, at most {MAX_ROUTE_BYTES} are read")
    return [
        QueueData(
            queue.brokerName,
            queue.readQueueNums,
            queue.writeQueueNums,
            queue.perm,
            queue.topicSynFlag if queue.topicSysFlag is None else queue.topicSysFlag,
        )
        for queue in _decode_json(body, _RouteBody).queueDatas or ()
    ]


def _decode_json(body: bytes, form: type[Form]) -> Form:
    """Decode plain JSON the fast way, and what only fastjson writes by way of Python objects."""
    try:
        return msgspec.json.decode(body, type=form, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Plain JSON with a wrong type in it comes here, too, and would be gone through for what fastjson writes.
        if len(body) > MAX_SLOW_BYTES:
            raise _malformed(f"{error}; JSON that only fastjson writes may have {MAX_SLOW_BYTES} bytes") from error
    try:
        plain = msgspec.json.encode(_plain(fastjson.loads(body, MAX_SLOW_BYTES)))
        return msgspec.json.decode(plain, type=form, strict=False)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as error:
        raise _malformed(str(error)) from error


def _plain(value: Any) -> Any:
    """Return ``value`` without the members that have objects as keys: nothing we read has any."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if isinstance(key, str)}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _decode_topics(table: bytes, max_topics: int) -> dict[str, TopicData]:
    _require_count(table.count(b"{") // _OBJECTS_OF_TOPIC, max_topics)
    try:
        topics = msgspec.json.decode(table, type=dict[str, _Topic] | None, strict=False) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(f"topicConfigTable: {error}") from error
    _require_count(len(topics), max_topics)
    if topics:
        _require_topic_name(max(topics, key=len))
    # Of many topics few differ: with an object for each, the collector of garbage takes longer than all the rest.
    known = {
        topic: TopicData(topic.readQueueNums, topic.writeQueueNums, topic.perm, topic.topicSysFlag)
        for topic in set(topics.values())
    }
    return {name: known[topic] for name, topic in topics.items()}


def _require_count(count: int, most: int) -> None:
    """Refuse topics before they are made, which takes seconds for a million."""
    if count > most:
        raise QuotaExceededError(
            f"{count} topics would be above the registry's limit of {most} (setting registry.max_topics)"
        )


def _require_topic_name(name: str) -> None:
    if len(name) > LONGEST_NAME:
        raise _malformed(f"the topic {name[:32]!r}... has {len(name)} characters, at most {LONGEST_NAME} are accepted")


def _inflate(body: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise _malformed(f"zlib: {error}") from error
    if len(plain) > max_bytes:
        raise MessageTooLargeError(
            "registration (setting registry.max_registration_bytes), decompressed,", len(plain), max_bytes
        )
    if not inflater.eof:
        raise _malformed("zlib: the stream is cut short")
    return plain


def _decode_compressed(plain: bytes, max_topics: int) -> RegistrationBody:
    """Layout: i32 + DataVersion | i32 count, i32 + topic each | i32 + filter servers | from 5.x on more, unread."""
    version, at = _take(plain, 0)
    if at + 4 > len(plain):
        raise _malformed("the number of topics is missing")
    (count,) = _LENGTH.unpack_from(plain, at)
    at += 4
    _require_count(count, max_topics)
    topics: dict[str, TopicData] = {}
    for _ in range(count):
        text, at = _take(plain, at)
        name, data = _decode_topic_text(text)
        topics[name] = data
    filters, at = _take(plain, at)
    servers = _decode_filter_servers(filters) or ()
    return RegistrationBody(decode_version(version), lambda: topics, servers)


def _decode_filter_servers(text: bytes) -> tuple[str, ...] | None:
    if len(text) > MAX_SLOW_BYTES:
        raise _malformed(f"filterServerList has {len(text)} bytes, at most {MAX_SLOW_BYTES} are read")
    try:
        servers = msgspec.json.decode(text, type=tuple[str, ...] | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(f"filterServerList: {error}") from error
    if servers and (len(servers) > MAX_FILTER_SERVERS or any(len(server) > LONGEST_NAME for server in servers)):
        raise _malformed(
            f"filterServerList has more than {MAX_FILTER_SERVERS} servers or one above {LONGEST_NAME} characters"
        )
    return servers


def _take(plain: bytes, at: int) -> tuple[bytes, int]:
    """Return the piece with its length in front, and what follows it."""
    if at + 4 > len(plain):
        raise _malformed(f"a length at byte {at} is cut short")
    (length,) = _LENGTH.unpack_from(plain, at)
    end = at + 4 + length
    if length < 0 or end > len(plain):
        raise _malformed(f"a length of {length} at byte {at} is outside the body")
    return plain[at + 4 : end], end


def _decode_topic_text(text: bytes) -> tuple[str, TopicData]:
    parts = text.decode("utf-8", "replace").split(" ")
    if len(parts) < _TOPIC_PARTS:
        raise _malformed(f"a topic has {len(parts)} parts instead of {_TOPIC_PARTS}")
    read, write, perm = (_number_of_topic(part) for part in parts[1:4])
    _require_topic_name(parts[0])
    return parts[0], TopicData(read, write, perm)


def _number_of_topic(text: str) -> int:
    try:
        number = int(text) if len(text) <= 10 else -1
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_I32:
        raise _malformed(f"topic is no number from 0 to {MAX_I32}: {text[:32]!r}")
    return number


def _malformed(reason: str) -> RequestRefusedError:
    return RequestRefusedError(f"malformed body: {reason}")


# -- answers out -------------------------------------------------------------------------------------------------------


def encode_version(version: DataVersion) -> bytes:
    """Encode a DataVersion."""
    return fastjson.dumps({"counter": version.counter, "timestamp": version.timestamp_ms})


def encode_route(route: Route, order: str | None) -> bytes:
    """Encode a TopicRouteData; ``order`` fixes an ordered topic to brokers and queue numbers."""
    return fastjson.dumps(
        {
            "brokerDatas": [_broker(broker) for broker in route.brokers],
            "filterServerTable": route.filter_servers,
            "orderTopicConf": order,
            "queueDatas": [
                {
                    "brokerName": queue.broker_name,
                    "perm": queue.perm,
                    "readQueueNums": queue.read_queues,
                    # Java up to 4.8, Go and SmartGo know the second name only.
                    "topicSysFlag": queue.sys_flag,
                    "topicSynFlag": queue.sys_flag,
                    "writeQueueNums": queue.write_queues,
                }
                for queue in route.queues
            ],
        }
    )


def encode_clusters(table: RouteTable) -> bytes:
    """Encode a ClusterInfo: every broker and every cluster."""
    return fastjson.dumps(
        {
            "brokerAddrTable": {name: _broker(broker) for name, broker in table.brokers.items()},
            "clusterAddrTable": {cluster: sorted(names) for cluster, names in table.clusters.items()},
        }
    )


def encode_topics(topics: Iterable[str], broker_address: str | None = None) -> bytes:
    """Encode a TopicList."""
    # A member that is None would send a long list the slow way.
    address = {} if broker_address is None else {"brokerAddr": broker_address}
    return fastjson.dumps({**address, "topicList": list(topics)})


def encode_table(pairs: Mapping[str, str]) -> bytes:
    """Encode a KVTable."""
    return fastjson.dumps({"table": pairs})


def _broker(broker: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": broker.addresses,
        "brokerName": broker.name,
        "cluster": broker.cluster,
        # Of RocketMQ 5; rocketmq-client-rust takes no broker without it, and all others pass over it.
        "enableActingMaster": False,
    }
