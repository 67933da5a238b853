"""Find messages by key, id, text or time, in a log and in an archive.

Looks for --key (a KEYS value or the unique key), --id (RocketMQ's offset id or NSQ's message id), --contains (a text in
the body), or simply for everything between --since and --until. The log is that of --store or --servers, the archive
that of --archive, where the manifest says which files are worth opening; with both, a message that is in both is shown
once. It prints where each message lies, with --bodies also what it says, and writes all columns to --to. Nothing is
changed, so it may be repeated.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.spark import functions as F  # noqa: N812  # as PySpark calls them
from headrace.spark.jobs import manifest
from headrace.spark.jobs.config import JobConfig, option, require_known_topics, show_time
from headrace.spark.jobs.folder import read_files, read_path, wanted_rows
from headrace.spark.jobs.log_rows import (
    note_damage,
    note_missing,
    require_topics,
    rows_of,
    source_of,
    splits_between,
    watched,
)
from headrace.spark.jobs.message_ids import MessageId, parse_message_id
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import Summary, Table
from headrace.spark.jobs.target import hold_target, replace_folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.spark.scan import LogSplit

POSITION: Final = ("broker", "topic", "queue_id", "queue_offset", "log_offset", "msg_id")
COLUMNS: Final = (
    *POSITION, "unique_key", "keys", "tags", "reconsume_times", "born_ts", "store_ts", "source_protocol", "body",
)  # fmt: skip
SHOWN_CHARACTERS: Final = 200
"""Of a body."""
UTF_8: Final = codecs.getincrementaldecoder("utf-8")
STORE: Final = "_store"
PLACE: Final = "_place"
"""Columns of what is found, while one message may be there several times: its store, and IN_LOG or IN_ARCHIVE."""
IN_LOG: Final = 0
IN_ARCHIVE: Final = 1


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job search``."""

    archive: Path | None = option(None, help="Folder of an archive to look through as well.", metavar="DIR")
    key: tuple[str, ...] = option((), help="Messages with one of these KEYS, or with this unique key.")
    id: tuple[str, ...] = option((), help="Messages with one of these ids, RocketMQ's offset ids or NSQ's.")
    contains: str = option("", help="Messages whose body has this text (UTF-8); every body is read.", form="text")
    tags: tuple[str, ...] = option((), help="Only messages with one of these tags.")
    bodies: bool = option(False, help=f"Show the first {SHOWN_CHARACTERS} characters of each body.")
    limit: int = option(100, help="Messages shown, the oldest ones.", least=1, most=100_000)
    to: Path | None = option(None, help="Write all that were found to this folder, as Parquet.", metavar="DIR")

    def validate(self) -> None:
        """Check what belongs together."""
        if self.store is not None or self.servers or self.archive is None:
            self.require_source()
        if self.archive is not None:
            manifest.require_archive(self.archive)
        if not (self.key or self.id or self.contains or self.since is not None or self.until is not None):
            raise ConfigError("say what to look for: --key, --id, --contains, --since or --until", key="key")
        for text in self.id:
            parse_message_id(text)

    @property
    def ids(self) -> list[MessageId]:
        """The ids, parsed."""
        return [parse_message_id(text) for text in self.id]

    @property
    def has_conditions(self) -> bool:
        """Whether messages are wanted beside those that are named by an id."""
        return bool(self.key or self.contains or not self.id)


def run(spark: SparkSession, config: Config) -> Summary:
    """Search, and say what was found.

    Raises:
        ConfigError: wrong use.
        FolderBusyError: another run writes to the folder.
        HeadraceError: a log or an archive cannot be read.
    """
    summary = Summary(job="search", dry_run=config.dry_run)
    with hold_target(config.to, "to", dry_run=config.dry_run):
        phase("looking for the places")
        found: list[DataFrame] = []
        if config.store is not None or config.servers:
            found += _in_log(spark, config, summary)
        if config.archive is not None:
            found += _in_archive(spark, config, summary)
        if config.dry_run:
            return summary
        phase("searching")
        rows = _once(found, _needed(config)).persist()
        try:
            summary.facts["found"] = total = rows.count()
            if config.topics:
                # One that was deleted may have messages all the same.
                _require_topics(config, {row["topic"] for row in rows.select("topic").distinct().collect()})
            shown = rows.orderBy("store_ts", "broker", "log_offset").limit(config.limit)
            summary.tables.append(_table(shown, config.bodies))
            if total > config.limit:
                summary.notes.append(
                    f"{total - config.limit} more were found: raise --limit, or have all written with --to"
                )
            if config.to is not None:
                replace_folder(rows, config.to)
                summary.facts["written"] = str(config.to)
        finally:
            rows.unpersist()
            note_damage(summary)
    return summary


def _require_topics(config: Config, found: Set[str]) -> None:
    """Refuse named topics that neither the log nor the archive has.

    Args:
        found: Topics of which messages were found.

    Raises:
        ConfigError: there is no such topic, with the nearest one.
    """
    quiet = sorted(set(config.topics) - found)
    archived = manifest.load(config.archive).known_topics if quiet and config.archive is not None else ()
    if config.store is not None or config.servers:
        require_topics(source_of(config), quiet, archived)
        return
    require_known_topics(quiet, archived, "in the archive")


def _once(found: Sequence[DataFrame], columns: Sequence[str]) -> DataFrame:
    """Return each message once: it is known by its store and its physical offset there; the row of the log counts."""
    united = found[0]
    for other in found[1:]:
        united = united.unionByName(other)
    row = F.min_by(F.struct(*columns), PLACE).alias("row")
    return united.groupBy(STORE, "log_offset").agg(row).select("row.*")


def _marked(rows: DataFrame, stores: Mapping[str, str], place: int) -> DataFrame:
    """Add what messages are known by: one store may go by two names, and two stores by one, after one another.

    Args:
        stores: Identity of each broker's store, empty where it is not known: then the broker's name is all there is.
    """
    known = {broker: store_id for broker, store_id in stores.items() if store_id}
    names = F.create_map(*(F.lit(text) for pair in known.items() for text in pair)).cast("map<string,string>")
    store = F.coalesce(F.try_element_at(names, F.col("broker")), F.col("broker"))
    return rows.withColumns({STORE: store, PLACE: F.lit(place)})


def _needed(config: Config) -> tuple[str, ...]:
    """Return the columns to read: bodies only if they are shown, searched or written."""
    return COLUMNS if config.bodies or config.contains or config.to is not None else COLUMNS[:-1]


# -- the log ---------------------------------------------------------------------------------------------------------


def _in_log(spark: SparkSession, config: Config, summary: Summary) -> list[DataFrame]:
    from headrace.spark.scan import plan_log  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.schema import arrow_schema  # noqa: PLC0415  # needs pyarrow
    from headrace.spark.tasks import run_in_tasks  # noqa: PLC0415  # pyspark

    columns = _needed(config)
    source = source_of(config)
    extents = source.extents()
    note_missing(summary, extents)
    splits = watched(spark, splits_between(plan_log(source, extents=extents), config.since, config.until), summary)
    found = []
    limits: dict[str, Any] = {
        "topics": config.topics or None,
        "tags": config.tags or None,
        "start_ms": config.since,
        "end_ms": config.until,
        "retry_topics": True,
    }
    if config.has_conditions:
        summary.facts["log_bytes"] = sum(split.size_bytes for split in splits)
        if config.contains:
            work = partial(_containing, text=config.contains, columns=columns, options=limits | _keys(config))
            found.append(run_in_tasks(spark, splits, work, arrow_schema(columns)))
        else:
            found.append(rows_of(spark, splits, columns, **limits, **_keys(config)))
    named = [(piece, wanted) for wanted in config.ids for piece in _places(splits, wanted.physical_offset)]
    if config.id:
        summary.facts["places_of_ids"] = len(named)
        work = partial(_named, columns=columns, options=limits)
        found.append(run_in_tasks(spark, named, work, arrow_schema(columns)))
    stores = {extent.broker: extent.store_id for extent in extents}
    return [_marked(rows, stores, IN_LOG) for rows in found]


def _keys(config: Config) -> dict[str, Any]:
    return {"keys": config.key} if config.key else {}


def _places(splits: Sequence[LogSplit], physical_offset: int) -> Iterator[LogSplit]:
    """Yield the one-record splits, at most one of each broker, that begin at a physical offset."""
    for split in splits:
        if split.start <= physical_offset < split.end:
            yield replace(split, start=physical_offset, end=physical_offset + 1)


def _containing(
    split: LogSplit, text: str, columns: tuple[str, ...], options: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc  # noqa: PLC0415  # an extra

    from headrace.spark.scan import read_split  # noqa: PLC0415  # needs pyarrow

    for batch in read_split(split, columns, **options):
        yield batch.filter(pc.fill_null(pc.match_substring(batch.column("body"), text), False))


def _named(
    place: tuple[LogSplit, MessageId], columns: tuple[str, ...], options: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc  # noqa: PLC0415  # an extra

    from headrace.spark.scan import read_split  # noqa: PLC0415  # needs pyarrow

    split, wanted = place
    for batch in read_split(split, columns, is_guess=True, **options):  # an id may be made up
        there = pc.equal(batch.column("log_offset"), wanted.physical_offset)
        if wanted.store_host:
            there = pc.and_(there, pc.equal(pc.utf8_upper(batch.column("msg_id")), wanted.text))
        yield batch.filter(there)


# -- the archive -----------------------------------------------------------------------------------------------------


def _in_archive(spark: SparkSession, config: Config, summary: Summary) -> list[DataFrame]:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # pyspark

    from headrace.spark.schema import arrow_schema  # noqa: PLC0415  # needs pyarrow

    assert config.archive is not None
    archive = manifest.load(config.archive)
    files = archive.select(topics=config.topics, since=config.since, until=config.until)
    if not config.has_conditions:
        offsets = [wanted.physical_offset for wanted in config.ids]
        files = [file for file in files if any(file.start <= offset < file.end for offset in offsets)]
    summary.facts["archive_files"] = len(files)
    summary.facts["archive_files_passed_over"] = len(archive.files) - len(files)
    if not files:
        return [_marked(rows_of(spark, [], _needed(config)), {}, IN_ARCHIVE)]
    rows = read_files(spark, (read_path(archive.locate(file)) for file in files))
    there = set(rows.columns)
    missing = [name for name in ("topic", "broker", "log_offset", "store_ts") if name not in there]
    if missing:
        raise ConfigError(
            f"the archive {config.archive} has no column {missing[0]}: it cannot be searched", key="archive"
        )
    conditions = _conditions(config, there)
    for condition in conditions:
        rows = rows.where(condition)
    rows = rows.select(
        *(
            F.col(field.name) if field.name in there else F.lit(None).cast(field.dataType).alias(field.name)
            for field in from_arrow_schema(arrow_schema(_needed(config)))
        )
    )
    return [_marked(rows, archive.store_ids, IN_ARCHIVE)]


def _conditions(config: Config, there: set[str]) -> list[Column]:
    """Return what a row of the archive must meet; Spark hands comparisons on to the Parquet files."""

    def need(name: str, flag: str) -> Column:
        if name not in there:
            raise ConfigError(f"the archive has no column {name}, which {flag} needs", key=flag.strip("-"))
        return F.col(name)

    found = wanted_rows(config)
    if config.tags:
        found.append(need("tags", "--tags").isin(list(config.tags)))
    wanted: Column | None = None
    if config.key:
        keys = list(config.key)
        among = F.arrays_overlap(F.split(F.coalesce(need("keys", "--key"), F.lit("")), " "), F.array(*map(F.lit, keys)))
        wanted = need("unique_key", "--key").isin(keys) | among
    if config.contains:
        has = F.contains(need("body", "--contains"), F.lit(config.contains.encode()))
        wanted = has if wanted is None else wanted & has
    for one in config.ids:
        here = F.col("log_offset") == one.physical_offset
        if one.store_host and "store_host" in there:
            here &= F.col("store_host") == one.store_host
        wanted = here if wanted is None else wanted | here
    return found if wanted is None else [*found, wanted]


# -- showing ---------------------------------------------------------------------------------------------------------


def _table(rows: DataFrame, bodies: bool) -> Table:
    names = ("stored", *POSITION, "unique_key", "keys", "tags", *(("body",) if bodies else ()))
    # Times as numbers: Python has no local time for the first and last hours of the years 1 to 9999, in which producers
    # may claim to have made messages.
    numbered = rows.withColumn("stored", F.unix_millis("store_ts")).select(*names)
    shown = []
    for row in numbered.collect():
        cells = row.asDict()
        cells["stored"] = show_time(cells["stored"])
        if bodies:
            cells["body"] = show_body(cells["body"])
        shown.append([cells[name] for name in names])
    return Table("messages", "Messages, oldest first", names, shown)


def show_body(body: bytes | None) -> str:
    """Write the beginning of a body for people: as text where it is one, else as hex digits."""
    if body is None:
        return ""
    part = bytes(body[: 4 * SHOWN_CHARACTERS])
    try:
        text = UTF_8().decode(part, final=len(part) == len(body))  # else its last letter may be cut
        is_text = all(letter.isprintable() or letter in "\t\r\n" for letter in text)
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        text = part.hex()
    return text if len(text) <= SHOWN_CHARACTERS and len(part) == len(body) else text[: SHOWN_CHARACTERS - 1] + "…"
