"""The version this broker reports to NSQ clients and tools."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

# nsqadmin orders versions by semver and compares with what nsqd can do; build metadata does not count there.
NSQD_VERSION: Final = "1.3.0"


@cache  # it reads a file, and each IDENTIFY asks
def server_version() -> str:
    """Return ``1.3.0+headrace.<ours>``: the nsqd whose behaviour is served, and who serves it."""
    try:
        own = version("headrace")
    except PackageNotFoundError:
        own = "0"
    return f"{NSQD_VERSION}+headrace.{own}"
