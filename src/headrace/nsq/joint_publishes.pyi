"""Small publishes of many clients, appended together: one batch for what one turn of the event loop has read.

A client that waits for each PUB sends one message a read; ``net.joint_turn`` says why they are joined. Each client has
a share of the batch, and is answered as if it had published alone. If the batch is refused each share is tried alone,
so what is wrong with one client's publish does not touch another's.

Such a read is nearly always one PUB to the topic of the PUB before. ``Publisher.take_read`` takes that over without a
step through the connection's own code, which costs as much as the system calls around it; every other read goes there.

Ref: docs/adr/0013-joint-publishes.md.
"""

from headrace.net.joint_turn import JointTurn
from headrace.net.wire import ReadTaker
from headrace.nsq.codec import Reader
from headrace.nsq.connection import NsqConnection
from headrace.nsq.intake import Intake
from headrace.nsq.server import NsqServer

class Publisher(ReadTaker):
    """One client that publishes.

    Attributes:
        client: None when it has ended.
        is_joined: It has published what is appended, and answered, at the end of this turn.
        is_plain: It has published before, and nothing keeps its next publish from being taken over.
        born_host: As of ``PublishBatch``, as ``born_v6``.
    """

    client: NsqConnection | None
    is_joined: bool
    is_plain: bool
    born_host: int
    born_v6: bytes | None

    def __init__(self, server: NsqServer, client: NsqConnection, reader: Reader) -> None: ...
    def take_read(self, nbytes: int) -> bool:
        """Take over ``nbytes`` in the receive buffer and answer them later in this turn.

        Return False, with nothing of them parsed, where they are something else than PUBs or it does not pay.
        """
    def end(self) -> None:
        """Take over no more, and let go of the client."""

class Share:
    """What one read of one client has in the batch.

    Attributes:
        topic: Of all its messages.
        first: Its first entry of the batch, which has ``messages`` of them.
        commands: PUB, MPUB and DPUB commands in it: that many answers are owed.
        command_name: The name of the first of them.
    """

    @property
    def client(self) -> NsqConnection: ...
    publisher: Publisher
    topic: str
    first: int
    messages: int
    body_bytes: int
    commands: int
    command_name: str

class JointPublishes(JointTurn[Share]):
    """One server's."""

    def __init__(self, server: NsqServer) -> None: ...
    def take(self, publisher: Publisher, intake: Intake) -> bool:
        """Take over what was parsed, and answer it later in this turn; return False where it does not pay."""
