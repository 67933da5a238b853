"""The ceiling of any Python data source: it yields the same prepared batch over and over.

What a scan reaches of it is what reading and decoding leave over; the rest is Spark's transfer from Python to the JVM.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.spark.workers import settle_worker

NAME = "bench_ceiling"


class Share(InputPartition):
    """How many rows one task yields."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class CeilingDataSource(DataSource):
    """Options: ``path`` of an Arrow file with one batch, ``rows`` in all, ``partitions``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> Any:
        """Return the schema of the batch."""
        return from_arrow_schema(read_batch(self.options["path"]).schema)

    def reader(self, schema: Any) -> "CeilingReader":
        """Return the reader."""
        return CeilingReader(self.options["path"], int(self.options["rows"]), int(self.options["partitions"]))


class CeilingReader(DataSourceReader):
    """Yields the batch until the task has its rows."""

    def __init__(self, path: str, rows: int, partitions: int) -> None:
        self._path = path
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        """Return shares that differ by one row at most."""
        least, rest = divmod(self._rows, self._partitions)
        return [Share(least + (number < rest)) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's batches."""
        assert isinstance(partition, Share)
        settle_worker()  # as a source that is to be quick does
        batch = read_batch(self._path)
        left = partition.rows
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def read_batch(path: str) -> pa.RecordBatch:
    """Read the one batch of a file."""
    with Path(path).open("rb") as file, pa.ipc.open_file(file) as reader:
        return reader.get_batch(0)


def write_batch(path: Path, batch: pa.RecordBatch) -> None:
    """Write a file with one batch."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
