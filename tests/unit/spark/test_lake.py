"""Tables over an archive's files. Ref: docs/spark/jobs/archive.md, "Delta and Iceberg"."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import ConfigError  # noqa: E402
from headrace.spark.jobs import archive, lake  # noqa: E402
from headrace.spark.jobs.archive_files import describe, folder_name, write_parquet  # noqa: E402
from headrace.spark.jobs.manifest import (  # noqa: E402
    FOLDER,
    ArchiveError,
    BrokerRange,
    Epoch,
    Manifest,
    Selection,
    epoch_name,
    load,
    load_epochs,
    write_epoch,
)
from headrace.spark.scan import LogSplit, StoreSource  # noqa: E402

ROWS = 10


STRANGE = ("%DLQ%billing", "%25", "a|b", "a b+c&d", "naïve 日本", "#1?", 'it\'s "{x}"[^y]*`~\\', "tab\there")
"""Names that are written in some other way in a path, in a URL or in both."""


def archive_more(root: Path, topic: str = "t", broker: str = "b", folder: str = "") -> Manifest:
    """Add an epoch of ``ROWS`` messages to an archive, in one file in a folder of its; return its manifest."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    (root / folder).mkdir(parents=True, exist_ok=True)
    start = 1_000 * len(load_epochs(root).epochs)
    split = LogSplit(StoreSource("store"), broker, start, start + 1_000, 1 << 20)
    now = [datetime(2026, 1, 1, tzinfo=UTC)] * ROWS
    rows = pa.table({
        "topic": [topic] * ROWS,
        "queue_id": pa.array([0] * ROWS, pa.int32()),
        "queue_offset": range(start, start + ROWS),
        "log_offset": range(start, start + ROWS),
        "store_ts": pa.array(now, pa.timestamp("us", tz="UTC")),
        "body": [b"x"] * ROWS,
    })  # fmt: skip
    path = f"{folder}part-{start}.parquet"
    file = describe(rows, path, *write_parquet(root / path, rows), split)
    number = start // 1_000 + 1
    covered = {broker: BrokerRange(start=start, end=start + 1_000)}
    write_epoch(root, Epoch(epoch=number, selection=Selection(), brokers=covered, files=[file]))
    return load(root)


def iceberg_files(root: Path) -> list[Path]:
    """Return the files of the Iceberg table in an archive's folder, which all must be read."""
    catalog = lake.open_catalog(root / lake.CATALOG)
    try:
        table = catalog.load_table(f"{lake.NAMESPACE}.{lake.TABLE}")
        files = sorted(Path(task.file.file_path) for task in table.scan().plan_files())
        assert table.scan().to_arrow().num_rows == ROWS * len(files)
        return files
    finally:
        catalog.close()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_file_with_a_damaged_end_is_named(tmp_path: Path, table_format: str, damaged: int) -> None:
    """Of its length, so that the archive takes it for whole; pyarrow's error names no file, and was a traceback."""
    pytest.importorskip(
        {"delta": "deltalake", "iceberg": "pyiceberg.catalog.sql"}[table_format],
        reason=f"the extra {table_format} is not installed",
    )
    archive_more(tmp_path)
    manifest = archive_more(tmp_path)
    path = Path(manifest.locate(manifest.files[damaged]))
    path.write_bytes(path.read_bytes()[:-4] + b"nope")
    if table_format == "delta" and damaged:
        assert lake.commit("delta", manifest) == 2  # it reads one for the columns, the rest says the manifest
        return
    with pytest.raises(ArchiveError, match=rf"^{re.escape(str(path))} belongs to the archive and cannot be read: .*"):
        lake.commit(table_format, manifest)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_that_is_ahead_of_its_archive_is_refused(tmp_path: Path, table_format: str) -> None:
    """As where a damaged epoch was removed, to have its messages archived anew: a table passes over the new one."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format], reason="an extra")
    for _ in range(3):
        lake.refuse_ahead(table_format, load_epochs(tmp_path))
        lake.commit(table_format, archive_more(tmp_path))
    lake.refuse_ahead(table_format, load(tmp_path))
    (tmp_path / FOLDER / epoch_name(3)).unlink()
    folder = {"delta": "_delta_log", "iceberg": lake.CATALOG}[table_format]
    with pytest.raises(ArchiveError, match=f"has epoch 3, the archive ends with epoch 2: remove its folder {folder}"):
        lake.refuse_ahead(table_format, load(tmp_path))
    shutil.rmtree(tmp_path / folder)
    lake.refuse_ahead(table_format, load(tmp_path))
    assert lake.commit(table_format, archive_more(tmp_path)) == 3


def test_an_iceberg_table_stays_with_its_archive(tmp_path: Path) -> None:
    """Its catalog and its metadata hold absolute paths: a copy wrote into the original, one that was moved failed."""
    pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    root, copy, moved = (tmp_path / name for name in ("archive", "copy", "moved"))
    for epoch in (1, 2):
        assert lake.commit("iceberg", archive_more(root)) == epoch
    shutil.copytree(root, copy)
    assert lake.commit("iceberg", archive_more(copy)) == 3
    assert iceberg_files(copy) == [copy / f"part-{number}.parquet" for number in (0, 1000, 2000)]
    assert iceberg_files(root) == [root / f"part-{number}.parquet" for number in (0, 1000)]
    shutil.move(root, moved)
    for count in (3, 4):
        assert lake.commit("iceberg", archive_more(moved)) == count
    assert lake.commit("iceberg", load(moved)) == 4
    assert iceberg_files(moved) == [moved / f"part-{number}.parquet" for number in (0, 1000, 2000, 3000)]


def test_an_iceberg_table_that_is_tended_has_each_message_once(tmp_path: Path) -> None:
    """Compaction replaces the archive's files, then their snapshots expire: every message was in the table twice."""
    pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    for _ in range(2):
        lake.commit("iceberg", archive_more(tmp_path))
    catalog = lake.open_catalog(tmp_path / lake.CATALOG)
    table = catalog.load_table(f"{lake.NAMESPACE}.{lake.TABLE}")
    table.overwrite(table.scan().to_arrow())
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()  # noqa: DTZ005
    assert lake.commit("iceberg", archive_more(tmp_path)) == 3
    rows = catalog.load_table(f"{lake.NAMESPACE}.{lake.TABLE}").scan().to_arrow()
    catalog.close()
    assert len(rows["log_offset"].unique()) == len(rows) == 3 * ROWS


def test_a_table_over_files_with_few_statistics_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """pyiceberg warns of each column of each file that has none, and ``archive`` writes none for bodies."""
    pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    lake.commit("iceberg", archive_more(tmp_path))
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pyiceberg")] == []


def test_an_iceberg_table_is_the_same_by_another_path(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    root, link = tmp_path / "archive", tmp_path / "link"
    lake.commit("iceberg", archive_more(root))
    link.symlink_to(root)
    before = iceberg_files(root)
    assert lake.commit("iceberg", load(link)) == 1
    assert iceberg_files(link) == before


@pytest.mark.parametrize("name", ["archive", "an archive, 100% naïve #1? a|b"])
def test_a_table_has_every_message_whatever_topics_and_brokers_are_called(tmp_path: Path, name: str) -> None:
    """Paths in a Delta log are percent-encoded, once; Iceberg has them as they are."""
    deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed")
    pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    root = tmp_path / name
    for topic in STRANGE:
        manifest = archive_more(root, topic, topic, f"{folder_name('topic', topic)}/{folder_name('broker', topic)}/")
    for table_format in ("delta", "iceberg"):
        assert lake.commit(table_format, manifest) == len(STRANGE)
    table = deltalake.DeltaTable(str(root))
    assert Counter(table.to_pyarrow_table()["topic"].to_pylist()) == dict.fromkeys(STRANGE, ROWS)
    assert table.to_pyarrow_table(filters=[("topic", "=", "%DLQ%billing")]).num_rows == ROWS
    catalog = lake.open_catalog(root / lake.CATALOG)
    rows = catalog.load_table(f"{lake.NAMESPACE}.{lake.TABLE}").scan().to_arrow()
    catalog.close()
    assert Counter(rows["topic"].to_pylist()) == dict.fromkeys(STRANGE, ROWS)


def test_a_folder_that_the_library_would_not_find_is_refused(tmp_path: Path) -> None:
    """deltalake decodes its name, once too often."""
    pytest.importorskip("deltalake", reason="the extra delta is not installed")
    lake.require("delta", tmp_path / "100% of it")
    lake.require("parquet", tmp_path / "100%25")
    with pytest.raises(ConfigError, match=r"--to .*100%25: deltalake would look for .*100%:"):
        lake.require("delta", tmp_path / "100%25")
    with pytest.raises(ConfigError, match="deltalake would look for"):  # before Spark starts
        archive.Config(servers="a:1", to=tmp_path / "100%25", table_format="delta")
