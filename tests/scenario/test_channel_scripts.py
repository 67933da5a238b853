"""Text scripts for a channel: what is done, and what it says.

A script is a ``.channel`` file beside this one: a command per line, its effect behind ``->``. To re-record, run
``REWRITE_SCENARIOS=1 pytest tests/scenario/test_channel_scripts.py`` and read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.channels.channel import Subscription
from tests.support.channels import FINISH, REQUEUE, TOUCH, Bench

SCRIPTS = sorted(Path(__file__).parent.glob("*.channel"))
RESULTS = {0: "ok", 1: "ID not in flight", 2: "client does not own message"}


def to_ms(text: str) -> int:
    """Read ``90s`` or ``250ms``."""
    return int(text[:-2]) if text.endswith("ms") else int(text[:-1]) * 1_000


class Script:
    """Runs commands against one channel; messages are named m0, m1, ... in the order of their publication."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.consumers: dict[str, Subscription] = {}
        self.ids: list[int] = []
        self.states: list[bytes] = []

    def run(self, line: str) -> str:
        command, *arguments = line.split()
        handler: Callable[..., str] = getattr(self, f"do_{command}")
        return handler(*arguments)

    def do_publish(self, count: str = "1", delay: str = "0s") -> str:
        deliver_at = self.bench.now + to_ms(delay) if to_ms(delay) else 0
        first = len(self.ids)
        self.ids += self.bench.publish(int(count), deliver_at_ms=deliver_at)
        return " ".join(f"m{number}" for number in range(first, len(self.ids)))

    def do_subscribe(self, name: str, ready: str, timeout: str = "60s") -> str:
        self.consumers[name] = self.bench.subscribe(int(ready), to_ms(timeout))
        return "ok"

    def do_leave(self, name: str) -> str:
        self.bench.channel.unsubscribe(self.consumers.pop(name))
        return "ok"

    def do_ready(self, name: str, count: str) -> str:
        self.consumers[name].ready_count = int(count)
        return "ok"

    def do_deliver(self, name: str) -> str:
        taken = self.bench.take(self.consumers[name])
        return " ".join(f"m{self.ids.index(message_id)}x{attempts}" for message_id, _, attempts in taken) or "nothing"

    def _settle(self, kind: int, name: str, message: str, delay: str = "0s") -> str:
        operation = (kind, self.ids[int(message[1:])], to_ms(delay))
        return RESULTS[self.bench.settle(self.consumers[name], operation)[0]]

    def do_fin(self, name: str, message: str) -> str:
        return self._settle(FINISH, name, message)

    def do_req(self, name: str, message: str, delay: str = "0s") -> str:
        return self._settle(REQUEUE, name, message, delay)

    def do_touch(self, name: str, message: str) -> str:
        return self._settle(TOUCH, name, message)

    def do_advance(self, time: str) -> str:
        return f"{self.bench.advance(to_ms(time))} ready again"

    def do_pause(self) -> str:
        self.bench.channel.paused = True
        return "ok"

    def do_unpause(self) -> str:
        self.bench.channel.paused = False
        return "ok"

    def do_empty(self) -> str:
        return f"{self.bench.channel.empty()} dropped"

    def do_journal(self) -> str:
        state = self.bench.channel.take_changes()
        if state is None:
            return "nothing"
        self.states.append(state)
        return f"{len(state)} bytes"

    def do_crash(self) -> str:
        self.bench.restart(self.states)
        self.consumers.clear()
        return "ok"

    def do_stats(self) -> str:
        channel = self.bench.channel
        return (
            f"depth={channel.depth} in_flight={channel.in_flight_count} deferred={channel.deferred_count} "
            f"messages={channel.message_count} requeued={channel.requeue_count} timed_out={channel.timeout_count}"
        )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    """nsq.md 2.2, in the order in which an operator would tell it."""
    script, recorded = Script(), []
    for line in path.read_text().splitlines():
        command = line.partition(" -> ")[0].rstrip()
        if not command or command.startswith("#"):
            recorded.append(line)
        else:
            recorded.append(f"{command} -> {script.run(command)}")
    text = "\n".join(recorded) + "\n"
    if os.environ.get("REWRITE_SCENARIOS") == "1":
        path.write_text(text)
    assert text == path.read_text()


def test_there_are_scripts() -> None:
    assert SCRIPTS
