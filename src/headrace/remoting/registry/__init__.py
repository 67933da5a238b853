"""The registry's protocol: RocketMQ's name server, served by ``server`` from the tables of ``headrace.registry``.

``connection`` is a client, a tool or a broker; ``handlers`` has what each request does, ``bodies`` what it carries, and
``rivals`` notices brokers that put each other out, and ``broker_log`` tells of those that come and go.
"""
