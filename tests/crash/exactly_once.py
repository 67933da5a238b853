"""``make crash``, third part: kill -9 a broker under producers that send every batch until it is acknowledged.

    python -m tests.crash.exactly_once --cycles 40 --seed 1 --durability fsync

Producers that number their messages, producers with keys, and queries that stage and commit send from threads; when
the broker is gone they wait for it and send again whatever was not acknowledged, some of what was, and, as a Spark task
that is run again does, sometimes everything. At the end every message must be there exactly once.

Ref: spark.md 3.5, 5.4.6.
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tests.crash.broker_process import BrokerProcess
from tests.crash.rocketmq_client import PULL, Frame, decode_frame, decode_records, encode_batch, encode_frame

SEND_SEQUENCED, END_BATCH = 27004, 27005
QUEUES = 3
CHECK_EVERY = 10
_WINDOW = 4
_PATIENCE_S = 60.0

Rows = list[tuple[bytes, Mapping[str, str]]]


class BrokerGoneError(Exception):
    """The connection ended: what became of the requests under way is not known."""


class Client:
    """A connection that is made anew when the broker is back."""

    def __init__(self, broker: Address) -> None:
        self._broker = broker
        self._socket: socket.socket | None = None
        self._opaque = 0

    def ask(self, code: int, ext: Mapping[str, Any], body: bytes = b"") -> Frame:
        """Return the response to one request."""
        return self.ask_all([(code, ext, body)])[0]

    def ask_all(self, requests: Sequence[tuple[int, Mapping[str, Any], bytes]]) -> list[Frame]:
        """Send requests at once; return their responses, in the order of the requests.

        That of a request which makes a topic comes later than those behind it.

        Raises:
            BrokerGoneError: the connection ended before the last one.
        """
        try:
            made = self._connect()
            for code, ext, body in requests:
                self._opaque += 1
                made.sendall(encode_frame(code, self._opaque, {name: str(value) for name, value in ext.items()}, body))
            first = self._opaque - len(requests) + 1
            frames = {frame.opaque: frame for frame in (self._read(made) for _ in requests)}
        except OSError as error:
            self.close()
            raise BrokerGoneError from error
        return [frames[opaque] for opaque in range(first, self._opaque + 1)]

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._broker.get(), timeout=_PATIENCE_S)
        return self._socket

    @staticmethod
    def _read(made: socket.socket) -> Frame:
        size = int.from_bytes(_read_exactly(made, 4), "big")
        return decode_frame(_read_exactly(made, size))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _read_exactly(made: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = made.recv(size - len(parts))
        if not part:
            raise ConnectionResetError
        parts += part
    return bytes(parts)


class Address:
    """Where the broker listens now; it is another port after each start."""

    def __init__(self) -> None:
        self._is_up = threading.Event()
        self._address = ("", 0)

    def set(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._is_up.set()

    def clear(self) -> None:
        self._is_up.clear()

    def get(self) -> tuple[str, int]:
        if not self._is_up.wait(_PATIENCE_S):
            raise ConnectionRefusedError
        return self._address


@dataclass
class Ledger:
    """What must be there in the end, and what went wrong on the way."""

    expected: Counter[bytes] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    replays: int = 0
    duplicates: int = 0
    batches: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def owe(self, bodies: Sequence[bytes]) -> None:
        with self.lock:
            self.expected.update(bodies)


class Producer(threading.Thread):
    """One producer: finishes epoch after epoch until it is told to stop."""

    def __init__(self, name: str, broker: Address, ledger: Ledger, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.client = Client(broker)
        self.ledger = ledger
        self.random = random.Random(seed)  # choices of a test
        self.is_stopping = threading.Event()

    def run(self) -> None:
        epoch = 0
        try:
            while not self.is_stopping.is_set():
                self.finish_epoch(epoch)
                epoch += self.random.choice((1, 1, 1, 2))
        except Exception as error:  # noqa: BLE001  # the end of a thread: the run reports it
            self.ledger.complaints.append(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self.client.close()

    def finish_epoch(self, epoch: int) -> None:
        """Have everything of one epoch acknowledged."""
        raise NotImplementedError

    def request(self, semantics: str, rows: Rows, **more: object) -> tuple[int, Mapping[str, Any], bytes]:
        """Return the request of one batch."""
        ext: dict[str, object] = {"producerGroup": "P", "topic": "T", "semantics": semantics, "txn": self.name}
        ext |= {"partition": 0, "attempt": 0, "seq": 0, "count": len(rows), "bornTimestamp": 1_700_000_000_000}
        ext |= {"sysFlag": 0, "defaultTopicQueueNums": QUEUES, **more}
        return SEND_SEQUENCED, ext, encode_batch(rows)

    def send(self, requests: Sequence[tuple[int, Mapping[str, Any], bytes]]) -> None:
        """Have requests acknowledged.

        Raises:
            BrokerGoneError: it is not known which are.
        """
        for frame in self.client.ask_all(requests):
            if frame.code:
                raise AssertionError(f"refused with {frame.code}: {frame.remark}")
            with self.ledger.lock:
                self.ledger.batches += 1
                self.ledger.duplicates += int(frame.ext["duplicates"])

    def gone(self) -> None:
        """The broker went away; everybody does as if it were news."""
        with self.ledger.lock:
            self.ledger.replays += 1


class NumberedProducer(Producer):
    """Numbers its messages; sends from where it was acknowledged, from a little before, or from the beginning."""

    def finish_epoch(self, epoch: int) -> None:
        queue_id = self.random.randrange(QUEUES)
        bodies = [b"%s/%d/%d" % (self.name.encode(), epoch, seq) for seq in range(self.random.randint(1, 3_000))]
        acknowledged = 0
        at = 0
        while acknowledged < len(bodies):
            requests = []
            end = at
            for _ in range(_WINDOW):
                rows: Rows = [(body, {"TAGS": "s"}) for body in bodies[end : end + self.random.randint(1, 400)]]
                if rows:
                    requests.append(self.request("sequence", rows, epoch=epoch, queueId=queue_id, seq=end))
                    end += len(rows)
            try:
                self.send(requests)
                acknowledged = max(acknowledged, end)
                at = end
            except BrokerGoneError:
                self.gone()
                at = self.random.choice((acknowledged, max(0, acknowledged - 50), 0))
        self.ledger.owe(bodies)


class KeyedProducer(Producer):
    """Gives each message a key; sends an epoch in another order each time, and to other queues."""

    def finish_epoch(self, epoch: int) -> None:
        names = [f"{self.name}/{epoch}/{number}" for number in range(self.random.randint(1, 2_000))]
        left = list(names)
        while left:
            self.random.shuffle(left)
            batch = left[:300] + left[:5]
            rows: Rows = [(name.encode(), {"UNIQ_KEY": name}) for name in batch]
            try:
                self.send([self.request("key", rows, epoch=epoch, queueId=self.random.randrange(QUEUES))])
                left = left[300:]
            except BrokerGoneError:
                self.gone()
                if self.random.random() < 0.5:
                    left = list(names)
        self.ledger.owe([name.encode() for name in names])


class StagingProducer(Producer):
    """Stages what the tasks of an epoch make, some of them tried more than once, and commits it."""

    def finish_epoch(self, epoch: int) -> None:
        chosen = [self._stage(epoch, partition) for partition in range(self.random.randint(0, 3))]
        body = json.dumps(
            {
                "chosen": [
                    {"partition": at, "attempt": attempt, "count": len(made)}
                    for at, (attempt, made) in enumerate(chosen)
                ]
            }
        )
        ext = {"producerGroup": "P", "txn": self.name, "epoch": epoch, "decision": "commit"}
        while True:
            try:
                frame = self.client.ask(END_BATCH, ext, body.encode())
            except BrokerGoneError:
                self.gone()
                continue
            if not frame.code:
                break
            if "the broker stops" not in frame.remark:
                raise AssertionError(f"commit refused with {frame.code}: {frame.remark}")
        self.ledger.owe([body for _, bodies in chosen for body in bodies])

    def _stage(self, epoch: int, partition: int) -> tuple[int, list[bytes]]:
        """Run a task until one of its attempts is through; return which, and what it staged."""
        attempt = 0
        while True:
            attempt += 1
            bodies: list[bytes] = []
            is_lost = self.random.random() < 0.1
            try:
                for number in range(self.random.randint(0, 8)):
                    for queue_id in range(QUEUES):
                        name = b"%s/%d/%d/%d/%d" % (self.name.encode(), epoch, partition, attempt, queue_id)
                        rows: Rows = [(b"%s/%d" % (name, number * 100 + row), {}) for row in range(100)]
                        ids = {"epoch": epoch, "partition": partition, "attempt": attempt}
                        more = {"queueId": queue_id, "seq": number * 100}
                        self._send_until_known([self.request("stage", rows, **ids, **more)])
                        bodies += [body for body, _ in rows]
            except BrokerGoneError:
                self.gone()
                continue
            if not is_lost:
                return attempt, bodies

    def _send_until_known(self, requests: Sequence[tuple[int, Mapping[str, Any], bytes]]) -> None:
        """Send a request again within the same attempt, or give the attempt up."""
        try:
            self.send(requests)
        except BrokerGoneError:
            if self.random.random() < 0.5:
                raise
            self.gone()
            self.send(requests)


@dataclass
class Result:
    """What a run found."""

    kills: int
    messages: int
    batches: int
    replays: int
    duplicates: int
    complaints: list[str]
    seconds: float


class ExactlyOnceRun:
    """One store under producers of every kind that is killed again and again."""

    def __init__(self, folder: Path, *, seed: int, durability: str = "fsync", segment_bytes: str = "4MiB") -> None:
        arguments = ("--store.durability", durability, "--store.segment-bytes", segment_bytes)
        self.broker = BrokerProcess(folder, arguments)
        self.ledger = Ledger()
        self.address = Address()
        self._random = random.Random(seed)
        kinds = (NumberedProducer, NumberedProducer, KeyedProducer, StagingProducer)
        self._producers = [
            kind(f"{kind.__name__}-{number}", self.address, self.ledger, f"{seed}/{number}")
            for number, kind in enumerate(kinds)
        ]

    def run(self, cycles: int, console: Console | None = None) -> Result:
        """Kill so often; then let everybody finish, and count."""
        began = time.monotonic()
        kills = 0
        try:
            self._start()
            for producer in self._producers:
                producer.start()
            for number in range(cycles):
                time.sleep(self._random.uniform(0.02, 1.0))
                self.address.clear()
                self.broker.kill()
                kills += 1
                if self._random.random() < 0.2:  # one that does not even get up
                    self.broker.spawn()
                    time.sleep(self._random.uniform(0.0, 0.5))
                    self.broker.kill()
                    kills += 1
                if number % CHECK_EVERY == CHECK_EVERY - 1:
                    self._check_store()
                self._start()
                if console is not None and number % 20 == 19:
                    console.print(f"{number + 1} of {cycles} cycles, complaints {len(self.ledger.complaints)}")
            for producer in self._producers:
                producer.is_stopping.set()
            for producer in self._producers:
                producer.join(_PATIENCE_S)
                if producer.is_alive():
                    self.ledger.complaints.append(f"{producer.name} does not come to an end")
            self._compare()
            self.address.clear()
            if self.broker.stop():
                self.ledger.complaints.append("SIGTERM: exit code is not 0")
            self._check_store()
            self._start()
            self._compare()
            self.ledger.complaints += self.broker.new_complaints()
        finally:
            self.address.clear()
            self.broker.kill()
        ledger = self.ledger
        seconds = time.monotonic() - began
        messages = sum(ledger.expected.values())
        return Result(kills, messages, ledger.batches, ledger.replays, ledger.duplicates, ledger.complaints, seconds)

    def _start(self) -> None:
        self.broker.start()
        self.ledger.complaints += self.broker.new_complaints()
        self.address.set(self.broker.listeners["remoting"])

    def _check_store(self) -> None:
        program = str(Path(sys.executable).with_name("headrace"))
        command = [program, "store", "check", "--json", str(self.broker.data_dir)]
        told = subprocess.run(command, capture_output=True, check=False, timeout=120)
        if told.returncode:
            self.ledger.complaints.append(
                f"store check: {told.returncode}: {(told.stdout + told.stderr).decode()[:800]}"
            )

    def _compare(self) -> None:
        """Hold what is there against what must be."""
        found: Counter[bytes] = Counter()
        client = Client(self.address)
        try:
            for queue_id in range(QUEUES):
                found.update(read_queue(client, queue_id))
        finally:
            client.close()
        missing, surplus = self.ledger.expected - found, found - self.ledger.expected
        for name, rows in (("lost", missing), ("there too often", surplus)):
            if rows:
                self.ledger.complaints.append(f"{sum(rows.values())} messages {name}, such as {list(rows)[:3]}")


def read_queue(client: Client, queue_id: int) -> list[bytes]:
    """Return the bodies of a whole queue."""
    bodies: list[bytes] = []
    offset = 0
    deadline = time.monotonic() + _PATIENCE_S
    ext = {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "maxMsgNums": 1_024, "sysFlag": 4}
    ext |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG"}
    while True:
        frame = client.ask(PULL, ext | {"queueOffset": offset})
        if frame.code == 0:
            bodies += [record.body for record in decode_records(frame.body)]
        offset = int(frame.ext["nextBeginOffset"])
        # What was just sent at level fsync becomes visible with its flush.
        if offset >= int(frame.ext["maxOffset"]):
            return bodies
        assert time.monotonic() < deadline, f"queue {queue_id} is not read to its end: {frame.remark}"


@click.command()
@click.option("--cycles", default=40, show_default=True, help="How often to kill.")
@click.option("--seed", default=1, show_default=True, help="Seed of all random choices.")
@click.option("--durability", default="fsync", show_default=True, type=click.Choice(["fsync", "async"]))
@click.option("--segment-bytes", default="4MiB", show_default=True, help="From 4MiB on zeros are written ahead.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work; a temporary folder by default.")
def main(cycles: int, seed: int, durability: str, segment_bytes: str, folder: Path | None) -> None:
    """Kill a broker under producers that replay, and count what is there."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    made = folder is None
    folder = folder or Path(tempfile.mkdtemp(prefix="headrace-exactly-once-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = ExactlyOnceRun(folder, seed=seed, durability=durability, segment_bytes=segment_bytes).run(cycles, console)
    for complaint in result.complaints[:40]:
        console.print(complaint, markup=False, highlight=False, soft_wrap=True)
    figures = {name: value for name, value in vars(result).items() if name != "complaints"}
    figures |= {"seconds": round(result.seconds, 1), "complaints": len(result.complaints)}
    console.print(json.dumps(figures, indent=1), markup=False)
    if result.complaints or not made:
        console.print(f"store and broker.log are in {folder}", markup=False)
    else:
        shutil.rmtree(folder)
    sys.exit(1 if result.complaints else 0)


if __name__ == "__main__":
    main()
