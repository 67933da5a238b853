"""Data for the scans: a topic of messages as orders might look, sent to a broker in batches.

Bodies have 60 to 140 or 900 to 1,150 bytes of random hex; there are tags, keys, a unique id and a region. Some hundred
thousand messages are laid out once and sent over and over with unique ids of their own, so that the broker is what
limits, not this. The seed is fixed: every run has the same data.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.errors import BenchError
from headrace.remoting.blocking import BlockingClient, Request
from headrace.remoting.codes import RequestCode

TOPIC = "orders"
QUEUES = 4
FRAME_MESSAGES = 2048
# Frames laid out. A prime, so that every queue gets all of them: bodies come again after more than a compressor looks
# back, or files would be smaller than those of real messages.
FRAMES = 61
WINDOW = 8
# A record without topic, body and properties; then what the broker adds, CLUSTER and a checksum.
RECORD_FIXED_BYTES = 91 + 34
_BATCH_FIXED_BYTES = 22
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_ID_DIGITS = 16
_SHIFTS = np.arange(4 * (_ID_DIGITS - 1), -1, -4, dtype=np.uint64)


@dataclass(frozen=True)
class Shape:
    """How long bodies are, both ends included."""

    name: str
    least: int
    most: int


SHAPES = {"100": Shape("100", 60, 140), "1k": Shape("1k", 900, 1150)}


@dataclass
class Frame:
    """A batch with the places of its unique ids."""

    body: npt.NDArray[np.uint8]
    id_places: npt.NDArray[np.int64]
    ends: list[int]
    record_bytes: int

    def with_ids(self, first: int, messages: int = FRAME_MESSAGES) -> bytes:
        """Return the batch, or its first ``messages``, with unique ids from ``first`` on."""
        numbers = np.arange(first, first + len(self.id_places), dtype=np.uint64)
        digits = (numbers[:, None] >> _SHIFTS) & np.uint64(15)
        self.body[self.id_places[:, None] + np.arange(_ID_DIGITS)] = _HEX[digits.astype(np.intp)]
        return self.body[: self.ends[messages - 1]].tobytes()


def make_frames(shape: Shape, count: int = FRAMES) -> list[Frame]:
    """Lay out batches of FRAME_MESSAGES each."""
    source = random.Random(f"headrace {shape.name}")
    return [_make_frame(shape, source) for _ in range(count)]


def _make_frame(shape: Shape, source: random.Random) -> Frame:
    body = bytearray()
    places = []
    ends = []
    record_bytes = 0
    for _ in range(FRAME_MESSAGES):
        size = source.randint(shape.least, shape.most)
        text = source.randbytes(size // 2 + 1).hex()[:size].encode()
        before = (
            f"KEYS\x01order-{source.randrange(1_000_000)}\x02TAGS\x01tag-{source.randrange(8)}\x02UNIQ_KEY\x01".encode()
        )
        id_head = b"7F00000100002A9F"
        after = f"\x02region\x01{source.choice(('eu-west', 'us-east', 'ap-south'))}\x02".encode()
        properties = before + id_head + b"0" * _ID_DIGITS + after
        total = _BATCH_FIXED_BYTES + size + len(properties)
        body += total.to_bytes(4) + bytes(12) + size.to_bytes(4) + text + len(properties).to_bytes(2)
        places.append(len(body) + len(before) + len(id_head))
        body += properties
        ends.append(len(body))
        record_bytes += RECORD_FIXED_BYTES + len(TOPIC) + size + len(properties)
    return Frame(np.frombuffer(body, np.uint8).copy(), np.array(places, np.int64), ends, record_bytes)


def messages_for(shape: Shape, log_bytes: int) -> int:
    """Return how many messages make a log of about ``log_bytes``, in whole frames to every queue."""
    frame = make_frames(shape, 1)[0]
    turns = max(1, round(log_bytes / (frame.record_bytes * QUEUES)))
    return turns * QUEUES * FRAME_MESSAGES


def send_messages(address: str, shape: Shape, messages: int, *, first: int = 0) -> float:
    """Send to TOPIC, its queues in turn; return messages per second.

    Args:
        address: The broker's, not the registry's.
        first: Number of the first message, which unique ids continue from.

    Raises:
        BenchError: the broker refused a batch.
    """
    frames = make_frames(shape)

    def requests() -> Iterator[Request]:
        for turn, number in enumerate(range(first, first + messages, FRAME_MESSAGES)):
            body = frames[turn % len(frames)].with_ids(number, min(FRAME_MESSAGES, first + messages - number))
            yield int(RequestCode.SEND_BATCH_MESSAGE), send_fields(turn % QUEUES, is_batch=True), body

    start = time.monotonic()
    with BlockingClient(address, timeout_s=60) as client:
        # A generator: all requests at once would be the whole log in memory.
        for answer in client.call_many(requests(), window=WINDOW):
            if answer.code != 0:
                raise BenchError(f"the broker answered a batch with {answer.code}: {answer.remark}")
    return messages / (time.monotonic() - start)


def send_fields(queue: int, *, is_batch: bool) -> dict[str, str]:
    """Return the fields of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
    return {
        "a": "bench",
        "b": TOPIC,
        "c": "TBW102",
        "d": str(QUEUES),
        "e": str(queue),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "l": "0",
        "m": "true" if is_batch else "false",
    }
