"""What the tasks of ``headrace job rebuild`` write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import HeadraceError
from headrace.spark.jobs.rebuild_views import KEY, IndexTask, QueueWriter, fillers, make_index_file


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
    task = IndexTask(0, str(tmp_path / "index"), 10, 10, ((str(tmp_path / "keys"), 0, 1),))
    with pytest.raises(HeadraceError, match=r"/index cannot be written: No space left on device"):
        list(make_index_file(task))
