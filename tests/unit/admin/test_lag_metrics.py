"""How far RocketMQ's groups are behind: the same as mqadmin is told. Ref: docs/metrics.md; remoting.md 4.7.2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from headrace.admin.lag_metrics import lag_families
from headrace.store.consume_queue import ConsumeQueue
from tests.support.remoting import RemotingRig, body_of, send_fields, subscription

LAG = "headrace_broker_group_lag_messages"
UNTOLD = "headrace_broker_untold_group_lags"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RemotingRig]:
    rig = RemotingRig(tmp_path / "store")
    for topic in ("T1", "T2"):
        for number in range(5):
            rig.peer().ask(310, send_fields(topic, queue_id=number % 2), b"%d" % number)
    yield rig
    rig.close()


def commit(rig: RemotingRig, group: str, topic: str, queue_id: int, offset: int) -> None:
    rig.services.ensure_group(group)
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    assert rig.peer().ask(15, fields).code == 0


def lags(rig: RemotingRig) -> dict[tuple[str, ...], float]:
    """Return the samples of all slices, by the values of their labels; how many are untold by its name."""
    samples = [sample for family in lag_families(rig.services) for sample in family.samples]
    found = {(sample.labels["group"], sample.labels["topic"]): sample.value for sample in samples if sample.labels}
    assert len(found) == len(samples) - 1, "each stands there once"
    return found | {(sample.name,): sample.value for sample in samples if not sample.labels}


def told_by_317(rig: RemotingRig) -> dict[tuple[str, ...], float]:
    """Return what ``brokerConsumeStats`` tells, summed up."""
    peer = rig.peer()
    peer.try_ask(317, {"isOrder": "false"})
    body: dict[str, Any] = body_of(peer.answers.pop() if peer.answers else peer.ask(317, {"isOrder": "false"}))
    found: dict[tuple[str, ...], float] = {}
    for stats in body["consumeStatsList"]:
        for group, tables in stats.items():
            for table in tables:
                for queue, row in table["offsetTable"].items():
                    name = group, queue["topic"]
                    found[name] = found.get(name, 0) + row["brokerOffset"] - row["consumerOffset"]
    return found


def test_lag_is_what_the_group_has_not_committed(rig: RemotingRig) -> None:
    """Of all queues of a topic, also those where it has committed nothing; 0 where it has all."""
    assert lags(rig) == {(UNTOLD,): 0}
    commit(rig, "G1", "T1", 0, 1)
    commit(rig, "G1", "T2", 0, 3)
    commit(rig, "G1", "T2", 1, 2)
    commit(rig, "G2", "T1", 1, 1)
    assert lags(rig) == {("G1", "T1"): 4, ("G1", "T2"): 0, ("G2", "T1"): 4, (UNTOLD,): 0}
    rig.peer().ask(310, send_fields("T2"), b"new")
    assert lags(rig)["G1", "T2"] == 1
    commit(rig, "G1", "T2", 0, 9)  # beyond the end: a consumer may say so
    assert lags(rig)["G1", "T2"] == 0


def test_a_topic_that_a_group_has_left_does_not_count(rig: RemotingRig) -> None:
    """Its offsets stay for years; while its consumers subscribe to something else, as in 208 and 317."""
    commit(rig, "G1", "T1", 0, 1)
    commit(rig, "G1", "T2", 0, 1)
    assert rig.peer().heartbeat("one", subscription("T2"), group="G1").code == 0
    assert set(lags(rig)) == {("G1", "T2"), (UNTOLD,)}
    rig.services.broker.delete_topic("T2")
    assert set(lags(rig)) == {(UNTOLD,)}


def test_marks_of_readers_of_whole_logs_are_no_lag(rig: RemotingRig) -> None:
    """They commit at a template's name."""
    rig.services.offsets.commit("G1", "TBW102", 0, 7)
    rig.services.ensure_group("G1")
    assert lags(rig) == {(UNTOLD,): 0}


def test_what_is_gone_from_the_log_is_no_lag(rig: RemotingRig) -> None:
    """A group that stood there reads on from the first message that is left."""
    commit(rig, "G1", "T1", 0, 0)
    assert lags(rig)["G1", "T1"] == 5
    queue = rig.broker.topics["T1"].queues[0]
    assert isinstance(queue, ConsumeQueue)
    queue.hide_below(2)
    assert lags(rig)["G1", "T1"] == 3


def test_very_many_lags_are_bounded_and_counted(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them are told does not change from scrape to scrape."""
    monkeypatch.setattr("headrace.admin.lag_metrics.MAX_SAMPLES", 3)
    for number in range(5):
        commit(rig, f"G{number}", "T1", 0, number % 3)
    told = lags(rig)
    assert set(told) == {("G0", "T1"), ("G1", "T1"), ("G2", "T1"), (UNTOLD,)}
    assert told[UNTOLD,] == 2
    commit(rig, "G0", "T1", 1, 1)
    assert set(lags(rig)) == set(told)


def test_slices_are_short(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By samples, and by what has to be looked at, of which there may be much more; others come and go in between."""
    for number in range(200):
        commit(rig, f"G{number}", "T1", 0, 1)
    slices = list(lag_families(rig.services))
    assert max(len(family.samples) for family in slices) == 80
    assert [family.name for family in slices] == [LAG] * 3 + [UNTOLD]
    monkeypatch.setattr("headrace.admin.lag_metrics.STEPS_PER_SLICE", 10)
    seen: list[Metric] = []
    for family in lag_families(rig.services):
        assert len(family.samples) <= 2  # of topics with four queues
        seen.append(family)
        if len(seen) == 20:
            rig.services.broker.delete_topic("T1")
    assert 20 < sum(len(family.samples) for family in seen) < 200


def test_it_is_what_mqadmin_is_told(rig: RemotingRig) -> None:
    """317, summed up by group and topic, retries too."""
    assert rig.peer().heartbeat("one", subscription("T1"), group="G1").code == 0
    for group, topic, queue_id, offset in (("G1", "T1", 0, 1), ("G1", "%RETRY%G1", 0, 0), ("G2", "T2", 1, 1)):
        commit(rig, group, topic, queue_id, offset)
    told = lags(rig)
    del told[UNTOLD,]
    assert told == told_by_317(rig)
    assert ("G1", "%RETRY%G1") in told
