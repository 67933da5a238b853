"""Headrace: a durable message broker for Python teams.

Importing this package loads nothing but itself: the broker is ``headrace.node``, the pytest fixture
``headrace.testing``, the exceptions ``headrace.errors``, the settings ``headrace.settings``.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("headrace")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
