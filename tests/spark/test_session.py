"""``headrace.spark.session`` in a process that has a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.spark.session import create_session, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def own(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that its owner has set up."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Asia/Tokyo")
    yield spark
    spark.conf.set(ZONE, str(before))


def settings_of(spark: SparkSession) -> dict[str, str]:
    return {row["key"]: row["value"] for row in spark.sql("SET").collect()}


def test_a_session_that_was_there_is_left_as_it_is(own: SparkSession) -> None:
    before = settings_of(own)
    with session("mine") as found:
        assert found.conf.get(ZONE) == "Asia/Tokyo"
    create_session("mine")
    assert settings_of(own) == before
    assert own.range(2).count() == 2


def test_a_session_that_another_thread_made_is_not_stopped(own: SparkSession) -> None:
    """Spark's active session is that of a thread: schedulers and notebooks run jobs in others."""
    counts = []

    def work() -> None:
        with session("mine") as found:
            counts.append(found.range(3).count())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert counts == [3]
    assert own.range(2).count() == 2


def test_settings_that_are_asked_for_are_made(own: SparkSession) -> None:
    with session("mine", conf={ZONE: "Europe/Oslo"}) as found:
        assert found.conf.get(ZONE) == "Europe/Oslo"


KILLED = """
import sys
from headrace.spark.session import SOCKET_FOLDER, TESTING, create_session
spark = create_session(master="local[1]", conf=TESTING)
print(spark.conf.get(SOCKET_FOLDER), flush=True)
sys.stdin.read()  # ends with the test, should that not come to kill this
"""


def test_a_driver_that_is_killed_leaves_no_folder_of_sockets() -> None:
    """Spark's own files go with the JVM, which ends when nobody talks to it any more."""
    environment = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as driver:
        assert driver.stdout is not None
        folder = Path(driver.stdout.readline().rstrip())
        assert folder.is_dir()
        driver.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.1)
