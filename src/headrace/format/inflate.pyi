"""Bodies that a RocketMQ client compressed, made readable; inflate.pyx says how."""

from headrace.batch import RecordBatch

def inflate_bodies(batch: RecordBatch) -> int:
    """Replace compressed bodies of ``batch`` by what was compressed; return how many could not be."""
