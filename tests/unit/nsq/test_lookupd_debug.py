"""nsqlookupd's /debug, the one answer that has a row for all there is."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.clock import ManualClock
from headrace.errors import ClosingError, QuotaExceededError
from headrace.nsq.http_request import Reply, Request
from headrace.nsq.lookupd import answers, http
from headrace.registry.producers import ProducerInfo, ProducerTable

TODAY = {b"accept": b"application/vnd.nsq; version=1.0"}
CHANNELS = 5_000


@pytest.fixture
def table() -> ProducerTable:
    made = ProducerTable(
        silent_ms=1,
        tombstone_ms=1,
        max_producers=10,
        max_topics=10,
        max_channels=CHANNELS,
        max_registrations=10 * CHANNELS,
    )
    info = ProducerInfo(
        remote_address="1.2.3.4:5", hostname="h", broadcast_address="b", tcp_port=1, http_port=2, version="1.3.0"
    )
    made.identify("owner", info, 0)
    for number in range(CHANNELS):
        made.register("owner", "t", f"c{number}")
    return made


async def _unread() -> dict[str, object]:
    raise ClosingError


def ask_debug(table: ProducerTable, times: int) -> tuple[list[Reply], int]:
    """Ask at the same time; return the answers, and how many turns others had meanwhile."""
    application = http.LookupdHttp(table=table, clock=ManualClock())

    async def ask() -> tuple[list[Reply], int]:
        request = Request("GET", "/debug", "", TODAY, _unread)
        asked = [asyncio.ensure_future(application.handle_debug(request)) for _ in range(times)]
        turns = 0
        while not all(task.done() for task in asked):
            await asyncio.sleep(0)
            turns += 1
        return [task.result() for task in asked], turns

    return asyncio.run(ask())


def test_others_have_turns_while_it_is_written(table: ProducerTable) -> None:
    """It took 3.5 s in one go for a million channels, and nobody else was served."""
    replies, turns = ask_debug(table, 2)
    assert turns >= 2 * CHANNELS * answers.ROW_COST // answers.SLICE_COST
    for reply in replies:
        rows = json.loads(reply.body)
        assert len(rows) == 1 + 1 + CHANNELS
        assert [row["id"] for row in rows["channel:t:c7"]] == ["1.2.3.4:5"]


def test_its_length_is_bounded(table: ProducerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a few that ask and do not read take all memory."""
    monkeypatch.setattr(http, "MAX_DEBUG_BYTES", 100_000)
    with pytest.raises(QuotaExceededError, match="100000 bytes"):
        ask_debug(table, 1)
