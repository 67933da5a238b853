"""Feeds the compiled RocketMQ codec the way the server does, and flattens what it says into events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.errors import ProtocolError
from headrace.net.receive import ReceiveBuffer
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.remoting.codec import Command, Limits, PullRequest, Reader, SendIntake

READ_BYTES = 2048  # small, so that a read that fills the buffer is common


class Driver:
    """One connection's codec without a connection."""

    def __init__(self, limits: Limits) -> None:
        self.reader = Reader(limits)
        self.intake = SendIntake()
        self.receive = ReceiveBuffer(HEADROOM_BYTES, READ_BYTES)
        self.refused = ""
        self.most_held_bytes = 0

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        """Read ``data`` from an imagined socket, in as many reads as its buffers ask for."""
        events: list[tuple[Any, ...]] = []
        while data and not self.refused:
            buffer = self.reader.room() or self.receive.view
            taken = min(len(data), len(buffer))
            buffer[:taken] = data[:taken]
            data = data[taken:]
            buffer.release()
            self.receive.view = memoryview(self.receive.memory)[HEADROOM_BYTES:]
            self.reader.received(self.receive.memory, taken)
            events.extend(self._commands())
            # Whoever still looks at the buffer after the call sees rubbish, as with the next socket's bytes.
            self.receive.memory[:] = b"\xee" * len(self.receive.memory)
            self.most_held_bytes = max(self.most_held_bytes, self.reader.held_bytes)
        return events

    def _commands(self) -> Iterator[tuple[Any, ...]]:
        while True:
            try:
                command = self.reader.next_command(self.intake)
            except ProtocolError as error:
                yield from self._sends()
                self.reader.discard()
                self.refused = str(error)
                yield ("refused",)
                return
            yield from self._sends()
            if command is None:
                return
            yield event_of(command)

    def _sends(self) -> Iterator[tuple[Any, ...]]:
        intake = self.intake
        sends = [intake.sent(index) for index in range(intake.sends)]
        messages = [message for send in sends for message in send[5]]
        assert len(messages) == len(intake.batch)
        assert sum(len(message[0]) for message in messages) == intake.batch.body_bytes
        assert len(set(intake.batch.destinations)) == len(intake.batch.destinations)
        intake.clear()
        assert (intake.sends, len(intake.batch), intake.batch.destinations) == (0, 0, [])
        yield from (("send", *send) for send in sends)


def event_of(command: Command | PullRequest) -> tuple[Any, ...]:
    if isinstance(command, PullRequest):
        return (
            "pull",
            command.code,
            command.opaque,
            command.serialize,
            command.consumer_group,
            command.topic,
            command.queue_id,
            command.queue_offset,
            command.max_messages,
            command.sys_flag,
            command.commit_offset,
            command.suspend_timeout_ms,
            command.sub_version,
            command.subscription,
            command.expression_type,
            command.max_message_bytes,
        )
    return (
        "command",
        command.serialize,
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.ext,
        command.body,
    )


def drive(limits: Limits, pieces: Iterable[bytes]) -> list[tuple[Any, ...]]:
    """Return the events of a stream that arrives in ``pieces``."""
    driver = Driver(limits)
    return [event for piece in pieces for event in driver.feed(piece)]
