"""Bodies that a RocketMQ client compressed, made readable; inflate.pyx says how."""

from headrace.batch import RecordBatch

def inflate_bodies(batch: RecordBatch, most_bytes: int) -> tuple[int, int, int] | None:
    """Replace compressed bodies of ``batch`` by what was compressed, until that has become ``most_bytes``.

    Returns:
        How many messages of the batch may be sent now, at least one; how many of their bodies could not be
        decompressed; and how many bytes were made, or tried to be. None where no body is compressed.
    """
