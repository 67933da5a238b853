"""The broker core: what topics and channels exist, who may get which message next, and what was finished.

``Broker`` (``broker``) is called with decoded batches and the time and never waits; its effects are a call of
``on_work`` (something may be deliverable) and entries of the store's gate (answer when durable). ``Topic`` knows how
far messages were offered to its channels. ``Channel`` (compiled) is one channel's delivery state: a cursor per queue,
messages in flight (``in_flight``), deferred ones (``deferred``, ``spill``), handed-back ones (``ready``), and what is
finished above the floor (``finished``). ``catalog`` replays what topics and channels were created; ``journal`` keeps
delivery state on disk, at most a second behind; ``stored_channels`` reads both from a store that nobody runs.

What a broker has beside them ``parts`` opens. ``group_services`` builds what consumer groups need: their settings
(``groups``) and committed offsets (``offsets``), who is connected and wants what (``clients``, ``subscription``),
queues consumed in order (``locks``), pulls that wait (``held_pulls``), counters (``statistics``, ``throughput``), and
the files of all that (``config_file``, ``topics_file``). ``message_services`` builds what holds messages back or
writes them again (``schedule``, ``timed``, ``transactions``, ``retry``, ``offset_moved``), ``producer_services`` what
tells a repeated batch from a new one (``producers``, ``staged``, ``producer_log``). NSQ's messages are counted in
``statistics``; it uses no other of these.

The package must not know a protocol or a socket, and takes the time from whoever calls it. Ref: docs/architecture.md.
"""
