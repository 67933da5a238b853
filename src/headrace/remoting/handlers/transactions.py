"""Transactions: what a producer decided, and asking it when it has not.

Ref: remoting.md 3.9, 4.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.access import Action
from headrace.broker.message import REAL_TOPIC
from headrace.broker.withheld.transaction_end import Decision
from headrace.format import record
from headrace.remoting import fields
from headrace.remoting.codes import RequestCode
from headrace.remoting.guard import Need
from headrace.remoting.members import peer_of, pick_producer
from headrace.remoting.reply import Reply, RequestRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.access import User
    from headrace.broker.gathering import Gathering
    from headrace.broker.withheld.transactions import TransactionCheck
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services


def end_transaction(peer: Peer, command: Command, gathering: Gathering) -> Reply | Callable[[], Reply]:
    """Commit or roll back a half message (37).

    Java's and Go's clients send it one-way. Who waits for the answer may forget the transaction then, so it leaves when
    the decision is durable.
    """
    ext = command.ext
    value = fields.number(ext, "commitOrRollback", most=fields.MAX_I32)
    try:
        decision = Decision(value)
    except ValueError as error:
        raise RequestRefusedError(
            f"<commitOrRollback> = {value} is not accepted: 8 commit, 12 rollback, 0 unknown"
        ) from error
    if peer.user is not None:
        require_publisher(peer, peer.user, fields.number(ext, "commitLogOffset"))
    transactions = peer.services.messages.transactions
    ending = transactions.ending(
        gathering,
        fields.text(ext, "producerGroup"),
        fields.number(ext, "tranStateTableOffset"),
        fields.number(ext, "commitLogOffset"),
        decision,
    )
    if ending is None:
        return Reply(wait_offset=transactions.decided_offset)

    return lambda: Reply(wait_offset=ending.finish())


def require_publisher(peer: Peer, user: User, physical_offset: int) -> None:
    """Accept who may publish to the topic of a half message; one that is none is refused later.

    Raises:
        AccessDeniedError: the user may not.
    """
    raw = peer.services.broker.store.log.read(physical_offset) if physical_offset >= 0 else None
    if raw is not None:
        half = record.decode(raw)
        topic = record.properties_of(half["properties"]).get(REAL_TOPIC, half["topic"])
        peer.require(user, Need(Action.PUBLISH, topic), RequestCode.END_TRANSACTION)


def ask_through(services: Services) -> None:
    """Have open transactions asked about at the producers that are connected."""
    services.messages.transactions.on_check = lambda check: ask(services, check)


def ask(services: Services, check: TransactionCheck) -> None:
    """Ask one producer of a group what became of a transaction (39)."""
    member = pick_producer(services, check.group, check.topic)
    if member is None:
        return
    ext = {
        "tranStateTableOffset": str(check.half_offset),
        "commitLogOffset": str(check.physical_offset),
        "offsetMsgId": check.message_id,
    }
    if check.unique_key:
        ext["msgId"] = ext["transactionId"] = check.unique_key
    peer_of(member).notify(RequestCode.CHECK_TRANSACTION_STATE, ext, check.record)
