"""Whoever makes producers come and go at nsqlookupd does not fill the log with it, and all of them are counted."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from headrace.clock import ManualClock
from headrace.log_pace import INTERVAL_MS, LINES_A_MINUTE
from headrace.nsq.lookupd.producer_log import LONGEST_NAME, ProducerLog
from headrace.registry.producers import ProducerInfo

INFO = ProducerInfo(
    remote_address="1.2.3.4:5", hostname="h", broadcast_address="b", tcp_port=1, http_port=2, version="1.3.0"
)


@pytest.fixture(autouse=True)
def info_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_each_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """One that is restarted again and again, or a peer that reconnects in a loop."""
    clock = ManualClock()
    log = ProducerLog(clock)
    for _ in range(50):
        log.note_came(INFO)
        log.note_went(INFO, "client closed")
    log.note_came(replace(INFO, http_port=3))
    assert caplog.messages == [
        "producer registered node=b:2 client=1.2.3.4:5 version=1.3.0",
        "producer gone node=b:2 client=1.2.3.4:5 cause=client closed",
        "producer registered node=b:3 client=1.2.3.4:5 version=1.3.0",
    ]
    clock.advance_ms(INTERVAL_MS)
    log.note_came(INFO)
    assert len(caplog.messages) == 4
    assert (log.came, log.went) == (52, 50)


def test_all_together_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    """A peer invented a name for each connection: a thousand lines a second."""
    clock = ManualClock()
    log = ProducerLog(clock)
    for port in range(1, 10 * LINES_A_MINUTE):
        log.note_came(replace(INFO, http_port=port))
    assert len(caplog.messages) == LINES_A_MINUTE + 1
    assert caplog.messages[-1] == f"more producers come and go than are logged came={LINES_A_MINUTE + 1} gone=0"
    assert log.came == 10 * LINES_A_MINUTE - 1
    clock.advance_ms(INTERVAL_MS)
    log.note_went(INFO, "timeout")
    assert caplog.messages[-1] == "producer gone node=b:2 client=1.2.3.4:5 cause=timeout"


def test_names_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    """Up to 4 KiB of each could be in a line."""
    log = ProducerLog(ManualClock())
    log.note_came(replace(INFO, broadcast_address="x" * 2000, version="v" * 2000))
    log.note_went(replace(INFO, broadcast_address="x" * 2000), "timeout")
    assert len(caplog.messages) == 2
    assert max(map(len, caplog.messages)) < 2 * LONGEST_NAME + 80
