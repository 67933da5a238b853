"""A newer copy of an open half message: what lets all below it be forgotten, and counts the questions about it.

Ref: remoting.md 4.6; docs/formats/transactions.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.gathering import Joint, Work
from headrace.broker.withheld.half_message import CHECK_TIMES, FIRST_OFFSET
from headrace.broker.withheld.transaction_end import add_op_record

if TYPE_CHECKING:
    from headrace.broker.copies import RecordCopy
    from headrace.broker.withheld.open_halves import OpenHalf
    from headrace.broker.withheld.transactions import Transactions


class Renewal(Work):
    """An op record for the half message at ``half_offset``, and its newer copy behind it: both are written or none."""

    def __init__(
        self, transactions: Transactions, half_offset: int, half: RecordCopy, entry: OpenHalf, *, is_waited_for: bool
    ) -> None:
        """``entry`` is what the transaction is with that copy, but for where it stands."""
        super().__init__()
        self.half_offset = half_offset
        self.half = half
        self.entry = entry
        self._transactions = transactions
        self._is_waited_for = is_waited_for

    def add_to(self, joint: Joint) -> None:
        """Add both."""
        add_op_record(joint, self._transactions.op_place, self.half_offset, command_entries=2)
        changes: dict[bytes, bytes | None] = {
            CHECK_TIMES.encode(): b"%d" % self.entry.checks,
            FIRST_OFFSET.encode(): b"%d" % self.entry.first_offset,
        }
        place = joint.destination(*self._transactions.half_place)
        self.half.add_to(joint.batch, place, changes=changes, command_entries=0)
        joint.is_waited_for |= self._is_waited_for
