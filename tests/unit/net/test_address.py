"""Addresses as text."""

from __future__ import annotations

import os
import socket

import pytest

from headrace.errors import ConfigError
from headrace.net.address import (
    born_of,
    format_address,
    is_loopback,
    leads_to,
    own_name,
    parse_address,
    parse_peer,
    parse_registries,
    peer_of,
)

_NO_ADDRESSES = ["", "4150", "h:", "h:x", "h:65536", "h:-1", "h:٣", "h:" + "1" * 5000]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        ("[::1]:0", ("::1", 0)),
        (":4150", ("", 4150)),
        ("h:65535", ("h", 65535)),
    ],
)
def test_addresses(text, parsed):
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", _NO_ADDRESSES)
def test_wrong_addresses(text):
    with pytest.raises(ConfigError):
        parse_address(text)


def test_a_peer_has_a_host_and_a_port():
    assert parse_peer("[::1]:9876") == ("::1", 9876)
    assert parse_peer(" 127.0.0.1:9876\n") == ("127.0.0.1", 9876)
    for address in (*_NO_ADDRESSES, ":9876", "h:0", "[]:1"):
        with pytest.raises(ValueError, match="is no address: it is host:port"):
            parse_peer(address)


def test_socket_names():
    assert format_address(("1.2.3.4", 5)) == "1.2.3.4:5"
    assert format_address(("::1", 5, 0, 0)) == "[::1]:5"
    assert format_address("") == "@"


def test_an_ipv4_client_of_a_listener_for_both_has_its_own_address():
    """nsq.md 3.4, remote_address: whoever listens on [::] sees such clients mapped."""
    assert peer_of(("::ffff:1.2.3.4", 5, 0, 0)) == peer_of(("1.2.3.4", 5)) == ("1.2.3.4", 5)
    assert peer_of(("::1", 5, 0, 0)) == ("::1", 5)
    assert peer_of("") is None


def test_peers_as_records_have_them():
    """A-STORE-18."""
    assert born_of(("1.2.3.4", 5)) == (0x01020304 << 32 | 5, None)
    assert born_of(("fe80::1%eth0", 5)) == (0, bytes.fromhex("fe80000000000000000000000000000100000005"))
    assert born_of(("::1", 10911)) == (0, bytes(15) + b"\x01" + (10911).to_bytes(4, "big"))
    assert born_of(None) == (0, None)


def test_who_can_reach_an_address():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "host.example")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "told"), [(b"a-host", "a-host"), ("\u00fc".encode(), "\u00fc"), (b"\xfc", "\\xfc"), (b"", "localhost")]
)
def test_every_machine_has_a_name(name: bytes, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latin-1 ended a start with a traceback; without any name the registry did not take the broker."""
    monkeypatch.setattr(socket, "gethostname", lambda: os.fsdecode(name))
    assert own_name() == told


@pytest.mark.parametrize(
    ("setting", "own", "registries"),
    [
        ("", "", []),
        ("", "127.0.0.1:9876", ["127.0.0.1:9876"]),
        ("", "0.0.0.0:9876", ["127.0.0.1:9876"]),
        ("", "[::]:9876", ["127.0.0.1:9876"]),  # [::1] is not there where IPv6 is off, as in many containers
        ("a:1, b:2;c:3", "127.0.0.1:9876", ["a:1", "b:2", "c:3"]),
    ],
)
def test_registries_of_the_settings(setting: str, own: str, registries: list[str]) -> None:
    """Empty = the registry in this process; RocketMQ separates with semicolons."""
    assert parse_registries(setting, own) == registries


@pytest.mark.parametrize(
    ("listener", "peer", "local", "leads"),
    [
        ("127.0.0.1:4160", ("127.0.0.1", 4160), ("127.0.0.1", 50000), True),
        ("127.0.0.1:4160", ("127.0.0.2", 4160), ("127.0.0.1", 50000), False),
        ("10.0.0.1:4160", ("10.0.0.1", 4160), ("10.0.0.1", 50000), True),
        ("0.0.0.0:4160", ("10.0.0.1", 4160), ("10.0.0.1", 50000), True),
        ("0.0.0.0:4160", ("127.0.0.2", 4160), ("127.0.0.1", 50000), True),
        ("0.0.0.0:4160", ("10.0.0.1", 4161), ("10.0.0.1", 50000), False),
        ("0.0.0.0:4160", ("10.0.0.2", 4160), ("10.0.0.1", 50000), False),
        ("0.0.0.0:4160", ("::1", 4160), ("::1", 50000), False),
        ("[::]:4160", ("::1", 4160), ("::1", 50000), True),
        ("[::]:4160", ("10.0.0.1", 4160), ("10.0.0.1", 50000), True),
        ("[fd00::1]:4160", ("fd00::1", 4160), ("fd00::1", 50000), True),
    ],
)
def test_a_connection_to_a_listener_of_this_machine(
    listener: str, peer: tuple[str, int], local: tuple[str, int], leads: bool
) -> None:
    assert leads_to(listener, peer, local) == leads
