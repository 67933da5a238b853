"""A consumer of gnsq that knows a nsqlookupd only: prints each message, ends after so many.

    python gnsq_consumer.py HOST:PORT TOPIC CHANNEL COUNT

It runs apart because gevent wants a process of its own.
"""

from __future__ import annotations

import sys

import gnsq


def main(lookupd: str, topic: str, channel: str, count: str) -> None:
    consumer = gnsq.Consumer(
        topic, channel, lookupd_http_addresses=[lookupd], lookupd_poll_interval=1, max_in_flight=10
    )
    left = int(count)

    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        nonlocal left
        left -= 1
        sys.stdout.write(message.body.decode() + "\n")
        sys.stdout.flush()
        if left == 0:
            message.finish()
            consumer.close()

    consumer.on_message.connect(handle, weak=False)
    consumer.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
