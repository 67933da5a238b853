"""Properties, hosts and offset ids, as RocketMQ spells them."""

from __future__ import annotations

import pytest

from headrace.format import record

VECTOR = bytes.fromhex(
    "4b455953014b310254414753015461674102554e49515f4b45590130413030303030353142353930303030303030303030303030303031"
    "3030303002434c555354455201433102"
)
PAIRS = {"KEYS": "K1", "TAGS": "TagA", "UNIQ_KEY": "0A0000051B5900000000000000010000", "CLUSTER": "C1"}


def test_properties_of_the_test_vector() -> None:
    """remoting.md 10.6."""
    assert len(VECTOR) == 71
    assert record.properties_of(VECTOR) == PAIRS
    assert record.encode_properties(PAIRS) == VECTOR


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02c\x01d\x01e\x02", {"a": "b", "c": "d\x01e"}),
        (b"\x01b\x02a\x01\x02bare\x02\x02x\x01y\x02", {"x": "y"}),
        (b"a\x01first\x02a\x01last\x02", {"a": "last"}),
    ],
)
def test_pieces_without_a_name_or_a_value_are_dropped(raw: bytes, expected: dict[str, str]) -> None:
    """remoting.md 2.5, decode: split at 0x02, then at the first 0x01; the last separator may be missing."""
    assert record.properties_of(raw) == expected


def test_bytes_that_are_no_text_survive() -> None:
    """A copy of a message keeps its properties byte for byte."""
    raw = b"k\x01\xff\xfe\x02l\x01a\x01b\x02"
    assert record.encode_properties(record.properties_of(raw)) == raw


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    """JSON can spell it; Java's UTF-8 encoder writes ``?``."""
    assert record.encode_properties({"k": "a\ud800"}) == b"k\x01a?\x02"


def test_empty_names_and_values_are_not_written() -> None:
    """remoting.md 2.5, values."""
    assert record.encode_properties({"": "x", "a": "", "b": "c"}) == b"b\x01c\x02"


@pytest.mark.parametrize("pair", [("a\x01", "b"), ("a\x02", "b"), ("a", "\x02b")])
def test_a_separator_in_a_name_or_value_is_refused(pair: tuple[str, str]) -> None:
    """remoting.md 2.5: there is no escaping, so it would make other properties."""
    with pytest.raises(ValueError, match="holds a separator"):
        record.encode_properties(dict([pair]))


def test_offset_ids() -> None:
    """remoting.md 2.8, 10.7."""
    port = (10911).to_bytes(4, "big")
    assert record.message_id(bytes([10, 0, 0, 1]) + port, 0x100000040) == "0A00000100002A9F0000000100000040"
    ipv6 = bytes.fromhex("20010db8000000000000000000000001") + port
    assert record.message_id(ipv6, 1) == "20010DB800000000000000000000000100002A9F0000000000000001"
    with pytest.raises(ValueError, match="8 or 20 bytes"):
        record.message_id(bytes(7), 0)


def test_hosts_in_words() -> None:
    """``ip:port``; the brackets keep an IPv6 address apart from its port."""
    port = (10911).to_bytes(4, "big")
    assert record.describe_host(bytes([10, 0, 0, 1]) + port) == "10.0.0.1:10911"
    assert record.describe_host(bytes.fromhex("20010db8000000000000000000000001") + port) == "[2001:db8::1]:10911"
    with pytest.raises(ValueError, match="8 or 20 bytes"):
        record.describe_host(b"")
