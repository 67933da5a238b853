"""What ``headrace.spark`` offers, loaded when it is first asked for: most of it needs Spark, the decoder does not."""

from __future__ import annotations

from typing import Any, Final

from headrace.spark.extras import load_part

_HOMES: Final = {
    "HeadraceDataSource": "source",
    "ProgressListener": "streams.progress",
    "create_session": "session",
    "java_home": "java",
    "lag": "streams.progress",
    "read": "reading",
    "register": "reading",
    "write_batch": "writing.sink",
}


def __getattr__(name: str) -> Any:
    """Load the module that has ``headrace.spark.NAME``.

    Raises:
        ConfigError: PySpark is too old for it.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    return getattr(load_part(home, f"for {name}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
