"""Arrow schemas as Spark spells them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the same columns as Spark's types."""
    return from_arrow_schema(schema)


def ddl(schema: pa.Schema) -> str:
    """Return the same columns as Spark's text form, in which "timestamp" is what spark.sql.timestampType says."""
    names = {"timestamp": "timestamp_ltz"}
    types = [(field.name, field.dataType.simpleString()) for field in spark_schema(schema)]
    return ", ".join(f"`{name}` {names.get(kind, kind)}" for name, kind in types)
