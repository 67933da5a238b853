"""NSQ's statistics for a statsd, as nsqd pushes them: dashboards made for nsqd go on.

``lines`` makes nsqd's lines of the rows of ``/stats``, with what counters rose by since the time before; ``packets``
puts lines into datagrams and splits none; neither does I/O nor knows the time. ``pusher`` is the task that does so in
every interval, a few rows in a turn of the event loop, and gives the packets to the system;
``destination`` is where they go, ``counters`` counts.

The broker and its clients never wait for any of it: what the system does not take is counted and gone, as with nsqd.
Nothing of this exists while no address is set. It knows no store and no connection, and nothing that ``/stats`` does
not know. Ref: nsq.md 6.1; docs/protocols/nsq.md, "statsd".
"""
