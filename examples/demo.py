"""Publish and consume with NSQ's own Python client, kill the broker without warning in between, and lose nothing.

make demo
"""

import asyncio
import json
import logging
import signal
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
    answer = await answered
    print(f"published {len(MESSAGES)} messages: {answer.decode()}")
    for connection in list(writer.conns.values()):
        connection.close()


async def consume(address: str, wanted: int) -> set[bytes]:
    """Finish as many different messages as wanted, one at a time."""
    finished: set[bytes] = set()
    done = asyncio.Event()

    def handle(message: nsq.Message) -> bool:
        if done.is_set():
            return False
        finished.add(message.body)
        print(f"  finished {message.body.decode()!r}, delivery {message.attempts}")
        if len(finished) == wanted:
            done.set()
        return True

    reader = nsq.Reader(TOPIC, CHANNEL, message_handler=handle, nsqd_tcp_addresses=[address], max_in_flight=1)
    await done.wait()
    reader.close()
    return finished


async def demo(folder: Path) -> None:
    """Publish, consume a part, kill the broker, consume the rest."""
    broker, address = start_broker(folder)
    try:
        await publish(address)
        before = await consume(address, 2)
        broker.send_signal(signal.SIGKILL)
        broker.wait()
        print(f"killed broker {broker.pid}")
        broker, address = start_broker(folder)
        after = await consume(address, len(MESSAGES) - len(before))
        while not before | after >= set(MESSAGES):  # what was finished just before the crash may come once more
            after |= await consume(address, 1)
        print(f"all {len(MESSAGES)} messages were finished, none was lost")
    finally:
        broker.terminate()
        broker.wait()


def main() -> None:
    """Run the demo in a folder that goes away."""
    logging.getLogger("nsq").setLevel(logging.CRITICAL)  # the client complains when its broker is killed
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        asyncio.run(asyncio.wait_for(demo(Path(folder)), DEADLINE_S * 2))


if __name__ == "__main__":
    main()
