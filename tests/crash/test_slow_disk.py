"""A disk that takes seconds for a sync must not lengthen what a kill -9 can forget.

A FIN older than 5 s survives any crash; the page cache survives a kill, so writing is enough.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.brokers import BrokerRig


def test_fins_reach_the_journal_while_a_sync_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig(tmp_path)
    subscription, channel = rig.subscribe("t", "c")
    rig.publish("t", [b"%d" % number for number in range(20)])
    taken = rig.take(subscription, channel)
    slow = threading.Event()
    rig.broker.wait_for_journal()
    monkeypatch.setattr(rig.broker._states._journal, "sync", lambda: slow.wait(20))
    rig.clock.advance_ms(1100)
    rig.broker.tick()  # a sync begins and does not end
    rig.finish(subscription, channel, [message_id for _, _, message_id in taken[:15]])
    for _ in range(60):
        rig.clock.advance_ms(100)
        rig.broker.tick()
    rig.store.abandon()
    slow.set()
    again = BrokerRig(tmp_path)
    subscription, channel = again.subscribe("t", "c")
    assert [body for body, _, _ in again.take(subscription, channel)] == [body for body, _, _ in taken[15:]]
    again.close()
