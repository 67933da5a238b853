"""nsqlookupd's /nodes, which has every topic of every producer."""

from __future__ import annotations

import asyncio
import json

from headrace.clock import ManualClock
from headrace.errors import ClosingError
from headrace.nsq.http_request import Reply, Request
from headrace.nsq.lookupd import answers, http
from headrace.registry.producers import ProducerInfo, ProducerTable

TODAY = {b"accept": b"application/vnd.nsq; version=1.0"}
PRODUCERS = 20
TOPICS = answers.SLICE_COST


def make_table(producers: int, topics: int = TOPICS) -> ProducerTable:
    made = ProducerTable(
        silent_ms=1 << 40,
        tombstone_ms=1,
        max_producers=producers + 1,
        max_topics=TOPICS,
        max_channels=1,
        max_registrations=PRODUCERS * TOPICS,
    )
    for number in range(producers):
        info = ProducerInfo(
            remote_address=f"1.2.3.4:{number}",
            hostname="h",
            broadcast_address="b",
            tcp_port=1,
            http_port=2,
            version="1.3.0",
        )
        made.identify(number, info, 0)
        for topic in range(topics):
            made.register(number, f"t{topic}")
    return made


async def _unread() -> dict[str, object]:
    raise ClosingError


def ask_nodes(table: ProducerTable, *, leaving: int | None = None) -> tuple[Reply, int]:
    """Ask; return the answer, and how many turns others had meanwhile. One may leave in the first of them."""
    application = http.LookupdHttp(table=table, clock=ManualClock())

    async def ask() -> tuple[Reply, int]:
        asked = asyncio.ensure_future(application.handle_nodes(Request("GET", "/nodes", "", TODAY, _unread)))
        turns = 0
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 1 and leaving is not None:
                table.connection_closed(leaving)
        return asked.result(), turns

    return asyncio.run(ask())


def test_others_have_turns_while_it_is_written() -> None:
    """A million registrations took 0.3 s in one go."""
    reply, turns = ask_nodes(make_table(PRODUCERS))
    assert turns >= PRODUCERS
    rows = json.loads(reply.body)["producers"]
    assert [row["remote_address"] for row in rows] == [f"1.2.3.4:{number}" for number in range(PRODUCERS)]
    assert all(len(row["topics"]) == len(row["tombstones"]) == TOPICS for row in rows)


def test_others_have_turns_where_nobody_has_a_topic() -> None:
    """Ten thousand took 0.1 s in one go: only topics were counted."""
    producers = 2_000
    reply, turns = ask_nodes(make_table(producers, topics=0))
    assert turns >= producers * answers.NODE_COST // answers.SLICE_COST
    assert len(json.loads(reply.body)["producers"]) == producers


def test_a_producer_may_leave_while_it_is_written() -> None:
    rows = json.loads(ask_nodes(make_table(3), leaving=1)[0].body)["producers"]
    assert {"1.2.3.4:0", "1.2.3.4:2"} <= {row["remote_address"] for row in rows}


def test_nobody() -> None:
    assert ask_nodes(make_table(0))[0].body == b'{"producers":[]}'
