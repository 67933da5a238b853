"""nsqlookupd's answers to clients from before NSQ 1.0, beside today's (X-NSQ-18)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from headrace.clock import ManualClock
from headrace.errors import ClosingError
from headrace.nsq.lookupd import old_form
from headrace.nsq.lookupd.http import LookupdHttp
from headrace.registry.producers import ProducerInfo, ProducerTable


@pytest.fixture(scope="module")
def table() -> ProducerTable:
    made = ProducerTable(
        silent_ms=1 << 40, tombstone_ms=1, max_producers=1, max_topics=9, max_channels=9, max_registrations=2
    )
    info = ProducerInfo(
        remote_address="r:1", hostname="h", broadcast_address="b", tcp_port=4150, http_port=4151, version="1.3.0"
    )
    made.identify("owner", info, 0)
    made.register("owner", "t", "c")
    return made


def ask(table: ProducerTable, target: str, **headers: str) -> tuple[int, dict[bytes, bytes], list[bytes]]:
    """Return status, headers and the pieces of the body."""
    path, _, query = target.partition("?")
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": "GET", "path": path, "query_string": query.encode(), "headers": lines}
    sent: list[Any] = []

    async def receive() -> Any:
        raise ClosingError

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(LookupdHttp(table=table, clock=ManualClock())(scope, receive, send))
    assert [each.get("more_body", False) for each in sent[1:]] == [True] * (len(sent) - 2) + [False]
    return sent[0]["status"], dict(sent[0]["headers"]), [each["body"] for each in sent[1:]]


@pytest.mark.parametrize("target", ["/lookup?topic=t", "/topics", "/channels?topic=t", "/nodes", "/debug", "/info"])
def test_data_holds_what_is_beside_it(table: ProducerTable, target: str) -> None:
    _, headers, (body,) = ask(table, target)
    told = json.loads(body)
    assert (told.pop("status_code"), told.pop("status_txt")) == (200, "OK")
    assert told.pop("data") == told != {}
    assert headers[b"X-Nsq-Content-Type"] == b"nsq; version=1.0"
    today = json.loads(ask(table, target, accept="application/vnd.nsq; version=1.0")[2][0])
    assert today == told


@pytest.mark.parametrize(
    ("target", "status", "number", "message"),
    [
        ("/lookup", 400, 500, "MISSING_ARG_TOPIC"),
        ("/lookup?topic=none", 404, 500, "TOPIC_NOT_FOUND"),
        ("/channels?topic=%zz", 400, 500, "INVALID_REQUEST"),
        ("/nothing", 404, 404, "NOT_FOUND"),
        ("/topic/create", 405, 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_refusals_have_the_numbers_of_then(
    table: ProducerTable, target: str, status: int, number: int, message: str
) -> None:
    """nsqlookupd 0.3.8: 500 for whatever a handler refuses, in the body as in the status."""
    answered, headers, (body,) = ask(table, target)
    assert answered == status
    assert json.loads(body) == {"status_code": number, "status_txt": message, "data": None, "message": message}
    assert (b"Allow" in headers) == (status == 405)
    assert ask(table, target, accept="application/vnd.nsq; version=1.0")[2] == [b'{"message":"%b"}' % message.encode()]


@pytest.mark.parametrize("accept", ["application/vnd.nsq version=1.0", "x/y, application/vnd.nsq;version=1.0;q=1"])
def test_who_asks_for_version_1(table: ProducerTable, accept: str) -> None:
    assert ask(table, "/topics", accept=accept)[2] == [b'{"topics":["t"]}']


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/vnd.nsq; version=1.01", ""])
def test_who_does_not(table: ProducerTable, accept: str) -> None:
    assert b'"status_code":200' in ask(table, "/topics", accept=accept)[2][0]


def test_an_empty_object() -> None:
    nobody = ProducerTable(
        silent_ms=1, tombstone_ms=1, max_producers=1, max_topics=1, max_channels=1, max_registrations=2
    )
    assert ask(nobody, "/debug")[2] == [b'{"status_code":200,"status_txt":"OK","data":{}}']
    assert ask(nobody, "/debug", accept="application/vnd.nsq; version=1.0")[2] == [b"{}"]


def test_long_fields_are_in_memory_once(table: ProducerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes go out twice."""
    whole = b"".join(ask(table, "/nodes")[2])
    monkeypatch.setattr(old_form, "SHORT_BYTES", 10)
    _, headers, pieces = ask(table, "/nodes")
    assert b"".join(pieces) == whole
    assert int(headers[b"Content-Length"]) == len(whole)
    longest = max(pieces, key=len)
    assert [piece is longest for piece in pieces].count(True) == 2
    assert sum(map(len, pieces)) - 2 * len(longest) < 100


def test_ping_and_redirects_have_none(table: ProducerTable) -> None:
    assert ask(table, "/ping")[2] == [b"OK"]
    assert ask(table, "/Topics")[2] == [b'<a href="/topics">Moved Permanently</a>.\n\n']
