"""Delays, transactions and send-backs under kills and power cuts at any moment, against an account of what is owed.

Issue 4, "Order and loss": 0 acknowledged lost; a transaction delivers once or never, as its producer decided.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.withheld.retry import RetryRules
from headrace.broker.withheld.transaction_end import Decision
from headrace.broker.withheld.transactions import TransactionCheck
from headrace.errors import MessageNotFoundError
from tests.support.messaging import MessagingRig
from tests.support.weights import weighted

LEVELS_MS = (1000, 5000)
RULES = RetryRules("G")


@dataclass
class Owed:
    """One message that was sent, and what its receivers are owed."""

    topic: str
    due_ms: int
    is_acknowledged: bool = False
    is_cut_off: bool = False
    """A power cut came before it was acknowledged: its sender knows nothing, and it may or may not be there."""
    decision: Decision | None = None
    """Of a transaction."""
    half: tuple[int, int] = (-1, -1)


@dataclass
class Account:
    """Everything that was sent, by body."""

    owed: dict[bytes, Owed] = field(default_factory=dict)
    crashes: int = 0

    def add(self, owed: Owed) -> bytes:
        body = b"m%d" % len(self.owed)
        self.owed[body] = owed
        return body


class World:
    """A broker, its senders and their account."""

    def __init__(self, folder: Path) -> None:
        self.rig = MessagingRig(
            folder, delay_levels="1s 5s", transaction_timeout_ms=2000, transaction_check_interval_ms=3000
        )
        self.account = Account()
        for topic in ("delayed", "timed", "decided", "source"):
            self.rig.message(topic, b"")  # makes the topic
        self.rig.store.flush()

    def now(self) -> int:
        return self.rig.clock.now_ms()

    def acknowledge(self) -> None:
        """What was appended is durable: whoever sent it is told so."""
        self.rig.store.flush()
        for owed in self.account.owed.values():
            owed.is_acknowledged = not owed.is_cut_off

    def delay(self, level: int) -> None:
        body = self.account.add(Owed("delayed", self.now() + LEVELS_MS[level - 1]))
        self.rig.levels.put(self.rig.message("delayed", body), level)

    def hold(self, delay_ms: int) -> None:
        body = self.account.add(Owed("timed", self.now() + delay_ms))
        self.rig.timed.put(self.rig.message("timed", body), self.now() + delay_ms)

    def prepare(self, decision: Decision) -> None:
        owed = Owed("decided", 0, decision=decision)
        body = self.account.add(owed)
        placed, _ = self.rig.transactions.prepare(self.rig.message("decided", body, PGROUP="P"), self.now())
        owed.half = (placed.queue_offset, placed.physical_offset)

    def decide(self, number: int) -> None:
        """Have a producer say again what it decided.

        Not of a message that a power cut took before it was answered: its offsets are nobody's, or another's by now.
        """
        halves = [owed for owed in self.account.owed.values() if owed.decision is not None and not owed.is_cut_off]
        if halves:
            self._end(*halves[number % len(halves)].half, halves[number % len(halves)].decision)

    def _end(self, half_offset: int, physical_offset: int, decision: Decision | None) -> None:
        assert decision is not None
        try:
            self.rig.end("P", half_offset, physical_offset, decision)
        except MessageNotFoundError:
            # A power cut took the half message: nobody was told that it was there.
            raw = self.rig.store.log.read(physical_offset)
            assert raw is None or not any(
                owed.is_acknowledged
                for owed in self.account.owed.values()
                if owed.half == (half_offset, physical_offset)
            )

    def send_back(self, level: int) -> None:
        body = self.account.add(Owed("%RETRY%G", self.now() + LEVELS_MS[level - 1]))
        stored = self.rig.append("source", body)
        self.rig.send_back(RULES, stored.physical_offset, level)

    def answer_checks(self) -> None:
        checks: list[TransactionCheck] = self.rig.checks[:]
        self.rig.checks.clear()
        for check in checks:
            raw = self.rig.store.log.read(check.physical_offset)
            if raw is not None:
                body = next(body for body in sorted(self.account.owed, key=len, reverse=True) if body in check.record)
                self._end(check.half_offset, check.physical_offset, self.account.owed[body].decision)

    def run(self, milliseconds: int, *, flush: bool) -> None:
        self.rig.pass_time(milliseconds, step=100, flush=flush)
        self.rig.broker.wait_for_journal()
        if flush:
            self.acknowledge()

    def listen(self, *, is_there: bool) -> None:
        """Have producers go, or come back."""
        self.rig.has_producer = lambda group: is_there

    def fill_disk(self) -> None:
        """Let time pass while the store takes nothing."""
        self.rig.fill_disk()
        self.rig.pass_time(1500, step=100, flush=False)
        self.rig.free_disk()

    def kill(self) -> None:
        self.account.crashes += 1
        self.rig.checks.clear()
        self.rig.crash()

    def cut_power(self) -> None:
        self.account.crashes += 1
        self.rig.checks.clear()
        for owed in self.account.owed.values():
            owed.is_cut_off = not owed.is_acknowledged
        self.rig.cut_power()

    def restart(self) -> None:
        self.rig.restart()
        self.acknowledge()

    def settle(self) -> None:
        """Let everything that is due come, and have every question answered."""
        self.listen(is_there=True)
        for _ in range(8):
            self.run(2500, flush=True)
            self.answer_checks()
        self.rig.store.flush()

    def check(self) -> None:
        received: dict[bytes, list[int]] = {}
        for topic in ("delayed", "timed", "decided", "%RETRY%G"):
            for message in self.rig.read(topic):
                received.setdefault(message.body, []).append(message.store_ms)
                assert topic == self.account.owed[message.body].topic
        for body, owed in self.account.owed.items():
            times = received.get(body, [])
            if owed.decision is None:
                assert times or not owed.is_acknowledged, f"{body!r} is lost"
                assert len(times) <= 1 + self.account.crashes
                assert all(at_ms >= owed.due_ms for at_ms in times), f"{body!r} came early"
            elif owed.decision is Decision.COMMIT:
                assert len(times) <= 1, f"{body!r} came twice"
                assert times or not owed.is_acknowledged, f"{body!r} is lost"
            else:
                assert times == [], f"{body!r} was rolled back"


SENDS = st.one_of(
    st.tuples(st.just("delay"), st.integers(1, 2)),
    st.tuples(st.just("hold"), st.sampled_from([100, 1000, 4000])),
    st.tuples(st.just("prepare"), st.sampled_from([Decision.COMMIT, Decision.ROLLBACK])),
    st.tuples(st.just("decide"), st.integers(0, 5)),
    st.tuples(st.just("send_back"), st.integers(1, 2)),
)
OTHERS = st.one_of(
    st.tuples(st.just("answer_checks")),
    st.tuples(st.just("acknowledge")),
    st.tuples(st.just("run"), st.sampled_from([100, 1000, 3000, 11_000]), st.booleans()),
    st.tuples(st.just("listen"), st.booleans()),
    st.tuples(st.just("fill_disk")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("cut_power")),
    st.tuples(st.just("restart")),
)
STEPS = weighted((1, SENDS), (1, OTHERS))  # else there is little that could be lost


@settings(max_examples=40)
@given(st.lists(STEPS, min_size=20, max_size=30))
def test_nothing_acknowledged_is_lost_whatever_happens(steps: list[tuple]) -> None:
    """Issue 4: kill -9 and power cuts under delay, transactions and send-back."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "store")
        for name, *arguments in steps:
            if name == "run":
                world.run(arguments[0], flush=arguments[1])
            elif name == "listen":
                world.listen(is_there=arguments[0])
            else:
                getattr(world, name)(*arguments)
        world.settle()
        world.check()
        world.rig.close()
