"""What a session of ours sets; that Spark takes it, the tests with a real Spark show."""

from __future__ import annotations

import pytest

from headrace.spark import session

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture(autouse=True)
def _settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "java_home", lambda: "/java")
    for name in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_local_sessions_write_quick_checkpoints() -> None:
    """Spark's default manager starts processes for each file on a local disk; on a cluster's it is the right one."""
    assert session.prepare("local[2]", {})[MANAGER].endswith(".FileSystemBasedCheckpointFileManager")
    assert MANAGER not in session.prepare("spark://127.0.0.1:7077", {})
    assert MANAGER not in session.prepare(None, {})


def test_settings_of_the_caller_win() -> None:
    assert session.prepare("local[2]", {MANAGER: "own.Manager"})[MANAGER] == "own.Manager"


def test_spark_submit_settles_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert session.prepare(None, {"a": "b"}) == {"spark.sql.session.timeZone": "UTC", "a": "b"}
