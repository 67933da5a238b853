"""The NSQ protocol: TCP V2 (``server``, ``connection``, ``codec``) and nsqd's HTTP API (``http``, ``stats``).

``codec`` turns socket reads into batches and delivered batches into frames, without I/O. ``connection`` is one client:
its states are a table (``states``), its replies a queue in command order (``replies``).
``server`` listens, dispatches deliveries fairly and keeps the one timer. The package speaks to the broker core and must
not know the store's files, nor any other protocol. Ref: docs/protocols/nsq.md, docs/protocols/nsq-http.md.
"""
