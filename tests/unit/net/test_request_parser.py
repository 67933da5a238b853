"""Chunked bodies as h11 reads them, whatever the reads bring, but for the number of events."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.net.request_parser import RequestParser

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(parser: h11.Connection, pieces: list[bytes]) -> tuple[bytes, list[str], int]:
    """Return the body, what else came, and the number of body events; what is refused ends the list."""
    body, events = b"", 0
    others: list[str] = []
    for piece in pieces:
        parser.receive_data(piece)
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError:
                return body, [*others, "refused"], events
            if event is h11.NEED_DATA or event is h11.PAUSED:
                break
            if isinstance(event, h11.Data):
                body += event.data
                events += 1
            else:
                others.append(type(event).__name__)
    return body, [*others, repr(parser.trailing_data[0])], events


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


CHUNK = st.tuples(st.sampled_from(("%x", "%X", "000%x", "%x;a=b", "%x ")), st.binary(min_size=1, max_size=300))
ENDS = (b"0\r\n\r\n", b"00\r\nA: b\r\n\r\nGET", b"", b"3\r\nab", b"2\r\nabX\r\n", b"-1\r\n", b"g\r\n", b"\r\n", b"0\r")


@given(chunks=st.lists(CHUNK, max_size=30), end=st.sampled_from(ENDS), cuts=st.lists(st.integers(0, 10_000)))
def test_chunks_are_those_of_h11(chunks: list[tuple[str, bytes]], end: bytes, cuts: list[int]) -> None:
    """The same body, end, rest and refusals; a refused body may be cut short elsewhere."""
    stream = b"".join((size % len(body)).encode() + b"\r\n" + body + b"\r\n" for size, body in chunks) + end
    pieces = [HEAD, *pieces_of(stream, cuts)]
    theirs, ours = read(h11.Connection(h11.SERVER, 65536), pieces), read(RequestParser(), pieces)
    assert ours[:2] == theirs[:2]


@pytest.mark.parametrize("size", [1, 7, 200])
def test_short_chunks_are_one_event(size: int) -> None:
    """A read full of the shortest held the loop for 0.2 s."""
    chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
    body, others, events = read(RequestParser(), [HEAD + chunk * 20_000, chunk * 20_000 + b"0\r\n\r\n"])
    assert body == b"x" * size * 40_000
    assert others == ["Request", "EndOfMessage", "b''"]
    assert events == 2
