"""Busy channels gather for longer while the loop has no time to spare, and that brings more messages (ADR 0014)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.net.loop_load import Load
from headrace.nsq.delivery_interval import (
    FIRST_STAY,
    FULL_LOAD,
    GAIN,
    LONGEST_MS,
    MANY_DELIVERIES,
    MEASURED,
    SPARE_LOAD,
    TRIAL,
    DeliveryInterval,
)

LOOK_S = 0.05
RATE = 40_000
"""Messages a second that a full loop delivers with the shortest intervals."""


def look(
    interval: DeliveryInterval, looks: int = 1, *, busy: float = 1.0, gain: float = 2.0, deliveries: int = 0
) -> None:
    """Let looks pass in which a loop delivers ``gain`` times as many messages while intervals are longer."""
    for _ in range(looks):
        rate = RATE * (gain if interval.is_longer else 1)
        made = deliveries or 2 * MANY_DELIVERIES
        interval.adapt(Load(LOOK_S, busy), int(made * LOOK_S), int(rate * LOOK_S))


def test_it_grows_under_full_load_and_stays_while_that_pays() -> None:
    interval = DeliveryInterval(1, 25)
    look(interval, MEASURED)
    assert interval.ms == 1
    look(interval, TRIAL)
    assert interval.ms == LONGEST_MS
    look(interval, FIRST_STAY - 1)
    assert interval.ms == LONGEST_MS


def test_it_shrinks_when_there_is_time_to_spare() -> None:
    interval = DeliveryInterval(1, 25)
    look(interval, MEASURED + TRIAL)
    look(interval, 1, busy=(FULL_LOAD + SPARE_LOAD) / 2)
    assert interval.ms == LONGEST_MS
    look(interval, 1, busy=0.5)
    assert interval.ms < LONGEST_MS
    look(interval, 20, busy=0.5)
    assert interval.ms == 1
    assert not interval.is_longer


def test_it_shrinks_when_deliveries_are_few() -> None:
    """A loop that something else keeps busy has nothing from it."""
    interval = DeliveryInterval(1, 25)
    look(interval, MEASURED + TRIAL)
    look(interval, 20, deliveries=100)
    assert interval.ms == 1


@pytest.mark.parametrize(
    ("busy", "deliveries"), [(FULL_LOAD - 0.01, 2 * MANY_DELIVERIES), (1.0, MANY_DELIVERIES - 200)]
)
def test_it_does_not_grow_without_need(busy: float, deliveries: int) -> None:
    interval = DeliveryInterval(1, 25)
    look(interval, 10 * TRIAL, busy=busy, deliveries=deliveries)
    assert interval.ms == 1


def test_it_grows_no_further_when_deliveries_are_no_longer_many() -> None:
    interval = DeliveryInterval(1, 25)
    look(interval, MEASURED + 1)
    grown = interval.ms
    assert 1 < grown < LONGEST_MS
    look(interval, TRIAL, deliveries=MANY_DELIVERIES - 200)
    assert interval.ms == grown


def test_what_brings_too_little_is_given_up_and_tried_ever_more_rarely() -> None:
    interval = DeliveryInterval(1, 25)
    longer = []
    for _ in range(2000):
        look(interval, gain=GAIN - 0.05)
        longer.append(interval.is_longer)
    begins = [at for at in range(1, len(longer)) if longer[at] and not longer[at - 1]]
    rests = [after - before for before, after in pairwise(begins)]
    assert rests[0] >= FIRST_STAY
    assert all(after > 1.5 * before for before, after in pairwise(rests))
    assert len(rests) >= 3
    assert sum(longer) <= (len(begins) + 1) * TRIAL


def test_what_pays_is_tried_again_ever_more_rarely() -> None:
    """What a load was good for may change: it is measured both ways now and then."""
    interval = DeliveryInterval(1, 25)
    longer = []
    for _ in range(2000):
        look(interval)
        longer.append(interval.is_longer)
    ends = [at for at in range(1, len(longer)) if not longer[at] and longer[at - 1]]
    stays = [after - before for before, after in pairwise(ends)]
    assert stays[0] >= FIRST_STAY
    assert all(after > 1.5 * before for before, after in pairwise(stays))
    assert len(stays) >= 3


def test_a_load_that_changes_its_mind_is_given_up_at_the_next_trial() -> None:
    interval = DeliveryInterval(1, 25)
    look(interval, MEASURED + TRIAL)
    assert interval.is_longer
    look(interval, FIRST_STAY + MEASURED + TRIAL, gain=0.8)
    assert not interval.is_longer


def test_no_interval_is_longer_than_clients_ask_for() -> None:
    """No client gets its messages later than the shortest output buffer time."""
    for most_ms, expected in ((5, 5), (1000, LONGEST_MS), (0, 1)):
        interval = DeliveryInterval(1, most_ms)
        look(interval, MEASURED + TRIAL)
        assert interval.ms == expected


def test_switched_off_it_stays_so() -> None:
    interval = DeliveryInterval(0, 25)
    look(interval, 10 * TRIAL)
    assert interval.ms == 0


def test_a_look_in_no_time_is_none() -> None:
    interval = DeliveryInterval(1, 25)
    interval.adapt(Load(0.0, 1.0), 1000, 1000)
    assert interval.ms == 1
