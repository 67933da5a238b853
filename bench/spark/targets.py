"""What the figures of Spark's cases have to reach."""

from bench.targets import Target

RATE = "rows_per_s"

TARGETS = (
    *(
        Target(f"scan-100-{schema}", RATE, at_least=0.8, than="ceiling", contestant="store")
        for schema in ("narrow", "wide")
    ),
    *(
        Target(f"scan-1k-{schema}", RATE, at_least=0.7, than="ceiling", contestant="store")
        for schema in ("narrow", "wide")
    ),
    *(
        Target(f"scan-{size}-{schema}", RATE, at_least=0.6, than="ceiling", contestant="servers")
        for size in ("100", "1k")
        for schema in ("narrow", "wide")
    ),
    # Over the network; beside Kafka's scan of the value alone, and of its columns without headers.
    *(
        Target(f"scan-{size}-narrow", RATE, at_least=2, than="kafka-value", contestant="servers")
        for size in ("100", "1k")
    ),
    *(
        Target(f"scan-{size}-wide", RATE, at_least=1.3, than="kafka-plain", contestant=contestant)
        for size in ("100", "1k")
        for contestant in ("servers", "servers-session")
    ),
    Target("archive-100", RATE, at_least=2, than="store-writer", contestant="store"),
    Target("archive-100", RATE, at_least=2, than="store-wide-writer", contestant="store-wide"),
    *(Target(f"archive-{size}", RATE, at_least=3, than="kafka", contestant="servers") for size in ("100", "1k")),
    Target("latency", "latency_p50_ms", at_most=300),
    Target("latency", "latency_p50_ms", at_most=300, contestant="headrace-session"),
    *(Target("latency", f"latency_p{percentile}_ms", at_most=1, than="kafka") for percentile in (50, 90, 99)),
    Target("sink", RATE, at_least=300_000),
    Target("sink", RATE, at_least=150_000, contestant="headrace-fsync"),
)
