"""The parts for consumer groups on one broker: opened, driven by its clock, closed and opened again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.config_file import ConfigFile
from headrace.broker.consumers.clients import ClientInfo, ConsumerData
from headrace.broker.consumers.group_services import GroupServices
from headrace.broker.consumers.groups import SubscriptionGroup
from headrace.broker.statistics import TOPIC_PUT_NUMS
from headrace.broker.topic import TopicConfig
from headrace.broker.withheld.schedule import FILE_NAME as DELAYS_FILE
from headrace.errors import SideFileError
from tests.support.brokers import BrokerRig


class ServicesRig(BrokerRig):
    services: GroupServices

    def _open(self) -> None:
        super()._open()
        self.services = GroupServices(self.broker)

    def pass_time(self, milliseconds: int) -> None:
        super().pass_time(milliseconds)
        self.services.wait_for_files()

    def config(self, name: str) -> dict:
        return json.loads((self.store.directory.root / "config" / name).read_bytes())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ServicesRig]:
    made = ServicesRig(tmp_path / "store")
    yield made
    made.close()


def test_a_restart_keeps_groups_and_offsets(rig: ServicesRig) -> None:
    """A-BROKER-23, A-BROKER-27."""
    rig.publish("T", [b"a", b"b", b"c"])
    rig.services.groups.ensure("G", rig.clock.now_ms())
    rig.services.offsets.commit("G", "T", 0, 2)
    rig.restart()
    assert rig.services.groups.get("G") == SubscriptionGroup("G")
    assert rig.services.offsets.committed("G", "T", 0) == 2
    assert rig.services.offsets.counters.clamped == 0


def test_a_clock_that_is_set_back_does_not_stop_the_windows_of_statistics(rig: ServicesRig) -> None:
    """With a clock that was hours ahead at the start the last minute was hours long, and its rate that of a second."""
    statistics = rig.services.statistics
    rig.pass_time(60_000)
    rig.clock.step_ms(-7_200_000)
    for _ in range(12):
        statistics.note_put("T", 10, 100, source="nsq")
        rig.pass_time(10_000)
    found = statistics.snapshot(TOPIC_PUT_NUMS, "T")
    assert found is not None
    assert (found.minute.sum, round(found.minute.per_second)) == (60, 1)


def test_a_crash_loses_at_most_an_interval_of_offsets(rig: ServicesRig) -> None:
    """A-BROKER-24."""
    rig.publish("T", [b"a", b"b", b"c"])
    rig.services.offsets.commit("G", "T", 0, 1)
    rig.pass_time(5_000)
    rig.services.offsets.commit("G", "T", 0, 2)
    rig.pass_time(4_000)
    rig.crash()
    assert rig.services.offsets.committed("G", "T", 0) == 1


def test_a_log_that_ends_before_an_offset_clamps_it(rig: ServicesRig) -> None:
    """What is published next must not be skipped."""
    rig.publish("T", [b"a", b"b"])
    rig.services.offsets.commit("G", "T", 0, 10)
    rig.services.offsets.commit("G", "never made", 0, 10)
    rig.restart()
    assert rig.services.offsets.committed("G", "T", 0) == 2
    assert rig.services.offsets.committed("G", "never made", 0) == 0
    assert rig.services.offsets.counters.clamped == 2


def test_an_end_brings_groups_back_in_front_of_fillers(rig: ServicesRig) -> None:
    """They are not in the queue's files then: RocketMQ would give their offsets to messages that the groups miss."""
    rig.publish("T", [b"a", b"b"])
    rig.store.go_on_above(rig.store.queue("T", 0), 5)
    rig.services.offsets.commit("G", "T", 0, 5)
    rig.services.offsets.commit("H", "T", 0, 1)
    for _ in range(2):
        rig.restart()
        assert (rig.services.offsets.committed("G", "T", 0), rig.services.offsets.committed("H", "T", 0)) == (2, 1)
        assert rig.services.offsets.counters.clamped == 0
        assert rig.broker.topics["T"].queues[0].next_offset == 5
    rig.store.go_on_above(rig.store.queue("T", 0), 6)
    rig.publish("T", [b"c"])
    rig.services.offsets.commit("G", "T", 0, 7)
    rig.restart()
    assert rig.services.offsets.committed("G", "T", 0) == 7


def test_topics_are_in_their_file_within_a_tick(rig: ServicesRig) -> None:
    """A-BROKER-18, A-BROKER-22."""
    rig.broker.configure_topic("T", TopicConfig(4, 4))
    rig.pass_time(50)
    assert rig.config("topics.json")["topicConfigTable"]["T"]["readQueueNums"] == 4
    version = rig.broker.topic_version
    assert rig.config("topics.json")["dataVersion"] == {"counter": version.counter, "timestamp": version.timestamp_ms}
    rig.broker.delete_topic("T")
    rig.pass_time(50)
    assert "T" not in rig.config("topics.json")["topicConfigTable"]


def test_a_topic_takes_with_it_what_is_kept_beside_it(rig: ServicesRig) -> None:
    """remoting.md 4.7.1, A-BROKER-48: also where NSQ's HTTP interface deletes it, as nsqadmin has it do."""
    rig.publish("T", [b"a"])
    queue = rig.broker.topics["T"].queues[0]
    rig.services.offsets.commit("G", "T", 0, 1)
    rig.services.statistics.note_put("T", 1, 1, source="nsq")
    woken: list[str] = []
    rig.services.holds.hold(queue, 1, rig.clock.monotonic_ms() + 15_000, lambda: woken.append("deleted"))
    rig.broker.delete_topic("T")
    assert woken == ["deleted"]
    assert rig.services.offsets.committed("G", "T", 0) is None
    assert rig.services.statistics.snapshot("TOPIC_PUT_NUMS", "T") is None
    rig.restart()
    assert rig.services.offsets.committed("G", "T", 0) is None


def test_publishing_wakes_held_pulls_and_time_ends_them(rig: ServicesRig) -> None:
    """A-BROKER-46, A-BROKER-47."""
    queue = rig.broker.ensure_topic("T").queues[0]
    woken: list[str] = []
    deadline = rig.clock.monotonic_ms() + 15_000
    rig.services.holds.hold(queue, 0, deadline, lambda: woken.append("message"))
    rig.services.holds.hold(queue, 5, deadline, lambda: woken.append("time"))
    rig.services.cold_pulls.hold(queue, 1 << 62, deadline, lambda: woken.append("cold"))
    rig.publish("T", [b"a"])
    assert woken == ["message"]
    rig.pass_time(15_050)
    assert woken == ["message", "time", "cold"]


def test_pulls_that_wait_for_the_disk_go_on_when_it_was_read(rig: ServicesRig) -> None:
    """architecture.md: the store reads ahead, and says so."""
    woken: list[str] = []
    queue = rig.broker.create_topic("Cold", TopicConfig(1, 1)).queues[0]
    rig.services.cold_pulls.hold(queue, 0, 1 << 62, lambda: woken.append("cold"))
    rig.store.on_warm()
    assert woken == ["cold"]


def test_silent_clients_leave_and_locks_go(rig: ServicesRig) -> None:
    mono = rig.clock.monotonic_ms()
    owner = object()
    info = ClientInfo("a", "JAVA", 409, "10.0.0.5:1")
    rig.services.clients.register(owner, info, ["P"], [ConsumerData("G")], mono)
    rig.services.locks.lock("G", "a", [("T", 0)], mono)
    told: list[set[str]] = []
    rig.services.clients.on_changed = told.append
    rig.pass_time(61_000)
    assert rig.services.seen_at_ms(rig.services.clients.members("G")[0]) == rig.clock.now_ms() - 61_000
    assert len(rig.services.locks) == 0
    rig.pass_time(60_000)
    assert told == [{"G"}]


def test_setting_the_clock_throws_nobody_out(rig: ServicesRig) -> None:
    """In-process deadlines are on the monotonic clock."""
    mono = rig.clock.monotonic_ms()
    rig.services.clients.register(object(), ClientInfo("a", "GO", 1, "x:1"), [], [ConsumerData("G")], mono)
    rig.services.locks.lock("G", "a", [("T", 0)], mono)
    rig.clock.step_ms(86_400_000)
    rig.pass_time(1_000)
    assert rig.services.clients.client_ids("G") == ["a"]
    assert len(rig.services.locks) == 1


def test_statistics_and_rates_run_on_the_brokers_clock(rig: ServicesRig) -> None:
    rig.services.statistics.note_put("T", 60, 600, source="remoting")
    rig.services.throughput.put += 60
    for _ in range(3):
        rig.pass_time(1_000)
    assert rig.services.throughput.rates("put")[0] == 20.0
    snapshot = rig.services.statistics.snapshot("TOPIC_PUT_NUMS", "T")
    assert snapshot is not None
    assert snapshot.minute.per_second == 20.0
    rig.pass_time(120_000)
    snapshot = rig.services.statistics.snapshot("TOPIC_PUT_NUMS", "T")
    assert snapshot is not None
    assert snapshot.minute.sum == 0
    assert rig.services.statistics.broker_key == rig.broker.name


def test_forgetting_a_group(rig: ServicesRig) -> None:
    rig.services.offsets.commit("G", "T", 0, 1)
    rig.services.locks.lock("G", "a", [("T", 0)], 0)
    rig.services.statistics.note_send_back("G", "T")
    rig.services.forget_group("G", offsets=False)
    assert rig.services.offsets.committed("G", "T", 0) == 1
    assert len(rig.services.locks) == len(rig.services.statistics) == 0
    rig.services.forget_group("G", offsets=True)
    assert rig.services.offsets.committed("G", "T", 0) is None


@pytest.mark.provokes_bugs
def test_a_bug_in_one_part_leaves_the_others(rig: ServicesRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.services.clients.register(object(), ClientInfo("a", "GO", 1, "x:1"), [], [ConsumerData("G")], 0)
    rig.services.clients.on_changed = lambda groups: groups.remove("none")
    rig.services.offsets.commit("G", "T", 0, 1)
    rig.pass_time(200_000)
    assert rig.services.errors == 1
    assert "group service failed by a bug" in caplog.text
    assert rig.config("consumerOffset.json") == {"offsetTable": {"T@G": {"0": 1}}}


def test_a_damaged_file_without_copy_refuses_the_start(rig: ServicesRig) -> None:
    rig.services.offsets.commit("G", "T", 0, 1)
    rig.close()
    path = rig.store.directory.root / "config" / "consumerOffset.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    BrokerRig._open(rig)
    with pytest.raises(SideFileError, match=r"consumerOffset\.json"):
        GroupServices(rig.broker)
    assert rig.broker.tickers == []
    path.write_bytes(whole)
    rig.services = GroupServices(rig.broker)
    assert rig.services.offsets.committed("G", "T", 0) == 0


def test_a_failed_write_counts_whichever_file_of_the_folder_it_was(
    rig: ServicesRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/metrics.md: that of the delay cursors did not, which another part keeps."""

    def refuse(file: ConfigFile, content: bytes, number: int) -> None:
        raise OSError(28, "No space left on device")

    writer = rig.services.file_writer(DELAYS_FILE)
    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "save", refuse)
        writer.request(lambda: lambda: b"{}")
        rig.services.wait_for_files()
    assert rig.services.write_errors == 1
