"""A Spark session for the whole run, and brokers. Starting Spark takes seconds: share it.

Without Java or pyspark these tests are skipped and say why, and fail in CI; ``make test-spark`` installs both. With
``SPARK_ON=cluster`` in the environment the session's master is a standalone cluster of two workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.errors import ConfigError
from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import RequestCode
from tests.support.spark_servers import standalone_cluster

if not os.environ.get("CI"):
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install '.[spark]'")


QUICK_FILES = frozenset(("test_sink_tasks", "test_source", "test_stream_reader"))
QUICK_TESTS = frozenset(
    (
        "test_a_micro_batch_that_runs_again_adds_nothing",
        "test_every_message_is_in_its_minute",
        "test_what_the_source_reads_the_sink_writes",
        "test_wrong_use_is_said",
    )
)
"""What CI runs; everything else is marked slow, and takes some ten minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Relax what holds for quick tests: Spark is slow to start, and warns of its own."""
    for item in items:
        if "tests/spark/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))
            if item.path.stem not in QUICK_FILES and item.name.partition("[")[0] not in QUICK_TESTS:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the session runs."""
    if os.environ.get("SPARK_ON") != "cluster":
        yield "local[2]"
        return
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture(scope="session")
def spark(spark_master: str) -> Iterator[Any]:
    """One session with ``headrace`` registered."""
    from headrace.spark.session import TESTING, create_session

    here = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    here["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).parents[2])
    try:
        session = create_session("headrace-tests", master=spark_master, conf={**TESTING, **here})
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield session
    session.stop()


@pytest.fixture
def broker() -> Iterator[testing.RunningBroker]:
    """A broker with small log files, known to its registry."""
    with testing.broker(broker__name="broker-a") as running:
        wait_registered(running)
        yield running


def wait_registered(running: testing.RunningBroker, topic: str | None = None) -> None:
    """Wait until the registry knows the broker, and a topic."""
    with Cluster(running.registry) as cluster:
        deadline = time.monotonic() + 20
        while not cluster.brokers() or (topic is not None and topic not in cluster.topics()):
            assert time.monotonic() < deadline, "the broker did not register"
            time.sleep(0.02)


def make_topic(running: testing.RunningBroker, topic: str, queues: int, *, perm: int = 6) -> None:
    """Make a topic of so many queues, or change its number of queues and its permission."""
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": str(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    with Cluster(running.registry) as cluster:
        cluster.ask("broker-a", RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


def delete_topic(running: testing.RunningBroker, topic: str) -> None:
    """Delete a topic."""
    with Cluster(running.registry) as cluster:
        cluster.ask("broker-a", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


def send(
    running: testing.RunningBroker, topic: str, bodies: list[str], queue_id: int = 0, properties: str = ""
) -> None:
    """Send messages to one queue of a topic as a RocketMQ producer does."""
    requests = []
    for body in bodies:
        ext = {
            "producerGroup": "tests", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": str(queue_id), "sysFlag": "0", "bornTimestamp": str(int(time.time() * 1000)), "flag": "0",
            "properties": properties, "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        requests.append((int(RequestCode.SEND_MESSAGE), ext, body.encode()))
    with Cluster(running.registry) as cluster:
        client = cluster.client(cluster.broker_address("broker-a"))
        for response in client.call_many(requests, 32):
            assert response.code == 0, response.remark
