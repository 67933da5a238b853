"""Unmodified go-nsq, and the benchmark programs that come with NSQ, against Headrace."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.nsq_peers import Node, peer, serve_headrace
from tests.support.toolchain import cannot_run

GO_MODULE = Path(__file__).parent / "go"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with serve_headrace(tmp_path_factory.mktemp("gonsq")) as headrace:
        yield headrace


@pytest.fixture(scope="module")
def nsqcheck(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the test's own go-nsq program from the pinned module."""
    program = tmp_path_factory.mktemp("nsqcheck") / "nsqcheck"
    try:
        subprocess.run(["go", "build", "-o", str(program), "./cmd/nsqcheck"], cwd=GO_MODULE, check=True)
    except FileNotFoundError:
        cannot_run("go is not installed")
    return str(program)


@pytest.fixture(scope="module")
def report(node: Node, nsqcheck: str) -> dict[str, Any]:
    command = [nsqcheck, "-nsqd-tcp-address", node.tcp, "-topic", "checks", "-messages", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_every_message_is_finished(report: dict[str, Any]) -> None:
    """nsq.md 12.2 check 3: Publish, MultiPublish, PublishAsync and DeferredPublish, one consumer of 8 handlers."""
    assert len(report["finished"]) == report["published"] == 2007
    ordinary = {body: count for body, count in report["finished"].items() if body.startswith("message-")}
    assert len(ordinary) == 2000
    assert set(ordinary.values()) == {1}
    assert report["connections"] == 1


def test_requeue_time_out_and_attempts(report: dict[str, Any]) -> None:
    """nsq.md 12.2 check 8: REQ with and without delay, and a message that is never answered, count attempts."""
    again = ["requeue-later-1", "requeue-later-2", "requeue-now-1", "requeue-now-2", "time-out"]
    assert {body: report["most_attempts"].get(body) for body in again} == dict.fromkeys(again, 2)
    assert 490 <= report["requeued_millis"] < 1500
    assert report["requeued"] == 4


def test_touch_keeps_a_message_past_its_time_out(report: dict[str, Any]) -> None:
    """nsq.md 1.11: held 1.6 s with a message timeout of 1 s, delivered once."""
    assert report["touched_millis"] >= 1600
    assert "touch" not in report["most_attempts"]


def test_deferred_publish_waits(report: dict[str, Any]) -> None:
    """nsq.md 1.7, C-FLOW-06: DPUB of 700 ms, due-time error at most about 100 ms."""
    assert 700 <= report["deferred_millis"] < 1500


def test_refused_publish_reaches_the_client_as_an_error(report: dict[str, Any]) -> None:
    """nsq.md 1.13: the error frame survives the close, and the producer connects again."""
    assert report["bad_topic_error"] == 'E_BAD_TOPIC PUB topic name "bad$name" is not valid'
    assert report["after_bad_topic"]


def test_nothing_is_left_behind(report: dict[str, Any], node: Node) -> None:
    """nsq.md 2.4."""
    channel = node.channel("checks", "checks")
    assert (channel["depth"], channel["in_flight_count"], channel["deferred_count"]) == (0, 0, 0)
    assert channel["message_count"] == 2007
    assert channel["requeue_count"] == 4
    assert channel["timeout_count"] == 1


def test_bench_writer_and_bench_reader(node: Node) -> None:
    """nsq.md 12.2 check 14: NSQ's own load programs run through."""
    for program, flags in (("bench_writer", ["-batch-size=200"]), ("bench_reader", ["-channel=ch", "-rdy=2500"])):
        command = [peer(program), f"-nsqd-tcp-address={node.tcp}", "-topic=bench", "-runfor=500ms", "-size=200"]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        rate = re.search(r"([\d.]+)ops/s", done.stderr)
        assert rate is not None, done.stderr
        assert float(rate[1]) > 1000
