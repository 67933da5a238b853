"""The figures a case can yield: one table of names, units and which direction is better."""

from dataclasses import dataclass
from statistics import median

# One sample of one contestant: figures by their name in METRICS.
Sample = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """How one figure is shown and judged. ``higher_is_better`` is None for context that is neither."""

    title: str
    digits: int
    higher_is_better: bool | None

    def show(self, value: float) -> str:
        """Return the value with its digits and thousands separated."""
        return f"{value:,.{self.digits}f}"


def show_ratio(ratio: float) -> str:
    """Return how many times one figure another is, with at least two digits that tell something."""
    return f"{ratio:.2f}" if ratio >= 1 else f"{ratio:.3f}"


METRICS = {
    "messages_per_s": Metric("msg/s", 0, True),
    "megabytes_per_s": Metric("MB/s", 1, None),
    "start_s": Metric("start s", 2, False),
    "ns_per_record": Metric("ns/record", 0, False),
    "latency_p50_us": Metric("p50 us", 1, False),
    "latency_p99_us": Metric("p99 us", 1, False),
    "latency_p999_us": Metric("p99.9 us", 1, False),
    "server_cpu_us": Metric("server CPU us/msg", 3, False),
    "rss_anon_mib": Metric("RssAnon MiB", 1, False),
    "rss_anon_peak_mib": Metric("RssAnon peak MiB", 1, False),
    # All resident memory, mapped files included: it grows with the page cache that happens to be free.
    "rss_peak_mib": Metric("RSS peak MiB", 1, None),
    "syncs_per_s": Metric("fdatasync/s", 0, None),
    # How much of its core each side used. Where neither is near 1, both waited: for the disk, or for other processes.
    "server_cpu_share": Metric("server CPU share", 2, None),
    "load_cpu_share": Metric("load CPU share", 2, None),
    # Spark's.
    "rows_per_s": Metric("rows/s", 0, True),
    "latency_p50_ms": Metric("p50 ms", 0, False),
    "latency_p90_ms": Metric("p90 ms", 0, False),
    "latency_p99_ms": Metric("p99 ms", 0, False),
    "batches_per_s": Metric("batches/s", 1, None),
    "spark_cpu_us": Metric("Spark CPU us/row", 2, False),
    "seconds": Metric("seconds", 1, False),
    "s_per_million": Metric("s per million rows", 2, False),
    "jvm_mib": Metric("JVM peak MiB", 0, False),
    "driver_mib": Metric("Python driver peak MiB", 0, False),
    "workers_mib": Metric("Python workers together, peak MiB", 0, False),
    "worker_mib": Metric("largest Python worker, peak MiB", 0, False),
    "output_bytes_per_row": Metric("Parquet B/row", 1, False),
    "disk_bytes_per_row": Metric("B/message", 1, False),
}


def medians(samples: list[Sample]) -> Sample:
    """Return the median of each figure that the samples have."""
    return {name: median(sample[name] for sample in samples) for name in METRICS if name in samples[0]}
