"""Admin HTTP: what a person or a monitor asks a broker, or a registry by itself, that runs.

``http`` answers ``/``, ``/healthz``, ``/readyz`` and ``/metrics``; ``metrics`` turns the core's counters
(``sources``) into Prometheus ``families`` when they are asked for, in ``slices`` where there are many, with a module
for each front end: ``nsq_metrics``, ``lookup_metrics``, ``statsd_metrics``, ``remoting_metrics``, ``lag_metrics``,
``registry_metrics``. ``process_metrics`` are what the system counts.
``loop_lag`` samples how late the event loop is, ``open_files`` whether the process has descriptors left. This package
reads counters and changes nothing; it knows no wire and no file format.
"""
