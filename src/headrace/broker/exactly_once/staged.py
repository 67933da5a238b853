r"""Staged batches: messages that nobody sees until their batch is committed, all of them or none.

    stage* --> open --commit--> deciding is over: chunk* --> committed
                 \--abort, or nothing came for stage_ttl_s--> forgotten

A batch is (txn, epoch). Its messages stand in queue 0 of the internal topic HR_STAGED, as their producers sent them;
the records beside them (``producer_log``) say whose they are and where they are to go. An attempt is (partition,
attempt): two attempts of one partition may both stage everything, and the commit names the one that counts.

A commit is decided by one record, from then on it only goes forward: the chosen messages are appended to their queues
in chunks, each together with a record of how far it is, one command of the log. So a start goes on behind the last
chunk that is there, and nothing is delivered twice or left out. Between the first chunk and the last, consumers may see
part of the batch. Batches of the txn up to that epoch are then forgotten, attempts that lost among them; what is sent
for them later counts as duplicate.

Ref: docs/protocols/extensions.md; docs/formats/producer-records.md; docs/adr/0009-exactly-once-writes.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.copies import add_copies_to
from headrace.broker.exactly_once.producers import Verdict
from headrace.broker.exactly_once.staged_batch import (
    ATTEMPT_COST,
    BATCH_COST,
    Attempt,
    AttemptKey,
    Batch,
    BatchKey,
    Chosen,
    Commit,
    Run,
)
from headrace.broker.pull import PullStatus, read_queue
from headrace.errors import QuotaExceededError, RequestError, StoreError, TopicNotFoundError
from headrace.format.names import STAGED_TOPIC
from headrace.log_pace import Trouble

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.exactly_once.producer_log import ProducerLog
    from headrace.broker.topic import Topic
    from headrace.store.queue_base import QueueBase

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 2 << 20
CHUNK_MESSAGES: Final = 4_000
"""What is appended in one go, some milliseconds of the loop; others are served before the next chunk."""

EXPIRE_EVERY_MS: Final = 10_000
EXPIRE_AT_ONCE: Final = 200
"""Batches forgotten in one turn; others are served before the next."""
_MAX_NAMED: Final = 10
"""Partitions that a refusal names."""


@dataclass
class StagedCounters:
    """Events since the start."""

    staged: int = 0
    duplicates: int = 0
    """Messages dropped: their attempt had staged them, or their batch is decided."""
    gaps: int = 0
    """Requests refused because messages before them are missing."""
    refused_runs: int = 0
    """Requests refused because as much is staged as may be."""
    commits: int = 0
    committed: int = 0
    """Messages that commits delivered."""
    repeated_commits: int = 0
    refused_commits: int = 0
    aborts: int = 0
    expired: int = 0
    """Batches forgotten because nothing came for them."""
    lost: int = 0
    """Messages of committed batches whose staged record is damaged, or whose topic is gone."""
    forgotten_txns: int = 0
    """Last committed epochs dropped at the bound."""
    errors: int = 0
    """Times that a commit could not go on because the store took no writes."""


class CommitRefusedError(RequestError):
    """A commit names messages that are not staged here."""


class LostRowsError(RequestError):
    """A batch is committed, but some of its messages could not be read any more."""


Finished = Callable[[RequestError | StoreError | None, int], None]
"""Told that a commit is over, and what must be durable for it to be; or why it is not, or not whole."""


class StagedBatches:
    """All staged batches of one broker. Add it to ``Broker.tickers`` in front of its ``ProducerLog``."""

    name = "staged"
    ops: Sequence[str] = ("stage", "commit", "progress", "abort")

    def __init__(self, broker: Broker, *, ttl_ms: int, most_runs: int, most_txns: int) -> None:
        self.counters = StagedCounters()
        self.log: ProducerLog
        """Set when it is open."""
        self.on_delivered: Callable[[str, int, int, int], None] = lambda topic, queue_id, messages, size: None
        """Told of messages that a commit appended: topic, queue id, how many, bytes of their bodies."""
        self.queue: QueueBase = broker.store.queue(STAGED_TOPIC, 0)
        # As durable as what is asked for them; only we read it.
        self.queue.awaits_flush = False
        self._broker = broker
        self._ttl_ms = ttl_ms
        self._most_runs = most_runs
        self._most_txns = most_txns
        self._cost = 0  # of all batches, as ``Batch.cost`` has it
        self._batches: dict[BatchKey, Batch] = {}
        self._epochs: dict[str, set[int]] = {}  # of each txn that has batches
        self._commits: dict[BatchKey, Batch] = {}  # those of the batches that are decided, in this order
        self._committed: dict[str, int] = {}
        self._waiting: dict[BatchKey, list[Finished]] = {}
        self._records = RecordBatch(verifies=True)
        self._is_queued = False
        self._is_turning = False
        self._is_called_at_once = False
        self._trouble = Trouble(logger)
        self._next_expiry_ms = 0
        broker.warm_listeners.append(self._go_on)

    # -- figures ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def staged_rows(self) -> int:
        """Messages that are staged, those of attempts that will lose among them."""
        return sum(batch.rows for batch in self._batches.values())

    @property
    def staged_bytes(self) -> int:
        """Bytes of their bodies."""
        return sum(batch.size for batch in self._batches.values())

    # -- staging ----------------------------------------------------------------------------------------------------

    def judge(self, key: BatchKey, attempt: AttemptKey, place: tuple[str, int], seq: int, count: int) -> Verdict:
        """Say which of ``count`` messages from ``seq`` on are duplicates; nothing is changed.

        Raises:
            QuotaExceededError: as much is staged as may be.
        """
        if self.is_decided(key):
            return Verdict(-1, count, 0)
        batch = self._batches.get(key)
        if batch is None:
            verdict = Verdict(0, 0, 0)
        else:
            known = batch.attempts.get(attempt)
            end = 0 if known is None else known.ends.get(place, 0)
            verdict = Verdict(end, min(max(end - seq, 0), count), batch.wait_offset)
        if verdict.duplicates < count and self._cost >= self._most_runs:
            self.counters.refused_runs += 1
            raise QuotaExceededError(
                f"{len(self._batches)} batches are staged, which with their attempts, queues and runs of messages "
                f"count for {self._cost}, the limit (remoting.max_staged_runs): commit or abort batches, or send "
                "larger requests"
            )
        return verdict

    @staticmethod
    def change(key: BatchKey, attempt: AttemptKey, run: Run, seq: int, size: int, now_ms: int) -> dict[str, Any]:
        """Return the record of a run of messages, the first numbered ``seq``, whose bodies have ``size`` bytes."""
        return {
            "op": "stage",
            "txn": key[0],
            "epoch": key[1],
            "partition": attempt[0],
            "attempt": attempt[1],
            "topic": run.topic,
            "queue": run.queue_id,
            "seq": seq,
            "count": run.rows,
            "bytes": size,
            "offset": run.first,
            "at_ms": now_ms,
        }

    def note_wait(self, key: BatchKey, wait_offset: int) -> None:
        """Note what must be durable before duplicates of what was just staged may be acknowledged."""
        batch = self._batches[key]
        batch.wait_offset = max(batch.wait_offset, wait_offset)  # queues of several levels of durability

    def is_outdated(self, key: BatchKey) -> bool:
        """Whether a later epoch of the txn is committed."""
        return key[1] < self._committed.get(key[0], -1)

    # -- records ----------------------------------------------------------------------------------------------------

    def apply(self, change: dict[str, Any], tail: bytes, number: int) -> None:
        """Take in a record."""
        key = (change["txn"], change["epoch"])
        op = change["op"]
        if op == "stage":
            self._apply_stage(key, change)
        elif op == "abort":
            self._forget(key)
        elif op == "commit":
            commit = Commit([(partition, attempt) for partition, attempt in change["chosen"]], change["rows"])
            batch = self._open(key, change["at_ms"])
            batch.commit, batch.saved = commit, None
            self._commits[key] = batch
            self._finish_whole(key, commit)
        else:
            self._apply_progress(key, change)

    def _open(self, key: BatchKey, changed_ms: int = 0) -> Batch:
        """Return a batch, a new one where there is none."""
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = Batch(changed_ms)
            self._cost += BATCH_COST
            self._epochs.setdefault(key[0], set()).add(key[1])
        return batch

    def _apply_progress(self, key: BatchKey, change: dict[str, Any]) -> None:
        batch = self._batches.get(key)
        if batch is None or batch.commit is None:
            logger.error("progress of an unknown commit txn=%s epoch=%d done=%d", *key, change["done"])
            return
        if change.get("from", 0) > batch.commit.done:
            # A power cut took the chunk before this one and left this one, whose messages come again.
            logger.error("chunk of a commit is lost txn=%s epoch=%d done=%d", *key, batch.commit.done)
            return
        batch.commit.done = change["done"]
        batch.commit.lost = change.get("lost", 0)
        batch.saved = None
        self._finish_whole(key, batch.commit)

    def _apply_stage(self, key: BatchKey, change: dict[str, Any]) -> None:
        batch = self._open(key)
        batch.saved = batch.saved_attempts = None
        name = (change["partition"], change["attempt"])
        attempt = batch.attempts.get(name)
        known = 0 if attempt is None else attempt.ends.get((change["topic"], change["queue"]), 0)
        if change["seq"] > known:
            # A power cut took the run before this one and left this one: both are staged again.
            logger.error("run of staged messages is lost txn=%s epoch=%d expected=%d", *key, known)
            return
        if attempt is None:
            attempt = batch.attempts[name] = Attempt()
            self._cost += ATTEMPT_COST
        batch.changed_ms = max(batch.changed_ms, change["at_ms"])
        batch.size += change["bytes"]
        batch.rows += change["count"]
        run = Run(change["topic"], change["queue"], change["offset"], change["count"])
        self._cost += (run.topic, run.queue_id) not in attempt.ends
        attempt.ends[run.topic, run.queue_id] = change["seq"] + run.rows
        attempt.rows += run.rows
        last = attempt.runs[-1] if attempt.runs else None
        if last is not None and last[:2] == run[:2] and last.first + last.rows == run.first:
            attempt.runs[-1] = last._replace(rows=last.rows + run.rows)
        else:
            attempt.runs.append(run)
            self._cost += 1

    def _finish_whole(self, key: BatchKey, commit: Commit) -> None:
        """Forget what is decided, once everything of a commit is where it belongs."""
        if commit.done < commit.rows:
            return
        txn, epoch = key
        for older in [older for older in self._epochs[txn] if older <= epoch]:
            self._forget((txn, older))
        self._committed[txn] = max(epoch, self._committed.pop(txn, -1))
        if len(self._committed) > self._most_txns:
            oldest = next(iter(self._committed))
            del self._committed[oldest]
            self.counters.forgotten_txns += 1
            logger.warning(
                "last committed epoch forgotten at the bound txn=%s setting=remoting.max_producer_ids", oldest
            )

    def _forget(self, key: BatchKey) -> None:
        batch = self._batches.pop(key, None)
        if batch is not None:
            self._commits.pop(key, None)
            epochs = self._epochs[key[0]]
            epochs.remove(key[1])
            if not epochs:
                del self._epochs[key[0]]
            self._cost -= batch.cost

    def snapshot(self) -> Callable[[], Any]:
        """Copy the batches: what has changed since the last time, as many may wait for an end that never comes."""
        committed = self._committed.copy()
        batches = [batch.row(key) for key, batch in self._batches.items()]
        return lambda: {"committed": list(committed.items()), "batches": batches}

    def restore(self, saved: Any, read: Callable[[int], tuple[dict[str, Any], bytes] | None]) -> None:
        """Take up the saved batches; all of them are durable."""
        saved = saved or {"committed": (), "batches": ()}
        self._committed = dict(saved["committed"])
        for txn, epoch, changed_ms, size, commit, attempts in saved["batches"]:
            batch = self._open((txn, epoch), changed_ms)
            batch.size = size
            for partition, attempt, rows, ends, runs in attempts:
                known = batch.attempts[partition, attempt] = Attempt(
                    rows, {(topic, queue_id): end for topic, queue_id, end in ends}, [Run(*run) for run in runs]
                )
                self._cost += known.cost
                batch.rows += rows
            if commit:
                chosen, count, done, lost = commit
                batch.commit = Commit([(partition, attempt) for partition, attempt in chosen], count, done, lost)
                self._commits[txn, epoch] = batch

    # -- ending a batch ---------------------------------------------------------------------------------------------

    def is_decided(self, key: BatchKey) -> bool:
        """Whether a commit of this batch, or of a later one of its txn, is over or under way."""
        return key[1] <= self._committed.get(key[0], -1) or self._commit_over(key) is not None

    def _commit_over(self, key: BatchKey) -> BatchKey | None:
        """Return the batch whose commit, under way, ends this one: itself, or a later one of its txn."""
        txn, epoch = key
        for number in self._epochs.get(txn, ()):
            if number >= epoch and (txn, number) in self._commits:
                return txn, number
        return None

    def topics_of(self, key: BatchKey) -> set[str]:
        """Return the topics to which messages of a batch, and of those that end with it, are to go."""
        txn, epoch = key
        batches = [self._batches[txn, number] for number in self._epochs.get(txn, ()) if number <= epoch]
        return {topic for batch in batches for attempt in batch.attempts.values() for topic, _ in attempt.ends}

    def commit(self, key: BatchKey, chosen: Sequence[Chosen], now_ms: int, finished: Finished) -> None:
        """Have the chosen attempts of a batch delivered; ``finished`` is told when they are, perhaps at once.

        A commit that is decided is not decided again, whatever it names.

        Raises:
            CommitRefusedError: what is staged here is not what the caller counted; nothing was changed.
            TopicNotFoundError: a topic was deleted since; nothing was changed.
            StoreError: the store takes no writes; nothing was changed.
        """
        txn, epoch = key
        if epoch <= self._committed.get(txn, -1):
            self.counters.repeated_commits += 1
            finished(None, self._broker.store.log.end_offset)
            return
        over = self._commit_over(key)
        if over is not None:
            key = over
            self.counters.repeated_commits += 1
        else:
            self._require_last(key)
            self._require_staged(key, self._batches.get(key), chosen)
            rows = sum(one.rows for one in chosen)
            names = [(one.partition, one.attempt) for one in chosen if one.rows]
            self._write({"op": "commit", "txn": txn, "epoch": epoch, "chosen": names, "rows": rows, "at_ms": now_ms})
            self.counters.commits += 1
            if key not in self._batches:
                finished(None, self._broker.store.log.end_offset)
                return
        self._waiting.setdefault(key, []).append(finished)
        self._go_on()

    def _require_last(self, key: BatchKey) -> None:
        """Refuse to end a batch while an earlier one of its txn, which would be forgotten with it, is delivered."""
        txn = key[0]
        for epoch in self._epochs.get(txn, ()):
            if epoch < key[1] and (txn, epoch) in self._commits:
                self.counters.refused_commits += 1
                raise CommitRefusedError(
                    f"batch {txn!r} epoch {key[1]} has to wait: epoch {epoch} is committed and still being delivered; "
                    "commit again when its commit was answered"
                )

    def _require_staged(self, key: BatchKey, batch: Batch | None, chosen: Sequence[Chosen]) -> None:
        attempts = {} if batch is None else batch.attempts
        wrong = []
        for one in chosen:
            known = attempts.get((one.partition, one.attempt))
            rows = 0 if known is None else known.rows
            if rows != one.rows:
                wrong.append(f"partition {one.partition} attempt {one.attempt}: {rows} staged, {one.rows} expected")
                continue
            for run in known.runs if known is not None else ():
                if run.first < self.queue.min_offset:
                    wrong.append(f"partition {one.partition} attempt {one.attempt}: removed by retention")
                    break
                if run.topic not in self._broker.topics:
                    self.counters.refused_commits += 1
                    raise TopicNotFoundError(run.topic)
        if wrong:
            self.counters.refused_commits += 1
            more = f", and {len(wrong) - _MAX_NAMED} more" if len(wrong) > _MAX_NAMED else ""
            raise CommitRefusedError(
                f"batch {key[0]!r} epoch {key[1]} is not whole here: {'; '.join(wrong[:_MAX_NAMED])}{more}"
            )

    def abort(self, key: BatchKey) -> int:
        """Forget a batch that is not decided; return what must be durable for it to be, 0 for nothing.

        Raises:
            StoreError: the store takes no writes; nothing was changed.
        """
        if key not in self._batches or self.is_decided(key):
            return 0
        self._write_abort(key, "aborted")
        self.counters.aborts += 1
        return self._broker.store.log.end_offset

    def _write_abort(self, key: BatchKey, why: Literal["aborted", "expired"]) -> None:
        self._write({"op": "abort", "txn": key[0], "epoch": key[1], "why": why})

    def _write(self, change: dict[str, Any]) -> None:
        """Append a record alone, and have it made durable soon."""
        batch = PublishBatch()
        batch.append(self.log.encode(change), 0)
        self.log.append(batch, (), (), change)
        self._broker.store.request_flush()

    # -- delivering -------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Deliver the next chunk in another turn of the event loop."""
        if self._is_queued or not self._commits:
            return
        self._is_queued = True
        self._broker.store.notify(self._turn)

    def _turn(self) -> None:
        """Deliver one chunk of the oldest commit, and ask for the next turn."""
        if self._is_turning:
            self._is_called_at_once = True  # there is no event loop: whoever runs below goes on
            return
        self._is_turning = True
        try:
            self._is_called_at_once = True
            while self._is_called_at_once:
                self._is_called_at_once = False
                self._is_queued = False
                if self._deliver():
                    self._go_on()
        finally:
            self._is_turning = False

    def _deliver(self) -> bool:
        """Deliver one chunk; False when there is nothing to do now."""
        found = next(iter(self._commits.items()), None)
        store = self._broker.store
        if found is None or self._broker.overloaded:
            return False
        key, batch = found
        if store.failure is not None:
            self._fail(store.failure)
            return False
        try:
            if not self._append_chunk(key, batch):
                return False
            self._trouble.end()
        except StoreError as error:
            self.counters.errors += 1
            self._trouble.note("commit waits, the store takes no writes txn=%s epoch=%d error=%s", *key, error)
            return False
        finally:
            self._records.clear()
        if key not in self._batches:
            self._finished(key, batch.commit)
        return True

    def _append_chunk(self, key: BatchKey, batch: Batch) -> bool:
        """Append the next messages of a commit where they belong; False when they must be read in first."""
        commit = batch.commit
        assert commit is not None
        found = batch.position(commit)
        if found is None:
            self._append(key, commit, None, 0, commit.rows - commit.done)
            return True
        run, at = found
        topic = self._broker.topics.get(run.topic)
        place = None if topic is None else (topic, topic.queue_or_other(run.queue_id))
        passed, count = run.first + run.rows - at, 0
        if place is None:
            logger.error(
                "committed messages dropped, their topic is gone txn=%s epoch=%d topic=%s messages=%d",
                *key,
                run.topic,
                passed,
            )
        else:
            most = 1 if commit.goes_singly else min(passed, CHUNK_MESSAGES)
            result = read_queue(self.queue, at, most, CHUNK_BYTES, None, None, self._records)
            if result.status is PullStatus.COLD:
                return False
            passed = max(1, min(result.next_offset, run.first + run.rows) - at)
            count = len(self._records)
            while count and self._records.position(count - 1)[1] >= at + passed:
                count -= 1  # read in place of damaged ones before it, and not of this run
        try:
            self._append(key, commit, place, count, passed)
        except RequestError as error:
            if commit.goes_singly:
                logger.error("committed message cannot be stored txn=%s epoch=%d error=%s", *key, error)
                self._append(key, commit, None, 0, passed)
            commit.goes_singly = not commit.goes_singly
        return True

    def _append(
        self, key: BatchKey, commit: Commit, place: tuple[Topic, QueueBase] | None, count: int, passed: int
    ) -> None:
        """Append the first ``count`` records that were read, and that ``passed`` messages are done with."""
        change = {"op": "progress", "txn": key[0], "epoch": key[1], "from": commit.done, "done": commit.done + passed}
        lost = commit.lost + passed - count
        if lost:
            change["lost"] = lost
        chunk = PublishBatch()
        try:
            chunk.append(self.log.encode(change), 0, command_entries=count + 1)
            record_bytes = chunk.body_bytes
            if place is None or not count:
                self.log.append(chunk, (), (), change)
            else:
                topic, queue = place
                add_copies_to(self._records, count, chunk, 1)
                size = chunk.body_bytes - record_bytes
                self.log.append(chunk, [queue], [topic], change)
                self.on_delivered(queue.topic, queue.queue_id, count, size)
        finally:
            chunk.clear()
        self.counters.committed += count
        if passed > count:
            self.counters.lost += passed - count
            logger.error("committed messages lost txn=%s epoch=%d messages=%d", *key, passed - count)

    def _finished(self, key: BatchKey, commit: Commit | None) -> None:
        self._broker.store.request_flush()
        error = None
        if commit is not None and commit.lost:
            error = LostRowsError(
                f"batch {key[0]!r} epoch {key[1]} is committed, but {commit.lost} of its messages are lost: "
                "their staged records are damaged, their topic was deleted, or they cannot be stored in it"
            )
        for finished in self._waiting.pop(key, ()):
            finished(error, self._broker.store.log.end_offset)

    def _fail(self, error: StoreError) -> None:
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            for finished in calls:
                finished(error, 0)

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Go on with commits that had to wait, and forget batches that nobody ends."""
        self._go_on()
        if self._next_expiry_ms - now_ms > EXPIRE_EVERY_MS:
            self._next_expiry_ms = now_ms  # the clock was set back
        if now_ms < self._next_expiry_ms or self._broker.store.failure is not None:
            return
        self._next_expiry_ms = now_ms + EXPIRE_EVERY_MS
        left = EXPIRE_AT_ONCE
        for key, batch in list(self._batches.items()):
            if batch.changed_ms > now_ms:
                batch.changed_ms, batch.saved = now_ms, None
            if batch.commit is None and now_ms - batch.changed_ms > self._ttl_ms:
                if not left:
                    self._next_expiry_ms = now_ms
                    return
                left -= 1
                try:
                    self._write_abort(key, "expired")
                except StoreError as error:
                    self.counters.errors += 1
                    logger.error("expired batch kept, the store takes no writes error=%s", error)
                    return
                self.counters.expired += 1
                logger.warning(
                    "staged batch expired txn=%s epoch=%d messages=%d setting=remoting.stage_ttl_s",
                    *key,
                    batch.rows,
                )

    def close(self) -> None:
        """Tell who waits; commits go on with the next start."""
        self._fail(StoreError("the broker stops; the commit is decided and goes on when it is back"))
