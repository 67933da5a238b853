"""Benchmarks: Headrace and its peers under the same load, in the same run.

Reading order: :mod:`bench.cases` and :mod:`bench.rocketmq_cases` say what is measured, :mod:`bench.targets` what it has
to reach, :mod:`bench.servers`, :mod:`bench.rocketmq_servers` and :mod:`bench.loads` start what takes part,
:mod:`bench.run` alternates the contestants, :mod:`bench.results` keeps the figures, :mod:`bench.report` and
:mod:`bench.compare` read them.

The benchmarks know Headrace only by its command line and its ports, as they know nsqd. The one exception is
:mod:`bench.append`, which times the store inside its own process.
"""
