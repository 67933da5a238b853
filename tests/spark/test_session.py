"""``headrace.spark.session`` in a process that has a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
