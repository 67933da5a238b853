"""A message as an object that was read from the log: what tests look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.broker.message import Message
from headrace.format import record
from headrace.format.record import SYS_BORN_V6, SYS_STORE_V6

_OF_THE_RECORD: Final = ("__CRC32#", "__BATCH#")
_BORN_HOST_AT: Final = 48


@dataclass(slots=True)
class StoredMessage(Message):
    """A message that was read from the log, and where it stands there."""

    physical_offset: int = -1
    queue_offset: int = -1
    store_ms: int = 0
    message_id: str = ""

    @classmethod
    def from_record(cls, raw: bytes) -> StoredMessage:
        """Read a whole record.

        Raises:
            ValueError: it is none.
        """
        fields = record.decode(raw)
        sys_flag = fields["sys_flag"]
        is_v6 = bool(sys_flag & SYS_BORN_V6)
        born_end = _BORN_HOST_AT + (20 if is_v6 else 8)
        born = raw[_BORN_HOST_AT:born_end]
        store_host = raw[born_end + 8 : born_end + 8 + (20 if sys_flag & SYS_STORE_V6 else 8)]
        properties = record.properties_of(fields["properties"])
        for name in _OF_THE_RECORD:
            properties.pop(name, None)
        return cls(
            topic=fields["topic"],
            queue_id=fields["queue_id"],
            body=fields["body"],
            properties=properties,
            flag=fields["flag"],
            sys_flag=sys_flag,
            born_ms=fields["born_timestamp_ms"],
            born_host=0 if is_v6 else int.from_bytes(born, "big"),
            born_v6=born if is_v6 else None,
            reconsume_times=fields["reconsume_times"],
            prepared_offset=fields["prepared_offset"],
            physical_offset=fields["physical_offset"],
            queue_offset=fields["queue_offset"],
            store_ms=fields["store_timestamp_ms"],
            message_id=record.message_id(store_host, fields["physical_offset"]),
        )
