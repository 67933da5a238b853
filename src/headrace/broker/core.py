"""What the tables of one broker share, and what they count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.control import ControlRecords
    from headrace.clock import Clock
    from headrace.settings import BrokerSettings
    from headrace.store.store import Store


@dataclass
class BrokerCounters:
    """Events since the broker was opened."""

    channels_deleted: int = 0
    topics_deleted: int = 0
    evicted_ephemeral: int = 0
    clamped_positions: int = 0
    lost_offsets: int = 0
    """Queue offsets that were issued, as changes say, and whose messages the log has lost; found by this start."""
    # Bugs of ours in a listener or a service: logged with their traceback, the broker goes on.
    listener_errors: int = 0
    service_errors: int = 0


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
