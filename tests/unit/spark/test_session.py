"""What a session of ours sets; that Spark takes it, the tests with a real Spark show."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.spark import session

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture(autouse=True)
def _settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "java_home", lambda: "/java")
    monkeypatch.setattr(session, "pwd", Mock())  # whoever runs the tests may have no name
    for name in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
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


def test_options_for_java_of_the_caller_are_added_to_ours() -> None:
    """Without ours Spark logs what nobody reads."""
    ours = session.prepare("local[2]", {})[session.JAVA_OPTIONS]
    assert "log4j2" in ours
    assert session.prepare("local[2]", {session.JAVA_OPTIONS: "-Xss4m"})[session.JAVA_OPTIONS] == f"{ours} -Xss4m"


def socket_settings(conf: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in conf.items() if key.startswith("spark.python.unix.domain.socket.")}


def test_local_sessions_talk_to_their_workers_through_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of this user's, since Spark asks for no secret on them; it is gone with the process."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(session, "_socket_folders", {})
    found = socket_settings(session.prepare("local[2]", {}))
    folder = Path(found["spark.python.unix.domain.socket.dir"])
    assert found["spark.python.unix.domain.socket.enabled"] == "true"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert socket_settings(session.prepare("local[4]", {})) == found
    assert socket_settings(session.prepare("spark://127.0.0.1:7077", {})) == {}
    monkeypatch.setenv("TMPDIR", "/tmp")
    code = "from headrace.spark import session; print(session.socket_settings()['spark.python.unix.domain.socket.dir'])"
    folder = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout[:-1])
    assert folder.name.startswith("headrace-")
    assert not folder.exists()


FORKED = """
import os, sys
from headrace.spark import session
folder = session.socket_settings()[session.SOCKET_FOLDER]
process = os.fork()
if not process:
    sys.exit(session.socket_settings()[session.SOCKET_FOLDER] == folder)
_, status = os.waitpid(process, 0)
assert os.waitstatus_to_exitcode(status) == 0, "a session of the child's would lose its folder with the parent"
assert os.path.isdir(folder), "the end of the child took the parent's folder"
"""


def test_a_process_that_was_forked_leaves_the_sockets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``atexit`` calls, a child with an end of its own calls too."""
    monkeypatch.setenv("TMPDIR", "/tmp")
    subprocess.run([sys.executable, "-c", FORKED], check=True)


def test_a_folder_that_was_cleared_away_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next session of the process would not start."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setattr(session, "_socket_folders", {})
    first = Path(session.socket_settings()[session.SOCKET_FOLDER])
    first.rmdir()
    second = Path(session.socket_settings()[session.SOCKET_FOLDER])
    assert second.is_dir()
    second.rmdir()


@pytest.mark.parametrize("case", ["path too long", "settled by the user", "disk full"])
def test_unix_sockets_are_left_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path has some hundred bytes; pyspark's own switch is the user's; TCP needs no folder."""
    monkeypatch.setattr(session, "_socket_folders", {})
    if case == "path too long":
        monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * session.MAX_SOCKET_PARENT}")
    elif case == "disk full":
        monkeypatch.setattr(tempfile, "tempdir", "/tmp")
        monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    else:
        monkeypatch.setenv("PYSPARK_UDS_MODE", "false")
    assert session.socket_settings() == {}


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LANG": "xx_XX.UTF-8"}, {"LC_ALL": "xx_XX.UTF-8"}])
def test_the_jvm_spells_names_of_files_as_python_does(locale: dict[str, str]) -> None:
    """Java goes by the locale: where that is C, or is not installed, no folder with an umlaut could be written to."""
    own = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    program = (
        "import os; from headrace.spark import session; session.java_home = lambda: '/java'; "
        "session.check_user = list; session.prepare('local[2]', {}); print(os.environ.get('LC_ALL'))"
    )
    # Without site: below a folder with an umlaut Python 3.11 reads its own paths as ASCII there, and does not start.
    own["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [sys.executable, "-S", "-c", program]
    assert subprocess.check_output(words, env={**own, **locale}, text=True, timeout=60).strip() == "C.UTF-8"


def test_spark_submit_settles_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert session.prepare(None, {"a": "b"}) == {"spark.sql.session.timeZone": "UTC", "a": "b"}


def make_spark(home: Path, version: str) -> str:
    """A folder that looks like a Spark of some version."""
    for path in (home / "bin" / "spark-submit", home / "jars" / f"spark-core_2.13-{version}.jar"):
        path.parent.mkdir(parents=True)
        path.touch()
    return str(home)


def test_a_user_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container started with a number: a trace of Java, and that some gateway had ended."""
    monkeypatch.setattr(session, "pwd", Mock(getpwuid=Mock(side_effect=KeyError)))
    with pytest.raises(ConfigError, match=rf"needs a user with a name, and {os.getuid()} has none: .*/etc/passwd"):
        session.prepare("local[2]", {})


def test_spark_home_without_spark_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pyspark itself says no more than that some file is not there."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"SPARK_HOME=.* has no bin/spark-submit: unset SPARK_HOME"):
        session.prepare("local[2]", {})


def test_spark_home_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.3.0")
    monkeypatch.setenv("SPARK_HOME", make_spark(tmp_path / "old", "3.5.1"))
    with pytest.raises(ConfigError, match=r"is Spark 3\.5\.1, and the installed pyspark is 4\.3\.0"):
        session.prepare("local[2]", {})
    monkeypatch.setenv("SPARK_HOME", make_spark(tmp_path / "same", "4.3.1"))
    session.prepare("local[2]", {})


def test_a_master_beside_a_connect_server_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark refuses it while the session is being described, before it is started."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setattr(session, "running_session", lambda: None)
    with pytest.raises(HeadraceError, match="Spark Connect"):
        session.create_session("tests", master="local[1]")


@pytest.mark.parametrize("master", ["nonsense", "", "local[0]", "local[abc]", "local[2", "localhost:7077", "sc://"])
def test_a_master_that_is_none_is_refused_before_java_starts(master: str) -> None:
    """Spark tells by a trace of Java calls."""
    with pytest.raises(ConfigError, match=rf"'{re.escape(master)}' is no master of Spark: write local\[\*\]"):
        session.create_session("tests", master=master)


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[4]", "local[4, 3]", "local-cluster[2,1,1024]", "yarn", "spark://a:7077,b:7077",
     "k8s://https://10.0.0.1:443", "sc://10.0.0.1:15002/;use_ssl=true"],
)  # fmt: skip
def test_masters_that_spark_knows_pass(master: str) -> None:
    assert session.MASTER.fullmatch(master)


def test_what_spark_connect_lacks_is_one_sentence(tmp_path: Path) -> None:
    """In a process of its own, from a file: pyspark.sql.connect looks at what was started, and is loaded but once."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
sys.modules["grpc"] = None
from headrace.errors import ConfigError
from headrace.spark.session import create_session
try:
    create_session("tests", master="sc://127.0.0.1:1")
except ConfigError as error:
    print(error)
"""
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"grpcio.*pip install '\.\[connect\]'", ended.stdout), ended.stdout


REJECTED = (
    "Task org.apache.spark.executor.Executor$TaskRunner@51e5 rejected from java.util.concurrent.Pool@7[Terminated]"
)


@pytest.mark.parametrize(
    ("message", "is_logged"),
    [
        ("Exception in task 3.0 in stage 0.0 (TID 3)", False),
        ("Exception in statusUpdate", False),
        ("Error in TaskCompletionListener", False),
        ("Failed to update accumulator 0 (org.apache.spark.api.python.PythonAccumulatorV2) for task 47", False),
        (f"Executor launch task task 64.0 in stage 0.0 (TID 64) failed, reason: {REJECTED}", False),
        ("Executor launch task task 64.0 in stage 0.0 (TID 64) failed, reason: unable to create native thread", True),
        ("Lost executor 1 on 10.0.0.1: Remote RPC client disassociated", True),
    ],
)
def test_spark_logs_no_error_that_is_told_otherwise(message: str, is_logged: bool) -> None:
    told = re.search(r"told\.regex = *(.*)", session.LOG4J)
    assert told is not None
    assert (re.fullmatch(told[1], message) is None) is is_logged
