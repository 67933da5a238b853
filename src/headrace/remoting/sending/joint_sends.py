"""Plain sends of many clients, appended together: one batch for what one turn of the event loop has read.

A client that waits for each answer sends one message a read; ``net.joint_turn`` says why they are joined. Each client
is answered as if it had sent alone: what is refused is refused by destination, and who sends to a topic that nobody
waits for the disk for does not wait for that of another. Only what the store takes nothing of is refused to all.

Ref: docs/adr/0013-joint-publishes.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from headrace.net.joint_turn import MAX_SHARE_BYTES, MEMORY_BYTES, JointTurn
from headrace.remoting.codes import RequestCode
from headrace.remoting.sending.intake import count_sends, log_sends, publish_sends
from headrace.remoting.sending.send_intake import JointIntake

if TYPE_CHECKING:
    from headrace.remoting.connection import RemotingConnection
    from headrace.remoting.server import RemotingServer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Share:
    """What one read of one client has in the intake.

    Attributes:
        first: Its first send, of which it has ``sends``.
        destinations: Where they go, by number.
    """

    client: RemotingConnection
    first: int
    sends: int
    destinations: list[int]


class JointSends(JointTurn[Share]):
    """One server's."""

    def __init__(self, server: RemotingServer) -> None:
        super().__init__()
        self._server = server
        self._intake = JointIntake(MEMORY_BYTES)

    def take(self, client: RemotingConnection) -> bool:
        """Take over what ``client`` sends, and answer it later in this turn; return False where it does not pay."""
        if not self.is_worth_it():
            return False
        source = self._server.intake
        if source.batch.body_bytes > MAX_SHARE_BYTES or any(source.holds):
            return False
        source.batch.born_host = client.born_host
        source.batch.born_host_v6 = client.born_v6
        intake = self._intake
        first = intake.sends
        destinations = intake.join(source)
        if destinations is None:
            self.end_turn()
            return False
        if self._server.logs_commands:
            log_sends(client, source)
        self.add(Share(client, first, source.sends, destinations))
        source.clear()
        return True

    def append(self, shares: list[Share]) -> None:
        """Append what the shares have in the intake, and answer."""
        server, intake = self._server, self._intake
        wait = publish_sends(server, intake)
        # The clients first: what follows is done while they make their next sends.
        for share in shares:
            try:
                self._answer(share, wait)
            except Exception as error:  # the others' messages are stored, too
                server.counters.internal_errors += not isinstance(error, MemoryError)
                logger.exception("answer to joint sends failed by a bug client=%s", share.client.remote_address)
                share.client.abort("internal error")
        for host, of_host in groupby(shares, key=lambda share: share.client.host):
            found = list(of_host)
            count_sends(server, intake, host, found[0].first, sum(share.sends for share in found))
        if server.broker.overloaded:
            for share in shares:
                server.hold_back(share.client)
        if not wait:
            server.busy_poll.served()

    def clear(self) -> None:
        """Forget what is in the intake."""
        self._intake.clear()

    def _answer(self, share: Share, wait: int) -> None:
        intake = self._intake
        replies = intake.encode_replies(self._server.services.store_host, share.first, share.sends)
        if refused := intake.untold(share.first, share.sends):
            share.client.note_untold(RequestCode.SEND_MESSAGE, *refused)
        share.client.answer_joined(wait if wait and self._awaits_flush(share) else 0, replies)

    def _awaits_flush(self, share: Share) -> bool:
        queues = self._intake.batch.queues
        return any((queue := queues[at]) is not None and queue.awaits_flush for at in share.destinations)
