"""The options of ``format("headrace")`` for reading: parsed once on the driver, then frozen.

Spark hands over lower-cased names and text values. Every option is checked here, before anything is opened, and an
unknown one is an error: an option that is silently ignored reads the wrong data. Ref: docs/spark/source.md, "Options".
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.format.names import DEAD_LETTER_PREFIX, RESERVED_PREFIX, RETRY_PREFIX
from headrace.spark.columns import DEFAULT_COLUMNS, parse_columns, suggest
from headrace.spark.decode import BROKER_TOPICS
from headrace.spark.scan import ServersSource, Source, StoreSource
from headrace.spark.streams.positions import QueueKey
from headrace.spark.times import first_ms

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
COMMITTED: Final = "committed"
ERROR: Final = "error"
LONGEST_GROUP: Final = 114
"""Characters of a group's name, so that GROUP_start, where the start pin is kept, has no more than a broker takes."""
VALID_GROUP: Final = re.compile(rf"[%|a-zA-Z0-9_.-]{{1,{LONGEST_GROUP}}}")

OFFSET_LATEST: Final = -1
OFFSET_EARLIEST: Final = -2

TABLE_REMEDY: Final = (
    "Spark keeps the OPTIONS of CREATE TABLE from Python sources: make it a CREATE TEMPORARY VIEW, or name them behind "
    "the table, WITH (servers = ...); a table that is made so needs columns of its own, (body BINARY)"
)
"""What to do when no option comes: that is so with every table of a catalog (Spark 4.3)."""
_OF_CATALOGS: Final = frozenset(("provider", "owner", "location", "external", "comment", "is_managed_location"))
_OF_CATALOGS_PREFIX: Final = "option."

QueueMap = Mapping[QueueKey, int]

Parser = Callable[[str, str], Any]
"""Called with the name and the text of an option, which has no blanks around it."""

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mib": 1 << 20,
                 "mb": 1 << 20,
                 "g": 1 << 30, "gib": 1 << 30, "gb": 1 << 30}  # fmt: skip
"""Of sizes as Spark's own settings have them, other than ours (``settings.units``): a kb is 1024 bytes, in any case."""
_DURATIONS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NO_MOST: Final = 10**18
_LONG: Final = re.compile("[0-9]{16}")
"""What may be above that: only then the bound is told, which says nothing to who wrote a letter."""
_ALL_TAGS: Final = "*"
_SYSTEM_PREFIXES: Final = (RESERVED_PREFIX, "rmq_sys_")


def nonempty(name: str, text: str) -> str:
    """Read a text."""
    if not text:
        raise ConfigError(f"option {name} is empty", key=name)
    return text


def _digits(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text):
        raise ValueError(text)  # ``int`` takes more
    return int(text)


def _size_bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,19})\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2]]


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", text.lower())
    if match is None or match[2] not in _DURATIONS_MS:
        raise ValueError(text)
    return round(float(match[1]) * _DURATIONS_MS[match[2]])


def _timeout_ms(text: str) -> int:
    return _digits(text) if text.isdecimal() else _duration_ms(text)


def _names(name: str, text: str) -> tuple[str, ...]:
    """Names between commas, or a JSON list of them."""
    if text.startswith("["):
        found = _json(name, text)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise ConfigError(f"option {name} is a JSON list of names, not {text!r}", key=name)
        parts = tuple(found)
    else:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise ConfigError(f"option {name} names nothing", key=name)
    return tuple(dict.fromkeys(parts))


def _tags(name: str, text: str) -> tuple[str, ...] | None:
    parts = tuple(part.strip() for part in text.split("||") if part.strip())
    if not parts:
        raise ConfigError(f"option {name} is a tag expression such as 'paid || sent', or *", key=name)
    return None if _ALL_TAGS in parts else parts


def _pattern(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"option {name} is empty: no topic has such a name", key=name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {name} is no regular expression: {error}", key=name) from None
    except Warning as warning:  # of what a later Python takes for something else
        remedy = "write \\ before each character of a set that stands for itself"
        raise ConfigError(f"option {name} has no one meaning: {warning}; {remedy}", key=name) from None
    return text


def number(
    least: int, most: int = _NO_MOST, parse: Callable[[str], int] = _digits, what: str = "a whole number"
) -> Callable[[str, str], int]:
    """Return a parser of a number; ``what`` is what the error calls it, before its bounds."""
    bounds = f"from {least} on" if most == _NO_MOST else f"within {least}..{most}"

    def read(name: str, text: str) -> int:
        try:
            found = parse(text)
        except (ValueError, ConfigError):
            found = least - 1
        if not least <= found <= most:
            accepted = f"within {least}..{most}" if found > most or _LONG.match(text) else bounds
            raise ConfigError(f"option {name} is {what} {accepted}, not {text!r}", key=name)
        return found

    return read


_size: Final = partial(number, parse=_size_bytes, what="a size such as 268435456 or 256MiB")


def _flag(name: str, text: str) -> bool:
    value = text.lower()
    if value not in {"true", "false"}:
        raise ConfigError(f"option {name} is true or false, not {text!r}", key=name)
    return value == "true"


def _flag_or_auto(name: str, text: str) -> bool | None:
    value = one_of("auto", "true", "false")(name, text)
    return None if value == "auto" else value == "true"


def one_of(*values: str, more: str = "") -> Callable[[str, str], str]:
    """Return a parser of some words; ``more`` names, in the error, what else the option may be."""

    def parse(name: str, text: str) -> str:
        value = text.lower()
        if value not in values:
            accepted = f"{' or '.join(values)}{more}"
            raise ConfigError(f"option {name} is {accepted}, not {text!r}{suggest(value, values)}", key=name)
        return value

    return parse


def parse_time(name: str, text: str) -> int:
    """Return a time given as ms since 1970 or in ISO 8601; without a zone it is UTC.

    Eight digits are a date as ISO 8601 also has it: 20260131.

    Raises:
        ConfigError: it is neither.
    """
    value = text.strip()
    if re.fullmatch(r"-?([0-9]{1,7}|[0-9]{9,15})", value):
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ConfigError(
            f"option {name} is ms since 1970 or ISO 8601 such as 2026-01-31T12:00:00Z, not {text!r}", key=name
        ) from None
    return first_ms(moment)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=partial(_object, name))
    except ValueError as error:
        raise ConfigError(f"option {name} is no JSON: {error}", key=name) from None


def _object(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; one that has a key twice would lose a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"option {name} has {twice!r} twice: give it one value", key=name)
    return found


def _assignment(name: str, text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    found = _json(name, text)
    try:
        parsed = {
            topic: {broker: tuple(_queue_id(queue) for queue in queues) for broker, queues in brokers.items()}
            for topic, brokers in found.items()
        }
    except (AttributeError, TypeError, ValueError):
        parsed = {}
    if not any(queues for brokers in parsed.values() for queues in brokers.values()):
        raise ConfigError(f'option {name} is JSON such as {{"topic": {{"broker": [0, 1]}}}}, not {text!r}', key=name)
    return parsed


def _queue_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _queue_map(name: str, text: str, *, is_time: bool = False) -> QueueMap:
    """Topic, broker, queue: number; or, for logs, broker: number."""
    found = _json(name, text)
    if not isinstance(found, dict) or not found:
        raise _no_map(name, text)
    if not is_time and all(isinstance(value, int) and not isinstance(value, bool) for value in found.values()):
        return {QueueKey.of_log(broker): _offset(name, value) for broker, value in found.items()}
    parsed = {}
    for topic, brokers in found.items():
        if not isinstance(brokers, dict) or not brokers:
            raise _no_map(name, text)
        for broker, queues in brokers.items():
            if not isinstance(queues, dict) or not queues:
                raise _no_map(name, text)
            for queue, value in queues.items():
                if not _QUEUE_ID.fullmatch(queue):
                    raise _no_map(name, text)
                number = parse_time(name, str(value)) if is_time else _offset(name, value)
                parsed[QueueKey(topic, broker, int(queue))] = number
    return parsed


_QUEUE_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
"""One spelling of each, so that none is there twice."""


_MAP: Final = '{"topic": {"broker": {"0": 17}}}'


def _no_map(name: str, text: str) -> ConfigError:
    return ConfigError(f"option {name} is JSON such as {_MAP}, not {text!r}", key=name)


def _offset(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < OFFSET_EARLIEST:
        raise ConfigError(
            f"option {name}: an offset is a number from 0 on, -1 latest or -2 earliest, not {value!r}", key=name
        )
    return value


def _offsets(*words: str) -> Callable[[str, str], str | QueueMap]:
    """Return a parser of some words, or of offsets in JSON."""
    parse = one_of(*words, more=f" or JSON such as {_MAP}")
    return lambda name, text: _queue_map(name, text) if text.startswith("{") else parse(name, text)


def _secret_file(name: str, text: str) -> str:
    try:
        found = Path(text).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"option {name}: {text!r} cannot be read: {reason}", key=name) from None
    return nonempty(name, found)


def _secret_variable(name: str, text: str) -> str:
    found = os.environ.get(text, "")
    if not found:
        raise ConfigError(f"option {name}: there is no environment variable {text!r}, or it is empty", key=name)
    return found


AUTH_OPTIONS: Final[Mapping[str, tuple[str, Parser]]] = {
    "auth.accessKey": ("access_key", nonempty),
    "auth.secretKey": ("secret_key", nonempty),
    "auth.secretKeyFile": ("secret_key", _secret_file),
    "auth.secretKeyEnv": ("secret_key", _secret_variable),
}
"""Who reads or writes, where servers ask: the fields that they set, ``""`` where nobody is named, and their parsers."""


def option(parse: Parser, default: Any) -> Any:
    """Declare the field of an option."""
    return field(default=default, metadata={"parse": parse})


def declared_options(cls: type[Any]) -> dict[str, tuple[str, Parser]]:
    """Return every option of a class, as documents spell it, with the field that it sets and its parser."""
    own = {spelled(each.name): (each.name, each.metadata["parse"]) for each in fields(cls) if each.metadata}
    return {**own, **AUTH_OPTIONS}


def parse_options(
    options: Mapping[str, str], declared: Mapping[str, tuple[str, Parser]], hints: Mapping[str, str], use: str
) -> dict[str, Any]:
    """Return the fields that options set, as Spark hands them over: names in any case, values as texts.

    Args:
        hints: What to say of options that there are not, by their names in lower case, or by what these begin with.
        use: What the options are for.

    Raises:
        ConfigError: one is unknown, or has a value it cannot have, or two set one field.
    """
    names = {name.lower(): name for name in declared}
    given: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    for key, text in options.items():
        lowered = key.strip().lower()
        name = names.get(lowered)
        if name is None:
            hint = hints.get(lowered) or hints.get(lowered.partition(".")[0])
            more = f": {hint}" if hint else f"{suggest(key, declared)}; options are {', '.join(sorted(declared))}"
            raise ConfigError(f"there is no option {key!r} for {use}{more}", key=key)
        where, parse = declared[name]
        if where in given:
            raise ConfigError(f"options {given_by[where]} and {key} say one thing: use one of them", key=name)
        try:
            given[where], given_by[where] = parse(name, text.strip()), key
        except (ValueError, OverflowError, RecursionError) as error:  # of numbers, paths and JSON that nobody means
            raise ConfigError(f"option {name} cannot be read: {error}", key=name) from None
    return given


def require_both_keys(access_key: str, secret_key: str) -> None:
    """Refuse one of the two without the other.

    Raises:
        ConfigError: it is so.
    """
    if bool(access_key) != bool(secret_key):
        raise ConfigError("auth.accessKey goes with auth.secretKey (or auth.secretKeyFile, auth.secretKeyEnv)")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, from where to where, and how. Field names are the options' in snake case, each with its parser."""

    servers: str = option(nonempty, "")
    store: str = option(nonempty, "")
    broker_name: str = option(nonempty, "")
    topics: tuple[str, ...] | None = option(_names, None)
    topic_pattern: str | None = option(_pattern, None)
    assign: Mapping[str, Mapping[str, tuple[int, ...]]] | None = option(_assignment, None)
    scan: str = option(one_of("log"), "")
    columns: tuple[str, ...] = option(lambda _, text: parse_columns(text), DEFAULT_COLUMNS)
    tags: tuple[str, ...] | None = option(_tags, None)
    keys: tuple[str, ...] | None = option(_names, None)
    starting_offsets: str | Mapping[QueueKey, int] = option(_offsets(EARLIEST, LATEST, COMMITTED), "")
    starting_timestamp: int | None = option(parse_time, None)
    starting_offsets_by_timestamp: Mapping[QueueKey, int] | None = option(partial(_queue_map, is_time=True), None)
    starting_timestamp_strategy: str = option(one_of(ERROR, LATEST), ERROR)
    starting_fallback: str = option(one_of(LATEST, EARLIEST, ERROR), LATEST)
    ending_offsets: str | Mapping[QueueKey, int] = option(_offsets(LATEST), LATEST)
    ending_timestamp: int | None = option(parse_time, None)
    ending_offsets_by_timestamp: Mapping[QueueKey, int] | None = option(partial(_queue_map, is_time=True), None)
    group: str = option(nonempty, "")
    commit_offsets: bool = option(_flag, True)
    max_bytes_per_trigger: int = option(_size(0), 256 << 20)
    max_offsets_per_trigger: int = option(number(0), 0)
    min_offsets_per_trigger: int = option(number(0), 0)
    max_trigger_delay: int = option(number(0, parse=_duration_ms, what="a duration such as 500ms, 30s or 15m"), 900_000)
    """In ms."""
    max_bytes_per_partition: int = option(_size(0), 64 << 20)
    min_partitions: int = option(number(0), 0)
    max_records_per_partition: int = option(number(0), 0)
    coalesce_queues: bool | None = option(_flag_or_auto, None)
    fail_on_data_loss: bool = option(_flag, True)
    new_queues: str = option(one_of(EARLIEST, LATEST), EARLIEST)
    batch_rows: int = option(number(1), 65536)
    batch_bytes: int = option(_size(1, 1 << 30), 16 << 20)
    include_system_topics: bool = option(_flag, False)
    include_retry_topics: bool = option(_flag, False)
    verify_crc: bool = option(_flag, False)
    pull_batch_bytes: int = option(_size(64 << 10, 8 << 20), 4 << 20)
    pull_timeout_ms: int = option(
        number(1, 86_400_000, _timeout_ms, "a number of ms or a duration such as 30s"), 10_000
    )
    retries: int = option(number(0), 3)
    require_brokers: tuple[str, ...] = option(_names, ())
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the options that Spark was given.

        Raises:
            ConfigError: one is unknown, has a value it cannot have, or contradicts another.
        """
        if not options:
            raise ConfigError(
                f"name servers or store, and topics: there is no option at all; {TABLE_REMEDY}", key="servers"
            )
        found = cls(**parse_options(options, _OPTIONS, _HINTS, "reading"))
        found._check()
        return found

    def _check(self) -> None:
        if bool(self.servers) == bool(self.store):
            raise ConfigError(
                "name one of the options servers (host:9876 of a registry) and store (a store's folder)", key="servers"
            )
        chosen = [
            name
            for name, value in (
                ("topics", self.topics), ("topicPattern", self.topic_pattern), ("assign", self.assign),
                ("scan", self.scan or None),
            )
            if value is not None
        ]  # fmt: skip
        if len(chosen) != 1:
            raise ConfigError(
                "name one of the options topics, topicPattern, assign and scan=log, not "
                f"{' and '.join(chosen) or 'none'}",
                key="topics",
            )
        if self.group and not VALID_GROUP.fullmatch(self.group):
            raise ConfigError(
                f"option group: {self.group[:LONGEST_GROUP]!r} is no name of a consumer group: 1 to {LONGEST_GROUP} "
                "letters, digits and any of %|_.-",
                key="group",
            )
        if self.broker_name and not self.store:
            raise ConfigError("brokerName goes with store: brokers say their names themselves", key="brokerName")
        if self.require_brokers and self.store:
            raise ConfigError("requireBrokers goes with servers: a folder is the log of one", key="requireBrokers")
        require_both_keys(self.access_key, self.secret_key)
        if self.is_log_mode:
            self._check_log_mode()

    def _check_log_mode(self) -> None:
        """Refuse what counts or names messages of queues: positions are physical offsets."""
        for name, count, remedy in (
            ("maxOffsetsPerTrigger", self.max_offsets_per_trigger, "maxBytesPerTrigger"),
            ("minOffsetsPerTrigger", self.min_offsets_per_trigger, "the trigger's interval"),
            ("maxRecordsPerPartition", self.max_records_per_partition, "maxBytesPerPartition"),
        ):
            if count:
                raise ConfigError(
                    f"option {name} counts messages of queues, and a log is read by its bytes: {remedy} goes with "
                    "scan=log and with store",
                    key=name,
                )
        for name, value in (("startingOffsets", self.starting_offsets), ("endingOffsets", self.ending_offsets)):
            topics = [] if isinstance(value, str) else [key.topic for key in value if key.topic]
            if topics:
                raise ConfigError(
                    f"{name} of a log names physical offsets, {{broker: offset}}, not {{topic: ...}}: {topics[0]!r}",
                    key=name,
                )

    @property
    def is_log_mode(self) -> bool:
        """Whether positions are physical offsets of logs: ``scan=log``, and every read of a store's folder."""
        return bool(self.scan) or bool(self.store)

    @property
    def source(self) -> Source:
        """Where to read."""
        if self.store:
            return StoreSource(self.store, self.broker_name)
        return ServersSource(
            self.servers, self.access_key, self.secret_key, self.pull_timeout_ms, self.retries, self.group
        )

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is among those to read; asked for topics that a broker lists."""
        if self.topics is not None:
            return topic in self.topics
        if self.assign is not None:
            return topic in self.assign
        if not self.include_retry_topics and topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            return False
        # RocketMQ 5 makes some of its own whose names begin in its way.
        if not self.include_system_topics and (topic in BROKER_TOPICS or topic.startswith(_SYSTEM_PREFIXES)):
            return False
        return self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None

    def wants_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether a queue of such a topic is to be read."""
        return self.assign is None or queue_id in self.assign.get(topic, {}).get(broker, ())

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics given by name, None for a pattern or a whole log."""
        return tuple(self.assign) if self.assign is not None else self.topics

    def decoder_options(self) -> dict[str, Any]:
        """Return what the decoder needs to know, as its arguments."""
        return {
            "batch_rows": self.batch_rows,
            "batch_bytes": self.batch_bytes,
            "tags": self.tags,
            "keys": self.keys,
            "verify_crc": self.verify_crc,
            "start_ms": self.starting_timestamp,
            "end_ms": self.ending_timestamp,
            "system_topics": self.include_system_topics,
            "retry_topics": self.include_retry_topics,
        }


def without_catalogs(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without what Spark adds when CREATE TABLE asks for the columns: its own notes about the table."""
    if "provider" not in options:
        return dict(options)
    return {
        key: text
        for key, text in options.items()
        if key not in _OF_CATALOGS and not key.startswith(_OF_CATALOGS_PREFIX)
    }


def spelled(name: str) -> str:
    """Return how documents spell the option of a field: startingOffsets for starting_offsets."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


_OPTIONS: Final = {**declared_options(ReadOptions), "path": ("store", nonempty)}

_HINTS: Final = {
    "connectionsperexecutor": "a task has one connection to a broker; spark.executor.cores says how many there are",
    "readfrom": "messages are read from masters, slaves are not asked",
    "tls": "brokers and registries do not speak TLS",
    "subscribe": "topics are named by topics",
    "subscribepattern": "topics are named by topicPattern",
    "kafka.bootstrap.servers": "registries are named by servers",
    "kafka.group.id": "the name of a query is the option group",
    "kafka": "there is no Kafka client behind this format, and nothing of it to be set",
    "groupidprefix": "the name of a query is the option group",
    "includeheaders": "headers are the column properties, which columns or .schema(...) name",
}
"""Options of other sources, and of none yet."""

OPTION_NAMES: Final = tuple(_OPTIONS)
"""Every option for reading, as documents spell it."""
