"""RocketMQ's access-key signature."""

import pytest

from headrace.remoting.signature import is_signed_with, sign, signed_content, signed_ext

# remoting.md 10.2 with the access key of 10.10.
EXT = {
    "AccessKey": "RocketMQ",
    "a": "P1",
    "b": "T1",
    "c": "TBW102",
    "d": "4",
    "e": "2",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "KEYS\x01K1\x02TAGS\x01TagA\x02WAIT\x01true\x02UNIQ_KEY\x010A0000051B5900000000000000010000\x02",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
BODY = b"hello"
SECRET = "12345678"
SIGNATURE = "fui3pG0LqyQwoQljII+LHJgI8LU="


def test_vector_of_the_specification() -> None:
    """remoting.md 10.10."""
    content = signed_content(EXT, BODY)
    assert content == (
        b"RocketMQP1T1TBW10242017000000000000KEYS\x01K1\x02TAGS\x01TagA\x02WAIT\x01true\x02"
        b"UNIQ_KEY\x010A0000051B5900000000000000010000\x020falsefalsebroker-ahello"
    )
    assert sign(SECRET, content) == SIGNATURE


def test_signed_request_is_recognised() -> None:
    """remoting.md 7.1: every field but Signature, and the body."""
    ext = signed_ext({**EXT, "Signature": "old"}, BODY, "RocketMQ", SECRET)
    assert ext["Signature"] == SIGNATURE
    assert is_signed_with(SECRET, ext, BODY)
    assert signed_ext(None, None, "k", SECRET)["Signature"] == sign(SECRET, b"k")


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({"b": "T2"}, BODY),
        ({"new": "x"}, BODY),
        ({}, b"hellO"),
        ({"Signature": ""}, BODY),
        ({"Signature": "é\ud800"}, BODY),
    ],
)
def test_changed_request_is_not(change: dict[str, str], body: bytes) -> None:
    """Any change of a field or the body breaks it; a signature that is no base64 is just wrong."""
    ext = signed_ext(EXT, BODY, "RocketMQ", SECRET)
    assert not is_signed_with(SECRET, {**ext, **change}, body)


def test_another_secret_is_not() -> None:
    """Nor is a missing signature."""
    assert not is_signed_with("87654321", signed_ext(EXT, BODY, "RocketMQ", SECRET), BODY)
    assert not is_signed_with(SECRET, EXT, BODY)


def test_unique_key_query_may_be_signed_or_not() -> None:
    """remoting.md 7.1: clients up to 4.9.3 leave this field out of what they sign, later ones do not."""
    ext = {"topic": "T", "key": "K"}
    old = {**signed_ext(ext, b"", "k", SECRET), "_UNIQUE_KEY_QUERY": "true"}
    new = signed_ext({**ext, "_UNIQUE_KEY_QUERY": "true"}, b"", "k", SECRET)
    assert is_signed_with(SECRET, old, b"")
    assert is_signed_with(SECRET, new, b"")
    assert not is_signed_with(SECRET, {**old, "other": "true"}, b"")
