"""What is left of a command where a power cut took a part of the log."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.batch import PublishBatch
from headrace.broker.torn_commands import Torn, find_torn
from headrace.format.epochs import Epochs
from tests.support.brokers import BrokerRig

SEGMENT_BYTES = 10_000


@pytest.fixture
def pieces(tmp_path: Path) -> list[bytes]:
    """Return the records of a command of three."""
    rig = BrokerRig(tmp_path)
    batch = PublishBatch()
    batch.destinations = ["t"]
    for entries in (3, 0, 0):
        batch.append(b"body", command_entries=entries)
    rig.broker.publish(batch)
    rig.store.flush()
    found = [rig.store.log.read(batch.placed(index)[0]) for index in range(3)]
    rig.close()
    assert None not in found
    return found  # type: ignore[return-value]


def torn(places: dict[int, bytes], hole: int) -> dict[int, Torn]:
    log = SimpleNamespace(read=places.get, segment_bytes=SEGMENT_BYTES, end_offset=3 * SEGMENT_BYTES)
    store: Any = SimpleNamespace(holes=[SimpleNamespace(first_offset=hole)], epochs=Epochs(), log=log)
    return find_torn(store, lambda: [(7, min(places))])


def test_a_hole_behind_a_command_does_not_touch_it(pieces: list[bytes]) -> None:
    first, second, third = pieces
    at = 500
    places = {at: first, at + len(first): second, at + len(first) + len(second): third}
    assert torn(places, at + len(first) + len(second) + len(third)) == {}
    assert torn(places, at + len(first) + len(second)) == {7: Torn(1, 2)}
    assert torn(places, at + len(first)) == {7: Torn(0, 2)}


def test_a_command_may_go_on_in_the_next_segment(pieces: list[bytes]) -> None:
    """What a segment has no use for is no hole: a decision there would be forgotten, and come twice."""
    first, second, third = pieces
    at = SEGMENT_BYTES - len(first) - 20
    places = {at: first, SEGMENT_BYTES: second, SEGMENT_BYTES + len(second): third}
    assert torn(places, SEGMENT_BYTES + len(second) + len(third)) == {}
    assert torn(places, SEGMENT_BYTES + len(second)) == {7: Torn(1, 2)}
