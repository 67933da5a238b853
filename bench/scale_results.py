"""What ``python -m bench.scale`` found: its results file and its section of docs/performance.md."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.document import update_section
from bench.machine import describe_hardware
from bench.metrics import Metric
from bench.results import RESULTS

# Apart from the speed results: bench.compare takes every file of that folder for one of its own.
SCALE_RESULTS = RESULTS / "scale"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Figure:
    """One row of a scale table. ``at_most`` is the target, None where there is none."""

    metric: Metric
    at_most: float | None = None

    @property
    def target(self) -> str:
        """The target as text, empty where there is none."""
        return "" if self.at_most is None else f"at most {self.metric.show(self.at_most)}"


def _figure(title: str, digits: int = 0, at_most: float | None = None) -> Figure:
    return Figure(Metric(title, digits, None), at_most)


FIGURES = {
    "messages": _figure("messages"),
    "log_gb": _figure("commit log, GB", 2),
    "channels": _figure("channels"),
    "consumers": _figure("consumers"),
    "connections": _figure("connections"),
    "queues": _figure("queues, one topic each"),
    "topics": _figure("topics"),
    "clients": _figure("clients"),
    "rss_anon_before_mib": _figure("RssAnon before, MiB", 1),
    "rss_anon_after_mib": _figure("RssAnon after, MiB", 1),
    "rss_anon_consumed_mib": _figure("RssAnon when all is consumed, MiB", 1),
    "rss_anon_peak_mib": _figure("RssAnon peak meanwhile, MiB", 1),
    "kib_each": _figure("RssAnon for each, KiB", 2),
    "bytes_each": _figure("RssAnon for each, bytes"),
    "publish_per_s": _figure("published per second"),
    "create_s": _figure("time to create them, s", 1),
    "connect_s": _figure("time until all are subscribed, s", 1),
    "consume_s": _figure("time to consume them, s", 1),
    "consume_per_s": _figure("consumed per second"),
    "idle_cpu_percent": _figure("idle CPU, % of one core", 2),
    "timeout_cpu_us": _figure("server CPU, us per message that timed out", 2),
    "create_cpu_us": _figure("server CPU, us per topic made"),
    "routed_s": _figure("time until the last one is routed, s", 1),
    "route_p50_ms": _figure("route of one topic, p50, ms", 2),
    "route_p99_ms": _figure("route of one topic, p99, ms", 2),
    "route_cpu_us": _figure("server CPU, us per route asked for"),
    "routed_after_start_s": _figure("routed so long after a start, s", 2),
    "empty_cpu_percent": _figure("idle CPU before, % of one core", 2),
    "heartbeats_per_s": _figure("heartbeats per second", 1),
    "told_changes": _figure("members told of a change meanwhile"),
    "heartbeat_cpu_percent": _figure("CPU with them, % of one core", 2, 5),
    "heartbeat_cpu_us": _figure("server CPU, us per heartbeat"),
    "messages_per_s": _figure("published and consumed per second"),
    "server_cpu_us": _figure("server CPU, us per message in or out", 2),
    "server_cpu_percent": _figure("server CPU meanwhile, % of one core"),
    "latency_p50_ms": _figure("PUB p50, ms", 1),
    "latency_p99_ms": _figure("PUB p99, ms", 1),
    "latency_p999_ms": _figure("PUB p99.9, ms", 1),
    "errors": _figure("errors", 0, 0),
    "missing": _figure("missing", 0, 0),
    "duplicates": _figure("delivered twice"),
    "start_s": _figure("start, s", 2, 1),
    "start_clean_s": _figure("start after a clean stop, s", 2),
    "start_killed_s": _figure("start after kill -9, s", 2),
    "behind_gb": _figure("log behind the checkpoint, GB", 2),
    "s_per_gb": _figure("start after kill -9, s per GB", 2, 3),
}


@dataclass
class ScaleCase:
    """One situation and its figures, by their name in FIGURES."""

    name: str
    title: str
    commands: list[str]
    figures: dict[str, float]


@dataclass
class ScaleRun:
    """One run. ``note`` says what a reader of the figures should know, such as other load on the machine."""

    date: str
    commit: str
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    note: str = ""
    cases: list[ScaleCase] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def write_scale_run(run: ScaleRun, path: Path) -> None:
    """Write a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT_VERSION, **asdict(run)}, indent=1) + "\n")


def read_scale_run(path: Path) -> ScaleRun:
    """Read a run.

    Raises:
        ValueError: the file has another format version.
    """
    document = json.loads(path.read_text())
    version = document.pop("format")
    if version != FORMAT_VERSION:
        raise ValueError(f"{path} has format {version}, this is {FORMAT_VERSION}")
    cases = [ScaleCase(**case) for case in document.pop("cases")]
    return ScaleRun(cases=cases, **document)


def update_scale_document(run: ScaleRun, document: Path) -> None:
    """Replace the scale section of the document."""
    update_section(document, "scale", "python -m bench.scale", render_scale(run))


def render_scale(run: ScaleRun) -> str:
    """Return the conditions and one table per case."""
    lines = [
        f"Measured {run.date[:10]} at commit `{run.commit}` with `{run.command}`, one sample of each.",
        "",
        f"Hardware: {describe_hardware(run.machine)}. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in run.versions.items())}.",
    ]
    if run.note:
        lines += ["", f"Note: {run.note}"]
    for case in run.cases:
        lines += ["", f"### {case.title}", "", "| | Measured | Target |", "| --- | ---: | --- |"]
        for name, value in case.figures.items():
            figure = FIGURES[name]
            lines.append(f"| {figure.metric.title} | {figure.metric.show(value)} | {figure.target} |")
        lines += [""] if case.commands else []
        lines += [f"- `{command}`" for command in case.commands]
    return "\n".join(lines) + "\n"


def missed_targets(run: ScaleRun) -> list[str]:
    """Return a line for every figure that is beyond its target."""
    lines = []
    for case in run.cases:
        for name, value in case.figures.items():
            figure = FIGURES[name]
            if figure.at_most is not None and value > figure.at_most:
                lines.append(f"{case.name}: {figure.metric.title} {figure.metric.show(value)}, {figure.target}")
    return lines
