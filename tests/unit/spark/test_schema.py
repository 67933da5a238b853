"""Columns with their types: those of Spark and Arrow, and a user's own schema (spark.md 5.4.3)."""

import pyarrow as pa
import pytest

from headrace.errors import ConfigError
from headrace.spark.columns import COLUMNS
from headrace.spark.schema import MAY_LACK_ROWS, arrow_schema, columns_of_schema

types = pytest.importorskip("pyspark.sql.types")


def spark_schema(text):
    fields = []
    for part in text.split(","):
        name, kind, *rest = part.split()
        kinds = {
            "string": types.StringType(), "bigint": types.LongType(), "int": types.IntegerType(),
            "timestamp": types.TimestampType(), "binary": types.BinaryType(), "boolean": types.BooleanType(),
            "map": types.MapType(types.StringType(), types.StringType(), "novalues" not in rest),
        }  # fmt: skip
        fields.append(types.StructField(name, kinds[kind], "notnull" not in rest))
    return types.StructType(fields)


def test_arrow_types_are_those_spark_maps_to():
    """spark.md 1.3: Spark compares for equality."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    mine = arrow_schema([*COLUMNS, "prop:region"])
    assert to_arrow_schema(from_arrow_schema(mine), timezone="UTC") == mine


def test_what_a_source_says_that_it_has():
    """With spark.sql.timestampType=TIMESTAMP_NTZ every read without a schema was refused: times have a zone."""
    from headrace.spark.source import HeadraceDataSource

    def schema(columns, **more):
        return HeadraceDataSource({"servers": "a:1", "topics": "t", "columns": columns, **more}).schema()

    assert schema("topic,prop:region") == spark_schema("topic string,prop_region string")
    assert schema("prop:a`b").names == ["prop_a`b"]
    assert schema("store_ts,body") == spark_schema("store_ts timestamp,body binary")
    assert schema("properties") == spark_schema("properties map")
    for fail, metadata in (("true", {}), ("false", MAY_LACK_ROWS)):
        assert [field.metadata for field in schema("topic,body", failOnDataLoss=fail)] == [metadata] * 2


def test_user_schema():
    found = columns_of_schema(spark_schema("tags string,queue_offset bigint,prop_region string,properties map"))
    assert found == ("tags", "queue_offset", "prop:region", "properties")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topic string notnull", "NOT NULL"),
        ("queue_offset int", "is bigint, the schema says int"),
        ("body string", "is binary"),
        ("tag string", "did you mean 'tags'"),
        ("properties map novalues", "values of 'properties'"),
        ("prop:region string", "that column is called 'prop_region'"),
        ("topic string,topic string", "has column 'topic' twice"),
    ],
)
def test_schema_that_cannot_be_had_is_one_clear_error(text, says):
    """spark.md 5.4.3: raised on the driver instead of in tasks."""
    with pytest.raises(ConfigError, match=says):
        columns_of_schema(spark_schema(text))


def test_schema_without_columns():
    with pytest.raises(ConfigError, match="no column"):
        columns_of_schema(types.StructType([]))
    assert arrow_schema([]) == pa.schema([])
