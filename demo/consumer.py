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
LOOK_SECONDS: Final = 0.1
PATIENCE_LOOKS: Final = 15


class NotingConsumer:
    """Consumes until ``stop``.

    gnsq connects anew by itself, but in 1.0.2 its greenlet that sends RDY dies when it meets a connection that is just
    being made, and then nothing more comes. So a consumer that has had no window for a while is replaced by a new one,
    as whoever supervises such a process would do.
    """

    def __init__(self, address: str, topic: str, channel: str, notes: BinaryIO) -> None:
        self._address, self._topic, self._channel = address, topic, channel
        self._notes = notes
        self._stopping = False

    def run(self) -> None:
        """Consume."""
        while not self._stopping:
            consumer = self._make()
            consumer.start(block=False)
            self._watch(consumer)
            consumer.close()

    def stop(self) -> None:
        """Have ``run`` return soon."""
        self._stopping = True

    def _make(self) -> gnsq.Consumer:
        return gnsq.Consumer(
            self._topic,
            self._channel,
            nsqd_tcp_addresses=[self._address],
            message_handler=self._note,
            max_in_flight=MAX_IN_FLIGHT,
            max_tries=0,
            max_backoff_duration=1,
            low_ready_idle_timeout=3600,
        )

    def _watch(self, consumer: gnsq.Consumer) -> None:
        """Return when the consumer has had no window for a while, or when it is time to stop."""
        # Looks, not seconds: while messages pour in, gnsq's reading lets other greenlets run only now and then.
        looks_without = 0
        while not self._stopping and looks_without < PATIENCE_LOOKS:
            looks_without = 0 if consumer.total_ready_count else looks_without + 1
            gevent.sleep(LOOK_SECONDS)
            self._notes.flush()

    def _note(self, _: object, message: gnsq.Message) -> None:
        self._notes.write(b"%d %s %s\n" % (message.attempts, message.id, message.body))


def main() -> None:
    """Run as the command says."""
    address, topic, channel, file = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    with Path(file).open("wb", buffering=1 << 20) as notes:
        consumer = NotingConsumer(address, topic, channel, notes)
        gevent.signal_handler(signal.SIGTERM, consumer.stop)
        consumer.run()


if __name__ == "__main__":
    main()
