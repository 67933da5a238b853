"""Phases: brokers with data of their own, and the steps that are measured on them.

A step belongs to a session of Headrace or of Kafka. The runner opens one of each, warms up the steps of a case, and
then takes their samples in turn.
"""

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.metrics import Sample
from bench.servers import Headrace, Server
from bench.spark.ceiling import NAME as CEILING
from bench.spark.ceiling import write_batch
from bench.spark.data import QUEUES, SHAPES, TOPIC, Shape, messages_for, send_messages
from bench.spark.kafka import Kafka
from bench.spark.session import Session
from bench.spark.steps import ArchiveStep, DiskStep, LatencyStep, ParquetStep, ScanStep, SinkStep, Source, Step
from bench.spark.tree import disk_bytes
from headrace.spark.jobs.archive import DEFAULT_COLUMNS
from headrace.spark.scan import ServersSource, StoreSource, plan_log, read_split

NARROW = ("topic", "tags", "keys", "queue_id", "queue_offset", "log_offset", "born_ts", "store_ts")
WIDE = (*NARROW, "body", "properties")
VALUE = ("body",)
SCHEMAS = {"narrow": NARROW, "wide": WIDE, "value": VALUE}
# The same of Kafka's columns; its source reads all of them in any case and drops what is not selected.
KAFKA_SCHEMAS = {
    "narrow": ("topic", "partition", "offset", "timestamp", "key"),
    "wide": ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    "value": ("value",),
}
# What who tunes a Kafka producer for throughput sets; Spark's own are 16 KiB and none.
KAFKA_BATCHES = {"kafka.batch.size": "131072", "kafka.linger.ms": "10"}
DURABLE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Stage:
    """What the phases of a run share. ``cores`` are all that there are, as taskset writes them: nothing is pinned."""

    scratch: Path
    cores: str
    contestants: frozenset[str]
    cases: frozenset[str]
    log_bytes: int
    sink_rows: int
    latency_s: float
    driver_memory: str

    @property
    def with_kafka(self) -> bool:
        """Whether Kafka's broker is needed."""
        return any(name.startswith("kafka") for name in self.contestants)

    def wants(self, case: str, contestant: str) -> bool:
        """Whether a sample of it was asked for."""
        return case in self.cases and contestant in self.contestants


class Phase(ABC):
    """Brokers with data, and what is measured on them. ``close`` stops and removes everything."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._open = ExitStack()

    def __enter__(self) -> "Phase":
        try:
            self._set_up()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @abstractmethod
    def _set_up(self) -> None:
        """Start what the phase needs."""

    def prepare(self, session: Session) -> None:  # noqa: B027  # most phases need nothing
        """Do what needs a session before its first step; every new session comes by."""

    @abstractmethod
    def steps(self) -> Sequence[Step]:
        """Return the steps that were asked for, cases in order."""

    @property
    def kinds(self) -> set[str]:
        """The kinds of session that the contestants asked for need."""
        return {step.session for step in self.steps()} | ({"kafka"} if self.stage.with_kafka else set())

    def _wanted(self, steps: Sequence[Step]) -> list[Step]:
        return [step for step in steps if self.stage.wants(step.case, step.contestant)]

    def _headrace(self, durability: str) -> Headrace:
        return self._open.enter_context(Headrace(self.stage.scratch, self.stage.cores, durability=durability))

    def _kafka(self) -> Kafka:
        return self._open.enter_context(Kafka(self.stage.scratch, self.stage.cores, partitions=QUEUES))

    def _folder(self, name: str) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.stage.scratch))
        self._open.callback(shutil.rmtree, folder)
        return folder


class LogPhase(Phase):
    """A log of messages of one size: scans, archive, bytes on disk."""

    def __init__(self, stage: Stage, shape: Shape) -> None:
        super().__init__(stage)
        self._shape = shape
        self._disk: dict[str, Sample] = {}
        self._server: Kafka | None = None

    def _set_up(self) -> None:
        stage = self.stage
        self._rows = messages_for(self._shape, stage.log_bytes)
        self._files = self._folder("files")
        self._broker = self._headrace("async")
        rate = send_messages(self._broker.rocketmq_address, self._shape, self._rows)
        print(f"  {self._rows:,} messages of {self._shape.name} B sent, {rate:,.0f} per second", flush=True)
        source = StoreSource(str(self._broker.data))
        wait_durable(source, self._rows)
        self._splits = plan_log(source)
        self._log_bytes = sum(split.size_bytes for split in self._splits)
        queue_bytes = disk_bytes(self._broker.data) - disk_bytes(self._broker.data / "commitlog")
        self._disk["headrace"] = {"disk_bytes_per_row": (self._log_bytes + queue_bytes) / self._rows}
        for name, columns in SCHEMAS.items():
            batch = next(iter(read_split(self._splits[0], columns)))
            write_batch(self._files / f"{name}.arrow", batch)
        if stage.with_kafka:
            self._export()
            self._server = self._kafka()

    def _export(self) -> None:
        """Write the messages for Kafka's session to load."""
        import pyarrow.parquet as pq  # noqa: PLC0415  # only here, and it takes a while

        columns = ("queue_id", "keys", "tags", "unique_key", "prop:region", "body")
        writer = None
        for split in self._splits:
            for batch in read_split(split, columns):
                writer = writer or pq.ParquetWriter(self._files / "messages.parquet", batch.schema)
                writer.write_batch(batch)
        assert writer is not None
        writer.close()

    def prepare(self, session: Session) -> None:
        """Send the same messages to Kafka, once: its partitions are the queues, and properties are headers."""
        exported = self._files / "messages.parquet"
        if session.kind != "kafka" or self._server is None or not exported.exists():
            return
        headers = ", ".join(
            f"named_struct('key', '{key}', 'value', cast({column} as binary))"
            for key, column in (("TAGS", "tags"), ("UNIQ_KEY", "unique_key"), ("region", "prop_region"))
        )
        source = {
            "format": "parquet",
            "options": {"path": str(exported)},
            "select": [
                "queue_id as partition",
                "cast(keys as binary) as key",
                "body as value",
                f"array({headers}) as headers",
            ],
        }
        options = {"kafka.bootstrap.servers": self._server.tcp_address, "topic": TOPIC, **KAFKA_BATCHES}
        session.ask("write", source=source, sink={"format": "kafka", "options": options})
        exported.unlink()
        self._disk["kafka"] = {"disk_bytes_per_row": disk_bytes(self._server.data) / self._rows}

    def steps(self) -> list[Step]:
        """Return the scans by schema, the archives, and what the disk has."""
        steps: list[Step] = []
        for name in SCHEMAS:
            steps += self._scans(name)
        steps += self._archives()
        steps += [
            DiskStep(f"disk-{self._shape.name}", contestant, contestant, None, self._rows, figures=figures)
            for contestant, figures in self._disk.items()
        ]
        return self._wanted(steps)

    def _scans(self, name: str) -> list[Step]:
        case = f"scan-{self._shape.name}-{name}"
        columns = ",".join(SCHEMAS[name])
        ceiling = {"path": str(self._files / f"{name}.arrow"), "rows": self._rows, "partitions": len(self._splits)}
        over_network = headrace_source(columns, servers=self._registry, scan="log")
        sources: list[tuple[str, str, Server | None, Source]] = [
            ("ceiling", "headrace", None, {"format": CEILING, "options": ceiling}),
            ("store", "headrace", None, headrace_source(columns, store=str(self._broker.data), scan="log")),
            ("servers", "headrace", self._broker, over_network),
            ("servers-session", "prepared", self._broker, over_network),
            ("topics", "headrace", self._broker, headrace_source(columns, servers=self._registry, topics=TOPIC)),
        ]
        if self._server is not None:
            sources.append(("kafka", "kafka", self._server, self._kafka_source(name)))
            if name == "narrow":
                sources.append(("kafka-value", "kafka", self._server, self._kafka_source("value")))
            if name == "wide":
                sources.append(("kafka-plain", "kafka", self._server, self._kafka_source(name, with_headers=False)))
        return [
            ScanStep(case, contestant, session, server, self._rows, source=source, log_bytes=self._log_bytes)
            for contestant, session, server, source in sources
        ]

    def _archives(self) -> list[Step]:
        case = f"archive-{self._shape.name}"
        store, broker = str(self._broker.data), self._broker
        out = self._files / "out"
        every, wide = ",".join(DEFAULT_COLUMNS), ",".join(WIDE)
        steps: list[Step] = [
            ArchiveStep(case, "store", "prepared", None, self._rows, options={"store": store}, folder=out),
            ParquetStep(
                case, "store-writer", "headrace", None, self._rows,
                source=headrace_source(every, store=store, scan="log"), folder=out,
            ),
            ArchiveStep(
                case, "store-wide", "prepared", None, self._rows, options={"store": store, "columns": wide}, folder=out
            ),
            ParquetStep(
                case, "store-wide-writer", "headrace", None, self._rows,
                source=headrace_source(wide, store=store, scan="log"), folder=out,
            ),
            ArchiveStep(
                case, "servers", "prepared", broker, self._rows, options={"servers": self._registry}, folder=out
            ),
            # What Spark's writer, and so Kafka's archive, is compressed with.
            ArchiveStep(
                case, "servers-snappy", "prepared", broker, self._rows,
                options={"servers": self._registry, "compression": "snappy"}, folder=out,
            ),
        ]  # fmt: skip
        if self._server is not None:
            source = self._kafka_source("wide")
            steps.append(ParquetStep(case, "kafka", "kafka", self._server, self._rows, source=source, folder=out))
        return steps

    @property
    def _registry(self) -> str:
        return self._broker.registry_address

    def _kafka_source(self, schema: str, *, with_headers: bool = True) -> Source:
        assert self._server is not None
        has_headers = schema == "wide" and with_headers
        options = {"includeHeaders": "true"} if has_headers else {}
        columns = [name for name in KAFKA_SCHEMAS[schema] if name != "headers" or has_headers]
        return {**kafka_source(self._server, **options), "select": columns}


class LatencyPhase(Phase):
    """A stream of single messages."""

    def _set_up(self) -> None:
        self._broker = self._headrace("async")
        send_messages(self._broker.rocketmq_address, SHAPES["100"], 2048 * QUEUES)
        self._server = self._kafka() if self.stage.with_kafka else None
        self._files = self._folder("latency")

    def prepare(self, session: Session) -> None:
        """Make Kafka's topic: a stream from the latest offset needs one."""
        if session.kind == "kafka" and self._server is not None:
            session.ask("write", source=made_up(4, 100, "value"), sink=kafka_sink(self._server))

    def steps(self) -> list[Step]:
        """Return one step for each."""
        seconds = self.stage.latency_s
        options = {"topics": TOPIC, "startingOffsets": "latest", "group": "latency"}
        source = {**headrace_source("body", servers=self._broker.registry_address, **options), "select": ["body"]}
        steps = [
            LatencyStep(
                "latency", name, session, None, 0,
                source=source, address=self._broker.rocketmq_address, scratch=self._files, seconds=seconds,
            )
            for name, session in (("headrace", "headrace"), ("headrace-session", "prepared"))
        ]  # fmt: skip
        if self._server is not None:
            source = {**kafka_source(self._server, startingOffsets="latest"), "select": ["value"]}
            steps.append(
                LatencyStep(
                    "latency", "kafka", "kafka", None, 0,
                    source=source, address=self._server.tcp_address, scratch=self._files, seconds=seconds,
                )
            )  # fmt: skip
        return self._wanted(steps)


class SinkPhase(Phase):
    """Rows from Spark to a broker."""

    def _set_up(self) -> None:
        self._brokers = {
            name: self._headrace(durability)
            for name, durability in (("headrace", "async"), ("headrace-fsync", "fsync"))
            if name in self.stage.contestants
        }
        for broker in self._brokers.values():
            send_messages(broker.rocketmq_address, SHAPES["100"], 2048 * QUEUES)  # makes the topic
        self._server = self._kafka() if self.stage.with_kafka else None

    def steps(self) -> list[Step]:
        """Return a step for each durability, and Kafka's."""
        rows = self.stage.sink_rows
        steps: list[Step] = [
            SinkStep(
                "sink", name, "headrace", broker, rows, source=made_up(rows, 200, "body"),
                sink={"format": "headrace", "options": {"servers": broker.registry_address, "topic": TOPIC}},
            )
            for name, broker in self._brokers.items()
        ]  # fmt: skip
        if self._server is not None:
            source, sink = made_up(rows, 200, "value"), kafka_sink(self._server)
            steps.append(SinkStep("sink", "kafka", "kafka", self._server, rows, source=source, sink=sink))
        return self._wanted(steps)


def headrace_source(columns: str, **options: str) -> Source:
    """Return a source of Headrace."""
    return {"format": "headrace", "options": {"columns": columns, **options}}


def kafka_source(server: Kafka, **options: str) -> Source:
    """Return a source of Kafka's topic."""
    return {
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": server.tcp_address, "subscribe": TOPIC, **options},
    }


def kafka_sink(server: Kafka) -> Source:
    """Return Kafka's topic as a sink."""
    options = {"kafka.bootstrap.servers": server.tcp_address, "topic": TOPIC, **KAFKA_BATCHES}
    return {"format": "kafka", "options": options}


def made_up(rows: int, body_bytes: int, column: str) -> Source:
    """Return rows of one column that Spark makes up in its JVM."""
    text = f"cast(rpad(cast(id as string), {body_bytes}, 'abcdefghijklmnopqrstuvwxyz') as binary) as {column}"
    return {"format": "range", "rows": rows, "partitions": QUEUES, "select": [text]}


def wait_durable(source: StoreSource | ServersSource, rows: int) -> None:
    """Wait until all that was sent can be read from the store's files.

    Of a long log one look takes longer than the time-out, and what it began with was not yet all of it.

    Raises:
        BenchError: it cannot, and a second look found no more.
    """
    deadline = time.monotonic() + DURABLE_TIMEOUT_S
    found, before = -1, -2
    while found != before or time.monotonic() < deadline:
        before = found
        found = sum(batch.num_rows for split in plan_log(source) for batch in read_split(split, ["queue_id"]))
        if found == rows:
            return
        time.sleep(0.5)
    raise BenchError(f"the store has {found} of {rows} messages that were sent")
