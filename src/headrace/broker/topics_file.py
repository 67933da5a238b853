"""``config/topics.json``: what topics exist, in RocketMQ's form, for its tools and for people.

The catalog is what counts; this file is written behind it, at most 100 ms late or before a tool's change is answered,
and never read by a start on a store of ours. ``read_topics`` reads the files of RocketMQ and SmartGo.
Ref: docs/formats/config-files.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from headrace.broker.config_file import ConfigFile, FileWriter, Saved, TableText, lacks_table
from headrace.broker.data_version import DataVersion, read_version
from headrace.broker.topic import Topic, TopicConfig
from headrace.format.names import CONTROL_TOPIC, MAX_QUEUES, MAX_TOPIC_BYTES

logger = logging.getLogger(__name__)

FILE_NAME: Final = "topics.json"

OLD_FILE_NAME: Final = "topic.json"

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")

_MAX_FLAGS: Final = (1 << 31) - 1
"""Of an int of Java's: a registry refuses all topics of a broker that tells it more of one."""
_NAME: Final = re.compile(r"[%|A-Za-z0-9_.-]{1," + str(MAX_TOPIC_BYTES) + "}")
"""What clients of any protocol can spell."""


class TopicsFile:
    """The writer of one broker's file. Invariant: ``_written`` is the version of the newest content asked for.

    What raises no version is not in it (ephemeral topics), or there before the first write (the broker's own).
    """

    def __init__(self, writer: FileWriter, topics: Mapping[str, Topic], version: Callable[[], DataVersion]) -> None:
        self._writer = writer
        self._topics = topics
        self._version = version
        self._text: TableText[TopicConfig] = TableText("topicConfigTable", topic_fields)
        self._written: DataVersion | None = None

    def tick(self, now_ms: int) -> None:
        """Have the file written when topics changed since the last time; changes during a write go together."""
        if self._version() != self._written and not self._writer.is_running:
            self._writer.request(self._content)
        self._writer.tick(now_ms)

    def when_saved(self, saved: Saved) -> None:
        """Have what changed written now; call ``saved`` when it is on disk, or could not be written."""
        if self._version() != self._written:
            self._writer.request(self._content)
        self._writer.when_saved(saved)

    def _content(self) -> Callable[[], bytes]:
        self._written = version = self._version()
        configs = [
            (name, topic.config)
            for name, topic in self._topics.items()
            if not topic.ephemeral and name != CONTROL_TOPIC
        ]
        return lambda: self._text.encode(version, configs)

    def close(self) -> None:
        """Write what is not on disk. Blocks."""
        if self._version() != self._written or not self._writer.is_clean:
            self._writer.write_last(self._content(), "topics file not written")


def topic_fields(name: str, config: TopicConfig) -> dict[str, Any]:
    """Return a topic's configuration as RocketMQ's JSON has it."""
    return {
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": config.filter_type,
        "topicName": name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


def read_topics(folder: Path) -> tuple[dict[str, TopicConfig | None], DataVersion]:
    """Return the topics of a RocketMQ or SmartGo broker from its ``config`` folder; none when it has no such file.

    A topic whose configuration no broker can have written has None, one whose name none can have is left out; both are
    named in a warning.

    SmartGo's may be called ``topic.json``, have its table within a table of the same name, and numbers for filter types
    (X-BROKER-01, 02).

    Raises:
        SideFileError: the file is damaged, and so is its copy.
    """
    found = (ConfigFile(folder, name).read(find_topics_fault) for name in (FILE_NAME, OLD_FILE_NAME))
    content: dict[str, Any] = next(filter(None, found), {"topicConfigTable": {}})
    table = content["topicConfigTable"]
    if isinstance(table.get("topicConfigTable"), dict):
        table = table["topicConfigTable"]
    configs: dict[str, TopicConfig | None] = {}
    for key, given in table.items():
        name, config, fault = _read_row(key, given)
        if fault:
            logger.warning("topic passed over folder=%s topic=%s error=%s", folder, key, fault)
        if name is not None:
            configs[name] = config
    return configs, read_version(content)


def find_topics_fault(content: Mapping[str, Any]) -> str:
    """Say what the content of a file of topics lacks."""
    return lacks_table(content, "topicConfigTable")


def _read_row(key: str, given: Any) -> tuple[str | None, TopicConfig | None, str]:
    """Return a topic's name and configuration, each None where it cannot be, and what is wrong."""
    named = given.get("topicName") if isinstance(given, dict) else None
    name = named if isinstance(named, str) and named else key
    if _NAME.fullmatch(name) is None:
        return None, None, f"a topic has 1 to {MAX_TOPIC_BYTES} letters, digits and any of %|_.-"
    try:
        return name, _read_config(given), ""
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        return name, None, str(error)


def _read_config(given: Mapping[str, Any]) -> TopicConfig:
    read_queues, write_queues = int(given.get("readQueueNums", 16)), int(given.get("writeQueueNums", 16))
    if min(read_queues, write_queues) < 0 or not 0 < max(read_queues, write_queues) <= MAX_QUEUES:
        raise ValueError(f"it has {read_queues} and {write_queues} queues")
    filter_type = given.get("topicFilterType", 0)
    if not isinstance(filter_type, str):
        filter_type = FILTER_TYPES[filter_type]
    return TopicConfig(
        read_queues,
        write_queues,
        perm=_read_flags(given, "perm", 6),
        sys_flag=_read_flags(given, "topicSysFlag", 0),
        order=given.get("order") in (True, "true"),
        filter_type=filter_type,
    )


def _read_flags(given: Mapping[str, Any], name: str, default: int) -> int:
    flags = int(given.get(name, default))
    if not 0 <= flags <= _MAX_FLAGS:
        raise ValueError(f"{name} is {flags}")
    return flags
