"""Who may do what: users, their keys and their rights, read from one rule file for all protocols.

A front end finds out who asks, each by its protocol's means (RocketMQ: a signature), and asks ``User.may``. Rights are
patterns of topic and group names; ``admin`` has all of them. A group's retry and dead-letter topics belong to the
group: whoever may use it may read and write them.

A user's ``addresses`` are where requests without any proof are taken for this user's. A proof that is sent is always
checked, also from there.

Rule file (TOML): ``[[users]]`` tables with ``name``, ``access_key``, ``secret_key``, ``addresses``, ``admin``,
``publish``, ``subscribe``, ``groups``. Ref: docs/access.md; requirement X-NET-03.
"""

from __future__ import annotations

import difflib
import fnmatch
import ipaddress
import logging
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from headrace.errors import AccessDeniedError, ConfigError
from headrace.format.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from headrace.settings import AccessSettings

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 4 << 20
SHORTEST_SECRET: Final = 6
_SETTING: Final = "access.rules_file"
_MAPPED_BITS: Final = 96
"""Leading bits of an IPv6 address that stands for an IPv4 one."""
_TEXTS: Final = ("name", "access_key", "secret_key")
_LISTS: Final = ("addresses", "publish", "subscribe", "groups")
_KEYS: Final = (*_TEXTS, "admin", *_LISTS)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Action(Enum):
    """What a request does, as the rules know it."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    READ_LOG = "read log"
    """The raw log: every topic and group, the broker's own records among them."""
    ADMIN = "admin"


ANYTHING: Final = "*"
_VERBS: Final = {
    Action.ADMIN: "administer: that takes admin = true",
    Action.READ_LOG: 'read the log of all topics: that takes admin, or subscribe = ["*"] and groups = ["*"]',
}


class Patterns:
    """Names with ``*`` for any characters and ``?`` for one."""

    __slots__ = ("_match", "texts")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = tuple(texts)
        # An empty alternative would match the empty name.
        self._match = re.compile("|".join(fnmatch.translate(text) for text in self.texts) or r"(?!)").match

    def matches(self, name: str) -> bool:
        """Return whether one of them is the whole name."""
        return self._match(name) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """One user of the rule file."""

    name: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    admin: bool = False
    publish: Patterns = field(default_factory=Patterns)
    subscribe: Patterns = field(default_factory=Patterns)
    groups: Patterns = field(default_factory=Patterns)
    addresses: tuple[Network, ...] = ()

    def may(self, action: Action, *, topic: str = "", group: str = "") -> bool:
        """Return whether the user has the right to ``action`` on a topic, a group or, where both are given, both."""
        if self.admin:
            return True
        if action is Action.ADMIN:
            return False
        if action is Action.READ_LOG:
            return ANYTHING in self.subscribe.texts and ANYTHING in self.groups.texts
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            if topic.startswith(prefix):
                return self.groups.matches(topic.removeprefix(prefix)) and (not group or self.groups.matches(group))
        patterns = self.publish if action is Action.PUBLISH else self.subscribe
        return (not topic or patterns.matches(topic)) and (not group or self.groups.matches(group))

    def require(self, action: Action, *, topic: str = "", group: str = "") -> None:
        """Accept what ``may`` allows.

        Raises:
            AccessDeniedError: it is not allowed; names user, action and what for.
        """
        if not self.may(action, topic=topic, group=group):
            what = " and ".join(f"{kind} {name!r}" for kind, name in (("topic", topic), ("group", group)) if name)
            verb = _VERBS.get(action, action.value)
            raise AccessDeniedError(f"user {self.name!r} has no right to {verb}{' with ' if what else ''}{what}")


class AccessRules:
    """The users of a rule file."""

    def __init__(self, users: Iterable[User]) -> None:
        self.users = {user.name: user for user in users}
        self._by_key = {user.access_key: user for user in self.users.values() if user.access_key}
        self._by_address = [(network, user) for user in self.users.values() for network in user.addresses]

    def user_of_key(self, access_key: str) -> User | None:
        """Return whose access key this is."""
        return self._by_key.get(access_key)

    def user_of_address(self, host: str) -> User | None:
        """Return whom requests without a proof from this IP address are taken for; the narrowest network wins."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return None
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        fitting = [(network.prefixlen, user) for network, user in self._by_address if address in network]
        return max(fitting, key=lambda found: found[0])[1] if fitting else None

    @property
    def has_unsigned_admin(self) -> bool:
        """Whether requests without a proof can be an admin's, by their address."""
        return any(user.admin for _, user in self._by_address)

    def named(self, name: str) -> User:
        """Return a user by name.

        Raises:
            ConfigError: there is none.
        """
        user = self.users.get(name)
        if user is None:
            raise ConfigError(
                f"access.broker_user = {name!r} is not accepted: no user of the rule file has this name",
                key="access.broker_user",
            )
        return user


def open_rules(settings: AccessSettings) -> AccessRules | None:
    """Return the rules the settings name, as ``find_rules``; a file that others may read is logged."""
    rules = find_rules(settings)
    if rules is not None and is_exposed(Path(settings.rules_file)):
        logger.warning("rule file holds secrets and is open to every user of this machine path=%s", settings.rules_file)
    return rules


def is_exposed(path: Path) -> bool:
    """Return whether every user of this machine may read or write the rule file."""
    return bool(path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))


def find_rules(settings: AccessSettings) -> AccessRules | None:
    """Return the rules the settings name; None when access control is off.

    Raises:
        ConfigError: see ``load_rules`` and ``AccessRules.named``.
    """
    if not settings.rules_file:
        if settings.broker_user:
            raise ConfigError(
                f"access.broker_user = {settings.broker_user!r} is not accepted: set access.rules_file as well",
                key="access.broker_user",
            )
        return None
    rules = load_rules(Path(settings.rules_file))
    if settings.broker_user and not rules.named(settings.broker_user).access_key:
        raise ConfigError(
            f"access.broker_user = {settings.broker_user!r} is not accepted: this user has no keys to sign with",
            key="access.broker_user",
        )
    return rules


def load_rules(path: Path) -> AccessRules:
    """Read a rule file.

    Raises:
        ConfigError: it cannot be read or something in it is wrong; names the file, the user and the key. A broken rule
            file opens nothing: the start is refused.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no rule file is", key=_SETTING)
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the rule file {path}: {error.strerror}; {_SETTING} names it, and empty means no rules",
            key=_SETTING,
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}", key=_SETTING) from error
    return parse_rules(content, str(path))


def parse_rules(content: Mapping[str, Any], origin: str) -> AccessRules:
    """Turn the content of a rule file into rules; see ``load_rules``."""
    for key in content:
        if key != "users":
            raise ConfigError(f"{origin}: unknown key {key}; a rule file has [[users]] tables", key=_SETTING)
    tables = content.get("users", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{origin}: there are no [[users]] tables, so nobody could do anything", key=_SETTING)
    users = [_parse_user(table, f"{origin}: user {number}") for number, table in enumerate(tables, 1)]
    for what, names in (
        ("name", [user.name for user in users]),
        ("access_key", [user.access_key for user in users if user.access_key]),
        ("address", [str(network) for user in users for network in set(user.addresses)]),
    ):
        for name, count in Counter(names).items():
            if count > 1:
                raise ConfigError(f"{origin}: two users have the {what} {name!r}", key=_SETTING)
    return AccessRules(users)


def _parse_user(table: Mapping[str, Any], origin: str) -> User:
    for key in table:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"a user has {', '.join(_KEYS)}"
            raise ConfigError(f"{origin}: unknown key {key}; {hint}", key=_SETTING)
    texts = {key: _text(table, key, origin) for key in _TEXTS}
    if not texts["name"]:
        raise ConfigError(f"{origin}: name is missing", key=_SETTING)
    origin = f"{origin} ({texts['name']})"
    if bool(texts["access_key"]) != bool(texts["secret_key"]):
        raise ConfigError(f"{origin}: access_key and secret_key belong together, one is missing", key=_SETTING)
    if texts["secret_key"] and len(texts["secret_key"]) < SHORTEST_SECRET:
        raise ConfigError(f"{origin}: secret_key has less than {SHORTEST_SECRET} characters", key=_SETTING)
    admin = table.get("admin", False)
    if not isinstance(admin, bool):
        raise ConfigError(f"{origin}: admin is true or false", key=_SETTING)
    lists = {key: _texts(table, key, origin) for key in _LISTS}
    networks = tuple(_network(text, origin) for text in lists["addresses"])
    if not texts["access_key"] and not networks:
        raise ConfigError(f"{origin}: has neither keys nor addresses, so nobody can be this user", key=_SETTING)
    return User(
        name=texts["name"],
        access_key=texts["access_key"],
        secret_key=texts["secret_key"],
        admin=admin,
        publish=Patterns(lists["publish"]),
        subscribe=Patterns(lists["subscribe"]),
        groups=Patterns(lists["groups"]),
        addresses=networks,
    )


def _text(table: Mapping[str, Any], key: str, origin: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{origin}: {key} is a text", key=_SETTING)
    return value


def _texts(table: Mapping[str, Any], key: str, origin: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f'{origin}: {key} is a list of texts, such as ["orders-*"]', key=_SETTING)
    return tuple(value)


def _network(text: str, origin: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f'{origin}: addresses has {text!r}, which is no IP address and no network such as "10.1.0.0/16": {error}',
            key=_SETTING,
        ) from error
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:  # how a socket of both families shows IPv4 peers; they are looked up as IPv4
            return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network
