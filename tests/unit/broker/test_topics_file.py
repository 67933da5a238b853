"""``topics.json``: written behind the catalog, read from other brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.broker.data_version import DataVersion
from headrace.broker.topic import Topic, TopicConfig
from headrace.broker.topics_file import FILE_NAME, OLD_FILE_NAME, TopicsFile, read_topics
from headrace.errors import SideFileError
from tests.support.config_files import Jobs


def topic(name: str, config: TopicConfig | None = None, *, ephemeral: bool = False) -> Topic:
    return Topic(name, [], ephemeral=ephemeral, paused=False, frozen=None, config=config or TopicConfig(4, 4))


class Rig:
    def __init__(self, folder: Path, jobs: Jobs) -> None:
        self.topics: dict[str, Topic] = {}
        self.version = DataVersion()
        self.file = TopicsFile(jobs.writer(folder, FILE_NAME), self.topics, lambda: self.version)

    def put(self, made: Topic) -> None:
        self.topics[made.name] = made
        self.version = self.version.next(1_700_000_000_000 + self.version.counter)


def on_disk(folder: Path) -> dict:
    return json.loads((folder / FILE_NAME).read_bytes())


def test_the_file_follows_the_topics(tmp_path: Path) -> None:
    """A-BROKER-15, A-BROKER-16, A-BROKER-22; remoting.md 4.11."""
    jobs = Jobs()
    rig = Rig(tmp_path, jobs)
    rig.put(topic("T", TopicConfig(4, 8, 6, order=True)))
    rig.put(topic("x#ephemeral", ephemeral=True))
    rig.file.tick(0)
    assert on_disk(tmp_path) == {
        "dataVersion": {"counter": 2, "timestamp": 1_700_000_000_001},
        "topicConfigTable": {
            "T": {
                "topicName": "T",
                "readQueueNums": 4,
                "writeQueueNums": 8,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": True,
            }
        },
    }
    rig.file.tick(50)
    assert jobs.count == 1
    assert read_topics(tmp_path) == ({"T": TopicConfig(4, 8, 6, order=True)}, DataVersion(1_700_000_000_001, 2))


def test_a_burst_of_changes_costs_two_writes(tmp_path: Path) -> None:
    jobs = Jobs(at_once=False)
    rig = Rig(tmp_path, jobs)
    for number in range(100):
        rig.put(topic(f"T{number}"))
        rig.file.tick(number)
    jobs.run()
    assert len(on_disk(tmp_path)["topicConfigTable"]) == 1
    rig.file.tick(100)
    jobs.run()
    assert len(on_disk(tmp_path)["topicConfigTable"]) == 100
    assert jobs.count == 2


def test_topics_that_are_not_in_the_file_cost_no_write(tmp_path: Path) -> None:
    """Who makes an ephemeral topic for each reply had it written, and synced, twenty times a second."""
    jobs = Jobs()
    rig = Rig(tmp_path, jobs)
    rig.put(topic("T"))
    rig.file.tick(0)
    rig.topics["reply#ephemeral"] = topic("reply#ephemeral", ephemeral=True)
    rig.file.tick(50)
    rig.file.when_saved(lambda error: None)
    rig.file.close()
    assert jobs.count == 1


def test_close_writes_the_last_changes(tmp_path: Path) -> None:
    jobs = Jobs(at_once=False)
    rig = Rig(tmp_path, jobs)
    rig.put(topic("T"))
    rig.file.tick(0)
    rig.put(topic("U"))
    rig.file.close()
    jobs.run()
    assert set(on_disk(tmp_path)["topicConfigTable"]) == {"T", "U"}
    rig.file.close()


def test_smartgos_file_is_read(tmp_path: Path) -> None:
    """A-BROKER-16, X-BROKER-01, X-BROKER-02, X-BROKER-05: nested twice, filter type 0, version in ns."""
    table = {
        "%RETRY%consumerGroupId-example-200": {
            "SEPARATOR": "",
            "topicName": "%RETRY%consumerGroupId-example-200",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": 0,
            "topicSysFlag": 0,
            "order": False,
        }
    }
    content = {
        "topicConfigTable": {"topicConfigTable": table},
        "dataVersion": {"timestamp": 1_511_333_414_604_049_700, "counter": 2023},
    }
    (tmp_path / OLD_FILE_NAME).write_text(json.dumps(content))
    assert read_topics(tmp_path) == (
        {"%RETRY%consumerGroupId-example-200": TopicConfig(1, 1)},
        DataVersion(1_511_333_414_604, 2023),
    )


def test_rocketmqs_file_is_read(tmp_path: Path) -> None:
    """remoting.md 4.11; 5.x adds attributes."""
    (tmp_path / FILE_NAME).write_bytes(
        b'{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795228142528\n\t},\n'
        b'\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"attributes":{},\n\t\t\t"order":false,\n\t\t\t"perm":4,\n'
        b'\t\t\t"readQueueNums":8,\n\t\t\t"topicFilterType":"MULTI_TAG",\n\t\t\t"topicName":"T",\n'
        b'\t\t\t"topicSysFlag":2,\n\t\t\t"writeQueueNums":0\n\t\t}\n\t}\n}'
    )
    configs, version = read_topics(tmp_path)
    assert configs == {"T": TopicConfig(8, 0, 4, sys_flag=2, filter_type="MULTI_TAG")}
    assert version == DataVersion(1_795_228_142_528, 3)


def test_no_file_means_no_topics_and_damage_is_refused(tmp_path: Path) -> None:
    assert read_topics(tmp_path) == ({}, DataVersion())
    for damage in (b"{", b"{}", b'{"topicConfigTable":[]}', b'{"topicConfigTacle":{"T":{"topicName":"T"}}}'):
        (tmp_path / FILE_NAME).write_bytes(damage)
        with pytest.raises(SideFileError):
            read_topics(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b'{"dataVersion":{"counter":1},"topicConfigTable":{}}')
    assert read_topics(tmp_path)[0] == {}


@pytest.mark.parametrize(
    "given",
    [
        5,
        {"readQueueNums": -1},
        {"readQueueNums": 0, "writeQueueNums": 0},
        {"perm": "x"},
        {"perm": -1},
        {"perm": 1 << 31},
        {"topicSysFlag": 1 << 40},
        {"topicFilterType": 7},
        {"topicFilterType": ["SINGLE_TAG"]},
        {"topicName": ["T"], "perm": None},
    ],
)
def test_what_is_no_topic_is_passed_over(tmp_path: Path, given: object) -> None:
    """It has a name still: its messages are not those of a topic that was deleted."""
    table = {"bad": given, "T": {"topicName": "T"}}
    (tmp_path / FILE_NAME).write_text(json.dumps({"topicConfigTable": table}))
    assert read_topics(tmp_path)[0] == {"bad": None, "T": TopicConfig(16, 16)}


@pytest.mark.parametrize("name", ["../../x", "a/b", "a b", "a\0", "\u00e9", "a" * 128, "e#ephemeral"])
def test_what_no_topic_is_called_is_left_out(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    table = {name: {"topicName": name}, "T": {"topicName": "T"}}
    (tmp_path / FILE_NAME).write_text(json.dumps({"topicConfigTable": table}))
    assert read_topics(tmp_path)[0] == {"T": TopicConfig(16, 16)}
    assert "a topic has 1 to 127 letters, digits and any of" in caplog.text
