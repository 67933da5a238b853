"""The compiled splitting of /mpub bodies against a readable reference (nsq.md 3.2, "/mpub modes")."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.channel import Channel
from headrace.errors import ProtocolError
from headrace.nsq.mpub import split_counted, split_lines
from headrace.store.memory_log import MemoryLog, MemoryQueue

MOST_MESSAGE = 20
MOST_MESSAGES = 8

lines = st.lists(st.one_of(st.binary(max_size=MOST_MESSAGE + 1), st.just(b"")), max_size=6).map(b"\n".join)
lengths = st.one_of(st.integers(-2, MOST_MESSAGE + 2), st.sampled_from([-(1 << 31), (1 << 31) - 1]))
counted = st.builds(
    lambda count, rows, rest: (
        struct.pack(">i", count) + b"".join(struct.pack(">i", len(body) + error) + body for body, error in rows) + rest
    ),
    st.one_of(st.integers(-1, MOST_MESSAGES + 1), lengths),
    st.lists(st.tuples(st.binary(max_size=MOST_MESSAGE + 1), st.sampled_from([0, 0, 0, 0, 1, -1])), max_size=6),
    st.binary(max_size=3),
)


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
    return "MSG_TOO_BIG" if any(len(message) > MOST_MESSAGE for message in messages) else messages


def counted_by_reference(body: bytes) -> list[bytes] | str:
    if len(body) < 4:
        return "BAD_BODY"
    (count,) = struct.unpack_from(">i", body)
    if not 1 <= count <= MOST_MESSAGES:
        return "BAD_BODY"
    at, messages = 4, []
    for _ in range(count):
        if len(body) - at < 4:
            return "BAD_MESSAGE"
        (size,) = struct.unpack_from(">i", body, at)
        at += 4
        if not 1 <= size <= MOST_MESSAGE or len(body) - at < size:
            return "BAD_MESSAGE"
        messages.append(body[at : at + size])
        at += size
    return messages


@given(lines)
def test_lines(body: bytes) -> None:
    """Text mode: empty lines are dropped, a carriage return is kept, the last line needs no newline."""
    batch = PublishBatch()
    expected = lines_by_reference(body)
    if isinstance(expected, str):
        with pytest.raises(ProtocolError, match=expected):
            split_lines(batch, body, MOST_MESSAGE, 0)
        assert batch.count == 0
    else:
        assert split_lines(batch, body, MOST_MESSAGE, 0) == len(expected)
        assert bodies_of(batch) == expected


@given(st.one_of(counted, st.binary(max_size=12)))
def test_counted(body: bytes) -> None:
    """Binary mode: signed lengths, nothing read beyond the body, what follows is ignored."""
    batch = PublishBatch()
    expected = counted_by_reference(body)
    if isinstance(expected, str):
        with pytest.raises(ProtocolError, match=expected):
            split_counted(batch, body, MOST_MESSAGE, MOST_MESSAGES, 0)
        assert batch.count == 0
    else:
        assert split_counted(batch, body, MOST_MESSAGE, MOST_MESSAGES, 0) == len(expected)
        assert bodies_of(batch) == expected


def test_delay_goes_to_every_message() -> None:
    """`defer` on /mpub."""
    batch = PublishBatch()
    split_lines(batch, b"a\nb\n", MOST_MESSAGE, 5_000)
    batch.destinations = ["t"]
    assert [row[3] for row in batch.delayed()] == [5_000, 5_000]
