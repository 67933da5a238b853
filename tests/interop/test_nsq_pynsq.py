"""Unmodified pynsq against Headrace: Writer and Reader in one tornado loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.interop.nsq_peers import Node, serve_headrace

nsq = pytest.importorskip("nsq")

# pynsq predates Python 3.12 and current tornado.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with serve_headrace(tmp_path_factory.mktemp("pynsq")) as headrace:
        yield headrace


async def until(ask: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.01)


class Session:
    """A Writer that is connected, and the Readers of one test."""

    def __init__(self, node: Node) -> None:
        self.address = node.tcp
        self.writer = nsq.Writer([node.tcp])
        self.readers: list[Any] = []

    def read(self, topic: str, handler: Callable[[Any], Any], **options: Any) -> Any:
        options = {"channel": "ch", "max_in_flight": 50, "max_tries": 0, **options}
        reader = nsq.Reader(topic=topic, message_handler=handler, nsqd_tcp_addresses=[self.address], **options)
        self.readers.append(reader)
        return reader

    async def publish(self, topic: str, *bodies: bytes, delay_ms: int | None = None) -> bytes:
        """Publish one body with PUB or DPUB, several with MPUB; return the reply."""
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(connection: Any, data: Any) -> None:
            if not replied.done():
                replied.set_result(data)

        if delay_ms is not None:
            self.writer.dpub(topic, delay_ms, bodies[0], callback=done)
        elif len(bodies) == 1:
            self.writer.pub(topic, bodies[0], callback=done)
        else:
            self.writer.mpub(topic, list(bodies), callback=done)
        data = await asyncio.wait_for(replied, 10)
        if isinstance(data, nsq.Error):
            raise data
        return bytes(data)


def run(node: Node, body: Callable[[Session], Awaitable[None]]) -> None:
    async def session() -> None:
        opened = Session(node)
        await until(lambda: bool(opened.writer.conns))
        await until(lambda: all(connection.rdy_timeout is None for connection in opened.writer.conns.values()))
        await asyncio.sleep(0.1)
        try:
            await body(opened)
        finally:
            for reader in opened.readers:
                reader.close()
            for connection in list(opened.writer.conns.values()):
                connection.close()
            await asyncio.sleep(0.05)

    asyncio.run(session())


def test_publish_and_consume(node: Node) -> None:
    """nsq.md 12.2 check 3: PUB and MPUB, every message once, attempts 1, a timestamp of now."""
    seen: Counter[bytes] = Counter()
    attempts: set[int] = set()
    ages: list[float] = []

    def handle(message: Any) -> bool:
        seen[message.body] += 1
        attempts.add(message.attempts)
        ages.append(abs(time.time() - message.timestamp / 1e9))
        return True

    async def body(session: Session) -> None:
        session.read("py-plain", handle)
        for number in range(200):
            assert await session.publish("py-plain", b"one-%d" % number) == b"OK"
        assert await session.publish("py-plain", *[b"many-%d" % number for number in range(300)]) == b"OK"
        await until(lambda: len(seen) == 500)

    run(node, body)
    assert set(seen.values()) == {1}
    assert attempts == {1}
    assert max(ages) < 15


def test_requeue(node: Node) -> None:
    """nsq.md 1.11: a handler that returns False requeues; pynsq backs off (RDY 0, then 1) before it takes more."""
    deliveries: list[tuple[bytes, int]] = []

    def handle(message: Any) -> bool:
        deliveries.append((message.body, message.attempts))
        return bool(message.attempts >= 2)

    async def body(session: Session) -> None:
        session.read("py-again", handle, requeue_delay=0)
        await session.publish("py-again", b"m")
        await until(lambda: len(deliveries) >= 2)

    run(node, body)
    assert deliveries == [(b"m", 1), (b"m", 2)]


def test_deferred_publish(node: Node) -> None:
    """nsq.md 1.7: DPUB waits, a message without delay overtakes."""
    deliveries: list[tuple[bytes, float]] = []

    def handle(message: Any) -> bool:
        deliveries.append((message.body, time.monotonic()))
        return True

    async def body(session: Session) -> None:
        session.read("py-later", handle)
        sent = time.monotonic()
        await session.publish("py-later", b"later", delay_ms=600)
        await session.publish("py-later", b"now")
        await until(lambda: len(deliveries) == 2)
        assert [what for what, _ in deliveries] == [b"now", b"later"]
        assert 0.6 <= deliveries[1][1] - sent < 2

    run(node, body)


def test_touch_and_message_time_out(node: Node) -> None:
    """nsq.md 1.11, 2.2: TOUCH extends, silence brings the message back with the next attempt."""
    attempts: list[int] = []

    async def body(session: Session) -> None:
        async def hold(message: Any) -> None:
            for _ in range(3):
                await asyncio.sleep(0.6)
                message.touch()
            message.finish()

        def handle(message: Any) -> bool | None:
            attempts.append(message.attempts)
            message.enable_async()
            if len(attempts) == 2:
                tasks.append(asyncio.ensure_future(hold(message)))
            return None

        tasks: list[asyncio.Future[None]] = []
        session.read("py-touch", handle, msg_timeout=1)
        await session.publish("py-touch", b"m")
        await until(lambda: len(attempts) == 2)
        await until(lambda: bool(tasks) and tasks[0].done())
        await asyncio.sleep(1.3)

    run(node, body)
    assert attempts == [1, 2]
    channel = node.channel("py-touch", "ch")
    assert (channel["depth"], channel["in_flight_count"], channel["timeout_count"]) == (0, 0, 1)


def test_two_readers_share_a_channel_and_two_channels_each_get_all(node: Node) -> None:
    """B-LMQ-01, C-SCAN-11."""
    counts: Counter[str] = Counter()

    def count(name: str) -> Callable[[Any], bool]:
        def handle(message: Any) -> bool:
            counts[name] += 1
            return True

        return handle

    async def body(session: Session) -> None:
        session.read("py-fan", count("a1"), channel="a")
        session.read("py-fan", count("a2"), channel="a")
        session.read("py-fan", count("b"), channel="b#ephemeral")
        await until(lambda: len(node.channel("py-fan", "a").get("clients", ())) == 2)
        await until(lambda: bool(node.channel("py-fan", "b#ephemeral")))
        await session.publish("py-fan", *[b"%d" % number for number in range(1000)])
        await until(lambda: counts["a1"] + counts["a2"] == 1000 and counts["b"] == 1000)

    run(node, body)
    assert counts["a1"] > 200
    assert counts["a2"] > 200


def test_refused_publish_is_an_error(node: Node) -> None:
    """nsq.md 1.13."""

    async def body(session: Session) -> None:
        with pytest.raises(nsq.Error, match="E_BAD_TOPIC"):
            await session.publish("bad$name", b"x")

    run(node, body)
