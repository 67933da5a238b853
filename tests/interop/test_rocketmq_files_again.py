"""Stores in a less tidy state: one that a killed RocketMQ broker left, and one that goes there and back.

Ref: docs/running.md, "From RocketMQ and back".
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from headrace.format.queue_entry import ENTRY
from headrace.remoting.blocking import BlockingClient
from tests.interop.nsq_peers import HEADRACE
from tests.interop.rocketmq_peers import Agent, Cluster, headrace, rocketmq, stop
from tests.support.waiting import until

pytestmark = pytest.mark.slow

NAME = "--broker.name=broker-a"
TOPIC = "BackAndForth"
SEND = {
    "producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
    "bornTimestamp": "1", "flag": "0", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
}  # fmt: skip
"""Fields of a request that sends a message to queue 0."""


def send(cluster: Cluster, folder: Path, count: int, body: str) -> None:
    """Send messages with keys to four queues."""
    agent = Agent("4.9.8", cluster.namesrv, folder)
    agent.ask("producer", id="p", group="P")
    agent.ask("send", id="p", topic=TOPIC, count=count, keys=f"{body}#", body=body)
    agent.close()


def require_messages(cluster: Cluster, folder: Path, counts: dict[str, int], group: str = "Fresh") -> None:
    """Find every message by consuming, in order without a gap, and some by key."""
    agent = Agent("4.9.8", cluster.namesrv, folder)
    agent.ask("producer", id="p", group="P")
    agent.ask("consumer", id="c", group=group, topic=TOPIC)
    got = agent.received("c", sum(counts.values())) + agent.stays_at("c", 0.5)
    assert sorted(m["body"] for m in got) == sorted(
        f"{body}{n}" for body, count in counts.items() for n in range(count)
    )
    offsets = sorted((m["queueId"], m["queueOffset"]) for m in got)
    assert len(set(offsets)) == len(got)
    for body in filter(counts.get, counts):
        key = f"{body}{min(3, counts[body] - 1)}"
        (found,) = agent.ask("query", id="p", topic=TOPIC, key=key)
        assert found["body"] == key
    agent.close()


def import_store(source: Path, target: Path) -> str:
    """Import a store; return what was said about it."""
    command = [str(HEADRACE), "store", "import", str(source), "--data-dir", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_store_of_a_killed_broker_is_imported(tmp_path: Path) -> None:
    """What RocketMQ had in the page cache is there; that it had no clean end is said."""
    with rocketmq("4.9.7", tmp_path) as cluster:
        send(cluster, tmp_path, 200, "sent-")
        cluster.process.kill()
        cluster.process.wait(10)
        source = cluster.data_dir
    said = import_store(source, tmp_path / "ours" / "store")
    assert "had not noted a clean end" in said
    with headrace(tmp_path / "ours", NAME) as cluster:
        require_messages(cluster, tmp_path, {"sent-": 200})


def test_store_goes_there_and_back(tmp_path: Path) -> None:
    """Ours, then a real broker's, then ours again: nothing is lost and queues go on."""
    copy = tmp_path / "copy"
    with headrace(tmp_path / "first", NAME) as cluster:
        send(cluster, tmp_path, 50, "ours-")
        assert stop(cluster.process) == 0
        shutil.copytree(cluster.data_dir, copy)
    with rocketmq("4.9.7", tmp_path, store=copy) as cluster:
        send(cluster, tmp_path, 50, "theirs-")
        stop(cluster.process)
    shutil.rmtree(copy / "headrace")
    import_store(copy, tmp_path / "second" / "store")
    with headrace(tmp_path / "second", NAME) as cluster:
        send(cluster, tmp_path, 50, "again-")
        require_messages(cluster, tmp_path, {"ours-": 50, "theirs-": 50, "again-": 50})


def entries(cluster: Cluster) -> int:
    """Return how many entries the files of the topic's queues have."""
    files = (cluster.data_dir / "consumequeue" / TOPIC).glob("*/*")
    return sum(size > 0 for file in files for _, size, _ in ENTRY.iter_unpack(file.read_bytes()))


def test_store_goes_there_and_back_behind_a_power_cut(tmp_path: Path) -> None:
    """The log goes on two files further, and one queue's last message is lost: RocketMQ reads both, and dispatches."""
    folder, copy = tmp_path / "first", tmp_path / "copy"
    with headrace(folder, NAME, "--store.durability=async", "--store.checkpoint-interval-ms=100") as cluster:
        send(cluster, tmp_path, 50, "ours-")
        until(lambda: entries(cluster) == 50)
        cluster.process.kill()
        cluster.process.wait(10)
        log = cluster.data_dir / "commitlog" / f"{0:020d}"
        with log.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            last = mapped.find(b"ours-49")
            mapped[last : last + 4096] = bytes(4096)
    with headrace(folder, NAME, "--store.durability=async") as cluster:
        assert stop(cluster.process) == 0
        shutil.copytree(cluster.data_dir, copy)
        assert len(list((copy / "commitlog").iterdir())) == 4
    with rocketmq("4.9.7", tmp_path, store=copy) as cluster:
        send(cluster, tmp_path, 50, "theirs-")
        require_messages(cluster, tmp_path, {"ours-": 49, "theirs-": 50}, "There")
        stop(cluster.process)
    shutil.rmtree(copy / "headrace")
    import_store(copy, tmp_path / "second" / "store")
    with headrace(tmp_path / "second", NAME) as cluster:
        send(cluster, tmp_path, 50, "again-")
        require_messages(cluster, tmp_path, {"ours-": 49, "theirs-": 50, "again-": 50})


@pytest.mark.parametrize("count", [40, 1, 0])
def test_a_topic_that_was_deleted_and_made_again_is_the_new_one(tmp_path: Path, count: int) -> None:
    """RocketMQ numbers it from 0 again and leaves the old records in the log, in front of the new ones.

    What a queue has that got no message since is told by its files alone, which RocketMQ removes.
    """
    with rocketmq("4.9.7", tmp_path) as cluster:
        send(cluster, tmp_path, 120, "old-")
        with closing(BlockingClient(cluster.broker)) as client:

            def end_of(queue_id: int) -> int:
                return int(client.call(30, {"topic": TOPIC, "queueId": str(queue_id)}).ext["offset"])

            until(lambda: sum(map(end_of, range(4))) == 120)  # its queues are behind the log
            assert client.call(215, {"topic": TOPIC}).code == 0
            made = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
            made |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            assert client.call(17, {"topic": TOPIC, **made}).code == 0
            # A start of RocketMQ makes entries of what lies behind the last one: with none at all, of everything.
            assert client.call(10, {**SEND, "topic": "Other"}, b"behind").code == 0
        if count:
            send(cluster, tmp_path, count, "new-")
        stop(cluster.process)
        source = cluster.data_dir
    import_store(source, tmp_path / "ours" / "store")
    with headrace(tmp_path / "ours", NAME) as cluster:
        require_messages(cluster, tmp_path, {"new-": count})
        assert stop(cluster.process) == 0
    checked = subprocess.run([str(HEADRACE), "store", "check", str(tmp_path / "ours" / "store")], check=False)
    assert checked.returncode == 0


def test_offsets_of_a_broker_with_light_queues_are_taken_over(tmp_path: Path) -> None:
    """With enableLmq they are in a file of their own, and queues of entries alone are no lost messages."""
    options = {"enableLmq": "true", "enableMultiDispatch": "true"}
    with rocketmq("4.9.7", tmp_path, options=options) as cluster:
        send(cluster, tmp_path, 20, "sent-")
        with closing(BlockingClient(cluster.broker)) as client:
            light = {**SEND, "topic": TOPIC, "properties": "INNER_MULTI_DISPATCH\x01%LMQ%light\x02"}
            assert client.call(10, light, b"to both").code == 0
            commit = {"consumerGroup": "Old", "topic": TOPIC, "queueId": "1", "commitOffset": "2"}
            assert client.call(15, commit).code == 0
        stop(cluster.process)
        source = cluster.data_dir
    assert (source / "config" / "lmqConsumerOffset.json").exists()
    assert (source / "consumequeue" / "%LMQ%light" / "0").exists()
    assert "1 light queues (enableLmq) are left out" in import_store(source, tmp_path / "ours" / "store")
    with headrace(tmp_path / "ours", NAME) as cluster, closing(BlockingClient(cluster.broker)) as client:
        asked = client.call(14, {"consumerGroup": "Old", "topic": TOPIC, "queueId": "1"})
        assert (asked.code, asked.ext["offset"]) == (0, "2")
