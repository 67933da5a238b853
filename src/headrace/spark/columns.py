"""The columns of ``format("headrace")`` by name.

Knows no bytes, no Spark and no Arrow: a job reads its options by this before it needs either. Ref:
docs/spark/source.md, "Columns".
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from headrace.errors import ConfigError

PROPERTY_PREFIX: Final = "prop:"
"""Before a property's name: a column that holds this one property."""
PROPERTY_COLUMN_PREFIX: Final = "prop_"
"""What such a column is called in Spark, where a colon would need quotes."""

COLUMNS: Final = {
    "topic": "string",  # name of the topic
    "broker": "string",  # name of the broker whose log holds the message
    "queue_id": "int",  # queue of the topic on that broker
    "queue_offset": "bigint",  # position in the queue
    "log_offset": "bigint",  # physical offset: position in the broker's commit log, in bytes
    "msg_id": "string",  # offset message id: store host and physical offset in hex, 32 or 56 characters
    "unique_key": "string",  # property UNIQ_KEY, the id that a RocketMQ producer gave
    "keys": "string",  # property KEYS as it is, keys between spaces
    "tags": "string",  # property TAGS
    "flag": "int",  # the application's own number
    "sys_flag": "int",  # RocketMQ's bits, as stored; bit 30: body is given compressed
    "reconsume_times": "int",  # how often a group sent the message back
    "store_size": "int",  # bytes of the whole record
    "born_ts": "timestamp",  # when the producer made it, by the producer's clock, to the millisecond
    "store_ts": "timestamp",  # when the broker stored it, to the millisecond
    "born_host": "string",  # ip:port of the producer, [ip]:port with IPv6
    "store_host": "string",  # ip:port of the broker
    "source_protocol": "string",  # nsq, rocketmq or retry: derived
    "body_crc_ok": "boolean",  # whether the record's checksums fit; implies verifyCrc
    "body": "binary",  # the body, decompressed when the producer compressed it
    "properties": "map<string,string>",  # all properties but __CRC32# and __BATCH#; the costliest column
}
"""Every column by its name, with Spark's name of its type; the decoder takes the order from here."""

NOT_BY_DEFAULT: Final = frozenset({"properties", "msg_id", "born_host", "store_host", "body_crc_ok"})
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in NOT_BY_DEFAULT)
"""What is read when nobody says which columns."""


def spark_name(column: str) -> str:
    """Return what a column is called in Spark: ``prop:region`` is ``prop_region`` there."""
    if column.startswith(PROPERTY_PREFIX):
        return PROPERTY_COLUMN_PREFIX + column[len(PROPERTY_PREFIX) :]
    return column


def column_of(name: str) -> str:
    """Return the column that Spark calls ``name``: the inverse of ``spark_name``.

    Raises:
        ConfigError: there is none.
    """
    if name in COLUMNS:
        return name
    if name.startswith(PROPERTY_COLUMN_PREFIX) and len(name) > len(PROPERTY_COLUMN_PREFIX):
        return PROPERTY_PREFIX + name[len(PROPERTY_COLUMN_PREFIX) :]
    if name.startswith(PROPERTY_PREFIX) and len(name) > len(PROPERTY_PREFIX):
        return name
    raise ConfigError(
        f"there is no column {name!r}{suggest(name, COLUMNS)}; columns are {', '.join(COLUMNS)}, "
        "and prop:NAME for one property (prop_NAME in a schema)",
        key="columns",
    )


def parse_columns(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return the columns that an option or an argument names.

    Args:
        text: Names between commas, or a sequence of names.

    Raises:
        ConfigError: one does not exist, comes twice, or there is none.
    """
    names = [name.strip() for name in (text.split(",") if isinstance(text, str) else text)]
    columns = tuple(column_of(name) for name in names if name)
    if not columns:
        raise ConfigError("columns names no column: leave it away for the default ones", key="columns")
    for column in columns:
        if columns.count(column) > 1:
            raise ConfigError(f"columns names {column!r} twice", key="columns")
    return columns


def suggest(name: str, known: Collection[str]) -> str:
    """Return "; did you mean X?" for what ``name`` is nearest to, or nothing."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
