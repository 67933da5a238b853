"""What all tests share: Hypothesis profiles, room for open files, and an environment without settings."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headrace.net.listener import raise_file_limit

# Machines that run tests are slow now and then: a deadline would make good tests fail. CI prints how to repeat a
# failure.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
# For the debug build: its checks are about every access, whose examples matter less.
settings.register_profile(
    "debug", deadline=None, print_blob=True, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# What tests and their children ask over HTTP is on this machine, whose loopback a proxy for the web does not know.
for _name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
    os.environ.pop(_name, None)

# As `headrace serve` does: shells start programs with 1024, and some tests have hundreds of clients and their broker.
raise_file_limit()


@pytest.fixture(autouse=True)
def _no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may run a broker too: its variables must not reach the tests."""
    for name in os.environ:
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)


class _Bugs(logging.Handler):
    """What was logged as a bug of ours; ``caplog`` forgets what comes before a ``clear``."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "by a bug" in record.getMessage():
            self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def _no_bugs_that_are_only_logged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose code logged an error that it did not expect and went on; one that provokes it is marked so.

    What its fixtures log as they end counts, too: brokers stop there.
    """
    bugs = _Bugs()
    logging.getLogger().addHandler(bugs)
    yield
    logging.getLogger().removeHandler(bugs)
    assert not bugs.messages or request.node.get_closest_marker("provokes_bugs"), bugs.messages


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a test that was tried again had failed: in CI nobody would know otherwise."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(str(report.longrepr))
