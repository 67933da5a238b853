"""Run a function in Spark tasks over a list of items and get its record batches, as a DataFrame or as rows.

A DataFrame comes from a private batch data source: unlike ``mapInArrow`` it needs neither pandas nor a DataFrame to
start from, and unlike an RDD it yields Arrow. Work and items travel pickled in an option whose name Spark redacts,
since items may hold access keys.

Spark plans a data source with Python workers of its own and through all of SQL. A few rows that only the driver wants
come from an RDD where there is one: half of the time that tasks without work take, and seconds less in a new session.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.spark.workers import settle_worker

FORMAT: Final = "headrace_tasks"
_TASKS_PER_CORE: Final = 2
_MOST_IN_TURN: Final = 4
_OPTION: Final = "secretpayload"  # "secret": Spark hides the values of such options in its plans


def run_in_tasks(
    spark: SparkSession,
    items: Sequence[Any],
    work: Callable[[Any], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    *,
    tasks: int | None = None,
) -> DataFrame:
    """Return a DataFrame of what ``work`` yields for each item, when an action runs.

    Args:
        items: Picklable.
        work: A function that can be pickled; of an importable module it goes by name. Tasks that fail run again.
        schema: Of its batches. Types are those that Spark maps its own to: timestamps ``us, UTC``, no dictionaries, no
            unsigned numbers.
        tasks: How many share the items, each doing neighbours one after the other; None: as ``tasks_for`` says.

    Raises:
        ConfigError: ``schema`` is none that Spark can take.
    """
    wanted = from_arrow_schema(schema)
    mapped = to_arrow_schema(wanted, timezone="UTC")
    if mapped != schema.remove_metadata():
        raise ConfigError(f"Spark takes batches as {mapped.to_string()}, not {schema.to_string()}", key="schema")
    of_tasks = _share(spark, items, tasks)
    payload = base64.b64encode(_dumps((of_tasks, work, wanted))).decode()
    spark.dataSource.register(TaskSource)
    return spark.read.format(FORMAT).option(_OPTION, payload).load()


def collect_from_tasks(
    spark: SparkSession,
    items: Sequence[Any],
    work: Callable[[Any], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    *,
    tasks: int | None = None,
) -> list[dict[str, Any]]:
    """Return the rows, few, that ``work`` yields for each item, in no order; arguments are those of ``run_in_tasks``.

    Raises:
        ConfigError: ``schema`` is none that Spark can take.
    """
    if not items:
        return []
    if parallelism(spark) is None:
        return [row.asDict() for row in run_in_tasks(spark, items, work, schema, tasks=tasks).collect()]
    of_tasks = _share(spark, items, tasks)
    # Not as the RDD's elements: those lie in a file for a while, and items may hold access keys. Only what takes more
    # than 1 MiB (thousands of items) does so here, in a file that none but this user may read.
    do = partial(_rows_of, of_tasks=[_dumps(share) for share in of_tasks], work=work)
    return spark.sparkContext.parallelize(range(len(of_tasks)), len(of_tasks)).flatMap(do).collect()


def _share(spark: SparkSession, items: Sequence[Any], tasks: int | None) -> list[list[Any]]:
    """Return the items of each task: neighbours, about as many for each."""
    tasks = tasks_for(spark, len(items)) if tasks is None else tasks
    bounds = [number * len(items) // tasks for number in range(tasks + 1)] if tasks else [0]
    return [list(items[first:end]) for first, end in pairwise(bounds)]


def _rows_of(
    task: int, of_tasks: Sequence[bytes], work: Callable[[Any], Iterator[pa.RecordBatch]]
) -> Iterator[dict[str, Any]]:
    """Do the work of one task of an RDD."""
    settle_worker()
    for item in pickle.loads(of_tasks[task]):
        for batch in work(item):
            yield from batch.to_pylist()


def tasks_for(spark: SparkSession, items: int) -> int:
    """Return how many tasks should share so many items; one for each where nobody knows how many tasks run at once.

    Every task costs Spark some 40 ms of processor time, a fifth of what it takes to read 64 MiB of log. Each core still
    gets several, and all the same number, so that they end at about the same time.
    """
    at_once = parallelism(spark)
    if not at_once:
        return items
    for_each = max(_TASKS_PER_CORE, -(-items // (_MOST_IN_TURN * at_once)))
    return min(items, for_each * at_once)


def parallelism(spark: SparkSession) -> int | None:
    """Return how many tasks run at once; None where nobody can say.

    That is with Spark Connect and on a cluster, whose executors come and go.
    """
    if not hasattr(spark, "_jsparkSession"):
        return None
    context = spark.sparkContext
    if not (context.master or "").startswith("local") or context.getConf().contains("spark.default.parallelism"):
        return None
    return max(1, int(context.defaultParallelism))


def _dumps(value: Any) -> bytes:
    """Pickle, functions of notebooks and their closures too."""
    raw: bytes = dumps(value)  # type: ignore[no-untyped-call]
    return raw


class _Items(InputPartition):
    """The items of a task; its number is what Spark's messages show."""

    def __init__(self, number: int, items: bytes) -> None:
        super().__init__(number)
        self.items = items


class TaskSource(DataSource):
    """The private data source of ``run_in_tasks``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def _payload(self) -> tuple[list[list[Any]], Callable[[Any], Iterator[pa.RecordBatch]], StructType]:
        loaded: tuple[list[list[Any]], Callable[[Any], Iterator[pa.RecordBatch]], StructType] = pickle.loads(
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
    def __init__(self, items: list[list[Any]], work: Callable[[Any], Iterator[pa.RecordBatch]]) -> None:
        self._items: list[list[Any]] | None = items  # those of each task
        self._work = _dumps(work)

    def __getstate__(self) -> dict[str, Any]:
        return {"_items": None, "_work": self._work}  # a task gets its items in its partition

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per task."""
        return [_Items(number, _dumps(items)) for number, items in enumerate(self._items or ())]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Do the work of a task's items."""
        if not isinstance(partition, _Items):
            return iter(())  # Spark asks once even when there are no items
        work: Callable[[Any], Iterator[pa.RecordBatch]] = pickle.loads(self._work)
        items = pickle.loads(partition.items)
        settle_worker()
        return chain.from_iterable(map(work, items))
