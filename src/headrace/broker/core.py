"""What the tables of one broker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.control import ControlRecords
    from headrace.broker.counters import BrokerCounters
    from headrace.clock import Clock
    from headrace.settings import BrokerSettings
    from headrace.store.store import Store


@dataclass(frozen=True, slots=True)
class Core:
    """The store and what was set.

    Attributes:
        control: The records of the log that say which topics and channels there are.
        node_id: Of the broker, in the ids of NSQ messages.
        max_msg_timeout_ms: How long a consumer may keep a message in flight.
    """

    store: Store
    settings: BrokerSettings
    clock: Clock
    control: ControlRecords
    counters: BrokerCounters
    node_id: int
    max_msg_timeout_ms: int
