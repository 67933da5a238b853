"""Time what bulk readers get: ``python -m bench.readers --scratch DIR [--messages N] [--body BYTES]``.

One topic with four queues is filled in batches, then one blocking client on another core reads it all, by READ_LOG and
by READ_QUEUE (docs/protocols/extensions.md), several times; the best of them counts. The log is in the page cache. A
second client asks for an offset all the while: how long the slowest one took says how long the loop was held.
"""

import argparse
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.machine import Cores, describe_machine
from bench.servers import Headrace
from headrace.remoting.blocking import BlockingClient, Request, read_log_request, read_queue_request

TOPIC = "bench"
QUEUES = 4
BATCH = 1_000
LOG_CHUNK_BYTES = 4 << 20
QUEUE_SPAN = 8_192
WINDOW = 4
PING_INTERVAL_S = 0.002


def fill(client: BlockingClient, messages: int, body_bytes: int) -> None:
    """Send the messages in batches to each queue in turn."""
    body = b"x" * body_bytes
    batch = (struct.pack(">iiiii", 22 + body_bytes, 0, 0, 0, body_bytes) + body + struct.pack(">h", 0)) * BATCH

    def requests() -> Iterator[Request]:
        for number in range(messages // BATCH):
            ext = {"a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0"}
            yield 320, ext | {"g": "1", "h": "0", "i": "", "j": "0", "k": "false", "m": "true"}, batch

    for response in client.call_many(requests(), window=8):
        assert response.code == 0, response.remark


def state(client: BlockingClient) -> dict[str, dict[str, int]]:
    """Return the extent of the log and of the queues, once everything is durable."""
    while True:
        found = json.loads(client.call(27001, {}, json.dumps({"topics": [TOPIC], "log": True}).encode()).body)
        time.sleep(1)
        again = json.loads(client.call(27001, {}, json.dumps({"topics": [TOPIC], "log": True}).encode()).body)
        if again["log"]["max"] == found["log"]["max"]:
            queues = {queue_id: row["max"] for queue_id, row in found["topics"][TOPIC]["queues"].items()}
            return {"log": {**found["log"], "segment": found["segment_bytes"]}, "queues": queues}


def read_log(client: BlockingClient, end: int, segment_bytes: int) -> int:
    """Read the log once; return its bytes."""

    def requests() -> Iterator[Request]:
        offset = 0
        while offset < end:
            size = min(LOG_CHUNK_BYTES, end - offset, segment_bytes - offset % segment_bytes)
            yield read_log_request(offset, size)
            offset += size

    got = 0
    for response in client.call_many(requests(), window=WINDOW):
        assert response.code == 0, response.remark
        got += len(response.body)
    assert got == end, f"{got} of {end} bytes"
    return got


def read_queues(client: BlockingClient, ends: dict[str, int]) -> int:
    """Read every queue once; return the number of messages."""
    found = 0
    for queue_id, end in ends.items():
        spans = [(start, min(start + QUEUE_SPAN, end)) for start in range(0, end, QUEUE_SPAN)]
        while spans:
            requests = [read_queue_request(TOPIC, int(queue_id), start, stop, 8 << 20) for start, stop in spans]
            rest = []
            for (start, stop), response in zip(spans, client.call_many(requests, window=WINDOW), strict=True):
                assert response.code == 0, response.remark
                following = int(response.ext["nextOffset"])
                found += following - start
                if following < stop:
                    rest.append((following, stop))
            spans = rest
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pings:
    """Another client, which asks for an offset every few milliseconds."""

    def __init__(self, address: str) -> None:
        self.waits_ms: list[float] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, args=(address,))
        self._thread.start()

    def _run(self, address: str) -> None:
        with BlockingClient(address) as client:
            while not self._is_over:
                began = time.perf_counter()
                client.call(30, {"topic": TOPIC, "queueId": "0"})
                self.waits_ms.append((time.perf_counter() - began) * 1_000)
                time.sleep(PING_INTERVAL_S)

    def end(self) -> dict[str, float]:
        """Stop asking; return how long the answers took."""
        self._is_over = True
        self._thread.join()
        waits = sorted(self.waits_ms)
        return {"p50": round(waits[len(waits) // 2], 2), "p99": round(waits[len(waits) * 99 // 100], 2)}


def measure(server: Headrace, rounds: int, read: Callable[[BlockingClient], int]) -> tuple[float, float, int]:
    """Return seconds and the broker's processor seconds of the best round, and what it read."""
    best = (float("inf"), 0.0, 0)
    with BlockingClient(server.rocketmq_address) as client:
        for _ in range(rounds):
            began, used = time.perf_counter(), cpu_seconds(server.pid)
            got = read(client)
            best = min(best, (time.perf_counter() - began, cpu_seconds(server.pid) - used, got))
    return best


def main() -> None:
    """Print the figures as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True, help="a directory for the store")
    parser.add_argument("--messages", type=int, default=4_000_000, help="messages (default 4000000)")
    parser.add_argument("--body", type=int, default=100, help="bytes of each (default 100)")
    parser.add_argument("--rounds", type=int, default=5, help="times everything is read (default 5)")
    arguments = parser.parse_args()
    cores = Cores.available()
    figures: dict[str, object] = {"machine": describe_machine(arguments.scratch), "body_bytes": arguments.body}
    with Headrace(arguments.scratch, cores.server, durability="async") as server:
        os.sched_setaffinity(0, {cores.load})
        with BlockingClient(server.rocketmq_address) as client:
            fill(client, arguments.messages, arguments.body)
            extent = state(client)
        messages = sum(extent["queues"].values())
        end, segment_bytes = extent["log"]["max"], extent["log"]["segment"]
        for name, read in (
            ("read_log", lambda client: read_log(client, end, segment_bytes)),
            ("read_queue", lambda client: read_queues(client, extent["queues"])),
        ):
            seconds, used, got = measure(server, arguments.rounds, read)
            pings = Pings(server.rocketmq_address)
            measure(server, 1, read)
            figures[name] = {
                "mb_per_s": round((end if name == "read_queue" else got) / seconds / 1e6),
                "million_messages_per_s": round(messages / seconds / 1e6, 2),
                "server_cpu_us_per_message": round(used / messages * 1e6, 3),
                "other_client_ms": pings.end(),
            }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
