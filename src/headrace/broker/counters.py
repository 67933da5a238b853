"""What the broker core counts."""

from __future__ import annotations

from dataclasses import dataclass


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
