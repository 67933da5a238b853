"""Messages for the tests of packaged jobs: sent to a real broker over the RocketMQ protocol, pipelined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.remoting.blocking import BlockingClient
from headrace.remoting.codes import RequestCode
from headrace.spark.jobs import manifest

BORN_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Sent:
    """One message to send."""

    topic: str
    body: bytes
    queue_id: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0


def orders(count: int, *, topic: str = "orders", queues: int = 4, first: int = 0) -> list[Sent]:
    """Return messages with tags, keys and unique keys, spread over the queues of a topic."""
    return [
        Sent(
            topic,
            f"{topic} {number}".encode(),
            number % queues,
            {"TAGS": f"t{number % 3}", "KEYS": f"k{number} all", "UNIQ_KEY": f"{topic}-{number:08d}"},
            number % 7,
        )
        for number in range(first, first + count)
    ]


def send(address: str, messages: Iterable[Sent]) -> None:
    """Send to the broker at ``address``; every one must be acknowledged."""
    requests = []
    for message in messages:
        properties = "".join(f"{name}\x01{value}\x02" for name, value in message.properties.items())
        ext = {
            "producerGroup": "P", "topic": message.topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": str(message.queue_id), "sysFlag": str(message.sys_flag), "bornTimestamp": str(BORN_MS),
            "flag": str(message.flag), "properties": properties, "reconsumeTimes": "0",
        }  # fmt: skip
        requests.append((int(RequestCode.SEND_MESSAGE), ext, message.body))
    with BlockingClient(address) as client:
        for reply in client.call_many(requests, window=64):
            assert reply.code == 0, (reply.code, reply.remark)


def archived(folder: Path) -> list[dict[str, Any]]:
    """Return every row of an archive, from the files that its manifest lists, in their order."""
    found = manifest.load(folder)
    return [row for file in found.files for row in pq.ParquetFile(found.locate(file)).read().to_pylist()]


def contents(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int, bytes]]:
    """Return (topic, queue id, queue offset, body) of each row, sorted: a multiset to compare."""
    return sorted((row["topic"], row["queue_id"], row["queue_offset"], row["body"]) for row in rows)


def flip_page_byte(path: Path, column: str) -> None:
    """Change one byte of a column's data in a Parquet file so that whoever trusts the file reads other values.

    Raises:
        AssertionError: no such byte was found.
    """
    raw = path.read_bytes()
    rows = pq.ParquetFile(path).read()
    group = pq.ParquetFile(path).metadata.row_group(0)
    (chunk,) = (
        found for found in map(group.column, range(group.num_columns)) if found.path_in_schema.split(".")[0] == column
    )
    for at in range(chunk.data_page_offset + chunk.total_compressed_size - 1, chunk.data_page_offset, -1):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        try:
            changed = pq.ParquetFile(path).read()
        except (pa.ArrowException, OSError):
            continue
        if changed.num_rows == rows.num_rows and not changed.column(column).equals(rows.column(column)):
            return
    raise AssertionError(f"{path}: no byte of {column} changes its values")
