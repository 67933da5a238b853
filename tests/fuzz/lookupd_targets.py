"""What is fuzzed of nsqlookupd: what producers and HTTP clients send to it, and what one answers a broker.

What comes in pieces is held to the same in one piece. The table must add up, and an answer be what it says it is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote

import h11
import msgspec

from headrace.clock import ManualClock
from headrace.errors import ProtocolError
from headrace.format.names import EPHEMERAL_SUFFIX
from headrace.net.request_parser import RequestParser
from headrace.nsq.http_request import JSON_TYPE, Reply, Request
from headrace.nsq.lookup_peers import codec as peer_codec
from headrace.nsq.lookup_peers.answer import AnswerReader, is_lasting
from headrace.nsq.lookupd.codec import MAGIC, MAX_BODY_BYTES, MAX_LINE_BYTES
from headrace.nsq.lookupd.connection import READ_BYTES, ProducerConnection
from headrace.nsq.lookupd.http import LookupdHttp
from headrace.nsq.lookupd.old_form import asks_for_today
from headrace.nsq.lookupd.server import LookupdServer
from headrace.nsq.words import is_valid_name
from headrace.registry.producers import ProducerTable
from headrace.settings import Settings

T = TypeVar("T")

SETTINGS: Final = replace(Settings().registry, max_topics=6, max_nsq_channels=6, max_nsq_registrations=12)
STATUSES: Final = {200, 301, 307, 400, 404, 405, 503}
MAX_REQUESTS: Final = 20
MAX_TURNS: Final = 1_000
WHO: Final = b'{"broadcast_address":"b","hostname":"h","http_port":4151,"tcp_port":4150,"version":"1.3.0"}'


def pieces(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the rest of an input, and the same in pieces whose size its first byte says."""
    step, rest = (data[0] or READ_BYTES) if data else 1, data[1:]
    return rest, [rest[at : at + step] for at in range(0, len(rest), step)]


# -- producers ---------------------------------------------------------------------------------------------------------


class _Writer:
    """A producer's connection: what is sent to it, and whence it comes."""

    def __init__(self) -> None:
        self.sent = b""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "10.0.0.9", 1

    def write(self, data: bytes) -> None:
        self.sent += data


def lookupd_commands(data: bytes) -> None:
    """However a producer's stream is cut, it is answered alike, and the table is the same and adds up."""
    whole, cut = pieces(data)
    assert _produce([whole]) == _produce(cut)


def _produce(reads: list[bytes]) -> Any:
    server = LookupdServer(SETTINGS, ManualClock(), http_address="")
    writer = _Writer()
    connection = ProducerConnection(server, cast(Any, None), cast(Any, writer))
    for read in [MAGIC, *reads, b""]:
        if connection.cause or not (read or connection._is_identifying):
            break
        connection._take(read)
        assert connection._input.held_bytes <= MAX_LINE_BYTES + MAX_BODY_BYTES or connection.cause
    seen = _replies(writer.sent), connection.cause, _contents(server.table), server.counters.requests
    server.table.connection_closed(connection)
    assert (server.table.registration_count, server.table.producer_count) == (0, 0)
    return seen


def _replies(sent: bytes) -> list[bytes]:
    """Take replies apart; none may be cut."""
    replies = peer_codec.ReplyReader().feed(sent)
    assert sum(len(reply) + 4 for reply in replies) == len(sent)
    return replies


def _contents(table: ProducerTable) -> Any:
    """Return all that a table knows; its counts must be right and its names such as NSQ can spell."""
    topics = table.topics()
    channels = {topic: table.channels_of(topic) for topic in topics}
    entries = [(entry.category, entry.topic, entry.channel) for entry in table.entries()]
    names = [*topics, *(channel for each in channels.values() for channel in each)]
    assert all(name.isascii() and is_valid_name(name.encode()) for name in names)
    assert table.topic_count == len(topics) <= SETTINGS.max_topics
    assert table.channel_count == sum(map(len, channels.values())) <= SETTINGS.max_nsq_channels
    registered = [entry for entry in entries if entry[0] != "client"]
    assert table.registration_count == len(registered) <= SETTINGS.max_nsq_registrations
    assert len(set(entries)) == len(entries)
    return channels, entries


# -- HTTP --------------------------------------------------------------------------------------------------------------


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run what only gives way, without an event loop."""
    for _ in range(MAX_TURNS):
        try:
            work.send(None)
        except StopIteration as end:
            return cast(T, end.value)
    raise AssertionError("it does not come to an end")


def lookupd_requests(data: bytes) -> None:
    """Any request gets one of nsqlookupd's statuses and, where it says so, JSON; the table adds up."""
    server = LookupdServer(SETTINGS, ManualClock(), http_address="")
    writer = _Writer()
    producer = ProducerConnection(server, cast(Any, None), cast(Any, writer))
    producer._take(MAGIC + _identify(WHO) + b"REGISTER t c\nREGISTER u\nREGISTER v#ephemeral d#ephemeral\n")
    app = LookupdHttp(table=server.table, clock=server.clock)
    for request in _requests(data):
        _check_answer(finish(app._answer(request)), asks_for_today(request.headers))
    _contents(server.table)


def _requests(data: bytes) -> Iterator[Request]:
    """Yield the requests that h11 reads, as the listener hands them on."""
    for _ in range(MAX_REQUESTS):
        parser = RequestParser()
        parser.receive_data(data)
        try:
            head = parser.next_event()
            if not isinstance(head, h11.Request):
                return
            path, _, query = head.target.partition(b"?")
            yield Request(
                head.method.decode(), unquote(path.decode()), query.decode("latin-1"), dict(head.headers), _no_body
            )
            while isinstance(parser.next_event(), h11.Data):
                pass
        except h11.RemoteProtocolError:
            return
        data = parser.trailing_data[0]


async def _no_body() -> dict[str, Any]:
    raise AssertionError("nsqlookupd reads no bodies")


def _check_answer(reply: Reply, is_for_today: bool) -> None:
    assert reply.status in STATUSES
    if reply.content_type == JSON_TYPE:
        told = msgspec.json.decode(b"".join(reply.pieces) or reply.body)
        old = {name: told.pop(name) for name in ("status_code", "status_txt", "data") if name in told}
        assert len(old) == (0 if is_for_today else 3)
        assert is_for_today or old["data"] == (told if reply.status == 200 else None)
    for _, value in reply.all_headers():
        assert not set(b"\r\n") & set(value)


# -- the broker's side -------------------------------------------------------------------------------------------------


def lookupd_replies(data: bytes) -> None:
    """Replies of a nsqlookupd come out alike however they are cut, and each is what was wanted or refused."""
    whole, cut = pieces(data)
    replies = _read(lambda reader: reader.feed(whole), peer_codec.ReplyReader())
    again = _read(lambda reader: [reply for piece in cut for reply in reader.feed(piece)], peer_codec.ReplyReader())
    assert replies == again
    for reply in replies or ():
        _read(lambda reply: peer_codec.require_ok(reply, b"REGISTER t c\n"), reply)
        identity = _read(peer_codec.decode_identity, reply)
        if identity is not None and identity.http_address:
            assert identity.http_address.isascii()
            assert not set(identity.http_address) & set(" \r\n/?#@")


def lookupd_answers(data: bytes) -> None:
    """An answer to GET /channels is read alike however it is cut, and names only what can be made."""
    whole, cut = pieces(data)
    found = _read(_channels, [whole])
    assert found == _read(_channels, cut)
    for name in filter(is_lasting, found or ()):
        assert name.isascii()
        assert is_valid_name(name.encode())
        assert not name.endswith(EPHEMERAL_SUFFIX)


def _channels(reads: list[bytes]) -> list[str]:
    reader = AnswerReader()
    for read in reads:
        reader.feed(read)
        if reader.is_whole:
            break
    return list(reader.channels())


def _read(call: Callable[[Any], T], argument: Any) -> T | None:
    """Return what is read; None where it is refused."""
    try:
        return call(argument)
    except ProtocolError:
        return None


# -- seeds -------------------------------------------------------------------------------------------------------------


def _identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body


def _framed(*replies: bytes) -> bytes:
    return b"".join(len(reply).to_bytes(4, "big") + reply for reply in replies)


def seeds() -> dict[str, list[bytes]]:
    """Return the first inputs of each target by its name."""
    names = [b" t", b" t c", b" u d#ephemeral", b" v#ephemeral", b"  \r", b" t $", b" " + b"x" * 65]
    changes = b"".join(command + name + b"\n" for name in names[:4] for command in (b"REGISTER", b"UNREGISTER"))
    bodies = [WHO, WHO[:-1] + b',"topology_zone":"z"}', b"{}", b"null", b"[" * 99, b'{"tcp_port":1e400}', b""]
    many = b"".join(b"REGISTER t%d c\n" % number for number in range(8))
    posts = [
        b"/topic/create?topic=n", b"/topic/create?topic=$", b"/topic/delete?topic=t",
        b"/channel/create?topic=n&channel=c",
        b"/channel/delete?topic=t&channel=c", b"/channel/delete?topic=t&channel=x",
        b"/topic/tombstone?topic=t&node=b:4151",
    ]  # fmt: skip
    gets = [
        b"/ping", b"/info", b"/topics", b"/nodes", b"/debug", b"/lookup?topic=t", b"/lookup?topic=v%23ephemeral",
        b"/lookup?topic=x", b"/lookup", b"/channels?topic=t", b"/channels?topic=%", b"/Topics/", b"/x", b"/../debug",
    ]  # fmt: skip
    accepts = [b"", b"Accept: application/vnd.nsq; version=1.0\r\n", b"Accept: */*\r\n"]
    asked = [b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n" for target in gets]
    asked += [b"POST " + target + b" HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n" for target in posts]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
    body = b'{"channels":["a","b#ephemeral","a","not valid","c"],"message":"x"}'
    return {
        "lookupd_commands": [
            *(b"\0" + _identify(each) + b"PING\n" for each in bodies),
            b"\1PING\n" + _identify(WHO) + changes,
            b"\7" + _identify(WHO) + many,
            *(b"\3" + _identify(WHO) + b"REGISTER" + name + b"\n" for name in names[4:]),
            b"\2REGISTER t\n", b"\2NOP\n", b"\5" + b"x" * 1100, b"\5IDENTIFY\n\xff\xff\xff\xff",
        ],
        "lookupd_requests": [
            *(each + accept + b"\r\n" for each in asked for accept in accepts[:1]),
            *(b"".join(each + accept + b"\r\n" for each in asked) for accept in accepts[1:]),
        ],
        "lookupd_replies": [
            b"\0" + _framed(b'{"broadcast_address":"l","http_port":4161,"version":"1.3.0"}', b"OK", b"E_INVALID x"),
            b"\1" + _framed(b"OK", b"OK", b"") + b"\0\0\0", b"\2HTTP/1.1 400 Bad Request\r\n", b"\3\xff\xff\xff\xff",
        ],
        "lookupd_answers": [
            b"\0" + head + b"\r\n" + body,
            b"\5" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"behind",
            b"\1" + head + b"Content-Length: 99\r\n\r\n" + body, b"\1HTTP/1.0 404 Not Found\r\n\r\n",
        ],
    }  # fmt: skip
