"""One typed settings tree: what can be set, from where, and what is accepted.

``Settings`` (``tree``) holds one frozen section per part of the broker; a module receives its own section only.
``load`` reads flags, ``HEADRACE_...`` variables and ``headrace.toml`` (in this order of precedence) over the defaults
and remembers where each value came from; ``units`` reads sizes and durations, ``validate`` says what is acceptable,
``folder`` whether a folder can be used. ``reference`` makes the sample and the page of all settings; ``foreign`` turns
nsqd's and RocketMQ's configuration into ours, by ``aliases``. This package knows no other part of Headrace but the
exceptions.
"""

from headrace.settings.load import LoadedSettings, load_settings
from headrace.settings.tree import (
    AccessSettings,
    AdminSettings,
    BrokerSettings,
    Durability,
    LogSettings,
    NsqSettings,
    RegistrySettings,
    RemotingSettings,
    Settings,
    StoreSettings,
    TopicSettings,
)
from headrace.settings.validate import validate

__all__ = [
    "AccessSettings",
    "AdminSettings",
    "BrokerSettings",
    "Durability",
    "LoadedSettings",
    "LogSettings",
    "NsqSettings",
    "RegistrySettings",
    "RemotingSettings",
    "Settings",
    "StoreSettings",
    "TopicSettings",
    "load_settings",
    "validate",
]
