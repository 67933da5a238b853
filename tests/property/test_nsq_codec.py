"""The NSQ codec against the plain-Python reference: whole, byte by byte, split anywhere, followed by more, mutated."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.nsq.codec import Limits
from tests.property.nsq_driver import Driver, drive
from tests.property.nsq_reference import Reference, ReferenceLimits
from tests.support.weights import weighted

REFERENCE_LIMITS = ReferenceLimits()
LIMITS = Limits(
    max_message_bytes=REFERENCE_LIMITS.max_message_bytes,
    max_body_bytes=REFERENCE_LIMITS.max_body_bytes,
    max_rdy_count=REFERENCE_LIMITS.max_rdy_count,
    max_req_timeout_ms=REFERENCE_LIMITS.max_req_timeout_ms,
)
NOW_MS = 1_700_000_000_000
# The largest command, its line and one that is not finished behind it.
MAX_HELD_BYTES = REFERENCE_LIMITS.max_body_bytes + 2 * 16 * 1024


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def mpub(topic: bytes, bodies: list[bytes]) -> bytes:
    content = struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies))
    return b"MPUB " + topic + b"\n" + sized(content)


names = st.from_regex(rb"\A[.a-zA-Z0-9_-]{1,20}(#ephemeral)?\Z") | st.sampled_from([b"events", b"t", b"x" * 64])
bad_names = st.sampled_from(
    [b"", b"x" * 65, b"a$b", b'q"uote', b"back\\slash", b"#ephemeral", b"t#tmp", b"a#ephemeralx"]
)
bodies = st.binary(min_size=1, max_size=40) | st.integers(1, 1024).map(lambda size: b"b" * size)
ids = st.integers(0, 2**64 - 1).map(lambda value: b"%016x" % value)
numbers = st.integers(0, 4_000_000).map(lambda value: b"%d" % value) | st.sampled_from([b"", b"0", b"9" * 30])
line_end = st.sampled_from([b"\n", b"\n", b"\r\n"])

publishes = st.one_of(
    st.builds(lambda topic, end, body: b"PUB " + topic + end + sized(body), names, line_end, bodies),
    st.builds(mpub, names, st.lists(bodies, min_size=1, max_size=4)),
    st.builds(
        lambda topic, ms, body: b"DPUB %s %d\n" % (topic, ms) + sized(body), names, st.integers(0, 3_600_000), bodies
    ),
)
settles = st.one_of(
    st.builds(lambda id_, end: b"FIN " + id_ + end, ids, line_end),
    st.builds(lambda id_, ms: b"REQ " + id_ + b" " + ms + b"\n", ids, numbers),
    st.builds(lambda id_: b"TOUCH " + id_ + b"\n", ids),
    st.just(b"FIN 18A290C81C269000\n"),
    st.just(b"TOUCH not-one-of-ours!\n"),
)
openings = st.one_of(
    st.builds(lambda body: b"IDENTIFY\n" + sized(body), bodies),
    st.builds(lambda body: b"AUTH\n" + sized(body), bodies),
    st.just(b"NOP\n"),
    publishes,
)
wrong = st.one_of(
    st.builds(lambda name: b"PUB " + name + b"\n\0\0\0\1x", bad_names),
    st.builds(lambda name: b"MPUB " + name + b"\n", bad_names),
    st.builds(lambda name: b"SUB " + name + b" c\n", bad_names),
    st.builds(lambda name: b"SUB t " + name + b"\n", bad_names),
    st.builds(lambda length: b"PUB t\n" + struct.pack(">i", length), st.sampled_from([0, -1, 1025, 2**31 - 1])),
    st.builds(lambda length: b"MPUB t\n" + struct.pack(">i", length), st.sampled_from([0, -1, 4097])),
    st.builds(lambda count: b"MPUB t\n\0\0\0\x10" + struct.pack(">i", count), st.sampled_from([0, -1, 819])),
    st.builds(lambda length: b"IDENTIFY\n" + struct.pack(">i", length), st.sampled_from([0, -1, 4097])),
    st.sampled_from(
        [
            b"\n",
            b"nop\n",
            b"PUB\n",
            b"DPUB t\n",
            b"DPUB t 3600001\n",
            b"DPUB t -1\n",
            b"FIN\n",
            b"FIN short\n",
            b"REQ 0123456789abcdef x\n",
            b"RDY 2501\n",
            b"RDY x\n",
            b"CLS\n",
            b"SUB t\n",
            b"AUTH now\n",
            b"A" * 16384,
            b"MPUB t\n\0\0\0\x10\0\0\0\2\0\0\0\0",
            b"IDENTIFY\n\0\0\0\2{}",
            b"SUB t c\n",
        ]
    ),
)
windows = st.builds(lambda count: b"RDY " + count + b"\n", numbers)
tails = st.lists(st.one_of(publishes, settles, st.just(b"NOP\n"), windows), max_size=8)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A client's life, mostly in order, perhaps with one wrong command in it."""
    parts = [b"  V2", *draw(st.lists(openings, max_size=4))]
    if draw(st.booleans()):
        parts.append(b"SUB t c\n")
        parts += draw(tails)
        if draw(st.booleans()):
            parts.append(b"CLS\n")
            parts += draw(tails)
    if draw(st.booleans()):
        parts.insert(draw(st.integers(1, len(parts))), draw(wrong))
    return b"".join(parts)


def expected(stream: bytes) -> list[tuple]:
    return list(Reference(REFERENCE_LIMITS, now_ms=NOW_MS).parse(stream))


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@given(streams())
@settings(max_examples=300, deadline=None)
def test_codec_agrees_with_the_reference_on_whole_streams(stream: bytes):
    """nsq.md 1.2, 1.3, 1.7, 1.8, 1.11, C-PROTO-06, C-PROTO-16."""
    assert drive(LIMITS, [stream], NOW_MS) == expected(stream)


@given(streams())
@settings(max_examples=100, deadline=None)
def test_codec_agrees_with_the_reference_byte_by_byte(stream: bytes):
    """Every reader is driven one byte at a time."""
    assert drive(LIMITS, [bytes([byte]) for byte in stream], NOW_MS) == expected(stream)


@given(streams(), st.lists(st.integers(0, 1 << 16), max_size=12))
@settings(max_examples=300, deadline=None)
@example(b"  V2" + mpub(b"t", [b"x" * 1000] * 4) + b"PUB t\n\0\0\0\1y", [30, 1500, 3900])
def test_codec_agrees_with_the_reference_split_anywhere(stream: bytes, cuts: list[int]):
    """A command may end anywhere in a read, and a read anywhere in a command."""
    assert drive(LIMITS, split(stream, cuts), NOW_MS) == expected(stream)


same_windows = st.builds(
    lambda count, end: b"RDY " + count + end, st.sampled_from([b"1", b"2", b"2", b"02", b"2500"]), line_end
)


@given(st.lists(weighted((2, same_windows), (1, settles | publishes)), max_size=20), st.lists(st.integers(0, 1 << 16)))
@settings(max_examples=300, deadline=None)
def test_an_rdy_that_changes_nothing_is_counted_and_that_is_all(commands: list[bytes], cuts: list[int]):
    """Everything else comes as without being told what the last one said."""
    stream = b"  V2SUB t c\n" + b"".join(commands) + b"CLS\nRDY 2\nRDY 2\n"
    driver = Driver(LIMITS, NOW_MS, keeps_ready=True)
    events = [event for piece in split(stream, cuts) for event in driver.feed(piece)]
    assert changes_of(events) == changes_of(expected(stream))
    if not driver.refused:
        assert driver.intake.command_counts()["RDY"] == stream.count(b"RDY")


def changes_of(events: list[tuple]) -> list[tuple]:
    """Return the events without each RDY that says what the one before said."""
    kept, last = [], -1
    for event in events:
        if event[0] == "RDY":
            if event[1] == last:
                continue
            last = event[1]
        kept.append(event)
    return kept


@given(
    streams(),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
@settings(max_examples=500, deadline=None)
def test_mutated_streams_are_parsed_or_refused_within_bounded_memory(
    stream: bytes, changes: list[tuple[int, int]], cuts: list[int]
):
    """Hostile input gets the protocol's error, and nothing but RefusedError leaves the codec."""
    mutated = bytearray(stream)
    for position, value in changes:
        mutated[position % len(mutated)] = value
    driver = Driver(LIMITS, NOW_MS)
    for piece in split(bytes(mutated), cuts):
        driver.feed(piece)
    assert driver.most_held_bytes <= MAX_HELD_BYTES


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=3))
@settings(max_examples=300, deadline=None)
def test_noise_is_parsed_or_refused(noise: bytes, cuts: list[int]):
    drive(LIMITS, split(b"  V2" + noise, cuts))


@given(st.integers(1, 4), st.lists(bodies, min_size=1, max_size=6), st.integers(-20, 20), st.booleans())
@settings(max_examples=200, deadline=None)
def test_mpub_goes_by_its_inner_lengths(pieces: int, messages: list[bytes], error: int, followed: bool):
    """nsq.md 1.7: a wrong outer size with right inner lengths is taken, and the stream stays in step."""
    content = struct.pack(">I", len(messages)) + b"".join(map(sized, messages))
    stated = max(1, len(content) + error)
    if max(stated, len(content)) > REFERENCE_LIMITS.max_body_bytes:
        return
    stream = b"  V2MPUB t\n" + struct.pack(">I", stated) + content + (b"PUB t\n\0\0\0\1y" if followed else b"")
    size = -(-len(stream) // pieces)
    assert drive(LIMITS, [stream[at : at + size] for at in range(0, len(stream), size)], NOW_MS) == expected(stream)
