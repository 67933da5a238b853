"""Messages on their way out: what a pull lets through, pulls known from before, single records, bulk readers.

In this order: ``subscriptions``, ``known_pulls`` (compiled), ``single_records``, and ``reader_stream`` for one bulk
reader's connection with ``readers`` for what all share.
"""
