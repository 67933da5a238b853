"""Headrace: a durable message broker for Python teams.

Importing this package loads nothing but itself: the broker is ``headrace.node``, the pytest fixture
``headrace.testing``, the exceptions ``headrace.errors``, the settings ``headrace.settings``.
"""

__version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Find the version when it is asked for: what finds it loads for longer than a Ctrl-C takes, of any command."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        found = version("headrace")
    except PackageNotFoundError:  # run from a source tree that was never installed
        found = "0+unknown"
    globals()[name] = found
    return found
