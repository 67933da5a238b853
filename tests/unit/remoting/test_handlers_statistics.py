"""Figures of the broker, as tools see them. Ref: remoting.md 4.2, 4.7.3."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.broker.topic import TopicConfig
from headrace.errors import UnreadableError
from headrace.remoting.codec import encode_request
from headrace.remoting.handlers.statistics import describe_size, earliest_stored_ms
from tests.support.remoting import (
    RemotingRig,
    body_of,
    send_fields,
)

RUNTIME_KEYS = (
    "putTps",
    "getTransferedTps",
    "getTransferredTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "earliestMessageTimeStamp",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "brokerVersionDesc",
    "brokerVersion",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "bootTimestamp",
    "runtime",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "scheduleMessageOffset_1",
    "brokerActive",
    "pageCacheLockTimeMills",
)


def test_runtime_info_has_every_key_that_tools_read(rig: RemotingRig) -> None:
    """remoting.md 4.7.3, trap 23: all values are strings."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    table = body_of(peer.ask(28))["table"]
    for name in RUNTIME_KEYS:
        assert isinstance(table[name], str), name
    assert (table["brokerVersion"], table["brokerVersionDesc"], table["msgPutTotalTodayNow"]) == ("409", "V4_9_8", "1")
    assert len(table["putTps"].split(" ")) == 3


def test_runtime_info_is_told_while_the_oldest_message_cannot_be_read(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mqadmin's clusterList and brokerStatus are what people look at then."""

    def unreadable(_: int) -> bytes:
        raise UnreadableError(OSError(2, "No such file or directory", "commitlog/0"))

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "log", SimpleNamespace(first_offset=0, read=unreadable))
        assert earliest_stored_ms(rig.services) == -1


def test_runtime_info_is_told_where_the_disk_says_nothing_of_its_room(tmp_path: Path) -> None:
    """Its folder was moved away, or the disk is gone: what is asked then is how the broker does."""
    rig = RemotingRig(tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    table = body_of(rig.peer().ask(28))["table"]
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert (table["commitLogDiskRatio"], table["consumeQueueDiskRatio"], table["brokerActive"]) == ("-1", "-1", "true")
    assert table["commitLogDirCapacity"] == "Total : 0.0 KiB, Free : 0.0 KiB."  # of the form that the exporter reads
    rig.close()


def test_runtime_info_tells_figures_apart(rig: RemotingRig) -> None:
    """remoting.md 4.7.3: `clusterList -m` subtracts them from each other; what is not flushed yet is what is not."""
    throughput, now_ms, mono_ms = rig.services.throughput, rig.clock.now_ms(), rig.clock.monotonic_ms()
    for day in (1, 2):
        throughput.put += day
        throughput.transferred += 10 * day
        throughput.found += 100
        throughput.missed += 200
        throughput.tick(now_ms + day * 86_400_000, mono_ms + 10_000 * day)
    peer = rig.peer()
    peer.request(310, send_fields("T1"), b"hello")
    unflushed = rig.store.log.end_offset - rig.store.log.durable_offset
    assert unflushed > 0
    table = body_of(peer.ask(28))["table"]
    for direction, figures in (("Put", [1, 3, 4]), ("Get", [10, 30, 30])):
        names = [f"msg{direction}Total{moment}" for moment in ("YesterdayMorning", "TodayMorning", "TodayNow")]
        assert [table[name] for name in names] == [str(figure) for figure in figures]
    rates = [table[f"get{what}Tps"].split()[0] for what in ("Found", "Miss", "Total")]
    assert rates == ["10.0000", "20.0000", "30.0000"]
    assert table["remainHowManyDataToFlush"] == f"{unflushed} B"


def test_runtime_info_of_a_broker_with_fewer_delay_levels_than_before(tmp_path: Path) -> None:
    """remoting.md 4.7.3: what waits at a level that the setting has no more is shown, not a bug."""
    rig = RemotingRig(tmp_path / "store")
    assert rig.peer().ask(310, send_fields("T1", properties={"DELAY": "5"}), b"later").code == 0
    rig.close()
    rig = RemotingRig(tmp_path / "store", {"delay_levels": "1s 5s"})
    table = body_of(rig.peer().ask(28))["table"]
    assert [table[f"scheduleMessageOffset_{level}"] for level in (1, 2, 5, 18)] == ["0,0", "0,0", "0,1", "0,0"]
    rig.close()


def test_runtime_info_can_be_parsed_by_the_exporter(rig: RemotingRig) -> None:
    """rocketmq-exporter parses these and drops all figures of the broker when one is missing or of another form."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    table = body_of(peer.ask(28))["table"]
    count, size = rig.store.log.appended_records, rig.store.log.appended_bytes
    assert (table["putMessageTimesTotal"], table["putMessageSizeTotal"]) == (str(count), str(size))
    assert float(table["putMessageAverageSize"]) == pytest.approx(size / count, abs=0.05)
    for name in ("getMessageEntireTimeMax", "putMessageEntireTimeMax", "startAcceptSendRequestTimeStamp"):
        assert table[name] == "0"
    words = table["commitLogDirCapacity"].split(" ")
    assert [words[0], words[1], words[4], words[5]] == ["Total", ":", "Free", ":"]
    assert re.fullmatch(r"\d+\.\d", words[2]), words
    assert re.fullmatch(r"[KMGTPE]iB,", words[3]), words
    assert re.fullmatch(r"[KMGTPE]iB\.", words[7]), words
    usage = shutil.disk_usage(rig.store.directory.root)
    assert float(table["commitLogDiskRatio"]) == pytest.approx(usage.used / (usage.used + usage.free), abs=0.01)
    times = [part.split(":") for part in table["putMessageDistributeTime"].split()]
    assert len(times) == 13
    assert times[0] == ["[<=0ms]", "0"]
    assert times[-1] == ["[10s~]", "0"]


def test_counters(rig: RemotingRig) -> None:
    """A-BROKER-49; remoting.md 4.7.3: 315."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    body = body_of(peer.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T1"}))
    assert [body[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [1, 1, 1]
    rig.pass_time(180_000)
    body = body_of(peer.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T1"}))
    assert [body[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [0, 1, 1]
    assert peer.ask(315, {"statsName": "BROKER_PUT_NUMS", "statsKey": "C1"}).code == 0
    assert peer.ask(315, {"statsName": "NONE", "statsKey": "T1"}).code == 1


@pytest.mark.parametrize("by_queue", [False, True])
def test_one_read_to_several_queues_is_counted(tmp_path: Path, by_queue: bool) -> None:
    """A-BROKER-49: by topic the same whether or not queues are counted apart; one topic is named twice."""
    rig = RemotingRig(tmp_path / "store", broker={"queue_statistics": by_queue})
    for topic in ("T1", "T2"):
        rig.broker.create_topic(topic, TopicConfig(2, 2))
    link = rig.link()
    places = [("T1", 0, b"a"), ("T2", 1, b"bb"), ("T1", 1, b"ccc"), ("T1", 0, b"dddd")]
    link.ask(
        *(
            encode_request(
                0,
                310,
                number,
                ext={name: str(value) for name, value in send_fields(topic, queue_id=queue).items()},
                body=body,
            )
            for number, (topic, queue, body) in enumerate(places)
        )
    )
    statistics = rig.services.statistics

    def of_day(name: str, key: str) -> tuple[int, float]:
        found = statistics.snapshot(name, key)
        assert found is not None
        return found.day.sum, round(found.day.per_call, 2)

    assert of_day("TOPIC_PUT_NUMS", "T1") == (3, 1)
    assert of_day("TOPIC_PUT_SIZE", "T1") == (8, 2.67)
    assert of_day("TOPIC_PUT_NUMS", "T2") == (1, 1)
    of_queues = [statistics.snapshot("QUEUE_PUT_NUMS", key) for key in ("T1@0", "T1@1", "T2@1")]
    assert [found and found.day.sum for found in of_queues] == ([2, 1, 1] if by_queue else [None] * 3)
    assert link.server.counters.messages_in == len(places)
    rig.close()


def test_batch_that_is_refused_is_not_counted(rig: RemotingRig) -> None:
    """Not even as no messages, when sends of the same read are appended."""
    for topic in ("T1", "T2"):
        rig.broker.create_topic(topic, TopicConfig(2, 2))
    link = rig.link()
    answers = link.ask(
        *(
            encode_request(
                0, code, code, ext={name: str(value) for name, value in send_fields(topic).items()}, body=b"no batch"
            )
            for code, topic in ((310, "T1"), (320, "T2"))
        )
    )
    assert {number: answer.code for number, answer in answers.items()} == {310: 0, 320: 13}
    assert [(counted.call.topic, counted.messages) for counted in rig.services.statistics.take_counted()] == [("T1", 1)]
    assert rig.services.statistics.snapshot("TOPIC_PUT_NUMS", "T2") is None


def test_delay_offsets(rig: RemotingRig) -> None:
    """remoting.md 4.2: 45."""
    assert body_of(rig.peer().ask(45))["offsetTable"]["1"] == 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 B"), (1024, "1.0 KiB"), (1 << 19, "512.0 KiB"), (1 << 20, "1.0 MiB"), (252 << 30, "252.0 GiB")],
)
def test_sizes_are_written_in_the_largest_unit_that_they_reach(size: int, text: str) -> None:
    assert describe_size(size) == text
