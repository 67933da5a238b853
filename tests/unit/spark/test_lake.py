"""Tables over an archive's files. Ref: docs/spark/jobs/archive.md, "Delta and Iceberg"."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.spark.jobs import lake  # noqa: E402
from headrace.spark.jobs.archive_files import describe, write_parquet  # noqa: E402
from headrace.spark.jobs.manifest import (  # noqa: E402
    FOLDER,
    BrokerRange,
    Epoch,
    Manifest,
    Selection,
    load,
    load_epochs,
    write_epoch,
)
from headrace.spark.scan import LogSplit, StoreSource  # noqa: E402

ROWS = 10


def archive_more(root: Path) -> Manifest:
    """Add an epoch of ``ROWS`` messages to an archive; return its manifest."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    start = 1_000 * len(load_epochs(root).epochs)
    split = LogSplit(StoreSource("store"), "b", start, start + 1_000, 1 << 20)
    now = [datetime(2026, 1, 1, tzinfo=UTC)] * ROWS
    rows = pa.table({
        "topic": ["t"] * ROWS,
        "queue_id": pa.array([0] * ROWS, pa.int32()),
        "queue_offset": range(start, start + ROWS),
        "log_offset": range(start, start + ROWS),
        "store_ts": pa.array(now, pa.timestamp("us", tz="UTC")),
    })  # fmt: skip
    file = describe(rows, f"part-{start}.parquet", *write_parquet(root / f"part-{start}.parquet", rows), split)
    number = start // 1_000 + 1
    covered = {"b": BrokerRange(start=start, end=start + 1_000)}
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


def test_an_iceberg_table_is_the_same_by_another_path(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    root, link = tmp_path / "archive", tmp_path / "link"
    lake.commit("iceberg", archive_more(root))
    link.symlink_to(root)
    before = iceberg_files(root)
    assert lake.commit("iceberg", load(link)) == 1
    assert iceberg_files(link) == before
