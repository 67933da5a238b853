"""The bytes of NSQ's V2 protocol: the published vectors and the encoders."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from headrace.batch import RecordBatch
from headrace.broker.channels.channel import Channel
from headrace.net.receive import ReceiveBuffer
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.nsq.codec import (
    CLOSE_WAIT_FRAME,
    FRAME_ERROR,
    FRAME_MESSAGE,
    HEARTBEAT_FRAME,
    MOST_PUBLISHES,
    MOST_TOPICS,
    OK_FRAME,
    Limits,
    More,
    Reader,
    encode_frame,
    encode_messages,
)
from headrace.nsq.intake import Intake
from headrace.nsq.refusal import go_quote
from headrace.nsq.states import ALLOWED_MASK, Command, State
from headrace.nsq.words import COMMAND_NAMES, is_valid_name
from headrace.store.memory_log import MemoryLog, MemoryQueue
from tests.property.nsq_driver import Driver

LIMITS = Limits(max_message_bytes=1 << 20, max_body_bytes=5 << 20, max_rdy_count=2500, max_req_timeout_ms=3_600_000)
ID = 0x18A290C81C269000

# nsq.md 11: (opening, vector, event). The opening brings the connection into a state that allows the command.
VECTORS = [
    (
        "",
        "4944454e544946590a 0000002d 7b22636c69656e745f6964223a226331222c22666561747572655f6e65676f74696174696f6e223a"
        "747275657d",
        ("IDENTIFY", b'{"client_id":"c1","feature_negotiation":true}'),
    ),
    ("", "535542206576656e747320617263686976650a", ("SUB", "events", "archive")),
    ("SUB", "5244592031300a", ("RDY", 10)),
    ("", "505542206576656e74730a 00000005 68656c6c6f", ("publish", "events", (b"hello",), 0)),
    (
        "",
        "4d505542206576656e74730a 00000010 00000002 00000001 61 00000003 626364",
        ("publish", "events", (b"a", b"bcd"), 0),
    ),
    ("", "44505542206576656e747320313530300a 00000002 6869", ("publish", "events", (b"hi",), 1500)),
    ("SUB", "46494e20 31386132393063383163323639303030 0a", ("settle", "FIN", ID, 0)),
    ("SUB", "52455120 31386132393063383163323639303030 2035303030 0a", ("settle", "REQ", ID, 5000)),
    ("SUB", "544f55434820 31386132393063383163323639303030 0a", ("settle", "TOUCH", ID, 0)),
    ("", "4e4f500a", None),
    ("SUB", "434c530a", ("CLS",)),
    ("", "415554480a 00000006 733363723374", ("AUTH", b"s3cr3t")),
]


@pytest.mark.parametrize(("opening", "vector", "event"), VECTORS)
@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize("trailing", [b"", b"NOP\nPUB t\n\0\0\0\1x"])
def test_command_vectors_whole_in_pieces_and_with_trailing_bytes(opening, vector, event, piece_bytes, trailing):
    """nsq.md 11, vectors 1 to 12."""
    driver = Driver(LIMITS)
    driver.feed(bytes.fromhex("20205632") + (b"SUB t c\n" if opening else b""))
    stream = bytes.fromhex(vector) + trailing
    events = [
        event for at in range(0, len(stream), piece_bytes) for event in driver.feed(stream[at : at + piece_bytes])
    ]
    assert events == ([event] if event else []) + ([("publish", "t", (b"x",), 0)] if trailing else [])


@pytest.mark.parametrize(
    ("frame", "vector"),
    [
        (OK_FRAME, "00000006 00000000 4f4b"),
        (HEARTBEAT_FRAME, "0000000f 00000000 5f6865617274626561745f"),
        (CLOSE_WAIT_FRAME, "0000000e 00000000 434c4f53455f57414954"),
        (
            encode_frame(FRAME_ERROR, b"E_FIN_FAILED FIN 18a290c81c269000 failed ID not in flight"),
            "0000003d 00000001 455f46494e5f4641494c45442046494e2031386132393063383163323639303030206661696c6564204944"
            "206e6f7420696e20666c69676874",
        ),
        (encode_frame(FRAME_ERROR, b"E_BAD_PROTOCOL"), "00000012 00000001 455f4241445f50524f544f434f4c"),
    ],
)
def test_frame_vectors(frame, vector):
    """nsq.md 11, vectors 13 to 17; C-PROTO-13."""
    assert frame == bytes.fromhex(vector)


def deliver(bodies: list[bytes], *, now_ms: int = 1_700_000_000_123, node_id: int = 7) -> tuple[RecordBatch, list[int]]:
    """Return a batch as a channel delivers it, and its physical offsets."""
    log = MemoryLog(10_000, 1 << 30)
    queue = MemoryQueue("events", 0, log)
    channel = Channel("c", "events", node_id=node_id)
    channel.add_queue(queue, 0)
    intake = Intake()
    for body in bodies:
        intake.publishes.append(body)
    intake.publishes.queues = [queue]
    log.append(intake.publishes, now_ms)
    subscription = channel.subscribe(object(), 60_000)
    subscription.ready_count = 10_000
    records = RecordBatch()
    channel.deliver(subscription, now_ms, 0, 10_000, 1 << 30, records)
    assert len(records) == len(bodies)
    return records, [records.position(index)[2] for index in range(len(records))]


def test_messages_are_encoded_as_frames():
    """nsq.md 1.1, vector 18: timestamp in ns, attempts, 16 hex digits of node and position, body.

    Ref: X-NSQ-19, X-NSQ-25.
    """
    bodies = [b"m0", b"x" * 200, bytes(range(256))]
    records, offsets = deliver(bodies)
    expected = b""
    for body, offset in zip(bodies, offsets, strict=True):
        data = struct.pack(">qH", 1_700_000_000_123_000_000, 1) + b"%016x" % (0xABCD << 48 | offset) + body
        expected += struct.pack(">II", 4 + len(data), FRAME_MESSAGE) + data
    assert encode_messages(records, 0xABCD) == expected


def test_no_records_are_no_bytes():
    """A delivery may find nothing."""
    assert encode_messages(RecordBatch(), 7) == b""


def test_command_numbers_are_the_codecs():
    """The state table and the codec speak of the same commands (nsq.md 1.3, C-PROTO-15)."""
    assert [command.name for command in Command] == list(COMMAND_NAMES)
    assert [int(command) for command in Command] == list(range(len(COMMAND_NAMES)))


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        (b"events", True),
        (b"a.b-c_D9", True),
        (b"x" * 64, True),
        (b"x" * 65, False),
        (b"", False),
        (b"t#ephemeral", True),
        (b"x" * 54 + b"#ephemeral", True),
        (b"x" * 55 + b"#ephemeral", False),
        (b"#ephemeral", False),
        (b"t#ephemeralx", False),
        (b"t#tmp", False),
        (b"a b", False),
        (b"a/b", False),
        (b"%RETRY%g", False),
        (b"\xc3\xa9", False),
        (b"t\0", False),
    ],
)
def test_names(name, valid):
    """nsq.md 1.2, X-NSQ-01."""
    assert is_valid_name(name) is valid


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"x$", b'"x$"'),
        (b'a"b\\c', b'"a\\"b\\\\c"'),
        (b"\t\x01\x7f", b'"\\t\\x01\\x7f"'),
        (b"\xff\xc3", b'"\\xff\\xc3"'),
        ("é世".encode(), '"é世"'.encode()),
        ("\u00a0\u200b\U000e0001".encode(), b'"\\u00a0\\u200b\\U000e0001"'),
    ],
)
def test_refused_names_are_quoted_as_go_does(name, quoted):
    """nsq.md 1.13: %q."""
    assert go_quote(name) == quoted


def test_large_body_is_read_into_a_buffer_of_its_own_size():
    """Bounded memory: a connection within a command holds that command and no more; between commands nothing."""
    driver = Driver(LIMITS)
    body = b"y" * 1_000_000
    driver.feed(b"  V2PUB t\n" + struct.pack(">I", len(body)) + b"y" * 10)
    room = driver.reader.room()
    assert room is not None
    assert len(room) == len(body) - 10
    room.release()
    assert driver.feed(body[10:]) == [("publish", "t", (body,), 0)]
    assert driver.reader.room() is None
    assert driver.reader.held_bytes == 0


@pytest.mark.parametrize(
    ("first", "second"), [(1_000_000, 1_000_000), (1_000_000, 900_000), (1_000_000, 600_000), (1_000_000, 20_000)]
)
def test_the_buffer_of_a_large_command_may_serve_the_next_of_any_connection(first, second):
    """Bounded memory: one that is used again gives the next command no more room than its own size."""
    drivers = Driver(LIMITS), Driver(LIMITS)
    for driver, size, letter in zip(drivers, (first, second), b"yz", strict=True):
        body = bytes([letter]) * size
        assert driver.feed(b"  V2PUB t\n" + struct.pack(">I", size) + body[:10]) == []
        room = driver.reader.room()
        assert room is not None
        assert len(room) == size - 10
        assert isinstance(room.obj, bytearray)
        assert len(room.obj) <= (size + 10) * 8 // 7
        room.release()
        assert driver.feed(body[10:] + b"PUB u\n\0\0\0\1x") == [
            ("publish", "t", (body,), 0),
            ("publish", "u", (b"x",), 0),
        ]


@pytest.mark.parametrize("kind", ["PUB", "MPUB"])
def test_messages_keep_the_buffer_of_their_command_until_they_are_appended(kind):
    """The reader lets go of it as soon as the command is parsed, and somebody else's bytes come into its place."""

    class Crowded(Driver):
        def _run(self):
            others = [bytearray(b"\xee") * size for size in range(len(command), len(command) + 64)]
            yield from super()._run()
            del others

    bodies = (bytes(100_000),) if kind == "PUB" else (bytes(50_000), b"a", bytes(60_000))
    content = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    count = struct.pack(">ii", len(content) + 4, len(bodies)) if kind == "MPUB" else b""
    command = f"{kind} large\n".encode() + count + content
    driver = Crowded(LIMITS)
    assert driver.feed(b"  V2") == []
    for _ in range(3):
        assert driver.feed(command) == [("publish", "large", bodies, 0)]


def test_a_buffer_that_somebody_still_looks_at_is_not_used_again():
    """What was parsed may wait to be executed while the next command arrives."""
    driver, other = Driver(LIMITS), Driver(LIMITS)
    head = b"PUB t\n" + struct.pack(">I", 1_000_000)
    driver.feed(b"  V2" + head + b"y")
    room = driver.reader.room()
    assert driver.feed(b"y" * 999_999) == [("publish", "t", (b"y" * 1_000_000,), 0)]
    other.feed(b"  V2" + head + b"z")
    other_room = other.reader.room()
    assert room is not None
    assert other_room is not None
    assert other_room.obj is not room.obj
    assert bytes(room) == b"y" * 999_999


@pytest.mark.parametrize("more", [0, 1])
def test_a_command_may_be_as_large_as_its_limit(more):
    """nsq.md 1.4: of an MPUB, its count and the lengths of its messages are part of that."""
    largest, most = 1 << 20, 5 << 20
    bodies = [bytes(largest)] * 4 + [bytes(most - 4 - 4 * (4 + largest) - 4 + more)]
    content = struct.pack(">i", 5) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    [event] = Driver(LIMITS).feed(b"  V2MPUB t\n" + struct.pack(">i", len(content)) + content)
    assert event[0] == ("refused" if more else "publish")
    assert more or event == ("publish", "t", tuple(bodies), 0)


def test_line_may_have_16_kib_and_no_more():
    """nsq.md 1.2: a longer line closes the connection without an error frame."""
    fits = b"PUB t " + b"x" * (16 * 1024 - 7) + b"\n"
    assert len(fits) == 16 * 1024
    assert Driver(LIMITS).feed(b"  V2" + fits + b"\0\0\0\1y") == [("publish", "t", (b"y",), 0)]
    driver = Driver(LIMITS)
    assert driver.feed(b"  V2" + b"x" * (16 * 1024 - 1)) == []
    assert driver.feed(b"x\n") == [("refused", b"", True)]


def test_topic_taken_from_one_command_is_intact_after_the_next():
    """C-PROTO-07: the line buffer is used again, so what lives longer is copied."""
    driver = Driver(LIMITS)
    topics = ["aa", "b", "aa", "cc", "b"]
    events = driver.feed(b"  V2" + b"".join(b"PUB %s\n\0\0\0\1x" % topic.encode() for topic in topics))
    assert [event[1] for event in events] == topics


def batches_of(stream: bytes, size: Callable[[Intake], int]) -> tuple[list[int], int]:
    """Return how large the batches of one read are, and how many commands were read."""
    receive, intake = ReceiveBuffer(HEADROOM_BYTES, 1 << 17), Intake()
    reader = Reader(LIMITS, ALLOWED_MASK[State.INIT])
    receive.view[: len(stream)] = stream
    reader.received(receive.memory, len(stream))
    sizes = []
    stopped_by: list[object] = []
    while not stopped_by or stopped_by[-1] is not None:
        stopped_by.append(reader.next_command(intake, 0))
        sizes.append(size(intake))
        intake.clear()
    assert [type(command) for command in stopped_by] == [More] * (len(sizes) - 1) + [type(None)]
    return sizes, reader.commands


def test_a_batch_is_for_so_many_topics_at_most():
    """One read may name thousands: they come batch by batch, and none twice (A-NET-06)."""
    seen: list[str] = []

    def size(intake: Intake) -> int:
        seen.extend(intake.publishes.destinations)
        return len(intake.publishes.destinations)

    topics = [f"t{number}" for number in range(2 * MOST_TOPICS + 1)]
    stream = b"  V2" + b"".join(b"PUB %s\n\0\0\0\1x" % topic.encode() for topic in topics)
    assert batches_of(stream, size) == ([MOST_TOPICS, MOST_TOPICS, 1], len(topics))
    assert seen == topics


def test_a_batch_has_so_many_publishes_at_most():
    """One read may have 20,000: with fifty such clients a turn of each was 10 ms long, whatever its share."""
    count = 2 * MOST_PUBLISHES + 1
    sizes, commands = batches_of(b"  V2" + b"PUB t\n\0\0\0\1x" * count, lambda intake: len(intake.publishes))
    assert (sizes, commands) == ([MOST_PUBLISHES, MOST_PUBLISHES, 1], count)


def test_requeue_above_the_limit_is_clamped_and_counted():
    """nsq.md 1.11: every clamp has a counter."""
    driver = Driver(LIMITS)
    driver.feed(b"  V2SUB t c\n")
    assert driver.feed(b"REQ %016x 99999999999999999999999\n" % ID) == [("settle", "REQ", ID, 3_600_000)]
    assert driver.intake.requeues_clamped == 1


def test_commands_are_counted_by_name():
    """Counters of the server."""
    driver = Driver(LIMITS)
    driver.feed(b"  V2NOP\nPUB t\n\0\0\0\1xPUB t\n\0\0\0\1xSUB t c\nRDY 1\nFIN %016x\n" % ID)
    counts = {name: count for name, count in driver.intake.command_counts().items() if count}
    assert counts == {"NOP": 1, "PUB": 2, "SUB": 1, "RDY": 1, "FIN": 1}
    assert driver.reader.commands == 6


def test_masks_allow_what_the_table_allows():
    """nsq.md 1.3."""
    assert ALLOWED_MASK[State.INIT] >> Command.SUB & 1
    assert not ALLOWED_MASK[State.SUBSCRIBED] >> Command.SUB & 1
