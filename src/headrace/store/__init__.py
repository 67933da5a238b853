"""The store: one append-only commit log, a consume queue per topic queue, their durability and their recovery.

``Store`` (``store``) is the open store: it appends batches, starts flushes and says through ``Gate`` (``gate``) when
what was appended is durable. Below it: ``CommitLog`` and its ``Segment`` files, ``ConsumeQueue`` (where message N of a
queue lies), ``Flusher`` (the fdatasync thread), ``DurableMark``, ``SegmentSupply``, ``Opening`` (the steps of a start)
and ``recovery`` (find the valid end of the log, rebuild what stands behind it). ``MemoryLog`` is the log of
``#ephemeral`` topics. ``check``, ``inspect`` and ``dump`` are for people: they read a store without opening it.
``LogBase`` and ``QueueBase`` are what readers see of either log.

The package must not know what a channel, a consumer or a protocol is. It takes a ``PublishBatch`` and gives a
``RecordBatch``, whose views pin the segments they point into. Ref: docs/architecture.md, docs/formats.
"""
