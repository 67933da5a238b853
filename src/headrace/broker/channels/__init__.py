"""Channels: which message each one delivers next, and what was finished.

``Channel`` (``channel``, compiled) is one channel's delivery state: a cursor per queue, messages in flight
(``in_flight``), deferred ones (``deferred``, ``spill``), handed-back ones (``ready``), and what is finished above the
floor (``finished``). ``channel_state`` and ``restored_state`` turn it into bytes and back; ``journal`` keeps those on
disk, in files as ``journal_file`` has them, written behind by ``journal_writer``. ``channel_table`` has a broker's
channels, ``timers`` knows which is due next, ``stored_channels`` reads them from a store that nobody runs.

Must not know a protocol or a consumer's connection. Ref: docs/adr/0007-channel-state.md.
"""
