"""What a channel's state keeps over a restart. Sections are those of docs/formats/channel-journal.md."""

from __future__ import annotations

import logging
import random
import struct

import pytest

from tests.support.channels import FINISH, NOT_IN_FLIGHT, Bench

PAGE = 32_768
ENTRY = struct.Struct("<qQQ")


def decode_state(state: bytes) -> list[tuple]:
    """Readable reference of the layout: every section as a tuple."""
    kind, version = state[0], state[1]
    assert kind in (1, 2)
    assert version == 1
    sections: list[tuple] = []
    at = 2
    while at < len(state):
        section = state[at]
        if section == 4:
            (count,) = struct.unpack_from("<I", state, at + 1)
            at += 5
            for _ in range(count):
                due, where, place = ENTRY.unpack_from(state, at)
                sections.append(("entry", place & 0xFFFF, place >> 16, where >> 16, where & 0xFFFF, due))
                at += ENTRY.size
            continue
        queue_id, number = struct.unpack_from("<Hq", state, at + 1)
        at += 11
        if section == 1:
            (cursor,) = struct.unpack_from("<q", state, at)
            sections.append(("position", queue_id, number, cursor))
            at += 8
        elif section == 2:
            (count,) = struct.unpack_from("<H", state, at)
            at += 2
            words = [struct.unpack_from("<HQ", state, at + 10 * i) for i in range(count)]
            sections.append(("words", queue_id, number, words))
            at += 10 * count
        else:
            sections.append(({3: "full", 5: "cut"}[section], queue_id, number))
    return sections


def deliver_all(bench: Bench, count: int) -> tuple:
    sub = bench.subscribe(count)
    taken = []
    while got := bench.take(sub, 10_000):
        taken += got
    return sub, [message_id for message_id, _, _ in taken]


def test_nothing_changed_nothing_to_write() -> None:
    bench = Bench()
    bench.publish(3)
    assert bench.channel.take_changes() is None
    sub = bench.subscribe(1)
    bench.take(sub)
    assert bench.channel.take_changes() is None


def test_finishing_in_order_costs_one_position() -> None:
    """Cost proportional to what changed: 1,000 FINs in order are one floor."""
    bench = Bench()
    bench.publish(1_000)
    sub, ids = deliver_all(bench, 1_000)
    bench.finish(sub, *ids[:900])
    state = bench.channel.take_changes()
    assert state is not None
    assert decode_state(state) == [("position", 0, 900, 1_000)]
    assert len(state) == 21


def test_finishing_ahead_costs_one_word() -> None:
    bench = Bench()
    bench.publish(200)
    sub, ids = deliver_all(bench, 200)
    bench.finish(sub, *ids[64:128])
    state = bench.channel.take_changes()
    assert state is not None
    assert decode_state(state) == [("position", 0, 0, 200), ("words", 0, 0, [(1, (1 << 64) - 1)])]
    bench.finish(sub, ids[130])
    state = bench.channel.take_changes()
    assert state is not None
    assert decode_state(state)[1] == ("words", 0, 0, [(2, 1 << 2)])


def test_requeue_and_time_out_are_recorded() -> None:
    bench = Bench()
    ids = bench.publish(3)
    sub = bench.subscribe(3, msg_timeout_ms=100)
    bench.take(sub)
    bench.requeue(sub, ids[0], 5_000)
    bench.requeue(sub, ids[1])
    bench.advance(100)
    state = bench.channel.take_changes()
    assert state is not None
    physical = [message_id & (1 << 48) - 1 for message_id in ids]
    assert decode_state(state) == [
        ("entry", 0, 0, physical[0], 1, bench.now - 100 + 5_000),
        ("entry", 0, 1, physical[1], 1, 0),
        ("entry", 0, 2, physical[2], 1, 0),
    ]


@pytest.mark.parametrize("as_snapshot", [False, True])
def test_pages_survive(as_snapshot: bool) -> None:
    """Words and full pages, written and read back; then the rest is delivered, each once."""
    bench = Bench()
    count = 4 * PAGE + 100
    bench.publish(count)
    sub, ids = deliver_all(bench, count)
    draw = random.Random(3)
    done = {i for i in range(count) if PAGE <= i < 2 * PAGE or (i > 2 * PAGE + 7 and draw.random() < 0.5)} | {0, 1}
    changes = []
    for part in range(3):
        bench.finish(sub, *(ids[i] for i in sorted(done) if i % 3 == part))
        state = bench.channel.take_changes()
        assert state is not None
        changes.append(state)
    (snapshot,) = bench.channel.snapshot_parts()
    assert ("full", 0, 1) in decode_state(snapshot)
    assert sum(map(len, changes)) < 3 * 4 * 5_200
    if as_snapshot:
        bench.restart([snapshot])
        expected_attempts = 2  # it was in flight when the snapshot was taken
    else:
        bench.restart(changes)
        expected_attempts = 1
    assert bench.channel.depth == count - len(done)
    sub = bench.subscribe(count)
    taken = []
    while got := bench.take(sub, 10_000):
        taken += got
    assert sorted(offset for _, offset, _ in taken) == sorted(set(range(count)) - done)
    assert {attempts for _, _, attempts in taken} == {expected_attempts}
    bench.settle(sub, *((FINISH, message_id) for message_id, _, _ in taken))
    assert bench.channel.position(0) == (count, count)


def test_a_skipped_range_survives() -> None:
    """nsq.md 2.1: pages of what an emptied topic dropped, behind a message in flight, stay dropped after a crash."""
    bench = Bench()
    count = 3 * PAGE + 200
    bench.publish(count)
    sub = bench.subscribe()
    assert bench.offsets(sub, 1) == [0]
    bench.channel.set_limit(0, 2)
    assert bench.channel.skip_range(0, 10, count - 1) == count - 11
    changes = bench.channel.take_changes()
    assert changes is not None
    assert [section[:3] for section in decode_state(changes) if section[0] == "full"] == [
        ("full", 0, 1), ("full", 0, 2),
    ]  # fmt: skip
    bench.restart([changes])
    assert bench.offsets(bench.subscribe(20)) == [*range(10), count - 1]


def test_crash_makes_unrecorded_messages_deliverable_again() -> None:
    """After a crash messages may be redelivered, never lost; recorded attempts and delays are kept."""
    bench = Bench()
    ids = bench.publish(6)
    sub = bench.subscribe(6)
    bench.take(sub)
    bench.finish(sub, ids[1])
    bench.requeue(sub, ids[2], 5_000)
    bench.requeue(sub, ids[3])
    state = bench.channel.take_changes()
    assert state is not None
    bench.finish(sub, ids[0], ids[4])  # not written any more
    bench.restart([state])
    assert (bench.channel.depth, bench.channel.deferred_count, bench.channel.message_count) == (4, 1, 0)
    assert bench.channel.position(0) == (0, 0)
    sub = bench.subscribe(10)
    assert [(offset, attempts) for _, offset, attempts in bench.take(sub)] == [(0, 1), (4, 1), (5, 1), (3, 2)]
    bench.advance(5_000)
    assert [(offset, attempts) for _, offset, attempts in bench.take(sub)] == [(2, 2)]


@pytest.mark.parametrize("is_gone", [False, True])
def test_graceful_exit_keeps_attempts_of_what_is_in_flight(is_gone: bool) -> None:
    """nsq.md 2.2: attempts kept also over a graceful restart, which closes the connections first."""
    bench = Bench()
    bench.publish(2)
    sub = bench.subscribe(2)
    bench.take(sub)
    if is_gone:
        bench.channel.unsubscribe(sub)
    bench.restart(list(bench.channel.snapshot_parts()))
    assert bench.finish(bench.subscribe(), 1) == [NOT_IN_FLIGHT]
    assert [(offset, attempts) for _, offset, attempts in bench.take(bench.subscribe(2))] == [(0, 2), (1, 2)]


def test_states_may_be_applied_twice() -> None:
    """Changes taken after a snapshot was begun may repeat what the snapshot has."""
    bench = Bench()
    ids = bench.publish(5)
    sub = bench.subscribe(5)
    bench.take(sub)
    bench.requeue(sub, ids[0], 700)
    bench.finish(sub, ids[2])
    (snapshot,) = bench.channel.snapshot_parts()
    changes = bench.channel.take_changes()
    assert changes is not None
    bench.restart([snapshot, changes, changes])
    assert (bench.channel.depth, bench.channel.deferred_count) == (3, 1)


def test_positions_beyond_the_end_are_dropped_for_good() -> None:
    """Every view that points beyond the end is clamped and counted."""
    bench = Bench()
    ids = bench.publish(10)
    sub = bench.subscribe(10)
    bench.take(sub)
    bench.finish(sub, *ids[:6], ids[8])
    bench.requeue(sub, ids[7], 1_000)
    state = bench.channel.take_changes()
    assert state is not None
    bench.queues[0].pretend_end(4)
    bench.restart([state])
    assert bench.clamped == [4]  # 4, 5, 8 finished, 7 deferred
    assert bench.channel.position(0) == (4, 4)
    cut = bench.channel.take_changes()
    assert cut is not None
    assert decode_state(cut)[0] == ("cut", 0, 4)
    bench.queues[0].pretend_end(10)  # the queue grows again
    bench.restart([state, cut])
    assert bench.clamped == [0]
    assert bench.channel.depth == 6
    assert bench.offsets(bench.subscribe(10)) == [4, 5, 6, 7, 8, 9]


def test_start_offset_above_the_state_wins() -> None:
    """A channel that was deleted and made again does not go back."""
    bench = Bench()
    ids = bench.publish(10)
    sub = bench.subscribe(10)
    bench.take(sub)
    bench.finish(sub, ids[0])
    bench.requeue(sub, ids[3], 1_000)
    state = bench.channel.take_changes()
    assert state is not None
    bench.channel = bench.new_channel([state], start_offset=8)
    assert (bench.channel.depth, bench.channel.deferred_count) == (2, 0)


def test_damaged_state_leads_to_redelivery(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    ids = bench.publish(4)
    sub = bench.subscribe(4)
    bench.take(sub)
    bench.finish(sub, ids[0])
    good = bench.channel.take_changes()
    bench.finish(sub, ids[1], ids[3])
    bad = bench.channel.take_changes()
    assert good is not None
    assert bad is not None
    with caplog.at_level(logging.WARNING):
        bench.restart([good, bad[:-3], b"", b"\1\x09"])
    assert caplog.text.count("channel state damaged topic=t channel=c") == 3
    assert bench.channel.position(0)[0] == 2
    assert bench.channel.depth == 2


def test_ephemeral_channel_records_nothing() -> None:
    """C-LIFE: `#ephemeral` channels are never on disk."""
    bench = Bench(ephemeral=True)
    ids = bench.publish(2)
    sub = bench.subscribe(2)
    bench.take(sub)
    bench.requeue(sub, ids[0], 100)
    bench.finish(sub, ids[1])
    assert bench.channel.take_changes() is None


def test_spilled_deferrals_are_in_the_snapshot_and_come_back(tmp_path) -> None:
    bench = Bench(max_deferred_in_memory=10, spill_directory=tmp_path / "spill")
    ids = bench.publish(100)
    sub = bench.subscribe(100)
    bench.take(sub)
    for i, message_id in enumerate(ids):
        bench.requeue(sub, message_id, 60_000 + i)
    assert list((tmp_path / "spill").iterdir())
    assert bench.channel.deferred_count == 100
    (snapshot,) = bench.channel.snapshot_parts()
    assert sum(section[0] == "entry" for section in decode_state(snapshot)) == 100
    bench.advance(60_050)
    assert bench.channel.depth == 51
    bench.restart([snapshot])
    bench.advance(60_000)
    assert sorted(bench.offsets(bench.subscribe(200))) == list(range(100))
    bench.channel.close()
    assert not (tmp_path / "spill").exists()


def test_what_is_read_back_from_a_file_during_a_snapshot_is_in_it(tmp_path) -> None:
    """Left out, it would come at once and as if for the first time."""
    bench = Bench(max_deferred_in_memory=10, spill_directory=tmp_path / "spill")
    ids = bench.publish(400)
    sub = bench.subscribe(400, msg_timeout_ms=10**9)
    bench.take(sub)
    for number, message_id in enumerate(ids):
        bench.requeue(sub, message_id, 100_000 if number % 2 else 40_000_000)
    bench.channel.take_changes()
    parts = bench.channel.snapshot_parts(1)
    states = [next(parts)]
    bench.advance(70_000)  # half of them move to where they are due within seconds
    bench.restart([*states, *parts])
    assert (bench.channel.deferred_count, bench.channel.depth) == (400, 0)
    bench.advance(40_000_000)
    taken = bench.take(bench.subscribe(400))
    assert sorted((found, attempts) for found, _, attempts in taken) == [(message_id, 2) for message_id in ids]


def test_retention_during_a_snapshot_takes_no_delay_from_it() -> None:
    """What is deferred and evicted is given up where it is much, but not while a snapshot says what there is."""
    bench = Bench()
    ids = bench.publish(6_000)
    sub = bench.subscribe(6_000, msg_timeout_ms=10**9)
    bench.take(sub, 6_000)
    for message_id in ids:
        bench.requeue(sub, message_id, 600_000)
    bench.channel.take_changes()
    parts = bench.channel.snapshot_parts(100)
    states = [next(parts)]
    bench.queues[0].remove_below(5_990)
    assert bench.take(sub) == []
    bench.restart([*states, *parts])
    sub = bench.subscribe(6_000)
    assert bench.take(sub) == []
    assert bench.channel.deferred_count == 10
    bench.advance(600_000)
    assert [attempts for _, _, attempts in bench.take(sub)] == [2] * 10


@pytest.mark.parametrize("seed", range(6))
def test_snapshot_in_parts_while_time_passes(tmp_path, seed: int) -> None:
    """Nothing is missing from the parts and the changes since, whatever moved between buckets meanwhile."""
    draw = random.Random(seed)
    bench = Bench(max_deferred_in_memory=[100, 10_000][seed % 2], spill_directory=tmp_path / "spill")
    ids = bench.publish(2_000)
    sub = bench.subscribe(2_000, msg_timeout_ms=10**9)
    bench.take(sub, 2_000)
    due = {}
    for message_id in ids:
        delay = draw.choice([20_000, 600_000, 30_000_000, 3_000_000_000])
        due[message_id] = bench.now + draw.randrange(1, delay)
        bench.requeue(sub, message_id, due[message_id] - bench.now)
    bench.channel.take_changes()
    parts, finished, changes = [], set(), []
    for part in bench.channel.snapshot_parts(100):
        parts.append(part)
        bench.advance(draw.choice([1, 3_000, 50_000, 2_000_000]))
        for message_id, _, _ in bench.take(sub, 50):
            assert due[message_id] <= bench.now
            if draw.random() < 0.5:
                finished.add(message_id)
                bench.finish(sub, message_id)
            elif draw.random() < 0.5:
                due[message_id] = bench.now + 90_000
                bench.requeue(sub, message_id, 90_000)
        state = bench.channel.take_changes()
        if state is not None:
            changes.append(state)
    assert len(parts) > 5
    bench.restart(parts + changes)
    assert bench.channel.depth + bench.channel.deferred_count == 2_000 - len(finished)
    sub = bench.subscribe(3_000, msg_timeout_ms=10**10)
    taken: set[int] = set()
    for step in [1, 10_000, 100_000, 1_000_000, 40_000_000, 4_000_000_000]:
        bench.advance(step)
        for message_id, _, _ in bench.take(sub, 3_000):
            assert due[message_id] <= bench.now
            assert message_id not in taken | finished
            taken.add(message_id)
    assert taken | finished == set(ids)


@pytest.mark.parametrize("seed", range(8))
def test_snapshot_in_parts_of_what_is_ready_or_due_soon(seed: int) -> None:
    """All that was delivered before comes with an attempt more, and not early, whatever moved between the parts."""
    draw = random.Random(seed)
    bench = Bench()
    ids = bench.publish(600)
    sub = bench.subscribe(600, msg_timeout_ms=10**9)
    bench.take(sub)
    due = dict.fromkeys(ids, 0)

    def hand_back(message_id: int) -> None:
        delay = draw.choice([0, 0, draw.randrange(1, 6_000)])
        due[message_id] = bench.now + delay if delay else 0
        bench.requeue(sub, message_id, delay)

    for message_id in draw.sample(ids, 500):
        hand_back(message_id)
    bench.channel.take_changes()
    sizes, parts, finished, changes = [], [], set(), []
    for part in bench.channel.snapshot_parts(20):
        parts.append(part)
        sizes.append(len(part))
        bench.advance(draw.randrange(100))
        for message_id, _, _ in bench.take(sub, draw.randrange(30)):
            if draw.random() < 0.3:
                finished.add(message_id)
                bench.finish(sub, message_id)
            elif draw.random() < 0.5:
                hand_back(message_id)
        state = bench.channel.take_changes()
        if state is not None:
            changes.append(state)
    assert len(parts) > 20
    assert max(sizes[:-1]) < 80 * 24
    bench.restart(parts + changes)
    sub = bench.subscribe(600, msg_timeout_ms=10**9)
    taken = set()
    while bench.channel.depth + bench.channel.deferred_count:
        bench.advance(100)
        for message_id, _, attempts in bench.take(sub):
            assert attempts > 1
            assert due[message_id] <= bench.now
            taken.add(message_id)
    assert not taken & finished
    assert taken | finished == set(ids)


def test_lost_spill_file_leads_to_early_redelivery(tmp_path) -> None:
    """Redelivery, never loss: also when a spill file is damaged while the broker runs."""
    bench = Bench(max_deferred_in_memory=10, spill_directory=tmp_path / "spill")
    ids = bench.publish(100)
    sub = bench.subscribe(100, msg_timeout_ms=900_000)
    bench.take(sub)
    for message_id in ids[:80]:
        bench.requeue(sub, message_id, 60_000)
    bench.finish(sub, *ids[80:90])
    for path in (tmp_path / "spill").iterdir():
        path.write_bytes(b"\0" * path.stat().st_size)
    woken = bench.advance(30_000) + bench.advance(29_000) + bench.advance(1_000)
    assert woken == 80, "whoever calls expire() must hear of them, or idle consumers get them later"
    assert sorted(bench.offsets(bench.subscribe(200))) == list(range(80))
    bench.finish(sub, *ids[90:])
    assert bench.channel.in_flight_count == 80
    assert bench.channel.deferred_count == 0


def test_bound_of_deferrals_in_memory_holds_after_an_empty(tmp_path) -> None:
    """What is put back into the deferred set must not make it take hours for seconds: those are never spilled."""
    bench = Bench(max_deferred_in_memory=10, spill_directory=tmp_path / "spill")
    ids = bench.publish(101)
    sub = bench.subscribe(200)
    bench.take(sub)
    bench.requeue(sub, ids[100], 3_600_000)
    assert bench.channel.empty({0: 100}, now_ms=bench.now) == 100
    bench.publish(100)
    for message_id, _, _ in bench.take(sub):
        bench.requeue(sub, message_id, 600_000)
    assert list((tmp_path / "spill").iterdir())
    assert bench.advance(600_000) == 100
    assert bench.advance(3_000_000) == 1
