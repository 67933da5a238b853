"""Headrace as a Spark source and sink, and the pipeline jobs on top.

Main types: ``HeadraceDataSource`` (``format("headrace")`` once ``register`` was called), ``read`` and ``lag`` for
people, ``ProgressListener``; underneath ``decode`` (records to Arrow), ``schema`` (columns), ``scan`` (what jobs build
on: splits of the log over a store or over brokers). What is offered here is loaded when it is first used, so that the
decoder and the plan of a scan work without Spark.

Must not know: the broker, the store, NSQ, the node. It reads stores through ``headrace.format`` and talks to brokers
through ``headrace.remoting.blocking``. Ref: docs/spark/README.md.
"""

from headrace.spark.exports import __dir__ as __dir__
from headrace.spark.exports import __getattr__ as __getattr__

__all__ = (
    "HeadraceDataSource",
    "ProgressListener",
    "create_session",
    "java_home",
    "lag",
    "read",
    "register",
    "write_batch",
)
