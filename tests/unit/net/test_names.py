"""Names of hosts: found out beside the event loop, and by nobody's leave."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from headrace.net.names import MAX_LOOKUPS, Names

V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd77::1", 0, 0, 0))
V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.77.0.1", 0))


class Resolver:
    """Answers when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: list[Any] | Exception) -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self._answer = answer
        monkeypatch.setattr(socket, "getaddrinfo", self._find)

    def _find(self, host: str, *_args: object, **_options: object) -> list[Any]:
        self.asked.append(host)
        assert self.may_answer.wait(10)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize("host", ["10.77.0.1", "fd77::1"])
def test_an_address_is_not_looked_up(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, [])
    assert asyncio.run(Names().addresses(host)) == [host]
    assert not resolver.asked


def test_ipv4_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    Resolver(monkeypatch, [V6, V4]).may_answer.set()
    assert asyncio.run(Names().addresses("registry")) == ["10.77.0.1", "fd77::1"]


@pytest.mark.parametrize("error", [socket.gaierror(-3, "no resolver"), UnicodeError("label empty")])
def test_a_name_that_is_not_found_is_an_error_of_the_system(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    Resolver(monkeypatch, error).may_answer.set()
    with pytest.raises(OSError, match=r"no resolver|label empty"):
        asyncio.run(Names().addresses("registry"))


def test_lookups_that_are_not_answered_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are they waited for: the event loop ends, and so would the process."""
    resolver = Resolver(monkeypatch, [V4])
    names = Names()

    async def give_up() -> None:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await names.addresses("registry")

    asyncio.run(give_up())
    assert resolver.asked == ["registry"]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "headrace-name")
    resolver.may_answer.set()


def test_who_waits_for_the_same_name_shares_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver(monkeypatch, [V4])
    names = Names()

    async def ask() -> list[list[str]]:
        asking = [asyncio.create_task(names.addresses("registry")) for _ in range(3)]
        await asyncio.sleep(0)
        resolver.may_answer.set()
        return await asyncio.gather(*asking)

    assert asyncio.run(ask()) == [["10.77.0.1"]] * 3
    assert resolver.asked == ["registry"]


def test_names_that_are_not_answered_take_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sets other names again and again had a thread started for each; the others wait for their turn."""
    resolver = Resolver(monkeypatch, [V4])
    names = Names()
    hosts = [f"host-{number}" for number in range(3 * MAX_LOOKUPS)]

    async def ask() -> list[list[str] | BaseException]:
        gave_up = [asyncio.create_task(names.addresses(f"gone-{host}")) for host in hosts]
        asking = [asyncio.create_task(names.addresses(host)) for host in hosts]
        await asyncio.sleep(0.02)
        threads = [thread for thread in threading.enumerate() if thread.name == "headrace-name"]
        assert len(threads) == len(resolver.asked) == MAX_LOOKUPS
        for task in gave_up:
            task.cancel()
        await asyncio.sleep(0)
        resolver.may_answer.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    assert asyncio.run(ask()) == [["10.77.0.1"]] * len(hosts)
    # Those whose turn had not come when nobody waited for them any more were not looked up.
    assert sorted(resolver.asked[MAX_LOOKUPS:]) == sorted(hosts)
    assert not names._lookups


def test_a_thread_that_the_system_refuses_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="start new thread"):
        asyncio.run(Names().addresses("registry"))
