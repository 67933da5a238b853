"""What the reads of one turn bring is done together at its end."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.net.joint_turn import JointTurn
from tests.support.loop import FakeLoop


class AnsweringTurn(JointTurn[Any]):
    """Does what its shares say."""

    def append(self, shares: list[Any]) -> None:
        for share in shares:
            share.answer()

    def clear(self) -> None:
        """There is no batch."""


@pytest.mark.provokes_bugs
def test_what_is_added_while_others_are_answered_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Its bytes would be cleared with theirs, and it would be answered as if they were stored."""
    loop, turn = FakeLoop(), AnsweringTurn()
    turn.call_soon = loop.call_soon
    ended: list[str] = []
    client = SimpleNamespace(abort=ended.append)
    late = SimpleNamespace(client=client, answer=lambda: pytest.fail("it was taken"))
    turn.add(SimpleNamespace(client=client, answer=lambda: turn.add(late)))
    with caplog.at_level(logging.ERROR):
        loop.come_round()
    assert ended == ["internal error"]
    assert "was added to" in caplog.text
    answered: list[int] = []
    turn.add(SimpleNamespace(client=client, answer=lambda: answered.append(1)))
    loop.come_round()
    assert answered == [1]
