"""Answers to sends that leave before the disk has what they name. Ref: A-CLI-13, X-STORE-20."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.clock import ManualClock
from headrace.errors import StoreError
from headrace.remoting.codec import decode_command, encode_request, encode_response
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.sending.late_answers import LateAnswers, WaitingAnswer, as_late, as_refused
from tests.support.remoting import RemotingRig, send_fields

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


def test_a_send_is_late_by_the_time_up_to_which_flushes_have_been_noted(rig: RemotingRig) -> None:
    """A loop that is long at its reads has not seen what the disk said meanwhile."""
    client = rig.link()
    client.ask(_send(1))
    client.send(_send(2))
    client.server.joint_sends.end_turn()
    before_ms = rig.clock.monotonic_ms()
    rig.clock.advance_ms(client.server.settings.flush_timeout_ms)
    client.server.check_timers(before_ms)
    assert client.taken() == []
    client.server.check_timers(rig.clock.monotonic_ms())
    assert [answer.code for answer in client.taken()] == [ResponseCode.FLUSH_DISK_TIMEOUT]


def test_what_was_refused_stays_so_among_answers_that_are_late() -> None:
    """A-CLI-13: FLUSH_DISK_TIMEOUT says that a message is stored, and a send that was refused has left none."""
    refused = encode_response(0, 2, ResponseCode.NO_PERMISSION, "no", None, None)
    stored = encode_response(0, 1, ResponseCode.SUCCESS, None, {"msgId": "A", "queueOffset": "7"}, None)
    for change, code in (
        (as_late, ResponseCode.FLUSH_DISK_TIMEOUT),
        (lambda data: as_refused(data, "disk"), ResponseCode.SERVICE_NOT_AVAILABLE),
    ):
        data, changed = change(refused + stored + refused)
        assert changed == 1
        assert data.startswith(refused)
        assert data.endswith(refused)
        assert decode_command(data[len(refused) : -len(refused)]).code == code


def _send(opaque: int) -> bytes:
    texts = {name: str(value) for name, value in send_fields("T").items()}
    return encode_request(0, RequestCode.SEND_MESSAGE_V2, opaque, False, texts, b"x")
