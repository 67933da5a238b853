"""Sockets without a protocol: listeners, connections and their deadlines, the shared receive buffer, HTTP.

``address`` is addresses as text, ``names`` finds those of a name, ``listener`` binds and warns, ``connection`` is one
connection's life (pauses, write deadline, a decent end) and ``deadlines`` its clocks, ``receive`` is one read buffer
for all connections of a loop, ``timer_wheel`` one coarse timer for them, ``connections`` numbers, bounds and counts
them, ``http`` runs an ASGI application inside the broker's loop. Nothing here may know what the bytes mean.
"""
