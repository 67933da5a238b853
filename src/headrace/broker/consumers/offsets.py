"""Committed offsets of consumer groups: the next queue offset that a group reads in each queue.

In memory, and every ``broker.offsets_interval_ms`` in ``config/consumerOffset.json`` if one changed (A-BROKER-24). The
text of each topic and group is kept, and only that of changed ones is made anew, so a write costs what changed.

A reset (by a tool) wins over consumers that have not heard of it yet: until the group pulls from the queue again,
commits to it are ignored, and the first pull from another place learns where to go on (``take_reset``). Resets that
wait are in the file too. Ref: docs/formats/config-files.md; spec of the reset: RocketMQ 5, ``assignResetOffset``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.broker.config_file import Build, FileWriter, Saved, lacks_table
from headrace.errors import InvalidNameError, OffsetOutOfRangeError, QuotaExceededError
from headrace.format.names import DECIDED_GROUP, TEMPLATE_TOPICS
from headrace.settings import BrokerSettings

logger = logging.getLogger(__name__)

FILE_NAME: Final = "consumerOffset.json"

_MAX_OFFSET: Final = (1 << 63) - 1
_JOINED_AT_ONCE: Final = 5_000
"""Texts; less than a millisecond."""

Key = tuple[str, str]
"""Group and topic."""

QueueEnd = Callable[[str, int], int]
"""Where a topic's queue goes on: what no committed offset may lie beyond."""


@dataclass
class OffsetCounters:
    """Events since the table was opened."""

    commits: int = 0
    ignored: int = 0
    """Commits of consumers that had not heard of a reset."""
    refused: int = 0
    clamped: int = 0
    """Offsets that lay beyond the end of their queue at the start."""


class OffsetTable:
    """The committed offsets of every group. Times passed to ``tick`` are ms of any clock that does not go back."""

    def __init__(self, writer: FileWriter, settings: BrokerSettings) -> None:
        self.counters = OffsetCounters()
        self._settings = settings
        self._writer = writer
        # Invariants: no entry of _offsets is empty; _topics_of and _groups_of say the same as its keys; _size counts
        # its queues. Every queue in _resets is in _offsets, with the same value; no entry of it is empty either.
        self._offsets: dict[Key, dict[int, int]] = {}
        self._resets: dict[Key, dict[int, int]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        self._size = 0
        # What the file says of each key, and which of it is out of date.
        self._texts: dict[Key, bytes] = {}
        self._changed: dict[Key, None] = {}
        # What changed and has no new text yet, oldest first: filled on the loop, emptied by whoever builds the file.
        # Copies: all of one batch are as they were at one moment, on which the offsets of transactions rely.
        self._fresh: deque[list[tuple[Key, dict[int, int]]]] = deque()
        self._next_write_ms = -1

    # -- opening and writing ----------------------------------------------------------------------------------------

    def load(self, queue_end: QueueEnd) -> None:
        """Read the file, RocketMQ's or SmartGo's (X-BROKER-04), and bring offsets beyond the log back to its end.

        Raises:
            SideFileError: it is damaged, and so is its copy.
        """
        content = self._writer.file.load(find_offsets_fault)
        if content is None:
            return
        for (group, topic), queues in read_offsets(content, self._writer.path):
            for queue_id, offset in queues.items():
                end = queue_end(topic, queue_id)
                if topic in TEMPLATE_TOPICS:
                    # They hold no messages: what is committed there are marks of readers of whole logs.
                    end = offset
                if offset > end:
                    self.counters.clamped += 1
                    logger.warning(
                        "committed offset beyond the log clamped group=%s topic=%s queue_id=%d queue_offset=%d to=%d",
                        group,
                        topic,
                        queue_id,
                        offset,
                        end,
                    )
                self._put(group, topic, queue_id, min(offset, end))
        for key, queues in _read_table(content.get("resetTable"), self._writer.path, group_first=False):
            known = self._offsets.get(key, {})
            waiting = {queue_id: known[queue_id] for queue_id in queues if queue_id in known}
            if waiting:
                self._resets[key] = waiting
        self._changed.update(dict.fromkeys(self._offsets))
        build = self._content()  # where nothing was clamped the file says just this, and is written when that changes
        if self.counters.clamped:
            # Now: a kill would bring the old ones back, above what is published from now on.
            try:
                self._writer.replace_both(build())
            except OSError as error:
                logger.error("clamped offsets not written, tried again path=%s error=%s", self._writer.path, error)
                self._changed.update(dict.fromkeys(self._offsets))

    def tick(self, now_ms: int) -> None:
        """Have the file written when something changed since the last time and the interval is over."""
        if now_ms < self._next_write_ms:
            return
        # A write that failed has its content still to come, and this is newer: it goes in its place.
        if (self._changed or not self._writer.is_clean) and not self._writer.is_running:
            # The first change after a start or a quiet time goes out at once: so a process that is killed again and
            # again before an interval is over gets on, too.
            self._next_write_ms = now_ms + self._settings.offsets_interval_ms
            self._write()

    def _write(self) -> None:
        build = self._content()
        self._writer.request(lambda: build)

    def _content(self) -> Build:
        """Take down what changed; return what builds the file, in a thread: the texts are made there."""
        none: dict[int, int] = {}
        self._fresh.append([(key, self._offsets.get(key, none).copy()) for key in self._changed])
        self._changed.clear()
        resets = {f"{topic}@{group}": dict(queues) for (group, topic), queues in self._resets.items()}

        def build() -> bytearray:
            while self._fresh:
                for (group, topic), queues in self._fresh.popleft():
                    if queues:
                        name = msgspec.json.encode(f"{topic}@{group}")
                        self._texts[group, topic] = name + b":" + msgspec.json.encode(queues)
                    else:
                        self._texts.pop((group, topic), None)
            return self._join_texts(b',"resetTable":' + msgspec.json.encode(resets) if resets else b"")

        return build

    def _join_texts(self, tail: bytes) -> bytearray:
        """Return the file's content. A few texts a call: for the time of a call no other thread runs, nor the loop."""
        content = bytearray(b'{"offsetTable":{')
        texts = iter(self._texts.values())
        separator = b""
        while some := list(islice(texts, _JOINED_AT_ONCE)):
            content += separator
            content += b",".join(some)
            separator = b","
        content += b"}" + tail + b"}"
        return content

    def when_saved(self, saved: Saved) -> None:
        """Have what changed written now; call ``saved`` when it is on disk, or could not be written.

        For what a tool changed: consumers commit again, a tool does not.
        """
        if self._changed:
            self._write()
        self._writer.when_saved(saved)

    def bring_back(self, topic: str, queue_id: int, end: int) -> None:
        """Have no group be beyond ``end`` in a queue."""
        for group in self.groups_of(topic):
            key = group, topic
            if self._offsets[key].get(queue_id, 0) > end:
                self._offsets[key][queue_id] = end
                if queue_id in self._resets.get(key, ()):
                    self._resets[key][queue_id] = end
                self._changed[key] = None

    def close(self) -> None:
        """Write what is not on disk. Blocks."""
        if self._changed or not self._writer.is_clean:
            self._writer.write_last(self._content(), "committed offsets not written, groups read again")

    # -- committing -------------------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Note how far a group has consumed a queue; a smaller offset than before counts too.

        Returns:
            False when it is ignored: the queue was reset and the group does not know yet.

        Raises:
            InvalidNameError: a name holds "@" or is empty.
            OffsetOutOfRangeError: it is negative, or the queue id is.
            QuotaExceededError: there are ``broker.max_group_offsets`` already.
        """
        key = (group, topic)
        queues = self._offsets.get(key)
        if queues is None or queue_id not in queues or not 0 <= offset <= _MAX_OFFSET:
            self._require_valid(group, topic, queue_id, offset)
        elif queues[queue_id] == offset:
            self.counters.commits += 1
            return True
        if self._resets and queue_id in self._resets.get(key, ()):
            self.counters.ignored += 1
            return False
        if queues is not None and queue_id in queues:
            queues[queue_id] = offset
        else:
            self._put(group, topic, queue_id, offset)
        self._changed[key] = None
        self.counters.commits += 1
        return True

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Forget what a group committed of one queue; nothing happens when it has nothing."""
        queues = self._offsets.get((group, topic), {})
        if list(queues) == [queue_id]:
            self._drop(group, topic)
        elif queues.pop(queue_id, None) is not None:
            self._size -= 1
            self._end_reset((group, topic), queue_id)
            self._changed[group, topic] = None

    def _require_valid(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Refuse what has no place in the table or in its file."""
        self._require_names(group, topic)
        if not 0 <= offset <= _MAX_OFFSET or queue_id < 0:
            self.counters.refused += 1
            raise OffsetOutOfRangeError(queue_id, offset)
        if group != DECIDED_GROUP and self.committed(group, topic, queue_id) is None:
            self._require_room(1)

    def _require_names(self, group: str, topic: str) -> None:
        for name in (group, topic):
            if not name or "@" in name:
                self.counters.refused += 1
                raise InvalidNameError(name, 'empty, or has an "@", which parts topic and group in consumerOffset.json')

    def _require_room(self, queues: int) -> None:
        """Refuse so many more queues than there are, if that is too many."""
        if queues > 0 and self._size + queues > self._settings.max_group_offsets:
            self.counters.refused += 1
            raise QuotaExceededError(
                f"the broker has its limit of {self._settings.max_group_offsets} committed offsets "
                "(broker.max_group_offsets)"
            )

    def _put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._offsets.setdefault((group, topic), {})
        if queue_id not in queues:
            self._size += 1
        queues[queue_id] = offset
        self._topics_of.setdefault(group, {})[topic] = None
        self._groups_of.setdefault(topic, {})[group] = None

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._size

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset of one queue; None when it has none."""
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offset of each queue of a topic."""
        return dict(self._offsets.get((group, topic), {}))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of a topic."""
        return list(self._groups_of.get(topic, ()))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which a group has committed offsets."""
        return list(self._topics_of.get(group, ()))

    def keys(self) -> list[Key]:
        """Return the (group, topic) pairs that have committed offsets."""
        return list(self._offsets)

    # -- tools ------------------------------------------------------------------------------------------------------

    def clone(self, source: str, target: str, topic: str = "") -> int:
        """Give ``target`` the offsets of ``source``, of one topic or of all; return how many topics it has got.

        Raises:
            InvalidNameError, QuotaExceededError: as ``commit``; the topics before are copied.
        """
        if source == target:
            return 0
        topics = [topic] if topic else self.topics_of(source)
        copied = [name for name in topics if (source, name) in self._offsets]
        for name in copied:
            queues = self._offsets[source, name]
            self._require_names(target, name)
            self._require_room(len(queues) - len(self._offsets.get((target, name), ())))
            self._drop(target, name)
            for queue_id, offset in queues.items():
                self._put(target, name, queue_id, offset)
            self._changed[target, name] = None
        return len(copied)

    def remove_group(self, group: str) -> None:
        """Forget what a group committed."""
        for topic in self.topics_of(group):
            self._drop(group, topic)

    def remove_topic(self, topic: str) -> None:
        """Forget what groups committed of a topic."""
        for group in self.groups_of(topic):
            self._drop(group, topic)

    def _drop(self, group: str, topic: str) -> None:
        queues = self._offsets.pop((group, topic), None)
        if queues is None:
            return
        self._size -= len(queues)
        self._resets.pop((group, topic), None)
        self._changed[group, topic] = None
        for index, name, other in ((self._topics_of, group, topic), (self._groups_of, topic, group)):
            del index[name][other]
            if not index[name]:
                del index[name]

    # -- resets -----------------------------------------------------------------------------------------------------

    def assign_resets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set where a group goes on in queues, all or none, whatever its consumers commit until they pull from there.

        Raises:
            InvalidNameError, OffsetOutOfRangeError, QuotaExceededError: as ``commit``; nothing was set.
        """
        for queue_id, offset in offsets.items():
            self._require_valid(group, topic, queue_id, offset)
        self._require_room(len(offsets.keys() - self._offsets.get((group, topic), {}).keys()))
        for queue_id, offset in offsets.items():
            self._put(group, topic, queue_id, offset)
            self._resets.setdefault((group, topic), {})[queue_id] = offset
            logger.info(
                "offset reset group=%s topic=%s queue_id=%d queue_offset=%d",
                group,
                topic,
                queue_id,
                offset,
            )
        if offsets:
            self._changed[group, topic] = None

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Tell a pull of the group where to go on; the reset is then done with.

        The pull must not commit what it brought, also where it is there already: that offset is from before.

        Returns:
            The offset to go on at; None when there is no reset.
        """
        if not self._resets:
            return None
        offset = self._end_reset((group, topic), queue_id)
        if offset is not None:
            self._changed[group, topic] = None
        return offset

    def _end_reset(self, key: Key, queue_id: int) -> int | None:
        """Forget the reset of a queue; return where it went, None when there was none."""
        waiting = self._resets.get(key)
        if waiting is None:
            return None
        offset = waiting.pop(queue_id, None)
        if not waiting:
            del self._resets[key]
        return offset

    def has_reset(self, group: str, topic: str) -> bool:
        """Return whether a group has not heard of a reset of one of a topic's queues yet."""
        return bool(self._resets) and (group, topic) in self._resets

    @property
    def waiting_resets(self) -> int:
        """Resets that no consumer has taken yet."""
        return sum(len(queues) for queues in self._resets.values())


_NO_OFFSETS: Final = "not NAME@NAME with queues and offsets"
"""What is wrong with a row that no broker can have written."""


def find_offsets_fault(content: Mapping[str, Any]) -> str:
    """Say what the content of the file lacks: RocketMQ's table, or SmartGo's."""
    return lacks_table(content, "offsetTable", "offsets")


def read_offsets(content: Mapping[str, Any], path: Path) -> Iterable[tuple[Key, dict[int, int]]]:
    """Yield the committed offsets that a file's content has, of each group and topic; ``path`` is for warnings."""
    yield from _read_table(content.get("offsets"), path, group_first=True)
    yield from _read_table(content.get("offsetTable"), path, group_first=False)


def find_offset_row_faults(content: Mapping[str, Any]) -> list[str]:
    """Say which rows of a file's content no broker can have written."""
    rows = [*_read_rows(content.get("offsets"), group_first=True)]
    rows += _read_rows(content.get("offsetTable"), group_first=False)
    return [f"{name}: {fault}" for name, _, _, fault in rows if fault]


def _read_table(table: Any, path: Path, *, group_first: bool) -> Iterable[tuple[Key, dict[int, int]]]:
    """Yield what one table of the file says; what no broker can have written is passed over and named."""
    for name, key, offsets, fault in _read_rows(table, group_first=group_first):
        if fault:
            logger.warning("committed offsets passed over path=%s key=%s error=%s", path, name, fault)
        elif offsets:
            yield key, offsets


def _read_rows(table: Any, *, group_first: bool) -> Iterable[tuple[str, Key, dict[int, int], str]]:
    """Yield the name of each row of a table, what it says, and what is wrong with it.

    RocketMQ keeps what a client commits, numbers below 0 too, and takes such an offset for none: so do we.
    """
    for name, queues in table.items() if isinstance(table, dict) else ():
        first, at, second = str(name).partition("@")
        group, topic = (first, second) if group_first else (second, first)
        fault = "" if at and group and topic else _NO_OFFSETS
        offsets = {}
        try:
            numbers = [(int(queue_id), int(offset)) for queue_id, offset in queues.items()]
        except (AttributeError, TypeError, ValueError):
            fault = _NO_OFFSETS
        else:
            offsets = {queue_id: offset for queue_id, offset in numbers if queue_id >= 0 and offset >= 0}
        yield str(name), (group, topic), {} if fault else offsets, fault
