"""What channels have for their consumers, sent.

Ready subscriptions of a channel take turns of a small quantum, so consumers share what there is; a channel stops at a
byte budget, and what is left comes in the next turn of the event loop, so channels and sockets share that. Everything
that is ready leaves at once, but on channels that deliver thousands of messages a second (``delivery_coalescing``).

A consumer whose window is one message gets a write for each, so what is done around it is compiled.

Ref: nsq.md 1.8, 1.9; docs/adr/0016-fins-in-compiled-code.md.
"""

from headrace.broker.channels.channel import Channel
from headrace.nsq.server import NsqServer

QUANTUM_MESSAGES: int
"""A subscription's turn while others of its channel are ready, at most."""
BUSY_MESSAGES: int
"""The same on a busy channel, at least."""
LONE_MESSAGES: int
"""Its turn when it is the only one."""
CHANNEL_BYTES: int
"""Of one channel at a time: as they lie in the log, which the bound is for, or as they are sent if that is more."""
SMALL_BYTES: int
"""What is left of them and not worth a write."""
INFLATED_BYTES: int
"""What compressed bodies of one write may become, and one body more: a few bytes may stand for megabytes."""

class Delivery:
    """One server's."""

    def __init__(self, server: NsqServer) -> None: ...
    def deliver(self, channel: Channel) -> bool:
        """Send what one channel has; return whether it has more for consumers that are ready."""
