"""Batches with an identity under replays, kills and power cuts at any moment, against an account in plain dicts.

Issue 5, spark.md 5.4.6: duplicates and losses counted = 0 for idempotent and transactional.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.exactly_once import staged
from headrace.remoting.reply import Reply
from tests.support.exactly_once import ExactlyOnceRig, Row, ext_of

QUEUES = 2
PARTITIONS = 3
MESSAGE_ILLEGAL = 13


@dataclass
class Numbered:
    """A producer that numbers what it sends to one queue: the rows of an epoch are what they are, on every replay."""

    partition: int
    queue_id: int
    epoch: int = 0
    sent: int = 0
    most: int = 0
    """What was sent of this epoch at most; ``sent`` goes back when the broker lost some."""
    acknowledged: int = 0

    def body(self, epoch: int, seq: int) -> bytes:
        return b"s:%d:%d:%d:%d" % (self.partition, self.queue_id, epoch, seq)

    def rows(self, first: int, count: int) -> list[Row]:
        return [(self.body(self.epoch, seq), {"UNIQ_KEY": f"u{seq}"}) for seq in range(first, first + count)]


@dataclass
class Waiting:
    """An answer that waits for the disk."""

    wait_offset: int
    producer: Numbered
    end: int


@dataclass
class Staging:
    """A query that stages and commits one epoch after the other."""

    epoch: int = 0
    attempts: dict[int, int] = field(default_factory=dict)
    """The newest attempt of each partition."""
    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many messages an attempt has sent; rounds over the queues, 2 to each."""
    is_committing: bool = False
    committed: Counter[bytes] = field(default_factory=Counter)


class ExactlyOnce(RuleBasedStateMachine):
    """Three kinds of producers on one broker."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.folder = Path(tempfile.mkdtemp())
        self.rig = ExactlyOnceRig(self.folder / "store")
        self.numbered = [Numbered(partition, queue) for partition in range(2) for queue in range(QUEUES)]
        self.waiting: list[Waiting] = []
        self.done: Counter[bytes] = Counter()
        self.staging = Staging()
        self.keys: list[int] = []
        self.key_epoch = 0
        self.key_sent: Counter[bytes] = Counter()
        self.keys_are_safe = True
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(staged, "CHUNK_MESSAGES", 3)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.finish()
        finally:
            self.patch.undo()
            self.rig.close()
            shutil.rmtree(self.folder)

    # -- numbered ---------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 3), back=st.integers(0, 12), count=st.integers(1, 9))
    def send(self, which: int, back: int, count: int) -> None:
        """Send rows, some of them perhaps again."""
        producer = self.numbered[which]
        first = max(0, producer.sent - back)
        self._send(producer, first, count)

    def _send(self, producer: Numbered, first: int, count: int) -> None:
        reply = self.rig.send(
            "sequence",
            producer.rows(first, count),
            epoch=producer.epoch,
            partition=producer.partition,
            queueId=producer.queue_id,
            seq=first,
        )
        if reply.code == MESSAGE_ILLEGAL:
            # A power cut took what was sent and not acknowledged: the producer goes back to what it was told.
            assert "gap" in reply.remark
            assert producer.acknowledged < first
            producer.sent = producer.acknowledged
            return
        answer = ext_of(reply)
        assert answer["stored"] + answer["duplicates"] == count
        producer.sent = max(producer.sent, first + count)
        producer.most = max(producer.most, producer.sent)
        self.waiting.append(Waiting(reply.wait_offset, producer, first + count))
        self._take_answers()

    @rule(which=st.integers(0, 3), count=st.integers(1, 5))
    def send_of_an_earlier_epoch(self, which: int, count: int) -> None:
        """A zombie's batch is all duplicates."""
        producer = self.numbered[which]
        if producer.epoch == 0:
            return
        reply = self.rig.send(
            "sequence",
            [(b"zombie", {})] * count,
            epoch=producer.epoch - 1,
            partition=producer.partition,
            queueId=producer.queue_id,
            seq=self.random.randrange(20),
        )
        # A power cut may have taken everything of an epoch of which nothing was acknowledged; it is begun only then.
        assert ext_of(reply)["stored"] == 0

    @rule()
    def next_epoch(self) -> None:
        """Begin another epoch of the txn: all of this one was acknowledged, and one row of each producer's next is."""
        for producer in self.numbered:
            self._catch_up(producer)
            for seq in range(producer.most):
                self.done[producer.body(producer.epoch, seq)] += 1
            producer.epoch += 1
            producer.sent = producer.most = producer.acknowledged = 0
        for producer in self.numbered:
            self._send(producer, 0, 1)
            self._catch_up(producer)

    def _catch_up(self, producer: Numbered) -> None:
        while producer.acknowledged < producer.most:
            first = producer.acknowledged
            self._send(producer, first, producer.most - first)
            self.rig.store.flush()
            self._take_answers()

    def _take_answers(self) -> None:
        durable = self.rig.store.durable_offset
        for answer in self.waiting:
            if answer.wait_offset <= durable:
                answer.producer.acknowledged = max(answer.producer.acknowledged, answer.end)
        self.waiting = [answer for answer in self.waiting if answer.wait_offset > durable]

    # -- with keys --------------------------------------------------------------------------------------------------

    @rule(first=st.integers(0, 15), count=st.integers(1, 10), late=st.booleans(), queue_id=st.integers(0, 1))
    def send_keys(self, first: int, count: int, late: bool, queue_id: int) -> None:
        """Send some keys of the epoch, or of the one before, in any order and to any queue."""
        epoch = max(0, self.key_epoch - late)
        self._send_keys(epoch, list(range(first, first + count)), queue_id)

    def _send_keys(self, epoch: int, numbers: list[int], queue_id: int) -> None:
        self.random.shuffle(numbers)
        keys = [f"k:{epoch}:{number}" for number in numbers]
        rows: list[Row] = [(key.encode(), {"UNIQ_KEY": key}) for key in keys]
        reply = self.rig.send("key", rows, epoch=epoch, queueId=queue_id, txn="q2")
        answer = ext_of(reply)
        if not self.is_cut:
            new = sum(1 for key in keys if not self.key_sent[key.encode()])
            assert answer == {"stored": new, "duplicates": len(keys) - new, "offset": answer["offset"]}
        for key in keys:
            self.key_sent[key.encode()] = 1

    is_cut = False
    """Whether a power cut may have taken keys that were sent and not acknowledged."""

    @rule()
    def next_key_epoch(self) -> None:
        """Begin another epoch; everything of the one before the last was sent again by then."""
        self._resend_keys()
        self.rig.store.flush()
        self.key_epoch += 1
        self._send_keys(self.key_epoch, [99], 0)
        self.rig.store.flush()

    def _resend_keys(self) -> None:
        for epoch in (self.key_epoch - 1, self.key_epoch):
            numbers = [int(key.split(b":")[2]) for key in self.key_sent if key.startswith(b"k:%d:" % epoch)]
            if numbers:
                self._send_keys(epoch, numbers, 1)
        self.is_cut = False

    # -- staged -----------------------------------------------------------------------------------------------------

    @rule(partition=st.integers(0, PARTITIONS - 1), rounds=st.integers(1, 3), again=st.booleans())
    @precondition(lambda self: not self.staging.is_committing)
    def stage(self, partition: int, rounds: int, again: bool) -> None:
        """Stage more rows of the newest attempt, the last ones perhaps twice."""
        self._stage(partition, rounds, again=again)

    @staticmethod
    def _staged_body(epoch: int, partition: int, attempt: int, queue_id: int, seq: int) -> bytes:
        return b"t:%d:%d:%d:%d:%d" % (epoch, partition, attempt, queue_id, seq)

    def _stage(self, partition: int, rounds: int, *, again: bool) -> bool:
        state = self.staging
        attempt = state.attempts.setdefault(partition, 0)
        sent = state.rows.get((partition, attempt), 0)
        for number in range(max(0, sent - again), sent + rounds):
            for queue_id in range(QUEUES):
                rows: list[Row] = [
                    (self._staged_body(state.epoch, partition, attempt, queue_id, seq), {})
                    for seq in (2 * number, 2 * number + 1)
                ]
                reply = self.rig.send(
                    "stage",
                    rows,
                    epoch=state.epoch,
                    partition=partition,
                    attempt=attempt,
                    queueId=queue_id,
                    seq=2 * number,
                    txn="q3",
                )
                if reply.code:
                    assert self.is_staging_cut
                    state.attempts[partition] += 1
                    return False
        state.rows[partition, attempt] = sent + rounds
        return True

    is_staging_cut = False

    @rule(partition=st.integers(0, PARTITIONS - 1))
    @precondition(lambda self: not self.staging.is_committing)
    def new_attempt(self, partition: int) -> None:
        """A task is run again: what the older attempt staged does not count."""
        if partition in self.staging.attempts:
            self.staging.attempts[partition] += 1

    @rule()
    @precondition(lambda self: not self.staging.is_committing)
    def abort(self) -> None:
        reply = self.rig.end("abort", txn="q3", epoch=self.staging.epoch)
        assert reply is not None
        assert reply.code == 0
        self.rig.store.flush()
        state = self.staging
        self.staging = Staging(state.epoch, committed=state.committed)

    def _chosen(self) -> list[tuple[int, int, int]]:
        state = self.staging
        return [
            (partition, attempt, 2 * QUEUES * state.rows.get((partition, attempt), 0))
            for partition, attempt in state.attempts.items()
        ]

    @rule(turns=st.integers(0, 4))
    @precondition(lambda self: not self.staging.is_committing)
    def commit(self, turns: int) -> None:
        """Begin to commit; how far it comes before something else happens is up to chance."""
        reply = self.rig.end("commit", self._chosen(), txn="q3", epoch=self.staging.epoch)
        if reply is not None and reply.code:
            assert self.is_staging_cut, reply.remark
            for partition in self.staging.attempts:
                self.staging.attempts[partition] += 1
            return
        self.staging.is_committing = True
        self.rig.store.flush()  # so that the decision is known: what a power cut may take is tried with the sends
        self.rig.turn(turns)
        if reply is not None:
            self._committed(reply)
        elif self.rig.asker.answers:
            self._committed(self.rig.asker.answers.pop())

    @rule()
    @precondition(lambda self: self.staging.is_committing)
    def commit_again(self) -> None:
        """The driver does not know what became of it."""
        self._committed(self.rig.commit(self._chosen(), txn="q3", epoch=self.staging.epoch))

    def _committed(self, reply: Reply) -> None:
        assert reply.code == 0, reply.remark
        self.rig.store.flush()
        state = self.staging
        for partition, attempt, count in self._chosen():
            for queue_id in range(QUEUES):
                for seq in range(count // QUEUES):
                    state.committed[self._staged_body(state.epoch, partition, attempt, queue_id, seq)] += 1
        self.staging = Staging(state.epoch + 1, committed=state.committed)
        self.is_staging_cut = False

    @rule(count=st.integers(1, 3))
    def stage_of_an_earlier_epoch(self, count: int) -> None:
        """A zombie's rows are not even kept."""
        if self.staging.epoch:
            reply = self.rig.send("stage", [(b"zombie", {})] * count, epoch=self.staging.epoch - 1, txn="q3", seq=1)
            assert ext_of(reply)["stored"] == 0

    # -- the broker -------------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.rig.store.flush()
        self._take_answers()

    @rule(turns=st.integers(1, 3))
    def turn(self, turns: int) -> None:
        self.rig.turn(turns)

    @rule()
    def save(self) -> None:
        self.rig.save_state()
        self._take_answers()

    @rule()
    def kill(self) -> None:
        """What was appended is there, answers are not."""
        self.waiting.clear()
        self.rig.crash()

    @rule()
    def cut_power(self) -> None:
        """What is not durable is gone, and nobody was told that it was there."""
        self.waiting.clear()
        self.is_cut = self.is_staging_cut = True
        self.rig.cut_power()

    @rule()
    def restart(self) -> None:
        self.waiting.clear()
        self.rig.restart()

    @rule()
    def pass_a_moment(self) -> None:
        self.rig.clock.advance_ms(100)
        self.rig.broker.tick()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _bodies(self) -> list[list[bytes]]:
        return [self.rig.bodies(queue_id) for queue_id in range(QUEUES)]

    @invariant()
    def nothing_is_there_twice_and_nothing_too_early(self) -> None:
        if not hasattr(self, "rig") or self.random.random() < 0.9:
            return
        found = Counter(body for queue in self._bodies() for body in queue)
        self._take_answers()
        assert all(count == 1 for count in found.values()), found.most_common(3)
        assert b"zombie" not in found
        if not self.staging.is_committing:
            early = [body for body in found if body.startswith(b"t:%d:" % self.staging.epoch)]
            assert early == []

    def finish(self) -> None:
        """Everybody sends what was not acknowledged; then everything is there once, and in order."""
        for producer in self.numbered:
            self._catch_up(producer)
            for seq in range(producer.most):
                self.done[producer.body(producer.epoch, seq)] += 1
        self._resend_keys()
        if self.staging.is_committing:
            self.commit_again()
        queues = self._bodies()
        found = Counter(body for queue in queues for body in queue)
        assert found == self.done + self.key_sent + self.staging.committed
        for queue in queues:
            numbers = [tuple(map(int, body.split(b":")[1:])) for body in queue if body.startswith(b"s:")]
            for partition in range(2):
                own = [number for number in numbers if number[0] == partition]
                assert own == sorted(own)


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
