"""Sockets without a protocol: listeners, the shared receive buffer, the timer wheel, the connection registry, HTTP.

``listener`` binds and warns, ``receive`` is one read buffer for all connections of a loop, ``timer_wheel`` one coarse
timer for them, ``registry`` numbers, bounds and counts them, ``http`` runs an ASGI application inside the broker's
loop. Nothing here may know what the bytes mean.
"""
