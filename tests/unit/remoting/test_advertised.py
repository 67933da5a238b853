"""Which address clients are told. Ref: remoting.md 4.9, "Traps"."""

from __future__ import annotations

import fcntl
import socket

import pytest

from headrace.errors import ConfigError
from headrace.remoting import advertised
from headrace.remoting.advertised import bind_remoting, find_advertised, find_outward
from headrace.settings import RemotingSettings
from tests.support.toolchain import require_ipv6


@pytest.mark.parametrize(
    ("setting", "bound", "told"),
    [
        ("", ("127.0.0.1", 10911), "127.0.0.1:10911"),
        ("192.0.2.7", ("0.0.0.0", 10911), "192.0.2.7:10911"),
        ("192.0.2.7:20911", ("0.0.0.0", 10911), "192.0.2.7:20911"),
        ("localhost", ("0.0.0.0", 1), "127.0.0.1:1"),
        ("[::1]:5", ("::", 10911), "[::1]:5"),
        ("::1", ("::", 10911), "[::1]:10911"),
        ("[2001:db8::1]", ("::", 10911), "[2001:db8::1]:10911"),
        ("[2001:db8::1]:20911", ("::", 10911), "[2001:db8::1]:20911"),
        ("2001:db8::1:2091", ("::", 10911), "[2001:db8::1:2091]:10911"),
    ],
)
def test_setting_wins_and_is_an_ip_address(setting: str, bound: tuple[str, int], told: str) -> None:
    assert find_advertised(setting, bound).text == told


def test_wildcard_is_not_told() -> None:
    """Clients cannot connect to 0.0.0.0."""
    assert find_advertised("", ("0.0.0.0", 10911)).host != "0.0.0.0"


NO_ROUTE = ("255.255.255.255", 9)
"""A datagram socket may not be connected to it."""


def test_where_ipv6_alone_leads_outwards_its_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where the broker listens on IPv4 only."""
    require_ipv6()
    monkeypatch.setattr(advertised, "_ELSEWHERE", NO_ROUTE)
    monkeypatch.setattr(advertised, "_ELSEWHERE_V6", ("::1", 9))
    assert find_advertised("", ("::", 10911)).text == "[::1]:10911"
    assert ":" not in find_advertised("", ("0.0.0.0", 10911)).host


@pytest.mark.parametrize(("of_interface", "told"), [("10.77.0.1", "10.77.0.1:10911"), ("127.0.0.1", "127.0.0.1:10911")])
def test_in_a_network_by_itself_the_address_of_an_interface_is_told(
    of_interface: str, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No route leads outwards: a plant's network, or one that containers have to themselves."""
    monkeypatch.setattr(advertised, "_ELSEWHERE", NO_ROUTE)
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: bytes(20) + socket.inet_aton(of_interface))
    assert find_advertised("", ("0.0.0.0", 10911)).text == told
    assert "set remoting.advertised_address" in caplog.text


def test_only_an_address_that_was_found_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertised, "_ELSEWHERE", ("127.0.0.1", 9))  # this machine may have no route outwards
    assert find_outward("", "0.0.0.0") == find_advertised("", ("0.0.0.0", 10911)).host
    assert find_outward("192.0.2.7", "0.0.0.0") == find_outward("", "127.0.0.1") == ""
    monkeypatch.setattr(advertised, "_ELSEWHERE", NO_ROUTE)
    assert find_outward("", "0.0.0.0") == ""


@pytest.mark.parametrize(
    "setting",
    ["no-such-host.invalid", "a..b", "a" * 64, "0.0.0.0", "[::]:5", "127.0.0.1:0", "127.0.0.1:70000", "a:b", "[::1]:x"],
)
def test_host_that_leads_nowhere_is_refused(setting: str) -> None:
    """Registries would refuse it, or clients be sent there."""
    with pytest.raises(ConfigError, match="advertised_address"):
        find_advertised(setting, ("127.0.0.1", 1))


def test_listener_may_be_a_name() -> None:
    """`headrace doctor` has no socket to ask."""
    assert find_advertised("", ("localhost", 10911)).text == "127.0.0.1:10911"
    with pytest.raises(ConfigError, match=r"remoting\.address 'no-such-host\.invalid' cannot be resolved"):
        find_advertised("", ("no-such-host.invalid", 1))


def test_free_ports_come_in_pairs_that_nobody_has() -> None:
    """remoting.md 5.1: the second listener is two below; one that is bound but does not listen yet counts as taken."""
    held: list[socket.socket] = []
    try:
        ports = set()
        for _ in range(200):
            pair = bind_remoting(RemotingSettings(), free_port=True)
            held += pair.values()
            port, vip = (pair[name].getsockname()[1] for name in ("remoting", "remoting_vip"))
            assert vip == port - 2
            ports |= {port, vip}
        assert len(ports) == 400
    finally:
        for sock in held:
            sock.close()


def test_taken_vip_port_is_explained() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1] + 2
        says = r"another address with --remoting\.address, .* --remoting\.vip-listener false"
        with pytest.raises(ConfigError, match=says):
            bind_remoting(RemotingSettings(address=f"127.0.0.1:{port}"), free_port=False)


def test_vip_listener_can_be_off() -> None:
    pair = bind_remoting(RemotingSettings(vip_listener=False), free_port=True)
    assert list(pair) == ["remoting"]
    pair["remoting"].close()
