"""The loads say what is wrong with a broker that no checker sees: one that hangs up, refuses or does not answer."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crash import load as nsq_load
from tests.crash import rocketmq_client as wire
from tests.crash.checker import HELD_UP_S, TOUCH_S, Checker
from tests.crash.history import History, Thing, What
from tests.crash.load import MSG_TIMEOUT_S, Consumer, HttpPublisher, Load, Publisher
from tests.crash.nsq_client import HttpSocket
from tests.crash.rocketmq_checker import RocketmqChecker
from tests.crash.rocketmq_history import Place
from tests.crash.rocketmq_load import RocketmqLoad
from tests.crash.rocketmq_roles import Producer

REFUSAL = b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno"


class Peer:
    """A server that takes connections and answers what a test says."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        self._accepted.append(self._listener.accept()[0])
        return self._accepted[-1]

    def close(self) -> None:
        for connection in (self._listener, *self._accepted):
            connection.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def load() -> Iterator[Load]:
    made = Load(History(), Checker(), random.Random(1), {})
    made.topics = ["single"]
    yield made
    made.close()


@pytest.fixture
def rocketmq() -> Iterator[RocketmqLoad]:
    made = RocketmqLoad(History(), RocketmqChecker(), random.Random(1), {})
    yield made
    made.close()


def turn(load: Any) -> None:
    """Let a load read what is there."""
    load.run(time.monotonic() + 0.05)


def test_what_is_touched_shows_a_forgotten_touch() -> None:
    """The message is finished behind the time-out that it would have without, and each TOUCH counts for the checker."""
    last_touch_s = nsq_load._TOUCHES * nsq_load._TOUCH_AFTER_S
    assert nsq_load._TOUCH_AFTER_S < MSG_TIMEOUT_S - TOUCH_S
    assert MSG_TIMEOUT_S - last_touch_s < MSG_TIMEOUT_S - HELD_UP_S - 0.2
    assert MSG_TIMEOUT_S < last_touch_s + nsq_load._FINISH_AFTER_S < last_touch_s + MSG_TIMEOUT_S - 0.5


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_connection_that_the_broker_closes_is_a_complaint_unless_it_was_killed(
    load: Load, rocketmq: RocketmqLoad, peer: Peer, is_dead: bool
) -> None:
    for make in (Publisher, HttpPublisher, lambda one, at: Consumer(one, at, Thing("single", "main"))):
        make(load, peer.address)
        peer.accept().close()
    Producer(rocketmq, peer.address)
    peer.accept().close()
    for one in (load, rocketmq):
        one.crashed_at = float(is_dead)
        turn(one)
    assert (len(load.complaints), len(rocketmq.complaints)) == ((0, 0) if is_dead else (3, 1))


def test_a_connection_that_the_load_closes_is_none(load: Load, peer: Peer) -> None:
    Publisher(load, peer.address).close()
    turn(load)
    assert load.complaints == []


def test_a_consumer_may_go_with_its_channel(load: Load, peer: Peer) -> None:
    Consumer(load, peer.address, Thing("passing0", "main"))
    peer.accept().close()
    turn(load)
    assert load.complaints == []


def test_a_publish_over_http_that_is_refused_is_a_complaint(load: Load, peer: Peer) -> None:
    """Its outcome is unknown to the checker, so that it would never be missed."""
    publisher = HttpPublisher(load, peer.address)
    publisher.publish()
    answering = peer.accept()
    answering.sendall(REFUSAL)
    turn(load)
    assert [b"500" in complaint for complaint in load.complaints] == [True]


def test_a_list_of_what_exists_that_is_refused_is_a_complaint(load: Load, peer: Peer) -> None:
    """Without it nothing that vanished, or came back, is seen."""
    load._http = HttpSocket(load.selector, peer.address)
    peer.accept().sendall(REFUSAL)
    load._observe()
    assert [b"/stats" in complaint for complaint in load.complaints] == [True]


def test_a_change_that_is_refused_is_a_complaint(load: Load, peer: Peer) -> None:
    load._http = HttpSocket(load.selector, peer.address)
    answering = peer.accept()
    thing = Thing("passing0", "main")
    for ask in (
        lambda: load._ask(thing, creates=False),
        lambda: load._ask_topic(thing),
        lambda: load._ask_change(thing, What.PAUSE),
    ):
        ask()
        answering.sendall(REFUSAL)
        turn(load)
    assert len(load.complaints) == 3


def test_queues_that_a_scan_does_not_read_are_a_complaint(
    rocketmq: RocketmqLoad, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody read cannot be missed."""
    rocketmq._address = peer.address
    monkeypatch.setattr(rocketmq, "_wait", lambda until, seconds=0.0: None)
    rocketmq.scan({"t": 2})
    assert rocketmq.complaints == [b"2 queues could not be read to their end"]


def test_a_group_that_does_not_get_to_the_end_is_a_complaint(
    rocketmq: RocketmqLoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that scans find and a group does not get."""
    monkeypatch.setattr(rocketmq, "_list_topics", dict)
    monkeypatch.setattr(rocketmq, "scan", lambda topics: None)
    rocketmq._scanned |= {Place("t", 0): 5, Place("t", 1): 5}
    following = {Place("t", 0): 5, Place("t", 1): 4, Place("%RETRY%g", 0): 0}
    rocketmq._consumers = [SimpleNamespace(group="g", following=following)]  # type: ignore[list-item]
    rocketmq.drain(0.0)
    (complaint,) = rocketmq.complaints
    assert b"group g is at 4 of 5" in complaint


@pytest.mark.parametrize(
    ("frame", "is_complaint"),
    [
        (None, False),
        (wire.Frame(wire.SUCCESS, 1, 1, "", {}, b""), False),
        (wire.Frame(1, 1, 1, wire.STOPPING, {}, b""), False),
        (wire.Frame(1, 1, 1, "no", {}, b""), True),
    ],
)
def test_an_answer_that_must_be_good(rocketmq: RocketmqLoad, frame: wire.Frame | None, is_complaint: bool) -> None:
    """A commit, a heartbeat, a query: a broker that refuses them all would owe nothing."""
    assert rocketmq.expect_success(frame) == (frame is not None and frame.code == wire.SUCCESS)
    assert bool(rocketmq.complaints) == is_complaint
