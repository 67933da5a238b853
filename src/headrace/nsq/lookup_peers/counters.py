"""What goes on between this broker and nsqlookupds, counted. Plain integers; ``admin`` makes metrics of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import (
    ConnectionLostError,
    HeadraceError,
    InternalError,
    NotConnectedError,
    RequestError,
    RequestTimeoutError,
    StoreError,
    row_of,
)
from headrace.nsq.lookup_peers.codec import LookupdRefusedError

CAUSES: Final[Mapping[type[HeadraceError], str]] = {
    NotConnectedError: "connect",
    ConnectionLostError: "closed",
    RequestTimeoutError: "timeout",
    LookupdRefusedError: "refused",
    InternalError: "internal",
    RequestError: "core",
    StoreError: "core",
    HeadraceError: "protocol",
}


@dataclass
class LookupCounters:
    """Events since the start.

    Attributes:
        registrations: REGISTERs that were taken; all come again with each new connection.
        unregistrations: UNREGISTERs that were taken.
        pings: Those that were answered.
        failures: Connections that failed or were not made, by cause.
        queries: Questions for the channels of a topic that were answered.
        query_failures: Those that were not, by cause.
        channels: Channels made because of an answer.
    """

    registrations: int = 0
    unregistrations: int = 0
    pings: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    queries: int = 0
    query_failures: Counter[str] = field(default_factory=Counter)
    channels: int = 0


def cause_of(error: HeadraceError) -> str:
    """Return what the counters call an error."""
    return row_of(CAUSES, error)
