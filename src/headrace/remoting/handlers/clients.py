"""Heartbeats and membership.

A heartbeat makes its client a member of its groups, makes the groups and their retry topics when they are new, and
replaces the subscriptions. Whoever is a member of a group that changed is told at once.

Ref: remoting.md 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.consumers.clients import ClientInfo, ConsumerData
from headrace.broker.consumers.groups import is_system_group, require_group_name
from headrace.broker.consumers.subscription import SQL92, TAG, Subscription
from headrace.errors import RequestError, StoreError
from headrace.format.names import RETRY_PREFIX
from headrace.remoting import bodies, fields
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reading.subscriptions import filter_of, require_readable_length
from headrace.remoting.reply import Reply, RequestRefusedError, refuse, saved_in_turn
from headrace.remoting.services import retry_rules

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.reply import Parts
    from headrace.remoting.services import Services

MAX_NEW_GROUPS: Final = 100
"""Groups, each with its retry topic, that one heartbeat makes: the others would hold up everybody else."""
MAX_TAGS: Final = 100_000
"""Tags of all subscriptions of a heartbeat, of which each takes 0.4 us."""
SUBSCRIPTIONS_AT_ONCE: Final = 1_000
"""Subscriptions of a heartbeat that are read in one part: 2 to 4 ms."""
MAX_NEW_QUEUES: Final = 1_000
"""Queues of retry topics after which a heartbeat makes no more of them."""

# Java's enumerations, in their order: the number of a constant is its place here.
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
STARTING_POINTS: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def heart_beat(peer: Peer, command: Command) -> Parts:
    """Keep a client a member of its groups (34).

    A consumer group that is refused does not hold up the client's others: they go on, and the remark says which and
    why. It is an error only if no consumer group is left: an error keeps the broker's version from a Java client, which
    then does not pull by SQL92 expressions.

    One that says what the last one over this connection said is not read, unless something changed meanwhile: it costs
    a hash of its body. One with thousands of subscriptions is read in parts; what it says is taken over at once.
    """
    services = peer.services
    # A hash of 64 bits with a secret in it: nobody finds another content that has the same.
    content = hash(command.body), len(command.body), command.language, command.version
    repeated = services.clients.repeated(peer, content)
    if repeated is not None and not any(_lacks_something(services, group.name) for group in repeated.groups):
        services.clients.renew(repeated, services.clock.monotonic_ms())
        return Reply()
    most = services.settings.max_subscriptions
    body = bodies.read_outline(command.body, "consumerDataSet")
    info = ClientInfo(bodies.member_text(body, "clientID"), command.language, command.version, peer.remote_address)
    producers = [
        bodies.member_text(given, "groupName")
        for given in bodies.member_list(body, "producerDataSet", most, "remoting.max_subscriptions")
    ]
    consumers = yield from read_consumers(body, most, services.clock.now_ms())
    version = services.groups.version
    kept, made, refusal = admit_groups(services, consumers)
    changed = services.clients.register(
        peer, info, producers, kept, services.clock.monotonic_ms(), None if refusal else content
    )
    services.notices.tell(changed)
    reply = refusal or Reply()
    if kept:
        reply.code, reply.untold = 0, reply.code
    if made or services.groups.version != version:
        # New groups are on disk (A-BROKER-27), and their retry topics in their file and registered.
        when_saved = services.groups.when_saved
        reply.wait_saved = saved_in_turn(when_saved, partial(services.when_known, made)) if made else when_saved
    return reply


def admit_groups(
    services: Services, consumers: Sequence[ConsumerData]
) -> tuple[list[ConsumerData], list[str], Reply | None]:
    """Make the consumer groups that are new, and their retry topics.

    A group whose retry topic the store has no room for is a group nonetheless: what is there can be read (A-STORE-51).

    Returns:
        The groups that there are then, the retry topics that were made, and the first refusal.
    """
    kept = []
    topics = []
    refusal = None
    made = queues = 0
    for data in consumers:
        try:
            require_group_name(data.group)
            if _lacks_something(services, data.group):
                if made >= MAX_NEW_GROUPS or queues >= MAX_NEW_QUEUES:
                    raise RequestRefusedError(
                        "the body's <consumerDataSet> names more groups that do not exist, or have no retry topic, "
                        f"than one heartbeat makes; {made} were made now, the next heartbeat makes more",
                        ResponseCode.SYSTEM_BUSY,
                    )
                made += 1
            group = services.ensure_group(data.group)
            if group.retry_queues > 0 and not is_system_group(data.group):
                known = len(services.broker.topics)
                topic = services.messages.retries.ensure_retry_topic(retry_rules(group, unit_mode=data.unit_mode))
                if len(services.broker.topics) > known:
                    topics.append(topic.name)
                    queues += len(topic.queues)
        except RequestError as error:
            refusal = refusal or refuse(error)
        except StoreError as error:
            refusal = refusal or refuse(error)
            kept.append(data)
        else:
            kept.append(data)
    return kept, topics, refusal


def _lacks_something(services: Services, name: str) -> bool:
    """Whether a group or its retry topic is to be made."""
    group = services.groups.get(name)
    if group is None:
        return True
    has_topic = RETRY_PREFIX + name in services.broker.topics
    return not has_topic and group.retry_queues > 0 and not is_system_group(name)


def read_consumers(body: dict[str, Any], most: int, now_ms: int = 0) -> Generator[None, None, list[ConsumerData]]:
    """Read what a heartbeat, come at ``now_ms``, says of its consumer groups; behind each ``yield`` comes another part.

    Raises:
        RequestRefusedError: a member is missing or malformed, or there are too many subscriptions.
    """
    consumers = []
    left, tags, read = most, 0, 0
    for row in bodies.member_list(body, "consumerDataSet", most, "remoting.max_subscriptions"):
        given = bodies.read_entry(row, "subscriptionDataSet")
        entries = bodies.member_list(given, "subscriptionDataSet", most, "remoting.max_subscriptions")
        subscriptions: list[Subscription] = []
        read += 1
        for at in range(0, len(entries), SUBSCRIPTIONS_AT_ONCE):
            if read >= SUBSCRIPTIONS_AT_ONCE:
                read = 0
                yield
            part = bodies.read_entries(entries[at : at + SUBSCRIPTIONS_AT_ONCE], "subscriptionDataSet")
            read += len(part)
            tags += sum(str(item.get("subString")).count("||") for item in part)
            if tags > MAX_TAGS:
                raise RequestRefusedError(f"the body's subscriptions have more tags than the {MAX_TAGS} that are read")
            subscriptions += (read_subscription(item, now_ms) for item in part)
        consumers.append(_read_consumer(given, subscriptions))
        left -= len(subscriptions)
        if left < 0:
            raise RequestRefusedError(
                f"the body's <consumerDataSet> has more than {most} subscriptions (remoting.max_subscriptions)",
                ResponseCode.SYSTEM_BUSY,
            )
    return consumers


def _read_consumer(given: dict[str, Any], subscriptions: list[Subscription]) -> ConsumerData:
    """Read what a heartbeat says of one group, beside its subscriptions.

    Raises:
        RequestRefusedError: a member is missing or malformed.
    """
    return ConsumerData(
        group=bodies.member_text(given, "groupName"),
        consume_type=bodies.member_constant(given, "consumeType", CONSUME_TYPES, "CONSUME_PASSIVELY"),
        message_model=bodies.member_constant(given, "messageModel", MESSAGE_MODELS, "CLUSTERING"),
        consume_from_where=bodies.member_constant(
            given, "consumeFromWhere", STARTING_POINTS, "CONSUME_FROM_LAST_OFFSET"
        ),
        unit_mode=given.get("unitMode") is True,
        subscriptions=subscriptions,
    )


def read_subscription(given: dict[str, Any], now_ms: int = 0) -> Subscription:
    """Read one subscription; the hashes that clients send with it are computed anew, and no version means now.

    Raises:
        RequestRefusedError: a member is missing or malformed; the kind of its expression is unknown, or it is too long.
    """
    kind = bodies.member_text(given, "expressionType", TAG)
    if kind not in ("", TAG, SQL92):
        raise RequestRefusedError(
            f"expression type {kind[:64]!r} is neither TAG nor SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED
        )
    expression = bodies.member_text(given, "subString", "*")
    require_readable_length(expression)
    return Subscription.make(
        bodies.member_text(given, "topic"),
        expression,
        kind,
        bodies.member_int(given, "subVersion", now_ms),
    )


def unregister_client(peer: Peer, command: Command) -> Parts:
    """Take the client of a connection out of a producer and a consumer group (35), whatever client id is named.

    Its locks are looked for in parts.
    """
    clients, group = peer.services.clients, command.ext.get("consumerGroup", "")
    online = clients.consumer_group(group)
    member = online.members.get(peer) if online else None
    changed = clients.unregister(peer, command.ext.get("producerGroup", ""), group)
    try:
        if member is not None:
            yield from peer.services.locks.unlock_client(group, member.client.client_id)
    finally:  # also where the connection ends between two parts: what is still locked then expires
        peer.services.notices.tell(changed)
    return Reply()


def get_consumer_list(peer: Peer, command: Command) -> Reply:
    """Return the client ids of a consumer group (38)."""
    group = fields.text(command.ext, "consumerGroup")
    found = peer.services.clients.client_ids(group)
    if not found:
        return Reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return Reply(body=bodies.encode({"consumerIdList": found}))


def check_client_config(peer: Peer, command: Command) -> Reply:
    """Say whether a subscription's expression is right (46); consumers ask before they start."""
    body = bodies.read_object(command.body)
    given = body.get("subscriptionData")
    if not isinstance(given, dict):
        raise RequestRefusedError("the body's <subscriptionData> is missing", ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    filter_of(bodies.member_text(given, "expressionType", "TAG"), bodies.member_text(given, "subString", "*"))
    return Reply()
