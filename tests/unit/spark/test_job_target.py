"""Folders that jobs replace: only what a job wrote is deleted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.jobs import alerts, deadletters, dedup, rebuild, search, stats
from headrace.spark.jobs import archive as job_archive
from headrace.spark.jobs.folder import FolderBusyError
from headrace.spark.jobs.target import hold_target, replace_folder, require_outside, require_target


@pytest.fixture
def store(tmp_path):
    (tmp_path / "place" / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "place" / "store" / "commitlog" / f"{0:020d}").touch()
    return tmp_path / "place" / "store"


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "archive" / "topic=orders" / "dt=2026-01-01"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").touch()
    (tmp_path / "archive" / "_manifest").mkdir()
    return tmp_path / "archive"


def test_store_and_archive_are_not_replaced(store, archive, tmp_path):
    (tmp_path / "link").symlink_to(store)
    for path in (store, store / "new", store / "commitlog", store / "a" / ".." / "b", tmp_path / "link" / "x"):
        with pytest.raises(ConfigError, match=r"--to .* lies in a store") as caught:
            require_target(path, "to")
        assert caught.value.key == "to"
    for path in (archive, archive / "topic=orders", archive / "clean"):
        with pytest.raises(ConfigError, match=r"--report .* lies in an archive"):
            require_target(path, "report")
    for path in (store.parent, archive.parent):
        with pytest.raises(ConfigError, match="what no job has written"):
            require_target(path, "to")


@pytest.mark.parametrize("inside", ["", "x", "x/y"])
def test_no_job_writes_into_a_store_or_an_archive(store, archive, inside):
    """An archive goes on in its own folder alone."""
    configs = {
        stats: lambda to: stats.Config(servers="a:1", to=to),
        alerts: lambda to: alerts.Config(servers="a:1", to=to),
        job_archive: lambda to: job_archive.Config(servers="a:1", to=to),
    }
    for job, config in configs.items():
        with pytest.raises(ConfigError, match=r"--to .* lies in a store"):
            job.run(None, config(store / inside))
        if inside or job is not job_archive:
            with pytest.raises(ConfigError, match=r"--to .* lies in an archive"):
                job.run(None, config(archive / inside))
    with pytest.raises(ConfigError, match=r"--to .* lies in a store"):
        rebuild.run(cast(Any, None), rebuild.Config(store=store, to=store / "new" / inside))
    require_outside(archive, "to", is_archive=True)
    assert not (store / "x").exists()
    assert not (archive / "x").exists()


def test_only_what_spark_wrote_is_replaced(tmp_path):
    require_target(None, "to")
    require_target(tmp_path / "new" / "deep", "to")
    require_target(tmp_path, "to")
    written = tmp_path / "topic=a%2Fb" / "dt=2026-01-01"
    written.mkdir(parents=True)
    for name in ("_SUCCESS", "._SUCCESS.crc", "part-00000-3f2c.c000.snappy.parquet"):
        (tmp_path / name).touch()
    (written / ".part-00000-3f2c.c000.snappy.parquet.crc").touch()
    (written / "part-00000-3f2c.c000.snappy.parquet").touch()
    require_target(tmp_path, "to")
    (written / "letter.txt").touch()
    with pytest.raises(ConfigError, match=r"what no job has written, .*letter\.txt"):
        require_target(tmp_path, "to")
    with pytest.raises(ConfigError, match=r"what no job has written, letter\.txt"):
        require_target(written / "letter.txt", "to")


def test_what_a_killed_run_left_is_replaced(tmp_path):
    """The issue, "Bad input": the same job goes on; this is how Spark leaves its folder when it is killed."""
    attempt = tmp_path / "_temporary" / "0" / "_temporary" / "attempt_202611222348144151562836793935545_0000_m_000000_0"
    (attempt / "topic=orders").mkdir(parents=True)
    for name in ("part-00000-936d.c000.snappy.parquet", ".part-00000-936d.c000.snappy.parquet.crc"):
        (attempt / "topic=orders" / name).touch()
    (tmp_path / "_temporary" / "0" / "task_202611222348144151562836793935545_0000_m_000001").mkdir()
    (tmp_path / "_new" / "_temporary" / "0").mkdir(parents=True)
    (tmp_path / "_old" / "topic=orders").mkdir(parents=True)
    (tmp_path / "_old" / "topic=orders" / "part-00000-936d.c000.snappy.parquet").touch()
    require_target(tmp_path, "to")
    (tmp_path / "_temporary" / "letters").mkdir()  # somebody else's folder of that name
    with pytest.raises(ConfigError, match=r"what no job has written, .*_temporary"):
        require_target(tmp_path, "to")


def test_any_other_folder_is_not_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigError, match="photos"):
        require_target(tmp_path, "to")


def test_a_folder_that_cannot_be_made_is_said_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--to .*/file/x/y cannot be made: .*/file is no directory"):
        require_target(tmp_path / "file" / "x" / "y", "to")
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ConfigError, match=r"--report .*/new cannot be made: .* is not writable for this user"):
        require_target(tmp_path / "new", "report")


def test_one_run_at_a_time_replaces_a_folder(tmp_path):
    """Whichever of two ended first took away what the other had written, which said that all was well."""
    folder = tmp_path / "new" / "clean"
    jobs = {
        dedup: lambda to: dedup.Config(servers="a:1", to=to),
        search: lambda to: search.Config(servers="a:1", to=to, key=("k",)),
        deadletters: lambda to: deadletters.Config(servers="a:1", to=to),
    }
    with hold_target(folder, "to", dry_run=False):
        for job, config in jobs.items():
            with pytest.raises(FolderBusyError, match=f"writes to {folder}: wait"):
                job.run(None, config(folder))
        with pytest.raises(FolderBusyError, match=f"writes to {folder}: wait"):
            dedup.run(cast(Any, None), dedup.Config(servers="a:1", report=folder))
        with hold_target(folder, "to", dry_run=True), hold_target(tmp_path / "new" / "other", "to", dry_run=False):
            pass
    with hold_target(folder, "to", dry_run=False):
        assert not folder.exists()


def test_a_dry_run_makes_nothing(tmp_path):
    with hold_target(tmp_path / "new" / "clean", "to", dry_run=True), hold_target(None, "to", dry_run=False):
        assert not list(tmp_path.iterdir())


class Rows:
    """Rows that are written as Spark would, files and the mark."""

    def __init__(self, text: str) -> None:
        self.text = text
        conf = SimpleNamespace(get=lambda key: None, set=lambda key, value: None)
        self.sparkSession = SimpleNamespace(conf=conf)

    @property
    def write(self) -> Any:
        return self

    def mode(self, name: str) -> Any:
        return self

    def option(self, *_: str) -> Any:
        return self

    def partitionBy(self, *_: str) -> Any:  # noqa: N802  # Spark's name
        return self

    def parquet(self, path: str) -> None:
        folder = Path(path)
        for name in ("topic=a", "topic=b"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "part-0.parquet").write_text(self.text)
        for name in ("_SUCCESS", "._SUCCESS.crc"):
            (folder / name).touch()


def contents(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("topic=*/part-0.parquet"))]


def test_what_is_marked_whole_is_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at each rename of the taking of a place: the mark stands only where all is old, or all is new."""
    rename, seen = Path.rename, set()
    for stop in range(20):
        folder = tmp_path / str(stop)
        replace_folder(cast(Any, Rows("old")), folder, "topic")
        left = iter(range(stop))

        def until(path: Path, target: Path, left: Any = left) -> Path:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", until)
        try:
            replace_folder(cast(Any, Rows("new")), folder, "topic")
            is_done = True
        except KeyboardInterrupt:
            is_done = False
        monkeypatch.setattr(Path, "rename", rename)
        if (folder / "_SUCCESS").exists():
            seen.add(tuple(contents(folder)))
        require_target(folder, "to")
        replace_folder(cast(Any, Rows("next")), folder, "topic")
        assert contents(folder) == ["next", "next"]
        assert {path.name for path in folder.iterdir()} == {"topic=a", "topic=b", "_SUCCESS", "._SUCCESS.crc"}
        if is_done:
            break
    assert is_done
    assert seen == {("old", "old"), ("new", "new")}


def test_what_others_put_there_meanwhile_stays(tmp_path: Path) -> None:
    """It was deleted at the end of the job, which had looked at the folder when it began."""
    folder = tmp_path / "clean"
    replace_folder(cast(Any, Rows("old")), folder, "topic")
    (folder / "topic=a" / "letter.txt").write_text("mine")
    expected = rf"{folder} is not replaced: .*letter\.txt; what is new lies in {folder}/_new"
    with pytest.raises(HeadraceError, match=expected):
        replace_folder(cast(Any, Rows("new")), folder, "topic")
    assert (folder / "topic=a" / "letter.txt").read_text() == "mine"
    assert contents(folder) == ["old", "old"]
    assert contents(folder / "_new") == ["new", "new"]
    (folder / "topic=a" / "letter.txt").unlink()
    replace_folder(cast(Any, Rows("next")), folder, "topic")
    assert contents(folder) == ["next", "next"]


def test_a_result_that_is_elsewhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver on another machine, or one whose default is HDFS, writes to a folder of the same name there."""
    monkeypatch.setattr(Rows, "parquet", lambda self, path: None)
    with pytest.raises(HeadraceError, match=f"{tmp_path}: Spark has written it, but here there is nothing"):
        replace_folder(cast(Any, Rows("new")), tmp_path)


def test_a_session_that_writes_no_marks_replaces_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mapreduce.fileoutputcommitter.marksuccessfuljobs=false``: any session serves, whosever it is."""

    def without_mark(rows: Rows, path: str) -> None:
        (Path(path) / "topic=a").mkdir(parents=True)
        (Path(path) / "topic=a" / "part-0.parquet").write_text(rows.text)

    monkeypatch.setattr(Rows, "parquet", without_mark)
    for text in ("old", "new"):
        replace_folder(cast(Any, Rows(text)), tmp_path / "clean", "topic")
        assert contents(tmp_path / "clean") == [text]
    assert [path.name for path in (tmp_path / "clean").iterdir()] == ["topic=a"]
