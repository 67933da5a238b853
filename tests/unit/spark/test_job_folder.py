"""Folders that jobs add to: one run at a time has them."""

import errno
import os
import threading
from datetime import UTC, datetime
from typing import Any, cast

import pytest

pq = pytest.importorskip("pyarrow.parquet", reason="the extra spark is not installed")

from headrace.errors import ConfigError, HeadraceError  # noqa: E402
from headrace.spark.jobs import alerts_looking, archive, stats  # noqa: E402
from headrace.spark.jobs.folder import FolderBusyError, hold_folder, make_folder  # noqa: E402


def alert(number: int) -> dict[str, Any]:
    at = datetime(2026, 1, 1, number // 60, number % 60, tzinfo=UTC)
    return {
        "time": at, "topic": f"t{number}", "group": "", "rule": "no_traffic", "score": 1.0, "value": 0.0,
        "baseline": 1.0, "minutes": 5, "explanation": "nothing",
    }  # fmt: skip


def test_a_folder_is_for_one_run_at_a_time(tmp_path):
    """Two runs that read and replace the same tables would each lose what the other wrote."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    config = stats.Config(store=tmp_path / "store", to=tmp_path / "out")
    (tmp_path / "out").mkdir()
    with (
        hold_folder(tmp_path / "out", "to"),
        pytest.raises(FolderBusyError, match=r"another run \(process \d+\) writes to .*; nothing was done"),
    ):
        stats.run(cast(Any, None), config)
    with hold_folder(tmp_path / "out", "to"):
        pass  # whoever had it has let go


def test_an_archive_is_for_one_run_at_a_time(tmp_path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    config = archive.Config(store=tmp_path / "store", to=tmp_path / "archive")
    make_folder(tmp_path / "archive" / "_manifest", "to")
    with (
        hold_folder(tmp_path / "archive", "to", lock="_manifest/lock"),
        pytest.raises(FolderBusyError, match="another run"),
    ):
        archive.run(cast(Any, None), config)


def test_a_folder_that_cannot_be_locked_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"--to .* cannot be written") as caught, hold_folder(tmp_path / "x", "to"):
        pass
    assert caught.value.key == "to"


def test_why_a_folder_cannot_be_written_is_said(tmp_path, monkeypatch):
    def refuse(*_args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(options["dir"]))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere else
    with pytest.raises(ConfigError, match=r"--to .*/out cannot be written: Read-only file system") as caught:
        make_folder(tmp_path / "out", "to")
    assert caught.value.key == "to"


def test_jobs_that_add_alerts_to_one_folder_lose_none(tmp_path):
    """docs/spark/jobs/alerts.md shows a daily job and a standing one."""

    def add(first: int) -> None:
        for number in range(first, 60, 3):
            alerts_looking.write_alerts([alert(number)], tmp_path)

    threads = [threading.Thread(target=add, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    rows = pq.ParquetFile(tmp_path / "dt=2026-01-01" / "alerts.parquet").read().to_pylist()
    assert sorted(row["topic"] for row in rows) == sorted(f"t{number}" for number in range(60))


def test_a_file_of_alerts_that_is_damaged_is_named(tmp_path):
    """A standing job ended with a traceback of pyarrow's, and so did each one after it."""
    path = tmp_path / "dt=2026-01-01" / "alerts.parquet"
    path.parent.mkdir()
    path.touch()
    with pytest.raises(HeadraceError, match=r"dt=2026-01-01/alerts\.parquet cannot be read: .*0 bytes.*move it away"):
        alerts_looking.write_alerts([alert(1)], tmp_path)
    path.unlink()
    alerts_looking.write_alerts([alert(1)], tmp_path)


def test_alerts_are_on_disk_before_they_take_the_place_of_others(tmp_path, monkeypatch):
    path = tmp_path / "dt=2026-01-01" / "alerts.parquet"
    synced = []
    sync = os.fsync

    def note(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    alerts_looking.write_alerts([alert(1)], tmp_path)
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]
