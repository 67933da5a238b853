"""The NSQ protocol: TCP V2 (``server``, ``connection``, ``codec``) and nsqd's HTTP API (``http``, ``stats``).

``codec`` turns socket reads into batches (an ``intake``) and delivered batches into frames, without I/O; ``words`` are
those of a command's line. ``connection`` is one client: its states are a table (``states``), ``identify`` is what it
says about itself and ``refusal`` what it is told in errors. ``server`` listens and keeps the one timer, ``delivery``
sends what channels have, in fair turns. ``names`` are those of topics and channels, ``version`` the one that clients
are told; ``metrics`` counts, ``command_log`` logs what clients ask for.

What makes them fast: ``finishes`` and ``http_publishes`` take over plain reads in compiled code, ``joint_publishes``
appends small publishes of many clients together, ``coalescing`` reads many FINs at once, and ``delivery_coalescing``
gathers what a busy channel sends, for as long as ``delivery_interval`` says. ``http_api`` and ``http_request`` are what
nsqd's HTTP API has in common with nsqlookupd's: routes, redirects, refusals. Bodies of many messages are in ``mpub``,
nsqd's options in ``config_options``. ``lookupd`` is a nsqlookupd.

The folder ``lookup_peers`` keeps nsqlookupds told of this broker, ``statsd`` pushes what ``stats`` says.

The package speaks to the broker core and must not know the store's files, nor any other protocol.
Ref: docs/protocols/nsq.md, docs/protocols/nsq-http.md.
"""
