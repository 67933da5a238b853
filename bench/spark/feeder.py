"""Send a message every some ms, its body beginning with the time in ns: ``python -m bench.spark.feeder``.

Runs under the Python of either contestant, until it is ended. One message is under way at a time, so that the time in
it is when it was handed over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

# Waiting to be ended longer than any case takes: a feeder whose starter died must not go on for ever.
LIMIT_S = 600.0


def main() -> int:
    """Send until LIMIT_S have passed."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.feeder", description=__doc__)
    parser.add_argument("broker", choices=("headrace", "kafka"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--body", type=int, default=64, help="bytes of a body")
    parser.add_argument("--interval-ms", type=float, default=20.0)
    arguments = parser.parse_args()
    make = _headrace_sender if arguments.broker == "headrace" else _kafka_sender
    send = make(arguments.address, arguments.topic)
    filler = b" " * max(0, arguments.body - 19)
    start = time.monotonic()
    number = 0
    while (now := time.monotonic()) < start + LIMIT_S:
        # On a grid, so that a slow answer does not thin the messages out.
        due = start + number * arguments.interval_ms / 1000
        if due > now:
            time.sleep(due - now)
        send(b"%d" % time.time_ns() + filler)
        number += 1
    return 0


def _headrace_sender(address: str, topic: str) -> Callable[[bytes], None]:
    from bench.spark.data import send_fields  # noqa: PLC0415  # Kafka's Python lacks what these need
    from headrace.remoting.blocking import BlockingClient  # noqa: PLC0415
    from headrace.remoting.codes import RequestCode  # noqa: PLC0415

    client = BlockingClient(address)
    queues = 0

    def send(body: bytes) -> None:
        nonlocal queues
        queues += 1
        fields = {**send_fields(queues % 4, is_batch=False), "b": topic}
        answer = client.call(int(RequestCode.SEND_MESSAGE_V2), fields, body)
        if answer.code != 0:
            sys.exit(f"the broker answered {answer.code}: {answer.remark}")

    return send


def _kafka_sender(address: str, topic: str) -> Callable[[bytes], None]:
    from kafka import KafkaProducer  # type: ignore[import-not-found]  # noqa: PLC0415  # only Kafka's Python has it

    producer: Any = KafkaProducer(bootstrap_servers=address, acks=1, linger_ms=0)

    def send(body: bytes) -> None:
        producer.send(topic, body).get(timeout=30)

    return send


if __name__ == "__main__":
    sys.exit(main())
