"""``GET /channels`` of a nsqlookupd, with an end in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from headrace.errors import ConnectionLostError, ProtocolError, RequestTimeoutError
from headrace.net.dialing import connect
from headrace.nsq.lookup_peers.answer import AnswerReader, encode_question

if TYPE_CHECKING:
    from headrace.net.names import Names

QUERY_S: Final = 2.0
"""For all of one question, the connecting included."""


async def query_channels(address: str, topic: str, names: Names) -> Iterator[str]:
    """Return the channels that a nsqlookupd knows of a topic.

    Raises:
        ClientError, ProtocolError: it could not be asked, did not answer in time, or not as a nsqlookupd.
    """
    try:
        async with asyncio.timeout(QUERY_S):
            asked = await connect(address, names, lambda: _Question(address, topic), QUERY_S)
            try:
                return await asked.answer
            finally:
                asked.close()
    except TimeoutError:
        raise RequestTimeoutError(address, "GET /channels", QUERY_S) from None


class _Question(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, address: str, topic: str) -> None:
        self.answer: asyncio.Future[Iterator[str]] = asyncio.get_running_loop().create_future()
        self._address = address
        self._topic = topic
        self._reader = AnswerReader()
        self._transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(encode_question(self._topic, self._address))

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        try:
            self._reader.feed(data)
            if self._reader.is_whole:
                self.answer.set_result(self._reader.channels())
        except ProtocolError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer.done():
            return
        if exc is not None:
            self._end(ConnectionLostError(self._address, str(exc)))
            return
        try:
            self.answer.set_result(self._reader.channels())
        except ProtocolError as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        self.close()

    def close(self) -> None:
        """Close the connection, whatever of the answer is still on its way."""
        self.answer.cancel()
        self._transport.abort()
