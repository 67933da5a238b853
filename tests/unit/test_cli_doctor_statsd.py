"""`headrace doctor` and the statsd: where statistics go, under which keys, and whether a way leads there."""

from __future__ import annotations

import asyncio
import errno
import io
from typing import Any

import pytest

from headrace.cli import checkup, statsd_checkup
from headrace.cli.statsd_checkup import check_statsd
from headrace.net.address import own_name
from headrace.settings import load_settings


def check(**settings: str) -> list[tuple[str, str]]:
    flags = [(f"--nsq.{name.replace('_', '-')}", value) for name, value in settings.items()]
    findings = asyncio.run(check_statsd(load_settings(environ={}, flags=flags).settings))
    assert all(finding.name == "statsd" for finding in findings)
    return [(finding.status, finding.text) for finding in findings]


def test_without_a_statsd_nothing_is_said() -> None:
    """It is off by default."""
    assert check() == []


def test_it_says_where_statistics_go_and_under_which_keys() -> None:
    """As the broker will push them."""
    assert check(statsd_address="127.0.0.1:8125") == [
        (
            "ok",
            "statistics go to 127.0.0.1:8125 (127.0.0.1) every 1m, as nsq.127_0_0_1_4151.topic.NAME.depth and so on",
        )
    ]
    ((status, text),) = check(
        statsd_address="localhost:8125", statsd_interval_ms="30s", broadcast_address="a.b", broadcast_http_port="14151"
    )
    assert status == "ok"
    assert text.startswith("statistics go to localhost:8125 (127.0.0.1) every 30s, as nsq.a_b_14151.topic.")
    own = own_name().replace(".", "_")
    assert f" as nsq.{own}_4151." in check(statsd_address="127.0.0.1:1", tcp_address="0.0.0.0:4150")[0][1]
    assert " as topic." in check(statsd_address="127.0.0.1:1", statsd_prefix="")[0][1]
    assert " as nsq.127_0_0_1_0." in check(statsd_address="127.0.0.1:1", http_address="")[0][1]


def test_a_name_that_is_not_resolved_is_a_warning() -> None:
    """Clients are served all the same."""
    ((status, text),) = check(statsd_address="nobody.invalid:8125")
    assert status == "warning"
    assert text.startswith("nobody.invalid:8125 gets no statistics, its name is not resolved (")


def test_no_way_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interface that is down."""

    def refuse(*_: Any) -> Any:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(statsd_checkup, "open_socket", refuse)
    assert check(statsd_address="192.0.2.1:8125") == [
        ("warning", "192.0.2.1:8125 gets no statistics, no way leads to 192.0.2.1 (Network is unreachable)")
    ]


def test_keys_that_change_with_each_start_are_a_warning() -> None:
    """Unless no port is in them."""
    ((status, text),) = check(statsd_address="127.0.0.1:8125", http_address="127.0.0.1:0")
    assert status == "warning"
    assert "the keys for 127.0.0.1:8125 begin otherwise after each start" in text
    settings = {"statsd_address": "127.0.0.1:8125", "http_address": "127.0.0.1:0"}
    assert check(**settings, statsd_prefix="fixed")[0][0] == "ok"
    assert check(**settings, broadcast_http_port="4151")[0][0] == "ok"


def test_keys_that_other_machines_have_too_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statsd for several would take their counters together, and of their gauges the last."""
    monkeypatch.setattr(statsd_checkup, "open_socket", lambda *_: io.BytesIO())
    ((status, text),) = check(statsd_address="192.0.2.1:8125")
    assert status == "warning"
    assert text.startswith("the keys for 192.0.2.1:8125 begin with nsq.127_0_0_1_4151., as those of brokers on other")
    for fits in ({"broadcast_address": "a.example"}, {"statsd_prefix": "nsq.a"}, {"tcp_address": "0.0.0.0:4150"}):
        assert check(statsd_address="192.0.2.1:8125", **fits)[0][0] == "ok"


def test_where_nsq_is_not_served_it_is_of_no_use() -> None:
    """And nothing is pushed."""
    assert check(statsd_address="127.0.0.1:8125", enabled="false") == [
        ("warning", "nsq.statsd_address is of no use: NSQ is not served")
    ]


def test_the_report_has_it() -> None:
    """Among the others."""
    flags = [("--nsq.statsd-address", "127.0.0.1:8125"), ("--data-dir", "/nonexistent/store")]
    report = checkup.run_checkup(load_settings(environ={}, flags=flags).settings)
    assert [finding.status for finding in report.findings if finding.name == "statsd"] == ["ok"]
