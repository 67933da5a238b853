"""One staged batch: what its attempts staged, how far its commit is, and its row in the saved copy.

``StagedBatches`` (``staged``) keeps all of them and says what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

BATCH_COST: Final = 5
ATTEMPT_COST: Final = 4
"""What a batch and an attempt count for beside their queues and runs, which count for one each: in memory each of them
takes some 200 bytes, its saved copy included, an attempt four times and a batch five times as much."""

BatchKey = tuple[str, int]
AttemptKey = tuple[int, int]


class Run(NamedTuple):
    """Messages that stand behind each other in HR_STAGED and go to one queue."""

    topic: str
    queue_id: int
    first: int
    rows: int


class Chosen(Protocol):
    """An attempt that counts, and how many messages it staged here."""

    @property
    def partition(self) -> int:
        """The part of the batch that it is an attempt of."""

    @property
    def attempt(self) -> int:
        """Its number."""

    @property
    def rows(self) -> int:
        """Messages that it staged."""


@dataclass(slots=True)
class Attempt:
    """What one attempt staged. ``ends`` has the number behind its last message for each (topic, queue id)."""

    rows: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @property
    def cost(self) -> int:
        """What it counts for."""
        return ATTEMPT_COST + len(self.ends) + len(self.runs)


@dataclass(slots=True)
class Commit:
    """A commit that is decided: the first ``done`` of ``rows`` messages are where they belong."""

    chosen: list[AttemptKey]
    rows: int
    done: int = 0
    lost: int = 0
    # The runs of the chosen attempts, made at the first chunk; what stands before the run at ``index``.
    runs: list[Run] | None = None
    index: int = 0
    before: int = 0
    goes_singly: bool = False
    """Whether one of the next messages cannot stand where it belongs: until it is found, each is a chunk."""


@dataclass(slots=True)
class Batch:
    """What is staged under one (txn, epoch).

    Attributes:
        changed_ms: When something was staged last, ms since 1970.
        wait_offset: Physical offset that must be durable before duplicates of what is staged may be acknowledged.
        size: Bytes of the bodies.
        rows: Messages of all attempts.
        commit: None until one is decided.
    """

    changed_ms: int = 0
    wait_offset: int = 0
    size: int = 0
    rows: int = 0
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    commit: Commit | None = None
    saved: tuple[Any, ...] | None = None
    """Its row of the saved copy; None since it changed."""
    saved_attempts: list[tuple[Any, ...]] | None = None
    """Those of its attempts, which stay as they are while a commit goes on; None since something was staged."""

    @property
    def cost(self) -> int:
        """What it counts for, its attempts included."""
        return BATCH_COST + sum(attempt.cost for attempt in self.attempts.values())

    def row(self, key: BatchKey) -> tuple[Any, ...]:
        """Return its row of the saved copy, made anew if it changed."""
        if self.saved is None:
            if self.saved_attempts is None:
                self.saved_attempts = [
                    (*name, attempt.rows, [(*place, end) for place, end in attempt.ends.items()], list(attempt.runs))
                    for name, attempt in self.attempts.items()
                ]  # runs do not change
            commit = self.commit
            ended = None if commit is None else (commit.chosen, commit.rows, commit.done, commit.lost)
            self.saved = (*key, self.changed_ms, self.size, ended, self.saved_attempts)
        return self.saved

    def position(self, commit: Commit) -> tuple[Run, int] | None:
        """Return the run to go on with, and the offset in HR_STAGED; None when the records of the rest are lost."""
        if commit.runs is None:
            attempts = [self.attempts[name] for name in commit.chosen if name in self.attempts]
            commit.runs = [run for attempt in attempts for run in attempt.runs]
        while commit.index < len(commit.runs) and commit.done >= commit.before + commit.runs[commit.index].rows:
            commit.before += commit.runs[commit.index].rows
            commit.index += 1
        if commit.index == len(commit.runs):
            return None
        run = commit.runs[commit.index]
        return run, run.first + commit.done - commit.before
