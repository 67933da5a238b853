"""Consumer groups: their settings, made by the first consumer or by a tool, kept in ``config/subscriptionGroup.json``.

A change is in the table at once and on disk as soon as a thread has written it (A-BROKER-27); ``when_saved`` tells
whoever must not answer before. Ref: docs/formats/config-files.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from headrace.broker.config_file import FileWriter, Saved, TableText, lacks_table
from headrace.broker.data_version import DataVersion, read_version
from headrace.errors import InvalidNameError, QuotaExceededError
from headrace.settings import BrokerSettings

logger = logging.getLogger(__name__)

FILE_NAME: Final = "subscriptionGroup.json"
_TABLE: Final = "subscriptionGroupTable"

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)
SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"

_MAX_RETRY_QUEUES: Final = 1_024
_INT32: Final = 1 << 31
# A group's name is part of topic names, which a record holds in 127 bytes and the file system as a folder.
_NAME = re.compile(r"[%|A-Za-z0-9_.-]{1,120}")


def require_group_name(name: str) -> None:
    """Refuse a name that no group may have.

    Raises:
        InvalidNameError: it is empty, too long, or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(name[:200], "a consumer group has 1 to 120 letters, digits and any of %|_.-")


def is_system_group(name: str) -> bool:
    """Return whether a group belongs to tools: it exists without being made, and listings leave it out."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_PREFIX)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """The settings of one consumer group (A-BROKER-28)."""

    name: str
    consume_enabled: bool = True
    """Whether its consumers may pull."""
    consume_from_min: bool = True
    """Whether it may begin at a queue's oldest message."""
    broadcast_enabled: bool = True
    """Whether its consumers may each read everything."""
    orderly: bool = False
    """Whether a tool said that it consumes in order."""
    retry_queues: int = 1
    """Queues of its retry topic; 0 or less: what fails is dropped."""
    retry_max_times: int = 16
    """Redeliveries before a message becomes a dead letter."""
    broker_id: int = 0
    """The broker of the master's name that is read from first; 0 is the master."""
    slow_broker_id: int = 1
    """The one it is sent to when it lags far behind."""
    notify_changes: bool = True
    """Whether its consumers are told when one comes or goes."""
    sys_flag: int = 0
    consume_timeout_minutes: int = 15

    def to_fields(self) -> dict[str, Any]:
        """Return the group as RocketMQ's JSON has it."""
        return {wire: getattr(self, own) for wire, own in _WIRE_NAMES.items()}

    @classmethod
    def from_fields(cls, given: Mapping[str, Any], default: SubscriptionGroup | None = None) -> SubscriptionGroup:
        """Read a group from JSON; members it does not have are ``default``'s, unknown ones are passed over.

        Raises:
            ValueError: a member has the wrong type or is out of range; the text names it.
        """
        group = default or cls("")
        changes = {}
        for wire, own in _WIRE_NAMES.items():
            value = given.get(wire)
            if value is not None:
                changes[own] = _convert(wire, value, type(getattr(group, own)))
        return replace(group, **changes)


_WIRE_NAMES: Final = {
    "groupName": "name",
    "consumeEnable": "consume_enabled",
    "consumeFromMinEnable": "consume_from_min",
    "consumeBroadcastEnable": "broadcast_enabled",
    "consumeMessageOrderly": "orderly",
    "retryQueueNums": "retry_queues",
    "retryMaxTimes": "retry_max_times",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "slow_broker_id",
    "notifyConsumerIdsChangedEnable": "notify_changes",
    "groupSysFlag": "sys_flag",
    "consumeTimeoutMinute": "consume_timeout_minutes",
}
assert set(_WIRE_NAMES.values()) == {field.name for field in fields(SubscriptionGroup)}


def _convert(name: str, value: Any, wanted: type) -> Any:
    """Return a member as the type it must have; as fastjson, numbers and booleans may come as text."""
    if wanted is str:
        if isinstance(value, str):
            return value
    elif wanted is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
    elif isinstance(value, int | str) and not isinstance(value, bool) and len(str(value)) < 12:
        try:
            number = int(value)
        except ValueError:
            number = _INT32
        if -_INT32 <= number < _INT32:
            return number
    raise ValueError(f"{name} = {str(value)[:40]!r} is not accepted: it must be a{_KINDS[wanted]}")


_KINDS: Final = {str: " text", bool: " boolean", int: " whole number of 32 bits"}


class GroupTable:
    """All consumer groups of one broker. ``load`` reads its file, ``tick`` and ``close`` write it."""

    def __init__(self, writer: FileWriter, settings: BrokerSettings) -> None:
        self.version = DataVersion()
        self.refused = 0
        self._settings = settings
        self._writer = writer
        self._text: TableText[SubscriptionGroup] = TableText(_TABLE, lambda name, group: group.to_fields())
        self._groups = {name: SubscriptionGroup(name) for name in sorted(SYSTEM_GROUPS)}

    def load(self) -> None:
        """Read the file: RocketMQ's form, or SmartGo's, which has the groups at the top (X-BROKER-03).

        Raises:
            SideFileError: it is damaged, and so is its copy.
        """
        content = self._writer.file.load(find_groups_fault)
        if content is None:
            return
        self.version = read_version(content)
        for name, group, fault in read_groups(content):
            if group is None:
                logger.warning("consumer group passed over path=%s key=%s error=%s", self._writer.path, name, fault)
            else:
                self._groups[group.name] = group

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return a group; None when there is none of that name."""
        return self._groups.get(name)

    def all(self) -> list[SubscriptionGroup]:
        """Return every group, those of tools included."""
        return list(self._groups.values())

    def ensure(self, name: str, now_ms: int) -> SubscriptionGroup:
        """Return a group, made now with the broker's defaults if it does not exist (A-BROKER-26).

        Raises:
            InvalidNameError, QuotaExceededError: it cannot be made.
        """
        found = self._groups.get(name)
        if found is not None:
            return found
        made = self.default(name)
        self.put(made, now_ms)
        return made

    def default(self, name: str) -> SubscriptionGroup:
        """Return a group as it would be made, without making it.

        Raises:
            InvalidNameError: no group may have that name.
        """
        require_group_name(name)
        settings = self._settings
        return SubscriptionGroup(
            name,
            consume_from_min=settings.group_consume_from_min,
            retry_queues=settings.group_retry_queues,
            retry_max_times=settings.group_retry_max_times,
        )

    def put(self, group: SubscriptionGroup, now_ms: int) -> bool:
        """Make or replace a group; return whether anything changed.

        Raises:
            InvalidNameError: no group may have that name.
            QuotaExceededError: there are ``broker.max_groups`` already, or its retry topic would have too many queues.
        """
        require_group_name(group.name)
        if group.retry_queues > _MAX_RETRY_QUEUES:
            self.refused += 1
            raise QuotaExceededError(f"retryQueueNums {group.retry_queues} is above the limit of {_MAX_RETRY_QUEUES}")
        known = self._groups.get(group.name)
        if known == group:
            return False
        if known is None and len(self._groups) - len(SYSTEM_GROUPS) >= self._settings.max_groups:
            self.refused += 1
            raise QuotaExceededError(
                f"the broker has its limit of {self._settings.max_groups} consumer groups (broker.max_groups)"
            )
        self._groups[group.name] = group
        self._note_change(now_ms)
        logger.info("consumer group %s group=%s", "created" if known is None else "changed", group.name)
        return True

    def remove(self, name: str, now_ms: int) -> bool:
        """Delete a group; return whether there was one."""
        if self._groups.pop(name, None) is None:
            return False
        if name in SYSTEM_GROUPS:
            self._groups[name] = SubscriptionGroup(name)  # they are always there, with their defaults
        self._note_change(now_ms)
        logger.info("consumer group deleted group=%s", name)
        return True

    def _note_change(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        self._writer.request(self._content)

    def _content(self) -> Callable[[], bytes]:
        """Return what builds the file's content as of now, in a thread."""
        version, groups = self.version, list(self._groups.items())
        return lambda: self._text.encode(version, groups)

    def when_saved(self, saved: Saved) -> None:
        """Call ``saved`` once every change made so far is on disk, at once when it is; with the error if it failed."""
        self._writer.when_saved(saved)

    def tick(self, now_ms: int) -> None:
        """Try a write again that failed."""
        self._writer.tick(now_ms)

    def close(self) -> None:
        """Write what is not on disk. Blocks."""
        if not self._writer.is_clean:
            self._writer.write_last(self._content(), "consumer groups not written, last changes lost")


def read_groups(content: Mapping[str, Any]) -> Iterator[tuple[str, SubscriptionGroup | None, str]]:
    """Yield the key of each row of the file, and its group or what is wrong with it: no broker can have written it."""
    table = content.get(_TABLE)
    rows = table if isinstance(table, dict) else {
        key: given for key, given in content.items() if key != "dataVersion" and isinstance(given, dict)
    }  # fmt: skip
    for key, given in rows.items():
        try:
            name = given.get("groupName") or key
            require_group_name(name)
            yield str(key), SubscriptionGroup.from_fields({**given, "groupName": name}), ""
        except AttributeError:
            yield str(key), None, "it is no object"
        except (InvalidNameError, ValueError, TypeError) as error:
            yield str(key), None, str(error)


def find_groups_fault(content: Mapping[str, Any]) -> str:
    """Say what the content of the file lacks: RocketMQ's table, or SmartGo's groups at the top."""
    if any(isinstance(given, dict) and "groupName" in given for given in content.values()):
        return ""
    return lacks_table(content, _TABLE)
