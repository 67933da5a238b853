"""What the broker does when the disk refuses, and what a crash leaves of topics that only ephemeral channels read."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker import control
from headrace.broker.broker import Broker
from headrace.broker.catalog import ABOVE_ALL, Catalog
from headrace.broker.channels.channel import Channel
from headrace.broker.channels.journal import ChannelJournal
from headrace.broker.consumers.group_services import GroupServices
from headrace.broker.pull import PullStatus, find_offset_by_time, read_queue
from headrace.broker.topic import Topic, TopicConfig
from headrace.errors import FlushError, SideFileError, StoreError, UnreadableError
from headrace.format.names import CONTROL_TOPIC
from headrace.store.memory_log import MemoryLog, MemoryQueue
from headrace.store.queue_base import QueueBase
from headrace.store.store import Store
from tests.support.brokers import BrokerRig
from tests.support.stores import StoreBench


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    rig = BrokerRig(tmp_path / "store")
    yield rig
    rig.broker._executor.shutdown(wait=True)
    rig.store.abandon()


def _bodies(rig: BrokerRig, topic: str, channel: str) -> list[bytes]:
    subscription, found = rig.subscribe(topic, channel)
    return [body for body, _, _ in rig.take(subscription, found)]


def test_topic_left_with_an_ephemeral_channel_holds_messages_after_a_crash(rig: BrokerRig) -> None:
    """nsq.md 1.6: a topic without channels holds what is published, also if a crash took its last channel."""
    rig.subscribe("t", "durable")
    rig.subscribe("t", "e#ephemeral")
    rig.broker.delete_channel("t", "durable")
    rig.store.flush()
    rig.crash()
    rig.publish("t", [b"held"])
    assert _bodies(rig, "t", "later") == [b"held"]


def test_topic_resumed_with_an_ephemeral_channel_holds_messages_after_a_crash(rig: BrokerRig) -> None:
    """The same, where the last record was the topic's unpausing. X-NSQ-05."""
    rig.subscribe("t", "e#ephemeral")
    rig.broker.pause_topic("t", True)
    rig.broker.pause_topic("t", False)
    rig.store.flush()
    rig.crash()
    rig.publish("t", [b"held"])
    assert _bodies(rig, "t", "later") == [b"held"]


def test_ephemeral_channel_goes_though_the_store_has_failed(rig: BrokerRig) -> None:
    """A consumer that leaves after a failed fsync must leave: its connection is being closed."""
    subscription, _ = rig.subscribe("t", "e#ephemeral")
    rig.store._fail(FlushError("x", errno.EIO))
    rig.broker.unsubscribe(subscription)
    assert rig.broker.topics["t"].channels == {}


def test_a_journal_that_cannot_be_synced_stops_no_stop(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last snapshot was written, and the command ended with 1 and this one sentence, its channels not closed."""
    subscription, channel = rig.subscribe("t", "c")
    rig.publish("t", [b"done", b"open"])
    rig.finish(subscription, channel, [message_id for _, _, message_id in rig.take(subscription, channel)][:1])

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        rig.broker.close()
    rig.store.close()
    assert caplog.text.count("journal not written") == 1
    assert "check the disk" in caplog.text
    rig._open()
    assert _bodies(rig, "t", "c") == [b"open"]


def test_what_was_made_durable_is_there_after_a_failed_fsync(rig: BrokerRig) -> None:
    """A new consumer of an existing channel waits for its creation only, not for a later change that was lost."""
    topic = rig.broker.ensure_topic("t")
    channel = rig.broker.ensure_channel(topic, "c")
    passing = rig.broker.ensure_channel(topic, "e#ephemeral")
    rig.store.flush()
    durable = rig.store.durable_offset
    lost = rig.broker.ensure_channel(topic, "lost")
    assert 0 < rig.broker.made_at(topic) <= durable
    assert rig.broker.made_at(topic) < rig.broker.made_at(topic, channel) <= durable
    assert rig.broker.made_at(topic, passing) == rig.broker.made_at(topic)
    assert durable < rig.broker.made_at(topic, lost) <= rig.broker.last_change
    rig.store._fail(FlushError("x", errno.EIO))
    told: list[StoreError | None] = []
    rig.broker.gate.wait(rig.broker.made_at(topic, channel), told.append)
    assert told == [None]


@pytest.mark.parametrize(
    ("call", "number", "remedy"),
    [
        ("os.open", errno.EMFILE, "raise the limit of open files"),
        ("os.open", errno.ENOENT, "put it back; where it is gone for good restart"),
        ("os.pread", errno.EIO, "see to the disk"),
    ],
)
def test_delivery_goes_on_when_the_system_gives_files_again(
    rig: BrokerRig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
    remedy: str,
) -> None:
    """No descriptor for a segment, a queue file that cannot be read: the channel stood still, messages in flight."""
    bodies = [b"%02d" % n + bytes(60_000) for n in range(80)]
    rig.store_settings = replace(rig.store_settings, open_segments=2)
    rig.subscribe("t", "c")
    for n in range(0, 80, 10):
        rig.publish("t", bodies[n : n + 10])
    rig.restart()
    subscription, channel = rig.subscribe("t", "c")
    rig.broker.take_dirty()

    def refuse(*_: object, **__: object) -> bytes:
        raise OSError(number, os.strerror(number), "the file")

    with monkeypatch.context() as patch:
        patch.setattr(call, refuse)
        taken = rig.take(subscription, channel)
        rig.broker.take_dirty()
    assert len(taken) < len(bodies)
    assert channel.in_flight_count == len(taken)
    assert caplog.text.count("messages not read, tried again path=") == 1
    assert f"remedy={remedy}" in caplog.text
    rig.pass_time(1100)
    rig.store.tick()
    assert channel in rig.broker.take_dirty()
    taken += rig.take(subscription, channel)
    assert [body for body, _, _ in taken] == bodies


def test_queue_files_that_are_moved_away_lose_no_channel_a_message(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    """An unmounted disk, for seconds: what the files had was taken for damaged, and finished by every channel."""
    bodies = [b"%03d" % number for number in range(300)]
    rig.subscribe("t", "c")
    rig.publish("t", bodies)
    rig.restart()
    subscription, channel = rig.subscribe("t", "c", window=1_000)
    queue = rig.broker.topics["t"].queues[0]
    folder = Path(rig.store_settings.data_dir) / "consumequeue"
    folder.rename(folder.with_name("away"))
    rig.store.files.close()  # those that are open can be read on
    assert rig.take(subscription, channel) == []
    with pytest.raises(UnreadableError, match=r"consumequeue/t/0: No such file or directory"):
        find_offset_by_time(queue, 1, False)
    assert read_queue(queue, 0, 32, 1 << 20, None, None, RecordBatch()).status == PullStatus.COLD
    folder.with_name("away").rename(folder)
    rig.pass_time(1_100)
    rig.store.tick()
    assert [body for body, _, _ in rig.take(subscription, channel)] == bodies
    assert channel.damaged_count == 0
    assert caplog.text.count("messages not read, tried again path=") == 1


def test_a_directory_in_the_place_of_the_store_gets_no_state_of_the_broker(rig: BrokerRig) -> None:
    """Channels of the restored backup had finished what they were never to deliver again: 901 messages were lost."""
    root = Path(rig.store_settings.data_dir)
    subscription, channel = rig.subscribe("t", "c")
    rig.publish("t", [b"a", b"b"])
    rig.close()
    shutil.copytree(root, root.with_name("backup"))
    rig._open()
    services = GroupServices(rig.broker)
    subscription, channel = rig.subscribe("t", "c")
    rig.finish(subscription, channel, [message_id for _, _, message_id in rig.take(subscription, channel)])
    services.offsets.commit("g", "t", 0, 2)
    rig.subscribe("t", "d")
    root.rename(root.with_name("moved away"))
    root.with_name("backup").rename(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    rig.broker._states._journal._incomplete = True  # a snapshot is due, and removes the journals before it
    for _ in range(3):
        rig.pass_time(6_000)
        rig.broker.wait_for_journal()
    rig.close()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    rig._open()
    subscription, channel = rig.subscribe("t", "c")
    assert [body for body, _, _ in rig.take(subscription, channel)] == [b"a", b"b"]


def test_spill_files_that_a_power_cut_brings_back_go_with_the_next_start(tmp_path: Path) -> None:
    """Their channel was deleted, durably, and the folder's blocks were not written yet: nobody looked there again."""
    rig = BrokerRig(tmp_path / "store", max_deferred_in_memory=10)
    rig.subscribe("t", "c")
    rig.subscribe("t", "other")
    rig.publish("t", [b"message"] * 100, due_ms=rig.clock.now_ms() + 3_600_000)
    folders = [path for path in rig.store.directory.channels.iterdir() if path.is_dir()]
    assert len(folders) == 2
    brought_back = [(path, path.read_bytes()) for folder in folders for path in folder.iterdir()]
    rig.broker.delete_channel("t", "c")
    rig.store.flush()
    rig.store.abandon()
    for path, content in brought_back:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    rig._open()
    assert [path.name for path in rig.store.directory.channels.rglob("*.spill")] == []
    rig.pass_time(3_600_000)
    assert _bodies(rig, "t", "other") == [b"message"] * 100
    rig.close()


def test_a_folder_of_spill_files_that_cannot_be_looked_at_holds_up_no_deletion(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The deletion is in the log by then: consumers must learn of it, and other channels of the topic go as well."""
    rig.subscribe("t", "c")
    rig.subscribe("t", "other")
    inspect = os.stat

    def refuse(path: str | int, **options: object) -> os.stat_result:
        if isinstance(path, os.PathLike) and rig.store.directory.channels in Path(path).parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return inspect(path, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("os.stat", refuse)
        rig.broker.delete_topic("t")
        assert "t" not in rig.broker.topics
        rig.subscribe("u", "c")
        rig.broker.close()
    assert "spill files" not in caplog.text, "not a line for each channel"


def test_a_journal_that_was_removed_forgets_nothing_of_what_was_finished(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    subscription, channel = rig.subscribe("t", "c")
    rig.publish("t", [b"a", b"b", b"c"])
    taken = rig.take(subscription, channel)
    rig.finish(subscription, channel, [message_id for _, _, message_id in taken[:1]])
    rig.pass_time(2_000)
    for path in rig.store.directory.channels.glob("journal.*"):
        path.unlink()
    rig.finish(subscription, channel, [message_id for _, _, message_id in taken[1:2]])
    for _ in range(3):
        rig.pass_time(1_000)
        rig.broker.wait_for_journal()
    assert caplog.text.count("was removed while it is written to") == 1
    rig.crash()
    assert _bodies(rig, "t", "c") == [b"c"]


def test_a_file_system_that_was_shut_down_keeps_nobody_from_ticking(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFS does so when its disk fails, and then does not even tell of a file that is open."""
    rig.subscribe("t", "c")
    rig.publish("t", [b"a"])

    def refuse(_: int) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", refuse)
        rig.pass_time(2_000)
        rig.store.tick()
        rig.store.look_at_place()
    assert rig.store.failure is None


def test_a_journal_that_cannot_be_opened_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("os.open", refuse)
        with pytest.raises(SideFileError, match=r"journal\.00000001: .*Too many open files; .*ulimit -n"):
            ChannelJournal(tmp_path).load()


def test_full_disk_under_the_journal_leaks_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second a new attempt is made: each must give back what it opened."""
    journal = ChannelJournal(tmp_path)
    journal.load()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    open_before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        for _ in range(20):
            with pytest.raises(SideFileError):
                journal.begin_compaction()
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == open_before
    journal.compact([(b"k", b"state")])
    journal.close()


def test_catalog_that_cannot_be_saved_does_not_stop_the_tick(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog only shortens a start: a full disk under it is counted and tried again, not raised."""
    monkeypatch.setattr(control, "SAVE_EVERY", 2)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for number in range(3):
        rig.subscribe(f"t{number}", "c")
    with monkeypatch.context() as patch:
        patch.setattr(control, "write_side_file", full)
        for _ in range(3):
            rig.pass_time(12_000)
    assert rig.broker.catalog_errors == 3
    assert not rig.store.directory.catalog.exists()
    assert caplog.text.count("catalog not saved") == 1
    rig.pass_time(60_000)
    rig.broker.wait_for_journal()
    assert rig.store.directory.catalog.exists()
    rig.crash()
    assert set(rig.broker.topics) == {"t0", "t1", "t2"}


def _deliver_all(queue: QueueBase, *, waiting: tuple[int, int] | None = None) -> tuple[list[bytes], Channel]:
    """Deliver what a new channel finds; ``waiting`` is a (queue offset, physical offset) that its journal had."""
    channel = Channel("c", "t", node_id=7)
    channel.add_queue(queue, 0)
    subscription = channel.subscribe(None, 60_000)
    subscription.ready_count = 100
    if waiting is not None:
        channel.defer(0, *waiting, 1, 1)
        channel.expire(2, 2, 100)
    records = RecordBatch()
    channel.deliver(subscription, 2, 2, 100, 1 << 30, records)
    return [records.body(index) for index in range(len(records))], channel


def test_position_without_a_record_delivers_nothing(tmp_path: Path) -> None:
    """A message that only a journal still knows, because a power cut took its record, is counted as damaged."""
    bench = StoreBench(tmp_path / "store")
    bench.append("t", b"durable")
    lost = bench.append("t", b"lost", flush=False)
    bench.store.queue("t", 0).write_out()
    bench.crash()
    bench.overwrite(lost[0][2], bytes(1000))
    bench.open()
    bodies, channel = _deliver_all(bench.store.queue("t", 0), waiting=(lost[0][1], lost[0][2]))
    assert bodies == [b"durable"]
    assert channel.damaged_count == 1
    bench.close()


def test_large_ephemeral_message_does_not_hide_what_follows() -> None:
    """Records behind one of more than 64 KiB in an ephemeral topic are found again, and can be evicted."""
    log = MemoryLog(3, 1 << 20)
    queue = MemoryQueue("t", 0, log)
    for number in range(6):
        batch = PublishBatch()
        batch.destinations, batch.queues = ["t"], [queue]
        batch.append(b"L" * 70_000 if number % 2 == 0 else b"small")
        log.append(batch, 1)
    bodies, _ = _deliver_all(queue)
    assert [len(body) for body in bodies] == [5, 70_000, 5]


def _lose_without_a_trace(rig: BrokerRig, lost: int) -> None:
    """Cut the power: it takes the records from a place of the log on, and all that knew of them but the journal."""
    rig.broker._executor.shutdown(wait=True)
    rig.store.abandon()
    directory = rig.store.directory
    with (directory.commit_log / f"{0:020d}").open("r+b") as file:
        file.seek(lost)
        file.write(bytes(5000))
    shutil.rmtree(directory.consume_queues)
    directory.checkpoint.unlink(missing_ok=True)
    directory.durable_mark.write_bytes(bytes(48))


def test_start_that_cannot_note_clamped_positions_is_refused(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next crash would bring the old floor back, above what was published meanwhile."""
    subscription, channel = rig.subscribe("t", "c")
    rig.publish("t", [b"0", b"1", b"2", b"3"])
    taken = rig.take(subscription, channel)
    rig.finish(subscription, channel, [message_id for _, _, message_id in taken])
    rig.pass_time(2000)
    _lose_without_a_trace(rig, rig.store.queue("t", 0).entries(1, 1)[0][0])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    rig.store = Store.open(rig.store_settings, rig.clock)
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(StoreError, match="clamped"):
            Broker.open(rig.store, rig.broker_settings, rig.clock)
    rig.broker = Broker.open(rig.store, rig.broker_settings, rig.clock)
    rig.publish("t", [b"new"])
    rig.broker._executor.shutdown(wait=True)
    rig.crash()
    assert _bodies(rig, "t", "c") == [b"new"]


def test_changes_behind_a_catalog_that_was_ahead_of_the_log_count(rig: BrokerRig) -> None:
    """Its number of changes stayed in the file: as many new ones, answered as made, were gone after a kill."""
    for name in ("a", "b", "c"):
        rig.broker.ensure_topic(name)
    rig.broker._control.save()
    rig.store.flush()
    _lose_without_a_trace(rig, rig.store.queue("%SYS%CONTROL", 0).entries(1, 1)[0][0])
    rig._open()
    rig.subscribe("d", "channel")
    rig.crash()
    assert list(rig.broker.topics["d"].channels) == ["channel"]


def test_a_change_that_a_power_cut_took_and_nobody_was_answered_is_no_loss(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue entry reached the disk and its record did not: no start calls that a lost change."""
    rig.broker.create_topic("kept", TopicConfig(1, 1))
    rig.store.flush()
    rig.broker.create_topic("not-answered", TopicConfig(1, 1))
    rig.store.checkpoints.write_queue(rig.store.queue(CONTROL_TOPIC, 0))
    rig.cut_power()
    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR] == []
    rig.broker.create_topic("later", TopicConfig(1, 1))
    rig.restart()
    assert {"kept", "later"} <= rig.broker.topics.keys()
    assert "not-answered" not in rig.broker.topics


def test_an_answered_change_that_is_lost_at_the_end_of_the_log_is_named(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is cut off there as behind a power cut, but what was durable went with it."""
    rig.broker.create_topic("kept", TopicConfig(1, 1))
    rig.store.flush()
    kept, number = rig.store.log.end_offset, rig.store.queue(CONTROL_TOPIC, 0).next_offset
    rig.broker.create_topic("lost", TopicConfig(1, 1))
    rig.store.flush()
    rig.store.checkpoints.write_queue(rig.store.queue(CONTROL_TOPIC, 0))
    rig.lose_log(kept)
    assert f"control record unreadable, its change is lost queue_offset={number}" in caplog.text
    assert "lost" not in rig.broker.topics


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_snapshot_from_before_clamped_positions_is_not_kept_beneath_the_next(rig: BrokerRig, is_killed: bool) -> None:
    """What it calls finished are other messages by now: they were lost where the next snapshot was damaged."""
    subscription, channel = rig.subscribe("t", "c")
    rig.publish("t", [b"0", b"1", b"2", b"3"])
    rig.finish(subscription, channel, [message_id for _, _, message_id in rig.take(subscription, channel)])
    rig.broker._states.write_all()
    _lose_without_a_trace(rig, rig.store.queue("t", 0).entries(1, 1)[0][0])
    rig._open()
    if is_killed:
        rig.crash()
    rig.publish("t", [b"new 1", b"new 2", b"new 3"])
    rig.broker._states.write_all()
    rig.store.abandon()
    path = rig.store.directory.channels / "snapshot"
    path.write_bytes(path.read_bytes()[:-40])
    rig._open()
    assert _bodies(rig, "t", "c")[-3:] == [b"new 1", b"new 2", b"new 3"]


@pytest.mark.parametrize(
    "change", ["topic made again", "channel made", "channel emptied", "channel deleted", "topic emptied"]
)
@pytest.mark.parametrize("is_killed", [True, False])
def test_what_is_published_behind_lost_messages_is_delivered(rig: BrokerRig, change: str, is_killed: bool) -> None:
    """A power cut kept a control record and took unsynced messages in front of it, which it counts: their queue offsets
    are not given to others, which a later start would take for dropped, or for a former topic's."""
    broker = rig.broker
    topic = broker.ensure_topic("t")
    if change.startswith("channel"):
        broker.ensure_channel(topic, "c")
    rig.publish("t", [b"0", b"1", b"2"])
    first = rig.store.log.end_offset
    batch = PublishBatch()
    batch.destinations = ["t"]
    batch.append(b"lost")
    batch.append(b"lost")
    broker.publish(batch)
    end = rig.store.log.end_offset
    if change == "topic made again":
        broker.delete_topic("t")
        broker.ensure_topic("t")
    elif change == "topic emptied":
        broker.empty_topic("t")
    else:
        change_channel(rig, change)
    rig.lose(first, end)
    assert rig.broker.counters.lost_offsets == 2
    rig.publish("t", [b"new", b"newer"])
    if is_killed:
        rig.crash()
    else:
        rig.restart()
    assert _bodies(rig, "t", "later" if change == "channel made" else "c") == [b"new", b"newer"]
    assert rig.store.queue("t", 0).next_offset == 7


@pytest.mark.parametrize(
    "change", ["topic paused", "topic emptied", "channel made", "channel emptied", "channel deleted"]
)
@pytest.mark.parametrize("is_former", [False, True])
def test_a_start_takes_queues_from_what_follows_a_damaged_record(rig: BrokerRig, change: str, is_former: bool) -> None:
    """The record that added queues is lost; those behind it name positions in them. It refused every start."""
    broker = rig.broker
    if is_former:
        publish_to(rig, broker.create_topic("t", TopicConfig(4, 4)), 3, b"former")
        broker.delete_topic("t")
    topic = broker.create_topic("t", TopicConfig(2, 2))
    broker.ensure_channel(topic, "c")
    broker.configure_topic("t", TopicConfig(4, 4))
    damage = damage_last_changes(rig)
    if change.startswith("channel"):
        change_channel(rig, change)
    else:
        broker.pause_topic("t", True)
        if change == "topic emptied":
            rig.publish("t", [b"dropped"])
            broker.empty_topic("t")
        broker.pause_topic("t", False)
    publish_to(rig, topic, 3, b"kept")
    damage()
    assert len(rig.broker.topics["t"].queues) == 4
    assert _bodies(rig, "t", "c") == [b"kept"]
    rig.restart()
    publish_to(rig, rig.broker.topics["t"], 2, b"more")
    assert sorted(_bodies(rig, "t", "c")) == [b"kept", b"more"]


def test_a_start_takes_a_topic_with_fewer_queues_than_one_whose_end_is_damaged(rig: BrokerRig) -> None:
    """Two records are lost, the deletion of a topic and the making of the next one: there is the former one still."""
    broker = rig.broker
    broker.create_topic("t", TopicConfig(4, 4))
    broker.delete_topic("t")
    topic = broker.create_topic("t", TopicConfig(2, 2))
    damage = damage_last_changes(rig, 2)
    broker.ensure_channel(topic, "c")
    rig.publish("t", [b"kept"])
    damage()
    assert _bodies(rig, "t", "c") == [b"kept"]


@pytest.mark.parametrize("is_saved", [False, True])
def test_messages_of_a_topic_made_again_whose_creation_is_damaged_are_there(rig: BrokerRig, *, is_saved: bool) -> None:
    """A flipped bit costs one record. The name was deleted before: that had hidden all its messages for good."""
    broker = rig.broker
    publish_to(rig, broker.create_topic("t", TopicConfig(2, 2)), 1, b"former")
    broker.delete_topic("t")
    if is_saved:
        rig.restart()
        broker = rig.broker
    topic = broker.create_topic("t", TopicConfig(2, 2))
    damage = damage_last_changes(rig)
    publish_to(rig, topic, 1, b"kept")
    damage()
    for _ in range(2):
        topic = rig.broker.topics["t"]
        assert [len(queue.entries(queue.min_offset, 10)) for queue in topic.queues] == [0, 1]
        rig.restart()
    assert _bodies(rig, "t", "c") == [b"kept"]


def test_damage_behind_a_damaged_creation_hides_no_message_in_front_of_it(rig: BrokerRig) -> None:
    """A filler stands nowhere: taken for a message of the former topic, so was what stands in front of it."""
    broker = rig.broker
    publish_to(rig, broker.create_topic("t", TopicConfig(1, 1)), 0, b"former")
    broker.delete_topic("t")
    topic = broker.create_topic("t", TopicConfig(1, 1))
    (queue,) = topic.queues
    places = [broker.creation_of(topic) - 1]
    for body in (b"first", b"damaged", b"damaged", b"damaged", b"last"):
        publish_to(rig, topic, 0, body)
        if body == b"damaged":
            places.append(queue.position_of(queue.next_offset - 1))
    damage_records(rig, places)
    assert _bodies(rig, "t", "c") == [b"first", b"last"]


def test_a_deleted_topic_whose_last_message_is_damaged_stays_deleted(rig: BrokerRig) -> None:
    """A filler is no message behind the record that says so."""
    topic = rig.broker.create_topic("t", TopicConfig(1, 1))
    for body in (b"former", b"damaged"):
        publish_to(rig, topic, 0, body)
    places = [topic.queues[0].position_of(1)]
    rig.broker.delete_topic("t")
    rig.store.flush()
    damage_records(rig, places)
    assert "t" not in rig.broker.topics


def test_a_deleted_topic_stays_deleted(rig: BrokerRig) -> None:
    """Its messages lie in front of the record that says so; also where the catalog is that of an earlier build."""
    publish_to(rig, rig.broker.create_topic("t", TopicConfig(2, 2)), 1, b"former")
    rig.broker.delete_topic("t")
    for _ in range(2):
        rig.restart()
        assert "t" not in rig.broker.topics
    catalog = rig.broker._control.catalog
    payload = {**msgspec.json.decode(msgspec.json.encode(catalog.to_payload())), "deleted": ["t"]}
    assert Catalog.from_payload(payload).deleted == {"t": ABOVE_ALL}


def test_queues_whose_record_is_damaged_are_brought_back_from_their_messages(rig: BrokerRig) -> None:
    """What a former topic had in such queues stays hidden."""
    broker = rig.broker
    former = broker.create_topic("t", TopicConfig(5, 5))
    for queue_id in (3, 4):
        publish_to(rig, former, queue_id, b"former")
    broker.delete_topic("t")
    topic = broker.create_topic("t", TopicConfig(2, 2))
    broker.ensure_channel(topic, "c")
    broker.configure_topic("t", TopicConfig(5, 5))
    damage = damage_last_changes(rig)
    publish_to(rig, topic, 3, b"kept")
    damage()
    for _ in range(2):
        topic = rig.broker.topics["t"]
        assert (len(topic.queues), topic.config.read_queues, topic.config.write_queues) == (4, 4, 4)
        rig.restart()
    assert _bodies(rig, "t", "c") == [b"kept"]
    rig.broker.configure_topic("t", TopicConfig(5, 5))
    publish_to(rig, rig.broker.topics["t"], 4, b"more")
    assert _bodies(rig, "t", "c") == [b"more"]


def change_channel(rig: BrokerRig, change: str) -> None:
    """Write a control record about a channel of topic ``t``, which names positions in its queues."""
    if change == "channel made":
        rig.broker.ensure_channel(rig.broker.topics["t"], "later")
    elif change == "channel emptied":
        rig.broker.empty_channel("t", "c")
    else:
        assert change == "channel deleted"
        rig.broker.delete_channel("t", "c")


def damage_last_changes(rig: BrokerRig, count: int = 1) -> Callable[[], None]:
    """Return what damages each of the last ``count`` control records so far, and starts the broker anew."""
    rig.store.flush()
    control = rig.store.queue("%SYS%CONTROL", 0)
    places = [control.position_of(control.next_offset - 1 - number) for number in range(count)]
    return lambda: damage_records(rig, places)


def damage_records(rig: BrokerRig, places: Iterable[int]) -> None:
    """Flip a bit in each of these records, and start the broker anew."""
    rig.store.abandon()
    with (rig.store.directory.commit_log / f"{0:020d}").open("r+b") as file:
        for place in places:
            file.seek(place + 95)
            file.write(b"#")
    rig._open()


def publish_to(rig: BrokerRig, topic: Topic, queue_id: int, body: bytes) -> None:
    batch = PublishBatch()
    batch.destinations, batch.queues = [topic.name], [topic.queues[queue_id]]
    batch.append(body)
    rig.broker.publish_placed(batch, [topic])
    rig.store.flush()
