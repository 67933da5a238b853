"""The RocketMQ protocol ("remoting"): brokers, registries and clients of RocketMQ 3.2 to 5.x and of SmartGo.

``codec`` and ``header`` turn socket reads into batches of messages and commands, and replies into frames, without I/O;
``codes`` names the numbers on the wire, ``names`` what clients may call topics. ``server`` listens; ``connection`` is
one client (``request_connection``: what it shares with the registry's) and ``peer`` what a handler sees of it.
``sending`` and ``reading`` are what messages pass on their way in and out, ``handlers`` what the broker does for each
request: on ``services``, with ``fields``, ``checks`` and ``bodies`` for what it carries and ``reply`` for what it is
answered. ``large_requests`` and ``long_answers`` are done in several turns; ``guard`` says whether a user may ask,
``signature`` who that is.

``topics`` makes those that somebody uses, ``members`` tells those of a group of each other, ``calls`` are requests to
clients.
``broker_config`` is our settings by RocketMQ's keys; ``metrics`` counts. ``registry`` serves routes;
``registration`` tells registries of this broker, under the address that ``advertised`` finds, through ``client``;
``registration_table`` is what it says of topics. ``blocking`` is the client without an event loop. ``assembly``
builds one node's part.

The package speaks to the broker core and the registry core; it must not know the store's files, nor any other protocol.
Ref: docs/protocols/remoting.md.
"""
