"""The version this broker reports to NSQ clients and tools."""

from __future__ import annotations

from typing import Final

import headrace

# nsqadmin orders versions by semver and compares with what nsqd can do; build metadata does not count there.
NSQD_VERSION: Final = "1.3.0"


def server_version() -> str:
    """Return ``1.3.0+headrace.<ours>``: the nsqd whose behaviour is served, and who serves it."""
    return f"{NSQD_VERSION}+headrace.{headrace.__version__.replace('+', '.')}"  # semver has one plus
