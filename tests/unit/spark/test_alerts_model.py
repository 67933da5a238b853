"""The folder of the model of ``headrace job alerts``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import ConfigError
from headrace.spark.jobs import alerts_model
from headrace.spark.jobs.alerts_series import FEATURES


class Pipeline:
    """Stands for a model of Spark ML, of which only the saving is looked at."""

    def write(self) -> Pipeline:
        return self

    def overwrite(self) -> Pipeline:
        return self

    def save(self, path: str) -> None:
        for part in ("metadata", "stages"):  # in this order
            Path(path, part).mkdir(parents=True)


def save(folder: Path, made_ms: int) -> None:
    note = alerts_model.ModelNote(list(FEATURES), 1.0, 500, [1.0], made_ms, pipeline=f"pipeline-{made_ms}")
    pipeline: Any = Pipeline()
    alerts_model.save(alerts_model.AlertModel(pipeline, note), folder)


def test_only_models_of_before_are_removed(tmp_path: Path) -> None:
    """``--model .`` took away whatever folder had a name that begins with pipeline."""
    others = ("pipelines/prod.py", "pipeline-prod/metadata/x", "pipeline/main.py", "pipeline-7/x")
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("mine")
    for made_ms in (17, 18, 19):
        save(tmp_path, made_ms)
    assert [name for name in others if not (tmp_path / name).is_file()] == []
    assert sorted(path.name for path in tmp_path.glob("pipeline-1*")) == ["pipeline-18", "pipeline-19"]


@pytest.mark.parametrize(
    "text", ["", "[]", "5", "{}", '{"features": 5, "threshold": 1, "rows": 1, "variances": [], "made_ms": 1}']
)
def test_a_damaged_note_is_said_to_be_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ConfigError, match=r"model\.json is damaged .*: make the model anew with --fit"):
        alerts_model.load(tmp_path)


def test_a_note_of_others_is_not_written_over(tmp_path: Path) -> None:
    """One that a run has written is, damaged or not; so is one of before there was a lock."""
    note = tmp_path / "model.json"
    note.write_text('{"name": "mine"}')
    with pytest.raises(ConfigError, match=r"holds .*/model\.json, which no job has written"):
        alerts_model.require_own(tmp_path)
    note.unlink()
    alerts_model.require_own(tmp_path)
    save(tmp_path, 17)
    (tmp_path / ".lock").unlink()
    alerts_model.require_own(tmp_path)
    (tmp_path / ".lock").touch()
    note.write_text("damaged")
    alerts_model.require_own(tmp_path)


def test_a_note_is_on_the_disk_before_what_it_replaces_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut left an empty note: the model of before was there, and nothing said which it was."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    done: list[str] = []
    sync, remove = os.fsync, shutil.rmtree

    def note_sync(fd: int) -> None:
        done.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        sync(fd)

    def note_removal(path: Path, *, ignore_errors: bool) -> None:
        done.append(path.name)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(shutil, "rmtree", note_removal)
    save(tmp_path, 3)
    assert done == ["model.json.new", tmp_path.name, "pipeline-1"]
