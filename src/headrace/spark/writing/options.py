"""The options of ``format("headrace")`` for writing, and what each column of a DataFrame is written as.

Both are checked where the query starts, before a task runs: a wrong option or column is one ``ConfigError`` that says
what is accepted. What they make is frozen and picklable; secrets are never in its text.

Knows neither Spark nor sockets: a schema is anything with Spark's ``fields``. Ref: docs/spark/sink.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.settings.units import parse_duration_ms, parse_size
from headrace.spark.columns import suggest
from headrace.spark.options import declared_options, nonempty, number, one_of, option, parse_options, require_both_keys
from headrace.spark.writing.route import require_topic
from headrace.spark.writing.row_columns import ROLE_NAMES

IDEMPOTENT: Final = "idempotent"
TRANSACTIONAL: Final = "transactional"
AT_LEAST_ONCE: Final = "at-least-once"
SEMANTICS: Final = (IDEMPOTENT, TRANSACTIONAL, AT_LEAST_ONCE)

STORED: Final = "stored"
FLUSHED: Final = "flushed"
REPLICATED: Final = "replicated"
ACKS: Final = (STORED, FLUSHED, REPLICATED)

EXTRA_COLUMNS: Final = ("error", "properties", "ignore")

MAX_REQUEST_BYTES: Final = 4 << 20
"""What a broker accepts in one request, as it is set up; a batch or a message is not longer."""
MAX_TXN_CHARS: Final = 128
MAX_I64: Final = (1 << 63) - 1

TABLE_REMEDY: Final = (
    "Spark keeps the OPTIONS of CREATE TABLE from Python sinks: insert into a CREATE TEMPORARY VIEW, or name them "
    "behind the table, WITH (servers = ...)"
)
"""What to do when no option comes: that is so with every table of a catalog (Spark 4.3)."""
_BY_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself hands to a stream's sink among the options."""
_HINTS: Final = {
    "path": "a topic is named by the option or the column topic: call save() and start() without a path",
    "store": "a store directory is only read; to write, name registries with servers",
    "stagettl": "what is not committed is kept for remoting.stage_ttl_s of the broker",
    "group": "a producer's group is producerGroup",
    "kafka.bootstrap.servers": "registries are named by servers",
    "kafka": "there is no Kafka client behind this format, and nothing of it to be set",
}


# -- reading values ----------------------------------------------------------------------------------------------------


def _ack(name: str, value: str) -> str:
    if value.lower() == "received":
        raise ConfigError(
            "option ack = 'received' is not offered: a message that nobody answers for cannot be sent again when it is "
            f"lost; accepted are {', '.join(ACKS)}",
            key=name,
        )
    return one_of(*ACKS)(name, value)


def _semantics(name: str, value: str) -> str:
    if value.lower().replace("_", "-") == "exactly-once":
        raise ConfigError(
            f"option {name} = {value!r} is not accepted: write each row once with {IDEMPOTENT}, which drops what is "
            f"sent again, or {TRANSACTIONAL}, which shows a write as a whole",
            key=name,
        )
    return one_of(*SEMANTICS)(name, value)


def _txn(name: str, value: str) -> str:
    if not value or len(value) > MAX_TXN_CHARS or not value.isprintable():
        raise ConfigError(
            f"option {name} = {value!r} is not accepted: 1 to {MAX_TXN_CHARS} visible characters", key=name
        )
    return value


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything a writer is told. ``parse`` checks it."""

    servers: str = option(nonempty, "")
    """Addresses of registries, ``host:9876``, several parted by ``;`` or ``,``. Required."""

    topic: str | None = option(nonempty, None)
    """Topic of all rows; overrides the column topic."""

    semantics: str = option(_semantics, IDEMPOTENT)
    """idempotent, transactional or at-least-once."""

    key_column: str | None = option(nonempty, None)
    """Column by which duplicates are known, for rows that do not come in the same order when they are written again."""

    ack: str = option(_ack, STORED)
    """When a message counts as written: stored (as the broker's durability level has it), flushed, replicated."""

    txn_id: str | None = option(_txn, None)
    """Identity of the write: by default the query's id, for a batch one of its own."""

    epoch: int | None = option(number(0, MAX_I64), None)
    """Number of a batch write within txnId; a lower or equal one is a repetition."""

    extra_columns: str = option(one_of(*EXTRA_COLUMNS), "error")
    """What becomes of columns that mean nothing here: error, properties (of their names), ignore."""

    producer_group: str = option(nonempty, "spark_sink")
    """Name under which the broker sees the writer."""

    batch_bytes: int = option(number(1024, MAX_REQUEST_BYTES, parse_size, "bytes, as 512KiB or 1MiB,"), 1 << 20)
    """Bytes of one request."""

    max_in_flight: int = option(number(1, 64), 8)
    """Requests to a broker that may be unanswered."""

    send_timeout_ms: int = option(number(100, 3_600_000, parse_duration_ms, "milliseconds, or as 10s,"), 10_000)
    """How long one request may take."""

    retries: int = option(number(0, 1000), 3)
    """How often a request is tried again, with pauses of 0.5, 1, 2, 4 and then 8 s, before the task fails."""

    max_message_bytes: int = option(
        number(1, MAX_REQUEST_BYTES, parse_size, "bytes, as 512KiB or 4MiB,"), MAX_REQUEST_BYTES
    )
    """A longer body is an error; the broker's own limit is remoting.max_message_bytes."""

    access_key: str = ""
    """Who writes, where the broker asks."""

    secret_key: str = field(default="", repr=False)
    """What proves it; better in auth.secretKeyFile or auth.secretKeyEnv."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options as Spark hands them over: names in any case, values as text.

        Raises:
            ConfigError: one is unknown or wrong, or a required one is missing.
        """
        ours = {name: text for name, text in options.items() if name.lower() not in _BY_SPARK}
        given = parse_options(ours, _OPTIONS, _HINTS, "writing")
        if "servers" not in given:
            hint = "" if given else f"; {TABLE_REMEDY}"
            raise ConfigError(f"option servers is missing: name a registry, host:9876{hint}", key="servers")
        made = cls(**given)
        made._check()
        return made

    def _check(self) -> None:
        """Check what options mean to each other."""
        if self.topic is not None:
            require_topic(self.topic)
        require_both_keys(self.access_key, self.secret_key)
        if self.key_column is not None and self.semantics != IDEMPOTENT:
            raise ConfigError(
                f"keyColumn belongs to semantics=idempotent, not to {self.semantics}: a column unique_key only names "
                "messages",
                key="keyColumn",
            )


_OPTIONS: Final = declared_options(WriteOptions)


# -- columns -----------------------------------------------------------------------------------------------------------

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_TIMES: Final = ("timestamp", "timestamp_ntz")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("string", "binary"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "sharding_key": ("string",),
    "queue_id": _INTEGERS,
    "deliver_at": _TIMES,
    "delay_level": _INTEGERS,
    "flag": _INTEGERS,
    "unique_key": ("string",),
    "born_ts": _TIMES,
    "sys_flag": _INTEGERS,
}
_AS_TEXT: Final = (*_INTEGERS, "boolean", "float", "double", "decimal", "date", *_TIMES)
"""Types that become text, for further columns and keys."""
VALID_COLUMNS: Final = ("body (or value)", *(name for name in ROLE_NAMES if name != "body"))


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """Which column is what.

    Attributes:
        roles: Role (row_columns.ROLE_NAMES) -> position.
        extras: Property, position.
        casts: Positions of columns that become text first.
        is_keyed: Duplicates are known by their keys.
    """

    roles: Mapping[str, int]
    extras: tuple[tuple[str, int], ...]
    casts: tuple[int, ...]
    is_keyed: bool

    @classmethod
    def plan(cls, schema: Any, options: WriteOptions) -> WriteColumns:
        """Find out what the columns of a Spark schema are.

        Raises:
            ConfigError: one is unknown, missing, twice there, or of the wrong type.
        """
        types = [(str(each.name), _type_name(each.dataType)) for each in schema.fields]
        key = _find_key(types, options)
        roles: dict[str, int] = {}
        extras: list[tuple[str, int]] = []
        casts: list[int] = []
        for position, (name, kind) in enumerate(types):
            role = "body" if name.lower() == "value" else name.lower()
            is_key = position == key
            if role in _TYPES and not (role == "topic" and options.topic is not None):
                _take(roles, role, position, types)
                _require_type(name, kind, _TYPES[role])
            elif role != "topic" and not is_key and options.extra_columns != "ignore":
                _take_extra(extras, casts, name, kind, position, options)
            if is_key:
                _require_type(name, kind, ("string", *_AS_TEXT))
                if kind != "string":
                    casts.append(position)
        if key is not None:
            roles["unique_key"] = key
        _require_columns(roles, types, options)
        _require_no_clash(roles, casts, types)
        if options.semantics == TRANSACTIONAL and not roles.keys().isdisjoint(("deliver_at", "delay_level")):
            raise ConfigError(
                "semantics=transactional cannot delay messages: drop deliver_at and delay_level, or write with "
                "semantics=idempotent",
                key="semantics",
            )
        is_keyed = options.semantics == IDEMPOTENT and "unique_key" in roles
        return cls(roles, tuple(extras), tuple(casts), is_keyed)


def _type_name(data_type: Any) -> str:
    """Return Spark's short name of a type, without what does not matter here."""
    name = str(data_type.simpleString()).lower().replace(" ", "")
    if name.startswith(("stringcollate", "varchar(", "char(")):
        return "string"
    return name.partition("(")[0] if name.startswith("decimal(") else name


def _require_type(name: str, kind: str, accepted: tuple[str, ...]) -> None:
    if kind != "void" and kind not in accepted:
        raise ConfigError(f"column {name!r} is of type {kind}, accepted: {', '.join(accepted)}", key=name)


def _take(roles: dict[str, int], role: str, position: int, types: list[tuple[str, str]]) -> None:
    if role in roles:
        raise ConfigError(
            f"columns {types[roles[role]][0]!r} and {types[position][0]!r} are both the {role} of a message: drop one"
        )
    roles[role] = position


def _take_extra(
    extras: list[tuple[str, int]], casts: list[int], name: str, kind: str, position: int, options: WriteOptions
) -> None:
    """Take a column that means nothing here as a property."""
    if options.extra_columns == "error":
        raise ConfigError(
            f"unknown column {name!r}{suggest(name, (*ROLE_NAMES, 'value'))}; there are {', '.join(VALID_COLUMNS)}; "
            "with extraColumns=properties others become properties, with ignore they are left out",
            key=name,
        )
    _require_type(name, kind, ("string", *_AS_TEXT))
    if name.upper() in _RESERVED or name.upper().startswith("TIMER_") or not name or "\x01" in name or "\x02" in name:
        raise ConfigError(
            f"column {name!r} cannot become a property of that name: it is the broker's, or has a column of its own",
            key=name,
        )
    extras.append((name, position))
    if kind != "string":
        casts.append(position)


_RESERVED: Final = frozenset(
    {
        *("TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY"),
        *("WAIT", "DELAY", "PGROUP", "CLUSTER", "TRAN_MSG", "REAL_TOPIC", "REAL_QID", "__BATCH#", "__CRC32#"),
    }
)


def _find_key(types: list[tuple[str, str]], options: WriteOptions) -> int | None:
    """Return the position of keyColumn."""
    if options.key_column is None:
        return None
    names = [name for name, _ in types]
    lowered = [name.lower() for name in names]
    if (wanted := options.key_column.lower()) in lowered:
        if wanted != "unique_key" and "unique_key" in lowered:
            raise ConfigError(
                f"keyColumn = {options.key_column!r} and column 'unique_key' both say what the key is: drop one",
                key="keyColumn",
            )
        return lowered.index(wanted)
    raise ConfigError(
        f"option keyColumn = {options.key_column!r} is no column{suggest(options.key_column, names)}; "
        f"there are {', '.join(names)}",
        key="keyColumn",
    )


def _require_columns(roles: Mapping[str, int], types: list[tuple[str, str]], options: WriteOptions) -> None:
    names = ", ".join(name for name, _ in types) or "none"
    if "body" not in roles:
        raise ConfigError(f"there is no column body (or value), which holds what a message says; there are {names}")
    if types[roles["body"]][1] == "void":
        raise ConfigError(f"column {types[roles['body']][0]!r} has no type: every body would be null")
    if "topic" not in roles and options.topic is None:
        raise ConfigError(f"there is neither the option topic nor a column topic; columns are {names}", key="topic")


def _require_no_clash(roles: Mapping[str, int], casts: list[int], types: list[tuple[str, str]]) -> None:
    """Refuse a key that is no text but also read as what it is, a number or a time."""
    for role, position in roles.items():
        if position in casts and role != "unique_key":
            raise ConfigError(
                f"column {types[position][0]!r} cannot be both {role} and the key: make the key a column of text",
                key="keyColumn",
            )
