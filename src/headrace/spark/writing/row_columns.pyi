"""The columns of a batch of rows by what they are read for; row_columns.pxd has what compiled code sees of them."""

from typing import Final

ROLE_NAMES: Final[tuple[str, ...]]
"""What a column can be read for, in the order of docs/spark/sink.md."""
