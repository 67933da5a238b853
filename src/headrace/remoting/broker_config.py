"""The broker's configuration as RocketMQ's tools read and change it: ``key=value`` lines with RocketMQ's keys.

Only what is in ``CHANGEABLE`` can be changed, until the next start. Every other key that is shown is refused, paths
and commands among them; keys that Headrace does not know are ignored, as RocketMQ ignores them.

Ref: remoting.md 4.7.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.broker.data_version import DataVersion
from headrace.errors import RequestError
from headrace.format.names import TRACE_TOPIC
from headrace.remoting.topics import template_queues

if TYPE_CHECKING:
    from headrace.remoting.services import Services
    from headrace.settings.tree import Durability

logger = logging.getLogger(__name__)

_PERMISSIONS: Final = ("2", "4", "6")
BLACK_LIST: Final = "configBlackList"
"""Where RocketMQ has the keys that may not be changed; itself one of them."""
_FOREVER_HOURS: Final = 0x7FFFFFFF
"""Messages are not removed for their age."""
MAX_BYTES: Final = 64 * 1024
_FLUSH_TYPES: Final[Mapping[Durability, str]] = {"fsync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}


class ConfigRefusedError(RequestError):
    """A key that may not be changed, or a value that is not accepted."""


class BrokerConfig:
    """Reads and changes the configuration of one broker.

    Attributes:
        version: Rises with each change.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self.version = DataVersion(services.started_ms, 0)

    def read(self) -> dict[str, str]:
        """Return what tools are shown, by RocketMQ's keys; ``flushDiskType.TOPIC`` is of a topic with its own level."""
        services = self._services
        broker, settings = services.broker, services.settings
        store = broker.store
        host, _, port = services.address.rpartition(":")
        values: dict[str, str | int | bool] = {
            "brokerName": broker.name,
            "brokerClusterName": settings.cluster,
            "brokerId": 0,
            "brokerIP1": host,
            "listenPort": port,
            "brokerRole": "ASYNC_MASTER",
            "brokerPermission": services.permission,
            "autoCreateTopicEnable": services.auto_create_topics,
            "autoCreateSubscriptionGroup": services.auto_create_groups,
            "defaultTopicQueueNums": template_queues(settings),
            "maxMessageSize": settings.max_message_bytes,
            "maxTransferCountOnMessageInMemory": settings.max_pull_messages,
            "maxTransferBytesOnMessageInMemory": settings.max_pull_bytes,
            "storeReplyMessageEnable": settings.store_replies,
            "longPollingEnable": services.long_polling,
            "enablePropertyFilter": True,
            "msgTraceTopicName": TRACE_TOPIC,
            "messageDelayLevel": broker.settings.delay_levels,
            "transactionTimeOut": broker.settings.transaction_timeout_ms,
            "transactionCheckMax": broker.settings.transaction_check_max,
            "transactionCheckInterval": broker.settings.transaction_check_interval_ms,
            "fileReservedTime": _FOREVER_HOURS,
            "filterServerNums": 0,
            "slaveReadEnable": False,
            "traceOn": True,
            "traceTopicEnable": True,
            "useTLS": False,
            "flushDiskType": _FLUSH_TYPES[store.settings.durability],
            "flushIntervalCommitLog": store.settings.flush_interval_ms,
            "mappedFileSizeCommitLog": store.log.segment_bytes,
            "mappedFileSizeConsumeQueue": store.files.file_bytes,
            "namesrvAddr": broker.settings.registries.replace(",", ";"),
            **{
                f"flushDiskType.{topic}": _FLUSH_TYPES[own.durability]
                for topic, own in store.settings.topics.items()
                if own.durability is not None
            },
        }
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in sorted(values.items())
        }

    def change(self, text: str) -> None:
        """Take ``key=value`` lines; all of them or none.

        Raises:
            ConfigRefusedError: a key may not be changed, or its value is not accepted.
        """
        changes: dict[str, Callable[[], None]] = {}
        unknown: list[str] = []
        known = self.read()
        for key, value in parse_properties(text).items():
            if key in CHANGEABLE:
                changes[key] = CHANGEABLE[key](self._services, value)
            elif known.get(key) == value:
                continue
            elif key in known or key == BLACK_LIST or "path" in key.lower() or "home" in key.lower():
                raise ConfigRefusedError(
                    f"{key} cannot be changed while the broker runs; what can: {', '.join(CHANGEABLE)}"
                )
            else:
                unknown.append(key)
        if unknown:
            logger.warning("unknown configuration keys ignored count=%d first=%s", len(unknown), unknown[0][:64])
        for change in changes.values():
            change()
        if changes:
            self.version = self.version.next(self._services.clock.now_ms())
            logger.info("configuration changed by a tool keys=%s", ",".join(changes))


def parse_properties(text: str) -> dict[str, str]:
    """Read Java properties: a line for each, without continuation lines."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", "!")):
            found[key.strip()] = value.strip()
    return found


def _flag(attribute: str) -> Callable[[Services, str], Callable[[], None]]:
    def check(services: Services, value: str) -> Callable[[], None]:
        if value.lower() not in ("true", "false"):
            raise ConfigRefusedError(f"{value[:64]!r} is not accepted: true or false")
        return lambda: setattr(services, attribute, value.lower() == "true")

    return check


def _permission(services: Services, value: str) -> Callable[[], None]:
    if value not in _PERMISSIONS:
        raise ConfigRefusedError(f"brokerPermission {value[:64]!r} is not accepted: 2 write, 4 read, or 6 both")
    permission = int(value)

    def change() -> None:
        services.permission = permission
        services.on_permission_changed()

    return change


CHANGEABLE: Final[Mapping[str, Callable[[Services, str], Callable[[], None]]]] = {
    "autoCreateTopicEnable": _flag("auto_create_topics"),
    "autoCreateSubscriptionGroup": _flag("auto_create_groups"),
    "brokerPermission": _permission,
    "longPollingEnable": _flag("long_polling"),
}
