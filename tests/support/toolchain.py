"""What a test does when a tool it needs is not there."""

from __future__ import annotations

import os
import resource
import socket
from typing import NoReturn

import pytest


def cannot_run(reason: str) -> NoReturn:
    """Skip the test and say why; in CI fail it: there a missing tool would hide what was not tested."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"cannot run in CI: {reason}", pytrace=False)
    pytest.skip(reason)


def require_ipv6() -> None:
    """Skip the test, in CI fail it, where this machine has no address of IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError as error:
        cannot_run(f"this machine has no IPv6: {error}")


def require_open_files(count: int) -> None:
    """Skip the test, in CI fail it, where a process may not have so many files and sockets open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and limit < count:
        cannot_run(f"a process may have {limit:,} files open here, and {count:,} are needed: see ulimit -Hn")
