"""Send archived messages to topics again, by time range and topic.

Reads an archive's files in the order of the log and writes through the sink. Messages of one queue stay in one queue,
in their order; body, tags, keys, unique key, flag, born time and properties are kept, and the property REPLAY_OF names
the record they come from (BROKER:PHYSICAL_OFFSET). The rows of each part of a replay are numbered under an identity
made of its options: after a crash, or by mistake, the same replay again adds nothing, also when the archive has grown.
--txn NAME makes it another one, under which everything is sent once more.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.errors import ConfigError
from headrace.format.names import INTERNAL_TOPICS
from headrace.spark.jobs.config import JobConfig, option, require_known_topics, require_target_topic, show_time
from headrace.spark.jobs.manifest import ArchiveFile, Manifest, load, require_archive
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.publishing import summarise_skipped
from headrace.spark.jobs.summary import Summary, Table
from headrace.spark.writing.route import require_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.jobs.replay_rows import ReplayTask
    from headrace.spark.writing.plan import WritePlan

NEEDED: Final = ("topic", "broker", "queue_id", "queue_offset", "log_offset", "store_ts", "body", "properties")


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job replay``."""

    without = frozenset({"store"})

    archive: Path = option(Path(), help="Folder of the archive.", metavar="DIR", required=True)
    to: str = option("", help="Topic that gets all messages; by default each goes to its own.", metavar="TOPIC")
    map: tuple[str, ...] = option((), help="Where messages of single topics go.", metavar="FROM=TO")
    rate: float = option(0.0, help="Most messages a second over all tasks, 0 for no limit.", least=0)
    speed: float = option(0.0, help="Pace of the original times this: 1 as it was, 0 as fast as it goes.", least=0)
    keys: Literal["keep", "new"] = option("keep", help="Unique keys: the original ones, or REPLAY_OF.")
    parts: int = option(1, help="Tasks for each topic of each broker; part of the identity.", least=1, most=64)
    txn: str = option("", help="Name of this replay in its identity: another sends all once more.", metavar="NAME")
    skip_unsendable: bool = option(
        False, help="Leave out messages that cannot be sent, as too long ones, and list them."
    )
    ack: Literal["stored", "flushed", "replicated"] = option("stored", help="When a message counts as sent.")

    def validate(self) -> None:
        """Check what is to be sent where."""
        if not self.servers:
            raise ConfigError(
                "--servers is missing: the registries of the cluster to send to, host:9876", key="servers"
            )
        if self.rate and self.speed:
            raise ConfigError("--rate and --speed both say how fast: name one", key="rate")
        if self.to and self.map:
            raise ConfigError("--to sends everything to one topic: leave --map away", key="map")
        require_target_topic(self.to, "--to")
        mapped: set[str] = set()
        for pair in self.map:
            origin, equals, target = pair.partition("=")
            if not (origin and equals and target):
                raise ConfigError(f"--map {pair!r}: write FROM=TO", key="map")
            if origin in mapped:
                raise ConfigError(f"--map {pair!r}: topic {origin!r} is sent elsewhere already", key="map")
            if self.topics and origin not in self.topics:
                raise ConfigError(f"--map {pair!r}: topic {origin!r} is not among --topics", key="map")
            mapped.add(origin)
            require_target_topic(target, f"--map {pair!r}")
        require_archive(self.archive)

    def target_of(self, topic: str) -> str:
        """Return where messages of a topic go."""
        mapping = dict(pair.split("=", 1) for pair in self.map)
        return self.to or mapping.get(topic, topic)


def run(spark: SparkSession, config: Config) -> Summary:
    """Send, and return what was stored and what was there already.

    Raises:
        ConfigError: no archive, a target that cannot be written to, spark.speculation is on.
        TopicNotFoundError: the archive has no messages of a topic that is named.
        HeadraceError: a broker did not take messages; the same replay again goes on.
    """
    from headrace.spark.jobs.answers import ask_tasks  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.jobs.replay_rows import send_part  # noqa: PLC0415  # needs pyarrow

    phase("planning")
    manifest = load(config.archive)
    topics = choose_topics(config, manifest)
    require_targets(config, topics)
    files = manifest.select(topics=topics, since=config.since, until=config.until)
    for file in files:
        manifest.locate(file)
    summary = Summary(job="replay", dry_run=config.dry_run)
    summary.facts |= {
        "archive": str(config.archive), "since": show_time(config.since), "until": show_time(config.until),
        "files": len(files),
    }  # fmt: skip
    if config.dry_run:
        describe_plan(summary, config, topics, files)
        return summary
    require_columns(manifest, files)
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise ConfigError("replay numbers the messages of a task, which speculation may send twice at once: switch "
                          "spark.speculation off", key="conf")  # fmt: skip
    tasks = make_tasks(spark, config, manifest, topics, files)
    if tasks:
        phase("sending")
    results = ask_tasks(spark, tasks, send_part, "parts were to be sent", in_tasks=len(tasks))  # they share a rate
    describe_run(summary, tasks, results)
    return summary


def choose_topics(config: Config, manifest: Manifest) -> list[str]:
    """Return the topics to send: those named, else all ordinary ones.

    Raises:
        ConfigError: the archive has none of a topic that is named, or one is mapped that is not among those to send.
    """
    mapped = [pair.split("=", 1)[0] for pair in config.map]
    require_known_topics([*config.topics, *mapped], manifest.known_topics, "in the archive")
    for topic in () if config.topics else mapped:
        if not _is_ordinary(topic):
            raise ConfigError(
                f"--map {topic}=...: this is no ordinary topic and is sent when --topics names it", key="map"
            )
    return sorted(config.topics) or [topic for topic in sorted(manifest.topics) if _is_ordinary(topic)]


def _is_ordinary(topic: str) -> bool:
    return topic not in INTERNAL_TOPICS and not topic.startswith("%")


def require_targets(config: Config, topics: list[str]) -> None:
    """Refuse topics that have a name no producer may write to, as those of NSQ with a dot, and are sent nowhere else.

    Raises:
        ConfigError: there is one.
    """
    for topic in topics:
        try:
            require_topic(config.target_of(topic))
        except ConfigError as error:  # its own name: what options say was accepted with them
            raise ConfigError(
                f"topic {topic!r} cannot be sent to under its own name: --map {topic}=TOPIC or --to TOPIC says where "
                f"its messages go ({error})",
                key="map",
            ) from None


def require_columns(manifest: Manifest, files: list[ArchiveFile]) -> None:
    """Refuse an archive of which messages cannot be made again.

    Raises:
        ConfigError: a column was left out when it was made.
        ArchiveError: a file is damaged.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  # only here

    from headrace.spark.jobs.replay_rows import reading  # noqa: PLC0415  # needs pyarrow

    if not files:
        return
    path = manifest.locate(files[0])
    with reading(path):
        present = set(pq.read_schema(path).names)
    has_compressed = any(epoch.counters.get("inflate_failures") for epoch in manifest.epochs)
    needed = (*NEEDED, "sys_flag") if has_compressed else NEEDED
    missing = [name for name in needed if name not in present]
    if missing:
        raise ConfigError(
            f"the archive {manifest.path} was made without the column {', '.join(missing)}: its messages cannot be "
            "sent again",
            key="archive",
        )


def make_tasks(
    spark: SparkSession, config: Config, manifest: Manifest, topics: list[str], files: list[ArchiveFile]
) -> list[ReplayTask]:
    """Return a task for each part of each topic of each broker.

    Raises:
        ConfigError: a target cannot be written to.
    """
    from headrace.spark.jobs.replay_rows import ReplayTask  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.tasks import parallelism  # noqa: PLC0415

    plans = {target: make_plan(config, target) for target in sorted({config.target_of(topic) for topic in topics})}
    # Queue n of the origin goes to n modulo that.
    queues = {
        target: max(number for _, number in plan.route.queues) + 1 for target, plan in plans.items() if plan.route
    }
    origins = sorted({(file.broker, topic) for file in files for topic in file.topics if topic in topics})
    count = len(origins) * config.parts
    at_once = min(count, parallelism(spark) or count) or 1
    oldest = min((max(file.min_ts, config.since or 0) for file in files), default=0)
    tasks: list[ReplayTask] = []
    for broker, topic in origins:
        chosen = [file for file in files if file.broker == broker and topic in file.topics]
        root = manifest.path.absolute()
        groups = tuple(tuple(str(root / file.path) for file in group) for group in beside_each_other(chosen))
        checksums = {str(root / file.path): file.crc32 for file in chosen}
        target = config.target_of(topic)
        for part in range(config.parts):
            tasks.append(ReplayTask(
                groups=groups, checksums=checksums,
                broker=broker, topic=topic, part=part, parts=config.parts, since=config.since, until=config.until,
                plan=plans[target], txn=identity(config, manifest, broker, topic), queues=queues[target],
                rate=config.rate / at_once, speed=config.speed, oldest_ms=oldest,
                skip_unsendable=config.skip_unsendable,
            ))  # fmt: skip
    return tasks


def beside_each_other(files: list[ArchiveFile]) -> list[list[ArchiveFile]]:
    """Return files of one log in its order, those together whose parts of it overlap.

    That is so where a clock went back over midnight: the messages of one range lie in turn in the files of two days.
    """
    groups: list[list[ArchiveFile]] = []
    end = -1
    for file in sorted(files, key=lambda file: (file.min_offset, file.path)):
        if groups and file.min_offset < end:
            groups[-1].append(file)
        else:
            groups.append([file])
        end = max(end, file.max_offset)
    return groups


def make_plan(config: Config, target: str) -> WritePlan:
    """Return how rows for one topic are written; everything that can be wrong with it is found here.

    Raises:
        ConfigError: the topic does not exist and cannot be made, or its brokers cannot do what is asked.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # needs pyspark

    from headrace.spark.jobs.replay_rows import SCHEMA  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.writing.sink import make_writer  # noqa: PLC0415  # needs pyspark

    options = {
        "servers": config.servers, "topic": target, "semantics": "idempotent", "extraColumns": "properties",
        "ack": config.ack, "producerGroup": "headrace_replay", **config.auth_options(),
    }  # fmt: skip
    schema = SCHEMA if config.keys == "new" else SCHEMA.remove(SCHEMA.get_field_index("unique_key"))
    plan = make_writer(options, from_arrow_schema(schema), False).plan
    # A key that is given names the message here; duplicates are known by the number of the row.
    return replace(plan, columns=replace(plan.columns, is_keyed=False))


def identity(config: Config, manifest: Manifest, broker: str, topic: str) -> str:
    """Return the name under which brokers know the rows of one topic of one broker."""
    # Rows are numbered from the first one on, which another archive of the same store may not have.
    first = next(epoch.brokers[broker].start for epoch in manifest.epochs if broker in epoch.brokers)
    since = manifest.selection.since if manifest.selection is not None else None
    # The same goes for times, also under a name of one's own.
    times = [config.since, config.until]
    chosen: Any = [*times, config.keys]
    if config.txn:
        chosen = config.txn if times == [None, None] else [config.txn, *times]
    said = (
        chosen, manifest.store_ids.get(broker, ""), broker, topic,
        config.target_of(topic), config.parts, first, since,
    )  # fmt: skip
    return f"replay-{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]}"


def describe_plan(summary: Summary, config: Config, topics: list[str], files: list[ArchiveFile]) -> None:
    """Say what a run would send; where times cut files, at most."""
    counts = {topic: sum(file.topics.get(topic, 0) for file in files) for topic in topics}
    summary.facts["messages"] = sum(counts.values())
    rows = [(topic, config.target_of(topic), count) for topic, count in counts.items() if count]
    summary.tables.append(Table("topics", "Topics", ("topic", "target", "messages"), rows))
    if config.since is not None or config.until is not None:
        summary.notes.append("the numbers are of whole files: messages outside of the times are not sent")


def describe_run(summary: Summary, tasks: list[ReplayTask], results: list[dict[str, Any]]) -> None:
    """Say what a run has sent."""
    counts: dict[tuple[str, str], list[int]] = {}
    for task, result in zip(tasks, results, strict=True):
        assert task.plan.options.topic is not None
        total = counts.setdefault((task.topic, task.plan.options.topic), [0, 0, 0])
        for at, name in enumerate(("rows", "stored", "duplicates")):
            total[at] += result[name]
    for at, name in enumerate(("messages", "stored", "duplicates")):
        summary.facts[name] = sum(total[at] for total in counts.values())
    summary.facts["retries"] = sum(result["retries"] for result in results)
    rows = [(topic, target, *total) for (topic, target), total in sorted(counts.items())]
    columns = ("topic", "target", "messages", "stored", "duplicates")
    summary.tables.append(Table("topics", "Topics", columns, rows))
    summarise_skipped(summary, results)
    if summary.facts["duplicates"]:
        summary.notes.append(
            "duplicates were sent by an earlier run of the same replay, or by this one before an answer or a task was "
            "lost: they are not there twice"
        )
