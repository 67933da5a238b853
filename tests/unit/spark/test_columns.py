"""Columns by name: what there is, what a user may ask for, and the errors (spark.md 5.4.3)."""

import pytest

from headrace.errors import ConfigError
from headrace.spark.columns import COLUMNS, DEFAULT_COLUMNS, parse_columns, spark_name


def test_default_leaves_out_the_costly_columns():
    assert set(COLUMNS) - set(DEFAULT_COLUMNS) == {"properties", "msg_id", "born_host", "store_host", "body_crc_ok"}


def test_columns_option():
    assert parse_columns("topic, tags,prop:region") == ("topic", "tags", "prop:region")
    assert spark_name("prop:region") == "prop_region"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topics", "did you mean 'topic'"),
        ("store_tz", "'store_ts'"),
        ("", "no column"),
        ("tags,tags", "twice"),
        ("prop:", "prop:NAME"),
    ],
)
def test_wrong_columns_are_named(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_columns(text)


def test_unknown_column_lists_the_valid_ones():
    with pytest.raises(ConfigError, match="queue_offset, log_offset"):
        parse_columns("nothing_like_it")
