"""Lets Spark find ``format("headrace")``: it imports all modules named ``pyspark_*`` and takes their ``DefaultSource``.

A module that fails to import makes Spark forget all of them, so this one never does: what it cannot load it does not
offer, and says so in the log. ``headrace.spark.register(spark)`` is the sure way.
"""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())

try:
    from headrace.spark.source import HeadraceDataSource as DefaultSource
except Exception as error:  # noqa: BLE001  # raising would hide other people's sources too
    logging.getLogger(__name__).warning("headrace not offered to Spark: %s", error)

__all__ = ("DefaultSource",)
