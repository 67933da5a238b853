"""Publishes what it reads, a line a message, by the RocketMQ protocol without a client of RocketMQ's.

``python -m demo.raw_writer REGISTRY TOPIC``, for machines with neither Go nor Java and Maven; otherwise as the programs
in ``demo/rocketgo`` and ``demo/rocketjava``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Final

from headrace.errors import ClientError
from headrace.remoting.blocking import MASTER, Cluster, Request
from headrace.remoting.codes import RequestCode, ResponseCode

GROUP: Final = "weather-stations"
BATCH_MESSAGES: Final = 50
RETRY_SECONDS: Final = 0.05


def read_batches() -> Iterator[list[bytes]]:
    """Yield the lines of standard input, as many at a time as are there."""
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), BATCH_MESSAGES):
            yield lines[start : start + BATCH_MESSAGES]


def request(topic: str, line: bytes) -> Request:
    """Return the request that sends a line "AIRPORT,...,HOUR": the airport is its tag, both are its key."""
    airport, hour = line.partition(b",")[0].decode(), line.rpartition(b",")[2].decode()
    ext = {
        "producerGroup": GROUP,
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": f"TAGS\x01{airport}\x02KEYS\x01{airport}|{hour}\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    return RequestCode.SEND_MESSAGE, ext, line


def send(cluster: Cluster, topic: str, lines: list[bytes]) -> int:
    """Send lines in their order; return how many were answered before the first that was not."""
    answered = 0
    try:
        (brokers,) = cluster.route(topic).brokers.values()
        requests = [request(topic, line) for line in lines]
        for response in cluster.client(brokers[MASTER]).call_many(requests, window=BATCH_MESSAGES):
            if response.code != ResponseCode.SUCCESS:
                break
            answered += 1
    except ClientError as error:
        sys.stderr.write(f"not answered: {error}\n")
    return answered


def main() -> None:
    """Run as the command says."""
    registry, topic = sys.argv[1:]
    answered = resent = 0
    with Cluster(registry, timeout_s=3.0) as cluster:
        for batch in read_batches():
            while batch:
                done = send(cluster, topic, batch)
                answered += done
                batch = batch[done:]
                if batch:
                    resent += len(batch)
                    time.sleep(RETRY_SECONDS)
                sys.stdout.write(f"{answered} {resent}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
