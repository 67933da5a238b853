"""A store with files of the log that end too early, as half a copy has: for jobs that say what is missing and go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import StoreError
from headrace.format.layout import COMMIT_LOG
from headrace.format.names import segment_name
from headrace.spark.errors import DataLossError
from headrace.spark.files import LogExtent
from headrace.spark.jobs.config import JobConfig
from headrace.spark.jobs.log_rows import source_of
from headrace.spark.scan import ServersSource, StoreSource


def cut_source_of(config: JobConfig, broker: str) -> CutSource | ServersSource:
    """Return the log that a configuration names; a store's as far as its files go. Args, Raises: as ``source_of``."""
    found = source_of(config, broker)
    return CutSource(found.path, found.broker) if isinstance(found, StoreSource) else found


@dataclass(frozen=True, slots=True)
class CutSource(StoreSource):
    """A store's folder of which such files are read as far as they go."""

    def on_disk(self, extent: LogExtent) -> LogExtent:
        """Return the log's extent without what such files lack, which is missing."""
        runs: list[tuple[int, int]] = []
        missing = list(extent.missing)
        for start, end in extent.runs:
            for first in range(start, end, extent.segment_bytes):
                full = min(first + extent.segment_bytes, end)
                last = min(first + self._size_of(first), full)
                if last < full:
                    missing.append((last, full))
                if runs and runs[-1][1] == first:
                    runs[-1] = (runs[-1][0], last)
                elif first < last:
                    runs.append((first, last))
        return replace(extent, runs=tuple(runs), missing=tuple(sorted(missing)))

    def chunks(self, broker: str, start: int, stop: int, chunk_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Yield the log's bytes, without those that such a file lacks; see ``StoreFiles.chunks``."""
        size = self.files().segment_bytes
        at = start
        while at < stop:
            try:
                for base, data in StoreSource.chunks(self, broker, at, stop, chunk_bytes):
                    yield base, data
                    at = base + len(data)
                return
            except (DataLossError, StoreError):
                first = at // size * size
                if self._size_of(first) >= size:
                    raise
                at = first + size

    def _size_of(self, first: int) -> int:
        """Return how long a file of the log is; one that is gone was as long as it must be."""
        try:
            return Path(self.path, COMMIT_LOG, segment_name(first)).stat().st_size
        except FileNotFoundError:
            return sys.maxsize
