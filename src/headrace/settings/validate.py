"""The one place that decides whether settings are acceptable."""

import itertools
import json
import re
from typing import Any, Final
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.settings.tree import NsqSettings, SettingField, Settings, setting_fields
from headrace.settings.units import format_duration, format_size, parse_delays_ms

ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]*):([0-9]{1,5})")
URL: Final = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")
TOPIC_NAME: Final = re.compile(r"[.%|a-zA-Z0-9_-]{1,127}")
TOPIC_TEXT: Final = "one name for each table, 1 to 127 of . a-z A-Z 0-9 _ - % |"
STATSD_PREFIX: Final = re.compile(r"[!-9;-{}~]{1,128}")
DELAY_LEVEL: Final = re.compile(r"[0-9]{1,6}[smhd]")

LONGEST_NAME: Final = 255
LONGEST_HOST_NAME: Final = 64
"""Of a machine's own name, as Linux bounds it."""
LONGEST_STATSD_LINE: Final = 183
"""Without the prefix: of a channel with the longest names of NSQ."""
_MOST_SHOWN: Final = 400
VIP_DISTANCE: Final = 2
"""How far below the broker's port the one of old clients is (``remoting.vip_listener``)."""

# Pairs of settings whose first must not exceed the second.
ORDERED: Final = (
    ("nsq.msg_timeout_ms", "nsq.max_msg_timeout_ms"),
    ("nsq.min_output_buffer_timeout_ms", "nsq.max_output_buffer_timeout_ms"),
    ("nsq.delivery_coalescing_ms", "nsq.min_output_buffer_timeout_ms"),
    ("nsq.write_high_water_bytes", "nsq.max_unread_bytes"),
    ("remoting.write_high_water_bytes", "remoting.max_unread_bytes"),
    ("registry.write_high_water_bytes", "registry.max_unread_bytes"),
)


def validate(settings: Settings) -> None:
    """Check every value against its field and the values that depend on each other.

    Raises:
        ConfigError: the first setting that is not accepted; ``error.key`` is its path.
    """
    values = {}
    for setting in setting_fields():
        value = getattr(getattr(settings, setting.section), setting.name)
        values[setting.path] = value
        accepted = refusal(setting, value)
        if accepted:
            raise ConfigError(f"{setting.path} = {show_briefly(value)} is not accepted: {accepted}", key=setting.path)
    for smaller, larger in ORDERED:
        if values[smaller] > values[larger]:
            raise ConfigError(
                f"{smaller} = {values[smaller]} is not accepted: at most {larger} = {values[larger]}", key=smaller
            )
    patience, timeout = values["nsq.read_coalescing_ms"], values["nsq.msg_timeout_ms"]
    if 4 * patience > timeout:
        raise ConfigError(
            f"nsq.read_coalescing_ms = {patience} is not accepted: at most a quarter of nsq.msg_timeout_ms = {timeout},"
            " or what was finished in time would come again",
            key="nsq.read_coalescing_ms",
        )
    packet, line = values["nsq.statsd_udp_packet_bytes"], _longest_prefix(settings.nsq) + LONGEST_STATSD_LINE
    if packet < line:
        raise ConfigError(
            f"nsq.statsd_udp_packet_bytes = {packet} is not accepted: at least {line}, the longest line with "
            f"nsq.statsd_prefix = {show_briefly(settings.nsq.statsd_prefix)}; no line is split",
            key="nsq.statsd_udp_packet_bytes",
        )
    budget, segment = values["store.budget_bytes"], values["store.segment_bytes"]
    if 0 < budget < segment:
        raise ConfigError(
            f"store.budget_bytes = {budget} is not accepted: 0, or at least store.segment_bytes = {segment}; "
            "for a store that was made with smaller segments, set store.segment_bytes to their size",
            key="store.budget_bytes",
        )
    if settings.remoting.enabled and settings.remoting.address and settings.remoting.vip_listener:
        for key in ("remoting.address", "remoting.advertised_address"):
            match = ADDRESS.fullmatch(values[key])
            port = int(match[2]) if match is not None else 0
            if 0 < port <= VIP_DISTANCE:
                raise ConfigError(
                    f"{key} = {show_briefly(values[key])} is not accepted: the port for old clients would be "
                    f"{port - VIP_DISTANCE}; choose another, or set remoting.vip_listener to false",
                    key=key,
                )
    for topic, own in settings.store.topics.items():
        table = f'topics."{topic}"'
        key = table if own.durability is None else f"{table}.durability"
        if TOPIC_NAME.fullmatch(topic) is None:
            raise ConfigError(
                f"{table} is not accepted: no topic that is stored can be called so; {TOPIC_TEXT}", key=key
            )
        if own.durability not in (None, "fsync", "async"):
            raise ConfigError(f'{key} = {show_briefly(own.durability)} is not accepted: "fsync" or "async"', key=key)


def _longest_prefix(nsq: NsqSettings) -> int:
    """Return the bytes that ``statsd_prefix`` has at most, whatever ``%s`` stands for."""
    node = len(nsq.broadcast_address.encode()) or LONGEST_HOST_NAME
    node += len("[]_65535")
    return len(nsq.statsd_prefix.encode()) + nsq.statsd_prefix.count("%s") * (node - len("%s")) + len(".")


def refusal(setting: SettingField, value: object) -> str:
    """Return what would be accepted when ``value`` is not, else an empty string."""
    if setting.choices and value not in setting.choices:
        return describe_range(setting)
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Written so that a NaN is outside every range.
        large_enough = setting.least is None or value >= setting.least
        small_enough = setting.most is None or value <= setting.most
        if not (large_enough and small_enough) and value not in setting.special:
            return describe_range(setting)
    if setting.form and not FORMS[setting.form][0](value):
        return describe_range(setting)
    return ""


def describe_range(setting: SettingField) -> str:
    """Say in words what a setting accepts; empty when its type says it all."""
    if setting.form:
        return FORMS[setting.form][1]
    if setting.choices:
        return " or ".join(f'"{choice}"' for choice in setting.choices)
    if setting.least is None and setting.most is None:
        return ""
    span = f"{show_number(setting, setting.least)} to {show_number(setting, setting.most)}"
    return " or ".join([*(str(number) for number in setting.special), span])


def show_number(setting: SettingField, number: float | None) -> str:
    """Write a bound in the unit of its setting."""
    if number and setting.is_size:
        return format_size(int(number))
    if number and setting.name.endswith("_ms"):
        return format_duration(int(number))
    return str(number)


def show(value: Any) -> str:
    """Write a value as TOML would, for messages and listings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    # JSON's escapes are TOML's, but for the one control character that JSON leaves bare.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")


def show_briefly(value: Any) -> str:
    """Write a value for an error: of a long one only how it begins and ends."""
    text = show(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}...{text[-20:]}"


def is_address(value: object) -> bool:
    """``host:port``, ``[ipv6]:port`` or ``:port``; an empty text switches the listener off."""
    match = ADDRESS.fullmatch(str(value))
    return value == "" or (match is not None and int(match[2]) <= 65_535 and is_host(match[1]))


def is_host(text: str) -> bool:
    """Whether a resolver can be asked for it: labels of 1 to 63 characters, in any script."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True


def is_name(value: object) -> bool:
    """A text that fits into a registration and into the properties of a message."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= LONGEST_NAME


def is_name_or_empty(value: object) -> bool:
    """A name, or an empty text for one that is found."""
    return value == "" or is_name(value)


def is_addresses(value: object) -> bool:
    """Addresses with a host and a port, separated by commas or semicolons; an empty text means none.

    Empty ones between are passed over, as RocketMQ passes over what a semicolon at the end leaves.
    """
    words = [word.strip() for word in str(value).replace(";", ",").split(",") if word.strip()]
    return value == "" or (bool(words) and all(is_peer(word) for word in words))


def is_peer(text: str) -> bool:
    """An address that one can connect to: neither host nor port is left open."""
    return is_address(text) and not text.startswith(":") and int(text.rpartition(":")[2]) > 0


def is_peer_or_empty(value: object) -> bool:
    """An address that one can send to, or an empty text for none."""
    return value == "" or is_peer(str(value))


def is_statsd_prefix(value: object) -> bool:
    """A text that can stand in a key: what ends a key or a line is not in it. Empty means none."""
    return value == "" or (isinstance(value, str) and STATSD_PREFIX.fullmatch(value) is not None)


def is_delay_levels(value: object) -> bool:
    """Delays with a unit, separated by spaces, each longer than the one before."""
    levels = str(value).split()
    if not levels or not all(map(DELAY_LEVEL.fullmatch, levels)):
        return False
    delays = parse_delays_ms(str(value))
    return delays[0] > 0 and all(shorter <= longer for shorter, longer in itertools.pairwise(delays))


def is_url(value: object) -> bool:
    """An ``http://`` or ``https://`` address with a host, and no user before it; an empty text means none."""
    if value == "":
        return True
    try:
        parts = urlsplit(str(value))
        can_be_asked = is_host(parts.hostname or "") and parts.port != 0
    except ValueError:  # of a port that is no number up to 65535, or an IPv6 address that is none
        return False
    return can_be_asked and URL.fullmatch(str(value)) is not None


FORMS: Final = {
    "address": (is_address, 'an address "host:port" with a port from 0 to 65535, or "" for no listener'),
    "addresses": (is_addresses, 'addresses "host:port" with commas between them, or "" for none'),
    "delay-levels": (is_delay_levels, 'delays with s, m, h or d, shortest first, such as "1s 5s 1m 2h"'),
    "name": (is_name, f"1 to {LONGEST_NAME} bytes without control characters"),
    "name-or-empty": (
        is_name_or_empty,
        f'at most {LONGEST_NAME} bytes without control characters, or ""',
    ),
    "peer": (is_peer_or_empty, 'an address "host:port" with a port from 1 to 65535, or "" for none'),
    "statsd-prefix": (is_statsd_prefix, "at most 128 characters of ASCII without blanks, colons and vertical bars"),
    "url": (is_url, 'an address "http://..." or "https://..." without a user in it, or "" for none'),
}
"""By the name of a form: whether a value has it, and what it is in words."""
