"""Sending messages that exist already: one that cannot be sent is named by where it lies, and left out if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import InvalidRowError
from headrace.spark.errors import UnsendableError
from headrace.spark.jobs.publishing import MAX_LISTED
from headrace.spark.writing.partition_writer import PartitionWriter
from headrace.spark.writing.plan import WritePlan

if TYPE_CHECKING:
    from headrace.spark.writing.encode import Sealed


class MessageWriter(PartitionWriter):
    """Writes one partition of messages.

    Args:
        named_by: Column that says which message a row is; it may be one that is not written.
        of: What errors put behind that, such as the topic.
        skip: Leave out what cannot be sent.
    """

    def __init__(
        self, plan: WritePlan, txn: str, epoch: int, partition: int, *, named_by: str, of: str = "", skip: bool = False
    ) -> None:
        super().__init__(plan, txn, epoch, partition)
        self._skipped = 0
        self._listed: list[tuple[str, str]] = []  # the first of them, each with the reason
        self._named_by = named_by
        self._of = of
        self._skip = skip

    def answer(self) -> dict[str, Any]:
        """Return what was done, as JSON."""
        counters = self.written.counters
        return {
            "rows": self.written.rows, "stored": counters.stored, "duplicates": counters.duplicates,
            "retries": counters.retries, "skipped": self._skipped, "listed": self._listed,
        }  # fmt: skip

    def flush(self) -> None:
        """Send what is there, requests that are not full among it. Raises: as ``PartitionWriter``."""
        self._push(self._encoder.finish())

    def _encode(self, batch: pa.RecordBatch) -> list[Sealed]:
        batch = self._prepare(batch)
        while True:
            first = self._encoder.rows
            try:
                return self._encoder.feed(batch)
            except InvalidRowError as error:
                at = error.row - first
                message = f"{batch.column(self._named_by)[at].as_py()}{self._of}"
                if not self._skip:
                    raise UnsendableError(message, error.reason) from None
                self._skipped += 1
                if len(self._listed) < MAX_LISTED:
                    self._listed.append((message, error.reason))
                # The encoder has the rows before it, and numbers on as if it were not there: so in every run.
                batch = batch.slice(at + 1)
