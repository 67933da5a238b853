"""Rows of SEND_SEQUENCED against plain struct code: what is taken, what is left aside, what is refused."""

from __future__ import annotations

import random
import struct

import pytest

from headrace.errors import ProtocolError
from headrace.remoting.sending.rows import RowIntake
from headrace.remoting.sending.send_intake import Limits
from tests.support.exactly_once import Row, encode_rows

SPECIAL = ("DELAY", "TRAN_MSG", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")


def intake() -> RowIntake:
    return RowIntake(Limits((), cluster=b"C1"))


def some_rows(seed: int, count: int) -> list[Row]:
    chance = random.Random(seed)
    return [
        (
            chance.randbytes(chance.randrange(60)),
            {f"p{number}": "v" * chance.randrange(1, 9) for number in range(row % 4)},
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_all_rows_but_the_first_are_taken(seed: int) -> None:
    rows = some_rows(seed, 20)
    made = intake()
    for skip in (0, 1, 19, 20):
        assert made.take(encode_rows(rows), 20, skip, 5, 0) == -1
        bodies = [body for body, _ in rows[skip:]]
        assert len(made.batch) == len(bodies) + 1
        assert made.batch.body_bytes == sum(map(len, bodies))
    made.set_record(b"record")
    assert made.batch.body_bytes == len(b"record")
    made.set_record(b"rec")
    assert made.batch.body_bytes == len(b"rec")
    made.clear()
    assert len(made.batch) == 0


@pytest.mark.parametrize("name", SPECIAL)
def test_the_first_row_that_is_more_than_plain_is_named(name: str) -> None:
    rows = [*some_rows(1, 3), (b"x", {"a": "b", name: "7"}), *some_rows(2, 2)]
    made = intake()
    assert made.take(encode_rows(rows), 6, 0, 0, 0) == 3
    assert made.take(encode_rows(rows), 6, 3, 0, 0) == 3
    assert made.take(encode_rows(rows), 6, 4, 0, 0) == -1


def test_a_delay_of_0_is_none() -> None:
    assert intake().take(encode_rows([(b"x", {"DELAY": "0"})]), 1, 0, 0, 0) == -1


def test_long_properties_are_left_aside() -> None:
    assert intake().take(encode_rows([(b"x", {"a": "b" * 32_740})]), 1, 0, 0, 0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_torn_body_is_refused(seed: int) -> None:
    """Cut anywhere but between two rows; and between two rows the count is wrong."""
    body = encode_rows(some_rows(seed, 3))
    made = intake()
    for size in range(len(body)):
        with pytest.raises(ProtocolError, match="row") as caught:
            made.take(body[:size], 3, 0, 0, 0)
        assert not caught.value.fatal
    with pytest.raises(ProtocolError):
        made.take(body + b"\0", 3, 0, 0, 0)


@pytest.mark.parametrize(("at", "value"), [(0, 0), (0, 1 << 30), (0, -1), (16, -1), (16, 1 << 30), (16, 3)])
def test_lengths_that_do_not_add_up_are_refused(at: int, value: int) -> None:
    body = bytearray(encode_rows([(b"ab", {"k": "v"})]))
    struct.pack_into(">i", body, at, value)
    with pytest.raises(ProtocolError, match="row 0"):
        intake().take(bytes(body), 1, 0, 0, 0)


def test_negative_length_of_properties_is_refused() -> None:
    body = struct.pack(">iiiii", 21, 0, 0, 0, 0) + struct.pack(">h", -1)
    with pytest.raises(ProtocolError, match="row 0"):
        intake().take(body, 1, 0, 0, 0)


def test_there_is_no_record_without_rows() -> None:
    with pytest.raises(ValueError, match="no rows"):
        intake().set_record(b"x")
