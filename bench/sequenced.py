"""Rows a second through SEND_SEQUENCED: ``python -m bench.sequenced [--semantics sequence|key|stage] [--requests N]``.

One connection keeps 8 requests of about 1 MiB in flight to a broker of its own. Reported are rows a second and what the
broker's process spent on a row. The rows are made before, but for the header; the client still shares the machine.
"""

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.remoting.codes import RequestCode

BODY_BYTES = 200
REQUEST_BYTES = 1 << 20
IN_FLIGHT = 8


def encode_row(key: int | None) -> bytes:
    """Return one message of a batch."""
    properties = b"" if key is None else b"UNIQ_KEY\x01%032d\x02" % key
    total = 22 + BODY_BYTES + len(properties)
    body = b"x" * BODY_BYTES
    return struct.pack(">iiiii", total, 0, 0, 0, BODY_BYTES) + body + struct.pack(">h", len(properties)) + properties


def encode_request(semantics: str, number: int, rows: int, body: bytes) -> bytes:
    """Return a frame."""
    ext = {"producerGroup": "P", "topic": "T", "queueId": 0, "semantics": semantics, "txn": "q", "epoch": 0}
    ext |= {"partition": 0, "attempt": 0, "seq": number * rows, "count": rows, "bornTimestamp": 1_700_000_000_000}
    texts = {name: str(value) for name, value in ext.items()}
    header = json.dumps(
        {"code": int(RequestCode.SEND_SEQUENCED), "version": 409, "opaque": number, "flag": 0, "extFields": texts}
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


@contextmanager
def serve(folder: Path, durability: str) -> Iterator[tuple[int, str]]:
    """Run a broker; yield its pid and address."""
    ready = folder / "ready.json"
    program = str(Path(sys.executable).with_name("headrace"))
    command = [program, "serve", "--data-dir", str(folder / "store"), "--free-ports", "--ready-file", str(ready)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--store.durability", durability], stdout=log, stderr=log)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.02)
        content = json.loads(ready.read_text())
        yield content["pid"], content["listeners"]["remoting"]
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """Return what a process spent, in user and system mode."""
    columns = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


def measure(pid: int, address: str, semantics: str, requests: int) -> dict[str, float | int | str]:
    """Send the requests; return the figures."""
    is_keyed = semantics == "key"
    rows = REQUEST_BYTES // len(encode_row(0 if is_keyed else None))
    bodies = [b"".join(encode_row(number * rows + row) for row in range(rows)) for number in range(requests * is_keyed)]
    same = encode_row(None) * rows
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:

        def take_answer() -> None:
            total, header = struct.unpack(">ii", answers.read(8))
            answer = json.loads(answers.read(header))
            answers.read(total - 4 - header)
            if answer["code"] or answer["extFields"]["stored"] != str(rows):
                raise SystemExit(f"refused: {answer}")

        spent, began = cpu_seconds(pid), time.perf_counter()
        for number in range(requests):
            body = bodies[number] if is_keyed else same
            connection.sendall(encode_request(semantics, number, rows, body))
            if number >= IN_FLIGHT - 1:
                take_answer()
        for _ in range(min(requests, IN_FLIGHT - 1)):
            take_answer()
        seconds, spent = time.perf_counter() - began, cpu_seconds(pid) - spent
    total = rows * requests
    return {
        "semantics": semantics,
        "rows": total,
        "rows_per_s": round(total / seconds),
        "broker_cpu_us_per_row": round(spent / total * 1e6, 3),
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--semantics", default="sequence", choices=("sequence", "key", "stage"))
    parser.add_argument("--durability", default="async", choices=("async", "fsync"))
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--folder", type=Path, help="where the store is made; a temporary folder by default")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        serve(Path(folder), options.durability) as (pid, address),
    ):
        figures = measure(pid, address, options.semantics, options.requests)
    print(json.dumps({"durability": options.durability, "load_average": os.getloadavg()[0], **figures}))


if __name__ == "__main__":
    main()
