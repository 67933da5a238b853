"""Publish and consume with NSQ's own Python client, kill the broker without warning in between, and lose nothing.

    pip install headrace pynsq==0.9.1
    python examples/demo.py
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nsq

TOPIC, CHANNEL = "orders", "billing"
MESSAGES = [f"order {number}".encode() for number in range(1, 6)]
DEADLINE_S = 30.0


def start_broker(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a broker on free ports; return it and its NSQ address once it accepts connections."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    program = Path(sys.executable).with_name("headrace")
    where = [f"--data-dir={folder / 'store'}", "--free-ports", f"--ready-file={ready}"]
    broker = subprocess.Popen([program, "serve", *where, "--log.level=warning"])
    deadline = time.monotonic() + DEADLINE_S
    while not ready.exists():
        if broker.poll() is not None or time.monotonic() > deadline:
            broker.kill()
            raise SystemExit("the broker did not start")
        time.sleep(0.02)
    address: str = json.loads(ready.read_text())["listeners"]["nsq_tcp"]
    print(f"broker {broker.pid} serves NSQ clients on {address}")
    return broker, address


async def publish(address: str) -> None:
    """Publish every message at once; the broker answers when they are on the disk."""
    writer = nsq.Writer([address])
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    while not writer.conns:  # noqa: ASYNC110  # pynsq has no event for it
        await asyncio.sleep(0.02)
    writer.mpub(TOPIC, MESSAGES, callback=lambda _, data: answered.set_result(data))
    answer = await asyncio.wait_for(answered, DEADLINE_S)
    print(f"published {len(MESSAGES)} messages: {answer.decode()}")


async def consume(address: str, finished: set[bytes], wanted: int) -> None:
    """Finish messages, one at a time, until as many different ones are in ``finished`` as wanted."""
    enough = asyncio.Event()

    def handle(message: nsq.Message) -> bool:
        finished.add(message.body)
        print(f"  finished {message.body.decode()!r}, delivery {message.attempts}")
        if len(finished) == wanted:
            enough.set()
        return True

    nsq.Reader(TOPIC, CHANNEL, message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=1)
    await asyncio.wait_for(enough.wait(), DEADLINE_S)


def demo(folder: Path) -> None:
    """Publish, consume a part, kill the broker, consume the rest.

    Each step has an event loop of its own, so that the client of one step does not look for the killed broker in the
    next.
    """
    finished: set[bytes] = set()
    broker, address = start_broker(folder)
    try:
        asyncio.run(publish(address))
        asyncio.run(consume(address, finished, wanted=2))
        broker.kill()
        broker.wait()
        print(f"killed broker {broker.pid}; what was finished a moment before may be delivered again")
        broker, address = start_broker(folder)
        asyncio.run(consume(address, finished, wanted=len(MESSAGES)))
        print(f"all {len(MESSAGES)} messages were finished, none was lost")
    finally:
        broker.terminate()
        broker.wait()


def main() -> None:
    """Run the demo in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        demo(Path(folder))


if __name__ == "__main__":
    main()
