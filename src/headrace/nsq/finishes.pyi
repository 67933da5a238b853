"""FINs, done without a step through the connection's own code.

A consumer with a window of one message, which is what many clients ask for by default, sends one FIN a read and waits
for the next message; so does, now and then, any consumer of what is published one by one. To get to the channel through
the connection (some twenty calls of Python) costs as much as the system calls around it. So a read that is nothing but
FINs, whole and in their plain spelling, is taken over here, with RDYs beside them that say what the last one said (some
clients send one with each FIN); every other read goes through the connection. What is common to the reads of one turn
of the event loop is done once: the clock is asked, the channel is marked for the dispatch, the loop is told to look for
more.

Invariant: a channel in ``Finishes._touched`` is looked at by the next dispatch, which empties that.

Ref: docs/adr/0016-fins-in-compiled-code.md.
"""

from headrace.broker.channels.channel import Channel, Subscription
from headrace.net.deadlines import Deadlines
from headrace.net.wire import ReadTaker
from headrace.nsq.codec import Reader
from headrace.nsq.connection import NsqConnection
from headrace.nsq.server import NsqServer

class Finisher(ReadTaker):
    """One client that consumes.

    Attributes:
        is_plain: It consumes, and publishes nothing.
        is_small: Its window is too small for its reads to wait for many FINs: ``coalescing`` need not hear of them.
    """

    is_plain: bool
    is_small: bool

    def __init__(self, server: NsqServer, client: NsqConnection, reader: Reader, deadlines: Deadlines) -> None: ...
    def consume(self, channel: Channel, subscription: Subscription) -> None:
        """Finish messages of this subscription from now on."""
    def take_read(self, nbytes: int) -> bool:
        """Do what ``nbytes`` in the receive buffer ask for.

        Return False, with nothing of them parsed, where they are something else or the client is not plain.
        """
    def end(self) -> None:
        """Take over no more, and let go of the client."""

class Finishes:
    """One server's.

    Attributes:
        reads: Reads that were taken over.
    """

    @property
    def reads(self) -> int: ...
    def __init__(self, server: NsqServer) -> None: ...
    def end_turn(self) -> None:
        """Mark channels anew: a dispatch begins."""
