"""nsqlookupd's answers that list names and producers: those of a long table leave turns to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from headrace.clock import ManualClock
from headrace.errors import ClosingError
from headrace.nsq.http_request import Reply, Request
from headrace.nsq.lookupd import http
from headrace.nsq.lookupd.answers import PRODUCER_COST, SLICE_COST
from headrace.registry.producers import ProducerInfo, ProducerTable

TODAY = {b"accept": b"application/vnd.nsq; version=1.0"}
SLICES = 10
NAMES = SLICES * SLICE_COST
PRODUCERS = NAMES // PRODUCER_COST


@pytest.fixture(scope="module")
def table() -> ProducerTable:
    """Many topics, one with many channels, and one with many producers."""
    made = ProducerTable(
        silent_ms=1 << 40,
        tombstone_ms=1,
        max_producers=PRODUCERS,
        max_topics=NAMES,
        max_channels=NAMES,
        max_registrations=PRODUCERS,
    )
    for number in range(1, NAMES):
        made.create(f"t{number}")
        made.create("channels", f"c{number}")
    for number in range(PRODUCERS):
        info = ProducerInfo(
            remote_address=f"r{number}", hostname="h", broadcast_address="b", tcp_port=1, http_port=2, version="v"
        )
        made.identify(number, info, 0)
        made.register(number, "t7")
    return made


async def _unread() -> dict[str, object]:
    raise ClosingError


def ask(table: ProducerTable, *targets: str) -> tuple[list[Reply], int]:
    """Ask all at the same time; return the answers, and how many turns others had meanwhile."""

    async def run() -> tuple[list[Reply], int]:
        application = http.LookupdHttp(table=table, clock=ManualClock())
        requests = (Request("GET", *target.partition("?")[::2], TODAY, _unread) for target in targets)
        asked = [asyncio.ensure_future(application._answer(request)) for request in requests]
        turns = 0
        while not all(task.done() for task in asked):
            await asyncio.sleep(0)
            turns += 1
        return [task.result() for task in asked], turns

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("target", "field", "names"),
    [
        ("/topics", "topics", [*(f"t{number}" for number in range(1, NAMES)), "channels"]),
        ("/channels?topic=channels", "channels", [f"c{number}" for number in range(1, NAMES)]),
        ("/lookup?topic=channels", "channels", [f"c{number}" for number in range(1, NAMES)]),
    ],
)
def test_others_have_turns_while_names_are_written(
    table: ProducerTable, target: str, field: str, names: list[str]
) -> None:
    """A million of them were written in one go."""
    (reply,), turns = ask(table, target)
    assert turns >= SLICES - 1
    assert sorted(json.loads(reply.body)[field]) == sorted(names)


def test_others_have_turns_while_producers_are_written(table: ProducerTable) -> None:
    (reply,), turns = ask(table, "/lookup?topic=t7")
    assert turns >= SLICES - 1
    rows = json.loads(reply.body)["producers"]
    assert [row["remote_address"] for row in rows] == [f"r{number}" for number in range(PRODUCERS)]


def test_a_short_answer_waits_for_no_long_one(table: ProducerTable) -> None:
    """It takes what it takes where nobody asks for more."""
    _, alone = ask(table, "/lookup?topic=t8")
    (reply,), turns = ask(table, "/lookup?topic=t8")
    assert turns == alone <= 2
    assert json.loads(reply.body) == {"channels": [], "producers": []}


def test_long_answers_wait_without_anything_in_memory(table: ProducerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand who ask for a million registrations at once made thousands of lists of them."""
    writing = most = 0
    nodes = ProducerTable.nodes

    def watched(table: ProducerTable, now_ms: int) -> Iterator[object]:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        try:
            yield from nodes(table, now_ms)
        finally:
            writing -= 1

    monkeypatch.setattr(ProducerTable, "nodes", watched)
    replies, _ = ask(table, *["/nodes"] * 30)
    assert [reply.status for reply in replies] == [200] * 30
    assert len({reply.body for reply in replies}) == 1
    assert most <= 2, "one that is written, and one that has just begun"
