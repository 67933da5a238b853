"""nsqd's HTTP API against a broker that only remembers calls (nsq.md 3)."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.batch import PublishBatch
from headrace.broker.statistics import Statistics
from headrace.clock import ManualClock
from headrace.errors import (
    ChannelNotFoundError,
    ClosingError,
    FlushError,
    HeadraceError,
    QuotaExceededError,
    StoreFullError,
    TopicNotFoundError,
)
from headrace.net.http import HttpLimits
from headrace.nsq.config_options import NodeFacts
from headrace.nsq.http import NsqHttp
from headrace.nsq.http_request import find_similar_path, parse_integer
from headrace.settings import BrokerSettings, NsqSettings

NOW_MS = 1_800_000_000_000
MAX_MESSAGE = 100
MAX_BODY = 300


class FakeGate:
    """Opens at once up to ``durable``; what waits beyond is opened by the test."""

    def __init__(self) -> None:
        self.durable = 1 << 40
        self.waiting: list[Any] = []

    def wait(self, offset: int, opened: Any) -> None:
        if offset <= self.durable:
            opened(None)
        else:
            self.waiting.append(opened)


class FakeBroker:
    """Topics as a dictionary, calls as a list."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.gate = FakeGate()
        self.last_change = 0
        self.calls: list[tuple[Any, ...]] = []
        self.published: list[tuple[str, int, int, int]] = []
        self.fails: HeadraceError | None = None
        self.overloaded = False
        self.store = SimpleNamespace(log=SimpleNamespace(end_offset=77))
        self.next_offset = 1

    def ensure_topic(self, name: str) -> Any:
        if name not in self.topics:
            self.topics[name] = SimpleNamespace(name=name, channels={}, is_system=False)
            self.last_change = self.next_offset
        return self.topics[name]

    def find_topic(self, name: str) -> Any:
        if name not in self.topics:
            raise TopicNotFoundError(name)
        return self.topics[name]

    def ensure_channel(self, topic: Any, name: str) -> Any:
        return topic.channels.setdefault(name, SimpleNamespace(name=name))

    def made_at(self, topic: Any, channel: Any = None) -> int:
        return self.last_change

    def publish(self, batch: PublishBatch) -> int:
        if self.fails is not None:
            raise self.fails
        self.published.append((batch.destinations[0], len(batch), batch.body_bytes, batch.queues == []))
        return self.next_offset

    def __getattr__(self, name: str) -> Any:
        def administer(*arguments: Any) -> int:
            topic = self.find_topic(arguments[0])
            if "channel" in name and arguments[1] not in topic.channels:
                raise ChannelNotFoundError(*arguments[:2])
            self.calls.append((name, *arguments))
            return self.next_offset

        return administer


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def code(self) -> str:
        return str(msgspec.json.decode(self.body)["message"])


class Harness:
    """An application and a way to ask it without a socket."""

    def __init__(self, lookup_peers: object = None, **settings: Any) -> None:
        self.lookup_peers = lookup_peers
        self.broker = FakeBroker()
        self.clock = ManualClock(now_ms=NOW_MS)
        self.health = ""
        self.logger = logging.Logger("levels", logging.INFO)
        self.app = NsqHttp(
            broker=self.broker,  # type: ignore[arg-type]
            settings=NsqSettings(**{"max_message_bytes": MAX_MESSAGE, "max_body_bytes": MAX_BODY, **settings}),
            facts=NodeFacts(
                version="1.3.0",
                hostname="here",
                broadcast_address="here.example",
                tcp_address="127.0.0.1:34150",
                http_address="[::1]:34151",
                started_at_ms=NOW_MS - 61_500,
                node_id=7,
                data_dir="/data",
                segment_bytes=1 << 30,
            ),
            clock=self.clock,
            logger=self.logger,
            connections=list,
            health=lambda: self.health,
            statistics=Statistics(BrokerSettings(), NOW_MS, "cluster"),
            offsets=SimpleNamespace(groups_of=lambda topic: []),  # type: ignore[arg-type]
            lookup_peers=self.lookup_peers,  # type: ignore[arg-type]
            limits=HttpLimits(body_seconds=0.02, body_bytes=1_000),
        )

    def ask(self, method: str, target: str, *chunks: bytes, headers: dict[bytes, bytes] | None = None) -> Answer:
        return asyncio.run(self.ask_async(method, target, *chunks, headers=headers))

    async def ask_async(
        self,
        method: str,
        target: str,
        *chunks: bytes,
        headers: dict[bytes, bytes] | None = None,
        whole: bool = True,
    ) -> Answer:
        path, _, query = target.partition("?")
        answer = Answer()
        pieces = list(chunks) or [b""]

        async def receive() -> dict[str, Any]:
            if not pieces:
                await asyncio.Event().wait()
            chunk = pieces.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(pieces) or not whole}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message["body"]

        scope = {
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": list((headers or {}).items()),
        }
        await self.app(scope, receive, send)
        return answer


@pytest.fixture
def nsq() -> Harness:
    return Harness()


# -- routing --


def test_success_headers(nsq: Harness) -> None:
    """nsq.md 3.1: headers of a publish, an administration call, JSON and /ping."""
    version = "nsq; version=1.0"
    answer = nsq.ask("POST", "/pub?topic=t", b"x")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers == {
        "Content-Length": "2",
        "X-Nsq-Content-Type": version,
        "Content-Type": "text/plain; charset=utf-8",
    }
    answer = nsq.ask("POST", "/topic/create?topic=t")
    assert answer.headers == {"Content-Length": "0", "X-Nsq-Content-Type": version}
    answer = nsq.ask("GET", "/info")
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    answer = nsq.ask("GET", "/ping")
    assert answer.body == b"OK"
    assert answer.headers == {"Content-Length": "2", "Content-Type": "text/plain; charset=utf-8"}


@pytest.mark.parametrize(
    ("method", "target", "status", "headers"),
    [
        ("GET", "/nope", 404, {}),
        ("GET", "/", 404, {}),
        ("OPTIONS", "/nope", 404, {}),
        ("POST", "/ping/", 404, {}),
        ("GET", "/config", 404, {}),
        ("GET", "/config/", 404, {}),
        ("GET", "/config/a/b", 404, {}),
        ("GET", "/pub", 405, {"Allow": "OPTIONS, POST"}),
        ("HEAD", "/ping", 405, {"Allow": "GET, OPTIONS"}),
        ("DELETE", "/config/id", 405, {"Allow": "GET, OPTIONS, PUT"}),
        ("OPTIONS", "/config/id", 200, {"Allow": "GET, OPTIONS, PUT"}),
        ("OPTIONS", "/pub", 200, {"Allow": "OPTIONS, POST"}),
        ("OPTIONS", "*", 200, {"Allow": "GET, OPTIONS, POST, PUT"}),
        ("GET", "/ping/", 301, {"Location": "/ping"}),
        ("GET", "/PING?x=1", 301, {"Location": "/ping?x=1"}),
        ("GET", "//ping", 301, {"Location": "/ping"}),
        ("GET", "/x/../ping", 301, {"Location": "/ping"}),
        ("GET", "/CONFIG/Id", 301, {"Location": "/config/Id"}),
        ("POST", "/pub/?topic=a", 307, {"Location": "/pub?topic=a"}),
    ],
)
def test_routing(nsq: Harness, method: str, target: str, status: int, headers: dict[str, str]) -> None:
    """nsq.md 3.1: unknown path, wrong method, OPTIONS, nearly right path."""
    answer = nsq.ask(method, target)
    assert answer.status == status
    assert headers.items() <= answer.headers.items()
    if status in (404, 405):
        assert answer.code == {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}[status]
        assert answer.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


def test_find_similar_path_keeps_a_parameter_as_it_is() -> None:
    """Only the fixed part of a path is compared without regard to case."""
    assert find_similar_path("/Config/Log_Level/", {"/config/:opt"}) == "/config/Log_Level"
    assert find_similar_path("/Config/Log_Level/", {"/ping"}) is None
    assert find_similar_path("/other", {"/ping"}) is None


# -- publishing --


@pytest.mark.parametrize(
    ("target", "body", "status", "code"),
    [
        ("/pub", b"", 400, "MSG_EMPTY"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=a%zz", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=a;b", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a+b", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=99999999999999999999", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=$", b"x" * (MAX_MESSAGE + 1), 413, "MSG_TOO_BIG"),
        ("/mpub?topic=$", b"x" * (MAX_BODY + 1), 400, "INVALID_TOPIC"),
        ("/mpub?topic=t", b"x" * (MAX_BODY + 1), 413, "BODY_TOO_BIG"),
        ("/mpub?topic=t", b"x\n" + b"y" * (MAX_MESSAGE + 1), 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t&defer=x", b"a", 400, "INVALID_DEFER"),
        ("/mpub?topic=t&binary=true", b"", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", b"\0\0\0\0", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", b"\xff\xff\xff\xff", 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=true", struct.pack(">i", 60), 413, "BAD_BODY"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=yes", struct.pack(">ii", 1, 0), 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", struct.pack(">ii", 1, 2) + b"x", 413, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", struct.pack(">ii", 1, MAX_MESSAGE + 1) + b"x" * 101, 413, "BAD_MESSAGE"),
    ],
)
def test_publish_refusals(nsq: Harness, target: str, body: bytes, status: int, code: str) -> None:
    """nsq.md 3.2: codes of /pub and /mpub in check order; nothing is published and the refusal is counted."""
    answer = nsq.ask("POST", target, body)
    assert (answer.status, answer.code) == (status, code)
    assert nsq.broker.published == []
    assert nsq.app.counters.refusals == Counter({code: 1})


def test_announced_length_is_refused_before_the_body_is_read(nsq: Harness) -> None:
    """nsq.md 3.2: the Content-Length check comes first, even before the topic's."""
    headers = {b"content-length": b"100000"}
    assert nsq.ask("POST", "/pub", headers=headers).code == "MSG_TOO_BIG"
    assert nsq.ask("POST", "/mpub", headers=headers).code == "BODY_TOO_BIG"


def test_refusal_before_100_continue_closes_the_connection(nsq: Harness) -> None:
    """A peer that still waits for 100 Continue may send its body or not: the connection cannot be reused."""
    headers = {b"content-length": b"100000", b"expect": b"100-continue"}
    assert nsq.ask("POST", "/pub?topic=t", headers=headers).headers["connection"] == "close"
    assert "connection" not in nsq.ask("POST", "/pub?topic=t", b"x", headers={b"expect": b"100-continue"}).headers


def test_topic_is_created_before_defer_and_messages_are_checked(nsq: Harness) -> None:
    """nsq.md 3.2, last line."""
    nsq.ask("POST", "/pub?topic=a&defer=x", b"x")
    nsq.ask("POST", "/mpub?topic=b&binary=true", b"")
    assert list(nsq.broker.topics) == ["a", "b"]


@pytest.mark.parametrize(
    ("target", "body", "messages"),
    [
        ("/mpub?topic=t", b"one\ntwo\n", [b"one", b"two"]),
        ("/mpub?topic=t", b"\n\none\r\n\ntwo", [b"one\r", b"two"]),
        ("/mput?topic=t&binary=false", b"one", [b"one"]),
        ("/mpub?topic=t&binary=0", b"x" * MAX_MESSAGE, [b"x" * MAX_MESSAGE]),
        ("/mpub?topic=t&binary=1", struct.pack(">ii3si1s", 2, 3, b"a\nb", 1, b"c") + b"rest", [b"a\nb", b"c"]),
        ("/put?topic=t", b"a=1&topic=b", [b"a=1&topic=b"]),
    ],
)
def test_publish(nsq: Harness, target: str, body: bytes, messages: list[bytes]) -> None:
    """nsq.md 3.1, 3.2: bodies are raw, lines or counted messages; /put and /mput are aliases (X-NSQ-17)."""
    headers = {b"content-type": b"application/x-www-form-urlencoded"}
    answer = nsq.ask("POST", target, *[body[i : i + 1] for i in range(len(body))], headers=headers)
    assert (answer.status, answer.body) == (200, b"OK")
    assert [row[:3] for row in nsq.broker.published] == [("t", len(messages), sum(map(len, messages)))]


def test_empty_text_mpub_is_ok_and_publishes_nothing(nsq: Harness) -> None:
    """nsq.md 3.2, /mpub modes."""
    assert nsq.ask("POST", "/mpub?topic=t", b"\n\n").body == b"OK"
    assert nsq.broker.published == []
    assert list(nsq.broker.topics) == ["t"]


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", b"a\n" * 25),
        ("&binary=true", struct.pack(">i", 25) + struct.pack(">i1s", 1, b"a") * 25),
    ],
)
def test_large_mpub_gives_the_loop_back_between_its_portions(
    nsq: Harness, monkeypatch: pytest.MonkeyPatch, query: str, body: bytes
) -> None:
    """Millions of short lines took the loop for seconds, and 150 times their size in memory."""
    monkeypatch.setattr("headrace.nsq.http.PORTION_MESSAGES", 10)
    seen: list[int] = []

    async def other() -> None:
        while len(nsq.broker.published) < 3:
            seen.append(len(nsq.broker.published))
            await asyncio.sleep(0)

    async def both() -> Answer:
        answer, _ = await asyncio.gather(nsq.ask_async("POST", f"/mpub?topic=t{query}", body), other())
        return answer

    assert asyncio.run(both()).body == b"OK"
    assert [row[:3] for row in nsq.broker.published] == [("t", 10, 10), ("t", 10, 10), ("t", 5, 5)]
    assert {1, 2} <= set(seen)


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("", b"a\n" * 25 + b"x" * (MAX_MESSAGE + 1), "MSG_TOO_BIG"),
        ("&binary=true", struct.pack(">i", 26) + struct.pack(">i1s", 1, b"a") * 25, "BAD_MESSAGE"),
    ],
)
def test_large_mpub_with_one_wrong_message_publishes_nothing(
    nsq: Harness, monkeypatch: pytest.MonkeyPatch, query: str, body: bytes, code: str
) -> None:
    """nsq.md 3.2: the whole body is checked before its first portion is stored."""
    monkeypatch.setattr("headrace.nsq.http.PORTION_MESSAGES", 10)
    answer = nsq.ask("POST", f"/mpub?topic=t{query}", body)
    assert (answer.status, answer.code) == (413, code)
    assert nsq.broker.published == []


def test_large_mpub_waits_for_the_disk_between_its_portions(nsq: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the disk has a bound, whatever one body holds."""
    monkeypatch.setattr("headrace.nsq.http.PORTION_MESSAGES", 10)

    async def publish() -> Answer:
        task = asyncio.ensure_future(nsq.ask_async("POST", "/mpub?topic=t", b"a\n" * 25))
        while not await asyncio.sleep(0, nsq.broker.published):
            pass
        nsq.broker.overloaded, nsq.broker.gate.durable = True, 0
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(nsq.broker.published) == 1
        nsq.broker.overloaded, nsq.broker.gate.durable = False, 1 << 40
        for opened in nsq.broker.gate.waiting:
            opened(None)
        return await task

    assert asyncio.run(publish()).body == b"OK"
    assert len(nsq.broker.published) == 3


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize("defer", ["0", "%2B5", "3600000"])
def test_defer_is_accepted_by_both(nsq: Harness, path: str, defer: str) -> None:
    """nsq.md 3.2: defer in ms up to max_req_timeout, on /mpub too."""
    assert nsq.ask("POST", f"{path}?topic=t&defer={defer}", b"x").status == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StoreFullError("full"), 503, "EXITING"),
        (ClosingError("closing"), 503, "EXITING"),
        (FlushError("/data/log", 5), 503, "EXITING"),
        (HeadraceError("?"), 500, "INTERNAL_ERROR"),
    ],
)
def test_publish_failures(nsq: Harness, error: HeadraceError, status: int, code: str) -> None:
    """nsq.md 3.2: storage errors are EXITING."""
    nsq.broker.fails = error
    answer = nsq.ask("POST", "/pub?topic=t", b"x")
    assert (answer.status, answer.code) == (status, code)


def test_limits_that_requests_break_are_logged_once_a_minute(nsq: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 3, bad input: a refusal names its limit. nsqd's code names none, so the log does."""
    caplog.set_level(logging.WARNING)
    nsq.broker.fails = QuotaExceededError("the broker has its limit of 3 topics (broker.max_topics)")
    for passed_ms in (0, 59_999, 1):
        nsq.clock.advance_ms(passed_ms)
        answer = nsq.ask("POST", "/pub?topic=t", b"x")
        assert (answer.status, answer.code) == (503, "EXITING")
    assert [record.getMessage() for record in caplog.records] == 2 * [
        "HTTP request refused path=/pub status=503 error=the broker has its limit of 3 topics (broker.max_topics)"
    ]


def test_each_limit_is_named_in_the_log(nsq: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """nsq-http.md: 503 is a limit, which the log names; one that is broken all the time hides no other."""
    caplog.set_level(logging.INFO)
    limits = ("4 topics (broker.max_topics)", "4 channels (broker.max_channels)")
    for limit in (*limits, *limits):
        nsq.broker.fails = QuotaExceededError(f"the broker has its limit of {limit}")
        assert nsq.ask("POST", "/pub?topic=t", b"m").status == 503
    lines = [record.getMessage() for record in caplog.records]
    assert [line.rpartition(" of ")[2] for line in lines] == list(limits)


@pytest.mark.parametrize("target", ["/pub?topic=t", "/mpub?topic=t", "/topic/create?topic=t"])
def test_reply_waits_for_durability(nsq: Harness, target: str) -> None:
    """An answered publish or creation is durable; a failed flush is answered with an error."""

    async def scenario(error: FlushError | None) -> Answer:
        nsq.broker.next_offset += 100
        nsq.broker.topics.clear()
        nsq.broker.gate.durable = nsq.broker.next_offset - 1
        asking = asyncio.ensure_future(nsq.ask_async("POST", target, b"x"))
        while not nsq.broker.gate.waiting:  # noqa: ASYNC110  # the fake gate has no event
            await asyncio.sleep(0)
        assert not asking.done()
        nsq.broker.gate.waiting.pop()(error)
        return await asking

    assert asyncio.run(scenario(None)).status == 200
    assert asyncio.run(scenario(FlushError("/data/log", 5))).status == 503


def test_publish_waits_while_the_disk_is_behind(nsq: Harness) -> None:
    """Bytes awaiting a flush are bounded; the publisher waits, nothing is appended meanwhile."""

    async def scenario() -> Answer:
        nsq.broker.overloaded, nsq.broker.gate.durable = True, 76
        asking = asyncio.ensure_future(nsq.ask_async("POST", "/pub?topic=t", b"x"))
        while not nsq.broker.gate.waiting:  # noqa: ASYNC110  # the fake gate has no event
            await asyncio.sleep(0)
        assert nsq.broker.published == []
        assert nsq.app._bodies.bytes_in_memory == 0, "the body is not even read"
        nsq.broker.overloaded = False
        nsq.broker.gate.waiting.pop()(None)
        return await asking

    assert asyncio.run(scenario()).status == 200
    assert len(nsq.broker.published) == 1


def test_body_that_stalls_is_given_up(nsq: Harness) -> None:
    """Slow loris: a body that pauses longer than the limit publishes nothing."""
    answer = asyncio.run(nsq.ask_async("POST", "/pub?topic=t", b"x", whole=False))
    assert answer.status == 408
    assert nsq.broker.published == []


def test_bodies_in_memory_are_bounded(nsq: Harness) -> None:
    """What buffers has a bound; at the bound the request is refused."""
    nsq.app._bodies.bytes_in_memory = 990
    answer = nsq.ask("POST", "/mpub?topic=t", b"x" * 20)
    assert (answer.status, answer.code) == (503, "EXITING")
    assert nsq.app._bodies.bytes_in_memory == 990


def test_stats_leave_out_the_brokers_own_topics_and_names_that_nsq_cannot_spell(nsq: Harness) -> None:
    """Contract: NSQ's listings show what NSQ clients can use."""
    for name in ("shown", "%RETRY%group", "caf\u00e9", "x" * 65, "TBW102", "rmq_sys_wheel_timer"):
        nsq.broker.ensure_topic(name)
    for name in ("TBW102", "rmq_sys_wheel_timer"):
        nsq.broker.topics[name].is_system = True
    nsq.broker.topics["rmq_sys_wheel_timer"].channels["headrace"] = None
    for topic in nsq.broker.topics.values():
        vars(topic).update(
            ephemeral=False, depth=0, message_count=0, message_bytes=0, paused=False, frozen=None, queues=[]
        )
    answer = nsq.ask("GET", "/stats?format=json")
    assert [row["topic_name"] for row in msgspec.json.decode(answer.body)["topics"]] == ["shown"]
    answer = nsq.ask("GET", "/stats?format=json&topic=TBW102")
    assert msgspec.json.decode(answer.body)["topics"] is None


# -- topics and channels --


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("/topic/create?topic=$", 400, "INVALID_TOPIC"),
        ("/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("/topic/delete?topic=$", 404, "TOPIC_NOT_FOUND"),
        ("/topic/empty?topic=$", 400, "INVALID_TOPIC"),
        ("/topic/empty?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("/topic/pause?topic=$", 404, "TOPIC_NOT_FOUND"),
        ("/topic/unpause", 400, "MISSING_ARG_TOPIC"),
        ("/channel/create?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("/channel/create?topic=$", 400, "INVALID_ARG_TOPIC"),
        ("/channel/create?topic=SCHEDULE_TOPIC_XXXX&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("/channel/create?topic=none", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/create?topic=none&channel=$", 400, "INVALID_ARG_CHANNEL"),
        ("/channel/create?topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/channel/delete?topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/channel/delete?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/empty?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/pause?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/unpause?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/pause?topic=t&channel=c%", 400, "INVALID_REQUEST"),
    ],
)
def test_administration_refusals(nsq: Harness, target: str, status: int, code: str) -> None:
    """nsq.md 3.2: codes in check order."""
    nsq.broker.ensure_topic("t")
    answer = nsq.ask("POST", target)
    assert (answer.status, answer.code) == (status, code)
    assert nsq.broker.calls == []


def test_administration(nsq: Harness) -> None:
    """nsq.md 3.2: every call reaches the core with its arguments and answers 200 with an empty body."""
    for call in (
        "topic/create?topic=t",
        "topic/create?topic=t",
        "channel/create?topic=t&channel=c",
        "topic/pause?topic=t",
        "topic/unpause?topic=t",
        "topic/empty?topic=t",
        "channel/pause?topic=t&channel=c",
        "channel/unpause?topic=t&channel=c",
        "channel/empty?topic=t&channel=c",
        "channel/delete?topic=t&channel=c",
        "topic/delete?topic=t",
    ):
        answer = nsq.ask("POST", "/" + call)
        assert (answer.status, answer.body) == (200, b""), call
    assert nsq.broker.calls == [
        ("pause_topic", "t", True),
        ("pause_topic", "t", False),
        ("empty_topic", "t"),
        ("pause_channel", "t", "c", True),
        ("pause_channel", "t", "c", False),
        ("empty_channel", "t", "c"),
        ("delete_channel", "t", "c"),
        ("delete_topic", "t"),
    ]


@pytest.mark.parametrize(("error", "status"), [(None, 200), (OSError(28, "No space left on device"), 503)])
def test_a_deleted_topic_is_answered_when_what_groups_committed_is_forgotten(
    nsq: Harness, error: OSError | None, status: int
) -> None:
    """Else a kill brings it back, for a topic of that name that is made later."""
    saves: list[str] = []

    def when_saved(saved: Callable[[OSError | None], None]) -> None:
        saves.append("offsets")
        saved(error)

    nsq.app.offsets = SimpleNamespace(groups_of={"t": ["g"]}.get, when_saved=when_saved)  # type: ignore[assignment]
    for topic in ("t", "u"):
        nsq.broker.ensure_topic(topic)
    assert nsq.ask("POST", "/topic/delete?topic=u").status == 200
    assert saves == []
    assert nsq.ask("POST", "/topic/delete?topic=t").status == status
    assert saves == ["offsets"]


def test_tmp_is_another_spelling_of_ephemeral(nsq: Harness) -> None:
    """X-NSQ-01, nsq.md 1.14: both suffixes name the same topic and channel, over HTTP."""
    nsq.ask("POST", "/pub?topic=t%23tmp", b"x")
    nsq.ask("POST", "/channel/create?topic=t%23ephemeral&channel=c%23tmp")
    assert list(nsq.broker.topics) == ["t#ephemeral"]
    assert list(nsq.broker.topics["t#ephemeral"].channels) == ["c#ephemeral"]
    assert nsq.ask("POST", f"/pub?topic={'t' * 60}%23tmp", b"x").code == "INVALID_TOPIC"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("5", 5), ("-5", -5), ("+5", 5), ("007", 7), ("9223372036854775807", 2**63 - 1)],
        *[("", None), (" 5", None), ("5_0", None), ("0x5", None), ("9223372036854775808", None), ("9" * 5000, None)],
    ],
)
def test_integers_are_read_as_go_reads_them(text: str, value: int | None) -> None:
    """strconv.ParseInt in base 10 and 64 bits."""
    assert parse_integer(text) == value


# -- reading --


def test_ping_tells_a_failed_write(nsq: Harness) -> None:
    """nsq.md 3.2, C-PROTO-18."""
    nsq.health = "fdatasync failed"
    answer = nsq.ask("GET", "/ping")
    assert (answer.status, answer.body) == (500, b"NOK - fdatasync failed")


def test_info(nsq: Harness) -> None:
    """nsq.md 3.3: real ports, ns durations, seconds since 1970."""
    assert msgspec.json.decode(nsq.ask("GET", "/info").body) == {
        "version": "1.3.0",
        "broadcast_address": "here.example",
        "hostname": "here",
        "http_port": 34151,
        "tcp_port": 34150,
        "start_time": (NOW_MS - 61_500) // 1000,
        "max_heartbeat_interval": 60_000_000_000,
        "max_output_buffer_size": 65536,
        "max_output_buffer_timeout": 30_000_000_000,
        "max_deflate_level": 6,
        "topology_zone": "",
        "topology_region": "",
    }


@pytest.mark.parametrize(
    ("name", "content_type", "body"),
    [
        ("msg_timeout", "application/json; charset=utf-8", b"60000000000"),
        ("log_level", "application/json; charset=utf-8", b"2"),
        ("id", "application/json; charset=utf-8", b"7"),
        ("tcp_address", "text/plain; charset=utf-8", b"127.0.0.1:34150"),
        ("broadcast_http_port", "application/json; charset=utf-8", b"34151"),
        ("snappy", "application/json; charset=utf-8", b"false"),
        ("nsqlookupd_tcp_addresses", "application/json; charset=utf-8", b"[]"),
        ("statsd_address", None, b""),
        ("statsd_prefix", "text/plain; charset=utf-8", b"nsq.here_example_34151."),
        ("statsd_interval", "application/json; charset=utf-8", b"60000000000"),
        ("statsd_mem_stats", "application/json; charset=utf-8", b"true"),
        ("statsd_udp_packet_size", "application/json; charset=utf-8", b"508"),
        ("statsd_exclude_ephemeral", "application/json; charset=utf-8", b"false"),
        ("tls_cert", None, b""),
    ],
)
def test_config(nsq: Harness, name: str, content_type: str | None, body: bytes) -> None:
    """nsq.md 3.2: strings as raw text, everything else as JSON, durations in ns."""
    answer = nsq.ask("GET", f"/config/{name}")
    assert (answer.status, answer.body, answer.headers.get("Content-Type")) == (200, body, content_type)


def test_ports_that_clients_are_told_are_set() -> None:
    """nsq.md 12.1, trap 16: /info keeps the real ports."""
    nsq = Harness(broadcast_tcp_port=14150, broadcast_http_port=14151)
    assert nsq.ask("GET", "/config/broadcast_tcp_port").body == b"14150"
    assert nsq.ask("GET", "/config/broadcast_http_port").body == b"14151"
    info = msgspec.json.decode(nsq.ask("GET", "/info").body)
    assert (info["tcp_port"], info["http_port"]) == (34150, 34151)


class FakePeers:
    def __init__(self) -> None:
        self.addresses = ["a:4160"]

    def set_addresses(self, addresses: list[str]) -> None:
        self.addresses = addresses


def test_nsqlookupds_can_be_set() -> None:
    """nsq.md 3.2: PUT /config/nsqlookupd_tcp_addresses; recorded of nsqd 1.3.0, which takes any text."""
    nsq = Harness(FakePeers())
    assert nsq.ask("GET", "/config/nsqlookupd_tcp_addresses").body == b'["a:4160"]'
    for value, told in (
        (b' ["b:1", "c"] ', b'["b:1","c"]'),
        (b'["", "b:1", "b:1"]', b'["","b:1","b:1"]'),
        (b"[]", b"[]"),
        (b"null", b"[]"),
    ):
        answer = nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", value)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert answer.body == nsq.ask("GET", "/config/nsqlookupd_tcp_addresses").body == told


@pytest.mark.parametrize(
    "value", [b'"a:1"', b"{}", b"[1]", b"x", b'["a:1"] x', b'[["a"]]', b"true", b"0", b'["a:1",]', b"\xff"]
)
def test_nsqlookupds_that_are_none(value: bytes) -> None:
    """Those that were set stay."""
    nsq = Harness(FakePeers())
    answer = nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", value)
    assert (answer.status, answer.code) == (400, "INVALID_VALUE")
    assert nsq.ask("GET", "/config/nsqlookupd_tcp_addresses").body == b'["a:4160"]'


def test_too_many_nsqlookupds() -> None:
    """Each takes a connection."""
    nsq = Harness(FakePeers(), max_message_bytes=10_000)
    few, many = (msgspec.json.encode([f"h:{port}" for port in range(1, 1 + count)]) for count in (100, 101))
    assert nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", few).status == 200
    assert nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", many).code == "INVALID_VALUE"
    assert nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", b"").status == 413


def test_a_nsqlookupd_with_too_long_a_name() -> None:
    """It would be kept and logged, 4 MiB of it."""
    nsq = Harness(FakePeers(), max_message_bytes=10_000)
    assert nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", msgspec.json.encode(["h" * 300])).status == 200
    answer = nsq.ask("PUT", "/config/nsqlookupd_tcp_addresses", msgspec.json.encode(["h" * 301]))
    assert (answer.status, answer.code) == (400, "INVALID_VALUE")


def test_nsqlookupds_of_a_broker_that_serves_no_nsq_over_tcp() -> None:
    """There is nothing to announce."""
    assert Harness().ask("PUT", "/config/nsqlookupd_tcp_addresses", b"[]").code == "INVALID_OPTION"


def test_log_level_can_be_set(nsq: Harness) -> None:
    """nsq.md 3.2: PUT /config/log_level."""
    answer = nsq.ask("PUT", "/config/log_level", b"DEBUG")
    assert (answer.status, answer.body) == (200, b"1")
    assert nsq.logger.level == logging.DEBUG


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("log_level", b"", 413, "INVALID_VALUE"),
        ("log_level", b"x" * (MAX_MESSAGE + 1), 413, "INVALID_VALUE"),
        ("log_level", b"loud", 400, "INVALID_VALUE"),
        ("log_level", b" info", 400, "INVALID_VALUE"),
        ("log_level", b"info\n", 400, "INVALID_VALUE"),
        ("msg_timeout", b"1", 400, "INVALID_OPTION"),
        ("nope", b"1", 400, "INVALID_OPTION"),
    ],
)
def test_config_refusals(nsq: Harness, name: str, body: bytes, status: int, code: str) -> None:
    """nsq.md 3.2: codes of PUT /config/:opt."""
    answer = nsq.ask("PUT", f"/config/{name}", body)
    assert (answer.status, answer.code) == (status, code)


def test_unknown_option(nsq: Harness) -> None:
    """nsq.md 3.2: GET /config/:opt."""
    assert nsq.ask("GET", "/config/nope").code == "INVALID_OPTION"


@pytest.mark.provokes_bugs
def test_a_bug_is_answered_and_logged(nsq: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """nsq.md 3.1: panic is 500 INTERNAL_ERROR; the process lives."""
    nsq.broker.topics = None  # type: ignore[assignment]
    answer = nsq.ask("GET", "/stats")
    assert (answer.status, answer.code) == (500, "INTERNAL_ERROR")
    assert "HTTP request failed by a bug" in caplog.text
