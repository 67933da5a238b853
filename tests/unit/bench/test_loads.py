"""Reading what other programs print, and what the kernel says of a process."""

from __future__ import annotations

import os

import pytest

from bench.errors import BenchError
from bench.loads import _parse_go_duration
from bench.process import cpu_seconds, memory_mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10.002s", 10.002), ("512.3ms", 0.5123), ("1m2.5s", 62.5), ("1h0m1s", 3601.0), ("15µs", 15e-6), ("7ns", 7e-9)],
)
def test_go_durations_are_seconds(text: str, seconds: float) -> None:
    assert _parse_go_duration(text) == pytest.approx(seconds)


def test_what_is_no_duration_is_an_error() -> None:
    with pytest.raises(BenchError, match="soon"):
        _parse_go_duration("soon")


def test_a_process_has_used_time_and_memory() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert 1 < memory_mib(os.getpid(), "RssAnon") <= memory_mib(os.getpid(), "VmHWM")
    with pytest.raises(ValueError, match="NoSuchField"):
        memory_mib(os.getpid(), "NoSuchField")
