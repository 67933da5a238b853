"""Delta and Iceberg tables over an archive's files, made and kept up by the driver with pip-installed libraries alone.

The archive's manifest stays the truth; a table follows it epoch by epoch, and a run first catches up what an earlier
one did not commit. Delta: all files of an epoch are one commit with the application transaction (``headrace-archive``,
epoch); deltalake does not refuse a repeated one, so the newest is read first. Iceberg: a SQLite catalog in the
archive's folder; the epoch is a property of the table and of the snapshot, and files that are in the table are refused
by the library.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from headrace.errors import ConfigError
from headrace.spark.extras import how_to_install
from headrace.spark.jobs.manifest import ArchiveError, ArchiveFile, Manifest
from headrace.spark.times import EPOCH, LAST_MS

if TYPE_CHECKING:
    import pyarrow as pa

APPLICATION: Final = "headrace-archive"
CATALOG: Final = "_iceberg"
CATALOG_FILE: Final = "catalog.db"
NAMESPACE: Final = "headrace"
TABLE: Final = "messages"
EPOCH_PROPERTY: Final = "headrace.epoch"


def require(table_format: str, root: Path) -> None:
    """Refuse a format whose library is not installed or cannot make a table in a folder, before anything is written.

    Raises:
        ConfigError: it is not, or cannot.
    """
    try:
        if table_format == "delta":
            import deltalake  # noqa: F401, PLC0415  # an optional dependency
        elif table_format == "iceberg":
            import pyiceberg.catalog.sql  # noqa: F401, PLC0415  # an optional dependency
    except ImportError as error:
        raise ConfigError(
            f"--table-format {table_format} needs {error.name}, which is not installed: {how_to_install(table_format)}",
            key="table_format",
        ) from error
    if table_format == "delta" and unquote(str(root)) != str(root):
        raise ConfigError(
            f"--to {root}: deltalake would look for {unquote(str(root))}: name a folder without % before two "
            "hexadecimal digits, or take another --table-format",
            key="to",
        )


def refuse_ahead(table_format: str, manifest: Manifest) -> None:
    """Refuse a table with epochs that the manifest lacks, before others get their numbers and count as committed.

    Raises:
        ArchiveError: epochs were removed, to have their messages archived anew, and the table was not.
    """
    if table_format == "parquet":
        return
    try:
        done = _done_of_delta(manifest) if table_format == "delta" else _done_of_iceberg(manifest)
    except Exception:  # noqa: BLE001  # what is wrong with it ``commit`` says, when the archive is complete
        return
    last = len(manifest.epochs)
    if done > last:
        raise ArchiveError(
            f"the {table_format} table over {manifest.path} has epoch {done}, the archive ends with epoch {last}: "
            f"remove its folder {_folder_of(table_format)}, the next run makes the table anew; nothing was added"
        )


def commit(table_format: str, manifest: Manifest) -> int | None:
    """Bring the table up to the manifest; return the epoch it stands at, None without a table.

    Raises:
        ArchiveError: the table cannot be written, or a file of the archive not be read for it.
    """
    if table_format == "parquet" or not manifest.files:
        return None
    try:
        return _commit_delta(manifest) if table_format == "delta" else _commit_iceberg(manifest)
    except Exception as error:
        if type(error).__module__.startswith("pyarrow"):
            _require_readable(manifest)
        if not type(error).__module__.startswith(("deltalake", "pyiceberg", "sqlalchemy", "_internal", "builtins")):
            raise
        said = str(error).partition("\n")[0]  # deltalake adds its native stack, SQLAlchemy its statement
        raise ArchiveError(
            f"the {table_format} table over {manifest.path} cannot be written: {said}; the archive itself is complete, "
            f"and the next run catches up, or makes the table anew where its folder {_folder_of(table_format)} was "
            "removed"
        ) from error


def _folder_of(table_format: str) -> str:
    return "_delta_log" if table_format == "delta" else CATALOG


def _require_readable(manifest: Manifest) -> None:
    """Name the file of which pyarrow cannot read the footer, which its error does not.

    Raises:
        ArchiveError: there is one.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415  # needed with a table only

    from headrace.spark.jobs.replay_rows import reading  # noqa: PLC0415  # needs pyspark

    for file in manifest.files:
        path = manifest.locate(file)
        with reading(path):
            pq.read_metadata(path)


def read_schema(manifest: Manifest) -> pa.Schema:
    """Return the schema of the archive's files."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # needed with a table only

    return pq.read_schema(manifest.locate(manifest.files[0])).remove_metadata()


def _done_of_delta(manifest: Manifest) -> int:
    """Return the newest epoch in the table, 0 for none."""
    from deltalake import DeltaTable  # noqa: PLC0415  # an optional dependency

    root = str(manifest.path.absolute())
    return (DeltaTable(root).transaction_version(APPLICATION) or 0) if DeltaTable.is_deltatable(root) else 0


def _commit_delta(manifest: Manifest) -> int:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction  # noqa: PLC0415  # an optional dependency
    from deltalake.transaction import AddAction, create_table_with_add_actions  # noqa: PLC0415

    root = str(manifest.path.absolute())
    is_there = DeltaTable.is_deltatable(root)
    done = _done_of_delta(manifest)
    schema = Schema.from_arrow(read_schema(manifest))
    for epoch in manifest.epochs:
        if epoch.epoch <= done or not epoch.files:
            continue
        actions: list[Any] = [
            AddAction(
                # As it is: the library encodes it for the log.
                path=file.path, size=file.size_bytes, partition_values={},
                modification_time=epoch.written_ms, data_change=True, stats=_delta_stats(file),
            )
            for file in epoch.files
        ]  # fmt: skip
        properties = CommitProperties(app_transactions=[Transaction(APPLICATION, epoch.epoch, epoch.written_ms)])
        if is_there:
            DeltaTable(root).create_write_transaction(
                actions, mode="append", schema=schema, partition_by=[], commit_properties=properties
            )
        else:
            create_table_with_add_actions(
                root, schema=schema, add_actions=actions, mode="error", partition_by=[], commit_properties=properties,
                name="headrace messages",
            )  # fmt: skip
            is_there = True
        done = epoch.epoch
    return done


def _delta_stats(file: ArchiveFile) -> str:
    """Statistics of a file as Delta has them, so that readers can pass over files."""
    least, most = {"topic": min(file.topics), "broker": file.broker}, {"topic": max(file.topics), "broker": file.broker}
    # Messages without a store time have files of their own (docs/spark/jobs/archive.md, "Layout").
    is_timed = file.min_ts <= LAST_MS
    if is_timed:
        least["store_ts"] = _iso(file.min_ts)
        # Times in the manifest are whole milliseconds: the newest message may be later by less than one.
        most["store_ts"] = _iso(min(file.max_ts + 1, LAST_MS))
    nulls = {"topic": 0, "broker": 0, "store_ts": 0 if is_timed else file.rows}
    return json.dumps({"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _iso(time_ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _done_of_iceberg(manifest: Manifest) -> int:
    """Return the newest epoch in the table, 0 for none; that of a table of elsewhere does not count."""
    folder = manifest.path.absolute() / CATALOG
    if not (folder / CATALOG_FILE).exists():
        return 0
    table = _load_table(open_catalog(folder), folder)
    return 0 if table is None else _newest_epoch(table)


def _newest_epoch(table: Any) -> int:
    # Who tends the table may replace its files and let its snapshots expire: the property stays.
    return max(int(table.properties.get(EPOCH_PROPERTY, 0)), *map(_epoch_of, table.snapshots()), 0)


def _commit_iceberg(manifest: Manifest) -> int:
    folder = manifest.path.absolute() / CATALOG
    folder.mkdir(exist_ok=True)
    catalog = open_catalog(folder)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    table = _load_table(catalog, folder)
    if table is None:
        table = catalog.create_table(f"{NAMESPACE}.{TABLE}", schema=read_schema(manifest))
    done = _newest_epoch(table)
    for epoch in manifest.epochs:
        if epoch.epoch > done and epoch.files:
            noted = {EPOCH_PROPERTY: str(epoch.epoch)}
            with _quiet_statistics(), table.transaction() as change:
                change.add_files([str(manifest.path.absolute() / file.path) for file in epoch.files], noted)
                change.set_properties(noted)
            done = epoch.epoch
    return done


@contextmanager
def _quiet_statistics() -> Iterator[None]:
    """Keep pyiceberg from warning of each column of each file that has no statistics: the archive writes none there."""
    log = logging.getLogger("pyiceberg.io.pyarrow")
    log.addFilter(_is_not_of_statistics)
    try:
        yield
    finally:
        log.removeFilter(_is_not_of_statistics)


def _is_not_of_statistics(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("PyArrow statistics missing")


def _load_table(catalog: Any, folder: Path) -> Any:
    """Return the Iceberg table that lies in a folder, None where there is none yet.

    Catalog and metadata hold absolute paths. In an archive that was copied or moved they lead to where it was: such a
    table is forgotten, not followed.
    """
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415  # an optional dependency

    identifier = f"{NAMESPACE}.{TABLE}"
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        return None
    except FileNotFoundError:
        pass
    else:
        if Path(table.location()).resolve().is_relative_to(folder.resolve()):
            return table
    catalog.drop_table(identifier)
    return None


def open_catalog(folder: Path) -> Any:
    """Return the Iceberg catalog in a folder, whatever characters its path has."""
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415  # an optional dependency
    from sqlalchemy import URL  # noqa: PLC0415  # comes with pyiceberg

    uri = URL.create("sqlite", database=str(folder / CATALOG_FILE)).render_as_string(hide_password=False)
    # A path and no URL: pyiceberg takes what is encoded in one for the names of folders.
    return SqlCatalog("headrace", uri=uri, warehouse=str(folder / "warehouse"))


def _epoch_of(snapshot: Any) -> int:
    summary = snapshot.summary
    return int((summary.additional_properties if summary else {}).get(EPOCH_PROPERTY, 0))
