"""What tells a batch that was sent before from a new one, built together, on the broker's clock, closed with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.exactly_once.producer_log import ProducerLog
from headrace.broker.exactly_once.producers import KeyWindows, OutdatedMessages, Sequences
from headrace.broker.exactly_once.staged import StagedBatches

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerLimits:
    """How much is remembered of producers; ``headrace.settings`` says what each means.

    Attributes:
        producer_ids: Producers, and transactions of staged batches.
        window_keys: Keys of all producers.
        staged_runs: Pieces of the log that staged batches stand in.
        stage_ttl_ms: How long a staged batch waits for its commit.
    """

    producer_ids: int
    window_keys: int
    staged_runs: int
    stage_ttl_ms: int


class ProducerServices:
    """The parts that serve numbered, keyed and staged batches.

    Attributes:
        sequences: The last number of each producer.
        keys: The last keys of each producer.
        staged: Batches that wait for their commit.
        outdated: Counts what was dropped because its txn has had a later epoch.
        log: The records from which the others are known after a restart.
    """

    def __init__(self, broker: Broker, limits: ProducerLimits) -> None:
        """Replay what the log says of producers, and have the broker's clock drive the parts."""
        self.sequences = Sequences(limits.producer_ids, broker.is_former, lambda: bool(broker.store.holes))
        self.keys = KeyWindows(limits.window_keys, broker.is_former)
        self.staged = StagedBatches(
            broker,
            ttl_ms=limits.stage_ttl_ms,
            most_runs=limits.staged_runs,
            most_txns=limits.producer_ids,
        )
        self.outdated = OutdatedMessages(broker.clock)
        self.log = self.staged.log = ProducerLog(broker, [self.sequences, self.keys, self.staged])
        broker.add_tickers(self.staged, self.log)
