"""The blocking client of Spark's source and sink against real RocketMQ brokers, and the same steps against Headrace.

Ref: docs/protocols/extensions.md; remoting.md 4.3 to 4.8.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import RemotingRefusedError, RouteNotFoundError
from headrace.remoting.blocking import Cluster, read_log_request, read_queue_request
from tests.interop import rocketmq_peers as peers
from tests.support.offsets import update_offset
from tests.support.records import decode_messages
from tests.support.waiting import until

TOPIC = "SparkTrips"
BROKER = "broker-a"
BATCHES, ROWS = 5, 50


@pytest.fixture(scope="module", params=["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow), "headrace"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Cluster]:
    folder: Path = tmp_path_factory.mktemp(str(request.param))
    with contextlib.ExitStack() as stack:
        if request.param == "headrace":
            started = stack.enter_context(peers.headrace(folder, f"--broker.name={BROKER}"))
        else:
            started = stack.enter_context(peers.rocketmq(request.param, folder))
        with Cluster(started.namesrv) as cluster:
            until(lambda: BROKER in cluster.brokers(), 60)
            fill(cluster)
        yield started


@pytest.fixture
def cluster(server: peers.Cluster) -> Iterator[Cluster]:
    with Cluster(server.namesrv) as found:
        yield found


def encode_batch(bodies: list[tuple[bytes, str]]) -> bytes:
    """Return the body of SEND_BATCH_MESSAGE: (body, tag) each."""
    parts = []
    for body, tag in bodies:
        properties = f"TAGS\x01{tag}\x02UNIQ_KEY\x01K{body[:6].decode()}\x02".encode()
        inner = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
        parts.append(struct.pack(">i", 4 + len(inner)) + inner)
    return b"".join(parts)


def send(cluster: Cluster, queue_id: int, rows: list[tuple[bytes, str]]) -> int:
    """Send a batch; return the queue offset of its first row."""
    ext = {"a": "SparkP", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": str(now_ms())}
    ext |= {"h": "0", "i": "", "j": "0", "k": "false", "m": "true"}
    address = cluster.broker_address(BROKER)
    response = cluster.client(address).call(320, ext, encode_batch(rows))
    assert response.code == 0, response
    return int(response.ext["queueOffset"])


def now_ms() -> int:
    return int(time.time() * 1000)


def is_version(request: pytest.FixtureRequest, version: str) -> bool:
    return bool(request.node.callspec.params["server"] == version)


def body_of(number: int) -> bytes:
    return b"%06d" % number


def tag_of(number: int) -> str:
    return "odd" if number % 2 else "even"


def fill(cluster: Cluster) -> None:
    """Queue 0 gets batches of numbered rows a tenth of a second apart, queue 1 one row."""
    for batch in range(BATCHES):
        first = send(cluster, 0, [(body_of(number), tag_of(number)) for number in rows_of(batch)])
        assert first == batch * ROWS
        time.sleep(0.1)
    assert send(cluster, 1, [(b"alone", "other")]) == 0
    until(lambda: cluster.max_offset(BROKER, TOPIC, 1) == 1, 10)
    until(lambda: TOPIC in cluster.topics(), 60)


def rows_of(batch: int) -> range:
    return range(batch * ROWS, (batch + 1) * ROWS)


def read_all(cluster: Cluster, queue_id: int, tags: str = "*") -> list[dict[str, object]]:
    offset, found = 0, []
    end = cluster.max_offset(BROKER, TOPIC, queue_id)
    while offset < end:
        pulled = cluster.pull(BROKER, "SparkG", TOPIC, queue_id, offset, 32, tags)
        assert pulled.code in (0, 20), pulled
        assert pulled.next_offset > offset
        assert pulled.max_offset == end
        found += decode_messages(pulled.records)
        offset = pulled.next_offset
    return found


def test_topics_and_routes(server: peers.Cluster, cluster: Cluster) -> None:
    assert TOPIC in cluster.topics()
    assert list(cluster.brokers()) == [BROKER]
    route = cluster.route(TOPIC)
    assert route.brokers == {BROKER: {0: cluster.brokers()[BROKER]}}
    (queue,) = route.queues
    assert (queue.broker, queue.read_queues, queue.write_queues) == (BROKER, 4, 4)
    assert queue.perm & 6 == 6
    with pytest.raises(RouteNotFoundError):
        cluster.route("NoSuchTopic")


def test_whole_queue_is_read_in_order(cluster: Cluster) -> None:
    messages = read_all(cluster, 0)
    assert [message["body"] for message in messages] == [body_of(number) for number in range(BATCHES * ROWS)]
    assert [message["queue_offset"] for message in messages] == list(range(BATCHES * ROWS))
    assert {message["topic"] for message in messages} == {TOPIC}
    assert messages[0]["message_id"] == "K000000"
    assert [message["body"] for message in read_all(cluster, 1)] == [b"alone"]


def test_tags_are_filtered(cluster: Cluster) -> None:
    messages = read_all(cluster, 0, "odd || other")
    assert [message["body"] for message in messages] == [body_of(number) for number in range(1, BATCHES * ROWS, 2)]


def test_pulls_outside_of_a_queue(cluster: Cluster) -> None:
    end = BATCHES * ROWS
    at_end = cluster.pull(BROKER, "SparkG", TOPIC, 0, end)
    assert (at_end.code, at_end.next_offset, at_end.records) == (19, end, b"")
    beyond = cluster.pull(BROKER, "SparkG", TOPIC, 0, end + 1_000)
    assert (beyond.code, beyond.next_offset, beyond.max_offset) == (21, end, end)
    with pytest.raises(RemotingRefusedError) as refused:
        cluster.pull(BROKER, "SparkG", "NoSuchTopic", 0, 0)
    assert refused.value.code == 17
    with pytest.raises(RemotingRefusedError):
        cluster.pull(BROKER, "SparkG", TOPIC, 99, 0)


def test_extent_of_queues(server: peers.Cluster, cluster: Cluster) -> None:
    assert cluster.min_offset(BROKER, TOPIC, 0) == 0
    assert cluster.max_offset(BROKER, TOPIC, 0) == BATCHES * ROWS
    stats = cluster.topic_stats(cluster.brokers()[BROKER], TOPIC)
    assert list(stats) == [0, 1, 2, 3]
    assert (stats[0].min_offset, stats[0].max_offset) == (0, BATCHES * ROWS)
    assert abs(stats[1].last_update_ms - now_ms()) < 240_000
    assert (stats[3].max_offset, stats[3].last_update_ms) == (0, 0)


def test_offsets_by_time(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """Any broker finds the start of a batch by the time of its first row; before the first is 0."""
    messages = read_all(cluster, 0)
    assert cluster.search_offset(BROKER, TOPIC, 0, 1_000) == 0
    for batch in range(1, BATCHES):
        stored_ms = int(str(messages[batch * ROWS]["store_timestamp_ms"]))
        assert cluster.search_offset(BROKER, TOPIC, 0, stored_ms) in rows_of(batch)
    after = cluster.search_offset(BROKER, TOPIC, 0, now_ms() + 60_000)
    assert after == BATCHES * ROWS - (1 if is_version(request, "4.9.7") else 0)


def test_committed_offsets(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    group = f"SparkG{now_ms()}"
    assert cluster.query_offset(BROKER, group, TOPIC, 0) == (0 if is_version(request, "4.9.7") else None)
    for offset in (7, 120, BATCHES * ROWS):
        update_offset(cluster, BROKER, group, TOPIC, 0, offset)
        assert cluster.query_offset(BROKER, group, TOPIC, 0) == offset
    update_offset(cluster, BROKER, group, TOPIC, 1, 1, durable=True)
    assert cluster.query_offset(BROKER, group, TOPIC, 1) == 1


def test_lag_shows_in_the_brokers_own_tools(
    server: peers.Cluster, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What a reader commits is the next offset it reads: the tools show the difference, and 0 at the end."""
    group = "SparkLag"
    cluster.announce_group(BROKER, group, [TOPIC])
    for queue_id in range(4):
        update_offset(cluster, BROKER, group, TOPIC, queue_id, cluster.max_offset(BROKER, TOPIC, queue_id))
    update_offset(cluster, BROKER, group, TOPIC, 0, 200)
    until(lambda: f"%RETRY%{group}" in cluster.topics(), 60)
    version = "4.9.7" if "headrace" in request.node.name else request.node.callspec.params["server"]
    shown = peers.mqadmin(version, tmp_path, "consumerProgress", "-n", server.namesrv, "-g", group)
    rows = [line.split() for line in shown.splitlines() if line.startswith(TOPIC)]
    assert {(row[2], row[3], row[4]) for row in rows} >= {("0", "250", "200"), ("1", "1", "1")}, shown


def test_requests_without_end_are_pipelined(cluster: Cluster) -> None:
    client = cluster.client(cluster.brokers()[BROKER])
    fields = {"topic": TOPIC, "queueId": "0"}
    answers = client.call_many([(30 + number % 2, fields, b"") for number in range(200)], window=16)
    assert [answer.ext["offset"] for answer in answers] == ["250", "0"] * 100


def test_large_messages(cluster: Cluster) -> None:
    body = b"9" * 3_000_000
    offset = send(cluster, 2, [(body, "large")])
    until(lambda: cluster.max_offset(BROKER, TOPIC, 2) > offset, 10)
    pulled = cluster.pull(BROKER, "SparkG", TOPIC, 2, offset)
    assert [message["body"] for message in decode_messages(pulled.records)] == [body]


def test_what_rocketmq_lacks_is_answered_3(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """docs/protocols/extensions.md: then a client goes on with RocketMQ's own requests."""
    address = cluster.brokers()[BROKER]
    state = cluster.reader_state(address, b'{"topics": ["SparkTrips"]}')
    client = cluster.client(address)
    codes = [client.call(*read_log_request(0, 4_096)).code, client.call(*read_queue_request(TOPIC, 0, 0, 9, 9)).code]
    if "headrace" in request.node.name:
        assert state is not None
        assert state["topics"][TOPIC]["queues"]["0"]["max"] == BATCHES * ROWS
        assert codes == [0, 0]
    else:
        assert state is None
        assert codes == [3, 3]
