"""nsqlookupd inside the registry: NSQ producers register here, and consumers ask who has a topic.

``codec`` is what producers say on the wire (protocol V1), without I/O; ``connection`` is one of them, ``server``
listens and counts, ``short_reads`` has many share the event loop, ``producer_log`` says who comes and goes. ``http``
answers consumers, tools and new brokers, with what ``answers`` writes and, for old clients, in ``old_form`` too;
``service`` runs both. All of it works on ``registry.producers.ProducerTable``, and none of it on a broker: it runs in
``headrace serve`` beside one and alone in ``headrace registry``.

Ref: nsq.md 4; docs/protocols/nsqlookupd.md.
"""
