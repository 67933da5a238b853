"""What the members of a consumer group are told when the group changes.

Ref: remoting.md 4.4, NOTIFY_CONSUMER_IDS_CHANGED.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from headrace.remoting.codes import RequestCode

if TYPE_CHECKING:
    from headrace.broker.clients import Member
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services


def peer_of(member: Member) -> Peer:
    """Return the connection of a member: this package registers its connections as owners."""
    return cast("Peer", member.owner)


def notify_members(services: Services, groups: Iterable[str]) -> None:
    """Have every member of each group share the queues out anew."""
    for name in groups:
        group = services.groups.get(name)
        if group is not None and not group.notify_changes:
            continue
        for member in services.clients.members(name):
            peer_of(member).notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})
