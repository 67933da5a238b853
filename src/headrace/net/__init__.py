"""Sockets without a protocol: listeners, connections and their deadlines, the shared receive buffer, HTTP.

``address`` is addresses as text, ``names`` finds those of a name, ``dialing`` connects to them, ``ports`` holds those
of a broker before a start goes on, ``listener`` binds and warns, ``server`` is what all servers share. ``connection``
is one connection's life (pauses, write deadline, a decent end), ``deadlines`` its clocks, ``turns`` what it may do
before others have theirs, ``wire`` what it does with each read and write. ``receive`` is one read buffer for all
connections of a loop, ``stream_input`` what a parser reads from it, ``unacknowledged`` what a peer has not taken yet,
``unread_bound`` how much of that all peers may leave. ``connections`` numbers, bounds and counts them, ``refusal_log``
logs little of those turned away, ``timer_wheel`` is one coarse timer for them. ``replies`` keeps the order
of a connection's answers, some of which wait for the disk.

``joint_turn`` does at the end of a turn of the loop what its reads brought, ``fine_timer`` calls back after some
microseconds, ``busy_poll`` keeps the loop awake and ``loop_load`` says how busy it is. ``http`` runs an ASGI
application inside the broker's loop (``http_server``, ``http_connection``, ``request_parser``); ``webhook`` calls one
of somebody else.
Nothing here may know what the bytes mean.
"""
