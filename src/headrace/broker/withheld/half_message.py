"""Half messages: what may become one, and the properties that say what one is.

A half message is the message of a transaction while nobody may see it. It stands in an internal topic; its properties
name the topic and queue it is meant for, and its newer copies the first of them and how often its producer was asked.
``Transactions`` writes and decides them. Ref: remoting.md 3.9; docs/formats/transactions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.broker.message import REAL_QUEUE, REAL_TOPIC
from headrace.broker.withheld.schedule import DELAY_LEVEL, level_of
from headrace.broker.withheld.timed import DELAY_MS, DELAY_SECONDS, DELIVER_AT, timer_number
from headrace.errors import InvalidDelayError, MessageTooLargeError
from headrace.format import record
from headrace.format.names import HALF_TOPIC, MAX_QUEUES, MAX_TOPIC_BYTES
from headrace.format.record import SYS_TRANSACTION

if TYPE_CHECKING:
    from headrace.broker.copies import RecordCopy
    from headrace.broker.message import Message
    from headrace.settings import BrokerSettings

CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"

MAX_COPY_BYTES: Final = len(record.encode_properties({CHECK_TIMES: "9" * 5, FIRST_OFFSET: "9" * 19}))
"""What the properties of a newer copy may have more than those of its first one."""

_BLANK_BYTES: Final = 8
_MAX_BYTES_AROUND: Final = len(record.encode(b"", b"t" * MAX_TOPIC_BYTES, born_host_v6=bytes(20))) + 12
"""Of a record between two IPv6 hosts, its checksum among them."""
_CHECKSUM_BYTES: Final = 20
_MAX_PROPERTIES_BYTES: Final = 32_767
_MAX_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class HalfLimits:
    """How large a half message may be, so that there is room for all of its copies, whatever their topic."""

    properties_bytes: int
    message_bytes: int
    """Of properties and body."""

    @classmethod
    def of(cls, segment_bytes: int) -> HalfLimits:
        """Return the limits in a log with segments of this many bytes."""
        return cls(
            _MAX_PROPERTIES_BYTES - _CHECKSUM_BYTES - MAX_COPY_BYTES,
            segment_bytes - _BLANK_BYTES - _MAX_BYTES_AROUND - MAX_COPY_BYTES,
        )

    def require_room(self, half: Message) -> None:
        """Refuse a half message that is too large.

        Raises:
            MessageTooLargeError: it is above one of the limits.
        """
        try:
            properties = len(record.encode_properties(half.properties))
        except ValueError:
            return  # refused when it is appended
        for what, size, most in (
            ("half message's properties", properties, self.properties_bytes),
            ("half message's properties and body", properties + len(half.body), self.message_bytes),
        ):
            if size > most:
                raise MessageTooLargeError(what, size, most)


def make_half(message: Message) -> Message:
    """Return a message as a half message."""
    # Only copies that the broker makes have these two: a producer's would name another's transaction.
    half = message.diverted(HALF_TOPIC, 0, **{FIRST_OFFSET: None, CHECK_TIMES: None})
    half.sys_flag &= ~SYS_TRANSACTION
    return half


def real_place(half: RecordCopy) -> tuple[str, int]:
    """Return the topic and queue id that a half message is meant for; its own where its properties do not say."""
    topic = half.property(REAL_TOPIC.encode())
    queue_id = number_or(half.property(REAL_QUEUE.encode()), MAX_QUEUES)
    return (topic, queue_id) if topic and queue_id < MAX_QUEUES else (half.topic, half.queue_id)


def require_undelayed(message: Message, now_ms: int) -> None:
    """Refuse a message that is delayed: it would be delivered with its commit, before its time.

    Raises:
        InvalidDelayError: it is delayed, or by what is no number, which is refused of any other message too.
    """
    properties = message.properties
    delays = [DELAY_LEVEL] if level_of(properties) else []
    for name, least in ((DELIVER_AT, now_ms + 1), (DELAY_SECONDS, 1), (DELAY_MS, 1)):
        number = timer_number(properties.get(name) or "0")
        if number is None or number >= least:
            delays.append(name)
    if delays:
        raise InvalidDelayError(f"a transactional message cannot be delayed (property {delays[0]})")


def immunity_ms(seconds_text: str | None, settings: BrokerSettings) -> int:
    """Return how old a half message must be before its producer is asked; never more than it may become.

    Args:
        seconds_text: Its property IMMUNITY_SECONDS.
    """
    seconds = number_or(seconds_text, -1)
    return min(seconds * 1000, settings.transaction_keep_ms) if seconds >= 0 else settings.transaction_timeout_ms


def number_or(text: str | None, default: int) -> int:
    """Return the number that a text of the log says, ``default`` where it is none."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else default
