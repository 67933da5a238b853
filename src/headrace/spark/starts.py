"""Turn words and times into offsets: where a read of queues, or of whole logs, begins and ends.

A log is known by its key, which has no topic. No group commits its offsets, and it has no index of times: rows stored
before a start or behind an end are left out where they are decoded.

Used for batches, and for a stream's very first batch. All of it happens on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from headrace.errors import ConfigError
from headrace.format.record import check, decode
from headrace.spark.columns import suggest
from headrace.spark.errors import REMOVED, DataLossError
from headrace.spark.options import (
    COMMITTED,
    EARLIEST,
    ERROR,
    LATEST,
    OFFSET_EARLIEST,
    OFFSET_LATEST,
    QueueMap,
    ReadOptions,
)
from headrace.spark.remote import QueueState, ServersView, Snapshot
from headrace.spark.streams.positions import QueueKey


def each_state(snapshot: Snapshot) -> Iterator[tuple[QueueKey, QueueState]]:
    """Yield every queue, or every log, and its state, sorted."""
    rows = (
        (QueueKey(topic, broker, queue_id), queue)
        for broker, state in snapshot.items()
        for topic, found in state.topics.items()
        for queue_id, queue in found.queues.items()
    )
    return iter(sorted(rows, key=lambda row: row[0]))


def resolve_starts(
    options: ReadOptions, snapshot: Snapshot, policy: str, view: ServersView | None = None
) -> dict[QueueKey, int]:
    """Return where to begin in everything that ``snapshot`` has.

    Args:
        policy: What to do where the options say nothing: ``earliest``, ``latest`` or ``committed``.
        view: The brokers, to look for times and for what is not read; only logs do without.

    Raises:
        ConfigError: the options name what does not exist, or nothing fits and that is an error.
        DataLossError: an offset is not there any more.
    """
    _require_assigned(options, snapshot, view)
    _require_known("startingOffsets", _named_starts(options), snapshot)
    _require_known("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp or {}, snapshot)
    if isinstance(options.starting_offsets, str):
        policy = options.starting_offsets or policy
    starts = {}
    for key, queue in each_state(snapshot):
        found = _named_start(options, key, queue, view)
        starts[key] = _start_by_policy(options, policy, key, queue) if found is None else found
    return starts


def began_elsewhere(
    options: ReadOptions, snapshot: Snapshot, starts: Mapping[QueueKey, int], view: ServersView | None = None
) -> bool:
    """Whether a stream that began at ``starts`` had been told to begin somewhere else than this one.

    Only what does not move can say so: numbers, times and the beginning. A number is exact, unless it may be brought
    into its queue. The others only move forward, as what is old is removed: a start behind them is not theirs.

    Raises: as ``resolve_starts``.
    """
    for key, queue in each_state(snapshot):
        began = starts.get(key)
        given = _named_starts(options).get(key)
        if began is None or given == OFFSET_LATEST:
            continue
        asked = _named_start(options, key, queue, view)
        if asked is None and options.starting_offsets == EARLIEST:
            asked = queue.low
        if asked is None:
            continue
        if given not in (None, OFFSET_EARLIEST):
            is_elsewhere = asked != began if options.fail_on_data_loss else asked < began
        else:
            # With newQueues=latest a queue that came later begins at its end, whatever is asked for.
            is_elsewhere = asked < began and options.new_queues == EARLIEST
        if is_elsewhere:
            return True
    return False


def _named_starts(options: ReadOptions) -> QueueMap:
    """Return the offsets that startingOffsets names; of logs a start time wins over them."""
    given = options.starting_offsets
    return {} if isinstance(given, str) or (options.is_log_mode and options.starting_timestamp is not None) else given


def _named_start(options: ReadOptions, key: QueueKey, queue: QueueState, view: ServersView | None) -> int | None:
    """Return where the options say to begin in a queue by a time or a number; None where they do not."""
    time_ms = options.starting_timestamp
    if time_ms is None:
        time_ms = (options.starting_offsets_by_timestamp or {}).get(key)
    if time_ms is not None:
        return _start_by_time(view, key, queue, time_ms) if view is not None and key.topic else queue.low
    given = _named_starts(options).get(key)
    return None if given is None else _within("startingOffsets", options, key, queue, given)


def resolve_ends(options: ReadOptions, snapshot: Snapshot, view: ServersView | None = None) -> dict[QueueKey, int]:
    """Return where to end in everything that ``snapshot`` has, exclusive. Raises: as ``resolve_starts``."""
    named: QueueMap = {} if isinstance(options.ending_offsets, str) else options.ending_offsets
    if options.is_log_mode and options.ending_timestamp is not None:
        named = {}
    _require_known("endingOffsets", named, snapshot)
    _require_known("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp or {}, snapshot)
    ends = {}
    for key, queue in each_state(snapshot):
        time_ms, given = options.ending_timestamp, named.get(key)
        if time_ms is None:
            time_ms = (options.ending_offsets_by_timestamp or {}).get(key)
        if time_ms is not None and view is not None and key.topic:
            ends[key] = _search(view, key, queue, time_ms)
        else:
            ends[key] = queue.high if given is None else _within("endingOffsets", options, key, queue, given)
    return ends


def _require_known(option: str, given: QueueMap, snapshot: Snapshot) -> None:
    """Refuse offsets of queues that are not read: a misspelt name would be ignored otherwise."""
    topics = {name for state in snapshot.values() for name in state.topics}
    for topic, broker, queue_id in given:
        if not topic and "" not in topics:
            raise ConfigError(f"option {option} needs topics: {{topic: {{broker: {{queue: offset}}}}}}", key=option)
        if topic not in topics:
            raise ConfigError(
                f"option {option} names topic {topic!r}, which is not read{suggest(topic, topics)}; read are "
                f"{_listed(sorted(topics))}",
                key=option,
            )
        if broker not in snapshot:
            raise ConfigError(
                f"option {option} names broker {broker!r}{suggest(broker, snapshot)}; there are {', '.join(snapshot)}",
                key=option,
            )
        queues = _queues(snapshot, broker, topic)
        if queue_id not in queues:
            raise ConfigError(
                f"option {option} names queue {queue_id} of topic {topic!r} on broker {broker!r}, which is not read; "
                f"read are {_listed(sorted(queues))}",
                key=option,
            )


def _listed(found: Sequence[object]) -> str:
    """Return names or numbers for an error, those of a pattern of thousands of topics in part."""
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    return ", ".join(map(str, found[:_MAX_LISTED])) + more if found else "none"


_MAX_LISTED: Final = 40


def _require_assigned(options: ReadOptions, snapshot: Snapshot, view: ServersView | None) -> None:
    """Refuse queues in ``assign`` that do not exist: they would be read as nothing."""
    if view is None:
        return  # ``assign`` goes with servers
    for topic, brokers in (options.assign or {}).items():
        for broker, wanted in brokers.items():
            if broker not in snapshot:
                raise ConfigError(
                    f"option assign names broker {broker!r}{suggest(broker, snapshot)}; there are "
                    f"{', '.join(snapshot)}",
                    key="assign",
                )
            missing = sorted(set(wanted) - _queues(snapshot, broker, topic))
            if missing:
                # What is not assigned the view leaves out: the error asks for all of the topic.
                everything = replace(options, assign=None, topics=(topic,))
                there = _queues(replace(view, options=everything).snapshot(), broker, topic)
                raise ConfigError(
                    f"option assign names queue {missing[0]} of topic {topic!r} on broker {broker!r}; there are "
                    f"{', '.join(map(str, sorted(there))) or 'none'}",
                    key="assign",
                )


def _queues(snapshot: Snapshot, broker: str, topic: str) -> set[int]:
    found = snapshot[broker].topics.get(topic)
    return set(found.queues) if found is not None else set()


def _start_by_policy(options: ReadOptions, policy: str, key: QueueKey, queue: QueueState) -> int:
    if policy == COMMITTED:
        if queue.committed >= 0:
            return _within("startingOffsets", options, key, queue, queue.committed, "committed ")
        # A folder has no start pin, without which "latest" would move.
        policy = EARLIEST if options.store else options.starting_fallback
    if policy == ERROR:
        raise ConfigError(
            f"group {options.group!r} has committed nothing of {key}; startingFallback=earliest or latest says where "
            "to begin then"
            if key.topic
            else f"of a whole log, as that of broker {key.broker!r}, no group commits offsets, so startingOffsets="
            f"{COMMITTED} does not say where to begin: startingFallback=earliest or latest does",
            key="startingFallback",
        )
    return queue.high if policy == LATEST else queue.low


def _within(option: str, options: ReadOptions, key: QueueKey, queue: QueueState, given: int, kind: str = "") -> int:
    """Return an offset that the queue, or the log, has."""
    if given == OFFSET_LATEST:
        return queue.high
    if given == OFFSET_EARLIEST:
        return queue.low
    nearest = min(max(given, queue.low), queue.high)
    if given == nearest or not options.fail_on_data_loss:
        return nearest
    where = f"offset {given} of {key}" if key.topic else f"physical offset {given} of broker {key.broker!r}"
    beyond = f"the {kind}{where} lies beyond its end {queue.high} ({option}); failOnDataLoss=false takes "
    if not key.topic and option == "endingOffsets":
        before = f"the {where} lies before its begin {queue.low} ({option}); failOnDataLoss=false takes "
        text = f"{beyond if given > nearest else before}{nearest}"
    elif given > nearest:
        text = f"{beyond}the end"
    else:
        reason = REMOVED if key.topic else "retention has removed them"
        text = (
            f"{key.span(given, nearest)} are gone: {reason} ({kind}{option}); "
            "failOnDataLoss=false begins at the oldest there is"
        )
    raise DataLossError(text, **key._asdict(), first_offset=min(given, nearest), end_offset=max(given, nearest))


def _search(view: ServersView, key: QueueKey, queue: QueueState, time_ms: int) -> int:
    """Return the offset of the first message stored at or after a time, the queue's end when there is none."""
    is_foreign = view.is_foreign(key.broker)
    # RocketMQ 4.9 answers with the message nearest to the time: of a ms before it is never behind what is looked for.
    asked_ms = max(time_ms - 1, 0) if is_foreign else time_ms
    ask = partial(view.cluster.search_offset, key.broker, key.topic, key.queue_id, asked_ms)
    found = view.insist(key.broker, "offsets by time", ask)
    found = min(max(found, queue.low), queue.high)
    return _step_to(view, key, found, queue.high, time_ms) if is_foreign else found


def _step_to(view: ServersView, key: QueueKey, at: int, high: int, time_ms: int) -> int:
    """Return the first offset in [at, high) whose message was stored at or after a time, else ``high``."""
    topic, broker, queue_id = key
    while at < high:
        ask = partial(view.cluster.pull, broker, view.source.group or "spark", topic, queue_id, at)
        pulled = view.insist(broker, "offsets by time", ask)
        position = 0
        while check(pulled.records, position, checksums=False) > 0:
            message = decode(pulled.records, position)
            if message["queue_offset"] >= at and message["store_timestamp_ms"] >= time_ms:
                return min(message["queue_offset"], high)
            position += message["record_bytes"]
        if pulled.next_offset <= at:
            return at  # nothing to look at: whoever reads from here is told why
        at = pulled.next_offset
    return high


def _start_by_time(view: ServersView, key: QueueKey, queue: QueueState, time_ms: int) -> int:
    found = _search(view, key, queue, time_ms)
    if found >= queue.high > queue.low and view.options.starting_timestamp_strategy == ERROR:
        raise ConfigError(
            f"{key} has no message stored at or after {time_ms} (ms since 1970); "
            "startingTimestampStrategy=latest begins at its end",
            key="startingTimestampStrategy",
        )
    return found
