"""A stream that cannot be: why, said when Spark first asks it for something.

What ``streamReader`` itself raises Spark 4.3 hides behind an error of its own: its runner stops the reader that it has
not got, and what stands last in the text is "UnboundLocalError: cannot access local variable 'reader'".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.errors import HeadraceError


class RefusedStream(DataSourceStreamReader):
    """Raises the same error whatever it is asked for."""

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error.with_traceback(None)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raise the error."""
        self._refuse()

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._refuse()
