"""What the broker does for each request of a RocketMQ client: a module for each subject, and their ``table``.

``send`` has the sends that the fast path leaves aside, ``sequenced`` batches with an identity, ``reply`` answers of
responders, ``transactions`` their ends; ``gathered`` has requests of one read write together. ``pull`` and ``reader``
read queues, ``messages`` single records. ``clients`` is heartbeats, ``queue_locks`` consuming in order, ``offsets``
where groups are. ``topics``, ``groups``, ``consumers`` and ``statistics`` are for tools.
"""
