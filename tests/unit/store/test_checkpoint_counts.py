"""A checkpoint counts the entries that a start finds below it, whatever has been hidden of a queue meanwhile."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.support.brokers import BrokerRig


@pytest.mark.parametrize("durability", ["async", "fsync"])
def test_a_topic_made_again_before_its_messages_were_durable(
    tmp_path: Path, durability: Literal["async", "fsync"], caplog: pytest.LogCaptureFixture
) -> None:
    """Entries that deletion hid counted as below the checkpoint: a start after a kill read the whole log for it."""
    rig = BrokerRig(tmp_path)
    rig.close()
    rig.store_settings = replace(rig.store_settings, durability=durability)
    rig._open()
    rig.publish("other", [b"x" * 100] * 500)
    rig.store.flush()
    rig.publish("T", [b"x" * 100] * 40)
    rig.broker.delete_topic("T")
    rig.publish("T", [b"x"])
    rig.clock.advance_ms(60_000)
    rig.store.checkpoints.tick()
    job = rig.store.checkpoints.job
    assert job is not None
    job.result()
    rig.store.flush()
    with caplog.at_level(logging.WARNING):
        rig.crash()
    assert "rebuilt from the whole log" not in caplog.text
    rig.close()
