"""``format("headrace")``: what Spark asks first, and who then does the work.

Options are parsed and columns decided here, on the driver, so that every mistake is an error before a task runs. Of the
modules that do the work a process needs one; they are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

import headrace.spark.workers  # noqa: F401  # what plans a query runs in a worker as well: it ends as quietly
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.extras import load_part
from headrace.spark.options import ReadOptions, without_catalogs
from headrace.spark.schema import MAY_LACK_ROWS, arrow_schema, columns_of_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )

FORMAT: Final = "headrace"


class HeadraceDataSource(DataSource):
    """Topics and logs of Headrace, and topics of RocketMQ, as tables: docs/spark/source.md, docs/spark/sink.md."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns that are read when the user gives no schema.

        Raises:
            ConfigError: an option is wrong.
        """
        options = ReadOptions.parse(without_catalogs(self.options))
        metadata = None if options.fail_on_data_loss else MAY_LACK_ROWS
        fields = from_arrow_schema(arrow_schema(options.columns)).fields
        return StructType([StructField(field.name, field.dataType, True, metadata) for field in fields])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader.

        Raises:
            ConfigError: an option or the schema is wrong.
        """
        reader: DataSourceReader = load_part("reader", "to read").BatchReader(*self._read_options(schema))
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the stream reader; where an option or the schema is wrong, one that says so."""
        part = load_part("streams.stream", "to read streams")
        try:
            reader: DataSourceStreamReader = part.StreamReader(*self._read_options(schema))
        except HeadraceError as error:
            refused: DataSourceStreamReader = load_part("streams.refused", "to read streams").RefusedStream(error)
            return refused
        return reader

    def _read_options(self, schema: StructType) -> tuple[ReadOptions, tuple[str, ...]]:
        """Return the options and the columns to read. Raises: as ``reader``."""
        options, columns = ReadOptions.parse(self.options), columns_of_schema(schema)
        if "columns" in self.options and set(columns) != set(options.columns):
            raise ConfigError(
                f"option columns names {', '.join(options.columns)}, the schema {', '.join(columns)}: give one of them",
                key="columns",
            )
        return options, columns

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the batch writer. Raises: as ``headrace.spark.writing.sink``."""
        writer: DataSourceArrowWriter = load_part("writing.sink", "to write").make_writer(
            self.options, schema, overwrite
        )
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the stream writer. Raises: as ``headrace.spark.writing.sink``."""
        sink = load_part("writing.sink", "to write")
        writer: DataSourceStreamArrowWriter = sink.make_stream_writer(self.options, schema, overwrite)
        return writer
