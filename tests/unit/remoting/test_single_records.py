"""Single records that are not in memory: a thread reads them in, the loop goes on. Ref: remoting.md 4.4, 4.5."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.broker.access import Patterns, User
from headrace.remoting.codec import encode_request
from headrace.remoting.reading import single_records
from headrace.remoting.reply import Reply
from headrace.store import log_ranges
from tests.support.records import decode_messages
from tests.support.remoting import RecordingPeer, RemotingRig, send_fields
from tests.support.toolchain import cannot_run

Later = list[Callable[[], None]]


@pytest.fixture
def later(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> Later:
    """Everything counts as cold, and what threads tell the loop waits here."""
    calls: Later = []
    monkeypatch.setattr(log_ranges, "HOT_BYTES", 0)
    monkeypatch.setattr(log_ranges, "_is_in_memory", lambda segment, position: False)
    rig.store.notify = calls.append
    return calls


def publish(rig: RemotingRig, body: bytes, **properties: str) -> int:
    """Send a message; return its physical offset."""
    reply = rig.peer().ask(310, send_fields("T1", properties=properties), body)
    assert reply.ext is not None
    return int(reply.ext["msgId"][16:], 16)


def run_next(later: Later) -> None:
    deadline = time.monotonic() + 5
    while not later:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    later.pop(0)()


def bodies(reply: Reply) -> list[bytes]:
    assert reply.code == 0, reply.remark
    assert reply.body is not None
    return [message["body"] for message in decode_messages(reply.body)]


def ask_cold(peer: RecordingPeer, later: Later, code: int, fields: dict[str, object]) -> Reply:
    """Ask for what lies on the disk; nothing is answered before a thread has read it."""
    assert peer.try_ask(code, fields) is None
    assert not peer.answers
    return next_answer(peer, later)


def next_answer(peer: RecordingPeer, later: Later) -> Reply:
    """Run what threads told the loop until there is an answer."""
    while not peer.answers:
        run_next(later)
    return peer.answers.pop()


def test_view_of_a_cold_message(rig: RemotingRig, later: Later) -> None:
    offset = publish(rig, b"hello")
    assert bodies(ask_cold(rig.peer(), later, 33, {"offset": offset})) == [b"hello"]
    assert rig.services.readers.counters.cold_records == 1
    assert rig.services.readers.waiting_records == 0
    guessed = ask_cold(rig.peer(), later, 33, {"offset": offset + 7})
    assert guessed.code == 1
    assert guessed.remark.startswith("can not find message by the offset")


def test_query_that_finds_cold_messages(rig: RemotingRig, later: Later) -> None:
    publish(rig, b"one", KEYS="K")
    publish(rig, b"two", KEYS="K")
    rig.store.tick()
    peer = rig.peer()
    fields = {"topic": "T1", "key": "K", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    assert peer.try_ask(12, fields) is None
    assert sorted(bodies(next_answer(peer, later))) == [b"one", b"two"]
    assert rig.services.readers.counters.cold_records == 2
    assert rig.services.key_queries == 0


def test_cold_message_is_sent_back(rig: RemotingRig, later: Later) -> None:
    """The right to it is that of the user who asked, whoever sends the connection's next request."""
    offset = publish(rig, b"hello")
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    fields: dict[str, object] = {"offset": offset, "group": "G1", "delayLevel": -1, "originTopic": "T1"}
    peer.user = User(name="stranger", groups=Patterns(["G1"]))
    assert peer.try_ask(36, fields) is None
    peer.user = User(name="admin", admin=True)
    assert next_answer(peer, later).code == 16
    assert ask_cold(peer, later, 36, fields).code == 0
    assert rig.services.messages.letters.counts == {"G1": 1}


def test_cold_requests_are_bounded(rig: RemotingRig, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = publish(rig, b"hello")
    monkeypatch.setattr(single_records, "MAX_WAITING", 1)
    peer = rig.peer()
    assert peer.try_ask(33, {"offset": offset}) is None
    assert peer.ask(33, {"offset": offset}).code == 2
    assert rig.services.readers.counters.refused == 1
    assert next_answer(peer, later).code == 0


def test_disk_that_fails_is_an_answer(
    rig: RemotingRig, later: Later, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offset = publish(rig, b"hello")

    def fail(places: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(single_records, "_read_in", fail)
    for _ in range(10):
        reply = ask_cold(rig.peer(), later, 33, {"offset": offset})
        assert reply.code == 1
        assert "the log cannot be read" in reply.remark
    assert caplog.text.count("record not read") == 1, "not for each of them"


def test_hot_message_is_answered_at_once(rig: RemotingRig) -> None:
    offset = publish(rig, b"hello")
    assert bodies(rig.peer().ask(33, {"offset": offset})) == [b"hello"]
    assert rig.services.readers.counters.cold_records == 0


def test_what_is_in_memory_is_what_the_kernel_says(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose pages were dropped is cold until the thread has read it."""
    offset = publish(rig, b"hello" * 10_000)
    monkeypatch.setattr(log_ranges, "HOT_BYTES", 0)
    log = rig.store.log
    segment = log.segments[0]
    assert [log_ranges.find_cold(log, at) for at in (offset, -1, log.end_offset, 1 << 50)] == [None] * 4
    os.fsync(segment.fd)
    segment.drop_pages()
    os.posix_fadvise(segment.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if segment.is_resident(0, 4_096):
        cannot_run("the file system of the temporary folder keeps pages in memory: choose another with TMPDIR")
    cold = log_ranges.find_cold(log, offset)
    assert cold == log_ranges.ColdRecord(segment, offset)
    cold.read_in()
    assert log_ranges.find_cold(log, offset) is None


@pytest.mark.provokes_bugs
def test_a_bug_behind_the_disk_is_counted(rig: RemotingRig, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/metrics.md: headrace_remoting_internal_errors_total has every request that failed by a bug of ours."""
    at = publish(rig, b"x")
    link = rig.link()
    assert not link.ask(encode_request(0, 33, 1, ext={"offset": str(at)}))

    def fail(services: object, physical_offset: int) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr("headrace.remoting.handlers.messages.find_visible", fail)
    run_next(later)
    (answer,) = link.taken()
    assert (answer.code, answer.remark) == (1, "internal error")
    assert link.server.counters.internal_errors == 1


@pytest.mark.parametrize("code", [33, 36])
def test_a_segment_that_the_system_refuses_is_no_bug_of_ours(
    rig: RemotingRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """No descriptor for a segment that is not mapped: requests for what is in it were answered as failed by a bug."""
    rig.store_settings = replace(rig.store_settings, open_segments=2)
    rig.restart()
    offset = publish(rig, b"hello")
    while rig.store.log.end_offset < 4 * rig.store.log.segment_bytes:
        publish(rig, bytes(60_000))
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    fields = {"offset": offset, "group": "G1", "delayLevel": 0, "originTopic": "T1"}

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "the file")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for hot_bytes in (log_ranges.HOT_BYTES, 0):
            patch.setattr(log_ranges, "HOT_BYTES", hot_bytes)
            refused = peer.try_ask(code, fields)
            assert refused is not None
            assert refused.code == 14
            assert refused.remark.startswith("cannot read the file: Too many open files; raise the limit of open files")
    assert caplog.text.count("messages not read, tried again path=") == 1
    assert peer.ask(code, fields).code == 0
