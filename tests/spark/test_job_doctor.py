"""``headrace job doctor``. Ref: docs/spark/jobs/doctor.md, spark.md 5.1, 5.4.8."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from headrace.spark import java
from headrace.spark.jobs import doctor, run_job


def findings(**options):
    summary = run_job(None, "doctor", doctor.Config(**options))
    return summary, {name: (status, text) for status, name, text in summary.tables[0].rows}


def test_this_machine_can_run_jobs(spark):
    summary, found = findings()
    assert summary.exit_code == 0, found
    assert found["session"][0] == "ok"
    assert {"java", "python", "pyspark", "pyarrow", "pandas", "protobuf", "extension", "discovery"} <= set(found)


def test_broken_foreign_module_is_named_and_registration_still_works(spark, tmp_path, monkeypatch):
    """spark.md 5.4.8: Spark drops all pyspark_* modules when one fails to import."""
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no such luck')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    summary, found = findings()
    assert found["discovery"][0] == "warning"
    assert "pyspark_broken fails to import (RuntimeError: no such luck)" in found["discovery"][1]
    assert summary.exit_code == 0
    assert found["session"][0] == "ok"


def test_missing_java_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_wheel", lambda: iter(()))
    summary, found = findings()
    assert summary.exit_code == 1
    assert found["java"][0] == "problem"
    assert "has no bin/java" in found["java"][1]
    assert "session" not in found


def test_workers_without_a_python_are_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    summary, _ = findings(start=False)
    assert summary.exit_code == 1
    assert [text for status, name, text in summary.tables[0].rows if (status, name) == ("problem", "python")] == [
        f"workers cannot start: PYSPARK_PYTHON={tmp_path}/python is no program; unset it"
    ]


def test_old_and_missing_libraries_are_named(monkeypatch):
    versions = {"pyspark": "4.1.4", "pyarrow": "26.0", "pandas": "3.0.1"}

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    summary, found = findings(start=False)
    assert summary.exit_code == 1
    assert found["pyspark"] == ("problem", "4.1.4, but >= 4.2 and < 5 is needed")
    assert found["pandas"][0] == "warning"
    assert found["protobuf"][0] == "warning"


def test_missing_extension_is_a_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, doctor.EXTENSION, None)
    summary, found = findings(start=False)
    assert (summary.exit_code, found["extension"][0]) == (1, "problem")


@pytest.mark.parametrize(("text", "numbers"), [("6.33.5", (6, 33, 5)), ("4.3.0.dev1", (4, 3, 0)), ("26", (26,))])
def test_versions_are_compared_as_numbers(text, numbers):
    assert doctor.numbers_of(text) == numbers
