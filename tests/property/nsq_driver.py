"""Feeds the compiled NSQ codec the way the server does, and flattens what it says into events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.net.receive import ReceiveBuffer
from headrace.net.stream_input import HEADROOM_BYTES
from headrace.nsq.codec import Auth, Cls, Identify, Limits, More, Rdy, Reader, Sub
from headrace.nsq.intake import Intake
from headrace.nsq.refusal import RefusedError
from headrace.nsq.states import ALLOWED_MASK, IGNORED_MASK, NEXT_STATE, Command, State

READ_BYTES = 2048  # small, so that a read that fills the buffer is common


class Driver:
    """One connection's codec without a connection."""

    def __init__(self, limits: Limits, now_ms: int = 0, *, keeps_ready: bool = False) -> None:
        """With ``keeps_ready`` the codec is told of each RDY, as by the server."""
        self.state = State.INIT
        self.reader = Reader(limits, ALLOWED_MASK[self.state], IGNORED_MASK[self.state])
        self.intake = Intake()
        self.receive = ReceiveBuffer(HEADROOM_BYTES, READ_BYTES)
        self.now_ms = now_ms
        self.keeps_ready = keeps_ready
        self.refused = False
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
        while not self.refused:
            try:
                command = self.reader.next_command(self.intake, self.now_ms)
            except RefusedError as refusal:
                yield from self._run()
                self.refused = refusal.fatal
                yield "refused", refusal.data, refusal.fatal
                continue
            yield from self._run()
            if command is None:
                return
            if not isinstance(command, More):
                yield self._stop(command)

    def _stop(self, command: object) -> tuple[Any, ...]:
        match command:
            case Identify():
                return "IDENTIFY", command.body
            case Auth():
                return "AUTH", command.secret
            case Sub():
                self._move(Command.SUB)
                return "SUB", command.topic, command.channel
            case Rdy():
                if self.keeps_ready:
                    self.reader.keep_ready(command.count)
                return "RDY", command.count
            case Cls():
                self._move(Command.CLS)
                return ("CLS",)
        raise AssertionError(command)

    def _move(self, command: Command) -> None:
        self.state = NEXT_STATE[self.state, command]
        self.reader.allowed = ALLOWED_MASK[self.state]
        self.reader.ignored = IGNORED_MASK[self.state]

    def _run(self) -> Iterator[tuple[Any, ...]]:
        """Merge publishes and settles back into the order of the stream."""
        intake = self.intake
        publishes = list(read_publishes(intake))
        settles = [intake.settled(index) for index in range(len(intake.settles))]
        assert len(publishes) == intake.publish_commands
        assert sum(messages for messages, _ in intake.publishes.totals()) == len(intake.publishes)
        assert intake.publishes.body_bytes == sum(len(body) for _, _, bodies, _ in publishes for body in bodies)
        for position, publish in enumerate(publishes):
            yield from (("settle", *settle[:3]) for settle in settles if settle[3] == position)
            yield publish
        yield from (("settle", *settle[:3]) for settle in settles if settle[3] == len(publishes))
        intake.clear()


def read_publishes(intake: Intake) -> Iterator[tuple[Any, ...]]:
    """Yield one event for each publish command of a run."""
    index = 0
    while index < len(intake.publishes):
        topic, _, due_ms, count = intake.published(index)
        assert count > 0
        entries = [intake.published(number) for number in range(index, index + count)]
        assert all(entry[0] == topic and entry[2] == due_ms for entry in entries)
        assert all(entry[3] == 0 for entry in entries[1:])
        yield "publish", topic, tuple(entry[1] for entry in entries), due_ms
        index += count


def drive(limits: Limits, pieces: Iterable[bytes], now_ms: int = 0) -> list[tuple[Any, ...]]:
    """Return the events of a stream that arrives in ``pieces``."""
    driver = Driver(limits, now_ms)
    return [event for piece in pieces for event in driver.feed(piece)]
