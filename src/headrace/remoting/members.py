"""Members of groups as connections: who is told that its group changed, and who may be asked about a transaction.

Ref: remoting.md 4.4, NOTIFY_CONSUMER_IDS_CHANGED; 4.6.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from headrace.broker.access import Action
from headrace.remoting.codes import RequestCode

if TYPE_CHECKING:
    from headrace.broker.consumers.clients import Member
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services


def peer_of(member: Member) -> Peer:
    """Return the connection of a member: this package registers its connections as owners."""
    return cast("Peer", member.owner)


def pick_producer(services: Services, group: str, topic: str) -> Member | None:
    """Return a producer of a group, any of those that may be asked about a message to a topic; None without one.

    It is sent the message: who may not publish to its topic is not asked, whatever group the heartbeat named.
    """
    members = services.clients.producers(group)
    first = random.randrange(len(members)) if members else 0
    for member in (*members[first:], *members[:first]):
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


def notify_members(services: Services, groups: Iterable[str]) -> None:
    """Have every member of each group share the queues out anew."""
    for name in groups:
        group = services.groups.get(name)
        if group is not None and not group.notify_changes:
            continue
        for member in services.clients.members(name):
            peer_of(member).notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})
