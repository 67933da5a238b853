"""Who is connected: producers and consumers by group, and what each consumer group subscribes to.

Everything comes from heartbeats (A-BROKER-51, 53): each one names a client's groups and subscriptions and keeps it a
member; whoever sends none for ``broker.client_timeout_ms``, says good-bye or loses the connection is out. What a change
of members or topics means, telling the others, is for the caller: calls return the groups that changed.

An *owner* is whatever stands for one connection; only its identity counts. Times are ms of a clock that never jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headrace.broker.consumers.subscription import Subscription
from headrace.errors import InvalidNameError, QuotaExceededError
from headrace.format.names import MAX_TOPIC_BYTES
from headrace.settings import BrokerSettings

Owner = object

MAX_NAME: Final = 512
"""Characters of a client id or group name; clients make ids of about 60."""

MAX_WORD: Final = 64
"""Characters of a client's language, and of what it says about a group in one word, such as CLUSTERING."""

MAX_EXPRESSION: Final = 16_384
EXPRESSION_SHARE: Final = 64
"""Characters of expressions that there may be for each allowed subscription, all together."""


class Role(Enum):
    """What a client is in a group."""

    PRODUCER = 1
    CONSUMER = 2


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A client as it names itself."""

    client_id: str
    language: str
    version: int
    remote_address: str


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """What a heartbeat says of one consumer group; the words are the client's."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False
    subscriptions: Sequence[Subscription] = ()


@dataclass(slots=True, eq=False)
class Member:
    """One client in one group, over one connection."""

    owner: Owner
    group: str
    role: Role
    client: ClientInfo
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group that has members. All follow what the last heartbeat said, as in RocketMQ."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    unit_mode: bool = False
    members: dict[Owner, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    revision: int = 0
    """Grows with every change of what its members said of it."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The last heartbeat over one connection, so that the same once more need not be read.

    Attributes:
        content: Stands for all that it said.
        members: The client in each of its groups.
        groups: The consumer groups it named.
        revisions: Of each of them, behind this heartbeat: what it said still holds while they stay.
    """

    content: Hashable
    members: Sequence[Member]
    groups: Sequence[ConsumerGroup]
    revisions: Sequence[int]


@dataclass
class ClientCounters:
    """Events since the start."""

    heartbeats: int = 0
    refused: int = 0
    expired: int = 0


class ClientTable:
    """All members of all groups. Invariant: ``_by_age`` has every member, the one longest silent first."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.counters = ClientCounters()
        self.on_changed: Callable[[set[str]], None] = lambda groups: None
        """Called by ``tick`` with the consumer groups that lost silent members."""
        self.on_resubscribed: Callable[[ConsumerGroup], None] = lambda group: None
        """Called by ``register`` with a group that now wants other messages of a topic than before."""
        self._settings = settings
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Owner, Member]] = {}
        self._of_owner: dict[Owner, dict[tuple[Role, str], Member]] = {}
        self._registrations: dict[Owner, Registration] = {}  # of owners that have members
        self._by_age: dict[Member, None] = {}
        self._producers_by_id: dict[str, dict[Member, None]] = {}
        self._groups_of_topic: dict[str, dict[str, None]] = {}
        self._subscription_count = 0
        self._expression_characters = 0

    # -- coming and going -------------------------------------------------------------------------------------------

    def register(
        self,
        owner: Owner,
        client: ClientInfo,
        producers: Iterable[str],
        consumers: Iterable[ConsumerData],
        mono_ms: int,
        content: Hashable = None,
    ) -> set[str]:
        """Take in a heartbeat.

        Args:
            content: What ``repeated`` finds it by, different for each that says something else; None: nothing does.

        Returns:
            The consumer groups that have a new member or subscribe to other topics than before.

        Raises:
            InvalidNameError: a name or an expression is empty or too long; nothing was changed.
            QuotaExceededError: ``broker.max_group_members`` or ``broker.max_group_subscriptions``; nothing was changed.
        """
        produced, consumed = list(dict.fromkeys(producers)), {data.group: data for data in consumers}
        try:
            _require_words(client, produced, consumed)
            self._require_member_room(owner, produced, consumed)
            self._require_subscription_room(consumed)
        except (InvalidNameError, QuotaExceededError):
            self.counters.refused += 1
            raise
        self.counters.heartbeats += 1
        for group in produced:
            self._join(Role.PRODUCER, group, owner, client, mono_ms)
        changed = set()
        for data in consumed.values():
            joined = self._join(Role.CONSUMER, data.group, owner, client, mono_ms)
            if self._follow(self._consumers[data.group], data) or joined:
                changed.add(data.group)
        if content is not None and (produced or consumed):
            of_owner = self._of_owner[owner]
            keys = [*((Role.PRODUCER, name) for name in produced), *((Role.CONSUMER, name) for name in consumed)]
            groups = [self._consumers[name] for name in consumed]
            self._registrations[owner] = Registration(
                content, [of_owner[key] for key in keys], groups, [group.revision for group in groups]
            )
        return changed

    def repeated(self, owner: Owner, content: Hashable) -> Registration | None:
        """Return an owner's last heartbeat if it had this content and would change nothing but times now."""
        known = self._registrations.get(owner)
        if known is None or known.content != content:
            return None
        if any(member not in self._by_age for member in known.members):
            return None
        if any(group.revision != revision for group, revision in zip(known.groups, known.revisions, strict=True)):
            return None
        return known

    def renew(self, registration: Registration, mono_ms: int) -> None:
        """Take in a heartbeat that is ``repeated``."""
        self.counters.heartbeats += 1
        for member in registration.members:
            self._see(member, mono_ms)

    def _see(self, member: Member, mono_ms: int) -> None:
        member.seen_ms = mono_ms
        del self._by_age[member]
        self._by_age[member] = None

    def _require_member_room(self, owner: Owner, producers: list[str], consumers: dict[str, ConsumerData]) -> None:
        """Refuse more members than there may be."""
        known = self._of_owner.get(owner, {})
        wanted = [(Role.PRODUCER, name) for name in producers] + [(Role.CONSUMER, name) for name in consumers]
        most = self._settings.max_group_members
        if len(self._by_age) + sum(key not in known for key in wanted) > most:
            raise QuotaExceededError(f"the broker has its limit of {most} members of groups (broker.max_group_members)")

    def _require_subscription_room(self, consumers: dict[str, ConsumerData]) -> None:
        """Refuse subscriptions that are malformed, more than there may be, or too long all together."""
        growth = characters = 0
        for data in consumers.values():
            for subscription in data.subscriptions:
                characters += len(subscription.expression)
                if not 0 < len(subscription.topic) <= MAX_TOPIC_BYTES or len(subscription.expression) > MAX_EXPRESSION:
                    raise InvalidNameError(
                        subscription.topic[:40],
                        f"a subscription's topic has 1 to {MAX_TOPIC_BYTES} characters, "
                        f"its expression up to {MAX_EXPRESSION}",
                    )
            group = self._consumers.get(data.group)
            if group is not None:
                growth -= len(group.subscriptions)
                characters -= sum(len(known.expression) for known in group.subscriptions.values())
            growth += len(data.subscriptions)
        most = self._settings.max_group_subscriptions
        if growth > 0 and self._subscription_count + growth > most:
            raise QuotaExceededError(
                f"the broker has its limit of {most} subscriptions (broker.max_group_subscriptions)"
            )
        most = MAX_EXPRESSION + EXPRESSION_SHARE * most
        if characters > 0 and self._expression_characters + characters > most:
            raise QuotaExceededError(
                f"the expressions of the broker's subscriptions have their limit of {most} characters together "
                f"({EXPRESSION_SHARE} for each of broker.max_group_subscriptions)"
            )

    def _join(self, role: Role, group: str, owner: Owner, client: ClientInfo, mono_ms: int) -> bool:
        """Make a client a member, or keep it one; return whether the group gained or renamed a member."""
        of_owner = self._of_owner.setdefault(owner, {})
        member = of_owner.get((role, group))
        if member is not None and member.client.client_id == client.client_id:
            member.client = client
            self._see(member, mono_ms)
            return False
        if member is not None:
            self._leave(member)  # another client behind the same connection
            of_owner = self._of_owner.setdefault(owner, {})
        member = Member(owner, group, role, client, mono_ms)
        of_owner[role, group] = member
        self._by_age[member] = None
        if role is Role.PRODUCER:
            self._producers.setdefault(group, {})[owner] = member
            self._producers_by_id.setdefault(client.client_id, {})[member] = None
        else:
            self._consumers.setdefault(group, ConsumerGroup(group)).members[owner] = member
        return True

    def _follow(self, group: ConsumerGroup, data: ConsumerData) -> bool:
        """Take over what a heartbeat says of a group; return whether its topics changed.

        A subscription changes only to a newer version: members that have not heard of a change still send the old one.
        """
        known_words = group.consume_type, group.message_model, group.consume_from_where, group.unit_mode
        words = data.consume_type, data.message_model, data.consume_from_where, data.unit_mode
        is_other = words != known_words
        group.consume_type, group.message_model, group.consume_from_where, group.unit_mode = words
        given = {subscription.topic: subscription for subscription in data.subscriptions}
        gone = [topic for topic in group.subscriptions if topic not in given]
        for topic in gone:
            self._drop_subscription(group, topic)
        changed = bool(gone)
        resubscribed = False
        for topic, subscription in given.items():
            known = group.subscriptions.get(topic)
            if known is None:
                changed = True
                self._subscription_count += 1
                self._groups_of_topic.setdefault(topic, {})[group.name] = None
            if known is None or subscription.version > known.version:
                self._expression_characters += len(subscription.expression) - (len(known.expression) if known else 0)
                group.subscriptions[topic] = subscription
                is_other = True
                resubscribed |= known is not None and known.filter != subscription.filter
        group.revision += is_other or changed
        if resubscribed:
            self.on_resubscribed(group)
        return changed

    def _drop_subscription(self, group: ConsumerGroup, topic: str) -> None:
        self._expression_characters -= len(group.subscriptions.pop(topic).expression)
        self._subscription_count -= 1
        groups = self._groups_of_topic[topic]
        del groups[group.name]
        if not groups:
            del self._groups_of_topic[topic]

    def unregister(self, owner: Owner, producer_group: str = "", consumer_group: str = "") -> set[str]:
        """Take an owner's client out of the groups that are named; return the consumer groups that changed."""
        changed = set()
        for role, group in ((Role.PRODUCER, producer_group), (Role.CONSUMER, consumer_group)):
            member = self._of_owner.get(owner, {}).get((role, group))
            if member is not None:
                changed |= self._leave(member)
        return changed

    def drop_owner(self, owner: Owner) -> set[str]:
        """Take a closed connection's clients out of all groups; return the consumer groups that changed."""
        changed = set()
        for member in list(self._of_owner.get(owner, {}).values()):
            changed |= self._leave(member)
        return changed

    def expire(self, mono_ms: int) -> set[str]:
        """Take out who was silent too long; return the consumer groups that changed."""
        changed = set()
        limit = mono_ms - self._settings.client_timeout_ms
        silent = []
        for member in self._by_age:
            if member.seen_ms > limit:
                break
            silent.append(member)
        for member in silent:
            self.counters.expired += 1
            changed |= self._leave(member)
        return changed

    def tick(self, mono_ms: int) -> None:
        """Expire, and tell ``on_changed``."""
        changed = self.expire(mono_ms)
        if changed:
            self.on_changed(changed)

    def _leave(self, member: Member) -> set[str]:
        del self._by_age[member]
        of_owner = self._of_owner[member.owner]
        del of_owner[member.role, member.group]
        if not of_owner:
            del self._of_owner[member.owner]
            self._registrations.pop(member.owner, None)
        if member.role is Role.PRODUCER:
            self._leave_producers(member)
            return set()
        group = self._consumers[member.group]
        del group.members[member.owner]
        if not group.members:
            for topic in list(group.subscriptions):
                self._drop_subscription(group, topic)
            del self._consumers[member.group]
        return {member.group}

    def _leave_producers(self, member: Member) -> None:
        members = self._producers[member.group]
        del members[member.owner]
        if not members:
            del self._producers[member.group]
        same_id = self._producers_by_id[member.client.client_id]
        del same_id[member]
        if not same_id:
            del self._producers_by_id[member.client.client_id]

    # -- looking up -------------------------------------------------------------------------------------------------

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group; None when it has no member."""
        return self._consumers.get(group)

    def members(self, group: str) -> list[Member]:
        """Return the members of a consumer group."""
        found = self._consumers.get(group)
        return list(found.members.values()) if found else []

    def client_ids(self, group: str) -> list[str]:
        """Return the client ids of a consumer group, each once."""
        return list(dict.fromkeys(member.client.client_id for member in self.members(group)))

    def find_member(self, group: str, client_id: str) -> Member | None:
        """Return the member of a consumer group with a client id, the last to join if there are several."""
        found = None
        for member in self.members(group):
            if member.client.client_id == client_id:
                found = member
        return found

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return what a consumer group wants of a topic; None when it has no member or does not subscribe to it."""
        found = self._consumers.get(group)
        return found.subscriptions.get(topic) if found else None

    def groups_of(self, topic: str) -> list[str]:
        """Return the consumer groups that are connected and subscribe to a topic."""
        return list(self._groups_of_topic.get(topic, ()))

    def consumer_groups(self) -> list[str]:
        """Return the consumer groups that have members."""
        return list(self._consumers)

    def producers(self, group: str) -> list[Member]:
        """Return the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Member]]:
        """Return every producer group and its members."""
        return {group: list(members.values()) for group, members in self._producers.items()}

    def find_producer(self, client_id: str) -> Member | None:
        """Return a producer by its client id, the last to join if there are several: replies go to it."""
        members = self._producers_by_id.get(client_id)
        return next(reversed(members)) if members else None

    def role_members(self, role: Role) -> int:
        """Return how many memberships of a role there are (A-BROKER-52)."""
        if role is Role.PRODUCER:
            return sum(len(members) for members in self._producers.values())
        return sum(len(group.members) for group in self._consumers.values())

    def topics(self) -> list[str]:
        """Return the topics that connected consumers subscribe to."""
        return list(self._groups_of_topic)

    def clients_of(self, topic: str) -> int:
        """Return how many consumers subscribe to a topic (A-BROKER-52)."""
        return sum(len(self._consumers[group].members) for group in self.groups_of(topic))

    def __len__(self) -> int:
        return len(self._by_age)


def _require_words(client: ClientInfo, producers: list[str], consumers: dict[str, ConsumerData]) -> None:
    """Refuse names and words that are too long, or empty."""
    for name in (client.client_id, *producers, *consumers):
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidNameError(name[:40], f"client ids and groups have 1 to {MAX_NAME} characters")
    words = [client.language]
    for data in consumers.values():
        words += (data.consume_type, data.message_model, data.consume_from_where)
        words += (subscription.kind for subscription in data.subscriptions)
    for word in words:
        if len(word) > MAX_WORD:
            raise InvalidNameError(word[:40], f"the words of a heartbeat have up to {MAX_WORD} characters")
