"""Pulls of what is not there leave an event. Ref: remoting.md 4.4."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from headrace import testing
from headrace.broker.offset_moved import AGAIN_MS, OffsetMovedEvents
from headrace.errors import StoreFullError
from headrace.remoting.blocking import BlockingClient
from headrace.remoting.codes import RequestCode, ResponseCode
from tests.support.records import decode_messages
from tests.support.remoting import RemotingRig, send_fields


def pull(client: BlockingClient, topic: str, offset: int, *, group: str = "G") -> tuple[int, bytes]:
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "1",
    }
    response = client.call(int(RequestCode.PULL_MESSAGE), ext)
    return response.code, response.body or b""


def events(client: BlockingClient) -> list[tuple[str, dict[str, object]]]:
    code, body = pull(client, "OFFSET_MOVED_EVENT", 0, group="TOOLS")
    return [(m["properties"]["TAGS"], json.loads(m["body"])) for m in decode_messages(body)] if code == 0 else []


def test_an_offset_behind_the_end_leaves_one_event() -> None:
    with (
        testing.broker(broker__name="broker-a", registry__enabled=False) as running,
        BlockingClient(running.remoting) as client,
    ):
        fields = {name: str(value) for name, value in send_fields("T", queue_id=0).items()}
        assert client.call(int(RequestCode.SEND_MESSAGE_V2), fields, b"one").code == 0
        assert events(client) == []
        for _ in range(3):
            assert pull(client, "T", 900)[0] == ResponseCode.PULL_OFFSET_MOVED
        assert pull(client, "T", 901, group="H")[0] == ResponseCode.PULL_OFFSET_MOVED
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        deadline = time.monotonic() + 5
        while len(found := events(client)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # until it is on the disk nobody sees it
        assert [tag for tag, _ in found] == ["G", "H"]
        assert [event["messageQueue"] for _, event in found] == [queue, queue]
        assert found[0][1]["consumerGroup"] == "G"
        assert (found[0][1]["offsetRequest"], found[0][1]["offsetNew"]) == (900, 1)


def test_a_store_that_takes_none_does_not_matter_to_the_pull(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise StoreFullError("the disk is full")

    monkeypatch.setattr("headrace.broker.offset_moved.put", refuse)
    with testing.broker(registry__enabled=False) as running, BlockingClient(running.remoting) as client:
        fields = {name: str(value) for name, value in send_fields("T", queue_id=0).items()}
        assert client.call(int(RequestCode.SEND_MESSAGE_V2), fields, b"one").code == 0
        with caplog.at_level(logging.WARNING):
            for group in ("G", "H"):
                assert pull(client, "T", 900, group=group)[0] == ResponseCode.PULL_OFFSET_MOVED
    assert sum("event not written" in line.message for line in caplog.records) == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("headrace.broker.offset_moved._MAX_REMEMBERED", 2)
    rig = RemotingRig(tmp_path / "store")
    events = OffsetMovedEvents(rig.broker)
    for group in ("A", "B", "C", "A"):
        events.note(group, "T", 0, 9, 1)
    assert (events.counters.written, events.counters.repeated) == (2, 2)
    rig.clock.advance_ms(AGAIN_MS)
    events.note("C", "T", 0, 9, 1)
    assert (events.counters.written, events.counters.repeated) == (3, 2)
    rig.close()
