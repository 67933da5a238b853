"""HTTP of this machine's own processes, for ``headrace doctor``, demo and benchmarks."""

from __future__ import annotations

from typing import Final
from urllib.request import ProxyHandler, build_opener

open_directly: Final = build_opener(ProxyHandler({})).open
"""As ``urllib.request.urlopen``, but past the proxy that the environment may name: it does not know this machine's
ports."""
