"""The broker core: what topics and channels exist, who may get which message next, and what was finished.

``Broker`` (``broker``) is called with decoded batches and the time and never waits; its effects are a call of
``on_work`` (something may be deliverable) and entries of the store's gate (answer when durable). ``Topic`` knows how
far messages were offered to its channels (``channels``). ``catalog`` replays what topics and channels were created,
``control`` writes it down, ``pull`` reads a queue at an offset that the reader chooses.

What a broker has beside them ``parts`` opens: consumer groups (``consumers``), messages that are withheld until their
time comes or their transaction is committed (``withheld``), batches with an identity (``exactly_once``), and counters
(``statistics``, ``statistics_records``, ``throughput``). NSQ's messages are counted in ``statistics``; it uses no other
of these. ``message``, ``copies`` and ``gathering`` are what is stored a second time, and together with what.

The package must not know a protocol or a socket, and takes the time from whoever calls it. Ref: docs/architecture.md.
"""
