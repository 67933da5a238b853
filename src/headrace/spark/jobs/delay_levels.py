"""The broker's delay levels, as jobs are told them that read the files of a store: its settings are not among these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.settings import BrokerSettings
from headrace.settings.units import parse_delays_ms

DEFAULT_LEVELS: Final = BrokerSettings().delay_levels


def parse_delays(levels: str) -> Mapping[int, int]:
    """Return queue of the delay topic -> its delay in ms.

    Raises:
        ConfigError: a level is no duration.
    """
    return dict(enumerate(parse_delays_ms(levels)))
