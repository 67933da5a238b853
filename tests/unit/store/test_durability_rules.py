"""The store's rules about durability: group commit, segment rolls, failed fsync, durable mark."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.errors import FlushError
from headrace.format.durable_mark import decode_mark
from tests.support import layouts
from tests.support.stores import MakeBench, StoreBench


@dataclass
class HandFlusher:
    """A flusher whose results are given out by hand."""

    requests: list[tuple[int, int]] = field(default_factory=list)
    taken: int = 0
    error: int = 0
    done_read: int = -1

    def request(self, target: int, fd: int) -> bool:
        if len(self.requests) > self.taken + 1 and self.requests[-1][1] == fd:  # not begun
            self.requests[-1] = (target, fd)
            return False
        self.requests.append((target, fd))
        return True

    def take_result(self) -> tuple[int, int, float]:
        target, _ = self.requests[self.taken]
        self.taken += 1
        return target, self.error, 0.001

    def close(self) -> None:
        pass


def by_hand(bench: StoreBench) -> HandFlusher:
    """Replace the store's flush thread."""
    bench.store.commits.flusher.close()
    flusher = HandFlusher()
    bench.store.commits.flusher = flusher  # type: ignore[assignment]
    return flusher


def finish_all(bench: StoreBench, flusher: HandFlusher) -> None:
    while flusher.taken < len(flusher.requests):
        bench.store.finish_flush()


def note(into: list[Any], what: str) -> Callable[[Any], None]:
    return lambda error: into.append((what, error))


def test_group_commit_takes_along_what_came_while_a_flush_ran(bench: StoreBench) -> None:
    """Everything appended while the previous fdatasync ran goes with the next one."""
    flusher = by_hand(bench)
    store = bench.store
    opened: list[Any] = []
    bench.append("t", b"first", flush=False)
    store.gate.wait(store.log.end_offset, note(opened, "first"))
    store.request_flush()
    for name in ("second", "third"):
        bench.append("t", name.encode(), flush=False)
        store.gate.wait(store.log.end_offset, note(opened, name))
        store.request_flush()
    store.finish_flush()
    assert opened == [("first", None)]
    assert [target for target, _ in flusher.requests] == [store.durable_offset, store.log.end_offset]
    store.finish_flush()
    assert opened == [("first", None), ("second", None), ("third", None)]
    assert store.unflushed_bytes == 0


def test_a_flush_that_nobody_waits_for_does_not_stand_in_line(bench: StoreBench) -> None:
    """At level async a flush begins at 8 MiB: another one right behind it would only cost processor time."""
    flusher = by_hand(bench)
    for name in (b"first", b"second"):
        bench.append("t", name, flush=False)
        bench.store.request_flush(is_waited_for=False)
    assert len(flusher.requests) == 1
    bench.store.finish_flush()
    bench.store.request_flush(is_waited_for=False)
    finish_all(bench, flusher)
    assert bench.store.unflushed_bytes == 0


def test_a_start_leaves_nothing_to_flush(bench: StoreBench) -> None:
    """What it has synced itself is not asked of the disk again; the first small publish waits for the turn as any."""
    bench.append("t", bytes(40_000))
    bench.restart()
    opened: list[Any] = []
    bench.store.gate.wait(bench.store.log.end_offset, note(opened, "what was there"))
    assert opened == [("what was there", None)]
    flusher = by_hand(bench)
    turn: list[Callable[[], None]] = []
    bench.store.call_soon = turn.append
    bench.store.request_flush()
    assert (flusher.requests, turn) == ([], [])
    bench.append("t", b"small", flush=False)
    bench.store.request_flush()
    assert (flusher.requests, len(turn)) == ([], 1)
    turn[0]()
    finish_all(bench, flusher)


def test_small_flushes_of_one_turn_are_one(bench: StoreBench) -> None:
    """Many publishers with a message each: the first must not have the disk for itself. What is large does not wait."""
    flusher = by_hand(bench)
    turn: list[Callable[[], None]] = []
    bench.store.call_soon = turn.append
    for name in (b"first", b"second"):
        bench.append("t", name, flush=False)
        bench.store.request_flush()
    assert (flusher.requests, len(turn)) == ([], 1)
    turn.pop()()
    assert [target for target, _ in flusher.requests] == [bench.store.log.end_offset]
    bench.store.request_flush()
    assert not turn, "nothing is new"
    bench.append("t", b"small", flush=False)
    bench.store.request_flush()
    bench.append("t", b"x" * 40_000, flush=False)
    bench.store.request_flush()
    assert [target for target, _ in flusher.requests[1:]] == [bench.store.log.end_offset]
    turn.pop()()
    assert len(flusher.requests) == 2
    finish_all(bench, flusher)
    bench.append("t", b"last", flush=False)
    bench.store.request_flush()
    bench.store.flush()
    assert bench.store.unflushed_bytes == 0, "whoever blocks does not wait for a turn"
    turn.pop()()
    assert len(flusher.requests) == 3


def test_a_flush_that_is_smaller_than_usual_waits_for_the_turn(bench: StoreBench) -> None:
    """Many publishers with a batch each fall into two parts: the first batch of a turn is not synced alone."""
    flusher = by_hand(bench)
    turn: list[Callable[[], None]] = []
    bench.store.call_soon = turn.append
    batch = 50_000

    def publish(batches: int) -> int:
        """Append batches, each with a request; return how many of them the flusher was asked for at once."""
        asked = bench.store.commits._asked_offset
        for _ in range(batches):
            bench.append("t", b"x" * batch, flush=False)
            bench.store.request_flush()
        return (bench.store.commits._asked_offset - asked) // batch

    def end_turn() -> None:
        for call in turn:
            call()
        turn.clear()
        finish_all(bench, flusher)

    assert publish(3) == 3, "nothing is usual yet"
    end_turn()  # one, and the two that came while it ran
    assert publish(1) == 0
    assert publish(1) == 2
    end_turn()
    assert publish(1) == 0
    end_turn()
    assert publish(1) == 0
    end_turn()
    assert publish(1) == 1, "a publisher with one batch at a time waits for nothing"


def test_replies_leave_in_the_order_of_the_log(bench: StoreBench) -> None:
    """A-STORE-43: replies leave, in each connection's order, when the fdatasync returns."""
    flusher = by_hand(bench)
    opened: list[Any] = []
    ends = [(bench.append("t", b"%d" % n, flush=False), bench.store.log.end_offset)[1] for n in range(5)]
    for n, end in enumerate(ends):
        bench.store.gate.wait(end, note(opened, str(n)))
    bench.store.gate.wait(ends[0], note(opened, "late"))
    bench.store.request_flush()
    finish_all(bench, flusher)
    assert [what for what, _ in opened] == ["0", "1", "2", "3", "4", "late"]
    bench.store.gate.wait(ends[-1], note(opened, "at once"))
    assert opened[-1] == ("at once", None)


def test_a_message_is_visible_when_it_is_durable(make_bench: MakeBench) -> None:
    """A-STORE-43, A-STORE-44: at level fsync a message is delivered only once it is durable; at async at once."""
    bench = make_bench()
    by_hand(bench)
    bench.append("t", b"body", flush=False)
    queue = bench.store.queue("t", 0)
    assert (queue.next_offset, queue.visible_offset) == (1, 0)
    assert queue.entries(0, 10) == []
    at = queue.position_of(0)
    assert bench.store.log.read(at) is not None
    assert [queue.position_of(offset) for offset in (-1, 1)] == [-1, -1]
    bench.store.request_flush()
    bench.append("t", b"while it runs", flush=False)
    bench.store.finish_flush()
    assert (queue.next_offset, queue.visible_offset) == (2, 1)
    assert queue.position_of(0) == queue.entries(0, 10)[0][0] == at
    relaxed = make_bench("relaxed", durability="async")
    relaxed.append("t", b"body", flush=False)
    assert relaxed.store.queue("t", 0).visible_offset == 1


def test_messages_that_left_memory_early_are_not_shown_early(bench: StoreBench) -> None:
    """A-STORE-43: entries of a backlog that the disk is behind with are written out, which makes none durable."""
    flusher = by_hand(bench)
    queue = bench.store.queue("t", 0)
    bench.append("t", b"first", flush=False)
    bench.store.request_flush()
    bench.append("t", *[b"%d" % number for number in range(600)], flush=False)
    queue.write_out()
    bench.store.finish_flush()
    assert (queue.visible_offset, len(bench.messages("t"))) == (1, 1)
    bench.store.request_flush()
    finish_all(bench, flusher)
    assert len(bench.messages("t")) == 601


def test_a_close_makes_everything_durable(make_bench: MakeBench) -> None:
    """A-STORE-44, X-NSQ-14: also what nobody waits for; a clean end says that all of it is there."""
    bench = make_bench(durability="async")
    flusher = by_hand(bench)
    bench.append("t", b"body", flush=False)
    end = bench.store.log.end_offset
    bench.store.close()
    assert [target for target, _ in flusher.requests] == [end]
    assert bench.store.durable_offset == end
    assert bench.store.mark.synced_offset == end  # else a power cut behind it would have a start miss a loss


def test_a_roll_syncs_both_segments(bench: StoreBench) -> None:
    """A segment roll syncs both segments, before anything in the new one counts as durable."""
    flusher = by_hand(bench)
    first = bench.store.log.active
    bench.append("t", *(b"x" * 1000 for _ in range(70)), flush=False)
    second = bench.store.log.active
    assert first is not None
    assert second is not None
    assert second.first_offset > first.first_offset
    bench.store.request_flush()
    assert [fd for _, fd in flusher.requests] == [first.fd, second.fd]
    bench.store.finish_flush()
    assert bench.store.durable_offset == 0
    bench.store.finish_flush()
    assert bench.store.durable_offset == bench.store.log.end_offset


def test_a_failed_fsync_stops_writes_for_good(bench: StoreBench) -> None:
    """A failed fsync stops writes for good; it is never retried. Whoever waits is told."""
    bench.append("t", b"safe")
    flusher = by_hand(bench)
    flusher.error = errno.EIO
    opened: list[Any] = []
    bench.append("t", b"unsafe", flush=False)
    bench.store.gate.wait(bench.store.log.end_offset, note(opened, "waiting"))
    bench.store.request_flush()
    bench.store.finish_flush()
    assert isinstance(bench.store.failure, FlushError)
    assert bench.store.failure.errno == errno.EIO
    assert [type(error) for _, error in opened] == [FlushError]
    with pytest.raises(FlushError, match="takes no more writes"):
        bench.append("t", b"more", flush=False)
    bench.store.gate.wait(bench.store.log.end_offset + 1, note(opened, "later"))
    assert opened[-1][0] == "later"
    assert isinstance(opened[-1][1], FlushError)
    bench.store.gate.wait(bench.store.durable_offset, note(opened, "made durable before"))
    assert opened[-1] == ("made durable before", None)
    bench.store.request_flush()
    assert len(flusher.requests) == 1
    assert bench.messages("t") == {0: b"safe"}
    bench.store.close()
    assert (bench.root / "abort").exists(), "a store that failed was not closed cleanly"
    bench.open()
    assert bench.messages("t")[0] == b"safe"


def mark_on_disk(bench: StoreBench) -> int:
    return decode_mark((bench.root / "headrace/durable").read_bytes())[1]


def test_the_durable_mark_is_noted_after_each_flush(bench: StoreBench) -> None:
    """The flusher notes, after each fdatasync, the physical offset it stands for."""
    for n in range(4):
        bench.append("t", b"%d" % n, flush=False)
        before = bench.store.durable_offset
        assert bench.store.mark.noted_offset == before
        bench.store.flush()
        assert mark_on_disk(bench) == bench.store.mark.noted_offset == bench.store.log.end_offset


def wait_for_mark(bench: StoreBench) -> None:
    job = bench.store._mark_job
    assert job is not None
    job.result()


def test_the_durable_mark_is_synced_at_most_a_second_behind(bench: StoreBench) -> None:
    """The note itself is synced lazily, at most 1 s behind."""
    bench.clock.advance_ms(5000)
    bench.append("t", b"one")
    bench.store.tick()
    wait_for_mark(bench)
    synced = bench.store.mark.synced_offset
    assert synced == bench.store.log.end_offset
    bench.append("t", b"two")
    bench.clock.advance_ms(500)
    bench.store.tick()
    assert bench.store.mark.synced_offset == synced
    bench.clock.advance_ms(500)
    bench.store.tick()
    wait_for_mark(bench)
    assert bench.store.mark.synced_offset == bench.store.log.end_offset


def test_what_a_start_has_made_durable_is_in_the_durable_mark_at_the_first_tick(bench: StoreBench) -> None:
    """The start notes it and does not wait for the disk: with a mark that is too low the next one writes more again."""
    bench.append("t", b"x" * 1_000, flush=False)
    bench.crash_and_open()
    assert bench.store.mark.noted_offset == bench.store.log.end_offset > 0
    bench.clock.advance_ms(1_000)
    bench.store.tick()
    wait_for_mark(bench)
    assert bench.store.mark.synced_offset == bench.store.log.end_offset


def test_the_durable_mark_is_synced_after_64_mib(bench: StoreBench) -> None:
    """At most 64 MiB behind."""
    bench.append("t", b"one")
    bench.store.mark.note(bench.store.mark.synced_offset + (64 << 20) - 1)
    bench.store.tick()
    assert bench.store._mark_job is None
    bench.store.mark.note(bench.store.mark.synced_offset + (64 << 20))
    bench.store.tick()
    wait_for_mark(bench)
    bench.store.mark.note(bench.store.log.end_offset)


def test_a_torn_note_leaves_the_one_before() -> None:
    """docs/formats/side-files.md, "durable": two slots, so a write torn by a power cut damages one."""
    slots = [layouts.encode_mark_slot(2, 2000), layouts.encode_mark_slot(3, 3000)]
    assert decode_mark(b"".join(slots)) == (3, 3000, False)
    for cut in range(24):
        torn = slots[1][:cut] + bytes(24 - cut)
        sequence, offset, is_damaged = decode_mark(slots[0] + torn)
        assert (sequence, offset) in {(2, 2000), (3, 3000)}
        assert not is_damaged
    assert decode_mark(b"") == (0, 0, False)
    assert decode_mark(b"\xff" * 48) == (0, 0, True)


def test_only_the_commit_log_is_preallocated(bench: StoreBench) -> None:
    """A full disk is an error code, never SIGBUS; views are sparse."""
    bench.append("t", b"one")
    bench.store.queue("t", 0).write_out()
    segment = bench.segment(0).stat()
    assert segment.st_size == bench.settings.segment_bytes
    assert segment.st_blocks * 512 >= segment.st_size
    big = StoreBench(bench.root.with_name("big"), queue_file_bytes=6_000_000)
    big.append("t", b"one")
    big.store.queue("t", 0).write_out()
    entries = (big.root / "consumequeue/t/0/00000000000000000000").stat()
    assert entries.st_size == 6_000_000
    assert entries.st_blocks * 512 <= 64 << 10
    big.close()
