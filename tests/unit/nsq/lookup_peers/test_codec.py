"""nsqlookupd's protocol V1, bytes only (nsq.md 4.1)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.nsq.lookup_peers.codec import (
    MAX_REPLY_BYTES,
    LookupdIdentity,
    LookupdRefusedError,
    NsqdIdentity,
    ReplyReader,
    decode_identity,
    encode_identify,
    encode_register,
    encode_unregister,
    require_ok,
)


def framed(reply: bytes) -> bytes:
    return len(reply).to_bytes(4, "big") + reply


def test_commands() -> None:
    """The topic is implied by its channel."""
    assert encode_register("t") == b"REGISTER t\n"
    assert encode_register("t", "c#ephemeral") == b"REGISTER t c#ephemeral\n"
    assert encode_unregister("t") == b"UNREGISTER t\n"
    assert encode_unregister("t", "c") == b"UNREGISTER t c\n"


def test_identify_has_the_fields_of_nsqd() -> None:
    """Recorded of nsqd 1.3.0, which sends them in this order."""
    identity = NsqdIdentity(broadcast_address="b", hostname="h", http_port=4151, tcp_port=4150, version="1.3.0")
    body = b'{"broadcast_address":"b","hostname":"h","http_port":4151,"tcp_port":4150,"version":"1.3.0"}'
    assert encode_identify(identity) == b"IDENTIFY\n" + framed(body)


def test_who_answers() -> None:
    """What a nsqlookupd leaves out is empty; what this broker does not know is passed over."""
    reply = b'{"broadcast_address":"l","hostname":"h","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    assert decode_identity(reply) == LookupdIdentity(broadcast_address="l", http_port=4161, version="1.3.0")
    assert decode_identity(reply).http_address == "l:4161"
    assert decode_identity(b'{"broadcast_address":"::1","http_port":1}').http_address == "[::1]:1"
    assert decode_identity(b"{}").http_address == ""


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"HTTP"])
def test_the_http_port_is_told_apart(answer: bytes) -> None:
    """Who names 4161 for 4160 is told so; as a length the text would be 1213486160 bytes."""
    with pytest.raises(ProtocolError, match=r"its HTTP port.*TCP port \(4160\)"):
        ReplyReader().feed(answer)


@pytest.mark.parametrize("host", ["", "a b", "a\r\nX: y", "ü", "a/b", "x" * 256])
def test_a_host_that_cannot_be_asked(host: str) -> None:
    """It would stand in a request."""
    assert decode_identity(json.dumps({"broadcast_address": host, "http_port": 4161}).encode()).http_address == ""


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"OK",
        b"[]",
        b"null",
        b'{"http_port":"4161"}',
        b'{"http_port":1e400}',
        b'{"version":1}',
        b"[" * 60_000,
        b"\xff",
    ],
)
def test_an_identity_that_is_none(reply: bytes) -> None:
    with pytest.raises(ProtocolError, match="answered IDENTIFY with"):
        decode_identity(reply)


@pytest.mark.parametrize("reply", [b"E_INVALID", b"E_BAD_BODY IDENTIFY missing fields"])
def test_a_refusal_says_what_was_refused(reply: bytes) -> None:
    """nsq.md 4.4: exactly E_INVALID closes; so does any other."""
    with pytest.raises(LookupdRefusedError, match=f"refused IDENTIFY: {reply.decode()}"):
        decode_identity(reply)
    with pytest.raises(LookupdRefusedError, match=f"refused REGISTER t: {reply.decode()}"):
        require_ok(reply, b"REGISTER t\n")


def test_another_answer_than_ok() -> None:
    require_ok(b"OK", b"PING\n")
    with pytest.raises(ProtocolError, match="answered PING with ok"):
        require_ok(b"ok", b"PING\n")


@given(replies=st.lists(st.binary(max_size=40), max_size=20), data=st.data())
def test_replies_come_in_any_pieces(replies: list[bytes], data: st.DataObject) -> None:
    """Whole, byte by byte, and with the beginning of the next one behind."""
    whole = b"".join(map(framed, replies))
    assert ReplyReader().feed(whole) == replies
    reader = ReplyReader()
    assert [reply for byte in whole for reply in reader.feed(bytes((byte,)))] == replies
    reader, taken, at = ReplyReader(), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, len(whole) - at))
        taken += reader.feed(whole[at : at + size])
        at += size
    assert taken == replies
    assert reader.feed(framed(b"next")[:-1]) == []
    assert reader.feed(b"t") == [b"next"]


@pytest.mark.parametrize("size", [MAX_REPLY_BYTES + 1, 0xFFFF_FFFF])
def test_a_reply_of_a_size_that_no_nsqlookupd_sends(size: int) -> None:
    """A hostile one announces 4 GiB: nothing of it is waited for."""
    with pytest.raises(ProtocolError, match=f"{size} bytes"):
        ReplyReader().feed(size.to_bytes(4, "big"))
    assert ReplyReader().feed(framed(bytes(MAX_REPLY_BYTES))) == [bytes(MAX_REPLY_BYTES)]
