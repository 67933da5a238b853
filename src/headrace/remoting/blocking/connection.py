"""One connection to a RocketMQ server for programs without an event loop: Spark workers, jobs, tools.

A request is a frame out and a frame in, matched by number; ``call_many`` keeps a window of requests under way and hands
the answers out in the order of the requests. Bodies are read from the socket into the bytes object that the caller
gets: nothing is copied a second time, for a log is read in pieces of megabytes. ``remoting.client`` is for an event
loop; what both share, frames as bytes, is the codec's.

The connection is made by the first request and again by the first one after it was lost. Nothing is sent twice: whether
a request that failed is tried again is for the caller, who knows what it does. After a time-out the connection is
closed, since what still comes in belongs to nobody.

One thread at a time, one process: a fork must make its own (``Cluster`` does).
"""

from __future__ import annotations

import io
import itertools
import logging
import re
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

from headrace.errors import ClientError, ConnectionLostError, ProtocolError, RequestTimeoutError
from headrace.net.address import parse_peer
from headrace.remoting.codec import Command, decode_command, encode_request, encode_response
from headrace.remoting.codes import FRAME_HEAD_BYTES, ResponseCode, request_name
from headrace.remoting.signature import signed_ext

logger = logging.getLogger(__name__)

Request = tuple[int, Mapping[str, str], bytes]
"""Code, ext fields and body."""

MAX_FRAME_BYTES: Final = 65 << 20
"""Holds the largest record, of a body of 64 MiB (docs/limits.md): an answer has one, however little was asked for."""
_HEAD: Final = struct.Struct(">II")
_BUFFER_BYTES: Final = 64 * 1024
_MAX_OPAQUE: Final = 0x7FFFFFFF
_IDLE_CHECK_S: Final = 1.0
"""A connection on which nothing was asked for so long is looked at before it is used: the server may have closed it.
An answer says nothing about that: it may have lain here since."""


class FrameTooLargeError(ClientError):
    """A server answers with more than a client takes: asking again would bring the same.

    Attributes:
        address: Of the server.
        frame_bytes: What the frame says of its length; the connection is closed, nothing of it was read.
    """

    def __init__(self, address: str, frame_bytes: int, most_bytes: int) -> None:
        super().__init__(
            f"{address} answers with a frame of {frame_bytes} bytes, more than the {most_bytes} that are taken: its "
            "messages are too large, or it is no RocketMQ server"
        )
        self.address = address
        self.frame_bytes = frame_bytes


class BlockingClient:
    """A connection to one server.

    Attributes:
        address: ``host:port``.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        access_key: str | None = None,
        secret_key: str | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """Connect nothing yet.

        Args:
            timeout_s: For one request: the sending, the waiting and the whole answer.
            connect_timeout_s: For making the connection.
            access_key, secret_key: Sign each request where both are given (docs/access.md).
            max_frame_bytes: A longer answer is refused.

        Raises:
            ValueError: ``address`` is not ``host:port``, or only one of the keys is given.
        """
        self.address = address
        self._host, self._port = parse_peer(address)
        if bool(access_key) != bool(secret_key):
            raise ValueError("access_key and secret_key belong together, one is missing")
        self._keys = (access_key, secret_key) if access_key and secret_key else None
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._max_frame_bytes = max_frame_bytes
        self._numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._input: _SocketInput | None = None
        self._reader: io.BufferedReader | None = None
        self._asked_at = 0.0
        self._unanswered = 0  # requests of this connection, sent or begun, whose responses have not come

    def __repr__(self) -> str:
        return f"BlockingClient({self.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        found, self._socket = self._socket, None
        self._input = self._reader = None
        self._unanswered = 0
        if found is not None:
            found.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def call(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, timeout_s: float | None = None
    ) -> Command:
        """Send a request and return the response, whatever its code.

        Args:
            timeout_s: Instead of the client's.

        Raises:
            RequestTimeoutError: no whole response came in time; whether the request was carried out is not known.
            ConnectionLostError: the connection could not be made, or was lost.
            FrameTooLargeError: the response is longer than may be.
        """
        opaque = self.post(code, ext or {}, body, timeout_s=timeout_s)
        while True:
            response = self.take(code, timeout_s=timeout_s)
            if response.opaque == opaque:  # else nobody waits for it any more
                return response

    def call_many(self, requests: Iterable[Request], window: int = 8) -> Iterator[Command]:
        """Send requests, up to ``window`` ahead of the answers, and yield the responses in the order of the requests.

        Whoever stops in the middle, or sends another request meanwhile, loses the connection, not more: answers that
        are under way are thrown away.

        Raises:
            RequestTimeoutError, ConnectionLostError: as ``call``; the responses before it were yielded.
        """
        under_way: deque[tuple[int, int]] = deque()  # (opaque, code) of what is not yielded yet
        early: dict[int, Command] = {}
        coming = iter(requests)
        has_more = True
        mine: socket.socket | None = None
        try:
            while True:
                while has_more and len(under_way) < max(window, 1):
                    request = next(coming, None)
                    if request is None:
                        has_more = False
                        break
                    code, ext, body = request
                    self._require_same(mine, bool(under_way))
                    under_way.append((self.post(code, ext, body, fresh=not under_way), code))
                    mine = self._socket
                if not under_way:
                    return
                opaque, code = under_way[0]
                response = early.pop(opaque, None)
                while response is None:
                    self._require_same(mine, True)
                    found = self.take(code)
                    if found.opaque == opaque:
                        response = found
                    elif any(found.opaque == other for other, _ in under_way):
                        early[found.opaque] = found
                under_way.popleft()
                yield response
        finally:
            if len(under_way) > len(early) and self._socket is mine:
                self.close()

    def _require_same(self, connection: socket.socket | None, is_under_way: bool) -> None:
        """Refuse to go on with requests that were under way on another connection.

        Raises:
            ConnectionLostError: they were.
        """
        if is_under_way and self._socket is not connection:
            raise ConnectionLostError(self.address, "lost while requests were under way")

    # -- the connection ------------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        try:
            made = socket.create_connection((self._host, self._port), self._connect_timeout_s)
        except TimeoutError:
            reason = f"not accepted within {self._connect_timeout_s:g} s"
            raise ConnectionLostError(self.address, reason) from None
        except OSError as error:
            raise ConnectionLostError(self.address, str(error)) from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = made
        self._input = _SocketInput(made)
        self._reader = io.BufferedReader(self._input, _BUFFER_BYTES)
        return made

    def _usable(self) -> socket.socket:
        """Return the connection, made anew if there is none or if the server closed it while nobody asked."""
        if self._unanswered:
            self.close()  # somebody stopped in the middle: what comes now is not what is asked for
        found = self._socket
        if found is not None and time.monotonic() - self._asked_at > _IDLE_CHECK_S and _is_closed(found):
            logger.debug("connection closed by the server while idle server=%s", self.address)
            self.close()
            found = None
        return found or self._connect()

    def post(
        self, code: int, ext: Mapping[str, str], body: bytes, *, fresh: bool = True, timeout_s: float | None = None
    ) -> int:
        """Send a request and return its number; its response is one that ``take`` returns.

        Args:
            fresh: No request is under way, so the connection may be made anew.
            timeout_s: Instead of the client's.

        Raises:
            RequestTimeoutError, ConnectionLostError: as ``call``; everything that was under way is lost too.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if self._keys is not None:
            ext = signed_ext(ext, body, *self._keys)
        opaque = next(self._numbers) & _MAX_OPAQUE
        if fresh:
            connection = self._usable()
        elif self._socket is None:
            raise ConnectionLostError(self.address, "lost while requests were under way")
        else:
            connection = self._socket
        frame = encode_request(0, code, opaque, False, ext or None, body or None)
        self._unanswered += 1  # before it is sent: a signal may end that in the middle
        try:
            connection.settimeout(limit_s)
            connection.sendall(frame)
        except TimeoutError:
            self.close()
            raise RequestTimeoutError(self.address, request_name(code), limit_s) from None
        except OSError as error:
            self.close()
            raise ConnectionLostError(self.address, str(error)) from error
        self._asked_at = time.monotonic()
        return opaque

    def take(self, code: int, *, timeout_s: float | None = None) -> Command:
        """Return the next response, of whichever request; what else the server says is answered and passed over.

        Args:
            code: What an error says was asked.
            timeout_s: Instead of the client's.

        Raises:
            RequestTimeoutError, ConnectionLostError: as ``call``; everything that was under way is lost too.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        source, reader, connection = self._input, self._reader, self._socket
        if source is None or reader is None or connection is None:
            raise ConnectionLostError(self.address, "lost while requests were under way")
        source.deadline = time.monotonic() + limit_s
        try:
            while True:
                command = self._read_frame(reader)
                if command.is_response:
                    self._unanswered = max(0, self._unanswered - 1)
                    return command
                if not command.is_oneway:
                    remark = f" request type {command.code} not supported"
                    unknown = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
                    connection.sendall(encode_response(command.serialize, command.opaque, unknown, remark))
        except TimeoutError:
            self.close()
            raise RequestTimeoutError(self.address, request_name(code), limit_s) from None
        except FrameTooLargeError:
            self.close()
            raise
        except ProtocolError as error:
            self.close()
            raise ConnectionLostError(self.address, f"bad frame: {error}") from error
        except OSError as error:
            self.close()
            raise ConnectionLostError(self.address, str(error)) from error

    def _read_frame(self, reader: io.BufferedReader) -> Command:
        head = self._exactly(reader, FRAME_HEAD_BYTES)
        total, word = _HEAD.unpack(head)
        header_bytes = word & 0xFFFFFF
        if total > self._max_frame_bytes:
            raise FrameTooLargeError(self.address, total, self._max_frame_bytes)
        if total < 4 + header_bytes:
            raise ProtocolError(f"a frame of {total} bytes with a header of {header_bytes}")
        header = self._exactly(reader, header_bytes)
        command = decode_command(_HEAD.pack(4 + header_bytes, word) + header)
        body_bytes = total - 4 - header_bytes
        if not body_bytes:
            return command
        return Command(
            command.code,
            command.ext,
            self._exactly(reader, body_bytes),
            opaque=command.opaque,
            flag=command.flag,
            version=command.version,
            language=command.language,
            serialize=command.serialize,
            remark=command.remark,
        )

    @staticmethod
    def _exactly(reader: io.BufferedReader, size: int) -> bytes:
        data = reader.read(size)
        if len(data) < size:
            raise ConnectionResetError("closed by the server")
        return data


class _SocketInput(io.RawIOBase):
    """The socket as ``BufferedReader`` wants it; each read waits until ``deadline`` (monotonic seconds) at most."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self.deadline = 0.0
        self._connection = connection

    def readable(self) -> bool:
        """Return True: it is read from and nothing else."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the name's only other form is wider
        """Read what is there, at least one byte, or 0 at the end.

        Raises:
            TimeoutError: the deadline has passed.
        """
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


def split_servers(servers: str) -> tuple[str, ...]:
    """Return the addresses of registries, ``host:9876``, several parted by ``;`` or ``,``.

    Raises:
        ValueError: there is no address, or one is not ``host:port``.
    """
    addresses = tuple(part.strip() for part in re.split("[;,]", servers) if part.strip())
    if not addresses:
        raise ValueError("servers is empty: name a registry as host:9876")
    for address in addresses:
        parse_peer(address)
    return addresses


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the peer has closed a connection on which nothing is expected."""
    try:
        connection.settimeout(0)
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
