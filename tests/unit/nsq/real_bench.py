"""A bench whose server has the product's broker and its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from headrace import testing
from headrace.broker.broker import Broker
from headrace.broker.statistics import Statistics
from headrace.nsq.server import NsqServer
from headrace.settings import BrokerSettings, NsqSettings, StoreSettings
from headrace.store.store import Store
from tests.unit.nsq.fake_client import Bench


class RealBench(Bench):
    """Bench for a broker that is open.

    Dispatches are called at the end of the turn, as by the node; intervals of deliveries end when it is told.
    """

    def __init__(self, broker: Broker, *, delivery_coalescing_ms: int = 0) -> None:
        super().__init__()
        settings = NsqSettings(read_coalescing_ms=0, delivery_coalescing_ms=delivery_coalescing_ms)
        statistics = Statistics(BrokerSettings(), self.clock.now_ms(), "cluster")
        self.server = NsqServer(broker, settings, self.clock, statistics)
        self.server.joint_publishes.call_soon = self.soon.append
        self.later: list[Callable[[], None]] = []
        self.now_ns = 0
        coalescing = self.server.delivery_coalescing
        coalescing.call_later = lambda seconds, call: self.later.append(call)
        coalescing.now_ns = lambda: self.now_ns
        broker.on_work = lambda: self.soon.append(self.server.dispatch)

    def pass_interval(self) -> None:
        """Let a millisecond pass, and what is due at its end happen."""
        self.now_ns += 1_000_000
        due, self.later = self.later, []
        for call in due:
            call()
        self.end_turn()


@contextmanager
def real_bench(
    directory: Path, *, durability: Literal["async", "fsync"] = "async", delivery_coalescing_ms: int = 0
) -> Iterator[RealBench]:
    """Open a store and a broker for a bench."""
    clock = Bench().clock
    settings = StoreSettings(data_dir=directory, segment_bytes=testing.SEGMENT_BYTES, durability=durability)
    with (
        closing(Store.open(settings, clock)) as store,
        closing(Broker.open(store, BrokerSettings(busy_poll_us=0), clock)) as broker,
    ):
        bench = RealBench(broker, delivery_coalescing_ms=delivery_coalescing_ms)
        bench.clock = clock
        yield bench
