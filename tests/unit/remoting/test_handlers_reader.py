"""Bulk readers: state, pieces of the log, ranges of a queue. Ref: docs/protocols/extensions.md."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.batch import RecordBatch
from headrace.broker.pull import PullResult, PullStatus, read_range
from headrace.errors import ConnectionLostError
from headrace.format import record
from headrace.remoting.blocking import BlockingClient, read_log_request, read_queue_request
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode
from headrace.remoting.handlers.table import HANDLERS
from headrace.remoting.reading import reader_stream, readers
from headrace.remoting.reading.readers import ReaderCounters, StateWait, StateWaits
from headrace.store import boot_note
from headrace.store.log_ranges import LogRange
from tests.support.records import decode_messages
from tests.support.remoting import RemotingRig, body_of, send_fields
from tests.support.toolchain import cannot_run

SEGMENT = 1 << 20
BODY = b"x" * 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.RunningBroker]:
    """Segments of 1 MiB, the first two full."""
    with testing.broker(store__durability="fsync", broker__name="broker-a", registry__enabled=False) as running:
        with BlockingClient(running.remoting) as client:
            fill(client, "Long", 2_500)
        yield running


@pytest.fixture
def client(broker: testing.RunningBroker) -> Iterator[BlockingClient]:
    with BlockingClient(broker.remoting) as found:
        yield found


def send(client: BlockingClient, topic: str, body: bytes, queue_id: int = 0, **properties: str) -> int:
    """Send one message; return its queue offset."""
    ext = {name: str(value) for name, value in send_fields(topic, queue_id=queue_id, properties=properties).items()}
    response = client.call(310, ext, body)
    assert response.code == 0, response.remark
    return int(response.ext["queueOffset"])


def fill(client: BlockingClient, topic: str, count: int, body: bytes = BODY) -> None:
    """Send ``count`` messages in batches."""
    one = struct.pack(">iiiii", 20 + len(body) + 2, 0, 0, 0, len(body)) + body + struct.pack(">h", 0)
    for done in range(0, count, 500):
        ext = {name: str(value) for name, value in send_fields(topic, m="true").items()}
        assert client.call(320, ext, one * min(500, count - done)).code == 0


def state(client: BlockingClient, wait_ms: int = 0, group: str = "", **body: Any) -> dict[str, Any]:
    response = client.call(27001, {"group": group, "waitMs": str(wait_ms)}, json.dumps(body).encode())
    assert response.code == 0, response.remark
    found = json.loads(response.body)
    assert isinstance(found, dict)
    return found


def log_of(broker: testing.RunningBroker, end: int) -> bytes:
    """Return the log's bytes from its files."""
    paths = sorted(Path(broker.data_dir, "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in paths if path.name.isdigit())[:end]


def numbers(response: Command) -> dict[str, int]:
    return {name: int(value) for name, value in response.ext.items()}


def counters(broker: testing.RunningBroker) -> dict[str, float]:
    """Return the figures of /metrics that have no labels."""
    with urllib.request.urlopen(f"http://{broker.admin}/metrics") as page:
        rows = (line.split() for line in page.read().decode().splitlines() if not line.startswith("#"))
        return {row[0]: float(row[1]) for row in rows if "{" not in row[0]}


def test_extensions_are_in_the_table() -> None:
    """A client learns from code 3 what a broker lacks: each of ours has a handler and a number of its own."""
    own = {RequestCode.READER_STATE, RequestCode.READ_LOG, RequestCode.READ_QUEUE}
    own |= {RequestCode.SEND_SEQUENCED, RequestCode.END_BATCH}
    assert {code for code in HANDLERS if code >= 27_000} == own == set(range(27_001, 27_006))


# -- READ_LOG ----------------------------------------------------------------------------------------------------------


def test_log_is_read_as_it_lies_in_its_files(broker: testing.RunningBroker, client: BlockingClient) -> None:
    """Any offset, never beyond the durable end, never across a segment's end, blank records included. A-STORE-10."""
    end = state(client, log=True)["log"]["max"]
    assert end > 2 * SEGMENT
    parts, offset = [], 0
    while offset < end:
        response = client.call(*read_log_request(offset, 300_000))
        found = numbers(response)
        assert response.code == 0
        assert found["offset"] == offset
        assert found["nextOffset"] == offset + len(response.body)
        assert offset // SEGMENT == (found["nextOffset"] - 1) // SEGMENT
        assert (found["minOffset"], found["segmentBytes"]) == (0, SEGMENT)
        assert found["maxOffset"] >= end
        assert 0 < len(response.body) <= 300_000
        parts.append(response.body)
        offset = found["nextOffset"]
    assert b"".join(parts)[:end] == log_of(broker, end)
    odd = client.call(*read_log_request(12_345, 10_000))
    assert odd.body == log_of(broker, end)[12_345:22_345]


def test_end_of_the_log_is_an_empty_answer(client: BlockingClient) -> None:
    for _ in range(20):
        end = state(client, log=True)["log"]["max"]
        response = client.call(*read_log_request(end, 1 << 20))
        if not response.body:  # else the broker wrote something of its own meanwhile
            break
    assert (response.code, response.body, int(response.ext["nextOffset"])) == (0, b"", end)


@pytest.mark.parametrize(("offset", "nearest"), [(-1, "minOffset"), (1 << 50, "maxOffset")])
def test_offsets_outside_of_the_log(client: BlockingClient, offset: int, nearest: str) -> None:
    """A-STORE-10."""
    response = client.call(*read_log_request(offset, 1 << 20))
    assert response.code == 21
    assert f"physical offset {offset} is outside the log" in response.remark
    assert response.ext["nextOffset"] == response.ext[nearest]


def test_pipelined_reads_come_in_order(broker: testing.RunningBroker, client: BlockingClient) -> None:
    size = 64 * 1024
    answers = client.call_many([read_log_request(size * number, size) for number in range(32)], window=8)
    assert b"".join(answer.body for answer in answers) == log_of(broker, size * 32)


def test_reads_and_other_requests_share_a_connection(client: BlockingClient) -> None:
    requests = [read_log_request(0, 1 << 20), (30, {"topic": "Long", "queueId": "0"}, b""), read_log_request(0, 5_000)]
    log, end, short = client.call_many(requests)
    assert (len(log.body), end.ext["offset"], len(short.body)) == (1 << 20, "2500", 5_000)


def test_log_read_that_cannot_be_answered_closes_its_connection(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, say: what the client asks behind it would wait for ever."""

    def fail(_: LogRange) -> memoryview:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LogRange, "view", fail)
        with pytest.raises(ConnectionLostError):
            client.call(27002, {"offset": "0"}, timeout_s=5)
    assert client.call(27002, {"offset": "0"}).code == 0


def test_reader_that_takes_nothing_costs_one_answer(broker: testing.RunningBroker, client: BlockingClient) -> None:
    """Issue: a slow consumer never grows memory; it gets everything once it reads."""
    small = {"remoting__write_high_water_bytes": 65_536}
    with testing.broker(store__durability="async", registry__enabled=False, **small) as slow:
        with BlockingClient(slow.remoting) as producer:
            fill(producer, "Long", 8_000)
            while state(producer, log=True)["log"]["max"] < 8 * SEGMENT:
                time.sleep(0.02)
        with BlockingClient(slow.remoting) as reader:
            sent = [read_log_request(SEGMENT * (number % 7), SEGMENT) for number in range(60)]
            sent += [read_queue_request("Long", 0, 0, 8_000, SEGMENT) for _ in range(4)]
            answers = reader.call_many(sent, window=64)
            first = next(answers)
            time.sleep(0.3)
            connections = list(slow._node.remoting.server.connections)
            waiting = max(one._transport.get_write_buffer_size() for one in connections)
            assert waiting <= SEGMENT + 65_536 + 1_024
            with BlockingClient(slow.remoting) as other:
                assert other.call(30, {"topic": "Long", "queueId": "0"}).ext["offset"] == "8000"
            sizes = [len(first.body), *(len(answer.body) for answer in answers)]
            assert sizes[:60] == [SEGMENT] * 60
            assert all(0 < size <= SEGMENT for size in sizes[60:])


def test_log_reads_are_paced_and_bounded() -> None:
    """remoting.read_log_bytes_per_s delays; what waits too long in line is refused."""
    pace = {"remoting__read_log_bytes_per_s": 1 << 20}
    with testing.broker(store__durability="async", registry__enabled=False, **pace) as slow:
        with BlockingClient(slow.remoting) as client:
            fill(client, "Long", 500)
            while state(client, log=True)["log"]["max"] < 500_000:
                time.sleep(0.02)
            began = time.monotonic()
            piece = 100_000
            answers = list(client.call_many([read_log_request(0, piece) for _ in range(5)]))
            # The first one is there at once, the others have to wait for those before them.
            assert time.monotonic() - began > 0.35
            assert [len(answer.body) for answer in answers] == [piece] * 5
            codes = [answer.code for answer in client.call_many([read_log_request(0, 4_096)] * 100, window=100)]
        assert codes.count(2) >= 30
        assert set(codes) == {0, 2}
        figures = counters(slow)
        assert figures["headrace_remoting_paced_log_reads_total"] >= 4
        assert figures["headrace_remoting_refused_reads_total"] == codes.count(2)
        assert figures["headrace_remoting_log_reads_total"] == 5 + codes.count(0)
        assert figures["headrace_remoting_log_read_bytes_total"] == 5 * piece + 4_096 * codes.count(0)


def test_part_without_a_file_is_jumped_over(broker: testing.RunningBroker, client: BlockingClient) -> None:
    """After a crash the log may go on above what was issued: there are no files in between."""
    segments = broker._node.broker.store.log.segments
    taken = segments[1]
    segments.leave_out(1)
    try:
        response = client.call(*read_log_request(SEGMENT + 5, 1_000))
        assert (response.code, response.body, response.ext["nextOffset"]) == (0, b"", str(2 * SEGMENT))
    finally:
        segments[1] = taken


# -- READ_QUEUE --------------------------------------------------------------------------------------------------------


def test_range_of_a_queue(client: BlockingClient) -> None:
    """The same records as a pull's, exactly up to endOffset."""
    for number in range(30):
        send(client, "Ranges", b"%d" % number, TAGS="odd" if number % 2 else "even")
    response = client.call(*read_queue_request("Ranges", 0, 3, 20, 1 << 20))
    found = numbers(response)
    assert (response.code, found) == (0, {"nextOffset": 20, "minOffset": 0, "maxOffset": 30, "skipped": 0})
    assert [message["queue_offset"] for message in decode_messages(response.body)] == list(range(3, 20))
    pulled = client.call(
        11,
        {
            "consumerGroup": "G",
            "topic": "Ranges",
            "queueId": "0",
            "queueOffset": "3",
            "maxMsgNums": "17",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        },
    )
    assert pulled.body == response.body


@pytest.mark.parametrize(
    ("more", "bodies", "next_offset"),
    [
        ({"max_messages": 4}, [0, 1, 2, 3], 4),
        ({"tags": "odd"}, [1, 3, 5, 7, 9], 10),
        ({"tags": "odd || even"}, list(range(10)), 10),
        ({"tags": "*"}, list(range(10)), 10),
        ({"tags": "odd", "max_messages": 2}, [1, 3], 4),
        ({"tags": "none"}, [], 10),
    ],
)
def test_bounds_and_tags(client: BlockingClient, more: dict[str, Any], bodies: list[int], next_offset: int) -> None:
    """A filter never reads beyond endOffset; nothing matched is a success that gets on."""
    if int(client.call(30, {"topic": "Tags", "queueId": "0"}).ext["offset"]) == 0:
        for number in range(20):
            send(client, "Tags", b"%d" % number, TAGS="odd" if number % 2 else "even")
    response = client.call(*read_queue_request("Tags", 0, 0, 10, 1 << 20, **more))
    assert response.code == 0
    assert [int(message["body"]) for message in decode_messages(response.body)] == bodies
    found = int(response.ext["nextOffset"])
    assert found == next_offset or (bodies and bodies[-1] < found <= next_offset)


def test_bytes_bound_an_answer_and_one_message_always_fits(client: BlockingClient) -> None:
    offset, count = 0, 0
    while offset < 2_500:
        response = client.call(*read_queue_request("Long", 0, offset, 2_500, 100_000))
        assert 0 < len(response.body) <= 100_000
        messages = decode_messages(response.body)
        assert [message["queue_offset"] for message in messages] == list(range(offset, offset + len(messages)))
        offset = int(response.ext["nextOffset"])
        count += len(messages)
    assert count == 2_500
    send(client, "Large", b"x" * 50_000)
    assert len(client.call(*read_queue_request("Large", 0, 0, 1, 1)).body) > 50_000


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"topic": "NoSuch"}, 17, "NoSuch"),
        ({"queueId": "9"}, 1, r"queueId\[9\] is illegal"),
        ({"queueId": "-1"}, 1, "queueId"),
        ({"topic": ""}, 1, "topic"),
        ({"offset": "x"}, 1, "<offset>"),
        ({"endOffset": "1", "offset": "2"}, 1, "endOffset"),
        ({"offset": "2500", "endOffset": "2600"}, 19, "OFFSET_OVERFLOW_ONE"),
        ({"offset": "2501", "endOffset": "2600"}, 21, "OFFSET_OVERFLOW_BADLY"),
        ({"offset": "-1"}, 21, "OFFSET_TOO_SMALL"),
        ({"queueId": "1"}, 19, "NO_MESSAGE_IN_QUEUE"),
        ({"queueId": "1", "offset": "5"}, 21, "NO_MESSAGE_IN_QUEUE"),
        ({"tags": "x" * 20_000}, 23, "expression"),
    ],
)
def test_bad_ranges_are_refused(client: BlockingClient, change: dict[str, str], code: int, remark: str) -> None:
    _, ext, _ = read_queue_request("Long", 0, 0, 10, 1 << 20)
    response = client.call(27003, {**ext, **change})
    assert response.code == code
    assert re.search(remark, response.remark)
    if code in (19, 21):
        assert {"nextOffset", "minOffset", "maxOffset"} <= response.ext.keys()


def test_reads_meant_for_another_broker_are_refused(broker: testing.RunningBroker, client: BlockingClient) -> None:
    """It may have got the address of the one that is meant, and has other messages at the same offsets."""
    name = state(client)["broker"]
    for request in (
        lambda meant: read_queue_request("Long", 0, 0, 10, 1 << 20, broker=meant),
        lambda meant: read_log_request(0, 1 << 20, broker=meant),
    ):
        assert client.call(*request(name)).code == 0
        refused = client.call(*request("elsewhere"))
        assert (refused.code, refused.body) == (14, b"")
        assert refused.remark == f"broker {name!r} is here now, not 'elsewhere'"


def test_range_whose_entries_cannot_be_read_is_refused(client: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pull: an answer that got no further would have its reader ask again for ever."""
    found_null = PullResult(PullStatus.OFFSET_FOUND_NULL, 7, 0, 2_500)
    monkeypatch.setattr("headrace.remoting.reading.reader_stream.read_range", lambda *_: found_null)
    response = client.call(*read_queue_request("Long", 0, 7, 20, 1 << 20))
    assert (response.code, response.remark) == (19, "OFFSET_FOUND_NULL")


def test_range_that_must_come_from_the_disk_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of a cold record waits for the store's read-ahead, and the loop for nothing."""
    calls: list[PullStatus] = []
    with testing.broker(store__durability="async", store__segment_bytes=64 << 20, registry__enabled=False) as cold:
        with BlockingClient(cold.remoting) as client:
            fill(client, "Cold", 4_000, b"c" * 1_000)
            fill(client, "Later", 70_000, b"l" * 1_000)
            while state(client, log=True)["log"]["max"] < 70 << 20:
                time.sleep(0.05)
        store = cold._node.broker.store

        def make_cold() -> None:
            segment = store.log.segments[0]
            os.fsync(segment.fd)
            segment.drop_pages()
            os.posix_fadvise(segment.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            store.log.forget_warm()

        def spy(*args: Any) -> Any:
            result = read_range(*args)
            calls.append(result.status)
            return result

        monkeypatch.setattr("headrace.remoting.reading.reader_stream.read_range", spy)
        make_cold()
        if store.log.segments[0].is_resident(0, 4096):
            cannot_run("the file system of the temporary folder keeps pages in memory: choose another with TMPDIR")
        with BlockingClient(cold.remoting) as client:
            offset = 0
            while offset < 4_000:
                response = client.call(*read_queue_request("Cold", 0, offset, 4_000, 8 << 20))
                assert response.code == 0
                offset = int(response.ext["nextOffset"])
        assert PullStatus.COLD in calls
        assert counters(cold)["headrace_remoting_cold_queue_reads_total"] >= 1


def test_range_that_cannot_be_read_is_refused_before_its_client_gives_it_up(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is away for a while: a time-out does not say so."""

    def unreadable(_queue: object, offset: int, *_: object) -> PullResult:
        return PullResult(PullStatus.COLD, offset, 0, 2_500)

    monkeypatch.setattr(reader_stream, "COLD_RETRY_MS", 50)
    monkeypatch.setattr(reader_stream, "COLD_MOST_MS", 200)
    with monkeypatch.context() as patch:
        patch.setattr(reader_stream, "read_range", unreadable)
        response = client.call(*read_queue_request("Long", 0, 7, 9, 100_000))
        assert (response.code, "message 7 of queue 0 of topic Long" in response.remark) == (14, True)
    assert client.call(*read_queue_request("Long", 0, 7, 9, 100_000)).code == 0


# -- READER_STATE ------------------------------------------------------------------------------------------------------


def ask_state(rig: RemotingRig, group: str = "", **body: Any) -> Any:
    return body_of(answer_of(rig, group, body))


def answer_of(rig: RemotingRig, group: str, body: Mapping[str, Any], wait_ms: int = 0) -> Any:
    peer = rig.peer()
    assert peer.try_ask(27001, {"group": group, "waitMs": wait_ms}, json.dumps(body).encode()) is None
    return peer.answers[0] if peer.answers else None


def publish(rig: RemotingRig, topic: str, queue_id: int = 0) -> None:
    assert rig.peer().ask(310, send_fields(topic, queue_id=queue_id), b"x").code == 0


def test_state_has_what_a_reader_plans_with(rig: RemotingRig) -> None:
    for _ in range(3):
        publish(rig, "T1")
    rig.peer().ask(15, {"topic": "T1", "queueId": 0, "consumerGroup": "G", "commitOffset": 2})
    found = ask_state(rig, "G", topics=["T1", "None"], log=True)
    queues = found["topics"]["T1"]["queues"]
    assert queues["0"] == {"min": 0, "max": 3, "committed": 2}
    assert queues["3"] == {"min": 0, "max": 0, "committed": -1}
    assert found["missing"] == ["None"]
    assert found["broker"] == "broker-a"
    assert found["store_id"] == rig.store.store_id
    assert (found["epoch"], found["epochs"]) == (1, [{"epoch": 1, "offset": 0}])
    assert found["log"] == {"min": 0, "max": rig.store.log.durable_offset}
    assert found["segment_bytes"] == rig.store.log.segment_bytes
    assert "log" not in {name for name, value in ask_state(rig, topics=[]).items() if value is not None}


def test_state_names_missing_files_of_the_log(rig: RemotingRig) -> None:
    """docs/protocols/extensions.md: whoever reads the log must know that it does not have all."""
    for _ in range(5):
        rig.peer().ask(310, send_fields("Large"), b"x" * 600_000)
    size, end = rig.store.log.segment_bytes, rig.store.log.end_offset
    assert "missing" not in ask_state(rig, log=True)["log"]
    rig.close()
    folder = rig.store.directory.commit_log
    for first in (0, 2 * size):
        (folder / f"{first:020d}").unlink()
    rig._open()
    log = ask_state(rig, log=True)["log"]
    rig.close()
    (folder / f"{3 * size:020d}").unlink()  # what is noted of earlier losses stands beside what is lost later
    rig._open()
    assert ask_state(rig, log=True)["log"]["missing"] == [[0, size], [2 * size, 4 * size]]
    assert log["min"] == size
    assert log["max"] >= end
    assert log["missing"] == [[0, size], [2 * size, 3 * size]]


def test_state_says_where_a_queue_ended_when_an_epoch_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut took at level async was read perhaps, and others have its offsets now (spark.md 5.4.5)."""
    monkeypatch.setattr(boot_note, "BOOT_ID_FILE", tmp_path / "boot_id")
    boot_note.BOOT_ID_FILE.write_text("boot-1")
    rig = RemotingRig(tmp_path / "store")
    rig.store_settings = replace(rig.store_settings, durability="async")
    rig.restart()
    publish(rig, "T1")
    assert "ends" not in ask_state(rig, topics=["T1"])["topics"]["T1"]["queues"]["0"]
    boot_note.BOOT_ID_FILE.write_text("boot-2")
    rig.crash()
    publish(rig, "T1")
    publish(rig, "New")
    found = ask_state(rig, topics=["T1", "New"])["topics"]
    assert found["T1"]["queues"]["0"] == {"min": 0, "max": 2, "committed": -1, "ends": {"2": 1}}
    assert found["New"]["queues"]["0"]["ends"] == {}
    rig.close()


def test_all_topics_are_the_ordinary_ones(rig: RemotingRig) -> None:
    rig.services.ensure_group("G")
    for name in ("T1", "%RETRY%G", "%DLQ%G", "RMQ_SYS_TRACE_TOPIC"):
        publish(rig, name)
    assert set(ask_state(rig, topics=None)["topics"]) == {"T1"}
    assert set(ask_state(rig, topics=None, retry=True)["topics"]) == {"T1", "%RETRY%G", "%DLQ%G"}
    with_system = set(ask_state(rig, topics=None, system=True)["topics"])
    assert {"T1", "RMQ_SYS_TRACE_TOPIC", "TBW102"} <= with_system
    assert "%RETRY%G" not in with_system


def test_topic_made_again_is_another_one(rig: RemotingRig) -> None:
    """Its epoch is another, its queues begin behind the old messages; both after a restart and a lost catalog too."""
    publish(rig, "Other")
    publish(rig, "T1")
    before = ask_state(rig, topics=["T1", "Other"])["topics"]
    rig.peer().ask(215, {"topic": "T1"})
    assert ask_state(rig, topics=["T1"])["missing"] == ["T1"]
    for _ in range(2):
        publish(rig, "T1")
    after = ask_state(rig, topics=["T1", "Other"])["topics"]
    assert after["T1"]["epoch"] not in (0, before["T1"]["epoch"])
    assert after["T1"]["queues"]["0"] == {"min": 1, "max": 3, "committed": -1}
    assert after["Other"] == before["Other"]
    rig.restart()
    assert ask_state(rig, topics=["T1", "Other"])["topics"] == after
    rig.close()
    rig.store.directory.catalog.unlink()
    rig._open()
    assert ask_state(rig, topics=["T1", "Other"])["topics"] == after


def test_configured_topic_is_the_same_one(rig: RemotingRig) -> None:
    publish(rig, "T1")
    before = ask_state(rig, topics=["T1", "TBW102"])["topics"]
    change = {"readQueueNums": 6, "writeQueueNums": 6, "perm": 6}
    assert rig.peer().ask(17, {"topic": "T1", **change}).code == 0
    after = ask_state(rig, topics=["T1", "TBW102"])["topics"]
    assert {name: row["epoch"] for name, row in before.items()} == {name: row["epoch"] for name, row in after.items()}
    assert len(after["T1"]["queues"]) == 6


def test_state_of_many_queues_is_gathered_in_turns(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        publish(rig, f"T{number}")
    monkeypatch.setattr("headrace.remoting.handlers.reader.ROWS_AT_ONCE", 8)
    later: list[Callable[[], None]] = []
    rig.store.notify = later.append
    peer = rig.peer()
    assert peer.try_ask(27001, {}, b'{"topics": null}') is None
    turns = 0
    while not peer.answers:
        turns += 1
        later.pop(0)()
    assert turns >= 4
    assert len(body_of(peer.answers[0])["topics"]) == 12


def test_states_are_read_and_written_the_quick_way(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 40,000 queues the slow ways took a fifth of a second of the loop, twice a second for each reader."""
    publish(rig, "T1")
    body = b'{"topics": null, "log": false, "known": {"topics": {"T1": {"0": 0}}, "log": 5}, "system": false}'
    peer = rig.peer()
    with monkeypatch.context() as slow:
        slow.setattr("headrace.format.fastjson._write", None)
        slow.setattr("headrace.format.fastjson.loads", None)
        assert peer.try_ask(27001, {}, body) is None
    found = body_of(peer.answers[0])
    assert "T1" in found["topics"]
    assert "log" not in found


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'{"topics": "T1"}', "$.topics"),
        (b'{"topics": [1]}', "$.topics[0]"),
        (b'{"log": 1}', "$.log"),
        (b'{"known": []}', "$.known"),
        (b'{"known": {"topics": {"T": 1}}}', "$.known.topics[...]"),
        (b'{"known": {"topics": {"T": {"0": "x"}}}}', "$.known.topics[...][...]"),
        (b'{"known": {"topics": {"T": {0: 1}}}}', "byte"),
        (b'{"known": {"log": "x"}}', "$.known.log"),
        (b'{"known": {"topics": null}}', "Expected `object`, got `null` - at `$.known.topics`"),
        (rb'{"topics": ["a\ud800"]}', r"malformed: \ud800 is half of a character (byte 14)"),
        (rb'{"topics": ["\uD83D\uDE00\udbff"]}', r"malformed: \udbff is half of a character (byte 25)"),
        (rb'{"topics": ["\ud800x"]}', r"malformed: \ud800 is half of a character (byte 13)"),
        (rb'{"topics": ["\udc00"]}', "surrogate"),
        (rb'{"topics": ["\\\ud800"]}', r"malformed: \ud800 is half of a character (byte 15)"),
        (rb'{"topics": ["a\uD83D\uDE00', "malformed: Input data was truncated"),
        (rb'{"topics": ["\\ud800", "a', "malformed: Input data was truncated"),
    ],
)
def test_malformed_states_are_refused(rig: RemotingRig, body: bytes, name: str) -> None:
    reply = rig.peer().ask(27001, {}, body)
    assert reply.code == 1
    assert name in reply.remark


def known_of(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "topics": {
            name: {queue_id: queue["max"] for queue_id, queue in row["queues"].items()}
            for name, row in found["topics"].items()
        }
    }


def test_state_waits_for_growth(rig: RemotingRig) -> None:
    publish(rig, "T1")
    known = known_of(ask_state(rig, topics=["T1"]))
    waiting = rig.peer()
    body = json.dumps({"topics": ["T1"], "known": known}).encode()
    assert waiting.try_ask(27001, {"waitMs": 500}, body) is None
    assert not waiting.answers
    publish(rig, "Other")
    assert not waiting.answers
    publish(rig, "T1", 2)
    assert body_of(waiting.answers[0])["topics"]["T1"]["queues"]["2"]["max"] == 1
    publish(rig, "T1")
    assert len(waiting.answers) == 1
    assert len(rig.services.readers.waits) == 0


@pytest.mark.parametrize(
    "known",
    [None, {"topics": {}}, {"topics": {"T1": {"0": 0, "1": 0, "2": 0, "3": 0}}}, {"topics": {"T1": {"0": 1}}}],
)
def test_state_with_news_does_not_wait(rig: RemotingRig, known: Any) -> None:
    """Nothing said of what is known, an unknown topic, an older end, a queue that is new."""
    publish(rig, "T1")
    assert answer_of(rig, "", {"topics": ["T1"], "known": known}, 500) is not None


def test_state_of_a_topic_that_has_gone_does_not_wait(rig: RemotingRig) -> None:
    publish(rig, "T1")
    known = known_of(ask_state(rig, topics=["T1"]))
    rig.peer().ask(215, {"topic": "T1"})
    reply = answer_of(rig, "", {"topics": ["T1"], "known": known}, 500)
    assert body_of(reply)["missing"] == ["T1"]


def test_state_of_all_topics_waits_for_any(rig: RemotingRig) -> None:
    publish(rig, "T1")
    known = known_of(ask_state(rig, topics=None))
    peer = rig.peer()
    assert peer.try_ask(27001, {"waitMs": 500}, json.dumps({"topics": None, "known": known}).encode()) is None
    publish(rig, "RMQ_SYS_TRACE_TOPIC")
    assert not peer.answers
    publish(rig, "New")
    assert set(body_of(peer.answers[0])["topics"]) == {"T1", "New"}


def test_news_among_many_queues_are_looked_for_in_turns(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows meanwhile ends the wait, also in a queue that was looked at before."""
    for number in range(12):
        publish(rig, f"T{number:02d}")
    monkeypatch.setattr("headrace.remoting.handlers.reader.ROWS_AT_ONCE", 8)
    known = known_of(ask_state(rig, topics=None))
    old = {"topics": {**known["topics"], "T11": {"0": 0, "1": 0, "2": 0, "3": 0}}}
    for given, grows in ((old, False), (known, True)):
        later: list[Callable[[], None]] = []
        rig.store.notify = later.append
        peer = rig.peer()
        assert peer.try_ask(27001, {"waitMs": 500}, json.dumps({"topics": None, "known": given}).encode()) is None
        assert len(rig.services.readers.waits) == 1
        if grows:
            publish(rig, "T00")
        while later:
            later.pop(0)()
        assert len(peer.answers) == 1
        assert len(rig.services.readers.waits) == 0


def test_state_waits_500_ms_at_most_and_for_the_log(rig: RemotingRig) -> None:
    publish(rig, "T1")
    now = rig.store.durable_offset
    bodies = [{"topics": [], "log": True, "known": {"log": now}}, {"topics": [], "known": {"topics": {}}}]
    peers = []
    for body in bodies:
        peers.append(rig.peer())
        assert peers[-1].try_ask(27001, {"waitMs": 60_000}, json.dumps(body).encode()) is None
    publish(rig, "T1")
    rig.services.readers.tick(rig.clock.now_ms())
    assert body_of(peers[0].answers[0])["log"]["max"] > now
    assert not peers[1].answers
    rig.clock.advance_ms(499)
    rig.services.readers.tick(rig.clock.now_ms())
    assert not peers[1].answers
    rig.clock.advance_ms(1)
    rig.services.readers.tick(rig.clock.now_ms())
    assert body_of(peers[1].answers[0])["topics"] == {}


def test_waits_are_bounded_and_go_with_their_connection(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_WAITING", 2)
    publish(rig, "T1")
    known = known_of(ask_state(rig, topics=["T1"]))
    peers = [rig.peer(port) for port in range(3)]
    for peer in peers:
        peer.try_ask(27001, {"waitMs": 500}, json.dumps({"topics": ["T1"], "known": known}).encode())
    assert [len(peer.answers) for peer in peers] == [0, 0, 1]
    assert rig.services.readers.counters.unheld_states == 1
    rig.services.readers.waits.drop(peers[0])
    publish(rig, "T1")
    assert [len(peer.answers) for peer in peers] == [0, 1, 1]
    assert len(rig.services.readers.waits) == 0


@pytest.mark.provokes_bugs
def test_wait_that_fails_does_not_take_the_others_with_it() -> None:
    woken: list[int] = []
    waits = StateWaits(ReaderCounters())
    for number in range(3):

        def wake(number: int = number) -> None:
            woken.append(number)
            if number == 1:
                raise ZeroDivisionError

        waits.hold(StateWait(frozenset({"T"}), bool, -1, 100, wake, None))
    waits.tick(100, 0)
    assert woken == [0, 1, 2]
    assert len(waits) == 0


def test_waiting_state_is_woken_at_once_over_the_network(broker: testing.RunningBroker) -> None:
    """At level fsync: as soon as the message is durable, far below the deadline."""
    with BlockingClient(broker.remoting) as reader, BlockingClient(broker.remoting) as producer:
        send(producer, "Woken", b"first")
        known = known_of(state(reader, topics=["Woken"]))
        sender = threading.Timer(0.02, lambda: send(producer, "Woken", b"second"))
        sender.start()
        began = time.monotonic()
        found = state(reader, 500, topics=["Woken"], known=known)
        took = time.monotonic() - began
        sender.join()
    assert found["topics"]["Woken"]["queues"]["0"]["max"] == 2
    assert 0.01 < took < 0.48


def test_connection_that_ends_forgets_its_reads(broker: testing.RunningBroker) -> None:
    with BlockingClient(broker.remoting) as reader:
        known = known_of(state(reader, topics=["Long"]))
        body = json.dumps({"topics": ["Long"], "known": known}).encode()
        requests = [(27001, {"waitMs": "500"}, body)] * 5 + [read_log_request(0, 1 << 20)] * 20
        answers = reader.call_many(requests, window=25)
        answers.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while counters(broker)["headrace_remoting_waiting_reader_states"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert counters(broker)["headrace_remoting_waiting_reader_states"] == 0
    assert counters(broker)["headrace_remoting_internal_errors_total"] == 0


# -- the compiled part -------------------------------------------------------------------------------------------------


def test_range_read_in_parts_is_the_range_read_at_once(rig: RemotingRig) -> None:
    """``read_range`` adds to one batch within the bounds of the whole answer."""
    for _ in range(40):
        publish(rig, "T1")
    queue = rig.broker.topics["T1"].queues[0]
    whole = RecordBatch()
    assert read_range(queue, 5, 35, 1_000, 1 << 20, None, whole).next_offset == 35
    assert [record.decode(whole.record(index))["queue_offset"] for index in range(30)] == list(range(5, 35))
    parts = RecordBatch()
    assert read_range(queue, 5, 12, 1_000, 1 << 20, None, parts).next_offset == 12
    assert read_range(queue, 12, 35, 20, 1 << 20, None, parts).next_offset == 25
    assert (parts.count, read_range(queue, 25, 35, 20, 1 << 20, None, parts).next_offset) == (20, 25)
    full = read_range(queue, 25, 35, 1_000, parts.record_bytes, None, parts)
    assert (parts.count, full.next_offset) == (20, 25)
    assert read_range(queue, 40, 50, 9, 9, None, parts).status == PullStatus.OFFSET_OVERFLOW_ONE


def test_lost_broker_is_a_lost_connection() -> None:
    with testing.broker(store__durability="async", registry__enabled=False) as running:
        client = BlockingClient(running.remoting)
        state(client, topics=None)
        running.stop()
        with pytest.raises(ConnectionLostError):
            client.call(27001, {}, b"{}")
        running.start()
        assert state(client, topics=None)["topics"] == {}
        client.close()


def test_too_many_names_are_refused(client: BlockingClient) -> None:
    """Each is looked up while nobody else is served."""
    body = json.dumps({"topics": [f"t{number}" for number in range(10_001)]}).encode()
    response = client.call(int(RequestCode.READER_STATE), {}, body)
    assert response.code == 1
    assert "<topics> has more than 10000 names" in (response.remark or "")
