"""The RocketMQ handlers on a real broker and store, and a client that speaks frames over a plain socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypedDict, Unpack

from headrace.broker.access import User
from headrace.errors import RequestError, StoreError
from headrace.format import fastjson
from headrace.remoting.calls import Answered
from headrace.remoting.codec import Command, decode_command
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.guard import Need
from headrace.remoting.handlers.gathered import write_alone
from headrace.remoting.handlers.table import GATHERED, HANDLERS
from headrace.remoting.handlers.transactions import ask_through
from headrace.remoting.peer import Peer
from headrace.remoting.reply import Parts, Reply, refuse
from headrace.remoting.request_connection import RequestConnection
from headrace.remoting.server import RemotingServer
from headrace.remoting.services import Services, open_parts
from headrace.remoting.topics import system_topics
from headrace.settings import RemotingSettings
from tests.support.brokers import BrokerRig
from tests.support.loop import FakeLoop
from tests.support.steps import all_of
from tests.support.stored_message import StoredMessage
from tests.unit.nsq.fake_client import FakeTransport

ADDRESS = "127.0.0.1:10911"


class RemotingRig(BrokerRig):
    """A broker with everything the handlers need; nothing runs by itself."""

    def __init__(self, folder: Path, broker: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.settings = replace(RemotingSettings(cluster="C1"), **settings)
        super().__init__(folder, **{"name": "broker-a", "busy_poll_us": 0, **(broker or {})})

    def _open(self) -> None:
        self.system_topics = system_topics(self.settings, "broker-a", 18)
        super()._open()
        self.store.log.store_host = 0x7F000001 << 32 | 10911
        self.store.notify = lambda call: call()
        self.services = Services(open_parts(self.broker, self.settings), self.settings, ADDRESS)
        ask_through(self.services)

    def link(self) -> BrokerLink:
        """Return a client of a server that there is from then on."""
        return BrokerLink(self)

    def peer(self, port: int = 40_000) -> RecordingPeer:
        return RecordingPeer(self.services, port)

    def messages(self, topic: str) -> list[StoredMessage]:
        """Return what a topic holds, queue by queue."""
        found = []
        for queue in self.broker.topics[topic].queues:
            for physical_offset, _, _ in queue.entries(0, 100):
                raw = self.store.log.read(physical_offset)
                assert raw is not None
                found.append(StoredMessage.from_record(raw))
        return found

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, with a tick a second and everything on disk."""
        for _ in range(max(1, milliseconds // 1_000)):
            self.clock.advance_ms(min(milliseconds, 1_000))
            self.broker.tick()
            self.store.flush()


class Asker(TypedDict, total=False):
    """What a request says of the client that sends it: Java's 4.9, unless told otherwise."""

    version: int
    language: str


JAVA_4_9: Final[Asker] = {"version": 409, "language": "JAVA"}


def handle(peer: Peer, command: Command) -> Reply | Parts | None:
    """Do a request by itself, also one of those that are gathered."""
    gathered = GATHERED.get(command.code)
    if gathered is None:
        return HANDLERS[command.code](peer, command)
    return write_alone(peer.services.broker, lambda gathering: gathered(peer, command, gathering))


class RecordingPeer:
    """A connection of which the test sees what is sent."""

    def __init__(self, services: Services, port: int) -> None:
        self.services = services
        self.host = "10.0.0.5"
        self.remote_address = f"10.0.0.5:{port}"
        self.born_host = 0x0A000005 << 32 | port
        self.born_v6: bytes | None = None
        self.user: User | None = None
        self.cause = ""
        self.answers: list[Reply] = []
        self.notices: list[tuple[int, dict[str, str], bytes | None]] = []
        self.calls: list[tuple[int, dict[str, str], bytes | None, Answered]] = []

    def require(self, user: User, need: Need, code: int) -> None:
        user.require(need.action, topic=need.topic, group=need.group)

    def reply_to(self, error: Exception, code: int) -> Reply:
        if isinstance(error, RequestError | StoreError):
            return refuse(error)
        raise error

    def answer(self, command: Command, reply: Reply) -> None:
        self.answers.append(reply)

    def notify(self, code: int, ext: dict[str, str], body: bytes | None = None) -> None:
        self.notices.append((int(code), ext, body))

    def call(
        self, code: int, ext: dict[str, str], body: bytes | None, answered: Answered, *, timeout_ms: int = 0
    ) -> None:
        self.calls.append((int(code), ext, body, answered))

    def try_ask(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", **asks: Unpack[Asker]
    ) -> Reply | None:
        """Do a request and make what it changed durable; None when the handler answers later."""
        reply = self.request(code, ext, body, **asks)
        self.services.broker.store.flush()
        return reply

    def request(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", **asks: Unpack[Asker]
    ) -> Reply | None:
        """Do a request; None when the handler answers later."""
        texts = {name: str(value) for name, value in (ext or {}).items()}
        command = Command(code, texts, body, **(JAVA_4_9 | asks))
        try:
            reply = handle(self, command)
            return all_of(reply) if isinstance(reply, Generator) else reply
        except (RequestError, StoreError) as error:
            return refuse(error)

    def ask(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", **asks: Unpack[Asker]
    ) -> Reply:
        """Do a request that is answered at once, by its handler or by what that began."""
        reply = self.try_ask(code, ext, body, **asks)
        if reply is None and self.answers:
            reply = self.answers.pop()
        assert reply is not None
        return reply

    def heartbeat(
        self,
        client_id: str,
        *subscriptions: dict[str, Any],
        group: str = "",
        producer: str = "",
        **asks: Unpack[Asker],
    ) -> Reply:
        consumers = [consumer_data(group, *subscriptions)] if group else []
        producers = [{"groupName": producer}] if producer else []
        body = as_json({"clientID": client_id, "producerDataSet": producers, "consumerDataSet": consumers})
        return self.ask(34, body=body, **asks)


def consumer_data(group: str, *subscriptions: dict[str, Any], model: str = "CLUSTERING") -> dict[str, Any]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": list(subscriptions),
    }


def subscription(topic: str, expression: str = "*", kind: str = "TAG", version: int = 1) -> dict[str, Any]:
    return {
        "topic": topic,
        "subString": expression,
        "expressionType": kind,
        "subVersion": version,
        "tagsSet": [],
        "codeSet": [],
        "classFilterMode": False,
    }


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def frame_with(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a frame whose JSON header has what it is given, be it what a codec would write or not."""
    encoded = as_json(header)
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def body_of(reply: Reply) -> Any:
    """Return the JSON that a reply carries; the reply must be a success."""
    assert reply.code == 0, (reply.code, reply.remark)
    assert reply.body is not None
    return fastjson.loads(reply.body)


def physical_offset_of(reply: Reply) -> int:
    """Return where the message stands that a reply is about."""
    assert reply.code == 0, reply.remark
    assert reply.ext is not None
    return int(reply.ext["msgId"][-16:], 16)


def send_fields(
    topic: str, *, queue_id: int = 0, properties: Mapping[str, str] | None = None, **more: object
) -> dict[str, object]:
    """Return the short ext fields of a send."""
    given = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    fields: dict[str, object] = {"a": "P1", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0}
    fields |= {"g": 1_700_000_000_000, "h": 0, "i": given, "j": 0, "k": "false", "m": "false"}
    return fields | more


def long_send_fields(topic: str, **more: object) -> dict[str, object]:
    """Return the long ext fields of a send, as Go sends them."""
    return {
        "producerGroup": "P1",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "",
        **more,
    }


class RemotingLink:
    """A connection without a network: requests in, responses out."""

    def __init__(self, connection: RequestConnection, host: str = "10.0.0.5") -> None:
        self.connection = connection
        self.loop = FakeLoop()
        connection.call_soon = self.loop.call_soon  # type: ignore[assignment]
        self.transport = FakeTransport(connection, (host, 40_000))  # type: ignore[arg-type]
        connection.connection_made(self.transport)

    def send(self, data: bytes) -> list[Command]:
        """Hand over bytes as the event loop does; return the responses since the last call."""
        while data and not self.transport.closed:
            buffer = self.connection.get_buffer(-1)
            count = min(len(data), len(buffer))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]
        return self.taken()

    def taken(self) -> list[Command]:
        """Return the responses since the last call."""
        sent, self.transport.sent = bytes(self.transport.sent), bytearray()
        return list(commands_in(sent))


class BrokerLink(RemotingLink):
    """A client of a broker of a rig.

    Attributes:
        server: Its server.
    """

    def __init__(self, rig: RemotingRig, server: RemotingServer | None = None, host: str = "10.0.0.5") -> None:
        self.server = server or RemotingServer(rig.services)
        self.server.joint_sends.call_soon = lambda _: None  # there is no event loop: ``ask`` ends the turn
        self._rig = rig
        super().__init__(RemotingConnection(self.server), host)

    def ask(self, *frames: bytes) -> dict[int, Command]:
        """Send frames as one read; return the responses by number, those that wait for the disk or for a file too."""
        found = self.send(b"".join(frames))
        self.server.joint_sends.end_turn()
        self._rig.store.flush()
        self._rig.services.group_services.wait_for_files()
        return {answer.opaque: answer for answer in [*found, *self.taken()]}


def commands_in(data: bytes) -> Iterator[Command]:
    """Yield the frames that follow each other."""
    while data:
        end = 4 + struct.unpack_from(">i", data)[0]
        yield decode_command(data[:end])
        data = data[end:]


class RemotingSocket:
    """A client on a plain socket, with JSON headers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._opaque = 0
        self._held: bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", *, flag: int = 0) -> int:
        """Send a request; return its opaque."""
        self._opaque += 1
        texts = {name: str(value) for name, value in (ext or {}).items()}
        header = {
            "code": code,
            "language": "JAVA",
            "version": 409,
            "opaque": self._opaque,
            "flag": flag,
            "extFields": texts,
        }
        self.send_frame(header, body)
        return self._opaque

    def send_frame(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        self.send_bytes(frame_with(header, body))

    def send_bytes(self, data: bytes) -> None:
        if self._held is None:
            self._socket.sendall(data)
        else:
            self._held += data

    @contextmanager
    def held(self) -> Iterator[None]:
        """Send what is sent in the block in one piece at its end."""
        self._held = b""
        try:
            yield
        finally:
            data, self._held = self._held, None
            self._socket.sendall(data)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Return the next frame: its header and its body."""
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        length = int.from_bytes(frame[1:4], "big")
        return json.loads(frame[4 : 4 + length]), frame[4 + length :]

    def call(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return its response; requests of the broker in between are passed over."""
        return self.receive_response(self.send(code, ext, body))

    def receive_response(self, opaque: int) -> tuple[dict[str, Any], bytes]:
        """Return the response to a request that was sent; requests of the broker in between are passed over."""
        while True:
            header, content = self.receive()
            if header["flag"] & 1 and header["opaque"] == opaque:
                return header, content

    def is_closed(self) -> bool:
        """Return whether the peer closes; what it sends before is passed over."""
        while data := self._socket.recv(65_536):
            assert data
        return True

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            data = self._socket.recv(size - len(parts))
            assert data, "the server closed the connection"
            parts += data
        return parts
