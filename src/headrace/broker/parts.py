"""What one broker has beside its topics and channels, built together when broker and store are open.

It is there whether or not anybody listens: delayed messages and open transactions of earlier runs go on either way, and
every protocol's messages are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.consumers.group_services import GroupServices
from headrace.broker.exactly_once.producer_services import ProducerServices
from headrace.broker.statistics_records import StatisticsRecords
from headrace.broker.withheld.message_services import MessageServices

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.exactly_once.producer_services import ProducerLimits


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of a broker.

    Attributes:
        groups: What consumer groups need, and the statistics of all protocols.
        messages: What holds messages back or writes them again.
        producers: What tells a batch that was sent before from a new one.
        records: Who writes down what was counted; None when nobody does.
    """

    broker: Broker
    groups: GroupServices
    messages: MessageServices
    producers: ProducerServices
    records: StatisticsRecords | None

    @classmethod
    def open(cls, broker: Broker, *, cluster: str, utc_offset_ms: int, limits: ProducerLimits) -> BrokerParts:
        """Load what the parts know from earlier runs, and have the broker's clock drive them.

        Args:
            cluster: Key of the whole broker's statistics.
            utc_offset_ms: What to add to UTC for local time, whose midnight parts the daily totals.

        Raises:
            SideFileError: a file is damaged, and so is its copy; nothing was changed.
            OSError: one cannot be read.
        """
        groups = GroupServices(broker, broker_key=cluster, utc_offset_ms=utc_offset_ms)
        messages = MessageServices(broker, groups)
        producers = ProducerServices(broker, limits)
        records = None
        if broker.settings.statistics_records:
            records = StatisticsRecords(broker, groups, messages.letters)
            broker.add_tickers(records)
        return cls(broker, groups, messages, producers, records)
