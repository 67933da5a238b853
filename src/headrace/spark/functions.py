"""Spark's functions of columns, imported when one is first asked for: the help of jobs works without PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.functions import *  # noqa: F403  # all of them, as they are
else:

    def __getattr__(name: str) -> Any:
        from pyspark.sql import functions  # noqa: PLC0415  # what this is for

        return getattr(functions, name)
