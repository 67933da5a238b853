"""The RocketMQ protocol ("remoting"): brokers, registries and clients of RocketMQ 3.2 to 5.x and of SmartGo.

``codec`` turns socket reads into batches of messages and commands, and replies into frames, without I/O; ``codes``
names the numbers on the wire; ``sending`` and ``reading`` are what messages pass on their way in and out, ``handlers``
what the broker does for each request; ``client`` calls other servers. The package speaks to the broker core and the
registry core; it must not know the store's files, nor any other protocol. Ref: docs/protocols/remoting.md.
"""
