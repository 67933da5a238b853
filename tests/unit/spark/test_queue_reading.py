"""How ranges of queues are asked for, with a broker that is a list of answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode
from headrace.spark import connections
from headrace.spark.queue_reading import QueueRange, QueueReading
from headrace.spark.scan import ServersSource


class Broker:
    """Answers with at most so many records; it is the cluster and its own client."""

    address = "b:1"

    def __init__(self, most: int) -> None:
        self.most = most
        self.opened = 0
        self.closed = 0

    def client(self, address: str) -> Broker:
        assert address == self.address
        return self

    def broker_address(self, name: str) -> str:
        return self.address

    def open_another(self, source: ServersSource) -> Broker:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        low = int(ext["offset"])
        high = min(int(ext["endOffset"]), low + self.most)
        found = {"nextOffset": str(high), "minOffset": "0", "maxOffset": "1000"}
        return Command(int(ResponseCode.SUCCESS), found, b"x" * (high - low))

    def call_many(self, requests: Iterable[tuple[int, dict[str, str], bytes]], window: int) -> Iterator[Command]:
        for request in requests:
            yield self.call(*request)


@pytest.mark.parametrize(("most", "opened"), [(100, 0), (7, 1)])
def test_a_second_connection_is_opened_when_an_answer_leaves_something_out(
    most: int, opened: int, monkeypatch: Any
) -> None:
    broker = Broker(most)
    monkeypatch.setattr(connections, "cluster_of", lambda source: broker)
    monkeypatch.setattr(connections, "new_cluster", broker.open_another)
    reading = QueueReading(ServersSource("r:1"), pull_bytes=4_000)
    found = list(reading.records(QueueRange("t", "b", 0, 0, 100, record_bytes=100)))
    assert b"".join(records for records, _, _ in found) == b"x" * 100
    assert [end for _, _, end in found][-1] == 100
    assert (broker.opened, broker.closed) == (opened, opened)
