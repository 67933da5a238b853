"""Benchmarks of Headrace on Spark: scans, archive, stream latency and sink, beside Spark's own Kafka source.

``python -m bench.spark.run`` measures, ``python -m bench.spark.scale`` archives much and watches memory. Spark runs in
processes of its own (``worker``), of which one works at a time: Headrace's under this Python, Kafka's in a virtual
environment that ``build.sh`` makes, since its source can be put together for Spark 4.0.0 only.
"""
