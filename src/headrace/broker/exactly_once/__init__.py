"""Batches with an identity: what was stored once is not stored again, and a batch is visible as a whole.

``producers`` is what is remembered of each producer, ``producer_log`` how it lasts, ``staged`` what waits for the end
of its batch (``staged_batch``), ``key_set`` the keys of one. ``producer_services`` builds all of it.

Must not know who the producers are: Spark's sink is one. Ref: docs/adr/0009-exactly-once-writes.md.
"""
