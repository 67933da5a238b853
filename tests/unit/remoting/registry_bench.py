"""A registry without a network: requests in, responses out, with time standing still."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.broker.access import AccessRules
from headrace.clock import ManualClock
from headrace.remoting.codec import Command, encode_request
from headrace.remoting.registry.connection import RegistryConnection
from headrace.remoting.registry.server import RegistryServer
from headrace.settings import RegistrySettings
from tests.support.remoting import RemotingLink

A = "10.0.0.1:10911"
A_SLAVE = "10.0.0.2:10911"
B = "10.0.0.3:10911"
NOWHERE = Path("/nowhere")
"""A registry that is not started writes nothing."""


def topic(read: int = 4, write: int = 4, perm: int = 6, sys_flag: int = 0) -> dict[str, int]:
    return {"perm": perm, "readQueueNums": read, "topicSysFlag": sys_flag, "writeQueueNums": write}


class Link(RemotingLink):
    """One peer of the registry."""

    def __init__(self, server: RegistryServer, host: str) -> None:
        super().__init__(RegistryConnection(server), host)
        self._opaque = 0

    def call(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, serialize: int = 0) -> Command:
        """Send a request and return its response."""
        self._opaque += 1
        (response,) = self.send(encode_request(serialize, code, self._opaque, False, ext, body))
        assert (response.opaque, response.serialize, response.is_response) == (self._opaque, serialize, True)
        return response

    def register(
        self,
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = A,
        topics: dict[str, dict[str, int]] | None = None,
        *,
        counter: int = 1,
        cluster: str = "C1",
        filters: list[str] | None = None,
        **ext: Any,
    ) -> Command:
        wrapper = {
            "dataVersion": {"counter": counter, "timestamp": 1000},
            "topicConfigTable": {"T": topic()} if topics is None else topics,
        }
        body = json.dumps({"filterServerList": filters or [], "topicConfigSerializeWrapper": wrapper}).encode()
        return self.call(103, {**broker_ext(name, broker_id, address, cluster), **ext}, body)


def broker_ext(name: str = "broker-a", broker_id: int = 0, address: str = A, cluster: str = "C1") -> dict[str, Any]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": address[:-1] + "2",
        "brokerId": broker_id,
    }


class Bench:
    def __init__(
        self, *, data_dir: Path = NOWHERE, rules: AccessRules | None = None, own_broker: str = "", **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.server = RegistryServer(
            RegistrySettings(**settings), self.clock, data_dir=data_dir, rules=rules, own_broker=own_broker
        )

    def link(self, host: str = "10.9.9.9") -> Link:
        return Link(self.server, host)

    def pass_time(self, milliseconds: int, step_ms: int = 1_000) -> None:
        for _ in range(0, milliseconds, step_ms):
            self.clock.advance_ms(step_ms)
            self.server.check_timers(self.server.clock.monotonic_ms())
