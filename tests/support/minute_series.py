"""Made-up minutes of a topic and its group: a daily rhythm, noise, and anomalies that were planted on purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.spark.jobs.alerts import Config

MINUTE = 60_000
DAY = 1_440
BEGIN = 1_767_225_600_000
"""2026-01-01 00:00 UTC."""


def rules_of(**given: Any) -> Config:
    """Return the rules that options of the job make."""
    return Config(servers="127.0.0.1:9876", **given)


@dataclass
class Traffic:
    """Days of minutes of one topic ``orders`` and its group ``billing``."""

    days: int = 8
    seed: int = 1
    puts: Any = field(init=False)
    gets: Any = field(init=False)
    lag: Any = field(init=False)
    latency: Any = field(init=False)
    back: Any = field(init=False)
    dead: Any = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        minutes = np.arange(self.days * DAY)
        rhythm = 300 * (1 + 0.6 * np.sin(2 * np.pi * minutes / DAY))
        self.puts = rng.poisson(rhythm).astype(float)
        self.gets = np.maximum(0, self.puts + rng.integers(-10, 10, len(minutes)))
        self.lag = rng.poisson(20, len(minutes)).astype(float)
        self.latency = rng.lognormal(2.0, 0.25, len(minutes))
        self.back = rng.poisson(0.2, len(minutes)).astype(float)
        self.dead = (rng.random(len(minutes)) < 0.001).astype(float)

    @property
    def end_ms(self) -> int:
        return BEGIN + self.days * DAY * MINUTE

    def minute(self, day: int, hour: float) -> int:
        return int(day * DAY + hour * 60)

    def plant(self, day: int) -> dict[str, int]:
        """Plant one anomaly of each kind in a day; return rule -> the minute at which it begins."""
        at = {
            "throughput_high": self.minute(day, 2),
            "no_traffic": self.minute(day, 6),
            "lag_growing": self.minute(day, 10),
            "latency_high": self.minute(day, 14),
            "dead_letters": self.minute(day, 18),
            "throughput_low": self.minute(day, 21),
        }
        self.puts[at["throughput_high"] :][:3] *= 5
        self.puts[at["no_traffic"] :][:12] = 0
        self.lag[at["lag_growing"] :][:25] += np.arange(1, 26) * 120.0
        self.latency[at["latency_high"] :][:5] *= 20
        self.dead[at["dead_letters"] :][:3] += 12
        self.puts[at["throughput_low"] :][:6] *= 0.2
        return at

    def rows(self) -> list[dict[str, Any]]:
        """Return both series as the rows of a table of minutes."""
        found = []
        for minute in range(self.days * DAY):
            time_ms = BEGIN + minute * MINUTE
            found.append(
                {
                    "time_ms": time_ms, "topic": "orders", "group": "", "put_messages": int(self.puts[minute]),
                    "put_bytes": int(self.puts[minute] * 200), "latency_p99_ms": float(self.latency[minute]),
                }
            )  # fmt: skip
            found.append(
                {
                    "time_ms": time_ms, "topic": "orders", "group": "billing", "get_messages": int(self.gets[minute]),
                    "get_bytes": int(self.gets[minute] * 300), "sent_back": int(self.back[minute]),
                    "dead_letters": int(self.dead[minute]), "lag_messages": int(self.lag[minute]),
                    "lag_seconds": float(self.lag[minute] / 10),
                }
            )  # fmt: skip
        return found
