"""Packets for statsd have the lines that were put in, whole and in order, and are as full as nsqd's."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.nsq.statsd.packets import Packer

LINES = st.lists(st.binary(min_size=1, max_size=60).map(lambda text: text.replace(b"\n", b".") + b"\n"), max_size=60)


def pack(lines: list[bytes], most_bytes: int) -> list[bytes]:
    packer = Packer(most_bytes)
    packets = [packet for line in lines if (packet := packer.add(line)) is not None]
    return [*packets, packer.take()]


@given(LINES, st.integers(61, 508))
def test_packets_split_back_into_the_lines(lines: list[bytes], most_bytes: int) -> None:
    """C-LIFE-09; nsq.md 6.1: up to so many bytes a packet, without splitting a line."""
    packets = pack(lines, most_bytes)
    assert b"".join(packets) == b"".join(lines)
    assert all(packet.endswith(b"\n") for packet in packets if lines)
    assert all(len(packet) <= most_bytes for packet in packets)
    assert [line + b"\n" for packet in packets for line in packet.split(b"\n")[:-1]] == lines
    # Nor is there room in one for the first line of the next.
    for packet, following in itertools.pairwise(packets):
        assert len(packet) + following.index(b"\n") + 1 > most_bytes


@given(LINES, st.integers(1, 60))
def test_a_line_that_is_too_long_goes_alone_and_whole(lines: list[bytes], most_bytes: int) -> None:
    """As from nsqd: its buffered writer passes on what is longer than the buffer."""
    packets = pack(lines, most_bytes)
    assert b"".join(packets) == b"".join(lines)
    assert all(len(packet) <= most_bytes or packet.count(b"\n") == 1 for packet in packets)


def test_a_packet_is_taken_once() -> None:
    """And nothing is left for the next."""
    packer = Packer(10)
    assert packer.take() == b""
    assert packer.add(b"a:1|c\n") is None
    assert packer.take() == b"a:1|c\n"
    assert packer.take() == b""
