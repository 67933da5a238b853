"""Which messages of a topic have a key: the index gives candidates, the log says which of them really do.

The index knows hashes of ``topic#key`` and seconds; here the records are read and held against topic, key and exact
times, and against what readers of their queues may see: nothing is found that is not durable as far as its topic
promises, or was hidden by the deletion of its topic. Runs in the index's thread: records may have to come from disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.format.record import SYS_PREPARED, check, decode
from headrace.store.commit_log import CommitLog
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.index import key_hash
from headrace.store.index_file import DAMAGED
from headrace.store.index_folder import IndexFolder

MAX_MS: Final = 2**63 - 1
MAX_MATCHES: Final = 64
"""RocketMQ's ``maxMsgsNumBatch``: no query returns more."""

MAX_EXAMINED: Final = 20_000
"""Records one query reads: a bound for keys that millions of messages of a deleted topic have."""

_CANDIDATES: Final = 64
_KEEP_OPEN: Final = 16
"""Files that stay open between queries: the newest."""

_LOST: Final = (errno.ENOENT, errno.EIO)
_FIRST_READ_BYTES: Final = 4096
_MAX_RECORD_BYTES: Final = 5 << 20
_KEYS: Final = b"KEYS"
_UNIQUE_KEY: Final = b"UNIQ_KEY"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyQuery:
    """What is looked for."""

    topic: str
    key: str
    max_count: int = MAX_MATCHES
    begin_ms: int = 0
    """Earliest store time."""
    end_ms: int = MAX_MS
    """Latest store time."""
    unique: bool = False
    """The key is a client's message id (UNIQ_KEY). Times do not count then: clients derive them from the id, and err by
    a time zone."""


@dataclass(kw_only=True, slots=True)
class KeyMatches:
    """What was found."""

    offsets: list[int] = field(default_factory=list)
    """Physical offsets of the records, newest first."""
    last_update_ms: int = 0
    """Store time of the newest record with any key: RocketMQ's ``indexLastUpdateTimestamp``."""
    last_update_offset: int = 0
    """Its physical offset: ``indexLastUpdatePhyoffset``."""
    covered_offset: int = 0
    """Records from this physical offset on were not looked at: the index is being brought up to the log."""
    is_complete: bool = True
    """Whether every record was looked at that was there when the query began."""


class KeySearch:
    """Finds messages of one store by their keys."""

    def __init__(self, log: CommitLog, queues: Mapping[tuple[str, int], ConsumeQueue], index: IndexFolder) -> None:
        self._log = log
        self._queues = queues
        self._index = index

    def find(self, query: KeyQuery) -> KeyMatches:
        """Return the newest matching messages. Blocks: call it in the index's thread.

        Raises:
            OSError: an index file or the log cannot be read.
        """
        index, log = self._index, self._log
        index.counters.queries += 1
        last_ms, last_offset = index.last_update
        found = KeyMatches(last_update_ms=last_ms, last_update_offset=last_offset, covered_offset=index.covered_offset)
        found.is_complete = found.covered_offset >= log.end_offset
        key = _encode(query.key)
        mark = b"%b\x01%b" % (_UNIQUE_KEY, key) if query.unique else key
        most = min(query.max_count, MAX_MATCHES) if key else 0
        seen: set[int] = set()
        for offset in self._candidates(query, key_hash(_encode(query.topic), key), found):
            if len(found.offsets) >= most:
                break
            if len(seen) >= MAX_EXAMINED:
                found.is_complete = False
                break
            if offset not in seen:
                seen.add(offset)
                if self._is_match(offset, query, key, mark):
                    found.offsets.append(offset)
        return found

    def _candidates(self, query: KeyQuery, hashed: int, found: KeyMatches) -> Iterator[int]:
        """Yield the physical offsets of entries with that hash, newest first."""
        begin_ms, end_ms = (0, MAX_MS) if query.unique else (query.begin_ms, query.end_ms)
        for age, file in enumerate(reversed(self._index.files)):
            if file.count <= 1 or file.begin_ms > end_ms or file.end_ms + 999 < begin_ms:
                continue
            try:
                number = file.first_of(hashed)
                while number > 0:
                    offsets, number = file.search(hashed, begin_ms, end_ms, number, _CANDIDATES)
                    yield from offsets
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                number = DAMAGED
            finally:
                if age >= _KEEP_OPEN:
                    file.release()
            if number == DAMAGED and file in self._index.files:
                found.is_complete = False
                self._index.report_damage(file)

    def _is_match(self, offset: int, query: KeyQuery, key: bytes, mark: bytes) -> bool:
        """Whether the message at an offset is wanted; ``mark`` are bytes that it has if it has the key.

        Most candidates lack them where the unique key that is asked for is among the KEYS of many: a look at the bytes
        takes a tenth of what checking and decoding the record does.
        """
        raw = self._read(offset)
        if mark not in raw or check(raw, 0, offset) != len(raw):
            return False
        record = decode(raw)
        if record["topic"] != query.topic:
            return False
        if not query.unique and not query.begin_ms <= record["store_timestamp_ms"] <= query.end_ms:
            return False
        if not _has_key(record["properties"], key, unique=query.unique):
            return False
        if record["sys_flag"] & SYS_PREPARED:
            return offset < self._log.durable_offset  # no queue lists it
        queue = self._queues.get((record["topic"], record["queue_id"]))
        return queue is not None and queue.min_offset <= record["queue_offset"] < queue.visible_offset

    def _read(self, offset: int) -> bytes:
        """Return the bytes of what should be a record, nothing where the log has none.

        With pread: a page fault would hold up every thread.
        """
        log = self._log
        segment = log.segments.get(offset // log.segment_bytes)
        if segment is None or not log.first_offset <= offset < log.end_offset:
            return b""
        position = offset - segment.first_offset
        raw = os.pread(segment.fd, _FIRST_READ_BYTES, position)
        size = int.from_bytes(raw[:4], "big")
        if len(raw) < size <= _MAX_RECORD_BYTES:
            raw += os.pread(segment.fd, size - len(raw), position + len(raw))
        return raw[:size]


def _encode(text: str) -> bytes:
    """Encode as records hold text: lone surrogates stand for bytes that are no UTF-8, others become "?"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _has_key(properties: bytes, key: bytes, *, unique: bool) -> bool:
    """Whether a record has the key; of a property that is there twice the last one counts."""
    values = {name: value for name, _, value in (piece.partition(b"\x01") for piece in properties.split(b"\x02"))}
    if values.get(_UNIQUE_KEY) == key:
        return True
    return not unique and key in values.get(_KEYS, b"").split(b" ")
