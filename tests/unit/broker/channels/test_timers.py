"""The heap of the channels' next times stays as small as what it is for."""

from __future__ import annotations

from typing import cast

from headrace.broker.channels.channel import Channel
from headrace.broker.channels.timers import MAX_STALE, ChannelTimers
from headrace.clock import ManualClock

DAY_MS = 86_400_000


class FakeChannel:
    """Has one message that is deferred for a month, and now and then one whose time comes soon."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._due_ms = clock.now_ms() + 30 * DAY_MS
        self.deadline_ms = -1
        self.expired = 0

    def next_deadline_ms(self) -> int:
        return self.deadline_ms

    def next_due_ms(self) -> int:
        return self._due_ms

    def expire(self, now_ms: int, mono_ms: int, most: int) -> int:
        self.expired += 1
        if mono_ms >= self.deadline_ms:
            self.deadline_ms = -1
        return 1


def test_a_far_time_is_not_entered_again_and_again() -> None:
    """B-LMQ-22: beside it, what is due soon comes and goes."""
    clock = ManualClock()
    timers = ChannelTimers(clock)
    channels = [FakeChannel(clock) for _ in range(3)]
    for _ in range(3 * MAX_STALE):
        for channel in channels:
            channel.deadline_ms = clock.monotonic_ms() + 100
            timers.look_at(cast(Channel, channel))
        timers.expire()
        clock.advance_ms(100)
        assert len(timers.expire()) == len(channels)
        timers.expire()
    assert len(timers) <= MAX_STALE + 2 * len(channels) + 1
    clock.advance_ms(30 * DAY_MS)
    assert len(timers.expire()) == len(channels)
    assert channels[0].expired == 3 * MAX_STALE + 1


def test_deleted_channels_are_let_go_before_their_time() -> None:
    clock = ManualClock()
    timers = ChannelTimers(clock)
    for _ in range(3 * MAX_STALE):
        channel = cast(Channel, FakeChannel(clock))
        timers.look_at(channel)
        timers.expire()
        timers.forget(channel)
    assert len(timers) <= MAX_STALE + 1


def test_a_message_is_late_by_the_time_up_to_which_fins_were_done() -> None:
    """Its channel is asked again with the next tick."""
    clock = ManualClock()
    timers = ChannelTimers(clock)
    channel = FakeChannel(clock)
    channel.deadline_ms = clock.monotonic_ms() + 100
    timers.look_at(cast(Channel, channel))
    clock.advance_ms(500)
    timers.expire(clock.monotonic_ms() - 450)
    assert channel.deadline_ms > 0
    timers.expire(clock.monotonic_ms())
    assert channel.deadline_ms == -1
