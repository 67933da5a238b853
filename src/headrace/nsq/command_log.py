"""The lines of commands at log level ``debug``: what a client asked for, without bodies and secrets.

PUB, MPUB and DPUB are all ``publish``: the codec keeps what they bring, not which of them it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from headrace.nsq.codec import Auth, Cls, Identify, Rdy, Sub

if TYPE_CHECKING:
    from headrace.nsq.codec import Command
    from headrace.nsq.intake import Intake

MAX_IDENTIFY_BYTES: Final = 1024
"""Of an IDENTIFY's body in a line; clients send some hundred."""


def lines_of(intake: Intake) -> Iterator[str]:
    """Give a line for each publish, FIN, REQ and TOUCH, in the order in which they came."""
    # A settle's number is that of the publishes before it, so it comes before the publish of that number.
    lines = merge(_settle_lines(intake), enumerate(_publish_lines(intake)), key=itemgetter(0))
    return (line for _, line in lines)


def line_of(command: Command) -> str:
    """Return the line of any other command."""
    match command:
        case Sub():
            return f"SUB topic={command.topic} channel={command.channel}"
        case Rdy():
            return f"RDY count={command.count}"
        case Identify():
            rest = "..." if len(command.body) > MAX_IDENTIFY_BYTES else ""
            return f"IDENTIFY body={command.body[:MAX_IDENTIFY_BYTES]!r}{rest}"
        case Auth():
            return "AUTH"
        case Cls():
            return "CLS"


def _publish_lines(intake: Intake) -> Iterator[str]:
    index = 0
    while index < intake.publishes.count:
        topic, body, deliver_at_ms, messages = intake.published(index)
        size = len(body) + sum(len(intake.published(index + further)[1]) for further in range(1, messages))
        due = f" deliver_at_ms={deliver_at_ms}" if deliver_at_ms else ""
        yield f"publish topic={topic} messages={messages} bytes={size}{due}"
        index += messages


def _settle_lines(intake: Intake) -> Iterator[tuple[int, str]]:
    """Give each line with the number of publishes before it."""
    for index in range(len(intake.settles)):
        name, message_id, delay_ms, publishes = intake.settled(index)
        delay = f" delay_ms={delay_ms}" if name == "REQ" else ""
        yield publishes, f"{name} id={message_id:016x}{delay}"
