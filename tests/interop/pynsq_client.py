"""Unmodified pynsq in a thread of its own, for tests that do one thing after the other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import nsq

from tests.support.waiting import until


class Got(NamedTuple):
    """A message as an NSQ consumer sees it: there is nothing else in the frame."""

    id: str
    body: bytes
    timestamp_ns: int
    attempts: int
    at: float


class NsqClient:
    """Unmodified pynsq in a thread of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._readers: list[Any] = []
        self.writer = self._call(self._open_writer)
        until(lambda: self.writer.conns and all(c.rdy_timeout is None for c in self.writer.conns.values()))
        time.sleep(0.1)

    def _call(self, do: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(do())
            except Exception as error:  # noqa: BLE001  # handed to the thread that asked
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(10)

    def _open_writer(self) -> Any:
        return nsq.Writer([self.address])

    def publish(self, topic: str, *bodies: bytes, delay_ms: int | None = None) -> None:
        """PUB, MPUB of several or DPUB.

        Raises:
            nsq.Error: the broker refused.
        """
        replied: Future[Any] = Future()

        def done(connection: Any, data: Any) -> None:
            if not replied.done():
                replied.set_result(data)

        def send() -> None:
            if delay_ms is not None:
                self.writer.dpub(topic, delay_ms, bodies[0], callback=done)
            elif len(bodies) == 1:
                self.writer.pub(topic, bodies[0], callback=done)
            else:
                self.writer.mpub(topic, list(bodies), callback=done)

        self._call(send)
        data = replied.result(10)
        if isinstance(data, Exception):
            raise data

    def subscribe(self, topic: str, channel: str = "ch", *, requeue: int = 0) -> list[Got]:
        """Consume; each message is requeued ``requeue`` times. Returns the list that fills."""
        got: list[Got] = []

        def handle(message: Any) -> bool:
            got.append(Got(message.id.decode(), message.body, message.timestamp, message.attempts, time.time()))
            return bool(message.attempts > requeue)

        def start() -> Any:
            return nsq.Reader(
                topic=topic, channel=channel, message_handler=handle, nsqd_tcp_addresses=[self.address],
                max_in_flight=100, max_tries=0, requeue_delay=0, max_backoff_duration=0.1,
            )  # fmt: skip

        self._readers.append(self._call(start))
        return got

    def close(self) -> None:
        """Close every connection and end the thread."""

        def stop() -> None:
            for reader in self._readers:
                reader.close()
            for connection in list(self.writer.conns.values()):
                connection.close()
            self.loop.call_later(0.1, self.loop.stop)

        self._call(stop)
        self._thread.join(5)
