"""Rows and text of /stats (nsq.md 3.4, 3.5)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.nsq.stats import (
    StatsFilter,
    StatsReport,
    client_row,
    format_duration,
    is_listed,
    memory_row,
    read_producers,
    read_topics,
)

STARTED_MS = 1_795_226_449_000


def client(pub_counts: dict[str, int] | None = None, **changes: Any) -> Any:
    profile = {"client_id": "host", "hostname": "host.example", "user_agent": "ua/1.0", "sample_rate": 0}
    values: dict[str, Any] = {
        "remote_address": "127.0.0.1:33174",
        "state": 3,
        "connected_at_ms": STARTED_MS,
        "subscription": SimpleNamespace(
            ready_count=3, in_flight_count=3, message_count=5, finish_count=1, requeue_count=1
        ),
        "profile": SimpleNamespace(**{name: changes.pop(name, value) for name, value in profile.items()}),
        "pub_counts": pub_counts or {},
        "cause": "",
    }
    return SimpleNamespace(**(values | changes))


def channel(name: str, *clients: Any, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "name": name,
        "ephemeral": name.endswith("#ephemeral"),
        "paused": False,
        "depth": 0,
        "in_flight_count": 3,
        "deferred_count": 1,
        "message_count": 5,
        "requeue_count": 1,
        "timeout_count": 0,
        "subscriptions": [SimpleNamespace(owner=owner) for owner in clients],
    }
    return SimpleNamespace(**(values | changes))


def topic(name: str, *channels: Any, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "name": name,
        "ephemeral": False,
        "paused": False,
        "depth": 0,
        "message_count": 5,
        "message_bytes": 50,
        "channels": {item.name: item for item in channels},
    }
    return SimpleNamespace(**(values | changes))


def rows_of(*topics: Any, **wanted: Any) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [row async for row in read_topics(topics, StatsFilter(**wanted))]

    return asyncio.run(collect())


def report(topics: list[Any] | None, **changes: Any) -> StatsReport:
    values: dict[str, Any] = {
        "version": "1.3.0",
        "health": "OK",
        "started_at_ms": STARTED_MS,
        "topics": None if topics is None else read_topics(topics, StatsFilter()),
        "producers": None,
        "memory": None,
    }
    return StatsReport(**(values | changes))


def test_topics_and_channels_are_sorted_by_name() -> None:
    """nsq.md 3.4."""
    rows = rows_of(topic("b"), topic("a", channel("z"), channel("c")))
    assert [row["topic_name"] for row in rows] == ["a", "b"]
    assert [row["channel_name"] for row in rows[0]["channels"]] == ["c", "z"]
    assert rows[1]["channels"] == []


def test_system_topic_is_listed_while_it_has_channels() -> None:
    """nsq.md 3.4: who consumes ``BenchmarkTest`` finds its depth; what only the broker reads stays hidden."""
    assert is_listed(topic("BenchmarkTest", channel("c"), is_system=True))
    assert not is_listed(topic("BenchmarkTest", is_system=True))
    assert not is_listed(topic("rmq_sys_wheel_timer", channel("headrace"), is_system=True))


def test_latency_exists_on_every_topic_and_channel() -> None:
    """nsq.md 5.3: without it the nsqadmin process ends."""
    (row,) = rows_of(topic("t", channel("c")))
    assert row["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    assert row["channels"][0]["e2e_processing_latency"] == {"count": 0, "percentiles": None}


def test_channel_filter_leaves_out_topics_without_the_channel() -> None:
    """nsq.md 3.4: `[]`, not null."""
    rows = rows_of(topic("a", channel("c"), channel("d")), topic("b"), channel="c")
    assert [(row["topic_name"], [c["channel_name"] for c in row["channels"]]) for row in rows] == [("a", ["c"])]
    assert rows_of(topic("a"), channel="c") == []


def test_clients_can_be_left_out() -> None:
    """nsq.md 3.4: clients null, the count stays; an empty list when there are none."""
    (row,) = rows_of(topic("t", channel("c", client())), include_clients=False)
    assert (row["channels"][0]["clients"], row["channels"][0]["client_count"]) == (None, 1)
    (row,) = rows_of(topic("t", channel("c")))
    assert row["channels"][0]["clients"] == []


def test_stored_depth_is_everything_but_ephemeral() -> None:
    """nsq.md 2.4: consumers compute the memory part as depth minus backend_depth."""
    (row,) = rows_of(topic("t", channel("c", depth=7), channel("e#ephemeral", depth=8), depth=9))
    assert [row["backend_depth"], *(c["backend_depth"] for c in row["channels"])] == [9, 7, 0]


def test_client_row_leaves_out_what_nsqd_leaves_out() -> None:
    """nsq.md 3.4, client: no auth fields, pub_counts only when set, everything else always."""
    row = client_row(client(), "")
    assert not {"authed", "auth_identity", "auth_identity_url", "pub_counts"} & row.keys()
    assert row["connect_ts"] == 1_795_226_449
    assert {"tls_cipher_suite", "tls_version", "tls_negotiated_protocol"} <= row.keys()
    row = client_row(client(pub_counts={"t": 5, "u": 1}), "t")
    assert row["pub_counts"] == [{"topic": "t", "count": 5}]


def test_counts_are_integers_in_json() -> None:
    """nsq.md 3.4: a float makes nsqadmin answer 502."""
    text = asyncio.run(report([topic("t", channel("c", client()))], memory=memory_row()).as_json())
    assert b".0," not in text.replace(b'"127.0.0.1', b"").replace(b'"1.3.0"', b"")
    decoded = msgspec.json.decode(text)
    assert list(decoded) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert "data" not in decoded
    assert all(type(value) is int for value in decoded["memory"].values())


def test_producers_are_connections_that_have_published() -> None:
    """nsq.md 3.4: null when there are none."""
    connections = [client(), client(pub_counts={"t": 2})]
    rows = asyncio.run(read_producers(connections, StatsFilter()))
    assert rows is not None
    assert [row["pub_counts"] for row in rows] == [[{"topic": "t", "count": 2}]]
    assert asyncio.run(read_producers(connections[:1], StatsFilter())) is None


def test_text() -> None:
    """nsq.md 3.5, line by line."""
    topics = [topic("newt", channel("c", client()), channel("p", paused=True, in_flight_count=0))]
    topics.append(topic("q", paused=True))
    producers = [client_row(client(hostname="phost", remote_address="1.2.3.4:9", pub_counts={"a": 1, "b": 2}), "")]
    asked = report(topics, producers=producers, memory={"heap_objects": 4275})
    lines = asyncio.run(asked.as_text(STARTED_MS + 70_500)).decode().splitlines()
    assert lines[1:] == [
        "start_time 2026-11-21T02:00:49Z",
        "uptime 1m10.5s",
        "",
        "Health: OK",
        "",
        "Memory:",
        "   heap_objects             \t4275",
        "",
        "Topics:",
        "   [newt           ] depth: 0     be-depth: 0     msgs: 5        e2e%: ",
        "      [c                        ] depth: 0     be-depth: 0     inflt: 3    def: 1    re-q: 1     "
        "timeout: 0     msgs: 5        e2e%: ",
        "        [V2 host.example:33174 ua/1.0] state: 3 inflt: 3    rdy: 3    fin: 1        re-q: 1        "
        "msgs: 5        connected: 1m10s",
        "   *P [p                        ] depth: 0     be-depth: 0     inflt: 0    def: 1    re-q: 1     "
        "timeout: 0     msgs: 5        e2e%: ",
        "",
        "*P [q              ] depth: 0     be-depth: 0     msgs: 5        e2e%: ",
        "",
        "Producers:",
        "   [V2 phost:9 ua/1.0       ] msgs: 3        topics: a=1,b=2 connected: 1m10s",
    ]
    assert lines[0].startswith("nsqd v1.3.0 ")


def test_text_of_nothing() -> None:
    """nsq.md 3.5, last lines."""
    nothing: tuple[list[Any] | None, ...] = (None, [])
    for topics in nothing:
        text = asyncio.run(report(topics).as_text(STARTED_MS))
        assert text.endswith(b"uptime 0s\n\nHealth: OK\n\nTopics: None\n\nProducers: None\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.141, "141ms"),
        (0.9996, "1s"),
        (1.5, "1.5s"),
        (59, "59s"),
        (59.9996, "1m0s"),
        (60, "1m0s"),
        (3600, "1h0m0s"),
        (90_061.25, "25h1m1.25s"),
        (-1, "0s"),
    ],
)
def test_durations_are_printed_as_go_does(seconds: float, text: str) -> None:
    """time.Duration.String, to the millisecond."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize("form", ["json", "text"])
def test_large_reports_give_the_loop_back(form: str) -> None:
    """Work over 1 ms on the loop is cut up."""

    async def count_turns() -> int:
        asked = report([topic(f"t{number:04}", channel("c")) for number in range(1000)])
        reading = asyncio.ensure_future(asked.as_json() if form == "json" else asked.as_text(STARTED_MS))
        turns = 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(count_turns()) >= 10
