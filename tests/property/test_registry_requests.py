"""Whatever a peer sends to a registry: an answer of the protocol, no bug, and a table that still holds together."""

from __future__ import annotations

import json
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.remoting.registry.handlers import HANDLERS
from tests.unit.remoting.registry_bench import Bench, broker_ext

CODES = st.sampled_from([*sorted(HANDLERS), 11, 34, 9999])
NUMBERS = st.sampled_from(["", "0", "1", "-1", "x", "2147483648", "9" * 30, "1.5", "true"])
NAMES = st.one_of(
    st.sampled_from(["broker-a", "T", "C1", "../x", "%", "a\x00b", "h:1", ":1", "h:99999"]), st.text(max_size=9)
)
EXT = st.dictionaries(
    st.sampled_from(
        ["brokerName", "clusterName", "brokerAddr", "topic", "cluster", "namespace", "key", "value", "haServerAddr"]
    ),
    NAMES,
) | st.dictionaries(st.sampled_from(["brokerId", "bodyCrc32", "compressed", "headraceComplete"]), NUMBERS)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "topicConfigSerializeWrapper",
                    "dataVersion",
                    "topicConfigTable",
                    "filterServerList",
                    "queueDatas",
                    "counter",
                    "timestamp",
                    "perm",
                    "readQueueNums",
                    "brokerName",
                    "$ref",
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BODIES = st.one_of(
    st.binary(max_size=40),
    JSON.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: zlib.compress(json.dumps(value).encode())),
    st.binary(max_size=60).map(zlib.compress),
)


@given(st.lists(st.tuples(CODES, EXT, BODIES), max_size=5))
def test_any_request_is_answered_without_a_bug(requests: list[tuple[int, dict[str, Any], bytes]]) -> None:
    """Issue 4, bad input: never a traceback to the peer, never a dead process."""
    bench = Bench()
    link = bench.link()
    link.register()
    for code, ext, body in requests:
        # Half of what is needed is there, so that what follows the first check is reached as well.
        given_ext = {**broker_ext(), "topic": "T", "namespace": "N", "key": "k", "value": "v", "cluster": "C1", **ext}
        response = link.call(code, given_ext, body)
        assert response.code in (0, 1, 2, 3, 13, 16, 17, 22)
        assert response.remark or response.code == 0
    assert bench.server.counters.internal_errors == 0
    table = bench.server.routes
    assert {at for broker in table.brokers.values() for at in broker.addresses.values()} == set(table.live)
    assert all(name in table.brokers for queues in table.topics.values() for name in queues)
    link.connection.eof_received()
    assert not any((table.clusters, table.brokers, table.topics, table.live, table.filter_servers))
