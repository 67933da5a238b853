"""Turn words and times into offsets: where a read of queues begins and ends, and where one of whole logs ends.

Used for batches, and for a stream's very first batch. All of it happens on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import ConfigError
from headrace.format.record import check, decode
from headrace.spark.errors import REMOVED, DataLossError
from headrace.spark.options import COMMITTED, EARLIEST, ERROR, LATEST, OFFSET_EARLIEST, OFFSET_LATEST, ReadOptions
from headrace.spark.remote import QueueState, ServersView, Snapshot
from headrace.spark.retry import insist
from headrace.spark.schema import suggest
from headrace.spark.streams.positions import QueueKey, Queues, get_queue, put_queue


def each_state(snapshot: Snapshot) -> Iterator[tuple[QueueKey, QueueState]]:
    """Yield every queue and its state, sorted."""
    rows = (
        (QueueKey(topic, broker, queue_id), queue)
        for broker, state in snapshot.items()
        for topic, found in state.topics.items()
        for queue_id, queue in found.queues.items()
    )
    return iter(sorted(rows, key=lambda row: row[0]))


def resolve_starts(view: ServersView, snapshot: Snapshot, policy: str) -> Queues:
    """Return where to begin in every queue of ``snapshot``.

    Args:
        policy: What to do where the options say nothing: ``earliest``, ``latest`` or ``committed``.

    Raises:
        ConfigError: the options name what does not exist, or nothing fits and that is an error.
        DataLossError: an offset is not there any more.
    """
    options = view.options
    explicit = options.starting_offsets if not isinstance(options.starting_offsets, str) else None
    _require_assigned(view, snapshot)
    _require_known("startingOffsets", explicit, snapshot)
    _require_known("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp, snapshot)
    if isinstance(options.starting_offsets, str) and options.starting_offsets:
        policy = options.starting_offsets
    starts: Queues = {}
    for key, queue in each_state(snapshot):
        found = _named_start(view, explicit, key, queue)
        put_queue(starts, key, _start_by_policy(options, policy, key, queue) if found is None else found)
    return starts


def began_elsewhere(view: ServersView, snapshot: Snapshot, starts: Queues) -> bool:
    """Whether a stream that began at ``starts`` had been told to begin somewhere else than this one.

    Only what does not move can say so: numbers, times and the beginning. A number is exact, unless it may be brought
    into its queue. The others only move forward, as what is old is removed: a start behind them is not theirs.

    Raises: as ``resolve_starts``.
    """
    options = view.options
    explicit = options.starting_offsets if not isinstance(options.starting_offsets, str) else None
    for key, queue in each_state(snapshot):
        began = get_queue(starts, key)
        given = _number(explicit, key)
        if began is None or given == OFFSET_LATEST:
            continue
        asked = _named_start(view, explicit, key, queue)
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


def _named_start(view: ServersView, explicit: Mapping[str, Any] | None, key: QueueKey, queue: QueueState) -> int | None:
    """Return where the options say to begin in a queue by a time or a number; None where they do not."""
    options = view.options
    time_ms = options.starting_timestamp
    if time_ms is None:
        time_ms = _number(options.starting_offsets_by_timestamp, key)
    if time_ms is not None:
        return _start_by_time(view, key, queue, time_ms)
    given = _number(explicit, key)
    return None if given is None else _within("startingOffsets", options, key, queue, given)


def resolve_ends(view: ServersView, snapshot: Snapshot) -> Queues:
    """Return where to end in every queue of ``snapshot``, exclusive. Raises: as ``resolve_starts``."""
    options = view.options
    explicit = options.ending_offsets if not isinstance(options.ending_offsets, str) else None
    _require_known("endingOffsets", explicit, snapshot)
    _require_known("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp, snapshot)
    ends: Queues = {}
    for key, queue in each_state(snapshot):
        time_ms = options.ending_timestamp
        if time_ms is None:
            time_ms = _number(options.ending_offsets_by_timestamp, key)
        if time_ms is not None:
            found = _search(view, key, queue, time_ms)
        else:
            given = _number(explicit, key)
            found = queue.high
            if given is not None:
                found = _within("endingOffsets", options, key, queue, given)
        put_queue(ends, key, found)
    return ends


def _number(given: Mapping[str, Any] | None, key: QueueKey) -> int | None:
    found: int | None = (given or {}).get(key.topic, {}).get(key.broker, {}).get(key.queue_id)
    return found


def _require_known(option: str, given: Mapping[str, Any] | None, snapshot: Snapshot) -> None:
    """Refuse offsets of queues that are not read: a misspelt name would be ignored otherwise."""
    for topic, brokers in (given or {}).items():
        if not isinstance(brokers, Mapping):
            raise ConfigError(f"option {option} needs topics: {{topic: {{broker: {{queue: offset}}}}}}", key=option)
        topics = {name for state in snapshot.values() for name in state.topics}
        if topic not in topics:
            raise ConfigError(
                f"option {option} names topic {topic!r}, which is not read{suggest(topic, topics)}", key=option
            )
        for broker, queues in brokers.items():
            if broker not in snapshot:
                raise ConfigError(
                    f"option {option} names broker {broker!r}{suggest(broker, snapshot)}; there are "
                    f"{', '.join(snapshot)}",
                    key=option,
                )
            found = snapshot[broker].topics.get(topic)
            unknown = sorted(set(queues) - set(found.queues if found is not None else ()))
            if unknown:
                raise ConfigError(
                    f"option {option} names queue {unknown[0]} of topic {topic!r} on broker {broker!r}, "
                    "which is not read",
                    key=option,
                )


def _require_assigned(view: ServersView, snapshot: Snapshot) -> None:
    """Refuse queues in ``assign`` that do not exist: they would be read as nothing."""
    for topic, brokers in (view.options.assign or {}).items():
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
                everything = replace(view.options, assign=None, topics=(topic,))
                there = _queues(replace(view, options=everything).snapshot(), broker, topic)
                raise ConfigError(
                    f"option assign names queue {missing[0]} of topic {topic!r} on broker {broker!r}; there are "
                    f"{', '.join(map(str, sorted(there))) or 'none'}",
                    key="assign",
                )


def _queues(snapshot: Snapshot, broker: str, topic: str) -> set[int]:
    found = snapshot[broker].topics.get(topic)
    return set(found.queues) if found is not None else set()


def resolve_log_ends(options: ReadOptions, extents: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return the physical offset at which to end in every log, exclusive.

    Args:
        extents: First and end physical offset by broker.

    Raises:
        ConfigError: an offset is for a broker that there is not.
        DataLossError: the log does not reach that far, or begins behind it.
    """
    ends = {broker: high for broker, (_, high) in extents.items()}
    if isinstance(options.ending_offsets, str) or options.ending_timestamp is not None:
        return ends
    for broker, given in options.ending_offsets.items():
        if broker not in extents:
            raise ConfigError(
                f"option endingOffsets names broker {broker!r}{suggest(broker, extents)}; there are "
                f"{', '.join(extents)}",
                key="endingOffsets",
            )
        assert isinstance(given, int)  # ReadOptions has checked it
        low, high = extents[broker]
        if given in (OFFSET_EARLIEST, OFFSET_LATEST):
            ends[broker] = low if given == OFFSET_EARLIEST else high
            continue
        ends[broker] = nearest = min(max(given, low), high)
        if given != nearest and options.fail_on_data_loss:
            bound = f"lies beyond its end {high}" if given > high else f"lies before its begin {low}"
            raise DataLossError(
                f"the physical offset {given} of broker {broker!r} {bound} (endingOffsets); failOnDataLoss=false takes "
                f"{nearest}",
                broker=broker, first_offset=min(given, nearest), end_offset=max(given, nearest),
            )  # fmt: skip
    return ends


def _start_by_policy(options: ReadOptions, policy: str, key: QueueKey, queue: QueueState) -> int:
    if policy == COMMITTED:
        if queue.committed >= 0:
            return _within("startingOffsets", options, key, queue, queue.committed, "committed ")
        if options.starting_fallback == ERROR:
            raise ConfigError(
                f"group {options.group!r} has committed nothing of {key}; "
                "startingFallback=earliest or latest says where to begin then",
                key="startingFallback",
            )
        policy = options.starting_fallback
    return queue.high if policy == LATEST else queue.low


def _within(option: str, options: ReadOptions, key: QueueKey, queue: QueueState, given: int, kind: str = "") -> int:
    """Return an offset that the queue has."""
    if given == OFFSET_LATEST:
        return queue.high
    if given == OFFSET_EARLIEST:
        return queue.low
    if given > queue.high:
        if not options.fail_on_data_loss:
            return queue.high
        raise DataLossError(
            f"the {kind}offset {given} of {key} lies beyond its end {queue.high} ({option}); "
            "failOnDataLoss=false takes the end",
            **key._asdict(), first_offset=queue.high, end_offset=given,
        )  # fmt: skip
    if given < queue.low:
        if not options.fail_on_data_loss:
            return queue.low
        raise DataLossError(
            f"offsets {given} to {queue.low} of {key} are gone: {REMOVED} ({kind}{option}); "
            "failOnDataLoss=false begins at the oldest there is",
            **key._asdict(), first_offset=given, end_offset=queue.low,
        )  # fmt: skip
    return given


def _search(view: ServersView, key: QueueKey, queue: QueueState, time_ms: int) -> int:
    """Return the offset of the first message stored at or after a time, the queue's end when there is none."""
    is_foreign = view.is_foreign(key.broker)
    view.calls += 1
    # RocketMQ 4.9 answers with the message nearest to the time: of a ms before it is never behind what is looked for.
    asked_ms = max(time_ms - 1, 0) if is_foreign else time_ms
    found = insist(
        view.cluster,
        key.broker,
        "offsets by time",
        view.source.retries,
        lambda: view.cluster.search_offset(key.broker, key.topic, key.queue_id, asked_ms),
    )
    found = min(max(found, queue.low), queue.high)
    return _step_to(view, key, found, queue.high, time_ms) if is_foreign else found


def _step_to(view: ServersView, key: QueueKey, at: int, high: int, time_ms: int) -> int:
    """Return the first offset in [at, high) whose message was stored at or after a time, else ``high``."""
    topic, broker, queue_id = key
    while at < high:
        view.calls += 1
        pulled = insist(
            view.cluster,
            broker,
            "offsets by time",
            view.source.retries,
            lambda at=at: view.cluster.pull(broker, view.source.group or "spark", topic, queue_id, at),  # type: ignore[misc]
        )
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
