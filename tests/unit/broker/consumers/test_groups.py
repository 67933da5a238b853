"""Subscription groups: made by their first consumer or a tool, on disk after each change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker.consumers.groups import (
    FILE_NAME,
    SYSTEM_GROUPS,
    GroupTable,
    SubscriptionGroup,
    is_system_group,
)
from headrace.broker.data_version import DataVersion
from headrace.errors import InvalidNameError, QuotaExceededError
from headrace.settings import BrokerSettings
from tests.support.config_files import Jobs

NOW = 1_700_000_000_000
SETTINGS = BrokerSettings()


def make(folder: Path, jobs: Jobs | None = None, settings: BrokerSettings = SETTINGS) -> GroupTable:
    table = GroupTable((jobs or Jobs()).writer(folder, FILE_NAME), settings)
    table.load()
    return table


def on_disk(folder: Path) -> dict:
    return json.loads((folder / FILE_NAME).read_bytes())


def test_the_first_consumer_makes_a_group_with_the_brokers_defaults(tmp_path: Path) -> None:
    """A-BROKER-26, A-BROKER-28."""
    settings = replace(SETTINGS, group_retry_max_times=3, group_retry_queues=2, group_consume_from_min=False)
    table = make(tmp_path, settings=settings)
    made = table.ensure("G1", NOW)
    assert made == SubscriptionGroup("G1", consume_from_min=False, retry_queues=2, retry_max_times=3)
    assert table.ensure("G1", NOW + 1) is made
    assert table.version == DataVersion(NOW, 1)


def test_each_change_is_on_disk_and_counts_in_the_version(tmp_path: Path) -> None:
    """A-BROKER-17, A-BROKER-27, A-BROKER-28: the fields and their defaults; remoting.md 4.11."""
    table = make(tmp_path)
    table.ensure("G1", NOW)
    table.put(SubscriptionGroup("G1", retry_max_times=3), NOW + 5)
    assert on_disk(tmp_path)["dataVersion"] == {"timestamp": NOW + 5, "counter": 2}
    assert on_disk(tmp_path)["subscriptionGroupTable"]["G1"] == {
        "groupName": "G1",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": False,
        "retryQueueNums": 1,
        "retryMaxTimes": 3,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
    }
    assert not table.put(SubscriptionGroup("G1", retry_max_times=3), NOW + 6)
    assert table.version.counter == 2
    assert table.remove("G1", NOW + 7)
    assert not table.remove("G1", NOW + 8)
    assert "G1" not in on_disk(tmp_path)["subscriptionGroupTable"]
    again = make(tmp_path)
    assert again.version == DataVersion(NOW + 7, 3)
    assert again.get("G1") is None


def test_a_restart_keeps_groups(tmp_path: Path) -> None:
    table = make(tmp_path)
    group = SubscriptionGroup(
        "%ns%G", consume_enabled=False, retry_queues=0, broadcast_enabled=False, orderly=True, slow_broker_id=2
    )
    table.put(group, NOW)
    assert make(tmp_path).get("%ns%G") == group


def test_when_saved_waits_for_the_write(tmp_path: Path) -> None:
    """A-BROKER-18: the change is in the file before the reply is sent."""
    jobs = Jobs(at_once=False)
    table = make(tmp_path, jobs)
    told: list[OSError | None] = []
    table.put(SubscriptionGroup("G1"), NOW)
    table.when_saved(told.append)
    assert table.get("G1") is not None
    assert not told
    jobs.run()
    assert told == [None]
    assert jobs.count == 1
    assert "G1" in on_disk(tmp_path)["subscriptionGroupTable"]


def test_close_writes_what_is_not_on_disk(tmp_path: Path) -> None:
    jobs = Jobs(at_once=False)
    table = make(tmp_path, jobs)
    table.ensure("G1", NOW)
    table.ensure("G2", NOW)
    table.close()
    jobs.run()
    assert {"G1", "G2"} <= set(on_disk(tmp_path)["subscriptionGroupTable"])


def test_groups_of_tools_are_there_without_being_made(tmp_path: Path) -> None:
    """remoting.md 4.10."""
    table = make(tmp_path)
    assert {group.name for group in table.all()} == SYSTEM_GROUPS
    assert table.version == DataVersion()
    assert table.remove("TOOLS_CONSUMER", NOW)
    assert table.get("TOOLS_CONSUMER") == SubscriptionGroup("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("G1")


def test_smartgos_file_is_read(tmp_path: Path) -> None:
    """X-BROKER-03, X-BROKER-05: groups at the top, version in ns, "consumeBroadcastEnable" false."""
    sample = {
        "consumerGroupId-example-200": {
            "groupName": "consumerGroupId-example-200",
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeBroadcastEnable": False,
            "retryQueueNums": 1,
            "retryMaxTimes": 16,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 0,
        },
        "dataVersion": {"timestamp": 1_511_333_414_604_049_700, "counter": 3},
    }
    (tmp_path / FILE_NAME).write_text(json.dumps(sample))
    table = make(tmp_path)
    group = table.get("consumerGroupId-example-200")
    assert group is not None
    assert (group.broadcast_enabled, group.slow_broker_id) == (False, 0)
    assert table.version == DataVersion(1_511_333_414_604, 3)


@pytest.mark.parametrize(
    "damage",
    [
        b'{"dataVersion":{"counter":3},"subscriptionFroupTable":{"G1":{"groupName":"G1"}}}',
        b'{"dataVersion":{"counter":3}}',
        b'{"subscriptionGroupTable":[3]}',
        b"{}",
    ],
)
def test_a_file_without_groups_is_read_from_its_copy(tmp_path: Path, damage: bytes) -> None:
    """remoting.md 3.5; every broker writes its table, and its own groups."""
    (tmp_path / FILE_NAME).write_bytes(damage)
    (tmp_path / f"{FILE_NAME}.bak").write_bytes(b'{"subscriptionGroupTable":{"G2":{"groupName":"G2"}}}')
    assert {group.name for group in make(tmp_path).all()} - SYSTEM_GROUPS == {"G2"}


def test_a_file_with_an_empty_table_is_taken(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{\n\t"dataVersion":{"counter":7},\n\t"subscriptionGroupTable":{}\n}')
    assert make(tmp_path).version.counter == 7


def test_what_is_no_group_in_the_file_is_passed_over_and_the_rest_read(tmp_path: Path) -> None:
    table = {
        "../x": {"groupName": "../x"},
        "G1": {"groupName": "G1", "retryMaxTimes": "many"},
        "G2": {"groupName": "G2", "retryMaxTimes": "7"},
        "G3": 5,
        "G4": {"groupName": 9},
    }
    content = {"subscriptionGroupTable": table, "dataVersion": {"counter": []}}
    (tmp_path / FILE_NAME).write_text(json.dumps(content))
    read = make(tmp_path)
    assert {group.name for group in read.all()} - SYSTEM_GROUPS == {"G2"}
    assert read.get("G2").retry_max_times == 7
    assert read.version == DataVersion()


@pytest.mark.parametrize("name", ["", "a@b", "../../etc", "a b", "a/b", "x" * 121, "naïve", "a\x01"])
def test_names_that_no_group_may_have_are_refused(tmp_path: Path, name: str) -> None:
    """X-NET-04, X-BROKER-04: names may not contain "@"; a group's name is part of a folder's name."""
    table = make(tmp_path)
    with pytest.raises(InvalidNameError):
        table.ensure(name, NOW)
    assert table.version.counter == 0


def test_bounds_are_refused_and_counted(tmp_path: Path) -> None:
    table = make(tmp_path, settings=replace(SETTINGS, max_groups=2))
    table.ensure("G1", NOW)
    table.ensure("G2", NOW)
    with pytest.raises(QuotaExceededError, match=r"broker\.max_groups"):
        table.ensure("G3", NOW)
    with pytest.raises(QuotaExceededError, match="retryQueueNums"):
        table.put(SubscriptionGroup("G1", retry_queues=100_000), NOW)
    assert table.refused == 2
    table.put(SubscriptionGroup("G1", consume_enabled=False), NOW)  # no new one


def test_a_group_is_read_from_json_over_defaults() -> None:
    """remoting.md 1.8: numbers may come as text; unknown members are passed over, missing ones keep their default."""
    given = {"groupName": "G", "retryMaxTimes": "5", "consumeEnable": "false", "attributes": {"a": 1}, "brokerId": None}
    expected = SubscriptionGroup("G", retry_max_times=5, consume_enabled=False)
    assert SubscriptionGroup.from_fields(given) == expected
    assert SubscriptionGroup.from_fields({"retryQueueNums": 4}, expected) == replace(expected, retry_queues=4)


@pytest.mark.parametrize(
    ("member", "value"),
    [("groupName", 7), ("retryMaxTimes", "x"), ("retryQueueNums", 1 << 40), ("brokerId", True), ("consumeEnable", 3)],
)
def test_members_of_a_wrong_type_are_named(member: str, value: object) -> None:
    with pytest.raises(ValueError, match=member):
        SubscriptionGroup.from_fields({"groupName": "G", member: value})
