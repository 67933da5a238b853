"""Taking over the store of a RocketMQ broker.

Our files are RocketMQ's: a store of ours without its side files stands for one of RocketMQ's here; the interop tests
have real ones. Ref: docs/running.md, "From RocketMQ and back".
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.batch import PublishBatch
from headrace.broker.broker import Broker
from headrace.broker.config_file import ConfigFile
from headrace.broker.consumers.offsets import read_offsets
from headrace.broker.topic import TopicConfig
from headrace.cli.program import run
from headrace.clock import Clock
from headrace.errors import ForeignStoreError, SideFileError, StoreFullError, StoreLockedError, UnsyncedError
from headrace.format.names import LOG_END
from headrace.format.queue_entry import ENTRY, FILLER_BYTES
from headrace.format.record import encode_properties, tag_hash
from headrace.settings import BrokerSettings
from headrace.store.check import check_store
from headrace.store.consume_queue import ConsumeQueue
from headrace.store.directory import StoreDirectory
from headrace.store.foreign import ROCKSDB_FOLDERS, STAGING, ForeignStore, copy_foreign, look_at_foreign
from headrace.store.store import Store
from tests.support import layouts
from tests.support.stores import small_settings

MIB = 1 << 20
TOPICS = {"Kept": (2, 3), "Empty": (4, 4), "SELF_TEST_TOPIC": (1, 1)}


def configuration(name: str, read: int, write: int) -> dict[str, object]:
    return {
        "topicName": name,
        "readQueueNums": read,
        "writeQueueNums": write,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }


def make_source(root: Path, bodies: int = 40, size: int = 100) -> Path:
    """Write a store with topics Kept (two queues) and Gone, as RocketMQ would leave it."""
    store = Store.open(small_settings(root, segment_bytes=MIB, queue_file_bytes=6_000), Clock())
    for number in range(bodies):
        batch = PublishBatch()
        batch.destinations = ["Kept", "Kept", "Gone"]
        batch.queues = [store.queue("Kept", 0), store.queue("Kept", 1), store.queue("Gone", 0)]
        for destination in range(3):
            batch.append(b"%d" % number + bytes(size), destination)
        store.append(batch)
    store.close()
    shutil.rmtree(root / "headrace")
    shutil.rmtree(root / "index", ignore_errors=True)
    shutil.rmtree(root / "consumequeue" / "Gone")
    (root / "config").mkdir()
    topics = {name: configuration(name, *queues) for name, queues in TOPICS.items()}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Kept@G":{0:7,1:9}}}')
    return root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


def import_(source: Path, target: Path, *words: str) -> int:
    return run(["store", "import", str(source), "--data-dir", str(target), *words])


def segments(source: Path) -> list[Path]:
    return sorted((source / "commitlog").iterdir())


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def copy_whole(source: ForeignStore, target: Path) -> None:
    """Make the copy; what is made of it is not asked for."""
    with copy_foreign(source, target, 0, lambda done, total: None, {}):
        pass


def open_broker(root: Path) -> Broker:
    store = Store.open(small_settings(root), Clock())
    return Broker.open(store, BrokerSettings(), Clock())


def close(broker: Broker) -> None:
    broker.close()
    broker.store.close()


def count_fillers(queue: ConsumeQueue) -> int:
    """Count the entries that stand for no message."""
    return sum(entry[1] == FILLER_BYTES for at in range(queue.next_offset) for entry in queue.entries(at, 1))


@pytest.mark.parametrize("ours", [0, 2])
@pytest.mark.parametrize("theirs", [1, 2])
def test_records_without_a_checksum_at_the_end_are_taken_over(tmp_path: Path, ours: int, theirs: int) -> None:
    """RocketMQ's have none; a single one behind one of ours, or in a log of its own, was taken for a torn tail."""
    source = tmp_path / "source"
    store = Store.open(small_settings(source, segment_bytes=MIB), Clock())
    for number in range(ours):
        batch = PublishBatch()
        batch.destinations, batch.queues = ["t"], [store.queue("t", 0)]
        batch.append(b"ours %d" % number)
        store.append(batch)
    store.flush()
    at = store.log.end_offset
    store.close()
    shutil.rmtree(source / "headrace")
    (source / "commitlog").mkdir(exist_ok=True)
    log = source / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes() if log.exists() else bytes(MIB))
    for number in range(ours, ours + theirs):
        record = layouts.Record(queue_offset=number, physical_offset=at, body=b"theirs", topic=b"t", store_ms=1)
        content[at : at + len(record.encode())] = record.encode()
        at += len(record.encode())
    log.write_bytes(content)
    (source / "config").mkdir()
    topics = {"t": configuration("t", 1, 1)}
    (source / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    shutil.rmtree(source / "consumequeue", ignore_errors=True)
    assert import_(source, tmp_path / "new") == 0
    broker = open_broker(tmp_path / "new")
    queue = broker.store.queue("t", 0)
    assert (queue.next_offset, count_fillers(queue)) == (ours + theirs, 0)
    close(broker)


def test_everything_is_taken_over_and_the_source_left_alone(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(source)
    target = tmp_path / "new"
    assert import_(source, target) == 0
    assert contents(source) == before
    said = capsys.readouterr().out
    assert "imported 120 records in 1 segments, 80 messages in 7 queues of 2 topics" in said
    assert "1 topics were deleted before, their messages stay hidden: Gone" in said
    assert (target / "config" / "consumerOffset.json").read_bytes() == before["config/consumerOffset.json"]
    assert not (target / STAGING).exists()
    assert run(["store", "check", str(target)]) == 0
    broker = open_broker(target)
    assert set(broker.topics) == {"Kept", "Empty"}
    kept = broker.topics["Kept"]
    assert kept.config == TopicConfig(2, 3)
    assert [(queue.min_offset, queue.next_offset) for queue in kept.queues] == [(0, 40), (0, 40), (0, 0)]
    assert broker.topics["Empty"].config == TopicConfig(4, 4)
    assert kept.frozen == [0, 0, 0]  # a first channel gets everything
    close(broker)


def test_serving_it_as_it_is_names_the_way(source: Path) -> None:
    (source / "config/topics.json").unlink()  # its log and queues tell enough
    with pytest.raises(ForeignStoreError, match="`headrace store import` copies a RocketMQ broker's into one"):
        Store.open(small_settings(source), Clock())


def test_what_retention_took_is_not_shown(tmp_path: Path) -> None:
    """Queues go on at their ends, and begin where the log does."""
    source = make_source(tmp_path / "source", bodies=200, size=5_000)
    first, second, *_ = segments(source)
    first.unlink()
    assert import_(source, tmp_path / "new") == 0
    broker = open_broker(tmp_path / "new")
    queue = broker.topics["Kept"].queues[0]
    assert queue.next_offset == 200
    assert 0 < queue.min_offset < 200
    (entry,) = queue.entries(queue.min_offset, 1)
    (before,) = queue.entries(queue.min_offset - 1, 1)
    assert before[0] < int(second.name) <= entry[0]
    close(broker)


def make_old_source(source: Path, base: int, first: int) -> Path:
    """Write a log that begins at ``base`` with one message, of topic t, at queue offset ``first``."""
    record = layouts.Record(queue_offset=first, physical_offset=base, body=b"old", topic=b"t", store_ms=1).encode()
    for folder in ("commitlog", "config", "consumequeue/t/0"):
        (source / folder).mkdir(parents=True)
    (source / "commitlog" / f"{base:020d}").write_bytes(record.ljust(MIB, b"\0"))
    entry = struct.pack(">qiq", base, len(record), 0)
    (source / "consumequeue/t/0" / f"{first * 20:020d}").write_bytes(entry.ljust(300_000 * 20, b"\0"))
    topics = {"t": configuration("t", 1, 1)}
    (source / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    return source


def test_a_log_of_many_years_goes_on_where_it_was(tmp_path: Path) -> None:
    """Physical offsets of terabytes, queue offsets of billions: no number of 32 bits is on their way."""
    base, first = 1 << 42, 28_634 * 300_000  # RocketMQ's files begin at such a multiple
    target = tmp_path / "new"
    assert import_(make_old_source(tmp_path / "source", base, first), target) == 0
    broker = open_broker(target)
    channel = broker.ensure_channel(broker.topics["t"], "c")
    batch = PublishBatch()
    batch.destinations = ["t"]
    for body in (b"new", b"newer"):
        batch.append(body, 0)
    broker.publish(batch)
    broker.store.flush()
    broker.release_channels()
    assert channel.depth == 3
    close(broker)
    broker = open_broker(target)
    (queue,) = broker.topics["t"].queues
    assert (queue.min_offset, queue.next_offset) == (first, first + 3)
    assert [at > base for at, *_ in queue.entries(first + 1, 2)] == [True, True]
    assert broker.find_channel("t", "c").depth == 3
    close(broker)
    assert run(["store", "check", str(target)]) == 0


def test_a_log_ends_where_the_ids_of_messages_do(tmp_path: Path) -> None:
    """Above 256 TiB no NSQ consumer could finish a message: its id named another place."""
    target = tmp_path / "new"
    assert import_(make_old_source(tmp_path / "source", LOG_END - 2 * MIB, 0), target) == 0
    broker = open_broker(target)

    def fill() -> None:
        for _ in range(30):
            batch = PublishBatch()
            batch.destinations = ["t"]
            batch.append(bytes(100_000), 0)
            broker.publish(batch)

    for _ in range(2):
        with pytest.raises(StoreFullError, match=r"at the end of what a log can hold.*: begin a new store"):
            fill()
        close(broker)
        broker = open_broker(target)  # whoever reads is served all the same
    assert broker.store.log.end_offset < LOG_END
    assert broker.topics["t"].queues[0].next_offset > 10
    close(broker)
    assert run(["store", "check", str(target)]) == 0


def test_log_that_was_ours_before_is_brought_up_to_date(tmp_path: Path) -> None:
    """What we made, RocketMQ changed and deleted meanwhile: topics are as its file says, channels begin anew."""
    root = tmp_path / "source"
    store = Store.open(small_settings(root, segment_bytes=MIB, queue_file_bytes=6_000), Clock())
    broker = Broker.open(store, BrokerSettings(), Clock())
    for name in ("Kept", "Gone"):
        broker.ensure_channel(broker.create_topic(name, TopicConfig(1, 1)), "channel")
        batch = PublishBatch()
        batch.destinations = [name]
        batch.append(b"body")
        broker.publish(batch)
    close(broker)
    shutil.rmtree(root / "headrace")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": {"Kept": configuration("Kept", 3, 3), "New": configuration("New", 1, 1)}})
    )
    assert import_(root, tmp_path / "new") == 0
    assert run(["store", "check", str(tmp_path / "new")]) == 0
    broker = open_broker(tmp_path / "new")
    assert set(broker.topics) == {"Kept", "New"}
    assert broker.topics["Kept"].config == TopicConfig(3, 3)
    assert len(broker.topics["Kept"].queues) == 3
    assert broker.find_channel("Kept", "channel").depth == 1
    close(broker)


@pytest.mark.parametrize("folder", ["topics", "subscriptionGroups", "consumerOffsets"])
def test_configuration_in_rocksdb_is_refused(source: Path, folder: str) -> None:
    """RocketMQ 5's storeType=defaultRocksDB: offsets, groups and topics' settings were left behind without a word."""
    file = ROCKSDB_FOLDERS[folder]
    (source / "config" / folder).mkdir()
    (source / "config" / file).unlink(missing_ok=True)
    with pytest.raises(ForeignStoreError, match=f"config/{folder} has in RocksDB what is read from {file}"):
        look_at_foreign(source)
    (source / "config" / file).write_text("{}")
    look_at_foreign(source)


def test_without_topics_file_every_topic_with_messages_is_taken(source: Path, tmp_path: Path) -> None:
    (source / "config" / "topics.json").unlink()
    assert import_(source, tmp_path / "new") == 0
    broker = open_broker(tmp_path / "new")
    assert set(broker.topics) == {"Kept", "Gone"}
    close(broker)


def test_topics_of_a_store_without_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A-BROKER-16, X-BROKER-01: SmartGo's ``topic.json`` is enough; offsets in a log that is gone are left out."""
    config = tmp_path / "source" / "config"
    config.mkdir(parents=True)
    retry = "%RETRY%consumerGroupId-example-200"
    entry = {"topicName": retry, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False}
    table = {retry: {"SEPARATOR": " ", **entry, "topicFilterType": 0, "topicSysFlag": 0}}
    version = {"timestamp": 1511333414604049700, "counter": 2023}
    content = {"topicConfigTable": {"topicConfigTable": table}, "dataVersion": version}
    (config / "topic.json").write_text(json.dumps(content))
    (config / "consumerOffset.json").write_text('{"offsetTable":{"Kept@G":{0:7,1:9}}}')
    groups = '{"subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":3}}}'
    (config / "subscriptionGroup.json").write_text(groups)
    target = tmp_path / "new"
    assert import_(config.parent, target) == 0
    said = capsys.readouterr().out
    assert "has no commit log: its topics and groups are taken over, without consumerOffset.json;" in said
    assert "imported 0 records in 0 segments, 0 messages in 1 queues of 1 topics" in said
    assert (target / "config" / "subscriptionGroup.json").read_text() == groups
    assert not (target / "config" / "consumerOffset.json").exists()
    assert run(["store", "check", str(target)]) == 0
    broker = open_broker(target)
    assert broker.topics[retry].config == TopicConfig(1, 1, perm=6)
    close(broker)


@pytest.mark.parametrize("others", [{}, {"Empty": configuration("Empty", 1, 1), "None": 5}])
def test_messages_of_a_topic_that_is_passed_over_are_not_hidden(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], others: dict[str, object]
) -> None:
    """Its configuration cannot be read: that is not to be deleted. Nor do deleted ones come back when it is alone."""
    table = {"Kept": {**configuration("Kept", 2, 3), "perm": -1}, **others}
    (source / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    assert import_(source, tmp_path / "new") == 0
    assert "1 topics were deleted before, their messages stay hidden: Gone" in capsys.readouterr().out
    broker = open_broker(tmp_path / "new")
    assert set(broker.topics) == {"Kept", *({"Empty"} & others.keys())}
    assert broker.topics["Kept"].config == TopicConfig(2, 2)
    close(broker)


@pytest.mark.parametrize("damage", [b"", b'{"topicConfigTable":'])
def test_topics_come_from_the_copy_and_the_source_is_left_alone(source: Path, tmp_path: Path, damage: bytes) -> None:
    """A start puts a damaged file aside; here it is another broker's."""
    topics = source / "config" / "topics.json"
    shutil.copy(topics, source / "config" / "topics.json.bak")
    topics.write_bytes(damage)
    before = contents(source)
    assert import_(source, tmp_path / "new") == 0
    assert contents(source) == before
    broker = open_broker(tmp_path / "new")
    assert set(broker.topics) == {"Kept", "Empty"}
    close(broker)


@pytest.mark.parametrize("name", ["subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"])
def test_config_file_that_no_start_would_take_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It was said to be imported, and the start on it was refused."""
    (source / "config" / name).write_bytes(b"")
    assert import_(source, tmp_path / "new") == 1
    said = capsys.readouterr().err
    assert f"{source / 'config' / name}: is damaged" in said
    assert "restore" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_config_file_that_is_no_file_is_not_waited_for(source: Path, tmp_path: Path, suffix: str) -> None:
    offsets = source / "config" / "consumerOffset.json"
    shutil.copy(offsets, f"{offsets}.bak")
    Path(f"{offsets}{suffix}").unlink()
    os.mkfifo(f"{offsets}{suffix}")
    assert import_(source, tmp_path / "new") == 0
    copied = ConfigFile(tmp_path / "new" / "config", offsets.name).read()
    assert copied == {"offsetTable": {"Kept@G": {"0": 7, "1": 9}}}


@pytest.mark.parametrize("kept_bytes", [-1, 0, 200_000])
def test_messages_behind_the_end_of_a_cut_log_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept_bytes: int
) -> None:
    """Nothing was said of a newest file that is missing, empty or cut, and its messages were called imported."""
    source = make_source(tmp_path / "source", bodies=200, size=5_000)
    newest = segments(source)[2]
    kept = newest.read_bytes()[: max(kept_bytes, 0)]
    newest.write_bytes(kept.ljust(MIB, b"\0"))
    for segment in segments(source)[2 if kept_bytes < 0 else 3 :]:
        segment.unlink()
    assert import_(source, tmp_path / "new", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    broker = open_broker(tmp_path / "new")
    queues = [broker.store.queue("Kept", queue_id) for queue_id in range(3)]
    assert [queue.next_offset for queue in queues] == [200, 200, 0]  # offsets are not given out a second time
    assert said["messages"] == 400 - sum(count_fillers(queue) for queue in queues)
    assert said["missing_messages"] == 400 - said["messages"] > 60
    close(broker)
    shutil.rmtree(tmp_path / "new")
    assert import_(source, tmp_path / "new") == 3
    assert f"{said['missing_messages']} messages that the consume queues name are not in the" in capsys.readouterr().out


@pytest.mark.parametrize("first", [0, 10, 300])
@pytest.mark.parametrize("seed", range(5))
def test_noise_in_consume_queues_hides_no_message(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, first: int
) -> None:
    """Without their folder all messages came; with random bytes in it most were hidden, though the log has them."""
    noise = random.Random(seed)
    for path in (source / "consumequeue" / "Kept").glob("*/*"):
        path.write_bytes(path.read_bytes()[: first * 20] + noise.randbytes(6_000 - first * 20))
    if first == 300:  # of a queue with two files
        (source / "consumequeue" / "Kept" / "0" / f"{6000:020d}").write_bytes(noise.randbytes(6_000))
    names = ["Kept/0"] if first == 300 else ["Kept/0", "Kept/1"]
    assert import_(source, tmp_path / "new", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["messages"], said["missing_messages"], said["damaged_queues"]) == (80, 0, names)
    assert check_store(tmp_path / "new").exit_code == 0
    broker = open_broker(tmp_path / "new")
    assert [(queue.min_offset, queue.next_offset) for queue in broker.topics["Kept"].queues[:2]] == [(0, 40), (0, 40)]
    close(broker)
    shutil.rmtree(tmp_path / "new")
    assert import_(source, tmp_path / "new") == 0
    assert f"note: {len(names)} consume queues hold something else than entries: they are" in capsys.readouterr().out


def append_numbered_anew(source: Path, queue_id: int, count: int) -> None:
    """Append messages of topic Kept that are numbered from 0 again, as RocketMQ does where it was deleted before."""
    segment = segments(source)[0]
    log = bytearray(segment.read_bytes())
    at = 0
    while size := int.from_bytes(log[at : at + 4]):
        at += size
    entries = b""
    for offset in range(count):
        made = layouts.Record(
            queue_id=queue_id, queue_offset=offset, physical_offset=at, body=b"new", topic=b"Kept", store_ms=1
        )
        raw = made.encode_checked()
        log[at : at + len(raw)] = raw
        entries += ENTRY.pack(at, len(raw), 0)
        at += len(raw)
    segment.write_bytes(log)
    file = source / "consumequeue" / "Kept" / str(queue_id) / f"{0:020d}"
    file.write_bytes(entries.ljust(6_000, b"\0"))


@pytest.mark.parametrize("is_ours_before", [False, True])
def test_a_topic_made_again_begins_behind_the_former_one(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_ours_before: bool
) -> None:
    """Queues that have had no message since had the former topic's."""
    if is_ours_before:
        assert import_(source, tmp_path / "before") == 0
        shutil.copy(source / "config" / "topics.json", tmp_path / "before" / "config")
        source = tmp_path / "before"
        shutil.rmtree(source / "headrace")
    shutil.rmtree(source / "consumequeue" / "Kept" / "1")
    append_numbered_anew(source, 0, 3)
    capsys.readouterr()
    assert import_(source, tmp_path / "new") == 0
    said = capsys.readouterr().out
    assert "1 topics were deleted and made again before, the messages of the former ones stay hidden: Kept\n" in said
    assert "3 messages in 7 queues of 2 topics" in said
    assert check_store(tmp_path / "new").exit_code == 0
    for _ in range(2):
        broker = open_broker(tmp_path / "new")
        kept = broker.topics["Kept"]
        assert [(queue.min_offset, queue.next_offset) for queue in kept.queues] == [(0, 3), (40, 40), (0, 0)]
        assert kept.frozen == [0, 40, 0]
        close(broker)


@pytest.mark.parametrize(
    ("is_clean", "synced_s", "first"),
    [(True, 0, 39), (False, 0, 0), (False, 64, 39)],
    ids=["clean", "killed", "killed long after"],
)
def test_a_queue_without_files_has_what_no_entry_was_made_of(
    source: Path, tmp_path: Path, is_clean: bool, synced_s: int, first: int
) -> None:
    """RocketMQ makes entries of what lies behind the last one; a power cut may have taken files made before it."""
    shutil.rmtree(source / "consumequeue" / "Kept" / "1")
    if not is_clean:
        (source / "abort").touch()
        times_ms = struct.unpack_from(">qqq", (source / "checkpoint").read_bytes())
        later = struct.pack(">qqq", 0, times_ms[1] + 1000 * synced_s, 0)
        (source / "checkpoint").write_bytes(later.ljust(4096, b"\0"))
    assert import_(source, tmp_path / "new") == 0
    broker = open_broker(tmp_path / "new")
    queue = broker.topics["Kept"].queues[1]
    assert (queue.min_offset, queue.next_offset) == (first, 40)
    close(broker)


@pytest.mark.parametrize("damage", ["all queues", "an entry", "no topics file"])
def test_a_queue_without_files_is_not_hidden_without_evidence(source: Path, tmp_path: Path, damage: str) -> None:
    """A damaged entry may point anywhere, and without topics nobody says that one was made again."""
    shutil.rmtree(source / "consumequeue" / "Kept" / "1")
    if damage == "all queues":
        shutil.rmtree(source / "consumequeue")
    elif damage == "an entry":
        file = source / "consumequeue" / "Kept" / "0" / f"{0:020d}"
        entries = file.read_bytes()
        file.write_bytes(entries[:780] + ENTRY.pack(1 << 40, 200, 0) + entries[800:])
    else:
        (source / "config" / "topics.json").unlink()
    assert import_(source, tmp_path / "new") == 0
    broker = open_broker(tmp_path / "new")
    assert broker.topics["Kept"].queues[1].min_offset == 0
    close(broker)


def test_light_queues_are_no_damage(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their entries point at messages of ordinary topics; they counted as lost messages, and the offsets stayed."""
    shutil.copytree(source / "consumequeue" / "Kept" / "0", source / "consumequeue" / "%LMQ%a" / "0")
    config = source / "config"
    (config / "lmqConsumerOffset.json").write_text(
        '{"lmqOffsetTable":{"%LMQ%a@G":3},"offsetTable":{"Kept@G":{0:25,1:26}}}'
    )
    (config / "consumerOffset.json").unlink()
    assert import_(source, tmp_path / "new") == 0
    said = capsys.readouterr().out
    assert "note: 1 light queues (enableLmq) are left out, which Headrace does not have; their messages are in" in said
    assert "lmqConsumerOffset.json: the offsets of 1 light queues (LMQ) are left out" in said
    assert "deleted before, their messages stay hidden: Gone\n" in said
    assert check_store(tmp_path / "new").exit_code == 0
    copied = ConfigFile(tmp_path / "new" / "config", "consumerOffset.json").read()
    assert dict(read_offsets(copied, config)) == {("G", "Kept"): {0: 25, 1: 26}}


@pytest.mark.parametrize("newer", ["consumerOffset.json", "lmqConsumerOffset.json"])
def test_of_two_files_of_offsets_the_newer_one_counts(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], newer: str
) -> None:
    """A broker reads and writes one of them, as enableLmq says."""
    config = source / "config"
    (config / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{},"offsetTable":{"Kept@G":{0:25,1:26}}}')
    for number, name in enumerate(sorted(("consumerOffset.json", "lmqConsumerOffset.json"), key=lambda n: n == newer)):
        os.utime(config / name, (number + 1, number + 1))
    assert import_(source, tmp_path / "new") == 0
    assert f"{newer} was written last and is taken" in capsys.readouterr().out
    copied = ConfigFile(tmp_path / "new" / "config", "consumerOffset.json").read()
    wanted = {0: 7, 1: 9} if newer == "consumerOffset.json" else {0: 25, 1: 26}
    assert dict(read_offsets(copied, config)) == {("G", "Kept"): wanted}


ROWS = {
    "subscriptionGroup.json": (
        '{"subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":3},"H":{"retryMaxTimes":4}}}',
        '"retryMaxTimes":3', '"retryMaxTimes":"x3"', "these groups begin anew with the broker's defaults: G: retryMaxT",
    ),
    "consumerOffset.json": (
        '{"offsetTable":{"Kept@G":{0:7,1:9},"Kept@H":{0:1}}}',
        "0:7", '0:"x7"', "these groups begin anew in these topics: Kept@G: not NAME@NAME",
    ),
    "delayOffset.json": (
        '{"offsetTable":{1:3,2:5}}',
        "1:3", '1:"z"', "delivered again: level 1: 'z' is no cursor",
    ),
}  # fmt: skip
"""Of each file a content, what is damaged in it and how, and what is said then."""


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("has_copy", [False, True])
def test_damaged_rows_of_config_files_are_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, has_copy: bool
) -> None:
    """RocketMQ takes the copy then. Without one the start on the new store was the first to say anything."""
    whole, row, damaged, said_alone = ROWS[name]
    path = source / "config" / name
    path.write_text(whole.replace(row, damaged))
    if has_copy:
        (source / "config" / f"{name}.bak").write_text(whole)
    assert import_(source, tmp_path / "new") == 0
    said = capsys.readouterr().out
    assert f"note: {path} " in said
    assert (f"its copy {name}.bak is taken" if has_copy else said_alone) in said
    assert (tmp_path / "new" / "config" / name).read_text() == (whole if has_copy else path.read_text())
    assert not (tmp_path / "new" / "config" / f"{name}.bak").exists()


def test_topics_that_a_copy_does_not_know_yet_are_not_deleted_ones(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy is the content before; messages of a topic made since were hidden as those of a deleted one."""
    topics = source / "config" / "topics.json"
    empty = {"Empty": configuration("Empty", 4, 4)}
    (source / "config" / "topics.json.bak").write_text(json.dumps({"topicConfigTable": empty}))
    topics.write_bytes(topics.read_bytes()[:50])
    assert import_(source, tmp_path / "new") == 0
    said = capsys.readouterr().out
    assert "its copy topics.json.bak is taken, with topics that have queues and are not in it: Kept\n" in said
    broker = open_broker(tmp_path / "new")
    assert set(broker.topics) == {"Kept", "Empty"}
    assert broker.topics["Kept"].config == TopicConfig(2, 2)
    close(broker)


def test_topics_whose_batches_are_one_record_are_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RocketMQ 5's BatchCQ: NSQ consumers and groups within a batch were not told what to expect."""
    for topic, queue_id in (("Kept", 0), ("Kept", 1), ("Other", 0)):
        folder = source / "batchconsumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").touch()
    assert import_(source, tmp_path / "new", "--json") == 0
    assert json.loads(capsys.readouterr().out)["batch_topics"] == ["Kept", "Other"]
    shutil.rmtree(tmp_path / "new")
    assert import_(source, tmp_path / "new") == 0
    assert "goes on behind it: Kept, Other\n" in capsys.readouterr().out


def test_what_pop_consumers_have_not_acknowledged_is_counted(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RocketMQ 5: the group's offset stands behind it, and nothing said so. Bodies as 5.5.0 writes them."""
    timer, revive = "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster"
    store = Store.open(small_settings(tmp_path / "5", segment_bytes=MIB, queue_file_bytes=6_000), Clock())

    def write(topic: str, tag: str, **body: object) -> None:
        said = {"bn": "broker-a", "c": "G", "pt": 5, "q": 0, "t": "Kept", **body}
        batch = PublishBatch()
        batch.destinations, batch.queues = [topic], [store.queue(topic, 0)]
        properties = encode_properties({"TAGS": tag, "REAL_TOPIC": revive if topic == timer else topic})
        batch.append(json.dumps(said).encode(), 0, properties=properties, tag_hash=tag_hash(tag))
        store.append(batch)

    write(timer, "ck", so=0, n=5, d=[0, 1, 2, 3, 4], bm=0)  # nothing acknowledged
    write(timer, "ck", so=5, n=4, d=[0, 1, 2, 9], bm=1)
    write(timer, "ack", so=5, ao=14)
    write(timer, "ck", so=20, n=3, bm=0)
    write(timer, "bAck", so=20, ao=0, aol=[20, 22])
    write(timer, "ck", so=30, n=2, d=[0, 1], c="G2")
    write(timer, "ck", so=40, n=2, d=[0, 1], c="G2")
    write(revive, "ck", so=30, n=2, d=[0, 1], c="G2")  # brought back
    write(revive, "ck", so=40, n=2, d=[0, 1], c="G2")  # the reader was not there yet
    write(timer, "ck", so=50, n=1, d=[0], c="G3")
    write(timer, "ack", so=50, ao=50, c="G3")
    write(timer, "ck", so="none")
    write(timer, "ck", so=60, n=1 << 60, c="G4")  # of no more than 127 can RocketMQ say so
    for number in range(2_100):  # with the acknowledgements more than a start keeps in memory
        write(timer, "ck", so=1000 + number, n=1, d=[0], c="G5")
    for number in range(2_099):
        write(timer, "ack", so=1000 + number, ao=1000 + number, c="G5")
    store.close()
    shutil.rmtree(tmp_path / "5" / "headrace")
    shutil.copytree(source / "config", tmp_path / "5" / "config")
    offsets = tmp_path / "5" / "config" / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": {f"{revive}@CID_RMQ_SYS_REVIVE_GROUP": {"0": 0}}}))
    assert import_(tmp_path / "5", tmp_path / "new", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["popped"] == [
        {"group": "G", "topic": "Kept", "messages": 5 + 2 + 1},
        {"group": "G2", "topic": "Kept", "messages": 2},
        {"group": "G5", "topic": "Kept", "messages": 1},
    ]
    assert said["popped_unread"] == 2
    assert import_(tmp_path / "5", tmp_path / "text") == 0
    text = capsys.readouterr().out
    assert "note: 8 messages of Kept were taken by POP consumers of group G and not" in text
    assert "note: 2 notes of what POP consumers took or acknowledged cannot be read" in text


@pytest.mark.parametrize("output", ["> /dev/full", "> >(exit 0)"])
@pytest.mark.parametrize("words", ["", "--json"])
def test_output_that_takes_nothing_is_not_a_failed_import(
    source: Path, tmp_path: Path, words: str, output: str
) -> None:
    """Exit code 1 says "not imported"."""
    main = "from headrace.cli.program import main; main()"
    line = f'sleep 0.1; "{sys.executable}" -c "{main}" store import "$1" --data-dir "$2/new" {words} {output}'
    command: list[str | Path] = ["bash", "-c", line, "bash", source, tmp_path]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert f"headrace: {tmp_path}/new is imported, but standard output takes nothing: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert check_store(tmp_path / "new").exit_code == 0


@pytest.mark.parametrize("queue_id", ["70000", "2147483647", "9" * 200])
def test_folder_of_a_queue_that_no_topic_has_is_passed_over(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], queue_id: str
) -> None:
    """The topic was to get every queue below it: two thousand million."""
    queues = source / "consumequeue" / "Kept"
    shutil.copytree(queues / "0", queues / queue_id)
    assert import_(source, tmp_path / "new") == 0
    assert "80 messages in 7 queues of 2 topics" in capsys.readouterr().out
    assert run(["store", "check", str(tmp_path / "new")]) == 0


def test_damaged_records_are_named(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = segments(source)[0]
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(b"17" + bytes(100)))
        file.write(b"xx")
    assert import_(source, tmp_path / "new") == 3
    assert "damage: no record at physical offset" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "bytes_there"),
    [(12, b"\x01\0\0\0"), (12, b"\x80\0\0\0"), (20, b"\0\0\x01\0\0\0\0\0"), (-1, b"\xff"), (-1, b"/"), (-1, b"\0")],
    ids=["queue id", "negative queue id", "queue offset", "no text", "path", "zero"],
)
def test_damage_that_no_checksum_covers_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int, bytes_there: bytes
) -> None:
    """RocketMQ 4 has no checksum of a whole record: a bit in its topic, queue id or queue offset."""
    source = make_source(tmp_path / "source", bodies=4)
    segment = segments(source)[0]
    log = bytearray(segment.read_bytes()).replace(b"__CRC32#\x01", b"NOTHING_\x01")
    at = log.index(b"1" + bytes(100)) - 88
    assert log[at + 4 : at + 8] == bytes.fromhex("DAA320A7")
    where = at + place if place > 0 else log.index(b"Kept", at)
    log[where : where + len(bytes_there)] = bytes_there
    segment.write_bytes(log)
    assert import_(source, tmp_path / "new") == 3
    assert f"damage: no record at physical offset {at} to " in capsys.readouterr().out
    broker = open_broker(tmp_path / "new")
    assert set(broker.topics) >= {"Kept"}
    close(broker)


def test_few_properties_without_a_checksum_are_read(tmp_path: Path) -> None:
    """RocketMQ 4 ends no record with a checksum: a tag and a key need less room than ours takes alone."""
    source = make_source(tmp_path / "source", bodies=4)
    segment = segments(source)[0]
    of_checksum = re.compile(rb"__CRC32#\x01\d{10}\x02")
    segment.write_bytes(of_checksum.sub(b"TAGS\x01A\x02KEYS\x01key-one\x02", segment.read_bytes()))
    for path in (source / "consumequeue").rglob("0*0"):
        if path.is_file():
            entries = path.read_bytes()
            tagged = [entries[at : at + 12] + tag_hash("A").to_bytes(8, "big") for at in range(0, 80, 20)]
            path.write_bytes(b"".join(tagged) + entries[80:])
    assert import_(source, tmp_path / "new") == 0
    assert run(["store", "check", str(tmp_path / "new")]) == 0
    broker = open_broker(tmp_path / "new")
    assert {entry[2] for entry in broker.topics["Kept"].queues[0].entries(0, 4)} == {tag_hash("A")}
    broker.store.index.wait_live()
    assert len(broker.store.index.files) == 1
    assert broker.store.index.files[0].count == 1 + 12
    close(broker)
    assert run(["store", "check", str(tmp_path / "new")]) == 0


def test_copy_onto_a_disk_that_fills_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that took only a piece is gone on with, and said when nothing more is taken."""
    really_write = os.pwrite
    monkeypatch.setattr("headrace.store.foreign.os.pwrite", lambda fd, data, at: really_write(fd, data[:5000], at))
    found = look_at_foreign(source)
    with copy_foreign(found, tmp_path / "new", 0, lambda done, total: None, {}) as copy:
        for path in found.segments:
            assert (copy.folder / "commitlog" / path.name).read_bytes() == path.read_bytes()


def test_newest_file_that_lost_its_first_page_is_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A power cut can take a page and leave those behind it: the file was written to, and only that page is lost."""
    source = make_source(tmp_path / "source", bodies=200, size=5_000)
    newest = [path for path in segments(source) if any(path.read_bytes())][-1]
    newest.write_bytes(bytes(4096) + newest.read_bytes()[4096:])
    assert import_(source, tmp_path / "new") == 3
    said = capsys.readouterr().out
    assert "imported 599 records" in said
    assert f"damage: no record at physical offset {int(newest.name)} to " in said


def test_what_the_registry_knew_is_taken_over(source: Path, tmp_path: Path) -> None:
    """A store that was ours has it: which topics are ordered (docs/running.md, "From RocketMQ and back")."""
    known = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"Kept":"broker-a:4"}}}'
    (source / "namesrv").mkdir()
    (source / "namesrv" / "kvConfig.json").write_bytes(known)
    assert import_(source, tmp_path / "new") == 0
    assert (tmp_path / "new" / "namesrv" / "kvConfig.json").read_bytes() == known


def test_unclean_end_is_recovered(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "abort").touch()
    assert import_(source, tmp_path / "new", "--json") == 0
    assert json.loads(capsys.readouterr().out)["was_clean"] is False


def _no_log(source: Path) -> None:
    shutil.rmtree(source / "commitlog")


def _no_file(source: Path) -> None:
    for segment in segments(source):
        segment.unlink()


def _no_topics_either(source: Path) -> None:
    for part in ("commitlog", "consumequeue", "config"):
        shutil.rmtree(source / part)


def _missing_file(source: Path) -> None:
    made_ahead = segments(source)[-1]
    made_ahead.rename(made_ahead.with_name(f"{2 * MIB:020d}"))


def _link_to_nothing(source: Path) -> None:
    """Of another disk that is not mounted."""
    newest = segments(source)[0]
    newest.unlink()
    newest.symlink_to(source / "away" / newest.name)


def _folder_for_a_file(source: Path) -> None:
    (source / "commitlog" / f"{2 * MIB:020d}").mkdir()


def _short_file(source: Path) -> None:
    (source / "commitlog" / f"{MIB:020d}").write_bytes(b"x" * 100)


def _moved_file(source: Path) -> None:
    first, *others = segments(source)
    for segment in others:
        segment.unlink()
    first.rename(first.with_name(f"{7:020d}"))


def _end_of_offsets(source: Path) -> None:
    first, *others = segments(source)
    for segment in others:
        segment.unlink()
    first.rename(first.with_name(f"{LOG_END - MIB:020d}"))


def _two_sizes(source: Path) -> None:
    (source / "consumequeue" / "Kept" / "0" / f"{6000:020d}").write_bytes(bytes(20))


def _huge(source: Path) -> None:
    segment = segments(source)[0]
    with segment.open("r+b") as file:
        file.truncate(3 << 30)


def _ours(source: Path) -> None:
    (source / "headrace").mkdir()
    (source / "headrace" / "store.json").touch()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_no_log, "is not a RocketMQ store: it has no folder commitlog"),
        (_no_topics_either, "is not a RocketMQ store: it has no folder commitlog"),
        (_no_file, "has no file of a commit log"),
        (_missing_file, f"{MIB:020d} is missing"),
        (_link_to_nothing, f"{0:020d} is no file, or a link that leads to none"),
        (_folder_for_a_file, f"{2 * MIB:020d} is no file, or a link that leads to none"),
        (_short_file, f"{MIB:020d} has 100 bytes, the first file has {MIB}"),
        (_moved_file, f"{7:020d} does not begin at a multiple of the {MIB} bytes it has"),
        (_end_of_offsets, "a log of Headrace ends at physical offset 140737488355328 (128 TiB)"),
        (_two_sizes, "has files of 2 sizes"),
        (_huge, "Headrace takes stores with files of"),
        (_ours, "is a Headrace store already"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], text: str
) -> None:
    spoil(source)
    assert import_(source, tmp_path / "new") == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_source_that_is_a_file_is_named_with_the_remedy(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of a folder in it was named, which nobody had asked for."""
    (tmp_path / "file").touch()
    assert import_(tmp_path / "file", tmp_path / "new") == 1
    assert f"{tmp_path / 'file'} is no directory: name the broker's storePathRootDir" in capsys.readouterr().err


def test_the_start_that_is_named_has_the_settings(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other delay levels than those of the import messages would wait for ever."""
    config = tmp_path / "headrace.toml"
    config.write_text('[broker]\ndelay_levels = "1s 5s"\n')
    assert import_(source, tmp_path / "new", "--config", str(config)) == 0
    line = f"start it with the same settings: headrace serve --config {config} --data-dir {tmp_path / 'new'}\n"
    assert capsys.readouterr().out.endswith(line)


def test_commit_log_that_is_not_there_is_the_one_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder beside the queues was said to be missing, which is there and was not asked for."""
    assert import_(source, tmp_path / "new", "--commit-log", str(tmp_path / "else")) == 1
    assert f"--commit-log {tmp_path / 'else'} is no directory: name the" in capsys.readouterr().err


def test_target_must_be_empty(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    target.mkdir()
    (target / "letter").touch()
    found = look_at_foreign(source)
    with pytest.raises(ForeignStoreError, match="holds 'letter'"):
        copy_whole(found, target)
    (target / "letter").rename(target / STAGING)
    with pytest.raises(ForeignStoreError, match="was killed; remove all that it holds, then"):
        copy_whole(found, target)
    with pytest.raises(ForeignStoreError, match="holds the store that is imported"):
        copy_whole(found, source.parent)
    with pytest.raises(ForeignStoreError, match="lies in the store that is imported"):
        copy_whole(found, source / "new")
    assert not (source / "new").exists()


def test_an_import_at_work_is_no_killed_one(source: Path, tmp_path: Path) -> None:
    """Who started a second one was told to remove what the first was writing; one begun at the same time did so."""
    target, found = tmp_path / "new", look_at_foreign(source)
    with copy_foreign(found, target, 0, lambda done, total: None, {}) as copy:
        before = sorted(copy.folder.rglob("*"))
        with pytest.raises(
            ForeignStoreError, match=r"another process works in .*/new, an import or a broker: wait for"
        ):
            copy_whole(found, target)
        assert sorted(copy.folder.rglob("*")) == before


@pytest.mark.parametrize("parents", ["", "a/b/c"])
def test_copy_that_fails_leaves_nothing(source: Path, tmp_path: Path, parents: str) -> None:
    """The folders that it had made stayed, empty."""
    (tmp_path / "disk").mkdir()

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        copy_foreign(look_at_foreign(source), tmp_path / "disk" / parents / "new", 0, fail, {}),
    ):
        pass
    assert list((tmp_path / "disk").iterdir()) == []


def test_copy_that_fails_leaves_the_folder_that_was_there(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    target.mkdir()
    (target / "lost+found").mkdir()
    with (
        pytest.raises(KeyboardInterrupt),
        copy_foreign(look_at_foreign(source), target, 0, lambda done, total: None, {}),
    ):
        raise KeyboardInterrupt
    assert [path.name for path in target.iterdir()] == ["lost+found"]


def test_folders_that_cannot_all_be_made_are_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mkdir = os.mkdir

    def refuse(path: str | Path, mode: int = 0o777) -> None:
        if Path(path).name == "new":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", refuse)
    assert import_(source, tmp_path / "disk" / "new") == 1
    assert f"cannot make {tmp_path / 'disk' / 'new'}: No space left on device;" in capsys.readouterr().err
    assert not (tmp_path / "disk").exists()


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "posix_fallocate"])
def test_disk_that_refuses_the_copy_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    """It said no more than "No space left on device"."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"headrace.store.foreign.os.{call}", refuse)
    assert import_(source, tmp_path / "new") == 1
    said = capsys.readouterr().err
    assert said == f"headrace: {tmp_path / 'new/commitlog' / segments(source)[0].name}: No space left on device\n"
    assert not (tmp_path / "new").exists()


def test_source_that_cannot_be_read_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("headrace.store.foreign.os.pread", refuse)
    assert import_(source, tmp_path / "new") == 1
    assert capsys.readouterr().err == f"headrace: {segments(source)[0]}: Input/output error\n"


@pytest.mark.parametrize("error", ["side file", "unsynced", "system"])
def test_error_while_the_copy_is_checked_names_what_is_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    """It named a file in the copy, which is removed again: one of the log stands for the source's."""
    name = segments(source)[0].name

    def refuse(store: Store, *_: object) -> None:
        path = store.directory.commit_log / name
        raise {
            "side file": SideFileError(
                path, "holds records of another", "give the files of commitlog their names back"
            ),
            "unsynced": UnsyncedError(path, errno.EIO, "check the disk"),
            "system": OSError(errno.EIO, os.strerror(errno.EIO), str(path)),
        }[error]

    monkeypatch.setattr("headrace.cli.store_import.adopt_topics", refuse)
    assert import_(source, tmp_path / "new") == 1
    said = capsys.readouterr().err
    assert str((source if error == "side file" else tmp_path / "new") / "commitlog" / name) in said
    assert STAGING not in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("step", [0, 1, 3, 4, 5, 6, 12])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_an_import_is_there_as_a_whole_or_not_at_all(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
) -> None:
    """Interrupted between the renames, it removed what had not moved up, the identity among it, and left the rest."""
    target = tmp_path / "new"
    rename = Path.rename
    steps = iter(range(100))

    def fail(path: Path, to: Path) -> Path:
        if path.parent.name == STAGING and next(steps) == step:
            raise error
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    code = import_(source, target)
    is_reached = next(steps) == step + 1
    assert code == ((130 if isinstance(error, KeyboardInterrupt) else 1) if is_reached else 0)
    if is_reached:
        assert not target.exists()
        monkeypatch.undo()
        code = import_(source, target)
    assert code == 0
    assert check_store(target).exit_code == 0
    assert not (target / STAGING).exists()


def test_every_folder_of_an_import_is_found_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has read that it is imported may remove the source; a power cut must not take names from the copy then."""
    (source / "namesrv").mkdir()
    (source / "namesrv" / "kvConfig.json").write_text('{"configTable":{}}')
    names: dict[int, set[str]] = {}  # that were in each folder when it was synced last
    fsync = os.fsync

    def note(fd: int) -> None:
        fsync(fd)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            names[os.fstat(fd).st_ino] = set(os.listdir(fd))

    monkeypatch.setattr(os, "fsync", note)
    target = tmp_path / "a" / "new"
    assert import_(source, target) == 0
    folders = [tmp_path, target.parent, target, *(path for path in target.rglob("*") if path.is_dir())]
    unsynced = {
        str(folder.relative_to(tmp_path)): left
        for folder in folders
        if (left := {path.name for path in folder.iterdir()} - names.get(folder.stat().st_ino, set()))
    }
    assert unsynced.pop(".", set()) <= {"source"}
    assert unsynced == {}


def test_small_disk_is_refused_before_anything_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=MIB)
    monkeypatch.setattr("headrace.store.foreign.shutil.disk_usage", lambda path: usage)
    with pytest.raises(StoreFullError, match="free space, or choose another disk"):
        copy_whole(look_at_foreign(source), tmp_path / "deep" / "new")
    assert not (tmp_path / "deep").exists()


def test_store_of_a_living_broker_is_refused(source: Path) -> None:
    """Java's FileChannel.lock is a POSIX record lock; its owner is another process."""
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    (source / "lock").touch()
    command = [sys.executable, "-c", program, str(source / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreLockedError, match=f"in use by process {holder.pid}"):
            look_at_foreign(source)
        holder.communicate()
    assert look_at_foreign(source).was_clean


@pytest.mark.parametrize("other", ["kept", "EMPTY"])
def test_topics_that_would_share_their_files_are_not_imported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    """Where the disk takes upper and lower case for one: the queues of one were copied over those of the other."""
    path = source / "config" / "topics.json"
    topics = json.loads(path.read_text())
    topics["topicConfigTable"][other] = configuration(other, 2, 2)
    path.write_text(json.dumps(topics))
    if other == "kept":
        shutil.copytree(source / "consumequeue" / "Kept", source / "consumequeue" / "kept")
    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        patch.setattr(StoreDirectory, "is_caseless", True)
        assert import_(source, target) == 1
    names = sorted((other, other.capitalize()))
    assert f"topics {names[0]!r} and {names[1]!r} would lie in one folder" in capsys.readouterr().err
    assert not target.exists()
    assert import_(source, target) in (0, 3)  # the copied queue has the records of another topic
