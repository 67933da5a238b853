"""Every exception Headrace raises on purpose.

Facts are attributes, so that a protocol folder can map a class to its wire code and a test can look at the numbers
without parsing text. ``str(error)`` names the thing and the remedy.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

Row = TypeVar("Row")

MEMORY_REMEDY: Final = "give the process more memory, or address space (ulimit -v, vm.max_map_count)"

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class HeadraceError(Exception):
    """Base of all errors of this package."""


class ConfigError(HeadraceError):
    """A setting is wrong: the text names the key, the value and what is accepted."""

    def __init__(self, message: str, *, key: str = "", origin: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.origin = origin


class NoThreadError(HeadraceError):
    """The system starts no more threads for this process."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"cannot start the thread {name}: raise the limit of processes (ulimit -u, or pids.max of the container), "
            "or give the process more memory"
        )


class NoLoopError(HeadraceError):
    """The system refuses this process what an event loop needs: a descriptor, memory, or one more socket to watch."""

    def __init__(self, error: OSError) -> None:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            remedy = remedy_for(error)
        elif error.errno == errno.ENOSPC:
            remedy = "raise fs.epoll.max_user_watches (sysctl)"
        else:
            remedy = "see to the limits of this user and container"
        super().__init__(f"the event loop cannot run: {error.strerror or error}; {remedy}")


class ProtocolError(HeadraceError):
    """The peer broke the wire protocol.

    Attributes:
        fatal: Whether the connection must be dropped.
        start: The first bytes of what was refused, where they can be another protocol's.
    """

    def __init__(self, message: str, *, fatal: bool = True, start: bytes = b"") -> None:
        super().__init__(message)
        self.fatal = fatal
        self.start = start


class RequestError(HeadraceError):
    """A well-formed request that is refused."""


class TopicNotFoundError(RequestError):
    """The topic does not exist; the text names the nearest of ``known``, where the one who asked may be told them."""

    def __init__(self, topic: str, known: Iterable[str] = ()) -> None:
        near = difflib.get_close_matches(topic, sorted(known), n=1, cutoff=0.5)
        super().__init__(f"topic {topic!r} does not exist" + (f": did you mean {near[0]!r}?" if near else ""))
        self.topic = topic


class ChannelNotFoundError(RequestError):
    """The topic has no such channel."""

    def __init__(self, topic: str, channel: str) -> None:
        super().__init__(f"topic {topic!r} has no channel {channel!r}")
        self.topic = topic
        self.channel = channel


class InvalidNameError(RequestError):
    """A topic or channel name breaks the rules of the log."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"name {name!r} is not valid: {rule}")
        self.name = name


class MessageTooLargeError(RequestError):
    """One message, its properties or its whole record is above a limit."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{what} of {size_bytes} bytes is above the limit of {limit_bytes} bytes")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class NotInFlightError(RequestError):
    """The message is not in flight for this consumer."""


class TooManyConsumersError(RequestError):
    """The channel has as many consumers as nsq.max_channel_consumers allows."""

    def __init__(self, topic: str, channel: str, limit: int) -> None:
        super().__init__(f"consumers for {topic}:{channel} exceeds limit of {limit}")
        self.limit = limit


class InvalidFilterError(RequestError):
    """A filter expression is not valid; ``position`` is where in its text, -1 where that says nothing."""

    def __init__(self, reason: str, *, position: int = -1) -> None:
        where = f" at character {position + 1}" if position >= 0 else ""
        super().__init__(f"filter expression is not valid{where}: {reason}")
        self.position = position


class MessageNotFoundError(RequestError):
    """The log has no such message at a physical offset, or not the one that was meant."""

    def __init__(self, physical_offset: int, reason: str = "") -> None:
        super().__init__(f"can not find message by the offset, {physical_offset}" + (f": {reason}" if reason else ""))
        self.physical_offset = physical_offset


class InvalidDelayError(RequestError):
    """The time at which a message is to be delivered is no time, or beyond broker.max_delay_ms."""


class OffsetOutOfRangeError(RequestError):
    """An offset or queue id that no queue can have."""

    def __init__(self, queue_id: int, offset: int) -> None:
        super().__init__(f"offset {offset} of queue {queue_id} is not valid: both are whole numbers from 0 on")
        self.queue_id = queue_id
        self.offset = offset


class QuotaExceededError(RequestError):
    """A configured bound is reached; the text names the setting."""


class AccessDeniedError(RequestError):
    """The peer may not do this, or did not prove who it is; the text never says what a secret should have been."""


class ClosingError(RequestError):
    """The topic, channel or broker is being closed or deleted."""


class StoreError(HeadraceError):
    """The store cannot do what was asked."""


class CorruptRecordError(StoreError):
    """Bytes in the log are not the record they should be."""

    def __init__(self, message: str, *, physical_offset: int = -1) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset


class QueueNotFoundError(StoreError):
    """The store has no such consume queue."""


class StoreFullError(StoreError):
    """There is no room for the next segment; nothing of the batch was written."""


class NoMemoryError(StoreError):
    """The system gives this process no memory for a batch; nothing of it was written."""

    def __init__(self) -> None:
        super().__init__(f"no memory for the batch: {MEMORY_REMEDY}")


class FlushError(StoreError):
    """fdatasync failed, or a refused batch could not be taken back: the store takes no more writes until a restart."""

    def __init__(self, path: str | Path, errno: int, what: str = "fdatasync of") -> None:
        super().__init__(
            f"{what} {path} failed: {os.strerror(errno)}; the store takes no more writes: "
            f"{remedy_for(OSError(errno, ''))}, then restart the broker"
        )
        self.path = str(path)
        self.errno = errno


class UnsyncedError(StoreError):
    """A file beside the log could not be synced: nobody knows what of it is on disk."""

    def __init__(self, path: str | Path, errno: int | None, effect: str) -> None:
        super().__init__(f"cannot sync {path}: {os.strerror(errno or 0)}; {effect}")


class UnreadableError(StoreError):
    """The system refuses a file of the store to a reader; what it holds may be read again when that is over."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot read {error.filename}: {error.strerror}; {remedy_for(error)}")


class ReplacedFolderError(OSError):
    """Another folder stands at the path of one that this process holds: what goes by that path would mix the two."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(errno.ESTALE, "its directory was replaced by another one", str(path))


class ReplacedStoreError(StoreError):
    """Another directory stands in the place of the store's: it takes no more writes until a restart."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(
            f"{path} is not the directory that this broker has opened: another one was put in its place; the store "
            "takes no more writes, and nothing is written there: see to it that the right one is there, then restart "
            "the broker; what it had acknowledged is in the one that was moved away"
        )
        self.path = str(path)


class RemovedSegmentError(StoreError):
    """The segment that is written to was removed: nobody finds it when this process has ended."""

    def __init__(self, path: str, descriptor: int) -> None:
        super().__init__(
            f"{path} was removed while the broker writes to it; the store takes no more writes: copy "
            f"/proc/{os.getpid()}/fd/{descriptor} there before it ends, else what it holds is lost; then restart"
        )


class StoreClosedError(StoreError):
    """The store is closed."""


class StoreLockedError(StoreError):
    """Another live process owns the store."""


class ForeignStoreError(StoreError):
    """The directory holds something that is not a Headrace store."""


class FormatVersionError(StoreError):
    """The store was written by a newer format version."""


class SideFileError(StoreError):
    """A side file is damaged and cannot be rebuilt from the log."""

    def __init__(self, path: str | Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = str(path)


class ClientError(HeadraceError):
    """A client library call failed."""


class RouteNotFoundError(ClientError):
    """No registry that was asked knows of a broker with the topic, or of the broker."""

    def __init__(self, name: str, servers: str) -> None:
        super().__init__(f"no route to {name!r}: the registries {servers} know of none")
        self.name = name
        self.servers = servers


class RemotingRefusedError(ClientError):
    """A server answered with an error code of the RocketMQ protocol; ``remark`` is what it says about it."""

    def __init__(self, code: int, remark: str, address: str) -> None:
        super().__init__(f"{address} refused with code {code}: {remark or 'no reason given'}")
        self.code = int(code)
        self.remark = remark
        self.address = address


class RequestTimeoutError(ClientError):
    """No answer came in time; whether the request was carried out is not known."""

    def __init__(self, address: str, what: str, timeout_s: float) -> None:
        super().__init__(f"{address} did not answer {what} within {timeout_s:g} s")
        self.address = address
        self.timeout_s = timeout_s


class ConnectionLostError(ClientError):
    """The connection could not be made, or was lost before the answer came."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"no connection to {address}: {reason}")
        self.address = address
        self.reason = reason


class NotConnectedError(ConnectionLostError):
    """The connection could not be made: nothing was sent."""


class InvalidRowError(ClientError):
    """A row of a DataFrame that cannot be written as a message; rows of a partition are counted from 0."""

    def __init__(self, partition: int, row: int, column: str, reason: str) -> None:
        self.reason = f"column {column!r} {reason}"
        super().__init__(f"row {row} of partition {partition}: {self.reason}")
        self.partition = partition
        self.row = row
        self.column = column


class InternalError(HeadraceError):
    """A bug of ours: logged with its traceback; the request fails, the process lives."""


def row_of(table: Mapping[type[HeadraceError], Row], error: HeadraceError) -> Row:
    """Return what ``table`` has for the error: the row of its class, else that of the nearest base.

    Raises:
        KeyError: neither has one; a protocol's table has a row for every base that its core raises.
    """
    for cls in type(error).__mro__:
        if cls in table:
            return table[cls]
    raise KeyError(type(error).__name__)


def remedy_for(error: OSError) -> str:
    """Say what helps against what the system refused to do with a file."""
    if error.errno in DISK_FULL:
        return "make room on its disk"
    if error.errno == errno.ENOENT:
        return "put it back, or restore the store from a backup"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n)"
    if error.errno == errno.EFBIG:
        return "raise the limit of file sizes (ulimit -f)"
    if error.errno == errno.ENOMEM:
        return MEMORY_REMEDY
    if error.errno == errno.ESTALE:  # of ReplacedFolderError, or a network file system's own
        return "see to it that the right directory is there, then restart the broker"
    if error.errno == errno.ENODEV:  # of mmap
        return "use a file system that maps files into memory, as that of a local disk does"
    return "see to the disk and to whose the files are"


def one_line(text: str) -> str:
    """Spell what is not printable as Python does: for errors, comments and log lines, whatever a name in them holds."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
