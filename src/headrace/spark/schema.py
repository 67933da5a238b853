"""The columns of ``format("headrace")`` with their types, for Arrow and for Spark.

Knows no bytes and no Spark: types are Arrow's, exactly as Spark maps its own to Arrow, since Spark compares the two for
equality. Ref: docs/spark/source.md, "Columns".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.spark.columns import COLUMNS, column_of, spark_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAY_LACK_ROWS: Final = {"headrace.failOnDataLoss": False}
"""Metadata of the columns that are read with ``failOnDataLoss=false``. Spark keeps it as long as a column is itself, so
that the sink can see what its rows are made of: what is read again may be less."""

_ARROW_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True)),
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of batches with these columns, names as Spark has them.

    Raises:
        ConfigError: there is no such column.
    """
    types = [_ARROW_TYPES[COLUMNS.get(column_of(column), "string")] for column in columns]
    return pa.schema([pa.field(spark_name(column), kind) for column, kind in zip(columns, types, strict=True)])


def columns_of_schema(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a user's Spark schema asks for, in its order.

    Raises:
        ConfigError: a field is no column, comes twice, has another type, is NOT NULL, or there is none.
    """
    columns: list[str] = []
    for field in schema.fields:
        column = column_of(field.name)
        if spark_name(column) != field.name:
            raise ConfigError(
                f"the schema says {field.name!r}: in a schema that column is called {spark_name(column)!r}",
                key="schema",
            )
        wanted = COLUMNS.get(column, "string")
        found = field.dataType.simpleString()
        if found != wanted:
            raise ConfigError(f"column {field.name!r} is {wanted}, the schema says {found}", key="schema")
        if not field.nullable:
            raise ConfigError(
                f"column {field.name!r} is NOT NULL in the schema: leave NOT NULL away, a source has nullable columns",
                key="schema",
            )
        if not getattr(field.dataType, "valueContainsNull", True):
            raise ConfigError(
                f"the values of {field.name!r} are NOT NULL in the schema: leave NOT NULL away", key="schema"
            )
        if column in columns:
            raise ConfigError(f"the schema has column {field.name!r} twice: name it once", key="schema")
        columns.append(column)
    if not columns:
        raise ConfigError("the schema has no column: name at least one, such as queue_offset bigint", key="schema")
    return tuple(columns)
