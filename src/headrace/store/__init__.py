"""The store: one append-only commit log, a consume queue per topic queue, their durability and their recovery.

``Store`` (``store``) is the open store: it appends batches, starts flushes (``group_commit``) and says through
``Gate`` (``gate``) when what was appended is durable. Below it: ``commit_log`` and its ``segment`` files, which come
from ``segment_supply``; ``consume_queue`` (where message N of a queue lies; its files: ``queue_files``); ``flusher``
(the fdatasync thread), helped by ``zero_ahead`` (zeros behind the end), and ``durable_mark`` (how far it came).
``checkpoint`` writes the queues behind the log; ``cold_reads`` and ``log_ranges`` have threads read what is not in
memory. ``memory_log`` is the log of ``#ephemeral`` topics, ``log_base`` and ``queue_base`` what readers see of either
log and its queues.

A start is ``opening``: ``directory`` (whose folder it is), ``boot_note`` (was the machine down meanwhile) and
``recovery`` (find the valid end of the log, rebuild what stands behind it). The key index is ``index`` over
``index_folder``, ``index_file``, ``index_opening`` and ``index_note``; ``key_query`` answers from it, and ``key_match``
holds its candidates against the log.

``check``, ``inspect`` and ``dump`` are for people: they read a store (``reader``) without opening it. A check is
``log_check`` over ``log_walk`` and ``index_check``, and ends in a ``check_report``. ``foreign`` copies a RocketMQ
broker's store.

The package must not know what a channel, a consumer or a protocol is. It takes a ``PublishBatch`` and gives a
``RecordBatch``, whose views pin the segments they point into. Ref: docs/architecture.md, docs/formats.
"""
