"""What the figures of a run have to reach."""

from dataclasses import dataclass

from bench.metrics import METRICS, show_ratio
from bench.results import RunResult


@dataclass(frozen=True)
class Target:
    """A bound for one figure of ``contestant`` in one case.

    That of the case ``plus`` is added to it where one is given. The figure is divided by that of ``than`` in the same
    cases, or that of the case ``beyond`` is taken off it, where they are given. The part ``of_null`` of what the load
    itself reaches is enough, where that is less than ``at_least``.
    """

    case: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    than: str = ""
    beyond: str = ""
    plus: str = ""
    of_null: float | None = None
    contestant: str = "headrace"

    def measure(self, run: RunResult) -> float | None:
        """Return what the run has to say, None where it did not measure all of it."""
        value = self._sum(run, self.contestant)
        if value is None or not (self.than or self.beyond):
            return value
        if self.beyond:
            other = _median(run, self.beyond, self.contestant, self.metric)
            return None if other is None else value - other
        other = self._sum(run, self.than)
        return value / other if other else None

    def _sum(self, run: RunResult, contestant: str) -> float | None:
        figures = [_median(run, case, contestant, self.metric) for case in (self.case, self.plus) if case]
        known = [figure for figure in figures if figure is not None]
        return sum(known) if len(known) == len(figures) else None

    def is_met(self, value: float, run: RunResult) -> bool:
        """Tell whether a value that a run measured is within the bound."""
        least = self._least(run)
        return (least is None or value >= least) and (self.at_most is None or value <= self.at_most)

    def _least(self, run: RunResult) -> float | None:
        if self.at_least is None or self.of_null is None:
            return self.at_least
        ceiling, other = self._sum(run, "null"), self._sum(run, self.than)
        return min(self.at_least, self.of_null * ceiling / other) if ceiling and other else self.at_least

    def show(self, value: float) -> str:
        """Return a value as it stands beside the target."""
        return show_ratio(value) if self.than else METRICS[self.metric].show(value)

    def __str__(self) -> str:
        bound = "at least" if self.at_least is not None else "at most"
        limit = self.at_least if self.at_least is not None else self.at_most
        assert limit is not None
        title = METRICS[self.metric].title + (f" plus that of {self.plus}" if self.plus else "")
        if self.than:
            less = f", or {show_ratio(self.of_null)} of null where that is less" if self.of_null else ""
            return f"{title} {bound} {show_ratio(limit)} of {self.than}{less}"
        more = f" more than {self.beyond}" if self.beyond else ""
        return f"{title} {bound} {METRICS[self.metric].show(limit)}{more}"


def _median(run: RunResult, case: str, contestant: str, metric: str) -> float | None:
    result = run.by_contestant().get((case, contestant))
    return result.medians.get(metric) if result else None


_OLD = "rocketmq-4.9.7"
_NSQ_TARGETS = (
    Target("writer-100", "messages_per_s", at_least=5, than="nsqd", of_null=0.9),
    Target("writer-200", "messages_per_s", at_least=5, than="nsqd", of_null=0.9),
    Target("writer-1024", "messages_per_s", at_least=3, than="nsqd", of_null=0.9),
    # The tool's ceiling is the reader's limit: so it has to be with us, at no more than part of our core.
    *(
        target
        for case in ("reader-100", "reader-200", "reader-1024")
        for target in (
            Target(case, "messages_per_s", at_least=1, than="nsqd-memory"),
            Target(case, "load_cpu_share", at_least=0.95),
            Target(case, "server_cpu_share", at_most=0.6),
        )
    ),
    *(
        Target(case, "messages_per_s", at_least=3, than="nsqd")
        for case in ("consumer-100", "consumer-200", "consumer-1024")
    ),
    Target("mpub", "server_cpu_us", at_most=0.5),
    Target("pub", "server_cpu_us", at_most=1),
    Target("consumer-200", "server_cpu_us", at_most=0.8),
    Target("mpub", "server_cpu_us", at_most=1 / 4, plus="consumer-200", than="nsqd"),
    Target("pub-latency", "latency_p50_us", at_most=1, than="nsqd"),
    Target("pub-latency", "latency_p99_us", at_most=1, than="nsqd"),
    Target("fsync-1", "messages_per_s", at_least=0.8, than="disk", contestant="headrace-fsync"),
    Target("fsync-16", "messages_per_s", at_least=0.8, than="headrace", contestant="headrace-fsync"),
    Target("append", "ns_per_record", at_most=350, contestant="store"),
)
_ROCKETMQ_TARGETS = (
    Target("rocket-send-256", "messages_per_s", at_least=6, than=_OLD),
    Target("rocket-send-256", "server_cpu_us", at_most=2.2),
    Target("rocket-send-16", "messages_per_s", at_least=4, than=_OLD),
    Target("rocket-send-1", "latency_p50_us", at_most=1, than=_OLD),
    Target("rocket-send-1", "latency_p99_us", at_most=1, than=_OLD),
    Target("rocket-send-256-keys", "server_cpu_us", at_most=0.15, beyond="rocket-send-256"),
    Target("rocket-fsync-256", "messages_per_s", at_least=3, than="rocketmq-4.9.7-sync", contestant="headrace-fsync"),
    Target("rocket-batch-32", "server_cpu_us", at_most=0.6),
    Target("rocket-pull-100", "messages_per_s", at_least=3, than=_OLD),
    Target("rocket-pull-100", "server_cpu_us", at_most=1 / 3, than=_OLD),
    Target("rocket-pull-1k", "megabytes_per_s", at_least=2, than=_OLD),
    Target("rocket-pull-1k", "server_cpu_us", at_most=1 / 3, than=_OLD),
    Target("rocket-start", "start_s", at_most=1),
    Target("rocket-memory", "rss_anon_mib", at_most=150),
)
TARGETS = _NSQ_TARGETS + _ROCKETMQ_TARGETS


def missed_targets(run: RunResult, targets: tuple[Target, ...] = TARGETS) -> list[str]:
    """Return a line for every figure that is beyond its target."""
    return [
        f"{target.case}: {target}, measured {target.show(value)}"
        for target in targets
        if (value := target.measure(run)) is not None and not target.is_met(value, run)
    ]


def render_targets(
    run: RunResult, targets: tuple[Target, ...] = TARGETS, *, names_contestant: bool = False
) -> list[str]:
    """Return a row for each target that the run's figures decide, no line where there is none."""
    rows = []
    for target in targets:
        value = target.measure(run)
        if value is not None:
            title = run.case(target.case).title + (f": {target.contestant}" if names_contestant else "")
            verdict = "" if target.is_met(value, run) else "missed"
            rows.append(f"| {title} | {target} | {target.show(value)} | {verdict} |")
    return ["", "| Case | Target | Measured | |", "| --- | --- | ---: | --- |", *rows] if rows else []
