"""How a transaction ends: what its producer says, and the records that say so in the log.

    open --commit or rollback--> op record, and with a commit the message behind it
    given up --the same, late--> record of HR_GIVEN_UP, and with a commit the message

Ends of one read of a connection are written together (``gathering``), each wholly or not at all. ``Transactions`` finds
what they end. Ref: remoting.md 3.9; docs/formats/transactions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from headrace.broker.gathering import Joint, Work
from headrace.broker.withheld.given_up import DECIDE, GivenUp
from headrace.format import record
from headrace.format.record import SYS_COMMITTED, SYS_TRANSACTION

if TYPE_CHECKING:
    from headrace.broker.copies import RecordCopy
    from headrace.broker.topic import Topic
    from headrace.broker.withheld.transactions import Transactions
    from headrace.store.queue_base import QueueBase

OP_TAG: Final = "d"
_OP_PROPERTIES: Final = record.encode_properties({"TAGS": OP_TAG})
_OP_TAG_HASH: Final = record.tag_hash(OP_TAG)


def add_op_record(joint: Joint, place: tuple[Topic, QueueBase], half_offset: int, *, command_entries: int) -> None:
    """Add the record that says that the half message at a queue offset is done with; it begins a command."""
    joint.batch.append(
        b"%d" % half_offset,
        joint.destination(*place),
        properties=_OP_PROPERTIES,
        tag_hash=_OP_TAG_HASH,
        command_entries=command_entries,
    )


class Decision(IntEnum):
    """What a producer says about its transaction; the numbers are those of the wire."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


@dataclass
class TransactionCounters:
    """Events since the start."""

    committed: int = 0
    rolled_back: int = 0
    left_open: int = 0
    """Answers that said neither."""
    repeated: int = 0
    """Answers about transactions that were decided before."""
    refused: int = 0
    """Answers that name no half message of their group; half messages above ``broker.max_open_transactions``, with a
    delay, or without room for their copies."""
    checks: int = 0
    unasked: int = 0
    """Checks put off because no producer of the group was there."""
    discarded: int = 0
    """Transactions that were given up."""
    dropped: int = 0
    """Half messages that could not be delivered or read: their topic was deleted, or the record is damaged."""
    torn: int = 0
    """Decisions forgotten because a power cut took the message that was written with them."""
    errors: int = 0
    """Times that the store took no writes."""


class Ending(Work):
    """What decides one transaction: an op record, and with a commit the message. All of it is written or nothing.

    One that was given up has its op record; there is a record of its late decision instead.

    Attributes:
        half_offset: Queue offset of the newest half message; of the first where the transaction is not open.
        first_offset: Queue offset of the first.
        is_open: Whether the transaction is open.
        was_given_up: Whether it was given up. A power cut may leave it open, too.
        is_commit: Whether the message is to be delivered.
    """

    def __init__(self, transactions: Transactions, half_offset: int, first_offset: int, *, is_open: bool) -> None:
        super().__init__()
        self.half_offset = half_offset
        self.first_offset = first_offset
        self.is_open = is_open
        self.was_given_up = first_offset in transactions.given_up
        self.is_commit = False
        self._transactions = transactions
        self._half: RecordCopy | None = None
        self._place: tuple[Topic, QueueBase] | None = None

    def commit(self, half: RecordCopy, place: tuple[Topic, QueueBase] | None) -> None:
        """Have the message delivered to a queue; None: it is gone."""
        self.is_commit = True
        self._half, self._place = half, place

    @property
    def topic(self) -> str:
        """Where a committed message belongs."""
        return ("" if self._half is None else self._half.property(b"REAL_TOPIC")) or ""

    @property
    def is_lost(self) -> bool:
        """Whether a message is committed whose topic is gone."""
        return self.is_commit and self._place is None

    def add_to(self, joint: Joint) -> None:
        """Add the records that say so, and the message behind them: so that carries nothing of the command."""
        entries = self.is_open + self.was_given_up + (self._place is not None)
        if self.is_open:
            add_op_record(joint, self._transactions.op_place, self.half_offset, command_entries=entries)
            entries = 0
        if self.was_given_up:
            joint.batch.append(
                GivenUp.encode(DECIDE, self.first_offset),
                joint.destination(None, self._transactions.given_up.queue),
                command_entries=entries,
            )
        if self._half is not None and self._place is not None:
            self._half.add_to(
                joint.batch,
                joint.destination(*self._place),
                sys_flag=self._half.sys_flag & ~SYS_TRANSACTION | SYS_COMMITTED,
                prepared_offset=self._half.physical_offset,
                command_entries=0,
            )

    def drop(self) -> None:
        """Leave the transaction open."""
        super().drop()
        self._transactions.note_dropped(self)

    def finish(self) -> int:
        """Note that the transaction is decided.

        Returns:
            The physical offset to wait for, 0 for none: an answer says that the producer need not be asked again.

        Raises:
            RequestError, StoreError: nothing was written; it stays open.
        """
        return self._transactions.note_ended(self)


class RepeatedEnding:
    """The end of a transaction that another one in the same gathering decides."""

    def __init__(self, counters: TransactionCounters, first: Ending) -> None:
        self._counters = counters
        self._first = first

    def finish(self) -> int:
        """Count it; return what ``Ending.finish`` does.

        Raises:
            RequestError, StoreError: the other one was not written; the transaction stays open.
        """
        wait_offset = self._first.require_written()
        self._counters.repeated += 1
        return wait_offset
