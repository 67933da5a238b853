"""Answers to sends that wait for the disk too long: they leave, and say that what they name may not be durable yet.

A producer waits for its answer a few seconds and then sends again, so where a flush takes longer than
``remoting.flush_timeout_ms`` it is told FLUSH_DISK_TIMEOUT: the message is stored, has its id and place, and is not
sent twice. Ref: requirements A-CLI-13, X-STORE-20; remoting.md 3.3.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.log_pace import LogPace
from headrace.remoting.codec import Command, decode_command, encode_response
from headrace.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.clock import Clock
    from headrace.errors import StoreError
    from headrace.remoting.connection import RemotingConnection

logger = logging.getLogger(__name__)

_LENGTH_BYTES: Final = 4


@dataclass(slots=True, eq=False)
class WaitingAnswer:
    """One write's worth of answers that wait for the disk; called when it has them, or never will."""

    answers: LateAnswers
    due_ms: int
    connection: RemotingConnection
    data: bytes
    refuse_late: Callable[[str], None] | None
    is_over: bool = False

    def __call__(self, error: StoreError | None) -> None:
        """Leave, unless they have left late."""
        if not self.is_over:
            self.is_over = True
            self.answers.forget_ended()
            self.connection.let_out(self, error)


class LateAnswers:
    """What waits, in the order in which it is due, which is that of the log."""

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._waiting: deque[WaitingAnswer] = deque()
        self._pace = LogPace(clock)

    def add(
        self, connection: RemotingConnection, data: bytes, refuse_late: Callable[[str], None] | None
    ) -> WaitingAnswer:
        """Return what a connection's encoded answers wait as; it lets them out late where the limit is over."""
        answer = WaitingAnswer(self, self._clock.monotonic_ms() + self._limit_ms, connection, data, refuse_late)
        self._waiting.append(answer)
        return answer

    def forget_ended(self) -> None:
        """Drop what has left from the front."""
        while self._waiting and self._waiting[0].is_over:
            self._waiting.popleft()

    def tick(self, now_ms: int) -> None:
        """Have those leave whose time is over."""
        late = 0
        while self._waiting and self._waiting[0].due_ms <= now_ms:
            answer = self._waiting.popleft()
            if not answer.is_over:
                answer.is_over = True
                late += 1
                answer.connection.let_out_late(answer)
        if late and self._pace.is_due():
            logger.warning(
                "sends answered before they are durable: the flush takes longer than remoting.flush_timeout_ms=%d",
                self._limit_ms,
            )


def as_late(data: bytes) -> tuple[bytes, int]:
    """Return encoded answers to sends as FLUSH_DISK_TIMEOUT where they were SUCCESS, and how many were."""
    return _replaced(
        data,
        lambda answer: encode_response(
            answer.serialize, answer.opaque, int(ResponseCode.FLUSH_DISK_TIMEOUT), None, answer.ext, answer.body
        ),
    )


def as_refused(data: bytes, text: str) -> tuple[bytes, int]:
    """Return encoded answers to sends as SERVICE_NOT_AVAILABLE where they were SUCCESS, and how many were."""
    return _replaced(
        data,
        lambda answer: encode_response(
            answer.serialize, answer.opaque, int(ResponseCode.SERVICE_NOT_AVAILABLE), text, None, None
        ),
    )


def _replaced(data: bytes, replace: Callable[[Command], bytes]) -> tuple[bytes, int]:
    """Return frames with each that is a success replaced, and how many were."""
    frames, replaced, at = [], 0, 0
    while at < len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        frame = data[at:end]
        answer = decode_command(frame)
        if answer.code == ResponseCode.SUCCESS:
            replaced += 1
            frame = replace(answer)
        frames.append(frame)
        at = end
    return b"".join(frames), replaced
