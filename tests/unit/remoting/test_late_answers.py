"""Answers to sends that leave before the disk has what they name. Ref: A-CLI-13, X-STORE-20."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.clock import ManualClock
from headrace.errors import StoreError
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.sending.late_answers import LateAnswers, WaitingAnswer

LIMIT_MS = 5_000


class Client:
    """Notes which answers left, and how."""

    def __init__(self) -> None:
        self.left: list[tuple[bytes, str]] = []

    def let_out(self, answer: WaitingAnswer, _error: StoreError | None) -> None:
        self.left.append((answer.data, "durable"))

    def let_out_late(self, answer: WaitingAnswer) -> None:
        self.left.append((answer.data, "late"))


def test_each_answer_leaves_once_and_late_as_soon_as_its_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """One that the disk let out behind another is not sent again; a line a minute tells of late ones."""
    clock, client = ManualClock(), Client()
    answers = LateAnswers(clock, LIMIT_MS)

    def add(data: bytes) -> Any:
        return answers.add(cast(RemotingConnection, client), data, None)

    first, second = add(b"first"), add(b"second")
    second(None)
    clock.advance_ms(LIMIT_MS - 1)
    answers.tick(clock.monotonic_ms())
    assert client.left == [(b"second", "durable")]
    clock.advance_ms(1)
    answers.tick(clock.monotonic_ms())
    first(None)
    assert client.left == [(b"second", "durable"), (b"first", "late")]
    add(b"third")
    clock.advance_ms(LIMIT_MS)
    answers.tick(clock.monotonic_ms())
    assert client.left[2:] == [(b"third", "late")]
    assert caplog.text.count("sends answered before they are durable") == 1
