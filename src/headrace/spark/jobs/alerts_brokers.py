"""Brokers that are gone, as ``headrace job alerts`` finds them.

In tables: those have nothing of a broker for some minutes, where they usually have, while they go on for others. Where
brokers are asked, what one of them counted is gone with it, so that nothing in the minutes tells: there the registries
say who is there, at each look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from headrace.spark.jobs.alerts import Config
from headrace.spark.jobs.alerts_series import MINUTE_MS, Vector, silences
from headrace.spark.jobs.config import show_time
from headrace.spark.jobs.summary import count_of

GONE_RULE: Final = "broker_gone"
_USUAL: Final = 0.5
"""Of the minutes at this time of day a broker usually says something in more than these."""


def silent_brokers(seen: Mapping[str, Vector], since: int, until: int, rules: Config) -> list[dict[str, Any]]:
    """Return alerts of brokers of which nothing came in minutes of [since, until), ms since 1970.

    Args:
        seen: Of each broker, in which minutes there is something of it, ms since 1970; all are before ``until``.
    """
    if len(seen) < 2:
        return []
    begin_ms = min(int(times.min()) for times in seen.values())
    length = (until - begin_ms) // MINUTE_MS
    there = {broker: np.zeros(length, dtype=bool) for broker in seen}
    for broker, times in seen.items():
        there[broker][(times - begin_ms) // MINUTE_MS] = True
    count = np.sum([*there.values()], axis=0)
    found = []
    for broker, grid in sorted(there.items()):
        first = int(np.argmax(grid))
        # A minute in which nobody says anything says nothing of one of them.
        heard = (grid | (count == 0))[first:].astype(float)
        begin = max(0, (since - begin_ms) // MINUTE_MS - first)
        looked = np.arange(max(0, begin - 2), len(heard))
        if not len(looked):
            continue
        for start, end, _ in silences(heard, looked, rules.gone_minutes, _USUAL, rules):
            at = int(looked[start])
            if at >= begin and at > 0:
                minutes = end - start + rules.gone_minutes - 1
                text = f"nothing of broker {broker!r} for {count_of(minutes, 'minute', 'minutes')}, while others go on"
                found.append(_alert(broker, begin_ms + (first + at) * MINUTE_MS, minutes, end - start, rules, text))
    return found


class KnownBrokers:
    """Brokers that should be there: those that an option names, and those that the registries have known."""

    def __init__(self, config: Config) -> None:
        self._rules = config
        self._last_ms: dict[str, int | None] = dict.fromkeys(config.brokers)
        """When each was last there; None: not since the job began."""
        self._said: set[str] = set()
        self._began_ms = 0

    def missing(self, there: Collection[str], now_ms: int) -> list[dict[str, Any]]:
        """Return alerts of those that are gone for too long, until ``note`` takes them for said.

        Args:
            there: Brokers that the registries know at ``now_ms``, ms since 1970.
        """
        self._began_ms = self._began_ms or now_ms
        self._last_ms |= dict.fromkeys(there, now_ms)
        self._said.difference_update(there)
        bound_ms = self._rules.gone_minutes * MINUTE_MS
        found = []
        for broker, last_ms in sorted(self._last_ms.items()):
            if broker in self._said or broker in there or (last_ms is not None and now_ms - last_ms < bound_ms):
                continue
            from_ms = self._began_ms if last_ms is None else last_ms
            at_ms = from_ms if last_ms is None else from_ms + bound_ms
            minutes = (now_ms - from_ms) // MINUTE_MS
            last = "not since the job began" if last_ms is None else f"last at {show_time(last_ms)[:-4]}"
            text = f"the registries know no broker {broker!r}: it was there {last}"
            found.append(_alert(broker, at_ms // MINUTE_MS * MINUTE_MS, minutes, max(1, minutes), self._rules, text))
        return found

    def note(self, alerts: Sequence[dict[str, Any]]) -> None:
        """Take alerts for said: they are not again before the broker was there."""
        self._said.update(alert["broker"] for alert in alerts)


def _alert(broker: str, at_ms: int, silent: int, minutes: int, rules: Config, text: str) -> dict[str, Any]:
    return {
        "time": datetime.fromtimestamp(at_ms / 1000, UTC), "topic": "", "group": "", "broker": broker,
        "rule": GONE_RULE, "score": float(silent), "value": float(silent), "baseline": float(rules.gone_minutes),
        "minutes": minutes, "explanation": text,
    }  # fmt: skip
