"""The catalog is encoded in slices, as it may be long, and what is saved is of one moment."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.broker import control
from headrace.broker.catalog import Catalog
from headrace.broker.topic import TopicConfig
from headrace.format.side_file import read_side_file
from tests.support.brokers import BrokerRig

TICK_MS = 50


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    made = BrokerRig(tmp_path / "store")
    yield made
    made.close()


def saved(rig: BrokerRig) -> dict[str, list[str]] | None:
    """Return the channels of all topics as saved; None if nothing was."""
    rig.broker.wait_for_journal()
    payload = read_side_file(rig.store.directory.catalog, "catalog", "")
    if payload is None:
        return None
    return {name: sorted(topic["channels"]) for name, topic in payload["topics"].items()}


def tick(rig: BrokerRig, times: int = 1) -> None:
    rig.store.flush()
    for _ in range(times):
        rig.pass_time(TICK_MS)


def fill(rig: BrokerRig, topic: str, channels: int) -> list[str]:
    made = rig.broker.ensure_topic(topic)
    for number in range(len(made.channels), len(made.channels) + channels):
        rig.broker.ensure_channel(made, f"c{number:04d}")
    return sorted(made.channels)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 1000])
def test_slices_are_the_whole(rig: BrokerRig, most: int) -> None:
    """Whatever there is, and wherever it is cut."""
    catalog = rig.broker._control.catalog
    for channels in (0, 1, 6, 7):
        fill(rig, f"t{channels}", channels)
        check_slices(catalog, most)
    rig.broker.create_topic("many", TopicConfig(4, 4))
    rig.broker.pause_topic("t6", True)
    rig.publish("t6", [b"x"])
    rig.broker.empty_topic("t6")
    rig.broker.delete_topic("t1")
    check_slices(catalog, most)


def check_slices(catalog: Catalog, most: int) -> None:
    parts = list(catalog.encode_slices(most))
    assert [is_last for _, is_last in parts] == [False] * (len(parts) - 1) + [True]
    whole = b"".join(part for part, _ in parts)
    assert json.loads(whole) == json.loads(msgspec.json.encode(catalog.to_payload()))
    count = len(catalog.topics) + sum(len(topic.channels) for topic in catalog.topics.values())
    assert len(parts) <= count // most + 1
    again = Catalog.from_payload(msgspec.json.decode(whole))
    assert again.topics == catalog.topics


def test_a_long_catalog_is_encoded_a_slice_in_a_tick(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand channels took the event loop 60 ms in one go."""
    monkeypatch.setattr(control, "SLICE", 10)
    monkeypatch.setattr(control, "SAVE_EVERY", 50)
    names = fill(rig, "t", 99)
    tick(rig, 8)
    assert saved(rig) is None
    tick(rig, 4)
    assert saved(rig) == {"t": names}
    tick(rig, 400)
    assert rig.broker._control._unsaved == 0


def test_what_changes_between_slices_is_in_what_is_saved(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins anew, with the next tick without a change."""
    monkeypatch.setattr(control, "SLICE", 10)
    monkeypatch.setattr(control, "SAVE_EVERY", 50)
    fill(rig, "t", 99)
    tick(rig, 5)
    names = fill(rig, "t", 1)
    tick(rig, 8)
    assert saved(rig) is None
    tick(rig, 5)
    assert saved(rig) == {"t": names}
    rig.crash()
    assert sorted(rig.broker.find_topic("t").channels) == names


def test_changes_without_end_do_not_put_it_off_for_ever(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would have all of them to read."""
    monkeypatch.setattr(control, "SLICE", 5)
    monkeypatch.setattr(control, "SAVE_EVERY", 20)
    topic = rig.broker.ensure_topic("t")
    rig.broker.ensure_channel(topic, "stays")
    for number in range(100):
        rig.broker.ensure_channel(topic, f"c{number}")
        tick(rig)
        rig.broker.delete_channel("t", f"c{number}")
        tick(rig)
    assert saved(rig) is not None


def test_encoding_leaves_nothing_for_the_collector(rig: BrokerRig) -> None:
    """Entries without slots got a dictionary each: 100,000 more objects to walk."""
    fill(rig, "t", 100)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        assert all(part for part, _ in rig.broker._control.catalog.encode_slices(10))
        assert len(gc.get_objects()) < before + 50
    finally:
        gc.enable()


def test_a_short_catalog_is_saved_in_one_tick(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SAVE_EVERY", 2)
    names = fill(rig, "t", 3)
    tick(rig)
    assert saved(rig) == {"t": names}
