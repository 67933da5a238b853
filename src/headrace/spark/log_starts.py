"""Where a stream over whole logs begins: ``starts`` for physical offsets, of which no group commits any."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ConfigError
from headrace.spark.errors import DataLossError
from headrace.spark.options import COMMITTED, EARLIEST, ERROR, OFFSET_EARLIEST, OFFSET_LATEST, ReadOptions
from headrace.spark.schema import suggest


def resolve_log_starts(options: ReadOptions, extents: Mapping[str, tuple[int, int]], policy: str) -> dict[str, int]:
    """Return the physical offset at which to begin in every log.

    Args:
        extents: First and end physical offset by broker.
        policy: What to do where the options say nothing: ``earliest`` or ``committed``.

    Raises:
        ConfigError: an offset is for a broker that there is not, or nothing says where and that is an error.
        DataLossError: an offset is not there any more.
    """
    if options.starting_timestamp is not None:
        # A log has no index of times: rows stored before it are left out where they are decoded.
        return {broker: low for broker, (low, _) in extents.items()}
    if isinstance(options.starting_offsets, str):
        policy = options.starting_offsets or policy
        return {broker: _start_by_policy(options, policy, broker, *extent) for broker, extent in extents.items()}
    given = options.starting_offsets
    for broker in given:
        if broker not in extents:
            raise ConfigError(
                f"option startingOffsets names broker {broker!r}{suggest(broker, extents)}; there are "
                f"{', '.join(extents)}",
                key="startingOffsets",
            )
    starts = {}
    for broker, extent in extents.items():
        offset = given.get(broker)
        if offset is None:
            starts[broker] = _start_by_policy(options, policy, broker, *extent)
        else:
            assert isinstance(offset, int)  # ReadOptions has checked it
            starts[broker] = _within(options, broker, *extent, offset)
    return starts


def began_elsewhere_in_logs(
    options: ReadOptions, extents: Mapping[str, tuple[int, int]], starts: Mapping[str, int]
) -> bool:
    """Whether a stream that began at ``starts`` had been told to begin somewhere else: ``starts.began_elsewhere``."""
    given = options.starting_offsets
    is_earliest = options.starting_timestamp is not None or given == EARLIEST
    for broker in extents.keys() & starts.keys():
        began, (low, high) = starts[broker], extents[broker]
        offset: object = OFFSET_EARLIEST if is_earliest else None if isinstance(given, str) else given.get(broker)
        if offset == OFFSET_EARLIEST:
            is_other = low < began and options.new_queues == EARLIEST
        elif isinstance(offset, int) and offset != OFFSET_LATEST:
            asked = _within(options, broker, low, high, offset)
            is_other = asked != began if options.fail_on_data_loss else asked < began
        else:
            is_other = False
        if is_other:
            return True
    return False


def _start_by_policy(options: ReadOptions, policy: str, broker: str, low: int, high: int) -> int:
    if policy == COMMITTED:
        # A folder has no start pin, without which "latest" would move.
        policy = EARLIEST if options.store else options.starting_fallback
    if policy == ERROR:
        raise ConfigError(
            f"of a whole log, as that of broker {broker!r}, no group commits offsets, so startingOffsets={COMMITTED} "
            "does not say where to begin: startingFallback=earliest or latest does",
            key="startingFallback",
        )
    return low if policy == EARLIEST else high


def _within(options: ReadOptions, broker: str, low: int, high: int, given: int) -> int:
    """Return an offset that the log has."""
    if given == OFFSET_LATEST:
        return high
    if given == OFFSET_EARLIEST:
        return low
    if low <= given <= high or not options.fail_on_data_loss:
        return min(max(given, low), high)
    if given > high:
        raise DataLossError(
            f"the physical offset {given} of broker {broker!r} lies beyond its end {high} (startingOffsets); "
            "failOnDataLoss=false takes the end",
            broker=broker, first_offset=high, end_offset=given,
        )  # fmt: skip
    raise DataLossError(
        f"physical offsets {given} to {low} of broker {broker!r} are gone: retention has removed them "
        "(startingOffsets); failOnDataLoss=false begins at the oldest there is",
        broker=broker, first_offset=given, end_offset=low,
    )  # fmt: skip
