"""What the tasks of ``headrace job rebuild`` write."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import ConfigError, HeadraceError, SideFileError
from headrace.format.epochs import Epoch, Epochs
from headrace.format.names import segment_name
from headrace.format.queue_entry import StoredQueue
from headrace.format.side_file import read_side_file, write_side_file
from headrace.spark.files import StoreFiles
from headrace.spark.jobs.rebuild import Config, Rebuild
from headrace.spark.jobs.rebuild_views import KEY, IndexTask, QueueWriter, fillers, make_index_file
from headrace.spark.jobs.views import header_decoder, read_headers
from headrace.spark.scan import LogSplit, StoreSource
from tests.support.record_rows import lay_log
from tests.unit.spark.test_files import SEGMENT, make_store


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have a call fail as it does on a full disk: the error knows no file."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, refuse)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "ftruncate"])
def test_a_full_disk_names_the_file_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    fill_disk(monkeypatch, call)
    writer = QueueWriter(tmp_path, 2000)
    with pytest.raises(HeadraceError) as caught:
        writer.write("orders", 3, 100, fillers(1))
    path = tmp_path / "orders" / "3" / f"{2000:020d}"
    assert str(caught.value) == f"{path} cannot be written: No space left on device"


def test_a_full_disk_names_the_file_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.zeros(1, KEY).tofile(tmp_path / "keys")
    fill_disk(monkeypatch, "fsync")
    task = IndexTask(str(tmp_path / "index"), 10, 10, ((str(tmp_path / "keys"), 0, 1),))
    with pytest.raises(HeadraceError, match=r"/index cannot be written: No space left on device"):
        make_index_file(task)


@pytest.mark.parametrize("name", ["index_slots", "index_entries"])
def test_an_index_that_no_broker_makes_is_refused(tmp_path: Path, name: str) -> None:
    """Files of one entry had room for no key: the job made more and more of them, and never ended."""
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    for size in (0, 1_000):
        Config(store=store, to=tmp_path / "new", **{name: size})  # type: ignore[arg-type]
    for size in (1, 999):
        with pytest.raises(ConfigError, match=rf"^--{name.replace('_', '-')} is {size}: accepted is 0, and 1000 on"):
            Config(store=store, to=tmp_path / "new", **{name: size})  # type: ignore[arg-type]


def test_a_damaged_side_file_leaves_no_folder_behind(tmp_path: Path) -> None:
    """It would be in the way of the same command when the file is mended: --to names a new folder."""
    make_store(tmp_path / "store", 10)
    (tmp_path / "store" / "headrace" / "index.json").write_bytes(b"damaged")
    config = Config(store=tmp_path / "store", to=tmp_path / "new")
    spark: Any = None
    with pytest.raises(SideFileError, match=r"index\.json"):
        Rebuild(spark, config, StoreFiles(tmp_path / "store").extent())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("start", "first"), [(0, 0), (SEGMENT, 990)])
def test_a_queue_without_records_begins_with_the_file_of_its_end(tmp_path: Path, start: int, first: int) -> None:
    """As a broker makes it, where the log has lost its beginning: fillers from 0 on would be gigabytes."""
    make_store(tmp_path / "store", 2_000, segment_bytes=SEGMENT)
    identity = read_side_file(tmp_path / "store" / "headrace" / "store.json", "store", "")
    write_side_file(tmp_path / "store" / "headrace" / "store.json", "store", {**identity, "queue_file_bytes": 200})
    epochs = Epochs([Epoch(1, 0), Epoch(2, SEGMENT, SEGMENT, 1, {("idle", 3): 1_000})])
    write_side_file(tmp_path / "store" / "headrace" / "epochs.json", "epochs", epochs.to_payload())
    extent = StoreFiles(tmp_path / "store").extent()
    spark: Any = None
    config = Config(store=tmp_path / "store", to=tmp_path / "new")
    rebuild = Rebuild(spark, config, replace(extent, runs=((start, extent.end),)))
    rebuild.fill_gaps()
    assert rebuild._gaps == [("idle", 3, first, 1_000 - first)]
    assert StoredQueue(tmp_path / "new" / "consumequeue", "idle", 3, 200).extent() == (first, 1_000)


def test_a_record_without_a_time_has_the_earliest(tmp_path: Path) -> None:
    """Stored in no year from 1 to 9999, by a broker whose clock was wrong: no number of another kind in its columns."""
    far, stored = 253_402_300_800_000, 1_767_225_600_000
    log, _ = lay_log([{"body": b"x", "topic": b"t", "store_ms": at} for at in (far, stored, far + 1)], 1 << 20)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / segment_name(0)).write_bytes(log.ljust(1 << 20, b"\0"))
    split = LogSplit(StoreSource(str(tmp_path)), "b", 0, StoreFiles(tmp_path).extent().end, 1 << 20)
    (headers,) = read_headers(split, header_decoder(split), ())
    assert headers.store_ms.dtype == np.int64
    assert headers.store_ms.tolist() == [0, stored, 0]
