"""Replies leave in the order of commands, and not before what they promise is durable."""

from __future__ import annotations

from headrace.net.replies import MAX_WAITING_BYTES, REPLY_BYTES, Reply, ReplyQueue
from tests.support.gates import FakeGate


class Recorder:
    def __init__(self, *, open_all: bool = False) -> None:
        self.gate = FakeGate()
        self.gate.open_all = open_all
        self.written: list[bytes] = []
        self.failed: list[Reply] = []
        self.emptied = 0
        self.queue = ReplyQueue(
            self.gate,
            write=self.written.append,
            failed=lambda reply, error: self.failed.append(reply),
            emptied=self.on_emptied,
            overfull=self.on_overfull,
        )
        self.overfull = 0

    def on_emptied(self) -> None:
        self.emptied += 1

    def on_overfull(self) -> None:
        self.overfull += 1


def test_replies_that_wait_for_nothing_leave_at_once():
    """C-PROTO-12: replies are flushed at once."""
    recorder = Recorder()
    recorder.queue.add(Reply(b"a"))
    recorder.queue.add(Reply(b"b"))
    assert recorder.written == [b"a", b"b"]


def test_reply_that_waits_holds_up_those_behind_it():
    """nsq.md 1.2: replies strictly in command order."""
    recorder = Recorder()
    recorder.queue.add(Reply(b"ok1", 100))
    recorder.queue.add(Reply(b"err"))
    recorder.queue.add(Reply(b"ok2", 200))
    recorder.queue.add(Reply(b"end"))
    assert recorder.written == []
    recorder.gate.open(100)
    assert recorder.written == [b"ok1err"]
    recorder.gate.open(200)
    assert recorder.written == [b"ok1err", b"ok2end"]
    assert (recorder.emptied, len(recorder.queue)) == (1, 0)


def test_everything_that_is_durable_leaves_in_one_write():
    """One write for what one flush released, however many replies, without recursion."""
    recorder = Recorder()
    for number in range(5000):
        recorder.queue.add(Reply(b"x", 100 + number))
    recorder.gate.opened_offset = 10_000
    recorder.gate.open(10_000)
    assert recorder.written == [b"x" * 5000]


def test_what_is_durable_already_leaves_at_once():
    """A gate calls back at once when the offset has been passed."""
    recorder = Recorder(open_all=True)
    recorder.queue.add(Reply(b"ok", 100))
    assert recorder.written == [b"ok"]


def test_failed_flush_tells_the_first_waiting_reply_and_sends_nothing():
    """A failed flush is never answered with OK."""
    recorder = Recorder()
    recorder.queue.add(Reply(b"ok", 100, "MPUB"))
    recorder.queue.add(Reply(b"ok", 200, "PUB"))
    recorder.gate.fail()
    assert recorder.written == []
    assert [reply.command for reply in recorder.failed] == ["MPUB"]


def test_dropped_queue_sends_nothing_when_the_gate_opens():
    """The connection may be gone when the flush returns."""
    recorder = Recorder()
    recorder.queue.add(Reply(b"ok", 100))
    recorder.queue.drop()
    recorder.gate.open(100)
    assert recorder.written == []


def test_sent_is_called_after_the_frames_were_written():
    """SUB's window opens behind its OK."""
    recorder = Recorder()
    order: list[object] = []
    recorder.queue.add(Reply(b"ok", 100, "SUB", lambda: order.append(list(recorder.written))))
    recorder.gate.open(100)
    assert order == [[b"ok"]]


def test_what_waits_is_counted_until_it_leaves_or_is_dropped():
    """nsq.md, Bounds: exactly as much as may wait may wait."""
    recorder = Recorder()
    queue = recorder.queue
    queue.add(Reply(b"", 1))
    queue.add(Reply(bytes(MAX_WAITING_BYTES - 2 * REPLY_BYTES)))
    assert (queue.waiting_bytes, recorder.overfull) == (MAX_WAITING_BYTES, 0)
    queue.add(Reply(b""))
    assert recorder.overfull == 1
    recorder.gate.open(1)
    assert queue.waiting_bytes == 0
    queue.add(Reply(b"a"))
    queue.add(Reply(b"b", 2))
    assert queue.waiting_bytes == REPLY_BYTES + 1
    queue.drop()
    assert queue.waiting_bytes == 0
    queue.add(Reply(b"c", 3))
    recorder.gate.fail()
    assert (queue.waiting_bytes, recorder.overfull) == (0, 1)
