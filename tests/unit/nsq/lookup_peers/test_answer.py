"""The answer to GET /channels, bytes only (nsq.md 4.3)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.nsq.lookup_peers import answer
from headrace.nsq.lookup_peers.answer import AnswerReader, encode_question, is_lasting

HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
BODY = b'{"channels":["a","b#ephemeral","a","not valid","c"],"message":"x"}'


def read(whole: bytes, piece: int = 1 << 20) -> list[str]:
    reader = AnswerReader()
    for at in range(0, len(whole), piece):
        reader.feed(whole[at : at + piece])
    return list(reader.channels())


def test_question() -> None:
    """HTTP/1.0, so that nobody answers in chunks."""
    assert encode_question("t#ephemeral", "l:4161").startswith(b"GET /channels?topic=t%23ephemeral HTTP/1.0\r\n")
    assert b"\r\nHost: l:4161\r\nAccept: application/vnd.nsq; version=1.0\r\n" in encode_question("t", "l:4161")


@pytest.mark.parametrize("length", [b"Content-Length: %d\r\n" % len(BODY), b"content-length:%d \r\n" % len(BODY), b""])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_channels_that_can_be_made(length: bytes, piece: int) -> None:
    """Not those that go with their consumers, nor what NSQ cannot spell."""
    named = read(HEAD + length + b"\r\n" + BODY, piece)
    assert named == ["a", "b#ephemeral", "a", "not valid", "c"]
    assert [name for name in named if is_lasting(name)] == ["a", "a", "c"]


def test_an_answer_is_whole_without_the_end_of_the_connection() -> None:
    reader = AnswerReader()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    reader.feed(whole[:-1])
    assert not reader.is_whole
    reader.feed(whole[-1:] + b"what follows")
    assert reader.is_whole
    assert list(reader.channels()) == ["a", "b#ephemeral", "a", "not valid", "c"]


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"\x00\x00\x00\x0aE_INVALID\r\n\r\n",
        HEAD + b"Content-Length: 70\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 9999999999\r\n\r\n" + BODY,
        HEAD + b"\r\n",
        HEAD + b"\r\n{}",
        HEAD + b'\r\n{"channels":null}',
        HEAD + b'\r\n{"channels":[1]}',
        HEAD + b'\r\n{"channels":{"a":1}}',
        HEAD + b'\r\n{"channels":"a"}',
        HEAD + b'\r\n{"channels":["a",["b"]]}',
        HEAD + b'\r\n{"channels":["a",]}',
        HEAD + b"\r\n" + b"[" * 60_000,
        HEAD + b"\r\n\xff",
    ],
)
def test_an_answer_that_names_no_channels(whole: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^it"):
        read(whole)


@pytest.mark.parametrize("start", [b"HTTP/1.0 200 OK\r\nX: ", HEAD + b'\r\n{"channels":["'])
def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    """It is read up to a bound."""
    monkeypatch.setattr(answer, "MAX_ANSWER_BYTES", 200_000)
    with pytest.raises(ProtocolError, match=r"more than 200000 bytes|end of the headers"):
        read(start + b"x" * 300_000, 1000)


@given(st.binary(max_size=300), st.integers(1, 300))
def test_whatever_comes_is_read_or_refused(data: bytes, piece: int) -> None:
    """Nothing else is raised."""
    for whole in (data, HEAD + b"\r\n" + data, HEAD + data):
        try:
            read(whole, piece)
        except ProtocolError:
            continue


names = st.lists(st.text(max_size=6) | st.sampled_from(["a", "b-c", "x" * 64]), max_size=12)


@example(["a", " ,"], 4, (",", ":"))
@given(names, st.integers(1, 40), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")]))
def test_names_are_decoded_some_at_a_time(named: list[str], slice_bytes: int, separators: tuple[str, str]) -> None:
    """Wherever they are cut, the same names come out; quotes, or a comma by itself, may be refused."""
    whole = HEAD + b"\r\n" + json.dumps({"channels": named}, separators=separators, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "SLICE_BYTES", slice_bytes)
        try:
            assert read(whole) == named
        except ProtocolError:
            assert any('"' in name or name.strip(" ") == "," for name in named)


@pytest.mark.parametrize("name", [b'"a"', b'""', b'"%032d"' % 1])
def test_no_slice_of_a_long_answer_is_long(name: bytes) -> None:
    """Eight megabytes of short names took 0.4 s in one go."""
    names = b",".join([name] * 50_000)
    reader = AnswerReader()
    reader.feed(HEAD + b'\r\n{"channels":[' + names + b"]}")
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        decode: Any = msgspec.json.decode

        def watched(data: bytes, **types: object) -> object:
            sizes.append(len(data))
            return decode(data, **types)

        channels = reader.channels()
        patch.setattr(msgspec.json, "decode", watched)
        assert sum(1 for _ in channels) == 50_000
    assert max(sizes) < answer.SLICE_BYTES + 100
    assert len(sizes) >= len(names) // answer.SLICE_BYTES
