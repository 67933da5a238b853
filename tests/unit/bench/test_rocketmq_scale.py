"""The raw clients of bench.scale."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bench.rocketmq_scale import Crowd, RawClient, heartbeat_body
from headrace.format import fastjson
from headrace.remoting.codec import decode_command, encode_request, encode_response
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.handlers.clients import read_subscription


class Pipe:
    """Stands in for a transport."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_answers_and_questions_are_counted_however_they_come(piece: int) -> None:
    async def talk() -> Crowd:
        crowd = Crowd(cast(Any, None), 1)
        client = RawClient(crowd, 0)
        client.transport = cast(Any, Pipe())
        client.beat()
        ok, busy = ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY
        told = encode_request(0, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 9, True, {"consumerGroup": "G"})
        come = encode_response(0, 1, ok, "") + told + encode_response(0, 1, busy, "no")
        for at in range(0, len(come), piece):
            client.data_received(come[at : at + piece])
        assert client.first.done()
        (beat,) = cast(Pipe, client.transport).written
        assert decode_command(beat).code == RequestCode.HEART_BEAT
        return crowd

    crowd = asyncio.run(talk())
    assert (crowd.accepted, crowd.refused, crowd.asked) == (1, 1, 1)


def test_heartbeat_is_one_that_the_broker_takes() -> None:
    body = fastjson.loads(heartbeat_body(41))
    (data,) = body["consumerDataSet"]
    assert data["groupName"] == "scale-group-2"
    subscriptions = [read_subscription(given) for given in data["subscriptionDataSet"]]
    assert [subscription.topic for subscription in subscriptions] == ["BenchmarkTest", "%RETRY%scale-group-2"]
