"""Admin HTTP: what a person or a monitor asks a broker that runs.

``http`` answers ``/``, ``/healthz``, ``/readyz`` and ``/metrics``; ``metrics`` turns the core's counters (``sources``)
into Prometheus families when they are asked for; ``loop_lag`` samples how late the event loop is. This package reads
counters and changes nothing; it knows no wire and no file format.
"""
