"""The rule file of access control, and what its users may."""

import logging
from pathlib import Path

import pytest

from headrace.broker.access import AccessRules, Action, load_rules, open_rules
from headrace.errors import AccessDeniedError, ConfigError
from headrace.settings import AccessSettings
from tests.support.access_rules import write_rules

RULES = """
[[users]]
name = "orders"
access_key = "orders-key"
secret_key = "orders-secret"
publish = ["orders", "audit-*"]
subscribe = ["orders", "orders-?"]
groups = ["GID-orders*"]

[[users]]
name = "root"
access_key = "root-key"
secret_key = "root-secret"
admin = true

[[users]]
name = "inside"
addresses = ["10.0.0.0/8", "fd00::/8"]
subscribe = ["*"]

[[users]]
name = "gateway"
addresses = ["10.1.2.3"]
publish = ["*"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_rules(tmp_path, RULES)


@pytest.fixture
def rules(path: Path) -> AccessRules:
    return load_rules(path)


@pytest.mark.parametrize(
    ("action", "topic", "group", "allowed"),
    [
        (Action.PUBLISH, "orders", "", True),
        (Action.PUBLISH, "audit-2026", "", True),
        (Action.PUBLISH, "audit", "", False),
        (Action.PUBLISH, "orders2", "", False),
        (Action.PUBLISH, "Orders", "", False),
        (Action.SUBSCRIBE, "orders-1", "", True),
        (Action.SUBSCRIBE, "orders-12", "", False),
        (Action.SUBSCRIBE, "audit-2026", "", False),
        (Action.SUBSCRIBE, "orders", "GID-orders-x", True),
        (Action.SUBSCRIBE, "orders", "GID-other", False),
        (Action.SUBSCRIBE, "other", "GID-orders", False),
        (Action.SUBSCRIBE, "", "GID-orders", True),
        (Action.ADMIN, "", "", False),
    ],
)
def test_rights_are_patterns_of_topics_and_groups(
    rules: AccessRules, action: Action, topic: str, group: str, allowed: bool
) -> None:
    """X-NET-03: identity, action publish / subscribe / admin, topic, group. The whole name has to fit."""
    assert rules.named("orders").may(action, topic=topic, group=group) is allowed


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
@pytest.mark.parametrize("action", [Action.PUBLISH, Action.SUBSCRIBE])
def test_retry_and_dead_letter_topics_belong_to_their_group(rules: AccessRules, prefix: str, action: Action) -> None:
    """remoting.md 7.1: SUB %RETRY%group, also for sending to it."""
    user = rules.named("orders")
    assert user.may(action, topic=prefix + "GID-orders")
    assert user.may(action, topic=prefix + "GID-orders", group="GID-orders")
    assert not user.may(action, topic=prefix + "GID-other")
    assert not user.may(action, topic=prefix + "GID-orders", group="GID-other")


def test_admin_may_everything(rules: AccessRules) -> None:
    """remoting.md 7.1: admin account."""
    for action in Action:
        assert rules.named("root").may(action, topic="any", group="any")


def test_refusal_names_user_action_and_object(rules: AccessRules) -> None:
    """The text names the thing."""
    with pytest.raises(AccessDeniedError, match="user 'orders' has no right to publish with topic 'x'"):
        rules.named("orders").require(Action.PUBLISH, topic="x")
    with pytest.raises(AccessDeniedError, match="user 'orders' has no right to administer"):
        rules.named("orders").require(Action.ADMIN)
    rules.named("orders").require(Action.PUBLISH, topic="orders")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.9.9.9", "inside"),
        ("10.1.2.3", "gateway"),
        ("::ffff:10.1.2.3", "gateway"),
        ("fd00::1%eth0", "inside"),
        ("11.0.0.1", None),
        ("", None),
        ("host.example", None),
    ],
)
def test_address_stands_for_the_user_with_the_narrowest_network(
    rules: AccessRules, host: str, name: str | None
) -> None:
    """remoting.md 7.1, white list: an address is bound to one user's rights."""
    user = rules.user_of_address(host)
    assert (user.name if user else None) == name


@pytest.mark.parametrize("address", ["::ffff:10.9.8.7", "::ffff:10.9.0.0/112"])
def test_ipv4_address_may_be_written_as_an_ipv6_socket_shows_it(path: Path, address: str) -> None:
    """Who listens on [::] sees IPv4 peers so."""
    path.write_text(f"[[users]]\nname = 'a'\naddresses = ['{address}']")
    rules = load_rules(path)
    for host in ("10.9.8.7", "::ffff:10.9.8.7"):
        user = rules.user_of_address(host)
        assert user is not None
        assert user.name == "a"
    assert rules.user_of_address("10.8.8.7") is None


def test_user_is_found_by_access_key(rules: AccessRules) -> None:
    """A user without keys is not found by an empty one."""
    user = rules.user_of_key("orders-key")
    assert user is not None
    assert user.name == "orders"
    assert "orders-secret" not in repr(user)
    assert rules.user_of_key("") is None
    assert rules.user_of_key("other") is None


KEYS = 'access_key = "k"\nsecret_key = "secret"\n'


def test_byte_order_mark_of_a_rule_file_is_passed_over(path: Path) -> None:
    """Windows' editors put one in front."""
    path.write_bytes(b"\xef\xbb\xbf[[users]]\nname = 'a'\n" + KEYS.encode())
    assert list(load_rules(path).users) == ["a"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"no \[\[users\]\]"),
        ("users = 3", r"no \[\[users\]\]"),
        ("[[user]]\nname = 'a'", "unknown key user"),
        ("[[users]]\nnam = 'a'", "user 1: unknown key nam; did you mean name"),
        ("[[users]]\n" + KEYS, "user 1: name is missing"),
        ("[[users]]\nname = 1\n" + KEYS, "user 1: name is a text"),
        ("[[users]]\nname = 'a'", r"user 1 \(a\): has neither keys nor addresses"),
        ("[[users]]\nname = 'a'\naccess_key = 'k'", "belong together"),
        ("[[users]]\nname = 'a'\naccess_key = 'k'\nsecret_key = '12345'", "less than 6 characters"),
        ("[[users]]\nname = 'a'\nadmin = 'yes'\n" + KEYS, "admin is true or false"),
        ("[[users]]\nname = 'a'\npublish = 'x'\n" + KEYS, "publish is a list"),
        ("[[users]]\nname = 'a'\npublish = ['']\n" + KEYS, "publish is a list"),
        ("[[users]]\nname = 'a'\naddresses = ['10.0.0.1/8']", "10.0.0.1/8"),
        ("[[users]]\nname = 'a'\naddresses = ['10.1.*']", r"10\.1\.\*"),
        (
            "[[users]]\nname = 'a'\n" + KEYS + "[[users]]\nname = 'a'\naddresses = ['::1']",
            "two users have the name 'a'",
        ),
        ("[[users]]\nname = 'a'\n" + KEYS + "[[users]]\nname = 'b'\n" + KEYS, "two users have the access_key 'k'"),
        (
            "[[users]]\nname = 'a'\naddresses = ['10.0.0.1']\n"
            "[[users]]\nname = 'b'\naddresses = ['::ffff:10.0.0.1/128']",
            "two users have the address '10.0.0.1/32'",
        ),
        ("[[users]", "not TOML"),
    ],
)
def test_broken_rule_file_is_refused_and_says_where(path: Path, text: str, says: str) -> None:
    """A broken rule file opens nothing: the start is refused."""
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_rules(path)
    assert str(path) in str(caught.value)
    assert "12345'" not in str(caught.value)


def test_missing_rule_file_is_refused(tmp_path: Path) -> None:
    """Access control must not be off because of a slip in a path."""
    with pytest.raises(
        ConfigError, match=r"cannot read the rule file .*gone\.toml: No such file.*; access\.rules_file"
    ):
        load_rules(tmp_path / "gone.toml")


def test_file_that_others_can_read_is_warned_about(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It holds secrets."""
    with caplog.at_level(logging.WARNING):
        open_rules(AccessSettings(rules_file=str(path)))
        assert caplog.text == ""
        path.chmod(0o644)
        open_rules(AccessSettings(rules_file=str(path)))
    assert "open to every user" in caplog.text


def test_settings_switch_it_on_and_name_the_broker_s_user(path: Path) -> None:
    """Off by default; a broker user without keys or rules is a mistake in the settings."""
    assert open_rules(AccessSettings()) is None
    rules = open_rules(AccessSettings(rules_file=str(path), broker_user="root"))
    assert rules is not None
    for settings in (
        AccessSettings(broker_user="root"),
        AccessSettings(rules_file=str(path), broker_user="nobody"),
        AccessSettings(rules_file=str(path), broker_user="inside"),
    ):
        with pytest.raises(ConfigError, match=r"access\.broker_user"):
            open_rules(settings)
