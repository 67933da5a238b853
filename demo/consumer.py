"""A consumer process: gnsq's Consumer on one channel, which notes every delivery in a file and finishes the message.

``python -m demo.consumer ADDRESS TOPIC CHANNEL FILE``. A line of FILE is ``ATTEMPTS ID BODY``. The note is made before
the message is finished, so whatever the broker holds for finished is in the file.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import BinaryIO, Final

import gevent
import gnsq

MAX_IN_FLIGHT: Final = 1000
FLUSH_SECONDS: Final = 0.1


def consume(address: str, topic: str, channel: str, notes: BinaryIO) -> None:
    """Consume until SIGTERM."""

    def note(_: object, message: gnsq.Message) -> None:
        notes.write(b"%d %s %s\n" % (message.attempts, message.id, message.body))

    consumer = gnsq.Consumer(
        topic,
        channel,
        nsqd_tcp_addresses=[address],
        message_handler=note,
        max_in_flight=MAX_IN_FLIGHT,
        max_tries=0,
        max_backoff_duration=1,
    )
    gevent.signal_handler(signal.SIGTERM, consumer.close)
    consumer.start(block=False)
    while consumer.is_running:
        gevent.sleep(FLUSH_SECONDS)
        notes.flush()


def main() -> None:
    """Run as the command says."""
    address, topic, channel, file = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with Path(file).open("wb", buffering=1 << 20) as notes:
        consume(address, topic, channel, notes)


if __name__ == "__main__":
    main()
