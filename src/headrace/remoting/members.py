"""Members of groups as connections: who is told that its group changed, and who may be asked about a transaction.

Ref: remoting.md 4.4, NOTIFY_CONSUMER_IDS_CHANGED; 4.6.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from headrace.broker.access import Action
from headrace.remoting.codes import RequestCode

if TYPE_CHECKING:
    from headrace.broker.consumers.clients import Member
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services


logger = logging.getLogger(__name__)

NOTICES_PER_MS: Final = 10
"""One takes some 9 us."""


def peer_of(member: Member) -> Peer:
    """Return the connection of a member: this package registers its connections as owners."""
    return cast("Peer", member.owner)


def pick_producer(services: Services, group: str, topic: str) -> Member | None:
    """Return a producer of a group, any of those that may be asked about a message to a topic; None without one.

    It is sent the message: who may not publish to its topic is not asked, whatever group the heartbeat named.
    """
    members = services.clients.producers(group)
    first = random.randrange(len(members)) if members else 0
    for number in range(len(members)):
        member = members[first - number]
        user = peer_of(member).user
        if user is None or user.may(Action.PUBLISH, topic=topic):
            return member
    return None


def follows_resets(services: Services, group: str) -> bool:
    """Return whether the consumers of a group go to another offset when they are told to: those that are pushed to.

    Those that pull by themselves do nothing when told (Java's lite pull), or are not members: their pulls tell them.
    """
    found = services.clients.consumer_group(group)
    return found is not None and found.consume_type != "CONSUME_ACTIVELY"


def is_broadcasting(services: Services, group: str) -> bool:
    """Return whether the consumers of a group are there, and each get every message."""
    found = services.clients.consumer_group(group)
    return found is not None and found.message_model == "BROADCASTING"


class MemberNotices:
    """Tells the members of groups that changed to share the queues out anew. Add it to ``Broker.tickers``.

    Once for all that comes or goes in one turn of the loop, and the less often the larger the groups are: where a
    thousand clients join one after the other, to tell all of them each time is a million notices. They take a tenth of
    the loop's time at most.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._changed: set[str] = set()
        self._is_asked_for = False
        self._not_before_ms = 0

    def tell(self, groups: Iterable[str]) -> None:
        """Have the members of these groups told soon."""
        self._changed.update(groups)
        if self._changed and not self._is_asked_for:
            self._is_asked_for = True
            self._services.broker.store.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_asked_for = False
        now_ms = self._services.clock.monotonic_ms()
        if now_ms < self._not_before_ms:
            return  # with a tick
        changed, self._changed = self._changed, set()
        self._not_before_ms = now_ms + sum(map(self._notify, changed)) // NOTICES_PER_MS

    def _notify(self, name: str) -> int:
        """Tell the members of a group, if it wants them to know; return how many there are."""
        group = self._services.groups.get(name)
        if group is not None and not group.notify_changes:
            return 0
        members = self._services.clients.members(name)
        for member in members:
            try:
                peer_of(member).notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})
            except Exception:  # the others, and those of other groups, are told all the same
                logger.exception("member not told of a change by a bug client=%s", member.client.remote_address)
        return len(members)

    def tick(self, now_ms: int) -> None:
        """Tell what had to wait."""
        if self._changed:
            self._end_turn()

    def close(self) -> None:
        """Nothing is left to do: whoever is a member is told by the end of its connection."""
