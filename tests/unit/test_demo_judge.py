"""The demo's judge: it says "right" only when every flight reached both channels unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.flights import flight_key
from demo.judge import ChannelJudge, find_faults

FLIGHTS = [
    f"2013,1,1,517,515,2,830,819,11,UA,{number},N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z".encode()
    for number in range(4)
]
EXPECTED = {flight_key(line): line for line in FLIGHTS}
ONCE = [(b"%016d" % number, line) for number, line in enumerate(FLIGHTS)]


def judge(folder: Path, deliveries: list[tuple[bytes, bytes]], channel: str = "archive") -> ChannelJudge:
    notes = folder / channel
    notes.write_bytes(b"".join(b"1 %s %s\n" % delivery for delivery in deliveries))
    judged = ChannelJudge(channel, notes, EXPECTED)
    judged.read_to_end()
    return judged


def test_everything_once_is_right(tmp_path: Path) -> None:
    judged = judge(tmp_path, ONCE)
    assert (judged.deliveries, judged.lost, judged.redelivered, judged.duplicates) == (4, 0, 0, 0)
    assert find_faults([judged], resent_messages=0) == []


def test_the_same_id_again_is_a_redelivery_and_right(tmp_path: Path) -> None:
    judged = judge(tmp_path, [*ONCE, ONCE[2]])
    assert (judged.redelivered, judged.duplicates) == (1, 0)
    assert find_faults([judged], resent_messages=0) == []


def test_another_id_is_a_duplicate_and_right_only_if_it_was_sent_twice(tmp_path: Path) -> None:
    judged = judge(tmp_path, [*ONCE, (b"f" * 16, FLIGHTS[2])])
    assert (judged.redelivered, judged.duplicates) == (0, 1)
    assert find_faults([judged], resent_messages=1) == []
    assert "twice" in find_faults([judged], resent_messages=0)[0]


@pytest.mark.parametrize(
    ("deliveries", "text"),
    [
        (ONCE[:-1], "1 flights lost"),
        ([*ONCE, (b"f" * 16, FLIGHTS[0].replace(b"EWR", b"LGA"))], "wrong content"),
        ([*ONCE, (b"f" * 16, b"")], "wrong content"),
        ([*ONCE, (ONCE[0][0], FLIGHTS[1])], "two different messages"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, deliveries: list[tuple[bytes, bytes]], text: str) -> None:
    (fault,) = find_faults([judge(tmp_path, deliveries)], resent_messages=0)
    assert text in fault


def test_channels_must_agree_on_what_is_stored(tmp_path: Path) -> None:
    """A flight stored twice must reach every channel twice: a channel gets every message of its topic."""
    first = judge(tmp_path, [*ONCE, (b"f" * 16, FLIGHTS[2])], "arrivals")
    second = judge(tmp_path, ONCE, "archive")
    assert find_faults([first, second], resent_messages=1) == ["the channels did not get the same messages"]


def test_a_line_that_is_half_written_waits(tmp_path: Path) -> None:
    notes = tmp_path / "archive"
    judged = ChannelJudge("archive", notes, EXPECTED)
    judged.read()
    line = b"1 %s %s\n" % ONCE[0]
    with notes.open("wb", buffering=0) as file:
        file.write(line[:50])
        judged.read()
        assert judged.deliveries == 0
        file.write(line[50:])
    judged.read_to_end()
    assert (judged.deliveries, judged.wrong, len(judged.flights)) == (1, 0, 1)
