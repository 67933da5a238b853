"""What ``headrace.spark`` offers, loaded when it is first asked for: most of it needs Spark, the decoder does not."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    "HeadraceDataSource": "source",
    "ProgressListener": "progress",
    "create_session": "session",
    "java_home": "java",
    "lag": "progress",
    "read": "reading",
    "register": "reading",
    "write_batch": "sink",
}


def __getattr__(name: str) -> Any:
    """Load the module that has ``headrace.spark.NAME``."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    return getattr(import_module(f"headrace.spark.{home}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
