"""Run a function in Spark tasks over a list of items and get its record batches as a DataFrame.

A private batch data source with one partition per item: unlike ``mapInArrow`` it needs neither pandas nor a DataFrame
to start from, and unlike an RDD it yields Arrow. Work and items travel pickled in an option whose name Spark redacts,
since items may hold access keys.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.errors import ConfigError
from headrace.spark.workers import settle_worker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "headrace_tasks"
_OPTION: Final = "secretpayload"  # "secret": Spark hides the values of such options in its plans


def run_in_tasks(
    spark: SparkSession,
    items: Sequence[Any],
    work: Callable[[Any], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return a DataFrame of what ``work`` yields for each item; one task per item, when an action runs.

    Args:
        items: Picklable.
        work: A function that can be pickled; of an importable module it goes by name. Tasks that fail run again.
        schema: Of its batches. Types are those that Spark maps its own to: timestamps ``us, UTC``, no dictionaries, no
            unsigned numbers.

    Raises:
        ConfigError: ``schema`` is none that Spark can take.
    """
    wanted = from_arrow_schema(schema)
    mapped = to_arrow_schema(wanted, timezone="UTC")
    if mapped != schema.remove_metadata():
        raise ConfigError(f"Spark takes batches as {mapped.to_string()}, not {schema.to_string()}", key="schema")
    payload = base64.b64encode(_dumps((list(items), work, wanted))).decode()
    spark.dataSource.register(TaskSource)
    return spark.read.format(FORMAT).option(_OPTION, payload).load()


def _dumps(value: Any) -> bytes:
    """Pickle, functions of notebooks and their closures too."""
    raw: bytes = dumps(value)  # type: ignore[no-untyped-call]
    return raw


class _Item(InputPartition):
    """One item; its number is what Spark's messages show."""

    def __init__(self, number: int, item: bytes) -> None:
        super().__init__(number)
        self.item = item


class TaskSource(DataSource):
    """The private data source of ``run_in_tasks``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def _payload(self) -> tuple[list[Any], Callable[[Any], Iterator[pa.RecordBatch]], StructType]:
        loaded: tuple[list[Any], Callable[[Any], Iterator[pa.RecordBatch]], StructType] = pickle.loads(
            base64.b64decode(self.options[_OPTION])
        )
        return loaded

    def schema(self) -> StructType:
        """Return what the work yields."""
        return self._payload()[2]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        items, work, _ = self._payload()
        return _TaskReader(items, work)


class _TaskReader(DataSourceReader):
    def __init__(self, items: list[Any], work: Callable[[Any], Iterator[pa.RecordBatch]]) -> None:
        self._items: list[Any] | None = items
        self._work = _dumps(work)

    def __getstate__(self) -> dict[str, Any]:
        return {"_items": None, "_work": self._work}  # a task gets its item in its partition

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per item."""
        return [_Item(number, _dumps(item)) for number, item in enumerate(self._items or ())]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Do the work of one item."""
        if not isinstance(partition, _Item):
            return iter(())  # Spark asks once even when there are no items
        work: Callable[[Any], Iterator[pa.RecordBatch]] = pickle.loads(self._work)
        item = pickle.loads(partition.item)
        settle_worker()
        return work(item)
