"""Commit-log records to Arrow record batches; decode.pyx says how."""

from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa

_Data = bytes | bytearray | memoryview

BROKER_TOPICS: Final[frozenset[str]]
"""Topics of the broker itself, left out unless ``system_topics``; so are those that begin with %SYS% or rmq_sys_."""

class Decoder:
    """Collects rows of the wanted columns from record bytes, in batches.

    Attributes:
        rows: Rows taken.
        skipped: Well-formed records that a filter left out.
        damaged: With verification, records whose checksum is wrong; and in raw logs, stretches that hold no record.
        wrong_checksums: The first of these alone.
        bytes: Bytes of the well-formed records looked at.
        inflate_failures: Compressed bodies that could not be decompressed: their rows have them as stored.
        schema: Of the batches.
    """

    rows: int
    skipped: int
    damaged: int
    wrong_checksums: int
    bytes: int
    inflate_failures: int
    schema: pa.Schema

    def __init__(
        self,
        columns: Sequence[str],
        *,
        broker: str = "",
        batch_rows: int = 65536,
        batch_bytes: int = 16 << 20,
        topics: Collection[str] | None = None,
        tags: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        verify_crc: bool = False,
        only_right: bool = False,
        start_ms: int | None = None,
        end_ms: int | None = None,
        system_topics: bool = False,
        retry_topics: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        """Decide on columns and filters.

        Args:
            columns: Names of ``schema.COLUMNS`` and ``prop:NAME``, in the order of the batches' columns.
            broker: What the column ``broker`` says.
            batch_rows: Rows of a full batch.
            batch_bytes: Bytes of a full batch; the row that passes it is still in it. At most 1 GiB.
            topics: Only records of these topics, hidden ones too when named; None: every topic that is not hidden.
            tags: Only records with one of these TAGS.
            keys: Only records whose UNIQ_KEY, or one of whose KEYS, is one of these.
            verify_crc: Compare checksums; a row with a wrong one is kept and counted as damaged.
            only_right: Compare checksums, of records that a filter leaves out too; one with a wrong one is counted and
                gives no row.
            start_ms: Only records stored at or after that time (ms since 1970).
            end_ms: Only records stored before that time.
            system_topics: Also the broker's own topics, and transactional records that are not committed.
            retry_topics: Also %RETRY% and %DLQ% topics.
            schema: Arrow schema of the batches; default: ``schema.arrow_schema(columns)``.

        Raises:
            ValueError: an unknown column, or a limit out of range.
        """

    def feed_records(self, data: _Data, *, first_queue_offset: int = 0, end_queue_offset: int = -1) -> int:
        """Take whole records that stand back to back, as the answer to a pull has them; return rows taken.

        Args:
            first_queue_offset: Records of lower queue offsets are passed over.
            end_queue_offset: So are records from this queue offset on; -1: none.

        Raises:
            CorruptRecordError: something else stands there; rows before it are taken.
        """

    def feed_log(
        self,
        data: _Data,
        base_offset: int,
        start: int,
        end: int,
        *,
        segment_end: int = 0,
    ) -> int:
        """Take the records of raw log that start in [start, end).

        What is no record is stepped over and counted in ``damaged``, but for what a split begins in the middle of.
        The decoder goes on where the last call ended: a split is read by one decoder, in order.

        Args:
            data: Bytes of one file of the log.
            base_offset: Physical offset of the first of them.
            segment_end: Physical offset of that file's end, so that a damaged size is recognised; 0 if not known.

        Returns:
            The physical offset to go on from: ``data`` of the next call begins there or before. It lies behind ``data``
            where the rest of the file is blank, and before its end where a record is cut off.
        """

    def take(self) -> list[pa.RecordBatch]:
        """Return the full batches so far, and forget them."""

    def finish(self) -> list[pa.RecordBatch]:
        """Return all batches that ``take`` has not returned, the last one not full."""
