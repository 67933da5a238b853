"""Admin HTTP: what a person or a monitor asks a broker, or a registry by itself, that runs.

``http`` answers ``/``, ``/healthz``, ``/readyz`` and ``/metrics``; ``metrics``, ``remoting_metrics``, ``lag_metrics``,
``registry_metrics``, ``lookup_metrics`` and ``statsd_metrics`` turn the core's counters (``sources``) into Prometheus
``families`` when they are asked for, in ``slices`` where there are many; ``process_metrics`` what the system counts.
``loop_lag`` samples how late the event loop is, ``open_files`` whether the process has descriptors left. This package
reads counters and changes nothing; it knows no wire and no file format.
"""
