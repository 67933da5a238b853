"""Pulls that were checked before, answered in one call; known_pulls.pyx says how."""

from typing import Final

from headrace.batch import RecordBatch
from headrace.net.wire import ReadTaker
from headrace.remoting.codec import PullRequest, Reader
from headrace.remoting.connection import RemotingConnection
from headrace.remoting.metrics import RemotingCounters
from headrace.remoting.reading.subscriptions import MessageFilter
from headrace.remoting.server import RemotingServer
from headrace.remoting.services import Services
from headrace.store.queue_base import QueueBase

LARGE_ANSWER_BYTES: Final[int]
"""Bytes from which on an answer keeps a client busy: those to pulls that follow each other leave in pairs."""

class KnownPulls:
    """What the checks of pulls found, for all connections of one server."""

    def __init__(self, services: Services, counters: RemotingCounters, records: RecordBatch) -> None:
        """Know nothing yet.

        Args:
            records: Empty outside of a call: what is read into.
        """

    def __len__(self) -> int: ...
    def learn(self, request: PullRequest, host: str, queue: QueueBase, wanted: MessageFilter) -> None:
        """Note what the checks of a pull, which has just found messages, have found; some kinds are not kept.

        Args:
            host: The client's, as statistics have it.
            queue: What is read.
            wanted: What its subscription lets through.
        """

    def bounds_of(self, request: PullRequest) -> tuple[int, int]:
        """Return how many messages, and how many bytes of them, a pull gets at most."""

    def answer(self, request: PullRequest, host: str) -> bytes | None:
        """Return the encoded answer to a pull, with its offset committed; None where the handler is asked.

        That is where the pull is not known, where it finds nothing, and where something goes wrong. What it gets is
        counted, but for the request itself.
        """

    def answer_run(self, reader: Reader, host: str) -> bytes | None:
        """Answer the known pulls that come next in the input: up to two with large answers, and up to 16.

        They are taken out of the input, and counted. None where what comes next is no such pull: it is left there.
        """

    def forget(self) -> None:
        """Forget all of them, and with them what was deleted since: they are learnt again."""

class PullReads(ReadTaker):
    """Takes over the reads of one client that begin with known pulls.

    Attributes:
        is_expected: The last read had a pull.
    """

    is_expected: bool

    def __init__(self, server: RemotingServer, client: RemotingConnection, reader: Reader) -> None: ...
    def end(self) -> None:
        """Take over no more, and let go of the client."""
