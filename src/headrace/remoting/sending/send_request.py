"""The header of a send, whichever of its two spellings.

Ref: remoting.md 2.5, 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.format.record import properties_of
from headrace.remoting import fields
from headrace.remoting.codes import FIRST_VERSION_WITH_OWN_RETRY_LIMIT, RequestCode, ResponseCode
from headrace.remoting.reply import RequestRefusedError

if TYPE_CHECKING:
    from headrace.remoting.codec import Command

SHORT_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_LONG: Final = {name: name for name in SHORT_NAMES}
_WITH_LONG_NAMES: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

# What the broker sets itself, or that means something to it alone; and WAIT, which is an order and not data.
_DROPPED: Final = ("WAIT", "CLUSTER", "__BATCH#", "__CRC32#", "TIMER_OUT_MS")


MAX_PROPERTIES_BYTES: Final = 32_767
MAX_GIVEN_BYTES: Final = 2 * MAX_PROPERTIES_BYTES
"""Longest properties that are looked at: some of them are not stored."""


@dataclass(slots=True)
class SendRequest:
    """One send as the client means it."""

    group: str
    topic: str
    default_topic: str
    default_queues: int
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    properties: dict[str, str]
    reconsume_times: int
    max_reconsume_times: int | None
    """What the client wants for its retry topic; None when it is too old to say."""
    is_unit: bool
    """Whether its producer is in unit mode: a topic made for it says so."""
    is_batch: bool
    body: bytes

    @property
    def is_prepared(self) -> bool:
        """Whether it is a half message."""
        return self.properties.get("TRAN_MSG", "").lower() == "true"


def read_send(command: Command) -> SendRequest:
    """Read the header of code 10, 310, 320, 324 or 325.

    Raises:
        RequestRefusedError: a field is missing, malformed or too long; the remark names it.
    """
    ext = command.ext
    names = _LONG if command.code in _WITH_LONG_NAMES else SHORT_NAMES
    properties = ext.get(names["properties"], "").encode("utf-8", "surrogateescape")
    if len(properties) > MAX_GIVEN_BYTES:  # before they are parsed, which takes 0.1 s a MiB
        raise RequestRefusedError(
            f"the properties have {len(properties)} bytes, no message may have more than {MAX_PROPERTIES_BYTES}",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    own_limit = _optional(ext, names, "maxReconsumeTimes")
    return SendRequest(
        group=fields.text(ext, names["producerGroup"]),
        topic=fields.text(ext, names["topic"]),
        default_topic=fields.present(ext, names["defaultTopic"]),
        default_queues=fields.number(ext, names["defaultTopicQueueNums"], most=fields.MAX_I32),
        queue_id=fields.number(ext, names["queueId"], most=fields.MAX_I32),
        sys_flag=fields.number(ext, names["sysFlag"], most=fields.MAX_I32),
        born_ms=fields.number(ext, names["bornTimestamp"]),
        flag=fields.number(ext, names["flag"], most=fields.MAX_I32),
        properties=properties_of(properties),
        reconsume_times=_optional(ext, names, "reconsumeTimes") or 0,
        max_reconsume_times=own_limit if command.version >= FIRST_VERSION_WITH_OWN_RETRY_LIMIT else None,
        is_unit=fields.flag(ext, names["unitMode"]),
        is_batch=command.code == RequestCode.SEND_BATCH_MESSAGE or fields.flag(ext, names["batch"]),
        body=command.body,
    )


def _optional(ext: Mapping[str, str], names: Mapping[str, str], field: str) -> int | None:
    """Return a number that need not be there. One that is empty is none, but for a short name: there it is malformed.

    Raises:
        RequestRefusedError: it is malformed or out of range.
    """
    value = ext.get(names[field])
    if value is None or (not value and names is _LONG):
        return None
    return fields.number(ext, names[field], most=fields.MAX_I32)


def stored_properties(given: Mapping[str, str], cluster: str) -> dict[str, str]:
    """Return the properties a message is stored with (remoting.md 2.5)."""
    kept = {name: value for name, value in given.items() if name not in _DROPPED}
    kept["CLUSTER"] = cluster
    return kept
