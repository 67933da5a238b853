"""Ids that say where a message lies."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.jobs.message_ids import MessageId, parse_message_id


def test_offset_ids_of_both_kinds() -> None:
    """RocketMQ: address, port, physical offset."""
    text = "7F00000100002A9F00000000000186A0"
    assert parse_message_id(text.lower()) == MessageId(text, 100_000, "127.0.0.1:10911")
    long = "0" * 31 + "1" + "00002A9F" + f"{1 << 40:016X}"
    assert parse_message_id(long) == MessageId(long, 1 << 40, "[::1]:10911")
    mapped = "0" * 20 + "FFFF0A000001" + "00002A9F" + "0" * 16
    assert parse_message_id(mapped).store_host == "[::ffff:10.0.0.1]:10911"  # as inet_ntop, and so the decoder, has it


def test_nsq_ids_have_the_offset_in_48_bits() -> None:
    assert parse_message_id(f"{7 << 48 | 4711:016x}") == MessageId(f"{7 << 48 | 4711:016x}", 4711, "")


@pytest.mark.parametrize("text", ["", "12", "g" * 32, "1" * 31, "U0001", f"{7 << 48 | 1 << 47:016x}", "F" * 32])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_message_id(text)
