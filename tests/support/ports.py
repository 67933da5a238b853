"""Ports for servers of a test, a benchmark or a kill cycle."""

from __future__ import annotations

import random
import socket
from typing import Final

_given: Final[set[int]] = set()


def free_port(below: int = 0) -> int:
    """Return a port that is free, and so is the one ``below`` beneath it; others each time.

    It lies under those that the kernel hands out by itself: nobody's connection takes it before a server listens.
    """
    while True:
        port = random.randrange(10_000, 32_000)
        if not _given.isdisjoint((port, port - below)):
            continue
        with socket.socket() as probe, socket.socket() as other:
            try:
                probe.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port - below if below else 0))
            except OSError:
                continue
            _given.update((port, port - below))
            return port
