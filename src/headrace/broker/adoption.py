"""Taking over the topics of a RocketMQ store: its ``topics.json`` becomes control records of ours.

The store is open and was just recovered, so every queue is known, those of topics too that RocketMQ has deleted: their
records are still in the log. Such a topic is made and deleted again, so that no start takes it for a lost one. A log
that RocketMQ got from us has our control records already: they are brought up to date, and its channels begin anew.

A topic that RocketMQ deleted and made again is numbered from 0 again. A queue that has had a message since is one that
recovery found numbered anew; one that has had none has no file, and what the log has of it is the former topic's: the
new one begins behind that (``_Former``).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.broker.channels.journal import begin_journal
from headrace.broker.control import ControlRecords
from headrace.broker.queue_search import first_that_is_not
from headrace.broker.topic import TopicConfig
from headrace.clock import Clock
from headrace.format import record
from headrace.format.names import RESERVED_PREFIX, SYSTEM_TOPICS, TIMER_TOPIC
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.foreign import QueueFacts
from headrace.store.store import Store
from headrace.threads import Threads

logger = logging.getLogger(__name__)


@dataclass
class Adoption:
    """What was taken over.

    Attributes:
        deleted: Topics that have messages in the log and no configuration: RocketMQ had deleted them.
        remade: Topics that RocketMQ had deleted and that were made again since.
        timed: Messages with a delivery time of their own (RocketMQ 5), delivered ones too.
    """

    topics: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    queues: int = 0
    messages: int = 0
    timed: int = 0


def adopt_topics(store: Store, configs: Mapping[str, TopicConfig | None], files: QueueFacts, clock: Clock) -> Adoption:
    """Write the control records of ``configs`` into a store, which may have some of an earlier life with us.

    Args:
        configs: Topics as ``read_topics`` gives them; if there are none, every topic with messages is taken. One
            without a configuration that can be read is taken if it has messages.
        files: What the files of its queues said before the store was opened.
    """
    found: defaultdict[str, dict[int, ConsumeQueue]] = defaultdict(dict)
    for (name, queue_id), queue in store.queues.items():
        found[name][queue_id] = queue
    adoption = Adoption()
    former = _Former(store, files)
    with Threads("headrace-adoption") as executor:
        control = ControlRecords(store, executor, clock)
        for name in sorted(configs.keys() | found.keys() | control.catalog.topics.keys()):
            if name.startswith(RESERVED_PREFIX) or name in SYSTEM_TOPICS:
                continue  # the broker has it from the start
            config = configs.get(name)
            known = control.catalog.topics.get(name)
            least = max(config.queues if config is not None else 0, known.queues if known is not None else 0)
            count = max([least, *(queue_id + 1 for queue_id in found[name])])
            if count == 0:
                continue  # no message, and no configuration that can be read
            queues = [store.queue(name, queue_id) for queue_id in range(count)]
            start = [first_in_log(store, queue) for queue in queues]
            is_deleted = name not in configs and bool(configs)
            is_remade = not is_deleted and any(queue.is_numbered_anew for queue in queues)
            if name in configs:
                ends = [former.end(queue) for queue in queues]
                is_remade = is_remade or any(end > at for end, at in zip(ends, start, strict=True))
                start = list(map(max, start, ends))
            if is_remade:
                adoption.remade.append(name)
            for change in _changes(
                name, config, start, is_known=known is not None, is_deleted=is_deleted, is_remade=is_remade
            ):
                control.write({**change, "at_ms": clock.now_ms()})
            if is_deleted:
                adoption.deleted.append(name)
                continue
            adoption.topics.append(name)
            adoption.queues += count
            adoption.messages += sum(queue.count_messages(first) for queue, first in zip(queues, start, strict=True))
        adoption.timed = sum(queue.next_offset - queue.min_offset for queue in found[TIMER_TOPIC].values())
        store.flush()
        control.save()
    begin_journal(store.directory.channels)
    return adoption


def _changes(
    name: str, config: TopicConfig | None, start: list[int], *, is_known: bool, is_deleted: bool, is_remade: bool
) -> Iterator[dict[str, Any]]:
    """Yield the control records that make a topic what it is in RocketMQ."""
    configured = {} if config is None else {"config": asdict(config)}
    if is_known and is_remade:
        yield {"op": "delete_topic", "topic": name}
        is_known = False
    if not is_known:
        yield {"op": "create_topic", "topic": name, "queues": len(start), "start": start, **configured}
    elif configured:
        yield {"op": "configure_topic", "topic": name, "start": start, **configured}
    if is_deleted:
        yield {"op": "delete_topic", "topic": name}


class _Former:
    """Finds what queues have of topics that RocketMQ deleted.

    Its deleting removes the files of the queues. From then on a start makes entries only of records behind the last
    entry of all queues: what lies before that, of a queue without a file, no consumer of RocketMQ is shown.
    """

    def __init__(self, store: Store, files: QueueFacts) -> None:
        self._store = store
        self._with_file = files.last_entries.keys()
        self._synced_ms = files.synced_ms
        # A damaged entry may point anywhere: those count that the log confirmed.
        self._dispatched_offset = max(
            (
                position
                for key, (queue_offset, position) in files.last_entries.items()
                if queue_offset >= 0 and self._position(key, queue_offset) == position
            ),
            default=0,
        )

    def _position(self, key: tuple[str, int], queue_offset: int) -> int:
        queue = self._store.queues.get(key)
        return -1 if queue is None else queue.position_of(queue_offset)

    def end(self, queue: ConsumeQueue) -> int:
        """Return the queue offset behind the last message of a former topic; 0 where there is none."""
        if (queue.topic, queue.queue_id) in self._with_file:
            return 0
        return first_that_is_not(queue, self._is_former)

    def _is_former(self, physical_offset: int) -> bool:
        if physical_offset >= self._dispatched_offset:
            return False
        if self._synced_ms is None:
            return True
        # A power cut may have taken the file of a queue that was new: not the files of what was synced before.
        raw = self._store.log.read(physical_offset)
        return raw is not None and record.decode(raw)["store_timestamp_ms"] < self._synced_ms


def first_in_log(store: Store, queue: ConsumeQueue) -> int:
    """Return the first queue offset whose record the log still has: retention may have taken what is before."""
    return first_that_is_not(queue, lambda physical_offset: physical_offset < store.log.first_offset)
