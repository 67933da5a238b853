"""Whole logs of brokers: how far they reach, and their bytes (READ_LOG).

Only Headrace has these requests (docs/protocols/extensions.md). A read that fails because the broker is away goes on
where it has come to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from headrace.errors import ConfigError
from headrace.remoting.blocking import read_log_request, require
from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode
from headrace.spark import connections
from headrace.spark.errors import REGISTRY, DataLossError
from headrace.spark.files import LogExtent
from headrace.spark.remote import OVERRUN_BYTES, ask_state, missing_of, no_log_reads
from headrace.spark.retry import MAY_PASS, Retry, insist
from headrace.spark.scan import ServersSource


def log_extents(source: ServersSource) -> list[LogExtent]:
    """Return what every broker's log holds. Raises: see ``ServersSource.extents``."""
    cluster = connections.cluster_of(source)
    found = []
    for broker in insist(cluster, REGISTRY, "the list of brokers", source.retries, cluster.brokers):
        state = ask_state(cluster, source, broker, {"topics": [], "log": True})
        if state is None:
            raise no_log_reads(broker)
        found.append(_log_extent(broker, state))
    if not found:
        raise ConfigError(f"the registries {source.servers} know of no broker", key="servers")
    return found


def _log_extent(broker: str, state: Mapping[str, Any]) -> LogExtent:
    log = state["log"]
    runs = []
    at, end = int(log["min"]), int(log["max"])
    missing = missing_of(log)
    for low, high in missing:
        if at < low:
            runs.append((at, low))
        at = max(at, high)
    if at < end:
        runs.append((at, end))
    return LogExtent(
        broker, int(state["segment_bytes"]), tuple(runs), str(state["store_id"]), int(state["epoch"]), missing
    )


def log_chunks(
    source: ServersSource, broker: str, start: int, stop: int, chunk_bytes: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield a log's bytes. Raises and Yields: see ``StoreFiles.chunks``; BrokerGoneError."""
    cluster = connections.cluster_of(source)
    retry = Retry(cluster, broker, f"its log from physical offset {start} to {stop}", source.retries)
    at, segment_bytes = start, 0
    while True:
        try:
            client = cluster.client(cluster.broker_address(broker))
            ranges = partial(_log_ranges, at, stop, chunk_bytes, segment_bytes)
            # Made as they are sent: of a whole log there may be very many.
            requests = (read_log_request(offset, size, group=source.group, broker=broker) for offset, size in ranges())
            for (offset, size), response in zip(ranges(), client.call_many(requests, connections.WINDOW), strict=True):
                _require_log(response, broker, offset, stop, client.address)
                retry.succeeded()
                segment_bytes = int(response.ext["segmentBytes"])
                if response.body:
                    yield offset, memoryview(response.body)
                following = int(response.ext["nextOffset"])
                at_end = following == offset
                at = following
                if at_end or at != offset + size:
                    break  # the end, a file's end, or a part without a file: the other requests are not what is wanted
            if at_end or (at >= stop and at % segment_bytes == 0):
                return
        except MAY_PASS as error:
            retry.failed(error)


def _log_ranges(at: int, stop: int, chunk_bytes: int, segment_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of requests from ``at`` on, one at least; none crosses a file's end.

    The first request of all asks for little, since it is the one that learns where files end.
    """
    if at >= stop:
        yield at, OVERRUN_BYTES
        return
    if not segment_bytes:
        yield at, min(chunk_bytes, stop - at)
        return
    while at < stop:
        size = min(chunk_bytes, stop - at, segment_bytes - at % segment_bytes)
        yield at, size
        at += size


def _require_log(response: Command, broker: str, offset: int, stop: int, address: str) -> None:
    if response.code == ResponseCode.SUCCESS:
        return
    if response.code == ResponseCode.PULL_OFFSET_MOVED:
        least, most = int(response.ext["minOffset"]), int(response.ext["maxOffset"])
        end, reason = stop, f"the log ends at {most} (it was cut off or replaced)"
        if offset < least:
            end, reason = min(stop, least), "retention has removed them"
        raise DataLossError(
            f"broker {broker!r} has no more physical offsets {offset} to {end}: {reason}; failOnDataLoss=false goes on "
            "without them",
            broker=broker, first_offset=offset, end_offset=end,
        )  # fmt: skip
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise no_log_reads(broker)
    require(response, address)
