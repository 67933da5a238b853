"""The compiled splitting of /mpub bodies against a readable reference (nsq.md 3.2, "/mpub modes")."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.channels.channel import Channel
from headrace.errors import ProtocolError
from headrace.nsq.mpub import MpubBody, read_counted, read_lines
from headrace.store.memory_log import MemoryLog, MemoryQueue

MAX_MESSAGE = 20
MAX_MESSAGES = 8

lines = st.lists(st.one_of(st.binary(max_size=MAX_MESSAGE + 1), st.just(b"")), max_size=6).map(b"\n".join)
lengths = st.one_of(st.integers(-2, MAX_MESSAGE + 2), st.sampled_from([-(1 << 31), (1 << 31) - 1]))
counted = st.builds(
    lambda count, rows, rest: (
        struct.pack(">i", count) + b"".join(struct.pack(">i", len(body) + error) + body for body, error in rows) + rest
    ),
    st.one_of(st.integers(-1, MAX_MESSAGES + 1), lengths),
    st.lists(st.tuples(st.binary(max_size=MAX_MESSAGE + 1), st.sampled_from([0, 0, 0, 0, 1, -1])), max_size=6),
    st.binary(max_size=3),
)


def portions_of(body: MpubBody, portion: int) -> list[list[bytes]]:
    """Return what is given out, portion by portion; each is one command."""
    portions = []
    while body.left:
        batch = PublishBatch()
        count = body.take(batch, portion, 0)
        portions.append(bodies_of(batch))
        assert len(portions[-1]) == count == batch.count
        assert batch.body_bytes == sum(map(len, portions[-1]))
    assert body.take(PublishBatch(), portion, 0) == 0
    return portions


def cut(messages: list[bytes], portion: int) -> list[list[bytes]]:
    return [messages[at : at + portion] for at in range(0, len(messages), portion)]


def bodies_of(batch: PublishBatch) -> list[bytes]:
    """Return the messages of a batch by way of a log and a channel."""
    if not batch.count:
        return []
    log = MemoryLog(1_000, 1 << 20)
    queue = MemoryQueue("t", 0, log)
    channel = Channel("c", "t", node_id=0)
    channel.add_queue(queue, 0)
    batch.destinations, batch.queues = ["t"], [queue]
    log.append(batch, 1_000)
    subscription = channel.subscribe(object(), 60_000)
    subscription.ready_count = 1_000
    records = RecordBatch()
    channel.deliver(subscription, 1_000, 0, 1_000, 1 << 20, records)
    return [records.body(index) for index in range(len(records))]


def lines_by_reference(body: bytes) -> list[bytes] | str:
    messages = [line for line in body.split(b"\n") if line]
    return "MSG_TOO_BIG" if any(len(message) > MAX_MESSAGE for message in messages) else messages


def counted_by_reference(body: bytes) -> list[bytes] | str:
    if len(body) < 4:
        return "BAD_BODY"
    (count,) = struct.unpack_from(">i", body)
    if not 1 <= count <= MAX_MESSAGES:
        return "BAD_BODY"
    at, messages = 4, []
    for _ in range(count):
        if len(body) - at < 4:
            return "BAD_MESSAGE"
        (size,) = struct.unpack_from(">i", body, at)
        at += 4
        if not 1 <= size <= MAX_MESSAGE or len(body) - at < size:
            return "BAD_MESSAGE"
        messages.append(body[at : at + size])
        at += size
    return messages


@given(lines, st.integers(1, 8))
def test_lines(body: bytes, portion: int) -> None:
    """Text mode: empty lines are dropped, a carriage return is kept, the last line needs no newline."""
    expected = lines_by_reference(body)
    if isinstance(expected, str):
        with pytest.raises(ProtocolError, match=expected):
            read_lines(body, MAX_MESSAGE)
    else:
        read = read_lines(body, MAX_MESSAGE)
        assert read.left == len(expected)
        assert portions_of(read, portion) == cut(expected, portion)


@given(st.one_of(counted, st.binary(max_size=12)), st.integers(1, 8))
def test_counted(body: bytes, portion: int) -> None:
    """Binary mode: signed lengths, nothing read beyond the body, what follows is ignored."""
    expected = counted_by_reference(body)
    if isinstance(expected, str):
        with pytest.raises(ProtocolError, match=expected):
            read_counted(body, MAX_MESSAGE, MAX_MESSAGES)
    else:
        read = read_counted(body, MAX_MESSAGE, MAX_MESSAGES)
        assert read.left == len(expected)
        assert portions_of(read, portion) == cut(expected, portion)


def test_delay_goes_to_every_message() -> None:
    """`defer` on /mpub."""
    batch = PublishBatch()
    read_lines(b"a\nb\n", MAX_MESSAGE).take(batch, 8, 5_000)
    batch.destinations = ["t"]
    assert [row[3] for row in batch.delayed()] == [5_000, 5_000]
