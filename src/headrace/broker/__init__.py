"""The broker core: what topics and channels exist, who may get which message next, and what was finished.

``Broker`` (``broker``) is called with decoded batches and the time and never waits; its effects are a call of
``on_work`` (something may be deliverable) and entries of the store's gate (answer when durable). ``Topic`` (``topic``)
knows how far messages were offered to its channels (``channels``), ``topic_table`` has a broker's topics, ``core`` what
all tables share and count. ``catalog`` replays what topics and channels were created, ``control`` writes it down,
``pull`` reads a queue at an offset that the reader chooses. ``access`` is who may do what.

What a broker has beside them ``parts`` opens: consumer groups (``consumers``), messages that are withheld until their
time comes or their transaction is committed (``withheld``), batches with an identity (``exactly_once``), events of
offsets that are not there (``offset_moved``), and counters (``statistics``, ``statistics_records``, ``throughput``).
NSQ's messages are counted in ``statistics``; it uses no other of these. ``message``, ``copies`` and ``gathering`` are
what is stored a second time, and together with what; ``queue_search`` and ``torn_commands`` find and judge such records
at a start. ``config_file`` is a file in RocketMQ's form, ``topics_file`` that of the topics, ``data_version`` the
version of such a table. ``foreign_config``, ``popped`` and ``adoption`` are for a store that RocketMQ wrote.

The package must not know a protocol or a socket, and takes the time from whoever calls it. Ref: docs/architecture.md.
"""
