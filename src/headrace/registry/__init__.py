"""The registry as a core: which broker serves which topic, and which brokers are alive.

``routes`` holds the five tables of a name server and their rules, ``kv_config`` the key-value configuration,
``awaited`` the brokers that a registry which has just started waits for. The last two are all that it keeps on disk.
``producers`` is the table of a nsqlookupd. Protocol folders serve them (``remoting.registry``, ``nsq.lookupd``).
Nothing here may know a protocol, a socket or a clock: calls take ``now``.
"""
