"""``headrace job NAME`` and its twin for spark-submit: options, output, exit codes. Ref: docs/spark/jobs/README.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli.program import run
from headrace.spark.jobs import JOBS, manifest
from tests.support.signals import unignored
from tests.support.spark_jobs import Sent, archived, orders, send


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli") / "store"
    with testing.broker(store__data_dir=root, store__durability="async") as running:
        send(running.remoting, orders(300))
    return root


def test_archive_and_verify_print_json_and_tables(spark, store, tmp_path, capsys):
    to = str(tmp_path / "archive")
    assert run(["job", "archive", "--store", str(store), "--to", to, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["job"], summary["messages"], summary["topics"]) == (
        "archive", 300, [{"topic": "orders", "messages": 300}],
    )  # fmt: skip
    assert len(archived(tmp_path / "archive")) == 300
    assert run(["job", "verify", "--archive", to]) == 0
    assert "whole" in capsys.readouterr().out
    assert spark.range(1).count() == 1  # a session that was there is left alone


def test_damage_is_exit_code_1_and_what_cannot_be_checked_2(spark, store, tmp_path, capsys):
    run(["job", "archive", "--store", str(store), "--to", str(tmp_path / "archive")])
    path = next((tmp_path / "archive").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    assert run(["job", "verify", "--archive", str(tmp_path / "archive")]) == 1
    assert run(["job", "verify", "--store", str(tmp_path)]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["archve"], "did you mean 'archive'"),
        (["archive", "--stroe", "x"], "--store"),
        (["archive", "--store", ".", "--to", "x", "--layout", "days"], "known are hour, topic"),
        (["archive", "--to", "x"], "either --store DIR"),
        (["archive", "--store", "."], "--to is missing"),
        (["verify", "--store", ".", "--split-bytes", "1"], "accepted is"),
        (["replay", "--archive", "x"], "--servers is missing"),
        (["archive", "--store", ".", "--to", "x", "--since", "soon"], "a time is"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, says, capsys):
    assert run(["job", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("headrace: ")
    assert error.count("\n") == 1


def test_wrong_spark_setting_is_named(store, tmp_path, capsys):
    arguments = ["job", "archive", "--store", str(store), "--to", str(tmp_path / "a"), "--conf", "spark.x"]
    assert run(arguments) == 2
    assert "write KEY=VALUE" in capsys.readouterr().err


def test_every_job_has_help(capsys):
    assert run(["job", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in JOBS)
    for name in JOBS:
        assert run(["job", name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_error_of_a_task_is_one_sentence(spark, store, tmp_path, capsys, monkeypatch):
    """An archive folder that a worker cannot write to, found in a task."""
    import headrace.spark.jobs.archive as archive_job

    to = tmp_path / "archive"
    real = manifest.write_json

    def vanish(path, payload):
        real(path, payload)
        path.rename(path.with_name("plan"))
        path.parent.rename(to / "elsewhere")

    monkeypatch.setattr(archive_job, "write_json", vanish)
    assert run(["job", "archive", "--store", str(store), "--to", str(to)]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("headrace: ")
    assert "is not there on this worker" in error


@pytest.mark.parametrize(
    ("ending", "said"),
    [(signal.SIGINT, "interrupted before its end"), (signal.SIGTERM, "interrupted by SIGTERM before its end")],
)
def test_an_interrupt_is_one_line_and_an_exit_code_of_its_own(store, tmp_path, ending, said):
    """Of a whole process group, as a terminal sends Ctrl-C."""
    to = tmp_path / "archive"
    command = [
        sys.executable, "-c", "from headrace.cli.program import main; main()", "job", "archive", "--store", str(store),
        "--to", str(to), "--master", "local[1]",
    ]  # fmt: skip
    with unignored():
        started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (to / "_manifest" / "plan.json").exists():  # from then on it waits for its tasks
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(started.pid, ending)
    error = started.communicate(timeout=60)[1]
    assert started.returncode == 128 + ending
    assert "Traceback" not in error
    # Of the process group Spark's JVM was told to end, too, and may have a word behind.
    own = [line for line in error.splitlines() if line.startswith("headrace:")]
    assert own == [f"headrace: job archive was {said}; it may be run again"]


def test_an_interrupt_amid_many_tasks_is_one_line(tmp_path):
    """Spark goes on handing out tasks while its session ends, and logged each one that nobody takes any more."""
    to = tmp_path / "archive"
    with testing.broker(broker__name="broker-a", store__durability="async") as running:
        send(running.remoting, (Sent("orders", bytes(4096)) for _ in range(12_000)))
        command = [
            sys.executable, "-c", "from headrace.cli.program import main; main()", "job", "archive", "--servers",
            running.registry, "--to", str(to), "--master", "local[2]", "--split-bytes", "64KiB",
        ]  # fmt: skip
        with unignored():
            started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 120
        while not any((to / "_tmp").glob("*/*")):
            assert time.monotonic() < deadline
            assert started.poll() is None
            time.sleep(0.01)
        os.killpg(started.pid, signal.SIGINT)
        error = started.communicate(timeout=60)[1]
    assert started.returncode == 130
    assert not [line for line in error.splitlines() if " ERROR " in line or "Exception" in line]


def test_an_error_of_a_task_is_said_once():
    """Spark logs it in the task, in the stage and while a write ends, with a traceback of fifty lines each."""
    with testing.broker(broker__name="broker-a", store__durability="async") as running:
        send(running.remoting, orders(30))
        command = [
            sys.executable, "-c", "from headrace.cli.program import main; main()", "job", "dedup", "--servers",
            running.registry, "--topics", "orders", "--to-topic", "SCHEDULE_TOPIC_XXXX", "--master", "local[1]",
        ]  # fmt: skip
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    of_java = "incubator modules", "Picked up JDK_JAVA_OPTIONS"
    said = [line for line in ran.stderr.splitlines() if not any(text in line for text in of_java)]
    assert ran.returncode == 1
    assert len(said) == 1, ran.stderr
    assert said[0].startswith("headrace: broker 'broker-a', topic 'SCHEDULE_TOPIC_XXXX'")


@pytest.mark.slow
def test_spark_submit_runs_a_job(store, tmp_path):
    import pyspark

    from headrace.spark import submit
    from headrace.spark.java import java_home

    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]", "--conf",
        "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1", str(Path(submit.__file__)), "archive",
        "--store", str(store), "--to", str(tmp_path / "archive"), "--json",
    ]  # fmt: skip
    environment = {
        **os.environ, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout[ran.stdout.index("{") :])["messages"] == 300
    again = subprocess.run([*command[:-6], "archve"], capture_output=True, text=True, env=environment, check=False)
    assert again.returncode != 0


def test_submit_says_where_it_is(capsys):
    from headrace.spark import submit

    assert submit.main(["--path"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "submit.py"
