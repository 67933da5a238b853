"""The optional groups of dependencies, how one is installed, and what is said where one is too old."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from headrace.errors import ConfigError

MIN_PYSPARK: Final = "4.2"


def how_to_install(extra: str) -> str:
    """Return the end of a sentence: the command that brings an extra, and where it works.

    Headrace is on no package index, so pip is given its clone instead of its name.
    """
    return f"pip install '.[{extra}]' in a clone of Headrace"


def load_part(name: str, what: str) -> Any:
    """Return the module ``headrace.spark.NAME``, which needs a recent PySpark.

    Args:
        what: It is needed for, to be said where PySpark is older: "to read streams".

    Raises:
        ConfigError: PySpark lacks something.
    """
    try:
        return import_module(f"headrace.spark.{name}")
    except ImportError as error:
        if not (error.name or "").startswith("pyspark."):
            raise
        import pyspark  # noqa: PLC0415  # only for the error

        raise ConfigError(
            f"PySpark {MIN_PYSPARK} or newer is needed {what}, found {pyspark.__version__}: {how_to_install('spark')}",
            key="pyspark",
        ) from error
