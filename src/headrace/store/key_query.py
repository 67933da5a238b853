"""Which messages of a topic have a key: the index gives candidates, the log says which of them really do.

The index knows hashes of ``topic#key`` and seconds; here the records are read and held against topic, key and exact
times, and against what readers of their queues may see: nothing is found that is not durable as far as its topic
promises, or was hidden by the deletion of its topic. Runs in the index's thread: records may have to come from disk.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from headrace.store.commit_log import CommitLog
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.index import key_hash
from headrace.store.index_file import DAMAGED
from headrace.store.index_folder import IndexFolder
from headrace.store.key_match import KeyMatcher
from headrace.store.segment import Segment

MAX_MS: Final = 2**63 - 1
MAX_MATCHES: Final = 64
"""RocketMQ's ``maxMsgsNumBatch``: no query returns more."""

MAX_EXAMINED: Final = 20_000
"""Records one query reads: a bound for keys that millions of messages of a deleted topic have."""

_AT_ONCE: Final = 64
"""Candidates looked at in one go, without the GIL."""
_KEEP_OPEN: Final = 16
"""Files that stay open between queries: the newest."""

_LOST: Final = (errno.ENOENT, errno.EIO)


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
        topic, key = _encode(query.topic), _encode(query.key)
        most = min(query.max_count, MAX_MATCHES) if key else 0
        matcher = KeyMatcher(topic, key, query.begin_ms, query.end_ms, unique=query.unique)
        seen: set[int] = set()
        candidates = self._candidates(query, key_hash(topic, key), found)
        at_once = most  # of most keys every candidate is a match
        while len(found.offsets) < most:
            wanted = list(islice(candidates, max(1, min(at_once, MAX_EXAMINED - len(seen)))))
            if not wanted:
                break
            if len(seen) >= MAX_EXAMINED:
                found.is_complete = False
                break
            new = [offset for offset in dict.fromkeys(wanted) if offset not in seen]
            seen.update(new)
            places = [place for offset in new if (place := self._place(offset)) is not None]
            visible = [match[0] for match in matcher.match(places) if self._is_visible(query.topic, *match)]
            found.offsets += visible[: most - len(found.offsets)]
            at_once = _AT_ONCE
        return found

    def _candidates(self, query: KeyQuery, hashed: int, found: KeyMatches) -> Iterator[int]:
        """Yield the physical offsets of entries with that hash, newest first."""
        begin_ms, end_ms = (0, MAX_MS) if query.unique else (query.begin_ms, query.end_ms)
        for age, file in enumerate(reversed(self._index.files)):
            reason = "entries or slots that cannot be"
            if file.count <= 1 or file.begin_ms > end_ms or file.end_ms + 999 < begin_ms:
                continue
            try:
                number = file.first_of(hashed)
                while number > 0:
                    offsets, number = file.search(hashed, begin_ms, end_ms, number, _AT_ONCE)
                    yield from offsets
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                number, reason = DAMAGED, str(error.strerror)
            finally:
                if age >= _KEEP_OPEN:
                    file.release()
            if number == DAMAGED and file in self._index.files:
                found.is_complete = False
                self._index.report_damage(file, reason)

    def _place(self, offset: int) -> tuple[Segment, int] | None:
        """Return where a record should be; None where the log has none."""
        log = self._log
        segment = log.segments.get(offset // log.segment_bytes)
        return (segment, offset) if segment is not None and log.first_offset <= offset < log.end_offset else None

    def _is_visible(self, topic: str, offset: int, queue_id: int, queue_offset: int, is_prepared: bool) -> bool:
        if is_prepared:
            return offset < self._log.durable_offset  # no queue lists it
        queue = self._queues.get((topic, queue_id))
        return queue is not None and queue.min_offset <= queue_offset < queue.visible_offset


def _encode(text: str) -> bytes:
    """Encode as records hold text: lone surrogates stand for bytes that are no UTF-8, others become "?"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
