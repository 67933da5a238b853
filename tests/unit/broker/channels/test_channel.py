"""Rules of message delivery, one test each. Sections are those of the NSQ specification (nsq.md)."""

from __future__ import annotations

import pytest

from headrace.broker.channels.channel import Channel
from tests.support.channels import (
    COLD,
    DAMAGED,
    FINISH,
    GONE,
    NODE_ID,
    NOT_IN_FLIGHT,
    NOT_OWNER,
    OK,
    REQUEUE,
    Bench,
)


def test_queues_out_of_order_are_refused() -> None:
    """What is settled is looked up by the queue's id: of another queue it would finish other messages."""
    bench = Bench(queues=3)
    channel = Channel("c", "t", **bench.options)
    channel.add_queue(bench.queues[0], 0)
    with pytest.raises(ValueError, match="queue 2 comes after 1 queues"):
        channel.add_queue(bench.queues[2], 0)
    channel.add_queue(bench.queues[1], 0)
    assert channel.position(1) == (0, 0)


def test_every_message_is_delivered_once_in_order() -> None:
    """nsq.md 2.2: READY to IN-FLIGHT."""
    bench = Bench()
    ids = bench.publish(5)
    a, b = bench.subscribe(3), bench.subscribe(3)
    assert bench.take(a) == [(ids[i], i, 1) for i in range(3)]
    assert bench.offsets(b) == [3, 4]
    assert (bench.channel.depth, bench.channel.in_flight_count, bench.channel.message_count) == (0, 5, 5)


def test_ready_count_is_a_sticky_window() -> None:
    """C-FLOW-09; nsq.md 1.8: after two FINs two more come with no new RDY."""
    bench = Bench()
    ids = bench.publish(6)
    sub = bench.subscribe(2)
    assert bench.offsets(sub) == [0, 1]
    assert bench.offsets(sub) == []
    assert bench.finish(sub, ids[0], ids[1]) == [OK, OK]
    assert bench.offsets(sub) == [2, 3]
    sub.ready_count = 1
    assert bench.offsets(sub) == []
    assert (sub.message_count, sub.finish_count, sub.in_flight_count) == (4, 2, 2)
    assert (bench.channel.delivered_count, bench.channel.finish_count) == (4, 2)


@pytest.mark.parametrize(("most", "expected"), [(0, []), (1, [0]), (3, [0, 1, 2])])
def test_never_more_than_asked_for(most: int, expected: list[int]) -> None:
    bench = Bench()
    bench.publish(5)
    assert bench.offsets(bench.subscribe(10), most) == expected


def test_byte_budget_lets_at_least_one_message_through() -> None:
    bench = Bench()
    bench.publish(3, body=b"x" * 500)
    sub = bench.subscribe()
    assert len(bench.take(sub, max_bytes=1)) == 1
    assert len(bench.take(sub, max_bytes=1_400)) == 2


def test_paused_channel_delivers_nothing_but_settles() -> None:
    """B-LMQ-18; nsq.md 2.1: pause channel."""
    bench = Bench()
    ids = bench.publish(3)
    sub = bench.subscribe(1)
    bench.take(sub)
    bench.channel.paused = True
    assert bench.finish(sub, ids[0]) == [OK]
    assert bench.take(sub) == []
    assert bench.channel.ready_subscriptions == []
    assert not bench.channel.has_ready()
    bench.channel.paused = False
    assert bench.offsets(sub) == [1]


def test_paused_topic_limits_what_enters() -> None:
    """B-LMQ-13, B-LMQ-18, X-NSQ-05; nsq.md 2.1: pause topic."""
    bench = Bench()
    bench.publish(3)
    bench.channel.set_limit(0, 2)
    sub = bench.subscribe()
    assert bench.channel.depth == 2
    assert bench.offsets(sub) == [0, 1]
    assert not bench.channel.has_ready()
    bench.channel.set_limit(0, -1)
    assert bench.channel.has_ready()
    assert bench.offsets(sub) == [2]


def test_only_visible_messages_are_delivered() -> None:
    """At level fsync a message is delivered only once it is durable."""
    bench = Bench()
    bench.publish(3)
    bench.queues[0].hide(2)
    sub = bench.subscribe()
    assert bench.offsets(sub) == [0]
    bench.queues[0].hide(0)
    assert bench.offsets(sub) == [1, 2]


def test_ready_subscriptions_rotate_and_need_an_open_window() -> None:
    """X-NSQ-06."""
    bench = Bench()
    bench.publish(1)
    a, b, c = (bench.subscribe(1) for _ in range(3))
    first = [bench.channel.ready_subscriptions[0] for _ in range(6)]
    assert first[:3] == first[3:]
    assert {sub.id for sub in first} == {a.id, b.id, c.id}
    b.writable = False
    c.ready_count = 0
    assert bench.channel.ready_subscriptions == [a]
    bench.take(a)
    assert bench.channel.ready_subscriptions == []


def test_finish_of_unknown_or_foreign_message_fails() -> None:
    """C-REL-03; nsq.md 1.11: ID not in flight; client does not own message."""
    bench = Bench()
    ids = bench.publish(2)
    a, b = bench.subscribe(1), bench.subscribe(1)
    bench.take(a)
    bench.take(b)
    assert bench.finish(b, ids[0], ids[1], ids[1]) == [NOT_OWNER, OK, NOT_IN_FLIGHT]
    assert bench.finish(a, ids[0] ^ 1 << 48, 12345) == [NOT_IN_FLIGHT, NOT_IN_FLIGHT]
    assert bench.finish(a, ids[0]) == [OK]
    assert bench.channel.position(0) == (2, 2)


def test_requeue_at_once_goes_to_the_tail_and_counts_an_attempt() -> None:
    """X-STORE-03, C-REL-04; nsq.md 2.2."""
    bench = Bench()
    ids = bench.publish(2)
    sub = bench.subscribe(2)
    bench.take(sub)
    assert bench.requeue(sub, ids[1]) == OK
    assert bench.requeue(sub, ids[0]) == OK
    assert bench.channel.depth == 2
    assert bench.take(sub) == [(ids[1], 1, 2), (ids[0], 0, 2)]
    assert (bench.channel.requeue_count, sub.requeue_count, bench.channel.timeout_count) == (2, 2, 0)


@pytest.mark.parametrize("comes_back", ["requeue", "time-out", "due"])
def test_what_comes_back_again_and_again_does_not_stop_what_waits_behind_it(comes_back: str) -> None:
    """nsq.md 2.2: nsqd puts it behind the rest; here the two take turns, so neither waits for the other's end."""
    bench = Bench()
    ids = bench.publish(1)
    sub = bench.subscribe(1, msg_timeout_ms=1_000)
    bench.take(sub)
    bench.publish(5)
    seen = []
    for _ in range(12):
        if comes_back == "requeue":
            bench.requeue(sub, ids[0])
        elif comes_back == "due":
            bench.requeue(sub, ids[0], 50)
            bench.advance(50)
        else:
            bench.advance(1_000)
        ((message_id, offset, _),) = bench.take(sub)
        seen.append(offset)
        if offset:
            bench.finish(sub, message_id)
    assert seen == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 0, 0]


@pytest.mark.parametrize(("window", "expected"), [(4, [6, 7, 0, 1]), (5, [6, 7, 8, 0, 1]), (12, None)])
def test_a_window_is_shared_by_what_is_new_and_what_came_back(window: int, expected: list[int] | None) -> None:
    """Half for each while both have that many; the rest of the window goes to who has more."""
    bench = Bench()
    ids = bench.publish(9)
    sub = bench.subscribe(6)
    bench.take(sub)
    for message_id in ids[:6]:
        bench.requeue(sub, message_id)
    sub.ready_count = window
    assert bench.offsets(sub) == (expected or [6, 7, 8, 0, 1, 2, 3, 4, 5])


def test_large_messages_that_come_back_take_turns_with_new_ones() -> None:
    """The same where a byte budget has room for one message only."""
    bench = Bench()
    ids = bench.publish(4, body=b"x" * 500)
    sub = bench.subscribe(10)
    bench.take(sub, most=2)
    for message_id in ids[:2]:
        bench.requeue(sub, message_id)
    offsets = []
    for _ in range(4):
        taken = bench.take(sub, max_bytes=1)
        offsets += [offset for _, offset, _ in taken]
    assert sorted(offsets) == [0, 1, 2, 3]
    assert offsets not in ([0, 1, 2, 3], [2, 3, 0, 1])


@pytest.mark.parametrize("queues", [2, 3, 4, 6])
@pytest.mark.parametrize(("window", "max_bytes"), [(1, 1 << 30), (100, 1)])
def test_queues_take_turns_beside_what_comes_back(queues: int, window: int, max_bytes: int) -> None:
    """A channel reads all queues, also where every other turn is a message that came back."""
    bench = Bench(queues=queues)
    ids = bench.publish(1)
    sub = bench.subscribe(window)
    bench.take(sub)
    queue_of = {
        message_id: queue_id for queue_id in range(queues) for message_id in bench.publish(9, queue_id=queue_id)
    }
    seen: list[int] = []
    while len(seen) < 2 * queues:
        bench.requeue(sub, ids[0])
        ((message_id, _, _),) = bench.take(sub, max_bytes=max_bytes)
        if message_id != ids[0]:
            seen.append(queue_of[message_id])
            bench.finish(sub, message_id)
    assert sorted(seen[:queues]) == sorted(seen[queues:]) == list(range(queues))


def test_cold_record_on_one_side_does_not_stop_the_other() -> None:
    """What is in memory goes out while the log reads ahead for the rest."""
    for cold in (0, 1):
        bench = Bench()
        ids = bench.publish(2)
        sub = bench.subscribe(2)
        bench.take(sub, most=1)
        bench.requeue(sub, ids[0])
        bench.log.outcomes[bench.queues[0].entry(cold)] = COLD
        assert bench.offsets(sub) == [1 - cold]
        assert bench.channel.stopped_cold
        bench.log.outcomes.clear()
        assert bench.offsets(sub) == [cold]


def test_requeue_with_delay_is_deferred_until_due() -> None:
    """X-NSQ-19, C-REL-05: delivered after, not before, the time."""
    bench = Bench()
    ids = bench.publish(1)
    sub = bench.subscribe()
    bench.take(sub)
    bench.requeue(sub, ids[0], 2_000)
    assert (bench.channel.deferred_count, bench.channel.depth, bench.channel.in_flight_count) == (1, 0, 0)
    assert bench.channel.next_due_ms() == bench.now + 2_000
    assert bench.finish(sub, ids[0]) == [NOT_IN_FLIGHT]
    assert bench.advance(1_999) == 0
    assert bench.take(sub) == []
    assert bench.advance(1) == 1
    assert bench.take(sub) == [(ids[0], 0, 2)]
    assert bench.channel.next_due_ms() == -1


def test_time_out_makes_ready_again() -> None:
    """B-LMQ-23, C-SCAN-08; nsq.md 2.2: timeout_count, not requeue_count; the owner's window opens."""
    bench = Bench()
    ids = bench.publish(1)
    sub = bench.subscribe(1, msg_timeout_ms=1_000)
    bench.take(sub)
    assert bench.channel.next_deadline_ms() == bench.now + 1_000
    assert bench.advance(999) == 0
    assert bench.advance(1) == 1
    assert (sub.in_flight_count, bench.channel.timeout_count, bench.channel.requeue_count) == (0, 1, 0)
    assert bench.channel.next_deadline_ms() == -1
    assert bench.finish(sub, ids[0]) == [NOT_IN_FLIGHT]
    assert bench.take(sub) == [(ids[0], 0, 2)]


def test_deadline_is_the_clients_own() -> None:
    """C-REL-01; nsq.md 2.2: delivery + the client's msg_timeout."""
    bench = Bench()
    bench.publish(2)
    slow, fast = bench.subscribe(1, msg_timeout_ms=5_000), bench.subscribe(1, msg_timeout_ms=1_000)
    bench.take(slow)
    bench.take(fast)
    assert bench.advance(1_000) == 1
    assert (slow.in_flight_count, fast.in_flight_count) == (1, 0)


def test_touch_extends_up_to_the_cap() -> None:
    """C-REL-06; nsq.md 1.11: never later than delivery time + max_msg_timeout."""
    bench = Bench(max_msg_timeout_ms=2_500)
    ids = bench.publish(1)
    sub = bench.subscribe(1, msg_timeout_ms=1_000)
    start = bench.now
    bench.take(sub)
    for expected in (1_900, 2_500, 2_500):
        bench.advance(900 if bench.now < start + 1_800 else 100)
        assert bench.touch(sub, ids[0]) == OK
        assert bench.channel.next_deadline_ms() == min(bench.now + 1_000, start + 2_500)
        assert bench.channel.next_deadline_ms() <= start + max(expected, 2_500)
    assert bench.advance(start + 2_499 - bench.now) == 0
    assert bench.advance(1) == 1


def test_touch_with_cap_keeps_deadlines_in_order() -> None:
    bench = Bench(max_msg_timeout_ms=1_500)
    ids = bench.publish(3)
    sub = bench.subscribe(3, msg_timeout_ms=1_000)
    start = bench.now
    bench.take(sub, 1)
    bench.advance(800)
    bench.take(sub, 2)
    bench.touch(sub, ids[0])  # capped at start + 1500, before the others' start + 1800
    assert bench.channel.next_deadline_ms() == start + 1_500
    assert bench.advance(700) == 1
    assert bench.take(sub) == [(ids[0], 0, 2)]


def test_messages_of_an_ended_subscription_come_back_by_time_out() -> None:
    """nsq.md 2.1: client disconnect; C-PROTO-11."""
    bench = Bench()
    ids = bench.publish(2)
    sub = bench.subscribe(2, msg_timeout_ms=1_000)
    bench.take(sub)
    bench.channel.unsubscribe(sub)
    bench.channel.unsubscribe(sub)
    assert sub.owner is None
    other = bench.subscribe(2)
    assert bench.take(other) == []
    assert bench.channel.in_flight_count == 2
    assert bench.channel.next_deadline_ms() == bench.now + 1_000  # nobody else would wake it
    assert bench.finish(other, ids[0]) == [NOT_OWNER]
    assert bench.advance(1_000) == 2
    assert [attempts for _, _, attempts in bench.take(other)] == [2, 2]
    assert bench.take(sub) == []


def test_empty_drops_ready_in_flight_and_deferred() -> None:
    """nsq.md 2.1: later FINs get ID not in flight."""
    bench = Bench()
    ids = bench.publish(5)
    sub = bench.subscribe(3)
    bench.take(sub)
    bench.requeue(sub, ids[0], 1_000)
    bench.requeue(sub, ids[1])
    assert bench.channel.empty() == 5
    assert (bench.channel.depth, bench.channel.in_flight_count, bench.channel.deferred_count) == (0, 0, 0)
    assert sub.in_flight_count == 0
    assert bench.finish(sub, ids[2]) == [NOT_IN_FLIGHT]
    assert bench.advance(100_000) == 0
    bench.publish(1)
    assert bench.offsets(sub) == [5]


def test_empty_with_limits_keeps_what_lies_above() -> None:
    bench = Bench()
    ids = bench.publish(6)
    sub = bench.subscribe(6)
    bench.take(sub)
    bench.requeue(sub, ids[1], 1_000)
    bench.requeue(sub, ids[4], 1_000)
    bench.requeue(sub, ids[5])
    assert bench.channel.empty({0: 3}) == 3
    assert (bench.channel.in_flight_count, bench.channel.deferred_count, bench.channel.depth) == (0, 1, 2)
    bench.advance(1_000)
    assert sorted(bench.offsets(sub)) == [3, 4, 5]


def test_empty_of_a_paused_topic_takes_what_was_in_the_channel() -> None:
    bench = Bench()
    bench.publish(5)
    sub = bench.subscribe(4)
    bench.take(sub)
    bench.channel.set_limit(0, 2)
    assert bench.channel.empty() == 4
    assert bench.channel.in_flight_count == 0
    bench.channel.set_limit(0, -1)
    assert bench.offsets(sub) == [4]


def test_empty_reaches_what_is_not_readable_yet() -> None:
    bench = Bench()
    bench.publish(5)
    bench.queues[0].hide(3)
    sub = bench.subscribe()
    bench.take(sub)
    assert bench.channel.empty({0: 4}) == 4
    assert (bench.channel.depth, bench.channel.in_flight_count) == (0, 0)
    bench.queues[0].hide(0)
    assert bench.offsets(sub) == [4]


def test_skipped_range_is_never_delivered() -> None:
    """nsq.md 2.1: empty topic drops what waits in the topic only."""
    bench = Bench()
    ids = bench.publish(10)
    sub = bench.subscribe()
    bench.take(sub, 2)
    assert bench.channel.skip_range(0, 4, 7) == 3
    assert bench.channel.depth == 5
    assert bench.channel.skip_range(0, 0, 3) == 1
    taken = bench.take(sub)
    assert [offset for _, offset, _ in taken] == [3, 7, 8, 9]
    bench.finish(sub, *ids[:2], *(message_id for message_id, _, _ in taken))
    assert bench.channel.position(0) == (10, 10)


def test_message_with_a_delay_is_deferred_in_the_channel() -> None:
    """X-NSQ-05, C-FLOW-06: DPUB; delivered after the delay with one attempt."""
    bench = Bench()
    bench.publish(1, deliver_at_ms=bench.now + 2_000)
    bench.publish(1)
    sub = bench.subscribe()
    assert bench.offsets(sub) == [1]
    assert bench.channel.deferred_count == 1
    assert bench.advance(1_999) == 0
    assert bench.advance(1) == 1
    assert [(offset, attempts) for _, offset, attempts in bench.take(sub)] == [(0, 1)]


def test_message_whose_delay_has_passed_is_delivered_at_once() -> None:
    bench = Bench()
    bench.publish(1, deliver_at_ms=bench.now - 1)
    assert bench.offsets(bench.subscribe()) == [0]


def test_noted_delay_shows_without_a_consumer() -> None:
    """nsq.md 2.4: deferred_count."""
    bench = Bench()
    bench.publish(2)
    bench.publish(1, deliver_at_ms=bench.now + 500)
    bench.publish(1)
    assert bench.channel.defer(0, 2, bench.queues[0].entry(2), bench.now + 500, bench.now)
    assert not bench.channel.defer(0, 2, bench.queues[0].entry(2), bench.now + 500, bench.now)
    assert (bench.channel.deferred_count, bench.channel.depth) == (1, 3)
    sub = bench.subscribe()
    assert bench.offsets(sub) == [0, 1, 3]
    assert not bench.channel.defer(0, 2, bench.queues[0].entry(2), bench.now + 500, bench.now)
    assert bench.advance(500) == 1
    assert bench.offsets(sub) == [2]


def test_sample_rate_drops_for_good() -> None:
    """C-FLOW-12, X-NSQ-10; nsq.md 1.8: dropped messages are finished and not in flight."""
    bench = Bench(seed=42)
    bench.publish(1_000)
    sub = bench.subscribe(2_000, sample_rate=10)
    taken = bench.take(sub, 2_000)
    assert 60 < len(taken) < 140
    assert (bench.channel.depth, bench.channel.in_flight_count) == (0, len(taken))
    bench.finish(sub, *(message_id for message_id, _, _ in taken))
    assert bench.channel.position(0) == (1_000, 1_000)


def test_a_sample_rate_is_the_percentage_that_is_delivered() -> None:
    """X-NSQ-10: a draw of 0 to 99 below it; nsqd and LMQ let one percent more through."""
    for rate, least, most in ((1, 60, 140), (50, 4_850, 5_050), (99, 9_860, 9_940)):
        bench = Bench(seed=42)
        bench.publish(10_000)
        assert least < len(bench.take(bench.subscribe(10_000, sample_rate=rate), 10_000)) < most


def test_a_delayed_message_is_drawn_once_when_it_is_due() -> None:
    """nsq.md 1.8: the draw is at delivery; a backlog that is not due yet is all deferred."""
    bench = Bench(seed=42)
    bench.publish(1_000, deliver_at_ms=bench.now + 500)
    sub = bench.subscribe(2_000, sample_rate=50)
    assert bench.take(sub, 2_000) == []
    assert bench.channel.deferred_count == 1_000
    bench.advance(500)
    assert 400 < len(bench.take(sub, 2_000)) < 600
    assert bench.channel.depth == 0


def test_same_seed_same_sample() -> None:
    samples = []
    for seed in (5, 5, 6):
        bench = Bench(seed=seed)
        bench.publish(200)
        samples.append(bench.offsets(bench.subscribe(500, sample_rate=50)))
    assert samples[0] == samples[1] != samples[2]


def test_holes_and_damaged_records_are_skipped_and_counted() -> None:
    """B-LMQ-15: the rest is delivered."""
    bench = Bench()
    bench.publish(5)
    bench.queues[0].holes = {1}
    bench.log.outcomes[bench.queues[0].entry(3)] = DAMAGED
    sub = bench.subscribe()
    taken = bench.take(sub)
    assert [offset for _, offset, _ in taken] == [0, 2, 4]
    assert bench.channel.damaged_count == 2
    bench.finish(sub, *(message_id for message_id, _, _ in taken))
    assert bench.channel.position(0) == (5, 5)


def test_removed_record_counts_as_evicted() -> None:
    bench = Bench()
    ids = bench.publish(2)
    sub = bench.subscribe()
    bench.take(sub)
    bench.requeue(sub, ids[0])
    bench.log.outcomes[bench.queues[0].entry(0)] = GONE
    assert bench.take(sub) == []
    assert (bench.channel.evicted_count, bench.channel.depth) == (1, 0)


def test_cold_record_stops_delivery_until_it_is_there() -> None:
    bench = Bench()
    ids = bench.publish(4)
    bench.log.outcomes[bench.queues[0].entry(2)] = COLD
    sub = bench.subscribe()
    assert bench.offsets(sub) == [0, 1]
    assert bench.channel.stopped_cold
    assert bench.offsets(sub) == []
    assert bench.channel.has_ready()
    bench.log.outcomes.clear()
    assert bench.offsets(sub) == [2, 3]
    assert not bench.channel.stopped_cold
    bench.requeue(sub, ids[0])
    bench.log.outcomes[bench.queues[0].entry(0)] = COLD
    assert bench.take(sub) == []
    assert bench.channel.stopped_cold
    bench.log.outcomes.clear()
    assert bench.take(sub) == [(ids[0], 0, 2)]


def test_retention_moves_the_floor_and_counts() -> None:
    """What is removed above the pin limit is counted per channel."""
    bench = Bench()
    ids = bench.publish(10)
    sub = bench.subscribe(4)
    bench.take(sub)
    bench.finish(sub, ids[1])
    bench.requeue(sub, ids[2])
    bench.queues[0].remove_below(6)
    bench.expire()
    assert bench.channel.evicted_count == 5
    assert bench.channel.position(0) == (6, 6)
    assert bench.finish(sub, ids[0]) == [OK]
    assert bench.offsets(sub) == [6, 7, 8]  # the requeued one went with its segment; ids[3] is still in flight
    assert bench.channel.evicted_count == 5


def test_attempts_saturate() -> None:
    """X-NSQ-24, X-NSQ-26: attempts stop at 32767 on the wire, below the requirement's 65535."""
    bench = Bench()
    ids = bench.publish(1)
    sub = bench.subscribe(1)
    for attempt in range(1, 32_771):
        assert bench.take(sub)[0][2] == min(attempt, 32_767)
        bench.requeue(sub, ids[0])


def test_all_queues_of_a_topic_are_read() -> None:
    """A channel reads all queues."""
    bench = Bench(queues=3)
    for queue_id in range(3):
        bench.publish(2, queue_id=queue_id)
    sub = bench.subscribe(10)
    taken = bench.take(sub)
    assert sorted(offset for _, offset, _ in taken) == [0, 0, 0, 1, 1, 1]
    assert bench.finish(sub, *(message_id for message_id, _, _ in taken)) == [OK] * 6
    assert [bench.channel.position(queue_id) for queue_id in range(3)] == [(2, 2)] * 3
    assert bench.channel.depth == 0


def test_one_call_passes_over_a_bounded_number_of_messages() -> None:
    bench = Bench()
    bench.publish(20_000, deliver_at_ms=bench.now + 60_000)
    sub = bench.subscribe()
    assert bench.take(sub) == []
    assert 0 < bench.channel.deferred_count < 20_000
    assert bench.channel.has_ready()
    assert not bench.channel.stopped_cold
    for _ in range(2):
        bench.take(sub)
    assert bench.channel.deferred_count == 20_000


def test_expire_moves_at_most_what_it_is_told() -> None:
    bench = Bench()
    bench.publish(100)
    sub = bench.subscribe(100, msg_timeout_ms=10)
    bench.take(sub)
    bench.now += 10
    assert bench.channel.expire(bench.now, bench.now, 30) == 30
    assert bench.channel.depth == 30
    assert bench.channel.expire(bench.now, bench.now, 100) == 70


def test_idle_channel_gives_memory_back() -> None:
    bench = Bench()
    ids = bench.publish(3_000)
    sub = bench.subscribe(3_000)
    bench.take(sub, 3_000)
    busy = bench.channel.memory_bytes
    bench.settle(sub, *((FINISH, message_id) for message_id in ids))
    bench.channel.take_changes()
    bench.channel.take_changes()
    assert busy > 100_000
    assert bench.channel.memory_bytes < 1_024


def test_backlog_costs_no_memory() -> None:
    """Memory of a channel with many messages behind it equals that of one with ten."""
    sizes = []
    for count in (10, 50_000):
        bench = Bench()
        bench.publish(count)
        bench.take(bench.subscribe(5))
        sizes.append(bench.channel.memory_bytes)
    assert sizes[0] == sizes[1]


def test_wrong_node_is_not_in_flight() -> None:
    bench = Bench()
    ids = bench.publish(1)
    sub = bench.subscribe()
    bench.take(sub)
    foreign = (NODE_ID + 1) << 48 | ids[0] & (1 << 48) - 1
    assert bench.settle(sub, (FINISH, foreign), (REQUEUE, foreign, 0)) == [NOT_IN_FLIGHT, NOT_IN_FLIGHT]
