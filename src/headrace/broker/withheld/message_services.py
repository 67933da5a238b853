"""What holds messages back or writes them again, built together, on the broker's clock, closed with it.

A protocol that has delays, transactions or retries uses the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.offset_moved import OffsetMovedEvents
from headrace.broker.withheld.retry import DeadLetters, Retries
from headrace.broker.withheld.schedule import FILE_NAME as DELAY_FILE
from headrace.broker.withheld.schedule import DelayLevels
from headrace.broker.withheld.timed import TimedMessages
from headrace.broker.withheld.transactions import Transactions

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.consumers.group_services import GroupServices


class MessageServices:
    """The parts that hold messages back or write them again.

    Attributes:
        delays: Messages that wait by level.
        timed: Messages that wait for a time of their own.
        transactions: Half messages, until they are committed or rolled back.
        retries: Writes down again what a group could not consume.
        letters: Counts what a group gave up, and raises the alarm.
        offset_moved: Writes down that a consumer asked for what is not there.
    """

    def __init__(self, broker: Broker, groups: GroupServices) -> None:
        """Find what waits in the log, and have the broker's clock drive the parts.

        Raises:
            SideFileError: a file is damaged, and so is its copy; nothing was changed.
            OSError: one cannot be read.
        """
        self.delays = DelayLevels(broker, groups.file_writer(DELAY_FILE))
        self.timed = TimedMessages(broker)
        self.transactions = Transactions(broker, groups.offsets)
        self.letters = DeadLetters(broker.clock)
        self.retries = Retries(broker, self.delays, self.letters)
        self.offset_moved = OffsetMovedEvents(broker)
        broker.add_tickers(self.delays, self.timed, self.transactions)
